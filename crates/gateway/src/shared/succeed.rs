//! What a new configuration takes over from the one in use, so that a reload loses nothing that need
//! not be lost.
//!
//! A chain is the same while its name, its family and its id are: its view, its heads and its cache
//! entries go on. A node is the same while its chain, its name, its URL, its headers and its TLS
//! settings are: its health goes on. A zone of request limits is the same while its name, its key, its
//! memory and what it counts are: what it holds goes on, whatever its rate. The counts of a chain, node
//! or zone go on by name alone, so that no
//! metric falls. What a thread has to itself is taken over in `worker.rs`, the heads of nodes in
//! `nodes/watch.rs`.

use std::collections::HashSet;
use std::sync::Arc;

use super::{ChainShared, NO_NODE, NodeShared, Shared, health_settings};
use crate::cache::Cache;
use crate::config::listen_tls::ListenTls;
use crate::config::{self, Config};
use crate::metrics::thread::Labels;
use crate::nodes::dial::Dial;

impl Shared {
    /// The state under a new configuration. Addresses and the number of threads stay as they are
    /// until a restart.
    pub(crate) fn succeed(&self, mut config: Config) -> Arc<Shared> {
        config.server.listen = self.config.server.listen;
        config.listen_tls = match (&self.config.listen_tls, config.listen_tls.take()) {
            (Some(before), Some(own)) => {
                let own = Arc::unwrap_or_clone(own).carrying(before);
                Some(Arc::new(ListenTls { address: before.address, ..own }))
            }
            (before, _) => before.clone(),
        };
        config.server.admin = self.config.server.admin;
        config.server.threads = self.config.server.threads;
        let chains: Vec<_> = config.chains.iter().map(|chain| self.chain_for(chain)).collect();
        let mut by_number = vec![None; self.by_number.len()];
        let mut places = Places::default();
        for (index, node) in config.nodes.iter().enumerate() {
            if let Some(before) = self.node_of_label(&config, node)
                && self.is_same(&chains, node, before)
            {
                places.keep(index, node.chain, before.place);
            }
        }
        // Calls under way still look up nodes that are gone where they were.
        for node in &self.nodes {
            let same = |own: &Arc<ChainShared>| Arc::ptr_eq(own, &self.chains[node.config.chain]);
            if let Some(chain) = chains.iter().position(same) {
                places.taken.insert((chain, node.place));
            }
        }
        let nodes = config.nodes.iter().enumerate().map(|(index, node)| {
            let place = places.of(index, node.chain);
            let before = self.node_of_label(&config, node);
            let number = before.map_or_else(|| free_number(&mut by_number), |node| node.number);
            if let Some(slot) = by_number.get_mut(usize::from(number)) {
                *slot = Some(index);
            }
            let mark = self.lineage.next_node();
            let mut new = NodeShared::new(&config, node, place, mark, number, Dial::Net);
            if let Some(before) = before {
                new.take_over(before, self.is_same(&chains, node, before), &config);
            }
            new
        });
        let nodes = nodes.collect();
        let labels = Labels::of(&config);
        let counters = self.counters.iter().map(|own| Arc::new(own.after_reload(&labels)));
        let counters = counters.collect();
        let cache = config.cache.enabled.then(|| match &self.cache {
            Some(cache) => cache.under(&config.cache),
            None => Cache::new(&config.cache),
        });
        let answers = config.redis.as_ref().filter(|redis| redis.answers);
        let redis = answers.map(|_| self.redis.clone().unwrap_or_default());
        let lineage = Arc::clone(&self.lineage);
        let chains_count = chains.len();
        let shared = Shared::build(
            config,
            chains,
            nodes,
            counters,
            cache,
            redis,
            lineage,
            by_number,
            Some(self),
        );
        (0..chains_count).for_each(|chain| shared.renew_own_candidates(chain));
        shared
    }

    fn chain_for(&self, chain: &config::chain::Chain) -> Arc<ChainShared> {
        let before = self.config.chains.iter().position(|own| own.name == chain.name);
        match before {
            Some(before) if same_chain(&self.config.chains[before], chain) => {
                Arc::clone(&self.chains[before])
            }
            // Whatever had this name before may have left entries in the cache.
            _ => {
                let key = format!("{}#{}", chain.name, self.lineage.next_chain());
                Arc::new(ChainShared::new(chain, key.into()))
            }
        }
    }

    /// The node that has the same name on the same chain.
    fn node_of_label(&self, config: &Config, node: &config::node::Node) -> Option<&NodeShared> {
        let chain = &config.chains[node.chain].name;
        self.nodes.iter().find(|own| {
            own.config.name == node.name && self.config.chains[own.config.chain].name == *chain
        })
    }

    /// Whether a node is the one that it was: on the same chain, at the same place, spoken to in the
    /// same way.
    fn is_same(
        &self,
        chains: &[Arc<ChainShared>],
        node: &config::node::Node,
        before: &NodeShared,
    ) -> bool {
        Arc::ptr_eq(&chains[node.chain], &self.chains[before.config.chain])
            && node.is_spoken_to_like(&before.config)
    }
}

impl NodeShared {
    fn take_over(&mut self, before: &NodeShared, is_same: bool, config: &Config) {
        self.ejections = Arc::clone(&before.ejections);
        self.readmissions = Arc::clone(&before.readmissions);
        if !is_same {
            return;
        }
        self.mark = before.mark;
        self.dial = before.dial.clone();
        // With it the sessions that can be resumed.
        self.config.tls.clone_from(&before.config.tls);
        self.health = Arc::clone(&before.health);
        self.health.lock().settle(health_settings(&config.health));
        self.suspected = Arc::clone(&before.suspected);
        self.unsupported = Arc::clone(&before.unsupported);
        self.logs_depth = Arc::clone(&before.logs_depth);
        self.foreign = Arc::clone(&before.foreign);
    }

    /// Whether this is the node that it was before a reload.
    pub(crate) fn is(&self, before: &NodeShared) -> bool {
        self.mark == before.mark
    }
}

fn same_chain(before: &config::chain::Chain, chain: &config::chain::Chain) -> bool {
    before.name == chain.name && before.family == chain.family && before.id == chain.id
}

/// The next number that no node of this process had; [`NO_NODE`] once they are used up.
pub(super) fn free_number(by_number: &mut Vec<Option<usize>>) -> u16 {
    match u16::try_from(by_number.len()) {
        Ok(number) if number != NO_NODE => {
            by_number.push(None);
            number
        }
        _ => NO_NODE,
    }
}

/// The places of nodes among those of their chains. A node keeps its place; a new one takes the first
/// that is free.
#[derive(Default)]
struct Places {
    /// By index of the node.
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
