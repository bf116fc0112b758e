//! Finds likely mistakes in a plan. `weir check` and each run report them as warnings.
//!
//! A threshold selects samples of a metric and limits their aggregate, as in
//! `latency{method:eth_call} p(99)<300`. A threshold with a window limits the aggregate at each
//! position of a sliding window.
//!
//! Each rule is based on a mistake in a published study. `plan/validate.rs` reports errors, which
//! prevent a run.

use std::fmt;
use std::time::Duration;

use settings::find_nearest_name;
use wire::family::Family;
use wire::method::methods_of;

use super::threshold::{Aggregation, Operator, Threshold};
use crate::metrics::{Metric, Samples};
use crate::number::join_first;
use crate::plan::planned::Planned;
use crate::plan::{Model, Plan, Scenario};

#[cfg(test)]
mod tests;

/// A threshold tolerates a share of failures, such as 1 %. A method is reported if its share of all
/// calls is below the tolerated share times this factor. All calls of such a method can fail during
/// the last part of the run without breaking the threshold.
///
/// Suppose that the rate rises, and a method begins to fail in the middle of the run. About a third
/// of the method's calls have been sent by then, so only the other two thirds fail. If the method's
/// share is 1.5 times the tolerated share, these failures are just as many as the threshold
/// tolerates. In the published case (Somnia), the method had 1.087 % of the calls, the threshold
/// tolerated 1 %, and the failures began at 43 to 50 % of the run.
const BLIND_FACTOR: f64 = 1.5;

/// Minimum expected number of samples above a percentile. The actual number varies from run to run.
/// If 100 samples are expected, the relative standard error of the actual number is 10 %.
const SAMPLES_BEYOND_MIN: f64 = 100.0;

/// Minimum duration of a stage. A shorter stage has fewer than five samples of one second.
const STAGE_MIN: Duration = Duration::from_secs(5);

/// Assumed duration of the longest iteration if no threshold limits the latency.
const ITERATION_DEFAULT: Duration = Duration::from_millis(100);

/// A likely mistake in a plan. It is displayed as one sentence.
#[derive(Clone, Debug, PartialEq)]
pub enum Warning {
    /// No threshold is set. A capacity search removes this warning, because it chooses thresholds
    /// itself.
    NoThreshold,
    /// The percentile of a threshold has too few samples. Their number depends on the rate, so each
    /// probe of a capacity search has its own warnings of this kind.
    FewSamples(String),
    /// Any other mistake.
    Other(String),
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Warning::NoThreshold => {
                f.write_str("no threshold is set: the run can neither pass nor fail")
            }
            Warning::FewSamples(text) | Warning::Other(text) => f.write_str(text),
        }
    }
}

/// Returns all warnings, most important first.
pub fn find_warnings(plan: &Plan) -> Vec<Warning> {
    let mut warnings = Vec::new();
    if plan.threshold_count() == 0 {
        warnings.push(Warning::NoThreshold);
    }
    check_blind_spots(plan, &mut warnings);
    warnings.extend(check_samples(plan));
    for scenario in &plan.scenarios {
        check_pauses(scenario, &mut warnings);
        check_workers(plan, scenario, &mut warnings);
        check_stage_lengths(scenario, &mut warnings);
        check_grace(plan, scenario, &mut warnings);
    }
    check_mean_rate(plan, &mut warnings);
    check_methods(plan, &mut warnings);
    warnings
}

/// A method and its share of the calls.
type Share<'a> = (&'a str, f64);

