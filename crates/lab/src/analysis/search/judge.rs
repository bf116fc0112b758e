//! Decides if a probe of a capacity search passes. A probe is a short run at one rate; a baseline
//! is a probe at a low rate.
//!
//! The binding limit is the limit that a failed probe broke first. The run's own verdict comes
//! first (`analysis/verdict.rs`). It covers thresholds, methods that fail completely, and the
//! generator's health.
//!
//! Two more conditions apply: enough of the planned iterations start, and the backlog does not
//! grow. The backlog is the number of iterations in flight or waiting. At a rate above the capacity
//! the backlog grows without end, but all thresholds may still be kept for the short time of a
//! probe.

use lab_engine::aggregate;
use lab_model::metrics::Samples;
use lab_model::plan::threshold::{Aggregation, Operator, Threshold};
use lab_model::results::capacity::ProbeOutcome;
use lab_model::results::run::{Row, Second};
use lab_model::results::{Outcome, ThresholdOutcome, Verdict};

use crate::analysis::statistics::{mean, median, ranks};

/// The parts of a probe's run that decide if it passes.
#[derive(Clone, Copy, Debug)]
pub struct ProbeRun<'a> {
    /// Planned rate, in iterations per second.
    pub rate: f64,
    /// End of the warm-up, in seconds since the start.
    pub warmup: f64,
    /// End of the load, in seconds since the start; later, only calls in flight end.
    pub end: f64,
    /// At least this share of the scheduled iterations must have started. A started iteration
    /// counts as delivered.
    pub delivered_min: f64,
    /// The run's own verdict.
    pub verdict: &'a Verdict,
    /// True if percentiles of too few calls make the probe invalid; false for a baseline.
    pub needs_enough_calls: bool,
    /// Thresholds of the plan.
    pub thresholds: &'a [Threshold],
    /// Outcomes of the thresholds, in the same order.
    pub outcomes: &'a [ThresholdOutcome],
    /// All methods of the plan; thresholds refer to them by index.
    pub method_names: &'a [Box<str>],
    /// All seconds of the run.
    pub seconds: &'a [Second],
    /// Totals by method, without the warm-up.
    pub methods: &'a [Row],
    /// Totals by method of the baseline; empty if there was none.
    pub baseline: &'a [Row],
}

/// The outcome of a probe with its reasons.
#[derive(Clone, Debug, PartialEq)]
pub struct ProbeVerdict {
    /// The outcome.
    pub outcome: ProbeOutcome,
    /// Reasons, most important first; empty for a plain pass.
    pub reasons: Vec<Reason>,
    /// Distance to the nearest limit, as a share of that limit, from -1 to 1. At least 0 for a
    /// pass, at most 0 for a fail; `None` for other outcomes.
    pub margin: Option<f64>,
    /// The limit that a failed probe broke; `None` for other outcomes.
    pub binding: Option<BindingLimit>,
    /// Started ÷ scheduled iterations after the warm-up; 1 if none was scheduled.
    pub delivered_share: f64,
    /// Growth of the backlog in iterations per second; 0 if it may be chance.
    pub backlog_growth: f64,
    /// Number of iterations that ended per second.
    pub rate_ended: f64,
    /// Mean number of iterations in flight, that is, of busy workers.
    pub iterations_in_flight: f64,
    /// Mean number of iterations that waited for a worker.
    pub waiting: f64,
    /// Mean number of calls in flight.
    pub calls_in_flight: f64,
}

/// A reason for a probe's outcome. Rates are iterations per second.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "each field is a number of the sentence in wording/capacity.rs")]
pub enum Reason {
    /// A reason of the run's own verdict.
    RunVerdict(String),
    /// Too few of the scheduled iterations started.
    Delivered { share: f64, started: u64, scheduled: u64 },
    /// The backlog grew by `growth` iterations per second.
    BacklogGrew { growth: f64, rate: f64 },
    /// The generator itself stood still for this share of the time, so it may be the cause.
    GeneratorStopped { share: f64 },
    /// A percentile has too few calls beyond it.
    FewCalls { threshold: String, beyond: f64, rate: f64 },
}

