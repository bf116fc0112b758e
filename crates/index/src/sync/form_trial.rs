//! Finds the response forms that nodes must serve, because a node writes them differently from the
//! index. A response form is one way in which nodes write an object, such as a block with the
//! hashes of its transactions.
//!
//! The trial writes a sampled block to an index in memory. It decodes each form of the block from
//! that index and compares the result with the node's response.

use wire::logs::LogMatcher;

use super::calls::{self, METHOD_NOT_FOUND};
use super::error::SyncError;
use super::node_pool::NodePool;
use super::samples::SampleBlock;
use crate::compression::{Compressor, Dictionary};
use crate::contents::{Contents, Metadata};
use crate::encode;
use crate::error::ReadError;
use crate::fragments;
use crate::harmony::{self, BlockOptions};
use crate::nodes::{Call, Responses};
use crate::postings::position;
use crate::reader::Reader;
use crate::search::SearchLimits;
use crate::store::{self, NewTransaction, TransactionPart};

/// Maximum number of attempts of a call. An error of the last attempt counts as the response.
const ATTEMPTS_MAX: u32 = 8;

/// The response forms that nodes must serve.
#[derive(Default)]
pub(super) struct FormTrial {
    /// Forms that the node writes differently.
    pub(super) differing: Vec<String>,
    /// Forms that could not be compared with the sampled block.
    pub(super) untested: Vec<String>,
}

impl FormTrial {
    /// Compares all forms that an index with these properties could serve. The trial is incomplete
    /// if the sync was stopped.
    ///
    /// # Errors
    /// Fails if the sampled block cannot be encoded, or no node can be called.
    pub(super) fn run(
        metadata: &Metadata,
        dictionaries: &[Dictionary],
        sample: Option<&SampleBlock>,
        nodes: &NodePool<'_>,
    ) -> Result<FormTrial, SyncError> {
        let mut trial = FormTrial::default();
        let Contents { transactions, receipts, logs, hmyv2 } = metadata.contents;
        // Each form comes with a flag: true if an index with these contents could serve the form.
        let mut mark_untested = |forms: &[(&str, bool)]| {
            let served_forms = forms.iter().filter(|(_, is_served)| *is_served);
            trial.untested.extend(served_forms.map(|(form, _)| (*form).to_owned()));
        };
        // The form without staking transactions is not listed here: even a block without staking
        // transactions shows how a node leaves them out.
        if sample.is_none_or(|sample| sample.count_harmony_transactions() == (0, 0)) {
            mark_untested(&[(harmony::FORM_HASHES, hmyv2)]);
        }
        let transaction_forms =
            [("hashes", transactions), ("transaction", transactions), ("receipt", receipts)];
        let log_forms = [("logs", receipts && logs)];
        let Some(sample) = sample else {
            mark_untested(&transaction_forms);
            mark_untested(&log_forms);
            return Ok(trial);
        };
        let mut compressor = Compressor::new(dictionaries)?;
        let block = encode::encode(&mut compressor, sample.raw(), metadata.contents)
            .map_err(|error| SyncError::Nodes(format!("block {}: {error}", sample.number)))?;
        let transaction_with_logs =
            block.transactions.iter().find(|row| !row.posting_keys.is_empty());
        if transaction_with_logs.is_none() {
            mark_untested(&log_forms);
        }
        let transaction = transaction_with_logs.or(block.transactions.first());
        if transaction.is_none() {
            mark_untested(&transaction_forms);
        }
        let mut store = store::in_memory()?;
        store.initialize(metadata, dictionaries)?;
        store.append(std::slice::from_ref(&block), 0)?;
        let reader = Reader::new(store)?.expect("the index was initialized");
        let mut comparison =
            Comparison { reader, nodes, number: sample.number, differing: Vec::new() };
        if let Some(transaction) = transaction {
            comparison.compare_eth(metadata.contents, transaction)?;
        }
        if hmyv2 {
            comparison.compare_hmyv2()?;
        }
        trial.differing = comparison.differing;
        Ok(trial)
    }
}

/// Appends one decoded form of the sampled block.
type Decode<'a> = dyn FnMut(&mut Reader, &mut Vec<u8>) -> Result<(), ReadError> + 'a;

