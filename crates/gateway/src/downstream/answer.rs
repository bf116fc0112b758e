//! Builds every response to a client: HTTP heads, JSON-RPC envelopes, and errors.
//!
//! This module is the only place that writes failures and refusals as statuses, codes and messages.
//! Results and error objects of upstreams are passed on unchanged.

use crate::call::failure::{ErrorResponse, FORBIDDEN, OUT_OF_MEMORY, describe};
use crate::call::reply::{Body, CallReply, Content, Reply};
use crate::call::{CacheStatus, CacheTier, Payload};
use crate::config::Config;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use wire::error::ErrorCode;
use wire::quantity::write_decimal;
use wire::response::{write_error, write_error_raw, write_result};

use crate::access_log::pending::PendingRecord;
use crate::call::failure::{Failure, FailureKind};
use crate::config::downstream::Cors;
use crate::downstream::head::HeadFault;
use crate::io::chunked::ChunkFault;
use crate::io::memory;
use crate::io::memory::{Account, Budget, Reservation};
use crate::path::RequestRefusal;
use crate::policy::access::Denial;
use crate::policy::closed_set::closed_set;
use crate::policy::memory::Purpose;
use crate::state::snapshot::Snapshot;

/// The settings and request properties that the HTTP head of a response depends on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeadOptions<'a> {
    pub(crate) config: &'a Config,
    /// Value of the request's `Origin` header; `None` if the request has none.
    pub(crate) origin: Option<&'a str>,
    /// True if the connection stays open after the response.
    pub(crate) keep_alive: bool,
    /// True if the response must confirm `Connection: keep-alive`, as HTTP/1.0 clients expect.
    pub(crate) confirm_keep_alive: bool,
    /// The current date in HTTP format, refreshed once per second.
    pub(crate) date: &'a [u8],
}

/// Returns the error that the client receives for a request that is refused as a whole.
pub(crate) fn describe_refusal(refusal: &RequestRefusal) -> ErrorResponse<'static> {
    let (status, message) = match refusal {
        RequestRefusal::FrequentDenials(failure) => {
            let status = match failure.kind {
                FailureKind::OverRate { status } => status,
                _ => 429,
            };
            let message = "too many denied requests from this client";
            return ErrorResponse { status, code: ErrorCode::LIMIT_EXCEEDED, message };
        }
        RequestRefusal::NoChain => (404, "no chain is served at this path"),
        RequestRefusal::Denied(denial) => match denial {
            Denial::NoKey => (401, "an API key or token is required"),
            Denial::BadKey => (401, "the API key or token is not valid"),
            Denial::Expired => (401, "the API key or token has expired"),
            Denial::TwoKeys => (401, "request contains more than one API key"),
            Denial::Address => (403, "this client address is not allowed"),
            Denial::Chain => (403, FORBIDDEN),
            // These denials apply to single calls and are written as the responses of the calls.
            Denial::NodeMethod | Denial::Transaction | Denial::Method | Denial::Rule => {
                (403, "request is not allowed here")
            }
        },
    };
    ErrorResponse { status, code: ErrorCode::INVALID_REQUEST, message }
}

closed_set! {
    /// A header of a response that its calls or its refusal determine. Web pages of allowed origins
    /// can read these headers (CORS).
    enum ResponseHeader {
        /// The cache status of the call, or the number of calls with each status.
        Cache = "x-weir-cache",
        /// The name of the upstream that sent the result.
        Upstream = "x-weir-upstream",
        /// Seconds after which the client may try again.
        RetryAfter = "retry-after",
    }
}

/// Value of a header.
#[derive(Debug)]
enum HeaderText {
    Static(&'static str),
    Shared(Arc<str>),
    Owned(String),
}

impl HeaderText {
    fn as_bytes(&self) -> &[u8] {
        match self {
            HeaderText::Static(text) => text.as_bytes(),
            HeaderText::Shared(text) => text.as_bytes(),
            HeaderText::Owned(text) => text.as_bytes(),
        }
    }
}

/// A response to a client: the body, and the fields of the HTTP head.
#[derive(Debug, Default)]
pub(crate) struct ClientResponse {
    pub(crate) status: u16,
    pub(crate) body: Body,
    /// The value of each [`ResponseHeader`]; `None` omits the header.
    headers: [Option<HeaderText>; ResponseHeader::ALL.len()],
    /// Content coding of the body; `None` if the body is not compressed.
    pub(crate) encoding: Option<&'static str>,
    /// The access-log record; `None` while the log is off.
    pub(crate) record: Option<Box<PendingRecord>>,
    /// The memory reservation for the body, held until the body is written.
    pub(crate) reservation: Option<Reservation>,
}

impl ClientResponse {
    /// Returns a response without optional headers.
    fn plain(status: u16, body: Body) -> ClientResponse {
        ClientResponse { status, body, ..ClientResponse::default() }
    }

