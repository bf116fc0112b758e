//! The record of a request, and its format as a log line.
//!
//! Texts from clients are escaped, so no client can forge a line or send control characters to a
//! terminal. No record contains an API key: paths are masked, and headers with secrets are not
//! recorded.

use std::fmt;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;

use crate::access::caller::AccessValues;
use crate::call::CacheStatus;
use crate::config::access_log::format::{Format, Part, USER_AGENT, Variable};

#[cfg(test)]
mod tests;

/// Maximum number of bytes that a line contains of one text from a client. Longer texts are
/// truncated.
const TEXT_BYTES_MAX: usize = 512;

/// Facts about a request, or about one of its calls.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    /// When the record was created: shortly before the response is written.
    pub(crate) time: SystemTime,
    /// Address of the client.
    pub(crate) client: IpAddr,
    /// Name of the caller's API key or token; `None` without one.
    pub(crate) key: Option<Arc<str>>,
    /// Tier of the caller's key or token; `None` without a tier.
    pub(crate) tier: Option<Arc<str>>,
    /// The path with secrets masked.
    pub(crate) path: Box<str>,
    /// Method of the HTTP request; `-` if it is unknown.
    pub(crate) http_method: &'static str,
    /// Protocol of the request, such as `HTTP/1.1`.
    pub(crate) protocol: &'static str,
    /// HTTP status of the response; 0 until the response is written.
    pub(crate) status: u16,
    /// Bytes of the request body.
    pub(crate) bytes_in: usize,
    /// Bytes of the response body. In the record of one call, bytes of the call's result or error.
    pub(crate) bytes_out: usize,
    /// Time from the arrival of the complete request until the response is written.
    pub(crate) duration: Duration,
    /// Number of calls of the request.
    pub(crate) calls: usize,
    /// One call, or all calls of the request merged; `None` for a request without calls.
    pub(crate) call: Option<CallRecord>,
    /// The host and the headers of the request.
    pub(crate) access_values: Option<Arc<AccessValues>>,
}

/// Facts about one call, or about all calls of a batch together.
#[derive(Debug, Clone)]
pub(crate) struct CallRecord {
    /// Name of the method; empty if the call could not be parsed, `batch` for calls of different
    /// methods.
    pub(crate) method: Box<str>,
    /// Name of the chain.
    pub(crate) chain: Arc<str>,
    /// Code of the JSON-RPC error; `None` if the call succeeded.
    pub(crate) error: Option<i64>,
    /// How the cache was involved; `None` if the call failed before the cache was used.
    pub(crate) cache: Option<CacheStatus>,
    /// Name of the upstream that sent the response. For a response from the cache, name of the
    /// upstream that sent it originally. `None` if the upstream is unknown, or if no upstream
    /// responded.
    pub(crate) upstream: Option<Arc<str>>,
    /// Bytes of the result or error object.
    pub(crate) bytes: usize,
    /// Time from the end of decoding the call to its response.
    pub(crate) duration: Duration,
    /// Time spent on upstreams; `None` if the call used no upstream.
    pub(crate) upstream_time: Option<Duration>,
}

impl Record {
    /// Creates the record of a request whose head could not be parsed.
    pub(crate) fn without_head(client: IpAddr, protocol: &'static str) -> Record {
        Record {
            time: SystemTime::now(),
            client,
            key: None,
            tier: None,
            path: "-".into(),
            http_method: "-",
            protocol,
            status: 0,
            bytes_in: 0,
            bytes_out: 0,
            duration: Duration::ZERO,
            calls: 0,
            call: None,
            access_values: None,
        }
    }

    /// Returns true if the status or a call reports an error.
    pub(crate) fn is_error(&self) -> bool {
        self.status >= 400 || self.call.as_ref().is_some_and(|call| call.error.is_some())
    }

    fn header(&self, index: usize) -> Option<&[u8]> {
        self.access_values.as_ref()?.headers.get(index)?.as_deref()
    }
}

/// Appends the line of a record to `out`, with a line break.
pub(crate) fn write_line(
    out: &mut String,
    format: &Format,
    used_headers: &[Box<str>],
    record: &Record,
) {
    match format {
        Format::Json => write_json(out, used_headers, record),
        Format::Text(parts) => {
            for part in parts {
                match part {
                    Part::Literal(text) => out.push_str(text),
                    // Writing into a string cannot fail.
                    Part::Variable(variable) => drop(write_variable(out, *variable, record)),
                    Part::Header(_, index) => drop(write_text(out, record.header(*index))),
                }
            }
        }
    }
    out.push('\n');
}

/// Writes a record as one JSON object. Members without a value are omitted.
fn write_json(out: &mut String, used_headers: &[Box<str>], record: &Record) {
    let _ =
        write!(out, "{{\"time\":\"{:.6}\",\"client\":\"{}\"", timestamp_of(record), record.client);
    let call = record.call.as_ref();
    let agent = used_headers.iter().position(|name| **name == *USER_AGENT);
    write_member(out, "key", record.key.as_deref());
    write_member(out, "tier", record.tier.as_deref());
    write_member(
        out,
        "host",
        record.access_values.as_ref().map(|access_values| &*access_values.host),
    );
    write_member(out, "verb", Some(record.http_method));
    write_member(out, "path", Some(&*record.path));
    write_member(out, "chain", call.map(|call| &*call.chain));
    write_member(out, "method", call.map(|call| &*call.method));
    write_member(out, "cache", call.and_then(|call| call.cache).map(CacheStatus::as_str));
    write_member(out, "upstream", call.and_then(|call| call.upstream.as_deref()));
    write_member(out, "user_agent", agent.and_then(|index| record.header(index)));
    let _ = write!(out, ",\"status\":{},\"calls\":{}", record.status, record.calls);
    if let Some(error) = call.and_then(|call| call.error) {
        let _ = write!(out, ",\"error\":{error}");
    }
    let _ = write!(
        out,
        ",\"bytes_in\":{},\"bytes_out\":{},\"request_time\":{:.6}",
        record.bytes_in,
        record.bytes_out,
        record.duration.as_secs_f64()
    );
    if let Some(upstream) = call.and_then(|call| call.upstream_time) {
        let _ = write!(out, ",\"upstream_time\":{:.6}", upstream.as_secs_f64());
    }
    out.push('}');
}

