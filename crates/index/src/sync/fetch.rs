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
use crate::planner::batch_size::{SizeRejection, parse_size_rejection};
use crate::planner::verification::unverifiable_transactions;
use crate::store::NewBlock;
use crate::verify::{self, Level};

#[cfg(test)]
mod tests;

/// The parts of each block to fetch, and the level at which to verify them.
pub(super) struct FetchPlan {
    contents: Contents,
    /// The hash of block 0.
    genesis_hash: [u8; 32],
    level: Level,
    /// True if the chain is known for transactions that cannot be verified. Of blocks with such
    /// transactions, only the headers are verified.
    has_unverifiable_transactions: bool,
    /// True if the receipts of a block are requested with one call. False once a node has rejected
    /// that call as unsupported.
    receipts_together: AtomicBool,
}

impl FetchPlan {
    /// Creates the plan for an index.
    pub(super) fn new(metadata: &Metadata, options: &Options) -> FetchPlan {
        let (contents, genesis_hash) = (metadata.contents, metadata.chain.genesis_hash);
        // Harmony's hashes cannot be recomputed. The metadata of the index records that.
        let level = if contents.hmyv2 { Level::Off } else { options.verify };
        FetchPlan {
            contents,
            genesis_hash,
            level,
            has_unverifiable_transactions: unverifiable_transactions(&metadata.chain).is_some(),
            receipts_together: AtomicBool::new(true),
        }
    }
}

/// The reason why blocks could not be fetched.
#[derive(Debug, thiserror::Error)]
pub(super) enum FetchError {
    /// The exchange failed.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The node rejected the request because it asks for too many blocks.
    #[error("{reason}")]
    TooLarge {
        /// The rejection, with the limit that the node states.
        rejection: SizeRejection,
        /// The node's error.
        reason: String,
    },
    /// The node lacks a part of a block.
    #[error("block {number}: {reason}")]
    Missing { number: u64, reason: String },
    /// The responses contradict each other, the block's hash or the request. Either the node is
    /// wrong, or a reorg happened between the responses.
    #[error("block {number}: {reason}")]
    Contradiction { number: u64, reason: String },
    /// The block has a transaction that no hash of the block covers, or whose encoding is unknown. The
    /// node may be right.
    #[error(
        "block {number}: {reason}; the node may be right: `--verify headers` stores such blocks \
         without the proof of their transactions"
    )]
    Unverifiable { number: u64, reason: String },
    /// The chain has no block at this height, as Filecoin in a null round.
    #[error("block {number}: {reason}; an index cannot hold a chain that skips heights")]
    SkippedHeight { number: u64, reason: String },
    /// The compression failed.
    #[error(transparent)]
    Compression(#[from] CompressionError),
}

impl FetchError {
    /// Returns the block that the error is about; `None` if it is about the whole exchange.
    pub(super) fn block(&self) -> Option<u64> {
        match self {
            FetchError::Missing { number, .. }
            | FetchError::Contradiction { number, .. }
            | FetchError::Unverifiable { number, .. }
            | FetchError::SkippedHeight { number, .. } => Some(*number),
            FetchError::Call(_) | FetchError::TooLarge { .. } | FetchError::Compression(_) => None,
        }
    }
}

/// The result of a fetch.
pub(super) struct FetchedBlocks {
    pub(super) blocks: Vec<NewBlock>,
    /// Bytes of the response.
    pub(super) bytes: u64,
    /// The duration of the exchange.
    pub(super) duration: Duration,
}

