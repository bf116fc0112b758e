//! Parses lines of an access log: JSON lines of the gateway, and text lines in a given format, such
//! as nginx's.

use std::borrow::Cow;
use std::fmt;

use jiff::Timestamp;
use jiff::fmt::strtime::BrokenDownTime;
use serde::Deserialize;

use super::format::{Format, Segment};

#[cfg(test)]
mod tests;

/// Maximum number of bytes of a line. The gateway and nginx write far shorter lines.
pub(crate) const LINE_BYTES_MAX: usize = 64 * 1024;

/// The values of a line. `None` means that the line does not have the value.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct LogLine<'a> {
    /// Seconds since 1970.
    pub(crate) seconds: f64,
    /// Address of the client; empty if absent.
    pub(crate) client: Cow<'a, str>,
    /// Name of the key.
    pub(crate) key: Option<Cow<'a, str>>,
    /// JSON-RPC method.
    pub(crate) method: Option<Cow<'a, str>>,
    /// Name of the upstream.
    pub(crate) upstream: Option<Cow<'a, str>>,
    /// Cache status.
    pub(crate) cache: Option<Cow<'a, str>>,
    /// HTTP status.
    pub(crate) status: u16,
    /// Code of the JSON-RPC error.
    pub(crate) error: Option<i64>,
    /// Duration of the request in seconds.
    pub(crate) request_seconds: Option<f64>,
    /// Size of the response in bytes.
    pub(crate) bytes_out: Option<u64>,
}

/// The reason why a line cannot be parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LineFault {
    /// Longer than any line of an access log.
    Length,
    /// Not a JSON object with the fields of an access log.
    Json,
    /// The literal text between the variables is missing.
    Shape,
    /// The time is invalid.
    Time,
    /// The status is invalid.
    Number,
}

impl fmt::Display for LineFault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LineFault::Length => write!(formatter, "longer than {LINE_BYTES_MAX} bytes"),
            LineFault::Json => formatter.write_str("not a JSON object of an access log"),
            LineFault::Shape => formatter.write_str("does not follow the format"),
            LineFault::Time => formatter.write_str("has no valid time"),
            LineFault::Number => formatter.write_str("has no valid status"),
        }
    }
}

/// The reason why lines of a format cannot be parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FormatFault {
    /// Two variables without a literal between them.
    AdjacentVariables,
    /// The format lacks a time or a status.
    MissingVariable,
}

impl fmt::Display for FormatFault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            FormatFault::AdjacentVariables => {
                "two variables without text between them: the end of the first is ambiguous"
            }
            FormatFault::MissingVariable => {
                "a time ($time_local, $time_iso8601 or $msec) and $status are needed"
            }
        })
    }
}

/// Parser of lines of one format.
#[derive(Debug, Clone)]
pub(crate) struct LineParser {
    /// Segments of a text format; `None` for JSON.
    segments: Option<Vec<Segment>>,
}

impl LineParser {
    /// Creates a parser for this format.
    ///
    /// # Errors
    /// Fails if the format cannot be parsed; see [`FormatFault`].
    pub(crate) fn new(format: &Format) -> Result<LineParser, FormatFault> {
        let Format::Text(segments) = format else { return Ok(LineParser { segments: None }) };
        let is_variable = |segment: &Segment| matches!(segment, Segment::Variable(_));
        if segments.windows(2).any(|pair| pair.iter().all(is_variable)) {
            return Err(FormatFault::AdjacentVariables);
        }
        let names = segments.iter().filter_map(|segment| match segment {
            Segment::Variable(name) => Some(name.as_str()),
            Segment::Literal(_) => None,
        });
        let has_any = |variables: &[&str]| names.clone().any(|name| variables.contains(&name));
        if !has_any(&["time_local", "time_iso8601", "msec"]) || !has_any(&["status"]) {
            return Err(FormatFault::MissingVariable);
        }
        Ok(LineParser { segments: Some(segments.clone()) })
    }

