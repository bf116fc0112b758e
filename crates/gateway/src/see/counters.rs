//! What the gateway counts, one set per thread and added up when somebody looks.
//!
//! Each number has one writer, its thread, so that counting is a load and a store without a lock
//! on the bus. Labels come from tables of fixed size: method tables, groups, nodes, statuses.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustls::{HandshakeKind, ProtocolVersion};

use crate::front::answer::Mark;
use crate::front::arrive::ProxyRefusal;
use crate::front::tls::HandshakeFault;
use crate::limits::LimitOutcome;
use crate::rules::access::Denial;
use crate::rules::overload::{Class, Shed};

/// Upper bounds of the latency buckets, seconds: doubling from 100 µs, so that a cache hit and a
/// slow node's answer both have several buckets around them.
pub(crate) const LATENCY_BOUNDS: [f64; 18] = [
    0.0001, 0.0002, 0.0004, 0.0008, 0.0016, 0.0032, 0.0064, 0.0128, 0.0256, 0.0512, 0.1024, 0.2048,
    0.4096, 0.8192, 1.6384, 3.2768, 6.5536, 13.1072,
];

/// A number with one writer.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, more: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
    }

    /// For numbers that also fall; both calls have the same writer.
    pub(crate) fn subtract_one(&self) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_sub(1), Ordering::Relaxed);
    }

    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Latencies by bucket, with their sum.
#[derive(Debug, Default)]
pub(crate) struct Latencies {
    /// One more than the bounds: the last bucket has no upper bound.
    pub(crate) buckets: [Count; LATENCY_BOUNDS.len() + 1],
    pub(crate) sum_micros: Count,
}

impl Latencies {
    pub(crate) fn observe(&self, took: Duration) {
        let micros = took.as_micros() as u64;
        // The bounds double from 100 µs: the bucket is the number of bits of micros / 100.
        let at = (64 - (micros.saturating_sub(1) / 100).leading_zeros() as usize)
            .min(LATENCY_BOUNDS.len());
        self.buckets[at].add(1);
        self.sum_micros.add(micros);
    }
}

/// What happened to the calls of one method.
#[derive(Debug, Default)]
pub(crate) struct MethodCounts {
    /// By [`Mark`].
    pub(crate) answered: [Count; Mark::ALL.len()],
    /// Answers that are JSON-RPC errors of a node.
    pub(crate) errors: Count,
    /// Calls that got no answer of a node.
    pub(crate) failed: Count,
    /// Time from the decoded call to its answer.
    pub(crate) latency: Latencies,
}

/// What happened to the attempts at one node.
#[derive(Debug, Default)]
pub(crate) struct NodeCounts {
    pub(crate) attempts: Count,
    pub(crate) failed: Count,
    pub(crate) rate_limited: Count,
    pub(crate) in_flight: Count,
    pub(crate) connects: Count,
    /// Of the attempts, those over a connection that carries many calls.
    pub(crate) multiplexed: Count,
    /// Batches that were gathered from several calls.
    pub(crate) batches: Count,
    /// Attempts in them.
    pub(crate) batched: Count,
    /// Such connections that are open.
    pub(crate) trunks_open: Count,
    /// Such connections that the node, or something on the way, has ended.
    pub(crate) trunks_lost: Count,
    pub(crate) latency: Latencies,
}

/// What happened to the calls of one group that needed a place at a node.
#[derive(Debug, Default)]
pub(crate) struct GroupCounts {
    /// Calls that have a place.
    pub(crate) in_flight: Count,
    /// Calls that wait for one.
    pub(crate) queued: Count,
    /// By [`Class`], then by [`Shed`].
    pub(crate) shed: [[Count; Shed::ALL.len()]; Class::ALL.len()],
    /// How long those that got one had waited, by [`Class`].
    pub(crate) waited: [Latencies; Class::ALL.len()],
}

/// What happened to TLS handshakes with clients.
#[derive(Debug, Default)]
pub(crate) struct TlsCounts {
    /// By version ([`TLS_VERSIONS`]), those that took all steps and those that resumed a session.
    pub(crate) done: [[Count; 2]; TLS_VERSIONS.len()],
    /// By class ([`HandshakeFault::CLASSES`]).
    pub(crate) failed: [Count; HandshakeFault::CLASSES.len()],
}

