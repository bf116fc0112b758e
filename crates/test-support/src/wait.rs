//! Letting real time pass: other processes and their sockets know no other.

use std::time::{Duration, Instant};

/// Longer than anything takes that is waited for, on a busy machine; what never comes fails by it.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks at what is waited for.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Waits until something holds.
///
/// # Panics
/// If it does not within a minute.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let give_up = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < give_up, "waited in vain: {what}");
        pause(LOOK_EVERY); // Sleeps: between two looks.
    }
}

/// Lets time pass on the test's own thread, which serves nobody.
#[expect(clippy::disallowed_methods, reason = "no event loop runs on this thread")]
pub fn pause(time: Duration) {
    std::thread::sleep(time); // Sleeps: its callers say why.
}
