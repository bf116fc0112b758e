//! Builds every HTTP response: heads, JSON-RPC envelopes, and errors.
//!
//! This module is the only place that maps failures and refusals to statuses, codes and messages.
//! Results and error objects of upstreams are passed on unchanged.

use crate::call::failure::{FORBIDDEN, OUT_OF_MEMORY, describe};
use crate::call::reply::{Body, CallReply, Content, Reply};
use crate::call::{CacheStatus, Payload, Tier};
use crate::config::Config;
use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use wire::error::ErrorCode;
use wire::quantity::write_decimal;
use wire::response::{write_error, write_error_raw, write_result};

use crate::access_log::pending::PendingRecord;
use crate::call::failure::{Failure, Kind};
use crate::config::downstream::Cors;
use crate::downstream::head::HeadFault;
use crate::io::chunked::ChunkFault;
use crate::io::memory;
use crate::io::memory::{Account, Budget, Reservation};
use crate::policy::access::Denial;
use crate::policy::memory::Purpose;
use crate::state::snapshot::Snapshot;

/// The settings and request properties that the HTTP head of a response depends on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeadOptions<'a> {
    pub(crate) config: &'a Config,
    pub(crate) origin: Option<&'a str>,
    pub(crate) keep_alive: bool,
    /// True if the response must confirm `Connection: keep-alive`, as HTTP/1.0 clients expect.
    pub(crate) confirm_keep_alive: bool,
    /// The current date in HTTP format, refreshed once per second.
    pub(crate) date: &'a [u8],
}

/// A response body, and the fields of its HTTP head.
#[derive(Debug, Default)]
pub(crate) struct Message {
    pub(crate) status: u16,
    pub(crate) body: Body,
    /// Value of the `x-weir-cache` header.
    pub(crate) cache: Option<Cow<'static, str>>,
    /// Value of the `x-weir-upstream` header.
    pub(crate) upstream: Option<Arc<str>>,
    pub(crate) retry_after: Option<Duration>,
    /// Content coding of the body.
    pub(crate) encoding: Option<&'static str>,
    /// The access-log record; `None` while the log is off.
    pub(crate) record: Option<Box<PendingRecord>>,
    /// The memory reservation for the body until it is written.
    pub(crate) reservation: Option<Reservation>,
}

impl Message {
    fn plain(status: u16, body: Body) -> Message {
        Message { status, body, ..Message::default() }
    }

    /// Returns a response without a body.
    pub(crate) fn empty(status: u16) -> Message {
        Message::plain(status, Body::default())
    }

    /// Refuses a request because the memory budget is used up.
    pub(crate) fn refuse_memory() -> Message {
        let message = Message::refuse(503, OUT_OF_MEMORY);
        Message { retry_after: Some(memory::RETRY_AFTER), ..message }
    }

    /// Reserves memory for the body until it is written. If the budget is used up, the client
    /// receives a refusal with `Retry-After` instead.
    pub(crate) fn with_reservation(
        mut self,
        budget: &Arc<Budget>,
        account: &Rc<Account>,
    ) -> Message {
        if self.body.len() > memory::FREE_BYTES {
            let mut reservation = Reservation::for_connection(budget, Purpose::Response, account);
            if reservation.set(self.body.len()).is_err() {
                return Message { record: self.record, ..Message::refuse_memory() };
            }
            self.reservation = Some(reservation);
        }
        self
    }

    /// Refuses a whole HTTP request. The JSON-RPC body lets a client library display the text.
    pub(crate) fn refuse(status: u16, message: &str) -> Message {
        let code = if status >= 500 { ErrorCode::INTERNAL } else { ErrorCode::INVALID_REQUEST };
        Message::refuse_with(status, code, message)
    }

    fn refuse_with(status: u16, code: ErrorCode, message: &str) -> Message {
        let mut body = Vec::with_capacity(64 + message.len());
        write_error(&mut body, b"null", i64::from(code.0), message, None);
        Message::plain(status, Body::from_bytes(body))
    }

    /// Refuses a request that access control denies.
    pub(crate) fn refuse_denial(denial: Denial) -> Message {
        match denial {
            Denial::NoKey => Message::refuse(401, "an API key or token is required"),
            Denial::BadKey => Message::refuse(401, "the API key or token is not valid"),
            Denial::Expired => Message::refuse(401, "the API key or token has expired"),
            Denial::TwoKeys => Message::refuse(401, "request contains more than one API key"),
            Denial::Address => Message::refuse(403, "this client address is not allowed"),
            Denial::Chain => Message::refuse(403, FORBIDDEN),
            // These denials apply to single calls, which have their own responses.
            Denial::NodeMethod | Denial::Transaction | Denial::Method | Denial::Rule => {
                Message::refuse(403, "request is not allowed here")
            }
        }
    }

