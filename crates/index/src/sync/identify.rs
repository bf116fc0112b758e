//! Identifies the chain of a sync: the chain that all nodes must be on.

use super::chain_identity::{
    describe_mismatch, describe_wrong_chain, identity_calls, missing_harmony, read_chain,
};
use super::error::SyncError;
use super::node_pool::NodePool;
use crate::contents::{Chain, Contents};
use crate::nodes::Responses;

/// Identifies the chain that the nodes are on, and removes nodes of other chains. `index_chain` is
/// the chain of an existing index. For a new index, the first identified node decides. Returns
/// `None` if the sync was stopped before any chain is known.
///
/// # Errors
/// Fails if all identified nodes are on another chain than the index. Fails for a new index if no
/// node can be identified.
pub(super) fn identify_chain(
    nodes: &NodePool<'_>,
    contents: Contents,
    index_chain: Option<&Chain>,
) -> Result<Option<Chain>, SyncError> {
    let calls = identity_calls(contents);
    let mut chain = index_chain.cloned();
    let mut foreign_chain = None;
    // True if a node is on the chain of the sync.
    let mut has_matching_node = false;
    let mut last_error = String::new();
    for index in 0..nodes.len() {
        // The outer error is a failed attempt. The inner error is the reason why the node can never
        // be used.
        let read = |responses: &Responses| match missing_harmony(responses, contents) {
            Some(reason) => Ok(Err(reason)),
            None => read_chain(responses, contents).map(Ok),
        };
        let node_chain = match nodes.call_node(index, &calls, read) {
            Ok(Ok(node_chain)) => node_chain,
            Ok(Err(reason)) => {
                last_error = format!("{}: {reason}", nodes.name(index));
                nodes.remove(index, &reason);
                continue;
            }
            Err(reason) => {
                if let Some(reason) = reason {
                    last_error = format!("{}: {reason}", nodes.name(index));
                }
                nodes.set_unidentified(index);
                continue;
            }
        };
        if chain.as_ref().is_some_and(|chain| *chain != node_chain) {
            nodes.remove(index, &describe_wrong_chain(&node_chain));
            foreign_chain.get_or_insert(node_chain);
        } else {
            has_matching_node = true;
            chain = Some(node_chain);
        }
    }
    match (index_chain, foreign_chain) {
        (Some(index_chain), Some(foreign_chain)) if !has_matching_node => {
            Err(SyncError::Mismatch(describe_mismatch(index_chain, &foreign_chain)))
        }
        (None, _) if !has_matching_node && !nodes.is_stopped() => {
            if last_error.is_empty() {
                last_error = format!("no node responded: {}", nodes.last_errors());
            }
            Err(SyncError::Nodes(last_error))
        }
        _ => Ok(chain),
    }
}
