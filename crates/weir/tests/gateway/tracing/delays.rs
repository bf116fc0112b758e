//! Collectors that hang or cannot be reached: no call waits for them, and the gateway counts the
//! spans that it drops.

use std::time::{Duration, Instant};

use test_support::port::ReservedPort;
use test_support::wait::wait_until;

use super::recorder::Recorder;
use crate::support::harness::{
    GET_BALANCE, NodeRuntime, TestGateway, ask_with_header, balance_params, chain_polled_once,
    result,
};

/// Maximum duration of a call: far above the usual duration, and far below the gateway's timeout
/// for the collector.
const CALL_MAX: Duration = Duration::from_secs(5);

/// Returns the number of spans that the gateway reports with this outcome.
fn span_count(gateway: &TestGateway, outcome: &str) -> u64 {
    let prefix = format!("weir_trace_spans_total{{outcome=\"{outcome}\"}} ");
    let metrics = gateway.get_admin("/metrics");
    let value = metrics.text().lines().find_map(|line| line.strip_prefix(&prefix));
    value.unwrap_or_else(|| panic!("there is no {outcome}")).parse().unwrap()
}

#[test]
fn calls_do_not_wait_for_a_collector_that_hangs_or_is_dead() {
    let runtime = NodeRuntime::start();
    let [a] = runtime.nodes(["a"]);
    let hanging = Recorder::start(|_| None);
    // No process listens on a reserved port.
    let dead = ReservedPort::new();
    for url in [hanging.url(), format!("http://{}", dead.address)] {
        let text = format!(
            "[tracing]\nendpoint = \"{url}\"\nsample_ratio = 1\nqueue_max = 16\ntimeout = \"60s\"\n{}",
            chain_polled_once("")
        );
        let gateway = TestGateway::in_front_of(&[&a], &text);
        let mut client = gateway.client();
        let mut calls = 0;
        wait_until("spans are dropped", || {
            calls += 1;
            let began = Instant::now();
            let params = balance_params(calls, "latest");
            result(&ask_with_header(&mut client, "x: 1", GET_BALANCE, &params));
            assert!(began.elapsed() < CALL_MAX, "call {calls} took {:?}", began.elapsed());
            span_count(&gateway, "dropped") > 0
        });
        assert_eq!(span_count(&gateway, "exported"), 0);
        if url == hanging.url() {
            wait_until("spans are sent", || !hanging.requests("").is_empty());
            assert_eq!(span_count(&gateway, "failed"), 0, "the request has not ended");
        } else {
            wait_until("spans have failed", || span_count(&gateway, "failed") > 0);
        }
        // When the gateway stops, it waits for the export of the last spans, but not for long.
        let stopped = gateway.stop();
        assert!(stopped < Duration::from_secs(30), "the stop took {stopped:?}");
    }
}