/// The limit that a failed probe broke.
#[derive(Clone, Debug, PartialEq)]
pub struct BindingLimit {
    /// The limit.
    pub limit: Limit,
    /// The method that broke it; `None` if unknown.
    pub method: Option<String>,
    /// Observed value; `None` if unknown.
    pub observed: Option<f64>,
    /// Allowed value; `None` if the limit is not a number.
    pub allowed: Option<f64>,
}

/// A limit that a probe can break.
#[derive(Clone, Debug, PartialEq)]
pub enum Limit {
    /// A threshold of the plan, as it is written.
    Threshold(String),
    /// The lower limit on the share of the scheduled iterations that start.
    Delivered,
    /// The upper limit on the growth of the backlog, as a share of the planned rate.
    BacklogGrowth,
    /// No method may fail completely. This limit is named if the run failed without another broken
    /// limit, and more than half of a method's calls failed.
    MethodFails,
    /// The run's own verdict, if it failed for another reason.
    Verdict,
}

/// A trend counts if its p-value is at most this. At this level, one of twenty steady probes shows
/// a trend by chance.
const TREND_P: f64 = 0.05;
/// A backlog that grows by fewer iterations than this over a whole probe counts as constant,
/// because the growth may be rounding.
const GROWTH_MIN: f64 = 3.0;
/// The slope is computed from at most this many values, because its computation takes quadratic
/// time. Neighbours in longer series are averaged first.
const GROWTH_VALUES_MAX: usize = 1000;

/// Judges one probe.
pub fn judge(probe: ProbeRun<'_>) -> ProbeVerdict {
    let seconds = measured_seconds(&probe);
    let scheduled: u64 = seconds.iter().map(|second| second.scheduled).sum();
    let started: u64 = seconds.iter().map(|second| second.started).sum();
    // Iterations that were scheduled in the warm-up may start after it. So more iterations may
    // start than are scheduled.
    let delivered_share =
        if scheduled > 0 { (started as f64 / scheduled as f64).min(1.0) } else { 1.0 };
    let values_of = |value: fn(&Second) -> u64| -> Vec<f64> {
        seconds.iter().map(|second| value(second) as f64).collect()
    };
    let backlog = values_of(|second| second.workers_busy + second.waiting);
    let seconds_per_point = aggregate::point_seconds(probe.seconds);
    let growth = growth_per_second(&backlog, seconds_per_point);
    // A share of the iterations need not start. The backlog may grow by the same share of the rate.
    let growth_share_max = 1.0 - probe.delivered_min;

    let of_run = probe.verdict.reasons.iter().cloned();
    let mut reasons: Vec<Reason> = of_run.map(Reason::RunVerdict).collect();
    let broken_limit = |limit, observed, allowed| BindingLimit {
        limit,
        method: find_busiest_method(probe),
        observed: Some(observed),
        allowed: Some(allowed),
    };
    let mut delivery_limit = None;
    if delivered_share < probe.delivered_min {
        reasons.push(Reason::Delivered { share: delivered_share, started, scheduled });
        delivery_limit = Some(broken_limit(Limit::Delivered, delivered_share, probe.delivered_min));
    }
    let growth_share = growth / probe.rate;
    if growth > growth_share_max * probe.rate {
        reasons.push(Reason::BacklogGrew { growth, rate: super::round_rate(probe.rate) });
        let growth_limit = broken_limit(Limit::BacklogGrowth, growth_share, growth_share_max);
        delivery_limit.get_or_insert(growth_limit);
    }
    let kept_up = delivery_limit.is_none();
    let gap_seconds = seconds.iter().map(|second| second.generator_gap_ms / 1e3).sum::<f64>();
    let stopped_share = gap_seconds / (seconds.len() as f64 * seconds_per_point).max(1e-9);
    // The generator may be the cause if it stood still for as much time as iterations are missing.
    let may_be_generator = !kept_up && stopped_share > growth_share_max;
    if may_be_generator {
        reasons.insert(0, Reason::GeneratorStopped { share: stopped_share });
    }
    let outcome = match probe.verdict.outcome {
        Outcome::ClientLimited => ProbeOutcome::ClientLimited,
        Outcome::Invalid => ProbeOutcome::Invalid,
        Outcome::Fail => ProbeOutcome::Fail,
        Outcome::Pass | Outcome::Measured if may_be_generator => ProbeOutcome::Invalid,
        Outcome::Pass | Outcome::Measured if !kept_up => ProbeOutcome::Fail,
        Outcome::Pass | Outcome::Measured => ProbeOutcome::Pass,
    };
    let few_calls = find_few_calls(probe);
    let outcome = match (outcome, &few_calls) {
        (ProbeOutcome::Pass, Some(_)) => ProbeOutcome::Invalid,
        (ProbeOutcome::Fail, Some(_)) if kept_up && broke_few_calls_only(probe) => {
            ProbeOutcome::Invalid
        }
        _ => outcome,
    };
    if let Some(reason) = few_calls.filter(|_| outcome == ProbeOutcome::Invalid) {
        reasons.insert(0, reason);
    }
    let spare_share = (delivered_share - probe.delivered_min).min(growth_share_max - growth_share);
    let delivery_margin = spare_share / growth_share_max.max(1e-6);
    let margin = smallest_margin(probe, delivery_margin, outcome);
    ProbeVerdict {
        outcome,
        reasons,
        margin,
        binding: (outcome == ProbeOutcome::Fail).then(|| find_binding_limit(probe, delivery_limit)),
        delivered_share,
        backlog_growth: growth,
        rate_ended: rate_of_ended(&seconds, &backlog, seconds_per_point),
        iterations_in_flight: mean(&values_of(|second| second.workers_busy)).unwrap_or_default(),
        waiting: mean(&values_of(|second| second.waiting)).unwrap_or_default(),
        calls_in_flight: mean(&values_of(|second| second.in_flight)).unwrap_or_default(),
    }
}

