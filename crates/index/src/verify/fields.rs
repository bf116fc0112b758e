//! The known members of a JSON object, and the types of their values.

use std::fmt::LowerHex;

use alloy_primitives::{Address, B64, B256, Bloom, Bytes, U256, hex};

use super::error::Error;

/// Declares a list of member names, and for each a constant with its index in the list: a field.
macro_rules! names {
    ($(#[$doc:meta])* $list:ident, $index:ident: $($field:ident = $name:literal,)+) => {
        #[allow(clippy::upper_case_acronyms, non_camel_case_types)]
        enum $index { $($field,)+ COUNT }
        $(pub(super) const $field: usize = $index::$field as usize;)+
        $(#[$doc])*
        pub(super) const $list: [&str; $index::COUNT as usize] = [$($name,)+];
    };
}
pub(super) use names;

/// Maximum number of members of an object whose order is stored. No known node writes more members.
/// A search finds the members beyond this number.
const ORDER_MAX: usize = 40;
const UNKNOWN: u8 = u8::MAX;

/// The names of an object's known members, and the order of the members in the last object. A node
/// writes all objects of a kind in the same order, so one comparison finds most names.
#[derive(Debug)]
pub(super) struct Layout<const N: usize> {
    names: &'static [&'static str; N],
    /// For each member of the last object, its field; [`UNKNOWN`] for other members.
    order: [u8; ORDER_MAX],
}

impl<const N: usize> Layout<N> {
    pub(super) fn new(names: &'static [&'static str; N]) -> Self {
        const { assert!(N < UNKNOWN as usize) };
        Self { names, order: [UNKNOWN; ORDER_MAX] }
    }

    pub(super) fn name(&self, field: usize) -> &'static str {
        self.names[field]
    }

    /// Returns the fields of an object, all of them missing.
    pub(super) fn fields<'a>(&self) -> Fields<'a, N> {
        Fields { names: self.names, values: [&[]; N], members: 0 }
    }

    /// Returns the field of this name, which is the member with this `index` in its object.
    #[inline]
    pub(super) fn field(&mut self, index: usize, name: &[u8]) -> Result<Option<usize>, Error> {
        let expected = self.order.get(index).copied().unwrap_or(UNKNOWN);
        if let Some(known) = self.names.get(usize::from(expected))
            && known.as_bytes() == name
        {
            return Ok(Some(usize::from(expected)));
        }
        let field = self.find(name)?;
        if let (Some(order), Some(field)) = (self.order.get_mut(index), field) {
            *order = field as u8; // below N, which is below 255
        }
        Ok(field)
    }

    /// Returns the field of a name, by a search.
    pub(super) fn find(&self, name: &[u8]) -> Result<Option<usize>, Error> {
        let is_equal = |known: &&str| known.as_bytes() == name;
        if let Some(field) = self.names.iter().position(is_equal) {
            return Ok(Some(field));
        }
        // Some letters beyond ASCII fold to an `s` or a `k`, so a name with such a letter may be an
        // alias too.
        let is_alias = |known: &&str| known.as_bytes().eq_ignore_ascii_case(name);
        if self.names.iter().any(is_alias) || !name.is_ascii() {
            return Err(Error::malformed(name, "a name that readers do not take for another")
                .in_member(&String::from_utf8_lossy(&name[..name.len().min(80)])));
        }
        Ok(None)
    }
}

/// Marks a member that was found, but whose value was not stored.
const FOUND: &[u8] = b"?";

/// The raw values of an object's known members.
#[derive(Debug)]
pub(super) struct Fields<'a, const N: usize> {
    names: &'static [&'static str; N],
    /// The value of each field; empty if the member is missing.
    values: [&'a [u8]; N],
    /// Members counted so far.
    members: usize,
}

impl<'a, const N: usize> Fields<'a, N> {
    /// Counts a member, and returns how many came before.
    #[inline]
    pub(super) fn next_member(&mut self) -> usize {
        self.members += 1;
        self.members - 1
    }

    /// Marks a member as found. Returns false if it was found before.
    #[inline]
    pub(super) fn mark_found(&mut self, field: usize) -> bool {
        std::mem::replace(&mut self.values[field], FOUND).is_empty()
    }

    #[inline]
    pub(super) fn set(&mut self, field: usize, value: &'a [u8]) {
        self.values[field] = value;
    }

