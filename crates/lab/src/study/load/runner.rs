//! Runs a load study: round after round, until its precision or a limit is reached.
//!
//! This file defines the order of the steps. `analysis/rounds.rs` determines the order of the
//! variants and the end of the study. `servers.rs` starts the servers, `store.rs` saves finished
//! runs, and [`crate::run`] executes a run.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lab_model::plan::Plan;
use lab_model::results::load_study::EndReason;
use lab_model::results::run::RunResult;

use super::access_log::AccessLog;
use super::analyse::{count_rounds, progress, unusable};
use super::counts::count_run;
use super::file::LoadStudy;
use super::finished::{FinishedRun, RunFacts, RunId};
use super::machine;
use super::servers::Servers;
use super::store::{Store, WriteRun, label};
use crate::analysis::rounds;
use crate::run::{self, Finished, Progress, Stop, unix_now};
use crate::study::{ProcessGroups, StudyFault};
use crate::variant;

/// An event of a running study.
pub enum Event<'a> {
    /// An interrupted study continues after this number of finished rounds.
    Continues(usize),
    /// A round starts.
    RoundBegins {
        /// Number of the round, from 1. `None` for a warm-up round.
        round: Option<usize>,
        /// Names of the variants in the order of their runs.
        variants: Vec<&'a str>,
    },
    /// A run starts.
    RunBegins {
        /// Name of the plan or case.
        plan: &'a str,
        /// Name of the variant.
        variant: &'a str,
    },
    /// A second of a run has ended.
    Second(&'a Progress<'a>),
    /// A run has ended.
    RunEnded {
        /// Name of the plan or case.
        plan: &'a str,
        /// Name of the variant.
        variant: &'a str,
        /// Result of the run. `None` if the run failed.
        result: Option<&'a RunResult>,
        /// Reason why the run cannot be compared. `None` if it can.
        left_out: Option<String>,
    },
    /// A round has ended.
    RoundEnded {
        /// Number of the round, from 1.
        round: usize,
        /// Largest half-width of the 95 % intervals so far, as a share of the value. `None` if an
        /// interval is not known yet.
        precision: Option<f64>,
    },
}

/// The runs of a study.
#[derive(Clone, Debug)]
pub struct LoadStudyRuns {
    /// Runs of complete rounds, in the order of time.
    pub runs: Vec<FinishedRun>,
    /// Reason why no further round was run.
    pub end: EndReason,
}

/// The input of [`run()`] that is not part of the study.
pub struct StudyContext<'a> {
    /// The program that replaces `{weir}`.
    pub weir_binary: &'a Path,
    /// Stops the study.
    pub stop: &'a Stop,
    /// The process groups of the servers.
    pub groups: &'a ProcessGroups,
    /// Writes the files of a run.
    pub write_run: WriteRun<'a>,
    /// Source of random numbers for the analysis.
    pub random: &'a mut dyn FnMut() -> u64,
}

/// Runs a study in its folder. Rounds that are in the folder already are not run again.
///
/// # Errors
/// Fails if a shared server cannot be started, or a result cannot be written. Also fails if a run
/// of a warm-up round or of the first counted round fails. A later run that fails is recorded, and
/// the analysis leaves its round out.
pub fn run(
    study: &LoadStudy,
    store: &Store,
    context: StudyContext<'_>,
    on_event: &mut dyn FnMut(Event<'_>),
) -> Result<LoadStudyRuns, StudyFault> {
    let start = Instant::now();
    let mut runs = store.load_complete_rounds(study)?;
    let earlier_time: Duration = runs.iter().map(|run| to_duration(run.facts.seconds)).sum();
    let StudyContext { weir_binary, stop, groups, write_run, random } = context;
    if !runs.is_empty() {
        on_event(Event::Continues(count_rounds(&runs)));
    }
    let mut session: Option<Session<'_>> = None;
    loop {
        let rounds = count_rounds(&runs);
        let state = progress(study, &runs, random);
        if rounds > 0 && session.is_some() {
            on_event(Event::RoundEnded { round: rounds, precision: state.precision });
        }
        let elapsed = earlier_time + start.elapsed();
        let timed_progress = rounds::StudyProgress { elapsed, ..state.progress };
        if let Some(end) = rounds::end(timed_progress, study.limits()) {
            return Ok(LoadStudyRuns { runs, end });
        }
        if stop.is_requested() {
            return Ok(LoadStudyRuns { runs, end: EndReason::Interrupted });
        }
        // The servers start only if a further round is needed.
        let session = match &mut session {
            Some(session) => session,
            empty_session => {
                let servers = Servers::start(study, store, weir_binary, stop, groups)?;
                let session = empty_session.insert(Session { study, store, stop, servers });
                for _ in 0..*study.file.warm_up_rounds {
                    session.run_round(None, write_run, on_event)?;
                }
                session
            }
        };
        let round_runs = session.run_round(Some(rounds), write_run, on_event)?;
        // The runs of an interrupted round stay in the folder until the study continues.
        if round_runs.len() < study.plans.len() * study.variants.len() {
            return Ok(LoadStudyRuns { runs, end: EndReason::Interrupted });
        }
        runs.extend(round_runs);
    }
}

fn to_duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

/// A study whose shared servers are running.
struct Session<'a> {
    study: &'a LoadStudy,
    store: &'a Store,
    stop: &'a Stop,
    servers: Servers<'a>,
}

