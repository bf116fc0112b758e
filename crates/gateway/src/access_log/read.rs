//! Lines of an access log back into facts: JSON lines as they are written, and texts by the format
//! that they were written in, nginx's own among them.

use std::borrow::Cow;

use jiff::Timestamp;
use jiff::fmt::strtime::BrokenDownTime;
use serde::Deserialize;

use super::format::{Format, Part, Var};

#[cfg(test)]
mod tests;

/// Longest line that is looked at; what writes them cuts far below.
pub const LINE_BYTES_MAX: usize = 64 * 1024;

/// What a line says. What it does not say is none.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Line<'a> {
    /// Seconds since 1970.
    pub seconds: f64,
    /// Address of the client; empty where it is not said.
    pub client: Cow<'a, str>,
    /// Name of the key.
    pub key: Option<Cow<'a, str>>,
    /// JSON-RPC method.
    pub method: Option<Cow<'a, str>>,
    /// Name of the node.
    pub node: Option<Cow<'a, str>>,
    /// How the cache took part.
    pub cache: Option<Cow<'a, str>>,
    /// HTTP status.
    pub status: u16,
    /// Code of the JSON-RPC error.
    pub error: Option<i64>,
    /// Seconds until the answer.
    pub took: Option<f64>,
    /// Bytes of the answer.
    pub bytes_out: Option<u64>,
}

/// Why a line is not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LineFault {
    /// Longer than any line of an access log.
    #[error("longer than {LINE_BYTES_MAX} bytes")]
    Length,
    /// Not a JSON object with the members of an access log.
    #[error("not a JSON object of an access log")]
    Json,
    /// The text between the variables is not there.
    #[error("does not follow the format")]
    Shape,
    /// The time cannot be read.
    #[error("holds no time that can be read")]
    Time,
    /// The status or another number cannot be read.
    #[error("holds no status that can be read")]
    Number,
}

/// Why lines of a format cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// Two variables with nothing in between.
    #[error("two variables stand side by side, and nothing tells where one ends")]
    SideBySide,
    /// No time or no status.
    #[error("a time ($time_local, $time_iso8601 or $msec) and $status are needed")]
    Lacking,
}

/// Reads lines of one format.
#[derive(Debug, Clone)]
pub struct Reader {
    parts: Option<Vec<Part>>,
}

impl Reader {
    /// For lines of this format.
    ///
    /// # Errors
    /// [`Unreadable`].
    pub fn new(format: &Format) -> Result<Reader, Unreadable> {
        let Format::Text(parts) = format else { return Ok(Reader { parts: None }) };
        let is_var = |part: &Part| matches!(part, Part::Var(_));
        if parts.windows(2).any(|two| two.iter().all(is_var)) {
            return Err(Unreadable::SideBySide);
        }
        let has = |wanted: &[Var]| {
            parts.iter().any(|part| matches!(part, Part::Var(var) if wanted.contains(var)))
        };
        if !has(&[Var::TimeLocal, Var::TimeIso, Var::Msec]) || !has(&[Var::Status]) {
            return Err(Unreadable::Lacking);
        }
        Ok(Reader { parts: Some(parts.clone()) })
    }

    /// What a line says, its end apart.
    ///
    /// # Errors
    /// [`LineFault`].
    pub fn line<'a>(&self, line: &'a str) -> Result<Line<'a>, LineFault> {
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
    node: Option<Cow<'a, str>>,
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
        node: written.node,
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
            Part::Var(var) => {
                let end = match parts.peek() {
                    Some(Part::Literal(text)) => rest.find(&**text).ok_or(LineFault::Shape)?,
                    _ => rest.len(),
                };
                let (value, behind) = rest.split_at(end);
                read.note(var, value)?;
                rest = behind;
            }
        }
    }
    if rest.is_empty() { Ok(read) } else { Err(LineFault::Shape) }
}

impl<'a> Line<'a> {
    fn note(&mut self, var: &Var, value: &'a str) -> Result<(), LineFault> {
        let text = || (value != "-" && !value.is_empty()).then_some(Cow::Borrowed(value));
        match var {
            Var::RemoteAddr => self.client = Cow::Borrowed(value),
            Var::Key => self.key = text(),
            Var::Method => self.method = text(),
            Var::Node => self.node = text(),
            Var::Cache => self.cache = text(),
            Var::TimeLocal => self.seconds = local(value)?,
            Var::TimeIso => self.seconds = iso(value)?,
            Var::Msec => self.seconds = positive(value).ok_or(LineFault::Time)?,
            Var::Status => self.status = value.parse().map_err(|_| LineFault::Number)?,
            Var::Error => self.error = value.parse().ok(),
            Var::RequestTime => self.took = positive(value),
            Var::BodyBytesSent => self.bytes_out = value.parse().ok(),
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