    /// Returns the raw value, or `None` if it is missing or null.
    #[inline]
    pub(super) fn raw(&self, field: usize) -> Option<&'a [u8]> {
        let value = self.values[field];
        (!value.is_empty() && value != b"null").then_some(value)
    }

    /// Returns the raw value.
    ///
    /// # Errors
    /// Fails if it is missing or null.
    pub(super) fn required_raw(
        &self,
        field: usize,
        allowed: &'static str,
    ) -> Result<&'a [u8], Error> {
        self.raw(field).ok_or_else(|| Error::missing(allowed).in_member(self.names[field]))
    }

    /// Returns the parsed value, or `None` if it is missing or null.
    ///
    /// # Errors
    /// Fails if it is malformed.
    #[inline]
    pub(super) fn optional<T: Value>(&self, field: usize) -> Result<Option<T>, Error> {
        let Some(raw) = self.raw(field) else { return Ok(None) };
        match T::read(raw) {
            Some(value) => Ok(Some(value)),
            None => Err(Error::malformed(raw, T::ALLOWED).in_member(self.names[field])),
        }
    }

    /// Returns the value.
    ///
    /// # Errors
    /// Fails if it is missing, null or malformed.
    #[inline]
    pub(super) fn required<T: Value>(&self, field: usize) -> Result<T, Error> {
        match self.optional(field)? {
            Some(value) => Ok(value),
            None => Err(Error::missing(T::ALLOWED).in_member(self.names[field])),
        }
    }

    /// Checks that the value is the computed one.
    ///
    /// # Errors
    /// Fails if it is missing, null, malformed or different.
    #[inline]
    pub(super) fn check_required<T: Value>(
        &self,
        field: usize,
        computed: &T,
        from: &'static str,
    ) -> Result<(), Error> {
        let found: T = self.required(field)?;
        if found == *computed { Ok(()) } else { Err(self.mismatch(field, computed, from)) }
    }

    /// Checks that the value is the computed one, unless it is missing or null.
    ///
    /// # Errors
    /// Fails if it is malformed or different.
    #[inline]
    pub(super) fn check_optional<T: Value>(
        &self,
        field: usize,
        computed: &T,
        from: &'static str,
    ) -> Result<(), Error> {
        match self.optional::<T>(field)? {
            Some(found) if found != *computed => Err(self.mismatch(field, computed, from)),
            _ => Ok(()),
        }
    }

    /// Checks that the value is missing or null.
    ///
    /// # Errors
    /// Fails if it is present.
    pub(super) fn check_absent(&self, field: usize, allowed: &'static str) -> Result<(), Error> {
        match self.raw(field) {
            Some(raw) => Err(Error::malformed(raw, allowed).in_member(self.names[field])),
            None => Ok(()),
        }
    }

    /// Returns the error for a value that differs from the computed one.
    #[cold]
    pub(super) fn mismatch<T: Value>(
        &self,
        field: usize,
        computed: &T,
        from: &'static str,
    ) -> Error {
        self.mismatch_in_words(field, &format!("{computed:#x}"), from)
    }

    /// Returns the error for a value that differs from the computed one, which is given in words.
    #[cold]
    pub(super) fn mismatch_in_words(
        &self,
        field: usize,
        computed: &str,
        from: &'static str,
    ) -> Error {
        let found = String::from_utf8_lossy(self.values[field]);
        Error::mismatch(found.trim_matches('"'), computed, from).in_member(self.names[field])
    }

    /// Returns the error for a malformed value.
    #[cold]
    pub(super) fn form_error(&self, field: usize, allowed: &'static str) -> Error {
        self.error(field, Error::malformed(self.values[field], allowed))
    }

    /// Returns the error of a value, with its member's name.
    #[cold]
    pub(super) fn error(&self, field: usize, error: Error) -> Error {
        error.in_member(self.names[field])
    }
}

/// A type of JSON values.
pub(super) trait Value: Sized + PartialEq + LowerHex {
    /// The allowed values, as errors name them.
    const ALLOWED: &'static str;

    /// Parses a raw JSON value; `None` if it is malformed.
    fn read(raw: &[u8]) -> Option<Self>;
}

