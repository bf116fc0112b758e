//! Shares quotas between gateways through Redis. Each gateway adds the units that its keys have
//! used, and reads the total of all gateways.
//!
//! The exchange runs on the watch thread with its own connection, so no call waits for it.
//! `policy/quota.rs` does the arithmetic, and `runtime/quota.rs` schedules the exchanges.

use std::time::Duration;

use crate::cache::redis::client::{RedisClient, Role};
use crate::cache::redis::script::Script;
use crate::config;
use crate::policy::quota::UsageReport;

/// The script that adds the usage of a gateway and returns the total.
static SCRIPT: Script = Script::new(include_str!("quotas.lua"));

/// Timeout of an exchange. A slow exchange delays only the next one.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(1);
/// Time in seconds for which Redis keeps a counter after the end of its month. Gateways whose
/// clocks are slow still use the counter.
const EXPIRY_SECONDS: u64 = 86_400;

/// The Redis client for quotas.
pub(crate) struct QuotaClient {
    redis: RedisClient,
}

impl QuotaClient {
    pub(crate) fn new(config: &config::redis::Redis) -> QuotaClient {
        QuotaClient { redis: RedisClient::new(config, Role::Scripts) }
    }

    /// Probes Redis if a probe is due. Returns true if Redis is available.
    pub(crate) async fn check_available(&self, now: Duration) -> bool {
        if self.redis.begin_due_probe(now) {
            let healthy = self.redis.probe().await;
            self.redis.record_probe(healthy, now);
        }
        self.redis.is_available()
    }

    /// Adds the units of a report to a key's counter, and returns the units used at all gateways.
    /// Returns `None` if Redis does not respond. If Redis applies a report that has timed out, the
    /// units count twice.
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
