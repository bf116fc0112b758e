//! How the cache took part in a response.

/// How the cache took part in a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CacheStatus {
    /// The response comes from a cache, or is known without an upstream.
    Hit,
    /// The response comes from an upstream and may be cached.
    Miss,
    /// The response comes from an equal call of another client that was in flight.
    Coalesced,
    /// The response comes from an upstream and may not be cached.
    Bypass,
}

impl CacheStatus {
    /// All values, in the order of [`CacheStatus::index`].
    pub(crate) const ALL: [CacheStatus; 4] =
        [CacheStatus::Hit, CacheStatus::Miss, CacheStatus::Coalesced, CacheStatus::Bypass];

    /// Returns the word in the `x-weir-cache` header, in metrics and in the access log.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            CacheStatus::Hit => "hit",
            CacheStatus::Miss => "miss",
            CacheStatus::Coalesced => "join",
            CacheStatus::Bypass => "bypass",
        }
    }

    /// Returns the place in counters.
    pub(crate) fn index(self) -> usize {
        self as usize
    }
}