/// Fetches the blocks of a range in one exchange, and verifies and encodes them.
pub(super) fn fetch(
    client: &mut Client,
    compressor: &mut Compressor,
    plan: &FetchPlan,
    (from, to): (u64, u64),
) -> Result<FetchedBlocks, FetchError> {
    let started = Instant::now();
    let calls = plan.build_calls((from, to));
    let responses = client
        .call(&calls)
        .map_err(|error| too_large_exchange(&error).unwrap_or(FetchError::Call(error)))?;
    let duration = started.elapsed();
    let index_of_method = |method| calls.iter().position(|call| call.method == method);
    let logs = match index_of_method(LOGS) {
        Some(index) => Some(split_logs(read_result(&responses, index, from)?)),
        None => None,
    };
    let harmony = match index_of_method(HARMONY_BLOCKS) {
        Some(index) => {
            Some(split_harmony_blocks(read_result(&responses, index, from)?, (from, to))?)
        }
        None => None,
    };
    // The index of the call for the receipts of the first block. If there is no such call, receipts
    // are fetched one by one.
    let first_receipts_index = index_of_method(BLOCK_RECEIPTS);
    let mut blocks: Vec<NewBlock> = Vec::with_capacity((to - from + 1) as usize);
    for (index, number) in (from..=to).enumerate() {
        let raw = read_result(&responses, index, number)?;
        if raw == b"null" {
            let reason = "the node does not have the block".to_owned();
            return Err(FetchError::Missing { number, reason });
        }
        let receipts = match (plan.contents.receipts, first_receipts_index) {
            (false, _) => None,
            (true, Some(first_index)) => {
                Some(read_receipts(client, plan, (&responses, first_index + index), (raw, number))?)
            }
            (true, None) => Some(Cow::Owned(fetch_receipts_one_by_one(client, raw, number)?)),
        };
        let block_logs = logs.as_ref().map(|logs| collect_block_logs(logs, raw));
        let raw = RawBlock {
            block: raw,
            receipts: receipts.as_deref(),
            logs: block_logs.as_deref(),
            harmony: harmony.as_ref().map(|blocks| blocks[index]),
        };
        let to_contradiction = |reason: String| FetchError::Contradiction { number, reason };
        plan.verify(raw, number)?;
        let encoded = encode::encode(compressor, raw, plan.contents);
        blocks.push(encoded.map_err(|error| match error {
            EncodeError::Malformed(reason) => to_contradiction(reason),
            EncodeError::Compression(error) => FetchError::Compression(error),
        })?);
    }
    // A log of an unknown block shows that a reorg happened between the responses.
    if let Some(logs) = &logs {
        let is_fetched = |hash: &[u8; 32]| blocks.iter().any(|block| block.header.hash == *hash);
        if let Some((_, raw)) = logs.iter().find(|(hash, _)| !is_fetched(hash)) {
            let number = walk::member(raw, "blockNumber").and_then(quantity::from_value);
            let reason = "a log has another block hash than the node's block".to_owned();
            return Err(FetchError::Contradiction { number: number.unwrap_or(from), reason });
        }
    }
    Ok(FetchedBlocks { blocks, bytes: responses.bytes() as u64, duration })
}

impl FetchPlan {
    /// Returns the calls for a range: all blocks first, then their other parts.
    fn build_calls(&self, (from, to): (u64, u64)) -> Vec<Call> {
        let full_transactions = self.requests_full_transactions();
        let mut calls: Vec<Call> =
            (from..=to).map(|number| calls::block(number, full_transactions)).collect();
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

    /// Returns true if blocks are fetched with full transactions. Verifying receipts requires full
    /// transactions.
    fn requests_full_transactions(&self) -> bool {
        self.contents.transactions || self.contents.receipts
    }

    /// Verifies a node's responses about a block against the block's hash.
    fn verify(&self, raw: RawBlock<'_>, number: u64) -> Result<(), FetchError> {
        let contradiction = |reason: String| FetchError::Contradiction { number, reason };
        let header = BlockHeader::read(raw.block).map_err(contradiction)?;
        if header.number != number {
            let other = header.number;
            let reason = format!("block.number: is {other}, but {number} was requested");
            // Some nodes return the block below a skipped height.
            return Err(match other + 1 == number {
                true => FetchError::SkippedHeight { number, reason },
                false => contradiction(reason),
            });
        }
        if number == 0 && header.hash != self.genesis_hash {
            let reason = "block.hash: differs from that of the chain's genesis block".to_owned();
            return Err(contradiction(reason));
        }
        if self.level == Level::Off {
            return Ok(());
        }
        let has_full_transactions = self.requests_full_transactions();
        let verify = |logs, level| {
            verify::verify_all(raw.block, has_full_transactions, raw.receipts, logs, level)
        };
        let mut result = verify(raw.logs, self.level);
        // The logs of unverifiable transactions are not in the header's bloom, so without
        // transactions the logs seem to be wrong.
        if self.has_unverifiable_transactions
            && let Err(error) = &result
            && (error.is_unverifiable() || !has_full_transactions)
        {
            result = verify(None, Level::Headers);
        }
        result.map_err(|error| match error.is_unverifiable() {
            true => FetchError::Unverifiable { number, reason: error.to_string() },
            false => contradiction(error.to_string()),
        })
    }
}

/// Returns the raw blocks of an `hmyv2_getBlocks` response, which must have one block for each
/// number of the range. If the range goes beyond a node's newest block, the node returns a shorter
/// list and no error.
fn split_harmony_blocks(list: &[u8], (from, to): (u64, u64)) -> Result<Vec<&[u8]>, FetchError> {
    let blocks: Vec<&[u8]> = walk::elements(list).collect();
    let (requested, returned) = (to - from + 1, blocks.len() as u64);
    if returned < requested {
        let reason = format!("{HARMONY_BLOCKS} from block {from} on ends before it");
        return Err(FetchError::Missing { number: from + returned, reason });
    }
    if returned > requested {
        let reason =
            format!("{HARMONY_BLOCKS} returned {returned} blocks, but {requested} were requested");
        return Err(FetchError::Contradiction { number: from, reason });
    }
    Ok(blocks)
}

/// Returns the receipts of a raw block from the response at `index`. If the node cannot return all
/// receipts together, fetches them one by one.
fn read_receipts<'a>(
    client: &mut Client,
    plan: &FetchPlan,
    (responses, index): (&'a Responses, usize),
    (block, number): (&[u8], u64),
) -> Result<Cow<'a, [u8]>, FetchError> {
    let is_unsupported = |error: &RpcError| {
        // Harmony's nodes accept only block hashes in this method.
        error.code == METHOD_NOT_FOUND || (plan.contents.hmyv2 && error.code == INVALID_PARAMS)
    };
    match responses.result(index) {
        Err(error) if is_unsupported(error) => {
            plan.receipts_together.store(false, Ordering::Relaxed);
            Ok(Cow::Owned(fetch_receipts_one_by_one(client, block, number)?))
        }
        _ => match read_result(responses, index, number)? {
            b"null" => {
                let reason = "the node does not have its receipts".to_owned();
                Err(FetchError::Missing { number, reason })
            }
            raw => Ok(Cow::Borrowed(raw)),
        },
    }
}

