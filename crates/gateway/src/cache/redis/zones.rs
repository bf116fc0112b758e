//! Request-limit zones that gateways share: a Redis script checks and charges each call.
//!
//! Each serving thread has one [`SharedLimitClient`] with its own connection, so that cache lookups
//! do not delay it. `limits/shared.rs` builds the queries and applies the results. The script,
//! `cache/redis/zones.lua`, implements the same algorithm as `policy/limit.rs`.
//!
//! While Redis is down, each gateway enforces its local share, which is the rate divided by the
//! number of gateways. No call waits longer than the timeout, and after a few failures the breaker
//! opens and no call waits. After a Redis restart, every gateway enforces its local share until all
//! gateways must have noticed the restart. Then they switch together (`cache/redis/begin.lua`).
//! Otherwise the first gateway would get the full rate in addition to the others' shares.

use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use alloy_primitives::hex;
use fred::prelude::*;

use crate::cache::redis::CHECK_INTERVAL;
use crate::cache::redis::client::{PROBE_TIMEOUT, RedisClient, Role};
use crate::cache::redis::script::{Script, numbers};
use crate::config::Config;
use crate::limits::shared::{RedisDecision, SharedLimitQuery};
use crate::metrics::counters::SharedLimitCounters;
use crate::metrics::label::RedisFailure;
use crate::metrics::thread::Counters;
use crate::policy::limit::KeyState;
use crate::upstream::topology::Topology;

#[cfg(test)]
mod tests;

static SCRIPT: Script = Script::new(include_str!("zones.lua"));

/// The script that runs when Redis is available again.
static START_SCRIPT: Script = Script::new(include_str!("begin.lua"));

/// The shared-limit client of one thread.
pub(crate) struct SharedLimitClient {
    topology: Arc<Topology>,
    counters: Arc<Counters>,
    prefix: Box<str>,
    timeout: Duration,
    backoff: Duration,
    redis: Rc<RedisClient>,
}

impl SharedLimitClient {
    /// Starts the client of one thread on its runtime. It reuses the connection of the previous
    /// configuration if the address is the same. Returns `None` if no zone is shared.
    pub(crate) fn start(
        topology: &Arc<Topology>,
        counters: &Arc<Counters>,
        previous: Option<&SharedLimitClient>,
    ) -> Option<Rc<SharedLimitClient>> {
        if !has_shared_zones(&topology.config) {
            return None;
        }
        let config = topology.config.redis.clone()?;
        let previous = previous.filter(|previous| previous.redis.config.connects_like(&config));
        let redis = previous.map_or_else(
            || Rc::new(RedisClient::new(&config, Role::Scripts)),
            |previous| Rc::clone(&previous.redis),
        );
        let client = Rc::new(SharedLimitClient {
            topology: Arc::clone(topology),
            counters: Arc::clone(counters),
            prefix: config.prefix.clone(),
            timeout: config.timeout,
            backoff: config.backoff,
            redis,
        });
        tokio::task::spawn_local(SharedLimitClient::run_checks(Rc::downgrade(&client)));
        Some(client)
    }

    fn counts(&self) -> &SharedLimitCounters {
        &self.counters.shared_limits
    }

    /// Checks and charges a call in Redis. Returns `None` if the breaker is open, or Redis is slow
    /// or down. Redis may still charge a call that timed out.
    pub(crate) async fn check(&self, query: &SharedLimitQuery) -> Option<RedisDecision> {
        if !self.redis.is_usable(self.topology.now()) {
            return None;
        }
        let (names, arguments) = self.encode(query);
        let started = self.topology.now();
        let reply = SCRIPT.run(&self.redis, names, arguments);
        let reply = tokio::time::timeout(self.timeout, reply).await;
        let now = self.topology.now();
        let counts = self.counts();
        counts.latency.observe(now.saturating_sub(started));
        match reply {
            Ok(Ok(reply)) => {
                if let Some(decision) = parse_reply(&reply, query.zones.len()) {
                    self.redis.record_success();
                    return Some(decision);
                }
                counts.failures[RedisFailure::Error].add(1);
            }
            Ok(Err(error)) => {
                tracing::debug!(kind = ?error.kind(), "redis limit check failed");
                counts.failures[RedisFailure::Error].add(1);
            }
            Err(_) => counts.failures[RedisFailure::Timeout].add(1),
        }
        if self.redis.record_failure(now) {
            counts.breakers_opened.add(1);
        }
        None
    }