    /// Refuses a request of a client that was denied too often.
    pub(crate) fn refuse_frequent_denials(failure: &Failure) -> Message {
        let status = match failure.kind {
            Kind::OverRate { status } => status,
            _ => 429,
        };
        let text = "too many denied requests from this client";
        let message = Message::refuse_with(status, ErrorCode::LIMIT_EXCEEDED, text);
        Message { retry_after: failure.retry_after, ..message }
    }

    /// Refuses a malformed head.
    pub(crate) fn refuse_head(fault: HeadFault) -> Message {
        let status = match fault {
            HeadFault::TooManyHeaders | HeadFault::TooLarge => 431,
            HeadFault::Version => 505,
            HeadFault::Expectation => 417,
            _ => 400,
        };
        Message::refuse(status, &fault.to_string())
    }

    /// Refuses a chunked body that is malformed or over `bytes_max`.
    pub(crate) fn refuse_chunks(fault: ChunkFault, bytes_max: usize) -> Message {
        match fault {
            ChunkFault::TooLarge => Message::refuse_size(bytes_max),
            _ => Message::refuse(400, &fault.to_string()),
        }
    }

    /// Refuses a body over `bytes_max`.
    pub(crate) fn refuse_size(bytes_max: usize) -> Message {
        Message::refuse(413, &format!("body exceeds the limit of {bytes_max} bytes"))
    }

    /// Builds the message for the calls of one request.
    pub(crate) fn from_reply(reply: Reply<'_>, snapshot: &Snapshot) -> Message {
        match reply {
            Reply::Empty => Message::empty(200),
            Reply::Single(reply) => build_single_reply(reply, snapshot),
            Reply::Batch(items) => build_batch_reply(&items, snapshot),
        }
    }
}

fn build_single_reply(reply: CallReply<'_>, snapshot: &Snapshot) -> Message {
    let (status, retry_after) = match &reply.content {
        Content::Payload(Payload::Failed(failure)) => {
            (describe(failure.kind, &snapshot.config).status, failure.retry_after)
        }
        _ => (200, None),
    };
    let body = match reply.content {
        Content::Payload(Payload::Result(result)) => {
            let mut start = Vec::with_capacity(40 + reply.id.len());
            write_result(&mut start, reply.id, b"");
            // The closing brace is written after the payload, which is not copied here.
            start.pop();
            Body { start, middle: result, end: b"}" }
        }
        payload => {
            let mut start = Vec::with_capacity(256);
            write_content(&mut start, reply.id, &payload, snapshot);
            Body::from_bytes(start)
        }
    };
    let mut message = Message { retry_after, ..Message::plain(status, body) };
    if snapshot.config.downstream.answer_headers {
        message.cache = reply.cache_status.map(|cache_status| {
            let tier = reply.tier.filter(|_| cache_status == CacheStatus::Hit);
            Cow::Borrowed(tier.map_or_else(|| cache_status.as_str(), Tier::hit))
        });
        message.upstream =
            reply.upstream_index.map(|index| Arc::clone(&snapshot.upstreams[index].config.name));
    }
    message
}

fn build_batch_reply(items: &[CallReply<'_>], snapshot: &Snapshot) -> Message {
    let downstream = &snapshot.config.downstream;
    let mut body = Vec::with_capacity(256 * items.len());
    let mut counts = [0usize; CacheStatus::ALL.len()];
    body.push(b'[');
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            body.push(b',');
        }
        let start = body.len();
        write_content(&mut body, item.id, &item.content, snapshot);
        if body.len() > downstream.batch_response_bytes_max {
            body.truncate(start);
            let failed = Payload::Failed(Failure::ours(Kind::BatchTooLarge));
            write_content(&mut body, item.id, &Content::Payload(failed), snapshot);
        }
        if let Some(cache_status) = item.cache_status {
            counts[cache_status.index()] += 1;
        }
    }
    body.push(b']');
    let (status, retry_after) = batch_status(items, &snapshot.config);
    let mut message = Message::plain(status, Body::from_bytes(body));
    message.retry_after = retry_after;
    if downstream.answer_headers {
        let counts = CacheStatus::ALL.iter().zip(counts).filter(|(_, count)| *count > 0);
        let count_texts: Vec<String> =
            counts.map(|(status, count)| format!("{}={count}", status.as_str())).collect();
        message.cache = (!count_texts.is_empty()).then(|| Cow::Owned(count_texts.join(", ")));
    }
    message
}

