//! Verifies transactions. The module rebuilds each transaction from its members, encodes and hashes
//! it. The encoded members are right if this hash equals the transaction's `hash`, and the Merkle
//! root of all encodings equals the header's `transactionsRoot`. All other members are compared
//! with the encoded members or with the block.

use alloy_consensus::transaction::{EthereumTypedTransaction, RlpEcdsaEncodableTx};
use alloy_consensus::{SignableTransaction, TxEip1559, TxEip2930, TxEip4844, TxEip7702, TxLegacy};
use alloy_eips::eip1559::calc_effective_gas_price;
use alloy_eips::eip2930::{AccessList, AccessListItem};
use alloy_eips::eip7702::{Authorization, SignedAuthorization};
use alloy_primitives::{B256, Bytes, Signature, TxKind, U256, keccak256};
use alloy_rlp::Header as RlpHeader;
use alloy_trie::root::ordered_trie_root_encoded;

use super::block::{Block, Body, Tx};
use super::cursor::Cursor;
use super::error::{Error, ErrorKind};
use super::fields::{Fields, Layout, Padded, names};
use super::header::{self, TRANSACTIONS, TRANSACTIONS_ROOT};
use super::level::Level;

// `names!` declares a list of member names, and for each name a constant: its index in the list.
// `Layout` finds these members in an object, and `Fields` holds their raw values (`fields.rs`).
names! {
    /// The members of a transaction that are verified (execution-apis
    /// `src/schemas/transaction.yaml`).
    TRANSACTION, TransactionMember:
    HASH = "hash",
    KIND = "type",
    CHAIN = "chainId",
    NONCE = "nonce",
    GAS_PRICE = "gasPrice",
    FEE_MAX = "maxFeePerGas",
    TIP_MAX = "maxPriorityFeePerGas",
    GAS = "gas",
    TO = "to",
    VALUE = "value",
    INPUT = "input",
    DATA = "data",
    ACCESS_LIST = "accessList",
    BLOB_FEE_MAX = "maxFeePerBlobGas",
    BLOB_HASHES = "blobVersionedHashes",
    AUTHORIZATIONS = "authorizationList",
    V = "v",
    Y_PARITY = "yParity",
    R = "r",
    S = "s",
    FROM = "from",
    BLOCK_HASH = "blockHash",
    BLOCK_NUMBER = "blockNumber",
    BLOCK_TIMESTAMP = "blockTimestamp",
    INDEX = "transactionIndex",
}

/// The members that only some transaction types have. An entry is the index of a member, and the
/// types that have the member (EIP-2930, EIP-1559, EIP-4844, EIP-7702).
const MEMBERS_OF_TYPES: [(usize, std::ops::RangeInclusive<u8>); 6] = [
    (ACCESS_LIST, 1..=4),
    (FEE_MAX, 2..=4),
    (TIP_MAX, 2..=4),
    (BLOB_FEE_MAX, 3..=3),
    (BLOB_HASHES, 3..=3),
    (AUTHORIZATIONS, 4..=4),
];

type TxFields<'a> = Fields<'a, { TRANSACTION.len() }>;

