//! The `hmyv2_` and `hmy_` methods that a caching gateway for Harmony serves. `hmyv2_` methods
//! return decimal numbers, and `hmy_` methods hexadecimal text. The chain is the same as for the
//! `eth_` methods. It has no staking transactions, so lists of staking transactions are empty.
//!
//! A function named `…_in` returns the reply in the number format of the called method. The
//! function of the same name without this suffix serves the `eth_` method.

use std::sync::Arc;

use alloy_primitives::U256;
use serde::Deserialize;

use super::arguments::{BlockArgument, invalid};
use super::wording::SERVER_ERROR;
use super::{Call, RpcError, RpcResult, fixed, null};
pub(super) use crate::block::harmony::NumberFormat;
use crate::block::harmony::{
    BlockOptions, EPOCH_BLOCKS, Printer, SIGNERS, bls_key, push_address, signers_of,
};
use crate::block::{ACCOUNTS, Block};
use crate::hex::push_bytes;

/// Maximum distance between the two blocks of `getBlocks` (Harmony `rpc/blockchain.go`).
const BLOCK_DISTANCE_MAX: u64 = 1_024;

/// The options of a call for blocks. In `hmy_` methods, a boolean instead of the options means
/// `fullTx`.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Options {
    full_tx: bool,
    with_signers: bool,
}