/// Returns the status of a batch, and its `Retry-After`. The status is 200 unless a limit or an
/// overload refused every call. In that case it is the first call's status, and `Retry-After` is
/// the shortest wait.
fn batch_status(items: &[CallReply<'_>], config: &Config) -> (u16, Option<Duration>) {
    let limit_status = |item: &CallReply<'_>| match &item.content {
        Content::Payload(Payload::Failed(Failure {
            kind:
                kind @ (Kind::OverQuota
                | Kind::OverRate { .. }
                | Kind::OverConcurrency { .. }
                | Kind::Overloaded { .. }),
            retry_after,
            ..
        })) => Some((describe(*kind, config).status, *retry_after)),
        _ => None,
    };
    let Some((status, _)) = items.first().and_then(limit_status) else { return (200, None) };
    let mut waits = Vec::new();
    for item in items {
        let Some((_, wait)) = limit_status(item) else { return (200, None) };
        waits.extend(wait);
    }
    (status, waits.into_iter().min())
}

fn write_content(out: &mut Vec<u8>, id: &[u8], content: &Content<'_>, snapshot: &Snapshot) {
    match content {
        Content::Payload(Payload::Result(result)) => write_result(out, id, result),
        Content::Payload(Payload::Error(error)) => write_error_raw(out, id, error),
        Content::Payload(Payload::Failed(failure)) => {
            let error = describe(failure.kind, &snapshot.config);
            write_error(out, id, i64::from(error.code.0), error.message, None);
        }
        Content::Rejected(rejection) => {
            write_error(out, id, i64::from(rejection.code.0), &rejection.message, None);
        }
    }
}

/// Writes the HTTP/1.1 head of `message`.
pub(crate) fn write_head(out: &mut Vec<u8>, message: &Message, options: HeadOptions<'_>) {
    if message.status == 200 {
        out.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
    } else {
        out.extend_from_slice(b"HTTP/1.1 ");
        write_decimal(out, u64::from(message.status));
        out.push(b' ');
        out.extend_from_slice(reason_phrase(message.status).as_bytes());
        out.extend_from_slice(b"\r\n");
    }
    each_header(message, options, |name, value| {
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b": ");
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
    });
    if message.status != 204 {
        out.extend_from_slice(b"content-length: ");
        write_decimal(out, message.body.len() as u64);
        out.extend_from_slice(b"\r\n");
    }
    if !options.keep_alive {
        out.extend_from_slice(b"connection: close\r\n");
    } else if options.confirm_keep_alive {
        out.extend_from_slice(b"connection: keep-alive\r\n");
    }
    out.extend_from_slice(b"\r\n");
}

/// Calls `each` with every header except the length and the connection headers, which HTTP/2
/// replaces by framing.
pub(crate) fn each_header(
    message: &Message,
    options: HeadOptions<'_>,
    mut each: impl FnMut(&str, &[u8]),
) {
    each("date", options.date);
    if message.body.len() > 0 {
        each("content-type", b"application/json");
    }
    if let Some(encoding) = message.encoding {
        each("content-encoding", encoding.as_bytes());
        each("vary", b"accept-encoding");
    }
    if let Some(cache) = &message.cache {
        each("x-weir-cache", cache.as_bytes());
    }
    if let Some(upstream) = &message.upstream {
        each("x-weir-upstream", upstream.as_bytes());
    }
    if let Some(retry_after) = message.retry_after {
        let seconds = retry_after.as_secs_f64().ceil().max(1.0) as u64;
        each("retry-after", seconds.to_string().as_bytes());
    }
    if message.status == 401 {
        each("www-authenticate", b"Bearer realm=\"weir\"");
    }
    if message.status == 405 {
        each("allow", b"GET, HEAD, OPTIONS, POST");
    }
    if let Some(origin) = options.origin {
        each_cors_header(message, options.config, origin, each);
    }
}

/// Calls `each` with the headers for browsers.
fn each_cors_header(
    message: &Message,
    config: &Config,
    origin: &str,
    mut each: impl FnMut(&str, &[u8]),
) {
    let downstream = &config.downstream;
    match &downstream.cors_origins {
        Cors::Any => each("access-control-allow-origin", b"*"),
        Cors::Origins(_) => {
            each("vary", b"origin");
            if !downstream.cors_origins.admits(origin) {
                return;
            }
            each("access-control-allow-origin", origin.as_bytes());
        }
    }
    if message.status == 204 {
        each("access-control-allow-methods", b"GET, HEAD, OPTIONS, POST");
        let fixed_headers = "content-type, authorization, accept-encoding";
        each(
            "access-control-allow-headers",
            format!("{fixed_headers}, {}", config.access.key_header).as_bytes(),
        );
        // One day. Browsers apply a lower limit.
        each("access-control-max-age", b"86400");
    } else {
        each("access-control-expose-headers", b"x-weir-cache, x-weir-upstream, retry-after");
    }
}

fn reason_phrase(status: u16) -> &'static str {
    http::StatusCode::from_u16(status)
        .ok()
        .and_then(|status_code| status_code.canonical_reason())
        .unwrap_or("")
}
