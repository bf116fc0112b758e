//! Plans how a call gets its response: from an upstream, in parts, from the chain view, or by a
//! lookup of its cache key. The gateway serves the call by this plan, and `weir explain` prints it.
//! A *view* is a snapshot of the chain's newest blocks. A *row* of the method table holds the facts
//! about one method.

use std::ops::Range;

use wire::block::{BlockRef, BlockRefError};
use wire::call::Params;
use wire::method::{Method, Validity};

use super::cacheable::{CacheRule, Caching, decide_caching};
use super::heads::ChainView;

/// Features of the cache that the configuration turns on or off.
#[derive(Debug, Clone, Copy)]
pub struct CacheFeatures {
    /// True if responses are cached.
    pub cache: bool,
    /// True if equal calls in flight share one response.
    pub coalesce: bool,
}

/// Source of a call's response.
#[derive(Debug, Clone)]
pub enum Plan {
    /// Forward the call to an upstream unchanged, because the method is in no table.
    Forward,
    /// Split a log filter into parts ([`super::logs::plan_filter`]). Holds the method's row of the
    /// method table.
    Logs(&'static Method),
    /// Respond with this number, the height of the served head. No upstream is called.
    Head(u64),
    /// Look up the call in the cache and among the calls in flight, then call an upstream.
    Lookup(Lookup),
}

/// A call with a lookup key.
#[derive(Debug, Clone)]
pub struct Lookup {
    /// The method's row of the method table.
    pub method: &'static Method,
    /// The caching decision, which includes the height that an upstream must have reached.
    pub caching: Caching,
    /// The block parameter, and its byte range in the parameters. `None` if the call has no block
    /// parameter, and an error if the parameter is malformed.
    pub block: Result<Option<(BlockRef, Range<usize>)>, BlockRefError>,
    /// True if equal calls in flight share one response.
    pub coalesce: bool,
}

/// Plans a call. `method` is the method's row; `None` if the method is in no table.
pub fn plan(
    method: Option<&'static Method>,
    params: &Params<'_>,
    view: &ChainView,
    features: CacheFeatures,
) -> Plan {
    let Some(method) = method else { return Plan::Forward };
    if method.validity == Validity::Logs {
        return Plan::Logs(method);
    }
    let block = method.block_ref(params);
    let named_block = block.as_ref().ok().and_then(Option::as_ref).map(|(block, _)| block);
    let caching = decide_caching(method, named_block, view);
    let caching = if features.cache { caching } else { caching.without_cache() };
    // With another caching rule the view does not say which block an upstream would return.
    match view.head {
        Some(head) if method.head_value && caching.rule == CacheRule::AtHead => {
            Plan::Head(head.number)
        }
        _ => {
            let coalesce = method.coalesces() && features.coalesce;
            Plan::Lookup(Lookup { method, caching, block, coalesce })
        }
    }
}
