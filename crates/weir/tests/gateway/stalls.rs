//! Goal: nodes that answer polls and leave calls waiting hold no call for long, in the first seconds
//! of a gateway too. Method: a node with a rate limit near zero that never responds to calls above
//! it, and an open-loop load from the first second of the gateway.

use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use test_support::raw::Client;
use test_support::running::{Running, Weir};

use crate::support::set_faults;

/// Longest time to a response. A gateway that knows no latencies yet waits 500 ms for a node before
/// it asks another one. The rest is for a busy machine.
const SLOWEST: Duration = Duration::from_millis(900);

/// Parameters of each call.
const PARAMS: &str = r#"["0x0000000000000000000000000000000000000001","latest"]"#;

/// Starts a gateway for these nodes.
fn start_gateway(nodes: &[Running]) -> Running {
    let urls: Vec<String> = nodes.iter().map(Running::url).collect();
    Weir::serve().upstreams(&urls).args(&["--no-cache"]).start()
}

/// Sends a load to a gateway and returns the result.
fn load(gateway: &Running) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(["load", &gateway.url(), "--method", "eth_getBalance", "--params", PARAMS]);
    command.args(["--rate", "150", "--duration", "4s", "-c", "300", "--json", "-", "--quiet"]);
    let output = command.stdin(Stdio::null()).output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Starts three nodes that respond fast. New blocks would stop them for a while, and the first call
/// takes long, because a node computes its state.
fn start_nodes() -> Vec<Running> {
    let node = |_| Weir::node().admin().args(&["--block-time", "1h"]).start();
    let nodes: Vec<Running> = (0..3).map(node).collect();
    let call = format!(r#"{{"id":1,"method":"eth_getBalance","params":{PARAMS}}}"#);
    for node in &nodes {
        Client::connect(&node.address).call("/", call.as_bytes());
    }
    nodes
}

/// Asserts that no call fails and none is held for long if this many of three nodes leave calls
/// waiting.
fn assert_short(hanging: usize) {
    let node = |index| {
        let faults: &[&str] =
            if index < hanging { &["--rate", "eth_getBalance=0.001:hang"] } else { &[] };
        Weir::node().args(faults).start()
    };
    let nodes: Vec<Running> = (0..3).map(node).collect();
    assert_no_call_held(&start_gateway(&nodes));
}

/// Asserts that no call of a load fails, and none is held for long.
fn assert_no_call_held(gateway: &Running) {
    let overall = &load(gateway)["overall"];
    assert_eq!(overall["failed_share"].as_f64(), Some(0.0), "{overall}");
    let slowest = overall["latency"]["max_ms"].as_f64().unwrap();
    assert!(slowest < SLOWEST.as_secs_f64() * 1e3, "{slowest} ms: {overall}");
}

#[test]
fn one_hanging_node_of_three_holds_no_call_of_a_fresh_gateway_for_long() {
    assert_short(1);
}

#[test]
fn two_hanging_nodes_of_three_hold_no_call_of_a_fresh_gateway_for_long() {
    assert_short(2);
}

#[test]
fn two_nodes_of_three_that_begin_to_leave_calls_waiting_hold_no_call_for_long() {
    let nodes = start_nodes();
    let gateway = start_gateway(&nodes);
    // Now the gateway knows the latencies, so its first hedges come early.
    load(&gateway);
    let faults = json!([{"fault": {"kind": "hang"}, "share": 0.5, "method": "eth_getBalance"}]);
    nodes[..2].iter().for_each(|node| set_faults(node, &json!({"faults": faults})));
    assert_no_call_held(&gateway);
}

#[test]
fn nodes_that_refuse_a_method_fail_no_call_while_another_node_serves_it() {
    for error in ["missing_trie_node", "execution_timeout", "limit_exceeded"] {
        let nodes = start_nodes();
        for node in &nodes[..2] {
            let fault = json!({"kind": "error", "error": error});
            let faults = json!({"faults": [{"fault": fault, "method": "eth_getBalance"}]});
            set_faults(node, &faults);
        }
        let overall = &load(&start_gateway(&nodes))["overall"];
        assert_eq!(overall["failed_share"].as_f64(), Some(0.0), "{error}: {overall}");
    }
}
