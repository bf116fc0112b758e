//! Goal: an operator can cordon an upstream, which takes it out of rotation, and return it to
//! rotation. No call fails because of that. The status, the metrics and the status page show the
//! cordon. Nobody but the operator can send such commands. Method: simulated nodes, a gateway in
//! this process, and the `weir cordon` and `weir uncordon` commands.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Output, Stdio};

use parking_lot::Mutex;
use serde_json::Value;

use crate::support::harness::{
    GET_BALANCE, NodeRuntime, SimNode, TestGateway, ask, balance_params, chain_polled_often,
    chain_polled_once, error, result, upstream_of,
};
use crate::support::open_loop::{Load, run_under_load};
use test_support::port::ReservedPort;
use test_support::raw::Client;
use test_support::wait::wait_until;

const LOAD: Load = Load { connections: 20, calls_per_second: 500 };
/// Turns the cache off, so that every call reaches a node.
const NO_CACHE: &str = "[cache]\nenabled = false\ncoalesce = false\n";
/// A node is in rotation if it has received this many calls.
const CALLS: u64 = 50;

/// A configuration with these nodes as upstreams.
fn config(nodes: &[&SimNode]) -> String {
    let upstreams: String = nodes.iter().map(|node| node.to_toml("")).collect();
    format!("{NO_CACHE}{}{upstreams}", chain_polled_often(""))
}

/// Runs a `weir` command until it exits.
fn weir(gateway: &TestGateway, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(arguments).args(["--admin", &gateway.admin]);
    command.stdin(Stdio::null()).output().unwrap()
}

