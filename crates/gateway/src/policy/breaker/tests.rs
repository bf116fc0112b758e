//! Goal: calls pass while the service responds, skip it while it does not, and return to it.
//! Method: each state change, in virtual time.

use super::*;

const BACKOFF: Duration = Duration::from_secs(1);

fn time(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Returns a breaker that a probe at time 0 has closed. Three consecutive failures open it.
fn closed() -> Breaker {
    let mut breaker = Breaker::new(3, BACKOFF);
    assert!(!breaker.is_closed(), "nothing is known at the start");
    assert!(breaker.begin_due_probe(time(0)));
    breaker.record_probe(true, time(0));
    breaker
}

#[test]
fn only_consecutive_failures_open_the_breaker() {
    let mut breaker = closed();
    assert!(!breaker.record_failure(time(1)) && !breaker.record_failure(time(2)));
    breaker.record_success();
    assert!(
        !breaker.record_failure(time(3)) && !breaker.record_failure(time(4)) && breaker.is_closed()
    );
    assert!(breaker.record_failure(time(5)), "the third in a row");
    assert!(!breaker.is_closed());
    // Outcomes of calls that were in flight when the breaker opened change nothing.
    assert!(!breaker.record_failure(time(6)));
    breaker.record_success();
    assert!(!breaker.is_closed());
}

#[test]
fn one_probe_at_a_time_decides_after_the_backoff() {
    let mut breaker = closed();
    (0..3).for_each(|_| {
        breaker.record_failure(time(10));
    });
    assert!(!breaker.begin_due_probe(time(1_009)));
    assert!(breaker.begin_due_probe(time(1_010)));
    assert!(!breaker.begin_due_probe(time(9_000)), "one is under way");
    breaker.record_probe(false, time(1_020));
    assert!(!breaker.is_closed() && !breaker.begin_due_probe(time(2_019)));
    assert!(breaker.begin_due_probe(time(2_020)));
    breaker.record_probe(true, time(2_021));
    assert!(breaker.is_closed());
}
