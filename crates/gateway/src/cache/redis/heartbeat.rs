//! Counts the gateways that share limits and quotas. Each gateway regularly records a *heartbeat*
//! in Redis.
//!
//! The watch thread sends a heartbeat every second over a separate connection, so no call waits for
//! a heartbeat. The script `cache/redis/gateways.lua` records the heartbeats, with times by the
//! clock of Redis. `policy/gateways.rs` decides which number of gateways applies.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::AbortHandle;

use crate::cache::redis::client::{RedisClient, Role};
use crate::cache::redis::script::Script;
use crate::cache::redis::zones::has_shared_zones;
use crate::config::Config;
use crate::io::random::random_seed;
use crate::policy::gateways::{GatewayCountSource, HeartbeatReply, INTERVAL, LIFETIME, Membership};
use crate::upstream::topology::Topology;

/// The script that records a heartbeat and counts the gateways.
static SCRIPT: Script = Script::new(include_str!("gateways.lua"));

/// Timeout of a heartbeat. A slow heartbeat delays only the next one.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(1);

/// The number of gateways that share limits and quotas. It survives reloads.
pub(crate) struct GatewayCount {
    /// The random number that identifies this process.
    id: i64,
    /// A copy of the number of gateways in `membership`. Calls read it without a lock.
    gateways: Arc<AtomicU64>,
    /// Decides which number of gateways applies.
    membership: Mutex<Membership>,
}

impl GatewayCount {
    /// Creates the count for the first configuration of a process.
    pub(crate) fn new(config: &Config) -> GatewayCount {
        let (configured, assumed) = read_gateway_counts(config);
        let membership = Membership::new(configured, assumed);
        GatewayCount {
            // The script takes signed numbers and expects a positive id.
            id: (random_seed() >> 1).cast_signed(),
            gateways: Arc::new(AtomicU64::new(membership.gateways())),
            membership: Mutex::new(membership),
        }
    }

    /// Applies a new configuration. If the Redis or its key prefix has changed, earlier heartbeats
    /// no longer count.
    pub(crate) fn reload(&self, previous: &Config, config: &Config) {
        let (configured, assumed) = read_gateway_counts(config);
        self.update(|membership| {
            membership.configure(configured, assumed);
            if heartbeat_location(previous) != heartbeat_location(config) {
                membership.record_loss();
            }
        });
    }

    /// Returns the number of gateways. A gateway divides a limit by this number to get its local
    /// share.
    pub(crate) fn divisor(&self) -> &Arc<AtomicU64> {
        &self.gateways
    }

    /// Returns the number of gateways and its source.
    pub(crate) fn current(&self) -> (u64, GatewayCountSource) {
        let membership = self.membership.lock();
        (membership.gateways(), membership.source())
    }

    /// Records the reply to a heartbeat.
    pub(crate) fn record_reply(&self, reply: HeartbeatReply, now: Duration) {
        self.update(|membership| membership.record_reply(reply, now));
    }

    /// Applies a change and publishes the number of gateways. Logs the number if it has changed.
    fn update(&self, change: impl FnOnce(&mut Membership)) {
        let mut membership = self.membership.lock();
        let previous_gateways = membership.gateways();
        change(&mut membership);
        let (gateways, source) = (membership.gateways(), membership.source());
        drop(membership);
        self.gateways.store(gateways, Ordering::Relaxed);
        if gateways != previous_gateways {
            let source = source.as_str();
            tracing::info!(gateways, source, "number of gateways that share limits has changed");
        }
    }
}

/// Returns true if gateways share limits or quotas under this configuration.
pub(crate) fn shares_counters(config: &Config) -> bool {
    let shares_quotas = config.quota.as_ref().is_some_and(|quota| quota.shared);
    has_shared_zones(config) || (config.redis.is_some() && shares_quotas)
}

