//! The counters of one thread under one configuration, and the sum over all threads.
//!
//! Threads continue to count while a scrape reads the numbers one after another. So each number is
//! exact, but a number that is read later may include more calls.

use std::ops::{Deref, Index};
use std::sync::Arc;

use wire::family::Family;
use wire::method::methods_of;

use super::counters::{
    GroupCounters, KeyCounters, MethodCounters, RuleCounters, ThreadCounters, UpstreamCounters,
    ZoneCounters,
};
use super::instrument::Sum;
use super::label::LimitOutcome;
use crate::call::CacheStatus;
use crate::config::Config;
use crate::config::chain::Chain;
use crate::config::group::Group;
use crate::config::upstream::Upstream;

#[cfg(test)]
pub(crate) mod tests;

/// For each type of object, the maximum number of removed objects whose counters are kept. The
/// counters of the objects that were removed first are dropped first. Only reloads that add new
/// names again and again reach this limit.
const REMOVED_MAX: usize = 256;

/// The label value of methods that are not in a chain's method table.
const OTHER_METHOD: &str = "other";

/// The counters of one thread. After a reload, an object with the same label continues to use its
/// counters, so no counter falls. A label is the list of values that identifies an object, such as
/// the names of a chain and an upstream.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// The counters of each chain's methods, by index in the chain's method table. The last element
    /// counts unknown methods.
    pub(crate) methods: Labelled<ChainLabel, [MethodCounters]>,
    /// The counters of each upstream. The label is chain and name.
    pub(crate) upstreams: Labelled<[Arc<str>; 2], UpstreamCounters>,
    /// The counters of each group. The label is chain and name.
    pub(crate) groups: Labelled<[Arc<str>; 2], GroupCounters>,
    /// The counters of each key, by [`crate::policy::access::Grant::index`].
    pub(crate) keys: Labelled<[Arc<str>; 1], KeyCounters>,
    /// The counters of each rule. The label is its name.
    pub(crate) rules: Labelled<[Arc<str>; 1], RuleCounters>,
    /// The counters of each zone. The label is its name.
    pub(crate) zones: Labelled<[Arc<str>; 1], ZoneCounters>,
    /// The counters that no configured object owns. [`Counters`] dereferences to them.
    thread: Arc<ThreadCounters>,
}

/// Label of the methods of a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ChainLabel {
    pub(crate) name: Arc<str>,
    /// The chain's family, which defines the method names.
    pub(crate) family: Family,
}

/// Labels of all objects of one configuration.
#[derive(Debug, Default)]
pub(crate) struct Labels {
    pub(crate) chains: Vec<ChainLabel>,
    /// Chain and name.
    pub(crate) upstreams: Vec<[Arc<str>; 2]>,
    /// Chain and name.
    pub(crate) groups: Vec<[Arc<str>; 2]>,
    /// Names of keys and of token issuers.
    pub(crate) keys: Vec<[Arc<str>; 1]>,
    /// Names of rules.
    pub(crate) rules: Vec<[Arc<str>; 1]>,
    /// Names of zones.
    pub(crate) zones: Vec<[Arc<str>; 1]>,
}

impl Labels {
    /// Returns the labels of a configuration.
    pub(crate) fn of(config: &Config) -> Labels {
        let chain_and_name =
            |chain: usize, name: &Arc<str>| [Arc::clone(&config.chains[chain].name), name.clone()];
        let chain =
            |chain: &Chain| ChainLabel { name: Arc::clone(&chain.name), family: chain.family };
        let upstream = |upstream: &Upstream| chain_and_name(upstream.chain, &upstream.name);
        let group = |group: &Group| chain_and_name(group.chain, &group.name);
        Labels {
            chains: config.chains.iter().map(chain).collect(),
            upstreams: config.upstreams.iter().map(upstream).collect(),
            groups: config.groups.iter().map(group).collect(),
            keys: config.access.counted_names().map(|name| [Arc::from(name)]).collect(),
            rules: config.rules.iter().map(|rule| [Arc::from(&*rule.name)]).collect(),
            zones: config.zones.iter().map(|zone| [Arc::clone(&zone.name)]).collect(),
        }
    }
}

impl ChainLabel {
    /// Returns the method names, in the order of the counters.
    pub(crate) fn methods(&self) -> impl Iterator<Item = &'static str> + use<> {
        let known_methods = methods_of(self.family).methods().map(|method| method.name);
        known_methods.chain(std::iter::once(OTHER_METHOD))
    }
}

impl Counters {
    /// Returns counters with these labels, all zero.
    pub(crate) fn new(labels: &Labels) -> Counters {
        Counters::default().after_reload(labels)
    }

    /// Returns the counters for the labels of another configuration. Labels that existed before
    /// keep their counters.
    pub(crate) fn after_reload(&self, labels: &Labels) -> Counters {
        Counters {
            methods: self.methods.after_reload(&labels.chains, |label| {
                label.methods().map(|_| MethodCounters::default()).collect()
            }),
            upstreams: self.upstreams.after_reload(&labels.upstreams, |_| Arc::default()),
            groups: self.groups.after_reload(&labels.groups, |_| Arc::default()),
            keys: self.keys.after_reload(&labels.keys, |_| Arc::default()),
            rules: self.rules.after_reload(&labels.rules, |_| Arc::default()),
            zones: self.zones.after_reload(&labels.zones, |_| Arc::default()),
            thread: Arc::clone(&self.thread),
        }
    }

