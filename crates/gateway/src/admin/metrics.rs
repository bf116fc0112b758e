//! The text of `/metrics`, and the page `docs/metrics.md` that lists the metrics.
//!
//! Both are made from one list of metric sets. What threads count is declared in
//! `metrics/counters.rs`; here are the metrics that are read from the state of the gateway.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Registry;

use super::status::{
    ChainStatus, GroupStatus, HealthState, QuotaStatus, ReloadStatus, Status, UpstreamStatus,
    ZoneStatus,
};
use crate::cache::redis;
use crate::metrics::export::{Description, MetricSet, Metrics};
use crate::metrics::thread::{Counters, Labelled};
use crate::state::snapshot::Snapshot;

#[cfg(test)]
mod tests;

/// The content type of [`text`] (OpenMetrics 1.0, section "Content Type").
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The page without its rows.
const REFERENCE: &str = include_str!("metrics.md");

/// Everything at the instant of one scrape.
#[derive(Debug)]
struct Scrape {
    status: Status,
    /// Sums over all threads.
    counters: Counters,
    quotas: Option<QuotaScrape>,
    has_shared_limits: bool,
}

/// What the quotas of all keys have in common.
#[derive(Debug)]
struct QuotaScrape {
    refused: u64,
    alone: bool,
    write_failures: u64,
}

/// Objects of one type, with the values of the labels that tell them apart.
type Objects<'s, T> = Vec<(Vec<&'s str>, &'s T)>;

/// A set of metrics, whatever the type of its objects.
struct Set {
    descriptions: Vec<Description>,
    encode: Encode,
}

type Encode = Box<dyn Fn(&Scrape, &mut DescriptorEncoder<'_>) -> fmt::Result>;

/// Returns all metrics of the gateway.
fn sets() -> Vec<Set> {
    vec![
        Set::of(|scrape: &Scrape| one(Some(scrape))),
        Set::of(|scrape| one(scrape.quotas.as_ref())),
        Set::of(|scrape| {
            let keys = scrape.status.keys.iter();
            keys.filter_map(|key| Some((vec![&*key.name], key.quota.as_ref()?))).collect()
        }),
        Set::of(|scrape| {
            scrape.status.zones.iter().map(|zone| (vec![&*zone.name], zone)).collect()
        }),
        Set::of(|scrape| {
            scrape.status.chains.iter().map(|chain| (vec![&*chain.name], chain)).collect()
        }),
        Set::of(|scrape| of_chains(scrape, |chain| &chain.groups, |group| &group.name)),
        Set::of(|scrape| of_chains(scrape, |chain| &chain.upstreams, |upstream| &upstream.name)),
        Set::of(|scrape| one(Some(&*scrape.counters))),
        Set::of(|scrape| one(scrape.status.index.as_ref().map(|_| &scrape.counters.index))),
        Set::of(|scrape| one(scrape.status.redis.as_ref().map(|_| &scrape.counters.redis))),
        Set::of(|scrape| one(scrape.has_shared_limits.then_some(&scrape.counters.shared_limits))),
        Set::of(|scrape| {
            let chains = scrape.counters.methods.iter();
            let methods = chains.flat_map(|(chain, methods)| {
                let methods = chain.methods().zip(&**methods);
                methods.map(|(name, counters)| (vec![&*chain.name, name], counters))
            });
            methods.filter(|(_, counters)| counters.calls() > 0).collect()
        }),
        Set::of(|scrape| labelled(&scrape.counters.groups)),
        Set::of(|scrape| labelled(&scrape.counters.upstreams)),
        Set::of(|scrape| {
            let mut keys = labelled(&scrape.counters.keys);
            keys.retain(|(_, counters)| counters.calls.get() > 0);
            keys
        }),
        Set::of(|scrape| labelled(&scrape.counters.rules)),
        Set::of(|scrape| {
            let mut zones = labelled(&scrape.counters.zones);
            // Zones without any limit are not in the status either.
            zones.truncate(scrape.status.zones.len());
            zones
        }),
    ]
}

impl Set {
    fn of<T: MetricSet + 'static>(objects: for<'s> fn(&'s Scrape) -> Objects<'s, T>) -> Set {
        let metrics = Metrics::new();
        Set {
            descriptions: metrics.descriptions().cloned().collect(),
            encode: Box::new(move |scrape, encoder| metrics.encode(encoder, &objects(scrape))),
        }
    }
}

fn one<T>(object: Option<&T>) -> Objects<'_, T> {
    object.into_iter().map(|object| (Vec::new(), object)).collect()
}

