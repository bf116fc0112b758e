//! The panels of the dashboard of load runs. `weir load` and the other commands of the lab make
//! such runs. A run pushes its metrics to Prometheus by remote write.
//!
//! The option `--metric-trends` sets the form of a distribution: a native histogram, or one gauge
//! for each statistic. So the query of a distribution reads the histogram, or else the gauges.

use super::dashboard::{Dashboard, Panel, Row, Unit, Variable};
use super::query::Matcher;

/// Returns the dashboard of load runs.
pub(super) fn dashboard() -> Dashboard {
    Dashboard {
        uid: "weir-lab",
        title: "Weir load run",
        description: "A run of weir load --remote-write. Runs with --metric-label testid=NAME can \
                      be selected by name.",
        from: "now-15m",
        refresh: "5s",
        variables: &[Variable {
            label: "testid",
            title: "Run",
            metric: "weir_lab_run_passed_seconds",
        }],
        // A user adds the label `testid` to all metrics of a run, or to none.
        matchers: &[Matcher {
            label: "testid",
            text: "testid=~\"$testid\"",
            on_every_series: true,
        }],
        rows: ROWS,
    }
}

const ROWS: &[Row] = &[
    Row { title: "Overview", panels: OVERVIEW },
    Row { title: "Calls", panels: CALLS },
    Row { title: "Load and generator", panels: GENERATOR },
    Row { title: "Connections", panels: CONNECTIONS },
];

const OVERVIEW: &[Panel] = &[
    Panel::number(
        "Results",
        Unit::PerSecond,
        &[("results", "sum(rate(weir_lab_calls_total{class=\"ok\"}[$__rate_interval]))")],
    ),
    Panel::number(
        "Calls without a result",
        Unit::Share,
        &[(
            "without a result",
            "1 - sum(rate(weir_lab_calls_total{class=\"ok\"}[$__rate_interval])) \
             / sum(rate(weir_lab_calls_total[$__rate_interval]))",
        )],
    ),
    Panel::number(
        "p99 of latency",
        Unit::Seconds,
        &[(
            "p99",
            "histogram_quantile(0.99, sum(rate(weir_lab_latency_seconds[$__rate_interval]))) \
             or max(weir_lab_latency_seconds_p99)",
        )],
    ),
    Panel::number("Met thresholds", Unit::Count, &[("met", "sum(weir_lab_threshold_kept)")]),
    Panel::number(
        "p99 of the scheduling delay",
        Unit::Seconds,
        &[(
            "p99",
            "histogram_quantile(0.99, sum(rate(weir_lab_scheduling_delay_seconds[$__rate_interval]))) \
             or max(weir_lab_scheduling_delay_seconds_p99)",
        )],
    ),
    Panel::number(
        "Time since the start",
        Unit::Seconds,
        &[("passed", "max(weir_lab_run_passed_seconds)")],
    ),
];

