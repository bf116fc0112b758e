//! What the serving threads share: the configuration and snapshots that are replaced whole.
//!
//! Readers load a snapshot and never wait. The watch thread (`nodes/watch.rs`) replaces chain
//! views; health states change under a short lock, taken only when a node fails or comes back.
//! A reload makes a new [`Shared`] beside the old one, which calls under way still use; what both
//! have in common they share (`shared/succeed.rs`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use wire::method::{Family, family};

use crate::access_log::write::Queues;
use crate::cache::Cache;
use crate::config::group::{Balance, HashKey};
use crate::config::{self, Config};
use crate::front::caller::{Gate, Wanted};
use crate::limits::Limits;
use crate::limits::clients::Clients;
use crate::memory;
use crate::metrics::thread::{Counters, Labels};
use crate::nodes::dial::Dial;
use crate::nodes::overload::Room;
use crate::quota::Quotas;
use crate::redis;
use crate::rules::choose::Order;
use crate::rules::complete::Depth;
use crate::rules::contents::Headers;
use crate::rules::heads::{ChainView, NodeView};
use crate::rules::health::{
    Fallback, HealthEvent, HealthSettings, NodeHealth, NodeState, Unsupported, usable_set,
};
use crate::rules::route::{ChainRoutes, Router};
use crate::subscribe::Feed;

mod lineage;
mod succeed;

#[cfg(test)]
mod tests;

pub(crate) use lineage::{Lineage, Outcome, Reloaded, Reloads};

/// The number of no node; see [`NodeShared::number`].
pub(crate) const NO_NODE: u16 = u16::MAX;

/// Everything that threads share under one configuration.
pub(crate) struct Shared {
    pub(crate) config: Arc<Config>,
    pub(crate) chains: Vec<Arc<ChainShared>>,
    /// By node, as in the configuration.
    pub(crate) nodes: Vec<NodeShared>,
    /// By group, as in the configuration.
    pub(crate) groups: Vec<GroupShared>,
    pub(crate) cache: Option<Cache>,
    /// The tier of the cache in Redis, where it is on.
    pub(crate) redis: Option<Arc<redis::Common>>,
    /// One per serving thread.
    pub(crate) counters: Vec<Arc<Counters>>,
    /// What is kept of each request's head.
    pub(crate) wanted: Arc<Wanted>,
    /// Who may send requests; none where everybody may and nobody is known.
    pub(crate) gate: Option<Gate>,
    /// Whether some list of methods is not empty, so that reading calls have to be looked at.
    pub(crate) has_method_lists: bool,
    /// Where the access log is gathered; none while it is off.
    pub(crate) access_log: Option<Arc<Queues>>,
    /// None where no request limit is configured.
    pub(crate) limits: Option<Limits>,
    /// None where no key has a quota.
    pub(crate) quotas: Option<Quotas>,
    /// None where connections of one client are not limited.
    pub(crate) clients: Option<Arc<Clients>>,
    pub(crate) router: Router,
    /// What all configurations of this process have in common.
    pub(crate) lineage: Arc<Lineage>,
    /// The index of each node by its number; none for numbers of nodes that are gone.
    by_number: Vec<Option<usize>>,
}

/// One chain's present state.
pub(crate) struct ChainShared {
    pub(crate) name: Arc<str>,
    /// What stands for it in the keys of the cache: its name, or, should a name be given to another
    /// chain while this process runs, something that no chain before it had.
    pub(crate) key: Arc<str>,
    pub(crate) family: &'static Family,
    pub(crate) view: ArcSwap<ChainView>,
    /// What the headers of its newest blocks say. Locked while one response is compared with them.
    pub(crate) headers: RwLock<Headers>,
    /// Told of each new view.
    turned: watch::Sender<()>,
    /// What subscribers are told.
    pub(crate) feed: Feed,
    /// The chain id that its nodes have shown, and one; zero while none was asked.
    id: AtomicU64,
    /// What the tier in Redis knows of it.
    pub(crate) redis: redis::ChainMark,
    pub(crate) reorgs: AtomicU64,
    pub(crate) reorg_depth_max: AtomicU64,
    /// When the served head last changed, milliseconds of [`Shared::now`].
    head_since_ms: AtomicU64,
}

impl std::fmt::Debug for ChainShared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChainShared").field("name", &self.name).finish_non_exhaustive()
    }
}