fn of_chains<T>(
    scrape: &Scrape,
    list: fn(&ChainStatus) -> &Vec<T>,
    name: fn(&T) -> &String,
) -> Objects<'_, T> {
    let chains = scrape.status.chains.iter();
    let objects = chains
        .flat_map(|chain| list(chain).iter().map(|own| (vec![&*chain.name, &**name(own)], own)));
    objects.collect()
}

fn labelled<const N: usize, C>(counters: &Labelled<[Arc<str>; N], C>) -> Objects<'_, C> {
    let counters = counters.iter();
    counters.map(|(labels, own)| (labels.iter().map(|label| &**label).collect(), &**own)).collect()
}

/// Returns the text for `/metrics`.
pub(crate) fn text(snapshot: &Snapshot) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Scrape::of(snapshot)));
    let mut text = String::with_capacity(64 * 1024);
    prometheus_client::encoding::text::encode(&mut text, &registry)
        .expect("writing into a string cannot fail");
    text
}

/// Returns the text of `docs/metrics.md`.
pub fn reference() -> String {
    let sets = sets();
    let row = |metric: &Description| {
        let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
        format!(
            "| `{}` | {} | {} | {} | {} |\n",
            metric.sample_name(),
            metric.kind.as_str(),
            metric.unit(),
            labels.join(", "),
            metric.help,
        )
    };
    let mut rows: Vec<String> = sets.iter().flat_map(|set| &set.descriptions).map(row).collect();
    rows.sort();
    REFERENCE.replace("{rows}", &rows.concat())
}

impl Scrape {
    fn of(snapshot: &Snapshot) -> Scrape {
        let counters = Counters::sum(&snapshot.counters);
        let status = Status::with(snapshot, &counters);
        if let Some(queues) = &snapshot.access_log {
            counters.log_dropped.add(queues.unwritten());
        }
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Scrape {
            status,
            counters,
            quotas: snapshot.quotas.as_ref().map(|quotas| QuotaScrape {
                refused: count(&quotas.ledger.refused),
                alone: quotas.is_local_only(),
                write_failures: count(&quotas.ledger.write_failures),
            }),
            has_shared_limits: redis::zones::is_wanted(&snapshot.config),
        }
    }

    fn last_reload(&self) -> Option<&ReloadStatus> {
        self.status.config.last_reload.as_ref()
    }
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        sets().iter().try_for_each(|set| (set.encode)(self, &mut encoder))
    }
}

