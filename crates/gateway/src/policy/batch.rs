//! Limits the number of calls that an upstream gets in one batch.
//!
//! The configuration sets the maximum. An upstream or provider may allow fewer calls. It then
//! rejects a larger batch as a whole. The limit becomes the number that the error states, or half of
//! the batch. It doubles again after some time.

use std::time::Duration;

#[cfg(test)]
mod tests;

/// Time after which a lowered limit is doubled. The time is long for two reasons. A provider's
/// limits seldom change. And after each rejection, every call of the batch needs a second request.
pub const LIFTED_AFTER: Duration = Duration::from_secs(3600);

/// The batch size limit of one upstream.
#[derive(Debug)]
pub struct BatchLimit {
    /// The configured maximum number of calls in a batch.
    max: usize,
    /// Number of calls allowed in a batch now.
    limit: usize,
    /// Time of the last change; `None` while the limit is the maximum.
    changed_at: Option<Duration>,
}

impl BatchLimit {
    /// Starts at the configured maximum.
    pub fn new(max: usize) -> BatchLimit {
        BatchLimit { max, limit: max, changed_at: None }
    }

    /// Returns the number of calls allowed in a batch now; 1 means no batches.
    pub fn get(&mut self, now: Duration) -> usize {
        if self.changed_at.is_some_and(|changed_at| now.saturating_sub(changed_at) >= LIFTED_AFTER)
        {
            self.limit = self.limit.saturating_mul(2).min(self.max);
            self.changed_at = (self.limit < self.max).then_some(now);
        }
        self.limit
    }

    /// Records that the upstream rejected a whole batch of this size. `stated` is the limit that its
    /// error states; it is ignored unless it is below the size. A batch larger than the limit
    /// was sent before the limit was lowered, so its rejection is ignored.
    pub fn record_rejection(&mut self, now: Duration, calls: usize, stated: Option<usize>) {
        if calls <= self.limit {
            let stated = stated.filter(|stated| (1..calls).contains(stated));
            self.limit = stated.unwrap_or(calls / 2).max(1);
            self.changed_at = Some(now);
        }
    }
}
