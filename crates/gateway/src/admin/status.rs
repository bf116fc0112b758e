//! The gateway's state in one value: what `/status` prints as JSON and the page draws.
//!
//! It reads snapshots and counters and changes nothing. Of a node it knows name, host and port;
//! the rest of its URL may hold a key and never comes here. All counts are since the start.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::call::cache_status::CacheStatus;
use crate::config::{self, Balance, HashKey};
use crate::limits::{KEY_BYTES, Limits};
use crate::memory::Budget;
use crate::metrics::counters::{GroupCounters, MethodCounters, UpstreamCounters};
use crate::metrics::instrument::Histogram;
use crate::metrics::label::{AttemptOutcome, LimitOutcome};
use crate::metrics::thread::{ChainLabel, Counters};
use crate::rules::heads::NodeView;
use crate::rules::health;
use crate::rules::memory::Purpose;
use crate::shared::{ChainShared, Outcome, Reloaded, Reloads, Shared};

#[cfg(test)]
pub(crate) mod tests;

/// Methods shown per chain, those with the most calls; `/metrics` has all.
const METHODS_MAX: usize = 20;

/// The whole gateway at one instant.
#[derive(Debug, Clone, Serialize)]
pub struct Status {
    /// Version of the program.
    pub version: &'static str,
    /// Time since the start.
    pub uptime_seconds: f64,
    /// Which process serves.
    pub process: ProcessStatus,
    /// Which configuration is in use, and what came of the last reload.
    pub config: ConfigStatus,
    /// In the order of the configuration.
    pub chains: Vec<ChainStatus>,
    /// The cache in memory.
    pub cache: MemoryCache,
    /// Bodies, responses and queues in memory.
    pub memory: MemoryStatus,
    /// Zones of request limits, in the order of the configuration.
    pub zones: Vec<ZoneStatus>,
    /// Sums over all chains.
    pub totals: Totals,
}

/// Bodies, responses and queues in memory.
#[derive(Debug, Clone, Serialize)]
pub struct MemoryStatus {
    /// The most bytes that they may take together.
    pub bytes_max: u64,
    /// Bytes that they take, by what they are held for.
    pub purposes: [MemoryPurpose; Purpose::ALL.len()],
    /// Client connections that were closed because too many bytes were held.
    pub connections_closed: u64,
}

/// Bytes that are held for one purpose.
#[derive(Debug, Clone, Serialize)]
pub struct MemoryPurpose {
    /// `request`, `upstream` or `response`.
    pub name: &'static str,
    /// Bytes held now.
    pub bytes: u64,
    /// How often more bytes were refused.
    pub refused: u64,
}

impl MemoryStatus {
    fn of(budget: &Budget) -> MemoryStatus {
        let held = budget.held();
        let purpose = |purpose: Purpose| MemoryPurpose {
            name: purpose.as_str(),
            bytes: held[purpose.index()] as u64,
            refused: budget.refused(purpose),
        };
        MemoryStatus {
            bytes_max: budget.max() as u64,
            purposes: Purpose::ALL.map(purpose),
            connections_closed: budget.closed(),
        }
    }
}

/// A process, apart from every other one that has or had its number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessStatus {
    /// Its number, in its own namespace.
    pub id: u32,
    /// When it was started, in clock ticks since the machine was.
    pub start_ticks: Option<u64>,
}

/// Which configuration is in use.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ConfigStatus {
    /// Counts configurations from 1, the one that the process was started with.
    pub generation: u64,
    /// Reloads that were applied.
    pub reloads_applied: u64,
    /// Reloads that were refused because the new configuration is faulty.
    pub reloads_refused: u64,
    /// The last reload; none before the first.
    pub last_reload: Option<ReloadStatus>,
    /// Attempts to hand over to another process that failed.
    pub upgrades_failed: u64,
    /// Why the last of them did.
    pub upgrade_fault: Option<String>,
}

/// One reload.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ReloadStatus {
    /// When it ended, seconds since 1970.
    pub unix_seconds: f64,
    /// Whether the new configuration is in use.
    pub applied: bool,
    /// What it changed, key by key, secrets masked.
    pub changes: Vec<String>,
    /// Why it was refused; secrets masked.
    pub why: Option<String>,
}

