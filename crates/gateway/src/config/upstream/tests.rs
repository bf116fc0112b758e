//! Goal: a reload closes the connections to an upstream if a configuration key that concerns these
//! connections has changed. Method: for every declared key, compare two upstreams that differ in
//! this key.

use std::collections::BTreeSet;
use std::path::Path;

use settings::Table;

use super::*;
use crate::config::Config;

/// Returns an upstream with these keys. It is on the chain `a` if the keys name no chain.
fn upstream(keys: &str) -> Upstream {
    let url = if keys.starts_with("url =") { "" } else { "url = 'https://n.example'\n" };
    let chain = if keys.contains("chain =") { "" } else { "chain = 'a'\n" };
    let text = format!(
        "[chain.a]\nid = 1\n[chain.b]\nid = 2\n\
         [[upstream]]\nurl = 'http://127.0.0.1:1'\nchain = 'a'\n\
         [[upstream]]\nurl = 'http://127.0.0.1:1'\nchain = 'b'\n\
         [[upstream]]\n{url}{chain}{keys}\n"
    );
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/config/valid");
    let config = Config::from_text("test", &text, &folder, &|_| None);
    config.unwrap_or_else(|errors| panic!("{errors}")).upstreams.pop().unwrap()
}

#[test]
fn connections_stay_open_only_if_their_keys_are_unchanged() {
    const STAY: bool = true;
    const CLOSE: bool = false;
    let http = "url = 'http://127.0.0.1:1'";
    let cases = [
        ("name", "name = 'x'", "name = 'y'", STAY),
        ("url", http, "url = 'http://127.0.0.1:2'", CLOSE),
        ("ws_url", "ws_url = 'wss://n.example/1'", "ws_url = 'wss://n.example/2'", CLOSE),
        ("chain", "chain = 'a'", "chain = 'b'", STAY),
        ("weight", "weight = 1", "weight = 2", STAY),
        ("backup", "backup = false", "backup = true", STAY),
        ("history", "history = 'auto'", "history = { blocks = 128 }", STAY),
        ("connections_max", "connections_max = 1", "connections_max = 2", CLOSE),
        (
            "calls_per_connection_max",
            "http2 = true\ncalls_per_connection_max = 1",
            "http2 = true\ncalls_per_connection_max = 2",
            CLOSE,
        ),
        (
            "message_bytes_max",
            "ws_url = 'ws://n'\nmessage_bytes_max = 2048",
            "ws_url = 'ws://n'\nmessage_bytes_max = 4096",
            CLOSE,
        ),
        (
            "ping_interval",
            "http2 = true\nping_interval = '1s'",
            "http2 = true\nping_interval = '2s'",
            CLOSE,
        ),
        ("http2", "http2 = false", "http2 = true", CLOSE),
        ("batch_calls_max", "batch_calls_max = 1", "batch_calls_max = 2", CLOSE),
        (
            "batch_wait",
            "batch_calls_max = 2\nbatch_wait = '1ms'",
            "batch_calls_max = 2\nbatch_wait = '2ms'",
            CLOSE,
        ),
        ("idle_timeout", "idle_timeout = '1s'", "idle_timeout = '2s'", CLOSE),
        ("keep_alive", "keep_alive = true", "keep_alive = false", CLOSE),
        ("connect_timeout", "connect_timeout = '1s'", "connect_timeout = '2s'", CLOSE),
        ("headers", "headers = { x-a = '1' }", "headers = { x-a = '2' }", CLOSE),
        ("tls_ca", "", "tls_ca = 'node-ca.pem'", CLOSE),
        ("tls_server_name", "", "tls_server_name = 'other.example'", CLOSE),
        ("tls_verify", "", "tls_verify = false", CLOSE),
    ];
    for (key, left, right, stays) in cases {
        let (left, right) = (upstream(left), upstream(right));
        assert!(left.connects_like(&left.clone()), "{key}");
        assert_eq!(left.connects_like(&right), stays, "{key}");
        assert_eq!(right.connects_like(&left), stays, "{key}");
    }
    let tried: BTreeSet<_> = cases.iter().map(|(key, ..)| *key).collect();
    assert_eq!(tried, UpstreamTable::KEYS.iter().copied().collect(), "a key is not tried");
    let named = upstream("tls_server_name = 'n.example'\ntls_verify = true");
    assert!(named.connects_like(&upstream("")), "the same settings, written down");
}
