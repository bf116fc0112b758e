//! Computes the reply of a node to a call. The reply is a pure function of the world, the node's
//! view and the call. A *world* is the simulated chain with all its branches. A *view* is the part
//! of the world that a node has.
//!
//! `node.rs` adds latency, faults and JSON-RPC envelopes. `oracle.rs` judges whether responses are
//! right. It calls [`respond`] to get the reply that an honest node would send.
//!
//! [`respond`] finds the method and reads its arguments (`arguments.rs`). Then it reads the chain
//! (`blocks.rs`, `state.rs`, `logs.rs`, `fees.rs`, `sending.rs`, `harmony.rs`). Errors have the
//! words of the client software that the node imitates (`wording.rs`). Harmony has each of its
//! methods twice: `hmyv2_…` returns decimal numbers, and `hmy_…` hexadecimal text.

mod arguments;
mod blocks;
mod fees;
mod harmony;
mod logs;
mod sending;
mod state;
pub mod wording;

use std::borrow::Cow;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use self::arguments::Arguments;
use self::wording::Client;
use crate::world::World;

/// The part of the chain that a node has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct View {
    /// The number of the node's newest block.
    pub head: u64,
    /// Number of blocks by which the announced head is above the real head. If this number is above
    /// 0, the node lies.
    pub ahead_blocks: u64,
    /// The number of the newest block whose logs and receipts the node has.
    pub indexed: u64,
    /// True if the node responds as if a block that it lacks had no logs and receipts. A block
    /// above the head is such a block. If false, the node returns an error for the logs of such a
    /// block, and `null` for the receipts.
    pub clamps_logs_to_head: bool,
    /// The data that the node retains, and the client software that it imitates.
    pub retention: Retention,
}

impl View {
    /// Returns the view of an honest node that has all data.
    #[must_use]
    pub fn honest(head: u64) -> Self {
        let retention = Retention::default();
        Self { head, ahead_blocks: 0, indexed: head, clamps_logs_to_head: false, retention }
    }

    /// Returns the head that the node announces.
    pub(crate) fn announced_head(&self) -> u64 {
        self.head + self.ahead_blocks
    }
}

/// The data that a node retains, the client that it imitates, and the limits of its queries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Retention {
    /// The client software whose behaviour the node imitates.
    pub client: Client,
    /// Number of blocks below the head whose state the node has; `None` for all blocks.
    pub state_blocks: Option<u64>,
    /// Number of blocks below the head whose headers, transactions, receipts and logs the node has;
    /// `None` for all blocks.
    pub history_blocks: Option<u64>,
    /// Maximum number of blocks of one `eth_getLogs` call. A simulated node never allows more than
    /// 10,000 blocks, which is also the maximum for `None`.
    pub logs_range_blocks_max: Option<u64>,
    /// Number of newest blocks whose logs and receipts the node does not have yet, because it
    /// indexes late.
    pub unindexed_blocks: u64,
    /// True if the node has the first half of a block's logs while it indexes the block.
    pub half_indexed: bool,
    /// Number of blocks below the head whose logs and receipts the node has; `None` for all blocks.
    /// The node omits older logs and receipts without an error.
    pub logs_blocks: Option<u64>,
    /// The response to a call for the block at a height that the chain skips.
    pub skipped_heights: SkippedHeight,
    /// Number of blocks from the head down to the block that the node reports as finalized; `None`
    /// for the finality depth of the world.
    pub finality_depth: Option<u64>,
    /// True if the node says that it is syncing.
    pub syncing: bool,
    /// Number of blocks below the head whose transactions the node finds by their hash; `None` for
    /// all blocks. Older transactions are `null` by hash.
    pub transaction_index_blocks: Option<u64>,
    /// Maximum number of calls in one batch; `None` for no maximum.
    pub batch_calls_max: Option<usize>,
}

/// The response of a node to a call for the block at a skipped height.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SkippedHeight {
    /// `null`.
    #[default]
    Null,
    /// The error of Filecoin's nodes (filecoin-project/lotus#12633).
    Error,
    /// The block below.
    BlockBelow,
}

/// The reply to one call.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// The `result` member's bytes.
    Result(Bytes),
    /// The `error` member.
    Error(RpcError),
}

/// The raw bytes of a reply, as a node sends them and a recording contains them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RawReply {
    /// The `result` member.
    Result(Bytes),
    /// The `error` member.
    Error(Bytes),
}

impl RawReply {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Result(bytes) | Self::Error(bytes) => bytes.len(),
        }
    }
}

impl From<&RpcError> for RawReply {
    fn from(error: &RpcError) -> Self {
        Self::Error(error.to_json().into())
    }
}

/// An error of a node.
#[derive(Clone, Debug, PartialEq)]
pub struct RpcError {
    /// The error code.
    pub code: i64,
    /// The message.
    pub message: Cow<'static, str>,
    /// The `data` member as JSON; `None` if the error has no such member.
    pub data: Option<Bytes>,
}

