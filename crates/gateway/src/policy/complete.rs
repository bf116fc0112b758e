//! Whether a response may lack logs, receipts or a transaction that its blocks have, and what
//! follows.
//!
//! An upstream that announces a block before it has indexed it answers `[]`; a provider with
//! several upstreams behind one address clamps a range to the upstream that answers; a pruned
//! upstream leaves out what it has dropped. Such a response looks like any other. [`of_logs`],
//! [`of_receipts`] and [`of_transaction`] compare it with the headers (`contents`). [`Opinions`]
//! says whether another upstream is asked first, and [`keep`] whether the cache keeps it.

use std::collections::BTreeSet;
use std::time::Duration;

use wire::block::ResponseBlock;
use wire::block::response_blocks;
use wire::json::walk;
use wire::quantity;

use crate::policy::choose::hash64;
use crate::policy::contents::{Contents, Headers, Wanted};
use crate::policy::heads::{ChainView, Hash};

#[cfg(test)]
mod tests;

/// A block is young for this long after its header came: upstreams may still index it. Upstreams
/// that index late are some seconds late.
pub const YOUNG_FOR: Duration = Duration::from_secs(6);
/// A block without a known header is young within so many blocks of the head.
pub const YOUNG_BLOCKS: u64 = 16;
/// How long the cache keeps a response that no upstream contradicts but a header does. Short enough
/// that logs are served within a second of being indexed, long enough that a poll costs few calls.
pub const BRIEF: Duration = Duration::from_millis(300);
/// How long an upstream's shown depth is believed: its operator may let it prune more.
const DEPTH_AGE_MAX: Duration = Duration::from_secs(600);
/// By how many blocks the view may be behind the upstream whose depth is measured.
const DEPTH_MARGIN: u64 = 16;

/// What speaks against a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Doubt {
    /// Nothing: the headers show that it is whole.
    None,
    /// The bloom filter of an old block matches. It often does by chance.
    Bloom,
    /// Nothing shows that the upstream has history as old as this.
    Unproven,
    /// A young block may have more: its bloom filter matches, or its header is not known.
    Young,
    /// The header shows that something is missing.
    Missing,
}

/// How far the responding upstream and the clock allow to judge.
#[derive(Debug, Clone, Copy)]
pub struct Judging<'a> {
    /// The served chain.
    pub view: &'a ChainView,
    /// Its headers.
    pub headers: &'a Headers,
    /// How far below the head the upstream has shown logs.
    pub depth: u64,
    /// Now.
    pub now: Duration,
}

/// Which blocks a log filter spans.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Span {
    /// These, both included.
    Range {
        /// First block.
        from: u64,
        /// Last block.
        to: u64,
    },
    /// The block of this hash.
    Hash(Hash),
}

/// What was found out about a response of logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogsFound {
    /// What speaks against it.
    pub doubt: Doubt,
    /// How far below the head the upstream has shown logs with it.
    pub depth: Option<u64>,
    /// It has logs of a block whose bloom filter excludes them.
    pub blooms_unfilled: bool,
}

/// Judges the logs that an upstream gave for a filter.
pub fn of_logs(wanted: &Wanted, span: Span, response: &[u8], judging: Judging<'_>) -> LogsFound {
    let Judging { view, headers, .. } = judging;
    let named = response_blocks(ResponseBlock::ElementMembers, response);
    let excludes = |hash: &Hash| {
        let block = headers.get(hash);
        block.and_then(|block| headers.may_have(block, wanted)) == Some(false)
    };
    let mut found = LogsFound {
        doubt: Doubt::None,
        depth: None,
        blooms_unfilled: named
            .is_some_and(|(first, last)| excludes(&first.hash) || excludes(&last.hash)),
    };
    let Some(head) = view.head else { return found };
    found.depth = named.and_then(|(first, _)| head.number.checked_sub(first.number));
    match span {
        // The logs of one block are indexed together.
        Span::Hash(_) if named.is_some() => {}
        Span::Hash(hash) => {
            found.doubt = match headers.get(&hash) {
                Some(block) => judging.of_block(headers.may_have(block, wanted), block),
                None => Doubt::Young,
            }
        }
        Span::Range { from, to } => {
            let shown = named.map(|(first, last)| (first.number, last.number));
            found.doubt = of_range(wanted, from, to.min(head.number), response, shown, judging);
        }
    }
    found
}