impl Call<'_> {
    /// Serves a method of Harmony. `name` is the name without its prefix `hmy_` or `hmyv2_`.
    pub(super) fn harmony(&self, format: NumberFormat, name: &str) -> RpcResult {
        let printer = Printer { format, addresses: self.world.addresses() };
        match name {
            "blockNumber" => number_result(format, self.view.announced_head().into()),
            "chainId" => number_result(format, self.world.options().chain_id.into()),
            "gasPrice" => self.gas_price_in(format),
            "getEpoch" => number_result(format, (self.view.head / EPOCH_BLOCKS).into()),
            "getShardID" => number_result(format, 0),
            "getBalance" => self.balance_in(format, BlockArgument::Latest),
            "getBalanceByBlockNumber" => self.balance_in(format, self.arguments.number(1)?),
            "getTransactionCount" | "getAccountNonce" => self.nonce_in(format),
            "getTransactionsCount" => self.transactions_count(format),
            "getStakingTransactionsCount" => number_result(format, 0),
            "getStakingTransactionsHistory" => fixed("{\"staking_transactions\":[]}"),
            "getStakingTransactionByHash" => self.arguments.hash(0).and_then(|_| null()),
            "getBlockByNumber" => {
                let block = self.block_of(self.arguments.number(0)?)?;
                self.block_in(&printer, block)
            }
            "getBlockByHash" => {
                let (hash, strict) = (self.arguments.hash(0)?, false);
                let block = self.block_of(BlockArgument::Hash { hash, strict })?;
                self.block_in(&printer, block)
            }
            "getBlocks" => self.blocks(&printer),
            "getBlockSigners" => self.signers(&printer),
            "getBlockSignersKeys" | "getBlockSignerKeys" => self.signer_keys(),
            "getBlockTransactionCountByNumber" => {
                count_result(format, self.block_of(self.arguments.number(0)?)?)
            }
            "getBlockTransactionCountByHash" => {
                let (hash, strict) = (self.arguments.hash(0)?, false);
                count_result(format, self.block_of(BlockArgument::Hash { hash, strict })?)
            }
            "getHeaderByNumber" => self.header(&printer, self.arguments.number(0)?),
            "latestHeader" => self.header(&printer, BlockArgument::Latest),
            "getLatestChainHeaders" => self.chain_headers(&printer),
            "getValidators" => self.validators(format),
            "getValidatorKeys" => self.validator_keys(),
            "getValidatorInformation" => self.validator(format),
            "getNodeMetadata" => self.metadata(),
            "getCurrentUtilityMetrics" => self.utility_metrics(format),
            "getCode" => self.code(),
            "getStorageAt" => self.storage(),
            "call" => self.call(),
            "getTransactionByHash" => self.transaction_in(&printer),
            "getTransactionReceipt" => self.receipt_in(&printer),
            "getTransactionByBlockNumberAndIndex" => {
                self.transaction_at(&printer, self.block_of(self.arguments.number(0)?)?)
            }
            "getTransactionByBlockHashAndIndex" => {
                let (hash, strict) = (self.arguments.hash(0)?, false);
                self.transaction_at(&printer, self.block_of(BlockArgument::Hash { hash, strict })?)
            }
            _ => Err(self.unsupported()),
        }
    }

    fn gas_price_in(&self, format: NumberFormat) -> RpcResult {
        let text = self.gas_price()?;
        let price = std::str::from_utf8(&text).ok().and_then(super::arguments::read_number);
        number_result(format, price.unwrap_or_default().into())
    }

    fn balance_in(&self, format: NumberFormat, block: BlockArgument) -> RpcResult {
        let address = self.arguments.address(0)?;
        let balance = self.world.balance(self.state_at(block)?, address);
        number_result(format, balance.unwrap_or_default())
    }

    fn nonce_in(&self, format: NumberFormat) -> RpcResult {
        let address = self.arguments.address(0)?;
        let position = self.state_at(self.arguments.block(1)?)?;
        number_result(format, self.world.nonce(position, address).unwrap_or_default().into())
    }

    fn transactions_count(&self, format: NumberFormat) -> RpcResult {
        let address = self.arguments.address(0)?;
        let position = self.state_at(BlockArgument::Latest)?;
        let sent = self.world.nonce(position, address).unwrap_or_default();
        let received = self.world.received(position, address).unwrap_or_default();
        match self.arguments.raw(1).unwrap_or("\"ALL\"") {
            "\"SENT\"" => number_result(format, sent.into()),
            "\"RECEIVED\"" => number_result(format, received.into()),
            "\"ALL\"" | "\"\"" => number_result(format, u128::from(sent) + u128::from(received)),
            _ => Err(invalid(1, "transaction type must be SENT, RECEIVED or ALL")),
        }
    }

    /// Reads the options of a call for blocks.
    fn options(&self, index: usize) -> Result<BlockOptions, RpcError> {
        let options = match self.arguments.raw(index) {
            None => Options::default(),
            Some("true") => Options { full_tx: true, ..Options::default() },
            Some("false") => Options::default(),
            Some(raw) => serde_json::from_str(raw)
                .map_err(|_| invalid(index, "cannot unmarshal into Go value of type BlockArgs"))?,
        };
        Ok(BlockOptions { transactions: options.full_tx, signers: options.with_signers })
    }

    fn block_in(&self, printer: &Printer<'_>, block: Option<Arc<Block>>) -> RpcResult {
        let options = self.options(1)?;
        let Some(block) = block else { return null() };
        let mut out = Vec::with_capacity(4_096);
        printer.push_block(&mut out, &block, options, self.is_newest(&block));
        Ok(out.into())
    }

    fn blocks(&self, printer: &Printer<'_>) -> RpcResult {
        let from = self.number_argument(0)?;
        let to = self.number_argument(1)?;
        let options = self.options(2)?;
        if to < from || to - from > BLOCK_DISTANCE_MAX {
            let message = format!("block number range is too big, at most {BLOCK_DISTANCE_MAX}");
            return Err(RpcError::new(SERVER_ERROR, message));
        }
        let mut out = vec![b'['];
        // The list ends at the newest block without an error, as on Harmony.
        for number in from..=to.min(self.view.head) {
            let Some(block) = self.block_of(BlockArgument::Number(number))? else { break };
            if number > from {
                out.push(b',');
            }
            printer.push_block(&mut out, &block, options, self.is_newest(&block));
        }
        out.push(b']');
        Ok(out.into())
    }

    fn signers(&self, printer: &Printer<'_>) -> RpcResult {
        let block = self.require_block(self.arguments.number(0)?)?;
        let mut out = Vec::new();
        printer.push_signers(&mut out, &block, self.is_newest(&block));
        Ok(out.into())
    }

    fn signer_keys(&self) -> RpcResult {
        let block = self.require_block(self.arguments.number(0)?)?;
        let has_no_signers = block.header.number == 0 || self.is_newest(&block);
        let signers = if has_no_signers { Vec::new() } else { signers_of(&block).to_vec() };
        self.keys(signers)
    }

    /// Returns the BLS public keys of these accounts.
    fn keys(&self, accounts: impl IntoIterator<Item = usize>) -> RpcResult {
        let mut out = vec![b'['];
        for (index, account) in accounts.into_iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            push_bytes(&mut out, &bls_key(self.world.options().seed, account));
        }
        out.push(b']');
        Ok(out.into())
    }

    fn header(&self, printer: &Printer<'_>, block: BlockArgument) -> RpcResult {
        let block = self.require_block(block)?;
        let mut out = Vec::new();
        printer.push_header(&mut out, &block);
        Ok(out.into())
    }

    fn chain_headers(&self, printer: &Printer<'_>) -> RpcResult {
        let block = self.require_block(BlockArgument::Latest)?;
        let mut out = b"{\"beacon-chain-header\":".to_vec();
        printer.push_header(&mut out, &block);
        out.extend_from_slice(b",\"shard-chain-header\":");
        printer.push_header(&mut out, &block);
        out.push(b'}');
        Ok(out.into())
    }

    fn validators(&self, format: NumberFormat) -> RpcResult {
        self.check_epoch_argument()?;
        let position = self.state_at(BlockArgument::Latest)?;
        let mut out = b"{\"shardID\":0,\"validators\":[".to_vec();
        for (index, account) in self.world.addresses().accounts.iter().enumerate() {
            let prefix = if index > 0 { ",{\"address\":" } else { "{\"address\":" };
            push_address(&mut out, prefix, *account);
            out.extend_from_slice(b",\"balance\":");
            let balance = self.world.balance(position, *account).unwrap_or_default();
            format.push(&mut out, U256::from(balance));
            out.push(b'}');
        }
        out.extend_from_slice(b"]}");
        Ok(out.into())
    }

    /// Returns a validator. Every address is a validator, so recorded requests for validators of
    /// the main network get a result.
    fn validator(&self, format: NumberFormat) -> RpcResult {
        let account = self.arguments.address(0)?;
        let position = self.state_at(self.arguments.block(1)?)?;
        let key = alloy_primitives::hex::encode(bls_key(self.world.options().seed, 0));
        let push_number = |out: &mut Vec<u8>, prefix: &str, value: u128| {
            out.extend_from_slice(prefix.as_bytes());
            format.push(out, U256::from(value));
        };
        let mut out = Vec::with_capacity(1_024);
        push_address(&mut out, "{\"validator\":{\"address\":", account);
        let keys = format!(",\"bls-public-keys\":[\"{key}\"],\"creation-height\":1");
        out.extend_from_slice(keys.as_bytes());
        push_address(&mut out, ",\"delegations\":[{\"delegator-address\":", account);
        let stake = self.world.balance(position, account).unwrap_or_default();
        push_number(&mut out, ",\"amount\":", stake);
        out.extend_from_slice(
            b",\"reward\":0,\"undelegations\":[]}],\"details\":\"\",\"identity\":\"\",\
              \"last-epoch-in-committee\":0,\"max-change-rate\":\"0.010000000000000000\",\
              \"max-rate\":\"1.000000000000000000\"",
        );
        push_number(&mut out, ",\"max-total-delegation\":", u128::from(u64::MAX));
        push_number(&mut out, ",\"min-self-delegation\":", 10_000_000_000_000_000_000_000);
        out.extend_from_slice(
            b",\"name\":\"simulated\",\"rate\":\"0.050000000000000000\",\"security-contact\":\"\",\
              \"update-height\":1,\"website\":\"\"},\"current-epoch-performance\":null,\
              \"metrics\":null",
        );
        push_number(&mut out, ",\"total-delegation\":", stake);
        out.extend_from_slice(
            b",\"currently-in-committee\":true,\"epos-status\":\"currently elected\",\
              \"epos-winning-stake\":null,\"booted-status\":null,\"active-status\":\"active\",\
              \"lifetime\":null}",
        );
        Ok(out.into())
    }

    /// Returns metrics about the share of the supply that is staked. Harmony adjusts the block
    /// reward by these metrics.
    fn utility_metrics(&self, format: NumberFormat) -> RpcResult {
        let mut out = b"{\"AccumulatorSnapshot\":".to_vec();
        let block_reward = U256::from(7_000_000_000_000_000_000_u64);
        format.push(&mut out, block_reward * U256::from(self.view.head));
        out.extend_from_slice(
            b",\"CurrentStakedPercentage\":\"0.350000000000000000\",\
              \"Deviation\":\"0.000000000000000000\",\"Adjustment\":\"0.000000000000000000\"}",
        );
        Ok(out.into())
    }

    fn validator_keys(&self) -> RpcResult {
        self.check_epoch_argument()?;
        self.keys(0..ACCOUNTS)
    }

    /// Rejects a future epoch in argument 0.
    fn check_epoch_argument(&self) -> Result<(), RpcError> {
        let epoch = self.arguments.number(0)?;
        match epoch {
            BlockArgument::Number(epoch) if epoch > self.view.head / EPOCH_BLOCKS => {
                Err(RpcError::new(SERVER_ERROR, "epoch is in the future"))
            }
            _ => Ok(()),
        }
    }

    /// Returns the node's metadata, which changes with every block.
    fn metadata(&self) -> RpcResult {
        let head = self.view.head;
        let key = alloy_primitives::hex::encode(bls_key(self.world.options().seed, 0));
        fixed(&format!(
            "{{\"blskey\":[\"{key}\"],\"version\":\"Harmony (C) weir simulated node\",\
             \"network\":\"localnet\",\"is-leader\":false,\"shard-id\":0,\
             \"current-block-number\":{head},\"current-epoch\":{epoch},\
             \"blocks-per-epoch\":{EPOCH_BLOCKS},\"role\":\"Validator\",\"dns-zone\":\"\",\
             \"is-archival\":{archival},\"is-backup\":false,\"node-unix-start-time\":{start},\
             \"consensus\":{{\"viewId\":{head},\"viewChangeId\":{head},\"mode\":\"Normal\",\
             \"phase\":\"Announce\",\"blocknum\":{next},\"finality\":{SIGNERS}}}}}",
            epoch = head / EPOCH_BLOCKS,
            archival = self.view.retention.state_blocks.is_none(),
            start = self.world.options().genesis_seconds,
            next = head + 1,
        ))
    }

    fn transaction_in(&self, printer: &Printer<'_>) -> RpcResult {
        let hash = self.arguments.hash(0)?;
        let Some((block, index)) = self.find_transaction(&hash) else { return null() };
        let mut out = Vec::new();
        printer.push_transaction(&mut out, &block, index);
        Ok(out.into())
    }

    fn receipt_in(&self, printer: &Printer<'_>) -> RpcResult {
        let hash = self.arguments.hash(0)?;
        let indexed = self.find_transaction(&hash).filter(|(block, _)| self.has_indexed(block));
        let Some((block, index)) = indexed else { return null() };
        let mut out = Vec::new();
        printer.push_receipt(&mut out, &block, index);
        Ok(out.into())
    }

    fn transaction_at(&self, printer: &Printer<'_>, block: Option<Arc<Block>>) -> RpcResult {
        let index = usize::try_from(self.arguments.quantity(1)?).unwrap_or(usize::MAX);
        let Some(block) = block.filter(|block| index < block.transactions.len()) else {
            return null();
        };
        let mut out = Vec::new();
        printer.push_transaction(&mut out, &block, index);
        Ok(out.into())
    }

    /// Returns the block number in an argument. For every tag, returns the number of the newest
    /// block.
    fn number_argument(&self, index: usize) -> Result<u64, RpcError> {
        match self.arguments.number(index)? {
            BlockArgument::Number(number) => Ok(number),
            _ => Ok(self.view.head),
        }
    }

    /// Returns the block that an argument names, or an error if the node does not have it.
    fn require_block(&self, block: BlockArgument) -> Result<Arc<Block>, RpcError> {
        let missing = || {
            RpcError::new(SERVER_ERROR, "requested block number greater than current block number")
        };
        self.block_of(block)?.ok_or_else(missing)
    }

    fn is_newest(&self, block: &Block) -> bool {
        block.header.number >= self.view.head
    }
}

/// Returns a number as a result.
fn number_result(format: NumberFormat, value: u128) -> RpcResult {
    let mut out = Vec::new();
    format.push(&mut out, U256::from(value));
    Ok(out.into())
}

/// Returns the number of transactions of a block, or `null` if there is no block.
fn count_result(format: NumberFormat, block: Option<Arc<Block>>) -> RpcResult {
    block.map_or_else(null, |block| number_result(format, block.transactions.len() as u128))
}
