//! Generates the text of `/metrics`, and the page `docs/metrics.md` that lists all metrics.
//!
//! Both are generated from one list of *metric sets*. A set holds the metrics of one type of
//! object, such as an upstream. `metrics/counters.rs` declares the metrics that threads count. This
//! file declares the metrics that are read from the state of the gateway.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::status::{
    ChainStatus, GatewaysStatus, GroupStatus, HealthStatus, MemoryPurpose, QuotaStatus,
    ReloadStatus, Status, UpstreamStatus, ZoneStatus,
};
use wire::method::History;

use crate::cache::redis;
use crate::config::listen_tls::CertificateExpiry;
use crate::metrics::export::{BucketExemplars, Description, MetricSet, Metrics, append_exemplars};
use crate::metrics::thread::{Counters, Labelled};
use crate::policy::memory::Purpose;
use crate::state::snapshot::Snapshot;
use crate::trace::span::SpanCounts;

#[cfg(test)]
mod tests;

/// The content type of [`render_openmetrics`] (OpenMetrics 1.0, section "Content Type").
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The text of `docs/metrics.md`, with a placeholder for the rows of the table.
const REFERENCE: &str = include_str!("metrics.md");

/// The values of all metrics at the instant of one scrape.
#[derive(Debug)]
struct Scrape {
    status: Status,
    /// Sums over all threads.
    counters: Counters,
    /// `None` if no key has a quota.
    quotas: Option<QuotaScrape>,
    certificates: Vec<CertificateExpiry>,
    /// `None` if no request is sampled.
    spans: Option<Arc<SpanCounts>>,
    /// True if gateways share a zone of request limits.
    has_shared_limits: bool,
    /// The exemplars (ids of traces) of histogram buckets. Encoding the text fills this list, and
    /// `append_exemplars` adds the exemplars to the lines.
    exemplars: Arc<Mutex<BucketExemplars>>,
}

/// Metrics of the quotas of all keys together.
#[derive(Debug)]
struct QuotaScrape {
    /// Number of calls refused because a quota was used up.
    refused: u64,
    /// True if this gateway applies its local share, because Redis is unreachable.
    local_only: bool,
    /// Number of failed writes of the quota file.
    write_failures: u64,
}

/// Objects of one type, each with its label values.
type LabelledObjects<'s, T> = Vec<(Vec<&'s str>, &'s T)>;

/// A [`MetricSet`] without its type, so that one list can hold sets of several types.
struct AnyMetricSet {
    descriptions: Vec<Description>,
    /// Writes the samples of a scrape.
    encode: Encode,
}

