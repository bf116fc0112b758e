//! The loop of a capacity search. A *probe* is one run at one rate, and a *baseline* is a probe at
//! a low rate. Until the search ends, the loop gets the next probe from `analysis/search.rs`,
//! waits, runs the probe, judges it and reports it. The wait is a multiple of the plan's *drain
//! time*, in which the target works off its queue.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lab_model::plan::Plan;
use lab_model::record::Totals;
use lab_model::results::capacity::{
    Binding, CapacityResult, EndReason, Kind, ProbeOutcome, ProbeRow,
};
use lab_model::results::run::{ProcessFacts, Row, RunResult};

use super::answer;
use super::probes::Probes;
use crate::analysis::findings::find_other_clients;
use crate::analysis::search::judge::{ProbeRun, ProbeVerdict, judge};
use crate::analysis::search::{Health, Probe, Step, next};
use crate::run::{Finished, Progress, RunFault, Stop, run as make_run};
use crate::wording::capacity as wording;
use crate::wording::verdict::sentences;

/// Reason why a search failed before the end of its first probe.
#[derive(Debug, thiserror::Error)]
pub enum CapacityFault {
    /// A scenario uses the closed model.
    #[error(
        "scenario {scenario:?} is closed: its load is a number of workers, not a rate; a capacity \
         search needs the open model"
    )]
    Closed {
        /// Name of the scenario.
        scenario: String,
    },
    /// A scenario sends signed transactions.
    #[error(
        "scenario {scenario:?} sends signed transactions, each of which can be sent only once; a \
         capacity search repeats its load"
    )]
    Transactions {
        /// Name of the scenario.
        scenario: String,
    },
    /// The first run failed.
    #[error(transparent)]
    Run(#[from] RunFault),
}

