//! Fetches blocks from a node, verifies them, and encodes them into rows.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use wire::hex;
use wire::json::walk;
use wire::quantity;

use super::calls::{self, BLOCK_RECEIPTS, HARMONY_BLOCKS, INVALID_PARAMS, LOGS, METHOD_NOT_FOUND};
use super::options::Options;
use crate::compression::{CompressionError, Compressor};
use crate::contents::{Contents, Metadata};
use crate::encode::{self, EncodeError, RawBlock};
use crate::fragments::BlockHeader;
use crate::harmony;
use crate::nodes::{Call, CallError, Client, Responses, RpcError};
use crate::planner::batch_size;
use crate::store::NewBlock;
use crate::verify::{self, Level};

#[cfg(test)]
mod tests;

/// The parts of each block to fetch, and the level at which to verify them.
pub(super) struct FetchPlan {
    contents: Contents,
    /// The hash of block 0.
    genesis: [u8; 32],
    verify: Level,
    /// False once a node cannot return all receipts of a block together.
    receipts_together: AtomicBool,
}

impl FetchPlan {
    /// Creates the plan for an index.
    pub(super) fn new(metadata: &Metadata, options: &Options) -> FetchPlan {
        let (contents, genesis) = (metadata.contents, metadata.chain.genesis);
        // Harmony's hashes cannot be recomputed, and the index says so.
        let verify = if contents.hmyv2 { Level::Off } else { options.verify };
        FetchPlan { contents, genesis, verify, receipts_together: AtomicBool::new(true) }
    }
}

/// Why blocks could not be fetched.
#[derive(Debug, thiserror::Error)]
pub(super) enum FetchError {
    /// The exchange failed.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The message requested too many blocks.
    #[error("{why}")]
    TooLarge {
        /// The limit that the node stated.
        limit: Option<u64>,
        why: String,
    },
    /// The node lacks a part of a block.
    #[error("block {number}: {why}")]
    Missing { number: u64, why: String },
    /// The responses contradict each other: the node lies, or a reorg happened between them.
    #[error("block {number}: {why}")]
    Contradiction { number: u64, why: String },
    /// The compression failed.
    #[error(transparent)]
    Compression(#[from] CompressionError),
}

/// The result of a fetch.
pub(super) struct Fetched {
    pub(super) blocks: Vec<NewBlock>,
    /// Bytes of the message.
    pub(super) bytes: u64,
    /// The duration of the exchange.
    pub(super) took: Duration,
}

/// Fetches the blocks of a range in one exchange, and verifies and encodes them.
pub(super) fn fetch(
    client: &mut Client,
    compressor: &mut Compressor,
    plan: &FetchPlan,
    (from, to): (u64, u64),
) -> Result<Fetched, FetchError> {
    let started = Instant::now();
    let calls = plan.calls((from, to));
    let responses = client.call(&calls).map_err(|error| match error {
        CallError::Rejected(ref rejected) => too_large(rejected).unwrap_or(FetchError::Call(error)),
        CallError::Status { status: 413, .. } => {
            FetchError::TooLarge { limit: None, why: error.to_string() }
        }
        error => FetchError::Call(error),
    })?;
    let took = started.elapsed();
    let at_method = |method| calls.iter().position(|call| call.method == method);
    let logs = match at_method(LOGS) {
        Some(at) => Some(logs_by_block(result(&responses, at, from)?)),
        None => None,
    };
    let harmony = match at_method(HARMONY_BLOCKS) {
        Some(at) => Some(harmony_blocks(result(&responses, at, from)?, (from, to))?),
        None => None,
    };
    let first_receipts = at_method(BLOCK_RECEIPTS);
    let mut blocks: Vec<NewBlock> = Vec::with_capacity((to - from + 1) as usize);
    for (at, number) in (from..=to).enumerate() {
        let raw = result(&responses, at, number)?;
        if raw == b"null" {
            let why = "the node does not have the block".to_owned();
            return Err(FetchError::Missing { number, why });
        }
        let receipts = match (plan.contents.receipts, first_receipts) {
            (false, _) => None,
            (true, Some(first)) => {
                Some(receipts(client, plan, (&responses, first + at), (raw, number))?)
            }
            (true, None) => Some(Cow::Owned(receipts_one_by_one(client, raw, number)?)),
        };
        let own_logs = logs.as_ref().map(|logs| logs_of(logs, raw));
        let raw = RawBlock {
            block: raw,
            receipts: receipts.as_deref(),
            logs: own_logs.as_deref(),
            harmony: harmony.as_ref().map(|all| all[at]),
        };
        let contradiction = |why: String| FetchError::Contradiction { number, why };
        plan.verify(raw, number).map_err(contradiction)?;
        let encoded = encode::encode(compressor, raw, plan.contents);
        blocks.push(encoded.map_err(|error| match error {
            EncodeError::Malformed(why) => contradiction(why),
            EncodeError::Compression(error) => FetchError::Compression(error),
        })?);
    }
    if let Some(logs) = &logs {
        let known = |hash: &[u8; 32]| blocks.iter().any(|block| block.header.hash == *hash);
        if let Some((_, raw)) = logs.iter().find(|(hash, _)| !known(hash)) {
            let number = walk::member(raw, "blockNumber").and_then(quantity::from_value);
            let why = "a log has another block hash than the node's block".to_owned();
            return Err(FetchError::Contradiction { number: number.unwrap_or(from), why });
        }
    }
    Ok(Fetched { blocks, bytes: responses.bytes() as u64, took })
}

impl FetchPlan {
    /// Returns the calls for a range: all blocks first, then their other parts.
    fn calls(&self, (from, to): (u64, u64)) -> Vec<Call> {
        let full = self.contents.blocks || self.contents.receipts;
        let mut calls: Vec<Call> = (from..=to).map(|number| calls::block(number, full)).collect();
        if self.contents.receipts {
            if self.receipts_together.load(Ordering::Relaxed) {
                calls.extend((from..=to).map(calls::block_receipts));
            }
        } else if self.contents.logs {
            calls.push(calls::logs((from, to)));
        }
        if self.contents.hmyv2 {
            calls.push(calls::harmony_blocks((from, to), harmony::STORED_OPTIONS));
        }
        calls
    }

