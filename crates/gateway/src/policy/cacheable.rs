//! Whether an answer may be kept, what it is bound to, and whether a kept one is still true.
//!
//! Three questions in the order in which `path` asks them: [`decide`] before the cache is looked
//! at, [`usable`] on a hit, [`admit`] when an answer came. Facts about methods are in `wire`, the
//! state of the chain in `heads`; bytes, ages and memory are the cache's business.

use wire::block::ResponseBlock;
use wire::block::{BlockId, BlockRef, BlockTag};
use wire::method::{Method, Validity};

use crate::policy::heads::{ChainView, Hash};

#[cfg(test)]
mod tests;

/// What an answer to a call would be bound to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheRule {
    /// Not kept and not looked for.
    Never,
    /// The same for ever on this chain.
    Constant,
    /// A pure function of a block hash that the call names.
    AtHash,
    /// About the block at this height.
    AtNumber {
        /// The height, resolved if the call gave a tag.
        number: u64,
        /// Whether it was final when the call came.
        finalized: bool,
    },
    /// About a range of blocks, as a part of a log filter is: true as long as its last block is.
    AtRange {
        /// First block.
        from: u64,
        /// Last block.
        to: u64,
    },
    /// About the block that the answer names.
    AtTransaction,
    /// True until the head changes.
    AtHead,
    /// A log filter: see `logs`, which gives a rule for each part.
    Logs,
}

/// A decision about one call, made once and kept until it is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caching {
    /// What the answer would be bound to.
    pub rule: CacheRule,
    /// The height to put in place of the call's tag, in the key and in the parameters sent, so that
    /// all reads of "latest" are about exactly one block.
    pub resolved: Option<u64>,
    /// The head that an upstream must have reached to be asked.
    pub min_head: u64,
    /// Of an answer about a hash: how far below `min_head` its block must be to be complete.
    pub behind_head: u64,
    /// The answer is the height of the served head itself: answer from the view, ask no upstream.
    pub from_view: bool,
    /// The state of the chain at the start.
    pub stamp: Stamp,
}

/// The state of the chain when a call began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// [`ChainView::generation`].
    pub generation: u64,
    /// [`ChainView::head_seq`].
    pub head_seq: u64,
}

impl Stamp {
    /// The stamp of a view.
    pub fn of(view: &ChainView) -> Self {
        Self { generation: view.generation, head_seq: view.head_seq }
    }
}

/// What kind of answer came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerKind {
    /// A result other than null.
    Value,
    /// `null`: not found.
    Null,
    /// An error that is the same at that block for ever (`classify`).
    DeterministicError,
    /// Any other error.
    Error,
}

/// What `admit` needs to know of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnswerFacts {
    /// Its kind.
    pub kind: AnswerKind,
    /// How answers of the method name their block.
    pub answer_block: ResponseBlock,
    /// The first and last block that this answer names (`wire::block::response_blocks`).
    pub named: Option<(BlockId, BlockId)>,
}

/// What a kept answer is bound to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Binding {
    /// Nothing.
    Free,
    /// One block of the served chain.
    Block {
        /// Its height.
        number: u64,
        /// Its hash, where it is known.
        hash: Option<Hash>,
    },
    /// The head at the time.
    Head {
        /// [`ChainView::head_seq`].
        seq: u64,
    },
}

/// What the cache keeps beside an answer to judge it later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept {
    /// What it is bound to.
    pub binding: Binding,
    /// [`ChainView::generation`] at the start of the call that fetched it.
    pub generation: u64,
    /// It is a null, which the cache gives a shorter life.
    pub null: bool,
}

/// Whether an answer is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admit {
    /// Keep it with this.
    Store(Kept),
    /// Do not.
    No(Refused),
}

