//! Tests for the lines of the access log: their contents, and which requests have one. Also tests
//! that calls never wait for the log.

use std::path::Path;

use serde_json::Value;
use simnode::node::settings::{Fault, FaultRule};

use crate::support::harness::{
    GET_BALANCE, NodeRuntime, TestGateway, ask, balance_params, body, chain_polled_once,
};
use crate::support::websocket_client::WebSocketClient;
use test_support::raw::post_with;
use test_support::wait::wait_until;

const KEY: &str = "weir_alice_0123456789abcdef";

/// An `[access_log]` table for a file in this folder. `more` has further lines.
fn log_table(folder: &Path, more: &str) -> String {
    let file = folder.join("access.log");
    format!("[access_log]\nfile = \"{}\"\n{more}\n", file.display())
}

/// Waits until the log has `count` lines and returns them. Panics if it has more.
fn read_log(folder: &Path, count: usize) -> Vec<String> {
    let file = folder.join("access.log");
    let lines = || -> Vec<String> {
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    };
    wait_until(&format!("the log has {count} lines"), || lines().len() >= count);
    let lines = lines();
    assert_eq!(lines.len(), count, "{lines:#?}");
    lines
}

fn parse_lines(lines: &[String]) -> Vec<Value> {
    lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_refused_websocket_is_counted_once_and_its_line_has_the_request() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = NodeRuntime::start();
    let [a] = runtime.nodes(["a"]);
    let settings = "[downstream]\ncors_origins = [\"https://good.example\"]\n";
    let chain = chain_polled_once("default = true");
    let text = format!("{}{settings}{chain}", log_table(folder.path(), ""));
    let gateway = TestGateway::in_front_of(&[&a], &text);
    let foreign_origin = [("origin", "https://evil.example")];
    let opened = WebSocketClient::try_open(&gateway.address, "/sim", &foreign_origin);
    assert_eq!(opened.err(), Some(403));
    let lines = parse_lines(&read_log(folder.path(), 1));
    assert_eq!((&lines[0]["status"], &lines[0]["path"]), (&403.into(), &"/sim".into()));
    assert_eq!(lines[0]["verb"], "GET");
    let metrics = gateway.get_admin("/metrics");
    let line = "weir_requests_refused_total{status=\"403\"} 1\n";
    assert!(metrics.text().contains(line), "{}", metrics.text());
}

