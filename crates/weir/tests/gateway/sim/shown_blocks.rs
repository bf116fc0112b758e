//! Checks that no client gets a block above the head that the gateway serves: a head that a client
//! reads later is at least as high as each block that the client was shown before.

use std::collections::HashMap;

use serde_json::Value;
use tokio::time::Instant;

use super::calls::Call;

/// The blocks that each client was shown.
#[derive(Default)]
pub(crate) struct ShownBlocks {
    clients: HashMap<u64, Shown>,
}

/// The blocks that one client was shown. A client sends one request at a time.
#[derive(Clone, Copy)]
struct Shown {
    /// The highest block of the responses before the last request.
    highest_before: u64,
    /// The highest block of all responses.
    highest: u64,
    /// When the last response arrived.
    received: Instant,
}

impl ShownBlocks {
    /// Records the blocks that a result shows. Returns the higher block that the client was shown
    /// before, if the result is a lower head.
    pub(crate) fn check(
        &mut self,
        client: u64,
        call: &Call,
        result: &[u8],
        (sent, received): (Instant, Instant),
    ) -> Option<u64> {
        let unseen = Shown { highest_before: 0, highest: 0, received };
        let shown = self.clients.entry(client).or_insert(unseen);
        if sent >= shown.received {
            shown.highest_before = shown.highest;
        }
        shown.received = received;
        let value: Value = serde_json::from_slice(result).expect("the response was parsed before");
        if call.method == "eth_blockNumber" {
            let head = parse_number(&value)?;
            return (head < shown.highest_before).then_some(shown.highest_before);
        }
        // The block that a node has pending is above each head.
        if !call.params.contains("pending") {
            shown.highest = shown.highest.max(highest_block(&value));
        }
        None
    }
}

/// Returns the height of the highest block that a block, a transaction, a receipt, a log or a list
/// of them names; 0 if it names no block.
fn highest_block(value: &Value) -> u64 {
    match value {
        Value::Array(items) => items.iter().map(highest_block).max().unwrap_or(0),
        Value::Object(_) => {
            let is_block = value.get("parentHash").is_some();
            let number = if is_block { &value["number"] } else { &value["blockNumber"] };
            parse_number(number).unwrap_or(0)
        }
        _ => 0,
    }
}

fn parse_number(value: &Value) -> Option<u64> {
    u64::from_str_radix(value.as_str()?.strip_prefix("0x")?, 16).ok()
}

#[test]
fn a_head_below_a_shown_block_is_found() {
    let mut shown = ShownBlocks::default();
    let start = Instant::now();
    let at = |ms: u64| start + std::time::Duration::from_millis(ms);
    let mut check = |method: &'static str, result: &str, sent: u64| {
        let call = Call { method, params: "[]".to_owned() };
        shown.check(1, &call, result.as_bytes(), (at(sent), at(sent + 1)))
    };
    assert_eq!(check("eth_getTransactionReceipt", r#"{"blockNumber":"0x10"}"#, 0), None);
    // Another item of the same batch.
    assert_eq!(check("eth_blockNumber", "\"0xf\"", 0), None);
    assert_eq!(check("eth_blockNumber", "\"0xf\"", 1), Some(16));
    assert_eq!(check("eth_getLogs", r#"[{"blockNumber":"0x11"}]"#, 2), None);
    assert_eq!(check("eth_blockNumber", "\"0x10\"", 3), Some(17));
    assert_eq!(check("eth_blockNumber", "\"0x11\"", 4), None);
}