    /// Sums up the counters of all threads under one configuration.
    pub(crate) fn sum(threads: &[Arc<Counters>]) -> Counters {
        let mut sum = Counters::default();
        for thread in threads {
            sum.methods.merge(&thread.methods);
            sum.upstreams.merge(&thread.upstreams);
            sum.groups.merge(&thread.groups);
            sum.keys.merge(&thread.keys);
            sum.rules.merge(&thread.rules);
            sum.zones.merge(&thread.zones);
            sum.thread.merge(&thread.thread);
        }
        sum
    }

    /// Returns the counters of the method at this index of the chain's method table. `None` selects
    /// the counters of unknown methods.
    pub(crate) fn method(&self, chain: usize, index: Option<usize>) -> &MethodCounters {
        let methods = &self.methods[chain];
        &methods[index.unwrap_or(methods.len() - 1)]
    }

    /// Counts the decision of a request-limit zone about a call.
    pub(crate) fn record_limit_outcome(&self, zone: usize, outcome: LimitOutcome) {
        self.zones[zone].calls[outcome].add(1);
    }

    /// Sets each counter to a different number. Sets only the counters of the first two methods of
    /// each chain.
    #[cfg(test)]
    pub(crate) fn fill(&self, seed: u64) {
        self.thread.fill(seed);
        for (number, (_, methods)) in (1..).zip(self.methods.iter()) {
            methods[..2].fill(seed + 10 * number);
        }
        self.upstreams.fill(seed);
        self.groups.fill(seed);
        self.keys.fill(seed);
        self.rules.fill(seed);
        self.zones.fill(seed);
    }

    /// Returns the number of calls with this cache status.
    pub(crate) fn count_calls_with(&self, cache: CacheStatus) -> u64 {
        self.all_methods().map(|methods| methods.answered[cache].get()).sum()
    }

    /// Returns the counters of all methods, including methods of removed chains.
    pub(crate) fn all_methods(&self) -> impl Iterator<Item = &MethodCounters> {
        let Labelled { present, removed } = &self.methods;
        present.iter().chain(removed).flat_map(|(_, methods)| &**methods)
    }
}

impl Deref for Counters {
    type Target = ThreadCounters;

    fn deref(&self) -> &ThreadCounters {
        &self.thread
    }
}

/// Counters of the objects of one type, by index in the configuration.
#[derive(Debug)]
pub(crate) struct Labelled<L, C: ?Sized> {
    /// Counters of the objects of the current configuration.
    present: Vec<(L, Arc<C>)>,
    /// Counters of objects that a reload removed, at most [`REMOVED_MAX`].
    removed: Vec<(L, Arc<C>)>,
}

impl<L: Clone + PartialEq, C: ?Sized> Labelled<L, C> {
    /// Iterates over the labels and their counters.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&L, &Arc<C>)> {
        self.present.iter().map(|(label, counters)| (label, counters))
    }

    /// Returns the counters for `labels`. `zeros` creates the counters of a new label.
    fn after_reload(&self, labels: &[L], zeros: impl Fn(&L) -> Arc<C>) -> Labelled<L, C> {
        let all_former = || self.removed.iter().chain(&self.present);
        let find_or_create = |label: &L| {
            let former = all_former().find(|(former_label, _)| former_label == label);
            former.map_or_else(|| zeros(label), |(_, counters)| Arc::clone(counters))
        };
        let present = labels.iter().map(|label| (label.clone(), find_or_create(label))).collect();
        let no_longer_present = all_former().filter(|(label, _)| !labels.contains(label));
        let mut removed: Vec<_> = no_longer_present.cloned().collect();
        removed.drain(..removed.len().saturating_sub(REMOVED_MAX));
        Labelled { present, removed }
    }

    #[cfg(test)]
    fn fill(&self, seed: u64)
    where
        C: Sum,
    {
        self.iter().zip(1..).for_each(|((_, counters), offset)| counters.fill(seed + offset));
    }

    /// Adds the counters of another thread. The first call also copies the labels of `other`.
    fn merge(&mut self, other: &Labelled<L, C>)
    where
        C: Zeros,
    {
        let lists = [(&mut self.present, &other.present), (&mut self.removed, &other.removed)];
        for (sums, other) in lists {
            if sums.is_empty() {
                *sums = other
                    .iter()
                    .map(|(label, counters)| (label.clone(), counters.zeros()))
                    .collect();
            }
            sums.iter().zip(other).for_each(|((_, sums), (_, other))| sums.merge(other));
        }
    }
}

impl<L, C: ?Sized> Default for Labelled<L, C> {
    fn default() -> Labelled<L, C> {
        Labelled { present: Vec::new(), removed: Vec::new() }
    }
}

impl<L, C: ?Sized> Index<usize> for Labelled<L, C> {
    type Output = Arc<C>;

    fn index(&self, index: usize) -> &Arc<C> {
        &self.present[index].1
    }
}

/// Counters that can be summed up. A sum starts from the same number of counters, all zero.
trait Zeros: Sum {
    /// Returns the same number of counters, all zero.
    fn zeros(&self) -> Arc<Self>;
}

impl<C: Sum + Default> Zeros for C {
    fn zeros(&self) -> Arc<C> {
        Arc::default()
    }
}

impl<C: Sum> Sum for [C] {
    fn merge(&self, other: &[C]) {
        self.iter().zip(other).for_each(|(sum, other)| sum.merge(other));
    }

    #[cfg(test)]
    fn fill(&self, seed: u64) {
        self.iter().zip(1..).for_each(|(counters, offset)| counters.fill(seed + offset));
    }
}

impl<C: Sum + Default> Zeros for [C] {
    fn zeros(&self) -> Arc<[C]> {
        self.iter().map(|_| C::default()).collect()
    }
}
