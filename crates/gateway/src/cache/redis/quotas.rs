//! Shares quotas between gateways through Redis: each gateway adds its units and reads the total.
//!
//! It runs on the watch thread with its own connection, so no call waits for it. `policy/quota.rs`
//! contains the arithmetic; `runtime/quota.rs` schedules the exchanges.

use std::time::Duration;

use crate::cache::redis::line::{Line, Role};
use crate::cache::redis::script::{Script, numbers};
use crate::config;
use crate::policy::quota::Told;

static SCRIPT: Script = Script::new(include_str!("quotas.lua"));

/// Timeout of an exchange. Only the next exchange waits for it.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long the counter of a month is kept after its end, for gateways whose clocks are behind.
const KEPT_SECONDS: u64 = 86_400;

/// The Redis client for quotas.
pub(crate) struct Exchange {
    line: Line,
    prefix: Box<str>,
}

impl Exchange {
    pub(crate) fn new(config: &config::redis::Redis) -> Exchange {
        Exchange { line: Line::new(config, Role::Judge), prefix: config.prefix.clone() }
    }

    /// Returns true if Redis is available; probes it if a probe is due.
    pub(crate) async fn is_up(&self, now: Duration) -> bool {
        if self.line.probe_due(now) {
            let well = self.line.probe().await;
            self.line.probed(well, now);
        }
        self.line.is_closed()
    }

    /// Reports the usage of a key and returns the total of all gateways, or `None` if Redis did not
    /// respond. After a timeout the report can have arrived nevertheless; its units then count
    /// twice.
    pub(crate) async fn tell(&self, key: &str, told: Told, now: Duration) -> Option<u64> {
        let name = format!("{}:quota:{}:{key}", self.prefix, told.month);
        let until = told.month.end().saturating_add(KEPT_SECONDS);
        let terms = [told.since, told.least, until];
        let terms = terms.map(|number| i64::try_from(number).unwrap_or(i64::MAX));
        let asked = SCRIPT.run(&self.line, vec![name], terms.to_vec());
        let said = tokio::time::timeout(PATIENCE, asked).await;
        let used = said.ok().and_then(Result::ok).and_then(|said| {
            let numbers = numbers(&said)?;
            u64::try_from(*numbers.first()?).ok()
        });
        match used {
            Some(_) => self.line.succeeded(),
            None => {
                self.line.failed(now);
            }
        }
        used
    }
}
