//! Goal: the batch size limit follows rejections and time. Method: steps in virtual time.

use std::time::Duration;

use crate::policy::batch::{BatchLimit, LIFTED_AFTER};

const START: Duration = Duration::from_secs(7);

#[test]
fn a_rejection_halves_the_limit() {
    let mut limit = BatchLimit::new(100);
    assert_eq!(limit.get(START), 100);
    limit.record_rejection(START, 60, None);
    assert_eq!(limit.get(START), 30);
    limit.record_rejection(START, 30, None);
    assert_eq!(limit.get(START), 15);
}

#[test]
fn a_stated_limit_counts_at_once() {
    let mut limit = BatchLimit::new(100);
    limit.record_rejection(START, 100, Some(3));
    assert_eq!(limit.get(START), 3);
    let mut limit = BatchLimit::new(100);
    limit.record_rejection(START, 50, Some(32_600));
    assert_eq!(limit.get(START), 25, "the number is no limit of this batch");
}

#[test]
fn several_rejections_of_one_batch_size_halve_the_limit_once() {
    let mut limit = BatchLimit::new(64);
    for _ in 0..5 {
        limit.record_rejection(START, 64, None);
    }
    assert_eq!(limit.get(START), 32);
}

#[test]
fn the_limit_never_falls_below_one_call() {
    let mut limit = BatchLimit::new(3);
    limit.record_rejection(START, 3, None);
    assert_eq!(limit.get(START), 1);
    limit.record_rejection(START, 1, None);
    assert_eq!(limit.get(START), 1);
}

#[test]
fn the_limit_doubles_over_time_up_to_the_configured_maximum() {
    let mut limit = BatchLimit::new(10);
    limit.record_rejection(START, 10, None);
    limit.record_rejection(START, 5, None);
    assert_eq!(limit.get(START + LIFTED_AFTER / 2), 2);
    let mut now = START;
    let steps = [4, 8, 10, 10];
    for step in steps {
        now += LIFTED_AFTER;
        assert_eq!(limit.get(now), step);
        assert_eq!(limit.get(now), step, "once each");
    }
}
