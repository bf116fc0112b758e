//! Writes the conclusions and warnings of a study of load runs. A round is one run of each variant.
//! The A/A control compares the first variant with a second series of runs of the same variant.

use lab_model::results::ComparisonVerdict;
use lab_model::results::compare::{CompareResult, Difference, Metric};
use lab_model::results::load_study::{
    AccessLogRow, CountRow, CpuLimitKind, Drift, DriftSubject, EndReason, LoadStudyResult,
    PlanResult, RatioRow, RatioVerdict,
};

use crate::analysis::rounds::is_trend;
use crate::wording::difference;
use crate::wording::number::{percent, plural, short};

/// Smallest relative drift of the machine's speed that causes a warning. Repeated measurements
/// differ by about this share without a drift.
const DRIFT_MIN: f64 = 0.025;

/// Returns the conclusions of a study: the ratios with a limit, the comparisons with their A/A
/// controls, the access logs, the precision, and the drift.
pub(super) fn sentences(result: &LoadStudyResult) -> Vec<String> {
    let first = result.variants.first().map_or("", |variant| variant.name.as_str());
    let mut sentences = Vec::new();
    for plan in &result.plans {
        let prefix = prefix_of_plan(result, plan);
        let ratios = plan.ratios.iter();
        sentences.extend(ratios.map(|row| format!("{prefix}{}", describe_ratio(first, row))));
    }
    for plan in &result.plans {
        let prefix = prefix_of_plan(result, plan);
        if plan.rounds == 0 {
            let reason = "no round has usable runs of all variants";
            sentences.push(format!("{prefix}not compared: {reason}"));
            continue;
        }
        let too_few = describe_missing_rounds(result, plan);
        let conclusions = plan.comparison.conclusions.iter();
        sentences.extend(conclusions.map(|text| format!("{prefix}{text}{too_few}")));
        sentences.extend(
            plan.control.iter().map(|result| format!("{prefix}{}", describe_control(result))),
        );
    }
    sentences.extend(describe_access_logs(&result.counts));
    sentences.push(describe_precision(result));
    sentences.extend(result.drifts.iter().map(describe_drift));
    sentences
}

/// Describes a ratio, its interval and its limit. `first` is the name of the first variant.
pub(super) fn describe_ratio(first: &str, row: &RatioRow) -> String {
    let subject = format!("{} compared with {first}: {}", row.variant, name_ratio(row.metric));
    let Some(ratio) = row.ratio else {
        return format!("{subject} is unknown, so its limit {} cannot be judged", row.ratio_max);
    };
    let interval = row
        .interval
        .map_or_else(String::new, |(low, high)| format!(" ({} to {})", short(low), short(high)));
    let verdict = match row.verdict {
        RatioVerdict::Kept => "keeps",
        RatioVerdict::Broken => "breaks",
        RatioVerdict::CannotTell => "cannot be told from",
    };
    format!("{subject} {}{interval} {verdict} the limit {}", short(ratio), row.ratio_max)
}

/// Names the ratio of a metric.
pub(super) fn name_ratio(metric: Metric) -> String {
    // The metric's name ends in a comma and its unit.
    let name = metric.as_str().split(',').next().unwrap_or_default();
    match metric.more_is_better() {
        true => format!("inverse ratio of {name}"),
        false => format!("ratio of {name}"),
    }
}

/// Describes at the end of a sentence why there are fewer rounds than required. Empty if there are
/// enough.
fn describe_missing_rounds(result: &LoadStudyResult, plan: &PlanResult) -> String {
    let rounds_min = result.design.rounds_min;
    if plan.rounds >= rounds_min {
        return String::new();
    }
    let reason = match result.rounds.len() < rounds_min {
        true => format!("the study was ended by {}", result.end.as_str()),
        false => {
            format!("{} left out", plural((result.rounds.len() - plan.rounds) as u64, "round"))
        }
    };
    format!("; this is from {} of at least {rounds_min} rounds ({reason})", plan.rounds)
}

/// Returns the beginning of a sentence about a plan. It is empty if the study has only one plan.
fn prefix_of_plan(result: &LoadStudyResult, plan: &PlanResult) -> String {
    if result.plans.len() > 1 { format!("{}: ", plan.plan) } else { String::new() }
}

/// Returns the differences whose verdict is better or worse.
fn find_different(result: &CompareResult) -> impl Iterator<Item = &Difference> {
    result.differences.iter().filter(|difference| difference.verdict.is_different())
}

/// Describes the A/A control: the baseline compared with itself.
fn describe_control(result: &CompareResult) -> String {
    let first = result.variants.first().map_or("", |variant| variant.name.as_str());
    let largest =
        result.differences.iter().max_by(|a, b| a.change.abs().total_cmp(&b.change.abs()));
    let Some(largest) = largest else {
        return format!("A/A control: no round of {first} and its repetition can be compared");
    };
    if find_different(result).next().is_some() {
        let names = difference::name_largest(find_different(result));
        return format!("A/A control: {first} differs from itself in {names}");
    }
    let is_open = |row: &&Difference| {
        row.verdict == ComparisonVerdict::CannotTell && difference::is_beyond_floor(row)
    };
    let open = result.differences.iter().filter(is_open).count();
    if open > 0 {
        return format!(
            "A/A control: cannot tell whether {first} differs from itself in {open} of {}; the largest \
             change is that of {}",
            plural(result.differences.len() as u64, "figure"),
            difference::sentence(largest)
        );
    }
    format!(
        "A/A control: {first} does not differ from itself in any of {}; the largest change is that \
         of {}",
        plural(result.differences.len() as u64, "figure"),
        difference::sentence(largest)
    )
}

