//! A call for an upstream.

use crate::policy::overload::shares::Flow;
use std::borrow::Cow;
use std::cell::Cell;

use tokio::time::Instant;
use wire::method::Method;

use crate::policy::cacheable::Caching;
use crate::policy::overload::Class;
use crate::trace::context::TraceContext;

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