    /// Returns a response without a body.
    pub(crate) fn empty(status: u16) -> ClientResponse {
        ClientResponse::plain(status, Body::default())
    }

    fn set_header(&mut self, header: ResponseHeader, value: Option<HeaderText>) {
        self.headers[header.index()] = value;
    }

    fn with_retry_after(mut self, wait: Option<Duration>) -> ClientResponse {
        let seconds = wait.map(|wait| wait.as_secs_f64().ceil().max(1.0) as u64);
        let value = seconds.map(|seconds| HeaderText::Owned(seconds.to_string()));
        self.set_header(ResponseHeader::RetryAfter, value);
        self
    }

    /// Returns the response to a GET request: how to call.
    pub(crate) fn describe_service() -> ClientResponse {
        let text = "{\"service\":\"weir, a JSON-RPC gateway\",\"usage\":\"POST a JSON-RPC call \
                    with content-type: application/json\"}\n";
        ClientResponse::plain(200, Body::from_bytes(text.as_bytes().to_vec()))
    }

    /// Refuses a request because the memory budget is used up.
    pub(crate) fn refuse_memory() -> ClientResponse {
        ClientResponse::refuse(503, OUT_OF_MEMORY).with_retry_after(Some(memory::RETRY_AFTER))
    }

    /// Reserves memory for the body until it is written. If the budget is used up, the client
    /// receives a refusal with `Retry-After` instead.
    pub(crate) fn reserve_memory(&mut self, budget: &Arc<Budget>, account: &Rc<Account>) {
        if self.body.len() > memory::UNCOUNTED_BYTES_MAX {
            let mut reservation = Reservation::for_connection(budget, Purpose::Response, account);
            if reservation.set(self.body.len()).is_ok() {
                self.reservation = Some(reservation);
            } else {
                let record = self.record.take();
                *self = ClientResponse { record, ..ClientResponse::refuse_memory() };
            }
        }
    }

    /// Refuses a whole HTTP request. The text is sent as a JSON-RPC error, so that client libraries
    /// can display it.
    pub(crate) fn refuse(status: u16, text: &str) -> ClientResponse {
        let code = if status >= 500 { ErrorCode::INTERNAL } else { ErrorCode::INVALID_REQUEST };
        ClientResponse::refuse_with(status, code, text)
    }

    fn refuse_with(status: u16, code: ErrorCode, text: &str) -> ClientResponse {
        let mut body = Vec::with_capacity(64 + text.len());
        write_error(&mut body, b"null", i64::from(code.0), text, None);
        ClientResponse::plain(status, Body::from_bytes(body))
    }

    /// Refuses a request as a whole.
    pub(crate) fn refuse_request(refusal: &RequestRefusal) -> ClientResponse {
        let ErrorResponse { status, code, message } = describe_refusal(refusal);
        let response = ClientResponse::refuse_with(status, code, message);
        match refusal {
            RequestRefusal::FrequentDenials(failure) => {
                response.with_retry_after(failure.retry_after)
            }
            RequestRefusal::Denied(_) | RequestRefusal::NoChain => response,
        }
    }

    /// Refuses a malformed head.
    pub(crate) fn refuse_head(fault: HeadFault) -> ClientResponse {
        let status = match fault {
            HeadFault::TooManyHeaders | HeadFault::TooLarge => 431,
            HeadFault::Version => 505,
            HeadFault::Expectation => 417,
            _ => 400,
        };
        ClientResponse::refuse(status, &fault.to_string())
    }

    /// Refuses a chunked body that is malformed or over `bytes_max`.
    pub(crate) fn refuse_chunks(fault: ChunkFault, bytes_max: usize) -> ClientResponse {
        match fault {
            ChunkFault::TooLarge => ClientResponse::refuse_size(bytes_max),
            _ => ClientResponse::refuse(400, &fault.to_string()),
        }
    }

    /// Refuses a body over `bytes_max`.
    pub(crate) fn refuse_size(bytes_max: usize) -> ClientResponse {
        ClientResponse::refuse(413, &format!("body exceeds the limit of {bytes_max} bytes"))
    }

