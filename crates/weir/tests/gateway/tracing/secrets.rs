//! Spans contain no secrets. The test puts secrets in every place from which a span could copy one,
//! and searches all data that the collector receives. A reload turns tracing on.

use test_support::raw::{Client, post_with};
use test_support::wait::wait_until;

use super::recorder::Recorder;
use crate::support::harness::{
    GET_BALANCE, NodeRuntime, TestGateway, balance_params, body, chain_polled_once, upstream_toml,
};

/// A text that is part of every secret.
const MARK: &str = "s3kr1t";

#[test]
fn no_span_holds_a_secret() {
    let runtime = NodeRuntime::start();
    let [a] = runtime.nodes(["a"]);
    let collector = Recorder::start(|_| Some((200, Vec::new())));
    let proxy = Recorder::in_front_of(&a, "eth_getCode", Some(500));
    let key = format!("weir_{MARK}_alice_0123456789abcdef");
    let secret_path = format!("/v3/{MARK}0123456789012345678901234567890?key={MARK}");
    let upstream = format!("http://{MARK}user:{MARK}pass@{}{secret_path}", proxy.address);
    let dead = format!("http://{MARK}user@127.0.0.1:1{secret_path}");
    let off = format!(
        "{}[access]\nrequired = false\n\
         [[key]]\nname = \"alice\"\nsecret = \"{key}\"\n{}{}",
        chain_polled_once(""),
        upstream_toml("a", &upstream, &format!("headers = {{ x-token = \"{MARK}-header\" }}")),
        upstream_toml("dead", &dead, ""),
    );
    let gateway = TestGateway::start(&off);
    let tracing = format!(
        "[tracing]\nendpoint = \"http://{}/{MARK}0123456789012345678901234567890/v1\"\n\
         sample_ratio = 1\nheaders = {{ authorization = \"Bearer {MARK}-collector\" }}\n",
        collector.address
    );
    gateway.reload(&format!("{tracing}{off}"));
    let unknown = format!("unknown_{MARK}");
    for (path, lines, method) in [
        ("/".to_owned(), format!("authorization: Bearer {key}\r\n"), GET_BALANCE),
        (format!("/{key}"), String::new(), GET_BALANCE),
        (format!("/?key={key}"), format!("cookie: {MARK}=1\r\n"), "eth_getCode"),
        (format!("/wrong_{MARK}_0123456789abcdef"), String::new(), GET_BALANCE),
        ("/".to_owned(), format!("x-api-key: wrong_{MARK}_0123456789abcdef\r\n"), GET_BALANCE),
        ("/".to_owned(), format!("tracestate: {MARK}=1\r\n"), unknown.as_str()),
    ] {
        for number in 0..4 {
            // The upstream's error message repeats an invalid block parameter.
            let block = if number % 2 == 0 { "latest" } else { MARK };
            let params = balance_params(number, block);
            let mut client = Client::connect(&gateway.address);
            client.send(&post_with(&path, &lines, &body(method, &params)));
            client.read_response().unwrap();
        }
    }
    wait_until("spans of all kinds are sent", || {
        let sent = collector.requests("");
        let text: String = sent.iter().map(super::recorder::RecordedRequest::text).collect();
        [GET_BALANCE, "eth_getCode", "weir.upstream", "failed", "error.type"]
            .iter()
            .all(|word| text.contains(word))
    });
    gateway.stop();
    let sent = collector.requests("");
    for request in &sent {
        assert_eq!(request.values("authorization"), [format!("Bearer {MARK}-collector")]);
        assert_eq!(request.values("content-type"), ["application/x-protobuf"]);
        let text = request.text();
        assert!(!text.to_lowercase().contains(MARK), "a span holds a secret:\n{text}");
    }
}
