//! Serves one request over any protocol: authenticates the client, runs the calls of the request,
//! and counts refusals. Each protocol adds only its framing.

use std::cell::Cell;
use std::net::IpAddr;
use std::rc::Rc;

use super::answer::Message;
use super::head::{Coding, Head, Media, Verb};
use super::peer::Peer;
use super::{compress, log};
use crate::access::caller::{self, Caller};
use crate::access_log::pending::CallRecords;
use crate::config::downstream::ContentType;
use crate::io::memory::Account;
use crate::path::{self, Request, rewritten_chain};
use crate::policy::access::Denial;
use crate::state::context::ThreadContext;
use crate::subscribe::SubscribeContext;
use crate::trace::context::{ActiveSpan, Sampler, TraceContext, TracedRequest};

/// The connection that a request arrived on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestOrigin<'a> {
    pub(super) peer: &'a Peer,
    pub(super) protocol: &'static str,
    /// Number of the request's calls that a limit delays or that wait for a permit.
    pub(super) waiting: &'a Cell<usize>,
    /// The connection's account in the memory budget.
    pub(super) account: &'a Rc<Account>,
    pub(super) subscribe_context: SubscribeContext<'a>,
}

/// Serves one request with a complete body.
pub(crate) async fn respond(
    cx: &Rc<ThreadContext>,
    head: &Head,
    body: &[u8],
    origin: &RequestOrigin<'_>,
) -> Message {
    let RequestOrigin { peer, protocol, waiting, account, subscribe_context } = *origin;
    let snapshot = &cx.snapshot;
    let client = peer.client_address(head, &snapshot.config.downstream);
    let calls = snapshot.access_log.is_some().then(CallRecords::new);
    let mut caller = Caller::without_key(client);
    let mut path = head.path.as_str();
    let mut message = 'served: {
        if let Some(key_index) = &snapshot.key_index {
            if let Some(message) = refuse_frequent_denials(cx, client) {
                break 'served message;
            }
            let identity = head.identity(client, peer.certificate.as_deref());
            match caller::authenticate(&snapshot.config, key_index, cx.tokens.as_ref(), &identity) {
                Ok(authenticated) => (caller, path) = (authenticated.caller, authenticated.path),
                Err(denial) => {
                    if let Some(limits) = &snapshot.limits {
                        limits.record_failure(client, cx.now_ms(), &cx.counters);
                    }
                    break 'served deny(cx, denial);
                }
            }
        }
        let mut request = Request {
            chain: 0,
            body,
            caller: &caller,
            path,
            hash_header: head.hash_header.as_deref(),
            limit_headers: &head.limit_headers,
            prefetched: None,
            waiting,
            extra: head.extra.as_deref(),
            calls: calls.as_ref(),
            trace: None,
            subscribe_context,
        };
        let chain = snapshot.router.find_chain(path).or_else(|| rewritten_chain(cx, &request));
        let Some(chain) = chain else {
            break 'served refuse(cx, Message::refuse(404, "no chain is served at this path"));
        };
        request.chain = chain;
        let denies = request.caller.grant.as_ref().is_some_and(|grant| !grant.allows_chain(chain));
        if denies && (head.verb == Verb::Post || head.upgrade.is_some()) {
            break 'served deny(cx, Denial::Chain);
        }
        match head.verb {
            Verb::Post => {}
            // GET and HEAD serve as a health check.
            Verb::Get | Verb::Head => break 'served Message::empty(200),
            Verb::Options => break 'served Message::empty(204),
            Verb::Other => {
                let text = "method must be POST, GET, HEAD or OPTIONS";
                break 'served refuse(cx, Message::refuse(405, text));
            }
        }
        let strict = snapshot.config.downstream.content_type == ContentType::Strict;
        if strict && head.media != Media::Json {
            let text = "content-type must be application/json, application/json-rpc or \
                        application/jsonrequest";
            break 'served refuse(cx, Message::refuse(415, text));
        }
        let mut traced = begin_trace(cx, head);
        request.trace = traced.as_ref().map(|traced| &traced.context);
        let logged = calls.as_ref().map(|calls| log::ServedRequest {
            cx,
            head,
            caller: &caller,
            path,
            bytes_in: body.len(),
            protocol,
            calls,
        });
        let message = Message::from_reply(path::serve(cx, &request).await, snapshot);
        if let Some(logged) = logged {
            logged.end();
        }
        if let Some(span) = traced.as_mut().and_then(|traced| traced.span.as_mut()) {
            describe_request(span, protocol, &message);
        }
        message
    };
    if let Some(calls) = calls {
        message.record = Some(log::start_record(head, caller, path, body.len(), protocol, calls));
    }
    message.with_reservation(&snapshot.registry.memory, account)
}

/// Begins the trace of a request; `None` if the request is not sampled and its client sent no trace
/// context.
fn begin_trace(cx: &ThreadContext, head: &Head) -> Option<TracedRequest> {
    let queues = cx.snapshot.spans.as_ref();
    let sampler = queues.map(|queues| Sampler { queues, thread: cx.index });
    TraceContext::begin_request(head.trace.as_deref(), sampler, || cx.upstream.random())
}

/// Adds the attributes of a request to its span. The path is left out, because it may hold a key
/// that the gateway does not know.
fn describe_request(span: &mut ActiveSpan, protocol: &'static str, message: &Message) {
    span.set("http.request.method", "POST");
    span.set("http.response.status_code", i64::from(message.status));
    span.set("weir.protocol", protocol);
    if message.status >= 500 {
        span.fail("the gateway responded with a server error");
    }
}

/// Returns a refusal if the client was denied more often than a limit allows.
fn refuse_frequent_denials(cx: &ThreadContext, client: IpAddr) -> Option<Message> {
    let limits = cx.snapshot.limits.as_ref()?;
    cx.tick();
    let failure = limits.check_failures(client, cx.now_ms(), &cx.counters).err()?;
    Some(refuse(cx, Message::refuse_frequent_denials(&failure)))
}

/// Counts a denied request and returns its refusal.
fn deny(cx: &ThreadContext, denial: Denial) -> Message {
    cx.counters.denied[denial].add(1);
    refuse(cx, Message::refuse_denial(denial))
}

/// Counts a refused request and returns its refusal.
pub(crate) fn refuse(cx: &ThreadContext, message: Message) -> Message {
    cx.counters.record_refusal(message.status);
    message
}

/// Returns the request body without its content coding.
///
/// # Errors
/// The refusal, not counted yet.
pub(crate) async fn decode_body(
    head: &Head,
    body: Vec<u8>,
    bytes_max: usize,
) -> Result<Vec<u8>, Message> {
    match head.coding {
        Coding::Identity => Ok(body),
        Coding::Other => {
            Err(Message::refuse(415, "content-encoding must be gzip, zstd or identity"))
        }
        coding => {
            let decoded = compress::decode(coding, body, bytes_max).await;
            decoded.map_err(|fault| fault.message(bytes_max))
        }
    }
}

/// Returns true if the client accepts a coding and the body is large enough to be compressed.
pub(crate) fn should_compress(cx: &ThreadContext, head: &Head, message: &Message) -> bool {
    let (downstream, accept) = (&cx.snapshot.config.downstream, head.accept);
    downstream.compression
        && (accept.gzip || accept.zstd)
        && message.body.len() >= downstream.compression_bytes_min
}
