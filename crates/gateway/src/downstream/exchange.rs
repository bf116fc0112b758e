//! One exchange with a client, the same over HTTP/1.1, HTTP/2 and WebSocket: the sender is known,
//! the request is served by the path, what is refused is counted. Each protocol keeps only its
//! framing.

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
use crate::path::{self, Request, rewritten};
use crate::policy::access::Denial;
use crate::state::context::ThreadContext;
use crate::subscribe::subscriber::Asking;
use crate::subscribe::{Subscribing, Subscriptions};

/// The connection that a request came over.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestOrigin<'a> {
    peer: &'a Peer,
    protocol: &'static str,
    /// How many of its calls wait for their turn by a limit.
    waiting: &'a Cell<usize>,
    /// Counts the response.
    account: &'a Rc<Account>,
    subscribing: Subscribing<'a>,
}

impl<'a> RequestOrigin<'a> {
    pub(crate) fn of(
        peer: &'a Peer,
        protocol: &'static str,
        waiting: &'a Cell<usize>,
        account: &'a Rc<Account>,
        subscriptions: &'a Subscriptions,
    ) -> RequestOrigin<'a> {
        let subscribing = Subscribing { subscriptions, asking: None };
        RequestOrigin { peer, protocol, waiting, account, subscribing }
    }

    /// The origin of a request whose client can be notified.
    pub(crate) fn with_notifications(self, asking: &'a Asking) -> RequestOrigin<'a> {
        let subscriptions = self.subscribing.subscriptions;
        RequestOrigin { subscribing: Subscribing { subscriptions, asking: Some(asking) }, ..self }
    }
}

/// Serves one request whose body is whole.
pub(crate) async fn respond(
    cx: &Rc<ThreadContext>,
    head: &Head,
    body: &[u8],
    origin: &RequestOrigin<'_>,
) -> Message {
    let RequestOrigin { peer, protocol, waiting, account, subscribing } = *origin;
    let snapshot = &cx.snapshot;
    let client = peer.client(head, &snapshot.config.downstream);
    let calls = snapshot.access_log.is_some().then(CallRecords::new);
    let mut caller = Caller::at(client);
    let mut path = head.path.as_str();
    let mut message = 'served: {
        if let Some(gate) = &snapshot.gate {
            if let Some(message) = refused_often(cx, client) {
                break 'served message;
            }
            let presented = head.presented(client, peer.certificate.as_deref());
            match caller::admit(&snapshot.config, gate, cx.tokens.as_ref(), &presented) {
                Ok(admitted) => (caller, path) = (admitted.caller, admitted.path),
                Err(denial) => {
                    if let Some(limits) = &snapshot.limits {
                        limits.failed(client, cx.now_ms(), &cx.counters);
                    }
                    break 'served denied(cx, denial);
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
            subscribing,
        };
        let chain = snapshot.router.chain(path).or_else(|| rewritten(cx, &request));
        let Some(chain) = chain else {
            break 'served refuse(cx, Message::refuse(404, "no chain is served at this path"));
        };
        request.chain = chain;
        let denies = request.caller.grant.as_ref().is_some_and(|grant| !grant.leads_to(chain));
        if denies && (head.verb == Verb::Post || head.upgrade.is_some()) {
            break 'served denied(cx, Denial::Chain);
        }
        match head.verb {
            Verb::Post => {}
            Verb::Get | Verb::Head => break 'served Message::alive(),
            Verb::Options => break 'served Message::options(),
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
        let reply = path::serve(cx, &request).await;
        Message::reply(reply, snapshot)
    };
    if let Some(calls) = calls {
        message.record = Some(log::pending(head, caller, path, body.len(), protocol, calls));
    }
    message.held(&snapshot.registry.memory, account)
}

/// What a client gets that was refused for who it is more often than a limit allows.
fn refused_often(cx: &ThreadContext, client: IpAddr) -> Option<Message> {
    let limits = cx.snapshot.limits.as_ref()?;
    cx.tick();
    let failure = limits.check_failures(client, cx.now_ms(), &cx.counters).err()?;
    Some(refuse(cx, Message::refused_often(&failure)))
}

fn denied(cx: &ThreadContext, denial: Denial) -> Message {
    cx.counters.denied[denial].add(1);
    refuse(cx, Message::denied(denial))
}

/// Counts a refused request.
pub(crate) fn refuse(cx: &ThreadContext, message: Message) -> Message {
    cx.counters.refused(message.status);
    message
}

/// The body of a request without its content coding.
///
/// # Errors
/// The refusal, not counted yet.
pub(crate) async fn decoded(
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

/// The message in a coding that the client accepts, where that is worth it.
pub(crate) async fn compressed(cx: &ThreadContext, head: &Head, message: Message) -> Message {
    if compress::is_wanted(&message, head.accept, &cx.snapshot.config.downstream) {
        return Box::pin(compress::encode(message, head.accept)).await;
    }
    message
}
