//! Goal: hedges (second attempts at another upstream) start after the quantile, only for calls that
//! may be repeated, and within the budget. Method: known latency distributions in virtual time.
//! Calls have the weight 1, and 64 if they are heavy.

use super::*;
use proptest::prelude::*;

const SETTINGS: HedgeSettings =
    HedgeSettings { quantile: 0.95, delay_min: Duration::from_millis(10), share_max: 0.05 };

/// Returns a [`Hedge`] that has recorded these latencies in milliseconds, one per millisecond.
fn hedge_with(latencies: impl IntoIterator<Item = u64>) -> Hedge {
    let mut hedge = Hedge::new(Some(SETTINGS));
    for (call, millis) in (0_u32..).zip(latencies) {
        let now = Duration::from_millis(1) * call;
        hedge.observe(now, 1, Duration::from_millis(millis));
    }
    hedge
}

#[test]
fn the_delay_is_the_quantile_of_the_class() {
    let mut hedge = hedge_with((0..1000).map(|call| 20 + call % 100));
    let delay = hedge.record_call(Repeat::Safe, 1, true).unwrap().as_millis();
    assert!((114..=130).contains(&delay), "{delay}");
    assert_eq!(hedge.record_call(Repeat::Safe, 64, true), None, "no latencies of heavy methods");
}

#[test]
fn the_delay_is_never_shorter_than_the_minimum() {
    let mut hedge = hedge_with((0..1000).map(|_| 1));
    assert_eq!(hedge.record_call(Repeat::Safe, 1, true), Some(SETTINGS.delay_min));
}

#[test]
fn a_hedge_needs_a_repeatable_call_another_upstream_and_enough_samples() {
    let mut hedge = hedge_with((0..1000).map(|_| 50));
    assert!(hedge.record_call(Repeat::Broadcast, 1, true).is_some());
    assert_eq!(hedge.record_call(Repeat::Never, 1, true), None);
    assert_eq!(hedge.record_call(Repeat::Safe, 1, false), None);
    assert!(hedge.record_call(Repeat::Safe, 1, true).is_some());
    let mut young = hedge_with((0..u64::from(SAMPLES_MIN) - 1).map(|_| 50));
    assert_eq!(young.record_call(Repeat::Safe, 1, true), None);
}

#[test]
fn hedges_are_a_share_of_calls() {
    let mut hedge = hedge_with((0..1000).map(|_| 50));
    let mut hedges = 0;
    for _ in 0..10_000 {
        hedge.record_call(Repeat::Safe, 1, true);
        hedges += u32::from(hedge.try_charge());
    }
    assert!((490..=500).contains(&hedges), "{hedges}");
    for _ in 0..100_000 {
        hedge.record_call(Repeat::Safe, 1, true);
    }
    let burst = (0..100).filter(|_| hedge.try_charge()).count();
    assert_eq!(burst as f64, SAVED_MAX);
}

#[test]
fn patience_is_a_multiple_of_the_99th_percentile_with_and_without_hedging() {
    let mut hedge = hedge_with((0..1000).map(|call| if call % 50 == 0 { 80 } else { 5 }));
    let patience = hedge.patience(1).as_millis();
    assert!((800..=900).contains(&patience), "{patience}");
    assert_eq!(hedge.patience(64), Duration::from_millis(500), "no latencies of heavy methods");
    let mut fast = hedge_with((0..1000).map(|_| 3));
    let estimated = [2, 8, 64].map(|weight| fast.patience(weight).as_millis());
    assert!(matches!(estimated, [200, 200..=299, 500]), "{estimated:?}");
    let mut off = Hedge::new(None);
    (0..100).for_each(|_| off.observe(Duration::ZERO, 1, Duration::from_millis(3)));
    assert_eq!(off.record_call(Repeat::Safe, 1, true), None);
    assert_eq!(off.patience(1), Duration::from_millis(200));
}

#[test]
fn old_latencies_fade() {
    let mut hedge = hedge_with((0..2000).map(|_| 1000));
    for call in 0..2000 {
        let now = Duration::from_secs(300) + Duration::from_millis(call);
        hedge.observe(now, 1, Duration::from_millis(20));
    }
    let delay = hedge.record_call(Repeat::Safe, 1, true).unwrap().as_millis();
    assert!((20..=23).contains(&delay), "{delay}");
}

proptest! {
    #[test]
    fn buckets_hold_their_values(micros in 64_u64..60_000_000) {
        let value = Duration::from_micros(micros);
        let top = upper_bound(bucket_index(value));
        prop_assert!(value <= top);
        prop_assert!(top.as_secs_f64() <= value.as_secs_f64() * 1.13 + 1e-6);
    }
}

#[test]
fn a_stall_does_not_delay_the_detection_of_the_next_stall() {
    let ms = Duration::from_millis;
    let mut hedge = hedge_with((0..1000).map(|_| 3));
    let patience_before = hedge.patience(1);
    // A tenth of the calls waited at a stalled upstream until another attempt was allowed.
    for call in 0..100 {
        hedge.observe(ms(1000), 1, cap_latency(ms(200 + call), ms(3), ms(10)));
    }
    assert_eq!(hedge.patience(1), patience_before);
    assert_eq!(
        cap_latency(ms(503), ms(3), Duration::ZERO),
        ms(3),
        "the wait of a call before latencies are known is no latency"
    );
    assert_eq!(
        cap_latency(ms(40), ms(40), ms(10)),
        ms(40),
        "a call that is only slow is told whole"
    );
}
