//! Verifies receipts in one pass over the JSON. The module encodes each receipt again, so that the
//! header's `receiptsRoot` can be compared with the root of the encodings. It computes the Bloom
//! filters from the logs. Other members are compared with the block and its transactions.

use alloy_consensus::Header;
use alloy_eips::eip4844::DATA_GAS_PER_BLOB;
use alloy_primitives::{B256, Bloom};
use alloy_rlp::{Encodable, Header as RlpHeader};

use super::block::{Block, Body, Tx};
use super::bloom::LogBloomBuilder;
use super::cursor::Cursor;
use super::error::Error;
use super::fields::{Fields, Layout, names};
use super::log::{LOG, Log, LogPosition};
use super::transaction::Encodings;

// `names!` declares a list of member names, and for each name a constant: its index in the list.
// `Layout` finds these members in an object, and `Fields` holds their raw values (`fields.rs`).
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

/// Checks that the receipts are an array with one object for each transaction. Each object must
/// have the hash of its transaction.
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

/// Compares the header's Bloom filter with `computed`, the Bloom filter of all logs.
pub(super) fn check_bloom(header: &Header, computed: &Bloom) -> Result<(), Error> {
    if header.logs_bloom == *computed {
        return Ok(());
    }
    let count_extra_bits = |bloom: &Bloom, other: &Bloom| {
        let pairs = bloom.iter().zip(other.iter());
        pairs.map(|(byte, other_byte)| (byte & !other_byte).count_ones()).sum::<u32>()
    };
    let extra = count_extra_bits(&header.logs_bloom, computed);
    let missing = count_extra_bits(computed, &header.logs_bloom);
    let found = format!("{extra} bits that no log sets and {missing} missing bits");
    Err(Error::mismatch(&found, "none of either", "the bloom of all logs").in_member("logsBloom"))
}

/// Checks that there is one receipt for each transaction.
fn check_count(block: &Block, count: usize) -> Result<(), Error> {
    let transactions = block.transactions.len();
    if count == transactions {
        return Ok(());
    }
    let from = "the number of transactions";
    Err(Error::mismatch(&count.to_string(), &transactions.to_string(), from).in_member("receipts"))
}

