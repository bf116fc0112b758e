//! Decides whether a response may be cached, what it depends on, and whether a cached response is
//! still valid.
//!
//! A response is *bound* to the block or head that it depends on. The binding is stored beside it
//! in its [`ValidityTag`]. The response is valid as long as the chain has this block or head.
//!
//! A call uses three functions in this order: [`decide`] before the cache lookup
//! (`policy/plan.rs`), [`is_valid`] on a hit (`resolve.rs`), [`admit`] when a response arrives
//! (`call/response.rs`). `wire` has the facts about methods and `heads` the state of the chain. The
//! cache handles bytes, ages and memory.

use wire::block::ResponseBlock;
use wire::block::{BlockId, BlockRef, BlockTag};
use wire::method::{Method, Validity};

use crate::policy::heads::{ChainView, Hash};

#[cfg(test)]
mod tests;

/// The part of the chain that a response to a call depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheRule {
    /// The response is neither stored nor looked up.
    Never,
    /// The response is the same for ever on this chain.
    Constant,
    /// The response is a pure function of a block hash that the call names.
    AtHash,
    /// The response depends on the block at this height.
    AtNumber {
        /// The height, resolved if the call has a tag.
        number: u64,
        /// True if the block was final when the call arrived.
        finalized: bool,
    },
    /// The response depends on a range of blocks, as in a part of a log filter. It is valid as long
    /// as the last block is.
    AtRange {
        /// First block.
        from: u64,
        /// Last block.
        to: u64,
    },
    /// The response depends on the block that it names.
    AtTransaction,
    /// The response depends on the head.
    AtHead,
    /// The call is a log filter. `logs` has a rule for each part.
    Logs,
}

/// The caching decision about one call, made once and used until the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caching {
    /// The part of the chain that the response depends on.
    pub rule: CacheRule,
    /// The height that replaces the call's tag in the cache key and in the sent parameters. So
    /// every read of "latest" is about exactly one block.
    pub resolved: Option<u64>,
    /// The height that the head of an upstream must have reached, so that it may get the call.
    pub min_head: u64,
    /// Used for calls by block hash: the response is complete only if its block is at least this
    /// many blocks below `min_head`.
    pub behind_head: u64,
    /// True if the response is the height of the served head. No upstream is then needed.
    pub from_view: bool,
    /// State of the chain at the start of the call.
    pub stamp: Stamp,
}

impl Caching {
    /// Returns the decision for a response that is never cached.
    pub fn never(view: &ChainView) -> Self {
        Self {
            rule: CacheRule::Never,
            resolved: None,
            min_head: 0,
            behind_head: 0,
            from_view: false,
            stamp: Stamp::new(view),
        }
    }
}

/// State of the chain at the start of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// [`ChainView::generation`].
    pub generation: u64,
    /// [`ChainView::head_seq`].
    pub head_seq: u64,
}

impl Stamp {
    /// Returns the stamp of a view.
    pub fn new(view: &ChainView) -> Self {
        Self { generation: view.generation, head_seq: view.head_seq }
    }
}

/// Kind of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResponseKind {
    /// A result other than null.
    Value,
    /// `null`: not found.
    Null,
    /// An error that is the same for ever at the same block (`classify`).
    DeterministicError,
    /// Any other error.
    Error,
}

/// Facts about a response that [`admit`] needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResponseFacts {
    /// Kind of the response.
    pub kind: ResponseKind,
    /// The way in which responses of the method name their block.
    pub response_block: ResponseBlock,
    /// The first and last block that this response names (`wire::block::response_blocks`).
    pub named_blocks: Option<(BlockId, BlockId)>,
}

/// The part of the chain that a cached response depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Binding {
    /// The response depends on nothing.
    Free,
    /// The response depends on one block of the served chain.
    Block {
        /// Height of the block.
        number: u64,
        /// Hash of the block, if known.
        hash: Option<Hash>,
    },
    /// The response depends on the head at the time when it was stored.
    Head {
        /// [`ChainView::head_seq`].
        seq: u64,
    },
}

/// Data that the cache stores beside a response to validate it later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ValidityTag {
    /// The part of the chain that the response depends on.
    pub binding: Binding,
    /// [`ChainView::generation`] at the start of the call that fetched the response.
    pub generation: u64,
    /// True for a null, which the cache stores for a shorter time.
    pub null: bool,
}