/// Finds methods whose calls can all fail, or all be slow, without breaking a threshold over all
/// methods.
fn check_blind_spots(plan: &Plan, warnings: &mut Vec<Warning>) {
    // True if the threshold is about all methods together.
    let is_over_all = |threshold: &&Threshold| threshold.selector.method.is_none();
    let failure_limits = plan.thresholds.iter().filter(is_over_all).filter_map(tolerated_failures);
    let tail_limits = plan.thresholds.iter().filter(is_over_all).filter_map(tolerated_tail);
    // Only the strictest threshold is checked.
    let strictest = failure_limits.min_by(|(first, _), (second, _)| first.total_cmp(second));
    if let Some((tolerated, threshold)) = strictest {
        let shares = find_unprotected(plan, threshold, &[Metric::Failed]);
        let (below, above): (Vec<Share<'_>>, Vec<_>) =
            shares.into_iter().partition(|(_, share)| *share < tolerated);
        warnings.extend(describe_hidden_failures(&below, threshold).map(Warning::Other));
        // A threshold with a window detects a late failure, because the failure fills whole
        // windows.
        if threshold.window.is_none() {
            let slightly_above =
                above.into_iter().filter(|(_, share)| *share < tolerated * BLIND_FACTOR);
            warn_of_late_failures(
                &slightly_above.collect::<Vec<_>>(),
                tolerated,
                threshold,
                warnings,
            );
        }
    }
    let strictest = tail_limits.min_by(|(first, _), (second, _)| first.total_cmp(second));
    if let Some((tolerated, threshold)) = strictest {
        let shares = find_unprotected(plan, threshold, &[Metric::Latency, Metric::Service]);
        let below: Vec<_> = shares.into_iter().filter(|(_, share)| *share < tolerated).collect();
        warnings.extend(describe_hidden_latency(&below, threshold).map(Warning::Other));
    }
}

/// Returns the methods that have no threshold of their own for any of these metrics. Each method
/// comes with its share of the calls that `threshold` selects.
fn find_unprotected<'a>(
    plan: &'a Plan,
    threshold: &Threshold,
    metrics: &[Metric],
) -> Vec<Share<'a>> {
    let has_threshold = |method: usize| {
        plan.thresholds.iter().any(|threshold| {
            let selector = &threshold.selector;
            selector.method == Some(method) && metrics.contains(&selector.metric)
        })
    };
    let names = plan.methods.iter().enumerate().filter(|(method, _)| !has_threshold(*method));
    names
        .filter_map(|(method, name)| Some((&**name, find_share(plan, threshold, method)?)))
        .filter(|(_, share)| *share > 0.0)
        .collect()
}

