//! A group's balancer on one thread: which of the usable nodes is asked next.
//!
//! The algorithms are `policy/choose.rs`; this binds them to a group's configuration and to what
//! this thread knows of its nodes.

use std::time::Duration;

use crate::config::Config;
use crate::config::group::{Balance, Group};
use crate::policy::choose::{Ring, SmoothWeighted, pick_two};
use crate::upstream::thread::Upstreams;

/// A node that has answered nothing for so long is compared with all others, not with one.
const SILENT: Duration = Duration::from_millis(30);

/// The state that a group's way of balancing needs.
#[derive(Debug)]
pub(crate) enum Balancer {
    LeastLoaded,
    Weighted(SmoothWeighted),
    Hash(Ring),
}

impl Balancer {
    pub(crate) fn new(config: &Config, group: &Group) -> Balancer {
        let node = |node: &usize| &config.nodes[*node];
        match &group.balance {
            Balance::LeastLoaded => Balancer::LeastLoaded,
            Balance::Weighted => {
                let weights: Vec<u32> = group.nodes.iter().map(|n| node(n).weight).collect();
                Balancer::Weighted(SmoothWeighted::new(&weights, config.health.failures_max))
            }
            Balance::Hash { load_factor, .. } => {
                let named: Vec<(&str, u32)> =
                    group.nodes.iter().map(|n| (&*node(n).name, node(n).weight)).collect();
                Balancer::Hash(Ring::new(&named, *load_factor))
            }
        }
    }

    /// The node to ask, as an index into the configuration: one of `candidates` (places in the
    /// group) that `fits`. `crowded` is true while calls wait for places.
    pub(crate) fn pick(
        &mut self,
        upstreams: &Upstreams,
        group: &Group,
        candidates: &[u16],
        balance_key: u64,
        crowded: bool,
        fits: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let node_at = |place: usize| group.nodes[place];
        let may = |place: usize| candidates.contains(&(place as u16)) && fits(node_at(place));
        let loads = || -> Vec<u32> {
            group.nodes.iter().map(|node| upstreams.nodes[*node].in_flight.get()).collect()
        };
        let place = match self {
            Balancer::LeastLoaded => {
                let now = upstreams.now();
                let cost = |place: u16| {
                    let node = node_at(usize::from(place));
                    upstreams.nodes[node].cost(&upstreams.topology.nodes[node], now)
                };
                let skip = |place: u16| !fits(node_at(usize::from(place)));
                let picked = pick_two(upstreams.random(), candidates, skip, cost);
                let is_silent =
                    |place: u16| upstreams.nodes[node_at(usize::from(place))].silence(now) > SILENT;
                let picked = if picked.is_some_and(is_silent) {
                    // Both of the two may have stalled.
                    let fitting = candidates.iter().copied().filter(|place| !skip(*place));
                    fitting.min_by(|one, other| cost(*one).total_cmp(&cost(*other)))
                } else {
                    picked
                };
                picked.map(usize::from)
            }
            Balancer::Weighted(turns) if crowded => turns.pick_bounded(&loads(), may),
            Balancer::Weighted(turns) => turns.pick(may),
            Balancer::Hash(ring) => ring.pick(balance_key, &loads(), may),
        };
        place.map(node_at)
    }

    /// Tells the balancer that a call to this node failed.
    pub(crate) fn failed(&mut self, group: &Group, node: usize) {
        if let (Balancer::Weighted(turns), Some(place)) =
            (self, group.nodes.iter().position(|own| *own == node))
        {
            turns.failed(place);
        }
    }
}
