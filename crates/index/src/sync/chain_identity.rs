//! The identity of a node's chain: its id, and the hash of its first block.

use wire::hex;
use wire::json::walk;
use wire::quantity;

use super::calls::{self, METHOD_NOT_FOUND};
use crate::contents::{Chain, Contents};
use crate::nodes::{Call, Responses};

/// A method that only nodes of Harmony chains have. A call of this method shows if a node belongs
/// to a Harmony chain.
const HARMONY_PROBE: &str = "hmyv2_blockNumber";

/// Returns the calls whose responses identify a chain.
pub(super) fn identity_calls(contents: Contents) -> Vec<Call> {
    let full_transactions = false;
    let mut calls = vec![Call::new("eth_chainId", "[]"), calls::block(0, full_transactions)];
    if contents.hmyv2 {
        calls.push(Call::new(HARMONY_PROBE, "[]"));
    }
    calls
}

/// Reads the chain from the responses to [`identity_calls`].
///
/// # Errors
/// Fails if a response is missing or malformed.
pub(super) fn read_chain(responses: &Responses, contents: Contents) -> Result<Chain, String> {
    let id = responses.result(0).map_err(|error| format!("eth_chainId: {error}"))?;
    let id = quantity::from_value(id).ok_or("eth_chainId: not a quantity")?;
    let block = responses.result(1).map_err(|error| format!("block 0: {error}"))?;
    let genesis_hash = walk::member(block, "hash")
        .and_then(hex::hash_from_value)
        .ok_or("the node does not have block 0, which identifies the chain")?;
    if contents.hmyv2 {
        responses.result(2).map_err(|error| format!("{HARMONY_PROBE}: {error}"))?;
    }
    let family = if contents.hmyv2 { "harmony" } else { "ethereum" };
    Ok(Chain { family: family.to_owned(), id: id.to_string(), genesis_hash })
}

/// Returns the reason why a node can never return Harmony's blocks. Returns `None` if the index
/// does not hold such blocks, or the node may return them.
pub(super) fn missing_harmony(responses: &Responses, contents: Contents) -> Option<String> {
    let error = contents.hmyv2.then(|| responses.result(2).err()).flatten()?;
    let reason = format!("hmyv2 needs a Harmony node, but this node has no {HARMONY_PROBE}");
    (error.code == METHOD_NOT_FOUND).then(|| format!("{reason}: {error}"))
}

/// Returns the reason to remove a node of this chain.
pub(super) fn describe_wrong_chain(chain: &Chain) -> String {
    format!(
        "it is on another chain (id {}, genesis block {})",
        chain.id,
        abbreviate_hash(&chain.genesis_hash)
    )
}

/// Returns the message for an index and a node of different chains.
pub(super) fn describe_mismatch(index: &Chain, node: &Chain) -> String {
    format!(
        "the index is of chain {} (genesis block {}), the node of chain {} (genesis block {})",
        index.id,
        abbreviate_hash(&index.genesis_hash),
        node.id,
        abbreviate_hash(&node.genesis_hash),
    )
}

/// Returns the first eight digits of a hash, for messages.
fn abbreviate_hash(hash: &[u8; 32]) -> String {
    let text = crate::fragments::hash_text(hash);
    String::from_utf8_lossy(&text[..10]).into_owned() + "..."
}
