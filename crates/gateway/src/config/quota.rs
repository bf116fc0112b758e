//! `[quota]`: counting and storage of the monthly quotas of API keys. A quota is a number of
//! *units*, which calls use up.
//!
//! `config.rs` explains the syntax of `settings::table!`.

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
    /// How the monthly quotas of API keys are counted and stored. A quota is a number of units that
    /// calls use up. A call is charged just before it is served. A call that a limit, rule or list
    /// rejects costs nothing. Usage survives reloads and restarts.
    pub struct QuotaTable {
        /// The JSON file with the usage of all keys in the current month. While usage changes, the
        /// gateway replaces the file once a second. The gateway also replaces the file when it
        /// stops. A process that crashes loses the units of its last second. If the file cannot be
        /// read or written, the gateway does not start. Later failures are logged and counted in
        /// `weir_quota_write_failures_total`, and the gateway continues to count in memory.
        file: OutputFile = described "none: it must be set if a key has a quota";
        /// Units that a call costs. `call` is one unit. `weight` is the weight of the method, its
        /// relative cost (`weir explain` prints it).
        cost: CallCost = "weight";
        /// If true, all gateways with the same `redis.prefix` share the quotas through Redis. Each
        /// gateway reports its usage once a second. So the gateways together may exceed a quota by
        /// the usage of one second. A gateway that gets no response from Redis for three seconds
        /// uses at most its share: the units that were left at its last report, divided by the
        /// number of gateways (`redis.gateways`). If Redis loses its data, the gateways report the
        /// lost usage again.
        shared: Bool = "false";
    }
}

/// How the quotas of API keys are counted and stored.
#[derive(Clone, Debug)]
pub struct Quota {
    /// The file that stores the usage.
    pub file: PathBuf,
    /// Whether a call costs one unit, or the weight of its method.
    pub cost: CallCost,
    /// True if gateways share the quotas through Redis.
    pub shared: bool,
    /// The content of the file.
    pub(crate) usage: Arc<QuotaUsage>,
}

/// Validates the table. Returns `None` if no API key has a quota, or if `file` is not set or is
/// invalid.
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
