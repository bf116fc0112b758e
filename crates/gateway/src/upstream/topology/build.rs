//! Builds the topology of a configuration, at the start or from the topology before a reload.
//!
//! A reload keeps state. A chain with the same name, family and id keeps its view, its heads and
//! its cache entries. An upstream with the same chain, name, URL, headers and TLS settings keeps
//! its health. An upstream of the same name keeps its counters, so a reload never makes a counter
//! fall. `thread.rs` keeps the connections of a thread, and `watch.rs` keeps the heads of
//! upstreams.
//!
//! A *view* is a snapshot of a chain's heads, with one entry per upstream. The *view index* of an
//! upstream is the index of its entry in the views of its chain.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::config;
use crate::config::Config;
use crate::metrics::thread::Counters;
use crate::policy::choose::TierOrder;
use crate::process::Process;
use crate::upstream::chain::ChainState;
use crate::upstream::connector::Connector;
use crate::upstream::overload::ConcurrencyLimit;
use crate::upstream::state::UpstreamState;
use crate::upstream::topology::{GroupState, NO_UPSTREAM, Topology};

impl Topology {
    /// Builds the topology at the start. `counters` has one element per thread. `connectors` has
    /// the connectors of the first upstreams; the other upstreams get `Connector::Network`.
    pub(crate) fn new(
        config: Arc<Config>,
        counters: &[Arc<Counters>],
        connectors: Vec<Connector>,
    ) -> Arc<Topology> {
        Topology::build(config, counters, connectors, None)
    }

    /// Builds the topology of a new configuration. The topology keeps the state of unchanged parts.
    pub(crate) fn reload(&self, config: Arc<Config>, counters: &[Arc<Counters>]) -> Arc<Topology> {
        Topology::build(config, counters, Vec::new(), Some(self))
    }

    fn build(
        config: Arc<Config>,
        counters: &[Arc<Counters>],
        connectors: Vec<Connector>,
        previous: Option<&Topology>,
    ) -> Arc<Topology> {
        let process = match previous {
            Some(previous) => Arc::clone(&previous.process),
            None => Process::new(),
        };
        let in_use = previous.map(|previous| Arc::clone(&previous.in_use)).unwrap_or_default();
        let chains = config.chains.iter().map(|chain| match previous {
            Some(previous) => previous.chain_for(chain),
            None => Arc::new(ChainState::new(chain, Arc::clone(&chain.name))),
        });
        let chains: Vec<_> = chains.collect();
        let mut by_number = vec![None; previous.map_or(0, |previous| previous.by_number.len())];
        let mut view_indices = ViewIndices::default();
        if let Some(previous) = previous {
            previous.keep_view_indices(&config, &chains, &mut view_indices);
        }
        let mut connectors = connectors.into_iter();
        let upstreams = config.upstreams.iter().enumerate().map(|(index, upstream)| {
            let previous_upstream =
                previous.and_then(|previous| previous.find(&config, &chains, upstream));
            let cache_number = match &previous_upstream {
                Some(previous_upstream) => previous_upstream.state.cache_number,
                None => assign_cache_number(&mut by_number),
            };
            if let Some(slot) = by_number.get_mut(usize::from(cache_number)) {
                *slot = Some(index);
            }
            let instance_id = process.next_number();
            let mut state = UpstreamState::new(
                &config,
                upstream,
                view_indices.get_or_assign(index, upstream.chain),
                instance_id,
                cache_number,
                connectors.next().unwrap_or(Connector::Network),
            );
            if let Some(PreviousUpstream { state: previous_state, is_same }) = previous_upstream {
                state.inherit(previous_state, is_same, &config);
            }
            state
        });
        let upstreams: Vec<_> = upstreams.collect();
        let groups = config.groups.iter().enumerate().map(|(index, group)| {
            let kept_limit = previous
                .and_then(|previous| previous.kept_limit(&config, group, &chains, &upstreams));
            // Primary upstreams have tier 0, and backups have tier 1.
            let tiers = group.upstreams.iter().map(|upstream| config.upstreams[*upstream].backup);
            let tiers: Vec<u8> = tiers.map(u8::from).collect();
            GroupState {
                candidates: ArcSwap::default(),
                tier_order: TierOrder::new(&tiers),
                concurrency_limit: kept_limit
                    .or_else(|| ConcurrencyLimit::new(&config, index, counters)),
            }
        });
        let groups = groups.collect();
        let topology =
            Arc::new(Topology { config, chains, upstreams, groups, process, by_number, in_use });
        topology.in_use.add(&topology);
        (0..topology.chains.len()).for_each(|chain| topology.renew_own_candidates(chain));
        topology
    }

