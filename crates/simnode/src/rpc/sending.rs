//! `eth_sendRawTransaction`: decoded, kept in the world's pool, never mined.

use alloy_consensus::TxEnvelope;
use alloy_eips::eip2718::Decodable2718;

use super::wording::SERVER;
use super::{Answer, Call, RpcError, data};

/// The longest transaction (geth `core/txpool/legacypool`, `txMaxSize`).
const TRANSACTION_BYTES_MAX: usize = 128 * 1024;

impl Call<'_> {
    pub(super) fn send_raw(&self) -> Answer {
        let raw = self.arguments.bytes(0)?;
        if raw.len() > TRANSACTION_BYTES_MAX {
            let message = format!(
                "oversized data: transaction size {}, limit {TRANSACTION_BYTES_MAX}",
                raw.len()
            );
            return Err(RpcError::new(SERVER, message));
        }
        let envelope = TxEnvelope::decode_2718_exact(&raw)
            .map_err(|fault| RpcError::new(SERVER, format!("rlp: {fault}")))?;
        if matches!(envelope, TxEnvelope::Eip4844(_) | TxEnvelope::Eip7702(_)) {
            return Err(RpcError::new(SERVER, "transaction type not supported"));
        }
        let hash = *envelope.tx_hash();
        let mined = self.world.find_transaction(self.sight.head, &hash).is_some();
        if mined || !self.world.pool_add(envelope) {
            return Err(RpcError::new(SERVER, "already known"));
        }
        data(hash.as_slice())
    }
}
