//! The constant node responds as a node does in the fields that a gateway reads: ids, numbers,
//! parents.

use std::time::Duration;

use serde_json::Value;

use super::{Chain, Fault, HEAD_START, SERVED_METHOD, now_seconds, request_bounds};

fn chain() -> Chain {
    Chain {
        started_secs: now_seconds(),
        served: Default::default(),
        latency: Duration::ZERO,
        fault_state: Default::default(),
    }
}

fn call(body: &str) -> Value {
    serde_json::from_str(&chain().reply(body.as_bytes()).unwrap()).unwrap()
}

#[test]
fn the_id_is_returned_unchanged() {
    let reply = chain().reply(br#"{"id": 1.0e3,"method":"eth_chainId"}"#).unwrap();
    assert_eq!(reply, r#"{"jsonrpc":"2.0","id":1.0e3,"result":"0x1"}"#);
}

#[test]
fn blocks_have_their_parents_and_earlier_times() {
    let block = |number: u64| {
        call(&format!(
            r#"{{"id":1,"method":"eth_getBlockByNumber","params":["{number:#x}",false]}}"#
        ))["result"]
            .clone()
    };
    let (older, newer) = (block(HEAD_START - 1), block(HEAD_START));
    assert_eq!(newer["parentHash"], older["hash"]);
    assert_eq!(newer["number"], format!("{HEAD_START:#x}"));
    assert_ne!(newer["timestamp"], older["timestamp"]);
    assert_eq!(older["hash"].as_str().unwrap().len(), 66);
}

#[test]
fn tags_resolve_to_block_numbers() {
    let number = |tag: &str| {
        call(&format!(r#"{{"id":1,"method":"eth_getBlockByNumber","params":["{tag}",false]}}"#))
            ["result"]["number"]
            .clone()
    };
    assert_eq!(number("latest"), "0x1312d00");
    assert_eq!(number("finalized"), "0x1312cc0");
}

#[test]
fn a_batch_has_responses_in_order_and_an_unknown_method_is_rejected() {
    let responses = call(r#"[{"id":1,"method":"eth_chainId"},{"id":2,"method":"eth_nothing"}]"#);
    assert_eq!(responses[0]["id"], 1);
    assert_eq!(responses[1]["error"]["code"], -32601);
}

#[test]
fn a_request_is_parsed_once_it_is_complete() {
    let bytes = b"POST / HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}rest";
    assert_eq!(request_bounds(bytes).unwrap(), Some((38, 40)));
    assert_eq!(request_bounds(&bytes[..39]).unwrap(), None);
}

#[test]
fn calls_are_counted() {
    let chain = chain();
    chain.reply(br#"[{"id":1,"method":"eth_chainId"},{"id":2,"method":"eth_chainId"}]"#).unwrap();
    let counted = format!(r#"{{"id":3,"method":"{SERVED_METHOD}"}}"#);
    assert_eq!(chain.reply(counted.as_bytes()).unwrap(), r#"{"jsonrpc":"2.0","id":3,"result":2}"#);
}

#[test]
fn a_fault_is_set_by_a_call() {
    let chain = chain();
    let reply = chain.reply(Fault::Drip.call().as_bytes()).unwrap();
    assert!(reply.contains("true"), "{reply}");
    assert_eq!(chain.fault_state.lock().fault, Fault::Drip);
}