    /// Parses a line without its line end.
    ///
    /// # Errors
    /// Fails if the line does not have the format; see [`LineFault`].
    pub(crate) fn parse<'a>(&self, line: &'a str) -> Result<LogLine<'a>, LineFault> {
        if line.len() > LINE_BYTES_MAX {
            return Err(LineFault::Length);
        }
        match &self.segments {
            None => parse_json(line),
            Some(segments) => parse_text(segments, line),
        }
    }
}

#[derive(Deserialize)]
struct JsonLine<'a> {
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

fn parse_json(line: &str) -> Result<LogLine<'_>, LineFault> {
    let json: JsonLine<'_> = serde_json::from_str(line).map_err(|_| LineFault::Json)?;
    let request_seconds =
        json.request_time.filter(|seconds| seconds.is_finite() && *seconds >= 0.0);
    Ok(LogLine {
        seconds: parse_iso_time(&json.time)?,
        client: json.client,
        key: json.key,
        method: json.method,
        upstream: json.upstream,
        cache: json.cache,
        status: json.status,
        error: json.error,
        request_seconds,
        bytes_out: json.bytes_out,
    })
}

/// Parses a line by the segments of a text format. The value of a variable ends where the next
/// literal begins.
fn parse_text<'a>(segments: &[Segment], line: &'a str) -> Result<LogLine<'a>, LineFault> {
    let mut parsed = LogLine::default();
    let mut remaining = line;
    let mut segments = segments.iter().peekable();
    while let Some(segment) = segments.next() {
        match segment {
            Segment::Literal(text) => {
                remaining = remaining.strip_prefix(&**text).ok_or(LineFault::Shape)?
            }
            Segment::Variable(name) => {
                let end = match segments.peek() {
                    Some(Segment::Literal(text)) => {
                        remaining.find(&**text).ok_or(LineFault::Shape)?
                    }
                    _ => remaining.len(),
                };
                let (value, after_value) = remaining.split_at(end);
                parsed.set(name, value)?;
                remaining = after_value;
            }
        }
    }
    if remaining.is_empty() { Ok(parsed) } else { Err(LineFault::Shape) }
}

impl<'a> LogLine<'a> {
    /// Sets the value of a variable. `-` or an empty text means that the value is absent.
    fn set(&mut self, variable: &str, value: &'a str) -> Result<(), LineFault> {
        let text = || (value != "-" && !value.is_empty()).then_some(Cow::Borrowed(value));
        match variable {
            "remote_addr" => self.client = Cow::Borrowed(value),
            "key" => self.key = text(),
            "rpc_method" => self.method = text(),
            "upstream" => self.upstream = text(),
            "cache" => self.cache = text(),
            "time_local" => self.seconds = parse_local_time(value)?,
            "time_iso8601" => self.seconds = parse_iso_time(value)?,
            "msec" => self.seconds = parse_seconds(value).ok_or(LineFault::Time)?,
            "status" => self.status = value.parse().map_err(|_| LineFault::Number)?,
            "rpc_error" => self.error = value.parse().ok(),
            "request_time" => self.request_seconds = parse_seconds(value),
            "body_bytes_sent" => self.bytes_out = value.parse().ok(),
            // The other variables are not aggregated.
            _ => {}
        }
        Ok(())
    }
}

/// Parses a number of seconds. Returns `None` if the number is negative or too large for a time.
fn parse_seconds(text: &str) -> Option<f64> {
    /// The largest time of `jiff`, in the year 9999.
    const SECONDS_MAX: f64 = 253_402_207_200.0;
    text.parse().ok().filter(|number: &f64| (0.0..SECONDS_MAX).contains(number))
}

fn parse_iso_time(text: &str) -> Result<f64, LineFault> {
    let time: Timestamp = text.parse().map_err(|_| LineFault::Time)?;
    Ok(time.as_microsecond() as f64 / 1e6)
}

fn parse_local_time(text: &str) -> Result<f64, LineFault> {
    let time = BrokenDownTime::parse("%d/%b/%Y:%H:%M:%S %z", text).map_err(|_| LineFault::Time)?;
    let time = time.to_timestamp().map_err(|_| LineFault::Time)?;
    Ok(time.as_second() as f64)
}