    /// Returns the chain of a new configuration. An unchanged chain keeps its state.
    fn chain_for(&self, chain: &config::chain::Chain) -> Arc<ChainState> {
        let is_same = |previous: &config::chain::Chain| {
            previous.name == chain.name
                && previous.family == chain.family
                && previous.id == chain.id
        };
        match self.config.chains.iter().position(is_same) {
            Some(index) => Arc::clone(&self.chains[index]),
            // A previous chain of this name may have entries in the cache, so the chain gets
            // another key.
            None => {
                let key = format!("{}#{}", chain.name, self.process.next_number());
                Arc::new(ChainState::new(chain, key.into()))
            }
        }
    }

    /// Finds the upstream of this topology that has the name and chain name of `upstream`.
    /// `upstream` belongs to the new configuration `config`, and `chains` are the chains of
    /// `config`.
    fn find(
        &self,
        config: &Config,
        chains: &[Arc<ChainState>],
        upstream: &config::upstream::Upstream,
    ) -> Option<PreviousUpstream<'_>> {
        let chain = &config.chains[upstream.chain].name;
        let state = self.upstreams.iter().find(|previous| {
            previous.config.name == upstream.name
                && self.config.chains[previous.config.chain].name == *chain
        })?;
        let is_same = Arc::ptr_eq(&chains[upstream.chain], &self.chains[state.config.chain])
            && upstream.has_same_target(&state.config);
        Some(PreviousUpstream { state, is_same })
    }

    /// Keeps the view indices of unchanged upstreams, and reserves the view indices of removed
    /// upstreams.
    fn keep_view_indices(
        &self,
        config: &Config,
        chains: &[Arc<ChainState>],
        view_indices: &mut ViewIndices,
    ) {
        for (index, upstream) in config.upstreams.iter().enumerate() {
            let previous = self.find(config, chains, upstream);
            if let Some(previous) = previous.filter(|previous| previous.is_same) {
                view_indices.keep(index, upstream.chain, previous.state.view_index);
            }
        }
        // Calls in flight still look up removed upstreams at their old indices in views.
        for upstream in &self.upstreams {
            let previous_chain = &self.chains[upstream.config.chain];
            let new_index = chains.iter().position(|chain| Arc::ptr_eq(chain, previous_chain));
            if let Some(chain) = new_index {
                view_indices.taken.insert((chain, upstream.view_index));
            }
        }
    }

    /// Returns this topology's limit of a group, with its learned state. `None` if the group or its
    /// upstreams have changed.
    fn kept_limit(
        &self,
        config: &Config,
        group: &config::group::Group,
        chains: &[Arc<ChainState>],
        upstreams: &[UpstreamState],
    ) -> Option<Arc<ConcurrencyLimit>> {
        let index = self.config.groups.iter().position(|previous| {
            Arc::ptr_eq(&self.chains[previous.chain], &chains[group.chain])
                && previous.name == group.name
        })?;
        let previous = &self.config.groups[index];
        let is_same_upstream = |(previous, new): (&usize, &usize)| {
            upstreams[*new].is_same_as(&self.upstreams[*previous])
        };
        let is_same = previous.upstreams.len() == group.upstreams.len()
            && previous.upstreams.iter().zip(&group.upstreams).all(is_same_upstream)
            && previous.in_flight == group.in_flight
            && self.config.overload == config.overload;
        self.groups[index].concurrency_limit.clone().filter(|_| is_same)
    }
}

/// An upstream of the previous topology.
struct PreviousUpstream<'a> {
    state: &'a UpstreamState,
    /// True if the upstream has the same chain, address and protocol in the new configuration.
    is_same: bool,
}

/// Returns a cache number that no upstream of this process has had; [`NO_UPSTREAM`] if all numbers
/// are used.
pub(super) fn assign_cache_number(by_number: &mut Vec<Option<usize>>) -> u16 {
    match u16::try_from(by_number.len()) {
        Ok(number) if number != NO_UPSTREAM => {
            by_number.push(None);
            number
        }
        _ => NO_UPSTREAM,
    }
}

/// Assigns the upstreams' indices in chain views. An unchanged upstream keeps its index. A new
/// upstream gets the first unused index of its chain.
#[derive(Default)]
struct ViewIndices {
    /// The index in views of each kept upstream, by the upstream's index in the configuration.
    kept: HashMap<usize, usize>,
    /// Used indices, as pairs of the chain and the index in its views.
    taken: HashSet<(usize, usize)>,
}

impl ViewIndices {
    fn keep(&mut self, upstream: usize, chain: usize, view_index: usize) {
        self.kept.insert(upstream, view_index);
        self.taken.insert((chain, view_index));
    }

    /// Returns the kept index of an upstream, or assigns an unused one.
    fn get_or_assign(&mut self, upstream: usize, chain: usize) -> usize {
        if let Some(view_index) = self.kept.get(&upstream) {
            return *view_index;
        }
        let mut view_indices = 0..;
        let unused = view_indices.find(|view_index| self.taken.insert((chain, *view_index)));
        unused.expect("the range is unbounded")
    }
}