/// The versions of TLS as metrics call them.
pub(crate) const TLS_VERSIONS: [&str; 2] = ["1.2", "1.3"];

impl TlsCounts {
    /// Counts a handshake that is done.
    pub(crate) fn shaken(&self, version: Option<ProtocolVersion>, kind: Option<HandshakeKind>) {
        let version = usize::from(version == Some(ProtocolVersion::TLSv1_3));
        let resumed = usize::from(kind == Some(HandshakeKind::Resumed));
        self.done[version][resumed].add(1);
    }

    /// Counts one that failed.
    pub(crate) fn failed(&self, fault: &HandshakeFault) {
        self.failed[fault.class()].add(1);
    }
}

/// What the index was asked by one thread.
#[derive(Debug, Default)]
pub(crate) struct IndexCounts {
    pub(crate) hits: Count,
    pub(crate) parts: Count,
    pub(crate) misses: Count,
    /// It could not be read, had too much to do, or did not answer in time.
    pub(crate) failed: Count,
}

/// What happened between one thread and Redis.
#[derive(Debug, Default)]
pub(crate) struct RedisCounts {
    /// Lookups whose value was answered with.
    pub(crate) hits: Count,
    /// Lookups that found nothing.
    pub(crate) misses: Count,
    /// Values that do not hold here.
    pub(crate) stale: Count,
    /// Values that are not what we write.
    pub(crate) refused: Count,
    pub(crate) errors: Count,
    pub(crate) timeouts: Count,
    /// Lookups that were left out while a breaker was open.
    pub(crate) skipped: Count,
    pub(crate) stores: Count,
    pub(crate) stores_failed: Count,
    /// Answers that were not stored for want of a proof, of room, or of Redis.
    pub(crate) stores_dropped: Count,
    /// Times that a breaker opened.
    pub(crate) opened: Count,
    /// Breakers that are open.
    pub(crate) open: Count,
    /// Answers that wait for their node's next poll.
    pub(crate) unproved: Count,
    /// One exchange, however many keys.
    pub(crate) latency: Latencies,
}

/// What happened to the calls of one thread in zones that gateways share.
#[derive(Debug, Default)]
pub(crate) struct SharedCounts {
    /// Calls that Redis has judged.
    pub(crate) by_redis: Count,
    /// Calls judged by this gateway's share.
    pub(crate) by_share: Count,
    /// Calls refused by what Redis had said before.
    pub(crate) from_memory: Count,
    pub(crate) errors: Count,
    pub(crate) timeouts: Count,
    /// Times that the breaker opened.
    pub(crate) opened: Count,
    /// 1 while it is open.
    pub(crate) open: Count,
    /// One exchange: the script and the way.
    pub(crate) latency: Latencies,
}

/// What happened to the calls in one zone, by [`LimitOutcome`].
pub(crate) type ZoneCounts = [Count; LimitOutcome::ALL.len()];

/// The statuses with which whole requests are refused; any other is counted with the last.
pub(crate) const REFUSALS: [u16; 13] =
    [400, 401, 403, 404, 405, 408, 413, 415, 417, 429, 431, 505, 500];

/// One thread's numbers under one configuration. What a reload keeps, the next configuration's
/// counters share, so that no number falls.
#[derive(Debug)]
pub(crate) struct Counters {
    /// By chain, then by [`wire::method::Family`] place; the last one is every unknown method.
    pub(crate) methods: Vec<Arc<[MethodCounts]>>,
    pub(crate) nodes: Vec<Arc<NodeCounts>>,
    pub(crate) groups: Vec<Arc<GroupCounts>>,
    /// Calls by [`crate::rules::access::Grant::index`].
    pub(crate) keys: Vec<Arc<Count>>,
    /// Calls that a rule fitted, by its place.
    pub(crate) rules: Vec<Arc<Count>>,
    pub(crate) zones: Vec<Arc<ZoneCounts>>,
    /// Those of what a reload has removed; see [`RETIRED_MAX`].
    pub(crate) retired: Retired,
    thread: Arc<ThreadCounts>,
}

