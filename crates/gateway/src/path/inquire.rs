//! What the gateway itself asks of its nodes, for clients who are told of what is to come: through the
//! same steps as a call, from the choice of its group on.

use std::borrow::Cow;
use std::cell::Cell;
use std::net::Ipv4Addr;
use std::rc::Rc;

use wire::call::{Call, Id, Params, Version};

use super::{Ask, Request, allowed, answer_ask, logs, route};
use crate::front::answer::Payload;
use crate::front::caller::Caller;
use crate::rules::cacheable::{CacheRule, Caching};
use crate::worker::Worker;

/// What the gateway itself asks of a block whose hash the call names.
#[derive(Debug)]
pub(crate) struct Inquiry<'a> {
    pub(crate) chain: usize,
    pub(crate) method: &'static str,
    pub(crate) params: &'a [u8],
    /// Height of the block.
    pub(crate) height: u64,
    /// Whether a node has to say it anew.
    pub(crate) fresh: bool,
}

/// Asks as a call would, from the choice of its group on; only nodes that have reached the block.
pub(crate) async fn inquire(worker: &Rc<Worker>, inquiry: &Inquiry<'_>) -> Payload {
    let caller = Caller::at(Ipv4Addr::UNSPECIFIED.into());
    let request = Request {
        chain: inquiry.chain,
        body: b"",
        caller: &caller,
        path: "",
        group: None,
        extra: None,
        calls: None,
        hash_header: None,
        limit_headers: &[],
        ahead: None,
        waiting: &Cell::new(0),
        subscribing: None,
    };
    let call = Call {
        id: Id::Absent,
        method: Cow::Borrowed(inquiry.method),
        params: Params::Array(inquiry.params),
        version: Version::V2,
    };
    let now = worker.tick();
    let chain = &worker.shared.chains[inquiry.chain];
    let view = chain.view.load_full();
    let found = chain.family.find(&call.method);
    let ask = route(worker, &request, &call, found, &view, now);
    let caching = Caching { rule: CacheRule::AtHash, min_head: inquiry.height, ..ask.caching };
    let ask = Ask { caching: allowed(worker, caching), ..ask };
    let fetched = match found {
        Some((_, method)) if !inquiry.fresh => {
            logs::one(worker, ask, &call.params, method, None, &view).await.0
        }
        _ => answer_ask(worker, ask, None).await.0,
    };
    fetched.payload
}