/// Verifies the block's transactions at this level. Returns the transactions, and the sum of their
/// lengths in RLP, which is 0 below [`Level::Full`].
pub(super) fn verify_transactions(
    raw: &[u8],
    block: &Block,
    level: Level,
) -> Result<(Vec<Tx>, usize), Error> {
    let mut layout = Layout::new(&TRANSACTION);
    let mut transactions = Vec::new();
    let mut encodings = Encodings::default();
    if level >= Level::Full {
        encodings.bytes.reserve(raw.len() / 2);
    }
    Cursor::new(raw)
        .elements(|index, cursor| {
            let fields = cursor.object(&mut layout)?;
            let hash = fields.required(HASH)?;
            let body = match level {
                Level::Off | Level::Headers => None,
                Level::Full | Level::Senders => {
                    let check_sender = level == Level::Senders;
                    Some(verify_transaction(
                        &fields,
                        block,
                        index as u64,
                        check_sender,
                        &mut encodings,
                    )?)
                }
            };
            transactions.push(Tx { hash, body });
            Ok(())
        })
        .map_err(|error| error.in_member(header::BLOCK[TRANSACTIONS]))?;
    if level >= Level::Full
        && let Some(header) = &block.header
    {
        let root = encodings.root();
        if root != header.transactions_root {
            let (found, computed) = (header.transactions_root.to_string(), root.to_string());
            let error = Error::mismatch(&found, &computed, "the Merkle root of transactions");
            return Err(error.in_member(header::BLOCK[TRANSACTIONS_ROOT]));
        }
    }
    Ok((transactions, encodings.rlp_bytes))
}

/// The encodings of transactions or receipts, one after the other (EIP-2718).
#[derive(Debug, Default)]
pub(super) struct Encodings {
    /// All encodings.
    pub(super) bytes: Vec<u8>,
    /// The end of each encoding in `bytes`.
    ends: Vec<usize>,
    /// The sum of the lengths of transactions as elements of an RLP list. The encoding of a legacy
    /// transaction is an element as it is. A typed transaction is wrapped in a string.
    rlp_bytes: usize,
}

impl Encodings {
    /// Ends the encoding that was appended to `bytes`, and returns it.
    pub(super) fn end(&mut self) -> &[u8] {
        let start = self.ends.last().copied().unwrap_or(0);
        self.ends.push(self.bytes.len());
        &self.bytes[start..]
    }

    /// Returns the Merkle root of the trie that maps each index to its encoding.
    pub(super) fn root(&self) -> B256 {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let items: Vec<&[u8]> =
            starts.zip(&self.ends).map(|(start, end)| &self.bytes[start..*end]).collect();
        ordered_trie_root_encoded(&items)
    }
}

/// Verifies one transaction, and appends its encoding. Verifies the sender by the signature if
/// `check_sender` is true.
fn verify_transaction(
    fields: &TxFields<'_>,
    block: &Block,
    index: u64,
    check_sender: bool,
    encodings: &mut Encodings,
) -> Result<Body, Error> {
    let base_fee = block.header.as_ref().and_then(|header| header.base_fee_per_gas);
    let transaction = RebuiltTransaction::read(fields, base_fee)?;
    let RebuiltTransaction { typed, signature, body } = &transaction;
    typed.eip2718_encode(signature, &mut encodings.bytes);
    let encoding = encodings.end();
    let (hash, bytes) = (keccak256(encoding), encoding.len());
    encodings.rlp_bytes += match body.kind {
        0 => bytes,
        _ => RlpHeader { list: false, payload_length: bytes }.length_with_payload(),
    };
    fields.check_required(HASH, &hash, "the Keccak-256 of the transaction's encoding")?;
    fields.check_required(BLOCK_HASH, &block.hash, "the block")?;
    fields.check_required(BLOCK_NUMBER, &block.number, "the block")?;
    fields.check_optional(BLOCK_TIMESTAMP, &block.timestamp, "the block")?;
    fields.check_required(INDEX, &index, "its index in the block")?;
    fields.check_optional(
        GAS_PRICE,
        &body.gas_price,
        "the base fee with maxFeePerGas and its tip",
    )?;
    // Some nodes also write the input under its older name, `data`.
    if let (Some(data), Some(input)) = (fields.raw(DATA), fields.raw(INPUT))
        && data != input
    {
        return Err(fields.mismatch_in_words(DATA, &String::from_utf8_lossy(input), "input"));
    }
    if check_sender {
        let signer = signature.recover_address_from_prehash(&typed.signature_hash());
        match signer {
            Ok(signer) if signer == body.from => {}
            Ok(signer) => return Err(fields.mismatch(FROM, &signer, "the signature")),
            Err(_) => return Err(fields.mismatch_in_words(FROM, "no sender", "the signature")),
        }
    }
    Ok(transaction.body)
}

