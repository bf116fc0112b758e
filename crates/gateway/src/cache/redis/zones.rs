//! Request-limit zones that gateways share: a Redis script checks and charges each call.
//!
//! Each serving thread has one [`Judge`] with its own connection, so that cache lookups do not
//! delay it. `limits/shared.rs` builds the queries and applies the results. The script,
//! `cache/redis/zones.lua`, implements the same algorithm as `policy/limit.rs`.
//!
//! While Redis is down, each gateway enforces its local share. No call waits longer than the
//! timeout, and after a few failures the breaker opens and no call waits. After a Redis restart
//! every gateway keeps its local share until all must have noticed, then they switch together
//! (`cache/redis/begin.lua`). Otherwise the first gateway would get the full rate in addition to
//! the others' shares.

use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use fred::prelude::*;

use crate::cache::redis::TEND_INTERVAL;
use crate::cache::redis::line::{Line, PROBE_PATIENCE, Role};
use crate::cache::redis::script::{Script, hex, numbers};
use crate::config::Config;
use crate::limits::shared::{Question, Verdict};
use crate::metrics::counters::SharedLimitCounters;
use crate::metrics::label::RedisFailure;
use crate::metrics::thread::Counters;
use crate::policy::limit::State;
use crate::upstream::topology::Topology;

#[cfg(test)]
mod tests;

static SCRIPT: Script = Script::new(include_str!("zones.lua"));

/// Runs when Redis is available again.
static BEGIN: Script = Script::new(include_str!("begin.lua"));

/// The shared-limit client of one thread.
pub(crate) struct Judge {
    topology: Arc<Topology>,
    counters: Arc<Counters>,
    prefix: Box<str>,
    timeout: Duration,
    backoff: Duration,
    line: Rc<Line>,
}

impl Judge {
    /// Starts the client of one thread on its runtime. It reuses the connection of the previous
    /// configuration if the address is the same. Returns `None` if no zone is shared.
    pub(crate) fn start(
        topology: &Arc<Topology>,
        counters: &Arc<Counters>,
        before: Option<&Judge>,
    ) -> Option<Rc<Judge>> {
        if !is_wanted(&topology.config) {
            return None;
        }
        let config = topology.config.redis.clone()?;
        let before = before.filter(|before| before.line.config.connects_like(&config));
        let line = before.map_or_else(
            || Rc::new(Line::new(&config, Role::Judge)),
            |before| Rc::clone(&before.line),
        );
        let judge = Rc::new(Judge {
            topology: Arc::clone(topology),
            counters: Arc::clone(counters),
            prefix: config.prefix.clone(),
            timeout: config.timeout,
            backoff: config.backoff,
            line,
        });
        tokio::task::spawn_local(Judge::tend(Rc::downgrade(&judge)));
        Some(judge)
    }

    fn counts(&self) -> &SharedLimitCounters {
        &self.counters.shared_limits
    }

    /// Checks and charges a call in Redis. Returns `None` if the breaker is open, or Redis is slow
    /// or down. A call that timed out can be charged nevertheless.
    pub(crate) async fn ask(&self, question: &Question) -> Option<Verdict> {
        if !self.line.is_usable(self.topology.now()) {
            return None;
        }
        let (names, terms) = self.written(question);
        let began = self.topology.now();
        let asked = SCRIPT.run(&self.line, names, terms);
        let asked = tokio::time::timeout(self.timeout, asked).await;
        let now = self.topology.now();
        let counts = self.counts();
        counts.latency.observe(now.saturating_sub(began));
        match asked {
            Ok(Ok(said)) => {
                if let Some(verdict) = read(&said, question.zones()) {
                    self.line.succeeded();
                    return Some(verdict);
                }
                counts.failures[RedisFailure::Error].add(1);
            }
            Ok(Err(error)) => {
                tracing::debug!(kind = ?error.kind(), "redis did not judge a call");
                counts.failures[RedisFailure::Error].add(1);
            }
            Err(_) => counts.failures[RedisFailure::Timeout].add(1),
        }
        if self.line.failed(now) {
            counts.breakers_opened.add(1);
        }
        None
    }

    /// Returns the keys and arguments of the script.
    fn written(&self, question: &Question) -> (Vec<String>, Vec<i64>) {
        let mut names = Vec::with_capacity(question.zones());
        let mut terms = Vec::with_capacity(question.zones() * 4);
        for asked in question.each() {
            let zone = &self.topology.config.zones[asked.zone].name;
            // The key is hashed, because it can be a confidential header value.
            names.push(format!("{}:zone:{zone}:{}", self.prefix, hex(&asked.digest)));
            let numbers =
                [asked.terms.rate.thousandths(), asked.terms.burst, asked.cost, asked.least];
            terms.extend(numbers.map(|number| i64::try_from(number).unwrap_or(i64::MAX)));
        }
        (names, terms)
    }

    /// Agrees with the other gateways on the start time. Returns true if Redis responded.
    async fn begin(&self) -> bool {
        let patience = self.backoff + PROBE_PATIENCE + TEND_INTERVAL;
        let names = vec![format!("{}:zones-begin", self.prefix)];
        let terms = vec![i64::try_from(patience.as_millis()).unwrap_or(i64::MAX)];
        let began = self.topology.now();
        let asked = BEGIN.run(&self.line, names, terms);
        let said = tokio::time::timeout(PROBE_PATIENCE, asked).await;
        let wait = said.ok().and_then(Result::ok).and_then(|said| {
            let numbers = numbers(&said)?;
            u64::try_from(*numbers.first()?).ok()
        });
        let Some(wait) = wait else { return false };
        self.line.wait_until(began + Duration::from_millis(wait).min(patience));
        true
    }

    /// Probes Redis while the breaker is open, until a reload replaces this client.
    async fn tend(judge: Weak<Judge>) {
        while let Some(own) = judge.upgrade() {
            if own.line.probe_due(own.topology.now()) {
                let own = Rc::clone(&own);
                tokio::task::spawn_local(async move {
                    let well = own.line.probe().await && own.begin().await;
                    own.line.probed(well, own.topology.now());
                });
            }
            own.counts().fallback_threads.set(u64::from(!own.line.is_usable(own.topology.now())));
            drop(own);
            tokio::time::sleep(TEND_INTERVAL).await;
        }
    }
}

/// Returns true if a zone is shared.
pub(crate) fn is_wanted(config: &Config) -> bool {
    config.redis.is_some() && config.zones.iter().any(|zone| zone.shared)
}

/// Parses the script's reply for this number of zones. Returns `None` if it is malformed.
fn read(said: &Value, zones: usize) -> Option<Verdict> {
    let numbers = numbers(said).filter(|numbers| numbers.len() == 2 + 2 * zones)?;
    let (head, states) = numbers.split_at(2);
    let states = states.chunks_exact(2).map(|state| {
        let [excess, last] = [state[0], state[1]].map(|number| u64::try_from(number).ok());
        Some(State { excess: excess?, last: last? })
    });
    let refused = usize::try_from(head[1]).ok().filter(|at| *at <= zones)?;
    let states: Vec<Option<State>> = states.collect();
    // An allowed call leaves a state in every zone.
    let whole = refused > 0 || states.iter().all(Option::is_some);
    let now = u64::try_from(head[0]).ok()?;
    whole.then(|| Verdict { now, refused: refused.checked_sub(1), states: states.into() })
}
