//! What makes a probe of a capacity search pass.
//!
//! A run's own verdict comes first: objectives, methods that fail altogether, the generator's
//! health (`analysis/verdict.rs`). A search asks one thing more: a rate that is above the capacity may
//! keep every objective for the time of a probe, while what is under way grows without end. So a
//! probe passes only if what was asked for was also delivered and the backlog does not grow.

use lab_engine::aggregate;
use lab_model::metrics::Samples;
use lab_model::plan::threshold::{Aggregation, Operator, Threshold};
use lab_model::results::capacity::Judged;
use lab_model::results::run::{Row, Second};
use lab_model::results::{Outcome, ThresholdOutcome, Verdict};

use crate::analysis::statistics::{mean, median, ranks};

/// A run as far as it is looked at here.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// What was asked for, in iterations per second.
    pub rate: f64,
    /// Seconds from the start that are not judged.
    pub warmup: f64,
    /// When load ended, in seconds since the start; what ends later is the grace.
    pub end: f64,
    /// Least share of planned iterations that must have begun.
    pub delivered_min: f64,
    /// The run's own verdict.
    pub verdict: &'a Verdict,
    /// True if percentiles of few calls decide nothing; a baseline is not judged by them.
    pub tails: bool,
    /// Objectives as they were asked.
    pub thresholds: &'a [Threshold],
    /// What came of them, in the same order.
    pub outcomes: &'a [ThresholdOutcome],
    /// All methods of the plan, by a threshold's index.
    pub names: &'a [Box<str>],
    /// All seconds of the run.
    pub seconds: &'a [Second],
    /// By method, warm-up left out.
    pub methods: &'a [Row],
    /// The same of the baseline, if there was one.
    pub baseline: &'a [Row],
}

/// What became of a probe, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement {
    /// In one word.
    pub judged: Judged,
    /// Most important first; empty for a plain pass.
    pub reasons: Vec<Reason>,
    /// How far within the nearest limit (above 0) or outside, as a share of it.
    pub margin: Option<f64>,
    /// What broke, for a fail.
    pub binding: Option<Bound>,
    /// Begun / due iterations after the warm-up; 1 if none was due.
    pub delivered_share: f64,
    /// Iterations per second by which those under way and waiting grew; 0 if that may be chance.
    pub backlog_growth: f64,
    /// Iterations per second that ended.
    pub rate_ended: f64,
    /// Mean number of iterations under way: workers that were in one.
    pub under_way: f64,
    /// Mean number of iterations that waited for a worker.
    pub waiting: f64,
    /// Mean number of calls under way.
    pub in_flight: f64,
}

/// A reason for a judgement. Rates are iterations per second.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "each field is a number of the sentence in wording/capacity.rs")]
pub enum Reason {
    /// A reason of the run's own verdict.
    OfRun(String),
    /// Too few of the planned iterations began.
    Delivered { share: f64, begun: u64, due: u64 },
    /// Iterations in flight grew.
    BacklogGrew { growth: f64, rate: f64 },
    /// A percentile has too few calls beyond it.
    FewCalls { objective: String, beyond: f64, rate: f64 },
}

/// The limit that a failed probe broke.
#[derive(Clone, Debug, PartialEq)]
pub struct Bound {
    /// Which.
    pub limit: Limit,
    /// The method that broke it, if one is known.
    pub method: Option<String>,
    /// What was observed.
    pub observed: Option<f64>,
    /// What is allowed.
    pub allowed: Option<f64>,
}

/// A limit that a probe can break.
#[derive(Clone, Debug, PartialEq)]
pub enum Limit {
    /// An objective of the plan, as it was written.
    Objective(String),
    /// The least share of planned iterations that must begin.
    Delivered,
    /// The most by which the backlog may grow.
    BacklogGrowth,
    /// A method must not fail altogether.
    MethodFails,
    /// The run's own verdict.
    Verdict,
}

/// A trend as clear as this or clearer in one of twenty calm probes is taken for a trend.
const TREND_P: f64 = 0.05;
/// Growth over a whole probe below this many iterations is rounding.
const GROWTH_MIN: f64 = 3.0;

/// Values that are compared with each other at most.
const GROWTH_VALUES_MAX: usize = 1000;