/// Returns the configured number of gateways, and the number to assume before the first count. The
/// configured number is `None` if heartbeats determine the number. Without Redis both numbers are
/// 1.
fn read_gateway_counts(config: &Config) -> (Option<u64>, u64) {
    let redis = config.redis.as_ref();
    redis.map_or((Some(1), 1), |redis| (redis.gateways, redis.gateways_assumed))
}

/// Returns the Redis URL and the key prefix of the heartbeats; `None` if gateways share no
/// counters.
fn heartbeat_location(config: &Config) -> Option<(String, &str)> {
    let redis = config.redis.as_ref().filter(|_| shares_counters(config))?;
    Some((redis.url.to_string(), &redis.prefix))
}

/// The task that sends heartbeats under one configuration. Dropping it ends the task.
pub(crate) struct Heartbeat {
    sender: Rc<HeartbeatSender>,
    task: AbortHandle,
}

/// The state of the task.
struct HeartbeatSender {
    topology: Arc<Topology>,
    count: Arc<GatewayCount>,
    redis: RedisClient,
    /// The Redis key of all heartbeats.
    key: String,
}

impl Heartbeat {
    /// Starts the task. Returns `None` if gateways share neither limits nor quotas.
    pub(crate) fn start(topology: &Arc<Topology>, count: &Arc<GatewayCount>) -> Option<Heartbeat> {
        let redis = topology.config.redis.as_ref();
        let config = redis.filter(|_| shares_counters(&topology.config))?;
        let sender = Rc::new(HeartbeatSender {
            topology: Arc::clone(topology),
            count: Arc::clone(count),
            redis: RedisClient::new(config, Role::Scripts, &topology.process),
            key: format!("{}:gateways", config.prefix),
        });
        let task = tokio::task::spawn_local(Rc::clone(&sender).run()).abort_handle();
        Some(Heartbeat { sender, task })
    }

    /// Ends the task for a new configuration. If the new configuration sends heartbeats elsewhere,
    /// removes this gateway's heartbeat.
    pub(crate) fn replace(self, config: &Config) {
        if heartbeat_location(&self.sender.topology.config) != heartbeat_location(config) {
            tokio::task::spawn_local(self.leave());
        }
    }

    /// Ends the task and removes this gateway's heartbeat, within a timeout.
    pub(crate) async fn leave(self) {
        self.task.abort();
        // If the removal fails, the heartbeat expires.
        let _ = self.sender.send(Duration::ZERO).await;
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl HeartbeatSender {
    /// Sends a heartbeat at each interval. Reconnects after a connection loss.
    async fn run(self: Rc<Self>) {
        let mut connected = false;
        loop {
            if !connected {
                connected = self.redis.ensure_connected().await;
            }
            let reply = if connected { self.send(LIFETIME).await } else { None };
            connected = reply.is_some();
            match reply {
                Some(reply) => self.count.record_reply(reply, self.topology.now()),
                None => self.count.update(Membership::record_loss),
            }
            tokio::time::sleep(INTERVAL).await;
        }
    }

    /// Sends a heartbeat that Redis keeps for `lifetime`. A `lifetime` of zero removes the
    /// heartbeat of this gateway. Returns `None` if Redis does not respond in time.
    async fn send(&self, lifetime: Duration) -> Option<HeartbeatReply> {
        let lifetime_ms = i64::try_from(lifetime.as_millis()).unwrap_or(i64::MAX);
        let arguments = vec![self.count.id, lifetime_ms];
        let (redis, key) = (&self.redis, self.key.clone());
        let reply = SCRIPT.run_within(HEARTBEAT_TIMEOUT, redis, key, arguments).await?;
        // `gateways.lua` replies with the number of gateways and the age of the record.
        let [gateways, age_ms] = reply[..] else { return None };
        Some(HeartbeatReply {
            gateways: u64::try_from(gateways).ok()?,
            recorded_for: Duration::from_millis(u64::try_from(age_ms).ok()?),
        })
    }
}
