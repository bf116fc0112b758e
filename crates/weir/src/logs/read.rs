//! Lines of an access log back into facts: JSON lines as they are written, and texts by the format
//! that they were written in, nginx's own among them.

use std::borrow::Cow;
use std::fmt;

use jiff::Timestamp;
use jiff::fmt::strtime::BrokenDownTime;
use serde::Deserialize;

use super::format::{Format, Part};

#[cfg(test)]
mod tests;

/// Longest line that is looked at; what writes them cuts far below.
pub(crate) const LINE_BYTES_MAX: usize = 64 * 1024;

/// What a line says; `None` is what it does not say.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Line<'a> {
    /// Seconds since 1970.
    pub(crate) seconds: f64,
    /// Address of the client; empty where it is not said.
    pub(crate) client: Cow<'a, str>,
    /// Name of the key.
    pub(crate) key: Option<Cow<'a, str>>,
    /// JSON-RPC method.
    pub(crate) method: Option<Cow<'a, str>>,
    /// Name of the upstream.
    pub(crate) upstream: Option<Cow<'a, str>>,
    /// How the cache took part.
    pub(crate) cache: Option<Cow<'a, str>>,
    /// HTTP status.
    pub(crate) status: u16,
    /// Code of the JSON-RPC error.
    pub(crate) error: Option<i64>,
    /// Seconds until the answer.
    pub(crate) took: Option<f64>,
    /// Bytes of the answer.
    pub(crate) bytes_out: Option<u64>,
}

/// Why a line is not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LineFault {
    /// Longer than any line of an access log.
    Length,
    /// Not a JSON object with the members of an access log.
    Json,
    /// The text between the variables is not there.
    Shape,
    /// The time cannot be read.
    Time,
    /// The status or another number cannot be read.
    Number,
}

impl fmt::Display for LineFault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LineFault::Length => write!(formatter, "longer than {LINE_BYTES_MAX} bytes"),
            LineFault::Json => formatter.write_str("not a JSON object of an access log"),
            LineFault::Shape => formatter.write_str("does not follow the format"),
            LineFault::Time => formatter.write_str("holds no time that can be read"),
            LineFault::Number => formatter.write_str("holds no status that can be read"),
        }
    }
}

/// Why lines of a format cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// Two variables with nothing in between.
    SideBySide,
    /// No time or no status.
    Lacking,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Unreadable::SideBySide => {
                "two variables stand side by side, and nothing tells where one ends"
            }
            Unreadable::Lacking => {
                "a time ($time_local, $time_iso8601 or $msec) and $status are needed"
            }
        })
    }
}

/// Reads lines of one format.
#[derive(Debug, Clone)]
pub(crate) struct Reader {
    parts: Option<Vec<Part>>,
}

impl Reader {
    /// For lines of this format.
    ///
    /// # Errors
    /// [`Unreadable`].
    pub(crate) fn new(format: &Format) -> Result<Reader, Unreadable> {
        let Format::Text(parts) = format else { return Ok(Reader { parts: None }) };
        let is_variable = |part: &Part| matches!(part, Part::Variable(_));
        if parts.windows(2).any(|two| two.iter().all(is_variable)) {
            return Err(Unreadable::SideBySide);
        }
        let has = |wanted: &[&str]| {
            parts
                .iter()
                .any(|part| matches!(part, Part::Variable(name) if wanted.contains(&name.as_str())))
        };
        if !has(&["time_local", "time_iso8601", "msec"]) || !has(&["status"]) {
            return Err(Unreadable::Lacking);
        }
        Ok(Reader { parts: Some(parts.clone()) })
    }

    /// What a line says, its end apart.
    ///
    /// # Errors
    /// [`LineFault`].
    pub(crate) fn line<'a>(&self, line: &'a str) -> Result<Line<'a>, LineFault> {
        if line.len() > LINE_BYTES_MAX {
            return Err(LineFault::Length);
        }
        match &self.parts {
            None => of_json(line),
            Some(parts) => of_text(parts, line),
        }
    }
}

#[derive(Deserialize)]
struct Written<'a> {
    #[serde(borrow)]
    time: Cow<'a, str>,
    #[serde(borrow, default)]
    client: Cow<'a, str>,
    #[serde(borrow, default)]
    key: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    upstream: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    cache: Option<Cow<'a, str>>,
    status: u16,
    #[serde(default)]
    error: Option<i64>,
    #[serde(default)]
    request_time: Option<f64>,
    #[serde(default)]
    bytes_out: Option<u64>,
}

fn of_json(line: &str) -> Result<Line<'_>, LineFault> {
    let written: Written<'_> = serde_json::from_str(line).map_err(|_| LineFault::Json)?;
    let took = written.request_time.filter(|took| took.is_finite() && *took >= 0.0);
    Ok(Line {
        seconds: iso(&written.time)?,
        client: written.client,
        key: written.key,
        method: written.method,
        upstream: written.upstream,
        cache: written.cache,
        status: written.status,
        error: written.error,
        took,
        bytes_out: written.bytes_out,
    })
}

fn of_text<'a>(parts: &[Part], line: &'a str) -> Result<Line<'a>, LineFault> {
    let mut read = Line::default();
    let mut rest = line;
    let mut parts = parts.iter().peekable();
    while let Some(part) = parts.next() {
        match part {
            Part::Literal(text) => rest = rest.strip_prefix(&**text).ok_or(LineFault::Shape)?,
            Part::Variable(name) => {
                let end = match parts.peek() {
                    Some(Part::Literal(text)) => rest.find(&**text).ok_or(LineFault::Shape)?,
                    _ => rest.len(),
                };
                let (value, behind) = rest.split_at(end);
                read.set(name, value)?;
                rest = behind;
            }
        }
    }
    if rest.is_empty() { Ok(read) } else { Err(LineFault::Shape) }
}

impl<'a> Line<'a> {
    fn set(&mut self, variable: &str, value: &'a str) -> Result<(), LineFault> {
        let text = || (value != "-" && !value.is_empty()).then_some(Cow::Borrowed(value));
        match variable {
            "remote_addr" => self.client = Cow::Borrowed(value),
            "key" => self.key = text(),
            "rpc_method" => self.method = text(),
            "upstream" => self.upstream = text(),
            "cache" => self.cache = text(),
            "time_local" => self.seconds = local(value)?,
            "time_iso8601" => self.seconds = iso(value)?,
            "msec" => self.seconds = positive(value).ok_or(LineFault::Time)?,
            "status" => self.status = value.parse().map_err(|_| LineFault::Number)?,
            "rpc_error" => self.error = value.parse().ok(),
            "request_time" => self.took = positive(value),
            "body_bytes_sent" => self.bytes_out = value.parse().ok(),
            // Nothing is counted by the others.
            _ => {}
        }
        Ok(())
    }
}

/// A number that a time can be; beyond it no calendar goes.
fn positive(text: &str) -> Option<f64> {
    const MOST: f64 = 253_402_207_200.0;
    text.parse().ok().filter(|number: &f64| (0.0..MOST).contains(number))
}

fn iso(text: &str) -> Result<f64, LineFault> {
    let time: Timestamp = text.parse().map_err(|_| LineFault::Time)?;
    Ok(time.as_microsecond() as f64 / 1e6)
}

fn local(text: &str) -> Result<f64, LineFault> {
    let time = BrokenDownTime::parse("%d/%b/%Y:%H:%M:%S %z", text).map_err(|_| LineFault::Time)?;
    let time = time.to_timestamp().map_err(|_| LineFault::Time)?;
    Ok(time.as_second() as f64)
}
