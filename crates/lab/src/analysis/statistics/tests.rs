//! Goal: the functions return published values, or the known properties of made-up series. Each
//! test names its source.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::median;
use super::ranks::{hodges_lehmann, holm, mann_kendall, mann_whitney};
use super::resample::{bootstrap_mean, signs};
use super::series::{batch_means, effective_count, estimate, lag_one};
use super::welch::{Estimate, difference};

fn near(actual: f64, expected: f64, tolerance: f64) {
    assert!((actual - expected).abs() <= tolerance, "{actual} is not {expected} ± {tolerance}");
}

fn normal(random: &mut StdRng) -> f64 {
    // Box and Muller 1958.
    let (u, v): (f64, f64) = (random.random(), random.random());
    (-2.0 * (1.0 - u).ln()).sqrt() * (std::f64::consts::TAU * v).cos()
}

/// Returns a first-order autoregressive series with variance 1.
fn autoregressive(random: &mut StdRng, count: usize, rho: f64) -> Vec<f64> {
    let mut value = normal(random);
    let scale = (1.0 - rho * rho).sqrt();
    let mut step = || {
        value = rho * value + scale * normal(random);
        value
    };
    (0..count).map(|_| step()).collect()
}

#[test]
fn the_median_is_the_middle_value_or_the_mean_of_two() {
    assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
    assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    assert_eq!(median(&[]), None);
}

/// Hollander & Wolfe 1973, p. 69, as in R's `wilcox.test`: W = 35, one-sided 0.1272.
#[test]
fn mann_whitney_gives_the_published_p_value() {
    let x = [0.80, 0.83, 1.89, 1.04, 1.45, 1.38, 1.91, 1.64, 0.73, 1.46];
    let y = [1.15, 0.88, 0.90, 0.74, 1.21];
    let actual = mann_whitney(&x, &y).unwrap();
    assert_eq!(actual.statistic, 35.0);
    near(actual.p, 2.0 * 0.1272, 2e-4);
}

/// The smallest two-sided p-values are 0.1 for 3, 0.029 for 4 and 0.008 for 5 values each. The
/// critical values of U in the usual table are 2 for 5 and 5, 13 for 8 and 8, and 23 for 10 and 10
/// values.
#[test]
fn mann_whitney_agrees_with_published_tables() {
    let p_of_separate_samples = |count: usize| {
        let a: Vec<f64> = (0..count).map(|value| value as f64).collect();
        let b: Vec<f64> = a.iter().map(|value| value + 100.0).collect();
        mann_whitney(&a, &b).unwrap().p
    };
    near(p_of_separate_samples(3), 0.1, 1e-9);
    near(p_of_separate_samples(4), 2.0 / 70.0, 1e-9);
    near(p_of_separate_samples(5), 2.0 / 252.0, 1e-9);
    for (count, critical) in [(5, 2), (8, 13), (10, 23)] {
        // The rank of the interval is the critical value plus one.
        let values: Vec<f64> = (0..count).map(f64::from).collect();
        let shifted: Vec<f64> = values.iter().map(|value| value * 1000.0).collect();
        let interval = hodges_lehmann(&values, &shifted).unwrap().1.unwrap();
        let mut differences: Vec<f64> =
            shifted.iter().flat_map(|y| values.iter().map(move |x| y - x)).collect();
        differences.sort_by(f64::total_cmp);
        assert_eq!(interval.low, differences[critical]);
    }
    assert_eq!(hodges_lehmann(&[1.0, 2.0, 3.0], &[7.0, 8.0, 9.0]).unwrap().1, None);
}

#[test]
fn the_exact_and_the_approximate_p_value_agree() {
    assert_eq!(mann_whitney(&[1.0; 5], &[1.0; 5]).unwrap().p, 1.0);
    assert_eq!(mann_whitney(&[1.0; 60], &[1.0; 60]).unwrap().p, 1.0);
    assert_eq!(mann_whitney(&[], &[1.0]), None);
    // The test is exact for 25 and 25 values, but not for 26 and 25. Both p-values must be close.
    let mut random = StdRng::seed_from_u64(4);
    let a: Vec<f64> = (0..25).map(|_| (normal(&mut random) * 4.0).round()).collect();
    let b: Vec<f64> = (0..25).map(|_| (normal(&mut random) * 4.0 + 2.0).round()).collect();
    let exact = mann_whitney(&a, &b).unwrap().p;
    let longer: Vec<f64> = b.iter().copied().chain([median(&b).unwrap()]).collect();
    near(mann_whitney(&a, &longer).unwrap().p, exact, 0.02);
}

/// R: `p.adjust(c(0.01, 0.04, 0.03, 0.005), "holm")`.
#[test]
fn holm_corrects_as_published() {
    let actual = holm(&[0.01, 0.04, 0.03, 0.005]);
    for (actual, expected) in actual.iter().zip([0.03, 0.06, 0.06, 0.02]) {
        near(*actual, expected, 1e-12);
    }
    assert!(holm(&[]).is_empty());
}

