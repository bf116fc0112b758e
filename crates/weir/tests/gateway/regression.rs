//! Tests for bugs that users reported, one for each bug. Each is written before the fix.
//!
//! The name of a test has the number of the issue and describes the bug, such as
//! `r123_a_reload_loses_limits`. The test asserts the correct behaviour with the least setup.

mod unknown_errors;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::process::Stdio;

use tempfile::NamedTempFile;
use test_support::running::{Weir, command_killed_with_test, spawn, weir};
use test_support::wait::wait_until;

use crate::support::harness::{NodeRuntime, TestGateway, chain_polled_often, upstream_toml};
use crate::support::redis_server::Redis;

/// Starts a provider that responds to every request with status 401, and returns its URL.
fn start_provider_without_access() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v3/sekrit-path-1234", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _read = stream.read(&mut [0; 4096]).unwrap();
            let body = "{\"jsonrpc\":\"2.0\",\"id\":1,\"error\":{\"code\":-32000,\"message\":\
                        \"invalid project id sekrit-path-1234\"}}";
            let length = body.len();
            let head = format!(
                "HTTP/1.1 401 Unauthorized\r\ncontent-length: {length}\r\nconnection: close"
            );
            stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).unwrap();
        }
    });
    url
}

#[test]
fn r40_the_status_says_why_an_upstream_fails() {
    let text =
        [chain_polled_often(""), upstream_toml("provider", &start_provider_without_access(), "")];
    let gateway = TestGateway::start(&text.concat());
    wait_until("the upstream is ejected", || gateway.upstream(0, "state") == "ejected");
    let fault = gateway.upstream(0, "fault").to_string();
    assert!(fault.contains("it requires another key or token (HTTP status 401)"), "{fault}");
    for path in ["/status", "/readyz", "/"] {
        let response = gateway.get_admin(path);
        let body = response.text();
        assert!(body.contains("it requires another key or token"), "{path}: {body}");
        assert!(!body.contains("sekrit"), "{path}: {body}");
    }
}

#[test]
fn r40_a_start_without_a_usable_upstream_says_why() {
    let mut command = command_killed_with_test(&weir());
    command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "off", "--upstream"]);
    command.arg(start_provider_without_access());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = spawn(command).unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let reason =
        lines.find_map(|line| line.unwrap().strip_prefix("not ready: ").map(str::to_owned));
    child.kill().unwrap();
    child.wait().unwrap();
    let reason = reason.unwrap();
    assert!(reason.contains("no usable upstream") && !reason.contains("sekrit"), "{reason}");
}

#[test]
fn r40_the_log_reports_each_change_of_redis_once() {
    let Some(mut redis) = Redis::start(&[]) else { return };
    redis.kill();
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node-a"]);
    let redis_table = format!("[redis]\nurl = \"{}\"\nbackoff = \"100ms\"\n", redis.url());
    let config =
        ["[server]\nthreads = 2\n[chain.sim]\n", &redis_table, &*node.to_toml("")].concat();
    // The reload reads the file again.
    let mut file = NamedTempFile::with_suffix(".toml").unwrap();
    file.write_all(config.as_bytes()).unwrap();
    let mut gateway = Weir::serve().file(file.path()).start();
    let count =
        |gateway: &test_support::running::Running, text: &str| gateway.log().matches(text).count();
    wait_until("the log says that redis is down", || count(&gateway, "redis is down") > 0);
    redis.start_again();
    wait_until("the log says that redis is up", || count(&gateway, "redis is up") > 0);
    gateway.signal("-HUP");
    wait_until("the gateway has reloaded", || count(&gateway, "new configuration is in use") > 0);
    redis.kill();
    wait_until("the log says that redis is down", || count(&gateway, "redis is down") > 1);
    let log = gateway.log();
    let lines = log.lines().filter(|line| line.contains(" redis")).count();
    assert_eq!(lines, 3, "{log}");
    gateway.assert_sound();
}
