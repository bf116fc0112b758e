//! The spans of requests, as a real collector passes them on.

use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use test_support::programs;
use test_support::raw::{Client, post_with};
use test_support::wait::wait_until;

use super::collector::{Collector, named};
use super::recorder::Recorder;
use super::{SPAN, TRACE, parent};
use crate::support::scene::{
    READ, Scene, Served, account, ask_with, body, by, entry, mark, polled_once, result,
};

fn tracing(collector: &Collector, keys: &str) -> String {
    format!(
        "[tracing]\nendpoint = \"{}\"\nservice_name = \"edge\"\n{keys}\n{}",
        collector.url(),
        polled_once("")
    )
}

fn trace_line(trace: &str, flags: &str) -> String {
    format!("traceparent: 00-{trace}-{SPAN}-{flags}\r\ntracestate: vendor=1")
}

#[test]
fn a_retried_call_has_an_attempt_for_each_upstream_in_the_trace_of_its_client() {
    let Some(program) = programs::require("otelcol") else { return };
    let (scene, collector) = (Scene::set(), Collector::start(&program));
    let [a, b] = scene.nodes(["a", "b"]);
    let broken = Recorder::relay(&a, READ, Some(500));
    let healthy = Recorder::relay(&b, READ, None);
    let served = Served::start(&format!(
        "{}[health]\nfailures_max = 100\n{}{}",
        tracing(&collector, "sample_ratio = 0"),
        entry("broken", &broken.url(), ""),
        entry("healthy", &healthy.url(), "backup = true"),
    ));
    served.wait_for_candidates(&["broken"]);
    wait_until("both heads are seen", || !served.upstream(1, "head").is_null());
    let mut client = served.client();
    // Neither a request without a trace nor one that its client did not sample has spans.
    let plain = account(1, "latest");
    result(&ask_with(&mut client, "x-plain: 1", READ, &plain));
    let other = account(2, "latest");
    result(&ask_with(&mut client, &trace_line(TRACE, "00"), READ, &other));
    let params = account(3, "latest");
    let answer = ask_with(&mut client, &trace_line(TRACE, "01"), READ, &params);
    result(&answer);
    assert_eq!(by(&answer), "healthy");
    let spans = collector.wait_for_spans(4);

    let [request] = named(&spans, TRACE, "request")[..] else { panic!("{spans:#?}") };
    assert_eq!(request.text("parentSpanId"), SPAN);
    assert_eq!(request.attribute("http.response.status_code"), Some("200"));
    assert_eq!(request.attribute("weir.protocol"), Some("HTTP/1.1"));
    let of_method = named(&spans, TRACE, READ);
    let [call, first, second] = of_method[..] else { panic!("{spans:#?}") };
    assert_eq!(call.text("parentSpanId"), request.text("spanId"));
    assert_eq!(call.attribute("weir.cache"), Some("miss"));
    assert_eq!(call.attribute("rpc.method"), Some(READ));
    for (attempt, upstream, outcome) in [(first, "broken", "failed"), (second, "healthy", "ok")] {
        assert_eq!(attempt.text("parentSpanId"), call.text("spanId"));
        assert_eq!(attempt.attribute("weir.upstream"), Some(upstream));
        assert_eq!(attempt.attribute("weir.outcome"), Some(outcome));
        assert_eq!(attempt.is_failed(), outcome == "failed");
        let ((start, end), (call_start, call_end)) = (attempt.times(), call.times());
        assert!(call_start <= start && start <= end, "{attempt:?} {call:?}");
        // The two ends are read from two clocks a moment apart.
        assert!(end <= call_end + 1_000_000, "{attempt:?} {call:?}");
    }
    assert_eq!(first.attribute("error.type"), Some("http"));
    // Each upstream sees the attempt that called it as its parent.
    for (relay, attempt) in [(&broken, first), (&healthy, second)] {
        let last = relay.requests(READ).pop().unwrap();
        let sent = format!("00-{TRACE}-{}-01", attempt.text("spanId"));
        assert_eq!(last.values("traceparent"), [sent]);
        assert_eq!(last.values("tracestate"), ["vendor=1"]);
    }
    wait_until("the exported spans are counted", || {
        let metrics = served.look("/metrics");
        metrics.text().contains("weir_trace_spans_total{outcome=\"exported\"} 4")
    });
}

