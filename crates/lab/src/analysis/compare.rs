//! What a difference between two arms means: better, worse, negligible, the same, or not to be told.
//!
//! The unit of replication is the run, never the request: requests of one run resemble each other,
//! and thousands of them say little more than a few. A difference counts only if its whole interval
//! lies beyond a floor below which it would not matter, and if its chance, corrected for the number
//! of metrics looked at, is below one in twenty. Pure; arms are read by `import.rs` and
//! `compare.rs`, whether they may be compared at all is decided in `sameness`.

use lab_model::results::compare::Metric;
use lab_model::results::{Basis, Word};

use crate::analysis::statistics::series::estimate;
use crate::analysis::statistics::welch::Estimate;
use crate::analysis::statistics::{Interval, mean, median, ranks, resample, variance, welch};

/// Level of a whole comparison: of 40 comparisons of a thing with itself, two may be called
/// different.
const LEVEL: f64 = 0.05;
/// Runs of each arm from which ranks alone decide: four and four reach p = 0.029, three and three
/// no less than 0.1.
const RANKS_MIN: usize = 4;
/// Pairs from which randomised signs are asked besides Student's t: six reach p = 0.031.
const SIGNS_MIN: usize = 6;
/// A smaller change matters to nobody; also what repeated runs on a quiet machine differ by.
const FLOOR: f64 = 0.025;
/// The same for shares, as a plain difference: one call of a thousand.
const FLOOR_SHARE: f64 = 0.001;
/// Changes that are no larger than this come from the rounding of sums.
const ROUNDING: f64 = 1e-9;
/// A failure share of fewer calls than this is not judged by its calls.
const CALLS_MIN: u64 = 20;
/// Calls of one run are taken to be worth a tenth of as many independent ones, because failures come
/// together. Where there are seconds, their spread says it better.
const CALLS_PER_INDEPENDENT: f64 = 10.0;
/// Seconds from which their spread is looked at.
const SECONDS_MIN: usize = 3;
/// Values that are no larger than this have no logarithm worth taking.
const LEAST: f64 = 1e-9;

/// What takes the place of the spread between runs where there is one run each. Two runs of the
/// same thing on a machine that others use differ by up to a tenth in their medians, and their
/// tails by far more, because one collection or one neighbour makes a tail.
fn floor_of_one_run(metric: Metric) -> f64 {
    match metric {
        Metric::LatencyP95 | Metric::ServiceP95 => 0.25,
        Metric::LatencyP99 | Metric::ServiceP99 => 0.5,
        Metric::FailedShare => 0.01,
        _ => 0.1,
    }
}

/// The factor that no noise between two single runs makes, and the calls that each of them needs
/// for it; none for shares, which are judged by their calls.
fn far(metric: Metric) -> Option<(f64, u64)> {
    match metric {
        Metric::FailedShare => None,
        Metric::LatencyP95 | Metric::ServiceP95 => Some((5.0, 200)),
        Metric::LatencyP99 | Metric::ServiceP99 => Some((10.0, 1_000)),
        _ => Some((3.0, 100)),
    }
}

/// One metric of one method in one arm.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Values {
    /// One value for each run.
    pub runs: Vec<f64>,
    /// If there is one run: the metric by second, warm-up left out; may be empty.
    pub seconds: Vec<f64>,
    /// If there is one run: its calls, if known.
    pub calls: Option<u64>,
}

/// What was found, before the correction for many metrics.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// What it was of.
    pub metric: Metric,
    /// The first arm's value.
    pub a: f64,
    /// The other's.
    pub b: f64,
    /// Values of the first arm that it rests on.
    pub a_count: usize,
    /// Values of the other.
    pub b_count: usize,
    /// Relative change, or plain difference of shares.
    pub change: f64,
    /// Its interval.
    pub interval: Option<Interval>,
    /// Two-sided chance by a normal distribution of logarithms, on its own; this is what is corrected
    /// for the number of metrics.
    pub p: Option<f64>,
    /// Two-sided chance by ranks or signs alone, where there are runs enough. It is not corrected:
    /// five and five runs reach 0.008 at best, which no correction for ten metrics would leave below
    /// the level. It keeps a single wild run from making a difference.
    pub p_alone: Option<f64>,
    /// Smallest change that matters.
    pub floor: f64,
    /// What it rests on.
    pub basis: Basis,
}

