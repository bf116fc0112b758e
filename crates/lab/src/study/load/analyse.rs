//! Turns the runs of a load study into its result. A round has a run of each variant under each
//! plan, and `compare.rs` compares the runs of the same round in pairs. The A/A control, a second
//! run of the first variant in each round, sets the smallest difference that counts.

use lab_model::results::Outcome;
use lab_model::results::compare::{CompareResult, Metric};
use lab_model::results::load_study::{
    Drift, DriftSubject, EndReason, LoadStudyResult, PlanResult, RoundRow, SCHEMA, StudyDesign,
    StudyRunRow,
};

use super::counts::summarize_pairs;
use super::file::LoadStudy;
use super::finished::{FinishedRun, RunFacts};
use super::ratios::judge_ratios;
use super::wording;
use crate::analysis::statistics::median;
use crate::analysis::{calendar, rounds};
use crate::compare::{Options, compare};
use crate::variant::{Run, TOTAL, Variant};

/// Returns the reason why a run cannot be compared, or `None` if it can. A run without an outcome
/// can be compared.
pub(super) fn unusable(run: &FinishedRun) -> Option<String> {
    if let Some(fault) = &run.facts.fault {
        return Some(fault.clone());
    }
    match run.run.as_ref()?.facts.outcome? {
        Outcome::Invalid => Some("the verdict of the run is INVALID".to_owned()),
        Outcome::ClientLimited => Some("the load generator was its limit".to_owned()),
        Outcome::Pass | Outcome::Measured | Outcome::Fail => None,
    }
}

/// Returns the number of rounds that have runs. `runs` are in the order of time.
pub(super) fn count_rounds(runs: &[FinishedRun]) -> usize {
    runs.last().map_or(0, |run| run.id.round + 1)
}

/// The state of a study between two rounds.
#[derive(Clone, Copy, Debug)]
pub(super) struct StudyState {
    /// Input of [`rounds::end`], which decides if the study ends. The caller sets the elapsed time.
    pub(super) progress: rounds::StudyProgress,
    /// Largest half-width of an interval, as a share of the value. `None` if an interval is not
    /// known yet.
    pub(super) precision: Option<f64>,
}

/// Returns the state of a study after `runs`.
pub(super) fn progress(
    study: &LoadStudy,
    runs: &[FinishedRun],
    random: &mut dyn FnMut() -> u64,
) -> StudyState {
    let count = count_rounds(runs);
    let is_faulty =
        |round: &usize| runs.iter().any(|run| run.id.round == *round && run.facts.fault.is_some());
    let consecutive_faulty = (0..count).rev().take_while(is_faulty).count();
    let plans: Vec<PlanResult> =
        (0..study.plans.len()).map(|plan| compare_plan(study, runs, plan, random)).collect();
    let widths: Option<Vec<f64>> = plans.iter().map(|plan| plan.precision).collect();
    let precision = widths.map(|widths| widths.into_iter().fold(0.0, f64::max));
    StudyState {
        progress: rounds::StudyProgress {
            rounds: count,
            usable: plans.iter().map(|plan| plan.rounds).min().unwrap_or_default(),
            failed_rounds: consecutive_faulty,
            precise: precision.is_some_and(|width| width <= *study.file.precision),
            next_round: study.round_time(),
            ..rounds::StudyProgress::default()
        },
        precision,
    }
}

/// Analyses the runs of a study. `runs` are in the order of time.
pub fn analyse(
    study: &LoadStudy,
    runs: &[FinishedRun],
    end: EndReason,
    random: &mut dyn FnMut() -> u64,
) -> LoadStudyResult {
    let plans: Vec<PlanResult> =
        (0..study.plans.len()).map(|plan| compare_plan(study, runs, plan, random)).collect();
    let file = &study.file;
    let limits = study.limits();
    let mut result = LoadStudyResult {
        schema: SCHEMA.to_owned(),
        weir: env!("CARGO_PKG_VERSION").to_owned(),
        name: file.name.to_string(),
        question: (*file.question).clone(),
        started: runs.first().map_or_else(String::new, started),
        partial: end == EndReason::Interrupted,
        end,
        design: StudyDesign {
            order: *file.order,
            block: limits.block,
            restart: *file.restart,
            warm_up_rounds: *file.warm_up_rounds,
            rounds_min: limits.rounds_min,
            rounds_max: limits.rounds_max,
            precision: *file.precision,
            precision_of: file.precision_of.metric(),
            time_max: limits.time_max.as_secs_f64(),
        },
        variants: study.variants.iter().map(|variant| variant.facts(&study.variants)).collect(),
        plans,
        counts: summarize_pairs(study, runs),
        rounds: round_rows(study, runs),
        drifts: drifts(study, runs),
        conclusions: Vec::new(),
        warnings: Vec::new(),
    };
    result.conclusions = wording::sentences(&result);
    result.warnings = wording::warnings(&result);
    result.warnings.extend(study.cases_left_out.iter().map(|case| format!("left out: {case}")));
    result
}

