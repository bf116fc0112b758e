//! Randomisation tests and the bootstrap. The source of randomness is an argument.

use super::{CONFIDENCE, Interval, mean};

/// Number of random sign patterns that are tried if there are too many pairs to try all patterns.
pub const RANDOM_PATTERNS: usize = 10_000;

/// Maximum number of pairs for which all sign patterns are tried: 2¹⁶ sums.
const EXACT_PAIRS_MAX: usize = 16;

/// Returns the two-sided p-value of a mean paired difference by Fisher's randomisation test (The
/// Design of Experiments, 1935). A sign pattern flips the signs of some differences. The p-value is
/// the share of patterns whose sum is at least as far from 0 as the observed sum. It is exact for
/// up to 16 pairs, else estimated from [`RANDOM_PATTERNS`] random patterns. `random` returns random
/// bits. `None` without pairs.
pub fn signs(differences: &[f64], random: &mut dyn FnMut() -> u64) -> Option<f64> {
    if differences.is_empty() {
        return None;
    }
    let observed = differences.iter().sum::<f64>().abs();
    // The slack treats sums as equal if they differ only by rounding.
    let slack = 1e-9 * differences.iter().map(|value| value.abs()).sum::<f64>();
    let is_extreme = |mut keeps_sign: Box<dyn FnMut(usize) -> bool + '_>| {
        let signed =
            |(index, value): (usize, &f64)| if keeps_sign(index) { *value } else { -value };
        differences.iter().enumerate().map(signed).sum::<f64>().abs() >= observed - slack
    };
    if differences.len() <= EXACT_PAIRS_MAX {
        let patterns = 1_u32 << differences.len();
        let extreme = (0..patterns)
            .filter(|pattern| is_extreme(Box::new(|index| pattern >> index & 1 == 1)))
            .count();
        return Some(extreme as f64 / f64::from(patterns));
    }
    // The observed signs count as one extreme pattern, so the p-value is never 0.
    let mut extreme = 1;
    for _ in 0..RANDOM_PATTERNS {
        extreme += usize::from(is_extreme(Box::new(|_| random() >> 32 & 1 == 1)));
    }
    Some(extreme as f64 / (RANDOM_PATTERNS + 1) as f64)
}

/// Number of bootstrap samples. Efron & Tibshirani (An Introduction to the Bootstrap, 1993, 14.2)
/// recommend at least 1,000 for an interval.
const BOOTSTRAP_SAMPLES: usize = 2_000;

/// Returns the percentile bootstrap interval of the mean: values are drawn with replacement. With
/// fewer than about twenty values it is too narrow, so use it only to widen another interval.
/// `None` for fewer than two values.
pub fn bootstrap_mean(values: &[f64], random: &mut dyn FnMut() -> u64) -> Option<Interval> {
    if values.len() < 2 {
        return None;
    }
    let count = values.len() as u64;
    let mut resample = || -> Option<f64> {
        // The high bits of the product select an index without the bias of a remainder.
        let index = |bits: u64| ((u128::from(bits) * u128::from(count)) >> 64) as usize;
        let drawn: Vec<f64> = values.iter().map(|_| values[index(random())]).collect();
        mean(&drawn)
    };
    let mut means: Vec<f64> = (0..BOOTSTRAP_SAMPLES).filter_map(|_| resample()).collect();
    means.sort_by(f64::total_cmp);
    let tail = ((1.0 - CONFIDENCE) / 2.0 * BOOTSTRAP_SAMPLES as f64) as usize;
    Some(Interval { low: means[tail], high: means[BOOTSTRAP_SAMPLES - 1 - tail] })
}