/// What was counted for chains, nodes, zones, keys and rules that are no longer configured, by their
/// labels: one that comes back goes on counting where it stopped, and sums over all do not fall.
#[derive(Debug, Default, Clone)]
pub(crate) struct Retired {
    pub(crate) methods: Vec<(ChainLabel, Arc<[MethodCounts]>)>,
    pub(crate) nodes: Vec<(NodeLabel, Arc<NodeCounts>)>,
    groups: Vec<(NodeLabel, Arc<GroupCounts>)>,
    keys: Vec<(Arc<str>, Arc<Count>)>,
    rules: Vec<(Arc<str>, Arc<Count>)>,
    zones: Vec<(Arc<str>, Arc<ZoneCounts>)>,
}

/// Removed ones of each kind that are remembered; the first to go is the first forgotten. More would
/// mean a configuration that is generated with new names over and over.
const RETIRED_MAX: usize = 256;

/// What the series of a chain are called, and how many methods they have.
pub(crate) type ChainLabel = (Arc<str>, usize);

/// What the series of a node or group are called: its chain and its name.
pub(crate) type NodeLabel = (Arc<str>, Arc<str>);

/// The labels of everything that one configuration counts.
#[derive(Debug, Default)]
pub(crate) struct Labels {
    pub(crate) chains: Vec<ChainLabel>,
    pub(crate) nodes: Vec<NodeLabel>,
    pub(crate) groups: Vec<NodeLabel>,
    /// Of keys and issuers of tokens.
    pub(crate) keys: Vec<Arc<str>>,
    pub(crate) rules: Vec<Arc<str>>,
    /// Names.
    pub(crate) zones: Vec<Arc<str>>,
}

/// The numbers that have no label of the configuration.
#[derive(Debug, Default)]
pub(crate) struct ThreadCounts {
    pub(crate) connections_opened: Count,
    pub(crate) connections_closed: Count,
    pub(crate) websockets_opened: Count,
    pub(crate) websockets_closed: Count,
    pub(crate) subscriptions_begun: Count,
    pub(crate) subscriptions_ended: Count,
    /// What was told to subscribers.
    pub(crate) notices_sent: Count,
    /// Closed at once, because the most that are allowed were open.
    pub(crate) connections_refused: Count,
    pub(crate) tls: TlsCounts,
    /// Closed for their PROXY header, by [`ProxyRefusal`].
    pub(crate) proxy_refused: [Count; ProxyRefusal::ALL.len()],
    pub(crate) requests: Count,
    pub(crate) batches: Count,
    refused: [Count; REFUSALS.len()],
    pub(crate) calls_refused: Count,
    pub(crate) notifications: Count,
    pub(crate) retries: Count,
    pub(crate) second_opinions: Count,
    pub(crate) hedges: Count,
    pub(crate) hedges_won: Count,
    pub(crate) fills: Count,
    pub(crate) fills_refused: Count,
    pub(crate) flights: Count,
    /// Requests and calls that their sender may not make, by [`Denial`].
    pub(crate) denied: [Count; Denial::ALL.len()],
    pub(crate) log_lines: Count,
    pub(crate) log_dropped: Count,
    pub(crate) redis: RedisCounts,
    pub(crate) index: IndexCounts,
    pub(crate) shared_zones: SharedCounts,
    /// Calls that wait for their turn by a limit now.
    pub(crate) calls_waiting: Count,
}

impl Deref for Counters {
    type Target = ThreadCounts;

    fn deref(&self) -> &ThreadCounts {
        &self.thread
    }
}

impl Counters {
    /// Zeros for these labels.
    pub(crate) fn new(labels: &Labels) -> Counters {
        Counters::with(labels, Arc::default(), &Retired::default(), Retired::default())
    }

    /// Zeros for chains of so many methods and for so many nodes.
    #[cfg(test)]
    pub(crate) fn of_sizes(methods: &[usize], nodes: usize) -> Counters {
        let name = |at: usize| -> Arc<str> { at.to_string().into() };
        let chains = methods.iter().enumerate().map(|(at, count)| (name(at), *count)).collect();
        let nodes = (0..nodes).map(|at| (name(0), name(at))).collect();
        Counters::new(&Labels { chains, nodes, zones: vec![name(0); 1], ..Labels::default() })
    }

