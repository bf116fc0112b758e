//! A group's balancer on one thread, which chooses among the usable upstreams.
//!
//! `policy/choose.rs` has the algorithms. This file applies them to the configuration of a group,
//! and to the load and latency of the group's upstreams in this thread.

use std::time::Duration;

use crate::config::Config;
use crate::config::group::{Balance, Group};
use crate::policy::choose::{Ring, SmoothWeighted, pick_two};
use crate::upstream::thread::UpstreamContext;

/// If an upstream has not responded to waiting calls for this time, it is compared with all
/// candidates instead of one.
const SILENCE_MAX: Duration = Duration::from_millis(30);

/// The state of a group's balancing algorithm.
#[derive(Debug)]
pub(crate) enum Balancer {
    LeastLoaded,
    Weighted(SmoothWeighted),
    Hash(Ring),
}

impl Balancer {
    pub(crate) fn new(config: &Config, group: &Group) -> Balancer {
        let upstream = |upstream: &usize| &config.upstreams[*upstream];
        match &group.balance {
            Balance::LeastLoaded => Balancer::LeastLoaded,
            Balance::Weighted => {
                let weights: Vec<u32> =
                    group.upstreams.iter().map(|n| upstream(n).weight).collect();
                Balancer::Weighted(SmoothWeighted::new(&weights, config.health.failures_max))
            }
            Balance::Hash { load_factor, .. } => {
                let named: Vec<(&str, u32)> = group
                    .upstreams
                    .iter()
                    .map(|n| (&*upstream(n).name, upstream(n).weight))
                    .collect();
                Balancer::Hash(Ring::new(&named, *load_factor))
            }
        }
    }

    /// Chooses one of `candidates` (indices in the group) for which `fits` is true. Returns the
    /// upstream's index in the configuration. `crowded` is true while calls wait for permits.
    pub(crate) fn pick(
        &mut self,
        cx: &UpstreamContext,
        group: &Group,
        candidates: &[u16],
        balance_key: u64,
        crowded: bool,
        fits: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let upstream_at = |place: usize| group.upstreams[place];
        let is_allowed =
            |place: usize| candidates.contains(&(place as u16)) && fits(upstream_at(place));
        let loads = || -> Vec<u32> {
            group.upstreams.iter().map(|upstream| cx.upstreams[*upstream].in_flight.get()).collect()
        };
        let place = match self {
            Balancer::LeastLoaded => {
                let now = cx.now();
                let cost = |place: u16| {
                    let upstream = upstream_at(usize::from(place));
                    cx.upstreams[upstream].cost(&cx.topology.upstreams[upstream], now)
                };
                let skip = |place: u16| !fits(upstream_at(usize::from(place)));
                let picked = pick_two(cx.random(), candidates, skip, cost);
                let is_silent = |place: u16| {
                    cx.upstreams[upstream_at(usize::from(place))].silence(now) > SILENCE_MAX
                };
                let picked = if picked.is_some_and(is_silent) {
                    // Both of the compared upstreams may have stalled.
                    let fitting = candidates.iter().copied().filter(|place| !skip(*place));
                    fitting.min_by(|one, other| cost(*one).total_cmp(&cost(*other)))
                } else {
                    picked
                };
                picked.map(usize::from)
            }
            Balancer::Weighted(rotation) if crowded => rotation.pick_bounded(&loads(), is_allowed),
            Balancer::Weighted(rotation) => rotation.pick(is_allowed),
            Balancer::Hash(ring) => ring.pick(balance_key, &loads(), is_allowed),
        };
        place.map(upstream_at)
    }

    /// Reports a failed call to this upstream.
    pub(crate) fn record_failure(&mut self, group: &Group, upstream: usize) {
        if let (Balancer::Weighted(rotation), Some(place)) =
            (self, group.upstreams.iter().position(|own| *own == upstream))
        {
            rotation.failed(place);
        }
    }
}
