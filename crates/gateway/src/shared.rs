//! What the serving threads share: the configuration and snapshots that are replaced whole.
//!
//! Readers load a snapshot and never wait. The watch thread (`nodes/watch.rs`) replaces chain
//! views; health states change under a short lock, taken only when a node fails or comes back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use wire::method::{Family, family};

use crate::cache::Cache;
use crate::config::{self, Balance, Config, HashKey};
use crate::nodes::dial::Dial;
use crate::rules::choose::Order;
use crate::rules::heads::ChainView;
use crate::rules::health::{
    Fallback, HealthEvent, HealthSettings, NodeHealth, NodeState, Unsupported, usable_set,
};
use crate::rules::route::{ChainRoutes, Router};
use crate::see::counters::Counters;

/// Everything that threads share.
pub(crate) struct Shared {
    pub(crate) config: Arc<Config>,
    pub(crate) chains: Vec<ChainShared>,
    /// By node, as in the configuration.
    pub(crate) nodes: Vec<NodeShared>,
    /// By group, as in the configuration.
    pub(crate) groups: Vec<GroupShared>,
    pub(crate) cache: Option<Cache>,
    /// One per serving thread.
    pub(crate) counters: Vec<Arc<Counters>>,
    /// Lower-case name of the header that some group balances by.
    pub(crate) hash_header: Option<String>,
    pub(crate) router: Router,
    started: Instant,
}

/// One chain's present state.
pub(crate) struct ChainShared {
    pub(crate) name: Arc<str>,
    pub(crate) family: &'static Family,
    pub(crate) view: ArcSwap<ChainView>,
    pub(crate) reorgs: AtomicU64,
    pub(crate) reorg_depth_max: AtomicU64,
    /// When the served head last changed, milliseconds of [`Shared::now`].
    head_since_ms: AtomicU64,
}

/// One node's present state.
pub(crate) struct NodeShared {
    pub(crate) config: config::Node,
    /// Its place among its chain's nodes, as in [`ChainView::nodes`].
    pub(crate) place: usize,
    pub(crate) dial: Dial,
    /// Everything of a request's head but the length.
    pub(crate) request_head: Vec<u8>,
    pub(crate) health: Mutex<NodeHealth>,
    /// Told when a call failed, so that the node is polled at once.
    pub(crate) suspected: Notify,
    pub(crate) unsupported: Mutex<Unsupported>,
    /// Whether it serves another chain than it should.
    pub(crate) foreign: AtomicBool,
    pub(crate) ejections: AtomicU64,
    pub(crate) readmissions: AtomicU64,
}

/// One group's present state.
pub(crate) struct GroupShared {
    pub(crate) candidates: ArcSwap<Candidates>,
    order: Order,
}

/// Which nodes of a group may be used now.
#[derive(Debug, Clone, Default)]
pub(crate) struct Candidates {
    /// Places in the group: of the best tier that has any, or else the least bad.
    pub(crate) places: Vec<u16>,
    /// When all of them have asked for a rest: the end of the first one.
    pub(crate) rest: Option<Duration>,
}

impl Shared {
    /// The state before anything is known. `dials` by node, `Dial::Net` where it is shorter.
    pub(crate) fn new(config: Config, dials: Vec<Dial>) -> Arc<Shared> {
        let config = Arc::new(config);
        let started = Instant::now();
        let chains: Vec<ChainShared> = config.chains.iter().map(ChainShared::new).collect();
        let methods: Vec<usize> = chains.iter().map(|chain| chain.family.count()).collect();
        let mut dials = dials.into_iter();
        let nodes = config
            .nodes
            .iter()
            .enumerate()
            .map(|(index, node)| {
                let place = config.chains[node.chain].nodes.iter().position(|own| *own == index);
                let place = place.expect("a node is listed by its chain");
                NodeShared::new(&config, node, place, dials.next().unwrap_or(Dial::Net))
            })
            .collect();
        let groups = config.groups.iter().map(|group| GroupShared::new(&config, group)).collect();
        let counters = (0..config.threads)
            .map(|_| Arc::new(Counters::new(&methods, config.nodes.len())))
            .collect();
        Arc::new(Shared {
            chains,
            nodes,
            groups,
            cache: config.cache.enabled.then(|| Cache::new(&config.cache)),
            counters,
            hash_header: hash_header(&config),
            router: router(&config),
            started,
            config,
        })
    }

