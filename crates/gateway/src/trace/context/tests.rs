//! Goal: requests are sampled by the client's flag or by ratio, spans have the right parents, and a
//! full queue drops all spans of a request and counts them.

use std::cell::Cell;
use std::path::Path;

use super::*;
use crate::config::Config;
use crate::policy::trace_context::TraceHeaders;

fn queues(keys: &str) -> Arc<SpanQueues> {
    let text = format!(
        "[server]\nthreads = 1\n[[upstream]]\nurl = 'http://a.local:1'\n\
         [tracing]\nendpoint = 'http://127.0.0.1:1'\n{keys}\n"
    );
    let config = Config::from_text("test", &text, Path::new("/"), &|_| None);
    let config = config.unwrap_or_else(|errors| panic!("{errors}"));
    let threads = 1;
    Arc::new(SpanQueues::new(config.tracing.unwrap(), threads, None))
}

fn client(flags: &str) -> Box<ClientTrace> {
    let mut headers = TraceHeaders::default();
    let parent = format!("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-{flags}");
    headers.add_parent(parent.as_bytes());
    headers.add_state(b"a=1");
    headers.finish().unwrap()
}

fn begin(client: Option<&ClientTrace>, queues: Option<&Arc<SpanQueues>>) -> Option<TracedRequest> {
    let count = Cell::new(0_u64);
    let random = || {
        count.set(count.get() + 1);
        count.get()
    };
    let sampler = queues.map(|queues| Sampler { queues, thread: 0 });
    TraceContext::begin_request(client, sampler, random)
}

#[test]
fn without_tracing_the_context_of_the_client_is_passed_on_unchanged() {
    assert!(begin(None, None).is_none());
    for flags in ["00", "01"] {
        let client = client(flags);
        let traced = begin(Some(&client), None).unwrap();
        assert!(traced.span.is_none());
        // Nothing is recorded, so the upstream's parent is the client's span.
        let passed = traced.context.parent();
        assert_eq!((passed.trace, passed.span), (client.parent.trace, client.parent.span));
        assert_eq!(passed.sampled, client.parent.sampled);
        assert_eq!(traced.context.state(), Some("a=1"));
        assert!(traced.context.begin(SpanKind::Client, "call", || 7).is_none());
    }
}

#[test]
fn the_flag_of_the_client_decides_if_the_configuration_allows_it() {
    let (none, all) = (queues("sample_ratio = 0"), queues("sample_ratio = 1"));
    let is_sampled = |flags: &str, queues: &Arc<SpanQueues>| {
        begin(Some(&client(flags)), Some(queues)).unwrap().span.is_some()
    };
    assert!(is_sampled("01", &none));
    assert!(!is_sampled("00", &all));
    assert!(begin(None, Some(&none)).is_none());
    assert!(begin(None, Some(&all)).unwrap().span.is_some());
    let ours = |ratio| queues(&format!("parent_based = false\nsample_ratio = {ratio}"));
    assert!(!is_sampled("01", &ours(0)));
    assert!(is_sampled("00", &ours(1)));
}

#[test]
fn spans_have_their_parents_and_are_queued_together() {
    let (queues, client) = (queues("sample_ratio = 0"), client("01"));
    let mut traced = begin(Some(&client), Some(&queues)).unwrap();
    let call = traced.context.begin(SpanKind::Internal, "call", || 20).unwrap();
    let mut attempt = call.context().begin(SpanKind::Client, "attempt", || 30).unwrap();
    attempt.fail("no");
    let sent = attempt.context().parent();
    assert_eq!((sent.trace, sent.span, sent.sampled), (client.parent.trace, SpanId::new(30), true));
    assert_eq!(attempt.context().state(), Some("a=1"));
    drop((attempt, call));
    traced.span.as_mut().unwrap().set("a", 7_i64);
    assert!(queues.take().is_empty(), "the request has not ended");
    drop(traced);
    let spans = queues.take();
    let chain: Vec<_> = spans.iter().map(|span| (span.name, span.parent, span.id)).collect();
    let request = spans[2].id;
    assert_eq!(
        chain,
        [
            ("attempt", Some(SpanId::new(20)), SpanId::new(30)),
            ("call", Some(request), SpanId::new(20)),
            ("request", Some(client.parent.span), request),
        ]
    );
    assert!(spans.iter().all(|span| span.trace == client.parent.trace && span.start <= span.end));
    assert_eq!(spans[0].failure.as_deref(), Some("no"));
    assert_eq!(spans[2].attributes, [("a", AttributeValue::Integer(7))]);
}

#[test]
fn a_full_queue_drops_whole_requests_and_counts_their_spans() {
    let queues = queues("sample_ratio = 1\nqueue_max = 16");
    for _ in 0..7 {
        let traced = begin(None, Some(&queues)).unwrap();
        drop(traced.context.begin(SpanKind::Internal, "call", || 1));
        drop(traced.context.begin(SpanKind::Internal, "call", || 2));
    }
    // Five requests of three spans fit into 16.
    assert_eq!(queues.take().len(), 15);
    assert_eq!(queues.counts.dropped.load(Ordering::Relaxed), 6);
    drop(begin(None, Some(&queues)));
    assert_eq!((queues.take().len(), queues.counts.dropped.load(Ordering::Relaxed)), (1, 6));
}

#[test]
fn a_batch_records_a_bounded_number_of_spans() {
    let queues = queues("sample_ratio = 1");
    let traced = begin(None, Some(&queues)).unwrap();
    for number in 0..REQUEST_SPANS_MAX as u64 + 9 {
        drop(traced.context.begin(SpanKind::Internal, "call", || number));
    }
    drop(traced);
    let spans = queues.take();
    assert_eq!(
        (spans.len(), queues.counts.dropped.load(Ordering::Relaxed)),
        (REQUEST_SPANS_MAX + 1, 9)
    );
    assert_eq!(spans.last().unwrap().kind, SpanKind::Server, "the request has its span");
}