#[test]
fn a_batch_has_one_span_for_each_call_and_unknown_methods_are_not_named() {
    let Some(program) = programs::require("otelcol") else { return };
    let (scene, collector) = (Scene::set(), Collector::start(&program));
    let [a] = scene.nodes(["a"]);
    let text = tracing(&collector, "sample_ratio = 1");
    let served = Served::before(&[&a], &text);
    let calls = [body("eth_chainId", "[]"), body("secret_method", "[]")];
    let batch = [&b"["[..], &calls.join(&b","[..]), &b"]"[..]].concat();
    let mut client = served.client();
    // A malformed `traceparent` is ignored: the trace is a new one.
    let malformed = format!("traceparent: 00-{TRACE}-{SPAN}\r\n");
    client.send(&post_with("/", &malformed, &batch));
    assert_eq!(client.read_response().unwrap().status, 200);
    let spans = collector.wait_for_spans(5);
    let trace = spans[0].text("traceId");
    assert_ne!(trace, TRACE);
    assert!(spans.iter().all(|span| span.text("traceId") == trace), "{spans:#?}");
    let [request] = named(&spans, trace, "request")[..] else { panic!("{spans:#?}") };
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
    let Some(program) = programs::require("otelcol") else { return };
    let (scene, collector) = (Scene::set(), Collector::start(&program));
    let [a] = scene.nodes(["a"]);
    let gate: Arc<(Mutex<bool>, Condvar)> = Arc::default();
    let (opened, address) = (Arc::clone(&gate), a.address.to_string());
    let relay = Recorder::start(move |request| {
        if request.text().contains(READ) {
            let mut is_open = opened.0.lock();
            opened.1.wait_while(&mut is_open, |is_open| !*is_open);
        }
        let answer = Client::connect(&address).call("/", &request.body);
        Some((answer.status, answer.body))
    });
    let text = tracing(&collector, "sample_ratio = 0");
    let served = Served::start(&format!("{text}{}", entry("a", &relay.url(), "")));
    served.wait_for_candidates(&["a"]);
    let (leading, following) = (TRACE, "ffffffffffffffffffffffffffffffff");
    let params = account(1, "latest");
    let send = |trace: &str| {
        let mut client = served.client();
        let lines = format!("{}\r\n", trace_line(trace, "01"));
        client.send(&post_with("/", &lines, &body(READ, &params)));
        client
    };
    let mut leader = send(leading);
    wait_until("the upstream is called", || relay.requests(READ).len() == 1);
    let mut follower = send(following);
    wait_until("both requests are served", || {
        served.look("/metrics").text().contains("\nweir_requests_total 2\n")
    });
    *gate.0.lock() = true;
    gate.1.notify_all();
    let marks = [leader.read_response().unwrap(), follower.read_response().unwrap()];
    assert_eq!([mark(&marks[0]), mark(&marks[1])], ["miss", "coalesced"]);
    let spans = collector.wait_for_spans(5);
    let [call, attempt] = named(&spans, leading, READ)[..] else { panic!("{spans:#?}") };
    assert_eq!(attempt.text("parentSpanId"), call.text("spanId"));
    let [call] = named(&spans, following, READ)[..] else { panic!("{spans:#?}") };
    assert_eq!(call.attribute("weir.cache"), Some("coalesced"));
    let sent = relay.requests(READ);
    assert_eq!(sent.len(), 1, "one call was sent");
    let expected = format!("00-{leading}-{}-01", attempt.text("spanId"));
    assert_eq!(sent[0].values("traceparent"), [expected]);
    assert_ne!(parent("01"), sent[0].values("traceparent")[0]);
}
