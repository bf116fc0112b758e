//! Means of autocorrelated time series and their uncertainty.

use super::welch::Estimate;
use super::{mean, variance};

/// Returns the lag-one autocorrelation; 0 for fewer than three values or a constant series.
pub fn lag_one(series: &[f64]) -> f64 {
    let Some(centre) = mean(series).filter(|_| series.len() >= 3) else { return 0.0 };
    let squares: f64 = series.iter().map(|value| (value - centre).powi(2)).sum();
    let products: f64 = series.windows(2).map(|pair| (pair[0] - centre) * (pair[1] - centre)).sum();
    if squares > 0.0 { products / squares } else { 0.0 }
}

/// Returns the effective sample size of a series: n(1−ρ)/(1+ρ) for a first-order autoregressive
/// series (Bayley & Hammersley 1946). It is at most the length of the series and may be below 1.
///
/// ρ is the lag-one correlation, corrected for its bias of −(1+4ρ)/n in short series (Marriott &
/// Pope 1954), plus `errors` of its standard errors √((1−ρ²)/n) (Bartlett 1946).
pub fn effective_count(series: &[f64], errors: f64) -> f64 {
    let count = series.len() as f64;
    if series.len() < 5 {
        return count;
    }
    let raw = lag_one(series);
    let corrected = (count * raw + 1.0) / (count - 4.0);
    let error = ((1.0 - raw.powi(2)).max(0.0) / count).sqrt();
    let rho = (corrected + errors * error).clamp(0.0, 0.999);
    count * (1.0 - rho) / (1.0 + rho)
}

/// Returns the means of `batches` batches of equal length, in order. The oldest values are dropped
/// if they do not fill a batch. The result is empty if there are fewer values than batches.
pub fn batch_means(series: &[f64], batches: usize) -> Vec<f64> {
    let size = series.len().checked_div(batches).unwrap_or(0);
    if size == 0 {
        return Vec::new();
    }
    let used = &series[series.len() - size * batches..];
    used.chunks(size).map(|batch| batch.iter().sum::<f64>() / size as f64).collect()
}

/// Smallest number of values of a series for an estimate of its autocorrelation.
const LENGTH_MIN: usize = 20;
/// Smallest number of batches for an estimate of their autocorrelation. A series is not divided
/// into fewer.
const BATCHES_MIN: usize = 15;
/// A series is constant if its relative standard deviation is below this.
const EQUAL: f64 = 1e-9;
/// The spread cannot be estimated if the effective sample size is below this.
const EFFECTIVE_MIN: f64 = 1.2;
/// Number of standard errors that are added to the lag-one correlation. Its estimate is too low for
/// about half of all drifting series.
const ERRORS: f64 = 1.6;
/// The same number for batch means. There are fewer batch means than values, so each standard error
/// is larger.
const ERRORS_OF_BATCHES: f64 = 0.8;

/// Returns the mean of an autocorrelated series with its uncertainty. `None` if the series has
/// fewer than 20 values, or if it drifts so much that its spread cannot be estimated.
///
/// The variance is based on the effective sample size. It is also computed for the means of 2, 4,
/// 8, … neighbours (batch means, Schmeiser 1982) as long as 15 batches remain. The largest variance
/// is used, because only batches reveal a slow drift below fast noise. The constants were chosen by
/// the coverage of the intervals, which `analysis/compare/tests/coverage.rs` measures.
pub fn estimate(series: &[f64]) -> Option<Estimate> {
    if series.len() < LENGTH_MIN {
        return None;
    }
    let (centre, spread) = (mean(series)?, variance(series)?);
    if spread <= (EQUAL * centre).powi(2) {
        let freedom = series.len() as f64 - 1.0;
        return Some(Estimate { mean: centre, variance: 0.0, freedom });
    }
    let mut widest = dependent(series, ERRORS)?;
    let mut size = 2;
    while series.len() / size >= BATCHES_MIN {
        let means = batch_means(series, series.len() / size);
        let coarser = dependent(&means, ERRORS_OF_BATCHES)?;
        if coarser.variance > widest.variance {
            widest = coarser;
        }
        size *= 2;
    }
    Some(Estimate { mean: centre, ..widest })
}

/// Returns the estimate from one series of values or batch means.
fn dependent(series: &[f64], errors: f64) -> Option<Estimate> {
    let effective = effective_count(series, errors);
    if effective < EFFECTIVE_MIN {
        return None;
    }
    // The sample variance of dependent values is (n_eff − 1)/n_eff of the true one.
    let freedom = effective - 1.0;
    Some(Estimate { mean: mean(series)?, variance: variance(series)? / freedom, freedom })
}