/// Why an answer is not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// The call's rule is never, or asks for parts.
    Rule,
    /// It is an error that may be different next time.
    Error,
    /// It is a null that may be found at any moment.
    Null,
    /// It is a null about a block that the served chain has: the upstream is behind, or dropped it.
    Absent,
    /// It should name its block and does not: still pending.
    Unnamed,
    /// It names another height than was asked for: the upstream answered wrongly.
    OtherBlock,
    /// It names a block that the served chain does not have: the upstream is on another branch.
    NotCanonical,
    /// It is about a block above the served head.
    AboveHead,
    /// A branch change touched its block since the call began.
    Reorg,
    /// The head changed since the call began.
    HeadMoved,
}

impl Refused {
    /// Whether the answer itself is wrong for the served chain, so that another upstream should be
    /// asked.
    pub fn is_wrong(self) -> bool {
        matches!(self, Self::OtherBlock | Self::NotCanonical | Self::Absent)
    }
}

/// What the answer to a call would be bound to, given the block that the call names (with the
/// method's default applied, as `wire::method::Method::block_ref` does).
pub fn decide(method: &Method, block: Option<&BlockRef>, view: &ChainView) -> Caching {
    let never = Caching {
        rule: CacheRule::Never,
        resolved: None,
        min_head: 0,
        behind_head: 0,
        from_view: false,
        stamp: Stamp::of(view),
    };
    if method.write || method.sticky {
        return never;
    }
    match method.validity {
        Validity::Constant => Caching { rule: CacheRule::Constant, ..never },
        Validity::Number => match block {
            Some(block) => at_block(method, block, view, never),
            None => never,
        },
        Validity::Hash => match block {
            Some(BlockRef::Hash(_) | BlockRef::CanonicalHash(_)) => at_hash(method, view, never),
            _ => never,
        },
        Validity::Transaction => Caching { rule: CacheRule::AtTransaction, ..never },
        Validity::Head => {
            Caching { from_view: method.head_value && view.head.is_some(), ..at_head(view, never) }
        }
        Validity::Logs => Caching { rule: CacheRule::Logs, ..never },
        Validity::Mempool | Validity::Never => never,
    }
}

fn at_block(method: &Method, block: &BlockRef, view: &ChainView, never: Caching) -> Caching {
    match *block {
        BlockRef::Number(number) => at_number(method, number, view, never),
        // Fixed by the hash whether canonical or not.
        BlockRef::Hash(_) => at_hash(method, view, never),
        // With requireCanonical a reorg turns the answer into an error.
        BlockRef::CanonicalHash(hash) => match view.number_of(hash) {
            Some(number) => at_number(method, number, view, never),
            None => never,
        },
        BlockRef::Tag(BlockTag::Latest) => match view.head {
            Some(head) => Caching {
                resolved: Some(head.number),
                ..at_number(method, head.number, view, never)
            },
            None => headless(view, never),
        },
        // Only where the upstreams say what is final: our own depth is not what the client asked
        // for.
        BlockRef::Tag(BlockTag::Finalized) => match view.finalized {
            Some(number) if view.finalized_by_upstreams => {
                Caching { resolved: Some(number), ..at_number(method, number, view, never) }
            }
            _ => at_head(view, never),
        },
        // Safe moves only with the head. Earliest moves where upstreams drop history.
        BlockRef::Tag(BlockTag::Safe | BlockTag::Earliest) => at_head(view, never),
        BlockRef::Tag(BlockTag::Pending) => never,
    }
}

/// Where the next block completes an answer, an upstream is asked that has all blocks which are
/// served.
fn at_hash(method: &Method, view: &ChainView, never: Caching) -> Caching {
    let rule = CacheRule::AtHash;
    match (method.blocks_behind_head, view.head) {
        (0, _) => Caching { rule, ..never },
        (behind_head, Some(head)) => Caching { rule, min_head: head.number, behind_head, ..never },
        (_, None) => never,
    }
}