/// A transaction of a known type, without the content of its blobs.
type TypedTransaction = EthereumTypedTransaction<TxEip4844>;

/// A transaction that was rebuilt from its members.
struct RebuiltTransaction {
    typed: TypedTransaction,
    signature: Signature,
    body: Body,
}

impl RebuiltTransaction {
    /// Rebuilds a transaction. `base_fee` is the base fee of the block; `None` before EIP-1559.
    fn read(fields: &TxFields<'_>, base_fee: Option<u64>) -> Result<Self, Error> {
        let kind = read_type(fields)?;
        for (field, kinds) in MEMBERS_OF_TYPES {
            if !kinds.contains(&kind) && fields.raw(field) != Some(b"[]") {
                fields.check_absent(field, "none in a transaction of this type")?;
            }
        }
        let mut body = Body {
            kind,
            from: fields.required(FROM)?,
            to: fields.optional(TO)?,
            nonce: fields.required(NONCE)?,
            gas_price: 0,
            blob_count: 0,
            blob_fee_max: 0,
        };
        let (typed, is_y_odd) = match kind {
            0 => read_legacy(fields, &mut body)?,
            1 => (read_eip2930(fields, &mut body)?, read_parity(fields)?),
            2 => (read_eip1559(fields, &mut body, base_fee)?, read_parity(fields)?),
            3 => (read_eip4844(fields, &mut body, base_fee)?, read_parity(fields)?),
            _ => (read_eip7702(fields, &mut body, base_fee)?, read_parity(fields)?),
        };
        let (Padded(r), Padded(s)) = (fields.required(R)?, fields.required(S)?);
        Ok(Self { typed, signature: Signature::new(r, s, is_y_odd), body })
    }
}

/// Returns the transaction type. A missing member means type 0, because transactions had no type
/// before the fork Berlin.
fn read_type(fields: &TxFields<'_>) -> Result<u8, Error> {
    match fields.optional::<u64>(KIND)? {
        None => Ok(0),
        Some(kind @ 0..=4) => Ok(kind as u8),
        Some(_) => {
            let found = fields.raw(KIND).unwrap_or_default();
            Err(fields.error(KIND, Error::unknown_type(found)))
        }
    }
}

/// Reads the parity of a typed transaction's signature. Returns true if the y coordinate is odd.
/// `yParity` and `v` must be equal, and one of the two may be missing.
fn read_parity(fields: &TxFields<'_>) -> Result<bool, Error> {
    let field = if fields.raw(Y_PARITY).is_some() { Y_PARITY } else { V };
    let is_y_odd = match fields.required::<u64>(field)? {
        0 => false,
        1 => true,
        _ => return Err(fields.form_error(field, "0x0 or 0x1")),
    };
    fields.check_optional(V, &u64::from(is_y_odd), "yParity")?;
    Ok(is_y_odd)
}

/// Reads a legacy transaction, and the parity of its signature: true if the y coordinate is odd.
/// `v` is `27 + parity`, or `35 + 2 * chain id + parity` since EIP-155.
fn read_legacy(fields: &TxFields<'_>, body: &mut Body) -> Result<(TypedTransaction, bool), Error> {
    body.gas_price = fields.required(GAS_PRICE)?;
    let (chain_id, is_y_odd) = match fields.required::<u128>(V)? {
        v @ (27 | 28) => (None, v == 28),
        v if v >= 35 && (v - 35) / 2 <= u128::from(u64::MAX) => {
            (Some(((v - 35) / 2) as u64), (v - 35) % 2 == 1)
        }
        0 if [R, S].iter().all(|field| fields.raw(*field) == Some(b"\"0x0\"")) => {
            return Err(fields.error(V, ErrorKind::Unsigned.into()));
        }
        _ => return Err(fields.form_error(V, "0x1b, 0x1c, or from 0x23 on")),
    };
    fields.check_optional(CHAIN, &chain_id.unwrap_or(0), "v")?;
    fields.check_optional(Y_PARITY, &u64::from(is_y_odd), "v")?;
    let tx = TxLegacy {
        chain_id,
        nonce: body.nonce,
        gas_price: body.gas_price,
        gas_limit: fields.required(GAS)?,
        to: body.to.map_or(TxKind::Create, TxKind::Call),
        value: fields.required(VALUE)?,
        input: fields.required(INPUT)?,
    };
    Ok((TypedTransaction::Legacy(tx), is_y_odd))
}