/// One chain.
#[derive(Debug, Clone, Serialize)]
pub struct ChainStatus {
    /// As in the configuration.
    pub name: String,
    /// Which method table applies.
    pub family: &'static str,
    /// The served head; none while no node vouches for one.
    pub head: Option<HeadStatus>,
    /// Time since the served head last changed.
    pub head_age_seconds: Option<f64>,
    /// The height that no reorg may undo.
    pub finalized: Option<u64>,
    /// Reorgs of the served chain.
    pub reorgs: u64,
    /// Blocks dropped by the deepest of them.
    pub reorg_depth_max: u64,
    /// Counts branch changes seen on any node.
    pub generation: u64,
    /// In the order of the configuration.
    pub nodes: Vec<NodeStatus>,
    /// In the order of the configuration.
    pub groups: Vec<GroupStatus>,
    /// The methods with the most calls, most first; at most 20, none without calls.
    pub methods: Vec<MethodStatus>,
}

/// A block as a head.
#[derive(Debug, Clone, Serialize)]
pub struct HeadStatus {
    /// Height.
    pub number: u64,
    /// Hash, `0x` and 64 digits.
    pub hash: String,
}

/// Whether a node may be called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeState {
    /// Yes.
    Healthy,
    /// It is behind the others, on another branch, or silent: not asked what needs the head.
    Lagging,
    /// It was out; one call decides whether it comes back.
    Probing,
    /// It asked for a rest.
    Paused,
    /// It failed, and is out for a while.
    Ejected,
    /// It serves another chain than it should, and is never called.
    Foreign,
}

impl NodeState {
    /// All states.
    pub const ALL: [NodeState; 6] = [
        NodeState::Healthy,
        NodeState::Lagging,
        NodeState::Probing,
        NodeState::Paused,
        NodeState::Ejected,
        NodeState::Foreign,
    ];

    /// The word in JSON, metrics and on the page.
    pub fn as_str(self) -> &'static str {
        match self {
            NodeState::Healthy => "healthy",
            NodeState::Lagging => "lagging",
            NodeState::Probing => "probing",
            NodeState::Paused => "paused",
            NodeState::Ejected => "ejected",
            NodeState::Foreign => "foreign",
        }
    }
}

/// One node.
#[derive(Debug, Clone, Serialize)]
pub struct NodeStatus {
    /// Its place in the configuration.
    #[serde(skip)]
    pub(crate) index: usize,
    /// As in the configuration.
    pub name: String,
    /// Host and port, parts of the host that look like a key masked; or the name of a socket's file.
    pub place: String,
    /// Whether it may be called.
    pub state: NodeState,
    /// Time until the state ends by itself: until the probe of an ejected node, until the end of a
    /// paused node's rest.
    pub state_ends_seconds: Option<f64>,
    /// Its own head; none if it was never seen.
    pub head: Option<u64>,
    /// Blocks that it is behind the served head; none if its head was never seen.
    pub lag: Option<u64>,
    /// Fit for reads at the head.
    pub at_head: bool,
    /// It holds the served chain's block at the lower of the two heads.
    pub consistent: bool,
    /// Share of calls relative to other nodes.
    pub weight: u32,
    /// Used only while no other node of the group can be used.
    pub backup: bool,
    /// Attempts under way.
    pub in_flight: u64,
    /// Attempts that ended.
    pub attempts: u64,
    /// Of those, the ones that the node failed.
    pub failed: u64,
    /// Of those, the ones that were refused because the node limits its rate.
    pub rate_limited: u64,
    /// Connections that were begun.
    pub connects: u64,
    /// How calls get there, the cheapest way first: `websocket`, `ipc`, `http2` where that is offered,
    /// or `http`.
    pub transports: Vec<&'static str>,
    /// Of the attempts, those over a WebSocket, local socket or HTTP/2.
    pub multiplexed: u64,
    /// Batches that were gathered from several calls.
    pub batches: u64,
    /// Of the attempts, those in such batches.
    pub batched: u64,
    /// WebSockets or local sockets that are open.
    pub trunks_open: u64,
    /// Of those that were open before, the ones that did not end by our will.
    pub trunks_lost: u64,
    /// How often it was taken out.
    pub ejections: u64,
    /// How often it was taken back.
    pub readmissions: u64,
    /// Median duration of attempts, from the buckets of `/metrics`.
    pub latency_p50_ms: Option<f64>,
    /// The duration that one attempt of a hundred is over.
    pub latency_p99_ms: Option<f64>,
}

