//! The members of one JSON object by place, and how their values are read.

use std::fmt::LowerHex;

use alloy_primitives::{Address, B64, B256, Bloom, Bytes, U256, hex};

use super::fault::Fault;

/// A list of names of members, and a constant with the place in it for each.
macro_rules! names {
    ($(#[$doc:meta])* $list:ident, $place_of:ident: $($place:ident = $name:literal,)+) => {
        #[allow(clippy::upper_case_acronyms, non_camel_case_types)]
        enum $place_of { $($place,)+ COUNT }
        $(pub(super) const $place: usize = $place_of::$place as usize;)+
        $(#[$doc])*
        pub(super) const $list: [&str; $place_of::COUNT as usize] = [$($name,)+];
    };
}
pub(super) use names;

/// More members than any object has that a known node writes; those beyond are found, only later.
const TURNS: usize = 40;
const UNKNOWN: u8 = u8::MAX;

/// The names of an object's members, and the order in which they came last time. A node writes
/// all objects of a kind in one order, so that one comparison finds a name.
#[derive(Debug)]
pub(super) struct Layout<const N: usize> {
    names: &'static [&'static str; N],
    order: [u8; TURNS],
}

impl<const N: usize> Layout<N> {
    pub(super) fn new(names: &'static [&'static str; N]) -> Self {
        const { assert!(N < UNKNOWN as usize) };
        Self { names, order: [UNKNOWN; TURNS] }
    }

    pub(super) fn name(&self, place: usize) -> &'static str {
        self.names[place]
    }

    /// The fields of an object of this kind, none of them read yet.
    pub(super) fn fields<'a>(&self) -> Fields<'a, N> {
        Fields { names: self.names, values: [&[]; N], turn: 0 }
    }

    /// The place of the name that comes as the `turn`-th of its object.
    #[inline]
    pub(super) fn place(&mut self, turn: usize, name: &[u8]) -> Result<Option<usize>, Fault> {
        let guess = self.order.get(turn).copied().unwrap_or(UNKNOWN);
        if let Some(known) = self.names.get(usize::from(guess))
            && known.as_bytes() == name
        {
            return Ok(Some(usize::from(guess)));
        }
        let place = self.find(name)?;
        if let (Some(order), Some(place)) = (self.order.get_mut(turn), place) {
            *order = place as u8; // below N, which is below 255
        }
        Ok(place)
    }

    /// The place of a name without knowledge of the order.
    pub(super) fn find(&self, name: &[u8]) -> Result<Option<usize>, Fault> {
        let same = |known: &&str| known.as_bytes() == name;
        if let Some(place) = self.names.iter().position(same) {
            return Ok(Some(place));
        }
        // Beyond ASCII there are letters that fold to an `s` or a `k`.
        let alias = |known: &&str| known.as_bytes().eq_ignore_ascii_case(name);
        if self.names.iter().any(alias) || !name.is_ascii() {
            return Err(Fault::form(name, "a name that readers do not take for another")
                .of(&String::from_utf8_lossy(&name[..name.len().min(80)])));
        }
        Ok(None)
    }
}

/// What stands for a value that has been found but not kept.
const FOUND: &[u8] = b"?";

/// The members of one object that have a known name, raw.
#[derive(Debug)]
pub(super) struct Fields<'a, const N: usize> {
    names: &'static [&'static str; N],
    /// Empty where there is no such member.
    values: [&'a [u8]; N],
    turn: usize,
}

impl<'a, const N: usize> Fields<'a, N> {
    /// How many members have been asked for before.
    #[inline]
    pub(super) fn turn(&mut self) -> usize {
        self.turn += 1;
        self.turn - 1
    }

    /// Notes that the member is there; false if that was known already.
    #[inline]
    pub(super) fn mark(&mut self, place: usize) -> bool {
        std::mem::replace(&mut self.values[place], FOUND).is_empty()
    }

    #[inline]
    pub(super) fn keep(&mut self, place: usize, value: &'a [u8]) {
        self.values[place] = value;
    }

