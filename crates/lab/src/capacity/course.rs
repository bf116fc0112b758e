//! The loop of a search: ask the rule for the next probe, wait, run it, judge it, show it, until the
//! rule says that it is over.

use std::sync::Arc;
use std::thread::park_timeout;
use std::time::{Duration, Instant};

use lab_model::plan::Plan;
use lab_model::record::Totals;
use lab_model::results::Outcome;
use lab_model::results::capacity::{Binding, CapacityResult, End, Judged, Kind, ProbeRow};
use lab_model::results::run::{ProcessFacts, Row, RunResult};

use super::answer;
use super::probes::Probes;
use crate::analysis::search::judge::{Judgement, Seen, judge};
use crate::analysis::search::{Health, Probe, Step, next};
use crate::run::{Finished, Progress, RunFault, Stop, run as make_run};
use crate::wording::capacity as wording;
use crate::wording::verdict::sentences;

/// Why a search could not begin.
#[derive(Debug, thiserror::Error)]
pub enum CapacityFault {
    /// A scenario is loaded by workers.
    #[error(
        "scenario {scenario:?} is closed: its load is a number of workers, not a rate; a capacity \
         search needs the open model"
    )]
    Closed {
        /// Its name.
        scenario: String,
    },
    /// Not even the first run could be made.
    #[error(transparent)]
    Run(#[from] RunFault),
}