    /// Verifies a node's responses about a block against the block's hash.
    fn verify(&self, raw: RawBlock<'_>, number: u64) -> Result<(), String> {
        let header = BlockHeader::read(raw.block)?;
        if header.number != number {
            return Err(format!("block.number: is {}, but {number} was requested", header.number));
        }
        if number == 0 && header.hash != self.genesis {
            return Err("block.hash: differs from that of the chain's genesis block".to_owned());
        }
        if self.verify == Level::Off {
            return Ok(());
        }
        let full = self.contents.blocks || self.contents.receipts;
        verify::all(raw.block, full, raw.receipts, raw.logs, self.verify)
            .map_err(|error| error.to_string())
    }
}

/// Returns the raw blocks of an `hmyv2_getBlocks` response. A node silently ends the list at its
/// head.
fn harmony_blocks(list: &[u8], (from, to): (u64, u64)) -> Result<Vec<&[u8]>, FetchError> {
    let all: Vec<&[u8]> = walk::elements(list).collect();
    let (wanted, got) = (to - from + 1, all.len() as u64);
    if got < wanted {
        let why = format!("{HARMONY_BLOCKS} from block {from} on ends before it");
        return Err(FetchError::Missing { number: from + got, why });
    }
    if got > wanted {
        let why = format!("{HARMONY_BLOCKS} returned {got} blocks, but {wanted} were requested");
        return Err(FetchError::Contradiction { number: from, why });
    }
    Ok(all)
}

/// Returns the receipts of a raw block from a response, or one by one if the node cannot return
/// them together.
fn receipts<'a>(
    client: &mut Client,
    plan: &FetchPlan,
    (responses, at): (&'a Responses, usize),
    (block, number): (&[u8], u64),
) -> Result<Cow<'a, [u8]>, FetchError> {
    let unsupported = |error: &RpcError| {
        // Harmony's nodes accept only hashes of blocks here.
        error.code == METHOD_NOT_FOUND || (plan.contents.hmyv2 && error.code == INVALID_PARAMS)
    };
    match responses.result(at) {
        Err(error) if unsupported(error) => {
            plan.receipts_together.store(false, Ordering::Relaxed);
            Ok(Cow::Owned(receipts_one_by_one(client, block, number)?))
        }
        _ => match result(responses, at, number)? {
            b"null" => {
                let why = "the node does not have its receipts".to_owned();
                Err(FetchError::Missing { number, why })
            }
            raw => Ok(Cow::Borrowed(raw)),
        },
    }
}

fn receipts_one_by_one(
    client: &mut Client,
    block: &[u8],
    number: u64,
) -> Result<Vec<u8>, FetchError> {
    calls::receipts_one_by_one(
        block,
        |batch| Ok(call_with_retries(client, batch)?),
        |responses, at| match result(responses, at, number)? {
            b"null" => {
                let why = "the node does not have all of its receipts".to_owned();
                Err(FetchError::Missing { number, why })
            }
            raw => Ok(raw),
        },
    )
}

/// Maximum number of attempts of a batch of receipts. An attempt is repeated only if it failed
/// sooner than [`FAST_FAILURE`].
const ATTEMPTS: u32 = 4;
const FAST_FAILURE: Duration = Duration::from_secs(1);

/// Retries a batch after a fast, transient failure. A block takes many batches here. Without
/// retries, a node that fails half of them would never return a whole block.
fn call_with_retries(client: &mut Client, calls: &[Call]) -> Result<Responses, CallError> {
    for _ in 1..ATTEMPTS {
        let started = Instant::now();
        match client.call(calls) {
            Err(error) if error.is_transient() && started.elapsed() < FAST_FAILURE => {}
            result => return result,
        }
    }
    client.call(calls)
}

fn result(responses: &Responses, at: usize, number: u64) -> Result<&[u8], FetchError> {
    responses.result(at).map_err(|error| {
        too_large(error).unwrap_or_else(|| FetchError::Missing { number, why: error.to_string() })
    })
}

fn too_large(error: &RpcError) -> Option<FetchError> {
    let limit = batch_size::size_rejection(error.code, &error.message)?;
    Some(FetchError::TooLarge { limit, why: error.to_string() })
}

/// Returns the logs of a range in order, each with the hash of its block.
fn logs_by_block(logs: &[u8]) -> Vec<([u8; 32], &[u8])> {
    walk::elements(logs)
        .filter_map(|raw| Some((hex::hash_from_value(walk::member(raw, "blockHash")?)?, raw)))
        .collect()
}

/// Returns the array of the logs of one block.
fn logs_of(logs: &[([u8; 32], &[u8])], block: &[u8]) -> Vec<u8> {
    let hash = walk::member(block, "hash").and_then(hex::hash_from_value);
    let own = logs.iter().filter(|(of, _)| Some(*of) == hash).map(|(_, raw)| *raw);
    [b"[".as_slice(), &own.collect::<Vec<_>>().join(&b','), b"]"].concat()
}
