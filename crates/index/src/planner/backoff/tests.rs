//! Goal: pauses grow with failures in a row, and a node that fails half of its calls is hardly
//! paused. Method: virtual time.

use super::*;

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

#[test]
fn pauses_begin_at_the_second_failure_and_double() {
    let mut backoff = Backoff::default();
    let mut now = ms(1_000);
    let mut pauses = Vec::new();
    for _ in 0..14 {
        backoff.record_failure(now, now, None);
        let pause = backoff.remaining(now).unwrap_or_default();
        pauses.push(pause.as_millis());
        now += pause;
        assert_eq!(backoff.remaining(now), None, "the pause has passed");
    }
    let expected = [0, 5, 10, 20, 40, 80, 160, 320, 640, 1_280, 2_560, 5_000, 5_000, 5_000];
    assert_eq!(pauses, expected);
    backoff.record_success();
    assert_eq!(backoff, Backoff::default());
}

#[test]
fn calls_in_flight_fail_once() {
    let mut backoff = Backoff::default();
    // Sixteen calls start together and fail one after the other.
    for delay in 0..16 {
        backoff.record_failure(ms(0), ms(50 + delay), None);
    }
    assert_eq!(backoff.remaining(ms(70)), None, "one failure is no pause");
    assert!(backoff.record_failure(ms(70), ms(80), None), "the first pause is reported");
    assert_eq!(backoff.remaining(ms(80)), Some(ms(5)));
    assert!(!backoff.record_failure(ms(90), ms(95), None), "the second pause is not reported");
    assert_eq!(backoff.remaining(ms(95)), Some(ms(10)));
}

#[test]
fn a_requested_pause_is_granted_within_limits() {
    let mut backoff = Backoff::default();
    assert!(backoff.record_failure(ms(0), ms(10), Some(ms(700))));
    assert_eq!(backoff.remaining(ms(10)), Some(ms(700)));
    // Two more calls that started at the same time fail. One response requests a longer pause, and
    // the other requests no pause.
    backoff.record_failure(ms(0), ms(20), Some(ms(900)));
    backoff.record_failure(ms(0), ms(30), None);
    assert_eq!(backoff.remaining(ms(30)), Some(ms(890)));
    backoff.record_failure(ms(2_000), ms(2_000), Some(Duration::from_secs(3_600)));
    assert_eq!(backoff.remaining(ms(2_000)), Some(PAUSE_MAX));
}

#[test]
fn a_half_failing_node_costs_few_pauses() {
    // A random number generator with a fixed seed makes half of the calls fail. Each call takes a
    // millisecond.
    let mut state = 7_u64;
    let mut fails = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 63 == 1
    };
    let (mut backoff, mut now, mut successes) = (Backoff::default(), ms(0), 0);
    while successes < 1_000 {
        now += backoff.remaining(now).unwrap_or_default();
        let started = now;
        now += ms(1);
        match fails() {
            true => _ = backoff.record_failure(started, now, None),
            false => {
                backoff.record_success();
                successes += 1;
            }
        }
    }
    assert!(now < Duration::from_secs(40), "{now:?} for 1,000 responses");
}
