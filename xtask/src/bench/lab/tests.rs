//! Goal: the arithmetic of true stall figures and of memory growth. Method: cases that can be
//! counted by hand.

use super::*;

#[test]
fn true_stall_figures_match_a_count() {
    let truth = compute_true_figures(Duration::from_secs(1));
    // A request is scheduled every 10 ms for 20 s. The stall lasts for the first second, and
    // requests scheduled in this second wait for its end.
    let mut waits: Vec<f64> =
        (0..2_000).map(|request| (1_000.0 - 10.0 * f64::from(request)).max(0.0)).collect();
    waits.sort_by(f64::total_cmp);
    let counted = [
        waits[waits.len() * 99 / 100],
        waits[waits.len() - 1],
        waits.iter().filter(|wait| **wait > 100.0).count() as f64,
    ];
    for (truth, counted) in truth.into_iter().zip(counted) {
        assert!((truth / counted - 1.0).abs() < 0.02, "{truth} is not {counted}");
    }
}

#[test]
fn growth_after_the_first_minute_is_detected() {
    let flat = [vec![10.0; 30], vec![50.0; 200]].concat();
    assert_eq!(find_growth(&flat), (50.0, 50.0));
    let leak: Vec<f64> = (0..300).map(|second| 50.0 + f64::from(second)).collect();
    let (at_first, largest) = find_growth(&leak);
    assert!(largest / at_first > GROWTH_MAX);
    let (at_first, largest) = find_growth(&[50.0; 60]);
    assert!(at_first.is_nan() && largest.is_nan());
}
