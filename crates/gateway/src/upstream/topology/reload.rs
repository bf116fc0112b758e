//! Makes the topology of a new configuration from the former one.
//!
//! A chain with the same name, family and id keeps its view, its heads and its cache entries. An
//! upstream with the same chain, name, URL, headers and TLS settings keeps its health. Counters
//! stay with the name alone, so that no metric falls. `thread.rs` keeps the connections of a
//! thread, and `watch.rs` keeps the heads of upstreams.

use std::collections::HashSet;
use std::sync::Arc;

use crate::config;
use crate::config::Config;
use crate::metrics::thread::Counters;
use crate::upstream::chain::ChainState;
use crate::upstream::dial::Dial;
use crate::upstream::overload::ConcurrencyLimit;
use crate::upstream::state::UpstreamState;
use crate::upstream::topology::{GroupState, NO_UPSTREAM, Topology};

impl Topology {
    /// Returns the topology under a new configuration.
    pub(crate) fn reload(&self, config: Arc<Config>, counters: &[Arc<Counters>]) -> Arc<Topology> {
        let chains: Vec<_> = config.chains.iter().map(|chain| self.chain_for(chain)).collect();
        let mut by_number = vec![None; self.by_number.len()];
        let mut places = Places::default();
        for (index, upstream) in config.upstreams.iter().enumerate() {
            if let Some(before) = self.find_upstream(&config, upstream)
                && self.is_same(&chains, upstream, before)
            {
                places.keep(index, upstream.chain, before.place);
            }
        }
        // Calls in flight still look up removed upstreams at their old indices in views.
        for upstream in &self.upstreams {
            let same =
                |own: &Arc<ChainState>| Arc::ptr_eq(own, &self.chains[upstream.config.chain]);
            if let Some(chain) = chains.iter().position(same) {
                places.taken.insert((chain, upstream.place));
            }
        }
        let upstreams = config.upstreams.iter().enumerate().map(|(index, upstream)| {
            let place = places.of(index, upstream.chain);
            let before = self.find_upstream(&config, upstream);
            let number =
                before.map_or_else(|| next_number(&mut by_number), |upstream| upstream.number);
            if let Some(slot) = by_number.get_mut(usize::from(number)) {
                *slot = Some(index);
            }
            let mark = self.registry.next_upstream();
            let mut new = UpstreamState::new(&config, upstream, place, mark, number, Dial::Net);
            if let Some(before) = before {
                new.inherit(before, self.is_same(&chains, upstream, before), &config);
            }
            new
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
        let before = self.config.chains.iter().position(|own| own.name == chain.name);
        match before {
            Some(before) if same_chain(&self.config.chains[before], chain) => {
                Arc::clone(&self.chains[before])
            }
            // A former chain of this name may have left entries in the cache.
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
        self.upstreams.iter().find(|own| {
            own.config.name == upstream.name && self.config.chains[own.config.chain].name == *chain
        })
    }

    /// Returns true if the upstream has the same chain, address and protocol as before.
    fn is_same(
        &self,
        chains: &[Arc<ChainState>],
        upstream: &config::upstream::Upstream,
        before: &UpstreamState,
    ) -> bool {
        Arc::ptr_eq(&chains[upstream.chain], &self.chains[before.config.chain])
            && upstream.has_same_target(&before.config)
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
        let own = &self.config.groups;
        let at = own.iter().position(|own| {
            Arc::ptr_eq(&self.chains[own.chain], &chains[group.chain]) && own.name == group.name
        });
        let unchanged = at.and_then(|at| {
            let same_upstream =
                |(own, new): (&usize, &usize)| upstreams[*new].is_same_as(&self.upstreams[*own]);
            let same = own[at].upstreams.len() == group.upstreams.len()
                && own[at].upstreams.iter().zip(&group.upstreams).all(same_upstream)
                && own[at].in_flight == group.in_flight
                && self.config.overload == config.overload;
            same.then(|| self.groups[at].concurrency_limit.clone()).flatten()
        });
        unchanged.or_else(|| {
            ConcurrencyLimit::new(config, group, ConcurrencyLimit::threads(counters, index))
        })
    }
}

fn same_chain(before: &config::chain::Chain, chain: &config::chain::Chain) -> bool {
    before.name == chain.name && before.family == chain.family && before.id == chain.id
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

/// Assigns indices in chain views. An upstream keeps its index; a new upstream gets the first free
/// index.
#[derive(Default)]
struct Places {
    /// Pairs of an upstream's index in the configuration and its index in views.
    assigned: Vec<(usize, usize)>,
    taken: HashSet<(usize, usize)>,
}

impl Places {
    fn keep(&mut self, index: usize, chain: usize, place: usize) {
        self.assigned.push((index, place));
        self.taken.insert((chain, place));
    }

    fn of(&mut self, index: usize, chain: usize) -> usize {
        if let Some((_, place)) = self.assigned.iter().find(|(own, _)| *own == index) {
            return *place;
        }
        let mut places = 0..;
        let free = places.find(|place| self.taken.insert((chain, *place)));
        free.expect("the range is unbounded")
    }
}
