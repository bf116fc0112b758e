//! Collectors that are dead or hang: no call waits for them, and lost spans are counted.

use std::time::{Duration, Instant};

use test_support::port::ReservedPort;
use test_support::wait::wait_until;

use super::recorder::Recorder;
use crate::support::scene::{READ, Scene, Served, account, ask_with, polled_once, result};

/// Far above the duration of a call, and far below the timeout of the collector.
const CALL_MAX: Duration = Duration::from_secs(5);

/// Returns the number of spans with this outcome.
fn spans(served: &Served, outcome: &str) -> u64 {
    let prefix = format!("weir_trace_spans_total{{outcome=\"{outcome}\"}} ");
    let metrics = served.look("/metrics");
    let value = metrics.text().lines().find_map(|line| line.strip_prefix(&prefix));
    value.unwrap_or_else(|| panic!("there is no {outcome}")).parse().unwrap()
}

#[test]
fn calls_do_not_wait_for_a_collector_that_hangs_or_is_dead() {
    let scene = Scene::set();
    let [a] = scene.nodes(["a"]);
    let hanging = Recorder::start(|_| None);
    // Nobody listens on a reserved port.
    let dead = ReservedPort::new();
    for url in [hanging.url(), format!("http://{}", dead.address)] {
        let text = format!(
            "[tracing]\nendpoint = \"{url}\"\nsample_ratio = 1\nqueue_max = 16\ntimeout = \"60s\"\n{}",
            polled_once("")
        );
        let served = Served::before(&[&a], &text);
        let mut client = served.client();
        let mut calls = 0;
        wait_until("spans are dropped", || {
            calls += 1;
            let began = Instant::now();
            result(&ask_with(&mut client, "x: 1", READ, &account(calls, "latest")));
            assert!(began.elapsed() < CALL_MAX, "call {calls} took {:?}", began.elapsed());
            spans(&served, "dropped") > 0
        });
        assert_eq!(spans(&served, "exported"), 0);
        if url == hanging.url() {
            wait_until("spans are sent", || !hanging.requests("").is_empty());
            assert_eq!(spans(&served, "failed"), 0, "the request has not ended");
        } else {
            wait_until("spans have failed", || spans(&served, "failed") > 0);
        }
        // The stop waits for the last spans, but not for long.
        let stopped = served.stop();
        assert!(stopped < Duration::from_secs(30), "the stop took {stopped:?}");
    }
}
