//! Exemplars: the buckets of histograms in `/metrics` contain the ids of sampled traces, and
//! Prometheus stores them.

use test_support::prometheus::Prometheus;
use test_support::wait::wait_until;

use super::{TRACE, traceparent};
use crate::support::harness::{
    GET_BALANCE, NodeRuntime, TestGateway, ask_with_header, balance_params, chain_polled_once,
    result,
};

/// Histograms that have exemplars.
const HISTOGRAMS: [&str; 2] =
    ["weir_call_duration_seconds_bucket", "weir_upstream_attempt_duration_seconds_bucket"];

#[test]
fn a_bucket_names_the_trace_of_a_sampled_call() {
    let runtime = NodeRuntime::start();
    let [a] = runtime.nodes(["a"]);
    // The gateway records spans, but no process listens at the endpoint.
    let text = format!(
        "[tracing]\nendpoint = \"http://127.0.0.1:1\"\nsample_ratio = 0\n{}",
        chain_polled_once("")
    );
    let gateway = TestGateway::in_front_of(&[&a], &text);
    let mut client = gateway.client();
    result(&ask_with_header(&mut client, "x: 1", GET_BALANCE, &balance_params(1, "latest")));
    assert!(!gateway.get_admin("/metrics").text().contains("trace_id"), "no call is sampled");
    let sampled = format!("traceparent: {}", traceparent("01"));
    result(&ask_with_header(&mut client, &sampled, GET_BALANCE, &balance_params(2, "latest")));

    let metrics = gateway.get_admin("/metrics");
    let exemplar = format!(" # {{trace_id=\"{TRACE}\"}} ");
    let lines: Vec<_> =
        metrics.text().lines().filter_map(|line| line.split_once(&*exemplar)).collect();
    for (name, (series, exemplar)) in HISTOGRAMS.into_iter().zip(&lines) {
        assert!(series.starts_with(name), "{series}");
        let (_, bound) = series.split_once("le=\"").unwrap();
        let bound: f64 = bound.split('"').next().unwrap().parse().unwrap();
        let (value, time) = exemplar.split_once(' ').unwrap();
        let (value, time): (f64, f64) = (value.parse().unwrap(), time.parse().unwrap());
        assert!(value <= bound && value > bound / 2.0 - 0.0001, "{value} is not in {series}");
        assert!((test_support::prometheus::now() - time).abs() < 60.0, "{exemplar}");
    }
    assert_eq!(lines.len(), HISTOGRAMS.len(), "{lines:?}");

    let Some(prometheus) = Prometheus::start(std::slice::from_ref(&gateway.admin)) else { return };
    for name in HISTOGRAMS {
        wait_until("prometheus has the exemplar", || {
            prometheus.exemplars(name).iter().any(|labels| labels["trace_id"] == TRACE)
        });
    }
}
