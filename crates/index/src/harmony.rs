//! A block as Harmony's own methods (`hmyv2_`) write it: kept whole beside the one of `eth_`, and
//! turned into the other forms that their options ask for.
//!
//! The whole one has all transactions and staking transactions. What the other forms have instead
//! follows from it (harmony `rpc/harmony/v2/types.go`); whether a node writes them like that is
//! tried out when a file is made. Signers are not kept: they come with the block after.

use std::ops::Range;

use wire::json::walk;
use wire::{block, quantity};

use crate::cut::Header;
use crate::pieces::{OfBlock, Pass};

#[cfg(test)]
mod tests;

/// Blocks that one `hmyv2_getBlocks` may be apart (harmony `rpc/harmony/blockchain.go`,
/// `rpcGetBlocksLimit`).
pub const APART_MAX: u64 = 1024;
/// The options that ask for all that is kept.
pub const WHOLE_OPTIONS: &str = r#"{"withSigners":false,"fullTx":true,"inclStaking":true}"#;
/// Why nothing of such a chain is verified; stands in a file as how it was.
pub const UNVERIFIED: &str = "unverified: Harmony hashes its blocks in a way of its own";

/// Forms that a node may write in another way than they are put together here; a file names those
/// that its node does: blocks with hashes of transactions,
pub const HASHES: &str = "hmyv2-hashes";
/// blocks without staking transactions,
pub const WITHOUT_STAKING: &str = "hmyv2-without-staking";
/// single blocks,
pub const SINGLE: &str = "hmyv2-single";
/// and counts of transactions.
pub const COUNT: &str = "hmyv2-count";

/// The list of a block's transactions.
const TRANSACTIONS: &[u8] = b"transactions";
/// The list of its staking transactions.
const STAKING: &[u8] = b"stakingTransactions";
/// The list of the hashes by which Ethereum's tools know its transactions; it stands after the
/// transactions in blocks that have hashes only.
const ETH_HASHES: &[u8] = b"transactionsInEthHash";

/// What of a block is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Form {
    /// Whole transactions instead of their hashes (`fullTx`).
    pub whole: bool,
    /// Staking transactions too (`inclStaking`).
    pub staking: bool,
}

impl Form {
    /// The form that is kept.
    pub const KEPT: Form = Form { whole: true, staking: true };

    /// Reads the options of a call; none if they ask for what is not kept, or are not all known.
    pub fn read(options: &[u8]) -> Option<Form> {
        let (mut whole, mut staking, mut signers) = (None, None, None);
        if options.first() != Some(&b'{') {
            return None;
        }
        for (name, value) in walk::members(options) {
            let slot = match &*name.decode() {
                b"fullTx" => &mut whole,
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
        let form = Form { whole: whole.unwrap_or(false), staking: staking.unwrap_or(false) };
        (signers != Some(true)).then_some(form)
    }

    /// The options that ask for it.
    pub fn options(self) -> String {
        format!(r#"{{"fullTx":{},"inclStaking":{}}}"#, self.whole, self.staking)
    }
}

/// What is kept of a raw block, if it is the one with this header.
///
/// # Errors
/// In what it is another one.
pub fn piece(raw: &[u8], header: &Header, of: &OfBlock) -> Result<Vec<u8>, String> {
    fits(raw, header.number, &header.hash)?;
    let mut pass = Pass::new(raw, of);
    pass.value().map_err(|ends| format!("hmyv2 block: {ends}"))?;
    Ok(pass.take())
}

/// Whether a raw block is the one with this number and this hash.
///
/// # Errors
/// Which of them is another.
pub fn fits(raw: &[u8], number: u64, hash: &[u8; 32]) -> Result<(), String> {
    let [said_number, said_hash] = walk::fields_of(raw, ["number", "hash"]);
    if said_number.and_then(quantity::from_value) != Some(number) {
        return Err("hmyv2 block.number: not that of the block".to_owned());
    }
    if said_hash.and_then(block::hash_of_value) != Some(*hash) {
        return Err("hmyv2 block.hash: not that of the block".to_owned());
    }
    Ok(())
}

/// How many transactions a raw block has, and how many staking transactions.
pub fn counts(raw: &[u8]) -> Option<(u64, u64)> {
    let [transactions, staking] = walk::fields_of(raw, ["transactions", "stakingTransactions"]);
    let count = |list: &[u8]| walk::elements(list).count() as u64;
    Some((count(transactions?), count(staking?)))
}

/// Appends a whole block in a form; false, with nothing appended, if it has not what that needs.
pub fn write(out: &mut Vec<u8>, raw: &[u8], form: Form) -> bool {
    if form == Form::KEPT {
        out.extend_from_slice(raw);
        return true;
    }
    let Some(lists) = Lists::find(raw) else { return false };
    let Some(mut edits) = lists.edits(raw, form) else { return false };
    edits.sort_unstable_by_key(|(span, _)| span.start);
    let mut copied = 0;
    for (span, text) in edits {
        out.extend_from_slice(&raw[copied..span.start]);
        out.extend_from_slice(&text);
        copied = span.end;
    }
    out.extend_from_slice(&raw[copied..]);
    true
}

/// Where the lists of a raw block are.
struct Lists {
    transactions: Range<usize>,
    staking: Range<usize>,
    has_eth_hashes: bool,
}

impl Lists {
    fn find(raw: &[u8]) -> Option<Lists> {
        let (mut transactions, mut staking, mut has_eth_hashes) = (None, None, false);
        for (name, span) in walk::member_spans(raw) {
            match &*name.decode() {
                TRANSACTIONS => transactions = Some(span),
                STAKING => staking = Some(span),
                ETH_HASHES => has_eth_hashes = true,
                _ => {}
            }
        }
        Some(Lists { transactions: transactions?, staking: staking?, has_eth_hashes })
    }

    /// What stands in place of which part.
    fn edits(self, raw: &[u8], form: Form) -> Option<Vec<(Range<usize>, Vec<u8>)>> {
        let mut edits = Vec::with_capacity(2);
        if !form.whole {
            let list = &raw[self.transactions.clone()];
            let mut text = texts_of(list, "hash")?;
            if !self.has_eth_hashes {
                text.extend_from_slice(b",\"transactionsInEthHash\":");
                text.extend_from_slice(&texts_of(list, "ethHash")?);
            }
            edits.push((self.transactions, text));
        }
        let staking = match form {
            Form { staking: false, .. } => Some(b"[]".to_vec()),
            Form { whole: false, .. } => Some(texts_of(&raw[self.staking.clone()], "hash")?),
            _ => None,
        };
        edits.extend(staking.map(|text| (self.staking, text)));
        Some(edits)
    }
}

/// The array of a member of all objects of an array; none if one has no such member.
fn texts_of(list: &[u8], member: &str) -> Option<Vec<u8>> {
    let mut texts = b"[".to_vec();
    for raw in walk::elements(list) {
        if texts.len() > 1 {
            texts.push(b',');
        }
        texts.extend_from_slice(walk::member(raw, member)?);
    }
    texts.push(b']');
    Some(texts)
}
