//! Identifies the chain of all nodes.

use super::chain_identity::{
    describe_wrong_chain, identity_calls, lacks_harmony, mismatch, read_chain,
};
use super::error::SyncError;
use super::node_pool::NodePool;
use crate::contents::{Chain, Contents};
use crate::nodes::Responses;

/// Identifies the chain that the nodes are on, and removes nodes of other chains. `known` is the
/// chain of the index. Returns `None` if the sync was stopped before any chain is known.
///
/// # Errors
/// If all nodes are on another chain than the index, or none can be identified for a new index.
pub(super) fn identify_chain(
    nodes: &NodePool<'_>,
    contents: Contents,
    known: Option<&Chain>,
) -> Result<Option<Chain>, SyncError> {
    let calls = identity_calls(contents);
    let mut chain = known.cloned();
    let mut foreign_chain = None;
    let mut agreed = false;
    let mut last_error = String::new();
    for at in 0..nodes.len() {
        // The outer error is a failed attempt, the inner one a node that can never serve.
        let read = |responses: &Responses| match lacks_harmony(responses, contents) {
            Some(why) => Ok(Err(why)),
            None => read_chain(responses, contents).map(Ok),
        };
        let found = match nodes.call_node(at, &calls, read) {
            Ok(Ok(found)) => found,
            Ok(Err(why)) => {
                last_error = format!("{}: {why}", nodes.name(at));
                nodes.remove(at, &why);
                continue;
            }
            Err(why) => {
                if let Some(why) = why {
                    last_error = format!("{}: {why}", nodes.name(at));
                }
                nodes.set_unidentified(at);
                continue;
            }
        };
        if chain.as_ref().is_some_and(|chain| *chain != found) {
            nodes.remove(at, &describe_wrong_chain(&found));
            foreign_chain.get_or_insert(found);
        } else {
            agreed = true;
            chain = Some(found);
        }
    }
    match (known, foreign_chain) {
        (Some(known), Some(other)) if !agreed => Err(SyncError::Mismatch(mismatch(known, &other))),
        (None, _) if !agreed && !nodes.is_stopped() => {
            if last_error.is_empty() {
                last_error = format!("no node responded: {}", nodes.last_errors());
            }
            Err(SyncError::Nodes(last_error))
        }
        _ => Ok(chain),
    }
}
