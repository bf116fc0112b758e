//! Decides whether a response may lack logs, receipts or a transaction that the chain has. A
//! response that may be incomplete is *doubted*.
//!
//! Some upstreams announce a block before they have indexed its logs, and return `[]`. A provider
//! with several nodes behind one address may cut a range off at the head of one node. A pruned node
//! omits the logs that it has deleted. Such an incomplete response looks like a complete one.
//!
//! [`check_logs`], [`check_receipts`] and [`check_transaction`] compare responses with the block
//! headers (`block_headers`). [`DoubtedResponses`] decides whether another upstream is called
//! before the client gets the response. [`decide_retention`] decides how long the response is
//! cached.

use std::collections::BTreeSet;
use std::time::Duration;

use wire::block::{ResponseBlock, read_response_blocks};
use wire::json::walk;
use wire::quantity;

use crate::policy::block_headers::{BlockHeader, BloomQuery, RecentHeaders};
use crate::policy::branch::Hash;
use crate::policy::choose::hash64;
use crate::policy::heads::ChainView;

#[cfg(test)]
mod tests;

/// A block is *young* for this time after its header arrived, because upstreams may still be
/// indexing it. Slow upstreams need some seconds.
pub const YOUNG_FOR: Duration = Duration::from_secs(6);
/// For this time after its header arrived, a block is young whose bloom filter matches although the
/// response has no logs of it. Some upstreams index a block only after a minute.
pub const CONTRADICTED_FOR: Duration = Duration::from_secs(60);
/// Longest time for which a response is cached that contradicts a bloom filter. For this time after
/// the header of a block arrived, the block's logs are cached for good only if they were returned
/// twice.
pub const DOUBTED_FOR: Duration = Duration::from_secs(600);
/// A block without a known header counts as young if it is fewer than this many blocks below the
/// head (the newest block).
pub const YOUNG_BLOCKS: u64 = 16;
/// Time for which a doubted response is cached at first if no upstream returned more items. It is
/// short, because clients should get logs within a second after they are indexed. It still saves most
/// calls of polling clients.
pub const BRIEF_RETENTION: Duration = Duration::from_millis(300);
/// Time for which an upstream's measured depth is valid. The *depth* is the greatest distance below
/// the head at which the upstream has returned logs. The real depth can fall, because the operator
/// may enable more pruning.
const DEPTH_AGE_MAX: Duration = Duration::from_secs(600);
/// Safety margin of a measured depth, in blocks. The chain view may lag behind the upstream by this
/// many blocks, so a block may lie deeper below the upstream's head than below the view's head.
const DEPTH_MARGIN: u64 = 16;

/// Reason to doubt a response, ordered from the weakest to the strongest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Doubt {
    /// There is no reason to doubt the response.
    None,
    /// A recent block of which the response has logs may have further logs. No other upstream is
    /// called, but the call is repeated before the response is cached for good.
    Unrepeated,
    /// The upstream does not have a block or transaction that the view does not know either. It may
    /// not exist.
    Unknown,
    /// The bloom filter of an old block matches, which often happens by chance.
    Bloom,
    /// The block is old and its header is unknown, and the upstream has not yet returned logs of
    /// such old blocks.
    UnknownHeader,
    /// The bloom filter of an old block matches, and the upstream has not yet returned logs of such
    /// old blocks. The upstream may be pruned.
    Unproven,
    /// A young block may have further logs: its bloom filter matches, or its header is unknown.
    Young,
    /// The header proves that something is missing.
    Missing,
}

/// The state against which a response is checked.
#[derive(Debug, Clone, Copy)]
pub struct Evidence<'a> {
    /// The served chain.
    pub view: &'a ChainView,
    /// Headers of the served chain.
    pub headers: &'a RecentHeaders,
    /// Greatest number of blocks below the head at which the upstream has returned logs; 0 if
    /// unknown.
    pub depth: u64,
    /// Current time.
    pub now: Duration,
}

/// Blocks that a log filter covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Span {
    /// A range, both ends included.
    Range {
        /// First block.
        from: u64,
        /// Last block.
        to: u64,
    },
    /// The block with this hash.
    Hash(Hash),
}

/// Result of checking a logs response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogsCheck {
    /// Reason to doubt the response.
    pub doubt: Doubt,
    /// Distance of the oldest log in this response from the head, in blocks; `None` if unknown.
    pub depth: Option<u64>,
    /// True if the response has logs of a block whose bloom filter excludes them. Such logs show
    /// that nodes of this chain do not fill the filters.
    pub has_unfilled_blooms: bool,
}

