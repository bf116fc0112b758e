//! Blocks as Harmony's `hmyv2_` methods write them. An index stores the full form of a block beside
//! its `eth_` form. A reader converts the block to the form that the options of a call select.
//!
//! The full form has all transactions and staking transactions. Every other form is derived from
//! the full form (harmony `rpc/harmony/v2/types.go`). When a sync initializes an index, it tests if
//! a node returns the same forms. The signers of a block are not stored, because a node has them
//! only after the next block exists.

use std::ops::Range;

use wire::hex;
use wire::json::walk;
use wire::quantity;

use crate::fragments::{BlockContext, BlockHeader, FragmentEncoder};

#[cfg(test)]
mod tests;

/// Maximum distance between the first and the last block of one `hmyv2_getBlocks` (harmony
/// `rpc/harmony/blockchain.go`, `rpcGetBlocksLimit`).
pub const BLOCKS_APART_MAX: u64 = 1024;
/// The JSON of the call options that select the full form. The index stores blocks in this form.
pub const STORED_OPTIONS: &str = r#"{"withSigners":false,"fullTx":true,"inclStaking":true}"#;
/// The text that an index of a Harmony chain stores about its verification.
pub const UNVERIFIED_REASON: &str =
    "unverified: the hashes of Harmony's blocks cannot be recomputed";

/// The name of the response form of blocks with the hashes of their transactions. A response form
/// is one way in which nodes write a kind of object (`contents.rs`).
pub const FORM_HASHES: &str = "hmyv2-hashes";
/// The name of the response form of blocks without staking transactions.
pub const FORM_WITHOUT_STAKING: &str = "hmyv2-without-staking";
/// The name of the response form of the methods that return a single block.
pub const FORM_SINGLE: &str = "hmyv2-single";
/// The name of the response form of the methods that count a block's transactions.
pub const FORM_COUNT: &str = "hmyv2-count";

/// The member that lists a block's transactions.
const TRANSACTIONS: &[u8] = b"transactions";
/// The member that lists a block's staking transactions.
const STAKING: &[u8] = b"stakingTransactions";
/// The member that lists the Ethereum hashes of a block's transactions. Only blocks without full
/// transactions have this member, directly after the transactions.
const ETH_HASHES: &[u8] = b"transactionsInEthHash";

/// The options of a call that change the form of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockOptions {
    /// True if the block has full transactions instead of their hashes (`fullTx`).
    pub full: bool,
    /// True if the block also has its staking transactions (`inclStaking`).
    pub staking: bool,
}

impl BlockOptions {
    /// The options of the stored form.
    pub const STORED: BlockOptions = BlockOptions { full: true, staking: true };

    /// Reads the options of a call. Returns `None` if an option is unknown or repeated, or requests
    /// data that is not stored.
    pub fn read(raw: &[u8]) -> Option<BlockOptions> {
        let (mut full, mut staking, mut signers) = (None, None, None);
        if raw.first() != Some(&b'{') {
            return None;
        }
        for (name, value) in walk::members(raw) {
            let slot = match &*name.decode() {
                b"fullTx" => &mut full,
                b"inclStaking" => &mut staking,
                b"withSigners" => &mut signers,
                _ => return None,
            };
            let value = match value {
                b"true" => true,
                b"false" => false,
                _ => return None,
            };
            if slot.replace(value).is_some() {
                return None;
            }
        }
        let options =
            BlockOptions { full: full.unwrap_or(false), staking: staking.unwrap_or(false) };
        (signers != Some(true)).then_some(options)
    }

