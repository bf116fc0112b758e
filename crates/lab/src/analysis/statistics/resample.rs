//! Resampling: intervals and chances from the values alone. Randomness is an argument.

use statrs::distribution::ContinuousCDF;

use super::{CONFIDENCE, Interval, mean, median, sorted, standard_normal};

/// Resamples of a bootstrap: the ends of a 95 % interval then have an error of about 1 % of its
/// width (Efron & Tibshirani, An Introduction to the Bootstrap, 1993, 14.2).
pub const RESAMPLES: usize = 10_000;

/// Interval of the median of `b` divided by that of `a`, both resampled independently: BCa (Efron
/// 1987; Efron & Tibshirani, 14.3), on logarithms. None unless all values are above 0 and each
/// sample has at least four.
pub fn median_ratio(a: &[f64], b: &[f64], random: &mut dyn FnMut() -> u64) -> Option<Interval> {
    let positive = |values: &[f64]| values.len() >= 4 && values.iter().all(|value| *value > 0.0);
    if !positive(a) || !positive(b) {
        return None;
    }
    let ratio = |a: &[f64], b: &[f64]| Some((median(b)? / median(a)?).ln());
    let mut drawn = Vec::with_capacity(RESAMPLES);
    for _ in 0..RESAMPLES {
        drawn.push(ratio(&resample(a, random), &resample(b, random))?);
    }
    let mut left_out: Vec<f64> = Vec::with_capacity(a.len() + b.len());
    for place in 0..a.len() {
        left_out.push(ratio(&without(a, place), b)?);
    }
    let acceleration_a = cubes(&left_out);
    left_out.clear();
    for place in 0..b.len() {
        left_out.push(ratio(a, &without(b, place))?);
    }
    let acceleration = acceleration(&[acceleration_a, cubes(&left_out)]);
    let interval = bca(&sorted(&drawn), ratio(a, b)?, acceleration);
    Some(Interval { low: interval.low.exp(), high: interval.high.exp() })
}

fn resample(values: &[f64], random: &mut dyn FnMut() -> u64) -> Vec<f64> {
    values.iter().map(|_| values[below(values.len(), random)]).collect()
}

fn without(values: &[f64], place: usize) -> Vec<f64> {
    let mut rest = values.to_vec();
    rest.remove(place);
    rest
}

/// A whole number below `limit`. The bias of the remainder is below 2⁻⁵⁰ for any sample of ours.
fn below(limit: usize, random: &mut dyn FnMut() -> u64) -> usize {
    (random() % limit as u64) as usize
}

/// Sums of cubes and squares of a jackknife's deviations.
fn cubes(left_out: &[f64]) -> (f64, f64) {
    let centre = mean(left_out).unwrap_or_default();
    let deviations = left_out.iter().map(|value| centre - value);
    deviations.fold((0.0, 0.0), |sums, d| (sums.0 + d.powi(3), sums.1 + d.powi(2)))
}

fn acceleration(parts: &[(f64, f64)]) -> f64 {
    let cubed: f64 = parts.iter().map(|part| part.0).sum();
    let squared: f64 = parts.iter().map(|part| part.1).sum();
    if squared > 0.0 { cubed / (6.0 * squared.powf(1.5)) } else { 0.0 }
}

fn bca(drawn: &[f64], observed: f64, acceleration: f64) -> Interval {
    let normal = standard_normal();
    let below = drawn.iter().filter(|value| **value < observed).count() as f64;
    let equal = drawn.iter().filter(|value| **value == observed).count() as f64;
    // Half of the ties: medians of small samples take few values.
    let share = ((below + equal / 2.0) / drawn.len() as f64).clamp(1e-4, 1.0 - 1e-4);
    let bias = normal.inverse_cdf(share);
    let at = |level: f64| {
        let z = bias + normal.inverse_cdf(level);
        normal.cdf(bias + z / (1.0 - acceleration * z))
    };
    let tail = (1.0 - CONFIDENCE) / 2.0;
    Interval { low: quantile(drawn, at(tail)), high: quantile(drawn, at(1.0 - tail)) }
}

fn quantile(sorted: &[f64], share: f64) -> f64 {
    let place = (share * sorted.len() as f64).floor().clamp(0.0, (sorted.len() - 1) as f64);
    sorted[place as usize]
}

/// Pairs up to which all signs are tried: 2¹⁶ sums.
const SIGNS_MAX: usize = 16;

/// Two-sided chance of a mean difference of pairs as large if signs were chance: Fisher's
/// randomisation test (The Design of Experiments, 1935), exact up to 16 pairs, above by
/// [`RESAMPLES`] random signs. None without pairs.
pub fn signs(differences: &[f64], random: &mut dyn FnMut() -> u64) -> Option<f64> {
    if differences.is_empty() {
        return None;
    }
    let observed = differences.iter().sum::<f64>().abs();
    // Equal sums must count as equal whatever the order of addition was.
    let slack = 1e-9 * differences.iter().map(|value| value.abs()).sum::<f64>();
    let sum = |mut bit: Box<dyn FnMut(usize) -> bool + '_>| {
        let signed = |(place, value): (usize, &f64)| if bit(place) { *value } else { -value };
        differences.iter().enumerate().map(signed).sum::<f64>().abs() >= observed - slack
    };
    if differences.len() <= SIGNS_MAX {
        let all = 1_u32 << differences.len();
        let far = (0..all).filter(|signs| sum(Box::new(|place| signs >> place & 1 == 1))).count();
        return Some(far as f64 / f64::from(all));
    }
    let mut far = 1;
    for _ in 0..RESAMPLES {
        far += usize::from(sum(Box::new(|_| random() >> 32 & 1 == 1)));
    }
    Some(far as f64 / (RESAMPLES + 1) as f64)
}
