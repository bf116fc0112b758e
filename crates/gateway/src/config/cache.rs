//! `[cache]`: the cache in memory, and coalescing. Coalescing lets equal calls in flight share one
//! upstream call.
//!
//! `config.rs` explains the syntax of a table and the arguments of `report`.

use settings::Report;
use settings::value::{Bool, Duration, Integer, format_bytes};

use super::values::{DAY_MS, GIB, HOUR_MS, MIB, Size};

settings::table! {
    /// Responses cached in memory. A response is dropped when its block leaves the chain, so the
    /// cache is on by default.
    pub struct CacheTable => pub Cache {
        /// If true, responses are cached.
        enabled: Bool = "true";
        /// If true, equal calls in flight at the same time share one call to an upstream.
        coalesce: Bool = "true";
        /// Bytes of all entries together, including their keys.
        bytes_max: Size<MIB, { 1024 * GIB }> = "256MiB";
        /// Bytes of one entry. A larger response is sent but not cached.
        entry_bytes_max: Size<1024, GIB> = "8MiB";
        /// Longest lifetime of a response about the head, if the head does not move.
        head_age_max: Duration<0, DAY_MS> = "12s";
        /// Longest lifetime of a `null` response. It also ends when the head moves.
        null_age_max: Duration<0, DAY_MS> = "2s";
        /// Lifetime of an error that every upstream would repeat, such as an unknown method.
        error_age_max: Duration<0, HOUR_MS> = "5s";
        /// The finalized range of an `eth_getLogs` is split into aligned parts of this many blocks.
        /// Keep it at or below the upstreams' own limit.
        logs_chunk_blocks: Integer<1, 1_000_000> = "1000";
        /// Maximum number of parts of one `eth_getLogs`. A longer range is not split.
        logs_parts_max: Integer<1, 10_000, usize> = "64";
    }
}

/// Validates the table. The returned `entry_bytes_max` never exceeds `bytes_max`.
pub(super) fn check(table: &CacheTable, report: &mut Report<'_>) -> Cache {
    let cache = table.values();
    // An entry that fills nearly the whole cache would evict everything else at once.
    if table.entry_bytes_max.is_set() && cache.entry_bytes_max > cache.bytes_max {
        let allowed = format!("at most cache.bytes_max, {}", format_bytes(cache.bytes_max as u64));
        report.error(&table.entry_bytes_max, "an entry may be larger than the cache", allowed);
    }
    Cache { entry_bytes_max: cache.entry_bytes_max.min(cache.bytes_max), ..cache }
}
