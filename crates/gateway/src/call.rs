//! A call inside the gateway: the request to an upstream, its response, and the source of the
//! response. `call/failure.rs` lists the failures of calls, and `call/reply.rs` has the responses
//! to clients. A *row* is a method's entry in the method table. A *group* is a set of upstreams of
//! one chain that serve certain methods.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;
use wire::block::{ResponseBlock, read_response_blocks};
use wire::method::{History, Method, Repeat};

use crate::call::failure::{Failure, FailureKind};
use crate::io::memory::{Budget, BudgetExhausted, Reservation};
use crate::policy::cacheable::{
    CacheRule, Caching, RejectReason, ResponseFacts, ResponseKind, ValidityTag, admit,
};
use crate::policy::closed_set::closed_set;
use crate::policy::complete::Trust;
use crate::policy::heads::ChainView;
use crate::policy::memory::Purpose;
use crate::policy::overload::Class;
use crate::policy::overload::shares::Flow;
use crate::trace::context::TraceContext;

pub(crate) mod failure;
pub(crate) mod reply;

/// A call to send to an upstream.
#[derive(Debug, Clone)]
pub(crate) struct UpstreamRequest<'a> {
    /// Index of the chain.
    pub(crate) chain: usize,
    /// Index of the group of upstreams.
    pub(crate) group: usize,
    /// Name of the method.
    pub(crate) method_name: Cow<'a, str>,
    /// The method's row in the method table; `None` for unknown methods.
    pub(crate) method_row: Option<&'static Method>,
    /// Index of the method's row; `None` for unknown methods.
    pub(crate) row_index: Option<usize>,
    /// The priority class. If upstreams are overloaded, calls of a higher class are sent first.
    pub(crate) class: Class,
    /// The flow of the call: the calls of one client to methods of similar weight. If upstreams are
    /// overloaded, the flows share them fairly.
    pub(crate) flow: Flow,
    /// The raw parameters; `None` if the call has no parameters. If a block tag, such as `latest`,
    /// stands for one exact block, the block's number replaces the tag.
    pub(crate) params: Option<Cow<'a, [u8]>>,
    /// Whether the response may be cached. An upstream may get the call only if its newest block
    /// has at least the number `min_head`.
    pub(crate) caching: Caching,
    /// True if equal calls in flight share one response.
    pub(crate) coalesce: bool,
    /// The hash that selects the upstream. A method that must stay with one upstream uses the hash
    /// of the client's address. Other methods use the hash of the group's hash key, or 0 if the
    /// group does not balance by hash.
    pub(crate) balance_key: u64,
    /// The time at which the call fails if no response has arrived.
    pub(crate) deadline: Instant,
    /// Number of delayed or queued calls of the client's request. While the number is above zero,
    /// the connection checks whether its client disconnects. `None` for the upstream request of
    /// coalesced calls, because each of these calls is counted in its own client's request.
    pub(crate) waiting: Option<&'a Cell<usize>>,
    /// The context of the span that traces the call; `None` if the request has no trace. A
    /// coalesced call belongs to the trace of its leader.
    pub(crate) trace: Option<TraceContext>,
}

impl UpstreamRequest<'_> {
    /// Returns the conditions under which the call may be sent again.
    pub(crate) fn repeat(&self) -> Repeat {
        self.method_row.map_or(Repeat::Never, |method| method.repeat)
    }

    /// Returns the relative cost of the method; 1 for unknown methods.
    pub(crate) fn weight(&self) -> u32 {
        self.method_row.map_or(1, |method| method.weight)
    }

    /// Returns the data of old blocks that the call reads, and the depth of the oldest block: its
    /// distance below the head of `view`. Returns `None` if the call reads no such data or names the
    /// block in another way than by height.
    pub(crate) fn history(&self, view: &ChainView) -> Option<(History, u64)> {
        let history = self.method_row?.history?;
        let depth = view.head?.number.saturating_sub(self.caching.oldest?);
        Some((history, depth))
    }

    /// Returns the number of blocks whose logs the call reads; `None` if the call has no range of
    /// blocks.
    pub(crate) fn log_range(&self) -> Option<u64> {
        match self.caching.rule {
            CacheRule::AtRange { from, to } => Some(to.saturating_sub(from).saturating_add(1)),
            _ => None,
        }
    }

    /// Copies the borrowed fields, so that another task can run the call. Drops `waiting`, which
    /// belongs to the client's request.
    pub(crate) fn into_owned(self) -> UpstreamRequest<'static> {
        UpstreamRequest {
            method_name: Cow::Owned(self.method_name.into_owned()),
            params: self.params.map(|params| Cow::Owned(params.into_owned())),
            chain: self.chain,
            group: self.group,
            method_row: self.method_row,
            row_index: self.row_index,
            class: self.class,
            flow: self.flow,
            caching: self.caching,
            coalesce: self.coalesce,
            balance_key: self.balance_key,
            deadline: self.deadline,
            trace: self.trace,
            waiting: None,
        }
    }
}

/// The payload of a response, or the failure in its place.
#[derive(Debug, Clone)]
pub(crate) enum Payload {
    /// A `result`, as the upstream wrote it.
    Result(Bytes),
    /// An `error` object, as the upstream wrote it.
    Error(Bytes),
    /// No response was received.
    Failed(Failure),
}

