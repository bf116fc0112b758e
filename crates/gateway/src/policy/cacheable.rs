//! Decides whether a response may be cached, what it depends on, and whether a cached response is
//! still valid.
//!
//! A response is *bound* to the block or head that it depends on. The cache stores this binding
//! beside the response, in a [`ValidityTag`]. The response is valid as long as the served chain has
//! this block or head. The *served chain* consists of the blocks that clients can read, and its
//! newest block is the *head*.
//!
//! A call uses three functions in this order: [`decide_caching`] before the cache lookup
//! (`policy/plan.rs`), [`is_valid`] on a hit (`resolve.rs`), [`admit`] when a response arrives
//! (`call.rs`). `wire` has the facts about methods, and `heads` has the state of the chain (the
//! *view*, [`ChainView`]). The cache itself (`cache/`) handles bytes, ages and memory.

use wire::block::{BlockId, BlockRef, BlockTag, ResponseBlock};
use wire::method::{Method, Validity};

use crate::policy::branch::Hash;
use crate::policy::heads::ChainView;

#[cfg(test)]
mod tests;

/// The part of the chain that a response depends on, as far as the call alone shows it. When the
/// response arrives, [`admit`] finds the exact [`Binding`].
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
        /// The height that the call names, or the height that its tag stands for.
        number: u64,
        /// True if the block was final when the call arrived: no reorg may drop it.
        finalized: bool,
    },
    /// The response holds the logs of a range of blocks. It is valid as long as the last block is
    /// on the chain.
    AtRange {
        /// First block.
        from: u64,
        /// Last block.
        to: u64,
    },
    /// The response is about one transaction, and depends on the block that the response names.
    AtTransaction,
    /// The response depends on the head.
    AtHead,
    /// The call is a log filter. `policy/logs.rs` splits it into parts, and each part has its own
    /// rule.
    Logs,
}

/// The caching decision about one call, made once and used until the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caching {
    /// The part of the chain that the response depends on.
    pub rule: CacheRule,
    /// The height that replaces the call's block tag in the cache key and in the parameters sent to
    /// an upstream. So every read of "latest" is about exactly one block. `None` if no tag is
    /// replaced.
    pub resolved_height: Option<u64>,
    /// Only an upstream whose head has at least this height may get the call. 0 allows any
    /// upstream.
    pub min_head: u64,
    /// The oldest block whose data the call reads, if the call names it by height. An upstream that
    /// has deleted the block's data should not get the call.
    pub oldest: Option<u64>,
    /// Used for calls by block hash: the response is complete only if its block is at least this
    /// many blocks below `min_head`. 0 if every response is complete.
    pub behind_head: u64,
    /// [`ChainView::generation`] (a count of branch changes) at the start of the call.
    pub generation: u64,
    /// [`ChainView::head_seq`] (a count of head changes) at the start of the call.
    pub head_seq: u64,
}

impl Caching {
    /// Returns the decision for a response that is never cached.
    pub fn never(view: &ChainView) -> Self {
        Self {
            rule: CacheRule::Never,
            resolved_height: None,
            min_head: 0,
            oldest: None,
            behind_head: 0,
            generation: view.generation,
            head_seq: view.head_seq,
        }
    }

    /// Returns the decision if the cache is off: the call reaches an upstream unchanged.
    pub fn without_cache(self) -> Self {
        Self { rule: CacheRule::Never, resolved_height: None, ..self }
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
    /// Where responses of the method name their block.
    pub response_block: ResponseBlock,
    /// The first and last block that this response names (`wire::block::read_response_blocks`).
    /// `None` if the response names no block, or is about a pending block.
    pub named_blocks: Option<(BlockId, BlockId)>,
}

/// The part of the chain that a cached response depends on, found when the response arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Binding {
    /// The response depends on nothing that can change, so it is always valid.
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
    /// True for a `null` result. The cache stores nulls for a shorter time.
    pub is_null: bool,
}

/// Reason why a response is not stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RejectReason {
    /// The call's rule is `Never`, or the call is split into parts.
    Rule,
    /// An error that may be different next time.
    Error,
    /// A `null` result, which may become a value at any moment.
    Null,
    /// The response is null although the served chain has the block. The upstream is behind, or
    /// dropped the block.
    Absent,
    /// The call names a height without a block. The response may be null, an error, or about another
    /// block.
    Skipped,
    /// The response should name its block and does not, for example because the transaction is
    /// pending.
    Unnamed,
    /// The response names a block outside of the requested height or range, or several blocks
    /// instead of one. The upstream is wrong.
    OtherBlock,
    /// The response names a block that is not the served chain's block at this height, or two
    /// blocks at one height. The upstream is on another branch.
    NotCanonical,
    /// The response is about a block above the served head, there is no served head, or the block
    /// is so new that the response may be incomplete.
    AboveHead,
    /// A branch change touched the block of the response since the call began.
    Reorg,
    /// The head changed since the call began, or there is no served head.
    HeadMoved,
}

