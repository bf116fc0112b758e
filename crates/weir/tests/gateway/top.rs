//! Goal: `weir top` shows the state of a real gateway as text and in a terminal. If the gateway is
//! unreachable, it prints what to do. Method: simulated nodes, a gateway in this process, and the
//! `weir` binary. The command `script` (from Debian's bsdutils) provides the terminal.

use std::io::{Read, Write};
use std::process::{Command, Output, Stdio};

use parking_lot::Mutex;

use crate::support::harness::{NodeRuntime, TestGateway, chain_polled_often};
use crate::support::open_loop::{Load, run_under_load};
use test_support::port::ReservedPort;
use test_support::wait::wait_until;

const LOAD: Load = Load { connections: 10, calls_per_second: 300 };

/// Runs the binary with these arguments and waits for its end.
fn weir(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(arguments).stdin(Stdio::null()).output().unwrap()
}

/// Returns the words of the line that starts with `name`.
fn cells<'t>(text: &'t str, name: &str) -> Vec<&'t str> {
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(name));
    line.unwrap_or_else(|| panic!("{name} is not in\n{text}")).split_whitespace().collect()
}

#[test]
fn without_a_terminal_one_snapshot_is_printed() {
    let runtime = NodeRuntime::start();
    let [a, b] = runtime.nodes(["node-a", "node-b"]);
    let settings =
        format!("[cache]\nenabled = false\ncoalesce = false\n{}", chain_polled_often(""));
    let gateway = TestGateway::in_front_of(&[&a, &b], &settings);
    let cordon = ["cordon", "node-b", "--reason", "disk full", "--admin", &gateway.admin];
    assert!(weir(&cordon).status.success());
    let target = Mutex::new(gateway.address.clone());
    let load_result = run_under_load(LOAD, &target, || {
        wait_until("the node is called", || gateway.attempts(0) > 50);
        // The output is a pipe, so `--once` is the default.
        for arguments in [&["top", "--once"][..], &["top"]] {
            let output = weir(&[arguments, &["--admin", &gateway.admin]].concat());
            let text = String::from_utf8(output.stdout).unwrap();
            assert!(output.status.success(), "{text}");
            assert!(text.contains(&format!("weir {}", env!("CARGO_PKG_VERSION"))), "{text}");
            assert!(text.contains("chain sim  head 1,000"), "{text}");
            let calls: f64 = cells(&text, "calls")[1].trim_end_matches("/s").parse().unwrap();
            assert!(calls > 50.0, "{text}");
            let node = cells(&text, "node-a");
            assert_eq!(node[1], "healthy");
            let attempts: f64 = node[2].parse().unwrap();
            assert!(attempts > 50.0 && attempts < 1000.0, "{text}");
            assert_eq!(cells(&text, "node-b")[1..4], ["cordoned", "60m,", "healthy"]);
            assert!(text.contains("node-b: disk full"), "{text}");
            assert!(text.contains("group all, least_loaded: node-a  in flight"), "{text}");
        }
    });
    assert_eq!(load_result.failures, Vec::<String>::new());
}

#[test]
fn a_terminal_shows_live_values_until_q() {
    let runtime = NodeRuntime::start();
    let [a] = runtime.nodes(["node-a"]);
    let gateway = TestGateway::in_front_of(&[&a], &chain_polled_often(""));
    let command = format!(
        "stty rows 24 cols 80; '{}' top --admin {}; echo \"ended $?\"; stty -a",
        env!("CARGO_BIN_EXE_weir"),
        gateway.admin
    );
    let mut child = Command::new("script")
        .args(["-qc", &command, "/dev/null"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("script is on every Debian");
    let (mut stdin, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let (mut shown, mut buffer, mut sent) = (String::new(), [0; 4096], false);
    loop {
        let bytes = stdout.read(&mut buffer).unwrap();
        if bytes == 0 {
            break;
        }
        shown.push_str(&String::from_utf8_lossy(&buffer[..bytes]));
        if !sent && shown.contains("node-a") && shown.contains("q quit") {
            stdin.write_all(b"q").unwrap();
            sent = true;
        }
    }
    child.wait().unwrap();
    assert!(sent, "{shown:?}");
    let (_, after) = shown.split_once("\x1b[?1049l").expect("the alternate screen is closed");
    assert!(after.contains("ended 0"), "{after:?}");
    assert!(after.contains("\x1b[?25h"), "the cursor is hidden: {after:?}");
    assert!(after.split_whitespace().any(|setting| setting == "icanon"), "{after:?}");
}

#[test]
fn an_unreachable_gateway_is_explained() {
    let unused = ReservedPort::new();
    let address = unused.address.to_string();
    let output = weir(&["top", "--admin", &address]);
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{message}");
    let expected = format!("no gateway responds at {address}; set its admin address with --admin");
    assert!(message.contains(&expected), "{message}");
}