/// At least this many calls must lie beyond a percentile.
pub(crate) const BEYOND_MIN: f64 = 10.0;

/// Returns the expected number of calls above the percentile of a threshold. `None` if the
/// threshold has a window, if it is not about a percentile of call times, or if there were no
/// calls.
fn calls_beyond(probe: ProbeRun<'_>, threshold: &Threshold) -> Option<f64> {
    let Aggregation::Percentile(percent) = threshold.aggregation else { return None };
    let is_about_call_times = matches!(threshold.selector.metric.samples(), Samples::CallTimes(..));
    let method = threshold.selector.method.and_then(|index| probe.method_names.get(index));
    let rows = probe.methods.iter().filter(|row| method.is_none_or(|name| **name == *row.method));
    let calls: u64 = rows.map(|row| row.calls).sum();
    (is_about_call_times && threshold.window.is_none() && calls > 0)
        .then(|| calls as f64 * (1.0 - percent / 100.0))
}

/// Returns true if too few calls lie beyond the percentile of a threshold.
fn has_few_calls(probe: ProbeRun<'_>, threshold: &Threshold) -> bool {
    // The slack of 5 % allows for slightly fewer calls than planned.
    probe.needs_enough_calls
        && calls_beyond(probe, threshold).is_some_and(|beyond| beyond < 0.95 * BEYOND_MIN)
}

/// Returns the first percentile that has too few calls beyond it, as a reason.
fn find_few_calls(probe: ProbeRun<'_>) -> Option<Reason> {
    let threshold = probe.thresholds.iter().find(|threshold| has_few_calls(probe, threshold))?;
    let beyond = calls_beyond(probe, threshold).unwrap_or_default();
    let rate = super::round_rate(probe.rate);
    Some(Reason::FewCalls { threshold: threshold.text.clone(), beyond, rate })
}

/// Returns true if every failure is a broken threshold about a percentile of too few calls. The
/// verdict has one reason for each failure.
fn broke_few_calls_only(probe: ProbeRun<'_>) -> bool {
    let broken = probe.thresholds.iter().zip(probe.outcomes).filter(|(_, outcome)| !outcome.kept);
    let broken: Vec<&Threshold> = broken.map(|(threshold, _)| threshold).collect();
    broken.len() == probe.verdict.reasons.len()
        && broken.into_iter().all(|threshold| has_few_calls(probe, threshold))
}

/// Returns the complete seconds after the warm-up, until the end of the load. An incomplete last
/// second would lower the rates.
fn measured_seconds<'a>(probe: &ProbeRun<'a>) -> Vec<&'a Second> {
    // `Second::at` is the end of a second, which is the start of the next second.
    let starts = std::iter::once(0.0).chain(probe.seconds.iter().map(|second| second.at));
    let complete = starts.zip(probe.seconds).filter(|(start, second)| second.at - start > 0.5);
    let is_measured =
        |second: &&Second| second.at > probe.warmup + 0.5 && second.at <= probe.end + 0.5;
    complete.map(|(_, second)| second).filter(is_measured).collect()
}

