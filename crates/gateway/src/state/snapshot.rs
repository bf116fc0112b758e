//! A snapshot: one configuration in use, and all state that depends on it.
//!
//! All threads share the snapshot. A reload creates a new [`Snapshot`], but calls in flight still
//! use the old one. The old and the new snapshot share the state that the reload does not change.
//! For example, a reload keeps the counters of a request-limit zone if the zone's name, key, memory
//! and `shared` setting are unchanged. A new rate or cost does not reset the counters.
//! `state/context.rs` has the state of a thread, and `upstream/topology.rs` has chains and
//! upstreams.

use std::ops::Deref;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};

use crate::access::caller::{HeadFields, KeyIndex};
use crate::access_log::write::RecordQueues;
use crate::cache::index::Index;
use crate::cache::memory::Cache;
use crate::cache::redis;
use crate::cache::redis::heartbeat::GatewayCount;
use crate::config::Config;
use crate::config::group::Group;
use crate::config::listen_tls::ListenTls;
use crate::io::memory;
use crate::limits::clients::Clients;
use crate::limits::{Limits, key_headers};
use crate::metrics::thread::{Counters, Labels};
use crate::policy::memory::counted_max;
use crate::policy::route::Router;
use crate::quota::Quotas;
use crate::trace;
use crate::upstream::connector::Connector;
use crate::upstream::topology::Topology;
use crate::upstream::watch::{ChainEvent, OnEvent};

#[cfg(test)]
mod tests;

/// State that all threads share under one configuration.
pub(crate) struct Snapshot {
    /// Chains, groups and upstreams.
    pub(crate) topology: Arc<Topology>,
    /// The memory tier of the cache; `None` if the cache is off.
    pub(crate) cache: Option<Arc<Cache>>,
    /// The shared state of the cache's Redis tier; `None` if the tier is off.
    pub(crate) redis: Option<Arc<redis::SharedState>>,
    /// The number of gateways that share limits and quotas.
    pub(crate) gateways: Arc<GatewayCount>,
    /// The counters of each serving thread.
    pub(crate) counters: Vec<Arc<Counters>>,
    /// The optional parts of a request's head, such as headers, that the gateway parses.
    pub(crate) head_fields: Arc<HeadFields>,
    /// Finds the API key of a request; `None` if access control is off.
    pub(crate) key_index: Option<KeyIndex>,
    /// True if read calls must be authorized by method. If false, all read calls are permitted
    /// without a check.
    pub(crate) checks_methods: bool,
    /// The queues of the access log; `None` while it is off.
    pub(crate) access_log: Option<Arc<RecordQueues>>,
    /// The queues of spans; `None` if tracing is off. A span records one step of a sampled request.
    pub(crate) spans: Option<Arc<trace::span::SpanQueues>>,
    /// The request limits; `None` if none is configured.
    pub(crate) limits: Option<Limits>,
    /// The quotas of keys; `None` if no key has a quota.
    pub(crate) quotas: Option<Quotas>,
    /// Counts the connections of each client; `None` if connections are not limited.
    pub(crate) clients: Option<Arc<Clients>>,
    /// Finds the chain of a path, and the group of a method.
    pub(crate) router: Router,
    /// The reader of the index, set before the threads start. Empty without an index. Reloads keep it.
    pub(crate) index: OnceLock<Arc<dyn Index>>,
}

/// A snapshot dereferences to its topology, which has the chains, groups and upstreams. The
/// topology also has the fields `config` (the configuration) and `process` (state that no
/// reload replaces, such as the memory budget).
impl Deref for Snapshot {
    type Target = Topology;

    fn deref(&self) -> &Topology {
        &self.topology
    }
}

impl Snapshot {
    /// Returns the snapshot of the first configuration. `connectors` holds the connector of each
    /// upstream, by index. If the list is shorter, the remaining upstreams are reached over the
    /// network.
    pub(crate) fn new(config: Config, connectors: Vec<Connector>) -> Arc<Snapshot> {
        let config = Arc::new(config);
        let labels = Labels::of(&config);
        let counters: Vec<_> =
            (0..config.server.threads).map(|_| Arc::new(Counters::new(&labels))).collect();
        let topology = Topology::new(Arc::clone(&config), &counters, connectors);
        Snapshot::build(config, topology, counters, None)
    }

    /// Returns the snapshot of a new configuration. The `at_start` keys of `[server]` stay as they
    /// are, because only a restart changes them.
    pub(crate) fn reload(&self, mut config: Config) -> Arc<Snapshot> {
        config.server.keep_at_start(&self.config.server);
        config.listen_tls = match (&self.config.listen_tls, config.listen_tls.take()) {
            (Some(previous), Some(listen_tls)) => {
                let listen_tls = Arc::unwrap_or_clone(listen_tls).with_sessions_of(previous);
                Some(Arc::new(ListenTls { address: previous.address, ..listen_tls }))
            }
            (previous, _) => previous.clone(),
        };
        let expiries = config.listen_tls.as_ref().map(|tls| tls.expiries.clone());
        config.certificate_expiries = expiries.unwrap_or_default();
        let config = Arc::new(config);
        let labels = Labels::of(&config);
        let counters = self.counters.iter().map(|thread| Arc::new(thread.after_reload(&labels)));
        let counters: Vec<_> = counters.collect();
        let topology = self.topology.reload(Arc::clone(&config), &counters);
        Snapshot::build(config, topology, counters, Some(self))
    }

