//! Goal: a load over WebSockets has the same counts as over HTTP, measures a known latency, and
//! names its failures. Method: the real binary against simulated nodes, directly and through a
//! gateway.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use test_support::running::Weir;

/// Latency of the node, much longer than the work of a call.
const LATENCY_MS: f64 = 60.0;

/// Runs the program. Returns its exit code, standard output and standard error.
fn weir(arguments: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(test_support::running::weir());
    let command = command.args(arguments).stdin(Stdio::null());
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

/// Runs 50 requests per second for two seconds, with these lines in the scenario.
fn run(url: &str, scenario: &str) -> Value {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("plan.toml");
    let text = format!(
        "[target]\nurl = \"{url}\"\n[validity]\nscheduling_delay_p99_max = \"10m\"\n\
         waited_share_max = 1\n[[scenario]]\nmix = \"own\"\nworkers_max = 40\n{scenario}\
         stages = [{{ duration = \"2s\", rate = 50 }}]\n\
         [mix.own]\ncalls = [{{ method = \"eth_blockNumber\" }}, {{ method = \"eth_chainId\" }}]\n"
    );
    std::fs::write(&path, text).unwrap();
    let (code, out, err) = weir(&["load", path.to_str().unwrap(), "--json", "-", "--quiet"]);
    serde_json::from_str(&out).unwrap_or_else(|_| panic!("exit {code}: {out}{err}"))
}

fn websocket(url: &str) -> String {
    url.replace("http://", "ws://")
}

/// Checks that all requests succeeded over WebSockets, and returns the number of connections.
fn check_all_ok(result: &Value, calls: u64) -> u64 {
    assert_eq!(result["plan"]["http"], "websocket", "{result}");
    assert_eq!(result["overall"]["calls"], calls, "{}", result["overall"]);
    assert_eq!(result["overall"]["failed_share"], 0.0, "{}", result["overall"]);
    let wire = &result["wire"];
    let opened = wire["traffic"]["connections"].as_u64().unwrap();
    assert_eq!(wire["traffic"]["requests"], 100);
    assert_eq!(wire["statuses"].to_string(), format!("[[101,{opened}]]"));
    assert_eq!(wire["upgrade"]["count"], opened);
    assert_eq!(wire["close_codes"].to_string(), "[]");
    opened
}

#[test]
fn a_known_latency_is_measured_as_over_http() {
    let latency = format!("{LATENCY_MS}ms");
    let node = Weir::node().args(&["--latency", &latency]).start();
    let by_http = run(&node.url(), "");
    let by_websocket = run(&websocket(&node.url()), "");
    let opened = check_all_ok(&by_websocket, 100);
    // 50 calls per second of 60 ms need three connections; a busy machine needs more.
    assert!((3..=40).contains(&opened), "{opened}");
    for result in [&by_http, &by_websocket] {
        let latency = &result["overall"]["latency"];
        let number = |name: &str| latency[name].as_f64().unwrap();
        assert!(number("min_ms") >= LATENCY_MS, "{latency}");
        assert!(number("p50_ms") < 2.0 * LATENCY_MS, "{latency}");
    }
    // The same seed sends the same calls.
    let calls = |result: &Value| {
        let rows = result["methods"].as_array().unwrap().iter();
        rows.map(|row| (row["method"].to_string(), row["calls"].to_string())).collect::<Vec<_>>()
    };
    assert_eq!(calls(&by_websocket), calls(&by_http));
    assert_eq!(by_websocket["target"]["family"], "ethereum");
    assert!(by_websocket["target"]["head_end"].as_u64().is_some());
}

#[test]
fn fragments_batches_and_a_gateway_change_no_count() {
    let node = Weir::node().admin().start();
    node.set_node_settings("{\"fragment_bytes\":3}");
    check_all_ok(&run(&websocket(&node.url()), ""), 100);
    check_all_ok(&run(&websocket(&node.url()), "batch = { size = 5 }\n"), 500);
    let gateway = Weir::serve().upstreams(&[node.url()]).start();
    check_all_ok(&run(&websocket(&gateway.url()), "batch = { size = 5 }\n"), 500);
}

#[test]
fn one_line_is_enough() {
    let node = Weir::node().start();
    let url = websocket(&node.url());
    let (code, out, err) = weir(&["load", &url, "-c", "4", "-n", "200", "--plain"]);
    assert!([0, 4, 5].contains(&code), "{code}: {out}{err}");
    assert!(out.contains("WebSocket · connections reuse"), "{out}");
    let (code, _, err) = weir(&["load", &url, "--http", "2"]);
    assert_eq!(code, 2, "{err}");
    assert!(err.contains("--http") && err.contains("are opened by HTTP/1.1"), "{err}");
}

#[test]
fn a_capacity_search_takes_websockets() {
    let node = Weir::node().start();
    let url = websocket(&node.url());
    let search = [
        &["capacity", &url, "--threshold", "latency p(50)<10000", "--yes", "--quiet"][..],
        &["--rate-start", "20", "--rate-max", "40", "--probe", "5s", "--probe-warmup", "500ms"],
        &["--repeats", "1", "--drain", "0s", "--soak", "0s", "--json"],
    ]
    .concat();
    let (code, out, err) = weir(&search);
    // On a busy machine the search may end as invalid (4) or client-limited (5), with a result.
    assert!([0, 4, 5].contains(&code), "{code}: {out}{err}");
    let result: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{err}"));
    assert!(result.to_string().contains(&url), "{result}");
}

#[test]
fn a_server_without_websockets_is_named_before_the_run() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // The thread ends with the test's process.
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _head = stream.read(&mut [0; 4096]);
            let _sent = stream.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n");
        }
    });
    let (code, out, err) = weir(&["load", &format!("ws://{address}"), "-d", "1s"]);
    assert_eq!(code, 1, "{out}{err}");
    let expected =
        "it did not open a WebSocket: the response to the upgrade request had HTTP status 404";
    assert!(err.contains(expected), "{out}{err}");
}
