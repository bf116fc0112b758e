//! Goal: nodes that answer polls and leave calls waiting hold no call for long, in the first seconds
//! of a gateway too. Method: a node with a rate limit near zero that never responds to calls above
//! it, and an open-loop load from the first second of the gateway.

use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use test_support::running::{Running, Weir};

/// Longest time to a response. A gateway that knows no latencies yet waits 500 ms for a node before
/// it asks another one. The rest is for a busy machine.
const SLOWEST: Duration = Duration::from_millis(900);

/// Starts a gateway with three nodes, of which this many leave calls waiting. Returns the result of
/// a load that starts at once.
fn load_fresh_gateway(hanging: usize) -> Value {
    let node = |index| {
        let faults: &[&str] =
            if index < hanging { &["--rate", "eth_getBalance=0.001:hang"] } else { &[] };
        Weir::node().args(faults).start()
    };
    let nodes: Vec<Running> = (0..3).map(node).collect();
    let urls: Vec<String> = nodes.iter().map(Running::url).collect();
    let gateway = Weir::serve().upstreams(&urls).args(&["--no-cache"]).start();
    let params = r#"["0x0000000000000000000000000000000000000001","latest"]"#;
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(["load", &gateway.url(), "--method", "eth_getBalance", "--params", params]);
    command.args(["--rate", "150", "--duration", "4s", "-c", "300", "--json", "-", "--quiet"]);
    let output = command.stdin(Stdio::null()).output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Asserts that no call failed and none was held for long.
fn assert_short(hanging: usize) {
    let result = load_fresh_gateway(hanging);
    let overall = &result["overall"];
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
