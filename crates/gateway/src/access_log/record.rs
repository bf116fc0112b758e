//! The record of a request, and its formatting as a line.
//!
//! Client texts are escaped, so that no client can forge a line or move a cursor. No record
//! contains a key, because paths are masked first and headers with secrets are not recorded.

use crate::config::access_log::format::Format;
use crate::config::access_log::format::Part;
use crate::config::access_log::format::USER_AGENT;
use crate::config::access_log::format::Var;
use std::fmt;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;

use crate::access::caller::ExtraValues;
use crate::call::cache_status::CacheStatus;

#[cfg(test)]
mod tests;

/// Maximum number of bytes of a client's text in a line. Longer texts are truncated.
const TEXT_BYTES_MAX: usize = 512;

/// Facts about a request, or about one call of it.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    pub(crate) time: SystemTime,
    pub(crate) client: IpAddr,
    pub(crate) key: Option<Arc<str>>,
    pub(crate) tier: Option<Arc<str>>,
    /// The path with secrets masked.
    pub(crate) path: Box<str>,
    pub(crate) http_method: &'static str,
    pub(crate) protocol: &'static str,
    pub(crate) status: u16,
    pub(crate) bytes_in: usize,
    pub(crate) bytes_out: usize,
    /// Time from the complete request to the written response.
    pub(crate) took: Duration,
    /// Number of calls.
    pub(crate) calls: usize,
    pub(crate) call: Option<CallRecord>,
    /// The host and the headers of the request.
    pub(crate) extra: Option<Arc<ExtraValues>>,
}

/// Facts about one call, or about all calls of a batch together.
#[derive(Debug, Clone)]
pub(crate) struct CallRecord {
    pub(crate) method: Box<str>,
    pub(crate) chain: Arc<str>,
    /// Code of the JSON-RPC error.
    pub(crate) error: Option<i64>,
    pub(crate) cache: Option<CacheStatus>,
    /// Name of the upstream that responded.
    pub(crate) upstream: Option<Arc<str>>,
    pub(crate) bytes: usize,
    pub(crate) took: Duration,
    /// Time spent on upstreams.
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
            took: Duration::ZERO,
            calls: 0,
            call: None,
            extra: None,
        }
    }

    /// Returns true if the status or a call reports an error.
    pub(crate) fn is_error(&self) -> bool {
        self.status >= 400 || self.call.as_ref().is_some_and(|call| call.error.is_some())
    }

    fn header(&self, index: usize) -> Option<&[u8]> {
        self.extra.as_ref()?.headers.get(index)?.as_deref()
    }
}

/// Appends the line of a record, with its line end.
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
                    Part::Var(var) => drop(write_variable(out, var, record)),
                }
            }
        }
    }
    out.push('\n');
}

fn write_json(out: &mut String, used_headers: &[Box<str>], record: &Record) {
    let _ = write!(out, "{{\"time\":\"{:.6}\",\"client\":\"{}\"", time(record), record.client);
    let mut text = |name: &str, value: Option<&[u8]>| {
        let Some(value) = value else { return };
        let _ = write!(out, ",\"{name}\":\"");
        escape_json(out, value);
        out.push('"');
    };
    let call = record.call.as_ref();
    let agent = used_headers.iter().position(|name| **name == *USER_AGENT);
    text("key", bytes(record.key.as_deref()));
    text("tier", bytes(record.tier.as_deref()));
    text("host", bytes(record.extra.as_ref().map(|extra| &*extra.host)));
    text("verb", bytes(Some(record.http_method)));
    text("path", bytes(Some(&record.path)));
    text("chain", bytes(call.map(|call| &*call.chain)));
    text("method", bytes(call.map(|call| &*call.method)));
    text("cache", bytes(call.and_then(|call| call.cache).map(CacheStatus::as_str)));
    text("upstream", bytes(call.and_then(|call| call.upstream.as_deref())));
    text("user_agent", agent.and_then(|index| record.header(index)));
    let _ = write!(out, ",\"status\":{},\"calls\":{}", record.status, record.calls);
    if let Some(error) = call.and_then(|call| call.error) {
        let _ = write!(out, ",\"error\":{error}");
    }
    let _ = write!(
        out,
        ",\"bytes_in\":{},\"bytes_out\":{},\"request_time\":{:.6}",
        record.bytes_in,
        record.bytes_out,
        record.took.as_secs_f64()
    );
    if let Some(upstream) = call.and_then(|call| call.upstream_time) {
        let _ = write!(out, ",\"upstream_time\":{:.6}", upstream.as_secs_f64());
    }
    out.push('}');
}