const CALLS: &[Panel] = &[
    Panel::lines(
        "Calls by class",
        Unit::PerSecond,
        &[("{{class}}", "sum by (class) (rate(weir_lab_calls_total[$__rate_interval]))")],
    ),
    Panel::lines(
        "Results by method",
        Unit::PerSecond,
        &[(
            "{{method}}",
            "sum by (method) (rate(weir_lab_calls_total{class=\"ok\"}[$__rate_interval]))",
        )],
    ),
    Panel::lines(
        "p99 of latency by method",
        Unit::Seconds,
        &[(
            "{{method}}",
            "histogram_quantile(0.99, sum by (method) \
             (rate(weir_lab_latency_seconds[$__rate_interval]))) \
             or max by (method) (weir_lab_latency_seconds_p99)",
        )],
    ),
    Panel::lines(
        "p50 of latency by method",
        Unit::Seconds,
        &[(
            "{{method}}",
            "histogram_quantile(0.5, sum by (method) \
             (rate(weir_lab_latency_seconds[$__rate_interval]))) \
             or max by (method) (weir_lab_latency_seconds_p50)",
        )],
    ),
    Panel::lines(
        "p99 of service time by method",
        Unit::Seconds,
        &[(
            "{{method}}",
            "histogram_quantile(0.99, sum by (method) \
             (rate(weir_lab_service_seconds[$__rate_interval]))) \
             or max by (method) (weir_lab_service_seconds_p99)",
        )],
    ),
    Panel::lines(
        "JSON-RPC errors by code",
        Unit::PerSecond,
        &[(
            "{{method}} {{code}}",
            "sum by (method, code) (rate(weir_lab_rpc_errors_total[$__rate_interval]))",
        )],
    ),
    Panel::lines(
        "HTTP requests by status",
        Unit::PerSecond,
        &[("{{status}}", "sum by (status) (rate(weir_lab_responses_total[$__rate_interval]))")],
    ),
    Panel::lines(
        "Thresholds: 1 is met",
        Unit::Count,
        &[("{{threshold}}", "min by (threshold) (weir_lab_threshold_kept)")],
    ),
    Panel::lines(
        "p50 of Retry-After",
        Unit::Seconds,
        &[(
            "p50",
            "histogram_quantile(0.5, sum(rate(weir_lab_retry_after_seconds[$__rate_interval]))) \
             or max(weir_lab_retry_after_seconds_p50)",
        )],
    ),
];

const GENERATOR: &[Panel] = &[
    Panel::lines(
        "Planned level",
        Unit::Count,
        &[("{{scenario}} {{stage}} {{model}}", "sum by (scenario, stage, model) (weir_lab_level)")],
    ),
    Panel::lines(
        "Iterations",
        Unit::PerSecond,
        &[
            ("scheduled", "sum(rate(weir_lab_iterations_scheduled_total[$__rate_interval]))"),
            ("started", "sum(rate(weir_lab_iterations_started_total[$__rate_interval]))"),
            ("finished", "sum(rate(weir_lab_iterations_ended_total[$__rate_interval]))"),
            ("dropped", "sum(rate(weir_lab_iterations_dropped_total[$__rate_interval]))"),
        ],
    ),
    Panel::lines(
        "Busy workers, calls in flight, waiting iterations",
        Unit::Count,
        &[
            ("busy workers", "sum(weir_lab_workers_busy)"),
            ("calls in flight", "sum(weir_lab_calls_in_flight)"),
            ("waiting iterations", "sum(weir_lab_iterations_waiting)"),
        ],
    ),
    Panel::lines(
        "Busy share of the generator's threads",
        Unit::Share,
        &[("busy", "max(weir_lab_generator_busy_ratio)")],
    ),
    Panel::lines(
        "CPU of the generator: seconds per second",
        Unit::Count,
        &[
            ("used", "sum(rate(weir_lab_generator_cpu_seconds_total[$__rate_interval]))"),
            (
                "waited for a core",
                "sum(rate(weir_lab_generator_run_delay_seconds_total[$__rate_interval]))",
            ),
        ],
    ),
    Panel::lines(
        "p99 of the scheduling delay",
        Unit::Seconds,
        &[(
            "p99",
            "histogram_quantile(0.99, sum(rate(weir_lab_scheduling_delay_seconds[$__rate_interval]))) \
             or max(weir_lab_scheduling_delay_seconds_p99)",
        )],
    ),
];

const CONNECTIONS: &[Panel] = &[
    Panel::lines(
        "Connections by outcome",
        Unit::PerSecond,
        &[("{{outcome}}", "sum by (outcome) (rate(weir_lab_connections_total[$__rate_interval]))")],
    ),
    Panel::lines(
        "TLS handshakes",
        Unit::PerSecond,
        &[("{{kind}}", "sum by (kind) (rate(weir_lab_handshakes_total[$__rate_interval]))")],
    ),
    Panel::lines(
        "Bytes",
        Unit::BytesPerSecond,
        &[
            ("sent", "sum(rate(weir_lab_sent_bytes_total[$__rate_interval]))"),
            ("received", "sum(rate(weir_lab_received_bytes_total[$__rate_interval]))"),
        ],
    ),
];
