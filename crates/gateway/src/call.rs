//! A call inside the gateway: the request to an upstream, the response, and where the response
//! comes from. `failure` has the failures of calls, `reply` the responses to clients.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;
use wire::block::{ResponseBlock, read_response_blocks};
use wire::method::{Method, Repeat};

use crate::call::failure::{Failure, Kind};
use crate::io::memory::{Budget, Full, Reservation};
use crate::policy::cacheable::{
    Caching, RejectReason, ResponseFacts, ResponseKind, ValidityTag, admit,
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

/// A call for an upstream.
#[derive(Debug, Clone)]
pub(crate) struct UpstreamRequest<'a> {
    pub(crate) chain: usize,
    pub(crate) group: usize,
    pub(crate) name: Cow<'a, str>,
    /// The method's row in the method table; `None` for unknown methods.
    pub(crate) method: Option<&'static Method>,
    /// The row's index in the table.
    pub(crate) row: Option<usize>,
    /// The priority class for overloaded upstreams.
    pub(crate) class: Class,
    /// The calls of one client and one class of methods, among which permits are shared fairly.
    pub(crate) flow: Flow,
    /// The raw parameters. A block tag is replaced by a number where that is exact.
    pub(crate) params: Option<Cow<'a, [u8]>>,
    /// The condition under which the response is valid, and the block height that the upstream must
    /// have.
    pub(crate) caching: Caching,
    /// True if equal calls in flight share one response.
    pub(crate) coalesce: bool,
    /// Hash of the key for consistent-hash load balancing.
    pub(crate) balance_key: u64,
    pub(crate) deadline: Instant,
    /// Number of delayed or queued calls of the request. While it is above zero, the connection
    /// watches for a disconnect of its client.
    pub(crate) waiting: Option<&'a Cell<usize>>,
    /// The context of the call's span; `None` if the request has no trace. A coalesced call belongs
    /// to the trace of its leader.
    pub(crate) trace: Option<TraceContext>,
}

impl UpstreamRequest<'_> {
    /// Returns whether the call may be sent more than once.
    pub(crate) fn repeat(&self) -> Repeat {
        self.method.map_or(Repeat::Never, |method| method.repeat)
    }

    /// Returns the cost weight of the method.
    pub(crate) fn weight(&self) -> u32 {
        self.method.map_or(1, |method| method.weight)
    }

    pub(crate) fn into_owned(self) -> UpstreamRequest<'static> {
        UpstreamRequest {
            name: Cow::Owned(self.name.into_owned()),
            params: self.params.map(|params| Cow::Owned(params.into_owned())),
            chain: self.chain,
            group: self.group,
            method: self.method,
            row: self.row,
            class: self.class,
            flow: self.flow,
            caching: self.caching,
            coalesce: self.coalesce,
            balance_key: self.balance_key,
            deadline: self.deadline,
            trace: self.trace,
            // The waiters of a coalesced call watch for a disconnect themselves.
            waiting: None,
        }
    }
}

/// The payload of a response.
#[derive(Debug, Clone)]
pub(crate) enum Payload {
    /// A `result`, as the upstream wrote it.
    Result(Bytes),
    /// An `error` object, as the upstream wrote it.
    Error(Bytes),
    /// No response was received.
    Failed(Failure),
}

/// The response to a call; coalesced calls share it.
#[derive(Debug, Clone)]
pub(crate) struct UpstreamResponse {
    pub(crate) payload: Payload,
    /// Index of the upstream that sent it.
    pub(crate) upstream: Option<usize>,
    /// `Bypass` until `resolve.rs` or a cache tier sets it.
    pub(crate) cache_status: CacheStatus,
    /// The caching decision, if it was made when the response arrived.
    pub(crate) cache_decision: Option<CacheDecision>,
    /// The cache tier behind memory that the response comes from, if any.
    pub(crate) tier: Option<Tier>,
    /// Degree of trust that the response is complete.
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

/// Limits the bytes of several responses together, and reserves memory for them.
pub(crate) struct ResponseBudget {
    bytes_max: usize,
    /// The failure of a response that exceeds `bytes_max`.
    too_large: Kind,
    /// Total of the responses so far.
    bytes: Cell<usize>,
    reservation: RefCell<Reservation>,
}

impl ResponseBudget {
    pub(crate) fn new(memory: &Arc<Budget>, bytes_max: usize, too_large: Kind) -> ResponseBudget {
        let reservation = RefCell::new(Reservation::new(memory, Purpose::Response));
        ResponseBudget { bytes_max, too_large, bytes: Cell::new(0), reservation }
    }

    /// Adds a response of this size.
    ///
    /// # Errors
    /// The kind of the failure if the limit or the gateway's memory is exceeded.
    pub(crate) fn add(&self, bytes: usize) -> Result<(), Kind> {
        let bytes = self.bytes.get() + bytes;
        if bytes > self.bytes_max {
            return Err(self.too_large);
        }
        self.reservation.borrow_mut().set(bytes).map_err(|Full| Kind::Memory)?;
        self.bytes.set(bytes);
        Ok(())
    }
}

/// The decision whether a response may be cached.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CacheDecision {
    /// The properties that the decision is based on.
    pub(crate) facts: ResponseFacts,
    /// The tag to cache the response with, or the reason why it is not cached.
    pub(crate) admission: Result<ValidityTag, RejectReason>,
}

impl CacheDecision {
    /// Decides whether a response may be cached. `deterministic` is true if every upstream would
    /// return this error for the same block.
    pub(crate) fn new(
        request: &UpstreamRequest<'_>,
        payload: &Payload,
        deterministic: bool,
        view: &ChainView,
    ) -> CacheDecision {
        let method = request.method;
        let response_block = method.map_or(ResponseBlock::None, |method| method.response_block);
        let mut named_blocks = None;
        let kind = match payload {
            Payload::Result(result) if &**result == b"null" => ResponseKind::Null,
            Payload::Result(result) => {
                named_blocks = read_response_blocks(response_block, result);
                ResponseKind::Value
            }
            Payload::Error(_) if deterministic => ResponseKind::DeterministicError,
            Payload::Error(_) | Payload::Failed(_) => ResponseKind::Error,
        };
        let facts = ResponseFacts { kind, response_block, named_blocks };
        CacheDecision { facts, admission: admit(&request.caching, &facts, view) }
    }
}

/// A cache tier behind memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tier {
    Redis,
    Index,
}

impl Tier {
    /// Returns the value of the `x-weir-cache` header for a hit in this tier.
    pub(crate) fn hit(self) -> &'static str {
        match self {
            Tier::Redis => "hit; tier=redis",
            Tier::Index => "hit; tier=index",
        }
    }
}

closed_set! {
    /// The cache's contribution to a response.
    pub(crate) enum CacheStatus {
        /// The response comes from a cache, or needs no upstream.
        Hit = "hit",
        /// The response comes from an upstream and may be cached.
        Miss = "miss",
        /// The response comes from an equal call of another client that was in flight.
        Coalesced = "coalesced",
        /// The response comes from an upstream and may not be cached.
        Bypass = "bypass",
    }
}
