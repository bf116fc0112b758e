//! `[redis]`: a Redis in which gateways share cached responses, the counters of request limits, and
//! the usage of quotas.
//!
//! `config.rs` explains the syntax of `settings::table!`.

use std::fmt;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use settings::Report;
use settings::value::{Bool, Bytes, Duration, File, Integer};

use super::cache::Cache;
use super::limits::{Limit, Zone, ZoneTable, can_both_apply};
use super::redis_url::RedisUrl;
use super::validate::is_local_host;
use super::values::{DAY_MS, GIB, HOUR_MS, MIB, Name, RedisAddress, SECOND_MS};

settings::table! {
    /// A Redis in which several gateways share state: a second tier of the cache, which survives
    /// restarts, and the zones of request limits and quotas that are `shared`. The gateway checks
    /// every response from Redis against its own view of the chain, but anyone who can write to
    /// Redis can forge responses. Redis 5 or later is required. While Redis is slow or down, a call
    /// waits for Redis at most for `timeout`, once for limits and once for the cache. After
    /// `failures_max` such calls in a row, no call waits until Redis responds again.
    pub struct RedisTable => pub RedisKeys {
        /// URL of the server. `redis://` is a single server. `redis-sentinel://` is a server behind
        /// sentinels (with `?sentinelServiceName=NAME`). `redis-cluster://` is a cluster. Schemes
        /// with `rediss` instead of `redis` use TLS. Further addresses follow as
        /// `?node=HOST:PORT&node=…`.
        url: RedisAddress = described "nothing is shared";
        /// File of PEM certificates to trust instead of the built-in ones. Only for `rediss`.
        tls_ca: File = described "Mozilla's roots, built in";
        /// Prefix of every key in Redis. Gateways with the same prefix share their responses and
        /// counters. Use a new prefix for a test network that is restarted from genesis.
        prefix: Name = "weir";
        /// If true, responses are stored in Redis, as a tier of the cache.
        responses: Bool = "true";
        /// Number of gateways that share this Redis. While Redis is down, each gateway divides
        /// shared rates and quotas by this number. If the number is too low, the gateways together
        /// accept too many calls. If this key is not set, the gateways count each other by
        /// heartbeats in Redis, and keep the last count while Redis is down.
        gateways: Integer<1, 1000> = described "counted by heartbeats";
        /// Number of gateways to assume before the first count of heartbeats. It applies if Redis
        /// is down when the gateway starts, and for five seconds after the first gateway has found
        /// an empty Redis. Set this key to the largest number of gateways that may run. This key is
        /// only used if `gateways` is not set.
        gateways_assumed: Integer<1, 1000> = "10";
        /// Longest time that a call waits for Redis. A call may wait twice: once for limits and
        /// once for the cache.
        timeout: Duration<1, SECOND_MS> = "5ms";
        /// If true, reads go to replicas. The gateway reads the list of replicas when it connects.
        /// Writes go to the primary. Reads go to the primary too while no replica responds.
        read_replicas: Bool = "false";
        /// Responses of at least this size are compressed with zstd.
        compress_bytes_min: Bytes<0, GIB, usize> = "4KiB";
        /// Maximum size of one response. A larger response is not stored.
        entry_bytes_max: Bytes<1024, { 64 * MIB }, usize> = "1MiB";
        /// Longest lifetime of an entry. Responses about the head (newest block) and errors live
        /// only as long as in the memory cache. When Redis is full, its `maxmemory-policy` decides
        /// which entries it evicts.
        ttl_max: Duration<SECOND_MS, { 365 * DAY_MS }> = "1d";
        /// Number of consecutive failures and timeouts after which a thread stops using Redis,
        /// until a probe succeeds.
        failures_max: Integer<1, 1000, u32> = "5";
        /// Time from the last failure to the next probe, which tests whether Redis responds again.
        /// No call waits for a probe.
        backoff: Duration<10, HOUR_MS> = "1s";
        /// If true, gateways send each other messages about reorgs and invalidated caches over
        /// Redis pub/sub. A gateway reacts to a message at once: after a reorg it polls its
        /// upstreams. Without messages, it notices a reorg at its next poll, and an invalidated
        /// cache within a second. Responses are correct in both cases.
        messages: Bool = "true";
    }
}

/// A Redis that gateways share. It dereferences to its configuration keys.
#[derive(Clone, Debug)]
pub struct Redis {
    /// Address of the server.
    pub url: RedisUrl,
    /// TLS settings; `None` for plain text.
    pub tls: Option<RedisTls>,
    keys: RedisKeys,
}

impl Deref for Redis {
    type Target = RedisKeys;

    fn deref(&self) -> &RedisKeys {
        &self.keys
    }
}