    /// Time since the start, the clock of all rules.
    pub(crate) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// The same for an instant that was read before.
    pub(crate) fn since_start(&self, instant: Instant) -> Duration {
        instant.saturating_duration_since(self.started)
    }

    /// Runs a node's state machine; tells and acts on what it says.
    pub(crate) fn health(
        &self,
        node: usize,
        change: impl FnOnce(&mut NodeHealth, Duration) -> Option<HealthEvent>,
    ) {
        let state = &self.nodes[node];
        let event = change(&mut state.health.lock(), self.now());
        let Some(event) = event else { return };
        let name = &*state.config.name;
        match event {
            HealthEvent::Ejected { backoff, why } => {
                state.ejections.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(node = name, ?backoff, ?why, "node is taken out");
            }
            HealthEvent::Readmitted => {
                state.readmissions.fetch_add(1, Ordering::Relaxed);
                tracing::info!(node = name, "node is taken back");
            }
            HealthEvent::Paused { until } => {
                let rest = until.saturating_sub(self.now());
                tracing::info!(node = name, ?rest, "node limits our rate; it rests");
            }
        }
        self.renew_candidates(state.config.chain);
    }

    /// Whether a node may be called, its lag included.
    pub(crate) fn node_state(&self, node: usize, view: &ChainView) -> NodeState {
        let state = &self.nodes[node];
        let health = state.health.lock().state(self.now());
        let fit = view.head.is_none() || view.nodes.get(state.place).is_some_and(|n| n.at_head);
        if health == NodeState::Healthy && !fit { NodeState::Lagging } else { health }
    }

    /// Whether a node of a chain can be called without any doubt.
    pub(crate) fn any_healthy(&self, chain: usize) -> bool {
        let view = self.chains[chain].view.load();
        let native = |node: &&usize| !self.nodes[**node].foreign.load(Ordering::Relaxed);
        let mut nodes = self.config.chains[chain].nodes.iter().filter(native);
        nodes.any(|node| self.node_state(*node, &view) == NodeState::Healthy)
    }

    /// Works out anew which nodes the groups of a chain may use: to be called when a state changes,
    /// and now and then, because rests end by themselves.
    pub(crate) fn renew_candidates(&self, chain: usize) {
        let view = self.chains[chain].view.load();
        for &group in &self.config.chains[chain].groups {
            let members = &self.config.groups[group].nodes;
            let native: Vec<u16> = (0..members.len() as u16)
                .filter(|place| {
                    !self.nodes[members[usize::from(*place)]].foreign.load(Ordering::Relaxed)
                })
                .collect();
            let state_of = |place: u16| self.node_state(members[usize::from(place)], &view);
            let states: Vec<NodeState> = native.iter().map(|place| state_of(*place)).collect();
            let healthy = |place: u16| {
                native
                    .iter()
                    .zip(&states)
                    .any(|(own, state)| *own == place && *state == NodeState::Healthy)
            };
            let group = &self.groups[group];
            let mut candidates = Vec::with_capacity(members.len());
            group.order.candidates(healthy, &mut candidates);
            let mut rest = None;
            if candidates.is_empty() {
                let fallback = usable_set(&states, &mut candidates);
                for place in &mut candidates {
                    *place = native[usize::from(*place)];
                }
                if let Fallback::Paused { until } = fallback {
                    rest = Some(until);
                }
            }
            group.candidates.store(Arc::new(Candidates { places: candidates, rest }));
        }
    }
}

impl ChainShared {
    fn new(chain: &config::Chain) -> ChainShared {
        ChainShared {
            name: Arc::clone(&chain.name),
            family: family(chain.family),
            view: ArcSwap::default(),
            reorgs: AtomicU64::new(0),
            reorg_depth_max: AtomicU64::new(0),
            head_since_ms: AtomicU64::new(0),
        }
    }