type Encode = Box<dyn Fn(&Scrape, &mut DescriptorEncoder<'_>) -> fmt::Result>;

/// Lists all metrics of the gateway.
fn list_sets() -> Vec<AnyMetricSet> {
    vec![
        AnyMetricSet::new(|scrape: &Scrape| list_unlabelled(Some(scrape))),
        AnyMetricSet::new(|scrape| list_unlabelled(scrape.status.gateways.as_ref())),
        AnyMetricSet::new(|scrape| list_unlabelled(scrape.quotas.as_ref())),
        AnyMetricSet::new(|scrape| list_unlabelled(scrape.spans.as_deref())),
        AnyMetricSet::new(|scrape| {
            let certificates = scrape.certificates.iter();
            certificates.map(|expiry| (vec![&*expiry.chain_file], expiry)).collect()
        }),
        AnyMetricSet::new(|scrape| {
            let keys = scrape.status.keys.iter();
            keys.filter_map(|key| Some((vec![&*key.name], key.quota.as_ref()?))).collect()
        }),
        AnyMetricSet::new(|scrape| {
            scrape.status.zones.iter().map(|zone| (vec![&*zone.name], zone)).collect()
        }),
        AnyMetricSet::new(|scrape| {
            scrape.status.chains.iter().map(|chain| (vec![&*chain.name], chain)).collect()
        }),
        AnyMetricSet::new(|scrape| {
            list_by_chain(scrape, |chain| &chain.groups, |group| &group.name)
        }),
        AnyMetricSet::new(|scrape| {
            list_by_chain(scrape, |chain| &chain.upstreams, |upstream| &upstream.name)
        }),
        AnyMetricSet::new(|scrape| list_unlabelled(Some(&*scrape.counters))),
        AnyMetricSet::new(|scrape| {
            list_unlabelled(scrape.status.index.as_ref().map(|_| &scrape.counters.index))
        }),
        AnyMetricSet::new(|scrape| {
            list_unlabelled(scrape.status.redis.as_ref().map(|_| &scrape.counters.redis))
        }),
        AnyMetricSet::new(|scrape| {
            list_unlabelled(scrape.has_shared_limits.then_some(&scrape.counters.shared_limits))
        }),
        AnyMetricSet::new(|scrape| {
            let chains = scrape.counters.methods.iter();
            let methods = chains.flat_map(|(chain, methods)| {
                let methods = chain.methods().zip(&**methods);
                methods.map(|(name, counters)| (vec![&*chain.name, name], counters))
            });
            methods.filter(|(_, counters)| counters.calls() > 0).collect()
        }),
        AnyMetricSet::new(|scrape| list_labelled(&scrape.counters.groups)),
        AnyMetricSet::new(|scrape| list_labelled(&scrape.counters.upstreams)),
        AnyMetricSet::new(|scrape| {
            let mut keys = list_labelled(&scrape.counters.keys);
            keys.retain(|(_, counters)| counters.calls.get() > 0);
            keys
        }),
        AnyMetricSet::new(|scrape| list_labelled(&scrape.counters.rules)),
        AnyMetricSet::new(|scrape| {
            let mut zones = list_labelled(&scrape.counters.zones);
            // If the configuration has no limit, the status lists no zones. Then the counters of
            // the zones are omitted too.
            zones.truncate(scrape.status.zones.len());
            zones
        }),
    ]
}

impl AnyMetricSet {
    /// Creates the set of the metrics of `T`. `objects` returns the objects of a scrape.
    fn new<T: MetricSet + 'static>(
        objects: for<'s> fn(&'s Scrape) -> LabelledObjects<'s, T>,
    ) -> AnyMetricSet {
        let metrics = Metrics::new();
        AnyMetricSet {
            descriptions: metrics.descriptions().cloned().collect(),
            encode: Box::new(move |scrape, encoder| {
                metrics.encode(encoder, &objects(scrape), &mut scrape.exemplars.lock())
            }),
        }
    }
}

/// Returns a list with `object`. It needs no labels, because there is only one object of its type.
/// The list is empty if `object` is `None`.
fn list_unlabelled<T>(object: Option<&T>) -> LabelledObjects<'_, T> {
    object.into_iter().map(|object| (Vec::new(), object)).collect()
}

/// Returns the objects of all chains. Their labels are the names of the chain and the object.
fn list_by_chain<T>(
    scrape: &Scrape,
    list: fn(&ChainStatus) -> &Vec<T>,
    name: fn(&T) -> &String,
) -> LabelledObjects<'_, T> {
    let chains = scrape.status.chains.iter();
    let objects = chains.flat_map(|chain| {
        list(chain).iter().map(|object| (vec![&*chain.name, &**name(object)], object))
    });
    objects.collect()
}

/// Returns counters with their labels.
fn list_labelled<const N: usize, C>(
    counters: &Labelled<[Arc<str>; N], C>,
) -> LabelledObjects<'_, C> {
    let counters = counters.iter();
    let objects = counters
        .map(|(labels, counters)| (labels.iter().map(|label| &**label).collect(), &**counters));
    objects.collect()
}

/// Returns the text for `/metrics`.
pub(crate) fn render_openmetrics(snapshot: &Snapshot) -> String {
    let mut registry = Registry::default();
    let scrape = Scrape::of(snapshot);
    let exemplars = Arc::clone(&scrape.exemplars);
    registry.register_collector(Box::new(scrape));
    let mut text = String::with_capacity(64 * 1024);
    prometheus_client::encoding::text::encode(&mut text, &registry)
        .expect("writing into a string cannot fail");
    append_exemplars(&text, &exemplars.lock())
}