/// The response to a call. Coalesced calls share one response.
#[derive(Debug, Clone)]
pub(crate) struct UpstreamResponse {
    pub(crate) payload: Payload,
    /// Index of the upstream that sent the payload; `None` if no upstream did.
    pub(crate) upstream: Option<usize>,
    /// How the cache was involved. `Bypass` until `resolve.rs` or a cache tier sets another status.
    pub(crate) cache_status: CacheStatus,
    /// The decision whether to cache the response; `None` before the decision. It is boxed, because
    /// a response from the cache has none and is moved several times.
    pub(crate) cache_decision: Option<Box<CacheDecision>>,
    /// The cache tier that the response comes from; `None` for the memory tier and for upstreams.
    pub(crate) tier: Option<CacheTier>,
    /// How certain it is that the response is complete. An incomplete response may lack logs.
    pub(crate) trust: Trust,
}

impl UpstreamResponse {
    /// Creates a response that comes from no upstream.
    pub(crate) fn local(payload: Payload) -> UpstreamResponse {
        UpstreamResponse {
            payload,
            upstream: None,
            cache_status: CacheStatus::Bypass,
            cache_decision: None,
            tier: None,
            trust: Trust::Undoubted,
        }
    }

    /// Creates the response to a call that failed.
    pub(crate) fn from_failure(failure: Failure) -> UpstreamResponse {
        UpstreamResponse::local(Payload::Failed(failure))
    }
}

/// Counts a call in a counter until the guard is dropped.
pub(crate) struct CountGuard<'a>(&'a Cell<usize>);

impl<'a> CountGuard<'a> {
    pub(crate) fn new(counter: &'a Cell<usize>) -> CountGuard<'a> {
        counter.update(|calls| calls + 1);
        CountGuard(counter)
    }
}

impl Drop for CountGuard<'_> {
    fn drop(&mut self) {
        self.0.update(|calls| calls - 1);
    }
}

/// Number of times that several responses are in memory at most: each by itself, and in the joined
/// body.
const COPIES: usize = 2;

/// Limits the total bytes of several responses, and reserves memory for them.
pub(crate) struct ResponseBudget {
    /// Maximum bytes of all responses together.
    total_bytes_max: usize,
    /// The kind of failure that is returned if the total exceeds `total_bytes_max`.
    over_limit: FailureKind,
    /// Total bytes of the responses added so far.
    total_bytes: Cell<usize>,
    /// The reserved memory: the responses, and the body that is built from them.
    reservation: RefCell<Reservation>,
}

impl ResponseBudget {
    pub(crate) fn new(
        memory: &Arc<Budget>,
        total_bytes_max: usize,
        over_limit: FailureKind,
    ) -> ResponseBudget {
        let reservation = RefCell::new(Reservation::new(memory, Purpose::Response));
        ResponseBudget { total_bytes_max, over_limit, total_bytes: Cell::new(0), reservation }
    }

    /// Adds a response of `response_bytes` bytes.
    ///
    /// # Errors
    /// The kind of the failure if the limit or the gateway's memory is exceeded.
    pub(crate) fn add(&self, response_bytes: usize) -> Result<(), FailureKind> {
        let total_bytes = self.total_bytes.get() + response_bytes;
        if total_bytes > self.total_bytes_max {
            return Err(self.over_limit);
        }
        self.reservation
            .borrow_mut()
            .set(COPIES * total_bytes)
            .map_err(|BudgetExhausted| FailureKind::Memory)?;
        self.total_bytes.set(total_bytes);
        Ok(())
    }
}

/// The decision whether a response may be cached.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CacheDecision {
    /// The properties that the decision is based on.
    pub(crate) facts: ResponseFacts,
    /// The tag that states on which part of the chain the cached response depends, or the reason
    /// not to cache it.
    pub(crate) admission: Result<ValidityTag, RejectReason>,
}

impl CacheDecision {
    /// Decides whether a response may be cached. `is_deterministic_error` is true if every upstream
    /// would return the same error for the same block. `view` is a snapshot of the chain's newest
    /// blocks.
    pub(crate) fn new(
        request: &UpstreamRequest<'_>,
        payload: &Payload,
        is_deterministic_error: bool,
        view: &ChainView,
    ) -> CacheDecision {
        let method = request.method_row;
        let response_block = method.map_or(ResponseBlock::None, |method| method.response_block);
        let mut named_blocks = None;
        let kind = match payload {
            Payload::Result(result) if &**result == b"null" => ResponseKind::Null,
            Payload::Result(result) => {
                named_blocks = read_response_blocks(response_block, result);
                ResponseKind::Value
            }
            Payload::Error(_) if is_deterministic_error => ResponseKind::DeterministicError,
            Payload::Error(_) | Payload::Failed(_) => ResponseKind::Error,
        };
        let facts = ResponseFacts { kind, response_block, named_blocks };
        CacheDecision { facts, admission: admit(&request.caching, &facts, view) }
    }
}

/// A cache tier that is searched after the memory tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CacheTier {
    Redis,
    Index,
}

impl CacheTier {
    /// Returns the value of the `x-weir-cache` header for a hit in this tier.
    pub(crate) fn hit(self) -> &'static str {
        match self {
            CacheTier::Redis => "hit; tier=redis",
            CacheTier::Index => "hit; tier=index",
        }
    }
}

// `closed_set!` gives each variant the name that headers, logs and metrics use.
closed_set! {
    /// How the cache was involved in a response.
    pub(crate) enum CacheStatus {
        /// The response comes from a cache, or needs no upstream.
        Hit = "hit",
        /// The response comes from an upstream and may be cached.
        Miss = "miss",
        /// The response comes from an equal call that was already in flight.
        Coalesced = "coalesced",
        /// The response comes from an upstream and may not be cached.
        Bypass = "bypass",
    }
}