/// Implements [`Value`] for arrays of bytes: two hexadecimal digits for each.
macro_rules! bytes {
    ($($type:ty: $allowed:literal,)+) => { $(
        impl Value for $type {
            const ALLOWED: &'static str = $allowed;

            #[inline]
            fn read(raw: &[u8]) -> Option<Self> {
                let mut bytes = <$type>::ZERO;
                let digits = digits(raw)?;
                if digits.len() != 2 * bytes.len() {
                    return None;
                }
                hex::decode_to_slice(digits, bytes.as_mut_slice()).ok()?;
                Some(bytes)
            }
        }
    )+ };
}

bytes! {
    B64: "0x and 16 hexadecimal digits",
    Address: "0x and 40 hexadecimal digits",
    B256: "0x and 64 hexadecimal digits",
    Bloom: "0x and 512 hexadecimal digits",
}

impl Value for Bytes {
    const ALLOWED: &'static str = "0x and an even number of hexadecimal digits";

    fn read(raw: &[u8]) -> Option<Self> {
        // The decoder would skip a second prefix.
        let digits = digits(raw).filter(|digits| !digits.starts_with(b"0x"))?;
        hex::decode(digits).ok().map(Bytes::from)
    }
}

impl Value for u64 {
    const ALLOWED: &'static str = "0x and 1 to 16 hexadecimal digits without leading zeros";

    #[inline]
    fn read(raw: &[u8]) -> Option<Self> {
        parse_u128(canonical_digits(raw, 16)?).map(|number| number as u64) // 16 digits fit
    }
}

impl Value for u128 {
    const ALLOWED: &'static str = "0x and 1 to 32 hexadecimal digits without leading zeros";

    #[inline]
    fn read(raw: &[u8]) -> Option<Self> {
        parse_u128(canonical_digits(raw, 32)?)
    }
}

impl Value for U256 {
    const ALLOWED: &'static str = "0x and 1 to 64 hexadecimal digits without leading zeros";

    #[inline]
    fn read(raw: &[u8]) -> Option<Self> {
        parse_u256(canonical_digits(raw, 64)?)
    }
}

/// A number that some nodes write as a word of 32 bytes with leading zeros: `r` and `s`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Padded(pub(super) U256);

impl LowerHex for Padded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        LowerHex::fmt(&self.0, f)
    }
}

impl Value for Padded {
    const ALLOWED: &'static str = "0x and 1 to 64 hexadecimal digits";

    fn read(raw: &[u8]) -> Option<Self> {
        let digits = digits(raw)?;
        if (1..=64).contains(&digits.len()) { parse_u256(digits).map(Padded) } else { None }
    }
}

/// Returns the digits between `"0x` and the closing quote.
#[inline]
pub(super) fn digits(raw: &[u8]) -> Option<&[u8]> {
    match raw {
        [b'"', b'0', b'x', digits @ .., b'"'] => Some(digits),
        _ => None,
    }
}

/// Returns the digits of a quantity: at least one, no leading zeros (execution-apis
/// `src/schemas/base-types.yaml`, `uint`).
#[inline]
fn canonical_digits(raw: &[u8], digits_max: usize) -> Option<&[u8]> {
    let digits = digits(raw)?;
    let has_leading_zero = digits.len() > 1 && digits[0] == b'0';
    ((1..=digits_max).contains(&digits.len()) && !has_leading_zero).then_some(digits)
}

/// Parses at most 32 digits.
#[inline]
fn parse_u128(digits: &[u8]) -> Option<u128> {
    let mut invalid = 0;
    let parsed = digits.iter().fold(0u128, |sum, digit| {
        let nibble = NIBBLES[usize::from(*digit)];
        invalid |= nibble;
        sum << 4 | u128::from(nibble & 0xf)
    });
    (invalid & 0xf0 == 0).then_some(parsed)
}

/// Parses at most 64 digits.
#[inline]
fn parse_u256(digits: &[u8]) -> Option<U256> {
    let (high, low) = digits.split_at(digits.len().saturating_sub(32));
    let (high, low) = (parse_u128(high)?, parse_u128(low)?);
    Some(U256::from_limbs([low as u64, (low >> 64) as u64, high as u64, (high >> 64) as u64]))
}

const NIBBLES: [u8; 256] = {
    let mut nibbles = [0xff; 256];
    let mut value = 0;
    while value < 16 {
        nibbles[b"0123456789abcdef"[value] as usize] = value as u8;
        nibbles[b"0123456789ABCDEF"[value] as usize] = value as u8;
        value += 1;
    }
    nibbles
};
