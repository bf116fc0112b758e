//! The text of `/metrics`, and the page `docs/metrics.md` that lists the metrics.
//!
//! Both are generated from one list of metric sets. `metrics/counters.rs` declares the metrics that
//! threads count. This file declares the metrics that are read from the state of the gateway.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Registry;

use super::status::{
    ChainStatus, GroupStatus, HealthState, QuotaStatus, ReloadStatus, Status, UpstreamStatus,
    ZoneStatus,
};
use crate::cache::redis;
use crate::config::listen_tls::CertificateExpiry;
use crate::metrics::export::{Description, MetricSet, Metrics};
use crate::metrics::thread::{Counters, Labelled};
use crate::state::snapshot::Snapshot;

#[cfg(test)]
mod tests;

/// The content type of [`text`] (OpenMetrics 1.0, section "Content Type").
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The page without its rows.
const REFERENCE: &str = include_str!("metrics.md");

/// The values of all metrics at the instant of one scrape.
#[derive(Debug)]
struct Scrape {
    status: Status,
    /// Sums over all threads.
    counters: Counters,
    quotas: Option<QuotaScrape>,
    certificates: Vec<CertificateExpiry>,
    has_shared_limits: bool,
}

/// Metrics of the quotas of all keys together.
#[derive(Debug)]
struct QuotaScrape {
    refused: u64,
    local_only: bool,
    write_failures: u64,
}

/// Objects of one type, with the values of the labels that distinguish them.
type Objects<'s, T> = Vec<(Vec<&'s str>, &'s T)>;

/// A set of metrics of objects of any type.
struct Set {
    descriptions: Vec<Description>,
    encode: Encode,
}

type Encode = Box<dyn Fn(&Scrape, &mut DescriptorEncoder<'_>) -> fmt::Result>;

/// Returns all metrics of the gateway.
fn sets() -> Vec<Set> {
    vec![
        Set::of(|scrape: &Scrape| unlabelled(Some(scrape))),
        Set::of(|scrape| unlabelled(scrape.quotas.as_ref())),
        Set::of(|scrape| {
            let certificates = scrape.certificates.iter();
            certificates.map(|expiry| (vec![&*expiry.chain_file], expiry)).collect()
        }),
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
        Set::of(|scrape| unlabelled(Some(&*scrape.counters))),
        Set::of(|scrape| unlabelled(scrape.status.index.as_ref().map(|_| &scrape.counters.index))),
        Set::of(|scrape| unlabelled(scrape.status.redis.as_ref().map(|_| &scrape.counters.redis))),
        Set::of(|scrape| {
            unlabelled(scrape.has_shared_limits.then_some(&scrape.counters.shared_limits))
        }),
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

/// Returns an object without labels.
fn unlabelled<T>(object: Option<&T>) -> Objects<'_, T> {
    object.into_iter().map(|object| (Vec::new(), object)).collect()
}

/// Returns the objects of all chains, labelled with their chain and name.
fn of_chains<T>(
    scrape: &Scrape,
    list: fn(&ChainStatus) -> &Vec<T>,
    name: fn(&T) -> &String,
) -> Objects<'_, T> {
    let chains = scrape.status.chains.iter();
    let objects = chains.flat_map(|chain| {
        list(chain).iter().map(|object| (vec![&*chain.name, &**name(object)], object))
    });
    objects.collect()
}

fn labelled<const N: usize, C>(counters: &Labelled<[Arc<str>; N], C>) -> Objects<'_, C> {
    let counters = counters.iter();
    let objects = counters
        .map(|(labels, counters)| (labels.iter().map(|label| &**label).collect(), &**counters));
    objects.collect()
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

/// The declaration of a metric, for the pages and files that are generated from it.
#[derive(Debug, Clone)]
pub struct Declaration {
    /// Name of its samples; those of a histogram have a further suffix.
    pub name: String,
    /// Its type in OpenMetrics, such as `counter`.
    pub kind: String,
    /// Last part of the name if it is a unit, else empty.
    pub unit: &'static str,
    /// Names of its labels.
    pub labels: Vec<&'static str>,
    /// What it measures, in one sentence or more.
    pub help: &'static str,
}

/// Returns the declarations of all metrics, sorted by name.
pub fn declarations() -> Vec<Declaration> {
    let descriptions = sets().into_iter().flat_map(|set| set.descriptions);
    let mut declarations: Vec<Declaration> = descriptions
        .map(|metric| Declaration {
            name: metric.sample_name(),
            kind: metric.kind.as_str().to_owned(),
            unit: metric.unit(),
            help: metric.help,
            labels: metric.labels,
        })
        .collect();
    declarations.sort_by(|left, right| left.name.cmp(&right.name));
    declarations
}

/// Returns the text of `docs/metrics.md`.
pub fn reference() -> String {
    let row = |metric: Declaration| {
        let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
        let Declaration { name, kind, unit, help, .. } = metric;
        format!("| `{name}` | {kind} | {unit} | {} | {help} |\n", labels.join(", "))
    };
    // The rows are sorted as text, because a test compares them so.
    let mut rows: Vec<String> = declarations().into_iter().map(row).collect();
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
                local_only: quotas.is_local_only(),
                write_failures: count(&quotas.ledger.write_failures),
            }),
            certificates: snapshot.config.certificate_expiries.clone(),
            has_shared_limits: redis::zones::has_shared_zones(&snapshot.config),
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

