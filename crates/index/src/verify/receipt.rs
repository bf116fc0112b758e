//! Verifies receipts in one pass over the JSON. They are encoded again for the header's root, and
//! their blooms are computed from their logs. Members that follow from the block and its
//! transactions are compared.

use alloy_consensus::Header;
use alloy_eips::eip4844::DATA_GAS_PER_BLOB;
use alloy_primitives::{B256, Bloom};
use alloy_rlp::{Encodable, Header as RlpHeader};

use super::block::{Block, Body, Tx};
use super::bloom::Bloomer;
use super::cursor::Cursor;
use super::error::Error;
use super::fields::{Fields, Layout, names};
use super::log::{LOG, Log, LogPosition};
use super::transaction::Encodings;

names! {
    /// The members of a receipt that are verified (execution-apis `src/schemas/receipt.yaml`).
    RECEIPT, ReceiptMember:
    KIND = "type",
    STATUS = "status",
    ROOT = "root",
    GAS_CUMULATIVE = "cumulativeGasUsed",
    GAS_USED = "gasUsed",
    BLOOM = "logsBloom",
    LOGS = "logs",
    TX_HASH = "transactionHash",
    TX_INDEX = "transactionIndex",
    BLOCK_HASH = "blockHash",
    BLOCK_NUMBER = "blockNumber",
    BLOCK_TIMESTAMP = "blockTimestamp",
    FROM = "from",
    TO = "to",
    CONTRACT = "contractAddress",
    GAS_PRICE = "effectiveGasPrice",
    BLOB_GAS_USED = "blobGasUsed",
    BLOB_GAS_PRICE = "blobGasPrice",
}

type ReceiptFields<'a> = Fields<'a, { RECEIPT.len() }>;

/// Checks that the receipts are an array of one object for each transaction, with its hash.
pub(super) fn check_shape(block: &Block, raw: &[u8]) -> Result<(), Error> {
    let mut layout = Layout::new(&RECEIPT);
    let count = Cursor::new(raw)
        .elements(|index, cursor| {
            let fields = cursor.object(&mut layout)?;
            let transaction = transaction_at(block, index)?;
            fields.required_raw(LOGS, "an array of logs")?;
            fields.check_required(TX_HASH, &transaction.hash, "the transaction at this index")
        })
        .map_err(|error| error.in_member("receipts"))?;
    check_count(block, count)
}

/// Verifies all members of the receipts.
pub(super) fn check_all(block: &Block, header: &Header, raw: &[u8]) -> Result<(), Error> {
    let mut verifier = Verifier::new(block, raw.len());
    let count = Cursor::new(raw)
        .elements(|index, cursor| verifier.verify_receipt(index, cursor))
        .map_err(|error| error.in_member("receipts"))?;
    check_count(block, count)?;
    check_bloom(header, &verifier.bloom)?;
    let root = verifier.encodings.root();
    if root != header.receipts_root {
        let (found, computed) = (header.receipts_root.to_string(), root.to_string());
        let from = "the Merkle root of receipts (type, status or root, cumulativeGasUsed, logs)";
        return Err(Error::mismatch(&found, &computed, from).in_member("receiptsRoot"));
    }
    Ok(())
}

/// Verifies the header's bloom, given the bloom of all logs.
pub(super) fn check_bloom(header: &Header, computed: &Bloom) -> Result<(), Error> {
    if header.logs_bloom == *computed {
        return Ok(());
    }
    let extra_bits = |bloom: &Bloom, other: &Bloom| {
        bloom.iter().zip(other.iter()).map(|(a, b)| (a & !b).count_ones()).sum::<u32>()
    };
    let (extra, missing) =
        (extra_bits(&header.logs_bloom, computed), extra_bits(computed, &header.logs_bloom));
    let found = format!("{extra} bits that no log sets and {missing} missing bits");
    Err(Error::mismatch(&found, "none of either", "the bloom of all logs").in_member("logsBloom"))
}

fn check_count(block: &Block, count: usize) -> Result<(), Error> {
    let transactions = block.transactions.len();
    if count == transactions {
        return Ok(());
    }
    let from = "the number of transactions";
    Err(Error::mismatch(&count.to_string(), &transactions.to_string(), from).in_member("receipts"))
}

fn transaction_at(block: &Block, index: usize) -> Result<&Tx, Error> {
    let count = block.transactions.len();
    block.transactions.get(index).ok_or_else(|| {
        let from = "the number of transactions";
        Error::mismatch("a receipt", &format!("only {count}"), from)
    })
}

