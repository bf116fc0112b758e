//! Builds the topology of a new configuration from the previous one.
//!
//! A chain with the same name, family and id keeps its view, its heads and its cache entries. An
//! upstream with the same chain, name, URL, headers and TLS settings keeps its health. Counters
//! depend only on the upstream's name, so that no counter falls. `thread.rs` keeps the connections
//! of a thread, and `watch.rs` keeps the heads of upstreams.

use std::collections::HashSet;
use std::sync::Arc;

use crate::config;
use crate::config::Config;
use crate::metrics::thread::Counters;
use crate::upstream::chain::ChainState;
use crate::upstream::connector::Connector;
use crate::upstream::overload::ConcurrencyLimit;
use crate::upstream::state::UpstreamState;
use crate::upstream::topology::{GroupState, NO_UPSTREAM, Topology};

impl Topology {
    /// Returns the topology under a new configuration.
    pub(crate) fn reload(&self, config: Arc<Config>, counters: &[Arc<Counters>]) -> Arc<Topology> {
        let chains: Vec<_> = config.chains.iter().map(|chain| self.chain_for(chain)).collect();
        let mut by_number = vec![None; self.by_number.len()];
        let mut view_indices = ViewIndices::default();
        for (index, upstream) in config.upstreams.iter().enumerate() {
            if let Some(previous) = self.find_upstream(&config, upstream)
                && self.is_same(&chains, upstream, previous)
            {
                view_indices.keep(index, upstream.chain, previous.view_index);
            }
        }
        // Calls in flight still look up removed upstreams at their old indices in views.
        for upstream in &self.upstreams {
            let same =
                |known: &Arc<ChainState>| Arc::ptr_eq(known, &self.chains[upstream.config.chain]);
            if let Some(chain) = chains.iter().position(same) {
                view_indices.taken.insert((chain, upstream.view_index));
            }
        }
        let upstreams = config.upstreams.iter().enumerate().map(|(index, upstream)| {
            let view_index = view_indices.get_or_assign(index, upstream.chain);
            let previous = self.find_upstream(&config, upstream);
            let number =
                previous.map_or_else(|| next_number(&mut by_number), |upstream| upstream.number);
            if let Some(slot) = by_number.get_mut(usize::from(number)) {
                *slot = Some(index);
            }
            let instance_id = self.registry.next_upstream();
            let mut state = UpstreamState::new(
                &config,
                upstream,
                view_index,
                instance_id,
                number,
                Connector::Network,
            );
            if let Some(previous) = previous {
                state.inherit(previous, self.is_same(&chains, upstream, previous), &config);
            }
            state
        });
        let upstreams: Vec<_> = upstreams.collect();
        let groups = config.groups.iter().enumerate().map(|(index, group)| {
            let concurrency_limit =
                self.concurrency_limit(&config, index, &chains, &upstreams, counters);
            GroupState::new(&config, group, concurrency_limit)
        });
        let groups = groups.collect();
        let registry = Arc::clone(&self.registry);
        let topology =
            Topology { config, chains, upstreams, groups, registry, by_number }.register();
        (0..topology.chains.len()).for_each(|chain| topology.renew_own_candidates(chain));
        topology
    }

    fn chain_for(&self, chain: &config::chain::Chain) -> Arc<ChainState> {
        let previous = self.config.chains.iter().position(|known| known.name == chain.name);
        match previous {
            Some(previous) if is_same_chain(&self.config.chains[previous], chain) => {
                Arc::clone(&self.chains[previous])
            }
            // A former chain of this name may have left entries in the cache, so the chain gets
            // another key.
            _ => {
                let key = format!("{}#{}", chain.name, self.registry.next_chain());
                Arc::new(ChainState::new(chain, key.into()))
            }
        }
    }

    /// Returns the upstream with the same name on the same chain.
    fn find_upstream(
        &self,
        config: &Config,
        upstream: &config::upstream::Upstream,
    ) -> Option<&UpstreamState> {
        let chain = &config.chains[upstream.chain].name;
        self.upstreams.iter().find(|known| {
            known.config.name == upstream.name
                && self.config.chains[known.config.chain].name == *chain
        })
    }

    /// Returns true if the upstream has the same chain, address and protocol as before.
    fn is_same(
        &self,
        chains: &[Arc<ChainState>],
        upstream: &config::upstream::Upstream,
        previous: &UpstreamState,
    ) -> bool {
        Arc::ptr_eq(&chains[upstream.chain], &self.chains[previous.config.chain])
            && upstream.has_same_target(&previous.config)
    }

    /// Returns the limit of a group. If the reload does not change the group and its upstreams, the
    /// limit keeps its learned state.
    fn concurrency_limit(
        &self,
        config: &Config,
        index: usize,
        chains: &[Arc<ChainState>],
        upstreams: &[UpstreamState],
        counters: &[Arc<Counters>],
    ) -> Option<Arc<ConcurrencyLimit>> {
        let group = &config.groups[index];
        let previous_groups = &self.config.groups;
        let previous_index = previous_groups.iter().position(|previous| {
            Arc::ptr_eq(&self.chains[previous.chain], &chains[group.chain])
                && previous.name == group.name
        });
        let unchanged = previous_index.and_then(|previous_index| {
            let previous = &previous_groups[previous_index];
            let same_upstream = |(previous, new): (&usize, &usize)| {
                upstreams[*new].is_same_as(&self.upstreams[*previous])
            };
            let same = previous.upstreams.len() == group.upstreams.len()
                && previous.upstreams.iter().zip(&group.upstreams).all(same_upstream)
                && previous.in_flight == group.in_flight
                && self.config.overload == config.overload;
            same.then(|| self.groups[previous_index].concurrency_limit.clone()).flatten()
        });
        unchanged.or_else(|| {
            ConcurrencyLimit::new(config, group, ConcurrencyLimit::threads(counters, index))
        })
    }
}

fn is_same_chain(previous: &config::chain::Chain, chain: &config::chain::Chain) -> bool {
    previous.name == chain.name && previous.family == chain.family && previous.id == chain.id
}

/// Returns a number that no upstream of this process has had; [`NO_UPSTREAM`] once all are used.
pub(super) fn next_number(by_number: &mut Vec<Option<usize>>) -> u16 {
    match u16::try_from(by_number.len()) {
        Ok(number) if number != NO_UPSTREAM => {
            by_number.push(None);
            number
        }
        _ => NO_UPSTREAM,
    }
}

/// Assigns indices in chain views. An upstream keeps its index; a new upstream gets the first
/// unused index of its chain.
#[derive(Default)]
struct ViewIndices {
    /// Pairs of an upstream's index in the configuration and its index in views.
    assigned: Vec<(usize, usize)>,
    /// Used indices, as pairs of the chain and the index in its views.
    taken: HashSet<(usize, usize)>,
}

impl ViewIndices {
    fn keep(&mut self, upstream: usize, chain: usize, view_index: usize) {
        self.assigned.push((upstream, view_index));
        self.taken.insert((chain, view_index));
    }

    /// Returns the kept index of an upstream, or assigns an unused one.
    fn get_or_assign(&mut self, upstream: usize, chain: usize) -> usize {
        if let Some((_, view_index)) = self.assigned.iter().find(|(known, _)| *known == upstream) {
            return *view_index;
        }
        let mut view_indices = 0..;
        let unused = view_indices.find(|view_index| self.taken.insert((chain, *view_index)));
        unused.expect("the range is unbounded")
    }
}