    /// Replaces the view.
    pub(crate) fn publish(&self, view: ChainView, now: Duration) {
        if view.head != self.view.load().head {
            self.head_since_ms.store(now.as_millis() as u64, Ordering::Relaxed);
        }
        self.view.store(Arc::new(view));
    }

    /// When the served head last changed.
    pub(crate) fn head_since(&self) -> Duration {
        Duration::from_millis(self.head_since_ms.load(Ordering::Relaxed))
    }
}

impl NodeShared {
    fn new(config: &Config, node: &config::Node, place: usize, dial: Dial) -> NodeShared {
        NodeShared {
            config: node.clone(),
            place,
            dial,
            request_head: request_head(node),
            suspected: Notify::new(),
            health: Mutex::new(NodeHealth::new(health_settings(&config.health))),
            unsupported: Mutex::new(Unsupported::default()),
            foreign: AtomicBool::new(false),
            ejections: AtomicU64::new(0),
            readmissions: AtomicU64::new(0),
        }
    }
}

impl GroupShared {
    fn new(config: &Config, group: &config::Group) -> GroupShared {
        let tiers: Vec<u8> =
            group.nodes.iter().map(|node| u8::from(config.nodes[*node].backup)).collect();
        let order = Order::new(&tiers);
        let mut places = Vec::new();
        order.candidates(|_| true, &mut places);
        GroupShared { candidates: ArcSwap::from_pointee(Candidates { places, rest: None }), order }
    }
}

/// Everything of a request's head up to the digits of the body's length.
fn request_head(node: &config::Node) -> Vec<u8> {
    let url = &node.url;
    let mut head = Vec::with_capacity(256);
    let mut line = |parts: &[&[u8]]| {
        for part in parts {
            head.extend_from_slice(part);
        }
        head.extend_from_slice(b"\r\n");
    };
    line(&[b"POST ", url.target().as_bytes(), b" HTTP/1.1"]);
    line(&[b"Host: ", url.authority().as_bytes()]);
    line(&[b"Content-Type: application/json"]);
    line(&[b"Accept: application/json"]);
    if let Some(authorization) = url.authorization() {
        line(&[b"Authorization: ", authorization.as_bytes()]);
    }
    for (name, value) in &node.headers {
        line(&[name.as_str().as_bytes(), b": ", value.as_bytes()]);
    }
    head.extend_from_slice(b"Content-Length: ");
    head
}

fn router(config: &Config) -> Router {
    let paths: Vec<Vec<&str>> = config
        .chains
        .iter()
        .map(|chain| chain.paths.iter().map(|path| &**path).collect())
        .collect();
    let methods: Vec<Vec<(&str, usize)>> = config
        .chains
        .iter()
        .map(|chain| {
            let named = |group: &usize| {
                let group = *group;
                config.groups[group].methods.iter().map(move |pattern| (&**pattern, group))
            };
            chain.groups.iter().flat_map(named).collect()
        })
        .collect();
    let routes: Vec<ChainRoutes<'_>> = paths
        .iter()
        .zip(&methods)
        .zip(&config.chains)
        .map(|((paths, methods), chain)| ChainRoutes {
            paths,
            methods,
            rest: chain.groups.last().copied().expect("a chain has at least one group"),
        })
        .collect();
    Router::new(&routes, config.chains.iter().position(|chain| chain.default))
        .expect("a checked configuration has no path or pattern twice")
}

fn hash_header(config: &Config) -> Option<String> {
    config.groups.iter().find_map(|group| match &group.balance {
        Balance::Hash { key: HashKey::Header(name), .. } => Some(name.as_str().to_owned()),
        _ => None,
    })
}

fn health_settings(config: &config::Health) -> HealthSettings {
    HealthSettings {
        failures_max: config.failures_max,
        window: config.window,
        window_calls_min: config.window_calls_min,
        failure_share_max: config.failure_share_max,
        backoff_min: config.backoff_min,
        backoff_max: config.backoff_max,
        pause: config.pause,
        pause_max: config.pause_max,
    }
}