/// How runs are to be compared.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Design {
    /// Whether the first run of the one arm belongs to the first of the other, and so on.
    pub paired: bool,
    /// How much runs of one and the same thing differ in this metric, if that was measured (A/A).
    pub spread: Option<f64>,
}

/// Compares one metric; none if an arm has no value of it.
pub fn compare(
    metric: Metric,
    a: &Values,
    b: &Values,
    design: Design,
    random: &mut dyn FnMut() -> u64,
) -> Option<Found> {
    let scaled =
        |values: &[f64]| -> Vec<f64> { values.iter().map(|v| scale(metric, *v)).collect() };
    let (x, y) = (scaled(&a.runs), scaled(&b.runs));
    let least = x.len().min(y.len());
    let mut found = Found {
        metric,
        a: median(&a.runs)?,
        b: median(&b.runs)?,
        a_count: x.len(),
        b_count: y.len(),
        change: 0.0,
        interval: None,
        p: None,
        p_alone: None,
        floor: floor(metric, design.spread),
        basis: Basis::ValuesOnly,
    };
    found.change = unscale(metric, median(&y)? - median(&x)?);
    let told = if design.paired && x.len() == y.len() && least >= 2 {
        pairs(&x, &y, random)
    } else if least >= RANKS_MIN {
        by_ranks(&x, &y)
    } else if least >= 2 {
        Estimate::of(&x).zip(Estimate::of(&y)).map(few)
    } else if x.len().max(y.len()) >= 3 {
        one_against_many(&x, &y)
    } else {
        return Some(within_runs(found, a, b, design.spread));
    };
    if let Some(told) = told {
        found.change = unscale(metric, told.change);
        found.interval = told.interval.map(|interval| unscaled(metric, interval));
        (found.p, found.p_alone, found.basis) = (Some(told.p), told.p_alone, told.basis);
    }
    Some(found)
}

/// What one kind of test says, on the scale of differences.
struct Told {
    change: f64,
    interval: Option<Interval>,
    p: f64,
    p_alone: Option<f64>,
    basis: Basis,
}

/// Student's t of the differences of pairs: of logarithms, so of ratios. A bootstrap of six to ten
/// pairs covers 70 to 86 % where it claims 95 %; t covers 95 % (`compare/tests/coverage.rs`).
fn pairs(x: &[f64], y: &[f64], random: &mut dyn FnMut() -> u64) -> Option<Told> {
    let differences: Vec<f64> = x.iter().zip(y).map(|(x, y)| y - x).collect();
    let zero = Estimate { mean: 0.0, variance: 0.0, freedom: f64::INFINITY };
    let found = welch::difference(zero, Estimate::of(&differences)?);
    let drift = drift_within_pairs(x, y);
    let Interval { low, high } = found.interval;
    let signs = (differences.len() >= SIGNS_MIN).then(|| resample::signs(&differences, random));
    Some(Told {
        change: found.difference,
        interval: Some(Interval { low: low - drift, high: high + drift }),
        p: found.p,
        p_alone: signs.flatten(),
        basis: Basis::PairedRuns,
    })
}

/// By how much a drift over the session may shift all differences the same way: half of its step
/// from pair to pair, if the pairs rise or fall with their order. It does so where one arm always
/// runs first; the order of runs is not known here.
fn drift_within_pairs(x: &[f64], y: &[f64]) -> f64 {
    let levels: Vec<f64> = x.iter().zip(y).map(|(x, y)| f64::midpoint(*x, *y)).collect();
    match (ranks::trend(&levels), levels.as_slice()) {
        (Some(trend), [first, .., last]) if trend.p <= LEVEL => {
            (last - first).abs() / (levels.len() - 1) as f64 / 2.0
        }
        _ => 0.0,
    }
}