/// Decision whether a response is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// Store the response with this tag.
    Store(ValidityTag),
    /// Do not store it.
    No(RejectReason),
}

/// Reason why a response is not stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RejectReason {
    /// The call's rule is `Never`, or the call is split into parts.
    Rule,
    /// An error that may be different next time.
    Error,
    /// A null that may become a value at any moment.
    Null,
    /// The response is null although the served chain has the block. The upstream is behind, or
    /// dropped the block.
    Absent,
    /// The response should name its block and does not, for example because the transaction is
    /// pending.
    Unnamed,
    /// The response names another height than the requested one, so the upstream is wrong.
    OtherBlock,
    /// The response names a block that the served chain does not have, so the upstream is on
    /// another branch.
    NotCanonical,
    /// The response is about a block above the served head.
    AboveHead,
    /// A branch change touched the block of the response since the call began.
    Reorg,
    /// The head changed since the call began.
    HeadMoved,
}

impl RejectReason {
    /// Returns true if the response itself is wrong for the served chain, so that another upstream
    /// should be asked.
    pub fn is_wrong(self) -> bool {
        matches!(self, Self::OtherBlock | Self::NotCanonical | Self::Absent)
    }
}

/// Decides what the response to a call depends on. `block` is the block that the call names, or the
/// method's default (`wire::method::Method::block_ref`).
pub fn decide(method: &Method, block: Option<&BlockRef>, view: &ChainView) -> Caching {
    let uncached = Caching::never(view);
    if method.write || method.sticky {
        return uncached;
    }
    match method.validity {
        Validity::Constant => Caching { rule: CacheRule::Constant, ..uncached },
        Validity::Number => match block {
            Some(block) => at_block(method, block, view, uncached),
            None => uncached,
        },
        Validity::Hash => match block {
            Some(BlockRef::Hash(_) | BlockRef::CanonicalHash(_)) => at_hash(method, view, uncached),
            _ => uncached,
        },
        Validity::Transaction => Caching { rule: CacheRule::AtTransaction, ..uncached },
        Validity::Head => Caching {
            from_view: method.head_value && view.head.is_some(),
            ..at_head(view, uncached)
        },
        Validity::Logs => Caching { rule: CacheRule::Logs, ..uncached },
        Validity::Mempool | Validity::Never => uncached,
    }
}

fn at_block(method: &Method, block: &BlockRef, view: &ChainView, uncached: Caching) -> Caching {
    match *block {
        BlockRef::Number(number) => at_number(method, number, view, uncached),
        // The hash fixes the response, on any branch.
        BlockRef::Hash(_) => at_hash(method, view, uncached),
        // With requireCanonical a reorg turns the response into an error.
        BlockRef::CanonicalHash(hash) => match view.number_of(hash) {
            Some(number) => at_number(method, number, view, uncached),
            None => uncached,
        },
        BlockRef::Tag(BlockTag::Latest) => match view.head {
            Some(head) => Caching {
                resolved: Some(head.number),
                ..at_number(method, head.number, view, uncached)
            },
            None => headless(view, uncached),
        },
        // The tag is replaced only if the upstreams name the finalized height. A client does not
        // mean the gateway's own depth.
        BlockRef::Tag(BlockTag::Finalized) => match view.finalized {
            Some(number) if view.finalized_by_upstreams => {
                Caching { resolved: Some(number), ..at_number(method, number, view, uncached) }
            }
            _ => at_head(view, uncached),
        },
        // `safe` changes only when the head changes. `earliest` changes on upstreams that delete
        // history.
        BlockRef::Tag(BlockTag::Safe | BlockTag::Earliest) => at_head(view, uncached),
        BlockRef::Tag(BlockTag::Pending) => uncached,
    }
}

/// Returns the decision for a call by block hash. If the response is complete only once later
/// blocks exist, the upstream must have all served blocks.
fn at_hash(method: &Method, view: &ChainView, uncached: Caching) -> Caching {
    let rule = CacheRule::AtHash;
    match (method.blocks_behind_head, view.head) {
        (0, _) => Caching { rule, ..uncached },
        (behind_head, Some(head)) => {
            Caching { rule, min_head: head.number, behind_head, ..uncached }
        }
        (_, None) => uncached,
    }
}

