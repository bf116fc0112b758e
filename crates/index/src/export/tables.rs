//! Which columns the tables have, and where in a node's JSON their values stand.

use super::Table;

/// A column.
pub(super) struct Column {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) from: Source,
    /// Whether a value may be missing.
    pub(super) maybe: bool,
}

/// What a column's values are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// An unsigned integer of 64 bits.
    Number,
    /// Text as it stands.
    Text,
    /// A quantity of up to 256 bits in decimal digits.
    Amount,
}

/// Where a value stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// A member of the row's own object.
    Own(&'static str),
    /// A member of what goes with it: a transaction's receipt, a log's block.
    Other(&'static str),
    /// A topic of a log.
    Topic(usize),
    /// How many elements an array has that is a member of the row's own object.
    Count(&'static str),
}

use Kind::{Amount, Number, Text};
use Source::{Count, Other, Own, Topic};

const fn need(name: &'static str, kind: Kind, from: Source) -> Column {
    Column { name, kind, from, maybe: false }
}

const fn maybe(name: &'static str, kind: Kind, from: Source) -> Column {
    Column { name, kind, from, maybe: true }
}

const BLOCKS: &[Column] = &[
    need("number", Number, Own("number")),
    need("hash", Text, Own("hash")),
    need("parent_hash", Text, Own("parentHash")),
    need("timestamp", Number, Own("timestamp")),
    need("transaction_count", Number, Count("transactions")),
    maybe("miner", Text, Own("miner")),
    maybe("gas_limit", Number, Own("gasLimit")),
    maybe("gas_used", Number, Own("gasUsed")),
    maybe("base_fee_per_gas", Amount, Own("baseFeePerGas")),
    maybe("difficulty", Amount, Own("difficulty")),
    maybe("size", Number, Own("size")),
    maybe("state_root", Text, Own("stateRoot")),
    maybe("transactions_root", Text, Own("transactionsRoot")),
    maybe("receipts_root", Text, Own("receiptsRoot")),
    maybe("withdrawals_root", Text, Own("withdrawalsRoot")),
    maybe("blob_gas_used", Number, Own("blobGasUsed")),
    maybe("excess_blob_gas", Number, Own("excessBlobGas")),
    maybe("extra_data", Text, Own("extraData")),
];

const TRANSACTIONS: &[Column] = &[
    need("block_number", Number, Own("blockNumber")),
    need("block_hash", Text, Own("blockHash")),
    need("transaction_index", Number, Own("transactionIndex")),
    need("hash", Text, Own("hash")),
    maybe("type", Number, Own("type")),
    need("from", Text, Own("from")),
    maybe("to", Text, Own("to")),
    maybe("nonce", Number, Own("nonce")),
    need("value", Amount, Own("value")),
    need("gas", Number, Own("gas")),
    maybe("gas_price", Amount, Own("gasPrice")),
    maybe("max_fee_per_gas", Amount, Own("maxFeePerGas")),
    maybe("max_priority_fee_per_gas", Amount, Own("maxPriorityFeePerGas")),
    maybe("input", Text, Own("input")),
    maybe("status", Number, Other("status")),
    maybe("gas_used", Number, Other("gasUsed")),
    maybe("effective_gas_price", Amount, Other("effectiveGasPrice")),
    maybe("contract_address", Text, Other("contractAddress")),
];

const LOGS: &[Column] = &[
    need("block_number", Number, Own("blockNumber")),
    need("block_hash", Text, Own("blockHash")),
    maybe("block_timestamp", Number, Other("timestamp")),
    need("transaction_index", Number, Own("transactionIndex")),
    need("transaction_hash", Text, Own("transactionHash")),
    need("log_index", Number, Own("logIndex")),
    need("address", Text, Own("address")),
    maybe("topic0", Text, Topic(0)),
    maybe("topic1", Text, Topic(1)),
    maybe("topic2", Text, Topic(2)),
    maybe("topic3", Text, Topic(3)),
    need("data", Text, Own("data")),
];

impl Table {
    pub(super) fn columns(self) -> &'static [Column] {
        match self {
            Table::Blocks => BLOCKS,
            Table::Transactions => TRANSACTIONS,
            Table::Logs => LOGS,
        }
    }
}
