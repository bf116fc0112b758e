//! What a kept answer is bound to in words that every replica understands, and whether it holds
//! here.
//!
//! [`Kept`] counts by one process' own marks, which mean nothing to another. A [`Bond`] names block
//! hashes instead. [`proof`] says when an answer may leave the process, [`bond()`] what it is bound
//! to then, and [`adopt`] judges one that comes from elsewhere by this replica's own view: what it
//! cannot verify is not used. So a message that is lost, or a store that is behind, can cost a hit
//! and never an answer about a block that was dropped.

use crate::policy::cacheable::{AnswerFacts, Binding, CacheRule, Kept, usable};
use crate::policy::heads::{ChainView, Head};

mod bond;
#[cfg(test)]
mod tests;

pub use bond::Bond;

/// What shows that an answer is about the block that it is to be bound to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    /// The answer itself, or finality: it may be stored at once.
    Given,
    /// Nothing yet: the upstream may have changed its branch without our having seen it. It may be
    /// stored once the same upstream was polled again and is still on the branch.
    NextPoll,
    /// It is not to be stored elsewhere at all.
    None,
}

/// What shows that an admitted answer is about its block.
pub fn proof(rule: CacheRule, kept: &Kept, answer: &AnswerFacts, view: &ChainView) -> Proof {
    if kept.null {
        // It may be found at any moment; other replicas ask for themselves.
        return Proof::None;
    }
    match kept.binding {
        Binding::Free => Proof::Given,
        Binding::Block { number, .. } if view.is_finalized(number) => Proof::Given,
        // Logs name the blocks that they stand in, which says nothing of the range's other blocks.
        Binding::Block { .. } if answer.named.is_some() && !is_range(rule) => Proof::Given,
        Binding::Block { .. } | Binding::Head { .. } => Proof::NextPoll,
    }
}

fn is_range(rule: CacheRule) -> bool {
    matches!(rule, CacheRule::AtRange { .. } | CacheRule::Logs)
}

/// What an answer is bound to, if it still holds in the present `view` and its block can be named.
pub fn bond(kept: &Kept, view: &ChainView) -> Option<Bond> {
    if kept.null || !usable(kept, view) {
        return None;
    }
    match kept.binding {
        Binding::Free => Some(Bond::Free),
        Binding::Block { number, hash } if view.is_finalized(number) => {
            Some(Bond::Final { number, hash: hash.or_else(|| view.canonical(number)) })
        }
        Binding::Block { number, hash } => {
            let hash = hash?;
            (view.canonical(number) == Some(hash)).then_some(Bond::Block { number, hash })
        }
        Binding::Head { .. } => view.head.map(|Head { number, hash }| Bond::Head { number, hash }),
    }
}

/// What an answer from elsewhere is bound to here, if it fits the call and this replica's present
/// `view` shows that it holds.
pub fn adopt(bond: &Bond, rule: CacheRule, view: &ChainView) -> Option<Kept> {
    let binding = match *bond {
        Bond::Free => {
            if !matches!(rule, CacheRule::Constant | CacheRule::AtHash) {
                return None;
            }
            Binding::Free
        }
        Bond::Final { number, hash } => {
            // Final there and not here: the hash decides, as for any other block.
            let known = hash.is_some() && view.canonical(number) == hash;
            if !fits(rule, number) || !(known || view.is_finalized(number)) {
                return None;
            }
            Binding::Block { number, hash }
        }
        Bond::Block { number, hash } => {
            // Below the window a final height says nothing of a hash that was not final then.
            if !fits(rule, number) || view.canonical(number) != Some(hash) {
                return None;
            }
            Binding::Block { number, hash: Some(hash) }
        }
        Bond::Head { number, hash } => {
            if rule != CacheRule::AtHead || view.head != Some(Head { number, hash }) {
                return None;
            }
            Binding::Head { seq: view.head_seq }
        }
    };
    let kept = Kept { binding, generation: view.generation, null: false };
    usable(&kept, view).then_some(kept)
}

/// Whether an answer about the block at this height can be the answer to the call.
fn fits(rule: CacheRule, height: u64) -> bool {
    match rule {
        CacheRule::AtNumber { number, .. } => number == height,
        CacheRule::AtRange { to, .. } => to == height,
        CacheRule::AtTransaction => true,
        CacheRule::Never
        | CacheRule::Constant
        | CacheRule::AtHash
        | CacheRule::AtHead
        | CacheRule::Logs => false,
    }
}
