//! The upstreams of one configuration, as one thread uses them: connections, balancers, budgets and
//! permits.
//!
//! Each serving thread has one [`Upstreams`] per configuration. Threads share state only through
//! [`Topology`], so nothing here is locked. `local.rs` has the state of one upstream.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::config::Config;
use crate::config::group::Group;
use crate::io::random::Random;
use crate::metrics::thread::Counters;
use crate::policy::choose::{EWMA_READMITTED, EWMA_START, PeakEwma};
use crate::policy::hedge::{Hedge, HedgeSettings};
use crate::policy::retry::RetryBudget;
use crate::upstream::balance::{Balancer, UpstreamLoads};
use crate::upstream::local::LocalUpstream;
use crate::upstream::overload::Permits;
use crate::upstream::resources::ThreadResources;
use crate::upstream::state::UpstreamState;
use crate::upstream::topology::Topology;

/// Maximum number of second opinions per call, averaged over all calls. A second opinion is a
/// further attempt after a response that may be incomplete. For some seconds, all calls may be
/// about blocks that upstreams have not indexed yet. Each of these calls may use all its retries
/// for second opinions, so the value equals the default of `retries_max`.
const SECOND_OPINIONS_SHARE: f64 = 2.0;

/// The upstreams of one configuration, as one thread uses them.
pub(crate) struct Upstreams {
    pub(crate) topology: Arc<Topology>,
    /// The counters of this thread.
    pub(crate) counters: Arc<Counters>,
    /// The clock, random numbers, buffers and ids of this thread.
    pub(crate) thread: Rc<ThreadResources>,
    /// The state of each upstream, in the order of the configuration.
    pub(crate) local: Vec<Rc<LocalUpstream>>,
    /// The balancer of each group, in the order of the configuration.
    pub(crate) balancers: Vec<RefCell<Balancer>>,
    /// The latencies and the hedge budget of each group. A hedge is a further attempt that starts
    /// because a call is slow.
    pub(crate) hedges: Vec<Rc<RefCell<Hedge>>>,
    /// Limits retries of all groups together.
    pub(crate) retry_budget: Rc<RefCell<RetryBudget>>,
    /// Limits second opinions of all groups together.
    pub(crate) second_opinions: Rc<RefCell<RetryBudget>>,
    /// The permits of all groups. A permit allows one call to be in flight.
    pub(crate) permits: Permits,
}

impl Upstreams {
    pub(crate) fn new(
        topology: Arc<Topology>,
        counters: Arc<Counters>,
        random: Random,
    ) -> Rc<Upstreams> {
        let thread = ThreadResources::new(&topology.process, random);
        Upstreams::build(topology, counters, thread, None)
    }

    /// Returns the upstreams of a new configuration, for this thread. Upstreams with unchanged
    /// connection settings keep their connections and latencies. Connections to other upstreams are
    /// closed: idle connections now, connections in use after their call.
    pub(crate) fn reload(&self, topology: Arc<Topology>, counters: Arc<Counters>) -> Rc<Upstreams> {
        let thread = Rc::clone(&self.thread);
        let reloaded = Upstreams::build(topology, counters, thread, Some(self));
        for local in &self.local {
            if !reloaded.local.iter().any(|kept_upstream| Rc::ptr_eq(kept_upstream, local)) {
                local.close();
            }
        }
        reloaded
    }

    fn build(
        topology: Arc<Topology>,
        counters: Arc<Counters>,
        thread: Rc<ThreadResources>,
        previous: Option<&Upstreams>,
    ) -> Rc<Upstreams> {
        let (config, now) = (&topology.config, topology.now());
        // A reload gives new upstreams a low initial latency, so that they get calls at once.
        let initial_latency = if previous.is_some() { EWMA_READMITTED } else { EWMA_START };
        let local = topology.upstreams.iter().enumerate().map(|(index, upstream)| {
            let kept_upstream =
                previous.and_then(|previous| previous.kept_upstream(upstream, config));
            kept_upstream.unwrap_or_else(|| {
                let method_count = topology.chains[upstream.config.chain].family.methods().count();
                let counts = &counters.upstreams[index];
                let latency = PeakEwma::new(now, initial_latency);
                let local =
                    LocalUpstream::new(&thread, config, upstream, method_count, counts, latency);
                Rc::new(local)
            })
        });
        let hedges = config.groups.iter().map(|group| {
            let kept_hedge = previous.and_then(|previous| previous.kept_hedge(config, group));
            kept_hedge.unwrap_or_else(|| new_hedge(group.hedge.as_ref()))
        });
        let retry = &config.retry;
        let previous_with_same_budget = previous.filter(|previous| {
            let previous = &previous.topology.config.retry;
            (previous.share_max, previous.rate_min) == (retry.share_max, retry.rate_min)
        });
        let new_budget =
            |share_max| Rc::new(RefCell::new(RetryBudget::new(share_max, retry.rate_min)));
        let groups = topology.groups.iter().zip(counters.groups.iter());
        let limits =
            groups.map(|(group, (_label, counts))| (group.concurrency_limit.as_ref(), counts));
        Rc::new(Upstreams {
            local: local.collect(),
            balancers: config
                .groups
                .iter()
                .map(|group| RefCell::new(Balancer::new(config, group)))
                .collect(),
            hedges: hedges.collect(),
            retry_budget: match previous_with_same_budget {
                Some(previous) => Rc::clone(&previous.retry_budget),
                None => new_budget(retry.share_max),
            },
            second_opinions: match previous_with_same_budget {
                Some(previous) => Rc::clone(&previous.second_opinions),
                None => new_budget(SECOND_OPINIONS_SHARE),
            },
            permits: Permits::new(&thread, config, limits, previous.map(|old| &old.permits)),
            thread,
            topology,
            counters,
        })
    }

