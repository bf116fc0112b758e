//! Goal: the table reports the numbers of a good run and of a bad one. Method: a synthetic report,
//! compared exactly.

use expect_test::expect;

use super::{LatencyByKind, LatencyByPath, NodeCounts, Quantiles, Report, format_ms};
use crate::demo::paint::Paint;
use crate::demo::watch::{Cause, Event};

fn report() -> Report {
    let kinds = |calls, p50, p99| {
        let quantiles =
            || Quantiles { calls, p50: Some(p50), p99: Some(p99), max: Some(p99 * 2.0) };
        LatencyByKind { head: quantiles(), history: quantiles() }
    };
    let event = |seconds, cause, text: &str| Event { seconds, cause, text: text.to_owned() };
    Report {
        requests: 30_000,
        client_errors: 0,
        wrong_answers: 0,
        compared: 30_000,
        not_compared: 0,
        unanswered: 0,
        hit_ratio: Some(0.9234),
        hits: 27_000,
        misses: 2_000,
        joined: 1_000,
        retried: 12,
        hedged: 34,
        hedges_won: 30,
        ejected: 1,
        readmitted: 1,
        heads: 20,
        reorgs: 2,
        reorg_depth_max: 3,
        seconds: 20.04,
        rate: 1_500,
        seed: 1,
        interrupted: false,
        latency_ms: LatencyByPath {
            gateway: kinds(15_000, 0.213, 4.5),
            direct: kinds(500, 3.1, 12.34),
        },
        late_p99_ms: Some(0.2),
        direct_errors: 0,
        nodes: vec![NodeCounts { name: "node-1", attempts: 1_000, failed: 0 }],
        timeline: vec![
            event(2.0, Cause::Simulation, "node-3 falls 5 blocks behind"),
            event(2.51, Cause::Weir, "ejects node-3"),
        ],
        faults: Vec::new(),
    }
}

/// The table without the margin of all lines, because `expect!` removes common margins.
fn table(report: &Report) -> String {
    report.table(Paint::plain()).replace("\n  ", "\n")
}

#[test]
fn the_table_of_a_good_run() {
    let report = report();
    assert!(report.is_good());
    expect![[r#"

          weir in front of three simulated nodes: 30,000 calls in 20.0 s, 0 errors, 0 wrong answers

                                               head reads  history reads
          calls                                    15,000         15,000
          p50 through weir                        0.21 ms        0.21 ms
          p50 directly to node-1                  3.10 ms        3.10 ms
          p99 through weir                        4.50 ms        4.50 ms
          p99 directly to node-1                  12.3 ms        12.3 ms
          slowest through weir                    9.00 ms        9.00 ms
          slowest directly to node-1              24.7 ms        24.7 ms
          latency from the scheduled send time; simulated nodes take about 3 ms

          errors received by clients                    0
          wrong answers                                 0  all 30,000 results compared with the chain
          answered from the cache                  92.3 %
          coalesced with a call in flight           1,000
          retried after a failure                      12
          hedged for a slow node                       34  30 hedges returned first
          nodes ejected                                 1  readmitted once
          new blocks followed                          20  2 reorgs, up to 3 blocks deep
    "#]].assert_eq(&table(&report));
}

#[test]
fn the_table_of_a_bad_run() {
    let report = Report {
        client_errors: 3,
        wrong_answers: 1,
        compared: 100,
        not_compared: 300,
        unanswered: 2,
        interrupted: true,
        hit_ratio: None,
        late_p99_ms: Some(7.0),
        direct_errors: 1,
        readmitted: 0,
        reorgs: 1,
        timeline: Vec::new(),
        faults: vec!["eth_call []: stale by 3 blocks\n{}".to_owned()],
        ..report()
    };
    assert!(!report.is_good());
    expect![[r#"

          weir in front of three simulated nodes: 30,000 calls in 20.0 s, then Ctrl-C, 3 errors, 1 wrong answers

                                               head reads  history reads
          calls                                    15,000         15,000
          p50 through weir                        0.21 ms        0.21 ms
          p50 directly to node-1                  3.10 ms        3.10 ms
          p99 through weir                        4.50 ms        4.50 ms
          p99 directly to node-1                  12.3 ms        12.3 ms
          slowest through weir                    9.00 ms        9.00 ms
          slowest directly to node-1              24.7 ms        24.7 ms
          latency from the scheduled send time; simulated nodes take about 3 ms

          errors received by clients                    3
          wrong answers                                 1  25.0 % of the results compared with the chain
          answered from the cache                       -
          coalesced with a call in flight           1,000
          retried after a failure                      12
          hedged for a slow node                       34  30 hedges returned first
          nodes ejected                                 1  not readmitted
          new blocks followed                          20  1 reorg, 3 blocks deep

          what went wrong
          eth_call []: stale by 3 blocks
            {}

          note: this machine was busy: 1 in 100 calls was sent 7.0 ms late or more, which counts as latency
          note: calls without a response at the end: 2
          note: failed calls directly to node-1: 1
          note: a result is right if a node at most 2 blocks behind would have returned it during the call or at most 1.5 s before; the scheduling delay of this machine is allowed in addition
    "#]].assert_eq(&table(&report));
}

#[test]
fn times_have_units() {
    let times = [None, Some(0.123), Some(45.67), Some(1234.5)].map(format_ms);
    assert_eq!(times, ["-", "0.12 ms", "45.7 ms", "1,235 ms"]);
}
