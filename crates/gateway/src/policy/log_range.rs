//! The longest range of blocks whose logs an upstream returns in one call.
//!
//! Nodes and providers limit this range, to 10 or to 10,000 blocks. The limit is learned from the
//! upstream's refusals, and forgotten after a while, because providers change their limits.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Time for which a limit is remembered.
const AGE_MAX: Duration = Duration::from_secs(3600);

/// The limit of one upstream. All threads share it, and calls read it without a lock.
#[derive(Debug, Default)]
pub struct LogRangeLimit {
    /// Maximum number of blocks; 0 if no limit is known.
    blocks_max: AtomicU64,
    /// When the limit was learned, in milliseconds since the process started.
    learned_ms: AtomicU64,
}

impl LogRangeLimit {
    /// Returns the maximum number of blocks; `None` if no limit is known.
    pub fn get(&self, now: Duration) -> Option<u64> {
        let blocks_max = self.blocks_max.load(Ordering::Relaxed);
        let learned = Duration::from_millis(self.learned_ms.load(Ordering::Relaxed));
        (blocks_max > 0 && now < learned + AGE_MAX).then_some(blocks_max)
    }

    /// Returns true if the upstream may return the logs of this number of blocks.
    pub fn allows(&self, now: Duration, blocks: u64) -> bool {
        self.get(now).is_none_or(|blocks_max| blocks <= blocks_max)
    }

    /// Records that the upstream refused a range of this number of blocks. `stated` has the numbers
    /// of the error that may be the limit. Numbers that are not below `blocks` are ignored. Without
    /// a stated limit, half of the range is tried next.
    pub fn record_refusal(&self, now: Duration, blocks: u64, stated: &[u64]) {
        let stated = stated.iter().copied().filter(|limit| (1..blocks).contains(limit)).max();
        let limit = stated.unwrap_or(blocks / 2).max(1);
        if self.get(now).is_some_and(|known| known <= limit) {
            return;
        }
        self.blocks_max.store(limit, Ordering::Relaxed);
        self.learned_ms.store(now.as_millis() as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a limit follows the refusals of an upstream. Method: refusals with and without stated
    //! limits, one after the other.

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_stated_limit_counts_at_once() {
        let limit = LogRangeLimit::default();
        assert!(limit.allows(SECOND, u64::MAX) && limit.get(SECOND).is_none());
        limit.record_refusal(SECOND, 5000, &[5000, 1000, 0]);
        assert_eq!(limit.get(SECOND), Some(1000));
        assert!(limit.allows(SECOND, 1000) && !limit.allows(SECOND, 1001));
        // A refusal of an earlier call arrives late.
        limit.record_refusal(SECOND, 20_000, &[]);
        assert_eq!(limit.get(SECOND), Some(1000));
        limit.record_refusal(SECOND, 800, &[10]);
        assert_eq!(limit.get(SECOND), Some(10));
    }

    #[test]
    fn without_a_stated_limit_ranges_are_halved() {
        let limit = LogRangeLimit::default();
        for expected in [500, 250, 125] {
            limit.record_refusal(SECOND, expected * 2, &[]);
            assert_eq!(limit.get(SECOND), Some(expected));
        }
        limit.record_refusal(SECOND, 1, &[]);
        assert_eq!(limit.get(SECOND), Some(1));
    }

    #[test]
    fn a_limit_is_forgotten() {
        let limit = LogRangeLimit::default();
        limit.record_refusal(SECOND, 100, &[10]);
        assert!(limit.allows(SECOND + AGE_MAX, 100));
        limit.record_refusal(SECOND + AGE_MAX, 200, &[50]);
        assert_eq!(limit.get(SECOND + AGE_MAX), Some(50));
    }
}