fn at_number(method: &Method, number: u64, view: &ChainView, uncached: Caching) -> Caching {
    let Some(head) = view.head else {
        // All upstreams are silent, so only final blocks can be served.
        let finalized = view.is_finalized(number);
        let rule = CacheRule::AtNumber { number, finalized };
        return if finalized { Caching { rule, ..uncached } } else { uncached };
    };
    // A future block is forwarded to any upstream, and the response is not stored.
    let Some(depth) = head.number.checked_sub(number) else {
        return uncached;
    };
    let finalized = view.is_finalized(number);
    // Some upstreams complete the response about the newest block only once the next block exists,
    // so such a response is not stored.
    if depth < method.blocks_behind_head {
        return Caching { min_head: number, ..uncached };
    }
    let rule = CacheRule::AtNumber { number, finalized };
    Caching { rule, min_head: number + method.blocks_behind_head, ..uncached }
}

fn at_head(view: &ChainView, uncached: Caching) -> Caching {
    match view.head {
        Some(head) => Caching { rule: CacheRule::AtHead, min_head: head.number, ..uncached },
        None => headless(view, uncached),
    }
}

/// Returns the decision while no upstream vouches for a head. The response is not stored. Only an
/// upstream that has reached the last served head gets a call about the head.
fn headless(view: &ChainView, uncached: Caching) -> Caching {
    Caching { min_head: view.floor.unwrap_or(0), ..uncached }
}

/// Decides whether a response to a call is stored, and what it depends on. `view` is the current
/// view, loaded after the response arrived.
pub fn admit(caching: &Caching, response: &ResponseFacts, view: &ChainView) -> Admission {
    if response.kind == ResponseKind::Error {
        return Admission::No(RejectReason::Error);
    }
    let binding = match caching.rule {
        CacheRule::Never | CacheRule::Logs => Err(RejectReason::Rule),
        CacheRule::AtHash if caching.behind_head > 0 => bind_to_old_block(caching, response),
        CacheRule::Constant | CacheRule::AtHash => bind_to_nothing(caching.rule, response.kind),
        CacheRule::AtNumber { number, .. } => admit_at_number(number, caching, response, view),
        CacheRule::AtRange { from, to } => admit_at_range(from..=to, caching, response, view),
        CacheRule::AtTransaction => admit_at_transaction(caching, response, view),
        CacheRule::AtHead if response.kind == ResponseKind::DeterministicError => {
            Err(RejectReason::Error)
        }
        CacheRule::AtHead => admit_at_head(caching, view),
    };
    match binding {
        Ok(binding) => Admission::Store(ValidityTag {
            binding,
            generation: caching.stamp.generation,
            null: response.kind == ResponseKind::Null,
        }),
        Err(reason) => Admission::No(reason),
    }
}

/// Admits a response to a call by block hash, if the block is old enough for a complete response.
fn bind_to_old_block(caching: &Caching, response: &ResponseFacts) -> Result<Binding, RejectReason> {
    match response.named_blocks {
        Some((_, last)) if last.number + caching.behind_head > caching.min_head => {
            Err(RejectReason::AboveHead)
        }
        None if response.kind == ResponseKind::Value => Err(RejectReason::Unnamed),
        _ => bind_to_nothing(caching.rule, response.kind),
    }
}

/// Binds a constant or a function of a block hash to nothing. A null only means that this upstream
/// does not have the value yet, so it is not stored.
fn bind_to_nothing(rule: CacheRule, kind: ResponseKind) -> Result<Binding, RejectReason> {
    match kind {
        ResponseKind::Value => Ok(Binding::Free),
        ResponseKind::DeterministicError if rule == CacheRule::AtHash => Ok(Binding::Free),
        ResponseKind::DeterministicError | ResponseKind::Error => Err(RejectReason::Error),
        ResponseKind::Null => Err(RejectReason::Null),
    }
}

