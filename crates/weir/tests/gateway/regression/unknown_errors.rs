//! Errors of upstreams that say nothing about the call, in words that no rule knows.

use serde_json::{Value, json};
use test_support::proxy::start_proxy;

use crate::support::harness::{
    GET_BALANCE, NodeRuntime, SimNode, TestGateway, ask, balance_params, chain_polled_once, error,
    result, upstream_toml,
};

/// Starts a proxy that responds to these methods with these members, `result` or
/// `error`. Returns the `[[upstream]]` table of the proxy.
fn upstream_with(node: &SimNode, outcomes: &'static [(&'static str, &'static str)]) -> String {
    let url = start_proxy(&node.address.to_string(), move |request, response| {
        let call: Value = serde_json::from_str(request).unwrap();
        let outcome = outcomes.iter().find(|(method, _)| call["method"] == *method);
        outcome.map_or(response, |(_, outcome)| {
            format!(r#"{{"jsonrpc":"2.0","id":{},{outcome}}}"#, call["id"])
        })
    });
    upstream_toml(node.name, &url, "")
}

/// Starts a gateway and waits for its candidates, which exclude upstreams with `backup`.
fn start_gateway(upstreams: &str, candidates: &[&str]) -> TestGateway {
    let gateway = TestGateway::start(&format!("{}{upstreams}", chain_polled_once("")));
    gateway.wait_for_candidates(candidates);
    gateway
}

#[test]
fn r40_an_error_that_no_rule_knows_is_served_without_a_second_opinion() {
    let runtime = NodeRuntime::start();
    let nodes = runtime.nodes(["first", "second"]);
    for failure in [
        r#""error":{"code":3,"message":"Unknown block"}"#,
        r#""error":{"code":-32000,"message":"words that nobody has listed"}"#,
    ] {
        let failing: &'static [(&str, &str)] = Box::leak(Box::new([(GET_BALANCE, failure)]));
        let upstreams = upstream_with(&nodes[0], failing) + &nodes[1].to_toml("");
        let gateway = start_gateway(&upstreams, &["first", "second"]);
        let mut client = gateway.client();
        for account in 0..40 {
            let params = balance_params(account, "0x64");
            let answer = ask(&mut client, GET_BALANCE, &params);
            assert_eq!(result(&answer), nodes[1].call(GET_BALANCE, &params), "{failure}");
        }
    }
}

#[test]
fn r40_an_error_of_all_upstreams_is_returned_after_two() {
    let runtime = NodeRuntime::start();
    let nodes = runtime.nodes(["first", "second"]);
    let failing: &'static [(&str, &str)] =
        &[(GET_BALANCE, r#""error":{"code":-32000,"message":"words that nobody has listed"}"#)];
    let upstreams = nodes.each_ref().map(|node| upstream_with(node, failing)).concat();
    let gateway = start_gateway(&upstreams, &["first", "second"]);
    let mut client = gateway.client();
    for account in 0..20 {
        let answer = ask(&mut client, GET_BALANCE, &balance_params(account, "0x64"));
        let expected = (200, -32000, "words that nobody has listed".to_owned());
        assert_eq!(error(&answer), expected);
    }
    for upstream in [0, 1] {
        assert_eq!(gateway.upstream(upstream, "ejections"), json!(0));
    }
}

#[test]
fn r40_only_an_error_of_two_upstreams_that_say_the_same_is_returned() {
    const ONE: &[(&str, &str)] = &[(GET_BALANCE, r#""error":{"code":-32000,"message":"one"}"#)];
    const TWO: &[(&str, &str)] = &[(GET_BALANCE, r#""error":{"code":-32000,"message":"two"}"#)];
    let runtime = NodeRuntime::start();
    let nodes = runtime.nodes(["first", "second", "third"]);
    for (third, expected) in [(None, None), (Some(TWO), Some("two")), (Some(ONE), Some("one"))] {
        let third_node = nodes[2].to_toml("");
        let third = third.map_or(third_node, |outcomes| upstream_with(&nodes[2], outcomes));
        let upstreams = upstream_with(&nodes[0], ONE) + &upstream_with(&nodes[1], TWO) + &third;
        let gateway = start_gateway(&upstreams, &["first", "second", "third"]);
        let mut client = gateway.client();
        for account in 0..20 {
            let params = balance_params(account, "0x64");
            let answer = ask(&mut client, GET_BALANCE, &params);
            match expected {
                None => assert_eq!(result(&answer), nodes[2].call(GET_BALANCE, &params)),
                Some(message) => assert_eq!(error(&answer), (200, -32000, message.to_owned())),
            }
        }
    }
}

/// testdata/public-faults/nonce-too-low-after-a-lost-answer.json
#[test]
fn r40_the_upstream_that_says_nonce_too_low_has_the_transaction() {
    const SEND: &str = "eth_sendRawTransaction";
    const LOOK_UP: &str = "eth_getTransactionByHash";
    const HASH: &str = "\"0x1156a044c73f85d876780f3bd86d7b0665c2d1b6c8a1abaaaedc08c13968a598\"";
    let runtime = NodeRuntime::start();
    let nodes = runtime.nodes(["first", "second"]);
    let first = upstream_with(
        &nodes[0],
        &[
            (SEND, r#""error":{"code":-32000,"message":"words that nobody has listed"}"#),
            (LOOK_UP, r#""result":null"#),
        ],
    );
    let second = upstream_with(
        &nodes[1],
        &[
            (
                SEND,
                r#""error":{"code":-32000,"message":"nonce too low: next nonce 5, tx nonce 4"}"#,
            ),
            (LOOK_UP, r#""result":{"blockNumber":"0x1"}"#),
        ],
    ) + "backup = true\n";
    let gateway = start_gateway(&(first + &second), &["first"]);
    let transaction = "0xf869808082520880809410a02a0a6e95a676ae23e2db04bea3d1b8b7ca2e880de0b6b3a7640000801ba0c8d0c5390086999b5b5a93373953c3c94b44dc8fd06d88a421a7c2461e9e4482a0730d7859d1e3109d499bcd75f00700729b9bc17b03940da4f84b6ea784f51eb1";
    let answer = ask(&mut gateway.client(), SEND, &format!("[\"{transaction}\"]"));
    assert_eq!(result(&answer), HASH);
}
