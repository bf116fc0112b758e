//! The counters of all threads added up.
//!
//! Numbers are read one after the other while threads go on counting, so sums of different numbers
//! may differ by the calls of that instant; each number by itself never falls. What they mean is
//! said in `counters.rs`, what is shown of them in `status.rs` and `metrics.rs`.

use std::sync::Arc;

use super::counters::{
    Count, Counters, GroupCounts, LATENCY_BOUNDS, Latencies, MethodCounts, NodeCounts, RedisCounts,
    SharedCounts, TLS_VERSIONS,
};
use crate::front::answer::Mark;
use crate::front::arrive::ProxyRefusal;
use crate::front::tls::HandshakeFault;
use crate::limits::LimitOutcome;
use crate::rules::access::Denial;
use crate::rules::overload::{Class, Shed};

#[cfg(test)]
mod tests;

/// Everything that was counted since the start.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// By chain, then by method; the last one is every unknown method.
    pub(crate) methods: Vec<Vec<MethodTally>>,
    /// By node.
    pub(crate) nodes: Vec<NodeTally>,
    /// By group.
    pub(crate) groups: Vec<GroupTally>,
    /// All methods of chains that are no longer configured, for sums over all chains.
    pub(crate) retired: MethodTally,
    pub(crate) connections_accepted: u64,
    pub(crate) connections_open: u64,
    pub(crate) connections_refused: u64,
    /// Of those that are open.
    pub(crate) websockets_open: u64,
    pub(crate) websockets_opened: u64,
    pub(crate) subscriptions_open: u64,
    pub(crate) subscriptions_begun: u64,
    pub(crate) notices_sent: u64,
    /// By version, full and resumed.
    pub(crate) tls_done: [[u64; 2]; TLS_VERSIONS.len()],
    /// By class.
    pub(crate) tls_failed: [u64; HandshakeFault::CLASSES.len()],
    /// By refusal.
    pub(crate) proxy_refused: [u64; ProxyRefusal::ALL.len()],
    pub(crate) requests: u64,
    pub(crate) batches: u64,
    /// By HTTP status.
    pub(crate) refused: Vec<(u16, u64)>,
    pub(crate) calls_refused: u64,
    pub(crate) notifications: u64,
    pub(crate) retries: u64,
    pub(crate) second_opinions: u64,
    pub(crate) hedges: u64,
    pub(crate) hedges_won: u64,
    pub(crate) fills: u64,
    pub(crate) fills_refused: u64,
    pub(crate) flights: u64,
    /// By [`Denial`].
    pub(crate) denied: [u64; Denial::ALL.len()],
    /// By [`crate::rules::access::Grant::index`].
    pub(crate) keys: Vec<u64>,
    /// By place.
    pub(crate) rules: Vec<u64>,
    pub(crate) log_lines: u64,
    pub(crate) log_dropped: u64,
    pub(crate) calls_waiting: u64,
    /// By zone, then by [`LimitOutcome`].
    pub(crate) zones: Vec<[u64; LimitOutcome::ALL.len()]>,
    pub(crate) redis: RedisTally,
    pub(crate) index: IndexTally,
    pub(crate) shared_zones: SharedTally,
}

/// What happened in zones that gateways share.
#[derive(Debug, Default)]
pub(crate) struct SharedTally {
    pub(crate) by_redis: u64,
    pub(crate) by_share: u64,
    pub(crate) from_memory: u64,
    pub(crate) errors: u64,
    pub(crate) timeouts: u64,
    pub(crate) opened: u64,
    /// Threads that judge by the share now.
    pub(crate) open: u64,
    pub(crate) latency: Spread,
}

/// What the index was asked, by what it had.
#[derive(Debug, Default)]
pub(crate) struct IndexTally {
    pub(crate) hits: u64,
    pub(crate) parts: u64,
    pub(crate) misses: u64,
    pub(crate) failed: u64,
}

/// What happened with Redis.
#[derive(Debug, Default)]
pub(crate) struct RedisTally {
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    pub(crate) stale: u64,
    pub(crate) refused: u64,
    pub(crate) errors: u64,
    pub(crate) timeouts: u64,
    pub(crate) skipped: u64,
    pub(crate) stores: u64,
    pub(crate) stores_failed: u64,
    pub(crate) stores_dropped: u64,
    pub(crate) opened: u64,
    pub(crate) open: u64,
    pub(crate) unproved: u64,
    pub(crate) latency: Spread,
}

/// What happened to the calls of one method.
#[derive(Debug, Default, Clone)]
pub(crate) struct MethodTally {
    /// By [`Mark`].
    pub(crate) answered: [u64; Mark::ALL.len()],
    pub(crate) errors: u64,
    pub(crate) failed: u64,
    pub(crate) latency: Spread,
}

/// What happened to the attempts at one node.
#[derive(Debug, Default, Clone)]
pub(crate) struct NodeTally {
    pub(crate) attempts: u64,
    pub(crate) failed: u64,
    pub(crate) rate_limited: u64,
    pub(crate) in_flight: u64,
    pub(crate) connects: u64,
    pub(crate) multiplexed: u64,
    pub(crate) batches: u64,
    pub(crate) batched: u64,
    pub(crate) trunks_open: u64,
    pub(crate) trunks_lost: u64,
    pub(crate) latency: Spread,
}

