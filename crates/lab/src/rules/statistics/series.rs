//! Series in time, whose neighbours resemble each other: how much they really say, when they
//! settled.

use super::welch::Estimate;
use super::{mean, variance};

/// Correlation of a series with itself one step later; 0 for fewer than three values or a constant.
pub fn lag_one(series: &[f64]) -> f64 {
    let Some(centre) = mean(series).filter(|_| series.len() >= 3) else { return 0.0 };
    let squares: f64 = series.iter().map(|value| (value - centre).powi(2)).sum();
    let products: f64 = series.windows(2).map(|pair| (pair[0] - centre) * (pair[1] - centre)).sum();
    if squares > 0.0 { products / squares } else { 0.0 }
}

/// How many independent values a series is worth: n(1−ρ)/(1+ρ), with ρ the lag-one correlation,
/// corrected for its bias in short series (Marriott & Pope 1954: ρ + (1+3ρ)/n). At least 1, at most
/// its length. Source: Bayley & Hammersley 1946, for a first-order autoregressive series.
pub fn effective_count(series: &[f64]) -> f64 {
    let count = series.len() as f64;
    if series.len() < 3 {
        return count;
    }
    let raw = lag_one(series);
    let rho = (raw + (1.0 + 3.0 * raw) / count).clamp(0.0, 0.99);
    (count * (1.0 - rho) / (1.0 + rho)).clamp(1.0, count)
}

/// Means of this many batches of equal length, in order; the oldest values that do not fill a
/// batch are left out. Empty if there are fewer values than batches.
pub fn batch_means(series: &[f64], batches: usize) -> Vec<f64> {
    let size = series.len().checked_div(batches).unwrap_or(0);
    if size == 0 {
        return Vec::new();
    }
    let used = &series[series.len() - size * batches..];
    used.chunks(size).map(|batch| batch.iter().sum::<f64>() / size as f64).collect()
}

/// Batches that a series is cut into. Few, because their means must hardly resemble each other;
/// 10 to 30 is the usual advice (Schmeiser 1982: more gain almost nothing).
pub const BATCHES: usize = 10;
/// Values that differ by less than this share are equal but for rounding.
const EQUAL: f64 = 1e-9;
/// Fewer independent values than this say nothing of their own spread.
const EFFECTIVE_MIN: f64 = 3.0;

/// The mean of a series whose neighbours resemble each other, with its uncertainty: the larger of
/// what batch means and what the effective number of values give. None if the series is shorter
/// than twice [`BATCHES`] or worth fewer than three independent values.
///
/// Sources: batch means, Schmeiser 1982; both together because each alone is too small on short
/// series, which the tests show.
pub fn estimate(series: &[f64]) -> Option<Estimate> {
    if series.len() < 2 * BATCHES {
        return None;
    }
    let (centre, spread) = (mean(series)?, variance(series)?);
    if spread <= (EQUAL * centre).powi(2) {
        return Some(Estimate { mean: centre, variance: 0.0, freedom: BATCHES as f64 - 1.0 });
    }
    let effective = effective_count(series);
    if effective < EFFECTIVE_MIN {
        return None;
    }
    // The sample variance of n_eff independent values is too small by (n_eff − 1) / n_eff when it
    // is taken with n − 1 of dependent ones.
    let by_count = spread / effective * (effective / (effective - 1.0));
    let means = batch_means(series, BATCHES);
    let by_batches = variance(&means)? / BATCHES as f64;
    let freedom = (effective - 1.0).min(BATCHES as f64 - 1.0);
    Some(Estimate { mean: centre, variance: by_count.max(by_batches), freedom })
}

/// Number of values of a warm-up by MSER-5: cut where the standard error of the rest, in batches of
/// five, is least; none if that is in the second half, which means that it never settled.
/// Source: White, Cobb & Spratt, WSC 2000.
pub fn mser5(series: &[f64]) -> Option<usize> {
    const BATCH: usize = 5;
    let means: Vec<f64> =
        series.chunks_exact(BATCH).map(|batch| batch.iter().sum::<f64>() / BATCH as f64).collect();
    let error = |cut: usize| {
        let rest = &means[cut..];
        let centre = mean(rest).unwrap_or_default();
        let squares: f64 = rest.iter().map(|value| (value - centre).powi(2)).sum();
        squares / (rest.len() as f64).powi(2)
    };
    // The last few batches always look calm by chance; the rule leaves them out.
    let last = means.len().checked_sub(BATCH)?;
    let cut = (0..=last).min_by(|x, y| error(*x).total_cmp(&error(*y)))?;
    (cut <= means.len() / 2).then_some(cut * BATCH)
}

/// Where `windows` values in a row first differ by a coefficient of variation of less than `limit`:
/// from there on the series counts as settled; none if it never does. Source: Georges, Buytaert &
/// Eeckhout 2007, who use 0.02.
pub fn settled(series: &[f64], windows: usize, limit: f64) -> Option<usize> {
    let calm = |part: &[f64]| {
        let centre = mean(part).unwrap_or_default();
        let spread = variance(part).unwrap_or_default().sqrt();
        centre > 0.0 && spread / centre < limit
    };
    (windows >= 2).then(|| series.windows(windows).position(calm)).flatten()
}
