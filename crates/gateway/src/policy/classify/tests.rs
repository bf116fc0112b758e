//! Goal: responses of real node software and providers get the right verdict. Method: tables of error
//! codes and messages.

use serde::Deserialize;
use wire::method::Repeat;
use wire::node_error::MethodKind;

use super::*;

fn error(code: i64, message: &str) -> Verdict {
    classify_error(code, message, MethodKind::Other)
}

fn send_error(code: i64, message: &str) -> Verdict {
    classify_error(code, message, MethodKind::Broadcast)
}

fn classify_error(code: i64, message: &str, method: MethodKind) -> Verdict {
    let error = NodeError { status: 200, code, message, has_hex_data: code == 3, method };
    classify(&CallOutcome::Error { error, retry_after: None })
}

const RATE_LIMITED: Verdict = Verdict::RateLimited { retry_after: None };

fn fault(fault: Fault) -> Verdict {
    Verdict::UpstreamFault(fault)
}

#[test]
fn results_and_broken_connections() {
    assert_eq!(classify(&CallOutcome::Result), Verdict::Response);
    for broken in [Fault::Connect, Fault::Closed, Fault::Timeout] {
        assert_eq!(classify(&CallOutcome::Broken(broken)), fault(broken));
    }
}

#[test]
fn http_responses_without_json_rpc_are_classified_by_status() {
    let check = |status, expected| {
        let outcome = CallOutcome::Http { status, retry_after: None };
        assert_eq!(classify(&outcome), expected, "{status}");
    };
    check(200, fault(Fault::Malformed));
    check(302, fault(Fault::Malformed));
    check(401, fault(Fault::Refused));
    check(403, fault(Fault::Refused));
    check(404, fault(Fault::Http));
    check(413, fault(Fault::Limit));
    check(429, RATE_LIMITED);
    check(500, fault(Fault::Http));
    check(502, fault(Fault::Http));
    check(503, fault(Fault::Http));
    let retry_after = Some(Duration::from_secs(7));
    for status in [429, 503] {
        let outcome = CallOutcome::Http { status, retry_after };
        assert_eq!(classify(&outcome), Verdict::RateLimited { retry_after });
    }
}

#[test]
fn rate_limits_by_status_code_and_text() {
    let retry_after = Some(Duration::from_secs(2));
    let (message, method) = ("slow down", MethodKind::Other);
    let error_429 = NodeError { status: 429, code: -32000, message, has_hex_data: false, method };
    let outcome = CallOutcome::Error { error: error_429, retry_after };
    assert_eq!(classify(&outcome), Verdict::RateLimited { retry_after });
    let daily = error(-32005, "daily request count exceeded, request rate limited");
    let monthly = error(-32000, "Monthly capacity limit exceeded");
    let retry_after = Some(QUOTA_PAUSE);
    assert_eq!([daily, monthly], [Verdict::RateLimited { retry_after }; 2]);
    let retry_after = Some(Duration::from_secs(10));
    let stated = error(-32000, "Too many requests, retry in 10s");
    assert_eq!(stated, Verdict::RateLimited { retry_after });
    for (code, message) in [
        (-32005, "limit exceeded"),
        (-32029, "slow down"),
        (429, "Your app has exceeded its compute units per second capacity."),
        (-32007, "50/second request limit reached - reduce calls per second"),
        (-32003, "credits limited to 330/sec"),
        (-32000, "Too Many Requests"),
    ] {
        assert_eq!(error(code, message), RATE_LIMITED, "{message}");
    }
}

#[test]
fn range_limits_are_no_rate_limits_despite_equal_codes() {
    for (code, message) in [
        (-32005, "query returned more than 10000 results"),
        (-32005, "Requested range exceeds maximum RPC range limit"),
        (-32602, "query exceeds max results 20000, retry with the range 22382105-22382515"),
        (
            -32600,
            "You can make eth_getLogs requests with up to a 500 block range. Based on your parameters, this block range should work: [0x123c9b2, 0x123cba5]",
        ),
        (-32602, "range 1000000 exceeds limit of 10000"),
        (35, "ranges over 10000 blocks are not supported on freetier"),
        (-32614, "eth_getLogs is limited to a 10,000 range"),
        (-32600, "block range too high"),
        (
            -32000,
            "block range is larger than max block range, block range = 5120, max block range = 5000",
        ),
        (-32016, "anything"),
    ] {
        assert_eq!(error(code, message), fault(Fault::Limit), "{message}");
    }
}

