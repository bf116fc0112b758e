//! The result for a signed transaction that the gateway has sent twice. `fetch.rs` looks up the
//! transaction.
//!
//! A chain accepts a transaction only once, so the gateway may retry `eth_sendRawTransaction`. If
//! the first upstream has accepted the transaction, the second may respond "already known" or
//! "nonce too low". The client must then get the hash of the transaction instead of the error.

use std::borrow::Cow;

use bytes::Bytes;
use wire::json::string::JsonString;
use wire::json::walk;
use wire::method::MethodTable;

use crate::call::{Payload, UpstreamRequest};

/// Computes the raw result of `request`: the hash of its transaction, in quotes. `None` if the
/// method returns something else or the parameters are malformed.
pub(super) fn compute_expected_result(request: &UpstreamRequest<'_>) -> Option<Bytes> {
    find_namespace(&request.method_name)?;
    compute_quoted_hash(request.params.as_deref()?)
}

/// Returns the namespace, such as `eth`, of a method that accepts a signed transaction and returns
/// its hash. Returns `None` for other methods.
fn find_namespace(method: &str) -> Option<&str> {
    let namespace = method.strip_suffix("_sendRawTransaction")?;
    matches!(namespace, "eth" | "hmy" | "hmyv2").then_some(namespace)
}

/// Computes the hash of the transaction in `params`, in quotes.
fn compute_quoted_hash(params: &[u8]) -> Option<Bytes> {
    let transaction = walk::elements(params).next()?;
    let digits = JsonString::from_value(transaction)?.raw.strip_prefix(b"0x")?;
    let raw = alloy_primitives::hex::decode(digits).ok()?;
    let hash = alloy_primitives::keccak256(raw);
    Some(Bytes::from(format!("\"{hash:#x}\"")))
}

/// Builds the lookup of the transaction that `request` sends. `hash` is the result of
/// [`compute_expected_result`]. Returns `None` if the method returns something else than the hash.
pub(super) fn build_lookup<'a>(
    request: &UpstreamRequest<'a>,
    hash: &[u8],
    methods: &'static MethodTable,
) -> Option<UpstreamRequest<'a>> {
    let params = [b"[", hash, b"]"].concat();
    let name = format!("{}_getTransactionByHash", find_namespace(&request.method_name)?);
    // The index of the method's row in the method table, and the row.
    let table_row = methods.find(&name);
    Some(UpstreamRequest {
        method_name: Cow::Owned(name),
        method_row: table_row.map(|(_, method)| method),
        row_index: table_row.map(|(index, _)| index),
        params: Some(Cow::Owned(params)),
        ..request.clone()
    })
}

/// Returns true if the payload of a lookup has the transaction.
pub(super) fn has_transaction(payload: &Payload) -> bool {
    matches!(payload, Payload::Result(transaction) if &**transaction != b"null")
}

#[cfg(test)]
mod tests {
    //! Goal: the computed hash equals the hash that upstreams return.

    use super::*;

    #[test]
    fn the_hash_of_a_documented_transaction() {
        // From Harmony's documentation of hmy_sendRawTransaction.
        let params = br#"["0xf869808082520880809410a02a0a6e95a676ae23e2db04bea3d1b8b7ca2e880de0b6b3a7640000801ba0c8d0c5390086999b5b5a93373953c3c94b44dc8fd06d88a421a7c2461e9e4482a0730d7859d1e3109d499bcd75f00700729b9bc17b03940da4f84b6ea784f51eb1"]"#;
        let hash = "\"0x1156a044c73f85d876780f3bd86d7b0665c2d1b6c8a1abaaaedc08c13968a598\"";
        assert_eq!(compute_quoted_hash(params).as_deref(), Some(hash.as_bytes()));
        for malformed in ["[]", "[7]", "[\"f8\"]", "[\"0xzz\"]"] {
            assert!(compute_quoted_hash(malformed.as_bytes()).is_none(), "{malformed}");
        }
    }

    #[test]
    fn methods_that_return_more_than_the_hash_are_excluded() {
        for method in ["eth_sendRawTransaction", "hmyv2_sendRawTransaction"] {
            assert!(find_namespace(method).is_some(), "{method}");
        }
        for method in ["eth_sendRawTransactionSync", "hmy_sendRawStakingTransaction", "eth_call"] {
            assert!(find_namespace(method).is_none(), "{method}");
        }
    }
}
