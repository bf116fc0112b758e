//! Answers of a node: a pure function of the world, of what the node sees of it, and of the call.
//! No latency, faults or envelopes (`node.rs`, `serve.rs`): the oracle asks the same function what
//! an honest node would have said.
//!
//! The order of every call: [`answer`] finds the method, reads its arguments (`rpc/arguments.rs`),
//! reads the chain (`rpc/blocks.rs`, `rpc/state.rs`, `rpc/logs.rs`, `rpc/fees.rs`,
//! `rpc/sending.rs`, `rpc/harmony.rs`) and words errors as the node's client does
//! (`rpc/wording.rs`).

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

/// What a node sees of the world, and what it keeps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sight {
    /// Its head: the newest block whose chain it follows.
    pub head: u64,
    /// How far above the head the one is that it claims to have. Above 0 it lies.
    pub ahead: u64,
    /// The head whose chain it has indexed: later blocks have no logs and no receipts yet.
    pub indexed: u64,
    /// A filter of logs that reaches above the head ends at the head, without an error.
    pub clamps: bool,
    /// What it keeps and refuses.
    pub keeping: Keeping,
}

impl Sight {
    /// The sight of an honest node that keeps everything.
    #[must_use]
    pub fn honest(head: u64) -> Self {
        let keeping = Keeping::default();
        Self { head, ahead: 0, indexed: head, clamps: false, keeping }
    }

    /// The head that the node claims.
    pub(crate) fn tip(&self) -> u64 {
        self.head + self.ahead
    }
}

/// What a node keeps and refuses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Keeping {
    /// The software that it pretends to be.
    pub client: Client,
    /// State is kept for so many blocks below the head; none for all.
    pub state_blocks: Option<u64>,
    /// Blocks, receipts and logs are kept for so many blocks below the head; none for all.
    pub history_blocks: Option<u64>,
    /// The most blocks that one `eth_getLogs` may span; none for no limit but the world's own.
    pub logs_range_blocks_max: Option<u64>,
    /// So many of its newest blocks have no logs and receipts yet: it indexes them late.
    pub unindexed_blocks: u64,
    /// Logs and receipts are kept for so many blocks below the head; older ones are left out
    /// without an error. None for all.
    pub logs_blocks: Option<u64>,
}

/// What a node answers to one call.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// The `result` member's bytes.
    Result(Bytes),
    /// The `error` member.
    Error(RpcError),
}

/// An error of a node.
#[derive(Clone, Debug, PartialEq)]
pub struct RpcError {
    /// The code.
    pub code: i64,
    /// The message.
    pub message: Cow<'static, str>,
    /// The `data` member as JSON.
    pub data: Option<Bytes>,
}

impl RpcError {
    /// An error without data.
    pub fn new(code: i64, message: impl Into<Cow<'static, str>>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    /// The error object as JSON.
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

pub(crate) type Answer = Result<Bytes, RpcError>;

/// What a node answers to a call. `params` is the raw JSON of the member, if there was one.
#[must_use]
pub fn answer(world: &World, sight: &Sight, method: &str, params: Option<&[u8]>) -> Reply {
    let decimal = method.starts_with("hmy");
    let outcome = Arguments::read(params, decimal).and_then(|arguments| {
        let call = Call { world, sight, method, arguments };
        call.run()
    });
    match outcome {
        Ok(result) => Reply::Result(result),
        Err(error) => Reply::Error(error),
    }
}

/// One call on its way through the reads.
struct Call<'a> {
    world: &'a World,
    sight: &'a Sight,
    method: &'a str,
    arguments: Arguments<'a>,
}

impl Call<'_> {
    fn run(&self) -> Answer {
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
            "eth_syncing" | "hmyv2_syncing" | "hmy_syncing" => fixed("false"),
            "eth_accounts" => fixed("[]"),
            "eth_sendRawTransaction" => self.send_raw(),
            "net_version" => fixed(&format!("\"{}\"", self.world.options().chain_id)),
            "net_listening" => fixed("true"),
            "net_peerCount" => fixed("\"0x19\""),
            "web3_clientVersion" => fixed(&format!("\"{}\"", self.sight.keeping.client.version())),
            "web3_sha3" => self.sha3(),
            other => match other.split_once('_') {
                Some(("hmyv2", name)) => self.harmony(harmony::Form::Decimal, name),
                Some(("hmy", name)) => self.harmony(harmony::Form::Hexadecimal, name),
                _ => Err(self.unsupported()),
            },
        }
    }

    fn unsupported(&self) -> RpcError {
        self.sight.keeping.client.unsupported(self.method)
    }
}

/// A number as a result.
fn quantity(number: u128) -> Answer {
    let mut out = Vec::with_capacity(20);
    crate::hex::push_quantity(&mut out, number);
    Ok(out.into())
}

/// Bytes as a result.
fn data(bytes: &[u8]) -> Answer {
    let mut out = Vec::new();
    crate::hex::push_bytes(&mut out, bytes);
    Ok(out.into())
}

/// JSON text as a result.
fn fixed(text: &str) -> Answer {
    Ok(Bytes::copy_from_slice(text.as_bytes()))
}

fn null() -> Answer {
    Ok(Bytes::from_static(b"null"))
}

#[cfg(test)]
mod tests;