#[test]
fn errors_caused_by_the_caller_go_to_the_client() {
    for (code, message) in [
        (-32602, "invalid argument 0: hex string without 0x prefix"),
        (-32602, "invalid block range params"),
        (-32602, "empty request"),
        (-32600, "Invalid Request"),
        (-32000, "genesis is not traceable"),
        (-32000, "account 0xc100000000000000000000000000000000000000 is not a precompile"),
        (-32000, "filter not found"),
        (
            -32000,
            "nonce too high: address 0x16c57eDF7Fa9D9525378B0b81Bf8A3cEd0620C1c, tx: 999 state: 0",
        ),
        (
            -32003,
            "insufficient funds for gas * price + value: address 0xa9 have 0 want 335488250000000000",
        ),
        (-32000, "replacement transaction underpriced"),
        (-32000, "out of gas"),
        (-32603, "err: nonce has max value: address 0xC0, nonce: 18446744073709551615"),
        (-38014, "err: insufficient funds for gas * price + value"),
        (-38021, "block timestamps must be in order: 550 <= 588"),
        (-38026, "too many blocks"),
        (-32004, "Upfront cost exceeds account balance"),
        (-32005, "Transaction gas limit exceeds block gas limit"),
        (-32002, "Invalid signature"),
    ] {
        assert_eq!(error(code, message), Verdict::Response, "{message}");
        assert_eq!(send_error(code, message), Verdict::Response, "{message}");
    }
}

#[test]
fn reverts_are_deterministic_errors() {
    for (code, message) in [
        (3, "execution reverted"),
        (3, "execution reverted: too many requests"),
        (-32000, "execution reverted: header not found"),
        (-32000, "Execution reverted (ERC20: transfer amount exceeds balance)"),
        (-32015, "VM execution error: Reverted 0x"),
    ] {
        assert_eq!(error(code, message), Verdict::DeterministicError, "{message}");
    }
    assert_eq!(error(-32015, "VM execution error."), Verdict::Response);
}

#[test]
fn missing_state_and_blocks_go_to_other_upstreams() {
    for (code, message) in [
        (-32000, "missing trie node 5c0ee75d (path ) state 0x5c0e is not available"),
        (-32002, "No state available for block 0xe7b1e5b5"),
        (-32603, "state at block #12369623 is pruned"),
        (4444, "pruned history unavailable"),
        (-32002, "anything"),
        (-32000, "old data not available due to pruning: from tx: 1962853355, min tx: 2662500000"),
    ] {
        assert_eq!(error(code, message), fault(Fault::MissingState), "{message}");
    }
    for (code, message) in [
        (-32000, "header not found"),
        (-32001, "block not found: 0xffffffff"),
        (-32000, "block not found 11185311"),
        (-32602, "block range extends beyond current head block"),
        (-32000, "requested block number greater than current block number"),
        (-39001, "Unknown block"),
    ] {
        assert_eq!(error(code, message), fault(Fault::NotSynced), "{message}");
    }
}

#[test]
fn unknown_methods() {
    for (code, message) in [
        (-32601, "the method unknown_method does not exist/is not available"),
        (-32601, "Method not found"),
        (-32601, "rpc method is not whitelisted"),
        (-32604, "Method not enabled"),
        (-32600, "Unsupported method: trace_block on ETH_MAINNET"),
        (-32000, "cannot call this rpc on non beaconchain node"),
        (-32601, ""),
    ] {
        assert_eq!(error(code, message), Verdict::Unsupported, "{message}");
    }
}

#[test]
fn a_known_transaction_is_a_success_only_for_methods_that_send_it() {
    for (code, message) in [
        (-32000, "already known"),
        (-32000, "Known transaction"),
        (-32000, "known transaction: 0x1234"),
        (-32010, "Transaction with the same hash was already imported."),
        (-32000, "ALREADY_EXISTS: already known"),
    ] {
        assert_eq!(send_error(code, message), Verdict::AlreadyKnown, "{message}");
        assert_eq!(error(code, message), Verdict::UnknownError, "{message}");
    }
    assert_eq!(send_error(-32000, "unknown transaction type"), Verdict::UnknownError);
    assert_eq!(send_error(-32001, "Nonce too low"), Verdict::NonceTooLow);
    assert_eq!(error(-32000, "nonce too low"), Verdict::Response);
    assert_eq!(send_error(-32000, "txpool is full"), fault(Fault::Internal));
}

