//! Nodes that become slower while they have room, and few slow calls beside many fast ones: no call
//! is shed.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use test_support::running::{Running, Weir};
use test_support::wait::pause;

fn nodes() -> Vec<Running> {
    let node = |_| Weir::node().admin().args(&["--latency", "1ms", "--block-time", "1h"]).start();
    (0..3).map(node).collect()
}

/// Calls at a rate from so many connections that none waits for another.
fn load(gateway: &Running, rate: u32, seconds: u32, method: &str) -> Child {
    let params = r#"["0x0000000000000000000000000000000000000001","latest"]"#;
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(["load", &gateway.url(), "--method", method, "--params", params]);
    command.args(["--rate", &rate.to_string(), "--duration", &format!("{seconds}s"), "-c", "700"]);
    command.args(["--json", "-", "--quiet"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

/// The share of calls that failed.
fn failed(mut child: Child) -> f64 {
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    child.wait().unwrap();
    let result: Value = serde_json::from_str(&text).unwrap();
    result["overall"]["failed_share"].as_f64().unwrap()
}

fn gateway(nodes: &[Running]) -> Running {
    let urls: Vec<String> = nodes.iter().map(Running::url).collect();
    Weir::serve().upstreams(&urls).args(&["--no-cache"]).start()
}

#[test]
fn nodes_that_take_500_times_as_long_with_room_fail_no_call() {
    let nodes = nodes();
    let gateway = gateway(&nodes);
    let load = load(&gateway, 500, 8, "eth_getBalance");
    pause(Duration::from_secs(2)); // Sleeps: load goes on meanwhile.
    for node in &nodes {
        node.set(r#"{"latency":{"shape":"constant","ms":500}}"#);
    }
    assert!(failed(load) == 0.0);
}

#[test]
fn few_slow_calls_beside_many_fast_ones_fail_no_call() {
    let nodes = nodes();
    for node in &nodes {
        node.set(
            r#"{"method_latency":{"eth_getTransactionCount":{"shape":"constant","ms":5000}}}"#,
        );
    }
    let gateway = gateway(&nodes);
    let slow = load(&gateway, 10, 12, "eth_getTransactionCount");
    let fast = load(&gateway, 500, 12, "eth_getBalance");
    let (slow, fast) = (failed(slow), failed(fast));
    assert!(slow == 0.0 && fast == 0.0, "failed: slow {slow}, fast {fast}");
}
