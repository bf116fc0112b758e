//! Classifies the difference of a metric between two variants: better, worse, negligible, the same,
//! or cannot tell. A variant is one of the compared systems, with one or more runs.
//!
//! The unit of replication is the run, never the request. Requests of one run are correlated, so
//! thousands of them carry little more information than a few. A difference counts only if its
//! whole confidence interval lies beyond a floor, which is the smallest difference that matters.
//! Its p-value, corrected for the number of metrics, must also be at most 0.05.
//!
//! Values are compared on a logarithmic scale, so a ratio becomes a difference. Shares are compared
//! unscaled. `import.rs` and `compare.rs` read the variants; `comparability.rs` decides if they may
//! be compared.

use lab_model::results::compare::{Difference, Metric};
use lab_model::results::{Basis, ComparisonVerdict};

use crate::analysis::statistics::series::{self, estimate};
use crate::analysis::statistics::welch::Estimate;
use crate::analysis::statistics::{Interval, mean, median, ranks, resample, variance, welch};

/// Significance level of a whole comparison. Of 40 A/A comparisons, which compare equal runs, two
/// may report a difference.
const LEVEL: f64 = 0.05;
/// Smallest number of runs per variant for a rank test. Four runs per variant can reach p = 0.029,
/// three only 0.1.
const RANKS_MIN: usize = 4;
/// Smallest number of pairs for a sign randomisation test in addition to Student's t. Six pairs can
/// reach p = 0.031.
const SIGNS_MIN: usize = 6;
/// Smallest relative change that matters. Repeated runs on a quiet machine differ by about this
/// much.
const RELATIVE_FLOOR: f64 = 0.025;
/// Smallest difference of shares that matters: one call in a thousand.
const SHARE_FLOOR: f64 = 0.001;
/// Changes up to this size are rounding errors of sums.
const ROUNDING_ERROR: f64 = 1e-9;
/// The failure share of a run is judged by the number of the run's calls only if the run has at
/// least this many calls.
const CALLS_MIN: u64 = 20;
/// This many calls of one run count as one independent call, because failures cluster. This rule
/// applies only if the spread of the run's seconds is unknown.
const CALLS_PER_INDEPENDENT: f64 = 10.0;
/// The spread of a run's seconds is used only if the run has at least this many seconds.
const SECONDS_MIN: usize = 3;
/// Smaller values are raised to this value before their logarithm is computed, because 0 has no
/// logarithm.
const LOGARITHM_MIN: f64 = 1e-9;

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

/// Returns the largest ratio of two values that noise may explain, and the number of calls
/// that each run needs for this comparison. `None` for shares, which are judged by the number of
/// calls.
fn noise_limit(metric: Metric) -> Option<(f64, u64)> {
    match metric {
        Metric::FailedShare => None,
        Metric::LatencyP95 | Metric::ServiceP95 => Some((5.0, 200)),
        Metric::LatencyP99 | Metric::ServiceP99 => Some((10.0, 1_000)),
        _ => Some((3.0, 100)),
    }
}

/// Values of one metric of one method in one variant.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Values {
    /// One value for each run.
    pub runs: Vec<f64>,
    /// Start of each run, in seconds. Used only for pairs; empty if a start is unknown.
    pub starts: Vec<f64>,
    /// The metric by second without the warm-up. Used only for a single run; empty if unknown.
    pub seconds: Vec<f64>,
    /// Number of calls of the run with the fewest; `None` if unknown.
    pub calls: Option<u64>,
}

/// The difference of one metric before its verdict. [`judge_all`] adds the verdict.
#[derive(Clone, Debug, PartialEq)]
pub struct UnjudgedDifference {
    /// The difference, without the names of variant and method. Its p-value assumes a normal
    /// distribution of logarithms, and is not yet corrected for the number of metrics.
    pub difference: Difference,
    /// Two-sided p-value of a rank or sign test; `None` with too few runs. A single outlier cannot
    /// make this p-value small. It is never corrected for the number of metrics: five runs of each
    /// variant reach 0.008 at best, and a correction for ten metrics would raise 0.008 above the
    /// significance level.
    pub robust_p: Option<f64>,
    /// True if all values of one variant differ from all values of the other by more than noise
    /// between runs can explain.
    pub is_far_apart: bool,
}

