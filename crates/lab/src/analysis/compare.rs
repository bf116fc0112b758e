//! Classifies the difference of a metric between two variants: better, worse, negligible, the same,
//! or cannot tell.
//!
//! The unit of replication is the run, never the request: requests of one run are correlated, so
//! thousands of them carry little more information than a few. A difference counts only if its
//! whole interval lies beyond a floor, and if its p-value, corrected for the number of metrics, is
//! below 0.05. `import.rs` and `compare.rs` read the variants; `comparability.rs` decides if they
//! may be compared.

use lab_model::results::compare::{Difference, Metric};
use lab_model::results::{Basis, ComparisonVerdict};

use crate::analysis::statistics::series::estimate;
use crate::analysis::statistics::welch::Estimate;
use crate::analysis::statistics::{Interval, mean, median, ranks, resample, variance, welch};

/// Significance level of a whole comparison: two of 40 A/A comparisons may report a difference.
const LEVEL: f64 = 0.05;
/// Smallest number of runs per variant for a rank test. 4 and 4 runs can reach p = 0.029, 3 and 3
/// only 0.1.
const RANKS_MIN: usize = 4;
/// Smallest number of pairs for a sign randomisation test in addition to Student's t. 6 pairs can
/// reach p = 0.031.
const SIGNS_MIN: usize = 6;
/// Smallest relative change that matters. Repeated runs on a quiet machine differ by about this
/// much.
const FLOOR: f64 = 0.025;
/// Smallest difference of shares that matters: one call in a thousand.
const FLOOR_SHARE: f64 = 0.001;
/// Changes up to this size are rounding errors of sums.
const ROUNDING: f64 = 1e-9;
/// Smallest number of calls of a run for its failure share to be judged by the number of calls.
const CALLS_MIN: u64 = 20;
/// Ten calls of one run count as one independent call, because failures cluster. This applies only
/// if the spread of the run's seconds is unknown.
const CALLS_PER_INDEPENDENT: f64 = 10.0;
/// Smallest number of seconds of a run for their spread to be used.
const SECONDS_MIN: usize = 3;
/// Smallest value whose logarithm is taken.
const LEAST: f64 = 1e-9;

/// Returns the floor for one run per variant, in place of the unknown spread between runs.
///
/// On a shared machine the medians of two equal runs differ by up to a tenth. Their tails differ by
/// far more, because a single garbage collection or another tenant can produce a tail.
fn floor_of_one_run(metric: Metric) -> f64 {
    match metric {
        Metric::LatencyP95 | Metric::ServiceP95 => 0.25,
        Metric::LatencyP99 | Metric::ServiceP99 => 0.5,
        Metric::FailedShare => 0.01,
        _ => 0.1,
    }
}

/// Returns a ratio that noise between two single runs does not reach, and the number of calls that
/// each run needs. None for shares, because the number of calls decides there.
fn noise_limit(metric: Metric) -> Option<(f64, u64)> {
    match metric {
        Metric::FailedShare => None,
        Metric::LatencyP95 | Metric::ServiceP95 => Some((5.0, 200)),
        Metric::LatencyP99 | Metric::ServiceP99 => Some((10.0, 1_000)),
        _ => Some((3.0, 100)),
    }
}

/// One metric of one method in one variant.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Values {
    /// One value for each run.
    pub runs: Vec<f64>,
    /// The metric by second without the warm-up, if there is one run; may be empty.
    pub seconds: Vec<f64>,
    /// Calls of the run, if there is one run and they are known.
    pub calls: Option<u64>,
}

/// The difference of one metric before its verdict, with which [`judge_all`] completes it.
#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    /// The difference, without the names of variant and method. Its p-value assumes a normal
    /// distribution of logarithms, and is not yet corrected for the number of metrics.
    pub difference: Difference,
    /// Two-sided p-value of a rank or sign test, if there are enough runs. It keeps a single
    /// outlier from counting as a difference. It is not corrected: 5 and 5 runs reach 0.008 at
    /// best, and a correction for ten metrics would raise that above the significance level.
    pub p_alone: Option<f64>,
}

/// Design of a comparison.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Design {
    /// True if run n of one variant belongs to run n of the other.
    pub paired: bool,
    /// Spread of this metric between equal runs (A/A), if it was measured.
    pub spread: Option<f64>,
    /// True if the interval of paired runs must also cover a bootstrap over the pairs, which
    /// allows for skewed differences.
    pub bootstrap: bool,
}

