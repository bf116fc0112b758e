//! Goal: the queue retries pushes in order, with growing waits and bounded memory, and reports
//! pushes that it must not retry. Method: virtual time.

use super::*;

const NOW: Duration = Duration::from_secs(100);

/// Returns a queue of pushes. The body of each is one byte: its index.
fn queue(pushes: u64) -> Queue {
    let mut queue = Queue::default();
    for index in 0..pushes {
        queue.put(Push { body: vec![index as u8], samples: 10 });
    }
    queue
}

/// Returns the body of the push that is due.
fn first(queue: &Queue, now: Duration) -> Option<u8> {
    queue.next_due(now).map(|push| push.body[0])
}

#[test]
fn stored_pushes_go_out_in_order() {
    let mut queue = queue(3);
    for index in 0..3 {
        assert_eq!(first(&queue, NOW), Some(index));
        queue.record(NOW, Outcome::Stored, "", 0);
    }
    assert_eq!((first(&queue, NOW), queue.wait(NOW)), (None, None));
    assert_eq!(queue.end(), PushSummary { stored: 30, ..PushSummary::default() });
}

#[test]
fn failed_pushes_are_retried_before_the_rest() {
    for outcome in [Outcome::Unreachable, Outcome::Status(500, None), Outcome::Status(429, None)] {
        let mut queue = queue(2);
        queue.record(NOW, outcome, "", u32::MAX);
        assert_eq!(first(&queue, NOW), None, "{outcome:?}");
        assert_eq!(queue.wait(NOW), Some(BACKOFF_MIN));
        assert_eq!(first(&queue, NOW + BACKOFF_MIN), Some(0), "the same one, not the next");
        assert_eq!(queue.summary.retried, 1);
    }
}

#[test]
fn rejected_pushes_are_not_retried_but_reported() {
    for status in [400, 401, 404, 413, 422, 302] {
        let mut queue = queue(2);
        queue.record(NOW, Outcome::Status(status, Some(Duration::from_secs(9))), "", 0);
        assert_eq!(first(&queue, NOW), Some(1), "{status}");
        let summary = PushSummary {
            rejected: 10,
            rejected_status: Some(status),
            discarded: 10,
            ..PushSummary::default()
        };
        assert_eq!(queue.end(), summary);
    }
}

#[test]
fn waits_double_up_to_a_maximum_and_restart_after_success() {
    let mut queue = queue(2);
    let (mut now, mut waits) = (NOW, Vec::new());
    for _ in 0..40 {
        queue.record(now, Outcome::Unreachable, "", u32::MAX);
        let wait = queue.wait(now).unwrap();
        waits.push(wait.as_millis());
        now += wait;
    }
    assert_eq!(waits[..4], [30, 60, 120, 240]);
    assert_eq!(waits.last(), Some(&BACKOFF_MAX.as_millis()));
    queue.record(now, Outcome::Stored, "", 0);
    queue.record(now, Outcome::Unreachable, "", u32::MAX);
    assert_eq!(queue.wait(now), Some(BACKOFF_MIN));
}

#[test]
fn random_numbers_spread_the_waits_over_their_second_half() {
    let wait = |random| {
        let mut queue = queue(1);
        queue.record(NOW, Outcome::Unreachable, "", random);
        queue.wait(NOW).unwrap()
    };
    assert_eq!(wait(0), BACKOFF_MIN / 2);
    assert!(wait(u32::MAX / 2) > BACKOFF_MIN / 2 && wait(u32::MAX / 2) < BACKOFF_MIN);
}

#[test]
fn retry_after_is_honoured_up_to_a_maximum() {
    for (requested_seconds, waited) in
        [(0, BACKOFF_MIN), (7, Duration::from_secs(7)), (86_400, RETRY_AFTER_MAX)]
    {
        for status in [429, 503] {
            let mut queue = queue(1);
            let outcome = Outcome::Status(status, Some(Duration::from_secs(requested_seconds)));
            queue.record(NOW, outcome, "", u32::MAX);
            assert_eq!(queue.wait(NOW), Some(waited), "{status}");
        }
    }
}

#[test]
fn a_full_queue_discards_its_oldest_pushes() {
    let mut queue = Queue::default();
    let body = vec![0; QUEUED_BYTES_MAX / 4];
    for _ in 0..10 {
        queue.put(Push { body: body.clone(), samples: 1 });
    }
    assert!(queue.queued_bytes <= QUEUED_BYTES_MAX);
    assert_eq!((queue.pending.len(), queue.summary.discarded), (4, 6));
    // A single push that is too large is discarded, too.
    queue.put(Push { body: vec![0; QUEUED_BYTES_MAX + 1], samples: 1 });
    assert_eq!((queue.pending.len(), queue.queued_bytes, queue.summary.discarded), (0, 0, 11));
}

#[test]
fn the_last_error_is_one_short_line() {
    let mut queue = queue(1);
    queue.record(NOW, Outcome::Status(500, None), "\n", 0);
    assert_eq!(queue.summary.last_error, "");
    let long = "out of order\n".to_owned() + &"x".repeat(1_000);
    queue.record(NOW, Outcome::Status(500, None), &long, 0);
    assert_eq!(queue.summary.last_error, "out of order");
    queue.record(NOW, Outcome::Unreachable, &"y".repeat(1_000), 0);
    assert_eq!(queue.summary.last_error.len(), ERROR_CHARS_MAX);
    queue.record(NOW, Outcome::Stored, "", 0);
    assert_eq!(queue.summary.last_error.len(), ERROR_CHARS_MAX, "the last failure stays told");
}

#[test]
fn an_outcome_without_a_push_changes_nothing() {
    let mut queue = queue(0);
    queue.record(NOW, Outcome::Stored, "", 0);
    assert_eq!(queue.end(), PushSummary::default());
}
