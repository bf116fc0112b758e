//! Samples blocks from nodes. A new index needs samples to train its compression dictionaries and
//! to compare response forms. A response form is one way in which nodes write an object. A fragment
//! is a part of a block's JSON, and each kind of fragment has a dictionary.

use wire::json::walk;

use super::calls;
use super::error::SyncError;
use super::node_pool::NodePool;
use super::options::Options;
use crate::compression::{Dictionary, FragmentKind, train};
use crate::contents::Contents;
use crate::encode::{self, RawBlock};
use crate::harmony;
use crate::planner::sampling;

/// Maximum number of bytes of samples of one kind: 64 times the size of a dictionary. Training on
/// this many bytes takes about a second.
const BYTES_PER_KIND: usize = 2 << 20;

/// Sampled fragments and a sampled block.
#[derive(Default)]
pub(super) struct Samples {
    /// Uncompressed fragments, each with its kind.
    fragments: Vec<(FragmentKind, Vec<u8>)>,
    /// The sampled block with which the most response forms can be compared; `None` if no block
    /// could be sampled.
    pub(super) richest: Option<SampleBlock>,
}

/// The raw responses of a node about one block. A part is `None` if the index does not need it.
pub(super) struct SampleBlock {
    pub(super) number: u64,
    block: Vec<u8>,
    receipts: Option<Vec<u8>>,
    /// The array of logs. It is also `None` if the node does not return the logs.
    logs: Option<Vec<u8>>,
    /// The block as Harmony's `hmyv2_` methods write it (`harmony.rs`).
    harmony: Option<Vec<u8>>,
}

impl Samples {
    /// Fetches samples. They are incomplete if the sync was stopped.
    ///
    /// # Errors
    /// Fails if no node can be called.
    pub(super) fn fetch(options: &Options, nodes: &NodePool<'_>) -> Result<Samples, SyncError> {
        let mut samples = Samples::default();
        let Some(tip) = nodes.tip()? else { return Ok(samples) };
        let mut bytes_by_kind = [0; FragmentKind::ALL.len()];
        let mut highest_rank = None;
        for number in sampling::block_numbers(options.start, options.end, tip) {
            let Some(sample) = SampleBlock::fetch(options.contents, number, nodes)? else {
                continue;
            };
            let fragments =
                encode::collect_samples(sample.raw(), options.contents).unwrap_or_default();
            // A Harmony block with plain and staking transactions allows the most comparisons. A
            // block with logs allows more comparisons than a block without logs.
            let rank = (sample.has_plain_and_staking(), sample.has_logs(), fragments.len());
            for (kind, fragment) in fragments {
                bytes_by_kind[kind as usize] += fragment.len();
                if bytes_by_kind[kind as usize] < BYTES_PER_KIND {
                    samples.fragments.push((kind, fragment));
                }
            }
            if highest_rank.is_none_or(|highest| rank > highest) {
                highest_rank = Some(rank);
                samples.richest = Some(sample);
            }
        }
        Ok(samples)
    }

    /// Trains a dictionary for each kind of fragment that was sampled.
    pub(super) fn train_dictionaries(&self) -> Vec<Dictionary> {
        let train_kind = |kind| {
            let fragments_of_kind =
                self.fragments.iter().filter(|(fragment_kind, _)| *fragment_kind == kind);
            train(kind, &fragments_of_kind.map(|(_, bytes)| bytes.clone()).collect::<Vec<_>>())
        };
        let dictionaries = FragmentKind::ALL.into_iter().map(train_kind);
        dictionaries.filter(|dictionary| !dictionary.bytes.is_empty()).collect()
    }
}

impl SampleBlock {
    /// Fetches a block. Returns `None` if the node does not return the block, its receipts or its
    /// `hmyv2_` form. Also returns `None` if the sync was stopped. A sample may lack its logs.
    fn fetch(
        contents: Contents,
        number: u64,
        nodes: &NodePool<'_>,
    ) -> Result<Option<SampleBlock>, SyncError> {
        let mut calls = vec![calls::block(number, contents.transactions || contents.receipts)];
        if contents.receipts {
            calls.push(calls::block_receipts(number));
        } else if contents.logs {
            calls.push(calls::logs((number, number)));
        }
        if contents.hmyv2 {
            calls.push(calls::harmony_blocks((number, number), harmony::STORED_OPTIONS));
        }
        let Some(responses) = nodes.call(&calls)? else { return Ok(None) };
        // The opening bracket distinguishes an object or array from null.
        let result_with_bracket = |index: usize, bracket: u8| {
            let raw = responses.result(index).ok().filter(|raw| raw.first() == Some(&bracket));
            raw.map(<[u8]>::to_vec)
        };
        let Some(block) = result_with_bracket(0, b'{') else { return Ok(None) };
        let mut receipts = contents.receipts.then(|| result_with_bracket(1, b'[')).flatten();
        if contents.receipts && receipts.is_none() {
            receipts = fetch_receipts_one_by_one(&block, nodes)?;
        }
        // With receipts, the logs are parts of the receipts.
        let has_own_logs = contents.logs && !contents.receipts;
        let logs = has_own_logs.then(|| result_with_bracket(1, b'[')).flatten();
        let list = contents.hmyv2.then(|| result_with_bracket(calls.len() - 1, b'[')).flatten();
        let harmony = list.and_then(|list| walk::elements(&list).next().map(<[u8]>::to_vec));
        if contents.receipts && receipts.is_none() || contents.hmyv2 && harmony.is_none() {
            return Ok(None);
        }
        Ok(Some(SampleBlock { number, block, receipts, logs, harmony }))
    }

    /// Returns the raw responses.
    pub(super) fn raw(&self) -> RawBlock<'_> {
        RawBlock {
            block: &self.block,
            receipts: self.receipts.as_deref(),
            logs: self.logs.as_deref(),
            harmony: self.harmony.as_deref(),
        }
    }

    /// Returns the number of transactions and the number of staking transactions in the `hmyv2_`
    /// form. Both are 0 if the sample has no such form.
    pub(super) fn count_harmony_transactions(&self) -> (u64, u64) {
        self.harmony.as_deref().and_then(harmony::count_transactions).unwrap_or_default()
    }

    /// Returns true if the block has both plain transactions and staking transactions.
    fn has_plain_and_staking(&self) -> bool {
        matches!(self.count_harmony_transactions(), (1.., 1..))
    }

    /// Returns true if a receipt has logs. An empty array has two bytes.
    fn has_logs(&self) -> bool {
        let mut receipts = walk::elements(self.receipts.as_deref().unwrap_or_default());
        receipts.any(|receipt| walk::member(receipt, "logs").is_some_and(|logs| logs.len() > 2))
    }
}

/// Fetches the receipts of a block one by one. Returns `None` if the node does not return all of
/// them, or if the sync was stopped.
fn fetch_receipts_one_by_one(
    block: &[u8],
    nodes: &NodePool<'_>,
) -> Result<Option<Vec<u8>>, SyncError> {
    // The error is `None` if a receipt is missing or the sync was stopped.
    let fetched = calls::receipts_one_by_one(
        block,
        |batch| match nodes.call(batch) {
            Ok(Some(responses)) => Ok(responses),
            Ok(None) => Err(None),
            Err(error) => Err(Some(error)),
        },
        |responses, index| responses.result(index).map_err(|_| None),
    );
    match fetched {
        Ok(receipts) => Ok(Some(receipts)),
        Err(None) => Ok(None),
        Err(Some(error)) => Err(error),
    }
}
