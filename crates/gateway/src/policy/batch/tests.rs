//! Refusals and time, and how many calls a batch may have then.

use std::time::Duration;

use crate::policy::batch::{Bound, LIFTED_AFTER};

const START: Duration = Duration::from_secs(7);

#[test]
fn a_refusal_halves_the_bound() {
    let mut bound = Bound::new(100);
    assert_eq!(bound.get(START), 100);
    bound.refused(START, 60);
    assert_eq!(bound.get(START), 30);
    bound.refused(START, 30);
    assert_eq!(bound.get(START), 15);
}

#[test]
fn refusals_of_batches_sent_before_count_once() {
    let mut bound = Bound::new(64);
    for _ in 0..5 {
        bound.refused(START, 64);
    }
    assert_eq!(bound.get(START), 32);
}

#[test]
fn it_ends_at_single_calls_and_not_below() {
    let mut bound = Bound::new(3);
    bound.refused(START, 3);
    assert_eq!(bound.get(START), 1);
    bound.refused(START, 1);
    assert_eq!(bound.get(START), 1);
}

#[test]
fn time_lifts_it_step_by_step_to_what_is_configured() {
    let mut bound = Bound::new(10);
    bound.refused(START, 10);
    bound.refused(START, 5);
    assert_eq!(bound.get(START + LIFTED_AFTER / 2), 2);
    let mut now = START;
    let steps = [4, 8, 10, 10];
    for step in steps {
        now += LIFTED_AFTER;
        assert_eq!(bound.get(now), step);
        assert_eq!(bound.get(now), step, "once each");
    }
}
