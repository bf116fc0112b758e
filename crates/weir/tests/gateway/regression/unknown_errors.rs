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

fn start_gateway(upstreams: &str) -> TestGateway {
    let gateway = TestGateway::start(&format!("{}{upstreams}", chain_polled_once("")));
    gateway.wait_for_candidates(&["first", "second"]);
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
        let gateway = start_gateway(&upstreams);
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
    let gateway = start_gateway(&upstreams);
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
