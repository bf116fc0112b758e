//! Signed transactions that were sent twice: the second upstream's refusal can be the first one's
//! success.
//!
//! A chain takes a transaction once, so repeating `eth_sendRawTransaction` is safe, but the
//! upstream that is asked second may say "already known" or "nonce too low". The caller must hear
//! the hash.

use std::borrow::Cow;
use std::rc::Rc;

use bytes::Bytes;
use wire::json::string::JsonString;
use wire::json::walk;

use crate::call::request::UpstreamRequest;
use crate::call::response::Payload;
use crate::upstream::fetch::fetch;
use crate::upstream::thread::UpstreamContext;

/// The raw result that an upstream gives for the transaction in `ask`: its hash, quoted. None where
/// the method does not hash so, or the parameters are no transaction.
pub(crate) fn hash(ask: &UpstreamRequest<'_>) -> Option<Bytes> {
    namespace(&ask.name)?;
    hash_of(ask.params.as_deref()?)
}

/// The namespace of a method that takes a signed transaction and says nothing but its hash.
fn namespace(method: &str) -> Option<&str> {
    let namespace = method.strip_suffix("_sendRawTransaction")?;
    matches!(namespace, "eth" | "hmy" | "hmyv2").then_some(namespace)
}

fn hash_of(params: &[u8]) -> Option<Bytes> {
    let first = walk::elements(params).next()?;
    let digits = JsonString::from_value(first)?.raw.strip_prefix(b"0x")?;
    let raw = alloy_primitives::hex::decode(digits).ok()?;
    let hash = alloy_primitives::keccak256(raw);
    Some(Bytes::from(format!("\"{hash:#x}\"")))
}

/// The same, if an upstream knows the transaction.
pub(crate) async fn find(cx: &Rc<UpstreamContext>, ask: &UpstreamRequest<'_>) -> Option<Bytes> {
    let hash = hash(ask)?;
    let params = [b"[", &*hash, b"]"].concat();
    let name = format!("{}_getTransactionByHash", namespace(&ask.name)?);
    let found = cx.topology.chains[ask.chain].family.find(&name);
    let look_up = UpstreamRequest {
        name: Cow::Owned(name),
        method: found.map(|(_, method)| method),
        row: found.map(|(place, _)| place),
        params: Some(Cow::Owned(params)),
        ..ask.clone()
    };
    match fetch(cx, &look_up).await.payload {
        Payload::Result(found) if &*found != b"null" => Some(hash),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a transaction has the hash that upstreams say of it.

    use super::*;

    #[test]
    fn hashes_are_those_that_upstreams_say() {
        // From Harmony's documentation of hmy_sendRawTransaction.
        let params = br#"["0xf869808082520880809410a02a0a6e95a676ae23e2db04bea3d1b8b7ca2e880de0b6b3a7640000801ba0c8d0c5390086999b5b5a93373953c3c94b44dc8fd06d88a421a7c2461e9e4482a0730d7859d1e3109d499bcd75f00700729b9bc17b03940da4f84b6ea784f51eb1"]"#;
        let hash = "\"0x1156a044c73f85d876780f3bd86d7b0665c2d1b6c8a1abaaaedc08c13968a598\"";
        assert_eq!(hash_of(params).as_deref(), Some(hash.as_bytes()));
        for none in ["[]", "[7]", "[\"f8\"]", "[\"0xzz\"]"] {
            assert!(hash_of(none.as_bytes()).is_none(), "{none}");
        }
    }

    #[test]
    fn methods_that_say_more_than_the_hash_are_others() {
        for method in ["eth_sendRawTransaction", "hmyv2_sendRawTransaction"] {
            assert!(namespace(method).is_some(), "{method}");
        }
        for method in ["eth_sendRawTransactionSync", "hmy_sendRawStakingTransaction", "eth_call"] {
            assert!(namespace(method).is_none(), "{method}");
        }
    }
}