/// Fetches the receipts of a raw block with one call per receipt.
fn fetch_receipts_one_by_one(
    client: &mut Client,
    block: &[u8],
    number: u64,
) -> Result<Vec<u8>, FetchError> {
    calls::receipts_one_by_one(
        block,
        |batch| Ok(call_with_retries(client, batch)?),
        |responses, index| match read_result(responses, index, number)? {
            b"null" => {
                let reason = "the node does not have all of its receipts".to_owned();
                Err(FetchError::Missing { number, reason })
            }
            raw => Ok(raw),
        },
    )
}

/// Maximum number of attempts of a batch of receipts.
const ATTEMPTS_MAX: u32 = 4;
/// An attempt is repeated only if it failed in less than this time.
const FAST_FAILURE: Duration = Duration::from_secs(1);

/// Sends a batch, and retries it after a fast, transient failure. The receipts of a block take many
/// batches. Without retries, a node that fails half of its calls would never return a whole block.
fn call_with_retries(client: &mut Client, calls: &[Call]) -> Result<Responses, CallError> {
    for _ in 1..ATTEMPTS_MAX {
        let started = Instant::now();
        match client.call(calls) {
            Err(error) if error.is_transient() && started.elapsed() < FAST_FAILURE => {}
            result => return result,
        }
    }
    client.call(calls)
}

/// Returns the raw result of the call with this index. `number` is the block that errors name.
fn read_result(responses: &Responses, index: usize, number: u64) -> Result<&[u8], FetchError> {
    responses.result(index).map_err(|error| {
        let reason = error.to_string();
        // "requested epoch was a null round (19)" (filecoin-project/lotus#12633).
        if reason.contains("null round") {
            return FetchError::SkippedHeight { number, reason };
        }
        too_large_error(error).unwrap_or(FetchError::Missing { number, reason })
    })
}

/// Returns [`FetchError::TooLarge`] if a node's error rejects the request as too large, or `None`
/// for any other error.
fn too_large_error(error: &RpcError) -> Option<FetchError> {
    let rejection = parse_size_rejection(200, error.code, &error.message)?;
    Some(FetchError::TooLarge { rejection, reason: error.to_string() })
}

/// Returns [`FetchError::TooLarge`] if a failed exchange was rejected as too large, or `None` for
/// any other failure. Providers send the same texts with several HTTP statuses.
fn too_large_exchange(error: &CallError) -> Option<FetchError> {
    let rejection = match error {
        CallError::Rejected(rejected) => return too_large_error(rejected),
        CallError::Status { status, text, .. } => {
            // A page of HTML says nothing about the calls, its status may.
            parse_size_rejection(*status, 0, error_message(text).unwrap_or_default())?
        }
        _ => return None,
    };
    Some(FetchError::TooLarge { rejection, reason: error.to_string() })
}

/// Returns the message of the first error in the beginning of a JSON body, which may be incomplete.
/// Returns `None` for any other body. A page of HTML says nothing about the calls.
fn error_message(body: &str) -> Option<&str> {
    if !body.trim_start().starts_with(['{', '[']) {
        return None;
    }
    let (_, value) = body.split_once("\"message\"")?;
    let text = value.trim_start().strip_prefix(':')?.trim_start().strip_prefix('"')?;
    let is_quoted = |(end, _): &(usize, &str)| !text[..*end].ends_with('\\');
    let end = text.match_indices('"').find(is_quoted).map_or(text.len(), |(end, _)| end);
    Some(&text[..end])
}

/// Returns the raw logs of an array in order, each with the hash of its block. Skips elements
/// without a block hash.
fn split_logs(logs: &[u8]) -> Vec<([u8; 32], &[u8])> {
    walk::elements(logs)
        .filter_map(|raw| Some((hex::hash_from_value(walk::member(raw, "blockHash")?)?, raw)))
        .collect()
}

/// Returns a raw array of those logs that belong to one block.
fn collect_block_logs(logs: &[([u8; 32], &[u8])], block: &[u8]) -> Vec<u8> {
    let hash = walk::member(block, "hash").and_then(hex::hash_from_value);
    let block_logs =
        logs.iter().filter(|(block_hash, _)| Some(*block_hash) == hash).map(|(_, raw)| *raw);
    [b"[".as_slice(), &block_logs.collect::<Vec<_>>().join(&b','), b"]"].concat()
}
