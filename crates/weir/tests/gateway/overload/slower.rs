//! Without overload, the gateway sheds no call. In some tests, nodes are or become slower, but the
//! load is still below their capacity. In another, a few slow calls run beside many fast ones.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use test_support::running::{Running, Weir};
use test_support::wait::pause;

/// Starts three nodes with a latency of 1 ms.
fn nodes() -> Vec<Running> {
    let node = |_| Weir::node().admin().args(&["--latency", "1ms", "--block-time", "1h"]).start();
    (0..3).map(node).collect()
}

/// Starts an open-loop load, with enough connections that no call waits for another.
fn start_load(gateway: &Running, rate: u32, seconds: u32, method: &str) -> Child {
    let params = r#"["0x0000000000000000000000000000000000000001","latest"]"#;
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(["load", &gateway.url(), "--method", method, "--params", params]);
    command.args(["--rate", &rate.to_string(), "--duration", &format!("{seconds}s"), "-c", "700"]);
    command.args(["--json", "-", "--quiet"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

/// Waits for the ends of loads. No call of them may have failed.
#[track_caller]
fn assert_no_call_fails<const N: usize>(loads: [Child; N]) {
    // All loads end before one is judged, so that no generator outlives the test.
    let results = loads.map(|mut load| {
        let mut text = String::new();
        load.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        load.wait().unwrap();
        serde_json::from_str::<Value>(&text).unwrap()
    });
    for result in results {
        let overall = &result["overall"];
        let (warnings, codes) = (&result["warnings"], &overall["codes"]);
        let classes = &overall["classes"];
        assert!(overall["failed_share"] == 0.0, "{classes:#}\n{codes:#}\n{warnings:#}");
    }
}

fn start_gateway(nodes: &[Running]) -> Running {
    let urls: Vec<String> = nodes.iter().map(Running::url).collect();
    Weir::serve().upstreams(&urls).args(&["--no-cache"]).start()
}

#[test]
fn nodes_that_become_500_times_slower_below_capacity_fail_no_call() {
    let nodes = nodes();
    let gateway = start_gateway(&nodes);
    let load = start_load(&gateway, 500, 8, "eth_getBalance");
    pause(Duration::from_secs(2)); // Sleeps: load goes on meanwhile.
    for node in &nodes {
        node.set_node_settings(r#"{"latency":{"shape":"constant","ms":500}}"#);
    }
    assert_no_call_fails([load]);
}

#[test]
fn nodes_that_become_slow_again_below_capacity_fail_no_call() {
    let nodes = nodes();
    let gateway = start_gateway(&nodes);
    let load = start_load(&gateway, 500, 10, "eth_getBalance");
    // The later step meets a limit that the earlier one has taught.
    for ms in [500, 1, 500] {
        pause(Duration::from_secs(2)); // Sleeps: load goes on meanwhile.
        for node in &nodes {
            node.set_node_settings(&format!(r#"{{"latency":{{"shape":"constant","ms":{ms}}}}}"#));
        }
    }
    assert_no_call_fails([load]);
}

#[test]
fn nodes_that_are_slow_from_the_start_fail_no_call() {
    let nodes = nodes();
    for node in &nodes {
        node.set_node_settings(r#"{"latency":{"shape":"constant","ms":500}}"#);
    }
    let gateway = start_gateway(&nodes);
    assert_no_call_fails([start_load(&gateway, 500, 4, "eth_getBalance")]);
}

#[test]
fn few_slow_calls_beside_many_fast_ones_fail_no_call() {
    let nodes = nodes();
    for node in &nodes {
        node.set_node_settings(
            r#"{"method_latency":{"eth_getTransactionCount":{"shape":"constant","ms":5000}}}"#,
        );
    }
    let gateway = start_gateway(&nodes);
    let slow = start_load(&gateway, 10, 12, "eth_getTransactionCount");
    let fast = start_load(&gateway, 500, 12, "eth_getBalance");
    assert_no_call_fails([slow, fast]);
}