#[test]
fn internal_errors_are_faults() {
    for (code, message) in [
        (-32603, "Internal error"),
        (-32603, "whatever nobody listed"),
        (-32011, "no backend is currently healthy to serve traffic"),
        (-32000, "internal error"),
    ] {
        assert_eq!(error(code, message), fault(Fault::Internal), "{message}");
    }
}

/// An error text of a public report, with the behaviour that is right.
#[derive(Debug, Deserialize)]
struct PublicText {
    method: String,
    http_status: u16,
    code: i64,
    message: String,
    #[serde(default)]
    data: String,
    expect: String,
}

#[derive(Deserialize)]
struct PublicTexts {
    texts: Vec<PublicText>,
}

impl PublicText {
    fn classify(&self) -> Verdict {
        let repeat = match self.method.starts_with("eth_send") {
            true => Repeat::Broadcast,
            false => Repeat::Safe,
        };
        let error = NodeError {
            status: self.http_status,
            code: self.code,
            message: &self.message,
            has_hex_data: self.data.starts_with("0x"),
            method: MethodKind::new(&self.method, repeat),
        };
        classify(&CallOutcome::Error { error, retry_after: None })
    }
}

#[test]
fn the_texts_of_public_reports() {
    let file = include_str!("../../../../../testdata/public-faults/error-texts.json");
    let texts = serde_json::from_str::<PublicTexts>(file).unwrap().texts;
    assert!(texts.len() > 150, "{}", texts.len());
    let mut wrong = Vec::new();
    for text in &texts {
        let verdict = text.classify();
        let is_right = match &*text.expect {
            "elsewhere" => matches!(verdict, Verdict::UnknownError | Verdict::UpstreamFault(_)),
            "other-pool" => matches!(verdict, Verdict::UnknownError | Verdict::UpstreamFault(_)),
            "too-large" => verdict == fault(Fault::Limit),
            "unsupported-here" => verdict == Verdict::Unsupported,
            "rate-limited" => matches!(verdict, Verdict::RateLimited { .. }),
            "deterministic" => verdict.is_response(),
            other => panic!("unknown expectation {other}"),
        };
        if !is_right {
            wrong.push((verdict, text));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn code_3_is_a_revert_only_with_data_or_a_text_that_says_so() {
    let without_data = |message| {
        let method = MethodKind::Other;
        let error = NodeError { status: 400, code: 3, message, has_hex_data: false, method };
        classify(&CallOutcome::Error { error, retry_after: None })
    };
    assert_eq!(without_data("execution reverted"), Verdict::DeterministicError);
    for message in ["Unknown block", "header not found", "block not found with number 0x3e8"] {
        assert_eq!(without_data(message), fault(Fault::NotSynced), "{message}");
    }
    assert_eq!(without_data("missing trie node abc"), fault(Fault::MissingState));
    assert_eq!(without_data("whatever"), Verdict::UnknownError);
    assert_eq!(error(3, "Unknown block"), Verdict::DeterministicError, "it has data");
}

#[test]
fn halts_are_results_and_look_alikes_are_not() {
    for name in ["InvalidJump", "StackUnderflow", "InvalidFEOpcode", "CreateContractSizeLimit"] {
        let message = format!("EVM error: {name}");
        assert_eq!(error(-32603, &message), Verdict::DeterministicError, "{message}");
    }
    for name in ["OutOfFunds", "NotActivated", "OpcodeNotFound", "OutOfGas(Basic)"] {
        let message = format!("EVM error: {name}");
        assert_eq!(error(-32603, &message), Verdict::Response, "{message}");
    }
    assert_eq!(error(-32603, "EVM error: database error"), fault(Fault::Internal));
    let replayed = "insufficient funds for gas * price + value";
    let replay = MethodKind::new("debug_traceTransaction", Repeat::Safe);
    assert_eq!(classify_error(-32000, replayed, replay), fault(Fault::MissingState));
    let call = MethodKind::new("debug_traceCall", Repeat::Safe);
    assert_eq!(classify_error(-32000, replayed, call), Verdict::Response);
}

#[test]
fn known_transactions_of_public_reports() {
    #[derive(Deserialize)]
    struct File {
        second_upstream: Vec<String>,
    }
    let file = include_str!("../../../../../testdata/public-faults/already-known-texts.json");
    let file: File = serde_json::from_str(file).unwrap();
    assert_eq!(file.second_upstream.len(), 3);
    for message in &file.second_upstream {
        assert_eq!(send_error(-32000, message), Verdict::AlreadyKnown, "{message}");
    }
}
