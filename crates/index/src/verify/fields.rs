//! The known members of a JSON object, and the types of their values. A field is the index of a
//! member's name in the list of known names.

use std::fmt::LowerHex;

use alloy_primitives::{Address, B64, B256, Bloom, Bytes, U256, hex};

use super::error::Error;

/// Declares a list of member names, and a constant for each name. The constant is the field of the
/// name: its index in the list. After the name of the list comes the name of an enum, which only
/// numbers the fields.
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

/// The order is stored for this number of members at the start of an object. No known node writes
/// more members. Members beyond this number are found by a search.
const ORDER_MAX: usize = 40;
/// Stands in the stored order for a member whose field is not known yet. Also stands for a member
/// with an unknown name.
const UNKNOWN: u8 = u8::MAX;

/// The names of an object's known members, and the order of the members in the objects read so far.
/// A node writes the members in the same order in all objects of a type. So one comparison usually
/// finds the field of a name.
#[derive(Debug)]
pub(super) struct Layout<const N: usize> {
    names: &'static [&'static str; N],
    /// The field of each member by its position in the object, or [`UNKNOWN`].
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

    /// Returns fields without values, for an object that is about to be read.
    pub(super) fn fields<'a>(&self) -> Fields<'a, N> {
        Fields { names: self.names, values: [&[]; N], member_count: 0 }
    }

    /// Returns the field of a name, or `None` for an unknown name. `position` is the position of
    /// the member in its object.
    #[inline]
    pub(super) fn field(&mut self, position: usize, name: &[u8]) -> Result<Option<usize>, Error> {
        let expected_field = self.order.get(position).copied().unwrap_or(UNKNOWN);
        if let Some(expected_name) = self.names.get(usize::from(expected_field))
            && expected_name.as_bytes() == name
        {
            return Ok(Some(usize::from(expected_field)));
        }
        let field = self.find(name)?;
        if let (Some(order), Some(field)) = (self.order.get_mut(position), field) {
            *order = field as u8; // The field is below N, which is below 255.
        }
        Ok(field)
    }

    /// Searches for the field of a name. Returns `None` for an unknown name. Fails if another
    /// parser could take the name for a known name.
    pub(super) fn find(&self, name: &[u8]) -> Result<Option<usize>, Error> {
        let is_equal = |known: &&str| known.as_bytes() == name;
        if let Some(field) = self.names.iter().position(is_equal) {
            return Ok(Some(field));
        }
        // Parsers that ignore letter case also treat some letters beyond ASCII as an `s` or a `k`.
        // So a name that is not ASCII may stand for a known name too.
        let is_alias = |known: &&str| known.as_bytes().eq_ignore_ascii_case(name);
        if self.names.iter().any(is_alias) || !name.is_ascii() {
            return Err(Error::malformed(name, "a name that readers do not take for another")
                .in_member(&String::from_utf8_lossy(&name[..name.len().min(80)])));
        }
        Ok(None)
    }
}

/// The value of a member that was found, but whose raw value was not stored.
const FOUND: &[u8] = b"?";

/// The raw values of an object's known members.
#[derive(Debug)]
pub(super) struct Fields<'a, const N: usize> {
    names: &'static [&'static str; N],
    /// The raw value of each field; empty if the member is missing.
    values: [&'a [u8]; N],
    /// Number of members of the object so far, including unknown members.
    member_count: usize,
}

