//! The record of a request, and how it becomes a line.
//!
//! Texts of clients are escaped, so that no client can write a line or move a cursor. No record holds
//! a key: a path is masked before, and headers that carry secrets are not kept.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;

use super::format::{Format, Part, USER_AGENT, Var};
use crate::call::cache_status::CacheStatus;
use crate::front::caller::Extra;

#[cfg(test)]
mod tests;

/// Bytes of a client's text that are written; the rest is cut.
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
    pub(crate) took: Duration,
    /// Number of calls.
    pub(crate) calls: usize,
    pub(crate) call: Option<CallRecord>,
    /// Texts of the head.
    pub(crate) extra: Option<Arc<Extra>>,
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
    /// Returns the record of a request of which nothing else is known.
    pub(crate) fn bare(client: IpAddr, protocol: &'static str) -> Record {
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

    fn header(&self, place: usize) -> Option<&[u8]> {
        self.extra.as_ref()?.headers.get(place)?.as_deref()
    }

    fn call<T>(&self, read: impl FnOnce(&CallRecord) -> Option<T>) -> Option<T> {
        self.call.as_ref().and_then(read)
    }
}

/// Appends the line of a record, with its line end.
pub(crate) fn write(out: &mut String, format: &Format, kept_headers: &[Box<str>], record: &Record) {
    match format {
        Format::Json => json(out, kept_headers, record),
        Format::Text(parts) => {
            for part in parts {
                match part {
                    Part::Literal(text) => out.push_str(text),
                    Part::Var(var) => variable(out, var, record),
                }
            }
        }
    }
    out.push('\n');
}

fn json(out: &mut String, kept_headers: &[Box<str>], record: &Record) {
    let _ = write!(out, "{{\"time\":\"{:.6}\",\"client\":\"{}\"", time(record), record.client);
    let mut text = |name: &str, value: Option<&[u8]>| {
        let Some(value) = value else { return };
        let _ = write!(out, ",\"{name}\":\"");
        escape_json(out, value);
        out.push('"');
    };
    let agent = kept_headers.iter().position(|name| **name == *USER_AGENT);
    text("key", record.key.as_deref().map(str::as_bytes));
    text("tier", record.tier.as_deref().map(str::as_bytes));
    text("host", record.extra.as_ref().map(|extra| extra.host.as_bytes()));
    text("verb", Some(record.http_method.as_bytes()));
    text("path", Some(record.path.as_bytes()));
    text("chain", record.call.as_ref().map(|call| call.chain.as_bytes()));
    text("method", record.call.as_ref().map(|call| call.method.as_bytes()));
    text("cache", record.call(|call| call.cache).map(|cache| cache.as_str().as_bytes()));
    text("node", record.call.as_ref().and_then(|call| call.upstream.as_deref()).map(str::as_bytes));
    text("user_agent", agent.and_then(|place| record.header(place)));
    let _ = write!(out, ",\"status\":{},\"calls\":{}", record.status, record.calls);
    if let Some(error) = record.call(|call| call.error) {
        let _ = write!(out, ",\"error\":{error}");
    }
    let _ = write!(
        out,
        ",\"bytes_in\":{},\"bytes_out\":{},\"request_time\":{:.6}",
        record.bytes_in,
        record.bytes_out,
        record.took.as_secs_f64()
    );
    if let Some(upstream) = record.call(|call| call.upstream_time) {
        let _ = write!(out, ",\"upstream_time\":{:.6}", upstream.as_secs_f64());
    }
    out.push('}');
}

fn time(record: &Record) -> Timestamp {
    Timestamp::try_from(record.time).unwrap_or(Timestamp::UNIX_EPOCH)
}

