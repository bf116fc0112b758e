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

/// Maximum number of further attempts after responses that may be incomplete, per call to
/// upstreams. It equals the default of `retries_max`, because for some seconds all calls may be
/// about blocks that upstreams have not indexed yet.
const SECOND_OPINIONS_SHARE: f64 = 2.0;

/// The upstreams of one configuration, as one thread uses them.
pub(crate) struct UpstreamContext {
    pub(crate) topology: Arc<Topology>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) buffers: Rc<Buffers>,
    /// By upstream, as in the configuration.
    pub(crate) upstreams: Vec<Rc<LocalUpstream>>,
    /// By group, as in the configuration.
    pub(crate) balancers: Vec<RefCell<Balancer>>,
    /// By group.
    pub(crate) hedges: Vec<Rc<RefCell<Hedge>>>,
    pub(crate) budget: Rc<RefCell<RetryBudget>>,
    /// Limits further attempts after responses that may be incomplete.
    pub(crate) second_opinions: Rc<RefCell<RetryBudget>>,
    /// By group; `None` if calls to upstreams are not limited.
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
    pub(crate) in_flight: Cell<u32>,
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
        let place = topology.upstreams.iter().position(|own| std::ptr::eq(own, upstream));
        let counts = place.map(|place| Arc::clone(&counters.upstreams[place]));
        let counts = counts.unwrap_or_default();
        let methods = topology.chains[upstream.config.chain].family.count();
        let connections_max = upstream.config.connections_max.div_ceil(config.server.threads);
        LocalUpstream {
            pool: Pool::new(connections_max, upstream.config.idle_timeout),
            multiplexed: MultiplexedPool::new(
                config,
                &upstream.config,
                &upstream.dial,
                methods,
                &counts,
            ),
            http2: Http2::new(config, &upstream.config, &upstream.dial, &counts),
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
        silence.ends(now);
        self.silence.set(silence);
    }

    /// Records the latency of an attempt.
    pub(crate) fn observe_latency(&self, now: Duration, latency_observed: Duration) {
        let mut latency = self.latency.get();
        latency.observe(now, latency_observed);
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
            budget: Rc::new(RefCell::new(budget)),
            second_opinions: Rc::new(RefCell::new(second_opinions(config))),
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
        let same = |upstream: &UpstreamState, before: &UpstreamState| {
            upstream.is_same_as(before) && upstream.config.connects_like(&before.config)
        };
        let upstreams = topology.upstreams.iter().map(|upstream| {
            let before = self.topology.upstreams.iter().position(|before| same(upstream, before));
            let local = before.and_then(|before| self.upstreams.get(before)).cloned();
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
            if !upstreams.iter().any(|own| Rc::ptr_eq(own, local)) {
                local.close();
            }
        }
        let before = &self.topology.config;
        let name = |config: &Config, group: &Group| {
            (Arc::clone(&config.chains[group.chain].name), Arc::clone(&group.name))
        };
        let hedges = config.groups.iter().map(|group| {
            let known = before.groups.iter().position(|own| {
                name(before, own) == name(config, group) && own.hedge == group.hedge
            });
            let known = known.map(|own| Rc::clone(&self.hedges[own]));
            known.unwrap_or_else(|| new_hedge(group.hedge.as_ref()))
        });
        let hedges = hedges.collect();
        let same_budget = (before.retry.share_max, before.retry.rate_min)
            == (config.retry.share_max, config.retry.rate_min);
        let (budget, second) = if same_budget {
            (Rc::clone(&self.budget), Rc::clone(&self.second_opinions))
        } else {
            let budget = RetryBudget::new(config.retry.share_max, config.retry.rate_min);
            (Rc::new(RefCell::new(budget)), Rc::new(RefCell::new(second_opinions(config))))
        };
        Rc::new(UpstreamContext {
            upstreams,
            balancers: balancers(config),
            hedges,
            budget,
            second_opinions: second,
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
        silence.begins(self.now(), local.in_flight.get() == 0);
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
    before: &[Option<Rc<GroupPermits>>],
) -> Vec<Option<Rc<GroupPermits>>> {
    let counts = &counters.groups;
    let permits = |(group, (_, counts)): (&GroupState, (_, _))| {
        let limit = group.concurrency_limit.as_ref();
        let known = before.iter().flatten().find(|permits| permits.is_of(limit));
        known.cloned().or_else(|| GroupPermits::new(&topology.config, limit, counts))
    };
    topology.groups.iter().zip(counts.iter()).map(permits).collect()
}

/// Returns the budget of further attempts after responses that may be incomplete.
fn second_opinions(config: &Config) -> RetryBudget {
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
