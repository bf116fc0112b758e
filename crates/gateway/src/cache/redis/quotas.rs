//! Shares the usage of quotas between gateways through Redis. For each API key, a gateway adds the
//! number of units that were used at this gateway, and reads the total of all gateways.
//!
//! The exchange runs on the watch thread, which also polls the upstreams. The exchange has its own
//! connection, so no call waits for it. `policy/quota.rs` does the arithmetic, and
//! `runtime/quota.rs` schedules the exchanges.

use std::sync::Arc;
use std::time::Duration;

use crate::cache::redis::client::{RedisClient, Role};
use crate::cache::redis::script::Script;
use crate::config;
use crate::policy::quota::UsageReport;
use crate::process::Process;

/// The script that adds the usage of a gateway and returns the total.
static SCRIPT: Script = Script::new(include_str!("quotas.lua"));

/// Timeout of an exchange. A slow exchange delays only the next one.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(1);
/// Redis keeps a month's counter for this many seconds after the end of the month. Gateways whose
/// clocks are slow still use the counter.
const EXPIRY_SECONDS: u64 = 86_400;

/// The Redis client for quotas.
pub(crate) struct QuotaClient {
    redis: RedisClient,
}

impl QuotaClient {
    pub(crate) fn new(config: &config::redis::Redis, process: &Arc<Process>) -> QuotaClient {
        QuotaClient { redis: RedisClient::new(config, Role::Scripts, process) }
    }

    /// Probes Redis if a probe is due. Returns true if Redis is available.
    pub(crate) async fn check_available(&self, now: Duration) -> bool {
        if self.redis.begin_due_probe(now) {
            let healthy = self.redis.probe().await;
            self.redis.record_probe(healthy, now);
        }
        self.redis.is_available()
    }

    /// Adds the units of a report to the counter of an API key, and returns the number of units
    /// used at all gateways. Returns `None` if Redis does not respond in time, or responds with an
    /// error. A report that times out is sent again, so its units count twice if Redis has applied
    /// it after all.
    pub(crate) async fn report_usage(
        &self,
        key: &str,
        report: UsageReport,
        now: Duration,
    ) -> Option<u64> {
        let name = format!("{}:quota:{}:{key}", self.redis.config.prefix, report.month);
        let expires_at = report.month.end().saturating_add(EXPIRY_SECONDS);
        let arguments = [report.unreported, report.used_min, expires_at];
        let arguments = arguments.map(|number| i64::try_from(number).unwrap_or(i64::MAX));
        let redis = &self.redis;
        let reply = SCRIPT.run_within(EXCHANGE_TIMEOUT, redis, name, arguments.to_vec()).await;
        let used = reply.and_then(|numbers| u64::try_from(*numbers.first()?).ok());
        match used {
            Some(_) => self.redis.record_success(),
            None => {
                self.redis.record_failure(now);
            }
        }
        used
    }
}