    /// The raw value, unless it is missing or null.
    #[inline]
    pub(super) fn raw(&self, place: usize) -> Option<&'a [u8]> {
        let value = self.values[place];
        (!value.is_empty() && value != b"null").then_some(value)
    }

    /// The raw value, which must be there.
    pub(super) fn need_raw(&self, place: usize, allowed: &'static str) -> Result<&'a [u8], Fault> {
        self.raw(place).ok_or_else(|| Fault::missing(allowed).of(self.names[place]))
    }

    /// The value, if there is one.
    #[inline]
    pub(super) fn maybe<T: Value>(&self, place: usize) -> Result<Option<T>, Fault> {
        let Some(raw) = self.raw(place) else { return Ok(None) };
        match T::read(raw) {
            Some(value) => Ok(Some(value)),
            None => Err(Fault::form(raw, T::ALLOWED).of(self.names[place])),
        }
    }

    /// The value, which must be there.
    #[inline]
    pub(super) fn need<T: Value>(&self, place: usize) -> Result<T, Fault> {
        match self.maybe(place)? {
            Some(value) => Ok(value),
            None => Err(Fault::missing(T::ALLOWED).of(self.names[place])),
        }
    }

    /// That the value is there and is the computed one.
    #[inline]
    pub(super) fn need_same<T: Value>(
        &self,
        place: usize,
        computed: &T,
        from: &'static str,
    ) -> Result<(), Fault> {
        let said: T = self.need(place)?;
        if said == *computed { Ok(()) } else { Err(self.mismatch(place, computed, from)) }
    }

    /// That the value is the computed one if it is there.
    #[inline]
    pub(super) fn maybe_same<T: Value>(
        &self,
        place: usize,
        computed: &T,
        from: &'static str,
    ) -> Result<(), Fault> {
        match self.maybe::<T>(place)? {
            Some(said) if said != *computed => Err(self.mismatch(place, computed, from)),
            _ => Ok(()),
        }
    }

    /// That the value is missing or null.
    pub(super) fn need_none(&self, place: usize, allowed: &'static str) -> Result<(), Fault> {
        match self.raw(place) {
            Some(raw) => Err(Fault::form(raw, allowed).of(self.names[place])),
            None => Ok(()),
        }
    }

    /// That this value is not the computed one.
    #[cold]
    pub(super) fn mismatch<T: Value>(
        &self,
        place: usize,
        computed: &T,
        from: &'static str,
    ) -> Fault {
        self.contradiction(place, &format!("{computed:#x}"), from)
    }

    /// That this value is not what was computed, in words.
    #[cold]
    pub(super) fn contradiction(&self, place: usize, computed: &str, from: &'static str) -> Fault {
        let said = String::from_utf8_lossy(self.values[place]);
        Fault::mismatch(said.trim_matches('"'), computed, from).of(self.names[place])
    }

    /// A fault of this value.
    #[cold]
    pub(super) fn fault(&self, place: usize, fault: Fault) -> Fault {
        fault.of(self.names[place])
    }
}

/// What a JSON value can be read as.
pub(super) trait Value: Sized + PartialEq + LowerHex {
    /// What may stand there, for whoever wrote something else.
    const ALLOWED: &'static str;

    /// The value of a raw JSON value; none if it has another form.
    fn read(raw: &[u8]) -> Option<Self>;
}

/// Implements [`Value`] for arrays of bytes: two hexadecimal digits for each.
macro_rules! bytes {
    ($($of:ty: $allowed:literal,)+) => { $(
        impl Value for $of {
            const ALLOWED: &'static str = $allowed;

            #[inline]
            fn read(raw: &[u8]) -> Option<Self> {
                let mut bytes = <$of>::ZERO;
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
        // The decoder would step over a second prefix.
        let digits = digits(raw).filter(|digits| !digits.starts_with(b"0x"))?;
        hex::decode(digits).ok().map(Bytes::from)
    }
}

impl Value for u64 {
    const ALLOWED: &'static str = "0x and 1 to 16 hexadecimal digits without leading zeros";

    #[inline]
    fn read(raw: &[u8]) -> Option<Self> {
        number(canonical(raw, 16)?).map(|number| number as u64) // 16 digits fit
    }
}

impl Value for u128 {
    const ALLOWED: &'static str = "0x and 1 to 32 hexadecimal digits without leading zeros";

    #[inline]
    fn read(raw: &[u8]) -> Option<Self> {
        number(canonical(raw, 32)?)
    }
}

impl Value for U256 {
    const ALLOWED: &'static str = "0x and 1 to 64 hexadecimal digits without leading zeros";

    #[inline]
    fn read(raw: &[u8]) -> Option<Self> {
        wide(canonical(raw, 64)?)
    }
}

/// A number that some nodes write as a word of 32 bytes, with leading zeros: `r` and `s`.
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
        if (1..=64).contains(&digits.len()) { wide(digits).map(Padded) } else { None }
    }
}

/// What stands between `"0x` and the closing quote.
#[inline]
pub(super) fn digits(raw: &[u8]) -> Option<&[u8]> {
    match raw {
        [b'"', b'0', b'x', digits @ .., b'"'] => Some(digits),
        _ => None,
    }
}

/// The digits of a quantity: at least one, no leading zeros (execution-apis
/// `src/schemas/base-types.yaml`, `uint`).
#[inline]
fn canonical(raw: &[u8], digits_max: usize) -> Option<&[u8]> {
    let digits = digits(raw)?;
    let zeros = digits.len() > 1 && digits[0] == b'0';
    ((1..=digits_max).contains(&digits.len()) && !zeros).then_some(digits)
}

/// At most 32 digits as a number.
#[inline]
fn number(digits: &[u8]) -> Option<u128> {
    let mut bad = 0;
    let number = digits.iter().fold(0u128, |sum, digit| {
        let nibble = NIBBLES[usize::from(*digit)];
        bad |= nibble;
        sum << 4 | u128::from(nibble & 0xf)
    });
    (bad & 0xf0 == 0).then_some(number)
}

/// At most 64 digits as a number.
#[inline]
fn wide(digits: &[u8]) -> Option<U256> {
    let (high, low) = digits.split_at(digits.len().saturating_sub(32));
    let (high, low) = (number(high)?, number(low)?);
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
