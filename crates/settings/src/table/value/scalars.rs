//! The scalars that every configuration needs: booleans, numbers, durations, sizes, strings and
//! secrets.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::time;

use serde_json::{Value as Json, json};

use super::{Input, Scalar};
use crate::MASK;
use crate::table::Reader;

/// `true` or `false`.
pub struct Bool;

impl Scalar for Bool {
    type Value = bool;
    const IS_BARE: bool = true;

    fn noun() -> String {
        "true or false".to_owned()
    }

    fn allowed() -> String {
        "true or false".to_owned()
    }

    fn schema() -> Json {
        json!({ "type": "boolean" })
    }

    fn placeholder() -> bool {
        false
    }

    fn parse(input: Input<'_>) -> Result<bool, String> {
        match input {
            Input::Bool(boolean) => Ok(boolean),
            // Environment variables often hold 1 or 0.
            Input::String("1") => Ok(true),
            Input::String("0") => Ok(false),
            Input::String(text) => text.parse().map_err(|_| "neither true nor false".to_owned()),
            _ => Err("a number does not fit here".to_owned()),
        }
    }
}

/// An unsigned integer type.
pub trait UnsignedInteger: Copy + fmt::Debug + PartialEq + Send + Sync + 'static {
    /// The greatest number of the type.
    const MAX: u64;

    /// Converts a number, which is at most [`UnsignedInteger::MAX`].
    fn from_u64(number: u64) -> Self;
}

macro_rules! unsigned_integers {
    ($($type:ty)+) => {$(
        impl UnsignedInteger for $type {
            const MAX: u64 = <$type>::MAX as u64;

            fn from_u64(number: u64) -> $type {
                number as $type
            }
        }
    )+};
}

unsigned_integers!(u8 u16 u32 u64 usize);

/// A whole number within bounds, as a `T`.
pub struct Integer<const MIN: u64, const MAX: u64, T = u64>(PhantomData<T>);

impl<const MIN: u64, const MAX: u64, T: UnsignedInteger> Scalar for Integer<MIN, MAX, T> {
    type Value = T;
    const IS_NUMBER: bool = true;

    fn noun() -> String {
        "a whole number".to_owned()
    }

    fn allowed() -> String {
        match MAX {
            u64::MAX => format!("a whole number, at least {MIN}"),
            _ => format!("a whole number from {MIN} to {MAX}"),
        }
    }

    fn schema() -> Json {
        json!({ "type": "integer", "minimum": MIN, "maximum": MAX })
    }

    fn placeholder() -> T {
        T::from_u64(MIN)
    }

    fn parse(input: Input<'_>) -> Result<T, String> {
        const { assert!(MAX <= T::MAX, "the type does not hold the largest number") };
        let parse = |text: &str| text.parse().map_err(|_| "not a whole number".to_owned());
        parse_unsigned(input, parse, MIN, MAX).map(T::from_u64)
    }
}

/// Parses an unsigned integer within bounds. `parse` parses a string.
fn parse_unsigned(
    input: Input<'_>,
    parse: impl Fn(&str) -> Result<u64, String>,
    min: u64,
    max: u64,
) -> Result<u64, String> {
    let number = match input {
        Input::Integer(number) => u64::try_from(number).map_err(|_| "out of range")?,
        Input::String(text) => parse(text)?,
        Input::Number(_) => return Err("a fraction does not fit here".to_owned()),
        Input::Bool(_) => return Err("true or false does not fit here".to_owned()),
    };
    check_bounds(number, min, max)
}

/// A number from `MIN` to `MAX` thousandths, as an `f64`.
pub struct Number<const MIN: i64, const MAX: i64>;

impl<const MIN: i64, const MAX: i64> Scalar for Number<MIN, MAX> {
    type Value = f64;
    const IS_NUMBER: bool = true;

    fn noun() -> String {
        "a number".to_owned()
    }

    fn allowed() -> String {
        format!("a number from {} to {}", from_thousandths(MIN), from_thousandths(MAX))
    }

    fn schema() -> Json {
        json!({ "type": "number", "minimum": from_thousandths(MIN), "maximum": from_thousandths(MAX) })
    }

    fn placeholder() -> f64 {
        from_thousandths(MIN)
    }

    fn parse(input: Input<'_>) -> Result<f64, String> {
        let number = match input {
            Input::Integer(number) => number as f64,
            Input::Number(number) => number,
            Input::String(text) => text.parse().map_err(|_| "not a number")?,
            Input::Bool(_) => return Err("true or false does not fit here".to_owned()),
        };
        check_bounds(number, from_thousandths(MIN), from_thousandths(MAX))
    }
}