/// Judges the logs of a range whose first and last shown block are given.
fn of_range(
    wanted: &Wanted,
    from: u64,
    to: u64,
    response: &[u8],
    shown: Option<(u64, u64)>,
    judging: Judging<'_>,
) -> Doubt {
    let Judging { view, headers, .. } = judging;
    let mut doubt = Doubt::None;
    let mut doubted = Vec::new();
    for number in (from..=to).rev() {
        let block = view.canonical(number).and_then(|hash| headers.get(&hash));
        let own = match block {
            Some(block) => match headers.may_have(block, wanted) {
                // Without bloom filters each block would be doubted for ever.
                None if shown.is_some_and(|(_, last)| number < last) => Doubt::None,
                may_have => judging.of_block(may_have, block),
            },
            None if view.head.is_some_and(|head| number + YOUNG_BLOCKS > head.number) => {
                Doubt::Young
            }
            // This block and all below it are older than the headers.
            None => {
                let starts_late = shown.is_none_or(|(first, _)| first > from);
                if starts_late && !judging.has_depth(from) {
                    doubt = Doubt::Unproven;
                }
                break;
            }
        };
        if own != Doubt::None {
            doubted.push((number, own));
        }
    }
    if doubted.is_empty() {
        return doubt;
    }
    let shown = blocks_of(response);
    let left = doubted.iter().filter(|(number, _)| !shown.contains(number));
    left.map(|(_, own)| *own).fold(doubt, Doubt::max)
}

impl Judging<'_> {
    /// Whether the upstream has shown logs as old as a block.
    fn has_depth(&self, number: u64) -> bool {
        let below = self.view.head.map_or(0, |head| head.number.saturating_sub(number));
        self.depth > 0 && below + DEPTH_MARGIN <= self.depth
    }

    /// Judges a block that a response shows nothing of, by whether it may have something.
    fn of_block(&self, may_have: Option<bool>, block: &Contents) -> Doubt {
        match may_have {
            Some(false) => Doubt::None,
            _ if self.now.saturating_sub(block.seen) < YOUNG_FOR => Doubt::Young,
            _ if self.has_depth(block.number) => Doubt::Bloom,
            _ => Doubt::Unproven,
        }
    }
}

/// The heights of all blocks that logs stand in.
fn blocks_of(logs: &[u8]) -> BTreeSet<u64> {
    let number = |log| walk::member(log, "blockNumber").and_then(quantity::from_value);
    walk::elements(logs).filter_map(number).collect()
}

/// Judges the receipts that an upstream gave for a block: by its hash, or by a height whose hash
/// the view has. A height that is older than that has no hash here.
pub fn of_receipts(
    hash: Option<Hash>,
    by_height: bool,
    response: &[u8],
    judging: Judging<'_>,
) -> Doubt {
    let known = hash.and_then(|hash| judging.headers.get(&hash));
    let count = walk::elements(response).count();
    match known.map(|block| (block.transactions(), block)) {
        Some((Some(0), _)) => Doubt::None,
        Some((Some(_), _)) if count == 0 => Doubt::Missing,
        Some((Some(due), block)) if count < due => judging.of_block(None, block),
        Some((Some(_), _)) => Doubt::None,
        // No such block, as far as the upstream knows.
        _ if count > 0 || response == b"null" => Doubt::None,
        Some((None, block)) => judging.of_block(None, block),
        // An old height, or a hash that may be newer than all that is known.
        None if by_height => Doubt::Unproven,
        None => Doubt::Young,
    }
}

/// Judges a `null` for a transaction, given its raw hash: whether the served chain has it.
pub fn of_transaction(hash: &[u8], judging: Judging<'_>) -> Doubt {
    let Judging { view, headers, .. } = judging;
    let mut blocks = headers.blocks_with(hash);
    let mined = blocks.any(|(hash, block)| view.canonical(block.number) == Some(*hash));
    if mined { Doubt::Missing } else { Doubt::None }
}

/// A doubted response, so that it can be compared with those of other upstreams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opinion {
    /// What speaks against it.
    pub doubt: Doubt,
    /// Logs or receipts in it.
    pub items: usize,
    /// Equal for equal logs, whatever their members and order of members.
    digest: u64,
}

