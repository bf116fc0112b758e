//! Decides how many blocks a sync requests in one message.
//!
//! Nodes and providers limit batches and log ranges, each in its own way and words. So the number
//! grows while messages succeed. When a node rejects a message as too large, the number is halved
//! or drops to the limit in the error message.

use std::time::Duration;

#[cfg(test)]
mod tests;

/// Target size of a message in bytes. It is large compared to the overhead of a message, and small
/// enough to have many messages in flight.
const BYTES_TARGET: u64 = 4 << 20;
/// Target duration of an exchange.
const DURATION_TARGET: Duration = Duration::from_secs(2);
/// Number of successive successful messages after which a size above the last limit is tried.
const SUCCESSES_TO_GROW: u32 = 256;

/// The number of blocks that one message requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchSize {
    blocks: u64,
    /// The current limit. Nodes rejected more blocks.
    limit: u64,
    /// The user's limit.
    allowed: u64,
    successes: u32,
}

impl BatchSize {
    /// Creates a batch size that is small at first and never exceeds `allowed`.
    pub fn new(allowed: u64) -> BatchSize {
        let allowed = allowed.max(1);
        BatchSize { blocks: 4.min(allowed), limit: allowed, allowed, successes: 0 }
    }

    /// Returns the number of blocks to request.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Records a message with this many blocks and bytes that took this long.
    pub fn succeeded(&mut self, blocks: u64, bytes: u64, took: Duration) {
        self.successes += 1;
        if self.successes >= SUCCESSES_TO_GROW && self.limit < self.allowed {
            self.successes = 0;
            self.limit = (self.limit + self.limit.div_ceil(4)).min(self.allowed);
        }
        // A smaller message, such as the last of a range, is no evidence about the current size.
        if blocks < self.blocks {
            return;
        }
        let scaled = |target: u64, used: u64| blocks.saturating_mul(target) / used.max(1);
        let fits = scaled(BYTES_TARGET, bytes)
            .min(scaled(DURATION_TARGET.as_micros() as u64, took.as_micros() as u64));
        self.blocks = fits.min(2 * self.blocks).clamp(1, self.limit);
    }

    /// Records that a node rejected this many blocks; `stated` is the limit in its message.
    pub fn too_large(&mut self, blocks: u64, stated: Option<u64>) {
        self.successes = 0;
        let half = (blocks / 2).max(1);
        let limit = stated.filter(|stated| *stated < blocks).map_or(half, |stated| stated.max(1));
        self.limit = self.limit.min(limit);
        self.blocks = self.blocks.min(self.limit);
    }
}

/// Checks if an error rejects a message as too large. Returns `None` for any other error. Otherwise
/// returns the limit in blocks, if the error message states one.
///
/// The words are those of geth (`rpc/errors.go`), erigon, Nethermind, and of providers: Infura,
/// Alchemy, QuickNode, Ankr, BlastAPI, PublicNode.
pub fn size_rejection(code: i64, message: &str) -> Option<Option<u64>> {
    let text = message.to_ascii_lowercase();
    let of_range = [
        "block range",
        "blocks range",
        "range limit",
        "range is too",
        "blocks distance",
        "limited to",
    ];
    let others = [
        "more than",
        "too large",
        "too many",
        "size exceeded",
        "exceeds the",
        "limit exceeded",
        "limit",
        "batch",
    ];
    let about_range = of_range.iter().any(|words| text.contains(words));
    // -32005 is "limit exceeded" (EIP-1474). Rate limits use it too, and say nothing about size.
    let about_rate = ["rate", "per second", "requests", "throttl", "capacity"]
        .iter()
        .any(|words| text.contains(words));
    if about_rate && !about_range {
        return None;
    }
    let about_size = others.iter().any(|words| text.contains(words));
    if !about_range && !about_size && code != -32005 {
        return None;
    }
    Some(about_range.then(|| stated_limit(&text)).flatten())
}

/// Returns the number of blocks that a message states: a range in brackets, or the only number in
/// it.
fn stated_limit(text: &str) -> Option<u64> {
    if let Some((_, rest)) = text.split_once("[0x") {
        let (from, rest) = rest.split_once(',')?;
        let to = rest.trim().strip_prefix("0x")?;
        let to: String = to.chars().take_while(char::is_ascii_hexdigit).collect();
        let from = u64::from_str_radix(from.trim(), 16).ok()?;
        return u64::from_str_radix(&to, 16).ok()?.checked_sub(from)?.checked_add(1);
    }
    let mut numbers =
        text.split(|c: char| !(c.is_ascii_alphanumeric() || c == ',')).filter_map(|word| {
            let word = word.replace(',', "");
            let (digits, factor) = match word.strip_suffix('k') {
                Some(digits) => (digits, 1000),
                None => (word.as_str(), 1),
            };
            digits.parse::<u64>().ok()?.checked_mul(factor)
        });
    let first = numbers.next()?;
    numbers.next().is_none().then_some(first)
}
