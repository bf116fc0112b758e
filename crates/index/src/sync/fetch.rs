//! Some blocks from a node: fetched, verified, cut into rows.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use wire::json::walk;
use wire::{block, quantity};

use super::Options;
use crate::cut::{self, CutError, Header, Said};
use crate::nodes::{AskError, Call, Line, Refusal, Replies};
use crate::pack::{PackError, Packer};
use crate::rules::pace;
use crate::store::{Facts, NewBlock, What};
use crate::verify::{self, Level};

/// Code of a method that a node does not have (JSON-RPC 2.0 section 5.1).
const NO_METHOD: i64 = -32601;

/// What is asked of each block.
pub struct Plan {
    what: What,
    verify: Level,
    /// No node so far was without `eth_getBlockReceipts`.
    whole_receipts: AtomicBool,
}

impl Plan {
    /// For a file.
    pub fn new(facts: &Facts, options: &Options) -> Plan {
        Plan::of(facts.what, options.verify)
    }

    pub(super) fn of(what: What, verify: Level) -> Plan {
        Plan { what, verify, whole_receipts: AtomicBool::new(true) }
    }
}

/// Why blocks could not be had.
#[derive(Debug, thiserror::Error)]
pub(super) enum FetchError {
    /// The exchange failed.
    #[error(transparent)]
    Ask(#[from] AskError),
    /// Too many blocks at once; the most that the node named.
    #[error("{why}")]
    TooMuch { named: Option<u64>, why: String },
    /// The node does not have something of a block.
    #[error("block {number}: {why}")]
    Missing { number: u64, why: String },
    /// What it said contradicts itself: it lies, or the chain has turned in between.
    #[error("block {number}: {why}")]
    Contradicts { number: u64, why: String },
    /// Packing failed.
    #[error(transparent)]
    Pack(#[from] PackError),
}

/// What a fetch brought.
pub(super) struct Fetched {
    pub(super) blocks: Vec<NewBlock>,
    /// Bytes of the messages.
    pub(super) bytes: u64,
    /// How long the node took.
    pub(super) took: Duration,
}

/// Fetches blocks `from` to `to`.
pub(super) fn fetch(
    line: &mut Line,
    packer: &mut Packer,
    plan: &Plan,
    (from, to): (u64, u64),
) -> Result<Fetched, FetchError> {
    let begun = Instant::now();
    let blocks = (to - from + 1) as usize;
    let calls = calls(plan, from, to);
    let replies = line.ask(&calls).map_err(|error| match error {
        AskError::Refused(ref refusal) => too_much(refusal).unwrap_or(FetchError::Ask(error)),
        AskError::Status { status: 413, .. } => {
            FetchError::TooMuch { named: None, why: error.to_string() }
        }
        error => FetchError::Ask(error),
    })?;
    let mut fetched = Fetched {
        blocks: Vec::with_capacity(blocks),
        bytes: replies.bytes() as u64,
        took: begun.elapsed(),
    };
    let logs = match calls.get(blocks) {
        Some(call) if call.method == "eth_getLogs" => {
            Some(by_block(result(&replies, blocks, from)?))
        }
        _ => None,
    };
    for at in 0..blocks {
        let number = from + at as u64;
        let raw = result(&replies, at, number)?;
        if raw == b"null" {
            return Err(FetchError::Missing {
                number,
                why: "the node does not have it".to_owned(),
            });
        }
        let by_hand;
        let receipts = if !plan.what.receipts {
            None
        } else if calls.len() > blocks && logs.is_none() {
            match replies.result(blocks + at) {
                Err(refusal) if refusal.code == NO_METHOD => {
                    plan.whole_receipts.store(false, Ordering::Relaxed);
                    by_hand = one_by_one(line, raw, number)?;
                    Some(by_hand.as_slice())
                }
                _ => Some(result(&replies, blocks + at, number)?),
            }
        } else {
            by_hand = one_by_one(line, raw, number)?;
            Some(by_hand.as_slice())
        };
        if receipts == Some(b"null") {
            let why = "the node does not have its receipts".to_owned();
            return Err(FetchError::Missing { number, why });
        }
        let own = logs.as_ref().map(|logs| logs_of(logs, raw));
        let said = Said { block: raw, receipts, logs: own.as_deref() };
        let contradicts = |why: String| FetchError::Contradicts { number, why };
        check(plan, said, number).map_err(contradicts)?;
        let block = cut::cut(packer, said, plan.what).map_err(|error| match error {
            CutError::Form(why) => contradicts(why),
            CutError::Pack(error) => FetchError::Pack(error),
        })?;
        fetched.blocks.push(block);
    }
    if let Some(logs) = &logs {
        let known = |hash: &[u8; 32]| fetched.blocks.iter().any(|block| block.hash == *hash);
        if let Some((_, raw)) = logs.iter().find(|(hash, _)| !known(hash)) {
            let number = walk::member(raw, "blockNumber").and_then(quantity::from_value);
            let why = "a log names another block than the node has there".to_owned();
            return Err(FetchError::Contradicts { number: number.unwrap_or(from), why });
        }
    }
    Ok(fetched)
}

fn calls(plan: &Plan, from: u64, to: u64) -> Vec<Call> {
    let whole = plan.what.blocks || plan.what.receipts;
    let block = |number| Call::new("eth_getBlockByNumber", format!(r#"["{number:#x}",{whole}]"#));
    let mut calls: Vec<Call> = (from..=to).map(block).collect();
    if plan.what.receipts {
        if plan.whole_receipts.load(Ordering::Relaxed) {
            let receipts =
                |number| Call::new("eth_getBlockReceipts", format!(r#"["{number:#x}"]"#));
            calls.extend((from..=to).map(receipts));
        }
    } else if plan.what.logs {
        let filter = format!(r#"[{{"fromBlock":"{from:#x}","toBlock":"{to:#x}"}}]"#);
        calls.push(Call::new("eth_getLogs", filter));
    }
    calls
}

fn result(replies: &Replies, at: usize, number: u64) -> Result<&[u8], FetchError> {
    replies.result(at).map_err(|refusal| {
        too_much(refusal)
            .unwrap_or_else(|| FetchError::Missing { number, why: refusal.to_string() })
    })
}

fn too_much(refusal: &Refusal) -> Option<FetchError> {
    let named = pace::told_too_much(refusal.code, &refusal.message)?;
    Some(FetchError::TooMuch { named, why: refusal.to_string() })
}

/// The receipts of a block from a node that gives them one by one only.
fn one_by_one(line: &mut Line, block: &[u8], number: u64) -> Result<Vec<u8>, FetchError> {
    let calls = receipt_calls(block);
    let mut all = b"[".to_vec();
    for some in calls.chunks(RECEIPTS_AT_ONCE) {
        let replies = line.ask(some)?;
        for at in 0..some.len() {
            let raw = result(&replies, at, number)?;
            if raw == b"null" {
                let why = "the node does not have all of its receipts".to_owned();
                return Err(FetchError::Missing { number, why });
            }
            if all.len() > 1 {
                all.push(b',');
            }
            all.extend_from_slice(raw);
        }
    }
    all.push(b']');
    Ok(all)
}

/// A call for each receipt of a raw block.
pub(super) fn receipt_calls(block: &[u8]) -> Vec<Call> {
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

/// Receipts in a batch: providers limit batches to a hundred calls, most of them.
pub(super) const RECEIPTS_AT_ONCE: usize = 50;

/// The logs of a range by the hash of their block, in order.
fn by_block(logs: &[u8]) -> Vec<([u8; 32], &[u8])> {
    walk::elements(logs)
        .filter_map(|raw| Some((block::hash_of_value(walk::member(raw, "blockHash")?)?, raw)))
        .collect()
}

/// The array of the logs of one block.
fn logs_of(logs: &[([u8; 32], &[u8])], block: &[u8]) -> Vec<u8> {
    let hash = walk::member(block, "hash").and_then(block::hash_of_value);
    let mut own = b"[".to_vec();
    for (_, raw) in logs.iter().filter(|(of, _)| Some(*of) == hash) {
        if own.len() > 1 {
            own.push(b',');
        }
        own.extend_from_slice(raw);
    }
    own.push(b']');
    own
}

/// Whether what was said of a block is true, as far as its hash tells.
fn check(plan: &Plan, said: Said<'_>, number: u64) -> Result<(), String> {
    let header = Header::read(said.block).map_err(|error| error.to_string())?;
    if header.number != number {
        return Err(format!("block.number: {}, where {number} was asked for", header.number));
    }
    if plan.verify == Level::Off {
        return Ok(());
    }
    if !(plan.what.blocks || plan.what.receipts) {
        let verified =
            verify::header(said.block, plan.verify).map_err(|fault| fault.to_string())?;
        return match said.logs {
            Some(logs) => {
                verify::logs(&verified, logs, plan.verify).map_err(|fault| fault.to_string())
            }
            None => Ok(()),
        };
    }
    let level = plan.verify;
    let verified = verify::block(said.block, level).map_err(|fault| fault.to_string())?;
    if let Some(receipts) = said.receipts {
        verify::receipts(&verified, receipts, level).map_err(|fault| fault.to_string())?;
    }
    if let (None, Some(logs)) = (said.receipts, said.logs) {
        verify::logs(&verified, logs, level).map_err(|fault| fault.to_string())?;
    }
    Ok(())
}
