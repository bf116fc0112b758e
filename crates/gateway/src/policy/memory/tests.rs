//! Goal: no purpose takes the whole budget, and the slowest connections are closed, no more than
//! needed.

use super::*;

/// The budget in bytes. Arrays hold the bytes of requests, of responses from upstreams, and of
/// responses to clients.
const MAX: usize = 800;

#[test]
fn each_purpose_has_its_share() {
    assert!(is_within(&[400, 200, 200], Purpose::Request, MAX));
    assert!(!is_within(&[401, 0, 0], Purpose::Request, MAX));
    assert!(!is_within(&[0, 201, 0], Purpose::Upstream, MAX));
    assert!(is_within(&[0, 0, 800], Purpose::Response, MAX));
    assert!(!is_within(&[400, 200, 201], Purpose::Response, MAX));
}

#[test]
fn a_part_is_reserved_for_memory_that_is_not_counted() {
    assert_eq!(counted_max(16 << 20), 12 << 20);
    assert_eq!(counted_max(768 << 20), 736 << 20);
}

#[test]
fn freeing_begins_before_the_budget_is_used_up() {
    assert_eq!(bytes_to_free(&[0, 0, 700], MAX), 0);
    assert_eq!(bytes_to_free(&[0, 0, 701], MAX), 101);
    assert_eq!(bytes_to_free(&[350, 0, 0], MAX), 0);
    assert_eq!(bytes_to_free(&[351, 0, 0], MAX), 51);
    assert_eq!(bytes_to_free(&[0, 0, 0], 0), 0);
}

#[test]
fn the_oldest_are_closed_until_enough_is_freed() {
    let slow = |index, ms, bytes| SlowConnection { index, age: Duration::from_millis(ms), bytes };
    let all = || vec![slow(0, 200, 10), slow(1, 900, 10), slow(2, 50, 99), slow(3, 500, 10)];
    let age_min = Duration::from_millis(100);
    assert_eq!(select_connections_to_close(all(), 1, age_min), [1]);
    assert_eq!(select_connections_to_close(all(), 11, age_min), [1, 3]);
    assert_eq!(
        select_connections_to_close(all(), 1000, age_min),
        [1, 3, 0],
        "the youngest is left alone"
    );
    assert_eq!(select_connections_to_close(all(), 0, age_min), [0; 0]);
    assert_eq!(
        select_connections_to_close(vec![slow(0, 900, 0), slow(1, 200, 5)], 1, age_min),
        [1]
    );
}
