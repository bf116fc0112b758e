//! The longest range of blocks whose logs an upstream returns in one call.
//!
//! Nodes and providers limit this range, to 10 or to 10,000 blocks. The limit is learned from the
//! numbers in the upstream's refusals, and forgotten after a while, because providers change their
//! limits. A refusal without such a number may be about the filter of one call, so it says nothing
//! about other calls.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use wire::node_error;

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

    /// Records that the upstream refused a range of this number of blocks with this message. Returns
    /// true if the message states a limit for all calls.
    pub fn record_refusal(&self, now: Duration, blocks: u64, message: &str) -> bool {
        if node_error::suggests_range(message) {
            return false;
        }
        // A message may also state other numbers, such as that of the requested blocks.
        let stated = node_error::read_range_limits(message).into_iter();
        let Some(limit) = stated.filter(|limit| (1..blocks).contains(limit)).max() else {
            return false;
        };
        if self.get(now).is_none_or(|known| known > limit) {
            self.blocks_max.store(limit, Ordering::Relaxed);
            self.learned_ms.store(now.as_millis() as u64, Ordering::Relaxed);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a limit follows the refusals of an upstream that state one. Method: refusals in the words
    //! of nodes and providers, one after the other.

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_stated_limit_counts_at_once() {
        let limit = LogRangeLimit::default();
        assert!(limit.allows(SECOND, u64::MAX) && limit.get(SECOND).is_none());
        assert!(limit.record_refusal(SECOND, 5000, "exceed maximum block range: 1000"));
        assert_eq!(limit.get(SECOND), Some(1000));
        assert!(limit.allows(SECOND, 1000) && !limit.allows(SECOND, 1001));
        // A refusal of an earlier call arrives late.
        assert!(limit.record_refusal(SECOND, 20_000, "eth_getLogs is limited to a 10,000 range"));
        assert_eq!(limit.get(SECOND), Some(1000));
        assert!(limit.record_refusal(SECOND, 800, "up to a 10 block range"));
        assert_eq!(limit.get(SECOND), Some(10));
    }

    #[test]
    fn a_refusal_of_one_filter_limits_no_other_call() {
        let limit = LogRangeLimit::default();
        for message in [
            "block range is too wide",
            "Please specify an address in your request",
            "Log response size exceeded. This block range should work: [0x10, 0x14]",
            "query exceeds max results 20000, retry with the range 22382105-22382515",
        ] {
            assert!(!limit.record_refusal(SECOND, 5000, message), "{message}");
            assert_eq!(limit.get(SECOND), None, "{message}");
        }
    }

    #[test]
    fn a_limit_is_forgotten() {
        let limit = LogRangeLimit::default();
        limit.record_refusal(SECOND, 100, "exceed maximum block range: 10");
        assert!(limit.allows(SECOND + AGE_MAX, 100));
        limit.record_refusal(SECOND + AGE_MAX, 200, "exceed maximum block range: 50");
        assert_eq!(limit.get(SECOND + AGE_MAX), Some(50));
    }
}
