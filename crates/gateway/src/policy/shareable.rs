//! Tags of cached responses that every replica can check. A tag names the blocks that its response
//! depends on.
//!
//! A *replica* is another gateway process with the same configuration and Redis. A [`ValidityTag`]
//! contains counters of one process, which another process cannot interpret. A [`ShareableTag`]
//! contains block hashes instead. [`find_proof`] decides when a response may be shared through
//! Redis, and [`to_shareable`] returns its tag. [`adopt`] checks a tag from another replica against
//! this replica's *view*, its snapshot of the chain's newest blocks. A response whose tag cannot be
//! verified is not used. So a lost message or outdated data in Redis may cost a cache hit, but
//! clients never get a response about a dropped block.

use crate::policy::cacheable::{Binding, CacheRule, ResponseFacts, ValidityTag, is_valid};
use crate::policy::heads::{ChainView, Head};

mod tag;
#[cfg(test)]
mod tests;

pub use tag::ShareableTag;

/// Evidence that a response is about the block in its tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    /// The response names its block, its block is final, or it depends on no block. The response
    /// may be shared at once.
    Given,
    /// There is no evidence yet, because the upstream may have changed its branch unnoticed. The
    /// response may be shared once the next poll confirms that the upstream is still on the served
    /// branch.
    NextPoll,
    /// The response must not be shared.
    None,
}

/// Returns the evidence that an admitted response is about its block.
pub fn find_proof(
    rule: CacheRule,
    tag: &ValidityTag,
    response: &ResponseFacts,
    view: &ChainView,
) -> Proof {
    if tag.is_null {
        // A null may become a value at any moment, so other replicas must call an upstream
        // themselves.
        return Proof::None;
    }
    match tag.binding {
        Binding::Free => Proof::Given,
        Binding::Block { number, .. } if view.is_finalized(number) => Proof::Given,
        // Logs name only the blocks that contain them. This proves nothing about the other blocks
        // of the range.
        Binding::Block { .. }
            if response.named_blocks.is_some() && !matches!(rule, CacheRule::AtRange { .. }) =>
        {
            Proof::Given
        }
        Binding::Block { .. } | Binding::Head { .. } => Proof::NextPoll,
    }
}

/// Returns the tag of a response. Returns `None` if the response is null or not valid in `view` any
/// more. Also returns `None` if the hash of its block is needed and unknown.
pub fn to_shareable(tag: &ValidityTag, view: &ChainView) -> Option<ShareableTag> {
    if tag.is_null || !is_valid(tag, view) {
        return None;
    }
    match tag.binding {
        Binding::Free => Some(ShareableTag::Free),
        Binding::Block { number, hash } if view.is_finalized(number) => {
            Some(ShareableTag::Final { number, hash: hash.or_else(|| view.canonical(number)) })
        }
        Binding::Block { number, hash } => {
            let hash = hash?;
            (view.canonical(number) == Some(hash)).then_some(ShareableTag::Block { number, hash })
        }
        Binding::Head { .. } => {
            view.head.map(|Head { number, hash }| ShareableTag::Head { number, hash })
        }
    }
}

/// Returns this process's tag for a response from another replica. Returns `None` if the response
/// does not fit the call's `rule`, or if `view` does not show that the response is valid.
pub fn adopt(
    shareable_tag: &ShareableTag,
    rule: CacheRule,
    view: &ChainView,
) -> Option<ValidityTag> {
    let binding = match *shareable_tag {
        ShareableTag::Free => {
            if !matches!(rule, CacheRule::Constant | CacheRule::AtHash) {
                return None;
            }
            Binding::Free
        }
        ShareableTag::Final { number, hash } => {
            // If the block is final only in the other replica's view, the hash decides, as for any
            // other block.
            let is_known = hash.is_some() && view.canonical(number) == hash;
            if !is_block_of_call(rule, number) || !(is_known || view.is_finalized(number)) {
                return None;
            }
            Binding::Block { number, hash }
        }
        ShareableTag::Block { number, hash } => {
            // A block below the view's window of known blocks is rejected, even if it is final now.
            // The block with this hash was not final when the tag was made, so another block may be
            // final at its height.
            if !is_block_of_call(rule, number) || view.canonical(number) != Some(hash) {
                return None;
            }
            Binding::Block { number, hash: Some(hash) }
        }
        ShareableTag::Head { number, hash } => {
            if rule != CacheRule::AtHead || view.head != Some(Head { number, hash }) {
                return None;
            }
            Binding::Head { seq: view.head_seq }
        }
    };
    let tag = ValidityTag { binding, generation: view.generation, is_null: false };
    is_valid(&tag, view).then_some(tag)
}

/// Returns true if a call with this rule can get a response about the block at this height.
fn is_block_of_call(rule: CacheRule, height: u64) -> bool {
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
