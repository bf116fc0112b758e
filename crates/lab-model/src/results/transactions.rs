//! The result of signed transactions: how many were sent, and how many got into a block.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Quantiles;

/// The signed transactions of a plan over the whole run, warm-up included.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TransactionsRow {
    /// Transactions of the file.
    pub total: u64,
    /// Their senders.
    pub senders: u64,
    /// Transactions that were sent, each of them once.
    pub sent: u64,
    /// Sent transactions for which the server returned a result.
    pub accepted: u64,
    /// Sent transactions for which the server returned a JSON-RPC error.
    pub refused: u64,
    /// Sent transactions with no such response: timeouts, lost connections, other responses.
    pub unanswered: u64,
    /// Messages of the JSON-RPC errors, each with its number of transactions. Numbers in a message
    /// are replaced by `N`.
    pub refusals: Vec<(String, u64)>,
    /// Inclusion in blocks; none if the chain could not be watched.
    pub inclusion: Option<InclusionRow>,
}

/// Inclusion of transactions in blocks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct InclusionRow {
    /// Sent transactions that got into a block.
    pub included: u64,
    /// Sent transactions that the server did not refuse and that got into no block until the end
    /// of the wait.
    pub pending: u64,
    /// Time from the scheduled send until a poll saw the transaction in a block, after the warm-up.
    pub time: Quantiles,
    /// Seconds between two polls of the newest block.
    pub interval: f64,
    /// Seconds from the last call to the end of the wait.
    pub waited: f64,
    /// Blocks that were read.
    pub blocks: u64,
    /// Polls that failed.
    pub polls_failed: u64,
}