impl UnjudgedDifference {
    /// Removes the test, because the values of the two variants have another meaning.
    #[must_use]
    pub fn without_test(mut self, basis: Basis) -> UnjudgedDifference {
        (self.difference.interval, self.difference.p) = (None, None);
        self.difference.basis = basis;
        UnjudgedDifference { robust_p: None, is_far_apart: false, ..self }
    }
}

/// Design of a comparison.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Design {
    /// True if run n of one variant forms a pair with run n of the other.
    pub paired: bool,
    /// Spread of this metric between equal runs (A/A); `None` if it was not measured.
    pub spread: Option<f64>,
    /// True if the interval of paired runs must also cover the interval of a bootstrap over the
    /// pairs. The bootstrap allows for skewed differences.
    pub bootstrap: bool,
}

/// Compares one metric of two variants. `None` if a variant has no value. The number of runs
/// decides which test applies. `random` returns random bits.
pub fn compare(
    metric: Metric,
    a: &Values,
    b: &Values,
    design: Design,
    random: &mut dyn FnMut() -> u64,
) -> Option<UnjudgedDifference> {
    // `x` and `y` are the values of both variants on the scale of `scale`.
    let (x, y) = (scale_all(metric, &a.runs), scale_all(metric, &b.runs));
    let (min_runs, max_runs) = (x.len().min(y.len()), x.len().max(y.len()));
    let mut difference = Difference {
        variant: String::new(),
        method: String::new(),
        metric,
        a: median(&a.runs)?,
        b: median(&b.runs)?,
        a_count: x.len(),
        b_count: y.len(),
        change: unscale_change(metric, median(&y)? - median(&x)?),
        interval: None,
        p: None,
        floor: floor_of(metric, design.spread),
        basis: Basis::ValuesOnly,
        verdict: ComparisonVerdict::CannotTell,
    };
    let test = if design.paired && x.len() == y.len() && min_runs >= 2 {
        let drift = drift_within_pairs((&x, &y), (&a.starts, &b.starts));
        compare_pairs(&x, &y, drift, design.bootstrap, random)
    } else if min_runs >= RANKS_MIN {
        compare_by_ranks(&x, &y)
    } else if min_runs >= 2 {
        Estimate::of(&x).zip(Estimate::of(&y)).map(compare_few_runs)
    } else if max_runs >= 3 {
        compare_one_with_several(&x, &y)
    } else {
        let difference = compare_seconds(difference, a, b, design.spread);
        let is_far_apart = difference.interval.is_none() && are_far_apart(metric, a, b);
        return Some(UnjudgedDifference { difference, robust_p: None, is_far_apart });
    };
    if let Some(test) = &test {
        difference.change = unscale_change(metric, test.change);
        difference.interval = test.interval.map(|interval| unscale_interval(metric, interval));
        (difference.p, difference.basis) = (Some(test.p), test.basis);
    }
    let robust_p = test.and_then(|test| test.robust_p);
    Some(UnjudgedDifference { difference, robust_p, is_far_apart: are_far_apart(metric, a, b) })
}

/// The result of one statistical test. Changes are on the scale of [`scale`]. `interval` is `None`
/// if the test has none; `robust_p` is as in [`UnjudgedDifference`].
struct TestResult {
    change: f64,
    interval: Option<Interval>,
    p: f64,
    robust_p: Option<f64>,
    basis: Basis,
}

