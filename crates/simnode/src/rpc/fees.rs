//! Gas prices and the fee history.

use alloy_eips::eip1559::{BaseFeeParams, calc_next_block_base_fee};

use super::arguments::{BlockArgument, invalid};
use super::wording::{INVALID_PARAMS, SERVER_ERROR};
use super::{Call, RpcError, RpcResult, quantity};
use crate::block::{Block, Transaction};
use crate::hex::push_quantity;

/// Maximum number of blocks of one fee history (geth `eth/gasprice/feehistory.go`,
/// `maxHeaderHistory`).
const BLOCKS_MAX: u64 = 1_024;
/// Maximum number of percentiles of one fee history (geth, `maxQueryLimit`).
const PERCENTILES_MAX: usize = 100;

impl Call<'_> {
    pub(super) fn gas_price(&self) -> RpcResult {
        let head = self.head_block()?;
        quantity(u128::from(base_fee(&head)) + median_tip(&head))
    }

    pub(super) fn priority_fee(&self) -> RpcResult {
        quantity(median_tip(&*self.head_block()?))
    }

    /// Serves `eth_feeHistory`. The arguments are the number of blocks, the newest block, and
    /// percentiles of tips. A tip is the part of a gas price above the base fee.
    pub(super) fn fee_history(&self) -> RpcResult {
        let requested_count = self.arguments.quantity(0)?;
        let newest = match self.arguments.number(1)? {
            BlockArgument::Number(number) => number,
            BlockArgument::Safe => self.world.safe_number(self.view.head),
            BlockArgument::Finalized => self.world.finalized_number(self.view.head),
            BlockArgument::Latest | BlockArgument::Hash { .. } => self.view.head,
        };
        if newest > self.view.head {
            let head = self.view.head;
            let message = format!("request beyond head block: requested {newest}, head {head}");
            return Err(RpcError::new(SERVER_ERROR, message));
        }
        let percentiles = self.read_percentiles()?;
        let count = requested_count.min(BLOCKS_MAX).min(newest + 1);
        if count == 0 {
            return super::fixed("{\"oldestBlock\":\"0x0\",\"gasUsedRatio\":null}");
        }
        let oldest = newest + 1 - count;
        self.write_history(oldest, newest, percentiles.as_deref())
    }

    /// Writes the history of these blocks. As in geth, the base fees include the base fee of the
    /// block after `newest`.
    fn write_history(&self, oldest: u64, newest: u64, percentiles: Option<&[f64]>) -> RpcResult {
        let (mut fees, mut ratios, mut rewards) = (Vec::new(), Vec::new(), Vec::new());
        for number in oldest..=newest {
            self.reject_pruned(number)?;
            let block = self
                .world
                .block_at(self.view.head, number)
                .ok_or_else(|| self.view.retention.client.header_not_found())?;
            push_quantity(&mut fees, base_fee(&block).into());
            fees.push(b',');
            let header = &block.header;
            ratios.push((header.gas_used as f64 / header.gas_limit as f64).to_string());
            if let Some(percentiles) = percentiles {
                rewards.push(format!("[{}]", format_rewards(&block, percentiles)));
            }
            if number == newest {
                let (used, limit) = (header.gas_used, header.gas_limit);
                let params = BaseFeeParams::ethereum();
                let next_base_fee = calc_next_block_base_fee(used, limit, base_fee(&block), params);
                push_quantity(&mut fees, next_base_fee.into());
            }
        }
        let fees = String::from_utf8(fees).expect("only hexadecimal digits were written");
        let reward = match percentiles {
            Some(_) => format!("\"reward\":[{}],", rewards.join(",")),
            None => String::new(),
        };
        let blob_fees = vec!["\"0x1\""; ratios.len() + 1].join(",");
        let blob_ratios = vec!["0"; ratios.len()].join(",");
        let ratios = ratios.join(",");
        super::fixed(&format!(
            "{{\"oldestBlock\":\"{oldest:#x}\",{reward}\"baseFeePerGas\":[{fees}],\
             \"gasUsedRatio\":[{ratios}],\"baseFeePerBlobGas\":[{blob_fees}],\
             \"blobGasUsedRatio\":[{blob_ratios}]}}"
        ))
    }

    /// Reads the percentiles in argument 2. Returns `None` if there are no percentiles.
    fn read_percentiles(&self) -> Result<Option<Vec<f64>>, RpcError> {
        let Some(raw) = self.arguments.raw(2) else { return Ok(None) };
        let percentiles: Vec<f64> = serde_json::from_str(raw)
            .map_err(|_| invalid(2, "cannot unmarshal into Go value of type []float64"))?;
        let is_rising = percentiles.is_sorted();
        let is_in_range = percentiles.iter().all(|percentile| (0.0..=100.0).contains(percentile));
        if !is_rising || !is_in_range || percentiles.len() > PERCENTILES_MAX {
            return Err(RpcError::new(INVALID_PARAMS, "invalid reward percentile"));
        }
        Ok(Some(percentiles).filter(|percentiles| !percentiles.is_empty()))
    }

    fn head_block(&self) -> Result<std::sync::Arc<Block>, RpcError> {
        self.world
            .block_at(self.view.head, self.view.head)
            .ok_or_else(|| self.view.retention.client.header_not_found())
    }
}

fn base_fee(block: &Block) -> u64 {
    block.header.base_fee_per_gas.unwrap_or_default()
}

/// Returns the part of a transaction's gas price above the block's base fee, in wei.
fn tip(block: &Block, transaction: &Transaction) -> u128 {
    transaction.gas_price - u128::from(base_fee(block))
}

/// Returns the median tip of a block in wei, or 1 if the block has no transaction.
fn median_tip(block: &Block) -> u128 {
    let mut tips: Vec<u128> =
        block.transactions.iter().map(|transaction| tip(block, transaction)).collect();
    tips.sort_unstable();
    tips.get(tips.len() / 2).copied().unwrap_or(1)
}

/// Formats the tips at the percentiles of gas used, as geth computes them.
fn format_rewards(block: &Block, percentiles: &[f64]) -> String {
    // The tips, each with the gas that its transaction used.
    let mut tips: Vec<(u128, u64)> = block
        .transactions
        .iter()
        .map(|transaction| (tip(block, transaction), transaction.gas_used))
        .collect();
    tips.sort_unstable();
    let mut texts = Vec::with_capacity(percentiles.len());
    let (mut index, mut gas) = (0, tips.first().map_or(0, |(_, gas_used)| *gas_used));
    for percentile in percentiles {
        let threshold = (block.header.gas_used as f64 * percentile / 100.0) as u64;
        while gas < threshold && index + 1 < tips.len() {
            index += 1;
            gas += tips[index].1;
        }
        let tip = tips.get(index).map_or(0, |(tip, _)| *tip);
        texts.push(format!("\"{tip:#x}\""));
    }
    texts.join(",")
}