/// Declares the metrics of objects whose numbers are stored elsewhere.
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
        /// Version of the running program.
        info "weir_build" by "version" = |object| object.status.version;
        /// Time since the start.
        gauge "weir_uptime_seconds" = |object| object.status.uptime_seconds;
        /// Number of the configuration in use; the process starts with 1.
        gauge "weir_config_generation" = |object| object.status.config.generation;
        /// Reloads of the configuration; a refused reload leaves the old configuration in use.
        counter "weir_reloads" by "outcome" = |object| {
            let config = &object.status.config;
            [("applied", config.reloads_applied), ("refused", config.reloads_refused)]
        };
        /// 1 if the last reload was applied, 0 if it was refused; missing before the first.
        gauge "weir_reload_last_applied" = |object| object.last_reload().map(|reload| reload.applied);
        /// When the last reload ended, in seconds since 1970; missing before the first.
        gauge "weir_reload_last_timestamp_seconds" =
            |object| object.last_reload().map(|reload| reload.unix_seconds);
        /// Bytes that bodies, responses and queues of all connections may take together.
        gauge "weir_memory_max_bytes" = |object| object.status.memory.bytes_max;
        /// Bytes that bodies, responses and queues take: requests, responses that upstreams are
        /// sending, and responses that clients have not read.
        gauge "weir_memory_held_bytes" by "purpose" =
            |object| object.status.memory.purposes.each_ref().map(|purpose| (purpose.name, purpose.bytes));
        /// Requests and responses for which there was no memory left.
        counter "weir_memory_refusals" by "purpose" =
            |object| object.status.memory.purposes.each_ref().map(|purpose| (purpose.name, purpose.refused));
        /// Connections of slow clients that were closed because too many bytes were held.
        counter "weir_memory_connections_closed" = |object| object.status.memory.connections_closed;
        /// 1 if the cache is on.
        gauge "weir_cache_enabled" = |object| object.status.cache.enabled;
        /// Responses held in memory.
        gauge "weir_cache_entries" = |object| object.status.cache.entries;
        /// Bytes held by the cache, keys and bookkeeping included.
        gauge "weir_cache_bytes" = |object| object.status.cache.bytes;
        /// Bytes that the cache may hold.
        gauge "weir_cache_max_bytes" = |object| object.status.cache.bytes_max;
        /// Messages to and from other gateways about reorgs and replaced generations.
        counter "weir_redis_messages" by "direction" =
            |object| object.status.redis.as_ref().map(|redis| {
                [("sent", redis.messages_sent), ("received", redis.messages_received)]
            });
    }

    QuotaScrape[] {
        /// Calls refused because the quota of their key is used up.
        counter "weir_quota_refused" = |object| object.refused;
        /// 1 while this gateway judges shared quotas by its share of the remaining units, because
        /// Redis is unreachable.
        gauge "weir_quota_local_only" = |object| object.local_only;
        /// Times that the file of quotas could not be written.
        counter "weir_quota_write_failures" = |object| object.write_failures;
    }

    CertificateExpiry["certificate"] {
        /// When a certificate of the gateway expires, in seconds since 1970.
        gauge "weir_certificate_expiry_timestamp_seconds" = |expiry| {
            let since = expiry.expires.duration_since(SystemTime::UNIX_EPOCH);
            since.unwrap_or_default().as_secs_f64()
        };
    }

    QuotaStatus["key"] {
        /// Units that a key with a quota has used this month.
        gauge "weir_quota_used_units" = |object| object.used;
        /// Units that a key with a quota may use in a month.
        gauge "weir_quota_limit_units" = |object| object.units;
    }

    ZoneStatus["zone"] {
        /// Threads that judge a shared zone by the local share now, because Redis is unreachable or
        /// not connected yet; missing for zones that are not shared.
        gauge "weir_limit_redis_fallback_threads" = |object| object.fallback_threads;
        /// Keys that a zone holds.
        gauge "weir_zone_keys" = |object| object.keys;
        /// Keys that a zone can hold.
        gauge "weir_zone_max_keys" = |object| object.keys_max;
        /// Keys that a full zone has evicted for new ones.
        counter "weir_zone_evictions" = |object| object.evicted;
    }

    ChainStatus["chain"] {
        /// Height of the served head; missing while there is none.
        gauge "weir_chain_head" = |object| object.head.as_ref().map(|head| head.number as f64);
        /// Time since the served head last changed; missing while there is none.
        gauge "weir_chain_head_age_seconds" = |object| object.head_age_seconds;
        /// Height that no reorg may undo; missing while it is unknown.
        gauge "weir_chain_finalized" = |object| object.finalized.map(|number| number as f64);
        /// Reorgs of the served chain.
        counter "weir_chain_reorgs" = |object| object.reorgs;
        /// Blocks dropped by the deepest reorg since the start.
        gauge "weir_chain_reorg_depth_max_blocks" = |object| object.reorg_depth_max as f64;
    }

    GroupStatus["chain", "group"] {
        /// Upstreams of the group that may be chosen now.
        gauge "weir_group_candidates" = |object| object.candidates.len() as u64;
        /// Upstreams of the group that are healthy and not cordoned. If there are none, the least
        /// unhealthy ones that are not cordoned are called.
        gauge "weir_group_upstreams_healthy" = |object| object.upstreams_healthy;
        /// Limit of calls in flight at the upstreams of a group; missing without a limit.
        gauge "weir_group_in_flight_limit" = |object| object.in_flight_limit.map(u64::from);
    }

    UpstreamStatus["chain", "upstream"] {
        /// 1 for the state that the upstream is in, 0 for the others.
        gauge "weir_upstream_state" by "state" =
            |object| HealthState::ALL.map(|state| (state.as_str(), object.state == state));
        /// 1 while the upstream is cordoned, so that it gets no new calls.
        gauge "weir_upstream_cordoned" = |object| object.cordon.is_some();
        /// Height of the upstream's head; missing before its first poll.
        gauge "weir_upstream_head" = |object| object.head;
        /// Blocks that the upstream is behind the served head; missing before its first poll.
        gauge "weir_upstream_lag_blocks" = |object| object.lag;
        /// 1 if the upstream can serve reads at the head.
        gauge "weir_upstream_at_head" = |object| object.at_head;
        /// WebSockets or local sockets to the upstream that are open for calls.
        gauge "weir_upstream_multiplexed_connections" by "transport" = |object| {
            let transport = object.transports.first().filter(|transport| **transport != "http");
            transport.map(|transport| [(*transport, object.multiplexed_connections)])
        };
        /// Times that the upstream was ejected.
        counter "weir_upstream_ejections" = |object| object.ejections;
        /// Times that the upstream was readmitted.
        counter "weir_upstream_readmissions" = |object| object.readmissions;
    }
}
