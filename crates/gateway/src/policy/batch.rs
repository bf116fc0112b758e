//! How many calls an upstream takes in one batch.
//!
//! The configuration names the most. An upstream or provider may take fewer, and says so by
//! refusing a batch as a whole, each in words of its own; so a refusal halves the bound, and time
//! lifts it again.

use std::time::Duration;

#[cfg(test)]
mod tests;

/// How long after a refusal the bound is doubled. A provider's limits seldom change; a refusal
/// costs each of its calls a second request.
pub const LIFTED_AFTER: Duration = Duration::from_secs(600);

/// What one upstream has been found to take.
#[derive(Debug)]
pub struct Bound {
    most: usize,
    bound: usize,
    /// When it was last lowered or lifted; none while it is the most.
    changed: Option<Duration>,
}

impl Bound {
    /// Nothing is known: as many as are configured.
    pub fn new(most: usize) -> Bound {
        Bound { most, bound: most, changed: None }
    }

    /// How many calls may be in a batch now; with one there is none.
    pub fn get(&mut self, now: Duration) -> usize {
        if self.changed.is_some_and(|changed| now.saturating_sub(changed) >= LIFTED_AFTER) {
            self.bound = self.bound.saturating_mul(2).min(self.most);
            self.changed = (self.bound < self.most).then_some(now);
        }
        self.bound
    }

    /// A batch of so many calls was refused as a whole. One that was sent before the bound was
    /// lowered says nothing new.
    pub fn refused(&mut self, now: Duration, calls: usize) {
        if calls <= self.bound {
            self.bound = (calls / 2).max(1);
            self.changed = Some(now);
        }
    }
}