#[test]
fn a_line_has_the_client_the_call_and_the_outcome() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = NodeRuntime::start();
    let [a] = runtime.nodes(["a"]);
    a.set_fault(FaultRule {
        method: Some("eth_gasPrice".to_owned()),
        ..FaultRule::always(Fault::TooManyRequests { retry_after_s: 1 })
    });
    let key =
        format!("[access]\nrequired = false\n[[key]]\nname = \"alice\"\nsecret = \"{KEY}\"\n");
    let chain = chain_polled_once("default = true");
    let text = format!("{}{key}{chain}", log_table(folder.path(), ""));
    let gateway = TestGateway::in_front_of(&[&a], &text);
    let mut client = gateway.client();
    let lines = format!("x-api-key: {KEY}\r\nuser-agent: test \"1\"\r\n");
    for _ in 0..2 {
        client.send(&post_with("/sim", &lines, &body(GET_BALANCE, &balance_params(1, "0x10"))));
        client.read_response().unwrap();
    }
    ask(&mut client, "admin_peers", "[]");
    client.send(&post_with("/nowhere/0123456789abcdef0123456789", "", b"{}"));
    client.read_response().unwrap();
    client.send(&post_with("/", "", b"not json"));
    client.read_response().unwrap();
    let batch =
        r#"[{"id":1,"method":"eth_chainId"},{"id":2,"method":"admin_x"},{"method":"eth_chainId"}]"#;
    client.send(&post_with("/", "", batch.as_bytes()));
    let batch_bytes = client.read_response().unwrap().body.len();
    client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    client.read_response().unwrap();
    ask(&mut client, "eth_gasPrice", "[]");
    client.send(b"nonsense\r\n\r\n");
    client.read_response().unwrap();
    let found = parse_lines(&read_log(folder.path(), 9));
    let column =
        |name: &str| -> Vec<Value> { found.iter().map(|line| line[name].clone()).collect() };
    let expected = |values: &[&str]| -> Vec<Value> {
        values.iter().map(|text| serde_json::from_str(text).unwrap()).collect()
    };
    assert_eq!(
        column("status"),
        expected(&["200", "200", "200", "200", "200", "200", "200", "429", "400"]),
    );
    assert_eq!(
        column("method"),
        expected(&[
            r#""eth_getBalance""#,
            r#""eth_getBalance""#,
            r#""admin_peers""#,
            r#""""#,
            r#""""#,
            r#""batch""#,
            "null",
            r#""eth_gasPrice""#,
            "null",
        ])
    );
    assert_eq!(
        column("cache"),
        expected(&[
            r#""miss""#,
            r#""hit""#,
            "null",
            "null",
            "null",
            r#""miss""#,
            "null",
            r#""miss""#,
            "null"
        ])
    );
    assert_eq!(
        column("error"),
        expected(&[
            "null", "null", "-32601", "-32600", "-32700", "-32601", "null", "-32005", "null"
        ])
    );
    assert_eq!(column("calls")[4..], expected(&["1", "3", "0", "1", "0"]));
    assert_eq!(column("key")[..3], expected(&[r#""alice""#, r#""alice""#, "null"]));
    assert_eq!(column("user_agent")[0], "test \"1\"");
    assert_eq!(column("path")[..4], ["/sim", "/sim", "/", "/nowhere/***"]);
    assert_eq!((&found[0]["chain"], &found[0]["upstream"]), (&"sim".into(), &"a".into()));
    assert_eq!(
        (&found[0]["host"], &found[0]["client"]),
        (&"localhost".into(), &"127.0.0.1".into())
    );
    assert_eq!(found[5]["bytes_out"], batch_bytes);
    assert_eq!((&found[6]["verb"], &found[8]["verb"]), (&"GET".into(), &"-".into()));
    let upstream_time = found[0]["upstream_time"].as_f64().unwrap();
    let request_time = found[0]["request_time"].as_f64().unwrap();
    assert!(upstream_time > 0.0 && upstream_time <= request_time);
    assert_eq!(found[1]["upstream_time"], Value::Null);
}

#[test]
fn a_batch_has_one_line_for_each_call_in_the_configured_format() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = NodeRuntime::start();
    let [a] = runtime.nodes(["a"]);
    let format = "per = \"call\"\nformat = \"$rpc_method|$rpc_calls|$status|$rpc_error|$http_x_team|$request\"";
    let text = format!("{}{}", log_table(folder.path(), format), chain_polled_once(""));
    let gateway = TestGateway::in_front_of(&[&a], &text);
    let mut client = gateway.client();
    let batch = r#"[{"id":1,"method":"eth_chainId"},{"id":2,"method":"a\u000ab|\"c"}]"#;
    client.send(&post_with("/", "X-Team: a\tb|\"c\r\n", batch.as_bytes()));
    client.read_response().unwrap();
    let lines = read_log(folder.path(), 2);
    assert_eq!(lines[0], r"eth_chainId|2|200|-|a\x09b|\x22c|POST / HTTP/1.1");
    // The gateway refuses an invalid method name and does not log it.
    assert!(lines[1].starts_with("-|2|200|-32600|"), "{}", lines[1]);
}

#[test]
fn a_sample_logs_a_share_of_successes_and_all_errors() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = NodeRuntime::start();
    let [a] = runtime.nodes(["a"]);
    let text = format!("{}{}", log_table(folder.path(), "sample = 0.2"), chain_polled_once(""));
    let gateway = TestGateway::in_front_of(&[&a], &text);
    let mut client = gateway.client();
    for _ in 0..1000 {
        ask(&mut client, "eth_chainId", "[]");
    }
    for _ in 0..50 {
        ask(&mut client, "admin_x", "[]");
    }
    // The gateway writes the queued lines before it stops.
    gateway.stop();
    let text = std::fs::read_to_string(folder.path().join("access.log")).unwrap();
    let errors = text.lines().filter(|line| line.contains("\"error\":-32601")).count();
    let successes = text.lines().count() - errors;
    assert_eq!(errors, 50);
    // 200 of 1,000 are expected. The bounds are five standard deviations away.
    assert!((137..=263).contains(&successes), "{successes} of 1000");
}

#[test]
fn a_client_that_leaves_while_a_limit_delays_its_call_has_a_line_with_499() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = NodeRuntime::start();
    let [a] = runtime.nodes(["a"]);
    let limits =
        "[zone.z]\nkey = [\"client\"]\nrate = \"1r/m\"\n[[limit]]\nzone = \"z\"\nburst = 5\n";
    let text = format!("{}{limits}{}", log_table(folder.path(), ""), chain_polled_once(""));
    let gateway = TestGateway::in_front_of(&[&a], &text);
    ask(&mut gateway.client(), "eth_chainId", "[]");
    let mut client = gateway.client();
    client.send(&post_with("/", "user-agent: leaver\r\n", &body("eth_chainId", "[]")));
    wait_until("the call is delayed", || gateway.status_u64("/totals/waiting") == 1);
    drop(client);
    let lines = parse_lines(&read_log(folder.path(), 2));
    assert_eq!((&lines[0]["status"], &lines[1]["status"]), (&200.into(), &499.into()));
    assert_eq!(lines[1]["bytes_out"], 0);
    assert_eq!(lines[1]["user_agent"], "leaver");
}