impl RejectReason {
    /// Returns true if the response itself is wrong for the served chain. Another upstream should
    /// then get the call.
    pub fn is_wrong(self) -> bool {
        matches!(self, Self::OtherBlock | Self::NotCanonical | Self::Absent)
    }
}

/// Decides what the response to a call depends on. `block` is the block that the call names, or the
/// method's default (`wire::method::Method::block_ref`). `None` means that the method has no block
/// parameter, or that the block is malformed.
pub fn decide_caching(method: &Method, block: Option<&BlockRef>, view: &ChainView) -> Caching {
    let decision = Decision { method, view, uncached: Caching::never(view) };
    let uncached = decision.uncached;
    // A sticky method refers to state of one node, for example a filter.
    if method.write || method.sticky {
        return uncached;
    }
    match (method.validity, block) {
        (Validity::Constant, _) => Caching { rule: CacheRule::Constant, ..uncached },
        (Validity::Number, Some(block)) => decision.decide_at_block(block),
        (Validity::Hash, Some(BlockRef::Hash(_) | BlockRef::CanonicalHash(_))) => {
            decision.decide_at_hash()
        }
        (Validity::Transaction, _) => Caching { rule: CacheRule::AtTransaction, ..uncached },
        (Validity::Head, _) => decision.decide_at_head(),
        (Validity::Logs, _) => Caching { rule: CacheRule::Logs, ..uncached },
        (Validity::Number | Validity::Hash | Validity::Mempool | Validity::Never, _) => uncached,
    }
}

/// Input of a caching decision, and the decision not to cache.
struct Decision<'a> {
    method: &'a Method,
    view: &'a ChainView,
    uncached: Caching,
}

impl Decision<'_> {
    /// Decides about a call that names this block.
    fn decide_at_block(&self, block: &BlockRef) -> Caching {
        match *block {
            BlockRef::Number(number) => self.decide_at_number(number),
            // The hash fixes the response, on any branch.
            BlockRef::Hash(_) => self.decide_at_hash(),
            // With requireCanonical, a reorg that drops the block turns the response into an error.
            // So the call is treated like a call by the height of the block. If the view does not
            // know the block, an upstream that is behind may not know yet that it was dropped.
            BlockRef::CanonicalHash(hash) => match self.view.number_of(hash) {
                Some(number) => self.decide_at_number(number),
                None => Caching { rule: CacheRule::Never, ..self.decide_at_head() },
            },
            BlockRef::Tag(BlockTag::Latest) => match self.view.head {
                Some(head) => self.decide_at_tag(head.number),
                None => self.decide_without_head(),
            },
            // The tag is replaced only if the upstreams report the finalized height. A height that
            // the gateway computes from a depth is not what the client means.
            BlockRef::Tag(BlockTag::Finalized) => match self.view.finalized {
                Some(number) if self.view.finalized_by_upstreams => self.decide_at_tag(number),
                _ => self.decide_at_head(),
            },
            // The block of `safe` changes only when the head changes. The block of `earliest`
            // changes on upstreams that delete history.
            BlockRef::Tag(BlockTag::Safe | BlockTag::Earliest) => self.decide_at_head(),
            // What an upstream has pending follows from its head, which must not be older than the
            // served head.
            BlockRef::Tag(BlockTag::Pending) => {
                Caching { rule: CacheRule::Never, ..self.decide_at_head() }
            }
        }
    }

    /// Decides about a call by block hash. Some responses are complete only once later blocks exist
    /// (`Method::blocks_behind_head`). The upstream must then have all served blocks.
    fn decide_at_hash(&self) -> Caching {
        let (rule, uncached) = (CacheRule::AtHash, self.uncached);
        match (self.method.blocks_behind_head, self.view.head) {
            (0, _) => Caching { rule, ..uncached },
            (behind_head, Some(head)) => {
                Caching { rule, min_head: head.number, behind_head, ..uncached }
            }
            (_, None) => uncached,
        }
    }

    /// Decides about a call with a tag that stands for this height.
    fn decide_at_tag(&self, number: u64) -> Caching {
        Caching { resolved_height: Some(number), ..self.decide_at_number(number) }
    }

    /// Decides about a call by height.
    fn decide_at_number(&self, number: u64) -> Caching {
        let uncached = Caching { oldest: Some(number), ..self.uncached };
        let behind_head = self.method.blocks_behind_head;
        let finalized = self.view.is_finalized(number);
        let rule = CacheRule::AtNumber { number, finalized };
        let Some(head) = self.view.head else {
            // There is no served head, for example because all upstreams miss polls. So only
            // responses about final blocks are cached.
            return if finalized { Caching { rule, ..uncached } } else { uncached };
        };
        match head.number.checked_sub(number) {
            // A call about a future block is forwarded to any upstream, and the response is not
            // stored.
            None => uncached,
            // Some upstreams complete the response about the newest block only once the next block
            // exists, so such a response is not stored.
            Some(depth) if depth < behind_head => Caching { min_head: number, ..uncached },
            Some(_) => Caching { rule, min_head: number + behind_head, ..uncached },
        }
    }

    /// Decides about a call whose response depends on the head.
    fn decide_at_head(&self) -> Caching {
        let rule = CacheRule::AtHead;
        self.view.head.map_or_else(
            || self.decide_without_head(),
            |head| Caching { rule, min_head: head.number, ..self.uncached },
        )
    }

    /// Decides about a call that depends on the head, while there is no served head. The response
    /// is not stored. Only an upstream that has reached the last served head gets the call. If the
    /// first head is about to be served, the call waits for it.
    fn decide_without_head(&self) -> Caching {
        let first_height = u64::from(self.view.awaits_head);
        let min_head = self.view.last_served_height.unwrap_or(first_height);
        Caching { min_head, ..self.uncached }
    }
}