/// Applies Student's t to the differences of all pairs. Nominal 95 % intervals of Student's t
/// contain the true value in 95 % of all cases. With six to ten pairs, intervals of a bootstrap
/// alone contain it in only 70 to 86 % (`compare/tests/coverage.rs`). `drift` has the part of the
/// differences that a drift may explain.
fn compare_pairs(
    x: &[f64],
    y: &[f64],
    drift: Interval,
    bootstrap: bool,
    random: &mut dyn FnMut() -> u64,
) -> Option<TestResult> {
    let differences: Vec<f64> = x.iter().zip(y).map(|(x, y)| y - x).collect();
    // The mean of the differences is tested against 0.
    let exactly_zero = Estimate { mean: 0.0, variance: 0.0, freedom: f64::INFINITY };
    let estimate = Estimate::of(&differences)?;
    let test = welch::difference(exactly_zero, estimate);
    let Interval { mut low, mut high } = test.interval;
    if let Some(resampled) =
        bootstrap.then(|| resample::bootstrap_mean(&differences, random)).flatten()
    {
        (low, high) = (low.min(resampled.low), high.max(resampled.high));
    }
    // The p-values are about the part that no drift within the pairs explains.
    let explained = test.difference.clamp(drift.low, drift.high);
    let unexplained = Estimate { mean: estimate.mean - explained, ..estimate };
    let remaining: Vec<f64> = differences.iter().map(|value| value - explained).collect();
    let sign_p = (differences.len() >= SIGNS_MIN).then(|| resample::signs(&remaining, random));
    Some(TestResult {
        change: test.difference,
        interval: Some(Interval { low: low - drift.high, high: high - drift.low }),
        p: welch::difference(exactly_zero, unexplained).p,
        robust_p: sign_p.flatten(),
        basis: Basis::PairedRuns,
    })
}

/// Returns the mean difference that a drift over the session may cause between the runs of a pair.
/// The interval always contains 0, because a drift may also happen between the pairs.
///
/// The drift per second, with its confidence interval, is estimated from the means of the pairs. It
/// is multiplied by the mean time by which the second variant runs later. In the order A B B A that
/// is about 0, in A B A B it is the time between two runs. If the starts are unknown, one variant may
/// always run first, whichever it is.
fn drift_within_pairs((x, y): (&[f64], &[f64]), (a, b): (&[f64], &[f64])) -> Interval {
    let midpoints = |x: &[f64], y: &[f64]| -> Vec<f64> {
        x.iter().zip(y).map(|(x, y)| f64::midpoint(*x, *y)).collect()
    };
    let has_starts = a.len() == x.len() && b.len() == y.len();
    let (times, lag) = match has_starts {
        true => (midpoints(a, b), mean(b).zip(mean(a)).map_or(0.0, |(b, a)| b - a)),
        // In equal distances, a run is half the distance of two pairs after the other.
        false => ((0..x.len()).map(|index| index as f64).collect(), 0.5),
    };
    let Some(slope) = series::slope(&times, &midpoints(x, y)) else {
        return Interval { low: 0.0, high: 0.0 };
    };
    let (p, q) = (slope.low * lag, slope.high * lag);
    let (low, high) = (p.min(q).min(0.0), p.max(q).max(0.0));
    let widest = high.max(-low);
    if has_starts { Interval { low, high } } else { Interval { low: -widest, high: widest } }
}

/// Compares several runs of each variant by the Mann–Whitney test and the Hodges–Lehmann shift.
fn compare_by_ranks(x: &[f64], y: &[f64]) -> Option<TestResult> {
    let (change, interval) = ranks::hodges_lehmann(x, y)?;
    let robust_p = Some(ranks::mann_whitney(x, y)?.p);
    let p = welch::difference(Estimate::of(x)?, Estimate::of(y)?).p;
    Some(TestResult { change, interval, p, robust_p, basis: Basis::Runs })
}

/// Compares two means by Welch's t-test.
fn compare_few_runs((x, y): (Estimate, Estimate)) -> TestResult {
    let test = welch::difference(x, y);
    let interval = Some(test.interval);
    TestResult {
        change: test.difference,
        interval,
        p: test.p,
        robust_p: None,
        basis: Basis::FewRuns,
    }
}

/// Compares a single run with several. The single run is assumed to have the variance of the
/// others (Crawford & Howell 1998).
fn compare_one_with_several(x: &[f64], y: &[f64]) -> Option<TestResult> {
    let single = |single_run: &[f64], several_runs: &[f64]| {
        Some(Estimate {
            mean: mean(single_run)?,
            variance: variance(several_runs)?,
            freedom: several_runs.len() as f64,
        })
    };
    let (mut estimate_x, mut estimate_y) = match x.len() < y.len() {
        true => (single(x, y)?, Estimate::of(y)?),
        false => (Estimate::of(x)?, single(y, x)?),
    };
    // Both variances come from one estimate, so they share its degrees of freedom.
    let freedom = x.len().max(y.len()) as f64 - 1.0;
    (estimate_x.freedom, estimate_y.freedom) = (freedom / 2.0, freedom / 2.0);
    Some(compare_few_runs((estimate_x, estimate_y)))
}