    /// The numbers for these labels after a reload: what has the same label goes on.
    pub(crate) fn after(&self, before: &Labels, labels: &Labels) -> Counters {
        let mut methods = self.retired.methods.clone();
        methods.extend(before.chains.iter().cloned().zip(self.methods.iter().cloned()));
        let mut nodes = self.retired.nodes.clone();
        nodes.extend(before.nodes.iter().cloned().zip(self.nodes.iter().cloned()));
        let mut groups = self.retired.groups.clone();
        groups.extend(before.groups.iter().cloned().zip(self.groups.iter().cloned()));
        let mut zones = self.retired.zones.clone();
        zones.extend(before.zones.iter().cloned().zip(self.zones.iter().cloned()));
        let mut keys = self.retired.keys.clone();
        keys.extend(before.keys.iter().cloned().zip(self.keys.iter().cloned()));
        let mut rules = self.retired.rules.clone();
        rules.extend(before.rules.iter().cloned().zip(self.rules.iter().cloned()));
        let retired = Retired {
            methods: gone(&methods, &labels.chains),
            nodes: gone(&nodes, &labels.nodes),
            groups: gone(&groups, &labels.groups),
            zones: gone(&zones, &labels.zones),
            keys: gone(&keys, &labels.keys),
            rules: gone(&rules, &labels.rules),
        };
        let all = Retired { methods, nodes, groups, zones, keys, rules };
        Counters::with(labels, Arc::clone(&self.thread), &all, retired)
    }

    fn with(
        labels: &Labels,
        thread: Arc<ThreadCounts>,
        before: &Retired,
        retired: Retired,
    ) -> Counters {
        let chain = |label: &ChainLabel| known(&before.methods, label);
        let node = |label: &NodeLabel| known(&before.nodes, label);
        let zeros = |label: &ChainLabel| (0..=label.1).map(|_| MethodCounts::default()).collect();
        let methods =
            labels.chains.iter().map(|label| chain(label).unwrap_or_else(|| zeros(label)));
        let nodes = labels.nodes.iter().map(|label| node(label).unwrap_or_default());
        let groups = labels.groups.iter();
        let groups = groups.map(|label| known(&before.groups, label).unwrap_or_default());
        let zones = labels.zones.iter();
        let zones = zones.map(|label| known(&before.zones, label).unwrap_or_default());
        let keys = labels.keys.iter();
        let keys = keys.map(|label| known(&before.keys, label).unwrap_or_default());
        let rules = labels.rules.iter();
        let rules = rules.map(|label| known(&before.rules, label).unwrap_or_default());
        Counters {
            methods: methods.collect(),
            nodes: nodes.collect(),
            groups: groups.collect(),
            zones: zones.collect(),
            keys: keys.collect(),
            rules: rules.collect(),
            retired,
            thread,
        }
    }

    /// The counts of the method at this place of its family's table; none is an unknown one.
    pub(crate) fn method(&self, chain: usize, place: Option<usize>) -> &MethodCounts {
        let counts = &self.methods[chain];
        &counts[place.unwrap_or(counts.len() - 1)]
    }

    /// Counts what became of a call in a zone.
    pub(crate) fn zone(&self, zone: usize, outcome: LimitOutcome) {
        self.zones[zone][outcome.index()].add(1);
    }

    pub(crate) fn connection_opened(&self) {
        self.connections_opened.add(1);
    }

    pub(crate) fn connection_closed(&self) {
        self.connections_closed.add(1);
    }

    /// Counts an HTTP request that was refused as a whole.
    pub(crate) fn refused(&self, status: u16) {
        let at = REFUSALS.iter().position(|known| *known == status);
        self.refused[at.unwrap_or(REFUSALS.len() - 1)].add(1);
    }

    /// Refused requests by status.
    pub(crate) fn refusals(&self) -> impl Iterator<Item = (u16, u64)> + '_ {
        REFUSALS.into_iter().zip(self.refused.iter().map(Count::get))
    }

    /// Counts one attempt at a node.
    pub(crate) fn attempt(&self, node: usize, took: Duration, failed: bool) {
        let counts = &self.nodes[node];
        counts.attempts.add(1);
        counts.failed.add(u64::from(failed));
        counts.latency.observe(took);
    }
}