/// An event of a running search.
#[derive(Clone, Copy)]
pub enum Event<'a> {
    /// The search waits for the target to drain or to recover.
    Waiting {
        /// Length of the wait.
        time: Duration,
        /// Length of the wait, as a multiple of the configured drain time.
        drains: u32,
    },
    /// A probe starts.
    ProbeStarted {
        /// Purpose of the probe.
        kind: Kind,
        /// Iterations per second.
        rate: f64,
        /// Duration of its load.
        time: Duration,
    },
    /// A second of a probe has ended.
    Second(&'a Progress<'a>),
    /// A probe has ended.
    Ended(&'a ProbeRow),
    /// Default thresholds were set, because the plan has none.
    DefaultThresholds(&'a str),
    /// A warning for the user.
    Warning(&'a str),
}

/// The side effects of the loop; tests replace them.
pub(super) struct Environment<'a> {
    /// Makes a run.
    pub(super) run: &'a mut MakeRun<'a>,
    /// Waits, or returns early if the user stops the search.
    pub(super) wait: &'a mut dyn FnMut(Duration),
    /// Returns the time since the start of the search.
    pub(super) now: &'a dyn Fn() -> Duration,
    /// Returns true if the user has stopped the search.
    pub(super) is_stopped: &'a dyn Fn() -> bool,
    /// Saves the run of a probe.
    pub(super) save: &'a mut SaveRun<'a>,
}

/// Saves the run of a probe. The arguments are the folder name, the result, the totals, and the
/// methods that the totals index. Returns true if the run was saved, and false if runs are not
/// saved.
pub type SaveRun<'a> =
    dyn FnMut(&str, &RunResult, &Totals, &[Box<str>]) -> Result<bool, String> + 'a;

/// Makes the run of a plan. The second argument gets the progress every second.
type MakeRun<'a> =
    dyn FnMut(&Arc<Plan>, &mut dyn FnMut(&Progress<'_>)) -> Result<Finished, RunFault> + 'a;

/// Searches for the highest rate that keeps the plan's thresholds. A stopped search returns a
/// partial result.
///
/// # Errors
/// Fails if the plan cannot be searched, or if the first run fails. After the first probe an error
/// ends the search with a partial result and a warning.
pub fn search(
    plan: &Plan,
    save: &mut SaveRun<'_>,
    stop: &Stop,
    on_event: &mut dyn FnMut(Event<'_>),
) -> Result<CapacityResult, CapacityFault> {
    let origin = Instant::now();
    let environment = Environment {
        run: &mut |plan, on_second| make_run(plan, stop, on_second),
        wait: &mut |time| stop.wait(time),
        now: &|| origin.elapsed(),
        is_stopped: &|| stop.is_requested(),
        save: &mut |name, result, totals, methods| save(name, result, totals, methods),
    };
    search_in(plan, environment, on_event)
}

/// Runs [`search`] in a given environment.
pub(super) fn search_in(
    plan: &Plan,
    environment: Environment<'_>,
    on_event: &mut dyn FnMut(Event<'_>),
) -> Result<CapacityResult, CapacityFault> {
    let mut search = Search {
        probes: Probes::of(plan)?,
        environment,
        history: Vec::new(),
        finished: Vec::new(),
        warnings: Vec::new(),
        default_thresholds: None,
        first_run: None,
    };
    let end = search.run(on_event)?;
    let seconds = (search.environment.now)().as_secs_f64();
    Ok(answer::build(search, end, seconds))
}

/// A finished probe: its row of the result, and data for the summary.
pub(super) struct FinishedProbe {
    /// The probe's row in the result of the search.
    pub(super) row: ProbeRow,
    /// The threshold that the probe broke; `None` if it did not fail.
    pub(super) binding: Option<Binding>,
    /// Totals by method, without the warm-up.
    pub(super) methods: Vec<Row>,
    /// The watched processes with their CPU time per request.
    pub(super) processes: Vec<ProcessFacts>,
    pub(super) warnings: Vec<String>,
    /// Mean number of calls in flight.
    pub(super) calls_in_flight: f64,
}

/// The state of a running search.
pub(super) struct Search<'a> {
    /// The plan of the search, from which the plans of the probes are derived.
    pub(super) probes: Probes,
    environment: Environment<'a>,
    /// The finished probes, as input of `analysis/search.rs`.
    pub(super) history: Vec<Probe>,
    /// The probes of `history` in the same order, with their results.
    pub(super) finished: Vec<FinishedProbe>,
    pub(super) warnings: Vec<String>,
    /// Explanation of the default thresholds; `None` if the plan has its own thresholds.
    pub(super) default_thresholds: Option<String>,
    /// The first run, which describes target and machine; `None` before its end.
    pub(super) first_run: Option<RunResult>,
}

/// Number of drain times to wait before a failed run is tried a second time.
const RETRY_DRAINS: u32 = 4;

impl Search<'_> {
    /// Makes probes until the search ends.
    fn run(&mut self, on_event: &mut dyn FnMut(Event<'_>)) -> Result<EndReason, CapacityFault> {
        loop {
            let (kind, rate, drains) = match next(&self.probes.settings, &self.history) {
                Step::End(end) => return Ok(end),
                Step::Probe { kind, rate, drains } => (kind, rate, drains),
            };
            let drain_seconds = self.drain(drains, on_event);
            if (self.environment.is_stopped)() {
                return Ok(self.end_stopped());
            }
            let started_at = (self.environment.now)().as_secs_f64();
            let plan = self.probes.probe(kind, rate);
            on_event(Event::ProbeStarted { kind, rate, time: plan.duration() });
            let finished = match self.try_run(&plan, on_event) {
                Ok(finished) => finished,
                Err(fault) => return self.end_failed(fault),
            };
            let planned = PlannedProbe { kind, rate, drains, started_at, drain_seconds };
            self.record(&plan, finished, planned, on_event);
            if (self.environment.is_stopped)() {
                return Ok(self.end_stopped());
            }
        }
    }

    /// Waits for the target to drain. Returns the length of the wait in seconds.
    fn drain(&mut self, drains: u32, on_event: &mut dyn FnMut(Event<'_>)) -> f64 {
        let time = self.probes.plan.capacity.drain * drains;
        if !time.is_zero() {
            on_event(Event::Waiting { time, drains });
            (self.environment.wait)(time);
        }
        time.as_secs_f64()
    }

    /// Runs a probe. If the run fails, tries it once more after a longer wait, because an overload
    /// may have crashed the target. Does not retry the first run of a search, nor any run of a
    /// stopped search.
    fn try_run(
        &mut self,
        plan: &Arc<Plan>,
        on_event: &mut dyn FnMut(Event<'_>),
    ) -> Result<Finished, RunFault> {
        let outcome =
            (self.environment.run)(plan, &mut |progress| on_event(Event::Second(progress)));
        if outcome.is_ok() || self.history.is_empty() || (self.environment.is_stopped)() {
            return outcome;
        }
        self.drain(RETRY_DRAINS, on_event);
        (self.environment.run)(plan, &mut |progress| on_event(Event::Second(progress)))
    }

    /// Ends the search because the user stopped it. Adds a warning.
    fn end_stopped(&mut self) -> EndReason {
        self.warnings.push("the search was stopped by the user".to_owned());
        EndReason::Stopped
    }

    /// Ends the search because a run failed. Adds a warning, or fails if it was the first run.
    fn end_failed(&mut self, fault: RunFault) -> Result<EndReason, CapacityFault> {
        let Some(last) = self.history.last() else { return Err(fault.into()) };
        self.warnings.push(format!("the run after the probe at {}/s failed: {fault}", last.rate));
        Ok(EndReason::Stopped)
    }

    /// Judges a finished run and adds it to the history.
    fn record(
        &mut self,
        plan: &Plan,
        finished: Finished,
        planned: PlannedProbe,
        on_event: &mut dyn FnMut(Event<'_>),
    ) {
        let Finished { result, totals } = finished;
        let judgement = self.judge(plan, &result, planned);
        let mut row = probe_row(&result, &judgement, planned);
        row.folder = self.save(&result, &totals, planned, on_event);
        on_event(Event::Ended(&row));
        let had_valid_baseline = self.history.iter().any(Probe::is_valid_baseline);
        let probe = Probe {
            kind: planned.kind,
            rate: planned.rate,
            outcome: judgement.outcome,
            margin: judgement.margin,
            health: Health {
                p50_ms: result.overall.service.p50_ms,
                failed_share: result.overall.failed_share,
            },
            drains: planned.drains,
        };
        self.history.push(probe);
        if probe.is_valid_baseline() && !had_valid_baseline {
            self.default_thresholds = self.probes.set_default_thresholds(&result.overall.service);
            if let Some(text) = &self.default_thresholds {
                on_event(Event::DefaultThresholds(text));
            }
        }
        let probe_index = self.finished.len();
        let binding =
            judgement.binding.map(|limit| wording::binding(limit, planned.rate, probe_index));
        self.finished.push(FinishedProbe {
            row,
            binding,
            methods: result.methods.clone(),
            processes: result.watched.processes.clone(),
            warnings: [
                sentences(find_other_clients(plan, &result.host).as_slice()),
                result.warnings.clone(),
            ]
            .concat(),
            calls_in_flight: judgement.calls_in_flight,
        });
        self.first_run.get_or_insert(result);
    }

    /// Judges the run of a probe. A run that the user stopped is invalid.
    fn judge(&self, plan: &Plan, result: &RunResult, planned: PlannedProbe) -> ProbeVerdict {
        let first_baseline = self.finished.first().filter(|probe| probe.row.kind == Kind::Baseline);
        let mut judgement = judge(ProbeRun {
            rate: planned.rate,
            warmup: plan.warmup.as_secs_f64(),
            end: plan.duration().as_secs_f64(),
            delivered_min: plan.validity.delivered_share_min,
            verdict: &result.verdict,
            needs_enough_calls: planned.kind != Kind::Baseline,
            thresholds: &plan.thresholds,
            outcomes: &result.thresholds,
            method_names: &self.probes.plan.methods,
            seconds: &result.series,
            methods: &result.methods,
            baseline: first_baseline.map_or(&[], |probe| probe.methods.as_slice()),
        });
        if result.partial && (self.environment.is_stopped)() {
            // A threshold might have broken in the rest of the probe.
            judgement.outcome = ProbeOutcome::Invalid;
            (judgement.margin, judgement.binding) = (None, None);
        }
        judgement
    }

    /// Saves the run and returns its folder, relative to the search's folder. `None` if it was not
    /// saved. A write error, such as a full disk, is only a warning.
    fn save(
        &mut self,
        result: &RunResult,
        totals: &Totals,
        planned: PlannedProbe,
        on_event: &mut dyn FnMut(Event<'_>),
    ) -> Option<String> {
        let number = self.finished.len() + 1;
        let name = format!("probes/{number:02}-{}-{}", planned.kind.as_str(), planned.rate);
        match (self.environment.save)(&name, result, totals, &self.probes.plan.methods) {
            Ok(saved) => saved.then_some(name),
            Err(fault) => {
                let warning = format!("the run of this probe could not be saved: {fault}");
                on_event(Event::Warning(&warning));
                if !self.warnings.contains(&warning) {
                    self.warnings.push(warning);
                }
                None
            }
        }
    }
}

/// Purpose, rate and start of a probe, and the wait before it.
#[derive(Clone, Copy)]
struct PlannedProbe {
    kind: Kind,
    rate: f64,
    /// Wait before the probe, as a multiple of the configured drain time.
    drains: u32,
    /// Start in seconds since the start of the search.
    started_at: f64,
    /// Wait before the probe, in seconds.
    drain_seconds: f64,
}

/// Returns the row of a probe in the result of the search.
fn probe_row(result: &RunResult, judgement: &ProbeVerdict, planned: PlannedProbe) -> ProbeRow {
    let overall = &result.overall;
    ProbeRow {
        kind: planned.kind,
        rate: planned.rate,
        at: planned.started_at,
        duration: result.duration,
        drained: planned.drain_seconds,
        outcome: judgement.outcome,
        run_verdict: result.verdict.outcome,
        reasons: sentences(&judgement.reasons),
        margin: judgement.margin,
        rate_ended: judgement.rate_ended,
        delivered_share: judgement.delivered_share,
        backlog_growth: judgement.backlog_growth,
        in_flight: judgement.iterations_in_flight,
        waiting: judgement.waiting,
        calls_per_second: overall.rate,
        goodput: overall.goodput,
        failed_share: overall.failed_share,
        limited_share: overall.limited_share,
        latency: overall.latency,
        service: overall.service,
        scheduling_delay_p99_ms: result.generator.scheduling_delay.p99_ms,
        thresholds: result.thresholds.clone(),
        bottleneck: result.bottleneck.clone(),
        folder: None,
    }
}