/// Judges one probe.
pub fn judge(seen: Seen<'_>) -> Judgement {
    let part = judged_part(&seen);
    let (due, begun) =
        part.iter().fold((0, 0), |sum, second| (sum.0 + second.due, sum.1 + second.begun));
    // What waited since the warm-up may begin now, so more can begin than is due.
    let delivered_share = if due > 0 { (begun as f64 / due as f64).min(1.0) } else { 1.0 };
    let each = |of: fn(&Second) -> u64| -> Vec<f64> {
        part.iter().map(|second| of(second) as f64).collect()
    };
    let backlog = each(|second| second.workers_busy + second.waiting);
    let each_seconds = aggregate::point_seconds(seen.seconds);
    let growth = growth(&backlog, each_seconds);
    let allowed = 1.0 - seen.delivered_min;

    let of_run = seen.verdict.reasons.iter().cloned();
    let mut reasons: Vec<Reason> = of_run.map(Reason::OfRun).collect();
    let mut behind = None;
    if delivered_share < seen.delivered_min {
        reasons.push(Reason::Delivered { share: delivered_share, begun, due });
        behind = Some((Limit::Delivered, delivered_share, seen.delivered_min));
    }
    if growth > allowed * seen.rate {
        reasons.push(Reason::BacklogGrew { growth, rate: super::rounded(seen.rate) });
        behind.get_or_insert((Limit::BacklogGrowth, growth / seen.rate, allowed));
    }
    let kept_up = behind.is_none();
    let judged = match seen.verdict.outcome {
        Outcome::ClientLimited => Judged::ClientLimited,
        Outcome::Invalid => Judged::Invalid,
        Outcome::Fail => Judged::Fail,
        Outcome::Pass | Outcome::Measured if !kept_up => Judged::Fail,
        Outcome::Pass | Outcome::Measured => Judged::Pass,
    };
    let thin = thin(seen);
    let judged = match (judged, &thin) {
        (Judged::Pass, Some(_)) => Judged::Invalid,
        (Judged::Fail, Some(_)) if kept_up && only_thin(seen) => Judged::Invalid,
        _ => judged,
    };
    if judged == Judged::Invalid {
        reasons.splice(0..0, thin);
    }
    let spare = (delivered_share - seen.delivered_min).min(allowed - growth / seen.rate);
    let margin = margin(seen, spare / allowed.max(1e-6), judged);
    Judgement {
        judged,
        reasons,
        margin,
        binding: (judged == Judged::Fail).then(|| binding(seen, behind)),
        delivered_share,
        backlog_growth: growth,
        rate_ended: ended(&part, &backlog, each_seconds),
        under_way: mean(&each(|second| second.workers_busy)).unwrap_or_default(),
        waiting: mean(&each(|second| second.waiting)).unwrap_or_default(),
        in_flight: mean(&each(|second| second.in_flight)).unwrap_or_default(),
    }
}

/// Calls that must lie beyond a percentile.
pub(crate) const BEYOND_MIN: f64 = 10.0;

/// Calls beyond the percentile of an objective, if it is about one, of the whole run.
fn beyond(seen: Seen<'_>, threshold: &Threshold) -> Option<f64> {
    let Aggregation::Percentile(percent) = threshold.aggregation else { return None };
    let times = matches!(threshold.selector.metric.samples(), Samples::CallTimes(..));
    let named = threshold.selector.method.and_then(|index| seen.names.get(index));
    let of = seen.methods.iter().filter(|row| named.is_none_or(|name| **name == *row.method));
    let calls: u64 = of.map(|row| row.calls).sum();
    let whole = threshold.window.is_none() && calls > 0;
    (times && whole).then(|| calls as f64 * (1.0 - percent / 100.0))
}

fn is_thin(seen: Seen<'_>, threshold: &Threshold) -> bool {
    // A call more or less than planned does not matter.
    seen.tails && beyond(seen, threshold).is_some_and(|beyond| beyond < 0.95 * BEYOND_MIN)
}

/// That a percentile rests on too few calls to pass or fail.
fn thin(seen: Seen<'_>) -> Option<Reason> {
    let first = seen.thresholds.iter().find(|threshold| is_thin(seen, threshold))?;
    let beyond = beyond(seen, first).unwrap_or_default();
    let (objective, rate) = (first.text.clone(), super::rounded(seen.rate));
    Some(Reason::FewCalls { objective, beyond, rate })
}

