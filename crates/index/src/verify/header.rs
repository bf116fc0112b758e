//! Verifies the members of a block except its transactions: the header by the block's hash, then
//! withdrawals, uncles and size.

use alloy_consensus::{EMPTY_OMMER_ROOT_HASH, Header};
use alloy_eips::eip4895::Withdrawal;
use alloy_primitives::{B256, U256};
use alloy_rlp::{Encodable, Header as RlpHeader};
use alloy_trie::root::ordered_trie_root;

use super::cursor::Cursor;
use super::error::Error;
use super::fields::{Fields, Layout, names};

// `names!` declares a list of member names, and for each name a constant: its index in the list.
// `Layout` finds these members in an object, and `Fields` holds their raw values (`fields.rs`).
names! {
    /// The members of a block that are verified (execution-apis `src/schemas/block.yaml`).
    BLOCK, BlockMember:
    HASH = "hash",
    PARENT = "parentHash",
    UNCLES_HASH = "sha3Uncles",
    MINER = "miner",
    AUTHOR = "author",
    STATE_ROOT = "stateRoot",
    TRANSACTIONS_ROOT = "transactionsRoot",
    RECEIPTS_ROOT = "receiptsRoot",
    BLOOM = "logsBloom",
    DIFFICULTY = "difficulty",
    NUMBER = "number",
    GAS_LIMIT = "gasLimit",
    GAS_USED = "gasUsed",
    TIMESTAMP = "timestamp",
    EXTRA = "extraData",
    MIX_HASH = "mixHash",
    NONCE = "nonce",
    BASE_FEE = "baseFeePerGas",
    WITHDRAWALS_ROOT = "withdrawalsRoot",
    BLOB_GAS_USED = "blobGasUsed",
    BLOB_GAS_EXCESS = "excessBlobGas",
    BEACON_ROOT = "parentBeaconBlockRoot",
    REQUESTS_HASH = "requestsHash",
    ACCESS_LIST_HASH = "blockAccessListHash",
    SLOT = "slotNumber",
    TOTAL_DIFFICULTY = "totalDifficulty",
    SIZE = "size",
    TRANSACTIONS = "transactions",
    UNCLES = "uncles",
    WITHDRAWALS = "withdrawals",
}

/// The header members that forks added, in the order of their encoding.
const FORK_MEMBERS: [usize; 8] = [
    BASE_FEE,
    WITHDRAWALS_ROOT,
    BLOB_GAS_USED,
    BLOB_GAS_EXCESS,
    BEACON_ROOT,
    REQUESTS_HASH,
    ACCESS_LIST_HASH,
    SLOT,
];

/// The source of a block's hash, as errors name the source.
const HASH_SOURCE: &str = "the Keccak-256 of parentHash, sha3Uncles, miner, stateRoot, \
    transactionsRoot, receiptsRoot, logsBloom, difficulty, number, gasLimit, gasUsed, timestamp, \
    extraData, mixHash, nonce and those of baseFeePerGas, withdrawalsRoot, blobGasUsed, \
    excessBlobGas, parentBeaconBlockRoot, requestsHash, blockAccessListHash, slotNumber that are \
    present";

/// The members of a block.
pub(super) type BlockFields<'a> = Fields<'a, { BLOCK.len() }>;

/// Reads the members of a block.
pub(super) fn read(raw: &[u8]) -> Result<BlockFields<'_>, Error> {
    Cursor::new(raw).object(&mut Layout::new(&BLOCK))
}

/// Verifies the header by the block's hash, and returns it.
///
/// # Errors
/// Returns the first of these errors:
/// - a malformed or missing member of the header;
/// - a missing member of a fork, if a member of a later fork is present. The hash covers only the
///   values and not their names, so a value under a wrong name would not change the hash;
/// - a malformed `totalDifficulty`;
/// - `hash`, if the header hashes to another value. The wrong member is then unknown;
/// - an `author` that differs from the miner.
pub(super) fn verify_header(fields: &BlockFields<'_>) -> Result<Header, Error> {
    let header = read_header(fields)?;
    let last_present = FORK_MEMBERS.iter().rposition(|field| fields.raw(*field).is_some());
    for field in &FORK_MEMBERS[..last_present.unwrap_or(0)] {
        fields.required_raw(*field, "a value, because a later fork's member is present")?;
    }
    // No hash covers this member, but it must not be malformed.
    fields.optional::<U256>(TOTAL_DIFFICULTY)?;
    fields.check_required(HASH, &header.hash_slow(), HASH_SOURCE)?;
    // Some nodes write the miner under the older name, too.
    fields.check_optional(AUTHOR, &header.beneficiary, "miner")?;
    Ok(header)
}

/// Reads the members of the header.
fn read_header(fields: &BlockFields<'_>) -> Result<Header, Error> {
    Ok(Header {
        parent_hash: fields.required(PARENT)?,
        ommers_hash: fields.required(UNCLES_HASH)?,
        beneficiary: fields.required(MINER)?,
        state_root: fields.required(STATE_ROOT)?,
        transactions_root: fields.required(TRANSACTIONS_ROOT)?,
        receipts_root: fields.required(RECEIPTS_ROOT)?,
        logs_bloom: fields.required(BLOOM)?,
        difficulty: fields.required(DIFFICULTY)?,
        number: fields.required(NUMBER)?,
        gas_limit: fields.required(GAS_LIMIT)?,
        gas_used: fields.required(GAS_USED)?,
        timestamp: fields.required(TIMESTAMP)?,
        extra_data: fields.required(EXTRA)?,
        mix_hash: fields.required(MIX_HASH)?,
        nonce: fields.required(NONCE)?,
        base_fee_per_gas: fields.optional(BASE_FEE)?,
        withdrawals_root: fields.optional(WITHDRAWALS_ROOT)?,
        blob_gas_used: fields.optional(BLOB_GAS_USED)?,
        excess_blob_gas: fields.optional(BLOB_GAS_EXCESS)?,
        parent_beacon_block_root: fields.optional(BEACON_ROOT)?,
        requests_hash: fields.optional(REQUESTS_HASH)?,
        block_access_list_hash: fields.optional(ACCESS_LIST_HASH)?,
        slot_number: fields.optional(SLOT)?,
    })
}

