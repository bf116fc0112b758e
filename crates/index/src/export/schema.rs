//! The tables of an export and their columns. Each column names its source: the member of a node's
//! JSON that holds the values of the column.

use std::str::FromStr;

/// A table of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Table {
    /// A row for each block: its header.
    Blocks,
    /// A row for each transaction, with members of its receipt if the index holds receipts.
    Transactions,
    /// A row for each log.
    Logs,
}

impl Table {
    /// All tables.
    pub const ALL: [Table; 3] = [Table::Blocks, Table::Transactions, Table::Logs];

    /// Returns the name of the table.
    pub fn name(self) -> &'static str {
        match self {
            Table::Blocks => "blocks",
            Table::Transactions => "transactions",
            Table::Logs => "logs",
        }
    }

    /// Returns the name of the table's file.
    pub fn file_name(self) -> String {
        format!("{}.parquet", self.name())
    }

    pub(super) fn columns(self) -> &'static [Column] {
        match self {
            Table::Blocks => BLOCKS,
            Table::Transactions => TRANSACTIONS,
            Table::Logs => LOGS,
        }
    }
}

impl FromStr for Table {
    type Err = String;

    fn from_str(name: &str) -> Result<Table, String> {
        let table = Table::ALL.into_iter().find(|table| table.name() == name.trim());
        table.ok_or_else(|| format!("`{name}`: allowed are blocks, transactions and logs"))
    }
}

/// A column.
pub(super) struct Column {
    pub(super) name: &'static str,
    pub(super) kind: ColumnType,
    pub(super) source: Source,
    /// True if the value may be missing.
    pub(super) optional: bool,
}

/// The type of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ColumnType {
    /// An unsigned integer of 64 bits.
    Number,
    /// The text of a JSON string.
    Text,
    /// A quantity of up to 256 bits, as decimal text.
    Amount,
}

/// The part of a node's JSON that holds the values of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// A member of the row's object: the block, the transaction or the log.
    Row(&'static str),
    /// A member of the related object: the receipt of a transaction, or the block of a log.
    Related(&'static str),
    /// The topic with this index in a log.
    Topic(usize),
    /// The length of an array that is a member of the row's object.
    Count(&'static str),
}

use ColumnType::{Amount, Number, Text};
use Source::{Count, Related, Row, Topic};

const fn required(name: &'static str, kind: ColumnType, source: Source) -> Column {
    Column { name, kind, source, optional: false }
}

const fn optional(name: &'static str, kind: ColumnType, source: Source) -> Column {
    Column { name, kind, source, optional: true }
}

/// The columns of the table of blocks.
const BLOCKS: &[Column] = &[
    required("number", Number, Row("number")),
    required("hash", Text, Row("hash")),
    required("parent_hash", Text, Row("parentHash")),
    required("timestamp", Number, Row("timestamp")),
    required("transaction_count", Number, Count("transactions")),
    optional("miner", Text, Row("miner")),
    optional("gas_limit", Number, Row("gasLimit")),
    optional("gas_used", Number, Row("gasUsed")),
    optional("base_fee_per_gas", Amount, Row("baseFeePerGas")),
    optional("difficulty", Amount, Row("difficulty")),
    optional("size", Number, Row("size")),
    optional("state_root", Text, Row("stateRoot")),
    optional("transactions_root", Text, Row("transactionsRoot")),
    optional("receipts_root", Text, Row("receiptsRoot")),
    optional("withdrawals_root", Text, Row("withdrawalsRoot")),
    optional("blob_gas_used", Number, Row("blobGasUsed")),
    optional("excess_blob_gas", Number, Row("excessBlobGas")),
    optional("extra_data", Text, Row("extraData")),
];

/// The columns of the table of transactions.
const TRANSACTIONS: &[Column] = &[
    required("block_number", Number, Row("blockNumber")),
    required("block_hash", Text, Row("blockHash")),
    required("transaction_index", Number, Row("transactionIndex")),
    required("hash", Text, Row("hash")),
    optional("type", Number, Row("type")),
    required("from", Text, Row("from")),
    optional("to", Text, Row("to")),
    optional("nonce", Number, Row("nonce")),
    required("value", Amount, Row("value")),
    required("gas", Number, Row("gas")),
    optional("gas_price", Amount, Row("gasPrice")),
    optional("max_fee_per_gas", Amount, Row("maxFeePerGas")),
    optional("max_priority_fee_per_gas", Amount, Row("maxPriorityFeePerGas")),
    optional("input", Text, Row("input")),
    optional("status", Number, Related("status")),
    optional("gas_used", Number, Related("gasUsed")),
    optional("effective_gas_price", Amount, Related("effectiveGasPrice")),
    optional("contract_address", Text, Related("contractAddress")),
];

/// The columns of the table of logs.
const LOGS: &[Column] = &[
    required("block_number", Number, Row("blockNumber")),
    required("block_hash", Text, Row("blockHash")),
    optional("block_timestamp", Number, Related("timestamp")),
    required("transaction_index", Number, Row("transactionIndex")),
    required("transaction_hash", Text, Row("transactionHash")),
    required("log_index", Number, Row("logIndex")),
    required("address", Text, Row("address")),
    optional("topic0", Text, Topic(0)),
    optional("topic1", Text, Topic(1)),
    optional("topic2", Text, Topic(2)),
    optional("topic3", Text, Topic(3)),
    required("data", Text, Row("data")),
];