fn read_eip2930(fields: &TxFields<'_>, body: &mut Body) -> Result<TypedTransaction, Error> {
    body.gas_price = fields.required(GAS_PRICE)?;
    Ok(TypedTransaction::Eip2930(TxEip2930 {
        chain_id: fields.required(CHAIN)?,
        nonce: body.nonce,
        gas_price: body.gas_price,
        gas_limit: fields.required(GAS)?,
        to: body.to.map_or(TxKind::Create, TxKind::Call),
        value: fields.required(VALUE)?,
        access_list: read_access_list(fields)?,
        input: fields.required(INPUT)?,
    }))
}

fn read_eip1559(
    fields: &TxFields<'_>,
    body: &mut Body,
    base_fee: Option<u64>,
) -> Result<TypedTransaction, Error> {
    let fees = Fees::read(fields, body, base_fee)?;
    Ok(TypedTransaction::Eip1559(TxEip1559 {
        chain_id: fields.required(CHAIN)?,
        nonce: body.nonce,
        gas_limit: fields.required(GAS)?,
        max_fee_per_gas: fees.max,
        max_priority_fee_per_gas: fees.tip_max,
        to: body.to.map_or(TxKind::Create, TxKind::Call),
        value: fields.required(VALUE)?,
        access_list: read_access_list(fields)?,
        input: fields.required(INPUT)?,
    }))
}

fn read_eip4844(
    fields: &TxFields<'_>,
    body: &mut Body,
    base_fee: Option<u64>,
) -> Result<TypedTransaction, Error> {
    let fees = Fees::read(fields, body, base_fee)?;
    let raw = fields.required_raw(BLOB_HASHES, "an array of hashes")?;
    let blob_versioned_hashes: Vec<B256> =
        header::read_list(raw).map_err(|error| fields.error(BLOB_HASHES, error))?;
    body.blob_count = blob_versioned_hashes.len() as u64;
    body.blob_fee_max = fields.required(BLOB_FEE_MAX)?;
    Ok(TypedTransaction::Eip4844(TxEip4844 {
        chain_id: fields.required(CHAIN)?,
        nonce: body.nonce,
        gas_limit: fields.required(GAS)?,
        max_fee_per_gas: fees.max,
        max_priority_fee_per_gas: fees.tip_max,
        to: fields.required(TO)?,
        value: fields.required(VALUE)?,
        access_list: read_access_list(fields)?,
        blob_versioned_hashes,
        max_fee_per_blob_gas: body.blob_fee_max,
        input: fields.required(INPUT)?,
    }))
}

fn read_eip7702(
    fields: &TxFields<'_>,
    body: &mut Body,
    base_fee: Option<u64>,
) -> Result<TypedTransaction, Error> {
    let fees = Fees::read(fields, body, base_fee)?;
    Ok(TypedTransaction::Eip7702(TxEip7702 {
        chain_id: fields.required(CHAIN)?,
        nonce: body.nonce,
        gas_limit: fields.required(GAS)?,
        max_fee_per_gas: fees.max,
        max_priority_fee_per_gas: fees.tip_max,
        to: fields.required(TO)?,
        value: fields.required(VALUE)?,
        access_list: read_access_list(fields)?,
        authorization_list: read_authorizations(fields)?,
        input: fields.required::<Bytes>(INPUT)?,
    }))
}

