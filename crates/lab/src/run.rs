//! One run from its first step to its last: the only place that knows the order of the lab's steps.
//!
//! It decides nothing itself: what is sent when is the engine's, what numbers mean is the rules'.
//! Whoever shows or writes something gets [`Progress`] each second and [`Finished`] at the end.

mod told;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use lab_engine::engine::simulated::Network;
use lab_engine::engine::{Engine, EngineFault, Next};
use lab_engine::host::downsample::{self, HostSamples};
use lab_engine::host::{HostFault, Watcher};
use lab_engine::recorder::{ClosedSecond, Recorder};
use lab_model::plan::Plan;
use lab_model::record::Totals;
use lab_model::results::run::{HostFacts, HostSample, RunResult, Second};
use lab_model::results::{Fingerprint, TargetFacts, ThresholdOutcome};

use crate::analysis::thresholds::Judge;
use crate::analysis::verdict::Early;
use crate::reference::{Answered, Comparison, ReferenceFault};
use crate::target::TargetFault;
use crate::wording::verdict::outcome;
use crate::{fingerprint, target};

use told::Seen;

/// Time between the start of watching and the first call: what hosts look like without load.
const BASELINE: Duration = Duration::from_millis(600);
/// How often the run looks up from waiting for the engine.
const TICK: Duration = Duration::from_millis(100);

