//! Goal: no response shows a block above the served head, and what replaces such a response is what
//! the client would have got a moment earlier. Method: results as text, with the method table.

use wire::family::Family;
use wire::method::methods_of;

use super::*;

const HEAD: u64 = 15;

fn method(name: &str) -> &'static Method {
    methods_of(Family::Ethereum).method(name).unwrap_or_else(|| panic!("no {name}"))
}

fn resolved<'a>(name: &str, params: &'a str, result: &'a str) -> Resolved<'a> {
    let params = Some(params.as_bytes());
    Resolved { method: method(name), params, result: result.as_bytes() }
}

/// Returns an object that names the block of this height, as a receipt, transaction or log does.
fn item(height: u64) -> String {
    format!(r#"{{"transactionHash":"0xaa","blockNumber":"{height:#x}","blockHash":"{HASH}"}}"#)
}

const HASH: &str = "0x1111111111111111111111111111111111111111111111111111111111111111";

/// Checks the highest block of a result, and the response as of block 15.
#[track_caller]
fn check(
    (name, params): (&str, &str),
    result: &str,
    highest_block: Option<u64>,
    earlier: EarlierResponse,
) {
    let resolved = resolved(name, params, result);
    assert_eq!(resolved.highest_block(), highest_block, "{name} {params}");
    assert_eq!(resolved.respond_as_of(HEAD), earlier, "{name} {params}");
}

fn null() -> EarlierResponse {
    EarlierResponse::Result(b"null".to_vec())
}

fn block_not_served() -> EarlierResponse {
    EarlierResponse::Error(BLOCK_NOT_SERVED.to_vec())
}

#[test]
fn a_record_of_a_newer_block_is_null_a_moment_earlier() {
    let by_hash = format!(r#"["{HASH}"]"#);
    let block = format!(r#"{{"number":"0x10","hash":"{HASH}"}}"#);
    let receipts = format!("[{},{}]", item(16), item(16));
    check(("eth_getTransactionReceipt", &by_hash), &item(16), Some(16), null());
    check(("eth_getTransactionByHash", &by_hash), &item(16), Some(16), null());
    check(("eth_getBlockByHash", &by_hash), &block, Some(16), null());
    check(("eth_getBlockByNumber", r#"["0x10",false]"#), &block, Some(16), null());
    check(("eth_getBlockReceipts", r#"["0x10"]"#), &receipts, Some(16), null());
    check(("trace_transaction", &by_hash), &receipts, Some(16), null());
}

#[test]
fn lists_lose_the_items_of_newer_blocks() {
    let both = format!("[{}, {}]", item(15), item(16));
    let served = EarlierResponse::Result(format!("[{}]", item(15)).into_bytes());
    let range = r#"[{"fromBlock":"0xf","toBlock":"0x20"}]"#;
    check(("eth_getLogs", range), &both, Some(16), served.clone());
    check(("trace_filter", range), &both, Some(16), served);
    let only_newer = format!("[{}]", item(16));
    let empty = EarlierResponse::Result(b"[]".to_vec());
    check(("eth_getLogs", range), &only_newer, Some(16), empty);
    // An empty list would mean that the block has no such logs.
    let by_hash = format!(r#"[{{"blockHash":"{HASH}"}}]"#);
    check(("eth_getLogs", &by_hash), &only_newer, Some(16), block_not_served());
}

#[test]
fn null_is_never_the_response_about_a_tag() {
    let block = format!(r#"{{"number":"0x10","hash":"{HASH}"}}"#);
    let latest = ("eth_getBlockByNumber", r#"["latest",false]"#);
    check(latest, &block, Some(16), EarlierResponse::Unavailable);
    check(("eth_blockNumber", "[]"), "\"0x10\"", Some(16), EarlierResponse::Head);
}

#[test]
fn state_of_a_newer_height_shows_its_block() {
    let balance = ("eth_getBalance", r#"["0xaa","0x10"]"#);
    check(balance, "\"0x0\"", Some(16), block_not_served());
    check(("debug_traceBlockByNumber", r#"["0x10"]"#), "[]", Some(16), block_not_served());
    let count = ("eth_getBlockTransactionCountByNumber", r#"["0x10"]"#);
    check(count, "\"0x0\"", Some(16), null());
    assert!(must_read(method("eth_getBalance"), CacheRule::Never, 0));
    assert!(!must_read(method("eth_getBalance"), CacheRule::Never, 15));
}

#[test]
fn the_pending_block_shows_its_parent() {
    let pending = ("eth_getBlockByNumber", r#"["pending",false]"#);
    let with_hash = format!(r#"{{"number":"0x10","hash":"{HASH}"}}"#);
    let highest = |result: &str| resolved(pending.0, pending.1, result).highest_block();
    assert_eq!(highest(r#"{"number":"0x10","hash":null}"#), Some(15));
    assert_eq!(highest(&with_hash), Some(15));
    let nonce = resolved("eth_getTransactionCount", r#"["0xaa","pending"]"#, "\"0x1\"");
    assert_eq!(nonce.highest_block(), None);
}

#[test]
fn nulls_and_pending_transactions_show_no_block() {
    let pending = r#"{"hash":"0xaa","blockNumber":null,"blockHash":null}"#;
    for result in ["null", pending] {
        let resolved = resolved("eth_getTransactionByHash", "[]", result);
        assert_eq!(resolved.highest_block(), None, "{result}");
    }
}

#[test]
fn a_sent_transaction_is_reported_as_sent() {
    let earlier = resolved("eth_sendRawTransactionSync", "[]", &item(16)).respond_as_of(HEAD);
    let EarlierResponse::Error(error) = earlier else { panic!("{earlier:?}") };
    let error = String::from_utf8(error).unwrap();
    assert!(error.starts_with(r#"{"code":4,"#) && error.ends_with(r#","data":"0xaa"}"#), "{error}");
}