/// One group.
#[derive(Debug, Clone, Serialize)]
pub struct GroupStatus {
    /// As in the configuration.
    pub name: String,
    /// How one of its nodes is chosen.
    pub balance: String,
    /// Names of the nodes that may be chosen now.
    pub candidates: Vec<String>,
    /// Calls that may be under way at its nodes; none where they are not limited.
    pub in_flight_limit: Option<u32>,
    /// Calls that are, as far as they count against the limit.
    pub in_flight: u64,
    /// Calls that wait for a place.
    pub queued: u64,
    /// Calls that were told to come back later, because there was no room for them.
    pub shed: u64,
}

/// One method of one chain.
#[derive(Debug, Clone, Serialize)]
pub struct MethodStatus {
    /// Its name; `other` for all that the chain's table does not know.
    pub name: String,
    /// Calls answered.
    pub calls: u64,
    /// Of those, answered from memory or without asking a node.
    pub hit: u64,
    /// Of those, answered by a node, with an answer that could be kept.
    pub miss: u64,
    /// Of those, answered by a call to a node that another client had begun.
    pub join: u64,
    /// Of those, answered by a node, with an answer that may not be kept.
    pub bypass: u64,
    /// Answers that are a node's JSON-RPC error.
    pub errors: u64,
    /// Calls that no node answered.
    pub failed: u64,
    /// Median time from the decoded call to its answer, from the buckets of `/metrics`.
    pub latency_p50_ms: Option<f64>,
    /// The time that one call of a hundred is over.
    pub latency_p99_ms: Option<f64>,
}

/// The cache in memory.
#[derive(Debug, Clone, Serialize)]
pub struct MemoryCache {
    /// Whether answers are kept.
    pub enabled: bool,
    /// Answers held.
    pub entries: u64,
    /// Bytes held, keys and bookkeeping included.
    pub bytes: u64,
    /// Bytes that may be held.
    pub bytes_max: u64,
    /// Calls answered from memory or without asking a node.
    pub hits: u64,
    /// Calls answered by a node, with an answer that could be kept.
    pub misses: u64,
    /// Calls answered by a call that another client had begun.
    pub joins: u64,
    /// Calls whose answer may not be kept.
    pub bypasses: u64,
    /// Hits as a share of hits, misses and joins; none before the first of them.
    pub hit_ratio: Option<f64>,
}

/// One zone of request limits.
#[derive(Debug, Clone, Serialize)]
pub struct ZoneStatus {
    /// As in the configuration.
    pub name: String,
    /// Keys that it holds.
    pub keys: u64,
    /// Keys that it can hold.
    pub keys_max: u64,
    /// Keys that were forgotten for others.
    pub evicted: u64,
    /// Whether gateways share it through Redis.
    pub shared: bool,
    /// Threads that judge it by this gateway's share now; none where it is not shared.
    #[serde(skip)]
    pub(crate) fallback_threads: Option<u64>,
    /// Calls let through at once.
    pub passed: u64,
    /// Calls that waited for their turn.
    pub delayed: u64,
    /// Calls refused.
    pub rejected: u64,
    /// Calls that would have waited, had it not been a dry run.
    pub delayed_dry_run: u64,
    /// Calls that would have been refused, had it not been a dry run.
    pub rejected_dry_run: u64,
}

/// Sums over all chains and threads.
#[derive(Debug, Clone, Serialize)]
pub struct Totals {
    /// Client connections that are open.
    pub connections_open: u64,
    /// Client connections that were accepted.
    pub connections_accepted: u64,
    /// Client connections closed at once, because the most that are allowed were open.
    pub connections_refused: u64,
    /// HTTP requests with a body that was looked at.
    pub requests: u64,
    /// Of those, batches.
    pub batches: u64,
    /// Calls answered, each of a batch by itself.
    pub calls: u64,
    /// Calls refused for their form.
    pub calls_refused: u64,
    /// Calls that asked for no answer.
    pub notifications: u64,
    /// HTTP requests refused as a whole, by status.
    pub refused: Vec<Refused>,
    /// Answers that are a node's JSON-RPC error.
    pub errors: u64,
    /// Calls that no node answered.
    pub failed: u64,
    /// Further attempts after one that failed.
    pub retries: u64,
    /// Second nodes asked before the first had answered.
    pub hedges: u64,
    /// Of those, the ones that answered first.
    pub hedges_won: u64,
    /// Attempts at nodes under way.
    pub in_flight: u64,
    /// Calls to nodes under way that equal calls may join.
    pub flights: u64,
    /// Calls that wait for their turn by a limit.
    pub waiting: u64,
}