/// Converts a number of thousandths.
fn from_thousandths(number: i64) -> f64 {
    number as f64 / 1000.0
}

/// A duration such as `"250ms"`, within bounds in milliseconds.
pub struct Duration<const MIN: u64, const MAX: u64>;

/// Units of durations, with their length in microseconds.
const DURATION_UNITS: [(&str, u64); 6] = [
    ("us", 1),
    ("ms", 1000),
    ("s", 1_000_000),
    ("m", 60_000_000),
    ("h", 3_600_000_000),
    ("d", 86_400_000_000),
];

impl<const MIN: u64, const MAX: u64> Scalar for Duration<MIN, MAX> {
    type Value = time::Duration;

    fn noun() -> String {
        "a duration".to_owned()
    }

    fn allowed() -> String {
        let format_ms = |ms| format_duration(time::Duration::from_millis(ms));
        format!("a duration from \"{}\" to \"{}\"", format_ms(MIN), format_ms(MAX))
    }

    fn schema() -> Json {
        json!({ "type": "string", "pattern": "^[0-9]+(\\.[0-9]+)? *(us|ms|s|m|h|d)$" })
    }

    fn placeholder() -> time::Duration {
        time::Duration::from_millis(MIN)
    }

    fn parse(input: Input<'_>) -> Result<time::Duration, String> {
        match input {
            Input::String(text) => check_bounds(
                parse_duration(text)?,
                time::Duration::from_millis(MIN),
                time::Duration::from_millis(MAX),
            ),
            Input::Integer(_) | Input::Number(_) => Err("a duration needs a unit".to_owned()),
            Input::Bool(_) => Err("true or false does not fit here".to_owned()),
        }
    }
}

/// Parses a duration: a number, which may have a fraction, and one of the units us, ms, s, m, h, d.
///
/// # Errors
/// Fails if the text is malformed or the duration is out of range.
pub fn parse_duration(text: &str) -> Result<time::Duration, String> {
    let (number, unit) = split_unit(text);
    let Some((_, unit_us)) = DURATION_UNITS.iter().find(|(name, _)| *name == unit) else {
        return Err("a duration has one of the units us, ms, s, m, h, d".to_owned());
    };
    let number: f64 = number.parse().map_err(|_| "a duration is a number and a unit")?;
    let seconds = number * *unit_us as f64 / 1e6;
    time::Duration::try_from_secs_f64(seconds).map_err(|_| "out of range".to_owned())
}

/// Formats a duration in the largest unit that needs no fraction.
pub fn format_duration(duration: time::Duration) -> String {
    let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
    let exact_unit = DURATION_UNITS
        .iter()
        .rev()
        .find(|(_, unit)| micros >= *unit && micros.is_multiple_of(*unit));
    match exact_unit {
        Some((name, unit)) => format!("{}{name}", micros / unit),
        None => "0s".to_owned(),
    }
}

/// A number of bytes within bounds, as a `T`. It is written as `"64MiB"`, or as a whole number.
pub struct Bytes<const MIN: u64, const MAX: u64, T = u64>(PhantomData<T>);

/// Units of byte counts, decimal and binary, as in IEC 80000-13.
const BYTE_UNITS: [(&str, u64); 8] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("kB", 1000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("B", 1),
];

impl<const MIN: u64, const MAX: u64, T: UnsignedInteger> Scalar for Bytes<MIN, MAX, T> {
    type Value = T;

    fn noun() -> String {
        "a number of bytes".to_owned()
    }

    fn allowed() -> String {
        format!("a number of bytes from \"{}\" to \"{}\"", format_bytes(MIN), format_bytes(MAX))
    }

    fn schema() -> Json {
        json!({ "anyOf": [
            { "type": "integer", "minimum": MIN, "maximum": MAX },
            { "type": "string", "pattern": "^[0-9]+(\\.[0-9]+)? *(KiB|MiB|GiB|TiB|kB|MB|GB|B)$" },
        ] })
    }

    fn placeholder() -> T {
        T::from_u64(MIN)
    }

    fn parse(input: Input<'_>) -> Result<T, String> {
        const { assert!(MAX <= T::MAX, "the type does not hold the largest number") };
        parse_unsigned(input, parse_bytes, MIN, MAX).map(T::from_u64)
    }
}