    /// Returns the options as the JSON of a call.
    pub fn to_json(self) -> String {
        format!(r#"{{"fullTx":{},"inclStaking":{}}}"#, self.full, self.staking)
    }
}

/// Encodes a raw block in its `hmyv2_` form into a fragment.
///
/// # Errors
/// Fails if the block's number or hash differs from the header, or if the block is not valid JSON.
pub fn encode(raw: &[u8], header: &BlockHeader, context: &BlockContext) -> Result<Vec<u8>, String> {
    check_identity(raw, header.number, &header.hash)?;
    let mut encoder = FragmentEncoder::new(raw, context);
    encoder.cursor.value().map_err(|error| format!("hmyv2 block: {error}"))?;
    Ok(encoder.take())
}

/// Checks that a raw block has this number and this hash.
///
/// # Errors
/// Returns the name of the member that differs.
pub fn check_identity(raw: &[u8], number: u64, hash: &[u8; 32]) -> Result<(), String> {
    let [raw_number, raw_hash] = walk::fields_of(raw, ["number", "hash"]);
    if raw_number.and_then(quantity::from_value) != Some(number) {
        return Err("hmyv2 block.number: differs from the number in the eth_ form".to_owned());
    }
    if raw_hash.and_then(hex::hash_from_value) != Some(*hash) {
        return Err("hmyv2 block.hash: differs from the hash in the eth_ form".to_owned());
    }
    Ok(())
}

/// Returns the number of transactions and the number of staking transactions of a raw block.
/// Returns `None` if the block lacks one of the lists.
pub fn count_transactions(raw: &[u8]) -> Option<(u64, u64)> {
    let [transactions, staking] = walk::fields_of(raw, ["transactions", "stakingTransactions"]);
    let count = |list: &[u8]| walk::elements(list).count() as u64;
    Some((count(transactions?), count(staking?)))
}

/// Appends a block in the form that the options select, given its stored form. Returns false and
/// appends nothing if the block lacks a member that the form needs.
pub fn write_block(out: &mut Vec<u8>, stored: &[u8], options: BlockOptions) -> bool {
    if options == BlockOptions::STORED {
        out.extend_from_slice(stored);
        return true;
    }
    let Some(lists) = TransactionLists::find(stored) else { return false };
    let Some(mut edits) = lists.plan_edits(stored, options) else { return false };
    edits.sort_unstable_by_key(|(span, _)| span.start);
    let mut copied_to = 0;
    for (span, text) in edits {
        out.extend_from_slice(&stored[copied_to..span.start]);
        out.extend_from_slice(&text);
        copied_to = span.end;
    }
    out.extend_from_slice(&stored[copied_to..]);
    true
}

/// The spans of the transaction lists in a raw block.
struct TransactionLists {
    transactions: Range<usize>,
    staking: Range<usize>,
    /// True if the block has the member [`ETH_HASHES`].
    has_eth_hashes: bool,
}

impl TransactionLists {
    /// Finds the lists. Returns `None` if the block lacks one of them.
    fn find(raw: &[u8]) -> Option<TransactionLists> {
        let (mut transactions, mut staking, mut has_eth_hashes) = (None, None, false);
        for (name, span) in walk::member_spans(raw) {
            match &*name.decode() {
                TRANSACTIONS => transactions = Some(span),
                STAKING => staking = Some(span),
                ETH_HASHES => has_eth_hashes = true,
                _ => {}
            }
        }
        Some(TransactionLists { transactions: transactions?, staking: staking?, has_eth_hashes })
    }

    /// Returns the spans that must be replaced to convert the block, each with its new text.
    /// Returns `None` if a transaction lacks a hash.
    fn plan_edits(self, raw: &[u8], options: BlockOptions) -> Option<Vec<(Range<usize>, Vec<u8>)>> {
        let mut edits = Vec::with_capacity(2);
        if !options.full {
            let list = &raw[self.transactions.clone()];
            let mut text = collect_member(list, "hash")?;
            if !self.has_eth_hashes {
                text.extend_from_slice(b",\"transactionsInEthHash\":");
                text.extend_from_slice(&collect_member(list, "ethHash")?);
            }
            edits.push((self.transactions, text));
        }
        let staking_text = match (options.staking, options.full) {
            (false, _) => Some(b"[]".to_vec()),
            (true, false) => Some(collect_member(&raw[self.staking.clone()], "hash")?),
            (true, true) => None,
        };
        edits.extend(staking_text.map(|text| (self.staking, text)));
        Some(edits)
    }
}

/// Returns an array with the value of one member of each object in an array. Returns `None` if an
/// object lacks the member.
fn collect_member(list: &[u8], member: &str) -> Option<Vec<u8>> {
    let mut array = b"[".to_vec();
    for raw in walk::elements(list) {
        if array.len() > 1 {
            array.push(b',');
        }
        array.extend_from_slice(walk::member(raw, member)?);
    }
    array.push(b']');
    Some(array)
}