/// Returns true if all that is broken are percentiles of too few calls.
fn only_thin(seen: Seen<'_>) -> bool {
    let broken = seen.thresholds.iter().zip(seen.outcomes).filter(|(_, outcome)| !outcome.kept);
    let broken: Vec<&Threshold> = broken.map(|(threshold, _)| threshold).collect();
    broken.len() == seen.verdict.reasons.len() && broken.into_iter().all(|one| is_thin(seen, one))
}

/// The seconds after the warm-up. The last one of a run is cut short by its end and stands for little;
/// as a whole second it would make rates look lower than they were.
fn judged_part<'a>(seen: &Seen<'a>) -> Vec<&'a Second> {
    let begins = std::iter::once(0.0).chain(seen.seconds.iter().map(|second| second.at));
    let whole = begins.zip(seen.seconds).filter(|(begin, second)| second.at - begin > 0.5);
    let judged = |second: &&Second| second.at > seen.warmup + 0.5 && second.at <= seen.end + 0.5;
    whole.map(|(_, second)| second).filter(judged).collect()
}

/// Iterations per second that ended: those that were due and not given up, less what the backlog
/// grew by.
fn ended(part: &[&Second], backlog: &[f64], each_seconds: f64) -> f64 {
    let Some((first, last)) = backlog.first().zip(backlog.last()) else { return 0.0 };
    let count = part.len() as f64;
    let taken: u64 = part.iter().map(|second| second.due.saturating_sub(second.dropped)).sum();
    let grown = if count > 1.0 { (last - first) / (count - 1.0) } else { 0.0 };
    ((taken as f64 / count - grown) / each_seconds).max(0.0)
}

/// Iterations per second by which a backlog grows: the median slope between all its seconds (Theil
/// 1950, Sen 1968), if it is there at all (Mann–Kendall). Of many values, means of neighbours are
/// looked at: each is compared with each.
fn growth(backlog: &[f64], each_seconds: f64) -> f64 {
    let step = backlog.len().div_ceil(GROWTH_VALUES_MAX).max(1);
    let means: Vec<f64> = backlog.chunks(step).filter_map(mean).collect();
    let (backlog, apart) = (means.as_slice(), step as f64 * each_seconds);
    let rising = ranks::trend(backlog).is_some_and(|test| test.statistic > 0.0 && test.p < TREND_P);
    if !rising {
        return 0.0;
    }
    let mut slopes = Vec::with_capacity(backlog.len() * backlog.len() / 2);
    for (place, earlier) in backlog.iter().enumerate() {
        for (later, value) in backlog.iter().enumerate().skip(place + 1) {
            slopes.push((value - earlier) / (later - place) as f64);
        }
    }
    let slope = median(&slopes).unwrap_or_default();
    if slope * backlog.len() as f64 >= GROWTH_MIN { slope / apart } else { 0.0 }
}

/// The least margin of all objectives, or of keeping up. Cut to ±1, since farther out says no more;
/// its sign is the judgement's.
fn margin(seen: Seen<'_>, kept_up: f64, judged: Judged) -> Option<f64> {
    let of = |(threshold, outcome): (&Threshold, &ThresholdOutcome)| {
        relative(threshold, outcome.observed?)
    };
    let all = seen.thresholds.iter().zip(seen.outcomes).filter_map(of);
    let least = all.chain([kept_up]).fold(1.0, f64::min).clamp(-1.0, 1.0);
    match judged {
        Judged::Pass => Some(least.max(0.0)),
        // Failed for another reason than a limit, such as a method that failed altogether.
        Judged::Fail if least > 0.0 => Some(-1.0),
        Judged::Fail => Some(least),
        Judged::ClientLimited | Judged::Invalid => None,
    }
}

/// How far within its limit a value is, as a share of the limit; none where distance means nothing.
fn relative(threshold: &Threshold, observed: f64) -> Option<f64> {
    let limit = threshold.limit;
    let scale = if limit == 0.0 { 1.0 } else { limit.abs() };
    match threshold.operator {
        Operator::Less | Operator::LessOrEqual => Some((limit - observed) / scale),
        Operator::Greater | Operator::GreaterOrEqual => Some((observed - limit) / scale),
        Operator::Equal | Operator::NotEqual => None,
    }
}

