//! Goal: each distribution has the shape that its name says. Method: ten thousand seeded draws, in
//! rising order.

use super::{Latency, NodeRng};

/// Returns ten thousand draws in milliseconds, in rising order.
fn sorted(latency: Latency) -> Vec<f64> {
    let mut rng = NodeRng::new(7);
    let mut times: Vec<_> =
        (0..10_000).map(|_| rng.draw_latency(latency).as_secs_f64() * 1_000.0).collect();
    times.sort_by(f64::total_cmp);
    times
}

fn near(value: f64, aim: f64) {
    assert!((value / aim - 1.0).abs() < 0.08, "{value} is not near {aim}");
}

#[test]
fn draws_have_the_requested_distribution() {
    let uniform = sorted(Latency::Uniform { low_ms: 10.0, high_ms: 20.0 });
    assert!(uniform[0] >= 10.0 && uniform[9_999] <= 20.0);
    near(uniform[5_000], 15.0);
    let exponential = sorted(Latency::Exponential { mean_ms: 10.0 });
    near(exponential.iter().sum::<f64>() / 10_000.0, 10.0);
    // The median of an exponential distribution is the mean times ln 2.
    near(exponential[5_000], 10.0 * std::f64::consts::LN_2);
    let lognormal = sorted(Latency::Lognormal { median_ms: 10.0, sigma: 1.0 });
    near(lognormal[5_000], 10.0);
    // 84.13 % of a normal distribution are below one standard deviation above the mean.
    near(lognormal[8_413], 10.0 * std::f64::consts::E);
    assert_eq!(sorted(Latency::Constant { ms: 3.0 })[0], 3.0);
}

#[test]
fn equal_seeds_draw_equally() {
    assert_eq!(
        sorted(Latency::Exponential { mean_ms: 1.0 }),
        sorted(Latency::Exponential { mean_ms: 1.0 })
    );
    assert!((0..1_000).filter(|_| NodeRng::new(1).chance(0.0)).count() == 0);
}
