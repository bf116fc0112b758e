//! `[quota]`: counting and storage of the quotas of keys.
//!
//! `config.rs` explains the syntax of a table and the arguments of `report`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use settings::Report;
use settings::value::Bool;

use super::access::Access;
use super::limits::CallCost;
use super::redis::RedisTable;
use super::values::OutputFile;
use file::QuotaUsage;

pub(crate) mod file;

settings::table! {
    /// Counting and storage of the quotas of keys. A call is charged just before it is served; a
    /// call that a limit, rule or list rejects costs nothing. Usage survives reloads and restarts.
    pub struct QuotaTable {
        /// The JSON file with the usage of all keys in this month. The gateway replaces the file
        /// once a second after any usage, and when it stops. A process that crashes loses the units
        /// of its last second. A file that cannot be read or written keeps the gateway from
        /// starting. Later failures are logged and counted in `weir_quota_write_failures_total`,
        /// and counting continues in memory.
        file: OutputFile = described "none: it must be set if a key has a quota";
        /// Units that a call counts: one, or the weight of its method (`weir explain` prints it).
        cost: CallCost = "weight";
        /// If true, all gateways with the same `redis.prefix` count together, through Redis. Each
        /// reports its usage once a second, so together they may exceed a quota by the usage of a
        /// second. A gateway without news from Redis for three seconds uses at most its share of what
        /// was left then, by the number of gateways (`redis.gateways`). The gateways report again
        /// what Redis has lost.
        shared: Bool = "false";
    }
}

/// Counting and storage of the quotas of keys.
#[derive(Clone, Debug)]
pub struct Quota {
    /// The file that stores the usage.
    pub file: PathBuf,
    /// Number of units that a call counts as.
    pub cost: CallCost,
    /// True if gateways share the quotas through Redis.
    pub shared: bool,
    /// The content of the file.
    pub(crate) usage: Arc<QuotaUsage>,
}

/// Validates the table; `None` if no key has a quota.
pub(super) fn check(
    table: &QuotaTable,
    redis: &RedisTable,
    folder: &Path,
    access: &Access,
    report: &mut Report<'_>,
) -> Option<Quota> {
    let Some(key) = access.keys.iter().find(|key| key.grant.quota.is_some()) else {
        if table.location.table.is_some() {
            report.warn(table, "no key has a quota", "[[key]] with a quota");
        }
        return None;
    };
    let Some(name) = &*table.file else {
        if !table.file.is_set() {
            let message =
                format!("key {} has a quota, but no file stores its usage", key.grant.name);
            report.error(&table.file, message, "a file name that the gateway can write");
        }
        return None;
    };
    let file = folder.join(&**name);
    let usage = file::read(&file).unwrap_or_else(|error| {
        let message = format!("cannot be read: {error}");
        report.error(&table.file, message, "a quota file of the gateway, or no file");
        QuotaUsage::default()
    });
    if *table.shared && !redis.url.is_set() {
        report.error(&table.shared, "sharing quotas needs a redis", "redis.url");
    }
    Some(Quota { file, cost: *table.cost, shared: *table.shared, usage: Arc::new(usage) })
}