/// Declares the metrics of objects whose numbers are kept elsewhere.
macro_rules! readings {
    ($($Object:ident[$($label:literal),*] {
        $($(#[doc = $help:literal])+ $kind:ident $name:literal $(by $by:literal)? = $read:expr;)+
    })+) => { $(
        impl MetricSet for $Object {
            const LABELS: &'static [&'static str] = &[$($label),*];

            fn list(metrics: &mut Metrics<$Object>) {
                $(metrics.$kind($name, concat!($($help),+), $read)$(.by($by))?;)+
            }
        }
    )+ };
}

readings! {
    Scrape[] {
        /// The build that serves.
        info "weir_build" by "version" = |own| own.status.version;
        /// Time since the start.
        gauge "weir_uptime_seconds" = |own| own.status.uptime_seconds;
        /// Counts configurations from 1, the one that the process was started with.
        gauge "weir_config_generation" = |own| own.status.config.generation;
        /// Reloads of the configuration; one that is refused leaves the old one in use.
        counter "weir_reloads" by "outcome" = |own| {
            let config = &own.status.config;
            [("applied", config.reloads_applied), ("refused", config.reloads_refused)]
        };
        /// 1 if the last reload was applied, 0 if it was refused; missing before the first.
        gauge "weir_reload_last_applied" = |own| own.last_reload().map(|reload| reload.applied);
        /// When the last reload ended, in seconds since 1970; missing before the first.
        gauge "weir_reload_last_timestamp_seconds" =
            |own| own.last_reload().map(|reload| reload.unix_seconds);
        /// Bytes that bodies, responses and queues of all connections may take together.
        gauge "weir_memory_max_bytes" = |own| own.status.memory.bytes_max;
        /// Bytes that bodies, responses and queues take: of requests, of responses that upstreams
        /// are sending, and of responses that clients have not read.
        gauge "weir_memory_held_bytes" by "purpose" =
            |own| own.status.memory.purposes.each_ref().map(|own| (own.name, own.bytes));
        /// Requests and responses for which there was no memory left.
        counter "weir_memory_refusals" by "purpose" =
            |own| own.status.memory.purposes.each_ref().map(|own| (own.name, own.refused));
        /// Connections of slow clients that were closed because too many bytes were held.
        counter "weir_memory_connections_closed" = |own| own.status.memory.connections_closed;
        /// 1 if the cache is on.
        gauge "weir_cache_enabled" = |own| own.status.cache.enabled;
        /// Responses held in memory.
        gauge "weir_cache_entries" = |own| own.status.cache.entries;
        /// Bytes held by the cache, keys and bookkeeping included.
        gauge "weir_cache_bytes" = |own| own.status.cache.bytes;
        /// Bytes that the cache may hold.
        gauge "weir_cache_max_bytes" = |own| own.status.cache.bytes_max;
        /// Messages to and from other gateways: reorgs, and generations that were replaced.
        counter "weir_redis_messages" by "direction" =
            |own| own.status.redis.as_ref().map(|redis| {
                [("sent", redis.messages_sent), ("received", redis.messages_received)]
            });
    }

    QuotaScrape[] {
        /// Calls refused because the quota of their key is used up.
        counter "weir_quota_refused" = |own| own.refused;
        /// 1 while this gateway judges shared quotas by its share of the remaining units, because
        /// Redis is unreachable.
        gauge "weir_quota_local_only" = |own| own.alone;
        /// Times that the file of quotas could not be written.
        counter "weir_quota_write_failures" = |own| own.write_failures;
    }

    QuotaStatus["key"] {
        /// Units that a key with a quota has used this month.
        gauge "weir_quota_used_units" = |own| own.used;
        /// Units that it may use in a month.
        gauge "weir_quota_limit_units" = |own| own.units;
    }

    ZoneStatus["zone"] {
        /// Threads that judge a shared zone by the local share now, because Redis is unreachable or
        /// not yet connected; missing for zones that are not shared.
        gauge "weir_limit_redis_fallback_threads" = |own| own.fallback_threads;
        /// Keys that a zone holds.
        gauge "weir_zone_keys" = |own| own.keys;
        /// Keys that a zone can hold.
        gauge "weir_zone_max_keys" = |own| own.keys_max;
        /// Keys that a full zone has evicted for new ones.
        counter "weir_zone_evictions" = |own| own.evicted;
    }

    ChainStatus["chain"] {
        /// Height of the served head; missing while there is none.
        gauge "weir_chain_head" = |own| own.head.as_ref().map(|head| head.number as f64);
        /// Time since the served head last changed; missing while there is none.
        gauge "weir_chain_head_age_seconds" = |own| own.head_age_seconds;
        /// Height that no reorg may undo; missing while it is unknown.
        gauge "weir_chain_finalized" = |own| own.finalized.map(|number| number as f64);
        /// Reorgs of the served chain.
        counter "weir_chain_reorgs" = |own| own.reorgs;
        /// Blocks dropped by the deepest reorg since the start.
        gauge "weir_chain_reorg_depth_max_blocks" = |own| own.reorg_depth_max as f64;
    }

    GroupStatus["chain", "group"] {
        /// Upstreams of the group that may be chosen now.
        gauge "weir_group_candidates" = |own| own.candidates.len() as u64;
        /// Limit of calls in flight at the upstreams of a group; missing without a limit.
        gauge "weir_group_in_flight_limit" = |own| own.in_flight_limit.map(u64::from);
    }

    UpstreamStatus["chain", "upstream"] {
        /// 1 for the state that the upstream is in, 0 for the others.
        gauge "weir_upstream_state" by "state" =
            |own| HealthState::ALL.map(|state| (state.as_str(), own.state == state));
        /// Height of the upstream's own head; missing before its first poll.
        gauge "weir_upstream_head" = |own| own.head;
        /// Blocks that the upstream is behind the served head; missing before its first poll.
        gauge "weir_upstream_lag_blocks" = |own| own.lag;
        /// 1 if the upstream is fit for reads at the head.
        gauge "weir_upstream_at_head" = |own| own.at_head;
        /// WebSockets or local sockets to the upstream that are open for calls.
        gauge "weir_upstream_multiplexed_connections" by "transport" = |own| {
            let transport = own.transports.first().filter(|transport| **transport != "http");
            transport.map(|transport| [(*transport, own.multiplexed_connections)])
        };
        /// Times that the upstream was ejected.
        counter "weir_upstream_ejections" = |own| own.ejections;
        /// Times that the upstream was readmitted.
        counter "weir_upstream_readmissions" = |own| own.readmissions;
    }
}
