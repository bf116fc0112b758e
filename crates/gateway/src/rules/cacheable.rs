//! What of an answer may be kept, what it stays true with, and whether a kept one still holds.
//!
//! Three questions in the order of a call: [`plan`] before the key is made, [`admit`] when the
//! answer has come, [`holds`] on each hit. Nothing is trusted for being in the cache. It knows
//! methods by their rows and chains by their view; keys, tiers and nodes are elsewhere.

use std::time::Duration;

use wire::block::{BlockRef, NamedBlock, NotABlock, Tag};
use wire::method::{Bound, Method};

use super::heads::{ChainView, Hash};

#[cfg(test)]
mod tests;

/// What an answer would stay true with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheRule {
    /// Nothing that can be checked: not kept.
    Never,
    /// Always the same on this chain.
    Constant,
    /// A block by number: holds while the number means the same block.
    Number(u64),
    /// A range of blocks: holds while none of them changes.
    Range {
        /// First block.
        from: u64,
        /// Last block.
        to: u64,
    },
    /// A pure function of a block's hash.
    Hash,
    /// The block that the answer names.
    Transaction,
    /// The head of the moment.
    Head,
}

/// What is to be done with a call before a node is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// What its answer would stay true with.
    pub rule: CacheRule,
    /// The number to put in place of the tag that the call names.
    pub resolved: Option<u64>,
    /// The height that a node must have reached to be asked.
    pub head_min: Option<u64>,
    /// Whether equal calls under way may share one answer.
    pub join: bool,
    /// The result is this number, which the view knows already.
    pub head_value: Option<u64>,
}

impl Plan {
    /// Passes the call on and keeps nothing.
    pub const PASS: Plan =
        Plan { rule: CacheRule::Never, resolved: None, head_min: None, join: false, head_value: None };

    fn keep(method: &Method, rule: CacheRule) -> Plan {
        Plan { rule, join: method.coalesce, ..Plan::PASS }
    }
}

/// Plans a call of `method` that names `block` (as `wire::block::block_ref` read it).
///
/// Log ranges are planned by `logs`; here they pass.
pub fn plan(
    method: &Method,
    block: Result<Option<BlockRef>, NotABlock>,
    view: &ChainView,
) -> Plan {
    match method.bound {
        Bound::Constant => Plan::keep(method, CacheRule::Constant),
        Bound::Never | Bound::Mempool | Bound::Logs => {
            Plan { join: method.coalesce, ..Plan::PASS }
        }
        // Without a head there is nothing that an answer could be bound to.
        _ if view.head.is_none() => Plan::PASS,
        Bound::Hash => Plan::keep(method, CacheRule::Hash),
        Bound::Transaction => Plan::keep(method, CacheRule::Transaction),
        Bound::Head => Plan {
            head_value: view.head.filter(|_| method.head_value).map(|head| head.number),
            head_min: view.head.map(|head| head.number),
            ..Plan::keep(method, CacheRule::Head)
        },
        Bound::Number => match block {
            Ok(Some(block)) => plan_block(method, block, view),
            Ok(None) | Err(_) => Plan::PASS,
        },
    }
}

fn plan_block(method: &Method, block: BlockRef, view: &ChainView) -> Plan {
    let Some(head) = view.head else { return Plan::PASS };
    match block {
        // A block above every trusted head: passed on, the node may know better.
        BlockRef::Number(number) if number > head.number => Plan::PASS,
        BlockRef::Number(number) => at_number(method, number, head.number, None),
        BlockRef::Hash(_) => Plan::keep(method, CacheRule::Hash),
        // With requireCanonical the answer changes when the block is dropped.
        BlockRef::CanonicalHash(_) => Plan::PASS,
        BlockRef::Tag(Tag::Latest) => {
            at_number(method, head.number, head.number, Some(head.number))
        }
        BlockRef::Tag(Tag::Finalized) => match view.finalized {
            Some(number) if view.finalized_by_nodes => {
                at_number(method, number, head.number, Some(number))
            }
            _ => Plan::PASS,
        },
        BlockRef::Tag(Tag::Safe) => {
            Plan { head_min: Some(head.number), ..Plan::keep(method, CacheRule::Head) }
        }
        BlockRef::Tag(Tag::Earliest) => at_number(method, 0, head.number, None),
        BlockRef::Tag(Tag::Pending) => Plan::PASS,
    }
}

fn at_number(method: &Method, number: u64, head: u64, resolved: Option<u64>) -> Plan {
    let settled = number.saturating_add(method.behind_head) <= head;
    let rule = if settled { CacheRule::Number(number) } else { CacheRule::Never };
    Plan { resolved, head_min: Some(number), ..Plan::keep(method, rule) }
}

