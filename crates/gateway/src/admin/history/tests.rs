//! Goal: series hold rates per second and means per interval, and the number of samples is bounded.

use std::sync::Arc;
use std::time::Duration;

use super::{History, SAMPLES_MAX};
use crate::call::CacheStatus;
use crate::metrics::label::AttemptOutcome;
use crate::metrics::thread::Counters;
use crate::metrics::thread::tests::labels;

#[test]
fn series_hold_differences_between_samples() {
    let counters = [Arc::new(Counters::new(&labels(&["a"], &[("a", "one")])))];
    let mut history = History::default();
    history.take_sample(Duration::ZERO, 1, &Counters::sum(&counters));
    assert!(history.calls_per_second().is_empty(), "one sample is no interval");
    let hit = CacheStatus::Hit;
    for status in [hit, hit, CacheStatus::Coalesced, CacheStatus::Miss] {
        counters[0].methods[0][0].record_call(status, Duration::from_millis(1));
    }
    let upstream = &counters[0].upstreams[0];
    upstream.record_attempt(AttemptOutcome::Ok, Duration::from_millis(4));
    upstream.record_attempt(AttemptOutcome::Failed, Duration::from_millis(8));
    history.take_sample(Duration::from_secs(2), 1, &Counters::sum(&counters));
    history.take_sample(Duration::from_secs(3), 1, &Counters::sum(&counters));
    assert_eq!(history.calls_per_second(), [Some(2.0), Some(0.0)]);
    assert_eq!(history.spared_per_second(), [Some(1.5), Some(0.0)]);
    assert_eq!(history.upstream_latency_ms(0), [Some(6.0), None]);
    assert_eq!(history.upstream_latency_ms(1), [None, None], "an upstream that does not exist");
}

#[test]
fn old_samples_are_dropped() {
    let counters = [Arc::new(Counters::new(&labels(&["a"], &[("a", "one")])))];
    let mut history = History::default();
    for second in 0..1000 {
        history.take_sample(Duration::from_secs(second), 1, &Counters::sum(&counters));
    }
    assert_eq!(history.calls_per_second().len(), SAMPLES_MAX - 1);
}