/// Checks the logs that an upstream returned for a filter.
pub fn check_logs(
    query: &BloomQuery,
    span: Span,
    response: &[u8],
    evidence: Evidence<'_>,
) -> LogsCheck {
    let Evidence { view, headers, .. } = evidence;
    // The blocks of the first and the last log; `None` if the response has no logs.
    let named_blocks = read_response_blocks(ResponseBlock::ElementMembers, response);
    let bloom_excludes_query = |hash: &Hash| {
        let block = headers.get(hash);
        block.and_then(|block| headers.may_have(block, query)) == Some(false)
    };
    let mut check = LogsCheck {
        doubt: Doubt::None,
        depth: None,
        has_unfilled_blooms: named_blocks.is_some_and(|(first, last)| {
            bloom_excludes_query(&first.hash) || bloom_excludes_query(&last.hash)
        }),
    };
    let Some(head) = view.head else { return check };
    check.depth = named_blocks.and_then(|(first, _)| head.number.checked_sub(first.number));
    match span {
        Span::Hash(hash) => {
            check.doubt = match headers.get(&hash) {
                Some(block) if named_blocks.is_some() => evidence.check_named_block(block),
                Some(block) => evidence.check_block(headers.may_have(block, query), block),
                None if named_blocks.is_some() => Doubt::None,
                None => Doubt::Young,
            }
        }
        Span::Range { from, to } => {
            let named_range = named_blocks.map(|(first, last)| (first.number, last.number));
            check.doubt =
                check_range(query, from, to.min(head.number), response, named_range, evidence);
        }
    }
    check
}

/// Checks the logs of a range. `named_range` holds the heights of the first and the last block that
/// the logs name.
fn check_range(
    query: &BloomQuery,
    from: u64,
    to: u64,
    response: &[u8],
    named_range: Option<(u64, u64)>,
    evidence: Evidence<'_>,
) -> Doubt {
    let Evidence { view, headers, .. } = evidence;
    let mut doubt = match named_range.and_then(|(_, last)| headers.get(&view.canonical(last)?)) {
        Some(block) => evidence.check_named_block(block),
        None => Doubt::None,
    };
    let mut doubted_blocks = Vec::new();
    // A height without a block has no logs.
    for number in (from..=to).rev().filter(|&number| !view.is_skipped(number)) {
        let block = view.canonical(number).and_then(|hash| headers.get(&hash));
        let block_doubt = match block {
            Some(block) => match headers.may_have(block, query) {
                // The block's bloom filter is unknown, but the response has logs of a later block,
                // so this block counts as complete. Without this rule every block without a bloom
                // filter would stay doubted.
                None if named_range.is_some_and(|(_, last)| number < last) => Doubt::None,
                may_have => evidence.check_block(may_have, block),
            },
            None if view.head.is_some_and(|head| number + YOUNG_BLOCKS > head.number) => {
                Doubt::Young
            }
            // No header of this block or a lower one is known, so the loop ends here. These blocks
            // are proven only if the response has logs of the block `from`, or if the upstream has
            // returned logs of such depth before.
            None => {
                let starts_late = named_range.is_none_or(|(first, _)| first > from);
                if starts_late && !evidence.has_depth(from) {
                    doubt = doubt.max(Doubt::UnknownHeader);
                }
                break;
            }
        };
        if block_doubt != Doubt::None {
            doubted_blocks.push((number, block_doubt));
        }
    }
    if doubted_blocks.is_empty() {
        return doubt;
    }
    let named_blocks = read_block_numbers(response);
    // A block with logs in the response needs no other upstream.
    let unnamed = doubted_blocks.iter().filter(|(number, _)| !named_blocks.contains(number));
    unnamed.map(|(_, block_doubt)| *block_doubt).fold(doubt, Doubt::max)
}

/// Returns true if an upstream of this depth has returned logs at least as old as the block at this
/// height.
pub fn is_depth_proven(depth: u64, view: &ChainView, number: u64) -> bool {
    let below = view.head.map_or(0, |head| head.number.saturating_sub(number));
    depth > 0 && below + DEPTH_MARGIN <= depth
}

