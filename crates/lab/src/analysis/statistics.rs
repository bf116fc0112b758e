//! Statistics for small samples. `analysis/compare.rs` applies them to runs.
//!
//! The statistical tests are our own code, so the basis of a verdict can be read here. The
//! distribution functions come from `statrs`. Each function names its source and is tested against
//! published values.

pub mod ranks;
pub mod resample;
pub mod series;
pub mod welch;

use statrs::distribution::{ContinuousCDF, Normal};

/// Confidence level of all intervals, two-sided.
pub const CONFIDENCE: f64 = 0.95;

/// A confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// Returns the values in ascending order, without NaN.
pub fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted: Vec<f64> = values.iter().copied().filter(|value| !value.is_nan()).collect();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// Returns the median. `None` without values.
pub fn median(values: &[f64]) -> Option<f64> {
    let ascending = sorted(values);
    let middle = ascending.len() / 2;
    match ascending.len() {
        0 => None,
        count if count % 2 == 1 => Some(ascending[middle]),
        _ => Some(f64::midpoint(ascending[middle - 1], ascending[middle])),
    }
}

/// Returns the arithmetic mean. `None` without values.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// Returns the sample variance (divisor n − 1). `None` for fewer than two values.
pub fn variance(values: &[f64]) -> Option<f64> {
    let centre = mean(values)?;
    let squares: f64 = values.iter().map(|value| (value - centre).powi(2)).sum();
    (values.len() >= 2).then(|| squares / (values.len() - 1) as f64)
}

/// Returns the number of standard deviations around the mean that contain `share` of a normal
/// distribution.
pub fn z(share: f64) -> f64 {
    standard_normal().inverse_cdf(0.5 + share / 2.0)
}

/// Returns the probability that a standard normal value is farther from 0 than `z`.
pub(crate) fn two_sided(z: f64) -> f64 {
    2.0 * standard_normal().sf(z.abs())
}

/// Returns the normal distribution with mean 0 and standard deviation 1.
pub(crate) fn standard_normal() -> Normal {
    Normal::new(0.0, 1.0).expect("the standard deviation is positive")
}

#[cfg(test)]
mod tests;