/// Student's sleep data (1908), as in R's `t.test`: t = −1.8608, df = 17.776, p = 0.07939, interval
/// −3.365 to 0.205 of first minus second.
#[test]
fn welch_gives_the_textbook_interval() {
    let first_drug = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0];
    let second_drug = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4];
    let actual =
        difference(Estimate::of(&second_drug).unwrap(), Estimate::of(&first_drug).unwrap());
    near(actual.freedom, 17.776, 1e-3);
    near(actual.p, 0.07939, 1e-5);
    near(actual.interval.low, -3.365_483, 1e-5);
    near(actual.interval.high, 0.205_483, 1e-5);
}

#[test]
fn welch_without_any_spread_is_certain() {
    let without_spread = |value| Estimate { mean: value, variance: 0.0, freedom: 3.0 };
    assert_eq!(difference(without_spread(2.0), without_spread(2.0)).p, 1.0);
    assert_eq!(difference(without_spread(2.0), without_spread(3.0)).p, 0.0);
}

/// Kendall 1975; R's `cor.test` on the same nine pairs gives the exact 0.1194.
#[test]
fn mann_kendall_is_near_the_exact_p_value() {
    // Quality of tuna by lightness, in the order of lightness (Hollander & Wolfe 1973, p. 187).
    let actual = mann_kendall(&[2.5, 4.0, 2.6, 3.6, 2.8, 3.1, 5.2, 5.0, 3.8]).unwrap();
    assert_eq!(actual.statistic, 16.0);
    near(actual.p, 0.1194, 0.003);
    assert!(mann_kendall(&(0..8).map(f64::from).collect::<Vec<_>>()).unwrap().p < 0.001);
    assert_eq!(mann_kendall(&[5.0; 8]).unwrap().p, 1.0);
    assert_eq!(mann_kendall(&[1.0, 2.0, 3.0]), None);
}

/// Darwin's maize, in Fisher 1935, section 21: 1,726 of 32,768 sign patterns are as extreme: p =
/// 0.0527.
#[test]
fn sign_patterns_give_the_p_value_of_fisher() {
    let darwin =
        [49.0, -67.0, 8.0, 16.0, 6.0, 23.0, 28.0, 41.0, 14.0, 29.0, 56.0, 24.0, 75.0, 60.0, -48.0];
    near(signs(&darwin, &mut || 0).unwrap(), 1726.0 / 32768.0, 1e-12);
    let mut random = StdRng::seed_from_u64(6);
    let twice: Vec<f64> = darwin.iter().chain(&darwin).copied().collect();
    assert!(signs(&twice, &mut || random.random()).unwrap() < 0.02);
    assert_eq!(signs(&[], &mut || 0), None);
}

/// A first-order series with correlation ρ counts as n(1−ρ)/(1+ρ) values: a third at 0.5, a ninth
/// at 0.8.
#[test]
fn dependent_values_count_less() {
    let mut random = StdRng::seed_from_u64(7);
    for (rho, share) in [(0.0, 1.0), (0.5, 1.0 / 3.0), (0.8, 1.0 / 9.0)] {
        let series = autoregressive(&mut random, 4000, rho);
        near(lag_one(&series), rho, 0.05);
        near(effective_count(&series, 0.0) / 4000.0, share, 0.1 * share.max(0.5));
    }
    assert!(effective_count(&[1.0, 2.0], 0.0) <= 2.0);
}

/// The interval must contain the true mean of at least 93 % of short dependent series. An interval
/// from a plain standard error contains it in about half of them.
#[test]
fn the_mean_of_a_dependent_series_is_uncertain_enough() {
    let mut random = StdRng::seed_from_u64(8);
    let (mut held, mut plain, mut judged) = (0, 0, 0);
    let zero = Estimate { mean: 0.0, variance: 0.0, freedom: 1e9 };
    for _ in 0..400 {
        let series = autoregressive(&mut random, 60, 0.7);
        let covers = |estimate| {
            let actual = difference(zero, estimate);
            usize::from(actual.interval.low <= 0.0 && 0.0 <= actual.interval.high)
        };
        plain += covers(Estimate::of(&series).unwrap());
        if let Some(actual) = estimate(&series) {
            judged += 1;
            held += covers(actual);
        }
    }
    assert!(judged > 200, "{judged}");
    assert!(held * 100 >= judged * 93, "{held} of {judged}");
    assert!(plain < 300, "{plain}");
    assert!(estimate(&[1.0; 19]).is_none());
}

#[test]
fn batches_are_of_the_newest_values() {
    assert_eq!(batch_means(&[100.0, 1.0, 3.0, 5.0, 7.0], 2), [2.0, 6.0]);
    assert!(batch_means(&[1.0], 2).is_empty());
    assert!(batch_means(&[1.0], 0).is_empty());
}

#[test]
fn the_bootstrap_of_many_values_agrees_with_the_normal_interval() {
    let mut random = StdRng::seed_from_u64(7);
    let values: Vec<f64> = (0..200).map(|_| normal(&mut random)).collect();
    let mean = super::mean(&values).unwrap();
    let error = (super::variance(&values).unwrap() / 200.0).sqrt();
    let interval = bootstrap_mean(&values, &mut || random.random()).unwrap();
    near(interval.low, mean - 1.96 * error, 0.2 * error);
    near(interval.high, mean + 1.96 * error, 0.2 * error);
    let equal = bootstrap_mean(&[3.0; 5], &mut || random.random()).unwrap();
    assert_eq!((equal.low, equal.high), (3.0, 3.0));
    assert_eq!(bootstrap_mean(&[1.0], &mut || 0), None);
}