    /// Builds the response from the results of a request's calls.
    pub(crate) fn from_reply(reply: Reply<'_>, snapshot: &Snapshot) -> ClientResponse {
        match reply {
            Reply::Empty => ClientResponse::empty(200),
            Reply::Single(reply) => build_single_reply(reply, snapshot),
            Reply::Batch(items) => build_batch_reply(&items, snapshot),
        }
    }
}

/// Builds the response to a single call.
fn build_single_reply(reply: CallReply<'_>, snapshot: &Snapshot) -> ClientResponse {
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
            // Moves the closing brace to `end`, because the payload comes before the brace. The
            // payload is not copied here.
            start.pop();
            Body { start, middle: result, end: b"}" }
        }
        content => {
            let mut body = Vec::with_capacity(256);
            write_content(&mut body, reply.id, &content, snapshot);
            Body::from_bytes(body)
        }
    };
    let mut response = ClientResponse::plain(status, body).with_retry_after(retry_after);
    if snapshot.config.downstream.answer_headers {
        let cache = reply.cache_status.map(|cache_status| {
            // A tier is a cache behind the memory cache: Redis or the index. The tier is reported
            // only for a hit.
            let tier = reply.tier.filter(|_| cache_status == CacheStatus::Hit);
            HeaderText::Static(tier.map_or_else(|| cache_status.as_str(), CacheTier::hit))
        });
        response.set_header(ResponseHeader::Cache, cache);
        let name = |index: usize| Arc::clone(&snapshot.upstreams[index].config.name);
        let upstream = reply.upstream_index.map(|index| HeaderText::Shared(name(index)));
        response.set_header(ResponseHeader::Upstream, upstream);
    }
    response
}

/// Builds the response to a batch. If a call's response would make the batch exceed its size limit,
/// an error replaces the call's response.
fn build_batch_reply(items: &[CallReply<'_>], snapshot: &Snapshot) -> ClientResponse {
    let downstream = &snapshot.config.downstream;
    // Growing would copy the body, and could take twice its size.
    let bytes: usize = items.iter().map(|item| item.content.bytes()).sum();
    let bytes = bytes.min(downstream.batch_response_bytes_max);
    let mut body = Vec::with_capacity(bytes + 256 * items.len());
    // Number of calls with each cache status.
    let mut status_counts = [0usize; CacheStatus::ALL.len()];
    body.push(b'[');
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            body.push(b',');
        }
        let item_start = body.len();
        write_content(&mut body, item.id, &item.content, snapshot);
        if body.len() > downstream.batch_response_bytes_max {
            body.truncate(item_start);
            let too_large = Payload::Failed(Failure::ours(FailureKind::BatchTooLarge));
            write_content(&mut body, item.id, &Content::Payload(too_large), snapshot);
        }
        if let Some(cache_status) = item.cache_status {
            status_counts[cache_status.index()] += 1;
        }
    }
    body.push(b']');
    let (status, retry_after) = batch_status(items, &snapshot.config);
    let mut response =
        ClientResponse::plain(status, Body::from_bytes(body)).with_retry_after(retry_after);
    if downstream.answer_headers {
        let counts = CacheStatus::ALL.iter().zip(status_counts).filter(|(_, count)| *count > 0);
        let count_texts: Vec<String> =
            counts.map(|(status, count)| format!("{}={count}", status.as_str())).collect();
        let cache = (!count_texts.is_empty()).then(|| HeaderText::Owned(count_texts.join(", ")));
        response.set_header(ResponseHeader::Cache, cache);
    }
    response
}

/// Returns the HTTP status of a batch, and its `Retry-After`. If a limit or an overload refused
/// every call, the batch has the status of its first call and the shortest wait of all its calls.
/// Otherwise the status is 200.
fn batch_status(items: &[CallReply<'_>], config: &Config) -> (u16, Option<Duration>) {
    let refusal_of = |item: &CallReply<'_>| match &item.content {
        Content::Payload(Payload::Failed(Failure {
            kind:
                kind @ (FailureKind::OverQuota
                | FailureKind::OverRate { .. }
                | FailureKind::OverConcurrency { .. }
                | FailureKind::Overloaded { .. }),
            retry_after,
            ..
        })) => Some((describe(*kind, config).status, *retry_after)),
        _ => None,
    };
    let Some((status, _)) = items.first().and_then(refusal_of) else { return (200, None) };
    let mut waits = Vec::new();
    for item in items {
        let Some((_, wait)) = refusal_of(item) else { return (200, None) };
        waits.extend(wait);
    }
    (status, waits.into_iter().min())
}

