//! Executes one load run from start to end. Only this file defines the order of the steps of a run.
//!
//! `lab_engine` schedules and sends the calls, and `analysis` interprets the numbers. The caller of
//! [`run`] gets [`Progress`] each second and [`Finished`] at the end.
//!
//! Each thread of the engine reports its counts at short intervals. A recorder adds the counts of
//! all threads up for each second. It closes a second when all threads have reported the counts of
//! that second. A judge then evaluates the thresholds of the plan.
//!
//! A plan may name a reference: a trusted node whose responses are compared with the target's.

pub mod open_files;
mod result;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::park_timeout;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lab_engine::engine::subscriptions::Subscriptions;
use lab_engine::engine::transactions::TransactionLog;
use lab_engine::engine::{Engine, EngineEvent, EngineFault};
use lab_engine::host::downsample::{self, HostSamples};
use lab_engine::host::{HostFault, Watcher};
use lab_engine::recorder::{ClosedSecond, Recorder};
use lab_model::plan::Plan;
use lab_model::record::Totals;
use lab_model::results::run::{HostSample, RunResult, Second};
use lab_model::results::transactions::{InclusionRow, TransactionsRow};
use lab_model::results::{Fingerprint, Quantiles, TargetFacts, ThresholdOutcome};

use crate::analysis::thresholds::Judge;
use crate::analysis::verdict::EarlyEnd;
use crate::inclusion::InclusionWatcher;
use crate::reference::{Comparison, ReferenceFault, SampledCall};
use crate::target::TargetFault;
use crate::target::client::message_of;
use crate::wording::verdict::threshold_outcome;
use crate::{fingerprint, target};

use result::RunData;

/// Time between the start of host sampling and the first call. The samples of this time are a
/// baseline without load.
const BASELINE_TIME: Duration = Duration::from_millis(600);
/// Interval at which a wait checks if the stop was requested.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(25);
/// Estimated time that a run takes in addition to its load. It covers the calls that identify the
/// target, the host samples without load, and the calls in flight at the end.
pub(crate) const RUN_OVERHEAD: Duration = Duration::from_secs(2);
/// Longest wait for the next interval of counts from the engine.
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

