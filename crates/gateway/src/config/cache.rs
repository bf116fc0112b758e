//! `[cache]`: the cache in memory, and coalescing. Coalescing lets equal calls in flight share one
//! upstream call.
//!
//! `config.rs` explains the syntax of `settings::table!`.

use settings::Report;
use settings::value::{Bool, Duration, Integer, format_bytes};

use super::values::{DAY_MS, GIB, HOUR_MS, MIB, Size};

settings::table! {
    /// The cache of responses in memory. When a reorg drops a block, its cached responses become
    /// invalid, so the cache is safe and on by default.
    pub struct CacheTable => pub Cache {
        /// If true, responses are cached.
        enabled: Bool = "true";
        /// If true, equal calls in flight at the same time share one call to an upstream.
        coalesce: Bool = "true";
        /// Maximum bytes of all entries together, including their keys.
        bytes_max: Size<MIB, { 1024 * GIB }> = "256MiB";
        /// Maximum bytes of one entry. A larger response is sent to the client but not cached.
        entry_bytes_max: Size<1024, GIB> = "8MiB";
        /// Longest lifetime of a response that depends on the head (newest block). A new head ends
        /// the lifetime earlier.
        head_age_max: Duration<0, DAY_MS> = "12s";
        /// Longest lifetime of a `null` response. A new head ends the lifetime earlier.
        null_age_max: Duration<0, DAY_MS> = "2s";
        /// Lifetime of an error that every upstream would repeat, such as an unknown method.
        error_age_max: Duration<0, HOUR_MS> = "5s";
        /// The range of an `eth_getLogs`, up to the finalized block, is split into aligned parts of
        /// this many blocks. Keep the number at or below the upstreams' own limit.
        logs_chunk_blocks: Integer<1, 1_000_000> = "1000";
        /// Maximum number of parts of one `eth_getLogs`. A longer range is not split.
        logs_parts_max: Integer<1, 10_000, usize> = "64";
    }
}

/// Validates the table. Lowers a default `entry_bytes_max` that exceeds `bytes_max`.
pub(super) fn check(table: &CacheTable, report: &mut Report<'_>) -> Cache {
    let cache = table.values();
    // An entry that fills nearly the whole cache would evict all other entries at once.
    if table.entry_bytes_max.is_set() && cache.entry_bytes_max > cache.bytes_max {
        let allowed = format!("at most cache.bytes_max, {}", format_bytes(cache.bytes_max as u64));
        report.error(&table.entry_bytes_max, "an entry may be larger than the cache", allowed);
    }
    Cache { entry_bytes_max: cache.entry_bytes_max.min(cache.bytes_max), ..cache }
}
