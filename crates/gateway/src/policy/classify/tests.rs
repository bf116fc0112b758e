//! Goal: responses of real node software and providers get the right verdict. Method: every rule's
//! recorded example must match that rule first; then tables of error codes and messages.

use super::*;

fn error(code: i64, message: &str) -> Verdict {
    classify_error(code, message, false)
}

fn send_error(code: i64, message: &str) -> Verdict {
    classify_error(code, message, true)
}

fn classify_error(code: i64, message: &str, broadcast: bool) -> Verdict {
    classify(&CallOutcome::Error { status: 200, retry_after: None, code, message, broadcast })
}

const RATE_LIMITED: Verdict = Verdict::RateLimited { retry_after: None };

fn fault(fault: Fault) -> Verdict {
    Verdict::UpstreamFault(fault)
}

#[test]
fn every_rule_is_reached_by_its_own_example() {
    let file: RulesFile = toml::from_str(ERRORS).unwrap();
    assert!(file.rule.len() > 80, "{}", file.rule.len());
    for (index, rule) in file.rule.iter().enumerate() {
        let code = rule.codes.first().copied().unwrap_or(-32000);
        let broadcast = rule.only.is_some();
        let matching = find_rule(code, &rule.example, broadcast);
        let matching_index = matching
            .and_then(|matching| load_rules().iter().position(|rule| std::ptr::eq(rule, matching)));
        assert_eq!(matching_index, Some(index), "{:?} of {}", rule.example, rule.source);
        assert!(!rule.text.is_empty() && rule.text.iter().all(|word| word.len() >= 4));
        assert!(rule.source.len() > 4, "{:?} needs a source", rule.text);
    }
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
    let outcome = CallOutcome::Error {
        status: 429,
        retry_after: Some(Duration::from_secs(2)),
        code: -32000,
        message: "slow down",
        broadcast: false,
    };
    let retry_after = Some(Duration::from_secs(2));
    assert_eq!(classify(&outcome), Verdict::RateLimited { retry_after });
    for (code, message) in [
        (-32005, "daily request count exceeded, request rate limited"),
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
        (-32000, "transaction not found"),
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
        assert_eq!(error(code, message), Verdict::Response, "{message}");
    }
    assert_eq!(send_error(-32000, "unknown transaction type"), Verdict::Response);
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

#[test]
fn long_and_odd_messages_are_bounded() {
    let trace = format!("Internal error{}", " at Foo.Bar()".repeat(100_000));
    assert_eq!(error(-32603, &trace), fault(Fault::Internal));
    let late = format!("{}execution reverted", "é".repeat(MESSAGE_BYTES_MAX));
    assert_eq!(error(-32000, &late), Verdict::Response);
}
