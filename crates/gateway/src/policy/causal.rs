//! Keeps responses within the served chain: no response shows a block above the *served head*, the
//! newest block that clients get as `latest`.
//!
//! An upstream may have a block before the gateway serves it. A client that has seen the block
//! would then get older data with its next call. So `resolve/causal.rs` holds a response about
//! such a block until the block is served. If that takes too long, the client gets the response
//! that it would have got a moment earlier ([`Resolved::respond_as_of`]).

use wire::block::{BlockRef, BlockTag, ResponseBlock, read_response_blocks};
use wire::call::Params;
use wire::filter::LogFilter;
use wire::json::walk;
use wire::method::{Method, Validity};
use wire::quantity;

use crate::policy::cacheable::CacheRule;

#[cfg(test)]
mod tests;

/// Start of the error for a transaction that was sent and is not in a served block yet. The code
/// comes from EIP-7966. The transaction's hash and a brace follow.
const SENT_BUT_NOT_MINED: &[u8] =
    br#"{"code":4,"message":"the transaction was sent; its block is not served yet","data":"#;

/// The error of a call about a block that is not served yet, in the words of geth (`errHeaderNotFound`
/// in `internal/ethapi/api.go`), which client libraries know.
const BLOCK_NOT_SERVED: &[u8] = br#"{"code":-32000,"message":"header not found"}"#;

/// A call and its result.
#[derive(Debug, Clone, Copy)]
pub struct Resolved<'a> {
    /// The method's row of the method table.
    pub method: &'a Method,
    /// The raw parameters; `None` if the call has none.
    pub params: Option<&'a [u8]>,
    /// The raw result.
    pub result: &'a [u8],
}

/// The response to a call as of the served head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EarlierResponse {
    /// This raw result.
    Result(Vec<u8>),
    /// This raw error object.
    Error(Vec<u8>),
    /// The number of the served head.
    Head,
    /// No response is right as of the served head, so the call fails.
    Unavailable,
}

/// Returns true if the result of a call with this rule may show a block, and the caching decision
/// does not say which. `min_head` is the height that an upstream needs for the call. It is 0 if the
/// call names a height above the served head.
pub fn must_read(method: &Method, rule: CacheRule, min_head: u64) -> bool {
    let names_future_block = || method.validity == Validity::Number && min_head == 0;
    rule == CacheRule::Never
        && (method.response_block != ResponseBlock::None
            || method.head_value
            || names_future_block())
}

impl Resolved<'_> {
    /// Returns the height of the highest block that the result shows; `None` if it shows no block.
    pub fn highest_block(&self) -> Option<u64> {
        let Resolved { method, result, .. } = *self;
        if result == b"null" {
            return None;
        }
        if method.head_value {
            return quantity::from_value(result);
        }
        let block = self.block();
        if block == Some(BlockRef::Tag(BlockTag::Pending)) {
            // The pending block shows its parent.
            let number = walk::member(result, "number").and_then(quantity::from_value)?;
            let is_block = method.response_block == ResponseBlock::Itself;
            return is_block.then(|| number.saturating_sub(1));
        }
        let named = read_response_blocks(method.response_block, result)
            .map(|(first, last)| first.number.max(last.number));
        match block {
            Some(BlockRef::Number(number)) => named.max(Some(number)),
            _ => named,
        }
    }

    /// Returns the response as of the served head. The result of this call shows a block above it.
    pub fn respond_as_of(&self, head: u64) -> EarlierResponse {
        let Resolved { method, result, .. } = *self;
        if method.head_value {
            return EarlierResponse::Head;
        }
        if method.write {
            return self.sent_but_not_mined();
        }
        let null = || EarlierResponse::Result(b"null".to_vec());
        let block_not_served = || EarlierResponse::Error(BLOCK_NOT_SERVED.to_vec());
        match (method.response_block, method.validity) {
            (ResponseBlock::ElementMembers, Validity::Logs | Validity::Never) => {
                match self.names_block_of_logs() {
                    true => block_not_served(),
                    false => EarlierResponse::Result(items_up_to(result, head)),
                }
            }
            (_, Validity::Transaction) => null(),
            (response_block, _) => match self.block() {
                // The block of a tag always exists.
                Some(BlockRef::Tag(_)) | None => EarlierResponse::Unavailable,
                Some(_) if response_block == ResponseBlock::None && !self.describes_block() => {
                    block_not_served()
                }
                Some(_) => null(),
            },
        }
    }

    /// Returns true if the call asks for a property of the block that its first parameter names. For
    /// an unknown block, nodes then return `null` and no error.
    fn describes_block(&self) -> bool {
        let is_first = self.method.block.as_ref().is_some_and(|block| block.at == 0);
        is_first && self.method.name.starts_with("eth_")
    }

    /// Returns the block that the call names.
    fn block(&self) -> Option<BlockRef> {
        let params = Params::Array(self.params?);
        self.method.block_ref(&params).ok().flatten().map(|(block, _)| block)
    }

    /// Returns true if the call is for the logs of one block by its hash.
    fn names_block_of_logs(&self) -> bool {
        let filter = self.params.and_then(|params| walk::elements(params).next());
        self.method.validity == Validity::Logs
            && filter
                .and_then(|filter| LogFilter::parse(filter).ok())
                .is_some_and(|filter| filter.block_hash.is_some())
    }

    /// Returns the error for a transaction whose block is not served yet. The upstream has accepted
    /// the transaction, so the error contains its hash.
    fn sent_but_not_mined(&self) -> EarlierResponse {
        let Some(hash) = walk::member(self.result, "transactionHash") else {
            return EarlierResponse::Unavailable;
        };
        EarlierResponse::Error([SENT_BUT_NOT_MINED, hash, b"}"].concat())
    }
}

/// Returns a raw array without the elements whose blocks are above `head`. The other elements are
/// unchanged.
fn items_up_to(result: &[u8], head: u64) -> Vec<u8> {
    let is_served = |item: &&[u8]| {
        let number = walk::member(item, "blockNumber").and_then(quantity::from_value);
        number.is_none_or(|number| number <= head)
    };
    let items: Vec<&[u8]> = walk::elements(result).filter(is_served).collect();
    [&b"["[..], &items.join(&b','), b"]"].concat()
}