/// Compares one metric of two variants; none if a variant has no value.
pub fn compare(
    metric: Metric,
    a: &Values,
    b: &Values,
    design: Design,
    random: &mut dyn FnMut() -> u64,
) -> Option<Compared> {
    let (x, y) = (scale_all(metric, &a.runs), scale_all(metric, &b.runs));
    let min_runs = x.len().min(y.len());
    let mut difference = Difference {
        variant: String::new(),
        method: String::new(),
        metric,
        a: median(&a.runs)?,
        b: median(&b.runs)?,
        a_count: x.len(),
        b_count: y.len(),
        change: unscale(metric, median(&y)? - median(&x)?),
        interval: None,
        p: None,
        floor: floor_of(metric, design.spread),
        basis: Basis::ValuesOnly,
        verdict: ComparisonVerdict::CannotTell,
    };
    let test = if design.paired && x.len() == y.len() && min_runs >= 2 {
        compare_pairs(&x, &y, design.bootstrap, random)
    } else if min_runs >= RANKS_MIN {
        compare_by_ranks(&x, &y)
    } else if min_runs >= 2 {
        Estimate::of(&x).zip(Estimate::of(&y)).map(compare_few_runs)
    } else if x.len().max(y.len()) >= 3 {
        compare_one_with_several(&x, &y)
    } else {
        let difference = compare_seconds(difference, a, b, design.spread);
        return Some(Compared { difference, p_alone: None });
    };
    if let Some(test) = &test {
        difference.change = unscale(metric, test.change);
        difference.interval = test.interval.map(|interval| unscale_interval(metric, interval));
        (difference.p, difference.basis) = (Some(test.p), test.basis);
    }
    Some(Compared { difference, p_alone: test.and_then(|test| test.p_alone) })
}

/// The result of one statistical test, on the scale of differences.
struct TestResult {
    change: f64,
    interval: Option<Interval>,
    p: f64,
    p_alone: Option<f64>,
    basis: Basis,
}

/// Applies Student's t to the paired differences of logarithms, that is, to ratios. A 95 % interval
/// from a bootstrap of six to ten pairs contains the true value in only 70 to 86 % of all cases,
/// one from t in 95 % (`compare/tests/coverage.rs`).
fn compare_pairs(
    x: &[f64],
    y: &[f64],
    bootstrap: bool,
    random: &mut dyn FnMut() -> u64,
) -> Option<TestResult> {
    let differences: Vec<f64> = x.iter().zip(y).map(|(x, y)| y - x).collect();
    let zero = Estimate { mean: 0.0, variance: 0.0, freedom: f64::INFINITY };
    let test = welch::difference(zero, Estimate::of(&differences)?);
    let drift = drift_within_pairs(x, y);
    let Interval { mut low, mut high } = test.interval;
    if let Some(resampled) =
        bootstrap.then(|| resample::bootstrap_mean(&differences, random)).flatten()
    {
        (low, high) = (low.min(resampled.low), high.max(resampled.high));
    }
    let signs = (differences.len() >= SIGNS_MIN).then(|| resample::signs(&differences, random));
    Some(TestResult {
        change: test.difference,
        interval: Some(Interval { low: low - drift, high: high + drift }),
        p: test.p,
        p_alone: signs.flatten(),
        basis: Basis::PairedRuns,
    })
}

/// Returns the bias that a drift over the session may add to all differences. It is half of the
/// drift's step from pair to pair, if the pairs rise or fall with their order. The bias arises if
/// one variant always runs first; the order of runs is not known here.
fn drift_within_pairs(x: &[f64], y: &[f64]) -> f64 {
    let levels: Vec<f64> = x.iter().zip(y).map(|(x, y)| f64::midpoint(*x, *y)).collect();
    match (ranks::mann_kendall(&levels), levels.as_slice()) {
        (Some(trend), [first, .., last]) if trend.p <= LEVEL => {
            (last - first).abs() / (levels.len() - 1) as f64 / 2.0
        }
        _ => 0.0,
    }
}