/// One node's present state. What stands behind an [`Arc`] outlives a reload that does not change
/// where the node is or how it is spoken to.
pub(crate) struct NodeShared {
    pub(crate) config: config::node::Node,
    /// Its place among its chain's nodes, as in [`ChainView::nodes`]. It keeps it through reloads.
    pub(crate) place: usize,
    /// What tells it from all other nodes that have or had its place.
    pub(crate) mark: u64,
    /// What stands for it in entries of the cache, which outlive reloads.
    pub(crate) number: u16,
    pub(crate) dial: Dial,
    /// Everything of a request's head but the length.
    pub(crate) request_head: Vec<u8>,
    pub(crate) health: Arc<Mutex<NodeHealth>>,
    /// Told when a call failed or the node is suspected, so that it is polled at once.
    pub(crate) suspected: Arc<Notify>,
    pub(crate) unsupported: Arc<Mutex<Unsupported>>,
    /// How old the logs are that it has shown.
    pub(crate) logs_depth: Arc<Mutex<Depth>>,
    /// Whether it serves another chain than it should.
    pub(crate) foreign: Arc<AtomicBool>,
    pub(crate) ejections: Arc<AtomicU64>,
    pub(crate) readmissions: Arc<AtomicU64>,
    /// When its last poll began that showed it on the served chain, microseconds of [`Shared::now`].
    confirmed_micros: AtomicU64,
}

