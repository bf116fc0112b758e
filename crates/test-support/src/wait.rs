//! Waits in real time, for other processes and their sockets.

use std::time::{Duration, Instant};

/// Timeout of a wait. It is longer than any awaited event takes on a busy machine.
pub const WAIT_TIMEOUT: Duration = Duration::from_secs(60);
/// Interval between two polls of a condition.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Waits until a condition is true.
///
/// # Panics
/// Panics if the condition is still false after a minute. `description` names the condition.
pub fn wait_until(description: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + WAIT_TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain: {description}");
        pause(POLL_INTERVAL); // Sleeps: between two polls.
    }
}

/// Sleeps on the test's own thread, which runs no event loop.
#[expect(clippy::disallowed_methods, reason = "no event loop runs on this thread")]
pub fn pause(time: Duration) {
    std::thread::sleep(time); // Sleeps: the callers have reasons.
}
