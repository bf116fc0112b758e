//! Means of autocorrelated time series and their uncertainty.

use super::welch::{self, Estimate};
use super::{Interval, mean, variance};

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
/// n is the length of the series. ρ is its lag-one autocorrelation, corrected for its bias of
/// −(1+4ρ)/n in short series (Marriott & Pope 1954). `error_count` times its standard error
/// √((1−ρ²)/n) (Bartlett 1946) is added, so that ρ is rarely too low. With fewer than five values,
/// the length of the series is returned.
pub fn effective_count(series: &[f64], error_count: f64) -> f64 {
    let count = series.len() as f64;
    if series.len() < 5 {
        return count;
    }
    let raw_rho = lag_one(series);
    let corrected_rho = (count * raw_rho + 1.0) / (count - 4.0);
    let standard_error = ((1.0 - raw_rho.powi(2)).max(0.0) / count).sqrt();
    let rho = (corrected_rho + error_count * standard_error).clamp(0.0, 0.999);
    count * (1.0 - rho) / (1.0 + rho)
}

/// Returns the means of `batches` batches of equal length, in order. The oldest values are dropped
/// if they do not fill a batch. The result is empty if there are fewer values than batches.
pub fn batch_means(series: &[f64], batches: usize) -> Vec<f64> {
    let batch_size = series.len().checked_div(batches).unwrap_or(0);
    if batch_size == 0 {
        return Vec::new();
    }
    let used_values = &series[series.len() - batch_size * batches..];
    let chunks = used_values.chunks(batch_size);
    chunks.map(|batch| batch.iter().sum::<f64>() / batch_size as f64).collect()
}

/// Smallest number of values of a series for an estimate of its autocorrelation.
const VALUES_MIN: usize = 20;
/// Smallest number of batches for an estimate of their autocorrelation.
const BATCHES_MIN: usize = 15;
/// A series counts as constant up to this relative standard deviation.
const CONSTANT_DEVIATION_MAX: f64 = 1e-9;
/// The spread cannot be estimated if the effective sample size is below this.
const EFFECTIVE_COUNT_MIN: f64 = 1.2;
/// Number of standard errors that are added to the autocorrelation of values. The plain estimate is
/// too low for about half of all drifting series.
const ERRORS_OF_VALUES: f64 = 1.6;
/// Number of standard errors that are added to the autocorrelation of batch means. It is lower,
/// because there are fewer batch means than values, so each standard error is larger.
const ERRORS_OF_BATCHES: f64 = 0.8;

/// Returns the mean of an autocorrelated series with its uncertainty. `None` if the series has
/// fewer than 20 values, or if it drifts so much that its spread cannot be estimated.
///
/// The variance is based on the effective sample size. It is also computed for the means of 2, 4,
/// 8, … neighbours (batch means, Schmeiser 1982) as long as 15 batches remain. The largest variance
/// is used, because only batches reveal a slow drift below fast noise. The constants were chosen by
/// the coverage of the intervals, which `analysis/compare/tests/coverage.rs` measures.
pub fn estimate(series: &[f64]) -> Option<Estimate> {
    if series.len() < VALUES_MIN {
        return None;
    }
    let (series_mean, series_variance) = (mean(series)?, variance(series)?);
    if series_variance <= (CONSTANT_DEVIATION_MAX * series_mean).powi(2) {
        let freedom = series.len() as f64 - 1.0;
        return Some(Estimate { mean: series_mean, variance: 0.0, freedom });
    }
    let mut widest = estimate_at_one_scale(series, ERRORS_OF_VALUES)?;
    let mut batch_size = 2;
    while series.len() / batch_size >= BATCHES_MIN {
        let means = batch_means(series, series.len() / batch_size);
        let coarser = estimate_at_one_scale(&means, ERRORS_OF_BATCHES)?;
        if coarser.variance > widest.variance {
            widest = coarser;
        }
        batch_size *= 2;
    }
    Some(Estimate { mean: series_mean, ..widest })
}

/// Returns the estimate from the values alone, or from the means of batches of one size. `None` if
/// the series drifts too much.
fn estimate_at_one_scale(series: &[f64], error_count: f64) -> Option<Estimate> {
    let effective = effective_count(series, error_count);
    if effective < EFFECTIVE_COUNT_MIN {
        return None;
    }
    // The sample variance of dependent values is (n_eff − 1)/n_eff of the true one. So the variance
    // of the mean is the sample variance divided by n_eff − 1.
    let freedom = effective - 1.0;
    Some(Estimate { mean: mean(series)?, variance: variance(series)? / freedom, freedom })
}

/// Returns the 95 % interval of the slope of values over times, by least squares. With two values
/// their slope is exact, because nothing shows their spread. `None` for fewer values, or if all times
/// are equal.
pub fn slope(times: &[f64], values: &[f64]) -> Option<Interval> {
    let (mean_time, mean_value) = (mean(times)?, mean(values)?);
    let squares: f64 = times.iter().map(|time| (time - mean_time).powi(2)).sum();
    let points = || times.iter().zip(values);
    let products = points().map(|(time, value)| (time - mean_time) * (value - mean_value));
    if times.len() < 2 || squares <= 0.0 {
        return None;
    }
    let slope = products.sum::<f64>() / squares;
    let error = |(time, value): (&f64, &f64)| value - mean_value - slope * (time - mean_time);
    let errors: f64 = points().map(|point| error(point).powi(2)).sum();
    let freedom = (times.len() as f64 - 2.0).max(1.0);
    let estimate = Estimate { mean: slope, variance: errors / freedom / squares, freedom };
    let exactly_zero = Estimate { mean: 0.0, variance: 0.0, freedom: f64::INFINITY };
    Some(welch::difference(exactly_zero, estimate).interval)
}
