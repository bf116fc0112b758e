//! The cache's contribution to a response.

use crate::policy::closed_set::closed_set;

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
