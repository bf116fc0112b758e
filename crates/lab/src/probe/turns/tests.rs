//! Goal: calls are never closer than the rate allows. Method: invented times, and a short real wait.

use super::*;

#[test]
fn a_turn_that_is_over_is_not_made_up_for() {
    for (next, elapsed, number) in [
        (0, 0.000_1, 0),
        (0, 0.04, 0),
        (0, 0.06, 1),
        (1, 0.3, 1),
        (1, 1.0, 1),
        // The previous call took three seconds.
        (1, 3.2, 4),
        (5, 3.2, 5),
    ] {
        assert_eq!(due(next, elapsed, 1.0), number, "{next} {elapsed}");
    }
    assert_eq!(due(0, 100.0, 100.0), 1);
}

#[test]
fn waits_are_the_interval_apart_and_count_what_passed() {
    let turns = Turns::new(Instant::now(), 50.0);
    let first = turns.wait();
    let second = turns.wait();
    assert!(Instant::now() >= second.at);
    assert_eq!((second.at - first.at).as_millis() % 20, 0);
    // Sleeps: three intervals pass.
    std::thread::park_timeout(Duration::from_millis(60));
    let third = turns.wait();
    assert!(third.skipped >= 2, "{third:?}");
    assert_eq!(third.number, second.number + 1 + third.skipped);
}
