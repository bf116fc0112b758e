//! Verifies the members of a block: its header by the hash, then withdrawals, uncles and size.

use alloy_consensus::{EMPTY_OMMER_ROOT_HASH, Header};
use alloy_eips::eip4895::Withdrawal;
use alloy_primitives::{B256, U256};
use alloy_rlp::{Encodable, Header as RlpHeader};
use alloy_trie::root::ordered_trie_root;

use super::cursor::Cursor;
use super::error::Error;
use super::fields::{Fields, Layout, names};

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

/// The source of a block's hash, as errors name it.
const HASHED: &str = "the Keccak-256 of parentHash, sha3Uncles, miner, stateRoot, \
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

/// Returns the header, verified by the block's hash.
///
/// # Errors
///
/// The first of these:
/// - `hash`, if the header hashes to another value; the wrong member is unknown then;
/// - a malformed member;
/// - a missing member, if a member of a later fork is present. The encoding is a list without
///   names, so a value that moves from one such member to the next would not change the hash.
pub(super) fn verified(fields: &BlockFields<'_>) -> Result<Header, Error> {
    let header = header(fields)?;
    let last = FORK_MEMBERS.iter().rposition(|field| fields.raw(*field).is_some());
    for field in &FORK_MEMBERS[..last.unwrap_or(0)] {
        fields.need_raw(*field, "a value, because a later fork's member is present")?;
    }
    // Nothing binds this member, but it must not be malformed.
    fields.maybe::<U256>(TOTAL_DIFFICULTY)?;
    fields.need_same(HASH, &header.hash_slow(), HASHED)?;
    // Some nodes write the miner under its older name as well.
    fields.maybe_same(AUTHOR, &header.beneficiary, "miner")?;
    Ok(header)
}

fn header(fields: &BlockFields<'_>) -> Result<Header, Error> {
    Ok(Header {
        parent_hash: fields.need(PARENT)?,
        ommers_hash: fields.need(UNCLES_HASH)?,
        beneficiary: fields.need(MINER)?,
        state_root: fields.need(STATE_ROOT)?,
        transactions_root: fields.need(TRANSACTIONS_ROOT)?,
        receipts_root: fields.need(RECEIPTS_ROOT)?,
        logs_bloom: fields.need(BLOOM)?,
        difficulty: fields.need(DIFFICULTY)?,
        number: fields.need(NUMBER)?,
        gas_limit: fields.need(GAS_LIMIT)?,
        gas_used: fields.need(GAS_USED)?,
        timestamp: fields.need(TIMESTAMP)?,
        extra_data: fields.need(EXTRA)?,
        mix_hash: fields.need(MIX_HASH)?,
        nonce: fields.need(NONCE)?,
        base_fee_per_gas: fields.maybe(BASE_FEE)?,
        withdrawals_root: fields.maybe(WITHDRAWALS_ROOT)?,
        blob_gas_used: fields.maybe(BLOB_GAS_USED)?,
        excess_blob_gas: fields.maybe(BLOB_GAS_EXCESS)?,
        parent_beacon_block_root: fields.maybe(BEACON_ROOT)?,
        requests_hash: fields.maybe(REQUESTS_HASH)?,
        block_access_list_hash: fields.maybe(ACCESS_LIST_HASH)?,
        slot_number: fields.maybe(SLOT)?,
    })
}

/// Verifies withdrawals, uncles and size. `transaction_bytes` is the length of all transactions in
/// RLP without the header of their list.
pub(super) fn check_body(
    fields: &BlockFields<'_>,
    header: &Header,
    transaction_bytes: usize,
) -> Result<(), Error> {
    let withdrawals = withdrawals(fields)?;
    match (&withdrawals, header.withdrawals_root) {
        (Some(withdrawals), Some(_)) => {
            let root = ordered_trie_root(withdrawals);
            fields.need_same(WITHDRAWALS_ROOT, &root, "the Merkle root of withdrawals")?;
        }
        (None, Some(_)) => {
            fields.need_raw(WITHDRAWALS, "an array, because withdrawalsRoot is present")?;
        }
        (Some(some), None) if !some.is_empty() => {
            fields.need_none(WITHDRAWALS, "none, because withdrawalsRoot is missing")?;
        }
        _ => {}
    }
    let uncles = uncles(fields)?;
    if (uncles == 0) != (header.ommers_hash == EMPTY_OMMER_ROOT_HASH) {
        let computed = if uncles == 0 { "some" } else { "none" };
        return Err(fields.contradiction(UNCLES, computed, "sha3Uncles"));
    }
    if uncles == 0 {
        let withdrawals = header.withdrawals_root.and(withdrawals).map_or(0, |some| some.length());
        let bytes = header.length() + list_bytes(transaction_bytes) + list_bytes(0) + withdrawals;
        let bytes = list_bytes(bytes) as u64;
        fields.maybe_same(SIZE, &bytes, "the length of the block in RLP")?;
    } else {
        fields.maybe::<u64>(SIZE)?;
    }
    Ok(())
}

/// Returns the hashes of the block's transactions, if it has these instead of full transactions.
/// Nothing binds them here: the root is computed from the encodings, not from the hashes.
pub(super) fn hashes(fields: &BlockFields<'_>) -> Result<Vec<B256>, Error> {
    let Some(raw) = fields.raw(TRANSACTIONS) else { return Ok(Vec::new()) };
    let is_hash = |first: &[u8]| first.first() == Some(&b'"');
    if !wire::json::walk::elements(raw).next().is_some_and(is_hash) {
        return Ok(Vec::new());
    }
    list(raw).map_err(|error| fields.error(TRANSACTIONS, error))
}

/// Returns the length in RLP of a list with this payload.
fn list_bytes(payload_length: usize) -> usize {
    RlpHeader { list: true, payload_length }.length_with_payload()
}

/// Returns the number of uncles, or zero if the member is missing.
fn uncles(fields: &BlockFields<'_>) -> Result<usize, Error> {
    let Some(raw) = fields.raw(UNCLES) else { return Ok(0) };
    let hashes: Vec<B256> = list(raw).map_err(|error| fields.error(UNCLES, error))?;
    Ok(hashes.len())
}

/// Returns the elements of a raw array of scalar values.
pub(super) fn list<T: super::fields::Value>(raw: &[u8]) -> Result<Vec<T>, Error> {
    let mut values = Vec::new();
    Cursor::new(raw).elements(|_, cursor| {
        let raw = cursor.value()?;
        values.push(T::read(raw).ok_or_else(|| Error::form(raw, T::ALLOWED))?);
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

fn withdrawals(fields: &BlockFields<'_>) -> Result<Option<Vec<Withdrawal>>, Error> {
    let Some(raw) = fields.raw(WITHDRAWALS) else { return Ok(None) };
    let mut layout = Layout::new(&WITHDRAWAL);
    let mut withdrawals = Vec::new();
    Cursor::new(raw)
        .elements(|_, cursor| {
            withdrawals.push(withdrawal(&cursor.object(&mut layout)?)?);
            Ok(())
        })
        .map_err(|error| fields.error(WITHDRAWALS, error))?;
    Ok(Some(withdrawals))
}

fn withdrawal(fields: &Fields<'_, { WITHDRAWAL.len() }>) -> Result<Withdrawal, Error> {
    Ok(Withdrawal {
        index: fields.need(INDEX)?,
        validator_index: fields.need(VALIDATOR)?,
        address: fields.need(ADDRESS)?,
        amount: fields.need(AMOUNT)?,
    })
}