/// Returns a warning about methods whose calls can all fail without breaking the threshold.
fn describe_hidden_failures(methods: &[Share<'_>], threshold: &Threshold) -> Option<String> {
    let text = &threshold.text;
    match methods {
        [] => None,
        [(name, share)] => Some(format!(
            "{name} is {} of calls: all of them can fail without breaking \"{text}\"; add \
             failed{{method:{name}}}",
            format_percent(*share)
        )),
        several => Some(format!(
            "all calls of any of these methods can fail without breaking \"{text}\": {}; add \
             failed{{method:…}} for the important ones",
            list_shares(several)
        )),
    }
}

/// Warns of methods whose calls can all fail from some time on without breaking the threshold.
/// `tolerated` is the share of failures that the threshold tolerates.
fn warn_of_late_failures(
    methods: &[Share<'_>],
    tolerated: f64,
    threshold: &Threshold,
    warnings: &mut Vec<Warning>,
) {
    for (name, share) in methods {
        warnings.push(Warning::Other(format!(
            "{name} is {} of calls: all of them can fail for the rest of the run without \
             breaking \"{}\", which needs {} of them to fail; add failed{{method:{name}}}",
            format_percent(*share),
            threshold.text,
            format_percent(tolerated / share)
        )));
    }
}

/// Returns a warning about methods that can be slow without breaking the threshold.
fn describe_hidden_latency(methods: &[Share<'_>], threshold: &Threshold) -> Option<String> {
    let text = &threshold.text;
    match methods {
        [] => None,
        [(name, share)] => Some(format!(
            "{name} is {} of calls: \"{text}\" cannot break, however slow all of them are; add \
             latency{{method:{name}}}",
            format_percent(*share)
        )),
        several => Some(format!(
            "\"{text}\" cannot break, however slow one of these methods is: {}; add \
             latency{{method:…}} for the important ones",
            list_shares(several)
        )),
    }
}

/// Lists the methods with their shares, largest first.
fn list_shares(methods: &[Share<'_>]) -> String {
    let mut sorted = methods.to_vec();
    sorted.sort_by(|(_, first), (_, second)| second.total_cmp(first));
    let item = |(name, share): &Share<'_>| format!("{name} ({})", format_percent(*share));
    list_names(&sorted.iter().map(item).collect::<Vec<_>>())
}

/// Lists the first eight names, and the number of the others.
fn list_names(names: &[String]) -> String {
    join_first(names, 8, ", ")
}

/// Returns the share of failures that a threshold tolerates, and the threshold itself. Returns
/// `None` if the threshold does not limit failures, or tolerates no failure.
fn tolerated_failures(threshold: &Threshold) -> Option<(f64, &Threshold)> {
    let is_upper_limit = matches!(threshold.operator, Operator::Less | Operator::LessOrEqual);
    let limits_failures = threshold.selector.metric == Metric::Failed;
    (limits_failures && is_upper_limit && threshold.limit > 0.0)
        .then_some((threshold.limit, threshold))
}

/// Returns the share of calls above the percentile of a threshold, and the threshold itself. These
/// calls may have any latency. Returns `None` if the threshold has no percentile of call times.
fn tolerated_tail(threshold: &Threshold) -> Option<(f64, &Threshold)> {
    let has_call_times = matches!(threshold.selector.metric.samples(), Samples::CallTimes(..));
    match threshold.aggregation {
        Aggregation::Percentile(percent) if has_call_times => {
            Some((1.0 - percent / 100.0, threshold))
        }
        _ => None,
    }
}

/// Returns a method's share of the calls that a threshold selects. If the share depends on the
/// target's speed, returns the largest possible share. Returns `None` if the threshold selects no
/// scenario.
fn find_share(plan: &Plan, threshold: &Threshold, method: usize) -> Option<f64> {
    let is_selected = |scenario: &Scenario| match &threshold.selector.stages {
        Some(stages) => scenario.stages.iter().any(|stage| stages.contains(&stage.index)),
        None => true,
    };
    if let Some(shares) = plan.shares_of(is_selected) {
        return Some(shares[method]);
    }
    let scenario_shares = |scenario: &Scenario| plan.shares_of(|other| other.name == scenario.name);
    let selected = plan.scenarios.iter().filter(|scenario| is_selected(scenario));
    let shares = selected.filter_map(scenario_shares);
    shares.map(|shares| shares[method]).reduce(f64::max)
}

/// Finds thresholds about a percentile that has too few samples.
pub fn check_samples(plan: &Plan) -> Vec<Warning> {
    let mut warnings = Vec::new();
    for threshold in &plan.thresholds {
        let Aggregation::Percentile(percent) = threshold.aggregation else { continue };
        let share_beyond = 1.0 - percent / 100.0;
        if share_beyond <= 0.0 {
            continue;
        }
        let Some(samples) = count_samples(plan, threshold) else { continue };
        if samples * share_beyond < SAMPLES_BEYOND_MIN {
            let needed = (SAMPLES_BEYOND_MIN / share_beyond).round();
            let (about, each) = match threshold.window {
                Some(_) => ("about", " in each window"),
                None => ("at most", ""),
            };
            warnings.push(Warning::FewSamples(format!(
                "\"{}\" has {about} {} samples{each}, {} of them beyond the percentile: a few \
                 slow calls decide; use at least {needed} samples",
                threshold.text,
                samples.floor(),
                (samples * share_beyond).floor(),
            )));
        }
    }
    warnings
}

/// Returns the maximum number of samples that a threshold can have. For a threshold with a window,
/// this is the number in one window. Returns `None` if the plan does not limit the number.
pub fn count_samples(plan: &Plan, threshold: &Threshold) -> Option<f64> {
    let counts_iterations = !threshold.selector.metric.per_method();
    let mut samples = 0.0;
    for scenario in &plan.scenarios {
        let selected: Vec<_> = match &threshold.selector.stages {
            Some(stages) => {
                scenario.stages.iter().filter(|stage| stages.contains(&stage.index)).collect()
            }
            None => scenario.stages.iter().collect(),
        };
        if selected.is_empty() {
            continue;
        }
        // A copy of the scenario with only the selected stages.
        let selected_part =
            Scenario { stages: selected.into_iter().cloned().collect(), ..scenario.clone() };
        let iterations = selected_part.iterations().bound()?;
        let calls_by_method = plan.calls_per_iteration(scenario);
        let calls = match threshold.selector.method {
            _ if counts_iterations => 1.0,
            Some(method) => calls_by_method[method],
            None => calls_by_method.iter().sum(),
        };
        let window_share = threshold.window.map_or(1.0, |window| {
            (window.as_secs_f64() / selected_part.duration().as_secs_f64()).min(1.0)
        });
        samples += iterations * calls * window_share;
    }
    Some(samples)
}

/// Finds closed scenarios whose pauses limit the rate.
fn check_pauses(scenario: &Scenario, warnings: &mut Vec<Warning>) {
    if scenario.model == Model::Closed && !scenario.pause.is_zero() {
        let workers = scenario.level_max();
        let rate_max = workers / scenario.pause.as_secs_f64();
        warnings.push(Warning::Other(format!(
            "scenario {}: {workers} workers with a pause of {:?} start at most {} iterations/s, \
             however fast the target is; near that rate the run measures the pause, not the target",
            scenario.name,
            scenario.pause,
            format_rate(rate_max),
        )));
    }
}

/// Finds open scenarios whose workers run out before the thresholds can break.
fn check_workers(plan: &Plan, scenario: &Scenario, warnings: &mut Vec<Warning>) {
    if scenario.model == Model::Closed {
        return;
    }
    let peak = scenario.level_max();
    // Longest mean duration of an iteration, in seconds, at which the workers sustain the peak.
    let sustainable = scenario.workers_max as f64 / peak;
    let latency_limits = plan.thresholds.iter().filter(|threshold| {
        threshold.selector.metric == Metric::Latency
            && matches!(threshold.operator, Operator::Less | Operator::LessOrEqual)
    });
    // The longest duration in seconds that a threshold allows.
    let longest = latency_limits.map(|threshold| threshold.limit / 1000.0).reduce(f64::max);
    let allowed = longest.unwrap_or(ITERATION_DEFAULT.as_secs_f64());
    if sustainable < allowed {
        // Duration of an iteration whose calls all time out, in seconds.
        let worst = plan.target.timeout.as_secs_f64() * plan.mixes[scenario.mix].steps.len() as f64;
        warnings.push(Warning::Other(format!(
            "scenario {}: {} workers sustain {} iterations/s only if an iteration takes at most {:.3} s in \
             the mean, which is less than the {allowed:.3} s that the thresholds allow; if all \
             iterations time out, they sustain {}/s",
            scenario.name,
            scenario.workers_max,
            format_rate(peak),
            sustainable,
            format_rate(scenario.workers_max as f64 / worst),
        )));
    }
}

/// Finds stages that are shorter than [`STAGE_MIN`].
fn check_stage_lengths(scenario: &Scenario, warnings: &mut Vec<Warning>) {
    let short_names: Vec<_> = scenario
        .stages
        .iter()
        .filter(|stage| !stage.duration.is_zero() && stage.duration < STAGE_MIN)
        .map(|stage| stage.name.clone())
        .collect();
    if !short_names.is_empty() && scenario.iterations_max.is_none() {
        warnings.push(Warning::Other(format!(
            "scenario {}: these stages are shorter than {} s and too short for statistics of their own: {}",
            scenario.name,
            STAGE_MIN.as_secs(),
            list_names(&short_names)
        )));
    }
}

/// Finds grace periods that are shorter than the timeout of a call.
fn check_grace(plan: &Plan, scenario: &Scenario, warnings: &mut Vec<Warning>) {
    if scenario.grace < plan.target.timeout {
        warnings.push(Warning::Other(format!(
            "scenario {}: its grace of {:?} is shorter than the timeout of {:?}: calls that hang at \
             the end are interrupted instead of counted as timeouts",
            scenario.name, scenario.grace, plan.target.timeout
        )));
    }
}

/// Finds plans whose rate changes. Studies have mistaken the mean rate of such a run for the
/// capacity of the target.
fn check_mean_rate(plan: &Plan, warnings: &mut Vec<Warning>) {
    let (Some(peak), Planned::Exactly(requests)) = (plan.peak(), plan.requests()) else { return };
    let seconds = plan.duration().as_secs_f64();
    let mean = requests / seconds;
    if peak > mean * 1.01 {
        warnings.push(Warning::Other(format!(
            "the mean of {} requests/s follows from the schedule (its peak is {}): it is not the \
             capacity of the target",
            format_rate(mean),
            format_rate(peak)
        )));
    }
}

/// Finds methods that write, and unknown methods.
fn check_methods(plan: &Plan, warnings: &mut Vec<Warning>) {
    let families = match plan.target.family {
        Some(name) => vec![name],
        None => Family::ALL.to_vec(),
    };
    // A row is the method's entry in the method table of its family.
    let find_row = |name: &str| families.iter().find_map(|family| methods_of(*family).method(name));
    let select_names = |is_selected: &dyn Fn(&str) -> bool| -> Vec<String> {
        plan.methods.iter().filter(|name| is_selected(name)).map(|name| name.to_string()).collect()
    };
    let writes = select_names(&|name| find_row(name).is_some_and(|row| row.write));
    if !writes.is_empty() {
        let writes = list_names(&writes);
        warnings.push(Warning::Other(format!("these methods write to the target: {writes}")));
    }
    let unknown = select_names(&|name| find_row(name).is_none());
    if !unknown.is_empty() {
        let known: Vec<&str> = families
            .iter()
            .flat_map(|family| methods_of(*family).methods().map(|row| row.name))
            .collect();
        let with_suggestion = |name: &String| match find_nearest_name(name, &known) {
            Some(nearest_name) => format!("{name} (did you mean {nearest_name}?)"),
            None => name.clone(),
        };
        let unknown: Vec<String> = unknown.iter().map(with_suggestion).collect();
        let families: Vec<_> = families.iter().map(|family| family.as_str()).collect();
        let (unknown, families) = (list_names(&unknown), families.join(", "));
        warnings.push(Warning::Other(format!("unknown methods for {families}: {unknown}")));
    }
}

/// Formats a rate with a sensible number of digits.
fn format_rate(rate: f64) -> String {
    if rate >= 100.0 { format!("{rate:.0}") } else { format!("{rate:.3}") }
}

fn format_percent(share: f64) -> String {
    format!("{:.3} %", share * 100.0)
}