/// Runs a command that must succeed, and returns what it prints.
fn succeed(gateway: &TestGateway, arguments: &[&str]) -> String {
    let output = weir(gateway, arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a command that must fail with this code, and returns its message.
fn fail(gateway: &TestGateway, arguments: &[&str], code: i32) -> String {
    let output = weir(gateway, arguments);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {output:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// Returns the name of the socket on which the gateway accepts commands. `/status` reports it.
fn socket(gateway: &TestGateway) -> String {
    gateway.status("/process/control_socket").as_str().unwrap().to_owned()
}

fn connect(name: &str) -> UnixStream {
    UnixStream::connect_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap()
}

#[test]
fn a_cordoned_upstream_gets_no_call_and_no_call_fails() {
    let runtime = NodeRuntime::start();
    let [a, b] = runtime.nodes(["node-a", "node-b"]);
    let server = "[server]\nthreads = 2\ndrain_deadline = \"5s\"\ndrain_linger = \"0s\"\n";
    let gateway = TestGateway::with_server_table(server, &config(&[&a, &b]));
    gateway.wait_for_candidates(&["node-a", "node-b"]);
    let target = Mutex::new(gateway.address.clone());
    let load_result = run_under_load(LOAD, &target, || {
        wait_until("both nodes are called", || {
            gateway.attempts(0) > CALLS && gateway.attempts(1) > CALLS
        });
        let command = ["cordon", "node-a", "--reason", "upgrade to v1.16", "--for", "30m"];
        let printed = succeed(&gateway, &command);
        assert!(printed.starts_with("node-a is cordoned for 30m; "), "{printed}");
        wait_until("calls in flight have ended", || gateway.upstream(0, "in_flight") == 0);
        let (attempts, other_attempts) = (gateway.attempts(0), gateway.attempts(1));
        let polls = a.calls();
        wait_until("calls continue at the other node", || {
            gateway.attempts(1) > other_attempts + 4 * CALLS
        });
        assert_eq!(gateway.attempts(0), attempts, "the cordoned node was called");
        wait_until("the cordoned node is polled", || a.calls() > polls + 3);

        let cordon = gateway.upstream(0, "cordon");
        assert_eq!(cordon["reason"], "upgrade to v1.16");
        let remaining = cordon["ends_seconds"].as_f64().unwrap();
        assert!((1700.0..1800.0).contains(&remaining), "{remaining}");
        assert_eq!(gateway.upstream(0, "state"), "healthy");
        assert_eq!(gateway.upstream(0, "lag"), 0);
        assert_eq!(gateway.upstream(1, "cordon"), Value::Null);
        gateway.wait_for_candidates(&["node-b"]);
        let metrics = gateway.get_admin("/metrics");
        for line in [
            "weir_upstream_cordoned{chain=\"sim\",upstream=\"node-a\"} 1",
            "weir_upstream_cordoned{chain=\"sim\",upstream=\"node-b\"} 0",
            "weir_group_upstreams_healthy{chain=\"sim\",group=\"all\"} 1",
        ] {
            assert!(metrics.text().lines().any(|known| known == line), "{line} is missing");
        }
        let page = gateway.get_admin("/");
        assert!(page.text().contains("upgrade to v1.16"), "{}", page.text());
        assert_eq!(gateway.get_admin("/readyz").status, 200);

        assert_eq!(succeed(&gateway, &["uncordon", "node-a"]), "node-a is in rotation\n");
        wait_until("the node is called again", || gateway.attempts(0) > attempts + CALLS);
        assert_eq!(gateway.upstream(0, "cordon"), Value::Null);
        assert_eq!(succeed(&gateway, &["uncordon", "node-a"]), "node-a was not cordoned\n");
    });
    assert!(load_result.calls > 6 * CALLS, "{load_result:?}");
    assert_eq!(load_result.failures, Vec::<String>::new());
}

#[test]
fn a_cordon_expires_even_if_polls_are_rare() {
    let runtime = NodeRuntime::start();
    let [a, b] = runtime.nodes(["node-a", "node-b"]);
    let gateway = TestGateway::in_front_of(&[&a, &b], &chain_polled_once(""));
    succeed(&gateway, &["cordon", "node-b", "--for", "1h"]);
    // The second cordon replaces the first.
    succeed(&gateway, &["cordon", "node-b", "--for", "3s", "--reason", "short"]);
    gateway.wait_for_candidates(&["node-a"]);
    assert_eq!(gateway.upstream(1, "cordon")["reason"], "short");
    gateway.wait_for_candidates(&["node-a", "node-b"]);
    assert_eq!(gateway.upstream(1, "cordon"), Value::Null);
}

#[test]
fn a_cordon_survives_a_reload_while_the_upstream_exists() {
    let runtime = NodeRuntime::start();
    let [a, b, c] = runtime.nodes(["node-a", "node-b", "node-c"]);
    let gateway =
        TestGateway::in_front_of(&[&a, &b], &format!("{NO_CACHE}{}", chain_polled_often("")));
    succeed(&gateway, &["cordon", "node-a", "--reason", "resync"]);
    let is_cordoned = |position: usize| gateway.upstream(position, "cordon")["reason"] == "resync";
    assert!(is_cordoned(0));
    // The upstream keeps its name, but has another position and another address.
    let moved = crate::support::harness::upstream_toml("node-a", &c.url(), "");
    let text = format!("{NO_CACHE}{}{}{moved}", chain_polled_often(""), b.to_toml(""));
    assert!(!gateway.reload(&text).is_empty());
    assert!(is_cordoned(1));
    gateway.wait_for_candidates(&["node-b"]);
    let mut client = gateway.client();
    for account in 0..CALLS {
        let answer = ask(&mut client, GET_BALANCE, &balance_params(account, "latest"));
        result(&answer);
        assert_eq!(upstream_of(&answer), "node-b");
    }
    // If a reload removes an upstream, its cordon ends, even if a later reload adds it again.
    gateway.reload(&config(&[&b]));
    gateway.reload(&config(&[&a, &b]));
    assert_eq!(gateway.upstream(0, "cordon"), Value::Null);
    gateway.wait_for_candidates(&["node-a", "node-b"]);
}

#[test]
fn the_last_usable_upstream_is_cordoned_only_by_force() {
    let runtime = NodeRuntime::start();
    let [a, b] = runtime.nodes(["node-a", "node-b"]);
    let gateway =
        TestGateway::in_front_of(&[&a, &b], &format!("{NO_CACHE}{}", chain_polled_often("")));
    succeed(&gateway, &["cordon", "node-a"]);
    let message = fail(&gateway, &["cordon", "node-b"], 1);
    assert!(message.contains("last usable upstream of group all of chain sim"), "{message}");
    assert!(message.contains("--force"), "{message}");
    assert_eq!(gateway.upstream(1, "cordon"), Value::Null);
    let mut client = gateway.client();
    result(&ask(&mut client, GET_BALANCE, &balance_params(1, "latest")));

    succeed(&gateway, &["cordon", "node-b", "--force"]);
    let attempts = gateway.attempts(0) + gateway.attempts(1);
    let (status, _, message) = error(&ask(&mut client, GET_BALANCE, &balance_params(2, "latest")));
    assert_eq!(status, 503, "{message}");
    assert_eq!(gateway.attempts(0) + gateway.attempts(1), attempts, "no node was called");
    let ready = gateway.get_admin("/readyz");
    assert_eq!(ready.status, 503);
    assert!(
        ready.text().contains("chain sim: no usable upstream (2 cordoned)"),
        "{}",
        ready.text()
    );

    succeed(&gateway, &["uncordon", "node-a"]);
    wait_until("it is ready", || gateway.get_admin("/readyz").status == 200);
    let answer = ask(&mut client, GET_BALANCE, &balance_params(3, "latest"));
    result(&answer);
    assert_eq!(upstream_of(&answer), "node-a");

    // An upstream that is down does not count as usable.
    succeed(&gateway, &["uncordon", "node-b"]);
    b.stop_listening();
    wait_until("the node is ejected", || gateway.upstream(1, "state") == "ejected");
    let message = fail(&gateway, &["cordon", "node-a"], 1);
    assert!(message.contains("last usable upstream"), "{message}");
}

#[test]
fn mistakes_are_explained() {
    let runtime = NodeRuntime::start();
    let [a, b] = runtime.nodes(["node-a", "node-b"]);
    let gateway = TestGateway::in_front_of(&[&a, &b], &chain_polled_often(""));
    for command in ["cordon", "uncordon"] {
        let message = fail(&gateway, &[command, "nod-a"], 1);
        assert!(
            message.contains("there is no upstream \"nod-a\"; did you mean node-a?"),
            "{message}"
        );
        assert!(message.contains("upstreams: node-a, node-b"), "{message}");
    }
    let long = "x".repeat(201);
    for (arguments, expected) in [
        (["--for", "31d"], "at most 30d"),
        (["--for", "0s"], "more than 0"),
        (["--for", "soon"], "a duration"),
        (["--reason", "two\nlines"], "one line"),
        (["--reason", &long], "200 characters"),
    ] {
        let message = fail(&gateway, &[&["cordon", "node-a"], &arguments[..]].concat(), 2);
        assert!(message.contains(expected), "{message}");
    }
    let unused = ReservedPort::new();
    let address = unused.address.to_string();
    let output = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["cordon", "node-a", "--admin", &address])
        .output()
        .unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{message}");
    let expected = format!("no gateway responds at {address}; set its admin address with --admin");
    assert!(message.contains(&expected), "{message}");
    assert_eq!(gateway.upstream(0, "cordon"), Value::Null);
}

#[test]
fn the_admin_address_changes_nothing() {
    let runtime = NodeRuntime::start();
    let [a, b] = runtime.nodes(["node-a", "node-b"]);
    let health_port = ReservedPort::new();
    let health = health_port.address.to_string();
    let server = format!("[server]\nhealth = \"{health}\"\n");
    let gateway = TestGateway::with_server_table(&server, &config(&[&a, &b]));
    gateway.wait_for_candidates(&["node-a", "node-b"]);
    let body = r#"{"command":"cordon","upstream":"node-a","seconds":60,"force":true}"#;
    for address in [&gateway.admin, &health] {
        for (method, path) in [
            ("POST", "/status"),
            ("PUT", "/healthz"),
            ("DELETE", "/"),
            ("POST", "/cordon"),
            ("POST", "/upstreams/node-a/cordon"),
            ("GET", "/cordon?upstream=node-a"),
        ] {
            let mut client = Client::connect(address);
            let head = format!(
                "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                 Content-Length: {}\r\n\r\n{body}",
                body.len()
            );
            client.send(head.as_bytes());
            let status = client.read_response().unwrap().status;
            assert!([404, 405].contains(&status), "{method} {path}: {status}");
        }
    }
    // A web page whose host name resolves to the loopback address (DNS rebinding) cannot read the
    // name of the socket.
    let mut client = Client::connect(&gateway.admin);
    client.send(b"GET /status HTTP/1.1\r\nHost: rebound.example\r\n\r\n");
    let answer = client.read_response().unwrap();
    assert_eq!(answer.status, 421);
    assert!(!answer.text().contains(&socket(&gateway)), "{}", answer.text());
    let mut client = Client::connect(&health);
    client.send(b"GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!(client.read_response().unwrap().status, 404);
    assert_eq!(gateway.upstream(0, "cordon"), Value::Null);
}

#[test]
fn malformed_commands_are_refused_and_silent_clients_do_not_block_others() {
    let runtime = NodeRuntime::start();
    let [a, b] = runtime.nodes(["node-a", "node-b"]);
    let gateway = TestGateway::in_front_of(&[&a, &b], &chain_polled_often(""));
    let name = socket(&gateway);
    let huge = vec![b' '; 64 * 1024];
    for command in [
        b"".as_slice(),
        b"cordon node-a",
        b"GET /status HTTP/1.1\r\n\r\n",
        br#"{"command":"cordon","upstream":"node-a"}"#,
        br#"{"command":"cordon","upstream":"node-a","seconds":-1,"force":true}"#,
        br#"{"command":"cordon","upstream":"node-a","seconds":1e300,"force":true}"#,
        br#"{"command":"cordon","upstream":"node-a","seconds":60,"force":true,"more":1}"#,
        br#"{"command":"stop","upstream":"node-a"}"#,
        &huge,
    ] {
        let mut stream = connect(&name);
        // The gateway stops reading a command that is too long.
        let _sent = stream.write_all(command);
        let _shut = stream.shutdown(Shutdown::Write);
        let mut reply = [0; 4096];
        let bytes = stream.read(&mut reply).unwrap();
        let reply: Value = serde_json::from_slice(&reply[..bytes]).unwrap();
        assert_eq!(reply["outcome"], "refused", "{reply}");
    }
    let _silent: Vec<UnixStream> = (0..2).map(|_| connect(&name)).collect();
    succeed(&gateway, &["cordon", "node-a"]);
    assert_ne!(gateway.upstream(0, "cordon"), Value::Null);
}

#[test]
fn another_user_is_refused() {
    const NOBODY: u32 = 65_534;
    if !rustix::process::geteuid().is_root() {
        return test_support::programs::skip("only root may run a command as another user");
    }
    let runtime = NodeRuntime::start();
    let [a, b] = runtime.nodes(["node-a", "node-b"]);
    let gateway = TestGateway::in_front_of(&[&a, &b], &chain_polled_often(""));
    // Other users may not be able to read the folder of the program, so the test copies it.
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    let program = folder.path().join("weir");
    std::fs::copy(env!("CARGO_BIN_EXE_weir"), &program).unwrap();
    let readable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path(), readable).unwrap();
    let mut command = Command::new(&program);
    command.args(["cordon", "node-a", "--admin", &gateway.admin]).uid(NOBODY).current_dir("/");
    let output = command.output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(
        message.contains("only the user of the gateway and root may send commands"),
        "{message}"
    );
    assert_eq!(gateway.upstream(0, "cordon"), Value::Null);
}
