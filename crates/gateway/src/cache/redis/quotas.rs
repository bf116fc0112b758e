//! Shares quotas between gateways through Redis: each gateway adds its units and reads the total.
//!
//! The exchange runs on the watch thread with its own connection, so no call waits for it.
//! `policy/quota.rs` contains the arithmetic; `runtime/quota.rs` schedules the exchanges.

use std::time::Duration;

use crate::cache::redis::client::{RedisClient, Role};
use crate::cache::redis::script::{Script, numbers};
use crate::config;
use crate::policy::quota::UsageReport;

static SCRIPT: Script = Script::new(include_str!("quotas.lua"));

/// Timeout of an exchange. A slow exchange delays only the next one.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(1);
/// Seconds for which Redis keeps a monthly counter after its month. Gateways with slow clocks may
/// still use the counter.
const EXPIRY_SECONDS: u64 = 86_400;

/// The Redis client for quotas.
pub(crate) struct Exchange {
    redis: RedisClient,
    prefix: Box<str>,
}

impl Exchange {
    pub(crate) fn new(config: &config::redis::Redis) -> Exchange {
        Exchange { redis: RedisClient::new(config, Role::Scripts), prefix: config.prefix.clone() }
    }

    /// Probes Redis if a probe is due. Returns true if Redis is available.
    pub(crate) async fn is_up(&self, now: Duration) -> bool {
        if self.redis.probe_due(now) {
            let healthy = self.redis.probe().await;
            self.redis.record_probe(healthy, now);
        }
        self.redis.is_available()
    }

    /// Reports the usage of a key and returns the total of all gateways, or `None` if Redis did not
    /// respond. A report that timed out may still have arrived. In that case its units count twice.
    pub(crate) async fn report(&self, key: &str, usage: UsageReport, now: Duration) -> Option<u64> {
        let name = format!("{}:quota:{}:{key}", self.prefix, usage.month);
        let expires_at = usage.month.end().saturating_add(EXPIRY_SECONDS);
        let arguments = [usage.unreported, usage.used_min, expires_at];
        let arguments = arguments.map(|number| i64::try_from(number).unwrap_or(i64::MAX));
        let reply = SCRIPT.run(&self.redis, vec![name], arguments.to_vec());
        let reply = tokio::time::timeout(EXCHANGE_TIMEOUT, reply).await;
        let used = reply.ok().and_then(Result::ok).and_then(|reply| {
            let numbers = numbers(&reply)?;
            u64::try_from(*numbers.first()?).ok()
        });
        match used {
            Some(_) => self.redis.record_success(),
            None => {
                self.redis.record_failure(now);
            }
        }
        used
    }
}