fn at_number(method: &Method, number: u64, view: &ChainView, never: Caching) -> Caching {
    let Some(head) = view.head else {
        // All upstreams are silent: what is final can still be served.
        let finalized = view.is_finalized(number);
        let rule = CacheRule::AtNumber { number, finalized };
        return if finalized { Caching { rule, ..never } } else { never };
    };
    // A future block is passed on, to any upstream, and not kept.
    let Some(below) = head.number.checked_sub(number) else {
        return never;
    };
    let finalized = view.is_finalized(number);
    // Some upstreams complete the newest block's answer only with the next block, each with its
    // own.
    if below < method.blocks_behind_head {
        return Caching { min_head: number, ..never };
    }
    let rule = CacheRule::AtNumber { number, finalized };
    Caching { rule, min_head: number + method.blocks_behind_head, ..never }
}

fn at_head(view: &ChainView, never: Caching) -> Caching {
    match view.head {
        Some(head) => Caching { rule: CacheRule::AtHead, min_head: head.number, ..never },
        None => headless(view, never),
    }
}

/// No upstream vouches for a head: nothing is kept, and only an upstream that has reached the head
/// last served may say what the head is.
fn headless(view: &ChainView, never: Caching) -> Caching {
    Caching { min_head: view.floor.unwrap_or(0), ..never }
}

/// Whether the answer to a call decided by `caching` is kept, and bound to what. `view` is the
/// present one, read after the answer came.
pub fn admit(caching: &Caching, answer: &AnswerFacts, view: &ChainView) -> Admit {
    if answer.kind == AnswerKind::Error {
        return Admit::No(Refused::Error);
    }
    let binding = match caching.rule {
        CacheRule::Never | CacheRule::Logs => Err(Refused::Rule),
        CacheRule::AtHash if caching.behind_head > 0 => complete(caching, answer),
        CacheRule::Constant | CacheRule::AtHash => free(caching.rule, answer.kind),
        CacheRule::AtNumber { number, .. } => at_number_admitted(number, caching, answer, view),
        CacheRule::AtRange { from, to } => at_range_admitted(from..=to, caching, answer, view),
        CacheRule::AtTransaction => at_transaction_admitted(caching, answer, view),
        CacheRule::AtHead if answer.kind == AnswerKind::DeterministicError => Err(Refused::Error),
        CacheRule::AtHead => at_head_admitted(caching, view),
    };
    match binding {
        Ok(binding) => Admit::Store(Kept {
            binding,
            generation: caching.stamp.generation,
            null: answer.kind == AnswerKind::Null,
        }),
        Err(why) => Admit::No(why),
    }
}

/// About a block by its hash, if the block is so old that its answer is complete.
fn complete(caching: &Caching, answer: &AnswerFacts) -> Result<Binding, Refused> {
    match answer.named {
        Some((_, last)) if last.number + caching.behind_head > caching.min_head => {
            Err(Refused::AboveHead)
        }
        None if answer.kind == AnswerKind::Value => Err(Refused::Unnamed),
        _ => free(caching.rule, answer.kind),
    }
}

/// A constant, or a function of a hash. A null only says that this upstream has not got it yet.
fn free(rule: CacheRule, kind: AnswerKind) -> Result<Binding, Refused> {
    match kind {
        AnswerKind::Value => Ok(Binding::Free),
        AnswerKind::DeterministicError if rule == CacheRule::AtHash => Ok(Binding::Free),
        AnswerKind::DeterministicError | AnswerKind::Error => Err(Refused::Error),
        AnswerKind::Null => Err(Refused::Null),
    }
}

fn at_number_admitted(
    number: u64,
    caching: &Caching,
    answer: &AnswerFacts,
    view: &ChainView,
) -> Result<Binding, Refused> {
    if answer.kind == AnswerKind::Null {
        // The block itself exists, so an upstream that does not have it is behind or pruned. Other
        // nulls (no such index in the block) live until the next head at most.
        return match answer.answer_block {
            ResponseBlock::Itself | ResponseBlock::ElementMembers => Err(Refused::Absent),
            _ => at_head_admitted(caching, view),
        };
    }
    let mut hash = view.canonical(number);
    if let Some((first, last)) = answer.named {
        if first.number != number || last.number != number {
            return Err(Refused::OtherBlock);
        }
        if first.hash != last.hash || hash.is_some_and(|known| known != first.hash) {
            return Err(Refused::NotCanonical);
        }
        hash = Some(first.hash);
    } else if answer.kind == AnswerKind::Value && answer.answer_block == ResponseBlock::Itself {
        return Err(Refused::Unnamed);
    }
    bound(number, hash, caching, view)
}