/// What broke: an objective before anything else, of several the one that broke first, of those
/// the one that is farthest outside.
fn binding(seen: Seen<'_>, behind: Option<(Limit, f64, f64)>) -> Bound {
    let broken = seen.thresholds.iter().zip(seen.outcomes).filter(|(_, outcome)| !outcome.kept);
    let first = broken.min_by(|a, b| order(a).partial_cmp(&order(b)).expect("no part is NaN"));
    if let Some((threshold, outcome)) = first {
        let named = threshold.selector.method.and_then(|index| seen.names.get(index));
        return Bound {
            limit: Limit::Objective(outcome.text.clone()),
            method: named.map(|name| name.to_string()).or_else(|| worst(seen, threshold)),
            observed: outcome.observed,
            allowed: Some(threshold.limit),
        };
    }
    let failing = seen.methods.iter().filter(|row| row.calls > 0 && row.failed_share > 0.5);
    let failing = failing.max_by(|a, b| a.failed_share.total_cmp(&b.failed_share));
    match (behind, failing) {
        (Some((limit, observed, allowed)), _) => {
            let (observed, allowed) = (Some(observed), Some(allowed));
            Bound { limit, method: busiest(seen), observed, allowed }
        }
        (None, Some(row)) => {
            let (method, observed) = (Some(row.method.clone()), Some(row.failed_share));
            Bound { limit: Limit::MethodFails, method, observed, allowed: None }
        }
        (None, None) => {
            Bound { limit: Limit::Verdict, method: busiest(seen), observed: None, allowed: None }
        }
    }
}

fn order(broken: &(&Threshold, &ThresholdOutcome)) -> (f64, f64) {
    let (threshold, outcome) = broken;
    let outside = outcome.observed.and_then(|observed| relative(threshold, observed));
    (outcome.broken_at.unwrap_or(f64::MAX), outside.unwrap_or_default())
}

/// The method that breaks a threshold about all methods.
fn worst(seen: Seen<'_>, threshold: &Threshold) -> Option<String> {
    let by = |value: &dyn Fn(&Row) -> f64| {
        let rows = seen.methods.iter().filter(|row| row.calls > 0);
        let worst = rows.max_by(|a, b| value(a).total_cmp(&value(b)));
        worst.map(|row| row.method.clone())
    };
    match threshold.selector.metric.samples() {
        Samples::CallTimes(_, of) => by(&|row| quantile(of(row), threshold.aggregation)),
        Samples::CallShare(is) => by(&|row| {
            let of = row.classes.iter().filter(|class| is(class.class));
            of.map(|class| class.calls).sum::<u64>() as f64
        }),
        _ => busiest(seen),
    }
}

fn quantile(of: &lab_model::results::Quantiles, aggregation: Aggregation) -> f64 {
    match aggregation {
        Aggregation::Avg => of.mean_ms,
        Aggregation::Min => of.min_ms,
        Aggregation::Max => of.max_ms,
        Aggregation::Percentile(p) if p > 99.0 => of.p999_ms,
        Aggregation::Percentile(p) if p > 95.0 => of.p99_ms,
        Aggregation::Percentile(p) if p > 90.0 => of.p95_ms,
        Aggregation::Percentile(p) if p > 50.0 => of.p90_ms,
        _ => of.p50_ms,
    }
}

/// The method on which the target spends most of its time: calls × the mean time of one when nothing
/// waits, as the baseline saw it. Under overload all methods wait alike, so their own times tell
/// nothing. None with fewer than two methods to tell apart.
fn busiest(seen: Seen<'_>) -> Option<String> {
    let work = |row: &&Row| {
        let calm = seen.baseline.iter().find(|calm| calm.method == row.method);
        row.calls as f64 * calm.map_or(row.service.mean_ms, |calm| calm.service.mean_ms)
    };
    let most = seen.methods.iter().max_by(|a, b| work(a).total_cmp(&work(b)))?;
    Some(most.method.clone())
}

#[cfg(test)]
mod tests;