/// What happened to the calls of one group that needed a place at a node.
#[derive(Debug, Default, Clone)]
pub(crate) struct GroupTally {
    pub(crate) in_flight: u64,
    pub(crate) queued: u64,
    /// By [`Class`], then by [`Shed`].
    pub(crate) shed: [[u64; Shed::ALL.len()]; Class::ALL.len()],
    /// By [`Class`].
    pub(crate) waited: [Spread; Class::ALL.len()],
}

/// How latencies are spread over the buckets of [`LATENCY_BOUNDS`] and one beyond.
#[derive(Debug, Default, Clone)]
pub(crate) struct Spread {
    pub(crate) buckets: [u64; LATENCY_BOUNDS.len() + 1],
    pub(crate) sum_micros: u64,
}

impl Tally {
    /// Adds up these threads.
    pub(crate) fn of(threads: &[Arc<Counters>]) -> Tally {
        // Closed before opened: a connection that comes and goes in between is then counted as open,
        // and never as minus one.
        let closed: u64 = threads.iter().map(|thread| thread.connections_closed.get()).sum();
        let websockets: u64 = threads.iter().map(|thread| thread.websockets_closed.get()).sum();
        let ended: u64 = threads.iter().map(|thread| thread.subscriptions_ended.get()).sum();
        let mut tally = Tally::default();
        threads.iter().for_each(|thread| tally.add(thread));
        tally.connections_open = tally.connections_accepted.saturating_sub(closed);
        tally.websockets_open = tally.websockets_opened.saturating_sub(websockets);
        tally.subscriptions_open = tally.subscriptions_begun.saturating_sub(ended);
        tally
    }

    /// Calls answered with this mark, over all chains and methods.
    pub(crate) fn answered(&self, mark: Mark) -> u64 {
        self.all_methods().map(|method| method.answered[mark.index()]).sum()
    }

    /// Calls answered, over all chains and methods.
    pub(crate) fn calls(&self) -> u64 {
        self.all_methods().map(MethodTally::calls).sum()
    }

    /// Every method, those of chains that are no longer configured as one.
    pub(crate) fn all_methods(&self) -> impl Iterator<Item = &MethodTally> {
        self.methods.iter().flatten().chain(std::iter::once(&self.retired))
    }

    fn add(&mut self, thread: &Counters) {
        self.methods.resize_with(thread.methods.len(), Vec::new);
        for (sums, counts) in self.methods.iter_mut().zip(&thread.methods) {
            sums.resize_with(counts.len(), MethodTally::default);
            sums.iter_mut().zip(&**counts).for_each(|(sum, counts)| sum.add(counts));
        }
        for (_, counts) in &thread.retired.methods {
            counts.iter().for_each(|counts| self.retired.add(counts));
        }
        self.nodes.resize_with(thread.nodes.len(), NodeTally::default);
        self.nodes.iter_mut().zip(&thread.nodes).for_each(|(sum, counts)| sum.add(counts));
        self.groups.resize_with(thread.groups.len(), GroupTally::default);
        self.groups.iter_mut().zip(&thread.groups).for_each(|(sum, counts)| sum.add(counts));
        self.refused.resize(thread.refusals().count(), (0, 0));
        for (sum, (status, count)) in self.refused.iter_mut().zip(thread.refusals()) {
            *sum = (status, sum.1 + count);
        }
        let done = self.tls_done.iter_mut().flatten().zip(thread.tls.done.iter().flatten());
        let failed = self.tls_failed.iter_mut().zip(&thread.tls.failed);
        let refused = self.proxy_refused.iter_mut().zip(&thread.proxy_refused);
        done.chain(failed).chain(refused).for_each(|(sum, count)| *sum += count.get());
        for (sum, count) in self.denied.iter_mut().zip(&thread.denied) {
            *sum += count.get();
        }
        let lists = [(&mut self.keys, &thread.keys), (&mut self.rules, &thread.rules)];
        for (sums, counts) in lists {
            sums.resize(counts.len(), 0);
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count.get());
        }
        self.zones.resize(thread.zones.len(), Default::default());
        for (sums, counts) in self.zones.iter_mut().zip(&thread.zones) {
            sums.iter_mut().zip(counts.iter()).for_each(|(sum, count)| *sum += count.get());
        }
        let sums: [(&mut u64, &Count); 19] = [
            (&mut self.connections_accepted, &thread.connections_opened),
            (&mut self.connections_refused, &thread.connections_refused),
            (&mut self.websockets_opened, &thread.websockets_opened),
            (&mut self.subscriptions_begun, &thread.subscriptions_begun),
            (&mut self.notices_sent, &thread.notices_sent),
            (&mut self.requests, &thread.requests),
            (&mut self.batches, &thread.batches),
            (&mut self.calls_refused, &thread.calls_refused),
            (&mut self.notifications, &thread.notifications),
            (&mut self.retries, &thread.retries),
            (&mut self.second_opinions, &thread.second_opinions),
            (&mut self.hedges, &thread.hedges),
            (&mut self.hedges_won, &thread.hedges_won),
            (&mut self.fills, &thread.fills),
            (&mut self.fills_refused, &thread.fills_refused),
            (&mut self.flights, &thread.flights),
            (&mut self.log_lines, &thread.log_lines),
            (&mut self.log_dropped, &thread.log_dropped),
            (&mut self.calls_waiting, &thread.calls_waiting),
        ];
        for (sum, count) in sums {
            *sum += count.get();
        }
        self.redis.add(&thread.redis);
        let (index, counts) = (&mut self.index, &thread.index);
        let sums: [(&mut u64, &Count); 4] = [
            (&mut index.hits, &counts.hits),
            (&mut index.parts, &counts.parts),
            (&mut index.misses, &counts.misses),
            (&mut index.failed, &counts.failed),
        ];
        for (sum, count) in sums {
            *sum += count.get();
        }
        self.shared_zones.add(&thread.shared_zones);
    }
}

