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
use crate::policy::choose::{EWMA_READMITTED, EWMA_START, PeakEwma};
use crate::policy::hedge::{Hedge, HedgeSettings};
use crate::policy::retry::RetryBudget;
use crate::policy::stall::Silence;
use crate::upstream::balance::Balancer;
use crate::upstream::batcher::Batcher;
use crate::upstream::http2::Http2;
use crate::upstream::multiplexed_pool::MultiplexedPool;
use crate::upstream::overload::GroupPermits;
use crate::upstream::post::Pool;
use crate::upstream::state::UpstreamState;
use crate::upstream::topology::Topology;

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
    pub(crate) pool: Pool,
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
        index: usize,
        now: Duration,
        latency: Duration,
    ) -> LocalUpstream {
        let (config, upstream) = (&topology.config, &topology.upstreams[index]);
        let counts = &counters.upstreams[index];
        let methods = topology.chains[upstream.config.chain].family.methods().count();
        let connections_max = upstream.config.connections_max.div_ceil(config.server.threads);
        LocalUpstream {
            pool: Pool::new(connections_max, upstream.config.idle_timeout),
            multiplexed: MultiplexedPool::new(
                config,
                &upstream.config,
                &upstream.connector,
                methods,
                counts,
            ),
            http2: Http2::new(config, &upstream.config, &upstream.connector, counts),
            batcher: Batcher::new(&upstream.config),
            latency: Cell::new(PeakEwma::new(now, latency)),
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
            self.latency.set(PeakEwma::new(now, EWMA_READMITTED));
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
        UpstreamContext::build(topology, counters, Rc::new(random), None)
    }

    /// Returns the upstreams under a new configuration. Upstreams with unchanged connection
    /// settings keep their connections and latencies. Other connections are closed, after their
    /// call if they are in use.
    pub(crate) fn reload(
        &self,
        topology: Arc<Topology>,
        counters: Arc<Counters>,
    ) -> Rc<UpstreamContext> {
        let random = Rc::clone(&self.random);
        let context = UpstreamContext::build(topology, counters, random, Some(self));
        for local in &self.upstreams {
            if !context.upstreams.iter().any(|kept| Rc::ptr_eq(kept, local)) {
                local.close();
            }
        }
        context
    }

    fn build(
        topology: Arc<Topology>,
        counters: Arc<Counters>,
        random: Rc<Random>,
        previous: Option<&UpstreamContext>,
    ) -> Rc<UpstreamContext> {
        let (config, now) = (&topology.config, topology.now());
        let latency = if previous.is_some() { EWMA_READMITTED } else { EWMA_START };
        let upstreams = topology.upstreams.iter().enumerate().map(|(index, upstream)| {
            let kept = previous.and_then(|previous| previous.kept_upstream(upstream, config));
            kept.unwrap_or_else(|| {
                Rc::new(LocalUpstream::new(&topology, &counters, index, now, latency))
            })
        });
        let hedges = config.groups.iter().map(|group| {
            let kept = previous.and_then(|previous| previous.kept_hedge(config, group));
            kept.unwrap_or_else(|| new_hedge(group.hedge.as_ref()))
        });
        let retry = &config.retry;
        let same_budget = previous.filter(|previous| {
            let previous = &previous.topology.config.retry;
            (previous.share_max, previous.rate_min) == (retry.share_max, retry.rate_min)
        });
        let new_budget =
            |share_max| Rc::new(RefCell::new(RetryBudget::new(share_max, retry.rate_min)));
        Rc::new(UpstreamContext {
            upstreams: upstreams.collect(),
            balancers: config
                .groups
                .iter()
                .map(|group| RefCell::new(Balancer::new(config, group)))
                .collect(),
            hedges: hedges.collect(),
            retry_budget: match same_budget {
                Some(previous) => Rc::clone(&previous.retry_budget),
                None => new_budget(retry.share_max),
            },
            second_opinions: match same_budget {
                Some(previous) => Rc::clone(&previous.second_opinions),
                None => new_budget(SECOND_OPINIONS_SHARE),
            },
            permits: build_permits(&topology, &counters, previous),
            buffers: previous.map(|previous| Rc::clone(&previous.buffers)).unwrap_or_default(),
            clock: match previous {
                Some(previous) => Rc::clone(&previous.clock),
                None => Rc::new(Clock::new(topology.registry.started)),
            },
            random,
            next_id: match previous {
                Some(previous) => Rc::clone(&previous.next_id),
                None => Rc::new(Cell::new(1)),
            },
            topology,
            counters,
        })
    }

    /// Returns the state of an upstream whose connection settings are unchanged.
    fn kept_upstream(
        &self,
        upstream: &UpstreamState,
        config: &Config,
    ) -> Option<Rc<LocalUpstream>> {
        let index = self.topology.upstreams.iter().position(|previous| {
            upstream.is_same_as(previous) && upstream.config.connects_like(&previous.config)
        })?;
        let local = &self.upstreams[index];
        let fits = local.multiplexed.as_ref().is_none_or(|pool| pool.has_settings_of(config));
        fits.then(|| Rc::clone(local))
    }

    /// Returns the hedge budget of a group whose settings are unchanged.
    fn kept_hedge(&self, config: &Config, group: &Group) -> Option<Rc<RefCell<Hedge>>> {
        let previous_config = &self.topology.config;
        let index = previous_config.groups.iter().position(|previous| {
            previous_config.chains[previous.chain].name == config.chains[group.chain].name
                && previous.name == group.name
                && previous.hedge == group.hedge
        })?;
        Some(Rc::clone(&self.hedges[index]))
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

    /// Reads the clock, so that `recent` and `now` are current. Call this after each wait. See
    /// [`Clock::tick`].
    pub(crate) fn tick(&self) -> Instant {
        self.clock.tick()
    }

    /// Returns the time of the last tick. See [`Clock::recent`].
    pub(crate) fn recent(&self) -> Instant {
        self.clock.recent()
    }

    /// Returns the time of the last tick, counted from the start of the process. See
    /// [`Clock::now`].
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

/// Returns the permits of all groups. A group whose limit survives a reload keeps its permits.
fn build_permits(
    topology: &Topology,
    counters: &Counters,
    previous: Option<&UpstreamContext>,
) -> Vec<Option<Rc<GroupPermits>>> {
    let groups = topology.groups.iter().zip(counters.groups.iter());
    let permits = groups.map(|(group, (_, counts))| {
        let limit = group.concurrency_limit.as_ref();
        let mut known = previous.into_iter().flat_map(|previous| &previous.permits).flatten();
        let kept = known.find(|permits| permits.is_of(limit)).cloned();
        kept.or_else(|| GroupPermits::new(&topology.config, limit, counts))
    });
    permits.collect()
}

fn new_hedge(config: Option<&crate::config::group::Hedge>) -> Rc<RefCell<Hedge>> {
    let settings = config.map(|config| HedgeSettings {
        quantile: config.quantile,
        delay_min: config.delay_min,
        share_max: config.share_max,
    });
    Rc::new(RefCell::new(Hedge::new(settings)))
}