    /// Returns the keys and arguments of the script.
    fn encode(&self, query: &SharedLimitQuery) -> (Vec<String>, Vec<i64>) {
        let mut names = Vec::with_capacity(query.zones.len());
        let mut arguments = Vec::with_capacity(query.zones.len() * 4);
        for zone_query in &query.zones {
            let zone = &self.topology.config.zones[zone_query.zone].name;
            // The key is hashed, because it can be a confidential header value.
            names.push(format!("{}:zone:{zone}:{}", self.prefix, hex::encode(zone_query.digest)));
            let numbers = [
                zone_query.terms.rate.thousandths(),
                zone_query.terms.burst,
                zone_query.cost,
                zone_query.known_excess,
            ];
            arguments.extend(numbers.map(|number| i64::try_from(number).unwrap_or(i64::MAX)));
        }
        (names, arguments)
    }

    /// Agrees with the other gateways on the start time. Returns true if Redis responded.
    async fn agree_on_start(&self) -> bool {
        let delay_max = self.backoff + PROBE_TIMEOUT + CHECK_INTERVAL;
        let name = format!("{}:zones-begin", self.prefix);
        let arguments = vec![i64::try_from(delay_max.as_millis()).unwrap_or(i64::MAX)];
        let started = self.topology.now();
        let reply = START_SCRIPT.run_within(PROBE_TIMEOUT, &self.redis, name, arguments).await;
        let wait = reply.and_then(|numbers| u64::try_from(*numbers.first()?).ok());
        let Some(wait) = wait else { return false };
        self.redis.pause_until(started + Duration::from_millis(wait).min(delay_max));
        true
    }

    /// Probes Redis while the breaker is open, until a reload replaces this client.
    async fn run_checks(client: Weak<SharedLimitClient>) {
        while let Some(client) = client.upgrade() {
            if client.redis.probe_due(client.topology.now()) {
                let client = Rc::clone(&client);
                tokio::task::spawn_local(async move {
                    let healthy = client.redis.probe().await && client.agree_on_start().await;
                    client.redis.record_probe(healthy, client.topology.now());
                });
            }
            let is_usable = client.redis.is_usable(client.topology.now());
            client.counts().fallback_threads.set(u64::from(!is_usable));
            drop(client);
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    }
}

/// Returns true if a zone is shared.
pub(crate) fn has_shared_zones(config: &Config) -> bool {
    config.redis.is_some() && config.zones.iter().any(|zone| zone.shared)
}

/// Parses the script's reply for this number of zones. Returns `None` if it is malformed.
fn parse_reply(reply: &Value, zones: usize) -> Option<RedisDecision> {
    let numbers = numbers(reply).filter(|numbers| numbers.len() == 2 + 2 * zones)?;
    let (head, states) = numbers.split_at(2);
    let states = states.chunks_exact(2).map(|state| {
        let [excess, last] = [state[0], state[1]].map(|number| u64::try_from(number).ok());
        Some(KeyState { excess: excess?, last: last? })
    });
    let refused = usize::try_from(head[1]).ok().filter(|number| *number <= zones)?;
    let states: Vec<Option<KeyState>> = states.collect();
    // An allowed call leaves a state in every zone.
    let is_complete = refused > 0 || states.iter().all(Option::is_some);
    let now = u64::try_from(head[0]).ok()?;
    is_complete.then(|| RedisDecision {
        now,
        refused: refused.checked_sub(1),
        states: states.into(),
    })
}
