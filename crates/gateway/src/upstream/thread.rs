//! The state of the upstreams in one thread: connections, balancers, budgets and queues.
//!
//! Threads share state only through [`Topology`], so nothing here is locked.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use crate::config::Config;
use crate::config::group::Group;
use crate::io::buffers::Buffers;
use crate::io::clock::Clock;
use crate::io::random::Random;
use crate::metrics::thread::Counters;
use crate::policy::choose::{EWMA_DECAY, EWMA_READMITTED, EWMA_START, PeakEwma};
use crate::policy::hedge::{Hedge, HedgeSettings};
use crate::policy::retry::RetryBudget;
use crate::policy::stall::Silence;
use crate::upstream::balance::Balancer;
use crate::upstream::batcher::Batcher;
use crate::upstream::http2::Http2;
use crate::upstream::multiplexed_pool::MultiplexedPool;
use crate::upstream::overload::GroupPermits;
use crate::upstream::pool::Pool;
use crate::upstream::state::UpstreamState;
use crate::upstream::topology::{GroupState, Topology};

/// Maximum number of second opinions per call to upstreams. A second opinion is a further attempt
/// after a response that may be incomplete. The maximum equals the default of `retries_max`,
/// because for some seconds all calls may be about blocks that upstreams have not indexed yet.
const SECOND_OPINIONS_SHARE: f64 = 2.0;

/// The upstreams of one configuration, as one thread uses them.
pub(crate) struct UpstreamContext {
    pub(crate) topology: Arc<Topology>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) buffers: Rc<Buffers>,
    /// The state of each upstream, in the order of the configuration.
    pub(crate) upstreams: Vec<Rc<LocalUpstream>>,
    /// The balancer of each group, in the order of the configuration.
    pub(crate) balancers: Vec<RefCell<Balancer>>,
    /// The hedge budget of each group.
    pub(crate) hedges: Vec<Rc<RefCell<Hedge>>>,
    /// Limits retries.
    pub(crate) retry_budget: Rc<RefCell<RetryBudget>>,
    /// Limits further attempts after responses that may be incomplete.
    pub(crate) second_opinions: Rc<RefCell<RetryBudget>>,
    /// The permits of each group; `None` if calls to upstreams are not limited.
    pub(crate) permits: Vec<Option<Rc<GroupPermits>>>,
    clock: Rc<Clock>,
    random: Rc<Random>,
    next_id: Rc<Cell<u64>>,
}

/// One thread's state of an upstream.
pub(crate) struct LocalUpstream {
    pub(crate) pool: Rc<Pool>,
    /// Multiplexed connections; `None` if the upstream has no address for them.
    pub(crate) multiplexed: Option<Rc<MultiplexedPool>>,
    /// HTTP/2 connections; `None` if HTTP/2 is off.
    pub(crate) http2: Option<Rc<Http2>>,
    /// Batches of calls; `None` if batches are off.
    pub(crate) batcher: Option<Rc<Batcher>>,
    pub(crate) latency: Cell<PeakEwma>,
    /// Number of readmissions when `latency` was last reset.
    readmissions: Cell<u64>,
    /// Attempts of this thread in flight.
    pub(crate) in_flight: Cell<u32>,
    /// The time that attempts have waited without any response.
    pub(crate) silence: Cell<Silence>,
}

impl LocalUpstream {
    fn new(
        topology: &Topology,
        counters: &Counters,
        upstream: &UpstreamState,
        now: Duration,
        latency: Duration,
    ) -> LocalUpstream {
        let config = &topology.config;
        let index = topology.upstreams.iter().position(|known| std::ptr::eq(known, upstream));
        let counts = index.map(|index| Arc::clone(&counters.upstreams[index]));
        let counts = counts.unwrap_or_default();
        let methods = topology.chains[upstream.config.chain].family.count();
        let connections_max = upstream.config.connections_max.div_ceil(config.server.threads);
        LocalUpstream {
            pool: Pool::new(connections_max, upstream.config.idle_timeout),
            multiplexed: MultiplexedPool::new(
                config,
                &upstream.config,
                &upstream.connector,
                methods,
                &counts,
            ),
            http2: Http2::new(config, &upstream.config, &upstream.connector, &counts),
            batcher: Batcher::new(&upstream.config),
            latency: Cell::new(PeakEwma::new(now, latency, EWMA_DECAY)),
            readmissions: Cell::new(upstream.readmissions.load(Ordering::Relaxed)),
            in_flight: Cell::new(0),
            silence: Cell::default(),
        }
    }

