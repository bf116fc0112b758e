//! What the gateway counts, one set per thread and added up when somebody looks.
//!
//! Each number has one writer, its thread, so that counting is a load and a store without a lock
//! on the bus. Labels come from tables of fixed size: method tables, groups, nodes, statuses.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::front::answer::Mark;

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
    pub(crate) latency: Latencies,
}

/// The statuses with which whole requests are refused; any other is counted with the last.
pub(crate) const REFUSALS: [u16; 10] = [400, 404, 405, 408, 413, 415, 417, 431, 505, 500];

/// One thread's numbers.
#[derive(Debug)]
pub(crate) struct Counters {
    /// By chain, then by [`wire::method::Family`] place; the last one is every unknown method.
    pub(crate) methods: Vec<Vec<MethodCounts>>,
    pub(crate) nodes: Vec<NodeCounts>,
    pub(crate) connections_opened: Count,
    pub(crate) connections_closed: Count,
    /// Closed at once, because the most that are allowed were open.
    pub(crate) connections_refused: Count,
    pub(crate) requests: Count,
    pub(crate) batches: Count,
    refused: [Count; REFUSALS.len()],
    pub(crate) calls_refused: Count,
    pub(crate) notifications: Count,
    pub(crate) retries: Count,
    pub(crate) hedges: Count,
    pub(crate) hedges_won: Count,
    pub(crate) fills: Count,
    pub(crate) fills_refused: Count,
    pub(crate) flights: Count,
}

impl Counters {
    /// Zeros for these chains (by number of methods) and this many nodes.
    pub(crate) fn new(methods_of_chains: &[usize], nodes: usize) -> Counters {
        let methods = methods_of_chains
            .iter()
            .map(|count| (0..=*count).map(|_| MethodCounts::default()).collect())
            .collect();
        Counters {
            methods,
            nodes: (0..nodes).map(|_| NodeCounts::default()).collect(),
            connections_opened: Count::default(),
            connections_closed: Count::default(),
            connections_refused: Count::default(),
            requests: Count::default(),
            batches: Count::default(),
            refused: Default::default(),
            calls_refused: Count::default(),
            notifications: Count::default(),
            retries: Count::default(),
            hedges: Count::default(),
            hedges_won: Count::default(),
            fills: Count::default(),
            fills_refused: Count::default(),
            flights: Count::default(),
        }
    }

    /// The counts of the method at this place of its family's table; none is an unknown one.
    pub(crate) fn method(&self, chain: usize, place: Option<usize>) -> &MethodCounts {
        let counts = &self.methods[chain];
        &counts[place.unwrap_or(counts.len() - 1)]
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

impl MethodCounts {
    /// Counts one call that was answered.
    pub(crate) fn answered(&self, mark: Mark, took: Duration) {
        self.answered[mark.index()].add(1);
        self.latency.observe(took);
    }
}

#[cfg(test)]
mod tests {
    //! Goal: every latency falls into the bucket that its bounds name.

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
}
