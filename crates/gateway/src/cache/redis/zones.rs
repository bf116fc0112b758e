//! Request limits whose counters gateways share: a Redis script checks and charges each call. A
//! *zone* is a set of such counters, with one counter per key, such as a client address.
//!
//! Each serving thread has one [`SharedLimitClient`] with its own Redis connection, so cache
//! lookups do not delay limit checks. `limits/shared.rs` builds the queries and applies the
//! results. The script `cache/redis/zones.lua` implements the same algorithm as `policy/limit.rs`.
//!
//! While Redis is down, each gateway enforces its *local share*, which is the rate divided by the
//! number of gateways. No call waits for Redis longer than the timeout. After a few failures the
//! circuit breaker opens, and then no call waits.
//!
//! After a Redis restart, every gateway enforces its local share until all gateways must have
//! noticed the restart. Then all gateways switch to Redis at the same time
//! (`cache/redis/begin.lua`). If each gateway switched as soon as it noticed, the first gateway
//! would get the full rate while the others still use their shares.

use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use alloy_primitives::hex;
use fred::prelude::*;

use crate::cache::redis::CHECK_INTERVAL;
use crate::cache::redis::client::{PROBE_TIMEOUT, RedisClient, Role};
use crate::cache::redis::script::{Script, parse_integers};
use crate::config::Config;
use crate::limits::shared::{RedisDecision, SharedLimitQuery};
use crate::metrics::counters::SharedLimitCounters;
use crate::metrics::label::RedisFailure;
use crate::metrics::thread::Counters;
use crate::policy::limit::KeyState;
use crate::upstream::topology::Topology;

#[cfg(test)]
mod tests;

/// The script that checks a call in its zones. If the call passes, the script charges it to these
/// zones.
static SCRIPT: Script = Script::new(include_str!("zones.lua"));

/// The script with which gateways agree on the time at which they all use Redis again.
static START_SCRIPT: Script = Script::new(include_str!("begin.lua"));

/// The shared-limit client of one thread.
pub(crate) struct SharedLimitClient {
    topology: Arc<Topology>,
    counters: Arc<Counters>,
    /// Prefix of the Redis keys.
    prefix: Box<str>,
    /// Longest wait of a call for Redis.
    timeout: Duration,
    /// Interval of probes while the breaker is open.
    backoff: Duration,
    redis: Rc<RedisClient>,
}

impl SharedLimitClient {
    /// Starts the client of one thread on the thread's runtime. The client reuses the connection of
    /// `previous` if both connect to the same Redis. Returns `None` if no zone is shared.
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
            || Rc::new(RedisClient::new(&config, Role::Scripts, &topology.process)),
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

    /// Checks a call in Redis, which charges the call if it passes. Returns `None` if Redis is
    /// slow, down or responds with an error. Sends no request, and returns `None`, while the
    /// breaker is open or the gateways do not use Redis yet after a restart. Redis may still charge
    /// a call after the timeout.
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
            // The Redis key contains a digest of the zone key, because a zone key can be a
            // confidential header value.
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

    /// Agrees with the other gateways on the time at which all of them use Redis again, and pauses
    /// the Redis client until then. Returns true if Redis responded.
    async fn agree_on_start(&self) -> bool {
        // Every gateway notices within this time that Redis is back.
        let delay_max = self.backoff + PROBE_TIMEOUT + CHECK_INTERVAL;
        let name = format!("{}:zones-begin", self.prefix);
        let arguments = vec![i64::try_from(delay_max.as_millis()).unwrap_or(i64::MAX)];
        let started = self.topology.now();
        let reply = START_SCRIPT.run_within(PROBE_TIMEOUT, &self.redis, name, arguments).await;
        let wait_ms = reply.and_then(|numbers| u64::try_from(*numbers.first()?).ok());
        let Some(wait_ms) = wait_ms else { return false };
        self.redis.pause_until(started + Duration::from_millis(wait_ms).min(delay_max));
        true
    }

    /// Probes Redis while the breaker is open, until a reload replaces this client.
    async fn run_checks(client: Weak<SharedLimitClient>) {
        while let Some(client) = client.upgrade() {
            if client.redis.begin_due_probe(client.topology.now()) {
                let client = Rc::clone(&client);
                tokio::task::spawn_local(async move {
                    let healthy = client.redis.probe().await && client.agree_on_start().await;
                    client.redis.record_probe(healthy, client.topology.now());
                });
            }
            let is_usable = client.redis.is_usable(client.topology.now());
            // Each thread sets 0 or 1, so the sum is the number of threads that do not use Redis.
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

/// Parses the script's reply for a call that counts in `zone_count` zones. Returns `None` if the
/// reply is malformed.
///
/// The first number of the reply is the time of Redis in ms. The second is the position of the zone
/// that refused the call, counted from 1; 0 if the call passes. Two numbers follow for each zone:
/// the excess of the key, and the time of its last charge in ms. The excess is the number of calls
/// by which the key is ahead of the rate, in thousandths of a call. If Redis has no state of the
/// key, both numbers are negative.
fn parse_reply(reply: &Value, zone_count: usize) -> Option<RedisDecision> {
    let numbers = parse_integers(reply).filter(|numbers| numbers.len() == 2 + 2 * zone_count)?;
    let (header, states) = numbers.split_at(2);
    let states = states.chunks_exact(2).map(|state| {
        let [excess, charged_at_ms] = [state[0], state[1]].map(|number| u64::try_from(number).ok());
        Some(KeyState { excess: excess?, charged_at_ms: charged_at_ms? })
    });
    let refusing_zone = usize::try_from(header[1]).ok().filter(|number| *number <= zone_count)?;
    let states: Vec<Option<KeyState>> = states.collect();
    // An allowed call leaves a state in every zone.
    let is_complete = refusing_zone > 0 || states.iter().all(Option::is_some);
    let redis_now_ms = u64::try_from(header[0]).ok()?;
    is_complete.then(|| RedisDecision {
        redis_now_ms,
        refused: refusing_zone.checked_sub(1),
        states: states.into(),
    })
}
