//! The headers of a trace without `[tracing]`, over HTTP/1.1.

use super::recorder::Recorder;
use super::{SPAN, TRACE, parent};
use crate::support::scene::{READ, Scene, Served, account, ask_with, entry, polled_once, result};

#[test]
fn a_valid_trace_context_is_passed_on_and_a_malformed_one_is_not() {
    let scene = Scene::set();
    let [a] = scene.nodes(["a"]);
    let relay = Recorder::relay(&a, READ, None);
    let text = format!("{}{}", polled_once(""), entry("a", &relay.url(), ""));
    let served = Served::start(&text);
    served.wait_for_candidates(&["a"]);
    let mut client = served.client();
    let (sampled, unsampled) = (parent("01"), parent("00"));
    let later = format!("01-{TRACE}-{SPAN}-01-more");
    let upper = sampled.to_uppercase();
    for (index, (lines, passed)) in [
        (format!("TraceParent: {sampled}"), Some((&sampled, None))),
        (format!("traceparent: {unsampled}"), Some((&unsampled, None))),
        (format!("traceparent: {later}"), Some((&sampled, None))),
        (
            format!("traceparent: {sampled}\r\ntracestate: a=1\r\ntracestate: b=2"),
            Some((&sampled, Some("a=1,b=2"))),
        ),
        ("x-none: 1".to_owned(), None),
        ("tracestate: a=1".to_owned(), None),
        (format!("traceparent: {upper}\r\ntracestate: a=1"), None),
        (format!("traceparent: {sampled}\r\ntraceparent: {unsampled}"), None),
    ]
    .into_iter()
    .enumerate()
    {
        let params = account(index as u64, "latest");
        result(&ask_with(&mut client, &lines, READ, &params));
        let requests = relay.requests(READ);
        assert_eq!(requests.len(), index + 1);
        let (parent, state) = passed.unzip();
        let last = &requests[index];
        assert_eq!(last.values("traceparent"), parent.as_slice(), "{lines}");
        assert_eq!(last.values("tracestate"), state.flatten().as_slice(), "{lines}");
    }
    let metrics = served.look("/metrics");
    assert!(!metrics.text().contains("weir_trace_spans_total{"), "nothing is sampled");
}