    /// Returns this thread's state of an upstream, to keep it under the new configuration
    /// `config`. Returns `None` if the upstream is new or its connection settings have changed.
    fn kept_upstream(
        &self,
        upstream: &UpstreamState,
        config: &Config,
    ) -> Option<Rc<LocalUpstream>> {
        let index = self.topology.upstreams.iter().position(|previous| {
            upstream.is_same_as(previous) && upstream.config.connects_like(&previous.config)
        })?;
        let local = &self.local[index];
        let has_same_settings =
            local.multiplexed.as_ref().is_none_or(|pool| pool.has_settings_of(config));
        has_same_settings.then(|| Rc::clone(local))
    }

    /// Returns the hedge budget of a group, to keep it under the new configuration
    /// `config`. Returns `None` if the group is new or its hedge settings have changed.
    fn kept_hedge(&self, config: &Config, group: &Group) -> Option<Rc<RefCell<Hedge>>> {
        let previous_config = &self.topology.config;
        let index = previous_config.groups.iter().position(|previous| {
            previous_config.chains[previous.chain].name == config.chains[group.chain].name
                && previous.name == group.name
                && previous.hedge == group.hedge
        })?;
        Some(Rc::clone(&self.hedges[index]))
    }

    /// Returns what the balancer needs to know of the upstreams.
    pub(super) fn loads(&self) -> UpstreamLoads<'_> {
        UpstreamLoads { thread: &self.thread, shared: &self.topology.upstreams, local: &self.local }
    }

    /// Returns the longest range of blocks whose logs an upstream of the group returns in one call.
    /// Returns `None` if an upstream in service has no known limit, or none is in service.
    pub(crate) fn log_range_max(&self, group: usize) -> Option<u64> {
        let now = self.now();
        let mut longest = None;
        for &upstream in &self.topology.config.groups[group].upstreams {
            let state = &self.topology.upstreams[upstream];
            if state.is_in_rotation(now) && !self.topology.is_lost(upstream) {
                longest = longest.max(Some(state.log_range.get(now)?));
            }
        }
        longest
    }

    /// Counts an attempt that starts.
    pub(crate) fn attempt_started(&self, upstream: usize) {
        self.local[upstream].record_start(self.now());
        self.counters.upstreams[upstream].in_flight.add(1);
    }

    /// Counts an attempt that ends.
    pub(crate) fn attempt_ended(&self, upstream: usize) {
        self.local[upstream].record_end();
        self.counters.upstreams[upstream].in_flight.subtract_one();
    }

    /// Reads the clock, so that `instant` and `now` return the current time. Called after each
    /// wait.
    pub(crate) fn tick(&self) -> Instant {
        self.thread.clock.tick()
    }

    /// Returns the time of the last tick.
    pub(crate) fn instant(&self) -> Instant {
        self.thread.clock.instant()
    }

    /// Returns the time of the last tick, counted from the start of the process.
    pub(crate) fn now(&self) -> Duration {
        self.thread.clock.now()
    }

    /// Returns a pseudo-random number.
    pub(crate) fn random(&self) -> u64 {
        self.thread.random.next()
    }

    /// Closes connections that have been idle for too long. Called each second.
    pub(crate) fn sweep(&self) {
        let now = self.tick();
        self.local.iter().for_each(|upstream| upstream.sweep(now));
    }
}

fn new_hedge(config: Option<&crate::config::group::Hedge>) -> Rc<RefCell<Hedge>> {
    let settings = config.map(|config| HedgeSettings {
        quantile: config.quantile,
        delay_min: config.delay_min,
        share_max: config.share_max,
    });
    Rc::new(RefCell::new(Hedge::new(settings)))
}