impl RpcError {
    /// Creates an error without data.
    pub fn new(code: i64, message: impl Into<Cow<'static, str>>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    /// Returns the error object as JSON.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        let message = serde_json::to_string(&self.message).expect("a string is always valid JSON");
        let mut out = format!("{{\"code\":{},\"message\":{message}", self.code).into_bytes();
        if let Some(data) = &self.data {
            out.extend_from_slice(b",\"data\":");
            out.extend_from_slice(data);
        }
        out.push(b'}');
        out
    }
}

pub(crate) type RpcResult = Result<Bytes, RpcError>;

/// Computes the reply to a call. `params` is the raw JSON of the call's `params` member; `None` if
/// the call has no such member.
#[must_use]
pub fn respond(world: &World, view: &View, method: &str, params: Option<&[u8]>) -> Reply {
    // The `hmy_` and `hmyv2_` methods both accept decimal block numbers. They differ only in the
    // number format of their replies.
    let accepts_decimal = method.starts_with("hmy");
    let outcome = Arguments::read(params, accepts_decimal).and_then(|arguments| {
        let call = Call { world, view, method, arguments };
        call.run()
    });
    match outcome {
        Ok(result) => Reply::Result(result),
        Err(error) => Reply::Error(error),
    }
}

/// One call, with the world and the view that it reads.
struct Call<'a> {
    world: &'a World,
    view: &'a View,
    method: &'a str,
    arguments: Arguments<'a>,
}

impl Call<'_> {
    fn run(&self) -> RpcResult {
        match self.method {
            "eth_blockNumber" => self.block_number(),
            "eth_chainId" => quantity(self.world.options().chain_id.into()),
            "eth_getBlockByNumber" => self.block_by_number(),
            "eth_getBlockByHash" => self.block_by_hash(),
            "eth_getBlockTransactionCountByNumber" => self.transaction_count_by_number(),
            "eth_getBlockTransactionCountByHash" => self.transaction_count_by_hash(),
            "eth_getUncleCountByBlockNumber" => self.uncle_count_by_number(),
            "eth_getUncleCountByBlockHash" => self.uncle_count_by_hash(),
            "eth_getTransactionByHash" => self.transaction_by_hash(),
            "eth_getTransactionByBlockNumberAndIndex" => self.transaction_by_number_and_index(),
            "eth_getTransactionByBlockHashAndIndex" => self.transaction_by_hash_and_index(),
            "eth_getTransactionReceipt" => self.transaction_receipt(),
            "eth_getBlockReceipts" => self.block_receipts(),
            "eth_getBalance" => self.balance(),
            "eth_getTransactionCount" => self.nonce(),
            "eth_getCode" => self.code(),
            "eth_getStorageAt" => self.storage(),
            "eth_call" => self.call(),
            "eth_estimateGas" => self.estimate_gas(),
            "eth_gasPrice" => self.gas_price(),
            "eth_maxPriorityFeePerGas" => self.priority_fee(),
            "eth_feeHistory" => self.fee_history(),
            "eth_blobBaseFee" => fixed("\"0x1\""),
            "eth_getLogs" => self.logs(),
            "eth_syncing" if self.view.retention.syncing => self.sync_progress(),
            "eth_syncing" | "hmyv2_syncing" | "hmy_syncing" => fixed("false"),
            "eth_accounts" => fixed("[]"),
            "eth_sendRawTransaction" => self.send_raw(),
            "net_version" => fixed(&format!("\"{}\"", self.world.options().chain_id)),
            "net_listening" => fixed("true"),
            "net_peerCount" => fixed("\"0x19\""),
            "web3_clientVersion" => fixed(&format!("\"{}\"", self.view.retention.client.version())),
            "web3_sha3" => self.sha3(),
            other => match other.split_once('_') {
                Some(("hmyv2", name)) => self.harmony(harmony::NumberFormat::Decimal, name),
                Some(("hmy", name)) => self.harmony(harmony::NumberFormat::Hexadecimal, name),
                _ => Err(self.unsupported()),
            },
        }
    }

    fn unsupported(&self) -> RpcError {
        self.view.retention.client.unsupported(self.method)
    }
}

/// Returns a result that is a quantity: a hexadecimal number without leading zeros.
fn quantity(number: u128) -> RpcResult {
    let mut out = Vec::with_capacity(20);
    crate::hex::push_quantity(&mut out, number);
    Ok(out.into())
}

/// Returns a result that is hexadecimal bytes.
fn data(bytes: &[u8]) -> RpcResult {
    let mut out = Vec::new();
    crate::hex::push_bytes(&mut out, bytes);
    Ok(out.into())
}

/// Returns this JSON text as a result.
fn fixed(text: &str) -> RpcResult {
    Ok(Bytes::copy_from_slice(text.as_bytes()))
}

/// Returns the result `null`.
fn null() -> RpcResult {
    Ok(Bytes::from_static(b"null"))
}

#[cfg(test)]
mod tests;
