//! Signed transactions that were sent twice: the second node's refusal can be the first one's
//! success.
//!
//! A chain takes a transaction once, so repeating `eth_sendRawTransaction` is safe, but the node
//! that is asked second may say "already known" or "nonce too low". The caller must hear the hash.

use std::borrow::Cow;
use std::rc::Rc;

use bytes::Bytes;
use wire::json::text::Text;
use wire::json::walk;

use crate::front::answer::Payload;
use crate::nodes::fetch::fetch;
use crate::path::Ask;
use crate::worker::Worker;

/// The raw result that a node gives for the transaction in `ask`: its hash, quoted. None where the
/// method does not hash so, or the parameters are no transaction.
pub(crate) fn hash(ask: &Ask<'_>) -> Option<Bytes> {
    if ask.name != "eth_sendRawTransaction" {
        return None;
    }
    let first = walk::elements(ask.params.as_deref()?).next()?;
    let digits = Text::from_value(first)?.raw.strip_prefix(b"0x")?;
    let raw = alloy_primitives::hex::decode(digits).ok()?;
    let hash = alloy_primitives::keccak256(raw);
    Some(Bytes::from(format!("\"{hash:#x}\"")))
}

/// The same, if a node knows the transaction.
pub(crate) async fn find(worker: &Rc<Worker>, ask: &Ask<'_>) -> Option<Bytes> {
    let hash = hash(ask)?;
    let params = [b"[", &*hash, b"]"].concat();
    let name = "eth_getTransactionByHash";
    let found = worker.shared.chains[ask.chain].family.find(name);
    let look_up = Ask {
        name: Cow::Borrowed(name),
        method: found.map(|(_, method)| method),
        place: found.map(|(place, _)| place),
        params: Some(Cow::Owned(params)),
        ..ask.clone()
    };
    match fetch(worker, &look_up).await.payload {
        Payload::Result(found) if &*found != b"null" => Some(hash),
        _ => None,
    }
}