fn admit_at_number(
    number: u64,
    caching: &Caching,
    response: &ResponseFacts,
    view: &ChainView,
) -> Result<Binding, RejectReason> {
    if response.kind == ResponseKind::Null {
        // The block exists, so an upstream without it is behind or pruned. Other nulls (no such
        // index in the block) are valid until the next head at most.
        return match response.response_block {
            ResponseBlock::Itself | ResponseBlock::ElementMembers => Err(RejectReason::Absent),
            _ => admit_at_head(caching, view),
        };
    }
    let mut hash = view.canonical(number);
    if let Some((first, last)) = response.named_blocks {
        if first.number != number || last.number != number {
            return Err(RejectReason::OtherBlock);
        }
        if first.hash != last.hash || hash.is_some_and(|known| known != first.hash) {
            return Err(RejectReason::NotCanonical);
        }
        hash = Some(first.hash);
    } else if response.kind == ResponseKind::Value
        && response.response_block == ResponseBlock::Itself
    {
        return Err(RejectReason::Unnamed);
    }
    bind(number, hash, caching, view)
}

/// Binds logs to the last block of the range. Logs name their blocks, and the first and the last
/// name are checked. An empty response is valid too, because only upstreams that have reached the
/// end of the range get the call.
fn admit_at_range(
    range: std::ops::RangeInclusive<u64>,
    caching: &Caching,
    response: &ResponseFacts,
    view: &ChainView,
) -> Result<Binding, RejectReason> {
    match response.kind {
        ResponseKind::Value => {}
        ResponseKind::Null => return Err(RejectReason::Null),
        ResponseKind::DeterministicError | ResponseKind::Error => return Err(RejectReason::Error),
    }
    if let Some((first, last)) = response.named_blocks {
        for block in [first, last] {
            if !range.contains(&block.number) {
                return Err(RejectReason::OtherBlock);
            }
            if view.canonical(block.number).is_some_and(|known| known != block.hash) {
                return Err(RejectReason::NotCanonical);
            }
        }
    }
    bind(*range.end(), view.canonical(*range.end()), caching, view)
}

fn admit_at_transaction(
    caching: &Caching,
    response: &ResponseFacts,
    view: &ChainView,
) -> Result<Binding, RejectReason> {
    match response.kind {
        ResponseKind::Value => {}
        // The transaction may enter the pool, or a block that is being imported, at any moment.
        ResponseKind::Null => return Err(RejectReason::Null),
        ResponseKind::DeterministicError | ResponseKind::Error => return Err(RejectReason::Error),
    }
    let Some((first, last)) = response.named_blocks else {
        return Err(RejectReason::Unnamed);
    };
    if first != last {
        return Err(RejectReason::OtherBlock);
    }
    let known = view.canonical(first.number);
    if known.is_some_and(|known| known != first.hash) {
        return Err(RejectReason::NotCanonical);
    }
    bind(first.number, Some(first.hash), caching, view)
}

/// Binds a response to a block of the served chain, unless the block changed during the call.
fn bind(
    number: u64,
    hash: Option<Hash>,
    caching: &Caching,
    view: &ChainView,
) -> Result<Binding, RejectReason> {
    if view.head.is_none_or(|head| number > head.number) {
        return Err(RejectReason::AboveHead);
    }
    if !view.valid_since(caching.stamp.generation, number) {
        return Err(RejectReason::Reorg);
    }
    Ok(Binding::Block { number, hash })
}

fn admit_at_head(caching: &Caching, view: &ChainView) -> Result<Binding, RejectReason> {
    let seq = caching.stamp.head_seq;
    if view.head_seq != seq || view.head.is_none() {
        return Err(RejectReason::HeadMoved);
    }
    Ok(Binding::Head { seq })
}

/// Returns true if a cached response is still valid. Costs two comparisons while no branch changed.
pub fn is_valid(tag: &ValidityTag, view: &ChainView) -> bool {
    match tag.binding {
        Binding::Free => true,
        Binding::Head { seq } => view.head_seq == seq && view.head.is_some(),
        Binding::Block { number, hash } => {
            let is_served = match view.head {
                Some(head) => number <= head.number,
                // No upstream vouches for a head, so only final blocks are served.
                None => view.is_finalized(number),
            };
            is_served
                && view.valid_since(tag.generation, number)
                && is_same_block(view, number, hash)
        }
    }
}

/// Returns true unless both hashes are known and differ. This check supplements
/// [`ChainView::valid_since`].
fn is_same_block(view: &ChainView, number: u64, hash: Option<Hash>) -> bool {
    match (hash, view.canonical(number)) {
        (Some(expected), Some(served)) => expected == served,
        _ => true,
    }
}