/// HTTP requests refused with one status.
#[derive(Debug, Clone, Serialize)]
pub struct Refused {
    /// The HTTP status.
    pub status: u16,
    /// How many.
    pub requests: u64,
}

impl Status {
    /// The state now.
    pub(crate) fn of(shared: &Shared) -> Status {
        Status::with(shared, &Counters::sum(&shared.counters))
    }

    /// The state now, with counters that were added up before.
    pub(crate) fn with(shared: &Shared, counters: &Counters) -> Status {
        let chains = shared
            .chains
            .iter()
            .enumerate()
            .map(|(index, chain)| chain_status(shared, counters, index, chain))
            .collect();
        Status {
            version: env!("CARGO_PKG_VERSION"),
            uptime_seconds: seconds(shared.now()),
            process: process(),
            config: config_status(shared.lineage.reloads()),
            chains,
            cache: memory_cache(shared, counters),
            memory: MemoryStatus::of(&shared.lineage.memory),
            zones: zone_statuses(shared, counters),
            totals: totals(counters),
        }
    }

    /// Why the gateway should get no traffic, as far as the nodes go: chains without a head or
    /// without a node that may be called. Empty when all is well.
    pub(crate) fn unready(&self) -> Vec<String> {
        let mut reasons = Vec::new();
        for chain in &self.chains {
            let usable =
                |node: &NodeStatus| matches!(node.state, NodeState::Healthy | NodeState::Lagging);
            if !chain.nodes.iter().any(usable) {
                reasons.push(format!("chain {}: no node can be used", chain.name));
            }
            if chain.head.is_none() {
                reasons.push(format!("chain {}: no head was seen", chain.name));
            }
        }
        reasons
    }
}

fn zone_statuses(shared: &Shared, counters: &Counters) -> Vec<ZoneStatus> {
    let fills = shared.limits.as_ref().map(Limits::fills).unwrap_or_default();
    let zones = shared.config.zones.iter().zip(fills).zip(counters.zones.iter());
    zones
        .map(|((zone, fill), (_, own))| {
            let count = |outcome: LimitOutcome| own.calls[outcome].get();
            let fallback_threads = &counters.shared_limits.fallback_threads;
            ZoneStatus {
                name: zone.name.to_string(),
                keys: fill.keys,
                keys_max: (zone.bytes / KEY_BYTES) as u64,
                evicted: fill.evicted,
                shared: zone.shared,
                fallback_threads: zone.shared.then(|| fallback_threads.get()),
                passed: count(LimitOutcome::Passed),
                delayed: count(LimitOutcome::Delayed),
                rejected: count(LimitOutcome::Rejected),
                delayed_dry_run: count(LimitOutcome::DelayedDryRun),
                rejected_dry_run: count(LimitOutcome::RejectedDryRun),
            }
        })
        .collect()
}

/// The hash as it is written in JSON-RPC.
fn hex(hash: &[u8; 32]) -> String {
    let digits = hash.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    let digits = digits.map(|digit| char::from(b"0123456789abcdef"[usize::from(digit)]));
    "0x".chars().chain(digits).collect()
}

fn process() -> ProcessStatus {
    let id = std::process::id();
    ProcessStatus { id, start_ticks: super::process::start_ticks(id) }
}

fn config_status(reloads: Reloads) -> ConfigStatus {
    let reload = |reloaded: Reloaded| {
        let since = reloaded.at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let (applied, changes, why) = match reloaded.outcome {
            Outcome::Applied { changes } => (true, changes, None),
            Outcome::Refused { why } => (false, Vec::new(), Some(why)),
        };
        ReloadStatus { unix_seconds: seconds(since), applied, changes, why }
    };
    ConfigStatus {
        generation: reloads.generation,
        reloads_applied: reloads.applied,
        reloads_refused: reloads.refused,
        last_reload: reloads.last.map(reload),
        upgrades_failed: reloads.upgrades_failed,
        upgrade_fault: reloads.upgrade_fault,
    }
}