/// Logs name the blocks they stand in; the first and the last are looked at. No logs are an answer
/// too, since only upstreams that have reached the end of the range are asked (21).
fn at_range_admitted(
    range: std::ops::RangeInclusive<u64>,
    caching: &Caching,
    answer: &AnswerFacts,
    view: &ChainView,
) -> Result<Binding, Refused> {
    match answer.kind {
        AnswerKind::Value => {}
        AnswerKind::Null => return Err(Refused::Null),
        AnswerKind::DeterministicError | AnswerKind::Error => return Err(Refused::Error),
    }
    if let Some((first, last)) = answer.named {
        for named in [first, last] {
            if !range.contains(&named.number) {
                return Err(Refused::OtherBlock);
            }
            if view.canonical(named.number).is_some_and(|known| known != named.hash) {
                return Err(Refused::NotCanonical);
            }
        }
    }
    bound(*range.end(), view.canonical(*range.end()), caching, view)
}

fn at_transaction_admitted(
    caching: &Caching,
    answer: &AnswerFacts,
    view: &ChainView,
) -> Result<Binding, Refused> {
    match answer.kind {
        AnswerKind::Value => {}
        // It may come into the pool, or into a block that is being imported, at any moment.
        AnswerKind::Null => return Err(Refused::Null),
        AnswerKind::DeterministicError | AnswerKind::Error => return Err(Refused::Error),
    }
    let Some((first, last)) = answer.named else {
        return Err(Refused::Unnamed);
    };
    if first != last {
        return Err(Refused::OtherBlock);
    }
    let known = view.canonical(first.number);
    if known.is_some_and(|known| known != first.hash) {
        return Err(Refused::NotCanonical);
    }
    bound(first.number, Some(first.hash), caching, view)
}

/// Bound to a block of the served chain, unless that changed while the call was under way.
fn bound(
    number: u64,
    hash: Option<Hash>,
    caching: &Caching,
    view: &ChainView,
) -> Result<Binding, Refused> {
    if view.head.is_none_or(|head| number > head.number) {
        return Err(Refused::AboveHead);
    }
    if !view.valid_since(caching.stamp.generation, number) {
        return Err(Refused::Reorg);
    }
    Ok(Binding::Block { number, hash })
}

fn at_head_admitted(caching: &Caching, view: &ChainView) -> Result<Binding, Refused> {
    let seq = caching.stamp.head_seq;
    if view.head_seq != seq || view.head.is_none() {
        return Err(Refused::HeadMoved);
    }
    Ok(Binding::Head { seq })
}

/// Whether a kept answer is still true. Costs two comparisons while no branch changed.
pub fn usable(kept: &Kept, view: &ChainView) -> bool {
    match kept.binding {
        Binding::Free => true,
        Binding::Head { seq } => view.head_seq == seq && view.head.is_some(),
        Binding::Block { number, hash } => {
            let within = match view.head {
                Some(head) => number <= head.number,
                // No upstream vouches for a head: only what is final is served.
                None => view.is_finalized(number),
            };
            within && view.valid_since(kept.generation, number) && agrees(view, number, hash)
        }
    }
}

/// A second look beside the marks: the served chain's hash, where both are known.
fn agrees(view: &ChainView, number: u64, hash: Option<Hash>) -> bool {
    match (hash, view.canonical(number)) {
        (Some(kept), Some(served)) => kept == served,
        _ => true,
    }
}