/// The declaration of a metric. Pages and files are generated from the declarations.
#[derive(Debug, Clone)]
pub struct Declaration {
    /// Name of the samples. The samples of a histogram have a further suffix.
    pub name: String,
    /// Type in OpenMetrics, such as `counter`.
    pub kind: String,
    /// Unit, which is the last part of the name; empty without a unit.
    pub unit: &'static str,
    /// Names of the labels.
    pub labels: Vec<&'static str>,
    /// Help text, in one sentence or more.
    pub help: &'static str,
}

/// Returns the declarations of all metrics, sorted by name.
pub fn list_declarations() -> Vec<Declaration> {
    let descriptions = list_sets().into_iter().flat_map(|set| set.descriptions);
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
pub fn render_reference() -> String {
    let row = |metric: Declaration| {
        let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
        let Declaration { name, kind, unit, help, .. } = metric;
        format!("| `{name}` | {kind} | {unit} | {} | {help} |\n", labels.join(", "))
    };
    // The rows are sorted by their text, as a test expects. Sorting by name would give another
    // order, because the backquote after a name sorts behind `_`.
    let mut rows: Vec<String> = list_declarations().into_iter().map(row).collect();
    rows.sort();
    REFERENCE.replace("{rows}", &rows.concat())
}

impl Scrape {
    fn of(snapshot: &Snapshot) -> Scrape {
        let counters = Counters::sum(&snapshot.counters);
        let status = Status::with(snapshot, &counters);
        if let Some(queues) = &snapshot.access_log {
            // Lines that could not be written count as dropped.
            counters.log_dropped.add(queues.unwritten.load(Ordering::Relaxed));
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
            spans: snapshot.spans.as_ref().map(|queues| Arc::clone(&queues.counts)),
            certificates: snapshot.config.certificate_expiries.clone(),
            has_shared_limits: redis::zones::has_shared_zones(&snapshot.config),
            exemplars: Arc::default(),
        }
    }

    /// Returns a value for each purpose of memory, with the name of the purpose.
    fn memory_purposes(
        &self,
        value: fn(&MemoryPurpose) -> u64,
    ) -> [(&'static str, u64); Purpose::ALL.len()] {
        let purposes = self.status.memory.purposes.each_ref();
        purposes.map(|purpose| (purpose.name, value(purpose)))
    }

    fn last_reload(&self) -> Option<&ReloadStatus> {
        self.status.config.last_reload.as_ref()
    }
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        list_sets().iter().try_for_each(|set| (set.encode)(self, &mut encoder))
    }
}

/// Declares metrics that are read from an object at the time of a scrape. The syntax is
/// `Type["label", …] { /// Help text. KIND "name" by "label" = closure; }`.
///
/// The labels in brackets distinguish the objects. `KIND` is a variant of [`MetricType`]. `by` adds
/// a label that distinguishes the values of one object.
macro_rules! readings {
    ($($Object:ident[$($label:literal),*] {
        $($(#[doc = $help:literal])+ $kind:ident $name:literal $(by $by:literal)? = $read:expr;)+
    })+) => { $(
        impl MetricSet for $Object {
            const LABELS: &'static [&'static str] = &[$($label),*];

            fn list(metrics: &mut Metrics<$Object>) {
                $(
                    metrics
                        .add_reading(MetricType::$kind, $name, concat!($($help),+), $read)
                        $(.add_label($by))?;
                )+
            }
        }
    )+ };
}

readings! {
    Scrape[] {
        /// Version of the running program.
        Info "weir_build" by "version" = |scrape| scrape.status.version;
        /// Time since the start.
        Gauge "weir_uptime_seconds" = |scrape| scrape.status.uptime_seconds;
        /// Number of the configuration in use; the process starts with 1.
        Gauge "weir_config_generation" = |scrape| scrape.status.config.generation;
        /// Reloads of the configuration; a refused reload leaves the old configuration in use.
        Counter "weir_reloads" by "outcome" = |scrape| {
            let config = &scrape.status.config;
            [("applied", config.reloads_applied), ("refused", config.reloads_refused)]
        };
        /// 1 if the last reload was applied, 0 if it was refused; missing before the first.
        Gauge "weir_reload_last_applied" =
            |scrape| scrape.last_reload().map(|reload| reload.applied);
        /// When the last reload ended, in seconds since 1970; missing before the first.
        Gauge "weir_reload_last_timestamp_seconds" =
            |scrape| scrape.last_reload().map(|reload| reload.unix_seconds);
        /// Bytes that requests and responses of all connections may take together.
        Gauge "weir_memory_max_bytes" = |scrape| scrape.status.memory.bytes_max;
        /// Bytes held for requests, for responses being received, and for responses not yet read by
        /// clients.
        Gauge "weir_memory_held_bytes" by "purpose" =
            |scrape| scrape.memory_purposes(|purpose| purpose.bytes);
        /// Requests and responses for which there was no memory left.
        Counter "weir_memory_refusals" by "purpose" =
            |scrape| scrape.memory_purposes(|purpose| purpose.refused);
        /// Connections of slow clients that were closed because too many bytes were held.
        Counter "weir_memory_connections_closed" = |scrape| scrape.status.memory.connections_closed;
        /// 1 if the cache is on.
        Gauge "weir_cache_enabled" = |scrape| scrape.status.cache.enabled;
        /// Responses held in memory.
        Gauge "weir_cache_entries" = |scrape| scrape.status.cache.entries;
        /// Bytes held by the cache, keys and bookkeeping included.
        Gauge "weir_cache_bytes" = |scrape| scrape.status.cache.bytes;
        /// Bytes that the cache may hold.
        Gauge "weir_cache_max_bytes" = |scrape| scrape.status.cache.bytes_max;
        /// Messages to and from other gateways about reorgs and invalidated caches.
        Counter "weir_redis_messages" by "direction" =
            |scrape| scrape.status.redis.as_ref().map(|redis| {
                [("sent", redis.messages_sent), ("received", redis.messages_received)]
            });
    }

    GatewaysStatus[] {
        /// Gateways that share limits and quotas through Redis. While Redis is down, each gateway
        /// divides shared rates and quotas by this number.
        Gauge "weir_redis_gateways" = |gateways| gateways.count;
        /// 1 if the number of gateways is configured, or counted by the last heartbeat. 0 if an
        /// earlier or the assumed number applies, because Redis is down or has just started.
        Gauge "weir_redis_gateways_current" =
            |gateways| matches!(gateways.source, "configured" | "counted");
    }

    QuotaScrape[] {
        /// Calls refused because the quota of their API key is used up.
        Counter "weir_quota_refused" = |quotas| quotas.refused;
        /// 1 while this gateway applies its local share of the remaining quotas, because Redis is
        /// unreachable.
        Gauge "weir_quota_local_only" = |quotas| quotas.local_only;
        /// Times that the file of quotas could not be written.
        Counter "weir_quota_write_failures" = |quotas| quotas.write_failures;
    }

    SpanCounts[] {
        /// Spans of sampled requests. `failed`: they could not be sent, or the collector rejected
        /// them; `dropped`: the queue was full.
        Counter "weir_trace_spans" by "outcome" = |spans| [
            ("exported", spans.exported.load(Ordering::Relaxed)),
            ("failed", spans.failed.load(Ordering::Relaxed)),
            ("dropped", spans.dropped.load(Ordering::Relaxed)),
        ];
    }

    CertificateExpiry["certificate"] {
        /// When a certificate of the gateway expires, in seconds since 1970.
        Gauge "weir_certificate_expiry_timestamp_seconds" = |expiry| {
            let since = expiry.expires.duration_since(SystemTime::UNIX_EPOCH);
            since.unwrap_or_default().as_secs_f64()
        };
    }

    QuotaStatus["key"] {
        /// Units that an API key with a quota has used this month. A call counts as one unit, or as
        /// the weight of its method.
        Gauge "weir_quota_used_units" = |quota| quota.used;
        /// Units that an API key with a quota may use in a month.
        Gauge "weir_quota_limit_units" = |quota| quota.units;
    }

    ZoneStatus["zone"] {
        /// Threads that apply the local share of a shared zone now, because Redis is unreachable or
        /// not connected yet; missing for zones that are not shared.
        Gauge "weir_limit_redis_fallback_threads" = |zone| zone.fallback_threads;
        /// Entries that a zone holds, one per value of its `key`, such as one per client address.
        Gauge "weir_zone_keys" = |zone| zone.keys;
        /// Entries that a zone can hold.
        Gauge "weir_zone_max_keys" = |zone| zone.keys_max;
        /// Entries that a full zone has evicted for new ones.
        Counter "weir_zone_evictions" = |zone| zone.evicted;
    }

    ChainStatus["chain"] {
        /// Height of the served head; missing while there is none.
        Gauge "weir_chain_head" = |chain| chain.head.as_ref().map(|head| head.number as f64);
        /// Time since the served head last changed; missing while there is none.
        Gauge "weir_chain_head_age_seconds" = |chain| chain.head_age_seconds;
        /// 1 while the head stands still although an upstream reports new blocks, else 0.
        Gauge "weir_chain_head_stalled" = |chain| u64::from(chain.head_stall.is_some());
        /// Height that no reorg may undo; missing while it is unknown.
        Gauge "weir_chain_finalized" = |chain| chain.finalized.map(|number| number as f64);
        /// Reorgs of the served chain.
        Counter "weir_chain_reorgs" = |chain| chain.reorgs;
        /// Blocks dropped by the deepest reorg since the start.
        Gauge "weir_chain_reorg_depth_max_blocks" = |chain| chain.reorg_depth_max as f64;
    }

    GroupStatus["chain", "group"] {
        /// Upstreams of the group that may be chosen now.
        Gauge "weir_group_candidates" = |group| group.candidates.len() as u64;
        /// Upstreams of the group that are healthy and not cordoned. If there are none, the least
        /// unhealthy ones that are not cordoned are called.
        Gauge "weir_group_upstreams_healthy" = |group| group.upstreams_healthy;
        /// Limit of calls in flight at the upstreams of a group; missing without a limit.
        Gauge "weir_group_in_flight_limit" = |group| group.in_flight_limit.map(u64::from);
    }

    UpstreamStatus["chain", "upstream"] {
        /// 1 for the state that the upstream is in, 0 for the others.
        Gauge "weir_upstream_state" by "state" =
            |upstream| HealthStatus::ALL.map(|state| (state.as_str(), upstream.state == state));
        /// 1 while the upstream is cordoned, so that it gets no new calls.
        Gauge "weir_upstream_cordoned" = |upstream| upstream.cordon.is_some();
        /// Height of the upstream's head; missing before its first poll.
        Gauge "weir_upstream_head" = |upstream| upstream.head;
        /// Blocks that the upstream is behind the served head; missing before its first poll.
        Gauge "weir_upstream_lag_blocks" = |upstream| upstream.lag;
        /// 1 if the upstream can serve reads at the head.
        Gauge "weir_upstream_at_head" = |upstream| upstream.at_head;
        /// Number of the newest blocks whose data the upstream has; missing if it is not known to lack
        /// data of older blocks.
        Gauge "weir_upstream_history_blocks" by "data" = |upstream| History::ALL.map(|data| {
            let mut limits = upstream.history.iter();
            let limit = limits.find(|limit| limit.data == data.as_str());
            (data.as_str(), limit.map(|limit| limit.blocks))
        });
        /// Maximum number of blocks of one call for logs, learned from the upstream's refusals; missing
        /// if it has refused none in the last hour.
        Gauge "weir_upstream_log_range_max_blocks" = |upstream| upstream.log_range_blocks_max;
        /// WebSockets or local sockets to the upstream that are open for calls.
        Gauge "weir_upstream_multiplexed_connections" by "transport" = |upstream| {
            // The first transport carries the calls. HTTP/1.1 is not multiplexed.
            let transport = upstream.transports.first().filter(|transport| **transport != "http");
            transport.map(|transport| [(*transport, upstream.multiplexed_connections)])
        };
        /// Times that the upstream was ejected.
        Counter "weir_upstream_ejections" = |upstream| upstream.ejections;
        /// Times that the upstream was readmitted.
        Counter "weir_upstream_readmissions" = |upstream| upstream.readmissions;
    }
}
