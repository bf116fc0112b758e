//! The kinds of values that a key of a plan may take: how each is read, and what it allows.
//!
//! What a kind allows is said here once, for the faults and for `docs/plan.md` alike. It knows
//! nothing about TOML; that is `plan/file.rs`.

use std::fmt;
use std::time::Duration;

use super::Reuse;
use super::field::Section;
use super::file::{Entry, Node};

#[cfg(test)]
mod tests;

/// What a key may be set to.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    /// `true` or `false`; 1 and 0 of a variable mean the same.
    Switch,
    /// A whole number within bounds, or a formula.
    Count { min: u64, max: u64 },
    /// A number within bounds, or a formula.
    Number { min: f64, max: f64 },
    /// A text such as `"250ms"`.
    Duration { min: Duration, max: Duration },
    /// A text such as `"64MiB"`, or a whole number of bytes.
    Bytes { min: u64, max: u64 },
    /// One of these words.
    Choice(&'static [&'static str]),
    /// How often a connection is used.
    Reuse,
    /// A name for a scenario, stage or mix.
    Name,
    /// The name of a method.
    Method,
    /// A text.
    Text,
    /// A URL; secret.
    Url,
    /// A file's name.
    File,
    /// HTTP headers by name; the values are secret.
    Headers,
    /// A list of texts.
    Texts,
    /// A list of whole numbers.
    Counts { max: u64 },
    /// A number, or two of them from smallest to largest.
    Span { max: u64 },
    /// A table with keys of its own.
    Table(&'static Section),
    /// A list of such tables.
    Tables(&'static Section),
    /// Any value; whoever asks for it reads it.
    Tree,
}

/// A value that was read and is within its bounds.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Switch(bool),
    Count(u64),
    Number(f64),
    Duration(Duration),
    Choice(&'static str),
    Reuse(Reuse),
    Text(String),
    Texts(Vec<String>),
    Counts(Vec<u64>),
    Span(u64, u64),
    Pairs(Vec<(String, String)>),
    Entries(Vec<Entry>),
    Tree(Node),
}

/// Longest name of a scenario, stage or mix: they become labels.
const NAME_BYTES_MAX: usize = 64;

/// Longest name of a method, as in `wire::call::Limits::DEFAULT`.
pub(super) const METHOD_BYTES_MAX: usize = 128;

/// Longest text of any other key.
const TEXT_BYTES_MAX: usize = 1 << 20;

/// Most requests on one connection that can be asked for.
const REUSE_MAX: u64 = 1_000_000_000;

/// Units of durations, with their length in nanoseconds.
const DURATION_UNITS: [(&str, f64); 7] =
    [("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9), ("m", 60e9), ("h", 3600e9), ("d", 86400e9)];

/// Units of byte counts; decimal and binary ones as in IEC 80000-13.
const BYTE_UNITS: [(&str, u64); 7] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("kB", 1000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("B", 1),
];

impl Kind {
    /// Whether its value must not be shown as it is.
    pub(super) fn is_secret(self) -> bool {
        matches!(self, Kind::Url | Kind::Headers)
    }

    /// Whether a text is a formula for it.
    pub(super) fn is_number(self) -> bool {
        matches!(self, Kind::Count { .. } | Kind::Number { .. })
    }

    /// What it is, for a value of another type: "a list of texts".
    pub(super) fn noun(self) -> &'static str {
        match self {
            Kind::Switch => "true or false",
            Kind::Count { .. } => "a whole number",
            Kind::Number { .. } => "a number",
            Kind::Duration { .. } => "a duration",
            Kind::Bytes { .. } => "a number of bytes",
            Kind::Choice(_) => "one of the words",
            Kind::Reuse => "a word or a number of requests",
            Kind::Name => "a name",
            Kind::Method => "the name of a method",
            Kind::Text => "a text",
            Kind::Url => "a url",
            Kind::File => "a file name",
            Kind::Headers => "a table of headers",
            Kind::Texts => "a list of texts",
            Kind::Counts { .. } => "a list of whole numbers",
            Kind::Span { .. } => "a number or two of them",
            Kind::Table(_) => "a table",
            Kind::Tables(_) => "a list of tables",
            Kind::Tree => "a value",
        }
    }

    /// Reads a number.
    pub(super) fn of_number(self, number: f64) -> Result<Value, String> {
        match self {
            Kind::Number { min, max } if number >= min && number <= max => {
                Ok(Value::Number(number))
            }
            Kind::Count { min, max } => of_count(number, min, max).map(Value::Count),
            Kind::Bytes { min, max } => of_count(number, min, max).map(Value::Count),
            Kind::Span { max } => {
                let count = of_count(number, 0, max)?;
                Ok(Value::Span(count, count))
            }
            Kind::Number { .. } => Err("out of range".to_owned()),
            Kind::Switch if number == 0.0 || number == 1.0 => Ok(Value::Switch(number == 1.0)),
            Kind::Reuse => of_count(number, 0, REUSE_MAX).map(|count| Value::Reuse(reuse(count))),
            Kind::Duration { .. } => Err("a duration needs a unit".to_owned()),
            _ => Err(format!("not {}", self.noun())),
        }
    }

    /// Reads a text in which no formula is left.
    pub(super) fn of_text(self, text: &str) -> Result<Value, String> {
        let plain =
            |checked: Result<(), &'static str>| checked.map(|()| Value::Text(text.to_owned()));
        let read = match self {
            Kind::Duration { min, max } => duration(text).and_then(|duration| {
                let fits = (min..=max).contains(&duration);
                if fits { Ok(Value::Duration(duration)) } else { Err("out of range") }
            }),
            Kind::Bytes { .. } => return self.of_number(bytes(text)?),
            Kind::Choice(words) => {
                let word = words.iter().find(|word| **word == text);
                word.map(|word| Value::Choice(word)).ok_or("no such choice")
            }
            Kind::Reuse => match text {
                "always" => Ok(Value::Reuse(Reuse::Always)),
                "never" => Ok(Value::Reuse(Reuse::Never)),
                _ => return self.of_number(text.parse().map_err(|_| "no such choice")?),
            },
            Kind::Name => plain(check_name(text)),
            Kind::Method => plain(check_method(text)),
            Kind::File => plain(check_not_empty(text)),
            Kind::Url => super::url::Address::parse(text).map(|_| Value::Text(text.to_owned())),
            Kind::Text | Kind::Texts if text.len() > TEXT_BYTES_MAX => Err("too long"),
            Kind::Text | Kind::Texts => Ok(Value::Text(text.to_owned())),
            Kind::Switch => match text {
                "true" | "on" | "1" => Ok(Value::Switch(true)),
                "false" | "off" | "0" => Ok(Value::Switch(false)),
                _ => Err("neither true nor false"),
            },
            Kind::Count { .. } | Kind::Number { .. } | Kind::Span { .. } => {
                return self.of_number(text.parse().map_err(|_| "not a number")?);
            }
            _ => return Err(format!("not {}", self.noun())),
        };
        read.map_err(str::to_owned)
    }

    /// Reads one header.
    pub(super) fn of_header(name: &str, value: &str) -> Result<(String, String), &'static str> {
        // What the engine itself sets: framing, and the target's name.
        const OWN: [&str; 6] = [
            "host",
            "content-length",
            "transfer-encoding",
            "connection",
            "content-type",
            "upgrade",
        ];
        let name: http::HeaderName = name.parse().map_err(|_| "not the name of a header")?;
        if OWN.contains(&name.as_str()) {
            return Err("this header is set by the load itself");
        }
        http::HeaderValue::from_str(value)
            .map_err(|_| "the value holds a character that no header may hold")?;
        Ok((name.as_str().to_owned(), value.to_owned()))
    }
}

/// Prints what is allowed.
impl fmt::Display for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Switch => write!(formatter, "true or false"),
            Kind::Count { min, max: u64::MAX } => write!(formatter, "{min} or more"),
            Kind::Count { min, max } => write!(formatter, "{min} to {max}"),
            Kind::Number { min, max } if *min > 0.0 && *min < 1e-6 => {
                write!(formatter, "above 0, up to {max}")
            }
            Kind::Number { min, max } => write!(formatter, "{min} to {max}"),
            Kind::Duration { min, max } => {
                let (min, max) = (ShownDuration(*min), ShownDuration(*max));
                write!(formatter, "\"{min}\" to \"{max}\" (units us, ms, s, m, h, d)")
            }
            Kind::Bytes { min, max } => {
                let (min, max) = (ShownBytes(*min), ShownBytes(*max));
                write!(formatter, "\"{min}\" to \"{max}\" (units B, kB, MB, GB, KiB, MiB, GiB)")
            }
            Kind::Choice(words) => {
                let words: Vec<_> = words.iter().map(|word| format!("\"{word}\"")).collect();
                formatter.write_str(&words.join(", "))
            }
            Kind::Reuse => write!(
                formatter,
                "\"always\", \"never\", or requests per connection (0 is always, 1 is never)"
            ),
            Kind::Name => write!(formatter, "1 to {NAME_BYTES_MAX} of a-z A-Z 0-9 _ - ."),
            Kind::Method => {
                write!(
                    formatter,
                    "1 to {METHOD_BYTES_MAX} visible characters, such as \"eth_call\""
                )
            }
            Kind::Text => write!(formatter, "a text"),
            Kind::Url => {
                write!(formatter, "http://host[:port][/path] or https://host[:port][/path]")
            }
            Kind::File => write!(formatter, "name of a file, from the folder of this one"),
            Kind::Headers => write!(formatter, "table of header names and values"),
            Kind::Texts => write!(formatter, "list of texts"),
            Kind::Counts { max } => write!(formatter, "list of whole numbers up to {max}"),
            Kind::Span { max } => {
                write!(formatter, "a number, or [smallest, largest], up to {max}")
            }
            Kind::Table(section) => write!(formatter, "table of {}", section.keys()),
            Kind::Tables(section) => write!(formatter, "list of tables of {}", section.keys()),
            Kind::Tree => write!(formatter, "a value as it is described below"),
        }
    }
}

