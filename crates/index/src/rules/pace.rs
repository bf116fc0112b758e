//! How many blocks are asked for in one message: as many as a node likes to give.
//!
//! Nodes and providers limit what a batch or a log range may have, each in its own way and words.
//! So the number grows while all goes well, is halved when a node says that it was too much, or set
//! to what the message names.

use std::time::Duration;

#[cfg(test)]
mod tests;

/// A message has about this many bytes at most: enough that its overhead does not count, and few
/// enough that many may be under way.
const BYTES_AIM: u64 = 4 << 20;
/// A message takes about this long at most.
const TIME_AIM: Duration = Duration::from_secs(2);
/// After so many messages in a row that went well, a bit more than what was once too much is tried.
const CALM: u32 = 256;

/// How many blocks are asked for at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    blocks: u64,
    /// More was too much, or may not be.
    most: u64,
    /// What the user allows.
    allowed: u64,
    calm: u32,
}

impl Pace {
    /// Begins with few; never more than `allowed`.
    pub fn new(allowed: u64) -> Pace {
        let allowed = allowed.max(1);
        Pace { blocks: 4.min(allowed), most: allowed, allowed, calm: 0 }
    }

    /// How many to ask for.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// So many were got, in so many bytes and so much time.
    pub fn went_well(&mut self, blocks: u64, bytes: u64, took: Duration) {
        self.calm += 1;
        if self.calm >= CALM && self.most < self.allowed {
            self.calm = 0;
            self.most = (self.most + self.most.div_ceil(4)).min(self.allowed);
        }
        // One that was smaller, the last of a range perhaps, tells nothing.
        if blocks < self.blocks {
            return;
        }
        let fills = |aim: u64, used: u64| blocks.saturating_mul(aim) / used.max(1);
        let fits = fills(BYTES_AIM, bytes)
            .min(fills(TIME_AIM.as_micros() as u64, took.as_micros() as u64));
        self.blocks = fits.min(2 * self.blocks).clamp(1, self.most);
    }

    /// So many were too much; `named` is what the node said it would allow.
    pub fn too_much(&mut self, blocks: u64, named: Option<u64>) {
        self.calm = 0;
        let half = (blocks / 2).max(1);
        let most = named.filter(|named| *named < blocks).map_or(half, |named| named.max(1));
        self.most = self.most.min(most);
        self.blocks = self.blocks.min(self.most);
    }
}

/// Whether a node's message says that too much was asked for at once, and if so, how many blocks it
/// names as the most.
///
/// The words are those of geth (`rpc/errors.go`), erigon, Nethermind, and of providers: Infura,
/// Alchemy, QuickNode, Ankr, BlastAPI, PublicNode.
pub fn told_too_much(code: i64, message: &str) -> Option<Option<u64>> {
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
    // -32005 is "limit exceeded" (EIP-1474), which rate limits use too; those are not about size.
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
    Some(about_range.then(|| named(&text)).flatten())
}

/// The number of blocks that a message names: a range in brackets, or the one number in it.
fn named(text: &str) -> Option<u64> {
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
