//! `[cache]`: the cache in memory, and coalescing.

use settings::Report;
use settings::value::{Bool, Count, Duration, shown_bytes};

use super::values::{DAY, GIB, HOUR, MIB, Size};

settings::table! {
    /// Responses cached in memory. Each is bound to the block that it is about and dropped when
    /// that block is, so the cache is on by default.
    pub struct CacheTable => pub Cache {
        /// Whether responses are cached.
        enabled: Bool = "true";
        /// Whether equal calls in flight at the same time share one call to an upstream.
        coalesce: Bool = "true";
        /// Bytes of all entries together, keys included.
        bytes_max: Size<MIB, { 1024 * GIB }> = "256MiB";
        /// Bytes of one entry. A larger response is passed on and not cached.
        entry_bytes_max: Size<1024, GIB> = "8MiB";
        /// Longest life of a response that is bound to the head, should the head stand still.
        head_age_max: Duration<0, DAY> = "12s";
        /// Longest life of `null`; it also ends with the head that it was given at.
        null_age_max: Duration<0, DAY> = "2s";
        /// Life of an error that every upstream would repeat, such as an unknown method.
        error_age_max: Duration<0, HOUR> = "5s";
        /// Blocks of one aligned part that the finalized range of an `eth_getLogs` is cut into.
        /// Keep it at or below the upstreams' own limit.
        logs_chunk_blocks: Count<1, 1_000_000> = "1000";
        /// Parts that one `eth_getLogs` may be cut into. A longer range stays whole.
        logs_parts_max: Count<1, 10_000, usize> = "64";
    }
}

pub(super) fn check(table: &CacheTable, report: &mut Report<'_>) -> Cache {
    let cache = table.values();
    // An entry that is nearly the whole cache would push everything else out at once.
    if table.entry_bytes_max.is_set() && cache.entry_bytes_max > cache.bytes_max {
        let allowed = format!("at most cache.bytes_max, {}", shown_bytes(cache.bytes_max as u64));
        report.error(&table.entry_bytes_max, "one entry is larger than the cache", allowed);
    }
    Cache { entry_bytes_max: cache.entry_bytes_max.min(cache.bytes_max), ..cache }
}
