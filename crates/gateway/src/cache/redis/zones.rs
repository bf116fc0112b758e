//! Zones of request limits that gateways share: a script in Redis judges and charges a call.
//!
//! One [`Judge`] per serving thread, with a connection of its own, so that no answer of the cache
//! holds up a judgement. What is asked and what is made of the answer is `limits/shared.rs`; the
//! script, `cache/redis/zones.lua`, is `policy/limit.rs` once more. While Redis is away the caller
//! judges by its share: nobody waits for more than the timeout, and after a few failures for
//! nothing. When a Redis was started anew, all gateways go on by their shares until the last of
//! them must have found out (`cache/redis/begin.lua`): the first one back would else have the whole
//! rate, beside the shares of the others.

use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use fred::prelude::*;

use crate::cache::redis::TEND_INTERVAL;
use crate::cache::redis::line::{Line, PROBE_PATIENCE, Role};
use crate::cache::redis::script::{Script, hex, numbers};
use crate::config::Config;
use crate::limits::shared::{SharedLimitQuery, Verdict};
use crate::metrics::counters::SharedLimitCounters;
use crate::metrics::label::RedisFailure;
use crate::metrics::thread::Counters;
use crate::policy::limit::State;
use crate::upstream::topology::Topology;

#[cfg(test)]
mod tests;

static SCRIPT: Script = Script::new(include_str!("zones.lua"));

/// What is asked when Redis is there again.
static BEGIN: Script = Script::new(include_str!("begin.lua"));

/// One thread's connection for judgements.
pub(crate) struct Judge {
    topology: Arc<Topology>,
    counters: Arc<Counters>,
    prefix: Box<str>,
    timeout: Duration,
    backoff: Duration,
    line: Rc<Line>,
}

impl Judge {
    /// The judge of one thread, on its runtime, with the connection of the configuration before
    /// where it leads to the same place; none where no zone is shared.
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

    /// What Redis says to a call, which is charged there unless it is refused; none if Redis is
    /// left alone, slow or away. One that came too late may have been charged nevertheless.
    pub(crate) async fn ask(&self, question: &SharedLimitQuery) -> Option<Verdict> {
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

    /// Keys and arguments of the script.
    fn written(&self, question: &SharedLimitQuery) -> (Vec<String>, Vec<i64>) {
        let mut names = Vec::with_capacity(question.zones());
        let mut terms = Vec::with_capacity(question.zones() * 4);
        for asked in question.each() {
            let zone = &self.topology.config.zones[asked.zone].name;
            // A digest: a key may be a header's value, which is nobody's business there.
            names.push(format!("{}:zone:{zone}:{}", self.prefix, hex(&asked.digest)));
            let numbers =
                [asked.terms.rate.thousandths(), asked.terms.burst, asked.cost, asked.least];
            terms.extend(numbers.map(|number| i64::try_from(number).unwrap_or(i64::MAX)));
        }
        (names, terms)
    }

    /// Agrees with the other gateways on when to begin; whether Redis answered.
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

    /// Probes what is left alone, until a reload has replaced the judge.
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

/// Whether some zone is shared.
pub(crate) fn is_wanted(config: &Config) -> bool {
    config.redis.is_some() && config.zones.iter().any(|zone| zone.shared)
}

/// What the script answered about so many zones; none if it is not such an answer.
fn read(said: &Value, zones: usize) -> Option<Verdict> {
    let numbers = numbers(said).filter(|numbers| numbers.len() == 2 + 2 * zones)?;
    let (head, states) = numbers.split_at(2);
    let states = states.chunks_exact(2).map(|state| {
        let [excess, last] = [state[0], state[1]].map(|number| u64::try_from(number).ok());
        Some(State { excess: excess?, last: last? })
    });
    let refused = usize::try_from(head[1]).ok().filter(|at| *at <= zones)?;
    let states: Vec<Option<State>> = states.collect();
    // A call that passed has left a state everywhere.
    let whole = refused > 0 || states.iter().all(Option::is_some);
    let now = u64::try_from(head[0]).ok()?;
    whole.then(|| Verdict { now, refused: refused.checked_sub(1), states: states.into() })
}