/// Returns the start of a run as RFC 3339.
fn started(run: &FinishedRun) -> String {
    calendar::rfc3339(run.facts.started_unix)
}

/// Rounds of a plan that are left out for the same reason.
struct LeftOutRounds<'a> {
    /// Numbers of the rounds, from 1.
    rounds: Vec<String>,
    /// The variant whose runs are unusable, the first one of each round.
    variant: &'a str,
    reason: String,
}

impl<'a> LeftOutRounds<'a> {
    /// Adds the round with this index to `groups`.
    fn add(groups: &mut Vec<Self>, round: usize, variant: &'a str, reason: String) {
        let number = (round + 1).to_string();
        let mut same = groups.iter_mut();
        match same.find(|group| group.variant == variant && group.reason == reason) {
            Some(group) => group.rounds.push(number),
            None => groups.push(Self { rounds: vec![number], variant, reason }),
        }
    }
}

impl std::fmt::Display for LeftOutRounds<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let noun = if self.rounds.len() == 1 { "round" } else { "rounds" };
        write!(f, "{noun} {}: {}: {}", self.rounds.join(", "), self.variant, self.reason)
    }
}

/// Compares the variants under one plan. A round with an unusable run is left out for all variants,
/// because the runs of a round are compared with each other.
fn compare_plan(
    study: &LoadStudy,
    runs: &[FinishedRun],
    plan: usize,
    random: &mut dyn FnMut() -> u64,
) -> PlanResult {
    let mut variants: Vec<Variant> =
        study.variants.iter().map(|variant| Variant::named(&variant.name)).collect();
    let mut left_out: Vec<LeftOutRounds<'_>> = Vec::new();
    let mut usable = 0;
    for round in 0..count_rounds(runs) {
        let round_runs: Vec<&FinishedRun> =
            runs.iter().filter(|run| run.id.round == round && run.id.plan == plan).collect();
        let unusable_run = round_runs.iter().find_map(|run| Some((run.id.variant, unusable(run)?)));
        if let Some((variant, reason)) = unusable_run {
            LeftOutRounds::add(&mut left_out, round, &study.variants[variant].name, reason);
            continue;
        }
        usable += 1;
        for run in round_runs {
            let started = Some(run.facts.started_unix);
            let compared_run = run.run.clone().map(|values| Run { started, ..values });
            variants[run.id.variant].runs.extend(compared_run);
        }
    }
    let control_index = study.variants.iter().position(|variant| variant.control_of.is_some());
    let control_variant = control_index.map(|index| variants.remove(index));
    let control_runs = control_variant.as_ref().map(|control| interleave(&variants[0], control));
    let options = Options {
        control_runs: None,
        paired: true,
        despite_mismatches: study.loads_differ(),
        bootstrap: true,
    };
    let control = control_variant.map(|control_variant| {
        // The runs of the control set the floor (the smallest difference that counts) of the other
        // comparisons. The comparison with the control itself has the default floor.
        compare(vec![variants[0].clone(), control_variant], &options, random)
    });
    let comparison = compare(variants, &Options { control_runs, ..options }, random);
    let metric = study.file.precision_of.metric();
    let comparisons = [Some(&comparison), control.as_ref()];
    let widths: Option<Vec<f64>> =
        comparisons.into_iter().flatten().flat_map(|result| half_widths(result, metric)).collect();
    // The precision is unknown if one of the intervals is unknown, or if there is no interval.
    let widths = widths.filter(|widths| !widths.is_empty());
    let ratios = judge_ratios(study, runs, plan, &comparison, random);
    PlanResult {
        plan: study.plans[plan].clone(),
        rounds: usable,
        left_out: left_out.iter().map(LeftOutRounds::to_string).collect(),
        comparison,
        control,
        ratios,
        precision: widths.map(|widths| widths.into_iter().fold(0.0, f64::max)),
    }
}

