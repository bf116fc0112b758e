//! Goal: the series is bounded, covers the whole run and keeps means. Method: long invented runs.

use super::*;

fn sample(at: f64, host: &str, values: &[(&str, f64)]) -> HostSample {
    let values = values.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
    HostSample { at, host: host.to_owned(), values }
}

#[test]
fn a_long_run_is_bounded_and_complete() {
    let mut store = HostSamples::new(64);
    for index in 0..10_000_u32 {
        let at = f64::from(index);
        store.push(&sample(at, "generator", &[("x", at), ("y", 1.0)]));
        store.push(&sample(at, "target", &[("x", -at)]));
        let samples = store.samples();
        if index % 97 == 0 {
            // Each of the two hosts has at most 64 points and an incomplete point.
            assert!(samples.len() <= 130, "{}", samples.len());
            assert_eq!(samples.last().unwrap().at, at, "the newest is in it");
        }
    }
    let generator_samples: Vec<_> =
        store.samples().into_iter().filter(|sample| sample.host == "generator").collect();
    assert!(generator_samples.len() >= 32, "{}", generator_samples.len());
    assert!(generator_samples.windows(2).all(|pair| pair[0].at < pair[1].at));
    for pair in generator_samples.windows(2) {
        // A sample is the mean of the samples after its left neighbour.
        let middle = (pair[0].at + 1.0 + pair[1].at) / 2.0;
        assert!((pair[1].values[0].1 - middle).abs() < 1e-6, "{pair:?}");
        assert_eq!(pair[1].values[1].1, 1.0);
    }
}

#[test]
fn a_value_of_one_sample_is_kept() {
    let mut names = Names::default();
    let first = names.point(&sample(1.0, "generator", &[("b", 4.0), ("a", 1.0)]));
    let second = names.point(&sample(2.0, "generator", &[("c", 3.0), ("b", 10.0)]));
    let merged = names.sample(&merge(&first, 2, &second, 1), "generator");
    let expected = sample(2.0, "generator", &[("a", 1.0), ("b", 6.0), ("c", 3.0)]);
    assert_eq!((merged.at, merged.values.len()), (expected.at, 3));
    for (found, expected_value) in merged.values.iter().zip(&expected.values) {
        assert_eq!(found.0, expected_value.0);
        assert!((found.1 - expected_value.1).abs() < 1e-5, "{found:?}");
    }
}

#[test]
fn names_above_the_limit_are_left_out() {
    let mut store = HostSamples::new(2);
    for index in 0..70_000_u32 {
        store.push(&sample(f64::from(index), "generator", &[(&format!("n{index}"), 1.0)]));
    }
    assert_eq!(store.names.list.len(), 65_536);
}