/// One group's present state.
pub(crate) struct GroupShared {
    pub(crate) candidates: ArcSwap<Candidates>,
    order: Order,
    /// How many calls may be under way at its nodes; none where they are not limited.
    pub(crate) room: Option<Arc<Room>>,
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
        let mut dials = dials.into_iter();
        let chains = config
            .chains
            .iter()
            .map(|chain| Arc::new(ChainShared::new(chain, Arc::clone(&chain.name))));
        let chains = chains.collect();
        let lineage = Lineage::new();
        let nodes = config.nodes.iter().enumerate().map(|(index, node)| {
            let place = config.chains[node.chain].nodes.iter().position(|own| *own == index);
            let place = place.expect("a node is listed by its chain");
            let dial = dials.next().unwrap_or(Dial::Net);
            NodeShared::new(&config, node, place, lineage.next_node(), number(index), dial)
        });
        let nodes = nodes.collect();
        let labels = Labels::of(&config);
        let counters =
            (0..config.server.threads).map(|_| Arc::new(Counters::new(&labels))).collect();
        let cache = config.cache.enabled.then(|| Cache::new(&config.cache));
        let answers = config.redis.as_ref().filter(|redis| redis.answers);
        let redis = answers.map(|_| Arc::default());
        let by_number = (0..config.nodes.len().min(usize::from(NO_NODE))).map(Some).collect();
        let before = None;
        Shared::build(config, chains, nodes, counters, cache, redis, lineage, by_number, before)
    }

    #[expect(clippy::too_many_arguments)] // The parts of one value, each named as its field.
    fn build(
        config: Config,
        chains: Vec<Arc<ChainShared>>,
        nodes: Vec<NodeShared>,
        counters: Vec<Arc<Counters>>,
        cache: Option<Cache>,
        redis: Option<Arc<redis::Common>>,
        lineage: Arc<Lineage>,
        by_number: Vec<Option<usize>>,
        before: Option<&Shared>,
    ) -> Arc<Shared> {
        let groups = config.groups.iter().enumerate();
        let groups = groups.map(|(index, group)| {
            let room = room(&config, index, &chains, &nodes, &counters, before);
            GroupShared::new(&config, group, room)
        });
        let groups = groups.collect();
        let shared = Arc::new(Shared {
            chains,
            nodes,
            groups,
            cache,
            redis,
            counters,
            wanted: Arc::new(Wanted::of(&config, hash_header(&config))),
            gate: Gate::of(&config),
            has_method_lists: has_method_lists(&config),
            access_log: access_log(&config, before.and_then(|before| before.access_log.clone())),
            limits: Limits::after(before.and_then(Shared::zones), &config),
            quotas: Quotas::after(before.and_then(|before| before.quotas.as_ref()), &config),
            clients: Clients::after(
                before.and_then(|before| before.clients.as_ref()),
                config.front.connections_per_client_max,
            ),
            router: router(&config),
            lineage,
            by_number,
            config: Arc::new(config),
        });
        shared
            .lineage
            .memory
            .set_max(shared.config.server.memory_max.unwrap_or_else(memory::usual_max));
        shared.lineage.joined(&shared);
        shared
    }

    /// The zones of request limits, with their configuration.
    fn zones(&self) -> Option<(&Limits, &Config)> {
        self.limits.as_ref().map(|limits| (limits, &*self.config))
    }

    /// The index of the node that has this number, if it is still configured.
    pub(crate) fn node_of_number(&self, number: u16) -> Option<usize> {
        self.by_number.get(usize::from(number)).copied().flatten()
    }

    /// The index of a chain, if it is still configured.
    pub(crate) fn place_of(&self, chain: &Arc<ChainShared>) -> Option<usize> {
        self.chains.iter().position(|own| Arc::ptr_eq(own, chain))
    }

    /// Time since the start, the clock of all rules.
    pub(crate) fn now(&self) -> Duration {
        self.lineage.started.elapsed()
    }

    /// The same for an instant that was read before.
    pub(crate) fn since_start(&self, instant: Instant) -> Duration {
        instant.saturating_duration_since(self.lineage.started)
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
                tracing::warn!(node = name, ?backoff, %why, "node is taken out");
            }
            HealthEvent::Suspected => {
                tracing::info!(node = name, "node answers no call; calls go elsewhere");
                state.suspected.notify_one();
            }
            HealthEvent::Cleared => tracing::info!(node = name, "node answers again"),
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
        if matches!(event, HealthEvent::Suspected | HealthEvent::Ejected { .. }) {
            // Calls that wait there start again elsewhere.
            self.lineage.lost_node.notify_waiters();
        }
    }

    /// Returns true if a node is out of service or suspected.
    pub(crate) fn is_lost(&self, node: usize) -> bool {
        let state = self.nodes[node].health.lock().state(self.now());
        matches!(state, NodeState::Ejected { .. } | NodeState::Probing)
    }

    /// Whether a node may be called, its lag included.
    pub(crate) fn node_state(&self, node: usize, view: &ChainView) -> NodeState {
        let state = &self.nodes[node];
        let health = state.health.lock().state(self.now());
        let fit = view.head.is_none() || state.seen(view).is_some_and(|seen| seen.at_head);
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
    /// and now and then, because rests end by themselves. It does so under every configuration that
    /// has the chain and is still in use.
    pub(crate) fn renew_candidates(&self, chain: usize) {
        let chain = &self.chains[chain];
        for shared in self.lineage.in_use() {
            let same = |own: &Arc<ChainShared>| Arc::ptr_eq(own, chain);
            if let Some(chain) = shared.chains.iter().position(same) {
                shared.renew_own_candidates(chain);
            }
        }
    }

    fn renew_own_candidates(&self, chain: usize) {
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
    fn new(chain: &config::chain::Chain, key: Arc<str>) -> ChainShared {
        ChainShared {
            name: Arc::clone(&chain.name),
            key,
            family: family(chain.family),
            view: ArcSwap::default(),
            headers: RwLock::default(),
            turned: watch::Sender::new(()),
            feed: Feed::default(),
            id: AtomicU64::new(0),
            redis: redis::ChainMark::default(),
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
        self.turned.send_replace(());
    }

    /// No node is followed any more: who waits for a new view may look whether one will come.
    pub(crate) fn end(&self) {
        self.turned.send_replace(());
    }

    /// Hears of each new view from here on.
    pub(crate) fn turned(&self) -> watch::Receiver<()> {
        self.turned.subscribe()
    }

    /// Notes the chain id that a node has shown; none where its nodes have no such thing.
    pub(crate) fn identify(&self, id: Option<u64>) {
        match id {
            Some(id) => self.id.store(id.saturating_add(1), Ordering::Release),
            None => {
                // What another node has shown stays; so the outcome does not matter.
                let _ = self.id.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed);
            }
        }
    }

    /// The chain id that a node has shown, or none where nodes have no such thing; nothing before a
    /// node was asked.
    pub(crate) fn id_shown(&self) -> Option<Option<u64>> {
        self.id_known().map(|known| known.checked_sub(1).filter(|id| *id > 0))
    }

    /// A number that differs between chains of different ids; none before a node was asked.
    pub(crate) fn id_known(&self) -> Option<u64> {
        Some(self.id.load(Ordering::Acquire)).filter(|id| *id != 0)
    }

    /// When the served head last changed.
    pub(crate) fn head_since(&self) -> Duration {
        Duration::from_millis(self.head_since_ms.load(Ordering::Relaxed))
    }
}

impl NodeShared {
    fn new(
        config: &Config,
        node: &config::node::Node,
        place: usize,
        mark: u64,
        number: u16,
        dial: Dial,
    ) -> NodeShared {
        let health = NodeHealth::new(health_settings(&config.health));
        NodeShared {
            config: node.clone(),
            place,
            mark,
            number,
            dial,
            request_head: request_head(node),
            suspected: Arc::default(),
            health: Arc::new(Mutex::new(health)),
            unsupported: Arc::default(),
            logs_depth: Arc::default(),
            foreign: Arc::default(),
            ejections: Arc::default(),
            readmissions: Arc::default(),
            confirmed_micros: AtomicU64::new(0),
        }
    }
}

impl NodeShared {
    /// What is known of it.
    pub(crate) fn seen(&self, view: &ChainView) -> Option<NodeView> {
        view.of(self.place, self.mark)
    }

    /// Notes that a poll which began then showed it on the served chain; after the view is published.
    pub(crate) fn confirm(&self, began: Duration) {
        self.confirmed_micros.store(began.as_micros() as u64, Ordering::Release);
    }

    /// When its last poll began that showed it on the served chain.
    pub(crate) fn confirmed(&self) -> Duration {
        Duration::from_micros(self.confirmed_micros.load(Ordering::Acquire))
    }
}

impl GroupShared {
    fn new(config: &Config, group: &config::group::Group, room: Option<Arc<Room>>) -> GroupShared {
        let tiers: Vec<u8> =
            group.nodes.iter().map(|node| u8::from(config.nodes[*node].backup)).collect();
        let order = Order::new(&tiers);
        let mut places = Vec::new();
        order.candidates(|_| true, &mut places);
        let candidates = ArcSwap::from_pointee(Candidates { places, rest: None });
        GroupShared { candidates, order, room }
    }
}

/// The limit of a group's calls: the one before a reload, with what it has learnt, if that leaves the
/// group and its nodes as they are.
fn room(
    config: &Config,
    index: usize,
    chains: &[Arc<ChainShared>],
    nodes: &[NodeShared],
    counters: &[Arc<Counters>],
    before: Option<&Shared>,
) -> Option<Arc<Room>> {
    let group = &config.groups[index];
    let kept = before.and_then(|before| {
        let own = &before.config.groups;
        let at = own.iter().position(|own| {
            Arc::ptr_eq(&before.chains[own.chain], &chains[group.chain]) && own.name == group.name
        })?;
        let same_node = |(own, new): (&usize, &usize)| nodes[*new].is(&before.nodes[*own]);
        let same = own[at].nodes.len() == group.nodes.len()
            && own[at].nodes.iter().zip(&group.nodes).all(same_node)
            && own[at].in_flight == group.in_flight
            && before.config.overload == config.overload;
        same.then(|| before.groups[at].room.clone()).flatten()
    });
    kept.or_else(|| Room::new(config, group, Room::threads(counters, index)))
}

/// The number of the node with this index, while numbers last.
fn number(index: usize) -> u16 {
    u16::try_from(index).unwrap_or(NO_NODE)
}

/// Everything of a request's head up to the digits of the body's length.
fn request_head(node: &config::node::Node) -> Vec<u8> {
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
    if !node.keep_alive {
        line(&[b"Connection: close"]);
    }
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

/// The queues of the access log, those before a reload if they are of the same one.
fn access_log(config: &Config, before: Option<Arc<Queues>>) -> Option<Arc<Queues>> {
    let log = config.access_log.as_ref()?;
    let kept = &config.kept_headers;
    let before = before.filter(|queues| queues.are_of(log, kept));
    Some(before.unwrap_or_else(|| Arc::new(Queues::new(log.clone(), kept, config.server.threads))))
}

fn has_method_lists(config: &Config) -> bool {
    let access = &config.access;
    !access.policy.methods.is_open()
        || config.chains.iter().any(|chain| !chain.methods.is_open())
        || config.groups.iter().any(|group| !group.methods_deny.is_empty())
        || access.keys.iter().any(|key| !key.grant.methods.is_open())
        || !access.issuers.is_empty()
}

fn hash_header(config: &Config) -> Option<String> {
    config.groups.iter().find_map(|group| match &group.balance {
        Balance::Hash { key: HashKey::Header(name), .. } => Some(name.as_str().to_owned()),
        _ => None,
    })
}

fn health_settings(config: &config::health::Health) -> HealthSettings {
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
