//! One load run from start to end; this is the only place that defines the order of its steps.
//!
//! The engine decides what is sent when, and `analysis` decides what the numbers mean. The caller
//! gets [`Progress`] each second and [`Finished`] at the end.

pub mod open_files;
mod result;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::park_timeout;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lab_engine::engine::simulated::Network;
use lab_engine::engine::subscriptions::Subscriptions;
use lab_engine::engine::transactions::TransactionLog;
use lab_engine::engine::{Engine, EngineFault, Next};
use lab_engine::host::downsample::{self, HostSamples};
use lab_engine::host::{HostFault, Watcher};
use lab_engine::recorder::{ClosedSecond, Recorder};
use lab_model::plan::Plan;
use lab_model::record::Totals;
use lab_model::results::run::{HostSample, RunResult, Second};
use lab_model::results::transactions::{InclusionRow, TransactionsRow};
use lab_model::results::{Fingerprint, Quantiles, TargetFacts, ThresholdOutcome};

use crate::analysis::thresholds::Judge;
use crate::analysis::verdict::Early;
use crate::inclusion::InclusionWatcher;
use crate::reference::{Comparison, ReferenceFault, SampledCall};
use crate::target::TargetFault;
use crate::wording::verdict::threshold_outcome;
use crate::{fingerprint, target};

use result::RunData;