    /// Closes idle connections now, and connections in use after their calls.
    fn close(&self) {
        self.pool.close();
        if let Some(multiplexed) = &self.multiplexed {
            multiplexed.close();
        }
        if let Some(http2) = &self.http2 {
            http2.close();
        }
    }

    /// Returns the cost of one more call. A readmitted upstream starts with a default latency.
    pub(crate) fn cost(&self, upstream: &UpstreamState, now: Duration) -> f64 {
        let readmissions = upstream.readmissions.load(Ordering::Relaxed);
        if self.readmissions.replace(readmissions) != readmissions {
            self.latency.set(PeakEwma::new(now, EWMA_READMITTED, EWMA_DECAY));
        }
        let in_flight = self.in_flight.get();
        self.latency.get().cost(now, in_flight, self.silence(now))
            / f64::from(upstream.config.weight)
    }

    /// Returns how long calls have waited without any response.
    pub(crate) fn silence(&self, now: Duration) -> Duration {
        if self.in_flight.get() == 0 { Duration::ZERO } else { self.silence.get().age(now) }
    }

    /// Records that the upstream has responded to a call.
    pub(crate) fn record_response(&self, now: Duration) {
        let mut silence = self.silence.get();
        silence.record_response(now);
        self.silence.set(silence);
    }

    /// Records the latency of an attempt.
    pub(crate) fn observe_latency(&self, now: Duration, observed: Duration) {
        let mut latency = self.latency.get();
        latency.observe(now, observed);
        self.latency.set(latency);
    }
}

impl UpstreamContext {
    pub(crate) fn new(
        topology: Arc<Topology>,
        counters: Arc<Counters>,
        random: Random,
    ) -> Rc<UpstreamContext> {
        let config = &topology.config;
        let clock = Clock::new(topology.registry.started());
        let now = clock.now();
        let upstreams = topology.upstreams.iter();
        let upstreams = upstreams.map(|upstream| {
            Rc::new(LocalUpstream::new(&topology, &counters, upstream, now, EWMA_START))
        });
        let hedges = config.groups.iter().map(|group| new_hedge(group.hedge.as_ref()));
        let budget = RetryBudget::new(config.retry.share_max, config.retry.rate_min);
        Rc::new(UpstreamContext {
            upstreams: upstreams.collect(),
            balancers: balancers(config),
            hedges: hedges.collect(),
            retry_budget: Rc::new(RefCell::new(budget)),
            second_opinions: Rc::new(RefCell::new(second_opinion_budget(config))),
            permits: permits(&topology, &counters, &[]),
            buffers: Rc::default(),
            clock: Rc::new(clock),
            random: Rc::new(random),
            next_id: Rc::new(Cell::new(1)),
            topology,
            counters,
        })
    }

    /// Returns the upstreams under a new configuration. Upstreams with unchanged connection
    /// settings keep their connections and latencies. Other connections are closed, after their
    /// call if they are in use.
    pub(crate) fn reload(
        &self,
        topology: Arc<Topology>,
        counters: Arc<Counters>,
    ) -> Rc<UpstreamContext> {
        let config = &topology.config;
        let now = topology.now();
        let is_unchanged = |upstream: &UpstreamState, previous: &UpstreamState| {
            upstream.is_same_as(previous) && upstream.config.connects_like(&previous.config)
        };
        let upstreams = topology.upstreams.iter().map(|upstream| {
            let mut known = self.topology.upstreams.iter();
            let index = known.position(|previous| is_unchanged(upstream, previous));
            let local = index.and_then(|index| self.upstreams.get(index)).cloned();
            let fits = |local: &Rc<LocalUpstream>| {
                local
                    .multiplexed
                    .as_ref()
                    .is_none_or(|multiplexed| multiplexed.has_settings_of(config))
            };
            local.filter(fits).unwrap_or_else(|| {
                Rc::new(LocalUpstream::new(&topology, &counters, upstream, now, EWMA_READMITTED))
            })
        });
        let upstreams = upstreams.collect();
        let upstreams: Vec<Rc<LocalUpstream>> = upstreams;
        for local in &self.upstreams {
            if !upstreams.iter().any(|kept| Rc::ptr_eq(kept, local)) {
                local.close();
            }
        }
        let previous = &self.topology.config;
        let qualified_name = |config: &Config, group: &Group| {
            (Arc::clone(&config.chains[group.chain].name), Arc::clone(&group.name))
        };
        let hedges = config.groups.iter().map(|group| {
            let old_index = previous.groups.iter().position(|old_group| {
                qualified_name(previous, old_group) == qualified_name(config, group)
                    && old_group.hedge == group.hedge
            });
            let hedge = old_index.map(|old_index| Rc::clone(&self.hedges[old_index]));
            hedge.unwrap_or_else(|| new_hedge(group.hedge.as_ref()))
        });
        let hedges = hedges.collect();
        let same_budget = (previous.retry.share_max, previous.retry.rate_min)
            == (config.retry.share_max, config.retry.rate_min);
        let (retry_budget, second_opinions) = if same_budget {
            (Rc::clone(&self.retry_budget), Rc::clone(&self.second_opinions))
        } else {
            let budget = RetryBudget::new(config.retry.share_max, config.retry.rate_min);
            (Rc::new(RefCell::new(budget)), Rc::new(RefCell::new(second_opinion_budget(config))))
        };
        Rc::new(UpstreamContext {
            upstreams,
            balancers: balancers(config),
            hedges,
            retry_budget,
            second_opinions,
            permits: permits(&topology, &counters, &self.permits),
            buffers: Rc::clone(&self.buffers),
            clock: Rc::clone(&self.clock),
            random: Rc::clone(&self.random),
            next_id: Rc::clone(&self.next_id),
            topology,
            counters,
        })
    }