/// Returns how many iterations ended per second: the scheduled iterations that were not dropped,
/// minus the growth of the backlog.
fn rate_of_ended(seconds: &[&Second], backlog: &[f64], seconds_per_point: f64) -> f64 {
    let Some((first_backlog, last_backlog)) = backlog.first().zip(backlog.last()) else {
        return 0.0;
    };
    let count = seconds.len() as f64;
    let accepted: u64 =
        seconds.iter().map(|second| second.scheduled.saturating_sub(second.dropped)).sum();
    let growth = if count > 1.0 { (last_backlog - first_backlog) / (count - 1.0) } else { 0.0 };
    ((accepted as f64 / count - growth) / seconds_per_point).max(0.0)
}

/// Returns the growth of a backlog in iterations per second. A value of `backlog` covers
/// `seconds_per_point` seconds. The growth is the median slope between all pairs of values (Theil
/// 1950, Sen 1968), or 0 without a significant trend (Mann–Kendall). Long series are averaged
/// first, because all pairs are compared.
fn growth_per_second(backlog: &[f64], seconds_per_point: f64) -> f64 {
    let step = backlog.len().div_ceil(GROWTH_VALUES_MAX).max(1);
    let means: Vec<f64> = backlog.chunks(step).filter_map(mean).collect();
    let (backlog, seconds_between) = (means.as_slice(), step as f64 * seconds_per_point);
    let rising =
        ranks::mann_kendall(backlog).is_some_and(|test| test.statistic > 0.0 && test.p < TREND_P);
    if !rising {
        return 0.0;
    }
    let mut slopes = Vec::with_capacity(backlog.len() * backlog.len() / 2);
    for (earlier_index, earlier_value) in backlog.iter().enumerate() {
        for (later_index, value) in backlog.iter().enumerate().skip(earlier_index + 1) {
            slopes.push((value - earlier_value) / (later_index - earlier_index) as f64);
        }
    }
    let slope = median(&slopes).unwrap_or_default();
    if slope * backlog.len() as f64 >= GROWTH_MIN { slope / seconds_between } else { 0.0 }
}

/// Returns the smallest margin of all thresholds and of the delivery, clamped to ±1. A margin is
/// the distance to a limit, as a share of the limit. Its sign agrees with the probe's outcome.
fn smallest_margin(
    probe: ProbeRun<'_>,
    delivery_margin: f64,
    outcome: ProbeOutcome,
) -> Option<f64> {
    let margin_of = |(threshold, outcome): (&Threshold, &ThresholdOutcome)| {
        relative_margin(threshold, outcome.observed?)
    };
    let margins = probe.thresholds.iter().zip(probe.outcomes).filter_map(margin_of);
    let smallest = margins.chain([delivery_margin]).fold(1.0, f64::min).clamp(-1.0, 1.0);
    match outcome {
        ProbeOutcome::Pass => Some(smallest.max(0.0)),
        // No limit was broken. The probe failed for another reason, such as a method that failed
        // completely.
        ProbeOutcome::Fail if smallest > 0.0 => Some(-1.0),
        ProbeOutcome::Fail => Some(smallest),
        ProbeOutcome::ClientLimited | ProbeOutcome::Invalid => None,
    }
}

/// Returns the distance of a value to its limit, as a share of the limit. Above 0 if the value is
/// within the limit. `None` for equality operators.
fn relative_margin(threshold: &Threshold, observed: f64) -> Option<f64> {
    let limit = threshold.limit;
    let scale = if limit == 0.0 { 1.0 } else { limit.abs() };
    match threshold.operator {
        Operator::Less | Operator::LessOrEqual => Some((limit - observed) / scale),
        Operator::Greater | Operator::GreaterOrEqual => Some((observed - limit) / scale),
        Operator::Equal | Operator::NotEqual => None,
    }
}

