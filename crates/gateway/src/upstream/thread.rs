//! The state of the upstreams in one thread: connections, balancers, budgets and queues.
//!
//! Each serving thread has one [`UpstreamContext`] per configuration. Threads share state only
//! through [`Topology`], so nothing here is locked.

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

/// Maximum number of second opinions per call, averaged over all calls. A second opinion is a
/// further attempt after a response that may be incomplete. For some seconds, all calls may be
/// about blocks that upstreams have not indexed yet. Each of these calls may use all its retries
/// for second opinions, so the value equals the default of `retries_max`.
const SECOND_OPINIONS_SHARE: f64 = 2.0;

/// The upstreams of one configuration, as one thread uses them.
pub(crate) struct UpstreamContext {
    pub(crate) topology: Arc<Topology>,
    /// The counters of this thread.
    pub(crate) counters: Arc<Counters>,
    /// Reusable buffers of this thread.
    pub(crate) buffers: Rc<Buffers>,
    /// The state of each upstream, in the order of the configuration.
    pub(crate) upstreams: Vec<Rc<LocalUpstream>>,
    /// The balancer of each group, in the order of the configuration.
    pub(crate) balancers: Vec<RefCell<Balancer>>,
    /// The latencies and the hedge budget of each group. A hedge is a further attempt that starts
    /// because a call is slow.
    pub(crate) hedges: Vec<Rc<RefCell<Hedge>>>,
    /// Limits retries of all groups together.
    pub(crate) retry_budget: Rc<RefCell<RetryBudget>>,
    /// Limits second opinions of all groups together.
    pub(crate) second_opinions: Rc<RefCell<RetryBudget>>,
    /// The permits of each group; `None` if calls to upstreams are not limited. A permit allows one
    /// call to be in flight.
    pub(crate) permits: Vec<Option<Rc<GroupPermits>>>,
    clock: Rc<Clock>,
    random: Rc<Random>,
    /// The next id of a call to an upstream.
    next_id: Rc<Cell<u64>>,
}

/// One thread's state of an upstream.
pub(crate) struct LocalUpstream {
    /// HTTP/1.1 connections.
    pub(crate) pool: Pool,
    /// Multiplexed connections; `None` if the upstream has no address for them.
    pub(crate) multiplexed: Option<Rc<MultiplexedPool>>,
    /// HTTP/2 connections; `None` if HTTP/2 is off.
    pub(crate) http2: Option<Rc<Http2>>,
    /// Batches of calls; `None` if batches are off.
    pub(crate) batcher: Option<Rc<Batcher>>,
    /// Moving average of the latency of attempts, for load balancing.
    pub(crate) latency: Cell<PeakEwma>,
    /// Number of readmissions of the upstream when `latency` was last reset.
    readmissions: Cell<u64>,
    /// Number of this thread's attempts in flight at the upstream.
    pub(crate) in_flight: Cell<u32>,
    /// Measures how long attempts have waited without any response.
    pub(crate) silence: Cell<Silence>,
}

