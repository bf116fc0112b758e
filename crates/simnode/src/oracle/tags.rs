//! Resolves the tags of a call to numbers, as a gateway may do before it forwards the call. A tag
//! is a name in place of a block number, such as `latest`. The oracle judges responses. It calls
//! this module only if a response differs from the reply to the unresolved call, so this module may
//! be slow.
//!
//! This module parses parameters itself and shares no code with the gateway.

use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};

use crate::world::World;

/// A call with a tag in its block parameters.
pub(super) enum TaggedCall<'a> {
    /// A call with a block parameter.
    Block {
        params: Vec<&'a RawValue>,
        /// The index of the block parameter.
        index: usize,
        tag: Tag,
    },
    /// A log filter, and the tags of its bounds.
    Logs(serde_json::Map<String, Value>, Bounds),
}

/// The tags of a log filter's bounds. A bound with a number has no tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bounds {
    From(Tag),
    To(Tag),
    Both(Tag, Tag),
}

/// A tag that depends on the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tag {
    Latest,
    Safe,
    Finalized,
}

impl<'a> TaggedCall<'a> {
    /// Reads the tags of a call. Returns `None` if the call has no tag, or if its parameters are
    /// malformed. An absent block parameter means the newest block.
    pub(super) fn read(method: &str, params: Option<&'a [u8]>) -> Option<Self> {
        let values: Vec<&RawValue> = serde_json::from_slice(params.unwrap_or(b"[]")).ok()?;
        if method == "eth_getLogs" {
            let Value::Object(filter) = serde_json::from_str(values.first()?.get()).ok()? else {
                return None;
            };
            if filter.contains_key("blockHash") {
                return None;
            }
            let bound = |name| tag_of(filter.get(name).unwrap_or(&Value::Null));
            let bounds = match (bound("fromBlock"), bound("toBlock")) {
                (Some(from), Some(to)) => Bounds::Both(from, to),
                (Some(from), None) => Bounds::From(from),
                (None, Some(to)) => Bounds::To(to),
                (None, None) => return None,
            };
            return Some(Self::Logs(filter, bounds));
        }
        let index = block_parameter_index(method)?;
        let block = match values.get(index) {
            None => Value::Null,
            Some(raw) => serde_json::from_str(raw.get()).ok()?,
        };
        let tag = tag_of(&block)?;
        // A block parameter can be appended only if all parameters before it are present.
        (values.len() >= index).then_some(Self::Block { params: values, index, tag })
    }

    /// Returns the only tag, or the first of two tags.
    pub(super) fn first_tag(&self) -> Tag {
        match *self {
            Self::Block { tag, .. } | Self::Logs(_, Bounds::From(tag) | Bounds::To(tag)) => tag,
            Self::Logs(_, Bounds::Both(from, _)) => from,
        }
    }

    /// Returns the second tag, if there is one. It may be resolved at another head than the first
    /// tag.
    pub(super) fn second_tag(&self) -> Option<Tag> {
        match *self {
            Self::Logs(_, Bounds::Both(_, to)) => Some(to),
            _ => None,
        }
    }

    /// Returns the parameters with numbers instead of tags. The first tag is resolved in the chain
    /// up to `first_head`, and the second tag in the chain up to `second_head`.
    pub(super) fn resolve(&self, world: &World, first_head: u64, second_head: u64) -> Vec<u8> {
        let resolve_tag = |tag: Tag, head: u64| {
            let number = match tag {
                Tag::Latest => head,
                Tag::Safe => world.safe_number(head),
                Tag::Finalized => world.finalized_number(head),
            };
            json!(format!("{number:#x}"))
        };
        match self {
            Self::Block { params, index, tag } => {
                let block =
                    to_raw_value(&resolve_tag(*tag, first_head)).expect("a text is always JSON");
                let mut params = params.clone();
                if params.len() > *index {
                    params[*index] = &block;
                } else {
                    params.push(&block);
                }
                serde_json::to_vec(&params).expect("raw JSON is always JSON")
            }
            Self::Logs(filter, bounds) => {
                let mut filter = filter.clone();
                let mut set_bound = |name: &str, tag, head| {
                    filter.insert(name.to_owned(), resolve_tag(tag, head));
                };
                match *bounds {
                    Bounds::From(from) => set_bound("fromBlock", from, first_head),
                    Bounds::To(to) => set_bound("toBlock", to, first_head),
                    Bounds::Both(from, to) => {
                        set_bound("fromBlock", from, first_head);
                        set_bound("toBlock", to, second_head);
                    }
                }
                serde_json::to_vec(&json!([filter])).expect("a filter is always JSON")
            }
        }
    }
}

/// Reads a tag. Null means the newest block. Returns `None` for any other value.
fn tag_of(value: &Value) -> Option<Tag> {
    match value {
        Value::Null => Some(Tag::Latest),
        Value::String(text) => match text.as_str() {
            "latest" => Some(Tag::Latest),
            "safe" => Some(Tag::Safe),
            "finalized" => Some(Tag::Finalized),
            _ => None,
        },
        _ => None,
    }
}

/// Returns the index of a method's block parameter. Returns `None` for a method without a block
/// parameter.
fn block_parameter_index(method: &str) -> Option<usize> {
    match method {
        "eth_getBlockByNumber"
        | "eth_getBlockReceipts"
        | "eth_getBlockTransactionCountByNumber"
        | "eth_getUncleCountByBlockNumber"
        | "eth_getTransactionByBlockNumberAndIndex" => Some(0),
        "eth_getBalance"
        | "eth_getTransactionCount"
        | "eth_getCode"
        | "eth_call"
        | "eth_estimateGas"
        | "eth_feeHistory" => Some(1),
        "eth_getStorageAt" => Some(2),
        _ => None,
    }
}