/// Writes a member of a JSON object, unless `value` is `None`.
fn write_member(out: &mut String, name: &str, value: Option<impl AsRef<[u8]>>) {
    if let Some(value) = value {
        let _ = write!(out, ",\"{name}\":\"");
        escape_json(out, value.as_ref());
        out.push('"');
    }
}

fn timestamp_of(record: &Record) -> Timestamp {
    Timestamp::try_from(record.time).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// Writes the value of one variable of a text format; `-` if the record has no value.
fn write_variable(out: &mut String, variable: Variable, record: &Record) -> fmt::Result {
    let call = record.call.as_ref();
    match variable {
        Variable::RemoteAddr => write!(out, "{}", record.client),
        Variable::TimeLocal => {
            write!(out, "{}", timestamp_of(record).strftime("%d/%b/%Y:%H:%M:%S +0000"))
        }
        Variable::TimeIso => write!(out, "{:.6}", timestamp_of(record)),
        Variable::Msec => {
            let ms = timestamp_of(record).as_millisecond();
            write!(out, "{}.{:03}", ms / 1000, ms % 1000)
        }
        Variable::RequestMethod => out.write_str(record.http_method),
        Variable::Protocol => out.write_str(record.protocol),
        Variable::Request => {
            write!(out, "{} ", record.http_method)?;
            escape_text(out, record.path.as_bytes())?;
            write!(out, " {}", record.protocol)
        }
        Variable::Status => write!(out, "{}", record.status),
        Variable::BodyBytesSent => write!(out, "{}", record.bytes_out),
        Variable::RequestLength => write!(out, "{}", record.bytes_in),
        Variable::RequestTime => write!(out, "{:.3}", record.duration.as_secs_f64()),
        Variable::UpstreamTime => match call.and_then(|call| call.upstream_time) {
            Some(upstream) => write!(out, "{:.3}", upstream.as_secs_f64()),
            None => out.write_str("-"),
        },
        Variable::Calls => write!(out, "{}", record.calls),
        Variable::Error => match call.and_then(|call| call.error) {
            Some(error) => write!(out, "{error}"),
            None => out.write_str("-"),
        },
        Variable::Cache => {
            out.write_str(call.and_then(|call| call.cache).map_or("-", CacheStatus::as_str))
        }
        Variable::Key => write_text(out, record.key.as_deref()),
        Variable::Tier => write_text(out, record.tier.as_deref()),
        Variable::Upstream => write_text(out, call.and_then(|call| call.upstream.as_deref())),
        Variable::Uri => write_text(out, Some(&*record.path)),
        Variable::Chain => write_text(out, call.map(|call| &*call.chain)),
        Variable::Method => write_text(out, call.map(|call| &*call.method)),
        Variable::Host => {
            write_text(out, record.access_values.as_ref().map(|access_values| &*access_values.host))
        }
    }
}

/// Writes an escaped text, or `-` for `None` and an empty text.
fn write_text(out: &mut String, value: Option<impl AsRef<[u8]>>) -> fmt::Result {
    match value {
        Some(value) if !value.as_ref().is_empty() => escape_text(out, value.as_ref()),
        _ => out.write_str("-"),
    }
}

/// Writes a text, escaped as nginx does: quotes, backslashes and bytes that are not printable ASCII
/// become `\xXX`.
fn escape_text(out: &mut String, value: &[u8]) -> fmt::Result {
    value[..value.len().min(TEXT_BYTES_MAX)].iter().try_for_each(|byte| match byte {
        b'"' | b'\\' | 0..=31 | 127.. => write!(out, "\\x{byte:02X}"),
        _ => out.write_char(char::from(*byte)),
    })
}

/// Writes a text, escaped as a JSON string. All control characters are escaped too.
fn escape_json(out: &mut String, value: &[u8]) {
    let value = &value[..value.len().min(TEXT_BYTES_MAX)];
    for character in String::from_utf8_lossy(value).chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            // Some log readers break lines at U+2028 and U+2029 (line and paragraph separators).
            _ if character.is_control() || matches!(character, '\u{2028}' | '\u{2029}') => {
                let _ = write!(out, "\\u{:04x}", u32::from(character));
            }
            _ => out.push(character),
        }
    }
}

/// Masks the segments of a path that are long enough to be an API key. A valid key has already been
/// removed from the path, but these segments may be mistyped or former keys.
pub(crate) fn mask_path(path: &str) -> Box<str> {
    const MASK: &str = "***";
    let may_be_key = |segment: &str| segment.len() >= crate::access::caller::KEY_BYTES_MIN;
    if !path.split('/').any(may_be_key) {
        return path.into();
    }
    let segments: Vec<&str> =
        path.split('/').map(|segment| if may_be_key(segment) { MASK } else { segment }).collect();
    segments.join("/").into()
}
