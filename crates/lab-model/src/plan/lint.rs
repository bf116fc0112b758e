//! What is allowed in a plan but looks like a mistake: told by `weir check` and before each run.
//!
//! Every rule is here because a published study fell for it. Faults, which keep a plan from running,
//! are `plan/checked.rs`.

use std::time::Duration;

use wire::family::Family;
use wire::method::methods_of;

use super::threshold::{Aggregation, Operator, Threshold};
use crate::metrics::{Metric, Samples};
use crate::plan::planned::Known;
use crate::plan::{Model, Plan, Scenario};

#[cfg(test)]
mod tests;

/// A method whose share of the calls is below this many times what an objective tolerates can fail
/// from some point of the run on without breaking it. A limit is reached in the course of a run: of
/// calls at a rising rate a third or so goes before the knee, so a method of 1.5 times the tolerated
/// share fails for the rest of the run unseen. The published case (Somnia): 1.087 % of the calls, a
/// tolerance of 1 %, and failures from 43 to 50 % of the run on.
const BLIND_FACTOR: f64 = 1.5;

/// Fewer samples than this beyond a percentile make it a matter of luck: with 100 the relative
/// standard error of their number is 10 %.
const SAMPLES_BEYOND_MIN: f64 = 100.0;

/// Stages shorter than this hold a handful of the one-second readings.
const STAGE_MIN: Duration = Duration::from_secs(5);

/// Iterations are taken to end within this where no objective says what is too long.
const ITERATION_USUAL: Duration = Duration::from_millis(100);

/// Everything that is to be said, most important first.
pub fn find(plan: &Plan) -> Vec<String> {
    let mut found = Vec::new();
    no_objective(plan, &mut found);
    blind_spots(plan, &mut found);
    few_samples(plan, &mut found);
    for scenario in &plan.scenarios {
        pacing(scenario, &mut found);
        workers(plan, scenario, &mut found);
        short_stages(scenario, &mut found);
        cut_short(plan, scenario, &mut found);
    }
    mean_of_a_schedule(plan, &mut found);
    methods(plan, &mut found);
    found
}

/// Told of a plan without objectives. A search chooses some of its own.
pub const NO_OBJECTIVE: &str =
    "no objective is set: the run can say what it saw, but neither pass nor fail";

fn no_objective(plan: &Plan, found: &mut Vec<String>) {
    if plan.thresholds.is_empty() {
        found.push(NO_OBJECTIVE.to_owned());
    }
}

/// A method and its share of the calls.
type Share<'a> = (&'a str, f64);

/// Objectives over all calls that one method's failure cannot break.
fn blind_spots(plan: &Plan, found: &mut Vec<String>) {
    let over_all = |threshold: &&Threshold| threshold.selector.method.is_none();
    let failed = plan.thresholds.iter().filter(over_all).filter_map(failed_share);
    let tail = plan.thresholds.iter().filter(over_all).filter_map(latency_tail);
    // The strictest one decides what stays hidden.
    if let Some((tolerated, threshold)) = failed.min_by(|(a, _), (b, _)| a.total_cmp(b)) {
        let shares = shares_without(plan, threshold, &[Metric::Failed]);
        let (below, above): (Vec<Share<'_>>, Vec<_>) =
            shares.into_iter().partition(|(_, share)| *share < tolerated);
        hidden_wholly(&below, threshold, found);
        // Judged by window, a failure that begins late fills its windows and is seen.
        if threshold.window.is_none() {
            let near = above.into_iter().filter(|(_, share)| *share < tolerated * BLIND_FACTOR);
            hidden_late(&near.collect::<Vec<_>>(), tolerated, threshold, found);
        }
    }
    if let Some((tolerated, threshold)) = tail.min_by(|(a, _), (b, _)| a.total_cmp(b)) {
        let shares = shares_without(plan, threshold, &[Metric::Latency, Metric::Service]);
        let below: Vec<_> = shares.into_iter().filter(|(_, share)| *share < tolerated).collect();
        hidden_slow(&below, threshold, found);
    }
}

/// Shares of the methods that have no objective of their own for one of these metrics.
fn shares_without<'a>(plan: &'a Plan, threshold: &Threshold, metrics: &[Metric]) -> Vec<Share<'a>> {
    let own = |method: usize| {
        plan.thresholds.iter().any(|threshold| {
            let selector = &threshold.selector;
            selector.method == Some(method) && metrics.contains(&selector.metric)
        })
    };
    let names = plan.methods.iter().enumerate().filter(|(method, _)| !own(*method));
    names
        .filter_map(|(method, name)| Some((&**name, share_in(plan, threshold, method)?)))
        .filter(|(_, share)| *share > 0.0)
        .collect()
}