/// Returns a variant whose runs alternate between those of two equal variants. The comparison
/// expects the runs of the A/A control in this form.
fn interleave(first: &Variant, second: &Variant) -> Variant {
    let pairs = first.runs.iter().zip(&second.runs);
    let runs = pairs.flat_map(|(first, second)| [first.clone(), second.clone()]).collect();
    Variant { runs, ..Variant::named("control") }
}

/// Returns the service time that replaces a latency in a comparison without latencies. Returns
/// other metrics unchanged.
pub(super) fn service_metric(metric: Metric) -> Metric {
    match metric {
        Metric::LatencyP50 => Metric::ServiceP50,
        Metric::LatencyP95 => Metric::ServiceP95,
        Metric::LatencyP99 => Metric::ServiceP99,
        other => other,
    }
}

/// Returns the half-width of each interval of a metric, as a share of the value. `None` means that
/// a difference has no interval, or an interval that reaches down to −100 %. A comparison has
/// either latencies or service times. For a latency, the intervals of the service time are
/// therefore returned too.
fn half_widths(result: &CompareResult, metric: Metric) -> Vec<Option<f64>> {
    let metrics = [metric, service_metric(metric)];
    let metric_differences =
        result.differences.iter().filter(|difference| metrics.contains(&difference.metric));
    // The interval is symmetric on the logarithmic scale.
    let half_width =
        |(low, high): (f64, f64)| (low > -1.0).then(|| ((1.0 + high) / (1.0 + low)).sqrt() - 1.0);
    metric_differences.map(|difference| difference.interval.and_then(half_width)).collect()
}

/// Returns the rows of the rounds with their runs.
fn round_rows(study: &LoadStudy, runs: &[FinishedRun]) -> Vec<RoundRow> {
    let count = count_rounds(runs);
    let row = |round: usize| {
        let round_runs = || runs.iter().filter(move |run| run.id.round == round);
        RoundRow {
            round: round + 1,
            started: round_runs().next().map_or_else(String::new, started),
            runs: round_runs().map(|run| run_row(study, run)).collect(),
        }
    };
    (0..count).map(row).collect()
}

/// Returns the row of a run.
fn run_row(study: &LoadStudy, run: &FinishedRun) -> StudyRunRow {
    let RunFacts { started_unix, seconds, calibration_ms, .. } = run.facts;
    let counts = run.facts.counts.clone();
    StudyRunRow {
        plan: study.plans[run.id.plan].clone(),
        variant: study.variants[run.id.variant].name.clone(),
        started_unix,
        seconds,
        outcome: run.run.as_ref().and_then(|run| run.facts.outcome),
        left_out: unusable(run),
        p50_ms: run.run.as_ref().and_then(|run| total(run, Metric::LatencyP50)),
        goodput: run.run.as_ref().and_then(|run| total(run, Metric::Goodput)),
        calibration_ms,
        counts,
    }
}

/// Returns the value of a metric over all methods. A run with a single method has no separate
/// total, so the value of that method is returned.
fn total(run: &Run, metric: Metric) -> Option<f64> {
    let over_all_methods = run.values.get(&(TOTAL.to_owned(), metric));
    let of_single_method =
        || run.values.iter().find(|((_, key), _)| *key == metric).map(|(_, value)| value);
    over_all_methods.or_else(of_single_method).copied()
}

/// Returns the drift of the machine's speed, and the drift of the first variant's median latency
/// under each plan.
fn drifts(study: &LoadStudy, runs: &[FinishedRun]) -> Vec<Drift> {
    let count = count_rounds(runs);
    let round_runs = |round| runs.iter().filter(move |run: &&FinishedRun| run.id.round == round);
    let calibrations: Vec<f64> = (0..count)
        .filter_map(|round| {
            median(&round_runs(round).map(|run| run.facts.calibration_ms).collect::<Vec<_>>())
        })
        .collect();
    let baseline = |plan: usize| -> Vec<f64> {
        let value = |round| {
            let run = round_runs(round).find(|run| run.id.plan == plan && run.id.variant == 0)?;
            total(run.run.as_ref()?, Metric::LatencyP50)
        };
        (0..count).filter_map(value).collect()
    };
    let baseline_drifts = study.plans.iter().enumerate().map(|(plan, name)| {
        rounds::drift(DriftSubject::Baseline, Some(name.clone()), baseline(plan))
    });
    let machine_drift = rounds::drift(DriftSubject::Machine, None, calibrations);
    std::iter::once(machine_drift).chain(baseline_drifts).flatten().collect()
}
