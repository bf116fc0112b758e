//! Serves one request over any protocol: admits the request and runs its calls (`path.rs`), and
//! counts refusals. `http1.rs`, `http2.rs` and `websocket.rs` read the requests and write the
//! responses.

use std::cell::Cell;
use std::rc::Rc;

use super::answer::ClientResponse;
use super::head::{ContentCoding, Head, HttpMethod, MediaType};
use super::peer::Peer;
use super::{compress, log};
use crate::access::caller::{Authenticated, Caller};
use crate::access_log::pending::CallRecords;
use crate::config::downstream::ContentType;
use crate::io::memory::Account;
use crate::path::{self, Request, RequestRefusal};
use crate::state::context::ThreadContext;
use crate::subscribe::SubscribeContext;
use crate::trace::context::{ActiveSpan, Sampler, TraceContext, TracedRequest};

/// The connection that a request arrived on, and the connection's state for this request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestOrigin<'a> {
    /// The client at the other end of the connection.
    pub(super) peer: &'a Peer,
    /// Name of the protocol, for logs and traces.
    pub(super) protocol: &'static str,
    /// Number of the request's calls that wait, either for a request limit or for a permit to call
    /// an upstream.
    pub(super) waiting: &'a Cell<usize>,
    /// The connection's account in the memory budget.
    pub(super) account: &'a Rc<Account>,
    /// The subscriptions that the request's calls may start or end.
    pub(super) subscribe_context: SubscribeContext<'a>,
}

/// Serves one request with a complete body.
pub(crate) async fn respond(
    cx: &Rc<ThreadContext>,
    head: &Head,
    body: &[u8],
    origin: &RequestOrigin<'_>,
) -> ClientResponse {
    let RequestOrigin { peer, protocol, waiting, account, subscribe_context } = *origin;
    let snapshot = &cx.snapshot;
    let address = peer.client_address(head, &snapshot.config.downstream);
    let identity = head.identity(address, peer.certificate.as_deref());
    let call_records = snapshot.access_log.is_some().then(CallRecords::new);
    let mut client = Authenticated { caller: Caller::without_key(address), path: identity.path };
    let admitted = path::admit(cx, &identity, &mut client);
    let Authenticated { caller, path } = client;
    // Each refusal leaves this block early.
    let mut response = 'response: {
        let chain = match admitted {
            Ok(chain) => chain,
            Err(refusal) => break 'response refuse_request(cx, &refusal),
        };
        let mut request = Request {
            // `path::serve` sets `prefetched`.
            chain,
            body,
            caller: &caller,
            path,
            hash_header: head.hash_header.as_deref(),
            limit_headers: &head.limit_headers,
            prefetched: None,
            waiting,
            access_values: head.access_values.as_deref(),
            call_records: call_records.as_ref(),
            trace: None,
            subscribe_context,
        };
        match head.http_method {
            HttpMethod::Post => {}
            // GET and HEAD serve as a health check.
            HttpMethod::Get => break 'response ClientResponse::describe_service(),
            HttpMethod::Head => break 'response ClientResponse::empty(200),
            HttpMethod::Options => break 'response ClientResponse::empty(204),
            HttpMethod::Other => {
                let text = "method must be POST, GET, HEAD or OPTIONS";
                break 'response refuse(cx, ClientResponse::refuse(405, text));
            }
        }
        let requires_json_type = snapshot.config.downstream.content_type == ContentType::Strict;
        if requires_json_type && head.media_type != MediaType::Json {
            let text = "content-type must be application/json, application/json-rpc or \
                        application/jsonrequest; downstream.content_type = 'lenient' accepts any";
            break 'response refuse(cx, ClientResponse::refuse(415, text));
        }
        let mut traced = begin_trace(cx, head);
        request.trace = traced.as_ref().map(|traced| &traced.context);
        let served_request = call_records.as_ref().map(|call_records| log::ServedRequest {
            cx,
            head,
            caller: &caller,
            path,
            bytes_in: body.len(),
            protocol,
            call_records,
        });
        let response = ClientResponse::from_reply(path::serve(cx, &mut request).await, snapshot);
        if let Some(served_request) = served_request {
            served_request.end();
        }
        if let Some(span) = traced.as_mut().and_then(|traced| traced.span.as_mut()) {
            describe_request(span, protocol, &response);
        }
        response
    };
    if let Some(call_records) = call_records {
        response.record =
            Some(log::start_record(head, caller, path, body.len(), protocol, call_records));
    }
    response.reserve_memory(&snapshot.process.memory, account);
    response
}

/// Begins the trace of a request; `None` if the request is not sampled and its client sent no trace
/// context.
fn begin_trace(cx: &ThreadContext, head: &Head) -> Option<TracedRequest> {
    let queues = cx.snapshot.spans.as_ref();
    let sampler = queues.map(|queues| Sampler { queues, thread: cx.index });
    TraceContext::begin_request(head.trace.as_deref(), sampler, || cx.upstreams.random())
}

/// Adds the attributes of a request to its trace span. The path is omitted, because it may contain
/// a key that the gateway does not recognize.
fn describe_request(span: &mut ActiveSpan, protocol: &'static str, response: &ClientResponse) {
    span.set("http.request.method", "POST");
    span.set("http.response.status_code", i64::from(response.status));
    span.set("weir.protocol", protocol);
    if response.status >= 500 {
        span.fail("the gateway responded with a server error");
    }
}

/// Counts a request that is not admitted, and returns its refusal.
fn refuse_request(cx: &ThreadContext, refusal: &RequestRefusal) -> ClientResponse {
    if let RequestRefusal::Denied(denial) = refusal {
        cx.counters.denied[*denial].add(1);
    }
    refuse(cx, ClientResponse::refuse_request(refusal))
}

/// Counts a refused request and returns its refusal.
pub(crate) fn refuse(cx: &ThreadContext, response: ClientResponse) -> ClientResponse {
    cx.counters.record_refusal(response.status);
    response
}

/// Returns the request body without its content coding.
///
/// # Errors
/// The refusal of an unknown coding, a malformed body or a body over `bytes_max`. The caller must
/// count the refusal.
pub(crate) async fn decode_body(
    head: &Head,
    body: Vec<u8>,
    bytes_max: usize,
) -> Result<Vec<u8>, ClientResponse> {
    match head.content_coding {
        ContentCoding::Identity => Ok(body),
        ContentCoding::Other => {
            Err(ClientResponse::refuse(415, "content-encoding must be gzip, zstd or identity"))
        }
        coding => {
            let decoded = compress::decode(coding, body, bytes_max).await;
            decoded.map_err(|fault| fault.refusal(bytes_max))
        }
    }
}

/// Returns true if compression is on, the client accepts a content coding, and the body is large
/// enough to be compressed.
pub(crate) fn should_compress(cx: &ThreadContext, head: &Head, response: &ClientResponse) -> bool {
    let (downstream, codings) = (&cx.snapshot.config.downstream, head.accepted_codings);
    downstream.compression
        && (codings.gzip || codings.zstd)
        && response.body.len() >= downstream.compression_bytes_min
}