/// What the answer showed, as far as keeping it depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// A result that is neither null nor names blocks.
    Plain,
    /// `null`: not found, at this moment.
    Null,
    /// A result that names its first and its last block.
    Names(NamedBlock, NamedBlock),
    /// An error that every node would repeat for the same block, such as a revert.
    SettledError,
    /// Any other error.
    Error,
}

/// What a kept answer stays true with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept {
    /// When it is dropped whatever the chain says.
    pub until: Option<Duration>,
    /// Generation of the view when its call began.
    pub generation: u64,
    /// What it is bound to.
    pub hold: Hold,
}

/// What an entry is bound to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// Nothing.
    Always,
    /// A block, and with it all below.
    Block {
        /// Its height.
        number: u64,
        /// Its hash, where it is known.
        hash: Option<Hash>,
    },
    /// The head with this count.
    Head(u64),
}

/// The moment at which a call began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Began {
    /// [`ChainView::generation`] then.
    pub generation: u64,
    /// [`ChainView::head_seq`] then.
    pub head_seq: u64,
}

/// Longest lives of what is not bound to a block.
#[derive(Debug, Clone, Copy)]
pub struct Ages {
    /// Of values of the head.
    pub head: Duration,
    /// Of nulls.
    pub null: Duration,
}

/// Whether and how to keep an answer that has come at `now`; `began` is the view when its call
/// began, `view` the present one. What began before a reorg is not kept if the reorg touched it.
pub fn admit(
    rule: CacheRule,
    shown: Shown,
    began: Began,
    view: &ChainView,
    ages: Ages,
    now: Duration,
) -> Option<Kept> {
    let kept = |hold| Some(Kept { until: None, generation: began.generation, hold });
    let same_head = view.head_seq == began.head_seq && view.head.is_some();
    let at_head = |age| {
        let hold = Hold::Head(began.head_seq);
        same_head.then_some(Kept { until: Some(now + age), generation: began.generation, hold })
    };
    match (rule, shown) {
        (CacheRule::Never, _) | (_, Shown::Error) => None,
        (CacheRule::Constant, Shown::Plain) => kept(Hold::Always),
        (CacheRule::Constant, _) => None,
        (CacheRule::Head, Shown::SettledError) => None,
        (CacheRule::Head, _) => at_head(ages.head),
        // What was not found may turn up with the next block, on the next node.
        (_, Shown::Null) => at_head(ages.null),
        (CacheRule::Hash, _) => kept(Hold::Always),
        (CacheRule::Transaction, Shown::Names(_, last)) => {
            witnessed(&last, began, view).then(|| kept(block(&last))).flatten()
        }
        (CacheRule::Transaction, _) => None,
        (CacheRule::Number(number), Shown::Names(first, last)) => {
            let about_it = first == last && last.number == number;
            (about_it && witnessed(&last, began, view)).then(|| kept(block(&last))).flatten()
        }
        (CacheRule::Number(number), _) => {
            let hold = Hold::Block { number, hash: view.canonical(number) };
            view.valid_since(began.generation, number).then(|| kept(hold)).flatten()
        }
        (CacheRule::Range { from, to }, Shown::Names(first, last)) => {
            let within = first.number >= from && last.number <= to;
            let seen = [&first, &last].iter().all(|named| witnessed(named, began, view));
            let hold = Hold::Block { number: to, hash: view.canonical(to) };
            (within && seen && view.valid_since(began.generation, to)).then(|| kept(hold)).flatten()
        }
        (CacheRule::Range { to, .. }, _) => {
            let hold = Hold::Block { number: to, hash: view.canonical(to) };
            view.valid_since(began.generation, to).then(|| kept(hold)).flatten()
        }
    }
}

/// Whether a block that an answer names is one of the served chain, as far as the view reaches, and
/// stood during the whole call. A block above the head has no witness yet.
fn witnessed(named: &NamedBlock, began: Began, view: &ChainView) -> bool {
    view.head.is_some_and(|head| named.number <= head.number)
        && view.canonical(named.number).is_none_or(|hash| hash == named.hash)
        && view.valid_since(began.generation, named.number)
}

fn block(named: &NamedBlock) -> Hold {
    Hold::Block { number: named.number, hash: Some(named.hash) }
}

/// Whether a kept answer still holds at `now`.
pub fn holds(kept: &Kept, view: &ChainView, now: Duration) -> bool {
    if kept.until.is_some_and(|until| now >= until) {
        return false;
    }
    match kept.hold {
        Hold::Always => true,
        Hold::Head(seq) => view.head.is_some() && view.head_seq == seq,
        Hold::Block { number, hash } => {
            view.valid_since(kept.generation, number)
                && match (hash, view.canonical(number)) {
                    (Some(kept), Some(now)) => kept == now,
                    _ => true,
                }
        }
    }
}