/// Verifies withdrawals, uncles and size. `transaction_bytes` is the length of all transactions in
/// RLP without the header of their list.
pub(super) fn check_body(
    fields: &BlockFields<'_>,
    header: &Header,
    transaction_bytes: usize,
) -> Result<(), Error> {
    let withdrawals = read_withdrawals(fields)?;
    match (&withdrawals, header.withdrawals_root) {
        (Some(withdrawals), Some(_)) => {
            let root = ordered_trie_root(withdrawals);
            fields.check_required(WITHDRAWALS_ROOT, &root, "the Merkle root of withdrawals")?;
        }
        (None, Some(_)) => {
            fields.required_raw(WITHDRAWALS, "an array, because withdrawalsRoot is present")?;
        }
        (Some(list), None) if !list.is_empty() => {
            fields.check_absent(WITHDRAWALS, "none, because withdrawalsRoot is missing")?;
        }
        _ => {}
    }
    let has_uncles = count_uncles(fields)? > 0;
    let must_have_uncles = header.ommers_hash != EMPTY_OMMER_ROOT_HASH;
    if has_uncles != must_have_uncles {
        let computed = if must_have_uncles { "some" } else { "none" };
        return Err(fields.mismatch_in_words(UNCLES, computed, "sha3Uncles"));
    }
    if has_uncles {
        // The size depends on the headers of the uncles, which are unknown.
        fields.optional::<u64>(SIZE)?;
        return Ok(());
    }
    let withdrawal_bytes = header.withdrawals_root.and(withdrawals).map_or(0, |list| list.length());
    // A block is a list of the header, the transactions and an empty list of uncles. Since the fork
    // Shanghai, the withdrawals follow.
    let payload_bytes =
        header.length() + list_bytes(transaction_bytes) + list_bytes(0) + withdrawal_bytes;
    let block_bytes = list_bytes(payload_bytes) as u64;
    fields.check_optional(SIZE, &block_bytes, "the length of the block in RLP")
}

/// Returns the hashes of the block's transactions. Returns an empty list if the block has full
/// transactions or none. The hashes are not verified, because `transactionsRoot` is computed from
/// the encodings of transactions and not from their hashes.
pub(super) fn transaction_hashes(fields: &BlockFields<'_>) -> Result<Vec<B256>, Error> {
    let Some(raw) = fields.raw(TRANSACTIONS) else { return Ok(Vec::new()) };
    let is_hash = |element: &[u8]| element.first() == Some(&b'"');
    if !wire::json::walk::elements(raw).next().is_some_and(is_hash) {
        return Ok(Vec::new());
    }
    read_list(raw).map_err(|error| fields.error(TRANSACTIONS, error))
}

/// Returns the length of the RLP encoding of a list whose payload has this length.
fn list_bytes(payload_length: usize) -> usize {
    RlpHeader { list: true, payload_length }.length_with_payload()
}

/// Returns the number of uncles, or zero if the member is missing.
fn count_uncles(fields: &BlockFields<'_>) -> Result<usize, Error> {
    let Some(raw) = fields.raw(UNCLES) else { return Ok(0) };
    let hashes: Vec<B256> = read_list(raw).map_err(|error| fields.error(UNCLES, error))?;
    Ok(hashes.len())
}

/// Returns the elements of a raw array of scalar values.
pub(super) fn read_list<T: super::fields::Value>(raw: &[u8]) -> Result<Vec<T>, Error> {
    let mut values = Vec::new();
    Cursor::new(raw).elements(|_, cursor| {
        let raw = cursor.value()?;
        values.push(T::read(raw).ok_or_else(|| Error::malformed(raw, T::ALLOWED))?);
        Ok(())
    })?;
    Ok(values)
}

names! {
    /// The members of a withdrawal (EIP-4895).
    WITHDRAWAL, WithdrawalMember:
    INDEX = "index",
    VALIDATOR = "validatorIndex",
    ADDRESS = "address",
    AMOUNT = "amount",
}

/// Returns the withdrawals, or `None` if the member is missing.
fn read_withdrawals(fields: &BlockFields<'_>) -> Result<Option<Vec<Withdrawal>>, Error> {
    let Some(raw) = fields.raw(WITHDRAWALS) else { return Ok(None) };
    let mut layout = Layout::new(&WITHDRAWAL);
    let mut withdrawals = Vec::new();
    Cursor::new(raw)
        .elements(|_, cursor| {
            withdrawals.push(read_withdrawal(&cursor.object(&mut layout)?)?);
            Ok(())
        })
        .map_err(|error| fields.error(WITHDRAWALS, error))?;
    Ok(Some(withdrawals))
}

fn read_withdrawal(fields: &Fields<'_, { WITHDRAWAL.len() }>) -> Result<Withdrawal, Error> {
    Ok(Withdrawal {
        index: fields.required(INDEX)?,
        validator_index: fields.required(VALIDATOR)?,
        address: fields.required(ADDRESS)?,
        amount: fields.required(AMOUNT)?,
    })
}
