//! The result of signed transactions: how many were sent, and how many got into a block.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Quantiles;

/// The signed transactions of a plan over the whole run, warm-up included.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TransactionsRow {
    /// Number of transactions in the file.
    pub total: u64,
    /// Number of different senders of these transactions.
    pub senders: u64,
    /// Number of transactions that were sent. Each is sent at most once.
    pub sent: u64,
    /// Number of sent transactions for which the server returned a result.
    pub accepted: u64,
    /// Number of sent transactions for which the server returned a JSON-RPC error.
    pub refused: u64,
    /// Number of sent transactions without a result or JSON-RPC error: timeouts, lost connections
    /// and other responses.
    pub unanswered: u64,
    /// Messages of the JSON-RPC errors, each with its number of transactions. Numbers in a message
    /// are replaced by `N`.
    pub refusals: Vec<(String, u64)>,
    /// Inclusion in blocks. None if the blocks of the chain could not be read.
    pub inclusion: Option<InclusionRow>,
}

/// Inclusion of transactions in blocks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct InclusionRow {
    /// Number of sent transactions that got into a block.
    pub included: u64,
    /// Number of sent transactions that the server did not refuse, but that were in no block at the
    /// end of the wait.
    pub pending: u64,
    /// Time from a transaction's scheduled send until a poll saw it in a block. Transactions of the
    /// warm-up are left out.
    pub time: Quantiles,
    /// Seconds between two polls of the newest block.
    pub interval: f64,
    /// Length of the wait for pending transactions after the load, in seconds.
    pub waited: f64,
    /// Number of blocks that were read.
    pub blocks: u64,
    /// Number of polls that failed.
    pub polls_failed: u64,
}
