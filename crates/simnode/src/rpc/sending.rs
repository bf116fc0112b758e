//! `eth_sendRawTransaction`: decodes a transaction and adds it to the pool of the simulated chain.
//! The transaction is never mined.

use alloy_consensus::TxEnvelope;
use alloy_eips::eip2718::Decodable2718;

use super::wording::SERVER_ERROR;
use super::{Call, RpcError, RpcResult, data};

/// Maximum number of bytes of a transaction (geth `core/txpool/legacypool`, `txMaxSize`).
const TRANSACTION_BYTES_MAX: usize = 128 * 1024;

impl Call<'_> {
    pub(super) fn send_raw(&self) -> RpcResult {
        let raw = self.arguments.bytes(0)?;
        if raw.len() > TRANSACTION_BYTES_MAX {
            let message = format!(
                "oversized data: transaction size {}, limit {TRANSACTION_BYTES_MAX}",
                raw.len()
            );
            return Err(RpcError::new(SERVER_ERROR, message));
        }
        let envelope = TxEnvelope::decode_2718_exact(&raw)
            .map_err(|error| RpcError::new(SERVER_ERROR, format!("rlp: {error}")))?;
        if matches!(envelope, TxEnvelope::Eip4844(_) | TxEnvelope::Eip7702(_)) {
            return Err(RpcError::new(SERVER_ERROR, "transaction type not supported"));
        }
        let hash = *envelope.tx_hash();
        let is_mined = self.world.find_transaction(self.view.head, &hash).is_some();
        if is_mined || !self.world.pool_add(envelope) {
            return Err(RpcError::new(SERVER_ERROR, "already known"));
        }
        data(hash.as_slice())
    }
}