/// Rounded to milliseconds: more digits would only make the JSON harder to read.
fn seconds(time: Duration) -> f64 {
    time.as_millis() as f64 / 1000.0
}

/// Rounded to microseconds.
fn quantile_ms(latency: &Histogram, share: f64) -> Option<f64> {
    latency.quantile_ms(share).map(|ms| (ms * 1000.0).round() / 1000.0)
}

fn chain_status(
    shared: &Shared,
    counters: &Counters,
    index: usize,
    chain: &ChainShared,
) -> ChainStatus {
    let config = &shared.config.chains[index];
    let view = chain.view.load();
    let now = shared.now();
    ChainStatus {
        name: chain.name.to_string(),
        family: chain.family.name().as_str(),
        head: view.head.map(|head| HeadStatus { number: head.number, hash: hex(&head.hash) }),
        head_age_seconds: view.head.map(|_| seconds(now.saturating_sub(chain.head_since()))),
        finalized: view.finalized,
        reorgs: chain.reorgs.load(std::sync::atomic::Ordering::Relaxed),
        reorg_depth_max: chain.reorg_depth_max.load(std::sync::atomic::Ordering::Relaxed),
        generation: view.generation,
        nodes: config
            .nodes
            .iter()
            .map(|&node| node_status(shared, &counters.upstreams[node], node, now))
            .collect(),
        groups: config
            .groups
            .iter()
            .map(|&group| group_status(shared, &counters.groups[group], group))
            .collect(),
        methods: method_statuses(chain, &counters.methods[index]),
    }
}

fn node_status(
    shared: &Shared,
    counters: &UpstreamCounters,
    index: usize,
    now: Duration,
) -> NodeStatus {
    let node = &shared.nodes[index];
    let view = shared.chains[node.config.chain].view.load();
    let seen = node.seen(&view).unwrap_or_default();
    let relaxed = std::sync::atomic::Ordering::Relaxed;
    let (state, until) = if node.foreign.load(relaxed) {
        (NodeState::Foreign, None)
    } else {
        state_of(node.health.lock().state(now), seen)
    };
    NodeStatus {
        index,
        name: node.config.name.to_string(),
        place: node.config.url.place(),
        state,
        state_ends_seconds: until.map(|until| seconds(until.saturating_sub(now))),
        head: seen.head,
        lag: seen.head.map(|_| seen.lag),
        at_head: seen.at_head,
        consistent: seen.consistent,
        weight: node.config.weight,
        backup: node.config.backup,
        in_flight: counters.in_flight.get(),
        attempts: counters.attempts.total(),
        failed: counters.attempts[AttemptOutcome::Failed].get(),
        rate_limited: counters.attempts[AttemptOutcome::RateLimited].get(),
        connects: counters.connects.get(),
        transports: transports(&node.config),
        multiplexed: counters.multiplexed.get(),
        batches: counters.batches.get(),
        batched: counters.batched.get(),
        trunks_open: counters.multiplexed_open.get(),
        trunks_lost: counters.multiplexed_lost.get(),
        ejections: node.ejections.load(relaxed),
        readmissions: node.readmissions.load(relaxed),
        latency_p50_ms: quantile_ms(&counters.latency, 0.5),
        latency_p99_ms: quantile_ms(&counters.latency, 0.99),
    }
}

fn transports(node: &config::Node) -> Vec<&'static str> {
    let over_http = node.http().map(|(url, _)| match node.http2 {
        true => "http2",
        false => url.transport().name(),
    });
    let multiplexed = node.multiplexed().map(|(url, _)| url.transport().name());
    [multiplexed, over_http].into_iter().flatten().collect()
}

fn state_of(state: health::NodeState, seen: NodeView) -> (NodeState, Option<Duration>) {
    match state {
        health::NodeState::Healthy if seen.head.is_some() && !seen.at_head => {
            (NodeState::Lagging, None)
        }
        health::NodeState::Healthy => (NodeState::Healthy, None),
        health::NodeState::Lagging => (NodeState::Lagging, None),
        health::NodeState::Probing => (NodeState::Probing, None),
        health::NodeState::Paused { until } => (NodeState::Paused, Some(until)),
        health::NodeState::Ejected { until } => (NodeState::Ejected, Some(until)),
    }
}