    /// Returns the next private id of a call to an upstream.
    pub(crate) fn next_id(&self) -> u64 {
        let id = self.next_id.get();
        self.next_id.set(id + 1);
        id
    }

    /// Counts an attempt that starts.
    pub(crate) fn attempt_started(&self, upstream: usize) {
        let local = &self.upstreams[upstream];
        let mut silence = local.silence.get();
        silence.record_call(self.now(), local.in_flight.get() == 0);
        local.silence.set(silence);
        local.in_flight.update(|calls| calls + 1);
        self.counters.upstreams[upstream].in_flight.add(1);
    }

    /// Counts an attempt that ends.
    pub(crate) fn attempt_ended(&self, upstream: usize) {
        self.upstreams[upstream].in_flight.update(|calls| calls - 1);
        self.counters.upstreams[upstream].in_flight.subtract_one();
    }

    /// See [`Clock::tick`].
    pub(crate) fn tick(&self) -> Instant {
        self.clock.tick()
    }

    /// See [`Clock::recent`].
    pub(crate) fn recent(&self) -> Instant {
        self.clock.recent()
    }

    /// See [`Clock::now`].
    pub(crate) fn now(&self) -> Duration {
        self.clock.now()
    }

    pub(crate) fn random(&self) -> u64 {
        self.random.next()
    }

    /// Closes connections that have been idle for too long. Called each second.
    pub(crate) fn sweep(&self) {
        let now = self.tick();
        for upstream in &self.upstreams {
            upstream.pool.sweep(now);
            if let Some(multiplexed) = &upstream.multiplexed {
                multiplexed.sweep(now);
            }
        }
    }
}

fn balancers(config: &Config) -> Vec<RefCell<Balancer>> {
    config.groups.iter().map(|group| RefCell::new(Balancer::new(config, group))).collect()
}

/// Returns the permits of all groups. A group whose limit survives a reload keeps its permits.
fn permits(
    topology: &Topology,
    counters: &Counters,
    previous: &[Option<Rc<GroupPermits>>],
) -> Vec<Option<Rc<GroupPermits>>> {
    let counts = &counters.groups;
    let permits = |(group, (_, counts)): (&GroupState, (_, _))| {
        let limit = group.concurrency_limit.as_ref();
        let kept = previous.iter().flatten().find(|permits| permits.is_of(limit));
        kept.cloned().or_else(|| GroupPermits::new(&topology.config, limit, counts))
    };
    topology.groups.iter().zip(counts.iter()).map(permits).collect()
}

/// Returns the budget of further attempts after responses that may be incomplete.
fn second_opinion_budget(config: &Config) -> RetryBudget {
    RetryBudget::new(SECOND_OPINIONS_SHARE, config.retry.rate_min)
}

fn new_hedge(config: Option<&crate::config::group::Hedge>) -> Rc<RefCell<Hedge>> {
    let settings = config.map(|config| HedgeSettings {
        quantile: config.quantile,
        delay_min: config.delay_min,
        share_max: config.share_max,
    });
    Rc::new(RefCell::new(Hedge::new(settings)))
}