#[test]
fn http2_requests_have_lines_too() {
    use http_body_util::{BodyExt as _, Full};
    let folder = tempfile::tempdir().unwrap();
    let runtime = NodeRuntime::start();
    let [a] = runtime.nodes(["a"]);
    let key = format!("[[key]]\nname = \"alice\"\nsecret = \"{KEY}\"\n");
    let format = "format = \"$server_protocol $status $key $rpc_method $host\"";
    let text = format!("{}{key}{}", log_table(folder.path(), format), chain_polled_once(""));
    let gateway = TestGateway::in_front_of(&[&a], &text);
    let tokio_runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let address = gateway.address.clone();
    let statuses = tokio_runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(&address).await.unwrap();
        let io = hyper_util::rt::TokioIo::new(stream);
        let executor = hyper_util::rt::TokioExecutor::new();
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(executor, io).await.unwrap();
        tokio::spawn(connection);
        let mut statuses = Vec::new();
        for key in [KEY, "weir_wrong_0123456789abcdef"] {
            let request = hyper::Request::post(format!("http://rpc.example:1/?key={key}"))
                .header("content-type", "application/json")
                .body(Full::new(bytes(&body("eth_chainId", "[]"))))
                .unwrap();
            let answer = sender.send_request(request).await.unwrap();
            statuses.push(answer.status().as_u16());
            answer.into_body().collect().await.unwrap();
        }
        statuses
    });
    assert_eq!(statuses, [200, 401]);
    let lines = read_log(folder.path(), 2);
    assert_eq!(lines[0], "HTTP/2.0 200 alice eth_chainId rpc.example");
    assert_eq!(lines[1], "HTTP/2.0 401 - - rpc.example");
}

fn bytes(body: &[u8]) -> hyper::body::Bytes {
    hyper::body::Bytes::copy_from_slice(body)
}

#[test]
fn a_log_that_cannot_be_written_delays_no_call() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = NodeRuntime::start();
    let [a] = runtime.nodes(["a"]);
    let log_table = "[access_log]\nfile = \"/dev/full\"\nqueue_lines = 16\n";
    let text = format!("{log_table}{}", chain_polled_once(""));
    let gateway = TestGateway::in_front_of(&[&a], &text);
    let mut client = gateway.client();
    for _ in 0..200 {
        assert_eq!(ask(&mut client, "eth_chainId", "[]").status, 200);
    }
    wait_until("the dropped lines are counted", || {
        let metrics = gateway.get_admin("/metrics");
        let dropped = metrics.text().lines().find_map(|line| {
            line.strip_prefix("weir_access_log_dropped_total ").map(str::to_owned)
        });
        dropped.is_some_and(|dropped| dropped == "200")
    });
    drop(folder);
}

#[test]
fn a_reload_changes_keys_and_log_and_loses_no_line() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = NodeRuntime::start();
    let [a] = runtime.nodes(["a"]);
    let config = |file: &str, name: &str, key: &str| {
        format!(
            "[access_log]\nfile = \"{}\"\nformat = \"$key $status\"\n\
             [[key]]\nname = \"{name}\"\nsecret = \"{key}\"\n{}",
            folder.path().join(file).display(),
            chain_polled_once("")
        )
    };
    const OTHER: &str = "weir_bob_0123456789abcdef01";
    let gateway = TestGateway::in_front_of(&[&a], &config("one.log", "alice", KEY));
    let mut client = gateway.client();
    let mut status_with = |key: &str| {
        client.send(&post_with("/", &format!("x-api-key: {key}\r\n"), &body("eth_chainId", "[]")));
        client.read_response().unwrap().status
    };
    assert_eq!((status_with(KEY), status_with(OTHER)), (200, 401));
    gateway.reload(&format!("{}\n{}", config("two.log", "bob", OTHER), a.to_toml("")));
    assert_eq!((status_with(KEY), status_with(OTHER)), (401, 200));
    gateway.reload(&format!("{}\n{}", config("two.log", "alice", KEY), a.to_toml("")));
    assert_eq!(status_with(KEY), 200);
    let metrics = gateway.get_admin("/metrics").text().to_owned();
    // The counter of a key that is removed and configured again keeps its value.
    assert!(metrics.contains("weir_key_calls_total{key=\"alice\"} 2"), "{metrics}");
    gateway.stop();
    let text = |file: &str| std::fs::read_to_string(folder.path().join(file)).unwrap();
    wait_until("the first log has its lines", || text("one.log") == "alice 200\n- 401\n");
    assert_eq!(text("two.log"), "- 401\nbob 200\nalice 200\n");
}
