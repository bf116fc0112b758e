//! The headers of a trace, over HTTP/1.1. Without the table `[tracing]`, the gateway records no
//! spans, but forwards the headers.

use super::recorder::Recorder;
use super::{SPAN, TRACE, traceparent};
use crate::support::harness::{
    GET_BALANCE, NodeRuntime, TestGateway, ask_with_header, balance_params, chain_polled_once,
    result, upstream_toml,
};

#[test]
fn a_valid_trace_context_is_passed_on_and_a_malformed_one_is_not() {
    let runtime = NodeRuntime::start();
    let [a] = runtime.nodes(["a"]);
    let proxy = Recorder::in_front_of(&a, GET_BALANCE, None);
    let text = format!("{}{}", chain_polled_once(""), upstream_toml("a", &proxy.url(), ""));
    let gateway = TestGateway::start(&text);
    gateway.wait_for_candidates(&["a"]);
    let mut client = gateway.client();
    let (sampled, unsampled) = (traceparent("01"), traceparent("00"));
    let later_version = format!("01-{TRACE}-{SPAN}-01-more");
    let upper_case = sampled.to_uppercase();
    // The header lines of a request, and the `traceparent` and `tracestate` that the node gets.
    for (index, (lines, forwarded)) in [
        (format!("TraceParent: {sampled}"), Some((&sampled, None))),
        (format!("traceparent: {unsampled}"), Some((&unsampled, None))),
        (format!("traceparent: {later_version}"), Some((&sampled, None))),
        (
            format!("traceparent: {sampled}\r\ntracestate: a=1\r\ntracestate: b=2"),
            Some((&sampled, Some("a=1,b=2"))),
        ),
        ("x-none: 1".to_owned(), None),
        ("tracestate: a=1".to_owned(), None),
        (format!("traceparent: {upper_case}\r\ntracestate: a=1"), None),
        (format!("traceparent: {sampled}\r\ntraceparent: {unsampled}"), None),
    ]
    .into_iter()
    .enumerate()
    {
        let params = balance_params(index as u64, "latest");
        result(&ask_with_header(&mut client, &lines, GET_BALANCE, &params));
        let requests = proxy.requests(GET_BALANCE);
        assert_eq!(requests.len(), index + 1);
        let (expected_parent, expected_state) = forwarded.unzip();
        let last = &requests[index];
        assert_eq!(last.values("traceparent"), expected_parent.as_slice(), "{lines}");
        assert_eq!(last.values("tracestate"), expected_state.flatten().as_slice(), "{lines}");
    }
    let metrics = gateway.get_admin("/metrics");
    assert!(!metrics.text().contains("weir_trace_spans_total{"), "nothing is sampled");
}
