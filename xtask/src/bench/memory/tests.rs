//! Growth is found in samples that grow, and not in samples that level off.

use std::time::Duration;

use super::super::load::Summary;
use super::{find_growth, find_problems};

#[test]
fn a_leak_shows_and_a_filling_cache_does_not() {
    let leak: Vec<f64> = (0..100).map(|second| 50.0 + f64::from(second)).collect();
    let (start, end) = find_growth(&leak);
    assert!(end / start > 1.4, "{start} to {end}");
    let full: Vec<f64> = (0..100).map(|second| 20.0 + f64::from(second).min(40.0)).collect();
    assert_eq!(find_growth(&full), (60.0, 60.0));
    assert!(find_growth(&[]).0.is_nan());
}

#[test]
fn errors_too_few_samples_and_no_responses_are_problems() {
    let summary = |requests, error| Summary {
        requests,
        bytes: 1,
        duration: Duration::from_secs(1),
        errors: [0, 0, 0, 0, error],
    };
    assert!(find_problems(&summary(1, 0), 100).is_empty());
    assert_eq!(find_problems(&summary(1, 1), 100).len(), 1);
    assert_eq!(find_problems(&summary(1, 0), 3).len(), 1);
    assert_eq!(find_problems(&summary(0, 0), 100).len(), 1);
}
