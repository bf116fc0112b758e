//! Some blocks from a node: fetched, verified, cut into rows.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use wire::json::walk;
use wire::{block, quantity};

use super::Options;
use crate::cut::{self, CutError, Header, Said};
use crate::harmony;
use crate::nodes::{AskError, Call, Line, Refusal, Replies};
use crate::pack::{PackError, Packer};
use crate::rules::pace;
use crate::store::{Facts, NewBlock, What};
use crate::verify::{self, Level};

#[cfg(test)]
mod tests;

/// Code of a method that a node does not have (JSON-RPC 2.0 section 5.1).
pub(super) const NO_METHOD: i64 = -32601;
/// Code of parameters that a method does not take (JSON-RPC 2.0 section 5.1).
const BAD_PARAMS: i64 = -32602;

/// What is asked of each block.
pub struct Plan {
    what: What,
    /// The hash of block 0.
    genesis: [u8; 32],
    verify: Level,
    /// No node so far was without `eth_getBlockReceipts`.
    whole_receipts: AtomicBool,
}

impl Plan {
    /// For a file.
    pub fn new(facts: &Facts, options: &Options) -> Plan {
        let what = facts.what;
        // Harmony's hashes cannot be recomputed; the file says so.
        let verify = if what.hmyv2 { Level::Off } else { options.verify };
        Plan { what, genesis: facts.chain.genesis, verify, whole_receipts: AtomicBool::new(true) }
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
    let place = |method| calls.iter().position(|call| call.method == method);
    let logs = match place("eth_getLogs") {
        Some(at) => Some(by_block(result(&replies, at, from)?)),
        None => None,
    };
    let harmony = match place(HARMONY_BLOCKS) {
        Some(at) => Some(harmony_blocks(result(&replies, at, from)?, (from, to))?),
        None => None,
    };
    let whole_receipts = place("eth_getBlockReceipts");
    for at in 0..blocks {
        let number = from + at as u64;
        let raw = result(&replies, at, number)?;
        if raw == b"null" {
            return Err(FetchError::Missing {
                number,
                why: "the node does not have it".to_owned(),
            });
        }
        let receipts = match (plan.what.receipts, whole_receipts) {
            (false, _) => None,
            (true, Some(first)) => Some(receipts(line, plan, &replies, first + at, (raw, number))?),
            (true, None) => Some(Cow::Owned(one_by_one(line, raw, number)?)),
        };
        let own = logs.as_ref().map(|logs| logs_of(logs, raw));
        let said = Said {
            block: raw,
            receipts: receipts.as_deref(),
            logs: own.as_deref(),
            harmony: harmony.as_ref().map(|all| all[at]),
        };
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
    if plan.what.hmyv2 {
        calls.push(harmony_call((from, to), harmony::WHOLE_OPTIONS));
    }
    calls
}

/// The method that gives many of Harmony's blocks at once.
const HARMONY_BLOCKS: &str = "hmyv2_getBlocks";

/// A call for a range of Harmony's blocks.
pub(super) fn harmony_call((from, to): (u64, u64), options: &str) -> Call {
    Call::new(HARMONY_BLOCKS, format!("[{from},{to},{options}]"))
}

/// Harmony's blocks of a range, one after the other. A node ends the list at its head, and says
/// nothing of it.
fn harmony_blocks(list: &[u8], (from, to): (u64, u64)) -> Result<Vec<&[u8]>, FetchError> {
    let all: Vec<&[u8]> = walk::elements(list).collect();
    let (wanted, got) = (to - from + 1, all.len() as u64);
    if got < wanted {
        let why = format!("the node's {HARMONY_BLOCKS} from {from} on ends before it");
        return Err(FetchError::Missing { number: from + got, why });
    }
    if got > wanted {
        let why = format!("{HARMONY_BLOCKS} gave {got} blocks, where {wanted} were asked for");
        return Err(FetchError::Contradicts { number: from, why });
    }
    Ok(all)
}

/// The receipts of a raw block from the reply at `at`, or one by one if the node cannot give them
/// together.
fn receipts<'a>(
    line: &mut Line,
    plan: &Plan,
    replies: &'a Replies,
    at: usize,
    (block, number): (&[u8], u64),
) -> Result<Cow<'a, [u8]>, FetchError> {
    let cannot = |refusal: &Refusal| {
        // Harmony's nodes take hashes of blocks only.
        refusal.code == NO_METHOD || (plan.what.hmyv2 && refusal.code == BAD_PARAMS)
    };
    match replies.result(at) {
        Err(refusal) if cannot(refusal) => {
            plan.whole_receipts.store(false, Ordering::Relaxed);
            Ok(Cow::Owned(one_by_one(line, block, number)?))
        }
        _ => match result(replies, at, number)? {
            b"null" => {
                let why = "the node does not have its receipts".to_owned();
                Err(FetchError::Missing { number, why })
            }
            raw => Ok(Cow::Borrowed(raw)),
        },
    }
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
        let replies = insist(line, some)?;
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

/// Asks again what fails at once and may not the next time: many messages make a block here, and
/// from a node that fails half of them it would never be whole.
fn insist(line: &mut Line, calls: &[Call]) -> Result<Replies, AskError> {
    for _ in 1..TRIES {
        let begun = Instant::now();
        match line.ask(calls) {
            Err(error) if error.may_pass() && begun.elapsed() < SOON => {}
            said => return said,
        }
    }
    line.ask(calls)
}

/// Tries of a message with receipts, if each fails sooner than this.
const TRIES: u32 = 4;
const SOON: Duration = Duration::from_secs(1);

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
    if number == 0 && header.hash != plan.genesis {
        return Err("block.hash: not that of the chain's first block".to_owned());
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