impl Evidence<'_> {
    /// Returns true if the upstream has returned logs at least as old as the block at this height.
    fn has_depth(&self, number: u64) -> bool {
        is_depth_proven(self.depth, self.view, number)
    }

    /// Checks the newest block of which the response has logs.
    fn check_named_block(&self, block: &BlockHeader) -> Doubt {
        let is_recent = self.now.saturating_sub(block.received_at) < DOUBTED_FOR;
        if is_recent { Doubt::Unrepeated } else { Doubt::None }
    }

    /// Checks a block of which the response has no items. `may_have` tells whether the block may
    /// have matching items; `None` if that is unknown.
    fn check_block(&self, may_have: Option<bool>, block: &BlockHeader) -> Doubt {
        let young_for = if may_have == Some(true) { CONTRADICTED_FOR } else { YOUNG_FOR };
        match may_have {
            Some(false) => Doubt::None,
            _ if self.now.saturating_sub(block.received_at) < young_for => Doubt::Young,
            _ if self.has_depth(block.number) => Doubt::Bloom,
            _ => Doubt::Unproven,
        }
    }
}

/// Reads the heights of all blocks that the logs name.
fn read_block_numbers(logs: &[u8]) -> BTreeSet<u64> {
    let number = |log| walk::member(log, "blockNumber").and_then(quantity::from_value);
    walk::elements(logs).filter_map(number).collect()
}

/// Checks the receipts that an upstream returned for a block. `hash` is the hash of the block;
/// `None` if the call names an old height whose hash the view does not know. `by_height` is true if
/// the call names the block by its height, and false if by its hash.
pub fn check_receipts(
    hash: Option<Hash>,
    by_height: bool,
    response: &[u8],
    evidence: Evidence<'_>,
) -> Doubt {
    let block = hash.and_then(|hash| evidence.headers.get(&hash));
    let count = walk::elements(response).count();
    if let Some(block) = block
        && let Some(expected) = block.transaction_count()
    {
        return match count {
            _ if count >= expected => Doubt::None,
            0 => Doubt::Missing,
            _ => evidence.check_block(None, block),
        };
    }
    // Without a list of transactions, the expected number of receipts is unknown. `null` means that
    // the upstream does not know the block.
    if count > 0 || response == b"null" {
        return Doubt::None;
    }
    match block {
        Some(block) => evidence.check_block(None, block),
        // The header is unknown: a block named by height is old, and a block named by hash may be
        // newer than the view.
        None if by_height => Doubt::Unproven,
        None => Doubt::Young,
    }
}

/// Checks a `null` response for the transaction with this hash (a JSON string). The response is
/// wrong if the served chain has the transaction.
pub fn check_transaction(hash: &[u8], evidence: Evidence<'_>) -> Doubt {
    let Evidence { view, headers, .. } = evidence;
    let mut blocks = headers.blocks_with(hash);
    let is_on_served_chain =
        blocks.any(|(hash, block)| view.canonical(block.number) == Some(*hash));
    if is_on_served_chain { Doubt::Missing } else { Doubt::None }
}

/// Summary of a doubted response, for comparison with responses of other upstreams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DoubtedResponse {
    /// Reason to doubt it.
    pub doubt: Doubt,
    /// Number of logs or receipts.
    pub items: usize,
    /// Digest of the positions of the logs or receipts on the chain. Their other JSON members do
    /// not affect the digest, nor does the order of the members.
    digest: u64,
}

impl DoubtedResponse {
    /// Summarises a doubted response.
    pub fn new(doubt: Doubt, response: &[u8]) -> DoubtedResponse {
        let (mut items, mut digest) = (0, 0_u64);
        for item in walk::elements(response) {
            // The digest covers only the members that identify a log or receipt.
            let identity = walk::fields_of(item, ["blockHash", "logIndex", "transactionIndex"]);
            for raw in identity.into_iter().flatten() {
                digest = digest.rotate_left(5) ^ hash64(raw);
            }
            items += 1;
        }
        DoubtedResponse { doubt, items, digest }
    }
}

/// The doubted responses of several upstreams to one call.
#[derive(Debug, Clone, Copy, Default)]
pub struct DoubtedResponses {
    /// The response with the most items, and the number of upstreams that returned it.
    best: Option<(DoubtedResponse, usize)>,
}

/// Degree of trust in a response. It decides whether the response is cached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Trust {
    /// There is no doubt.
    #[default]
    Undoubted,
    /// All available upstreams were called about old blocks without a known header, and at least two
    /// returned the same response.
    Agreed,
    /// All necessary upstreams were called, and no upstream returned more items.
    NotContradicted,
    /// The response has logs of a recent block, and no upstream was called again.
    Unrepeated,
    /// Not all other upstreams were called, or something is certainly missing.
    PossiblyIncomplete,
}