/// The fees that the sender of a transaction offers, in wei per gas.
struct Fees {
    /// `maxFeePerGas`.
    max: u128,
    /// `maxPriorityFeePerGas`.
    tip_max: u128,
}

impl Fees {
    /// Reads the offered fees, and sets the gas price in `body`.
    fn read(fields: &TxFields<'_>, body: &mut Body, base_fee: Option<u64>) -> Result<Self, Error> {
        let fees = Self { max: fields.required(FEE_MAX)?, tip_max: fields.required(TIP_MAX)? };
        body.gas_price = calc_effective_gas_price(fees.max, fees.tip_max, base_fee);
        Ok(fees)
    }
}

names! {
    /// The members of an access list's element (EIP-2930).
    ACCESS, AccessMember:
    ADDRESS = "address",
    STORAGE_KEYS = "storageKeys",
}

fn read_access_list(fields: &TxFields<'_>) -> Result<AccessList, Error> {
    let raw = fields.required_raw(ACCESS_LIST, "an array of addresses with storageKeys")?;
    let mut layout = Layout::new(&ACCESS);
    let mut items = Vec::new();
    Cursor::new(raw)
        .elements(|_, cursor| {
            let item = cursor.object(&mut layout)?;
            let keys = item.required_raw(STORAGE_KEYS, "an array of hashes")?;
            items.push(AccessListItem {
                address: item.required(ADDRESS)?,
                storage_keys: header::read_list(keys)
                    .map_err(|error| item.error(STORAGE_KEYS, error))?,
            });
            Ok(())
        })
        .map_err(|error| fields.error(ACCESS_LIST, error))?;
    Ok(AccessList(items))
}

names! {
    /// The members of an authorization (EIP-7702).
    AUTHORIZATION, AuthorizationMember:
    AUTH_CHAIN = "chainId",
    AUTH_ADDRESS = "address",
    AUTH_NONCE = "nonce",
    AUTH_Y_PARITY = "yParity",
    AUTH_V = "v",
    AUTH_R = "r",
    AUTH_S = "s",
}

fn read_authorizations(fields: &TxFields<'_>) -> Result<Vec<SignedAuthorization>, Error> {
    let raw = fields.required_raw(AUTHORIZATIONS, "an array of authorizations")?;
    let mut layout = Layout::new(&AUTHORIZATION);
    let mut authorizations = Vec::new();
    Cursor::new(raw)
        .elements(|_, cursor| {
            authorizations.push(read_authorization(&cursor.object(&mut layout)?)?);
            Ok(())
        })
        .map_err(|error| fields.error(AUTHORIZATIONS, error))?;
    Ok(authorizations)
}

/// Reads an authorization. A block may contain invalid authorizations, so any parity of 8 bits is
/// allowed.
fn read_authorization(
    fields: &Fields<'_, { AUTHORIZATION.len() }>,
) -> Result<SignedAuthorization, Error> {
    let inner = Authorization {
        chain_id: fields.required::<U256>(AUTH_CHAIN)?,
        address: fields.required(AUTH_ADDRESS)?,
        nonce: fields.required(AUTH_NONCE)?,
    };
    let field = if fields.raw(AUTH_Y_PARITY).is_some() { AUTH_Y_PARITY } else { AUTH_V };
    let parity: u64 = fields.required(field)?;
    let Ok(parity_byte) = u8::try_from(parity) else {
        return Err(fields.form_error(field, "0x0 to 0xff"));
    };
    fields.check_optional(AUTH_V, &parity, "yParity")?;
    let (Padded(r), Padded(s)) = (fields.required(AUTH_R)?, fields.required(AUTH_S)?);
    Ok(SignedAuthorization::new_unchecked(inner, parity_byte, r, s))
}
