//! Calls that the gateway itself makes for subscriptions and filters. They skip limits, rules,
//! authorization and quotas. The remaining steps are the same as for a client's call.

use std::borrow::Cow;
use std::cell::Cell;
use std::net::Ipv4Addr;
use std::rc::Rc;

use wire::call::{Call, Params};

use super::{Route, build_upstream_request, logs, resolve_uncached};
use crate::access::caller::Caller;
use crate::call::Payload;
use crate::policy::cacheable::{CacheRule, Caching};
use crate::state::context::ThreadContext;

/// An internal call. Its parameters name a block by its hash.
#[derive(Debug)]
pub(crate) struct InternalCall<'a> {
    /// Index of the chain.
    pub(crate) chain: usize,
    pub(crate) method: &'static str,
    /// The raw JSON array of parameters.
    pub(crate) params: &'a [u8],
    /// The block's number.
    pub(crate) height: u64,
    /// True if the response must come from an upstream, not from a cache.
    pub(crate) bypass_cache: bool,
}

/// Resolves an internal call. Only an upstream that has reached the height of the call's block may
/// serve the call.
pub(crate) async fn resolve_internal(
    cx: &Rc<ThreadContext>,
    internal: &InternalCall<'_>,
) -> Payload {
    let caller = Caller::without_key(Ipv4Addr::UNSPECIFIED.into());
    let call = Call {
        id: None,
        method: Cow::Borrowed(internal.method),
        params: Params::Array(internal.params),
    };
    let now = cx.tick();
    let chain = &cx.snapshot.chains[internal.chain];
    let view = chain.view.load_full();
    let row = chain.family.find(&call.method);
    let waiting = Cell::new(0);
    let route = Route {
        call: &call,
        row,
        chain: internal.chain,
        group: None,
        caller: &caller,
        hash_header: None,
        waiting: &waiting,
        trace: None,
    };
    // The response depends only on the block that the call names. An upstream must have that block.
    let (rule, min_head) = (CacheRule::AtHash, internal.height);
    let caching = Caching { rule, min_head, ..Caching::never(&view) };
    let caching = if cx.snapshot.cache.is_some() { caching } else { caching.without_cache() };
    let request = build_upstream_request(cx, &route, caching, now);
    // The call names a block by its hash, so it has no range of blocks.
    let range = None;
    let no_key = None;
    let response = match row {
        Some((_, method)) if !internal.bypass_cache => {
            logs::resolve_part(cx, request, &call.params, method, range, &view).await
        }
        _ => resolve_uncached(cx, request, no_key).await,
    };
    response.payload
}