fn group_status(shared: &Shared, counters: &GroupCounters, index: usize) -> GroupStatus {
    let config = &shared.config.groups[index];
    let candidates = shared.groups[index].candidates.load();
    let name = |place: &u16| {
        let node = config.nodes[usize::from(*place)];
        shared.config.nodes[node].name.to_string()
    };
    GroupStatus {
        name: config.name.to_string(),
        balance: match &config.balance {
            Balance::LeastLoaded => "least_loaded".to_owned(),
            Balance::Weighted => "weighted".to_owned(),
            Balance::Hash { key, .. } => match key {
                HashKey::Call => "hash of the call".to_owned(),
                HashKey::Client => "hash of the client".to_owned(),
                HashKey::Header(name) => format!("hash of header {name}"),
            },
        },
        candidates: candidates.places.iter().map(name).collect(),
        in_flight_limit: shared.groups[index].room.as_ref().map(|room| room.limit()),
        in_flight: counters.in_flight.get(),
        queued: counters.queued.get(),
        shed: counters.shed.iter().map(|(_, reasons)| reasons.total()).sum(),
    }
}

fn method_statuses(chain: &ChainShared, counters: &[MethodCounters]) -> Vec<MethodStatus> {
    let label = ChainLabel { name: Arc::clone(&chain.name), family: chain.family.name() };
    let mut called: Vec<_> =
        label.methods().zip(counters).filter(|(_, own)| own.calls() > 0).collect();
    called.sort_by_key(|(_, own)| std::cmp::Reverse(own.calls()));
    called.truncate(METHODS_MAX);
    let status = |(name, own): (&str, &MethodCounters)| MethodStatus {
        name: name.to_owned(),
        calls: own.calls(),
        hit: own.answered[CacheStatus::Hit].get(),
        miss: own.answered[CacheStatus::Miss].get(),
        join: own.answered[CacheStatus::Coalesced].get(),
        bypass: own.answered[CacheStatus::Bypass].get(),
        errors: own.errors.get(),
        failed: own.failed.get(),
        latency_p50_ms: quantile_ms(&own.latency, 0.5),
        latency_p99_ms: quantile_ms(&own.latency, 0.99),
    };
    called.into_iter().map(status).collect()
}

fn memory_cache(shared: &Shared, counters: &Counters) -> MemoryCache {
    let [hits, misses, joins, bypasses] = CacheStatus::ALL.map(|status| counters.answered(status));
    let judged = hits + misses + joins;
    MemoryCache {
        enabled: shared.cache.is_some(),
        entries: shared.cache.as_ref().map_or(0, |cache| cache.len() as u64),
        bytes: shared.cache.as_ref().map_or(0, |cache| cache.bytes()),
        bytes_max: shared.config.cache.bytes_max as u64,
        hits,
        misses,
        joins,
        bypasses,
        hit_ratio: (judged > 0).then(|| hits as f64 / judged as f64),
    }
}

fn totals(counters: &Counters) -> Totals {
    let refused = counters.requests_refused.iter();
    Totals {
        connections_open: counters.connections_open.get(),
        connections_accepted: counters.connections_accepted.get(),
        connections_refused: counters.connections_refused.get(),
        requests: counters.requests.get(),
        batches: counters.batches.get(),
        calls: counters.all_methods().map(MethodCounters::calls).sum(),
        calls_refused: counters.calls_refused.get(),
        notifications: counters.notifications.get(),
        refused: refused
            .map(|(status, count)| Refused { status: status.number(), requests: count.get() })
            .collect(),
        errors: counters.all_methods().map(|method| method.errors.get()).sum(),
        failed: counters.all_methods().map(|method| method.failed.get()).sum(),
        retries: counters.retries.get(),
        hedges: counters.hedges.get(),
        hedges_won: counters.hedges_won.get(),
        in_flight: counters.upstreams.iter().map(|(_, own)| own.in_flight.get()).sum(),
        flights: counters.calls_in_flight.get(),
        waiting: counters.calls_waiting.get(),
    }
}