/// Verifies the receipts of a block in order. The fields hold the state between two receipts.
struct Verifier<'b> {
    block: &'b Block,
    encodings: Encodings,
    /// The encodings of one receipt's logs, in a reused buffer.
    encoded_logs: Vec<u8>,
    bloomer: Bloomer,
    /// The bloom of all logs so far.
    bloom: Bloom,
    /// The number of logs in the previous receipts.
    log_count: u64,
    /// The cumulative gas of the previous receipt.
    gas_cumulative: u64,
    /// The price of one blob gas in the first receipt with blobs, in wei.
    blob_gas_price: Option<u128>,
    layout: Layout<{ RECEIPT.len() }>,
    log_layout: Layout<{ LOG.len() }>,
}

impl<'b> Verifier<'b> {
    fn new(block: &'b Block, raw_bytes: usize) -> Self {
        let mut encodings = Encodings::default();
        encodings.bytes.reserve(raw_bytes / 2);
        Self {
            block,
            encodings,
            encoded_logs: Vec::new(),
            bloomer: Bloomer::default(),
            bloom: Bloom::ZERO,
            log_count: 0,
            gas_cumulative: 0,
            blob_gas_price: None,
            layout: Layout::new(&RECEIPT),
            log_layout: Layout::new(&LOG),
        }
    }

    fn verify_receipt(&mut self, index: usize, cursor: &mut Cursor<'_>) -> Result<(), Error> {
        let transaction = transaction_at(self.block, index)?;
        let mut bloom = Bloom::ZERO;
        let mut fields = self.layout.fields();
        self.encoded_logs.clear();
        cursor.open_object()?;
        while let Some(field) = cursor.member(&mut fields, &mut self.layout)? {
            if field == LOGS {
                self.read_logs(index, &transaction.hash, cursor, &mut bloom)
                    .map_err(|error| fields.error(LOGS, error))?;
            } else {
                fields.set(field, cursor.value()?);
            }
        }
        fields.required_raw(LOGS, "an array of logs")?;
        self.check_position(&fields, index as u64, transaction)?;
        let gas_cumulative = self.check_gas(&fields)?;
        fields.check_required(BLOOM, &bloom, "the receipt's logs")?;
        if let Some(body) = &transaction.body {
            self.check_body(&fields, body)?;
        }
        let kind = read_type(&fields, transaction.body.as_ref())?;
        self.encode(kind, &read_outcome(&fields)?, gas_cumulative, &bloom);
        self.bloom |= bloom;
        Ok(())
    }

    fn read_logs(
        &mut self,
        index: usize,
        hash: &B256,
        cursor: &mut Cursor<'_>,
        bloom: &mut Bloom,
    ) -> Result<(), Error> {
        cursor.elements(|_, cursor| {
            let log = Log::read(cursor, &mut self.log_layout)?;
            log.check_position(&LogPosition {
                block: self.block,
                transaction: hash,
                transaction_index: index as u64,
                log_index: self.log_count,
            })?;
            self.bloomer.add(bloom, &log.address, log.topics());
            self.log_count += 1;
            log.encode(&mut self.encoded_logs)
        })?;
        Ok(())
    }

    fn check_position(&self, fields: &ReceiptFields<'_>, index: u64, tx: &Tx) -> Result<(), Error> {
        fields.check_required(TX_HASH, &tx.hash, "the transaction at this index")?;
        fields.check_required(TX_INDEX, &index, "its index in the block")?;
        fields.check_required(BLOCK_HASH, &self.block.hash, "the block")?;
        fields.check_required(BLOCK_NUMBER, &self.block.number, "the block")?;
        fields.check_optional(BLOCK_TIMESTAMP, &self.block.timestamp, "the block")
    }

    /// Verifies and returns the cumulative gas.
    fn check_gas(&mut self, fields: &ReceiptFields<'_>) -> Result<u64, Error> {
        let cumulative: u64 = fields.required(GAS_CUMULATIVE)?;
        let Some(used) = cumulative.checked_sub(self.gas_cumulative) else {
            let minimum = format!("at least {:#x}", self.gas_cumulative);
            return Err(fields.mismatch_in_words(GAS_CUMULATIVE, &minimum, "the receipt before"));
        };
        fields.check_required(
            GAS_USED,
            &used,
            "cumulativeGasUsed and that of the receipt before",
        )?;
        self.gas_cumulative = cumulative;
        Ok(cumulative)
    }

