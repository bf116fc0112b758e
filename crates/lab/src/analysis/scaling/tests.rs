//! Goal: the fit finds a known law, and finds no law in other points. Method: points of known laws.

use super::{fit, throughput_at};

fn near(actual: f64, expected: f64, share: f64) {
    assert!((actual - expected).abs() <= share * expected.abs().max(1e-9), "{actual} {expected}");
}

#[test]
fn a_known_law_is_found_again() {
    let law = [955.0, 0.02, 0.0001];
    let points: Vec<(f64, f64)> = [1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 200.0]
        .map(|n| (n, throughput_at(law, n)))
        .to_vec();
    let actual = fit(&points).unwrap();
    near(actual.lambda, 955.0, 1e-6);
    near(actual.sigma, 0.02, 1e-6);
    near(actual.kappa, 0.0001, 1e-6);
    near(actual.peak_in_flight.unwrap(), (0.98_f64 / 0.0001).sqrt(), 1e-6);
    near(actual.r_squared, 1.0, 1e-9);
}

#[test]
fn noise_changes_the_fit_little() {
    let law = [100.0, 0.05, 0.001];
    let noise = [1.02, 0.98, 1.01, 0.99, 1.02, 0.97, 1.01, 1.0];
    let levels = [1.0, 2.0, 4.0, 8.0, 16.0, 24.0, 32.0, 64.0];
    let points: Vec<(f64, f64)> =
        levels.iter().zip(noise).map(|(n, noise)| (*n, throughput_at(law, *n) * noise)).collect();
    let actual = fit(&points).unwrap();
    near(actual.lambda, 100.0, 0.05);
    near(actual.peak_rate.unwrap(), throughput_at(law, (0.95_f64 / 0.001).sqrt()), 0.05);
    assert!(actual.r_squared > 0.98);
}

/// The throughput of a server with ten slots grows linearly and then stays constant. The law has no
/// peak, and κ must not be negative.
#[test]
fn a_constant_maximum_gives_no_negative_parameter() {
    let points: Vec<(f64, f64)> = [1.0, 2.0, 4.0, 8.0, 10.0, 20.0, 40.0, 80.0]
        .map(|n: f64| (n, 100.0 * n.min(10.0)))
        .to_vec();
    let actual = fit(&points).unwrap();
    assert!(actual.kappa >= 0.0 && actual.sigma >= 0.0, "{actual:?}");
}

#[test]
fn too_few_points_give_no_fit() {
    let same: Vec<(f64, f64)> = (0..10).map(|_| (5.0, 100.0)).collect();
    assert_eq!(fit(&same), None);
    assert_eq!(fit(&[(1.0, 1.0), (2.0, 2.0)]), None);
    assert_eq!(fit(&[]), None);
    let zeros: Vec<(f64, f64)> = (0..10).map(|n| (f64::from(n), 0.0)).collect();
    assert_eq!(fit(&zeros), None);
}