/// The numbers of a label, if there are any.
fn known<L: PartialEq, C: ?Sized>(all: &[(L, Arc<C>)], label: &L) -> Option<Arc<C>> {
    all.iter().find(|(own, _)| own == label).map(|(_, counts)| Arc::clone(counts))
}

/// The numbers whose label is not among those that are left.
fn gone<L: PartialEq + Clone, C: ?Sized>(all: &[(L, Arc<C>)], left: &[L]) -> Vec<(L, Arc<C>)> {
    let gone: Vec<(L, Arc<C>)> =
        all.iter().filter(|(label, _)| !left.contains(label)).cloned().collect();
    gone[gone.len().saturating_sub(RETIRED_MAX)..].to_vec()
}

impl MethodCounts {
    /// Counts one call that was answered.
    pub(crate) fn answered(&self, mark: Mark, took: Duration) {
        self.answered[mark.index()].add(1);
        self.latency.observe(took);
    }
}

#[cfg(test)]
mod tests {
    //! Goal: every latency falls into the bucket that its bounds name, and no number falls when the
    //! configuration changes.

    use super::*;

    #[test]
    fn latencies_fall_into_their_buckets() {
        for (at, bound) in LATENCY_BOUNDS.iter().enumerate() {
            let latencies = Latencies::default();
            latencies.observe(Duration::from_secs_f64(*bound));
            assert_eq!(latencies.buckets[at].get(), 1, "{bound} belongs to the bucket it bounds");
            latencies.observe(Duration::from_secs_f64(*bound) + Duration::from_micros(1));
            assert_eq!(latencies.buckets[at + 1].get(), 1, "just over {bound}");
        }
        let latencies = Latencies::default();
        latencies.observe(Duration::ZERO);
        assert_eq!(latencies.buckets[0].get(), 1);
    }

    fn labels(chains: &[&str], nodes: &[(&str, &str)]) -> Labels {
        Labels {
            chains: chains.iter().map(|chain| ((*chain).into(), 2)).collect(),
            nodes: nodes.iter().map(|(chain, node)| ((*chain).into(), (*node).into())).collect(),
            zones: chains.iter().map(|name| (*name).into()).collect(),
            ..Labels::default()
        }
    }

    #[test]
    fn a_label_goes_on_counting_wherever_it_stands_and_whenever_it_comes_back() {
        let first = labels(&["a", "b"], &[("a", "one"), ("b", "two")]);
        let counters = Counters::new(&first);
        counters.requests.add(5);
        counters.methods[1][0].answered(Mark::Hit, Duration::ZERO);
        counters.nodes[0].attempts.add(3);
        counters.nodes[1].attempts.add(4);
        counters.zone(1, LimitOutcome::Passed);

        let second = labels(&["b"], &[("b", "two"), ("b", "one")]);
        let after = counters.after(&first, &second);
        assert_eq!(after.requests.get(), 5);
        assert_eq!(after.methods[0][0].answered[Mark::Hit.index()].get(), 1);
        assert_eq!(after.nodes[0].attempts.get(), 4);
        assert_eq!(after.zones[0][LimitOutcome::Passed.index()].get(), 1);
        assert_eq!(after.nodes[1].attempts.get(), 0, "a node of another chain is another node");
        // A call that began before the change ends after it.
        counters.nodes[0].attempts.add(1);

        let third = after.after(&second, &first);
        assert_eq!((third.nodes[0].attempts.get(), third.nodes[1].attempts.get()), (4, 4));
        assert!(third.retired.methods.is_empty());
        assert_eq!(third.retired.nodes.len(), 1);
    }

    #[test]
    fn what_is_remembered_of_removed_nodes_is_bounded() {
        let mut now = labels(&["a"], &[]);
        let mut counters = Counters::new(&now);
        for turn in 0..2 * RETIRED_MAX {
            let next = labels(&["a"], &[("a", &turn.to_string())]);
            counters = counters.after(&now, &next);
            now = next;
        }
        assert_eq!(counters.retired.nodes.len(), RETIRED_MAX);
    }
}