/// Why a run could not begin, or not go on. Whatever the target does once the load has begun is a
/// result and no fault.
#[derive(Debug, thiserror::Error)]
pub enum RunFault {
    /// The target cannot be loaded.
    #[error(transparent)]
    Target(#[from] TargetFault),
    /// The reference cannot be compared with.
    #[error(transparent)]
    Reference(#[from] ReferenceFault),
    /// Hosts cannot be watched as the plan wants.
    #[error(transparent)]
    Host(#[from] HostFault),
    /// The load cannot be made.
    #[error(transparent)]
    Engine(#[from] EngineFault),
}

/// Does what the plan says and tells what came of it. `see` is called at the end of each second.
///
/// # Errors
/// If the target or the reference is not there or not what the plan needs, or this host cannot make
/// the load.
pub fn run(
    plan: &Arc<Plan>,
    stop: &Stop,
    see: &mut dyn FnMut(&Progress<'_>),
) -> Result<Finished, RunFault> {
    let probed = target::probe(plan)?;
    let address = probed.addresses.first().copied();
    let mut comparison = Comparison::of(plan)?;
    let fingerprint = fingerprint::read(address);

    let origin = Instant::now() + BASELINE;
    let started = SystemTime::now() + BASELINE;
    let watcher = Watcher::start(&plan.watch, address, origin)?;
    let chain = Arc::new(probed.chain);
    let mut engine = Engine::start(Arc::clone(plan), chain, probed.addresses, origin)?;

    let mut course = Course::new(plan, &probed.facts, Some(watcher), origin);
    course.follow(&mut engine, comparison.as_mut(), stop, see);
    let skipped = engine.samples_skipped();
    engine.finish()?;

    let head_end = target::head(plan, &probed.facts.family);
    let compared = comparison.map(|comparison| comparison.finish(skipped));
    let Course { recorder, judge, watcher, kept, early, reached, .. } = course;
    let watched = watcher.map(Watcher::finish).unwrap_or_default();
    let seen = Seen {
        plan,
        started,
        target: TargetFacts { head_end, ..probed.facts },
        fingerprint,
        recorded: recorder.finish(),
        rulings: judge.rulings(),
        early,
        end: end(plan, early, reached),
        host: kept.samples(),
        watched,
        compared,
        warnings: probed.warnings,
    };
    Ok(seen.tell())
}

/// Replays a run in a made-up network: the same loop, the same judgement and the same result as of
/// [`run`], in virtual time and without a host to watch.
///
/// # Errors
/// If the plan asks for what the engine does not have.
pub fn replay(
    plan: &Arc<Plan>,
    network: &Network,
    see: &mut dyn FnMut(&Progress<'_>),
) -> Result<Finished, RunFault> {
    let target = TargetFacts::default();
    let mut engine = Engine::simulated(Arc::clone(plan), &Arc::default(), network)?;
    let mut course = Course::new(plan, &target, None, Instant::now());
    course.follow(&mut engine, None, &Stop::new(), see);
    engine.finish()?;
    let Course { recorder, judge, kept, early, reached, .. } = course;
    let seen = Seen {
        plan,
        started: SystemTime::UNIX_EPOCH,
        target: target.clone(),
        fingerprint: Fingerprint::default(),
        recorded: recorder.finish(),
        rulings: judge.rulings(),
        early,
        end: end(plan, early, reached),
        host: kept.samples(),
        watched: HostFacts::default(),
        compared: None,
        warnings: Vec::new(),
    };
    Ok(seen.tell())
}

/// When load ended. Threads end with their last call, a little before the plan's end; only where
/// somebody ended the run, or it had so many iterations to do, was load over then.
fn end(plan: &Plan, early: Option<Early>, reached: Duration) -> Duration {
    let counted = plan.scenarios.iter().any(|scenario| scenario.iterations_max.is_some());
    let planned = plan.duration();
    if early.is_some() || counted { reached.min(planned) } else { planned }
}

/// What is kept while the load goes on.
struct Course<'a> {
    plan: &'a Plan,
    /// When the load began.
    origin: Instant,
    target: &'a TargetFacts,
    recorder: Recorder,
    judge: Judge,
    /// None in a made-up world.
    watcher: Option<Watcher>,
    kept: HostSamples,
    early: Option<Early>,
    /// How far the engine's threads are.
    reached: Duration,
}

impl<'a> Course<'a> {
    fn new(
        plan: &'a Plan,
        target: &'a TargetFacts,
        watcher: Option<Watcher>,
        origin: Instant,
    ) -> Course<'a> {
        Course {
            plan,
            origin,
            target,
            recorder: Recorder::new(plan),
            judge: Judge::new(plan),
            watcher,
            kept: HostSamples::new(downsample::SAMPLES_MAX),
            early: None,
            reached: Duration::ZERO,
        }
    }

    /// Takes what the engine hands over until all its threads have ended.
    fn follow(
        &mut self,
        engine: &mut Engine,
        mut comparison: Option<&mut Comparison>,
        stop: &Stop,
        see: &mut dyn FnMut(&Progress<'_>),
    ) {
        loop {
            match engine.next(TICK) {
                Next::Interval(interval) => {
                    self.reached = self.reached.max(interval.to);
                    self.recorder.take(&interval);
                    engine.give_back(interval);
                }
                Next::Nothing => {}
                Next::Ended => break,
            }
            while let Ok(sample) = engine.samples().try_recv() {
                if let Some(comparison) = comparison.as_mut() {
                    let (method, request) = (usize::from(sample.method), sample.request);
                    let (at, answer) = (self.origin + sample.at, sample.answer);
                    comparison.offer(Answered { at, method, request, answer });
                }
            }
            while let Some(closed) = self.recorder.close() {
                if self.second(closed, see) && self.early.is_none() {
                    self.early = Some(Early::Aborted(self.reached.as_secs_f64()));
                    engine.stop();
                }
            }
            if stop.asked() && self.early.is_none() {
                self.early = Some(Early::Asked(self.reached.as_secs_f64()));
                engine.stop();
            }
        }
        while let Some(closed) = self.recorder.close_last() {
            self.second(closed, see);
        }
        self.judge.end(self.reached);
        self.watch();
    }

    /// What was watched on hosts since the last time.
    fn watch(&mut self) -> Vec<HostSample> {
        let host = self.watcher.as_mut().map(Watcher::take).unwrap_or_default();
        host.iter().for_each(|sample| self.kept.push(sample));
        host
    }

    /// Judges and shows a second; whether an objective wants the run to end.
    fn second(&mut self, closed: ClosedSecond, see: &mut dyn FnMut(&Progress<'_>)) -> bool {
        let abort = closed.judged && self.judge.second(closed.from, closed.to, &closed.part);
        let host = self.watch();
        see(&Progress {
            at: closed.to,
            of: self.plan.duration(),
            plan: self.plan,
            target: self.target,
            second: &closed.second,
            totals: self.recorder.all(),
            host: &host,
            thresholds: &self.judge.rulings().iter().map(outcome).collect::<Vec<_>>(),
        });
        self.recorder.give_back(closed.part);
        abort
    }
}

/// Asks a run to end early, from another thread or from a signal's handler. The run then ends in
/// order: calls under way are cut, and what was measured is kept and marked as a part.
#[derive(Debug, Default)]
pub struct Stop(AtomicBool);

impl Stop {
    /// Not asked yet.
    pub fn new() -> Stop {
        Stop::default()
    }

    /// Asks; more than once is as good as once.
    pub fn ask(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether somebody asked.
    pub fn asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A run as it stands at the end of one of its seconds.
pub struct Progress<'a> {
    /// Time since the start of the run.
    pub at: Duration,
    /// Time that the plan takes, without the grace for calls under way.
    pub of: Duration,
    /// The plan, for names of methods and stages.
    pub plan: &'a Plan,
    /// Who is loaded, as found at the start.
    pub target: &'a TargetFacts,
    /// The second that has just ended.
    pub second: &'a Second,
    /// Everything since the start of the run, warm-up included.
    pub totals: &'a Totals,
    /// What was watched on hosts since the last call of this kind.
    pub host: &'a [HostSample],
    /// Objectives as they stand.
    pub thresholds: &'a [ThresholdOutcome],
}

/// What a run leaves.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Everything told.
    pub result: RunResult,
    /// Everything counted, warm-up left out.
    pub totals: Totals,
}