impl SharedTally {
    fn add(&mut self, counts: &SharedCounts) {
        let sums: [(&mut u64, &Count); 7] = [
            (&mut self.by_redis, &counts.by_redis),
            (&mut self.by_share, &counts.by_share),
            (&mut self.from_memory, &counts.from_memory),
            (&mut self.errors, &counts.errors),
            (&mut self.timeouts, &counts.timeouts),
            (&mut self.opened, &counts.opened),
            (&mut self.open, &counts.open),
        ];
        for (sum, count) in sums {
            *sum += count.get();
        }
        self.latency.add(&counts.latency);
    }
}

impl RedisTally {
    fn add(&mut self, counts: &RedisCounts) {
        let sums: [(&mut u64, &Count); 13] = [
            (&mut self.hits, &counts.hits),
            (&mut self.misses, &counts.misses),
            (&mut self.stale, &counts.stale),
            (&mut self.refused, &counts.refused),
            (&mut self.errors, &counts.errors),
            (&mut self.timeouts, &counts.timeouts),
            (&mut self.skipped, &counts.skipped),
            (&mut self.stores, &counts.stores),
            (&mut self.stores_failed, &counts.stores_failed),
            (&mut self.stores_dropped, &counts.stores_dropped),
            (&mut self.opened, &counts.opened),
            (&mut self.open, &counts.open),
            (&mut self.unproved, &counts.unproved),
        ];
        for (sum, count) in sums {
            *sum += count.get();
        }
        self.latency.add(&counts.latency);
    }
}

impl MethodTally {
    /// Calls answered, whatever with.
    pub(crate) fn calls(&self) -> u64 {
        self.answered.iter().sum()
    }

    fn add(&mut self, counts: &MethodCounts) {
        for (sum, count) in self.answered.iter_mut().zip(&counts.answered) {
            *sum += count.get();
        }
        self.errors += counts.errors.get();
        self.failed += counts.failed.get();
        self.latency.add(&counts.latency);
    }
}

impl NodeTally {
    fn add(&mut self, counts: &NodeCounts) {
        self.attempts += counts.attempts.get();
        self.failed += counts.failed.get();
        self.rate_limited += counts.rate_limited.get();
        self.in_flight += counts.in_flight.get();
        self.connects += counts.connects.get();
        self.multiplexed += counts.multiplexed.get();
        self.batches += counts.batches.get();
        self.batched += counts.batched.get();
        self.trunks_open += counts.trunks_open.get();
        self.trunks_lost += counts.trunks_lost.get();
        self.latency.add(&counts.latency);
    }
}

impl GroupTally {
    fn add(&mut self, counts: &GroupCounts) {
        self.in_flight += counts.in_flight.get();
        self.queued += counts.queued.get();
        let shed = self.shed.iter_mut().flatten().zip(counts.shed.iter().flatten());
        shed.for_each(|(sum, count)| *sum += count.get());
        self.waited.iter_mut().zip(&counts.waited).for_each(|(sum, waited)| sum.add(waited));
    }
}

impl Spread {
    /// How many latencies there are.
    pub(crate) fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// The latency below which this share (0 to 1) lies, in milliseconds, taken as evenly spread
    /// within its bucket, as Prometheus' `histogram_quantile` does. None without latencies; the
    /// last bound where it lies beyond it.
    pub(crate) fn quantile_ms(&self, share: f64) -> Option<f64> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        let rank = share * count as f64;
        let mut below = 0u64;
        let mut lower = 0.0;
        for (bucket, upper) in self.buckets.iter().zip(LATENCY_BOUNDS) {
            if *bucket > 0 && (below + bucket) as f64 >= rank {
                let within = (rank - below as f64) / *bucket as f64;
                return Some((lower + (upper - lower) * within) * 1000.0);
            }
            below += bucket;
            lower = upper;
        }
        Some(lower * 1000.0)
    }

    fn add(&mut self, latencies: &Latencies) {
        for (sum, bucket) in self.buckets.iter_mut().zip(&latencies.buckets) {
            *sum += bucket.get();
        }
        self.sum_micros += latencies.sum_micros.get();
    }
}