    /// Verifies the members that follow from the transaction.
    fn check_body(&mut self, fields: &ReceiptFields<'_>, body: &Body) -> Result<(), Error> {
        fields.check_optional(KIND, &u64::from(body.kind), "the transaction")?;
        fields.check_required(FROM, &body.from, "the transaction")?;
        match &body.to {
            Some(to) => {
                fields.check_required(TO, to, "the transaction")?;
                fields.check_absent(CONTRACT, "null, because the transaction has a receiver")?;
            }
            None => {
                fields.check_absent(TO, "null, because the transaction creates a contract")?;
                let contract = body.from.create(body.nonce);
                fields.check_required(CONTRACT, &contract, "the sender and its nonce")?;
            }
        }
        fields.check_optional(GAS_PRICE, &body.price, "the transaction and the base fee")?;
        self.check_blobs(fields, body)
    }

    /// Verifies the blob gas. Its price follows from the header by a parameter that changes with
    /// forks, so only its bounds are verified.
    fn check_blobs(&mut self, fields: &ReceiptFields<'_>, body: &Body) -> Result<(), Error> {
        const NONE: &str = "none, because the transaction has no blobs";
        if body.kind != 3 {
            if fields.optional::<u64>(BLOB_GAS_USED)? != Some(0) {
                fields.check_absent(BLOB_GAS_USED, NONE)?;
            }
            return fields.check_absent(BLOB_GAS_PRICE, NONE);
        }
        let blob_gas = body.blobs.saturating_mul(DATA_GAS_PER_BLOB);
        fields.check_optional(BLOB_GAS_USED, &blob_gas, "the transaction's blobs")?;
        let Some(price) = fields.optional::<u128>(BLOB_GAS_PRICE)? else { return Ok(()) };
        if price > body.blob_fee_max {
            let maximum = format!("at most {:#x}", body.blob_fee_max);
            return Err(fields.mismatch_in_words(BLOB_GAS_PRICE, &maximum, "maxFeePerBlobGas"));
        }
        let first_price = *self.blob_gas_price.get_or_insert(price);
        fields.check_required(BLOB_GAS_PRICE, &first_price, "the first receipt with blobs")
    }

    /// Appends the receipt's encoding (EIP-2718; Yellow Paper, section 4.3.1).
    fn encode(&mut self, kind: u8, outcome: &Outcome, gas_cumulative: u64, bloom: &Bloom) {
        let out = &mut self.encodings.bytes;
        if kind != 0 {
            out.push(kind);
        }
        let logs = RlpHeader { list: true, payload_length: self.encoded_logs.len() };
        let payload_length = outcome.length()
            + gas_cumulative.length()
            + bloom.length()
            + logs.length_with_payload();
        RlpHeader { list: true, payload_length }.encode(out);
        outcome.encode(out);
        gas_cumulative.encode(out);
        bloom.encode(out);
        logs.encode(out);
        out.extend_from_slice(&self.encoded_logs);
        self.encodings.end();
    }
}

/// Returns the transaction's type. Without the transaction, returns the type in the receipt, which
/// `receiptsRoot` verifies.
fn read_type(fields: &ReceiptFields<'_>, body: Option<&Body>) -> Result<u8, Error> {
    match (body, fields.optional::<u64>(KIND)?) {
        (Some(body), _) => Ok(body.kind),
        (None, None) => Ok(0),
        (None, Some(kind @ 0..=4)) => Ok(kind as u8), // at most 4
        (None, Some(_)) => {
            let found = fields.raw(KIND).unwrap_or_default();
            Err(fields.error(KIND, Error::unknown_type(found)))
        }
    }
}

/// The outcome of the execution.
enum Outcome {
    /// True if the execution succeeded (EIP-658, from Byzantium on).
    Status(bool),
    /// The state root after the execution, before Byzantium.
    Root(B256),
}

impl Outcome {
    fn length(&self) -> usize {
        match self {
            Self::Status(success) => success.length(),
            Self::Root(root) => root.length(),
        }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Status(success) => success.encode(out),
            Self::Root(root) => root.encode(out),
        }
    }
}

/// Reads the outcome. Exactly one of `status` and `root` must be present; an empty `root` counts as
/// missing.
fn read_outcome(fields: &ReceiptFields<'_>) -> Result<Outcome, Error> {
    let empty = fields.raw(ROOT) == Some(b"\"0x\"");
    let root = if empty { None } else { fields.optional::<B256>(ROOT)? };
    if let Some(root) = root {
        fields.check_absent(STATUS, "none, because root is present")?;
        return Ok(Outcome::Root(root));
    }
    fields.required_raw(STATUS, "0x0 or 0x1, or a root instead")?;
    match fields.required::<u64>(STATUS)? {
        0 => Ok(Outcome::Status(false)),
        1 => Ok(Outcome::Status(true)),
        _ => Err(fields.form_error(STATUS, "0x0 or 0x1")),
    }
}