impl Opinion {
    /// Describes a doubted response.
    pub fn new(doubt: Doubt, response: &[u8]) -> Opinion {
        let (mut items, mut digest) = (0, 0_u64);
        for item in walk::elements(response) {
            let [hash, log, receipt] =
                walk::fields_of(item, ["blockHash", "logIndex", "transactionIndex"]);
            for raw in [hash, log, receipt].into_iter().flatten() {
                digest = digest.rotate_left(5) ^ hash64(raw);
            }
            items += 1;
        }
        Opinion { doubt, items, digest }
    }
}

/// What several upstreams said to one call, each of it doubted.
#[derive(Debug, Clone, Copy, Default)]
pub struct Opinions {
    /// The one with the most items, and how many upstreams share it.
    best: Option<(Opinion, usize)>,
}

/// How much a response is trusted. Decides whether the cache keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Trust {
    /// Nothing speaks against it.
    #[default]
    Whole,
    /// A second upstream gave the same for an old block.
    Agreed,
    /// All upstreams that could be asked were, and none has more.
    Unopposed,
    /// Other upstreams were not asked, or it lacks something for certain.
    Doubted,
}

impl Opinions {
    /// Adds what an upstream said.
    pub fn add(&mut self, opinion: Opinion) {
        self.best = Some(match self.best {
            Some((best, count)) if best.items == opinion.items && best.digest == opinion.digest => {
                (Opinion { doubt: best.doubt.max(opinion.doubt), ..best }, count + 1)
            }
            Some(best) if best.0.items >= opinion.items => best,
            _ => (opinion, 1),
        });
    }

    /// Whether a doubted response had more items than this one.
    pub fn has_more_than(&self, response: &[u8]) -> bool {
        let most = self.best.map_or(0, |(best, _)| best.items);
        most > 0 && walk::elements(response).count() < most
    }

    /// Whether the response with the most items is believed without asking further upstreams.
    pub fn suffice(&self) -> bool {
        matches!(self.best, Some((Opinion { doubt: Doubt::Bloom, .. }, 2..)))
    }

    /// The trust in the response with the most items once no more upstreams are asked. `all_asked`
    /// is true if there was no other to ask.
    pub fn trust(&self, all_asked: bool) -> Trust {
        match self.best {
            None => Trust::Whole,
            Some((Opinion { doubt: Doubt::Missing, .. }, _)) => Trust::Doubted,
            Some((Opinion { doubt: Doubt::Bloom, .. }, 2..)) => Trust::Agreed,
            Some((Opinion { doubt: Doubt::Unproven, .. }, 2..)) if all_asked => Trust::Agreed,
            Some(_) if all_asked => Trust::Unopposed,
            Some(_) => Trust::Doubted,
        }
    }
}

/// Whether the cache keeps a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// As long as its block is on the chain.
    Fully,
    /// For [`BRIEF`], to be compared with later ones.
    Briefly {
        /// When the same was said first.
        since: Duration,
    },
    /// Not at all.
    No,
}

/// Whether the cache keeps a response, given since when it has held the same one briefly.
pub fn keep(trust: Trust, same_since: Option<Duration>, now: Duration) -> Keep {
    match trust {
        Trust::Whole | Trust::Agreed => Keep::Fully,
        Trust::Unopposed => match same_since {
            Some(since) if now.saturating_sub(since) >= YOUNG_FOR => Keep::Fully,
            since => Keep::Briefly { since: since.unwrap_or(now) },
        },
        Trust::Doubted => Keep::No,
    }
}

/// How far below the head an upstream has shown logs.
#[derive(Debug, Clone, Copy, Default)]
pub struct Depth {
    blocks: u64,
    until: Duration,
}

impl Depth {
    /// The upstream has shown logs so many blocks below the head.
    pub fn shown(&mut self, blocks: u64, now: Duration) {
        if blocks >= self.blocks || now >= self.until {
            *self = Depth { blocks, until: now + DEPTH_AGE_MAX };
        }
    }

    /// The depth that is still believed.
    pub fn get(&self, now: Duration) -> u64 {
        if now < self.until { self.blocks } else { 0 }
    }
}
