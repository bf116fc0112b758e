//! Goal: expensive readings are made less often. Method: readings with invented times.

use super::*;

#[test]
fn an_expensive_reading_waits_longer() {
    let start = Instant::now();
    let at = |ms: u64| start + Duration::from_millis(ms);
    let (interval_min, cpu_divisor) = (Duration::from_millis(250), 200);
    let mut pace = Pace::new(interval_min, cpu_divisor);
    assert!(pace.is_due(start), "at first it is");
    pace.record(start, at(1));
    assert!(!pace.is_due(at(249)));
    assert!(pace.is_due(at(250)), "200 ms of cost is less than the interval");
    pace.record(at(250), at(260));
    // A single expensive reading has no effect, because the shortest of four readings counts.
    assert!(pace.is_due(at(500)), "once it was not alone on its core");
    for _ in 0..4 {
        pace.record(at(250), at(260));
    }
    // Four readings of 10 ms each make the interval 200 times as long: 2 s.
    assert!(!pace.is_due(at(2_200)));
    assert!(pace.is_due(at(2_250)), "10 ms cost 2 s of waiting");
    for _ in 0..4 {
        pace.record(at(3_000), at(13_000));
    }
    assert!(pace.is_due(at(63_000)), "but never more than a minute");
}

#[test]
fn cost_is_a_share_of_time() {
    let start = Instant::now();
    let at = |ms: u64| start + Duration::from_millis(ms);
    let mut cost = Cost::default();
    cost.add(start, 7_000_000.0);
    assert_eq!(cost.share(), None);
    cost.add(at(250), 9_000_000.0);
    cost.add(at(500), 12_000_000.0);
    assert!((cost.share().unwrap() - 0.01).abs() < 1e-9);
}