fn compare_by_ranks(x: &[f64], y: &[f64]) -> Option<TestResult> {
    let (change, interval) = ranks::hodges_lehmann(x, y)?;
    let p_alone = Some(ranks::mann_whitney(x, y)?.p);
    let p = welch::difference(Estimate::of(x)?, Estimate::of(y)?).p;
    Some(TestResult { change, interval, p, p_alone, basis: Basis::Runs })
}

fn compare_few_runs((x, y): (Estimate, Estimate)) -> TestResult {
    let test = welch::difference(x, y);
    let interval = Some(test.interval);
    TestResult {
        change: test.difference,
        interval,
        p: test.p,
        p_alone: None,
        basis: Basis::FewRuns,
    }
}

/// Compares a single run with several. The single run is assumed to vary as the others do (Crawford
/// & Howell 1998).
fn compare_one_with_several(x: &[f64], y: &[f64]) -> Option<TestResult> {
    let single = |single_run: &[f64], several_runs: &[f64]| {
        Some(Estimate {
            mean: mean(single_run)?,
            variance: variance(several_runs)?,
            freedom: several_runs.len() as f64,
        })
    };
    let (mut first, mut second) = match x.len() < y.len() {
        true => (single(x, y)?, Estimate::of(y)?),
        false => (Estimate::of(x)?, single(y, x)?),
    };
    // Both variances come from one estimate, so together they have the degrees of freedom of that
    // estimate.
    let freedom = x.len().max(y.len()) as f64 - 1.0;
    (first.freedom, second.freedom) = (freedom / 2.0, freedom / 2.0);
    Some(compare_few_runs((first, second)))
}

/// Compares one run per variant by its seconds. Their autocorrelation is taken into account, and
/// the floor is raised to the usual difference between equal runs.
fn compare_seconds(
    mut found: Difference,
    a: &Values,
    b: &Values,
    spread: Option<f64>,
) -> Difference {
    let metric = found.metric;
    found.floor = spread.map_or(floor_of_one_run(metric), |spread| floor_of(metric, Some(spread)));
    let estimate_of = |values: &[f64]| match metric {
        // A second without results counts as 0; a logarithm would need a small positive value.
        Metric::Goodput => estimate(values).and_then(take_logarithm),
        _ => estimate(&scale_all(metric, values)),
    };
    let single = a.runs.len() == 1 && b.runs.len() == 1;
    let by_seconds = estimate_of(&a.seconds).zip(estimate_of(&b.seconds)).filter(|_| single);
    let (basis, estimates) = match by_seconds {
        Some(estimates) => (Basis::WithinRun, Some(estimates)),
        None if single && metric.is_share() => {
            (Basis::Calls, estimate_from_calls(a).zip(estimate_from_calls(b)))
        }
        None => (Basis::ValuesOnly, None),
    };
    let Some((x, y)) = estimates else {
        if are_far_apart(&found, a, b) {
            found.basis = Basis::FarApart;
        }
        return found;
    };
    let test = welch::difference(x, y);
    found.a = unscale_value(metric, x.mean);
    found.b = unscale_value(metric, y.mean);
    (found.a_count, found.b_count) = (a.seconds.len(), b.seconds.len());
    found.change = unscale(metric, test.difference);
    found.interval = Some(unscale_interval(metric, test.interval));
    (found.p, found.basis) = (Some(test.p), basis);
    found
}

/// Estimates a share of one run. Its variance comes from the number of calls, or from the spread of
/// the seconds if that gives a larger variance.
fn estimate_from_calls(values: &Values) -> Option<Estimate> {
    let share = *values.runs.first()?;
    let calls = values.calls.filter(|calls| *calls >= CALLS_MIN)? as f64;
    // Laplace's rule of succession: no failure in ten calls does not mean a failure rate of 0.
    let likely = (share * calls + 1.0) / (calls + 2.0);
    let of_one = likely * (1.0 - likely) / calls;
    let count = values.seconds.len();
    let (variance, freedom) = match variance(&values.seconds).filter(|_| count >= SECONDS_MIN) {
        Some(spread) => (of_one.max(spread / count as f64), count as f64 - 1.0),
        None => (of_one * CALLS_PER_INDEPENDENT, calls / CALLS_PER_INDEPENDENT),
    };
    Some(Estimate { mean: share, variance, freedom })
}