/// Compares decoded forms of a block with a node's responses.
struct Comparison<'a> {
    /// A reader of an index that holds the sampled block alone.
    reader: Reader,
    nodes: &'a NodePool<'a>,
    /// The number of the block.
    number: u64,
    /// The forms that differ.
    differing: Vec<String>,
}

impl Comparison<'_> {
    /// Calls a node, and repeats the call after an error that may be transient. The result of the
    /// trial is stored permanently, so a transient error must not count as a difference. Returns
    /// `None` if the sync was stopped.
    fn call_with_retries(&self, calls: &[Call]) -> Result<Option<Responses>, SyncError> {
        for _ in 1..ATTEMPTS_MAX {
            let Some(responses) = self.nodes.call(calls)? else { return Ok(None) };
            let is_transient =
                responses.result(0).is_err_and(|error| error.code != METHOD_NOT_FOUND);
            if !is_transient {
                return Ok(Some(responses));
            }
        }
        self.nodes.call(calls)
    }

    /// Calls a node, and records `form` as differing if the response is not the decoded form.
    fn compare(
        &mut self,
        form: &str,
        call: Call,
        decode: &mut Decode<'_>,
    ) -> Result<(), SyncError> {
        let Some(responses) = self.call_with_retries(&[call])? else { return Ok(()) };
        let mut decoded = Vec::new();
        decode(&mut self.reader, &mut decoded)?;
        let result = responses.result(0).ok();
        let compact_result =
            result.map(|raw| fragments::compact_json(raw).unwrap_or_else(|| raw.to_vec()));
        if compact_result.as_deref() != Some(decoded.as_slice()) {
            self.differing.push(form.to_owned());
        }
        Ok(())
    }

    /// Compares the forms of `eth_` methods about the block and one of its transactions.
    fn compare_eth(
        &mut self,
        contents: Contents,
        transaction: &NewTransaction,
    ) -> Result<(), SyncError> {
        let number = self.number;
        let position = position(number, transaction.index);
        let hash = fragments::hash_text(&transaction.hash);
        let hash_params = format!(r#"["{}"]"#, String::from_utf8_lossy(&hash));
        if contents.transactions {
            let full_transactions = false;
            let call = calls::block(number, full_transactions);
            self.compare("hashes", call, &mut |reader, out| {
                reader.write_block(out, number, TransactionPart::Hash).map(drop)
            })?;
            let call = Call::new("eth_getTransactionByHash", hash_params.clone());
            self.compare("transaction", call, &mut |reader, out| {
                reader.write_transaction(out, position, TransactionPart::Body).map(drop)
            })?;
        }
        if contents.receipts {
            let call = Call::new("eth_getTransactionReceipt", hash_params);
            self.compare("receipt", call, &mut |reader, out| {
                reader.write_transaction(out, position, TransactionPart::Receipt).map(drop)
            })?;
        }
        if contents.receipts && contents.logs {
            let range = (number, number);
            self.compare("logs", calls::logs(range), &mut |reader, out| {
                out.push(b'[');
                reader.write_logs(out, &LogMatcher::default(), range, SearchLimits::NONE)?;
                out.push(b']');
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Compares the forms of `hmyv2_` methods about the block.
    fn compare_hmyv2(&mut self) -> Result<(), SyncError> {
        let number = self.number;
        for (full, staking, form) in
            [(false, true, harmony::FORM_HASHES), (true, false, harmony::FORM_WITHOUT_STAKING)]
        {
            let options = BlockOptions { full, staking };
            let call = calls::harmony_blocks((number, number), &options.to_json());
            self.compare(form, call, &mut |reader, out| {
                out.push(b'[');
                reader.write_harmony_block(out, number, options)?;
                out.push(b']');
                Ok(())
            })?;
        }
        let stored = BlockOptions::STORED;
        let params = format!("[{number},{}]", stored.to_json());
        let call = Call::new("hmyv2_getBlockByNumber", params);
        self.compare(harmony::FORM_SINGLE, call, &mut |reader, out| {
            reader.write_harmony_block(out, number, stored).map(drop)
        })?;
        let call = Call::new("hmyv2_getBlockTransactionCountByNumber", format!("[{number}]"));
        self.compare(harmony::FORM_COUNT, call, &mut |reader, out| {
            reader.write_harmony_transaction_count(out, number).map(drop)
        })
    }
}
