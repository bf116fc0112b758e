//! A group's balancer on one thread. The balancer chooses among the usable upstreams.
//!
//! `policy/choose.rs` has the algorithms. This file applies them to the configuration of a group,
//! and to the load and latency of the group's upstreams in this thread.

use std::rc::Rc;
use std::time::Duration;

use crate::config::Config;
use crate::config::group::{Balance, Group};
use crate::policy::choose::{Ring, SmoothWeighted, pick_two};
use crate::upstream::local::LocalUpstream;
use crate::upstream::resources::ThreadResources;
use crate::upstream::state::UpstreamState;

/// The balancer usually compares two candidates. If the better one has calls in flight but has sent
/// no response for longer than this, the balancer compares all candidates.
const SILENCE_MAX: Duration = Duration::from_millis(30);

/// The state of a group's balancing algorithm.
#[derive(Debug)]
pub(crate) enum Balancer {
    /// Takes the cheaper of two random upstreams, by latency and calls in flight.
    LeastLoaded,
    /// Takes turns in proportion to the configured weights.
    Weighted(SmoothWeighted),
    /// Takes the upstream that consistent hashing selects for the balance key.
    Hash(Ring),
}

/// The upstreams of the configuration, with their load in one thread.
#[derive(Clone, Copy)]
pub(super) struct UpstreamLoads<'a> {
    pub(super) thread: &'a ThreadResources,
    /// The state that all threads share, in the order of the configuration.
    pub(super) shared: &'a [UpstreamState],
    /// The state in this thread, in the order of the configuration.
    pub(super) local: &'a [Rc<LocalUpstream>],
}

impl UpstreamLoads<'_> {
    /// Returns the cost of one more call to an upstream; the balancer prefers a low cost.
    fn cost(&self, upstream: usize, now: Duration) -> f64 {
        self.local[upstream].cost(&self.shared[upstream], now)
    }
}

impl Balancer {
    pub(crate) fn new(config: &Config, group: &Group) -> Balancer {
        let upstreams = group.upstreams.iter().map(|upstream| &config.upstreams[*upstream]);
        match &group.balance {
            Balance::LeastLoaded => Balancer::LeastLoaded,
            Balance::Weighted => {
                let weights: Vec<u32> = upstreams.map(|upstream| upstream.weight).collect();
                Balancer::Weighted(SmoothWeighted::new(&weights, config.health.failures_max))
            }
            Balance::Hash { load_factor, .. } => {
                let weighted_names = upstreams.map(|upstream| (&*upstream.name, upstream.weight));
                let weighted_names: Vec<(&str, u32)> = weighted_names.collect();
                Balancer::Hash(Ring::new(&weighted_names, *load_factor))
            }
        }
    }

    /// Chooses among `candidates` an upstream for which `is_eligible` is true. `candidates` are
    /// indices in the group. Returns the upstream's index in the configuration; `None` if no
    /// candidate is eligible. `is_crowded` is true while calls wait for permits, and shortly after.
    /// `balance_key` is the key for consistent hashing; 0 if the group does not hash.
    pub(super) fn pick(
        &mut self,
        loads: UpstreamLoads<'_>,
        group: &Group,
        candidates: &[u16],
        balance_key: u64,
        is_crowded: bool,
        is_eligible: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let upstream_at = |group_index: usize| group.upstreams[group_index];
        let is_allowed = |group_index: usize| {
            candidates.contains(&(group_index as u16)) && is_eligible(upstream_at(group_index))
        };
        let calls_in_flight = || -> Vec<u32> {
            group.upstreams.iter().map(|upstream| loads.local[*upstream].in_flight.get()).collect()
        };
        let group_index = match self {
            Balancer::LeastLoaded => {
                let now = loads.thread.clock.now();
                let cost =
                    |group_index: u16| loads.cost(upstream_at(usize::from(group_index)), now);
                let is_skipped =
                    |group_index: u16| !is_eligible(upstream_at(usize::from(group_index)));
                let picked = pick_two(loads.thread.random.next(), candidates, is_skipped, cost);
                let is_silent = |group_index: u16| {
                    loads.local[upstream_at(usize::from(group_index))].silence(now) > SILENCE_MAX
                };
                let picked = if picked.is_some_and(is_silent) {
                    // Both of the compared upstreams may have stalled.
                    let eligible =
                        candidates.iter().copied().filter(|group_index| !is_skipped(*group_index));
                    eligible.min_by(|first, second| cost(*first).total_cmp(&cost(*second)))
                } else {
                    picked
                };
                picked.map(usize::from)
            }
            // While calls wait for permits, a slow upstream must not hold all permits. So each
            // upstream gets at most its share of the calls in flight.
            Balancer::Weighted(rotation) if is_crowded => {
                rotation.pick_bounded(&calls_in_flight(), is_allowed)
            }
            Balancer::Weighted(rotation) => rotation.pick(is_allowed),
            Balancer::Hash(ring) => ring.pick(balance_key, &calls_in_flight(), is_allowed),
        };
        group_index.map(upstream_at)
    }

    /// Records a failed call to an upstream. Only the weighted rotation uses this record.
    pub(crate) fn record_failure(&mut self, group: &Group, upstream: usize) {
        if let (Balancer::Weighted(rotation), Some(group_index)) =
            (self, group.upstreams.iter().position(|member| *member == upstream))
        {
            rotation.record_failure(group_index);
        }
    }
}