/// A duration in the largest unit that holds it whole.
pub(super) struct ShownDuration(pub(super) Duration);

impl fmt::Display for ShownDuration {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ns = self.0.as_nanos();
        let whole = |(_, size): &&(&str, f64)| ns != 0 && ns.is_multiple_of(*size as u128);
        let unit = DURATION_UNITS.iter().rev().find(whole);
        let (unit, size) = unit.unwrap_or(&("s", 1e9));
        write!(formatter, "{}{unit}", ns / *size as u128)
    }
}

/// A number of bytes in the largest binary unit that holds it whole.
pub(super) struct ShownBytes(pub(super) u64);

impl fmt::Display for ShownBytes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0;
        let unit = BYTE_UNITS[..3]
            .iter()
            .rev()
            .find(|(_, size)| bytes != 0 && bytes.is_multiple_of(*size));
        let (unit, size) = unit.unwrap_or(&("B", 1));
        write!(formatter, "{}{unit}", bytes / size)
    }
}

/// A whole number within bounds. Formulas leave rounding errors, which are not meant.
fn of_count(number: f64, min: u64, max: u64) -> Result<u64, String> {
    const ROUNDING_MAX: f64 = 1e-6;
    let whole = number.round();
    if !number.is_finite() {
        return Err("not a finite number".to_owned());
    }
    if (number - whole).abs() > ROUNDING_MAX {
        return Err(format!("{number} is not a whole number; floor() or round() makes it one"));
    }
    // Above 2^53 a number read as f64 is not the one that was written; no bound of ours is there.
    if whole < min as f64 || whole > max as f64 {
        return Err("out of range".to_owned());
    }
    Ok(whole as u64)
}

