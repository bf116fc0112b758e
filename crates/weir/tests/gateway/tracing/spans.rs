//! The spans of requests, as collectors receive them.

use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use test_support::programs;
use test_support::raw::{Client, post_with};
use test_support::wait::wait_until;

use super::collector::{Collector, spans_named};
use super::recorder::Recorder;
use super::{SPAN, TRACE, traceparent};
use crate::support::harness::{
    GET_BALANCE, NodeRuntime, TestGateway, ask_with_header, balance_params, body, cache_status,
    chain_polled_once, result, upstream_of, upstream_toml,
};

/// Returns a configuration that sends spans to a collector. `keys` are further keys of `[tracing]`.
fn tracing(collector: &Collector, keys: &str) -> String {
    format!(
        "[tracing]\nendpoint = \"{}\"\nservice_name = \"edge\"\n{keys}\n{}",
        collector.url(),
        chain_polled_once("")
    )
}

/// Returns the header lines of a trace's context.
fn trace_lines(trace: &str, flags: &str) -> String {
    format!("traceparent: 00-{trace}-{SPAN}-{flags}\r\ntracestate: vendor=1")
}

#[test]
fn a_real_collector_forwards_the_same_spans() {
    let Some(program) = programs::require("otelcol") else { return };
    for check in [check_a_retried_call, check_a_batch, check_a_follower] {
        check(&Collector::real(&program));
    }
}

#[test]
fn a_retried_call_has_an_attempt_for_each_upstream_in_the_trace_of_its_client() {
    check_a_retried_call(&Collector::decoding());
}

fn check_a_retried_call(collector: &Collector) {
    let runtime = NodeRuntime::start();
    let [a, b] = runtime.nodes(["a", "b"]);
    let broken = Recorder::in_front_of(&a, GET_BALANCE, Some(500));
    let healthy = Recorder::in_front_of(&b, GET_BALANCE, None);
    let gateway = TestGateway::start(&format!(
        "{}[health]\nfailures_max = 100\n{}{}",
        tracing(collector, "sample_ratio = 0"),
        upstream_toml("broken", &broken.url(), ""),
        upstream_toml("healthy", &healthy.url(), "backup = true"),
    ));
    gateway.wait_for_candidates(&["broken"]);
    wait_until("both heads are seen", || !gateway.upstream(1, "head").is_null());
    let mut client = gateway.client();
    // A request without a trace has no spans, and neither has one whose client does not sample it.
    let untraced = balance_params(1, "latest");
    result(&ask_with_header(&mut client, "x-plain: 1", GET_BALANCE, &untraced));
    let unsampled = balance_params(2, "latest");
    result(&ask_with_header(&mut client, &trace_lines(TRACE, "00"), GET_BALANCE, &unsampled));
    let sampled = balance_params(3, "latest");
    let answer = ask_with_header(&mut client, &trace_lines(TRACE, "01"), GET_BALANCE, &sampled);
    result(&answer);
    assert_eq!(upstream_of(&answer), "healthy");
    let spans = collector.wait_for_spans(4);

    let [request] = spans_named(&spans, TRACE, "request")[..] else { panic!("{spans:#?}") };
    assert_eq!(request.text("parentSpanId"), SPAN);
    assert_eq!(request.attribute("http.response.status_code"), Some("200"));
    assert_eq!(request.attribute("weir.protocol"), Some("HTTP/1.1"));
    // The spans of a call and of its attempts have the method as name.
    let method_spans = spans_named(&spans, TRACE, GET_BALANCE);
    let [call, first, second] = method_spans[..] else { panic!("{spans:#?}") };
    assert_eq!(call.text("parentSpanId"), request.text("spanId"));
    assert_eq!(call.attribute("weir.cache"), Some("miss"));
    assert_eq!(call.attribute("rpc.method"), Some(GET_BALANCE));
    for (attempt, upstream, outcome) in [(first, "broken", "failed"), (second, "healthy", "ok")] {
        assert_eq!(attempt.text("parentSpanId"), call.text("spanId"));
        assert_eq!(attempt.attribute("weir.upstream"), Some(upstream));
        assert_eq!(attempt.attribute("weir.outcome"), Some(outcome));
        assert_eq!(attempt.is_failed(), outcome == "failed");
        let ((start, end), (call_start, call_end)) = (attempt.times(), call.times());
        assert!(call_start <= start && start <= end, "{attempt:?} {call:?}");
        // The gateway reads the clock at different times for the two ends, so tolerate 1 ms.
        assert!(end <= call_end + 1_000_000, "{attempt:?} {call:?}");
    }
    assert_eq!(first.attribute("error.type"), Some("http"));
    // The `traceparent` that each upstream gets names the span of the attempt as the parent.
    for (proxy, attempt) in [(&broken, first), (&healthy, second)] {
        let last = proxy.requests(GET_BALANCE).pop().unwrap();
        let expected = format!("00-{TRACE}-{}-01", attempt.text("spanId"));
        assert_eq!(last.values("traceparent"), [expected]);
        assert_eq!(last.values("tracestate"), ["vendor=1"]);
    }
    wait_until("the exported spans are counted", || {
        let metrics = gateway.get_admin("/metrics");
        metrics.text().contains("weir_trace_spans_total{outcome=\"exported\"} 4")
    });
}

