//! The JSON-RPC calls that a sync sends to nodes.

use wire::error::ErrorCode;
use wire::json::walk;

use crate::nodes::{Call, Responses};

/// The code of the error that a node returns for an unknown method.
pub(super) const METHOD_NOT_FOUND: i64 = ErrorCode::METHOD_NOT_FOUND.0 as i64;
/// The code of the error that a node returns for parameters that it does not accept.
pub(super) const INVALID_PARAMS: i64 = ErrorCode::INVALID_PARAMS.0 as i64;

/// The method that returns a block.
pub(super) const BLOCK: &str = "eth_getBlockByNumber";
/// The method that returns all receipts of a block.
pub(super) const BLOCK_RECEIPTS: &str = "eth_getBlockReceipts";
/// The method that returns the logs of a range.
pub(super) const LOGS: &str = "eth_getLogs";
/// The method that returns a range of blocks in their `hmyv2_` form (`harmony.rs`).
pub(super) const HARMONY_BLOCKS: &str = "hmyv2_getBlocks";

/// Returns a call for a block with full transactions, or with only their hashes if
/// `full_transactions` is false.
pub(super) fn block(number: u64, full_transactions: bool) -> Call {
    Call::new(BLOCK, format!(r#"["{number:#x}",{full_transactions}]"#))
}

/// Returns a call for all receipts of a block.
pub(super) fn block_receipts(number: u64) -> Call {
    Call::new(BLOCK_RECEIPTS, format!(r#"["{number:#x}"]"#))
}

/// Returns a call for all logs of a range.
pub(super) fn logs((from, to): (u64, u64)) -> Call {
    Call::new(LOGS, format!(r#"[{{"fromBlock":"{from:#x}","toBlock":"{to:#x}"}}]"#))
}

/// Returns a call for a range of blocks in their `hmyv2_` form, with these options.
pub(super) fn harmony_blocks((from, to): (u64, u64), options: &str) -> Call {
    Call::new(HARMONY_BLOCKS, format!("[{from},{to},{options}]"))
}

/// Maximum number of receipts of one batch. Most providers limit batches to a hundred calls.
const RECEIPTS_PER_BATCH: usize = 50;

/// Fetches the receipts of a raw block with one call per receipt, for nodes without a method that
/// returns all of them. Returns an array of the receipts. `send` sends a batch of calls.
/// `take_receipt` returns the raw receipt at an index of the responses.
///
/// # Errors
/// Fails if `send` or `take_receipt` fails.
pub(super) fn receipts_one_by_one<E>(
    block: &[u8],
    mut send: impl FnMut(&[Call]) -> Result<Responses, E>,
    take_receipt: impl Fn(&Responses, usize) -> Result<&[u8], E>,
) -> Result<Vec<u8>, E> {
    let mut array = b"[".to_vec();
    for batch in receipt_calls(block).chunks(RECEIPTS_PER_BATCH) {
        let responses = send(batch)?;
        for index in 0..batch.len() {
            let raw = take_receipt(&responses, index)?;
            if array.len() > 1 {
                array.push(b',');
            }
            array.extend_from_slice(raw);
        }
    }
    array.push(b']');
    Ok(array)
}

/// Returns a call for each receipt of a raw block.
fn receipt_calls(block: &[u8]) -> Vec<Call> {
    let transactions = walk::member(block, "transactions").unwrap_or_default();
    walk::elements(transactions)
        .filter_map(|raw| match raw.first() {
            Some(b'"') => Some(raw),
            _ => walk::member(raw, "hash"),
        })
        .filter_map(|hash| std::str::from_utf8(hash).ok())
        .map(|hash| Call::new("eth_getTransactionReceipt", format!("[{hash}]")))
        .collect()
}