impl DoubtedResponses {
    /// Adds the response of an upstream.
    pub fn add(&mut self, response: DoubtedResponse) {
        self.best = Some(match self.best {
            Some((best, count))
                if best.items == response.items && best.digest == response.digest =>
            {
                (DoubtedResponse { doubt: best.doubt.max(response.doubt), ..best }, count + 1)
            }
            Some((best, count)) if best.items >= response.items => (best, count),
            _ => (response, 1),
        });
    }

    /// Returns true if a doubted response had more items than `response`.
    pub fn has_more_than(&self, response: &[u8]) -> bool {
        let most = self.best.map_or(0, |(best, _)| best.items);
        most > 0 && walk::elements(response).count() < most
    }

    /// Returns true if the response with the most items probably lacks some.
    pub fn is_contradicted(&self) -> bool {
        self.best.is_some_and(|(best, _)| best.doubt >= Doubt::Young)
    }

    /// Returns true if no further upstream needs to confirm the response with the most items.
    pub fn is_sufficient(&self) -> bool {
        match self.best {
            Some((DoubtedResponse { doubt: Doubt::Bloom, .. }, count)) => count >= 2,
            // Two upstreams may lack the index of old transactions.
            Some((DoubtedResponse { doubt: Doubt::Unknown, .. }, count)) => count >= 3,
            _ => false,
        }
    }

    /// Returns the trust in the response with the most items, once no further upstream is called.
    /// `all_called` is true if no other upstream is left to call.
    pub fn trust(&self, all_called: bool) -> Trust {
        match self.best {
            None => Trust::Undoubted,
            Some((DoubtedResponse { doubt: Doubt::Unrepeated, .. }, _)) => Trust::Unrepeated,
            Some((DoubtedResponse { doubt: Doubt::Missing, .. }, _)) => Trust::PossiblyIncomplete,
            Some((DoubtedResponse { doubt: Doubt::Unknown, .. }, 2..)) => Trust::Agreed,
            Some((DoubtedResponse { doubt: Doubt::UnknownHeader, .. }, 2..)) if all_called => {
                Trust::Agreed
            }
            Some(_) if all_called || self.is_sufficient() => Trust::NotContradicted,
            Some(_) => Trust::PossiblyIncomplete,
        }
    }
}

/// Time for which a response is cached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retention {
    /// The response is cached as long as its block is on the chain.
    Full,
    /// The response is cached for a limited time. Later responses are compared with it.
    Limited {
        /// Time for which the response is cached.
        age_max: Duration,
        /// Time of the first equal response.
        since: Duration,
    },
    /// The response is not cached.
    None,
}

/// Decides how long a response is cached. `same_since` is the time of the first equal response;
/// `None` unless an equal response is still stored for comparison.
///
/// A response that contradicts a bloom filter never counts as complete. The time for which it is
/// cached doubles with each equal response, up to [`DOUBTED_FOR`]. A response with logs of a recent
/// block counts as complete once an equal response comes [`CONTRADICTED_FOR`] later.
pub fn decide_retention(trust: Trust, same_since: Option<Duration>, now: Duration) -> Retention {
    let since = same_since.unwrap_or(now);
    let same_for = now.saturating_sub(since);
    match trust {
        Trust::Undoubted | Trust::Agreed => Retention::Full,
        Trust::Unrepeated if same_for >= CONTRADICTED_FOR => Retention::Full,
        Trust::Unrepeated => Retention::Limited { age_max: same_for.max(BRIEF_RETENTION), since },
        Trust::NotContradicted => {
            let is_first = same_for < YOUNG_FOR;
            let age_max = if is_first { BRIEF_RETENTION } else { same_for.min(DOUBTED_FOR) };
            Retention::Limited { age_max, since }
        }
        Trust::PossiblyIncomplete => Retention::None,
    }
}

/// Greatest distance below the head at which an upstream has returned logs.
#[derive(Debug, Clone, Copy, Default)]
pub struct Depth {
    /// The distance in blocks.
    blocks: u64,
    /// Expiry of the measurement.
    until: Duration,
}

impl Depth {
    /// Records that the upstream returned logs this many blocks below the head.
    pub fn record(&mut self, blocks: u64, now: Duration) {
        if blocks >= self.blocks || now >= self.until {
            *self = Depth { blocks, until: now + DEPTH_AGE_MAX };
        }
    }

    /// Returns the measured depth, or 0 if the measurement is too old.
    pub fn get(&self, now: Duration) -> u64 {
        if now < self.until { self.blocks } else { 0 }
    }
}