impl<'a, const N: usize> Fields<'a, N> {
    /// Counts a member, and returns its position: the number of members before it.
    #[inline]
    pub(super) fn next_position(&mut self) -> usize {
        self.member_count += 1;
        self.member_count - 1
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
    /// Fails if the value is missing or null.
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
    /// Fails if the value is malformed.
    #[inline]
    pub(super) fn optional<T: Value>(&self, field: usize) -> Result<Option<T>, Error> {
        let Some(raw) = self.raw(field) else { return Ok(None) };
        match T::read(raw) {
            Some(value) => Ok(Some(value)),
            None => Err(Error::malformed(raw, T::ALLOWED).in_member(self.names[field])),
        }
    }

    /// Returns the parsed value.
    ///
    /// # Errors
    /// Fails if the value is missing, null or malformed.
    #[inline]
    pub(super) fn required<T: Value>(&self, field: usize) -> Result<T, Error> {
        match self.optional(field)? {
            Some(value) => Ok(value),
            None => Err(Error::missing(T::ALLOWED).in_member(self.names[field])),
        }
    }

    /// Checks that the value equals the computed value. `source` describes how it was computed.
    ///
    /// # Errors
    /// Fails if the value is missing, null, malformed or different.
    #[inline]
    pub(super) fn check_required<T: Value>(
        &self,
        field: usize,
        computed: &T,
        source: &'static str,
    ) -> Result<(), Error> {
        let found: T = self.required(field)?;
        if found == *computed { Ok(()) } else { Err(self.mismatch(field, computed, source)) }
    }

    /// Checks that the value is missing, null or equal to the computed value.
    ///
    /// # Errors
    /// Fails if the value is malformed or different.
    #[inline]
    pub(super) fn check_optional<T: Value>(
        &self,
        field: usize,
        computed: &T,
        source: &'static str,
    ) -> Result<(), Error> {
        match self.optional::<T>(field)? {
            Some(found) if found != *computed => Err(self.mismatch(field, computed, source)),
            _ => Ok(()),
        }
    }

    /// Checks that the value is missing or null.
    ///
    /// # Errors
    /// Fails if the value is present.
    pub(super) fn check_absent(&self, field: usize, allowed: &'static str) -> Result<(), Error> {
        match self.raw(field) {
            Some(raw) => Err(Error::malformed(raw, allowed).in_member(self.names[field])),
            None => Ok(()),
        }
    }

    /// Returns the error for a value that differs from the computed value.
    #[cold]
    pub(super) fn mismatch<T: Value>(
        &self,
        field: usize,
        computed: &T,
        source: &'static str,
    ) -> Error {
        self.mismatch_in_words(field, &format!("{computed:#x}"), source)
    }

    /// Returns the error for a value that differs from the computed value. `computed` describes the
    /// computed value in words.
    #[cold]
    pub(super) fn mismatch_in_words(
        &self,
        field: usize,
        computed: &str,
        source: &'static str,
    ) -> Error {
        let found = String::from_utf8_lossy(self.values[field]);
        Error::mismatch(found.trim_matches('"'), computed, source).in_member(self.names[field])
    }

    /// Returns the error for a malformed value.
    #[cold]
    pub(super) fn form_error(&self, field: usize, allowed: &'static str) -> Error {
        self.error(field, Error::malformed(self.values[field], allowed))
    }

    /// Adds the member's name to the path of an error in its value.
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

/// Implements [`Value`] for arrays of bytes, which JSON writes as two hexadecimal digits per byte.
/// Each line has a type and its [`Value::ALLOWED`].
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
        // The decoder would accept and skip a second `0x`.
        let digits = digits(raw).filter(|digits| !digits.starts_with(b"0x"))?;
        hex::decode(digits).ok().map(Bytes::from)
    }
}

impl Value for u64 {
    const ALLOWED: &'static str = "0x and 1 to 16 hexadecimal digits without leading zeros";

    #[inline]
    fn read(raw: &[u8]) -> Option<Self> {
        // 16 digits fit in 64 bits.
        parse_u128(canonical_digits(raw, 16)?).map(|number| number as u64)
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

/// A number that some nodes pad with leading zeros to 32 bytes: `r` or `s` of a signature.
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

/// Returns the bytes between `"0x` and the closing quote, or `None` for any other value. The bytes
/// may be other characters than digits.
#[inline]
pub(super) fn digits(raw: &[u8]) -> Option<&[u8]> {
    match raw {
        [b'"', b'0', b'x', digits @ .., b'"'] => Some(digits),
        _ => None,
    }
}

/// Returns the digits of a quantity: at least one, at most `digits_max`, no leading zeros
/// (execution-apis `src/schemas/base-types.yaml`, `uint`).
#[inline]
fn canonical_digits(raw: &[u8], digits_max: usize) -> Option<&[u8]> {
    let digits = digits(raw)?;
    let has_leading_zero = digits.len() > 1 && digits[0] == b'0';
    ((1..=digits_max).contains(&digits.len()) && !has_leading_zero).then_some(digits)
}

/// Parses at most 32 digits.
#[inline]
fn parse_u128(digits: &[u8]) -> Option<u128> {
    // The values of all digits, combined by OR. The result exceeds 0xf if a digit is invalid.
    let mut combined = 0;
    let parsed = digits.iter().fold(0u128, |sum, digit| {
        let nibble = NIBBLES[usize::from(*digit)];
        combined |= nibble;
        sum << 4 | u128::from(nibble & 0xf)
    });
    (combined & 0xf0 == 0).then_some(parsed)
}

/// Parses at most 64 digits.
#[inline]
fn parse_u256(digits: &[u8]) -> Option<U256> {
    let (high, low) = digits.split_at(digits.len().saturating_sub(32));
    let (high, low) = (parse_u128(high)?, parse_u128(low)?);
    Some(U256::from_limbs([low as u64, (low >> 64) as u64, high as u64, (high >> 64) as u64]))
}

/// The value of each hexadecimal digit. Other bytes have the value 0xff.
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
