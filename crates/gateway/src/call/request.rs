//! A call on its way to an upstream.

use crate::policy::overload::shares::Flow;
use std::borrow::Cow;
use std::cell::Cell;

use tokio::time::Instant;
use wire::method::Method;

use crate::policy::cacheable::Caching;
use crate::policy::overload::Class;

/// One call on its way to an upstream.
#[derive(Debug, Clone)]
pub(crate) struct UpstreamRequest<'a> {
    pub(crate) chain: usize,
    pub(crate) group: usize,
    pub(crate) name: Cow<'a, str>,
    /// The method's row; none for methods that no table knows.
    pub(crate) method: Option<&'static Method>,
    /// And its place in the table.
    pub(crate) place: Option<usize>,
    /// Who goes first where upstreams have no room for all.
    pub(crate) class: Class,
    /// With whose calls it shares places there.
    pub(crate) flow: Flow,
    /// The raw parameters, with a tag resolved to a number where that is exact.
    pub(crate) params: Option<Cow<'a, [u8]>>,
    /// What its answer would be bound to, and the height that an upstream must have reached.
    pub(crate) caching: Caching,
    /// Whether equal calls under way may share one answer.
    pub(crate) join: bool,
    pub(crate) balance_key: u64,
    pub(crate) deadline: Instant,
    /// How many calls of its request wait for something that is no upstream: whether its client is
    /// still there is looked at meanwhile.
    pub(crate) waiting: Option<&'a Cell<usize>>,
}

impl UpstreamRequest<'_> {
    pub(crate) fn into_owned(self) -> UpstreamRequest<'static> {
        UpstreamRequest {
            name: Cow::Owned(self.name.into_owned()),
            params: self.params.map(|params| Cow::Owned(params.into_owned())),
            chain: self.chain,
            group: self.group,
            method: self.method,
            place: self.place,
            class: self.class,
            flow: self.flow,
            caching: self.caching,
            join: self.join,
            balance_key: self.balance_key,
            deadline: self.deadline,
            // Its clients wait for the flight.
            waiting: None,
        }
    }
}