impl Session<'_> {
    /// Runs a round. `round` is its number from 0, or `None` for a warm-up round, which returns no
    /// runs. If the study is stopped, returns the runs that were finished before the stop.
    fn run_round(
        &mut self,
        round: Option<usize>,
        write_run: WriteRun<'_>,
        on_event: &mut dyn FnMut(Event<'_>),
    ) -> Result<Vec<FinishedRun>, StudyFault> {
        let study = self.study;
        // A warm-up round has the order and the number of the first round.
        let round_index = round.unwrap_or(0);
        let order = study.order(round_index);
        let names = order.iter().map(|variant| study.variants[*variant].name.as_str());
        let (number, variants) = (round.map(|round| round + 1), names.collect());
        on_event(Event::RoundBegins { round: number, variants });
        self.servers.before_round();
        let mut finished_runs = Vec::new();
        for plan in 0..study.plans.len() {
            for variant in order.iter().copied() {
                self.stop.wait(*study.file.pause);
                if self.stop.is_requested() {
                    return Ok(finished_runs);
                }
                let id = RunId { round: round_index, plan, variant };
                let (run, output) = self.run(id, on_event)?;
                if self.stop.is_requested() {
                    return Ok(finished_runs);
                }
                let name = &study.variants[variant].name;
                on_event(Event::RunEnded {
                    plan: &study.plans[plan],
                    variant: name,
                    result: output.as_ref().map(|output| &output.result),
                    left_out: unusable(&run),
                });
                // A failed run ends the study only in a warm-up round or in the first round.
                if round_index == 0
                    && let Some(reason) = &run.facts.fault
                {
                    return Err(StudyFault::Operation(format!("variant {name:?}: {reason}")));
                }
                if round.is_some() {
                    self.store.write_run(study, &run, output.as_ref(), write_run)?;
                    finished_runs.push(run);
                }
            }
        }
        Ok(finished_runs)
    }

    /// Executes a run. Returns the facts about the run, and its output. If the run failed, the
    /// facts have the reason, and the output is `None`.
    fn run(
        &mut self,
        id: RunId,
        on_event: &mut dyn FnMut(Event<'_>),
    ) -> Result<(FinishedRun, Option<Finished>), StudyFault> {
        let study = self.study;
        let RunId { round, plan, variant } = id;
        let start = Instant::now();
        let started_unix = unix_now();
        let prepared = self.servers.before_run(plan, variant);
        if round == 0 {
            // A server that does not start in the first round will not start later.
            prepared.as_ref().map_err(|fault| StudyFault::Operation(fault.to_string()))?;
        }
        let calibration_ms = machine::measure();
        on_event(Event::RunBegins {
            plan: &study.plans[plan],
            variant: &study.variants[variant].name,
        });
        let access_log = self.servers.access_log(plan, variant);
        let access_log = access_log.map(|path| AccessLog::before_run(&path));
        let outcome = prepared.map_err(|fault| fault.to_string()).and_then(|()| {
            let plan = self.prepare_plan(plan, variant)?;
            let on_second = &mut |progress: &Progress<'_>| on_event(Event::Second(progress));
            let finished =
                run::run(&plan, self.stop, on_second).map_err(|fault| fault.to_string())?;
            let requests = access_log.map(|log| log.count(&finished.result)).transpose()?;
            let limit = self.servers.cpu_limit(variant);
            let counts = count_run(&finished.result, limit, requests);
            Ok((finished, counts))
        });
        if outcome.is_err() {
            self.servers.stop_variants();
        }
        let (output, counts, fault) = match outcome {
            Ok((finished, counts)) => (Some(finished), Some(counts), None),
            Err(fault) => (None, None, Some(fault)),
        };
        let facts = RunFacts {
            started_unix,
            seconds: (start.elapsed() + *study.file.pause).as_secs_f64(),
            calibration_ms,
            fault,
            counts,
        };
        let run =
            output.as_ref().map(|output| variant::run_of_result(&label(round), &output.result));
        Ok((FinishedRun { id, facts, run }, output))
    }

    /// Returns the plan of a run, with the variant's target.
    fn prepare_plan(&self, plan: usize, variant: usize) -> Result<Arc<Plan>, String> {
        let target = self.servers.target(plan, variant);
        let mut plan = self.study.variants[variant].plans[plan].clone();
        if let Some(target) = target {
            plan.point_at(&target)?;
        }
        Ok(Arc::new(plan))
    }
}
