//! Goal: two calls are never sent at a shorter interval than that of the turns. Method: chosen
//! times, and a short real wait.

use super::*;

#[test]
fn a_missed_turn_is_skipped() {
    const INTERVAL_SECONDS: f64 = 1.0;
    for (next_number, elapsed_seconds, expected) in [
        (0, 0.000_1, 0),
        (0, 0.04, 0),
        (0, 0.06, 1),
        (1, 0.3, 1),
        (1, 1.0, 1),
        // The previous call took three seconds.
        (1, 3.2, 4),
        (5, 3.2, 5),
    ] {
        let usable = next_usable(next_number, elapsed_seconds, INTERVAL_SECONDS);
        assert_eq!(usable, expected, "{next_number} {elapsed_seconds}");
    }
    // After exactly one interval of 100 s, turn 1 is due.
    assert_eq!(next_usable(0, 100.0, 100.0), 1);
}

#[test]
fn turns_are_intervals_apart_and_count_skipped_turns() {
    // 50 turns per second: one every 20 ms.
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