fn by_ranks(x: &[f64], y: &[f64]) -> Option<Told> {
    let (change, interval) = ranks::shift(x, y)?;
    let p_alone = Some(ranks::mann_whitney(x, y)?.p);
    let p = welch::difference(Estimate::of(x)?, Estimate::of(y)?).p;
    Some(Told { change, interval, p, p_alone, basis: Basis::Runs })
}

fn few((x, y): (Estimate, Estimate)) -> Told {
    let found = welch::difference(x, y);
    let interval = Some(found.interval);
    Told { change: found.difference, interval, p: found.p, p_alone: None, basis: Basis::FewRuns }
}

/// A single run is taken to vary as the runs of the other arm do (Crawford & Howell 1998).
fn one_against_many(x: &[f64], y: &[f64]) -> Option<Told> {
    let single = |one: &[f64], many: &[f64]| {
        Some(Estimate { mean: mean(one)?, variance: variance(many)?, freedom: many.len() as f64 })
    };
    let (mut first, mut second) = match x.len() < y.len() {
        true => (single(x, y)?, Estimate::of(y)?),
        false => (Estimate::of(x)?, single(y, x)?),
    };
    // Both variances are the same estimate, so it has the freedom of one.
    let freedom = x.len().max(y.len()) as f64 - 1.0;
    (first.freedom, second.freedom) = (freedom / 2.0, freedom / 2.0);
    Some(few((first, second)))
}

/// One run each: seconds within it, with their likeness to each other taken into account, and the
/// floor raised to what runs of the same thing differ by.
fn within_runs(mut found: Found, a: &Values, b: &Values, spread: Option<f64>) -> Found {
    let metric = found.metric;
    found.floor = spread.map_or(floor_of_one_run(metric), |spread| floor(metric, Some(spread)));
    let scaled =
        |values: &[f64]| -> Vec<f64> { values.iter().map(|v| scale(metric, *v)).collect() };
    let of = |values: &[f64]| match metric {
        // A second without a result is a second with none, and not one of a billionth of a result.
        Metric::Goodput => estimate(values).and_then(logarithm),
        _ => estimate(&scaled(values)),
    };
    let single = a.runs.len() == 1 && b.runs.len() == 1;
    let by_seconds = of(&a.seconds).zip(of(&b.seconds)).filter(|_| single);
    let (basis, both) = match by_seconds {
        Some(both) => (Basis::WithinRun, Some(both)),
        None if single && metric.is_share() => (Basis::Calls, of_calls(a).zip(of_calls(b))),
        None => (Basis::ValuesOnly, None),
    };
    let Some((x, y)) = both else {
        if far_apart(&found, a, b) {
            found.basis = Basis::FarApart;
        }
        return found;
    };
    let told = welch::difference(x, y);
    found.a = unscale_value(metric, x.mean);
    found.b = unscale_value(metric, y.mean);
    (found.a_count, found.b_count) = (a.seconds.len(), b.seconds.len());
    found.change = unscale(metric, told.difference);
    found.interval = Some(unscaled(metric, told.interval));
    (found.p, found.basis) = (Some(told.p), basis);
    found
}

/// A share of one run by the number of its calls, with the spread of its seconds where that is larger.
fn of_calls(values: &Values) -> Option<Estimate> {
    let share = *values.runs.first()?;
    let calls = values.calls.filter(|calls| *calls >= CALLS_MIN)? as f64;
    // One more failed and one more answered call: none of ten failed is not never (Laplace).
    let likely = (share * calls + 1.0) / (calls + 2.0);
    let of_one = likely * (1.0 - likely) / calls;
    let count = values.seconds.len();
    let (variance, freedom) = match variance(&values.seconds).filter(|_| count >= SECONDS_MIN) {
        Some(spread) => (of_one.max(spread / count as f64), count as f64 - 1.0),
        None => (of_one * CALLS_PER_INDEPENDENT, calls / CALLS_PER_INDEPENDENT),
    };
    Some(Estimate { mean: share, variance, freedom })
}