/// Parses a number of bytes with one of [`BYTE_UNITS`], or without a unit.
fn parse_bytes(text: &str) -> Result<u64, String> {
    let (number, unit) = split_unit(text);
    if unit.is_empty() {
        return number.parse().map_err(|_| "not a number of bytes".to_owned());
    }
    let Some((_, factor)) = BYTE_UNITS.iter().find(|(name, _)| *name == unit) else {
        return Err("a size has one of the units B, kB, KiB, MB, MiB, GB, GiB, TiB".to_owned());
    };
    let number: f64 = number.parse().map_err(|_| "a size is a number and a unit")?;
    let bytes = number * *factor as f64;
    if bytes < u64::MAX as f64 { Ok(bytes as u64) } else { Err("out of range".to_owned()) }
}

/// Formats a number of bytes in the largest binary unit that needs no fraction.
pub fn format_bytes(bytes: u64) -> String {
    let units = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match units.iter().find(|(_, unit)| bytes > 0 && bytes.is_multiple_of(*unit)) {
        Some((name, unit)) => format!("{}{name}", bytes / unit),
        None => format!("{bytes}B"),
    }
}

/// Splits a string into the number at its start and the unit after it.
fn split_unit(text: &str) -> (&str, &str) {
    let is_number_character = |character: char| character.is_ascii_digit() || character == '.';
    let end = text.find(|character| !is_number_character(character)).unwrap_or(text.len());
    (&text[..end], text[end..].trim())
}

fn check_bounds<T: PartialOrd>(value: T, min: T, max: T) -> Result<T, String> {
    if value >= min && value <= max { Ok(value) } else { Err("out of range".to_owned()) }
}

crate::string_scalar! {
    /// A string that is not empty.
    pub NonEmptyString: String = parse_non_empty, "a text", "a text that is not empty", "text";
    /// A string that may be empty, such as a program's argument.
    pub AnyString: String = |text: &str| Ok::<_, String>(text.to_owned()), "a text", "a text", "";
    /// A name of at most 64 letters, digits, `-`, `_`, `.` and inner spaces. It is safe as the name
    /// of a folder and as the label of a metric.
    pub Name: String = parse_name, "a name",
        format!("1 to {NAME_BYTES_MAX} letters, digits, `-`, `_`, `.` and spaces, not `.` at first"),
        "name";
}

/// Maximum number of bytes of a name.
const NAME_BYTES_MAX: usize = 64;

fn parse_non_empty(text: &str) -> Result<String, &'static str> {
    if text.is_empty() { Err("the text is empty") } else { Ok(text.to_owned()) }
}

fn parse_name(text: &str) -> Result<String, &'static str> {
    let is_allowed = |letter: char| letter.is_alphanumeric() || "-_. ".contains(letter);
    if text.is_empty() {
        return Err("the name is empty");
    }
    if text.len() > NAME_BYTES_MAX {
        return Err("the name is too long");
    }
    if text.starts_with('.') || !text.chars().all(is_allowed) || text.trim() != text {
        return Err("not a name");
    }
    Ok(text.to_owned())
}

/// The name of a file to read, relative to the folder of the configuration file.
pub struct File;

impl Scalar for File {
    type Value = String;

    fn noun() -> String {
        "a file name".to_owned()
    }

    fn allowed() -> String {
        "name of a file, from the folder of this one".to_owned()
    }

    fn schema() -> Json {
        json!({ "type": "string", "minLength": 1 })
    }

    fn placeholder() -> String {
        String::new()
    }

    fn parse(input: Input<'_>) -> Result<String, String> {
        NonEmptyString::parse(input)
    }

    fn after_parse(text: &str, reader: &mut Reader<'_, '_>) {
        reader.context.register_file(text);
    }
}

/// A secret of at least `BYTES_MIN` bytes. Diagnostics mask it.
pub struct Secret<const BYTES_MIN: usize>;

/// A secret. It dereferences to the text, and `Debug` does not print it.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretText(String);

impl Deref for SecretText {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(MASK)
    }
}

impl<const BYTES_MIN: usize> Scalar for Secret<BYTES_MIN> {
    type Value = SecretText;

    fn noun() -> String {
        "a secret".to_owned()
    }

    fn allowed() -> String {
        format!("a secret of at least {BYTES_MIN} bytes")
    }

    fn schema() -> Json {
        json!({ "type": "string", "minLength": BYTES_MIN })
    }

    fn placeholder() -> SecretText {
        SecretText(String::new())
    }

    fn parse(input: Input<'_>) -> Result<SecretText, String> {
        match input {
            Input::String(text) if text.len() < BYTES_MIN => {
                Err("the secret is too short".to_owned())
            }
            Input::String(text) => Ok(SecretText(text.to_owned())),
            _ => Err("not a text".to_owned()),
        }
    }

    fn mask(_: &str) -> Option<String> {
        Some(MASK.to_owned())
    }
}