/// Returns the transaction of the receipt with this index.
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
    /// A buffer for the encodings of one receipt's logs.
    encoded_logs: Vec<u8>,
    bloom_builder: LogBloomBuilder,
    /// The Bloom filter of all logs so far.
    bloom: Bloom,
    /// The number of logs in the previous receipts.
    log_count: u64,
    /// `cumulativeGasUsed` of the previous receipt.
    cumulative_gas: u64,
    /// The price in the first receipt with blobs, in wei per blob gas; `None` before that receipt.
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
            bloom_builder: LogBloomBuilder::default(),
            bloom: Bloom::ZERO,
            log_count: 0,
            cumulative_gas: 0,
            blob_gas_price: None,
            layout: Layout::new(&RECEIPT),
            log_layout: Layout::new(&LOG),
        }
    }

    /// Verifies the receipt at the cursor.
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
        let cumulative_gas = self.check_gas(&fields)?;
        fields.check_required(BLOOM, &bloom, "the receipt's logs")?;
        if let Some(body) = &transaction.body {
            self.check_body(&fields, body)?;
        }
        let kind = read_type(&fields, transaction.body.as_ref())?;
        self.encode(kind, &read_outcome(&fields)?, cumulative_gas, &bloom);
        self.bloom |= bloom;
        Ok(())
    }

    /// Verifies and encodes the logs of a receipt, and adds them to the receipt's Bloom filter.
    fn read_logs(
        &mut self,
        transaction_index: usize,
        transaction_hash: &B256,
        cursor: &mut Cursor<'_>,
        bloom: &mut Bloom,
    ) -> Result<(), Error> {
        cursor.elements(|_, cursor| {
            let log = Log::read(cursor, &mut self.log_layout)?;
            log.check_position(&LogPosition {
                block: self.block,
                transaction_hash,
                transaction_index: transaction_index as u64,
                log_index: self.log_count,
            })?;
            self.bloom_builder.add(bloom, &log.address, log.topics());
            self.log_count += 1;
            log.encode(&mut self.encoded_logs)
        })?;
        Ok(())
    }

    /// Compares the position of a receipt with the block and the transaction.
    fn check_position(&self, fields: &ReceiptFields<'_>, index: u64, tx: &Tx) -> Result<(), Error> {
        fields.check_required(TX_HASH, &tx.hash, "the transaction at this index")?;
        fields.check_required(TX_INDEX, &index, "its index in the block")?;
        fields.check_required(BLOCK_HASH, &self.block.hash, "the block")?;
        fields.check_required(BLOCK_NUMBER, &self.block.number, "the block")?;
        fields.check_optional(BLOCK_TIMESTAMP, &self.block.timestamp, "the block")
    }

    /// Verifies `cumulativeGasUsed` and `gasUsed`, and returns `cumulativeGasUsed`.
    fn check_gas(&mut self, fields: &ReceiptFields<'_>) -> Result<u64, Error> {
        let cumulative_gas: u64 = fields.required(GAS_CUMULATIVE)?;
        let Some(gas_used) = cumulative_gas.checked_sub(self.cumulative_gas) else {
            let minimum = format!("at least {:#x}", self.cumulative_gas);
            return Err(fields.mismatch_in_words(GAS_CUMULATIVE, &minimum, "the receipt before"));
        };
        fields.check_required(
            GAS_USED,
            &gas_used,
            "cumulativeGasUsed and that of the receipt before",
        )?;
        self.cumulative_gas = cumulative_gas;
        Ok(cumulative_gas)
    }

    /// Compares members of the receipt with the transaction.
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
        fields.check_optional(GAS_PRICE, &body.gas_price, "the transaction and the base fee")?;
        self.check_blobs(fields, body)
    }

    /// Verifies the blob gas and its price. The price follows from the header by a parameter that
    /// changes with forks, so it is not recomputed. The price must not exceed the sender's maximum.
    /// All receipts of the block must have the same price.
    fn check_blobs(&mut self, fields: &ReceiptFields<'_>, body: &Body) -> Result<(), Error> {
        const NONE: &str = "none, because the transaction has no blobs";
        // Only transactions of type 3 have blobs. The value 0 is accepted for other transactions.
        if body.kind != 3 {
            if fields.optional::<u64>(BLOB_GAS_USED)? != Some(0) {
                fields.check_absent(BLOB_GAS_USED, NONE)?;
            }
            return fields.check_absent(BLOB_GAS_PRICE, NONE);
        }
        let blob_gas = body.blob_count.saturating_mul(DATA_GAS_PER_BLOB);
        fields.check_optional(BLOB_GAS_USED, &blob_gas, "the transaction's blobs")?;
        let Some(price) = fields.optional::<u128>(BLOB_GAS_PRICE)? else { return Ok(()) };
        if price > body.blob_fee_max {
            let maximum = format!("at most {:#x}", body.blob_fee_max);
            return Err(fields.mismatch_in_words(BLOB_GAS_PRICE, &maximum, "maxFeePerBlobGas"));
        }
        let first_price = *self.blob_gas_price.get_or_insert(price);
        fields.check_required(BLOB_GAS_PRICE, &first_price, "the first receipt with blobs")
    }

    /// Appends the encoding of a receipt (EIP-2718; Yellow Paper, section 4.3.1). A legacy receipt,
    /// of type 0, has no type byte.
    fn encode(&mut self, kind: u8, outcome: &Outcome, cumulative_gas: u64, bloom: &Bloom) {
        let out = &mut self.encodings.bytes;
        if kind != 0 {
            out.push(kind);
        }
        let logs = RlpHeader { list: true, payload_length: self.encoded_logs.len() };
        let payload_length = outcome.length()
            + cumulative_gas.length()
            + bloom.length()
            + logs.length_with_payload();
        RlpHeader { list: true, payload_length }.encode(out);
        outcome.encode(out);
        cumulative_gas.encode(out);
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
        (None, Some(kind @ 0..=4)) => Ok(kind as u8),
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
    let is_empty = fields.raw(ROOT) == Some(b"\"0x\"");
    let root = if is_empty { None } else { fields.optional::<B256>(ROOT)? };
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