/// Returns true if two single values are farther apart than any noise between runs.
fn far_apart(found: &Found, a: &Values, b: &Values) -> bool {
    let Some((factor, least)) = far(found.metric) else { return false };
    let enough = |values: &Values| values.calls.is_some_and(|calls| calls >= least);
    let change = (1.0 + found.change).max(LEAST);
    enough(a) && enough(b) && !(1.0 / factor..=factor).contains(&change)
}

/// What is known of the logarithm of a mean (delta method); none for a mean of nothing.
fn logarithm(of: Estimate) -> Option<Estimate> {
    let variance = of.variance / (of.mean * of.mean);
    (of.mean > 0.0).then(|| Estimate { mean: of.mean.ln(), variance, ..of })
}

fn floor(metric: Metric, spread: Option<f64>) -> f64 {
    let least = if metric.is_share() { FLOOR_SHARE } else { FLOOR };
    spread.unwrap_or(0.0).max(least)
}

/// Ratios become differences.
fn scale(metric: Metric, value: f64) -> f64 {
    if metric.is_share() { value } else { value.max(LEAST).ln() }
}

fn unscale_value(metric: Metric, value: f64) -> f64 {
    if metric.is_share() { value } else { value.exp() }
}

fn unscale(metric: Metric, difference: f64) -> f64 {
    if metric.is_share() { difference } else { difference.exp_m1() }
}

fn unscaled(metric: Metric, interval: Interval) -> Interval {
    Interval { low: unscale(metric, interval.low), high: unscale(metric, interval.high) }
}

/// The words for all differences of one comparison, and their chances corrected for each other.
pub fn words(all: &[Found]) -> Vec<(Word, Option<f64>)> {
    let tested: Vec<f64> = all.iter().filter_map(|found| found.p).collect();
    let mut corrected = ranks::holm(&tested).into_iter();
    let word = |found: &Found| {
        let p = found.p.and_then(|_| corrected.next());
        let p = p.map(|p| p.max(found.p_alone.unwrap_or(0.0)));
        (word(found, p), p)
    };
    all.iter().map(word).collect()
}

fn word(found: &Found, p: Option<f64>) -> Word {
    if found.basis == Basis::FarApart {
        let more = found.change > 0.0;
        return if more == found.metric.more_is_better() { Word::Better } else { Word::Worse };
    }
    let Some((interval, p)) = found.interval.zip(p) else { return Word::CannotTell };
    // As far down as up in ratios: half and twice are equally far.
    let down =
        if found.metric.is_share() { -found.floor } else { -found.floor / (1.0 + found.floor) };
    let more = interval.low > found.floor;
    let less = interval.high < down;
    if (more || less) && p <= LEVEL {
        return if more == found.metric.more_is_better() { Word::Better } else { Word::Worse };
    }
    let small = interval.low >= down && interval.high <= found.floor;
    let zero = interval.low <= ROUNDING && interval.high >= -ROUNDING;
    // A raised floor is what equal arms may differ by: such a difference is neither known to be one
    // of the arms nor to be none.
    let raised = found.basis == Basis::WithinRun || found.floor > floor(found.metric, None);
    match (small, zero, raised) {
        (true, true, _) => Word::Same,
        (true, false, false) => Word::Negligible,
        _ => Word::CannotTell,
    }
}

/// How much runs of one and the same thing differ: the largest change between any two of them; none
/// for fewer than two.
pub fn spread(metric: Metric, runs: &[f64]) -> Option<f64> {
    let scaled: Vec<f64> = runs.iter().map(|value| scale(metric, *value)).collect();
    let largest = scaled.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let smallest = scaled.iter().copied().fold(f64::INFINITY, f64::min);
    (runs.len() >= 2).then(|| unscale(metric, largest - smallest))
}

#[cfg(test)]
mod tests;