/// Returns the limit that a failed probe broke. This is the first of these that exists:
/// 1. the threshold that broke first. Of several that broke at the same time, the one that is
///    farthest outside its limit;
/// 2. `delivery_limit`;
/// 3. a failing method;
/// 4. the run's own verdict.
fn find_binding_limit(probe: ProbeRun<'_>, delivery_limit: Option<BindingLimit>) -> BindingLimit {
    let broken = probe.thresholds.iter().zip(probe.outcomes).filter(|(_, outcome)| !outcome.kept);
    let first_broken = broken.min_by(|a, b| {
        order_of_breach(a).partial_cmp(&order_of_breach(b)).expect("no part is NaN")
    });
    if let Some((threshold, outcome)) = first_broken {
        let method = threshold.selector.method.and_then(|index| probe.method_names.get(index));
        return BindingLimit {
            limit: Limit::Threshold(outcome.text.clone()),
            method: method
                .map(|name| name.to_string())
                .or_else(|| find_worst_method(probe, threshold)),
            observed: outcome.observed,
            allowed: Some(threshold.limit),
        };
    }
    let failing = probe.methods.iter().filter(|row| row.calls > 0 && row.failed_share > 0.5);
    let failing = failing.max_by(|a, b| a.failed_share.total_cmp(&b.failed_share));
    delivery_limit.unwrap_or_else(|| {
        let (limit, method, observed) = match failing {
            Some(row) => (Limit::MethodFails, Some(row.method.clone()), Some(row.failed_share)),
            None => (Limit::Verdict, find_busiest_method(probe), None),
        };
        BindingLimit { limit, method, observed, allowed: None }
    })
}

/// Returns the sort key of a broken threshold: the time of the breach, then the margin.
fn order_of_breach(broken: &(&Threshold, &ThresholdOutcome)) -> (f64, f64) {
    let (threshold, outcome) = broken;
    let margin = outcome.observed.and_then(|observed| relative_margin(threshold, observed));
    (outcome.broken_at.unwrap_or(f64::MAX), margin.unwrap_or_default())
}

/// Returns the method that contributed most to the breach of a threshold about all methods.
fn find_worst_method(probe: ProbeRun<'_>, threshold: &Threshold) -> Option<String> {
    let method_with_largest = |value: &dyn Fn(&Row) -> f64| {
        let rows = probe.methods.iter().filter(|row| row.calls > 0);
        let worst = rows.max_by(|a, b| value(a).total_cmp(&value(b)));
        worst.map(|row| row.method.clone())
    };
    match threshold.selector.metric.samples() {
        Samples::CallTimes(_, quantiles_of) => {
            method_with_largest(&|row| quantile_of(quantiles_of(row), threshold.aggregation))
        }
        Samples::CallShare(is_counted) => method_with_largest(&|row| {
            let counted = row.classes.iter().filter(|class| is_counted(class.class));
            counted.map(|class| class.calls).sum::<u64>() as f64
        }),
        _ => find_busiest_method(probe),
    }
}

/// Returns the value of an aggregation. A result has only a few percentiles, so other percentiles
/// use the next higher one.
fn quantile_of(quantiles: &lab_model::results::Quantiles, aggregation: Aggregation) -> f64 {
    match aggregation {
        Aggregation::Avg => quantiles.mean_ms,
        Aggregation::Min => quantiles.min_ms,
        Aggregation::Max => quantiles.max_ms,
        Aggregation::Percentile(p) if p > 99.0 => quantiles.p999_ms,
        Aggregation::Percentile(p) if p > 95.0 => quantiles.p99_ms,
        Aggregation::Percentile(p) if p > 90.0 => quantiles.p95_ms,
        Aggregation::Percentile(p) if p > 50.0 => quantiles.p90_ms,
        _ => quantiles.p50_ms,
    }
}

/// Returns the method on which the target spends most of its time. That is the method with the
/// largest product of calls and mean service time at the baseline. Service times of the probe
/// itself are useless under overload, because all methods wait equally long.
fn find_busiest_method(probe: ProbeRun<'_>) -> Option<String> {
    let time_spent_ms = |row: &&Row| {
        let idle_row = probe.baseline.iter().find(|baseline| baseline.method == row.method);
        row.calls as f64 * idle_row.map_or(row.service.mean_ms, |idle| idle.service.mean_ms)
    };
    let busiest =
        probe.methods.iter().max_by(|a, b| time_spent_ms(a).total_cmp(&time_spent_ms(b)))?;
    Some(busiest.method.clone())
}

#[cfg(test)]
mod tests;