/// Appends the JSON-RPC response to the call with this id.
fn write_content(out: &mut Vec<u8>, id: &[u8], content: &Content<'_>, snapshot: &Snapshot) {
    match content {
        Content::Payload(Payload::Result(result)) => write_result(out, id, result),
        Content::Payload(Payload::Error(error)) => write_error_raw(out, id, error),
        Content::Payload(Payload::Failed(failure)) => {
            let error = describe(failure.kind, &snapshot.config);
            let data = failure.kind.data();
            let data = data.as_ref().map(String::as_bytes);
            write_error(out, id, i64::from(error.code.0), error.message, data);
        }
        Content::Rejected(rejection) => {
            write_error(out, id, i64::from(rejection.code.0), &rejection.message, None);
        }
    }
}

/// Writes the HTTP/1.1 head of `response`.
pub(crate) fn write_head(out: &mut Vec<u8>, response: &ClientResponse, options: HeadOptions<'_>) {
    if response.status == 200 {
        out.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
    } else {
        out.extend_from_slice(b"HTTP/1.1 ");
        write_decimal(out, u64::from(response.status));
        out.push(b' ');
        out.extend_from_slice(reason_phrase(response.status).as_bytes());
        out.extend_from_slice(b"\r\n");
    }
    for_each_header(response, options, |name, value| {
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b": ");
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
    });
    if response.status != 204 {
        out.extend_from_slice(b"content-length: ");
        write_decimal(out, response.body.len() as u64);
        out.extend_from_slice(b"\r\n");
    }
    if !options.keep_alive {
        out.extend_from_slice(b"connection: close\r\n");
    } else if options.confirm_keep_alive {
        out.extend_from_slice(b"connection: keep-alive\r\n");
    }
    out.extend_from_slice(b"\r\n");
}

/// Calls `add` with the name and value of every header, except the length and the connection
/// headers. HTTP/2 needs none of them, because its frames state the length and the end of a body.
pub(crate) fn for_each_header(
    response: &ClientResponse,
    options: HeadOptions<'_>,
    mut add: impl FnMut(&str, &[u8]),
) {
    add("date", options.date);
    if response.body.len() > 0 {
        add("content-type", b"application/json");
    }
    if let Some(encoding) = response.encoding {
        add("content-encoding", encoding.as_bytes());
        add("vary", b"accept-encoding");
    }
    for (header, value) in ResponseHeader::ALL.iter().zip(&response.headers) {
        if let Some(value) = value {
            add(header.as_str(), value.as_bytes());
        }
    }
    if response.status == 401 {
        add("www-authenticate", b"Bearer realm=\"weir\"");
    }
    if response.status == 405 {
        add("allow", b"GET, HEAD, OPTIONS, POST");
    }
    if let Some(origin) = options.origin {
        for_each_cors_header(response, options.config, origin, add);
    }
}

/// Calls `add` with the headers that allow a browser's web page to read the response (CORS).
/// `origin` is the origin of the web page.
fn for_each_cors_header(
    response: &ClientResponse,
    config: &Config,
    origin: &str,
    mut add: impl FnMut(&str, &[u8]),
) {
    let downstream = &config.downstream;
    match &downstream.cors_origins {
        Cors::Any => add("access-control-allow-origin", b"*"),
        Cors::Origins(_) => {
            add("vary", b"origin");
            if !downstream.cors_origins.admits(origin) {
                return;
            }
            add("access-control-allow-origin", origin.as_bytes());
        }
    }
    if response.status == 204 {
        add("access-control-allow-methods", b"GET, HEAD, OPTIONS, POST");
        let fixed_headers = "content-type, authorization, accept-encoding";
        add(
            "access-control-allow-headers",
            format!("{fixed_headers}, {}", config.access.key_header).as_bytes(),
        );
        // One day in seconds. Browsers apply lower limits.
        add("access-control-max-age", b"86400");
    } else {
        let names = ResponseHeader::ALL.map(ResponseHeader::as_str).join(", ");
        add("access-control-expose-headers", names.as_bytes());
    }
}

/// Returns the standard reason phrase of a status; empty if there is none.
fn reason_phrase(status: u16) -> &'static str {
    http::StatusCode::from_u16(status)
        .ok()
        .and_then(|status_code| status_code.canonical_reason())
        .unwrap_or("")
}
