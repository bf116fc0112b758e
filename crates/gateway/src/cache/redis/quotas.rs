//! Exchanges quotas with other gateways through Redis: each adds its units and reads the sum.
//!
//! It runs on the watch thread, on a connection of its own, so no call waits for it. The arithmetic
//! is `policy/quota.rs`; `runtime/quota.rs` decides when to exchange.

use std::time::Duration;

use crate::cache::redis::line::{Line, Role};
use crate::cache::redis::script::{Script, numbers};
use crate::config;
use crate::policy::quota::UsageReport;

static SCRIPT: Script = Script::new(include_str!("quotas.lua"));

/// A sum that takes longer has failed; nobody waits for it but the next one.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long the sum of a month is kept after its end: for gateways whose clocks are behind.
const KEPT_SECONDS: u64 = 86_400;

/// The connection.
pub(crate) struct Exchange {
    line: Line,
    prefix: Box<str>,
}

impl Exchange {
    pub(crate) fn new(config: &config::redis::Redis) -> Exchange {
        Exchange { line: Line::new(config, Role::Judge), prefix: config.prefix.clone() }
    }

    /// Whether it can be asked now; probes Redis if it is time.
    pub(crate) async fn is_up(&self, now: Duration) -> bool {
        if self.line.probe_due(now) {
            let well = self.line.probe().await;
            self.line.probed(well, now);
        }
        self.line.is_closed()
    }

    /// Tells what was used under a key, and gives what all gateways have used; none if Redis did
    /// not answer. It may have heard nevertheless: then the units count twice.
    pub(crate) async fn tell(&self, key: &str, told: UsageReport, now: Duration) -> Option<u64> {
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