impl LocalUpstream {
    fn new(
        topology: &Topology,
        counters: &Counters,
        index: usize,
        now: Duration,
        initial_latency: Duration,
    ) -> LocalUpstream {
        let (config, upstream) = (&topology.config, &topology.upstreams[index]);
        let counts = &counters.upstreams[index];
        let method_count = topology.chains[upstream.config.chain].family.methods().count();
        let connections_max = upstream.config.connections_max.div_ceil(config.server.threads);
        LocalUpstream {
            pool: Pool::new(connections_max, upstream.config.idle_timeout),
            multiplexed: MultiplexedPool::new(
                config,
                &upstream.config,
                &upstream.connector,
                method_count,
                counts,
            ),
            http2: Http2::new(config, &upstream.config, &upstream.connector, counts),
            batcher: Batcher::new(&upstream.config),
            latency: Cell::new(PeakEwma::new(now, initial_latency)),
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

    /// Returns the cost of one more call to the upstream; the balancer prefers a low cost. After a
    /// readmission the average latency restarts from a default.
    pub(crate) fn cost(&self, upstream: &UpstreamState, now: Duration) -> f64 {
        let readmissions = upstream.readmissions.load(Ordering::Relaxed);
        if self.readmissions.replace(readmissions) != readmissions {
            self.latency.set(PeakEwma::new(now, EWMA_READMITTED));
        }
        let in_flight = self.in_flight.get();
        self.latency.get().cost(now, in_flight, self.silence(now))
            / f64::from(upstream.config.weight)
    }

    /// Returns how long calls have waited without any response; zero if no call is in flight.
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

    /// Returns the context for a new configuration. Upstreams with unchanged connection settings
    /// keep their connections and latencies. Connections to other upstreams are closed: idle
    /// connections now, connections in use after their call.
    pub(crate) fn reload(
        &self,
        topology: Arc<Topology>,
        counters: Arc<Counters>,
    ) -> Rc<UpstreamContext> {
        let random = Rc::clone(&self.random);
        let context = UpstreamContext::build(topology, counters, random, Some(self));
        for local in &self.upstreams {
            if !context.upstreams.iter().any(|kept_upstream| Rc::ptr_eq(kept_upstream, local)) {
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
        // A reload gives new upstreams a low initial latency, so that they get calls at once.
        let initial_latency = if previous.is_some() { EWMA_READMITTED } else { EWMA_START };
        let upstreams = topology.upstreams.iter().enumerate().map(|(index, upstream)| {
            let kept_upstream =
                previous.and_then(|previous| previous.kept_upstream(upstream, config));
            kept_upstream.unwrap_or_else(|| {
                Rc::new(LocalUpstream::new(&topology, &counters, index, now, initial_latency))
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
        Rc::new(UpstreamContext {
            upstreams: upstreams.collect(),
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

    /// Returns this context's state of an upstream, to keep it under the new configuration
    /// `config`. Returns `None` if the upstream is new or its connection settings have changed.
    fn kept_upstream(
        &self,
        upstream: &UpstreamState,
        config: &Config,
    ) -> Option<Rc<LocalUpstream>> {
        let index = self.topology.upstreams.iter().position(|previous| {
            upstream.is_same_as(previous) && upstream.config.connects_like(&previous.config)
        })?;
        let local = &self.upstreams[index];
        let has_same_settings =
            local.multiplexed.as_ref().is_none_or(|pool| pool.has_settings_of(config));
        has_same_settings.then(|| Rc::clone(local))
    }

    /// Returns this context's hedge budget of a group, to keep it under the new configuration
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

    /// Returns a new id for a call to an upstream. The upstream receives this id instead of the
    /// client's id.
    pub(crate) fn next_id(&self) -> u64 {
        let id = self.next_id.get();
        self.next_id.set(id + 1);
        id
    }

    /// Counts an attempt that starts.
    pub(crate) fn attempt_started(&self, upstream: usize) {
        let local = &self.upstreams[upstream];
        let mut silence = local.silence.get();
        let is_idle = local.in_flight.get() == 0;
        silence.record_call(self.now(), is_idle);
        local.silence.set(silence);
        local.in_flight.update(|calls| calls + 1);
        self.counters.upstreams[upstream].in_flight.add(1);
    }

    /// Counts an attempt that ends.
    pub(crate) fn attempt_ended(&self, upstream: usize) {
        self.upstreams[upstream].in_flight.update(|calls| calls - 1);
        self.counters.upstreams[upstream].in_flight.subtract_one();
    }

    /// Reads the clock, so that `instant` and `now` return the current time. Called after each
    /// wait. See [`Clock::tick`].
    pub(crate) fn tick(&self) -> Instant {
        self.clock.tick()
    }

    /// Returns the time of the last tick. See [`Clock::instant`].
    pub(crate) fn instant(&self) -> Instant {
        self.clock.instant()
    }

    /// Returns the time of the last tick, counted from the start of the process. See
    /// [`Clock::now`].
    pub(crate) fn now(&self) -> Duration {
        self.clock.now()
    }

    /// Returns a pseudo-random number.
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
    let permits = groups.map(|(group, (_label, counts))| {
        let limit = group.concurrency_limit.as_ref();
        let mut previous_permits =
            previous.into_iter().flat_map(|previous| &previous.permits).flatten();
        let kept_permits = previous_permits.find(|permits| permits.belong_to(limit)).cloned();
        kept_permits.or_else(|| GroupPermits::new(&topology.config, limit, counts))
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