fn reuse(requests: u64) -> Reuse {
    match requests {
        0 => Reuse::Always,
        1 => Reuse::Never,
        more => Reuse::Requests(u32::try_from(more).unwrap_or(u32::MAX)),
    }
}

/// Reads a duration: a number, perhaps with a fraction, and a unit.
pub(super) fn duration(text: &str) -> Result<Duration, &'static str> {
    const WHAT: &str = "not a duration: a number and a unit";
    let (number, unit) = number_and_unit(text).ok_or(WHAT)?;
    let (_, size) = DURATION_UNITS.iter().find(|(name, _)| *name == unit).ok_or(WHAT)?;
    let seconds = (number * size).round() / 1e9;
    Duration::try_from_secs_f64(seconds).map_err(|_| "out of range")
}

fn bytes(text: &str) -> Result<f64, String> {
    const WHAT: &str = "not a number of bytes: a number and a unit";
    let (number, unit) = number_and_unit(text).ok_or(WHAT)?;
    let (_, size) = BYTE_UNITS.iter().find(|(name, _)| *name == unit).ok_or(WHAT)?;
    Ok(number * *size as f64)
}

fn number_and_unit(text: &str) -> Option<(f64, &str)> {
    let digits = text.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b'.').count();
    let (number, unit) = text.split_at(digits);
    Some((number.parse().ok()?, unit.trim()))
}

fn check_not_empty(text: &str) -> Result<(), &'static str> {
    if text.is_empty() { Err("is empty") } else { Ok(()) }
}

/// Whether a text can name a scenario, stage, mix or variable.
pub(super) fn check_name(text: &str) -> Result<(), &'static str> {
    check_not_empty(text)?;
    if text.len() > NAME_BYTES_MAX {
        return Err("the name is too long");
    }
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    if text.bytes().all(fits) { Ok(()) } else { Err("a name holds no such character") }
}

/// Whether a text can name a method: it becomes a label and stands in thresholds.
pub(super) fn check_method(text: &str) -> Result<(), &'static str> {
    check_not_empty(text)?;
    if text.len() > METHOD_BYTES_MAX {
        return Err("the method is too long");
    }
    let fits = |letter: char| !letter.is_control() && !letter.is_whitespace();
    if text.chars().all(fits) { Ok(()) } else { Err("a method holds no such character") }
}