/// Returns true if two single values differ by more than noise between runs can explain.
fn are_far_apart(difference: &Difference, a: &Values, b: &Values) -> bool {
    let Some((factor, min_calls)) = noise_limit(difference.metric) else { return false };
    let enough = |values: &Values| values.calls.is_some_and(|calls| calls >= min_calls);
    let change = (1.0 + difference.change).max(LEAST);
    enough(a) && enough(b) && !(1.0 / factor..=factor).contains(&change)
}

/// Estimates the logarithm of a mean (delta method); none for a mean of 0.
fn take_logarithm(estimate: Estimate) -> Option<Estimate> {
    let variance = estimate.variance / (estimate.mean * estimate.mean);
    (estimate.mean > 0.0).then(|| Estimate { mean: estimate.mean.ln(), variance, ..estimate })
}

fn floor_of(metric: Metric, spread: Option<f64>) -> f64 {
    let min_floor = if metric.is_share() { FLOOR_SHARE } else { FLOOR };
    spread.unwrap_or(0.0).max(min_floor)
}

/// Returns the logarithm of a value, which turns ratios into differences. Shares are returned
/// unchanged.
fn scale(metric: Metric, value: f64) -> f64 {
    if metric.is_share() { value } else { value.max(LEAST).ln() }
}

fn scale_all(metric: Metric, values: &[f64]) -> Vec<f64> {
    values.iter().map(|value| scale(metric, *value)).collect()
}

fn unscale_value(metric: Metric, value: f64) -> f64 {
    if metric.is_share() { value } else { value.exp() }
}

fn unscale(metric: Metric, difference: f64) -> f64 {
    if metric.is_share() { difference } else { difference.exp_m1() }
}

fn unscale_interval(metric: Metric, interval: Interval) -> (f64, f64) {
    (unscale(metric, interval.low), unscale(metric, interval.high))
}

/// Corrects the p-values of all differences of one comparison for their number, and sets the
/// verdicts.
pub fn judge_all(compared: Vec<Compared>) -> Vec<Difference> {
    let tested: Vec<f64> = compared.iter().filter_map(|compared| compared.difference.p).collect();
    let mut corrected = ranks::holm(&tested).into_iter();
    let judge_one = |Compared { mut difference, p_alone }: Compared| {
        let p = difference.p.and_then(|_| corrected.next());
        difference.p = p.map(|p| p.max(p_alone.unwrap_or(0.0)));
        difference.verdict = judge(&difference);
        difference
    };
    compared.into_iter().map(judge_one).collect()
}

fn judge(difference: &Difference) -> ComparisonVerdict {
    let direction = |is_more: bool| match is_more == difference.metric.more_is_better() {
        true => ComparisonVerdict::Better,
        false => ComparisonVerdict::Worse,
    };
    if difference.basis == Basis::FarApart {
        return direction(difference.change > 0.0);
    }
    let Some(((low, high), p)) = difference.interval.zip(difference.p) else {
        return ComparisonVerdict::CannotTell;
    };
    // The lower floor is the reciprocal of the upper one: half and twice are equally far from 1.
    let down = if difference.metric.is_share() {
        -difference.floor
    } else {
        -difference.floor / (1.0 + difference.floor)
    };
    let more = low > difference.floor;
    if (more || high < down) && p <= LEVEL {
        return direction(more);
    }
    let small = low >= down && high <= difference.floor;
    let zero = low <= ROUNDING && high >= -ROUNDING;
    // A raised floor is the difference of equal variants. A difference below it may be real or
    // noise.
    let raised = difference.basis == Basis::WithinRun
        || difference.floor > floor_of(difference.metric, None);
    match (small, zero, raised) {
        (true, true, _) => ComparisonVerdict::Same,
        (true, false, false) => ComparisonVerdict::Negligible,
        _ => ComparisonVerdict::CannotTell,
    }
}

/// Returns the largest change between any two of several equal runs; none for fewer than two runs.
pub fn spread(metric: Metric, runs: &[f64]) -> Option<f64> {
    let scaled = scale_all(metric, runs);
    let largest = scaled.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let smallest = scaled.iter().copied().fold(f64::INFINITY, f64::min);
    (runs.len() >= 2).then(|| unscale(metric, largest - smallest))
}

#[cfg(test)]
mod tests;
