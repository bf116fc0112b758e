//! Decides how many blocks a sync asks for in one request.
//!
//! Nodes and providers limit batches and log ranges in different ways and with different error
//! messages. The sync therefore learns the limit: the number of blocks grows while requests
//! succeed. When a node rejects a request as too large, the number drops to the limit in the error
//! message. If the message states no limit, the number is halved.

use std::time::Duration;

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

    /// Records that a node rejected a request for this number of blocks. A stated limit that is not
    /// below this number is ignored.
    pub fn record_rejection(&mut self, blocks: u64, rejection: SizeRejection) {
        self.successes = 0;
        let half = (blocks / 2).max(1);
        let stated_limit = rejection.stated_limit.filter(|limit| *limit < blocks);
        let limit = stated_limit.map_or(half, |limit| limit.max(1));
        self.learned_limit = self.learned_limit.min(limit);
        self.blocks = self.blocks.min(self.learned_limit);
    }
}

/// A node's rejection of a request as too large.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SizeRejection {
    /// The maximum number of blocks, if the error message states one.
    pub stated_limit: Option<u64>,
}

/// Parses the error of a node. Returns `None` if the error does not reject a request as too large.
/// For example, "block range is too wide" rejects the size of a request, and "request rate limited"
/// does not.
///
/// The phrases are from the error messages of geth (`rpc/errors.go`), erigon, Nethermind, and of
/// providers: Infura, Alchemy, QuickNode, Ankr, BlastAPI, PublicNode, dRPC.
pub fn parse_size_rejection(code: i64, message: &str) -> Option<SizeRejection> {
    let text = message.to_ascii_lowercase();
    let range_phrases = [
        "block range",
        "blocks range",
        "range limit",
        "range is too",
        "blocks distance",
        "limited to",
        "ranges over",
        "range must not exceed",
        "retry with the range",
    ];
    let size_phrases = [
        "more than",
        "too large",
        "too many",
        "size exceeded",
        "exceeds the",
        "limit exceeded",
        "limit",
        "batch",
        "too big",
        "exceeds max",
        "query timed out",
        "query timeout",
    ];
    let is_about_range = range_phrases.iter().any(|phrase| text.contains(phrase));
    // Smaller requests do not help against a rate limit.
    let is_about_rate = ["rate", "per second", "requests", "throttl", "capacity"]
        .iter()
        .any(|phrase| text.contains(phrase));
    let is_about_batch = text.contains("batch");
    if is_about_rate && !is_about_range && !is_about_batch {
        return None;
    }
    // -32005 is "limit exceeded" (EIP-1474).
    let is_about_size = size_phrases.iter().any(|phrase| text.contains(phrase));
    if !is_about_range && !is_about_size && code != -32005 {
        return None;
    }
    let stated_limit = is_about_range.then(|| find_stated_limit(&text)).flatten();
    Some(SizeRejection { stated_limit })
}

/// Returns the number of blocks that an error message states: the length of a range such as
/// `[0x10, 0x1f]` or `with the range 16-31`, or the only number of the message. Returns `None` if the message has no number
/// or several numbers, or if its range is malformed.
fn find_stated_limit(text: &str) -> Option<u64> {
    if let Some((_, rest)) = text.split_once("[0x") {
        let (from, rest) = rest.split_once(',')?;
        let to = rest.trim().strip_prefix("0x")?;
        let to: String = to.chars().take_while(char::is_ascii_hexdigit).collect();
        let from = u64::from_str_radix(from.trim(), 16).ok()?;
        return u64::from_str_radix(&to, 16).ok()?.checked_sub(from)?.checked_add(1);
    }
    if let Some((_, rest)) = text.split_once("with the range ") {
        let (from, rest) = rest.split_once('-')?;
        let to: String = rest.chars().take_while(char::is_ascii_digit).collect();
        return to.parse::<u64>().ok()?.checked_sub(from.parse().ok()?)?.checked_add(1);
    }
    let mut numbers = text
        .split(|character: char| !(character.is_ascii_alphanumeric() || character == ','))
        .filter_map(|word| {
            let word = word.replace(',', "");
            let (digits, factor) = match word.strip_suffix('k') {
                Some(digits) => (digits, 1000),
                None => (word.as_str(), 1),
            };
            digits.parse::<u64>().ok()?.checked_mul(factor)
        });
    let number = numbers.next()?;
    numbers.next().is_none().then_some(number)
}
