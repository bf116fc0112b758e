//! The tables, their columns, and where in a node's JSON their values are.

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

    /// Returns the name of the table and of its file.
    pub fn name(self) -> &'static str {
        match self {
            Table::Blocks => "blocks",
            Table::Transactions => "transactions",
            Table::Logs => "logs",
        }
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
        let known = Table::ALL.into_iter().find(|table| table.name() == name.trim());
        known.ok_or_else(|| format!("`{name}`: allowed are blocks, transactions and logs"))
    }
}

/// A column.
pub(super) struct Column {
    pub(super) name: &'static str,
    pub(super) kind: ColumnType,
    pub(super) source: Source,
    /// True if a value may be missing.
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

/// The source of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// A member of the row's own object.
    Own(&'static str),
    /// A member of the related object: a transaction's receipt, a log's block.
    Other(&'static str),
    /// A topic of a log.
    Topic(usize),
    /// The length of an array that is a member of the row's own object.
    Count(&'static str),
}

use ColumnType::{Amount, Number, Text};
use Source::{Count, Other, Own, Topic};

const fn required(name: &'static str, kind: ColumnType, source: Source) -> Column {
    Column { name, kind, source, optional: false }
}

const fn optional(name: &'static str, kind: ColumnType, source: Source) -> Column {
    Column { name, kind, source, optional: true }
}

const BLOCKS: &[Column] = &[
    required("number", Number, Own("number")),
    required("hash", Text, Own("hash")),
    required("parent_hash", Text, Own("parentHash")),
    required("timestamp", Number, Own("timestamp")),
    required("transaction_count", Number, Count("transactions")),
    optional("miner", Text, Own("miner")),
    optional("gas_limit", Number, Own("gasLimit")),
    optional("gas_used", Number, Own("gasUsed")),
    optional("base_fee_per_gas", Amount, Own("baseFeePerGas")),
    optional("difficulty", Amount, Own("difficulty")),
    optional("size", Number, Own("size")),
    optional("state_root", Text, Own("stateRoot")),
    optional("transactions_root", Text, Own("transactionsRoot")),
    optional("receipts_root", Text, Own("receiptsRoot")),
    optional("withdrawals_root", Text, Own("withdrawalsRoot")),
    optional("blob_gas_used", Number, Own("blobGasUsed")),
    optional("excess_blob_gas", Number, Own("excessBlobGas")),
    optional("extra_data", Text, Own("extraData")),
];

const TRANSACTIONS: &[Column] = &[
    required("block_number", Number, Own("blockNumber")),
    required("block_hash", Text, Own("blockHash")),
    required("transaction_index", Number, Own("transactionIndex")),
    required("hash", Text, Own("hash")),
    optional("type", Number, Own("type")),
    required("from", Text, Own("from")),
    optional("to", Text, Own("to")),
    optional("nonce", Number, Own("nonce")),
    required("value", Amount, Own("value")),
    required("gas", Number, Own("gas")),
    optional("gas_price", Amount, Own("gasPrice")),
    optional("max_fee_per_gas", Amount, Own("maxFeePerGas")),
    optional("max_priority_fee_per_gas", Amount, Own("maxPriorityFeePerGas")),
    optional("input", Text, Own("input")),
    optional("status", Number, Other("status")),
    optional("gas_used", Number, Other("gasUsed")),
    optional("effective_gas_price", Amount, Other("effectiveGasPrice")),
    optional("contract_address", Text, Other("contractAddress")),
];

const LOGS: &[Column] = &[
    required("block_number", Number, Own("blockNumber")),
    required("block_hash", Text, Own("blockHash")),
    optional("block_timestamp", Number, Other("timestamp")),
    required("transaction_index", Number, Own("transactionIndex")),
    required("transaction_hash", Text, Own("transactionHash")),
    required("log_index", Number, Own("logIndex")),
    required("address", Text, Own("address")),
    optional("topic0", Text, Topic(0)),
    optional("topic1", Text, Topic(1)),
    optional("topic2", Text, Topic(2)),
    optional("topic3", Text, Topic(3)),
    required("data", Text, Own("data")),
];