    /// Builds a snapshot. `previous` is the snapshot before the reload; `None` at the start. The
    /// new snapshot takes over the state of `previous` that is still valid.
    fn build(
        config: Arc<Config>,
        topology: Arc<Topology>,
        counters: Vec<Arc<Counters>>,
        previous: Option<&Snapshot>,
    ) -> Arc<Snapshot> {
        let cache = config.cache.enabled.then(|| {
            let previous = previous.and_then(|previous| previous.cache.as_ref());
            Arc::new(match previous {
                Some(cache) => cache.with_settings(&config.cache),
                None => Cache::new(&config.cache),
            })
        });
        let responses = config.redis.as_ref().filter(|redis| redis.responses);
        let redis = responses
            .map(|_| previous.and_then(|previous| previous.redis.clone()).unwrap_or_default());
        let gateways = match previous {
            Some(previous) => {
                previous.gateways.reload(&previous.config, &config);
                Arc::clone(&previous.gateways)
            }
            None => Arc::new(GatewayCount::new(&config)),
        };
        let divisor = gateways.divisor();
        let hash_header = config.groups.iter().find_map(Group::hash_header);
        let hash_header = hash_header.map(|name| name.as_str().to_owned());
        let previous_limits =
            previous.and_then(|previous| Some((previous.limits.as_ref()?, &*previous.config)));
        let snapshot = Arc::new(Snapshot {
            cache,
            redis,
            counters,
            head_fields: Arc::new(HeadFields::new(&config, hash_header, key_headers(&config))),
            key_index: KeyIndex::new(&config),
            checks_methods: checks_methods(&config),
            access_log: build_log_queues(
                &config,
                previous.and_then(|previous| previous.access_log.clone()),
            ),
            spans: build_span_queues(&config, previous.and_then(|previous| previous.spans.clone())),
            limits: Limits::new(previous_limits, &config, divisor),
            quotas: Quotas::new(
                previous.and_then(|previous| previous.quotas.as_ref()),
                &config,
                divisor,
            ),
            gateways,
            clients: Clients::new(
                previous.and_then(|previous| previous.clients.as_ref()),
                config.downstream.connections_per_client_max,
            ),
            router: config.build_router(),
            index: previous.map(|previous| previous.index.clone()).unwrap_or_default(),
            topology,
        });
        let memory_max = config.server.memory_max.unwrap_or_else(memory::default_max);
        snapshot.process.memory.set_max(counted_max(memory_max));
        snapshot
    }

    /// Returns a callback that informs the cache tiers about events of chains.
    pub(crate) fn on_event(&self) -> OnEvent {
        let (cache, redis) = (self.cache.clone(), self.redis.clone());
        Rc::new(move |chain, event| match event {
            // The memory tier checks each hit against the current view, so it needs no event.
            ChainEvent::Reorg { fork } => {
                if let Some(redis) = &redis {
                    redis.queue_reorg_message(&chain.name, fork);
                }
            }
            ChainEvent::FinalizedFell => {
                if let Some(cache) = &cache {
                    cache.clear();
                }
                if let Some(redis) = &redis {
                    redis.invalidate(chain);
                }
            }
        })
    }
}

/// Returns the queues of the access log. A reload reuses the former queues if the log's settings
/// are unchanged.
fn build_log_queues(
    config: &Config,
    previous: Option<Arc<RecordQueues>>,
) -> Option<Arc<RecordQueues>> {
    let log = config.access_log.as_ref()?;
    let headers = &config.used_headers;
    let previous = previous.filter(|queues| queues.has_config(log, headers));
    Some(previous.unwrap_or_else(|| {
        Arc::new(RecordQueues::new(log.clone(), headers, config.server.threads))
    }))
}

/// Returns the queues of spans. A reload reuses the former queues if the settings of tracing are
/// unchanged.
fn build_span_queues(
    config: &Config,
    previous: Option<Arc<trace::span::SpanQueues>>,
) -> Option<Arc<trace::span::SpanQueues>> {
    let tracing = config.tracing.as_ref()?;
    if let Some(previous) = previous.as_ref().filter(|queues| queues.config == *tracing) {
        return Some(Arc::clone(previous));
    }
    let threads = config.server.threads;
    Some(Arc::new(trace::span::SpanQueues::new(tracing.clone(), threads, previous.as_deref())))
}

/// Returns true if the configuration may restrict the methods of calls. A configuration with token
/// issuers counts too, because a token may contain a list of methods.
fn checks_methods(config: &Config) -> bool {
    let access = &config.access;
    !access.policy.methods.is_open()
        || config.chains.iter().any(|chain| !chain.methods.is_open())
        || config.groups.iter().any(|group| !group.methods_deny.is_empty())
        || access.keys.iter().any(|key| !key.grant.methods.is_open())
        || !access.issuers.is_empty()
}