/// Returns true if an access log has as many requests as the generator counted.
fn agrees(log: &AccessLogRow) -> bool {
    (log.total, log.limited) == (log.generator_total, log.generator_limited)
}

/// Describes the access logs if all of them agree with the generator. If they do not,
/// [`warn_of_counts`] returns a warning.
fn describe_access_logs(counts: &[CountRow]) -> Option<String> {
    let logs: Vec<AccessLogRow> = counts.iter().filter_map(|row| row.access_log).collect();
    if logs.is_empty() || !logs.iter().all(agrees) {
        return None;
    }
    let requests = logs.iter().map(|log| log.total).sum();
    Some(format!(
        "the access logs have exactly the {} that the generator counted",
        plural(requests, "request")
    ))
}

/// Returns warnings about access logs and CPU limits.
fn warn_of_counts(counts: &[CountRow]) -> Vec<String> {
    let mut warnings = Vec::new();
    for row in counts {
        let Some(log) = row.access_log.filter(|log| !agrees(log)) else { continue };
        warnings.push(format!(
            "{}, {}: the access log has {} ({} with status 429), but the generator counted {} ({} with \
             status 429); the server may drop lines or log no requests whose clients have left, or \
             another client may have the same User-Agent",
            row.plan,
            row.variant,
            plural(log.total, "request"),
            log.limited,
            plural(log.generator_total, "request"),
            log.generator_limited
        ));
    }
    let is_affinity =
        |row: &CountRow| row.cpu_limit.is_some_and(|limit| limit.kind == CpuLimitKind::Affinity);
    if counts.iter().any(is_affinity) {
        warnings.push(
            "no cgroup can be created, so CPU affinity limits the servers in place of a quota: they \
             have whole cores, and are never throttled as a pod is; run as root, or in a delegated \
             cgroup, to use quotas"
                .to_owned(),
        );
    }
    warnings
}

/// Describes the precision after the last round, and the reason for the end of the study.
fn describe_precision(result: &LoadStudyResult) -> String {
    let design = &result.design;
    // The metric's name ends in a comma and its unit.
    let metric = design.precision_of.as_str().split(',').next().unwrap_or_default();
    let widths: Option<Vec<f64>> = result.plans.iter().map(|plan| plan.precision).collect();
    let widest = widths.map(|widths| widths.into_iter().fold(0.0, f64::max));
    let rounds = plural(result.rounds.len() as u64, "round");
    let precision = match widest {
        Some(width) if width <= design.precision => {
            format!("all intervals of {metric} are ±{} or narrower", percent(design.precision))
        }
        Some(width) => format!(
            "the widest interval of {metric} is ±{}, wider than the required ±{}",
            percent(width),
            percent(design.precision)
        ),
        None => format!("an interval of {metric} is missing"),
    };
    let end = match result.end {
        EndReason::Precision => String::new(),
        other => format!("; the study was ended by {}", other.as_str()),
    };
    format!("after {rounds} {precision}{end}")
}

/// Describes a drift and the spread between rounds.
fn describe_drift(drift: &Drift) -> String {
    let plan = drift.plan.as_ref().map_or_else(String::new, |plan| format!(" under {plan}"));
    let subject = format!("{}{plan}", drift.subject.as_str());
    let spread = percent(drift.spread);
    match is_trend(drift.p) {
        true => format!(
            "drift: the {subject} changed by {:+.1} % during the study; the rounds differ by up to \
             {spread}",
            drift.change * 100.0
        ),
        false => {
            format!("drift: the {subject} shows no trend; the rounds differ by up to {spread}")
        }
    }
}

/// Returns doubts about the data of a study, each with advice.
pub(super) fn warnings(result: &LoadStudyResult) -> Vec<String> {
    let mut warnings = Vec::new();
    let mut add = |warning: String| {
        if !warnings.contains(&warning) {
            warnings.push(warning);
        }
    };
    warn_of_counts(&result.counts).into_iter().for_each(&mut add);
    for plan in &result.plans {
        let prefix = prefix_of_plan(result, plan);
        if let Some(control) = &plan.control
            && find_different(control).next().is_some()
        {
            add(format!(
                "{prefix}the A/A control differs from its original, so the arrangement itself causes \
                 differences; differences of the same metric up to that size do not count. More \
                 rounds, longer runs or restarts before each round may remove its cause"
            ));
        }
        if plan.rounds > 0 && !plan.rounds.is_multiple_of(result.design.block) {
            add(format!(
                "{prefix}the order of the variants is balanced after a multiple of {} rounds, but {} \
                 can be compared; a drift may favour a variant",
                result.design.block, plan.rounds
            ));
        }
    }
    if result.plans.iter().all(|plan| plan.control.is_none()) {
        add("the study has no A/A control, so the difference between equal variants is unknown; set \
             control = true"
            .to_owned());
    }
    for drift in result.drifts.iter().filter(|drift| is_trend(drift.p)) {
        if drift.subject == DriftSubject::Machine && drift.change.abs() >= DRIFT_MIN {
            add("the speed of this machine drifted during the study; runs of one round are compared \
                 with each other, which removes most of its effect"
                .to_owned());
        }
    }
    for plan in &result.plans {
        let control = plan.control.iter().flat_map(|control| &control.warnings);
        plan.comparison.warnings.iter().chain(control).cloned().for_each(&mut add);
    }
    warnings
}