impl Redis {
    /// Returns true if a Redis connection of one configuration can run the scripts of the other.
    /// The configuration keys in the list below may differ. All other keys must be equal, including
    /// keys that future versions add.
    pub(crate) fn connects_like(&self, other: &Redis) -> bool {
        let keys = RedisKeys {
            responses: other.responses,
            gateways: other.gateways,
            gateways_assumed: other.gateways_assumed,
            read_replicas: other.read_replicas,
            compress_bytes_min: other.compress_bytes_min,
            entry_bytes_max: other.entry_bytes_max,
            ttl_max: other.ttl_max,
            messages: other.messages,
            ..self.keys.clone()
        };
        // The certificates of two configurations may differ, so connections over TLS are not
        // reused.
        keys == other.keys && self.tls.is_none() && other.tls.is_none()
    }
}

/// TLS settings for Redis.
#[derive(Clone)]
pub struct RedisTls {
    /// Trust anchors, verification and session store.
    pub client: Arc<rustls::ClientConfig>,
}

impl fmt::Debug for RedisTls {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("RedisTls").finish_non_exhaustive()
    }
}

/// The parts of the configuration that can use Redis.
pub(super) struct RedisUses<'a> {
    pub(super) cache: &'a Cache,
    pub(super) zone_tables: &'a [(String, ZoneTable)],
    pub(super) zones: &'a [Zone],
    pub(super) limits: &'a [Limit],
    /// True if gateways share quotas.
    pub(super) quotas_shared: bool,
}

/// Validates the table. Returns `None` if the table or a valid URL is missing, or if nothing uses
/// the Redis.
pub(super) fn check(
    table: &RedisTable,
    folder: &Path,
    uses: &RedisUses<'_>,
    report: &mut Report<'_>,
) -> Option<Redis> {
    let zones_shared = uses.zones.iter().any(|zone| zone.shared);
    let shares_counters = zones_shared || uses.quotas_shared;
    if zones_shared && !table.url.is_set() {
        for (_, zone) in uses.zone_tables.iter().filter(|(_, zone)| *zone.shared) {
            report.error(&zone.shared, "there is no redis to share it through", "redis.url");
        }
    }
    // If the file has no `[redis]`, there is no Redis. An invalid URL is already reported.
    table.location.table.as_ref()?;
    let Some(url) = &*table.url else {
        if !report.has_errors() {
            report.error(&table.url, "there is no url", "redis.url");
        }
        return None;
    };
    let tls = check_tls(table, url, folder, report);
    if url.is_cluster() {
        check_cluster_keys(table, uses, report);
    }
    if *table.responses && !uses.cache.enabled {
        let message = "it is a tier of the cache, which is off";
        report.warn(table, message, "cache.enabled = true");
    }
    let responses = *table.responses && uses.cache.enabled;
    if !responses && !shares_counters {
        if !*table.responses {
            let message = "it stores no responses and shares nothing, so it is not used";
            report.warn(&table.responses, message, "responses = true");
        }
        return None;
    }
    Some(Redis { url: url.clone(), tls, keys: RedisKeys { responses, ..table.values() } })
}

/// Builds the TLS client for a `rediss` URL. Returns `None` for plain text, and after an error.
fn check_tls(
    table: &RedisTable,
    url: &RedisUrl,
    folder: &Path,
    report: &mut Report<'_>,
) -> Option<RedisTls> {
    let ca = table.tls_ca.as_ref().map(|file| folder.join(file));
    if !url.tls() {
        if ca.is_some() {
            let message = "certificates are only for rediss://";
            report.error(&table.tls_ca, message, "rediss://, or no tls_ca");
        }
        if url.hosts().iter().any(|host| !is_local_host(host)) {
            let message = "responses and the password go over the network in clear text";
            report.warn(&table.url, message, "rediss://");
        }
        return None;
    }
    match wire::tls::build_verifying_client(ca.as_deref()) {
        Ok(client) => Some(RedisTls { client: Arc::new(client) }),
        Err(message) => {
            let allowed = "a file of pem certificates";
            match ca {
                Some(_) => report.error(&table.tls_ca, message, allowed),
                None => report.error(&table.url, message, allowed),
            }
            None
        }
    }
}

/// Checks that a call can count in at most one shared zone (table of call counters). Otherwise one
/// script would use Redis keys that may be on different nodes of a cluster, which Redis does not
/// allow.
fn check_cluster_keys(table: &RedisTable, uses: &RedisUses<'_>, report: &mut Report<'_>) {
    let (zones, limits) = (uses.zones, uses.limits);
    let shared_limits: Vec<&Limit> =
        limits.iter().filter(|limit| zones[limit.zone].shared && !limit.dry_run).collect();
    for (index, limit) in shared_limits.iter().enumerate() {
        let mut others = shared_limits[index + 1..].iter();
        let conflicts = |other: &&&Limit| other.zone != limit.zone && can_both_apply(limit, other);
        if let Some(other) = others.find(conflicts) {
            let message = format!(
                "a call may count in both shared zones {} and {}, whose keys lie on different nodes \
                 of a cluster",
                zones[limit.zone].name, zones[other.zone].name
            );
            report.error(&table.url, message, "one shared zone for each call, or no cluster");
            return;
        }
    }
}
