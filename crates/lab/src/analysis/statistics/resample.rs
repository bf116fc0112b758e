//! Randomisation tests. The source of randomness is an argument.

/// Number of random sign patterns that are tried if there are too many pairs to try all patterns.
pub const RESAMPLES: usize = 10_000;

/// Maximum number of pairs for which all sign patterns are tried: 2¹⁶ sums.
const SIGNS_MAX: usize = 16;

/// Returns the two-sided p-value of a mean paired difference by Fisher's randomisation test (The
/// Design of Experiments, 1935). It is the share of sign patterns with a sum at least as large.
/// Exact up to 16 pairs, else estimated from [`RESAMPLES`] random patterns. None without pairs.
pub fn signs(differences: &[f64], random: &mut dyn FnMut() -> u64) -> Option<f64> {
    if differences.is_empty() {
        return None;
    }
    let observed = differences.iter().sum::<f64>().abs();
    // The slack treats sums as equal if they differ only by rounding.
    let slack = 1e-9 * differences.iter().map(|value| value.abs()).sum::<f64>();
    let is_extreme = |mut bit: Box<dyn FnMut(usize) -> bool + '_>| {
        let signed = |(index, value): (usize, &f64)| if bit(index) { *value } else { -value };
        differences.iter().enumerate().map(signed).sum::<f64>().abs() >= observed - slack
    };
    if differences.len() <= SIGNS_MAX {
        let patterns = 1_u32 << differences.len();
        let extreme = (0..patterns)
            .filter(|signs| is_extreme(Box::new(|index| signs >> index & 1 == 1)))
            .count();
        return Some(extreme as f64 / f64::from(patterns));
    }
    let mut extreme = 1;
    for _ in 0..RESAMPLES {
        extreme += usize::from(is_extreme(Box::new(|_| random() >> 32 & 1 == 1)));
    }
    Some(extreme as f64 / (RESAMPLES + 1) as f64)
}
