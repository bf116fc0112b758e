//! Decides how many blocks a sync asks for in one request.
//!
//! Nodes and providers limit batches and log ranges in different ways and with different error
//! messages. The sync therefore learns the limit: the number of blocks grows while requests
//! succeed. When a node rejects a request as too large, the number drops to the limit in the error
//! message. If the message states no limit below the number, the number is halved.

use std::time::Duration;

use wire::node_error::{self, MethodKind, NodeError, read_range_limits};

#[cfg(test)]
mod tests;

/// The number of blocks of the first request.
const INITIAL_BLOCKS: u64 = 1;
/// Target size of a response in bytes. The overhead of an exchange is small compared to this size,
/// and the memory suffices for many exchanges in flight.
const BYTES_TARGET: u64 = 4 << 20;
/// Target duration of an exchange, from the request to the end of the response.
const DURATION_TARGET: Duration = Duration::from_secs(2);
/// Number of successful exchanges after which the learned limit rises by a quarter.
const SUCCESSES_TO_GROW: u32 = 256;

/// The number of blocks that one request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchSize {
    /// The number of blocks of the next request.
    blocks: u64,
    /// The current maximum of `blocks`. Rejections lower this limit. Successes slowly raise it to
    /// `configured_max`.
    learned_limit: u64,
    /// The maximum that the user configured.
    configured_max: u64,
    /// Number of successes since the learned limit last rose or a request was rejected.
    successes: u32,
}

impl BatchSize {
    /// Creates a batch size that is small at first and never exceeds `configured_max`.
    pub fn new(configured_max: u64) -> BatchSize {
        let configured_max = configured_max.max(1);
        BatchSize {
            blocks: INITIAL_BLOCKS.min(configured_max),
            learned_limit: configured_max,
            configured_max,
            successes: 0,
        }
    }

    /// Returns the number of blocks to request.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Records a successful exchange, with the number of blocks and bytes of its response.
    pub fn record_success(&mut self, blocks: u64, bytes: u64, duration: Duration) {
        self.successes += 1;
        if self.successes >= SUCCESSES_TO_GROW && self.learned_limit < self.configured_max {
            self.successes = 0;
            self.learned_limit =
                (self.learned_limit + self.learned_limit.div_ceil(4)).min(self.configured_max);
        }
        // A request for fewer blocks than the current size, such as the last request of a range,
        // does not show if that size is right.
        if blocks < self.blocks {
            return;
        }
        // The blocks of this response used `used` bytes or microseconds. Returns the number of
        // blocks that would use `target` bytes or microseconds.
        let blocks_for = |target: u64, used: u64| blocks.saturating_mul(target) / used.max(1);
        let blocks_by_bytes = blocks_for(BYTES_TARGET, bytes);
        let blocks_by_duration =
            blocks_for(DURATION_TARGET.as_micros() as u64, duration.as_micros() as u64);
        let blocks_max = blocks_by_bytes.min(blocks_by_duration);
        // One response at most doubles the number.
        self.blocks = blocks_max.min(2 * self.blocks).clamp(1, self.learned_limit);
    }

    /// Records that a node rejected a request for this number of blocks. Stated limits that are not
    /// below this number are ignored.
    pub fn record_rejection(&mut self, blocks: u64, rejection: &SizeRejection) {
        self.successes = 0;
        let stated_limits = rejection.stated_limits.iter().copied();
        let stated_limit = stated_limits.filter(|limit| (1..blocks).contains(limit)).max();
        let limit = stated_limit.unwrap_or(blocks / 2).max(1);
        self.learned_limit = self.learned_limit.min(limit);
        self.blocks = self.blocks.min(self.learned_limit);
    }
}

/// A node's rejection of a request as too large.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SizeRejection {
    /// The numbers of the error message that may be the maximum number of blocks. A message may
    /// also state other numbers, such as that of the requested blocks.
    pub stated_limits: Vec<u64>,
}

/// Parses the error of a node. Returns `None` if the error does not reject a request as too large.
/// `status` is the HTTP status of the response.
pub fn parse_size_rejection(status: u16, code: i64, message: &str) -> Option<SizeRejection> {
    let method = MethodKind::Other;
    let error = NodeError { status, code, message, has_hex_data: false, method };
    node_error::classify(&error)
        .is_size()
        .then(|| SizeRejection { stated_limits: read_range_limits(message) })
}