/// Compares variants with too few runs for a test. Uses the seconds or the calls of their single
/// runs instead. The estimates allow for the autocorrelation of the seconds. The floor is raised to
/// the usual difference between equal runs.
fn compare_seconds(
    mut difference: Difference,
    a: &Values,
    b: &Values,
    spread: Option<f64>,
) -> Difference {
    let metric = difference.metric;
    difference.floor =
        spread.map_or(floor_of_one_run(metric), |spread| floor_of(metric, Some(spread)));
    let estimate_of = |values: &[f64]| match metric {
        // The logarithm is taken of the mean, because a second without results has the value 0.
        Metric::Goodput => estimate(values).and_then(take_logarithm),
        _ => estimate(&scale_all(metric, values)),
    };
    let are_single_runs = a.runs.len() == 1 && b.runs.len() == 1;
    let by_seconds =
        estimate_of(&a.seconds).zip(estimate_of(&b.seconds)).filter(|_| are_single_runs);
    let (basis, estimates) = match by_seconds {
        Some(estimates) => (Basis::WithinRun, Some(estimates)),
        None if are_single_runs && metric.is_share() => {
            (Basis::Calls, estimate_from_calls(a).zip(estimate_from_calls(b)))
        }
        None => (Basis::ValuesOnly, None),
    };
    let Some((x, y)) = estimates else { return difference };
    let test = welch::difference(x, y);
    difference.a = unscale_value(metric, x.mean);
    difference.b = unscale_value(metric, y.mean);
    (difference.a_count, difference.b_count) = (a.seconds.len(), b.seconds.len());
    difference.change = unscale_change(metric, test.difference);
    difference.interval = Some(unscale_interval(metric, test.interval));
    (difference.p, difference.basis) = (Some(test.p), basis);
    difference
}

/// Estimates a share of one run. The variance of the estimate comes from the number of calls, or
/// from the spread of the seconds if this gives a larger variance. `None` if the run has fewer than
/// 20 calls, or if their number is unknown.
fn estimate_from_calls(values: &Values) -> Option<Estimate> {
    let share = *values.runs.first()?;
    let calls = values.calls.filter(|calls| *calls >= CALLS_MIN)? as f64;
    // Laplace's rule of succession: no failure in ten calls does not mean a failure rate of 0.
    let smoothed_share = (share * calls + 1.0) / (calls + 2.0);
    let binomial_variance = smoothed_share * (1.0 - smoothed_share) / calls;
    let count = values.seconds.len();
    let (variance, freedom) = match variance(&values.seconds).filter(|_| count >= SECONDS_MIN) {
        Some(spread) => (binomial_variance.max(spread / count as f64), count as f64 - 1.0),
        None => (binomial_variance * CALLS_PER_INDEPENDENT, calls / CALLS_PER_INDEPENDENT),
    };
    Some(Estimate { mean: share, variance, freedom })
}

/// Returns true if all values of one variant differ from all values of the other by more than noise
/// between runs can explain.
fn are_far_apart(metric: Metric, a: &Values, b: &Values) -> bool {
    let Some((min_ratio, min_calls)) = noise_limit(metric) else { return false };
    let has_enough_calls = |values: &Values| values.calls.is_some_and(|calls| calls >= min_calls);
    let is_far_above = |low: &[f64], high: &[f64]| {
        let largest = low.iter().copied().fold(LOGARITHM_MIN, f64::max);
        high.iter().all(|value| *value > min_ratio * largest)
    };
    has_enough_calls(a)
        && has_enough_calls(b)
        && (is_far_above(&a.runs, &b.runs) || is_far_above(&b.runs, &a.runs))
}