fn hidden_wholly(methods: &[Share<'_>], threshold: &Threshold, found: &mut Vec<String>) {
    let text = &threshold.text;
    match methods {
        [] => {}
        [(name, share)] => found.push(format!(
            "{name} is {} of calls: all of it can fail without breaking \"{text}\"; add \
             failed{{method:{name}}}",
            percent(*share)
        )),
        more => found.push(format!(
            "each of these can fail wholly without breaking \"{text}\": {}; add \
             failed{{method:…}} for those that matter",
            listed(more)
        )),
    }
}

fn hidden_late(
    methods: &[Share<'_>],
    tolerated: f64,
    threshold: &Threshold,
    found: &mut Vec<String>,
) {
    for (name, share) in methods {
        found.push(format!(
            "{name} is {} of calls: it can fail wholly from some point of the run on without \
             breaking \"{}\", which needs {} of them to fail; add failed{{method:{name}}}",
            percent(*share),
            threshold.text,
            percent(tolerated / share)
        ));
    }
}

fn hidden_slow(methods: &[Share<'_>], threshold: &Threshold, found: &mut Vec<String>) {
    let text = &threshold.text;
    match methods {
        [] => {}
        [(name, share)] => found.push(format!(
            "{name} is {} of calls: however slow all of them are, \"{text}\" cannot break; add \
             latency{{method:{name}}}",
            percent(*share)
        )),
        more => found.push(format!(
            "however slow one of these is, \"{text}\" cannot break: {}; add \
             latency{{method:…}} for those that matter",
            listed(more)
        )),
    }
}

/// Methods with their shares, the largest first.
fn listed(methods: &[Share<'_>]) -> String {
    let mut sorted = methods.to_vec();
    sorted.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    let one = |(name, share): &Share<'_>| format!("{name} ({})", percent(*share));
    abridged(sorted.iter().map(one))
}

/// The first of many, and how many more there are.
fn abridged(items: impl ExactSizeIterator<Item = String>) -> String {
    const SHOWN_MAX: usize = 8;
    let more = items.len().saturating_sub(SHOWN_MAX);
    let shown: Vec<_> = items.take(SHOWN_MAX).collect();
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{rest}", shown.join(", "))
}

/// What a threshold tolerates as failed, if that is what it is about.
fn failed_share(threshold: &Threshold) -> Option<(f64, &Threshold)> {
    let upper = matches!(threshold.operator, Operator::Less | Operator::LessOrEqual);
    let failed = threshold.selector.metric == Metric::Failed;
    (failed && upper && threshold.limit > 0.0).then_some((threshold.limit, threshold))
}

/// The share of calls that a percentile does not look at.
fn latency_tail(threshold: &Threshold) -> Option<(f64, &Threshold)> {
    let times = matches!(threshold.selector.metric.samples(), Samples::CallTimes(..));
    match threshold.aggregation {
        Aggregation::Percentile(percent) if times => Some((1.0 - percent / 100.0, threshold)),
        _ => None,
    }
}

/// A method's share in the calls that a threshold looks at; where that depends on the target's
/// speed, the largest that it can be.
fn share_in(plan: &Plan, threshold: &Threshold, method: usize) -> Option<f64> {
    let looked_at = |scenario: &Scenario| match &threshold.selector.stages {
        Some(stages) => scenario.stages.iter().any(|stage| stages.contains(&stage.index)),
        None => true,
    };
    if let Some(shares) = plan.shares_of(looked_at) {
        return Some(shares[method]);
    }
    let of_one = |scenario: &Scenario| plan.shares_of(|other| other.name == scenario.name);
    let shares = plan.scenarios.iter().filter(|scenario| looked_at(scenario)).filter_map(of_one);
    shares.map(|shares| shares[method]).reduce(f64::max)
}

/// Percentiles of too few calls.
pub fn few_samples(plan: &Plan, found: &mut Vec<String>) {
    for threshold in &plan.thresholds {
        let Aggregation::Percentile(percent) = threshold.aggregation else { continue };
        let beyond = 1.0 - percent / 100.0;
        if beyond <= 0.0 {
            continue;
        }
        let Some(samples) = samples(plan, threshold) else { continue };
        if samples * beyond < SAMPLES_BEYOND_MIN {
            let needed = (SAMPLES_BEYOND_MIN / beyond).round();
            let (about, each) = match threshold.window {
                Some(_) => ("about", " in each window"),
                None => ("at most", ""),
            };
            found.push(format!(
                "\"{}\" is judged by {about} {} samples{each}, {} of them beyond the percentile: \
                 one slow call more or less decides; {needed} samples would do",
                threshold.text,
                samples.floor(),
                (samples * beyond).floor(),
            ));
        }
    }
}

/// Samples that a threshold will have at most, if the plan bounds them.
pub fn samples(plan: &Plan, threshold: &Threshold) -> Option<f64> {
    let of_iterations = !threshold.selector.metric.per_method();
    let mut samples = 0.0;
    for scenario in &plan.scenarios {
        let wanted: Vec<_> = match &threshold.selector.stages {
            Some(stages) => scenario.stages.iter().filter(|s| stages.contains(&s.index)).collect(),
            None => scenario.stages.iter().collect(),
        };
        if wanted.is_empty() {
            continue;
        }
        let part = Scenario { stages: wanted.into_iter().cloned().collect(), ..scenario.clone() };
        let iterations = part.iterations().bound()?;
        let steps = plan.mixes[scenario.mix].steps.len() as f64;
        let share = match threshold.selector.method {
            Some(method) => {
                plan.shares_of(|other| other.name == scenario.name).map_or(0.0, |s| s[method])
            }
            None => 1.0,
        };
        let batched =
            scenario.batch.map_or(1.0, |batch| 1.0 + batch.probability * (batch.size as f64 - 1.0));
        let calls = if of_iterations { 1.0 } else { steps * share * batched };
        let window = threshold
            .window
            .map_or(1.0, |window| (window.as_secs_f64() / part.duration().as_secs_f64()).min(1.0));
        samples += iterations * calls * window;
    }
    Some(samples)
}

/// A closed model whose own pauses bound its rate.
fn pacing(scenario: &Scenario, found: &mut Vec<String>) {
    if scenario.model == Model::Closed && !scenario.pause.is_zero() {
        let workers = scenario.level_max();
        let most = workers / scenario.pause.as_secs_f64();
        found.push(format!(
            "scenario {}: {workers} workers that pause {:?} begin at most {} iterations/s, however \
             fast the target is; at about that rate nothing is learnt of it",
            scenario.name,
            scenario.pause,
            rate(most),
        ));
    }
}

/// An open model whose workers run out before its objectives can break.
fn workers(plan: &Plan, scenario: &Scenario, found: &mut Vec<String>) {
    if scenario.model == Model::Closed {
        return;
    }
    let peak = scenario.level_max();
    let bearable = scenario.workers_max as f64 / peak;
    let times = plan.thresholds.iter().filter(|threshold| {
        threshold.selector.metric == Metric::Latency
            && matches!(threshold.operator, Operator::Less | Operator::LessOrEqual)
    });
    let longest = times.map(|threshold| threshold.limit / 1000.0).reduce(f64::max);
    let usual = longest.unwrap_or(ITERATION_USUAL.as_secs_f64());
    if bearable < usual {
        let worst = plan.target.timeout.as_secs_f64() * plan.mixes[scenario.mix].steps.len() as f64;
        found.push(format!(
            "scenario {}: {} workers carry {} iterations/s only while one takes at most {:.3} s in \
             the mean, which is less than the {usual:.3} s that the objectives allow; if all time \
             out they carry {}/s",
            scenario.name,
            scenario.workers_max,
            rate(peak),
            bearable,
            rate(scenario.workers_max as f64 / worst),
        ));
    }
}

fn short_stages(scenario: &Scenario, found: &mut Vec<String>) {
    let short: Vec<_> = scenario
        .stages
        .iter()
        .filter(|stage| !stage.duration.is_zero() && stage.duration < STAGE_MIN)
        .map(|stage| stage.name.clone())
        .collect();
    if !short.is_empty() && scenario.iterations_max.is_none() {
        found.push(format!(
            "scenario {}: shorter than {} s, which is too short for figures of their own: {}",
            scenario.name,
            STAGE_MIN.as_secs(),
            abridged(short.into_iter())
        ));
    }
}

/// A grace in which a call under way cannot even time out.
fn cut_short(plan: &Plan, scenario: &Scenario, found: &mut Vec<String>) {
    if scenario.grace < plan.target.timeout {
        found.push(format!(
            "scenario {}: its grace of {:?} is shorter than the timeout of {:?}: calls that hang at \
             the end are cut and not counted as timed out",
            scenario.name, scenario.grace, plan.target.timeout
        ));
    }
}

/// The mean of a changing schedule, which others have published as a capacity.
fn mean_of_a_schedule(plan: &Plan, found: &mut Vec<String>) {
    let (Some(peak), Known::Exactly(requests)) = (plan.peak(), plan.requests()) else { return };
    let seconds = plan.duration().as_secs_f64();
    let mean = requests / seconds;
    if peak > mean * 1.01 {
        found.push(format!(
            "the mean of {} requests/s is the schedule's own (its peak is {}): it is no capacity of \
             the target",
            rate(mean),
            rate(peak)
        ));
    }
}

/// Methods that change something, and names that no table knows.
fn methods(plan: &Plan, found: &mut Vec<String>) {
    let families = match plan.target.family {
        Some(name) => vec![name],
        None => Family::ALL.to_vec(),
    };
    let row = |name: &str| families.iter().find_map(|known| methods_of(*known).method(name));
    let names = |wanted: &dyn Fn(&str) -> bool| -> Vec<String> {
        plan.methods.iter().filter(|name| wanted(name)).map(|name| name.to_string()).collect()
    };
    let writes = names(&|name| row(name).is_some_and(|row| row.write));
    if !writes.is_empty() {
        let writes = abridged(writes.into_iter());
        found.push(format!("it changes what it is sent to, if the target takes it: {writes}"));
    }
    let unknown = names(&|name| row(name).is_none());
    if !unknown.is_empty() {
        let families: Vec<_> = families.iter().map(|family| family.as_str()).collect();
        let (unknown, families) = (abridged(unknown.into_iter()), families.join(", "));
        found.push(format!("no such method is known of {families}: {unknown}"));
    }
}

/// A rate with as many digits as it deserves.
fn rate(rate: f64) -> String {
    if rate >= 100.0 { format!("{rate:.0}") } else { format!("{rate:.3}") }
}

fn percent(share: f64) -> String {
    format!("{:.3} %", share * 100.0)
}