fn variable(out: &mut String, var: &Var, record: &Record) {
    let text = |out: &mut String, value: Option<&[u8]>| match value {
        Some(value) if !value.is_empty() => escape_text(out, value),
        _ => out.push('-'),
    };
    let name = |out: &mut String, value: Option<&Arc<str>>| {
        text(out, value.map(|value| value.as_bytes()));
    };
    let _ = match var {
        Var::RemoteAddr => write!(out, "{}", record.client),
        Var::TimeLocal => write!(out, "{}", time(record).strftime("%d/%b/%Y:%H:%M:%S +0000")),
        Var::TimeIso => write!(out, "{:.6}", time(record)),
        Var::Msec => {
            let ms = time(record).as_millisecond();
            write!(out, "{}.{:03}", ms / 1000, ms % 1000)
        }
        Var::RequestMethod => write!(out, "{}", record.http_method),
        Var::Protocol => write!(out, "{}", record.protocol),
        Var::Status => write!(out, "{}", record.status),
        Var::BodyBytesSent => write!(out, "{}", record.bytes_out),
        Var::RequestLength => write!(out, "{}", record.bytes_in),
        Var::RequestTime => write!(out, "{:.3}", record.took.as_secs_f64()),
        Var::UpstreamTime => match record.call(|call| call.upstream_time) {
            Some(upstream) => write!(out, "{:.3}", upstream.as_secs_f64()),
            None => write!(out, "-"),
        },
        Var::Calls => write!(out, "{}", record.calls),
        Var::Error => match record.call(|call| call.error) {
            Some(error) => write!(out, "{error}"),
            None => write!(out, "-"),
        },
        Var::Cache => {
            write!(out, "{}", record.call(|call| call.cache).map_or("-", |cache| cache.as_str()))
        }
        Var::Request => {
            let _ = write!(out, "{} ", record.http_method);
            escape_text(out, record.path.as_bytes());
            write!(out, " {}", record.protocol)
        }
        Var::Key => {
            name(out, record.key.as_ref());
            Ok(())
        }
        Var::Tier => {
            name(out, record.tier.as_ref());
            Ok(())
        }
        Var::Node => {
            name(out, record.call.as_ref().and_then(|call| call.upstream.as_ref()));
            Ok(())
        }
        Var::Uri => {
            escape_text(out, record.path.as_bytes());
            Ok(())
        }
        Var::Chain => {
            text(out, record.call.as_ref().map(|call| call.chain.as_bytes()));
            Ok(())
        }
        Var::Method => {
            text(out, record.call.as_ref().map(|call| call.method.as_bytes()));
            Ok(())
        }
        Var::Host => {
            text(out, record.extra.as_ref().map(|extra| extra.host.as_bytes()));
            Ok(())
        }
        Var::Header(_, place) => {
            text(out, record.header(*place));
            Ok(())
        }
    };
}

/// Escapes as nginx does: quotes, backslashes and bytes that are not printable ASCII become `\xXX`.
fn escape_text(out: &mut String, value: &[u8]) {
    for byte in &value[..value.len().min(TEXT_BYTES_MAX)] {
        match byte {
            b'"' | b'\\' | 0..=31 | 127.. => {
                let _ = write!(out, "\\x{byte:02X}");
            }
            _ => out.push(char::from(*byte)),
        }
    }
}

/// Escapes as JSON does, and all control characters besides.
fn escape_json(out: &mut String, value: &[u8]) {
    let value = &value[..value.len().min(TEXT_BYTES_MAX)];
    for letter in String::from_utf8_lossy(value).chars() {
        match letter {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            // Some readers take line separators for the end of a line.
            _ if letter.is_control() || matches!(letter, '\u{2028}' | '\u{2029}') => {
                let _ = write!(out, "\\u{:04x}", u32::from(letter));
            }
            _ => out.push(letter),
        }
    }
}

/// Masks the segments of a path that are as long as a key. Known keys were removed before; this
/// masks unknown and former ones.
pub(crate) fn masked(path: &str) -> Box<str> {
    const MASK: &str = "***";
    let long = |segment: &str| segment.len() >= crate::front::caller::KEY_BYTES_MIN;
    if !path.split('/').any(long) {
        return path.into();
    }
    let segments: Vec<&str> =
        path.split('/').map(|segment| if long(segment) { MASK } else { segment }).collect();
    segments.join("/").into()
}