/// Executes a plan and returns its result. Calls `on_second` at the end of each second. If `stop`
/// is requested, the run ends early.
///
/// # Errors
/// Fails if the target or the reference is unreachable or does not suit the plan, or if this host
/// cannot generate the load.
pub fn run(
    plan: &Arc<Plan>,
    stop: &Stop,
    on_second: &mut dyn FnMut(&Progress<'_>),
) -> Result<Finished, RunFault> {
    let mut probed = target::probe(plan)?;
    let plan = &probed.reduced_plan.take().map_or_else(|| Arc::clone(plan), Arc::new);
    let address = probed.addresses.first().copied();
    let mut comparison = Comparison::start(plan)?;
    let fingerprint = fingerprint::read(address);

    // Both values are the start of the load: `origin` on the monotonic clock, and `started` in
    // seconds since 1970.
    let origin = Instant::now() + BASELINE_TIME;
    let started = unix_now() + BASELINE_TIME.as_secs_f64();
    let watcher = Watcher::start(&plan.watch, address, origin)?;
    let subscriptions = start_subscriptions(plan, origin)?;
    let chain = Arc::new(probed.chain);
    let mut engine = Engine::start(Arc::clone(plan), chain, probed.addresses, origin)?;
    let log = engine.transactions().cloned();
    let (inclusion, inclusion_warning) = start_inclusion(plan, log.as_ref(), origin);

    let mut recording = Recording::new(plan, &probed.facts, Some(watcher), origin);
    recording.record(&mut engine, comparison.as_mut(), inclusion, stop, on_second);
    let samples_skipped = engine.samples_skipped();
    let error_texts = engine.error_bodies().into_iter();
    let error_texts = error_texts.map(|(status, body)| (status, message_of(&body, &plan.target)));
    engine.finish()?;
    let subscriptions = subscriptions.map_or(Ok(Vec::new()), Subscriptions::finish)?;

    let head_end = target::read_head(plan, &probed.facts.family);
    let compared = comparison.map(|comparison| comparison.finish(samples_skipped));
    let mut data = RunData {
        fingerprint,
        compared,
        subscriptions,
        error_texts: error_texts.collect(),
        warnings: [probed.warnings, inclusion_warning.into_iter().collect()].concat(),
        ..recording.into_data(started)
    };
    data.target.head_end = head_end;
    Ok(data.into_finished())
}

/// Starts to look for the plan's transactions in blocks. `log` has the states of the transactions,
/// or is `None` if the plan sends none. Returns the watcher, or a warning if it cannot start.
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

/// Starts the subscriptions of a plan. Returns `None` if the plan has no subscriptions.
fn start_subscriptions(
    plan: &Arc<Plan>,
    origin: Instant,
) -> Result<Option<Subscriptions>, RunFault> {
    let servers = plan.subscriptions.iter().map(|subscription| &subscription.target);
    let addresses = servers.map(target::resolve).collect::<Result<Vec<_>, _>>()?;
    Ok(Subscriptions::start(plan, addresses, origin)?)
}

/// Records and analyses the run of an engine in a simulated network, which has no hosts. Both are
/// the same as in [`run`].
///
/// # Errors
/// Fails if a thread of the engine ended with an error.
pub fn replay(plan: &Arc<Plan>, mut engine: Engine) -> Result<Finished, RunFault> {
    let target = TargetFacts::default();
    let mut recording = Recording::new(plan, &target, None, Instant::now());
    recording.record(&mut engine, None, None, &Stop::new(), &mut |_| {});
    engine.finish()?;
    Ok(recording.into_data(0.0).into_finished())
}

/// The state of a run during its load.
struct Recording<'a> {
    plan: &'a Plan,
    /// Start of the load.
    origin: Instant,
    target: &'a TargetFacts,
    recorder: Recorder,
    /// Evaluates the thresholds.
    judge: Judge,
    /// Samples the hosts. `None` in a simulation, which has no hosts.
    watcher: Option<Watcher>,
    /// The samples so far. In a long run, neighbouring samples are merged.
    host_samples: HostSamples,
    /// Reason and time of an early end; `None` if the run was not ended early.
    early_end: Option<EarlyEnd>,
    /// End of the latest interval that any engine thread has reported, since `origin`.
    latest_interval_end: Duration,
    /// Counts of the transactions. `None` until the load has ended, or if the plan sends no
    /// transactions.
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
            early_end: None,
            latest_interval_end: Duration::ZERO,
            transactions: None,
        }
    }

    /// Records the intervals and samples of the engine until all its threads have ended. Then waits
    /// for pending transactions, and ends the evaluation of the thresholds. `comparison` gets the
    /// samples, which are calls with their responses. `inclusion` finds transactions in blocks.
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
                EngineEvent::Interval(interval) => {
                    self.latest_interval_end = self.latest_interval_end.max(interval.to);
                    self.recorder.add(&interval);
                    engine.give_back(interval);
                }
                EngineEvent::Nothing => {}
                EngineEvent::Ended => break,
            }
            while let Ok(sample) = engine.samples().try_recv() {
                if let Some(comparison) = comparison.as_mut() {
                    let (method, request) = (usize::from(sample.method), sample.request);
                    let (responded_at, response) = (self.origin + sample.at, sample.response);
                    comparison.offer(SampledCall { at: responded_at, method, request, response });
                }
            }
            if let Some(watcher) = &inclusion {
                self.recorder.add_inclusions(watcher.take_times());
            }
            while let Some(closed) = self.recorder.close() {
                if self.close_second(closed, on_second) && self.early_end.is_none() {
                    self.early_end =
                        Some(EarlyEnd::Aborted(self.latest_interval_end.as_secs_f64()));
                    engine.stop();
                }
            }
            if stop.is_requested() && self.early_end.is_none() {
                // The latest interval may have ended up to a second ago.
                self.early_end = Some(EarlyEnd::StoppedByUser(self.origin.elapsed().as_secs_f64()));
                engine.stop();
            }
        }
        // All threads have ended, so the open seconds are complete.
        while let Some(closed) = self.recorder.close_oldest() {
            self.close_second(closed, on_second);
        }
        if let Some(log) = engine.transactions() {
            self.await_inclusion(log, inclusion, stop);
        }
        self.judge.end(self.latest_interval_end);
        self.take_host_samples();
    }

    /// Waits until the sent transactions are in blocks. Then updates the totals and the thresholds:
    /// adds the transactions that were included after the load, and the transactions that are still
    /// pending.
    fn await_inclusion(
        &mut self,
        log: &TransactionLog,
        inclusion: Option<InclusionWatcher>,
        stop: &Stop,
    ) {
        let inclusions = inclusion.map(|watcher| watcher.finish(&|| stop.is_requested()));
        let counts = log.count();
        let (pending, times, inclusion_row) = match inclusions {
            // The blocks were not read, so every transaction that was not refused counts as
            // pending.
            None => (counts.sent - counts.refused, Vec::new(), None),
            Some(inclusions) => {
                let row = InclusionRow {
                    included: inclusions.included,
                    pending: inclusions.pending,
                    // `into_finished` sets this field, because only it knows the times without the
                    // warm-up.
                    time: Quantiles::default(),
                    interval: self.plan.inclusion.interval.as_secs_f64(),
                    waited: inclusions.waited.as_secs_f64(),
                    blocks: inclusions.blocks,
                    polls_failed: inclusions.polls_failed,
                };
                (inclusions.pending, inclusions.times, Some(row))
            }
        };
        let late_counts = self.recorder.add_late_inclusions(&times, pending);
        self.judge.add_second(self.latest_interval_end, self.latest_interval_end, &late_counts);
        let plan = self.plan.transactions();
        self.transactions = Some(TransactionsRow {
            total: log.hashes().len() as u64,
            // `first_of_senders` has one entry per sender.
            senders: plan.map_or(0, |transactions| transactions.first_of_senders.len() as u64),
            sent: counts.sent,
            accepted: counts.accepted,
            refused: counts.refused,
            unanswered: counts.sent - counts.accepted - counts.refused,
            refusals: log.messages(),
            inclusion: inclusion_row,
        });
    }

    /// Returns the recorded data of a run, with the target as it was at the start. The caller adds
    /// the comparison, the subscriptions and the warnings. `started` is in seconds since 1970.
    fn into_data(self, started: f64) -> RunData<'a> {
        RunData {
            plan: self.plan,
            started,
            target: self.target.clone(),
            fingerprint: Fingerprint::default(),
            end: self.load_end(),
            recorded: self.recorder.finish(),
            threshold_results: self.judge.threshold_results(),
            early_end: self.early_end,
            host: self.host_samples.samples(),
            watched: self.watcher.map(Watcher::finish).unwrap_or_default(),
            compared: None,
            subscriptions: Vec::new(),
            transactions: self.transactions,
            error_texts: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// Returns the time from the start to the end of the load. The load of most runs ends at the
    /// planned time, although the threads may finish their last calls a little earlier. If a run
    /// ended early, or has a limited number of iterations, its load ends with its last interval.
    fn load_end(&self) -> Duration {
        let mut scenarios = self.plan.scenarios.iter();
        let has_iterations_limit = scenarios.any(|scenario| scenario.iterations_limit().is_some());
        let planned_end = self.plan.duration();
        if self.early_end.is_some() || has_iterations_limit {
            self.latest_interval_end.min(planned_end)
        } else {
            planned_end
        }
    }

    /// Stores and returns the host samples since the last call of this function.
    fn take_host_samples(&mut self) -> Vec<HostSample> {
        let host = self.watcher.as_mut().map(Watcher::take).unwrap_or_default();
        host.iter().for_each(|sample| self.host_samples.push(sample));
        host
    }

    /// Evaluates the thresholds and calls `on_second`. Returns true if a threshold aborts the run.
    /// A second of the warm-up does not count for the thresholds.
    fn close_second(
        &mut self,
        closed: ClosedSecond,
        on_second: &mut dyn FnMut(&Progress<'_>),
    ) -> bool {
        let abort =
            closed.is_measured && self.judge.add_second(closed.from, closed.to, &closed.counts);
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
        self.recorder.reuse(closed.counts);
        abort
    }
}

/// A request to stop a run early, from another thread or from a signal handler. After the request,
/// the engine interrupts calls in flight. The result covers the time until the stop and is marked
/// as partial.
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

    /// Waits for `time`, or until the stop is requested.
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
