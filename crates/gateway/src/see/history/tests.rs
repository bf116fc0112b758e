//! Goal: lines hold rates per second and means per interval, and the memory is bounded.

use std::sync::Arc;
use std::time::Duration;

use super::{History, SAMPLES_MAX};
use crate::front::answer::Mark;
use crate::see::counters::Counters;
use crate::see::tally::Tally;

#[test]
fn lines_are_differences_between_samples() {
    let counters = [Arc::new(Counters::of_sizes(&[1], 1))];
    let mut history = History::default();
    history.sample(Duration::ZERO, 1, &Tally::of(&counters));
    assert!(history.calls_per_second().is_empty(), "one sample is no interval");
    for mark in [Mark::Hit, Mark::Hit, Mark::Join, Mark::Miss] {
        counters[0].methods[0][0].answered(mark, Duration::from_millis(1));
    }
    counters[0].attempt(0, Duration::from_millis(4), false);
    counters[0].attempt(0, Duration::from_millis(8), true);
    history.sample(Duration::from_secs(2), 1, &Tally::of(&counters));
    history.sample(Duration::from_secs(3), 1, &Tally::of(&counters));
    assert_eq!(history.calls_per_second(), [Some(2.0), Some(0.0)]);
    assert_eq!(history.spared_per_second(), [Some(1.5), Some(0.0)]);
    assert_eq!(history.node_latency_ms(0), [Some(6.0), None]);
    assert_eq!(history.node_latency_ms(1), [None, None], "a node that does not exist");
}

#[test]
fn old_samples_are_dropped() {
    let counters = [Arc::new(Counters::of_sizes(&[1], 1))];
    let mut history = History::default();
    for second in 0..1000 {
        history.sample(Duration::from_secs(second), 1, &Tally::of(&counters));
    }
    assert_eq!(history.calls_per_second().len(), SAMPLES_MAX - 1);
}
