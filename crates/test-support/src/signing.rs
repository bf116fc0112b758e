//! Signs transactions, as a wallet does.

use alloy_consensus::{SignableTransaction, TxEip1559, TxEnvelope, TxLegacy};
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{Address, Signature, TxKind, U256, keccak256};
use secp256k1::{Message, PublicKey, Secp256k1, SecretKey};

/// Gas of a transfer of ether.
const TRANSFER_GAS: u64 = 21_000;
/// Maximum price per unit of gas, in wei. It is far above the prices of a development chain.
const GAS_PRICE_MAX: u128 = 100_000_000_000;

/// An account that signs transactions.
#[derive(Clone, Copy)]
pub struct Account {
    key: SecretKey,
    /// The address of the account.
    pub address: Address,
}

impl Account {
    /// Returns the account with this number. The same number gives the same account.
    pub fn numbered(number: u8) -> Account {
        Account::from_key(SecretKey::from_byte_array([number.wrapping_add(1).max(1); 32]).unwrap())
    }

    fn from_key(key: SecretKey) -> Account {
        let public_key =
            PublicKey::from_secret_key(&Secp256k1::new(), &key).serialize_uncompressed();
        Account { key, address: Address::from_slice(&keccak256(&public_key[1..])[12..]) }
    }

    /// Signs a transfer of one wei to `to` with an EIP-1559 transaction. Returns its bytes.
    pub fn transfer(&self, chain_id: u64, nonce: u64, to: Address) -> Vec<u8> {
        self.transfer_value(chain_id, nonce, to, U256::ONE)
    }

    /// Signs a transfer with an EIP-1559 transaction. Returns its bytes.
    pub fn transfer_value(&self, chain_id: u64, nonce: u64, to: Address, value: U256) -> Vec<u8> {
        let transaction = TxEip1559 {
            chain_id,
            nonce,
            gas_limit: TRANSFER_GAS,
            max_fee_per_gas: GAS_PRICE_MAX,
            max_priority_fee_per_gas: 1_000_000_000, // 1 gwei
            to: TxKind::Call(to),
            value,
            ..TxEip1559::default()
        };
        let signature = self.sign(&transaction);
        TxEnvelope::Eip1559(transaction.into_signed(signature)).encoded_2718()
    }

    /// Signs a transfer of one wei with a legacy transaction. Without a chain id it is valid on
    /// every chain. Returns its bytes.
    pub fn legacy_transfer(&self, chain_id: Option<u64>, nonce: u64, to: Address) -> Vec<u8> {
        let transaction = TxLegacy {
            chain_id,
            nonce,
            gas_price: GAS_PRICE_MAX,
            gas_limit: TRANSFER_GAS,
            to: TxKind::Call(to),
            value: U256::ONE,
            ..TxLegacy::default()
        };
        let signature = self.sign(&transaction);
        TxEnvelope::Legacy(transaction.into_signed(signature)).encoded_2718()
    }

    fn sign(&self, transaction: &impl SignableTransaction<Signature>) -> Signature {
        let message = Message::from_digest(transaction.signature_hash().0);
        let signed = Secp256k1::new().sign_ecdsa_recoverable(message, &self.key);
        let (parity, bytes) = signed.serialize_compact();
        Signature::from_bytes_and_parity(&bytes, i32::from(parity) != 0)
    }
}

/// Returns the hash of a transaction by its bytes, as `0x…`.
pub fn hash(transaction: &[u8]) -> String {
    keccak256(transaction).to_string()
}

/// Returns bytes as hexadecimal digits with `0x`.
pub fn hex(bytes: &[u8]) -> String {
    alloy_primitives::hex::encode_prefixed(bytes)
}

/// Returns the bytes of hexadecimal digits, with or without `0x`.
pub fn bytes(digits: &str) -> Vec<u8> {
    alloy_primitives::hex::decode(digits).unwrap()
}