fn bytes(text: Option<&str>) -> Option<&[u8]> {
    text.map(str::as_bytes)
}

fn time(record: &Record) -> Timestamp {
    Timestamp::try_from(record.time).unwrap_or(Timestamp::UNIX_EPOCH)
}

fn write_variable(out: &mut String, var: &Var, record: &Record) -> fmt::Result {
    let call = record.call.as_ref();
    match var {
        Var::RemoteAddr => write!(out, "{}", record.client),
        Var::TimeLocal => write!(out, "{}", time(record).strftime("%d/%b/%Y:%H:%M:%S +0000")),
        Var::TimeIso => write!(out, "{:.6}", time(record)),
        Var::Msec => {
            let ms = time(record).as_millisecond();
            write!(out, "{}.{:03}", ms / 1000, ms % 1000)
        }
        Var::RequestMethod => out.write_str(record.http_method),
        Var::Protocol => out.write_str(record.protocol),
        Var::Request => {
            write!(out, "{} ", record.http_method)?;
            escape_text(out, record.path.as_bytes())?;
            write!(out, " {}", record.protocol)
        }
        Var::Status => write!(out, "{}", record.status),
        Var::BodyBytesSent => write!(out, "{}", record.bytes_out),
        Var::RequestLength => write!(out, "{}", record.bytes_in),
        Var::RequestTime => write!(out, "{:.3}", record.took.as_secs_f64()),
        Var::UpstreamTime => match call.and_then(|call| call.upstream_time) {
            Some(upstream) => write!(out, "{:.3}", upstream.as_secs_f64()),
            None => out.write_str("-"),
        },
        Var::Calls => write!(out, "{}", record.calls),
        Var::Error => match call.and_then(|call| call.error) {
            Some(error) => write!(out, "{error}"),
            None => out.write_str("-"),
        },
        Var::Cache => {
            out.write_str(call.and_then(|call| call.cache).map_or("-", CacheStatus::as_str))
        }
        Var::Key => write_text(out, bytes(record.key.as_deref())),
        Var::Tier => write_text(out, bytes(record.tier.as_deref())),
        Var::Upstream => write_text(out, bytes(call.and_then(|call| call.upstream.as_deref()))),
        Var::Uri => write_text(out, bytes(Some(&record.path))),
        Var::Chain => write_text(out, bytes(call.map(|call| &*call.chain))),
        Var::Method => write_text(out, bytes(call.map(|call| &*call.method))),
        Var::Host => write_text(out, bytes(record.extra.as_ref().map(|extra| &*extra.host))),
        Var::Header(_, index) => write_text(out, record.header(*index)),
    }
}

fn write_text(out: &mut String, value: Option<&[u8]>) -> fmt::Result {
    match value {
        Some(value) if !value.is_empty() => escape_text(out, value),
        _ => out.write_str("-"),
    }
}

/// Escapes as nginx does: quotes, backslashes and bytes that are not printable ASCII become `\xXX`.
fn escape_text(out: &mut String, value: &[u8]) -> fmt::Result {
    value[..value.len().min(TEXT_BYTES_MAX)].iter().try_for_each(|byte| match byte {
        b'"' | b'\\' | 0..=31 | 127.. => write!(out, "\\x{byte:02X}"),
        _ => out.write_char(char::from(*byte)),
    })
}

/// Escapes a text as in JSON, with all control characters.
fn escape_json(out: &mut String, value: &[u8]) {
    let value = &value[..value.len().min(TEXT_BYTES_MAX)];
    for letter in String::from_utf8_lossy(value).chars() {
        match letter {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            // Some readers treat line separators as line ends.
            _ if letter.is_control() || matches!(letter, '\u{2028}' | '\u{2029}') => {
                let _ = write!(out, "\\u{:04x}", u32::from(letter));
            }
            _ => out.push(letter),
        }
    }
}

/// Masks the segments of a path that are at least as long as a key. Known keys are already removed,
/// so this masks unknown and former keys.
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