/// Time between the start of host sampling and the first call; it gives a baseline without load.
const BASELINE_TIME: Duration = Duration::from_millis(600);
/// Interval at which a wait checks if the stop was requested.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(25);
/// Time that a run takes besides its load: for the calls to the target before and after it, samples
/// of the idle hosts, and calls in flight at the end.
pub(crate) const RUN_OVERHEAD: Duration = Duration::from_secs(2);
/// Longest wait for an interval of the engine.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Reason why a run failed. Failures of the target under load are results, not errors.
#[derive(Debug, thiserror::Error)]
pub enum RunFault {
    /// The target cannot be used.
    #[error(transparent)]
    Target(#[from] TargetFault),
    /// The reference cannot be used.
    #[error(transparent)]
    Reference(#[from] ReferenceFault),
    /// Hosts cannot be sampled as the plan requires.
    #[error(transparent)]
    Host(#[from] HostFault),
    /// The engine cannot generate the load.
    #[error(transparent)]
    Engine(#[from] EngineFault),
}

/// Executes a plan and returns its result. `on_second` is called at the end of each second.
///
/// # Errors
/// Fails if the target or the reference is unreachable or not what the plan needs, or if this host
/// cannot generate the load.
pub fn run(
    plan: &Arc<Plan>,
    stop: &Stop,
    on_second: &mut dyn FnMut(&Progress<'_>),
) -> Result<Finished, RunFault> {
    let probed = target::probe(plan)?;
    let address = probed.addresses.first().copied();
    let mut comparison = Comparison::start(plan)?;
    let fingerprint = fingerprint::read(address);

    let origin = Instant::now() + BASELINE_TIME;
    let started = unix_now() + BASELINE_TIME.as_secs_f64();
    let watcher = Watcher::start(&plan.watch, address, origin)?;
    let subscriptions = start_subscriptions(plan, origin)?;
    let chain = Arc::new(probed.chain);
    let mut engine = Engine::start(Arc::clone(plan), chain, probed.addresses, origin)?;
    let log = engine.transactions().cloned();
    let (inclusion, unwatched) = start_inclusion(plan, log.as_ref(), origin);

    let mut recording = Recording::new(plan, &probed.facts, Some(watcher), origin);
    recording.record(&mut engine, comparison.as_mut(), inclusion, stop, on_second);
    let skipped = engine.samples_skipped();
    engine.finish()?;
    let subscriptions = subscriptions.map_or(Ok(Vec::new()), Subscriptions::finish)?;

    let head_end = target::read_head(plan, &probed.facts.family);
    let compared = comparison.map(|comparison| comparison.finish(skipped));
    let mut data = RunData {
        fingerprint,
        compared,
        subscriptions,
        warnings: [probed.warnings, unwatched.into_iter().collect()].concat(),
        ..recording.into_data(started)
    };
    data.target.head_end = head_end;
    Ok(data.into_finished())
}

/// Starts to look for the plan's transactions in blocks. Returns a warning if that is impossible.
fn start_inclusion(
    plan: &Plan,
    log: Option<&Arc<TransactionLog>>,
    origin: Instant,
) -> (Option<InclusionWatcher>, Option<String>) {
    match log.map(|log| InclusionWatcher::start(plan, log, origin)) {
        Some(Ok(watcher)) => (Some(watcher), None),
        Some(Err(reason)) => (None, Some(crate::wording::transactions::unwatched(&reason))),
        None => (None, None),
    }
}

/// Starts the subscriptions of a plan.
fn start_subscriptions(
    plan: &Arc<Plan>,
    origin: Instant,
) -> Result<Option<Subscriptions>, RunFault> {
    let servers = plan.subscriptions.iter().map(|subscription| &subscription.target);
    let addresses = servers.map(target::resolve).collect::<Result<Vec<_>, _>>()?;
    Ok(Subscriptions::start(plan, addresses, origin)?)
}

/// Executes a plan in a simulated network, in virtual time and without host samples. Loop, analysis
/// and result are those of [`run`].
///
/// # Errors
/// Fails if the simulation does not support the plan.
pub fn replay(
    plan: &Arc<Plan>,
    network: &Network,
    on_second: &mut dyn FnMut(&Progress<'_>),
) -> Result<Finished, RunFault> {
    let target = TargetFacts::default();
    let mut engine = Engine::simulated(Arc::clone(plan), &Arc::default(), network)?;
    let mut recording = Recording::new(plan, &target, None, Instant::now());
    recording.record(&mut engine, None, None, &Stop::new(), on_second);
    engine.finish()?;
    Ok(recording.into_data(0.0).into_finished())
}

/// The state of a run while the load goes on.
struct Recording<'a> {
    plan: &'a Plan,
    /// Start of the load.
    origin: Instant,
    target: &'a TargetFacts,
    recorder: Recorder,
    judge: Judge,
    /// None in a simulation.
    watcher: Option<Watcher>,
    host_samples: HostSamples,
    early: Option<Early>,
    /// End of the latest interval of any engine thread.
    reached: Duration,
    transactions: Option<TransactionsRow>,
}

impl<'a> Recording<'a> {
    fn new(
        plan: &'a Plan,
        target: &'a TargetFacts,
        watcher: Option<Watcher>,
        origin: Instant,
    ) -> Recording<'a> {
        Recording {
            plan,
            origin,
            target,
            recorder: Recorder::new(plan),
            judge: Judge::new(plan),
            watcher,
            host_samples: HostSamples::new(downsample::SAMPLES_MAX),
            early: None,
            reached: Duration::ZERO,
            transactions: None,
        }
    }

    /// Records the intervals and samples of the engine until all its threads have ended.
    fn record(
        &mut self,
        engine: &mut Engine,
        mut comparison: Option<&mut Comparison>,
        inclusion: Option<InclusionWatcher>,
        stop: &Stop,
        on_second: &mut dyn FnMut(&Progress<'_>),
    ) {
        loop {
            match engine.next(POLL_INTERVAL) {
                Next::Interval(interval) => {
                    self.reached = self.reached.max(interval.to);
                    self.recorder.add(&interval);
                    engine.give_back(interval);
                }
                Next::Nothing => {}
                Next::Ended => break,
            }
            while let Ok(sample) = engine.samples().try_recv() {
                if let Some(comparison) = comparison.as_mut() {
                    let (method, request) = (usize::from(sample.method), sample.request);
                    let (at, response) = (self.origin + sample.at, sample.answer);
                    comparison.offer(SampledCall { at, method, request, response });
                }
            }
            if let Some(watcher) = &inclusion {
                self.recorder.add_inclusions(watcher.take_times());
            }
            while let Some(closed) = self.recorder.close() {
                if self.close_second(closed, on_second) && self.early.is_none() {
                    self.early = Some(Early::Aborted(self.reached.as_secs_f64()));
                    engine.stop();
                }
            }
            if stop.is_requested() && self.early.is_none() {
                self.early = Some(Early::StoppedByUser(self.reached.as_secs_f64()));
                engine.stop();
            }
        }
        while let Some(closed) = self.recorder.close_oldest() {
            self.close_second(closed, on_second);
        }
        if let Some(log) = engine.transactions() {
            self.await_inclusion(log, inclusion, stop);
        }
        self.judge.end(self.reached);
        self.take_host_samples();
    }

    /// Waits until the sent transactions are in blocks, and judges those that the load did not wait
    /// for.
    fn await_inclusion(
        &mut self,
        log: &TransactionLog,
        inclusion: Option<InclusionWatcher>,
        stop: &Stop,
    ) {
        let seen = inclusion.map(|watcher| watcher.finish(&|| stop.is_requested()));
        let counts = log.count();
        let (pending, times, inclusion) = match seen {
            // Nothing was seen in a block.
            None => (counts.sent - counts.refused, Vec::new(), None),
            Some(seen) => {
                let row = InclusionRow {
                    included: seen.included,
                    pending: seen.pending,
                    time: Quantiles::default(),
                    interval: self.plan.inclusion.interval.as_secs_f64(),
                    waited: seen.waited.as_secs_f64(),
                    blocks: seen.blocks,
                    polls_failed: seen.polls_failed,
                };
                (seen.pending, seen.times, Some(row))
            }
        };
        let late = self.recorder.add_late_inclusions(&times, pending);
        self.judge.add_second(self.reached, self.reached, &late);
        let plan = self.plan.transactions();
        self.transactions = Some(TransactionsRow {
            total: log.hashes().len() as u64,
            senders: plan.map_or(0, |transactions| transactions.first_of_senders.len() as u64),
            sent: counts.sent,
            accepted: counts.accepted,
            refused: counts.refused,
            unanswered: counts.sent - counts.accepted - counts.refused,
            refusals: log.messages(),
            inclusion,
        });
    }

    /// Returns the recorded data of a run, with the target as it was at the start. `started` is in
    /// seconds since 1970.
    fn into_data(self, started: f64) -> RunData<'a> {
        RunData {
            plan: self.plan,
            started,
            target: self.target.clone(),
            fingerprint: Fingerprint::default(),
            end: self.load_end(),
            recorded: self.recorder.finish(),
            threshold_results: self.judge.threshold_results(),
            early: self.early,
            host: self.host_samples.samples(),
            watched: self.watcher.map(Watcher::finish).unwrap_or_default(),
            compared: None,
            subscriptions: Vec::new(),
            transactions: self.transactions,
            warnings: Vec::new(),
        }
    }

    /// Returns the end of the load. A run that ended early, or that has a limited number of
    /// iterations, ended its load with the last interval of its threads. In other runs the threads
    /// end with their last call, a little before the planned end, which counts.
    fn load_end(&self) -> Duration {
        let mut scenarios = self.plan.scenarios.iter();
        let counted = scenarios.any(|scenario| scenario.iterations_limit().is_some());
        let planned = self.plan.duration();
        if self.early.is_some() || counted { self.reached.min(planned) } else { planned }
    }

    /// Stores and returns the host samples since the last call.
    fn take_host_samples(&mut self) -> Vec<HostSample> {
        let host = self.watcher.as_mut().map(Watcher::take).unwrap_or_default();
        host.iter().for_each(|sample| self.host_samples.push(sample));
        host
    }

    /// Evaluates the thresholds and reports a second; returns true if a threshold aborts the run.
    fn close_second(
        &mut self,
        closed: ClosedSecond,
        on_second: &mut dyn FnMut(&Progress<'_>),
    ) -> bool {
        let abort =
            closed.measured && self.judge.add_second(closed.from, closed.to, &closed.counts);
        let host = self.take_host_samples();
        on_second(&Progress {
            elapsed: closed.to,
            duration: self.plan.duration(),
            plan: self.plan,
            target: self.target,
            second: &closed.second,
            totals: self.recorder.total(),
            host: &host,
            thresholds: &self
                .judge
                .threshold_results()
                .iter()
                .map(threshold_outcome)
                .collect::<Vec<_>>(),
        });
        self.recorder.give_back(closed.counts);
        abort
    }
}

/// Stops a run early, from another thread or from a signal handler. Calls in flight are
/// interrupted; the result is complete up to then and marked as partial.
#[derive(Debug, Default)]
pub struct Stop(AtomicBool);

impl Stop {
    /// Creates a stop that is not requested yet.
    pub fn new() -> Stop {
        Stop::default()
    }

    /// Requests the stop; further requests have no effect.
    pub fn request(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Returns true if the stop was requested.
    pub fn is_requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Waits until the time is over or the stop is requested.
    pub fn wait(&self, time: Duration) {
        let start = Instant::now();
        while start.elapsed() < time && !self.is_requested() {
            park_timeout(STOP_POLL_INTERVAL.min(time.saturating_sub(start.elapsed())));
        }
    }
}

/// Returns the seconds since 1970.
pub(crate) fn unix_now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// The state of a run at the end of a second.
pub struct Progress<'a> {
    /// Time since the start of the run.
    pub elapsed: Duration,
    /// Duration of the plan, without the grace period for calls in flight.
    pub duration: Duration,
    /// The plan, for names of methods and stages.
    pub plan: &'a Plan,
    /// The target as it was at the start.
    pub target: &'a TargetFacts,
    /// The second that has just ended.
    pub second: &'a Second,
    /// Totals since the start of the run, with the warm-up.
    pub totals: &'a Totals,
    /// Host samples since the previous second.
    pub host: &'a [HostSample],
    /// Outcomes of the thresholds so far.
    pub thresholds: &'a [ThresholdOutcome],
}

/// A finished run.
#[derive(Clone, Debug)]
pub struct Finished {
    /// The result.
    pub result: RunResult,
    /// Totals without the warm-up.
    pub totals: Totals,
}