#[test]
fn a_batch_has_one_span_for_each_call_and_unknown_methods_are_not_named() {
    check_a_batch(&Collector::decoding());
}

fn check_a_batch(collector: &Collector) {
    let runtime = NodeRuntime::start();
    let [a] = runtime.nodes(["a"]);
    let text = tracing(collector, "sample_ratio = 1");
    let gateway = TestGateway::in_front_of(&[&a], &text);
    let calls = [body("eth_chainId", "[]"), body("secret_method", "[]")];
    let batch = [&b"["[..], &calls.join(&b","[..]), &b"]"[..]].concat();
    let mut client = gateway.client();
    // The gateway ignores a malformed `traceparent` and starts a new trace.
    let malformed = format!("traceparent: 00-{TRACE}-{SPAN}\r\n");
    client.send(&post_with("/", &malformed, &batch));
    assert_eq!(client.read_response().unwrap().status, 200);
    let spans = collector.wait_for_spans(5);
    let trace = spans[0].text("traceId");
    assert_ne!(trace, TRACE);
    assert!(spans.iter().all(|span| span.text("traceId") == trace), "{spans:#?}");
    let [request] = spans_named(&spans, trace, "request")[..] else { panic!("{spans:#?}") };
    assert_eq!(request.text("parentSpanId"), "");
    let calls: Vec<_> =
        spans.iter().filter(|span| span.text("parentSpanId") == request.text("spanId")).collect();
    let mut names: Vec<&str> = calls.iter().map(|call| call.text("name")).collect();
    names.sort_unstable();
    assert_eq!(names, ["call", "eth_chainId"], "{spans:#?}");
    assert!(!format!("{spans:?}").contains("secret_method"), "{spans:#?}");
}

#[test]
fn a_follower_of_a_coalesced_call_belongs_to_its_own_trace() {
    check_a_follower(&Collector::decoding());
}

fn check_a_follower(collector: &Collector) {
    let runtime = NodeRuntime::start();
    let [a] = runtime.nodes(["a"]);
    let gate: Arc<(Mutex<bool>, Condvar)> = Arc::default();
    let (proxy_gate, address) = (Arc::clone(&gate), a.address.to_string());
    // The proxy delays calls of this method until the gate is open.
    let proxy = Recorder::start(move |request| {
        if request.text().contains(GET_BALANCE) {
            let mut is_open = proxy_gate.0.lock();
            proxy_gate.1.wait_while(&mut is_open, |is_open| !*is_open);
        }
        let answer = Client::connect(&address).call("/", &request.body);
        Some((answer.status, answer.body))
    });
    let text = tracing(collector, "sample_ratio = 0");
    let gateway = TestGateway::start(&format!("{text}{}", upstream_toml("a", &proxy.url(), "")));
    gateway.wait_for_candidates(&["a"]);
    let (leader_trace, follower_trace) = (TRACE, "ffffffffffffffffffffffffffffffff");
    let params = balance_params(1, "latest");
    let send = |trace: &str| {
        let mut client = gateway.client();
        let lines = format!("{}\r\n", trace_lines(trace, "01"));
        client.send(&post_with("/", &lines, &body(GET_BALANCE, &params)));
        client
    };
    let mut leader = send(leader_trace);
    wait_until("the upstream is called", || proxy.requests(GET_BALANCE).len() == 1);
    let mut follower = send(follower_trace);
    wait_until("both requests are served", || {
        gateway.get_admin("/metrics").text().contains("\nweir_requests_total 2\n")
    });
    *gate.0.lock() = true;
    gate.1.notify_all();
    let (first, second) = (leader.read_response().unwrap(), follower.read_response().unwrap());
    assert_eq!([cache_status(&first), cache_status(&second)], ["miss", "coalesced"]);
    let spans = collector.wait_for_spans(5);
    let leader_spans = spans_named(&spans, leader_trace, GET_BALANCE);
    let [call, attempt] = leader_spans[..] else { panic!("{spans:#?}") };
    assert_eq!(attempt.text("parentSpanId"), call.text("spanId"));
    let follower_spans = spans_named(&spans, follower_trace, GET_BALANCE);
    let [call] = follower_spans[..] else { panic!("{spans:#?}") };
    assert_eq!(call.attribute("weir.cache"), Some("coalesced"));
    let sent = proxy.requests(GET_BALANCE);
    assert_eq!(sent.len(), 1, "one call was sent");
    let expected = format!("00-{leader_trace}-{}-01", attempt.text("spanId"));
    assert_eq!(sent[0].values("traceparent"), [expected]);
    assert_ne!(traceparent("01"), sent[0].values("traceparent")[0]);
}
