//! Goal: the exit code of `weir ready` tells if a gateway is ready to serve calls. Method: a
//! simulated node, a gateway process, and the command. The gateway's node stops and starts again,
//! and then the gateway stops.

use std::process::{Command, Output, Stdio};

use crate::support::harness::NodeRuntime;
use test_support::port::ReservedPort;
use test_support::running::Weir;
use test_support::wait::wait_until;

/// With this table, the gateway notices a dead upstream within a second.
const CHAIN: &str = "[chain.sim]\npoll_interval = \"50ms\"\n";
/// With this table, a stopping gateway stays for an hour in the state in which it is not ready.
const SERVER: &str = "[server]\nthreads = 1\ndrain_delay = \"1h\"\n";

/// Runs `weir ready` for an admin or health address.
fn ready(address: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(["ready", "--admin", address]).stdin(Stdio::null()).output().unwrap()
}

/// Returns the exit code, standard output and standard error.
fn parts(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_gateway_is_ready_while_it_has_a_node_and_does_not_stop() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node-a"]);
    let health = ReservedPort::new();
    let health_line = format!("health = \"{}\"\n", health.address);
    let config = [SERVER, &health_line, CHAIN, &node.to_toml("")].concat();
    let mut gateway = Weir::serve().admin().config(&config).start();
    let admin = gateway.admin.clone().unwrap();
    let health = health.address.to_string();

    wait_until("the gateway is ready", || ready(&admin).status.success());
    for address in [&admin, &health] {
        let expected = (Some(0), "ready\n".to_owned(), String::new());
        assert_eq!(parts(&ready(address)), expected, "{address}");
    }

    node.stop_listening();
    wait_until("the gateway is not ready", || !ready(&admin).status.success());
    let (code, output, reason) = parts(&ready(&health));
    assert_eq!((code, output.as_str()), (Some(1), ""), "{reason}");
    assert!(reason.contains("chain sim"), "{reason}");
    node.listen_again();
    wait_until("the gateway is ready again", || ready(&admin).status.success());

    gateway.signal("-TERM");
    wait_until("the gateway reports its stop", || !ready(&admin).status.success());
    assert_eq!(parts(&ready(&admin)), (Some(1), String::new(), "stopping\n".to_owned()));
    gateway.assert_sound();
}

#[test]
fn a_missing_gateway_is_not_ready() {
    let unused = ReservedPort::new();
    let address = unused.address.to_string();
    let (code, output, message) = parts(&ready(&address));
    assert_eq!((code, output.as_str()), (Some(1), ""), "{message}");
    let expected = format!("no gateway responds at {address}; set its admin address with --admin");
    assert!(message.contains(&expected), "{message}");
    // A node responds to this path too, but is not a gateway.
    let node = Weir::node().start();
    let (code, output, message) = parts(&ready(&node.address));
    assert_eq!((code, output.as_str()), (Some(1), ""), "{message}");
    assert!(message.contains("no gateway responds"), "{message}");
}