/// What is to be seen of a search while it goes on.
#[derive(Clone, Copy)]
pub enum Sight<'a> {
    /// It waits for the target to drain, or to come back.
    Waits {
        /// How long.
        time: Duration,
        /// Multiple of the usual wait.
        drains: u32,
    },
    /// A probe begins.
    Begins {
        /// What it is for.
        kind: Kind,
        /// Iterations per second.
        rate: f64,
        /// How long it loads.
        time: Duration,
    },
    /// A second of a probe has ended.
    Second(&'a Progress<'a>),
    /// A probe has ended.
    Ended(&'a ProbeRow),
    /// Objectives were chosen, because the plan has none.
    Objectives(&'a str),
    /// Something is to be known.
    Warning(&'a str),
}

/// What the loop needs from the world.
pub(super) struct World<'a> {
    pub(super) run: &'a mut MakeRun<'a>,
    pub(super) wait: &'a mut dyn FnMut(Duration),
    pub(super) now: &'a dyn Fn() -> Duration,
    pub(super) stopped: &'a dyn Fn() -> bool,
    /// Keeps the run of a probe, if it is to be kept.
    pub(super) keep: &'a mut Keep<'a>,
}

/// Keeps a probe's run, and what was counted of which methods, under a name. True if it was kept, false
/// if it is not to be kept; the text is why it could not be.
pub type Keep<'a> = dyn FnMut(&str, &RunResult, &Totals, &[Box<str>]) -> Result<bool, String> + 'a;

type MakeRun<'a> =
    dyn FnMut(&Arc<Plan>, &mut dyn FnMut(&Progress<'_>)) -> Result<Finished, RunFault> + 'a;

/// How often a wait looks whether it is to end.
const TICK: Duration = Duration::from_millis(100);

/// Searches the highest rate that keeps the plan's objectives. Each probe's run is kept under a name
/// of its own, if it is to be kept. Asked to stop, it ends with what it knows.
///
/// # Errors
/// If the plan cannot be searched, or not even the first run could be made. Once a probe was made,
/// whatever goes wrong ends the search with a partial result that says so.
pub fn search(
    plan: &Plan,
    keep: &mut Keep<'_>,
    stop: &Stop,
    see: &mut dyn FnMut(Sight<'_>),
) -> Result<CapacityResult, CapacityFault> {
    let origin = Instant::now();
    let mut wait = |time: Duration| {
        let end = Instant::now() + time;
        while !stop.asked() && Instant::now() < end {
            park_timeout(TICK.min(end.saturating_duration_since(Instant::now())));
        }
    };
    let world = World {
        run: &mut |plan, see| make_run(plan, stop, see),
        wait: &mut wait,
        now: &|| origin.elapsed(),
        stopped: &|| stop.asked(),
        keep: &mut |name, result, totals, methods| keep(name, result, totals, methods),
    };
    search_in(plan, world, see)
}

/// [`search`] in any world.
pub(super) fn search_in(
    plan: &Plan,
    world: World<'_>,
    see: &mut dyn FnMut(Sight<'_>),
) -> Result<CapacityResult, CapacityFault> {
    let mut course = Course {
        probes: Probes::of(plan)?,
        world,
        history: Vec::new(),
        made: Vec::new(),
        warnings: Vec::new(),
        defaults: None,
        first: None,
    };
    let end = course.follow(see)?;
    let seconds = (course.world.now)().as_secs_f64();
    Ok(answer::put_together(course, end, seconds))
}

/// A probe, with what only the answer needs of it.
pub(super) struct Made {
    pub(super) row: ProbeRow,
    pub(super) binding: Option<Binding>,
    pub(super) methods: Vec<Row>,
    pub(super) processes: Vec<ProcessFacts>,
    pub(super) warnings: Vec<String>,
    /// Mean number of calls under way, counted.
    pub(super) in_flight: f64,
}

pub(super) struct Course<'a> {
    pub(super) probes: Probes,
    world: World<'a>,
    pub(super) history: Vec<Probe>,
    /// In the order of `history`.
    pub(super) made: Vec<Made>,
    pub(super) warnings: Vec<String>,
    pub(super) defaults: Option<String>,
    /// The first run, for what it says of target and machine.
    pub(super) first: Option<RunResult>,
}

/// Drains that a target gets which cannot be reached any more, before the search gives up.
const UNREACHED_DRAINS: u32 = 4;

impl Course<'_> {
    fn follow(&mut self, see: &mut dyn FnMut(Sight<'_>)) -> Result<End, CapacityFault> {
        loop {
            let (kind, rate, drains) = match next(&self.probes.settings, &self.history) {
                Step::End(end) => return Ok(end),
                Step::Probe { kind, rate, drains } => (kind, rate, drains),
            };
            let drained = self.rest(drains, see);
            if (self.world.stopped)() {
                return self.stopped(None);
            }
            let at = (self.world.now)().as_secs_f64();
            let plan = self.probes.probe(kind, rate);
            see(Sight::Begins { kind, rate, time: plan.duration() });
            let finished = match self.try_run(&plan, see) {
                Ok(finished) => finished,
                Err(fault) => return self.stopped(Some(fault)),
            };
            self.take(&plan, finished, Asked { kind, rate, drains, at, drained }, see);
            if (self.world.stopped)() {
                return self.stopped(None);
            }
        }
    }

    /// Waits; how many seconds.
    fn rest(&mut self, drains: u32, see: &mut dyn FnMut(Sight<'_>)) -> f64 {
        let time = self.probes.plan().capacity.drain * drains;
        if !time.is_zero() {
            see(Sight::Waits { time, drains });
            (self.world.wait)(time);
        }
        time.as_secs_f64()
    }

    /// Runs a probe; a target that cannot be reached gets a longer rest and a second chance, since a
    /// failed probe may have thrown it over.
    fn try_run(
        &mut self,
        plan: &Arc<Plan>,
        see: &mut dyn FnMut(Sight<'_>),
    ) -> Result<Finished, RunFault> {
        let first = (self.world.run)(plan, &mut |progress| see(Sight::Second(progress)));
        if first.is_ok() || self.history.is_empty() || (self.world.stopped)() {
            return first;
        }
        self.rest(UNREACHED_DRAINS, see);
        (self.world.run)(plan, &mut |progress| see(Sight::Second(progress)))
    }

    /// Ended before the answer: with a reason, if it was not asked for.
    fn stopped(&mut self, fault: Option<RunFault>) -> Result<End, CapacityFault> {
        match (fault, self.history.last()) {
            (Some(fault), None) => return Err(fault.into()),
            (Some(fault), Some(last)) => self.warnings.push(format!(
                "after the probe at {}/s no further run could be made: {fault}",
                last.rate
            )),
            (None, _) => self.warnings.push("the search was ended by hand".to_owned()),
        }
        Ok(End::Stopped)
    }

    fn take(
        &mut self,
        plan: &Plan,
        finished: Finished,
        asked: Asked,
        see: &mut dyn FnMut(Sight<'_>),
    ) {
        let Finished { result, totals } = finished;
        let judgement = self.judged(plan, &result, asked);
        let mut row = row(&result, &judgement, asked);
        row.folder = self.keep(&result, &totals, asked, see);
        see(Sight::Ended(&row));
        let believed = |judged| matches!(judged, Judged::Pass | Judged::Fail);
        let known = |probe: &Probe| probe.kind == Kind::Baseline && believed(probe.judged);
        let first_known = asked.kind == Kind::Baseline
            && believed(judgement.judged)
            && !self.history.iter().any(known);
        self.history.push(Probe {
            kind: asked.kind,
            rate: asked.rate,
            judged: judgement.judged,
            margin: judgement.margin,
            health: Health {
                p50_ms: result.overall.service.p50_ms,
                failed_share: result.overall.failed_share,
            },
            drains: asked.drains,
        });
        if first_known {
            self.defaults = self.probes.set_default_objectives(&result.overall.service);
            if let Some(text) = &self.defaults {
                see(Sight::Objectives(text));
            }
        }
        let probe = self.made.len();
        let binding = judgement.binding.map(|bound| wording::binding(bound, asked.rate, probe));
        self.made.push(Made {
            row,
            binding,
            methods: result.methods.clone(),
            processes: result.watched.processes.clone(),
            warnings: result.warnings.clone(),
            in_flight: judgement.in_flight,
        });
        self.first.get_or_insert(result);
    }

    fn judged(&self, plan: &Plan, result: &RunResult, asked: Asked) -> Judgement {
        let first = self.made.first().filter(|made| made.row.kind == Kind::Baseline);
        let mut judgement = judge(Seen {
            rate: asked.rate,
            warmup: plan.warmup.as_secs_f64(),
            end: plan.duration().as_secs_f64(),
            delivered_min: plan.validity.delivered_share_min,
            verdict: &result.verdict,
            tails: asked.kind != Kind::Baseline,
            thresholds: &plan.thresholds,
            outcomes: &result.thresholds,
            names: self.probes.methods(),
            seconds: &result.series,
            methods: &result.methods,
            baseline: first.map_or(&[], |made| made.methods.as_slice()),
        });
        if result.partial && (self.world.stopped)() {
            // A part of a probe says nothing of the rest.
            judgement.judged = Judged::Invalid;
            (judgement.margin, judgement.binding) = (None, None);
        }
        judgement
    }

    /// Leaves the run in a folder of its own; its name below the search's folder. A disk that is full
    /// costs the folder and not the search.
    fn keep(
        &mut self,
        result: &RunResult,
        totals: &Totals,
        asked: Asked,
        see: &mut dyn FnMut(Sight<'_>),
    ) -> Option<String> {
        let name =
            format!("probes/{:02}-{}-{}", self.made.len() + 1, asked.kind.as_str(), asked.rate);
        match (self.world.keep)(&name, result, totals, self.probes.methods()) {
            Ok(kept) => kept.then_some(name),
            Err(fault) => {
                let warning = format!("the run of this probe could not be kept: {fault}");
                see(Sight::Warning(&warning));
                if !self.warnings.contains(&warning) {
                    self.warnings.push(warning);
                }
                None
            }
        }
    }
}

/// What was asked of a probe, and when.
#[derive(Clone, Copy)]
struct Asked {
    kind: Kind,
    rate: f64,
    drains: u32,
    at: f64,
    drained: f64,
}

fn row(result: &RunResult, judgement: &Judgement, asked: Asked) -> ProbeRow {
    let overall = &result.overall;
    let outcome: Outcome = result.verdict.outcome;
    ProbeRow {
        kind: asked.kind,
        rate: asked.rate,
        at: asked.at,
        duration: result.duration,
        drained: asked.drained,
        judged: judgement.judged,
        outcome,
        reasons: sentences(&judgement.reasons),
        margin: judgement.margin,
        rate_ended: judgement.rate_ended,
        delivered_share: judgement.delivered_share,
        backlog_growth: judgement.backlog_growth,
        under_way: judgement.under_way,
        waiting: judgement.waiting,
        calls_per_second: overall.rate,
        goodput: overall.goodput,
        failed_share: overall.failed_share,
        limited_share: overall.limited_share,
        latency: overall.latency,
        service: overall.service,
        lateness_p99_ms: result.generator.lateness.p99_ms,
        thresholds: result.thresholds.clone(),
        bottleneck: result.bottleneck.clone(),
        folder: None,
    }
}
