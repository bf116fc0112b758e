//! Goal: every property is right or unknown, and no node gets more calls than announced. Method:
//! fake nodes on real sockets that count the calls they get.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};

use super::*;
use crate::target::client::tests::Fake;

/// Number of the head of the fake nodes.
const HEAD: u64 = 20_000_000;

/// The response of a fake node to a call: a result or an error.
type Response = Result<Value, Value>;

/// Measures a fake node. Returns the result and the number of calls that the node got.
fn measure_fake(
    respond: impl Fn(&str, &Value) -> Response + Send + 'static,
) -> (Result<Capabilities, String>, u32) {
    let calls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&calls);
    let fake = Fake::responding(move |request| {
        let (_, body) = request.split_once("\r\n\r\n")?;
        let body: Value = serde_json::from_str(body).ok()?;
        let respond_to = |call: &Value| {
            counted.fetch_add(1, Ordering::Relaxed);
            let id = &call["id"];
            match respond(call["method"].as_str().unwrap_or_default(), &call["params"]) {
                Ok(result) => json!({"jsonrpc": "2.0", "id": id, "result": result}),
                Err(error) => json!({"jsonrpc": "2.0", "id": id, "error": error}),
            }
        };
        let response = match &body {
            Value::Array(calls) => Value::Array(calls.iter().map(respond_to).collect()),
            call => respond_to(call),
        };
        let body = response.to_string();
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n";
        Some(format!("{head}content-length: {}\r\n\r\n{body}", body.len()).into_bytes())
    });
    let node = MeasuredNode { target: fake.target(), websocket: None, tls: Tls::default() };
    let options = Options {
        call_timeout: Duration::from_secs(10),
        duration_max: Duration::from_secs(60),
        sizes: true,
    };
    (measure(&node, &options), calls.load(Ordering::Relaxed))
}

fn error(code: i64, message: &str) -> Response {
    Err(json!({"code": code, "message": message}))
}

/// Returns the number in a hexadecimal text.
fn number_of(value: &Value) -> u64 {
    number(value).unwrap_or_else(|| panic!("{value} is not a number"))
}

/// Responds as a node with the state of the newest `state_depth` blocks, and with this maximum of
/// blocks for `eth_getLogs`, which the error states only if `states_range` is true.
fn respond(
    method: &str,
    params: &Value,
    state_depth: u64,
    range_max: u64,
    states_range: bool,
) -> Response {
    match method {
        "web3_clientVersion" => Ok(json!("Fake/v1")),
        "eth_chainId" => Ok(json!("0x1")),
        "eth_blockNumber" => Ok(json!(format!("{HEAD:#x}"))),
        "eth_getBalance" if number_of(&params[1]) + state_depth >= HEAD => Ok(json!("0x0")),
        "eth_getBalance" => {
            error(-32000, "missing trie node 00 (path ) state 0x00 is not available")
        }
        "eth_getLogs" => {
            let filter = &params[0];
            let blocks = number_of(&filter["toBlock"]) - number_of(&filter["fromBlock"]) + 1;
            match (blocks <= range_max, states_range) {
                (true, _) => Ok(json!([])),
                (false, true) => error(-32005, &format!("exceed maximum block range: {range_max}")),
                (false, false) => error(-32005, "block range is too large"),
            }
        }
        "eth_getBlockReceipts" => Ok(Value::Null),
        "debug_traceBlockByNumber" => error(-32000, "something that no rule knows"),
        _ => error(-32601, "the method does not exist/is not available"),
    }
}

#[test]
fn the_depth_of_state_and_the_limits_are_found() {
    for (depth, range_max, states_range) in
        [(127, 5_000, true), (90_000, 1_000, false), (HEAD, 100_000, true)]
    {
        let (measured, calls) = measure_fake(move |method, params| {
            respond(method, params, depth, range_max, states_range)
        });
        let measured = measured.unwrap();
        assert!(calls <= CALLS_MAX && measured.requests <= REQUESTS_MAX, "{measured:?}");
        assert_eq!(calls, measured.calls);
        assert_eq!((measured.client, measured.chain_id), (Ok("Fake/v1".to_owned()), Ok(1)));
        match measured.state.unwrap() {
            StateDepth::All => assert_eq!(depth, HEAD),
            StateDepth::Last(found) => {
                // The bisection ends with an error of at most a few percent.
                assert!(found <= depth && found * 21 / 20 >= depth, "{found} of {depth}");
            }
        }
        let range = measured.log_range.unwrap().unwrap();
        let tried_max = range_max.min(sizes::RANGE_MAX);
        assert!(range.accepted <= tried_max && range.accepted * 21 / 20 >= tried_max, "{range:?}");
        assert_eq!(range.failed.is_some(), range_max < sizes::RANGE_MAX, "{range:?}");
        assert_eq!(measured.batch.unwrap().unwrap(), SizeLimit { accepted: 100, failed: None });
        let served = |name: &str| {
            let method = measured.methods.iter().find(|(method, _)| *method == name).unwrap();
            method.1.clone()
        };
        assert_eq!(served("eth_getBlockReceipts"), Ok(true));
        assert_eq!(served("eth_getProof"), Ok(false));
        let unknown = served("debug_traceBlockByNumber");
        assert_eq!(unknown, Err("something that no rule knows".to_owned()));
    }
}

#[test]
fn errors_of_other_kinds_make_a_property_unknown() {
    let (measured, _) = measure_fake(|method, params| match method {
        "eth_getBalance" => error(-32603, "internal error"),
        _ => respond(method, params, HEAD, 10, false),
    });
    let measured = measured.unwrap();
    assert_eq!(measured.state, Err("eth_getBalance at block 1: internal error".to_owned()));
    let range = measured.log_range.unwrap().unwrap();
    assert_eq!(range.accepted, 10, "the bisection below the first range ends at the limit");
}

#[test]
fn a_refused_key_is_reported_after_one_call() {
    let (measured, calls) = measure_fake(|_, _| error(-32000, "invalid api key"));
    let reason = measured.unwrap_err();
    let expected =
        "it refuses the key or token: invalid api key; check the key in the URL or headers";
    assert_eq!((reason.as_str(), calls), (expected, 1));
}
