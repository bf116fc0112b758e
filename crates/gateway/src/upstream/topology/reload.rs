//! The topology under a new configuration.
//!
//! A chain is the same while its name, its family and its id are: its view, its heads and its cache
//! entries go on. An upstream is the same while its chain, its name, its URL, its headers and its
//! TLS settings are: its health goes on. The counts of a chain or an upstream go on by name alone,
//! so that no metric falls. The connections of a thread are taken over in `thread.rs`, the heads of
//! upstreams in `watch.rs`.

use std::collections::HashSet;
use std::sync::Arc;

use crate::config;
use crate::config::Config;
use crate::metrics::thread::Counters;
use crate::upstream::chain::ChainState;
use crate::upstream::dial::Dial;
use crate::upstream::overload::Room;
use crate::upstream::state::UpstreamState;
use crate::upstream::topology::{GroupState, NO_NODE, Topology};

impl Topology {
    /// The topology under a new configuration.
    pub(crate) fn reload(&self, config: Arc<Config>, counters: &[Arc<Counters>]) -> Arc<Topology> {
        let chains: Vec<_> = config.chains.iter().map(|chain| self.chain_for(chain)).collect();
        let mut by_number = vec![None; self.by_number.len()];
        let mut places = Places::default();
        for (index, upstream) in config.upstreams.iter().enumerate() {
            if let Some(before) = self.upstream_of_label(&config, upstream)
                && self.is_same(&chains, upstream, before)
            {
                places.keep(index, upstream.chain, before.place);
            }
        }
        // Calls under way still look up upstreams that are gone where they were.
        for upstream in &self.upstreams {
            let same =
                |own: &Arc<ChainState>| Arc::ptr_eq(own, &self.chains[upstream.config.chain]);
            if let Some(chain) = chains.iter().position(same) {
                places.taken.insert((chain, upstream.place));
            }
        }
        let upstreams = config.upstreams.iter().enumerate().map(|(index, upstream)| {
            let place = places.of(index, upstream.chain);
            let before = self.upstream_of_label(&config, upstream);
            let number =
                before.map_or_else(|| free_number(&mut by_number), |upstream| upstream.number);
            if let Some(slot) = by_number.get_mut(usize::from(number)) {
                *slot = Some(index);
            }
            let mark = self.registry.next_upstream();
            let mut new = UpstreamState::new(&config, upstream, place, mark, number, Dial::Net);
            if let Some(before) = before {
                new.take_over(before, self.is_same(&chains, upstream, before), &config);
            }
            new
        });
        let upstreams: Vec<_> = upstreams.collect();
        let groups = config.groups.iter().enumerate().map(|(index, group)| {
            let room = self.room(&config, index, &chains, &upstreams, counters);
            GroupState::new(&config, group, room)
        });
        let groups = groups.collect();
        let registry = Arc::clone(&self.registry);
        let topology = Topology { config, chains, upstreams, groups, registry, by_number }.shared();
        (0..topology.chains.len()).for_each(|chain| topology.renew_own_candidates(chain));
        topology
    }

    fn chain_for(&self, chain: &config::chain::Chain) -> Arc<ChainState> {
        let before = self.config.chains.iter().position(|own| own.name == chain.name);
        match before {
            Some(before) if same_chain(&self.config.chains[before], chain) => {
                Arc::clone(&self.chains[before])
            }
            // Whatever had this name before may have left entries in the cache.
            _ => {
                let key = format!("{}#{}", chain.name, self.registry.next_chain());
                Arc::new(ChainState::new(chain, key.into()))
            }
        }
    }

    /// The upstream that has the same name on the same chain.
    fn upstream_of_label(
        &self,
        config: &Config,
        upstream: &config::upstream::Upstream,
    ) -> Option<&UpstreamState> {
        let chain = &config.chains[upstream.chain].name;
        self.upstreams.iter().find(|own| {
            own.config.name == upstream.name && self.config.chains[own.config.chain].name == *chain
        })
    }

    /// Whether an upstream is the one that it was: on the same chain, at the same place, spoken to
    /// in the same way.
    fn is_same(
        &self,
        chains: &[Arc<ChainState>],
        upstream: &config::upstream::Upstream,
        before: &UpstreamState,
    ) -> bool {
        Arc::ptr_eq(&chains[upstream.chain], &self.chains[before.config.chain])
            && upstream.has_same_target(&before.config)
    }

    /// The limit of a group's calls: the one before the reload, with what it has learnt, if the
    /// reload leaves the group and its upstreams as they are.
    fn room(
        &self,
        config: &Config,
        index: usize,
        chains: &[Arc<ChainState>],
        upstreams: &[UpstreamState],
        counters: &[Arc<Counters>],
    ) -> Option<Arc<Room>> {
        let group = &config.groups[index];
        let own = &self.config.groups;
        let at = own.iter().position(|own| {
            Arc::ptr_eq(&self.chains[own.chain], &chains[group.chain]) && own.name == group.name
        });
        let kept = at.and_then(|at| {
            let same_upstream =
                |(own, new): (&usize, &usize)| upstreams[*new].is(&self.upstreams[*own]);
            let same = own[at].upstreams.len() == group.upstreams.len()
                && own[at].upstreams.iter().zip(&group.upstreams).all(same_upstream)
                && own[at].in_flight == group.in_flight
                && self.config.overload == config.overload;
            same.then(|| self.groups[at].room.clone()).flatten()
        });
        kept.or_else(|| Room::new(config, group, Room::threads(counters, index)))
    }
}

fn same_chain(before: &config::chain::Chain, chain: &config::chain::Chain) -> bool {
    before.name == chain.name && before.family == chain.family && before.id == chain.id
}

/// The next number that no upstream of this process had; [`NO_NODE`] once they are used up.
pub(super) fn free_number(by_number: &mut Vec<Option<usize>>) -> u16 {
    match u16::try_from(by_number.len()) {
        Ok(number) if number != NO_NODE => {
            by_number.push(None);
            number
        }
        _ => NO_NODE,
    }
}

/// The places of upstreams among those of their chains. An upstream keeps its place; a new one
/// takes the first that is free.
#[derive(Default)]
struct Places {
    /// By index of the upstream.
    kept: Vec<(usize, usize)>,
    taken: HashSet<(usize, usize)>,
}

impl Places {
    fn keep(&mut self, index: usize, chain: usize, place: usize) {
        self.kept.push((index, place));
        self.taken.insert((chain, place));
    }

    fn of(&mut self, index: usize, chain: usize) -> usize {
        if let Some((_, place)) = self.kept.iter().find(|(own, _)| *own == index) {
            return *place;
        }
        let mut places = 0..;
        let free = places.find(|place| self.taken.insert((chain, *place)));
        free.expect("places are endless")
    }
}