/// Estimates the logarithm of a mean (delta method). `None` for a mean of 0 or below.
fn take_logarithm(estimate: Estimate) -> Option<Estimate> {
    let variance = estimate.variance / (estimate.mean * estimate.mean);
    (estimate.mean > 0.0).then(|| Estimate { mean: estimate.mean.ln(), variance, ..estimate })
}

/// Returns the smallest difference that matters: the spread of equal runs, or the usual floor if
/// the floor is larger.
fn floor_of(metric: Metric, spread: Option<f64>) -> f64 {
    let min_floor = if metric.is_share() { SHARE_FLOOR } else { RELATIVE_FLOOR };
    spread.unwrap_or(0.0).max(min_floor)
}

/// Returns the logarithm of a value, which turns ratios into differences. Shares are returned
/// unchanged.
fn scale(metric: Metric, value: f64) -> f64 {
    if metric.is_share() { value } else { value.max(LOGARITHM_MIN).ln() }
}

/// Applies [`scale`] to each value.
fn scale_all(metric: Metric, values: &[f64]) -> Vec<f64> {
    values.iter().map(|value| scale(metric, *value)).collect()
}

/// Reverses [`scale`] for a value.
fn unscale_value(metric: Metric, value: f64) -> f64 {
    if metric.is_share() { value } else { value.exp() }
}

/// Converts a scaled difference into a relative change, or into a difference for shares.
fn unscale_change(metric: Metric, difference: f64) -> f64 {
    if metric.is_share() { difference } else { difference.exp_m1() }
}

/// Applies [`unscale_change`] to both ends of an interval.
fn unscale_interval(metric: Metric, interval: Interval) -> (f64, f64) {
    (unscale_change(metric, interval.low), unscale_change(metric, interval.high))
}

/// Corrects the p-values of all differences of one comparison for their number, and sets the
/// verdicts.
pub fn judge_all(unjudged: Vec<UnjudgedDifference>) -> Vec<Difference> {
    let p_values: Vec<f64> = unjudged.iter().filter_map(|unjudged| unjudged.difference.p).collect();
    let mut corrected = ranks::holm(&p_values).into_iter();
    let judge_one = |unjudged: UnjudgedDifference| {
        let UnjudgedDifference { mut difference, robust_p, is_far_apart } = unjudged;
        let p = difference.p.and_then(|_| corrected.next());
        difference.p = p.map(|p| p.max(robust_p.unwrap_or(0.0)));
        difference.verdict = judge(&difference);
        if is_far_apart && difference.verdict == ComparisonVerdict::CannotTell {
            // The verdict is not from the test.
            (difference.basis, difference.p) = (Basis::FarApart, None);
            difference.verdict = judge(&difference);
        }
        difference
    };
    unjudged.into_iter().map(judge_one).collect()
}

/// Returns the verdict of a difference whose p-value is already corrected.
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
    // For ratios, the lower floor is the reciprocal of the upper floor: half and twice are equally
    // far from 1.
    let lower_floor = if difference.metric.is_share() {
        -difference.floor
    } else {
        -difference.floor / (1.0 + difference.floor)
    };
    let is_above = low > difference.floor;
    if (is_above || high < lower_floor) && p <= LEVEL {
        return direction(is_above);
    }
    let is_within_floors = low >= lower_floor && high <= difference.floor;
    let contains_zero = low <= ROUNDING_ERROR && high >= -ROUNDING_ERROR;
    // A raised floor is the usual difference of equal variants. A smaller difference may be real or
    // noise.
    let has_raised_floor = difference.basis == Basis::WithinRun
        || difference.floor > floor_of(difference.metric, None);
    match (is_within_floors, contains_zero, has_raised_floor) {
        (true, true, _) => ComparisonVerdict::Same,
        (true, false, false) => ComparisonVerdict::Negligible,
        _ => ComparisonVerdict::CannotTell,
    }
}

/// Returns the largest change between any two of several equal runs. `None` for fewer than two.
pub fn measure_spread(metric: Metric, runs: &[f64]) -> Option<f64> {
    let scaled = scale_all(metric, runs);
    let largest = scaled.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let smallest = scaled.iter().copied().fold(f64::INFINITY, f64::min);
    (runs.len() >= 2).then(|| unscale_change(metric, largest - smallest))
}

#[cfg(test)]
mod tests;