/// Decides whether a response to a call is stored. Returns the tag to store beside the response.
/// `view` is the current view, loaded after the response arrived.
///
/// # Errors
///
/// The reason why the response is not stored.
pub fn admit(
    caching: &Caching,
    response: &ResponseFacts,
    view: &ChainView,
) -> Result<ValidityTag, RejectReason> {
    if response.kind == ResponseKind::Error {
        return Err(RejectReason::Error);
    }
    let binding = Admission { caching, response, view }.bind()?;
    let is_null = response.kind == ResponseKind::Null;
    Ok(ValidityTag { binding, generation: caching.generation, is_null })
}

/// A response to admit, with its call and the current view.
struct Admission<'a> {
    caching: &'a Caching,
    response: &'a ResponseFacts,
    view: &'a ChainView,
}

type BindResult = Result<Binding, RejectReason>;

impl Admission<'_> {
    /// Finds the block or head that the response depends on.
    fn bind(&self) -> BindResult {
        match self.caching.rule {
            CacheRule::Never | CacheRule::Logs => Err(RejectReason::Rule),
            CacheRule::AtHash if self.caching.behind_head > 0 => self.bind_if_old(),
            CacheRule::Constant | CacheRule::AtHash => self.bind_to_nothing(),
            CacheRule::AtNumber { number, .. } => self.bind_to_number(number),
            CacheRule::AtRange { from, to } => self.bind_to_range(from, to),
            CacheRule::AtTransaction => self.bind_to_transaction(),
            CacheRule::AtHead if self.response.kind == ResponseKind::DeterministicError => {
                Err(RejectReason::Error)
            }
            CacheRule::AtHead => self.bind_to_head(),
        }
    }

    /// Admits a response to a call by block hash, if the block is old enough for a complete
    /// response.
    fn bind_if_old(&self) -> BindResult {
        match self.response.named_blocks {
            Some((_, last)) if last.number + self.caching.behind_head > self.caching.min_head => {
                Err(RejectReason::AboveHead)
            }
            None if self.response.kind == ResponseKind::Value => Err(RejectReason::Unnamed),
            _ => self.bind_to_nothing(),
        }
    }

    /// Admits a response that is constant or a function of a block hash. A deterministic error is
    /// stored only for a call by block hash. A null is not stored, because it only means that this
    /// upstream does not have the value yet.
    fn bind_to_nothing(&self) -> BindResult {
        let is_error_at_hash = self.response.kind == ResponseKind::DeterministicError
            && self.caching.rule == CacheRule::AtHash;
        if !is_error_at_hash {
            self.require_value()?;
        }
        self.require_served()?;
        Ok(Binding::Free)
    }

    /// Rejects a response that names a block above the served head.
    fn require_served(&self) -> Result<(), RejectReason> {
        match (self.response.named_blocks, self.view.head) {
            (Some((_, last)), Some(head)) if last.number > head.number => {
                Err(RejectReason::AboveHead)
            }
            _ => Ok(()),
        }
    }

    /// Rejects nulls and errors.
    fn require_value(&self) -> Result<(), RejectReason> {
        match self.response.kind {
            ResponseKind::Value => Ok(()),
            ResponseKind::Null => Err(RejectReason::Null),
            ResponseKind::DeterministicError | ResponseKind::Error => Err(RejectReason::Error),
        }
    }

    /// Binds a response to the block at the height that the call names. The response must not name
    /// any other height.
    fn bind_to_number(&self, number: u64) -> BindResult {
        let ResponseFacts { kind, response_block, named_blocks } = *self.response;
        if self.view.is_skipped(number) {
            return Err(RejectReason::Skipped);
        }
        if kind == ResponseKind::Null {
            // The block exists, so an upstream that returns null for it is behind or pruned. Other
            // nulls, for example for a transaction index that the block lacks, look the same.
            return Err(match response_block {
                ResponseBlock::Itself | ResponseBlock::ElementMembers => RejectReason::Absent,
                _ => RejectReason::Null,
            });
        }
        let mut hash = self.view.canonical(number);
        if let Some((first, last)) = named_blocks {
            if first.number != number || last.number != number {
                return Err(RejectReason::OtherBlock);
            }
            if first.hash != last.hash || hash.is_some_and(|known| known != first.hash) {
                return Err(RejectReason::NotCanonical);
            }
            hash = Some(first.hash);
        } else if kind == ResponseKind::Value && response_block == ResponseBlock::Itself {
            return Err(RejectReason::Unnamed);
        }
        self.bind_to_block(number, hash)
    }

    /// Binds logs to the last block of the range. Each log names its block, but only the blocks of
    /// the first and the last log are checked. An empty response is valid too, because only
    /// upstreams that have reached the end of the range get the call.
    fn bind_to_range(&self, from: u64, to: u64) -> BindResult {
        self.require_value()?;
        let named_blocks = self.response.named_blocks;
        for block in named_blocks.into_iter().flat_map(|(first, last)| [first, last]) {
            if !(from..=to).contains(&block.number) {
                return Err(RejectReason::OtherBlock);
            }
            self.require_canonical(block)?;
        }
        self.bind_to_block(to, self.view.canonical(to))
    }

    /// Binds a response to the block that it names.
    fn bind_to_transaction(&self) -> BindResult {
        // After a null, the transaction may enter the pool or a block at any moment.
        self.require_value()?;
        let (first, last) = self.response.named_blocks.ok_or(RejectReason::Unnamed)?;
        if first != last {
            return Err(RejectReason::OtherBlock);
        }
        self.require_canonical(first)?;
        self.bind_to_block(first.number, Some(first.hash))
    }

    /// Rejects a block if the served chain is known to have another block at the same height.
    fn require_canonical(&self, block: BlockId) -> Result<(), RejectReason> {
        let is_other = self.view.canonical(block.number).is_some_and(|known| known != block.hash);
        if is_other { Err(RejectReason::NotCanonical) } else { Ok(()) }
    }

    /// Binds a response to a block of the served chain. Rejects the response if the block changed
    /// during the call.
    fn bind_to_block(&self, number: u64, hash: Option<Hash>) -> BindResult {
        if self.view.head.is_none_or(|head| number > head.number) {
            return Err(RejectReason::AboveHead);
        }
        if !self.view.valid_since(self.caching.generation, number) {
            return Err(RejectReason::Reorg);
        }
        Ok(Binding::Block { number, hash })
    }

    /// Binds a response to the head. Rejects the response if the head changed during the call.
    fn bind_to_head(&self) -> BindResult {
        self.require_served()?;
        let seq = self.caching.head_seq;
        let is_same = self.view.head_seq == seq && self.view.head.is_some();
        if is_same { Ok(Binding::Head { seq }) } else { Err(RejectReason::HeadMoved) }
    }
}

/// Returns true if a cached response is still valid.
pub fn is_valid(tag: &ValidityTag, view: &ChainView) -> bool {
    match tag.binding {
        Binding::Free => true,
        Binding::Head { seq } => view.head_seq == seq && view.head.is_some(),
        Binding::Block { number, hash } => {
            let is_served = match view.head {
                Some(head) => number <= head.number,
                // There is no served head, so only responses about final blocks are served.
                None => view.is_finalized(number),
            };
            let is_other_block = hash.is_some_and(|expected| {
                view.canonical(number).is_some_and(|served| served != expected)
            });
            is_served && view.valid_since(tag.generation, number) && !is_other_block
        }
    }
}
