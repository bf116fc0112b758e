//! The panels of the dashboard of a load run, which pushes its metrics by remote write.
//!
//! A distribution is a native histogram or one gauge for each statistic, as `--metric-trends` says.
//! Its queries take the histogram and, if there is none, the gauges.

use super::dashboard::Shape::{Lines, Number};
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
        matchers: &[Matcher { label: "testid", text: "testid=~\"$testid\"", everywhere: true }],
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
    Panel {
        title: "Results",
        shape: Number,
        unit: Unit::PerSecond,
        queries: &[("results", "sum(rate(weir_lab_calls_total{class=\"ok\"}[$__rate_interval]))")],
    },
    Panel {
        title: "Calls without a result",
        shape: Number,
        unit: Unit::Share,
        queries: &[(
            "without a result",
            "1 - sum(rate(weir_lab_calls_total{class=\"ok\"}[$__rate_interval])) \
             / sum(rate(weir_lab_calls_total[$__rate_interval]))",
        )],
    },
    Panel {
        title: "p99 of latency",
        shape: Number,
        unit: Unit::Seconds,
        queries: &[(
            "p99",
            "histogram_quantile(0.99, sum(rate(weir_lab_latency_seconds[$__rate_interval]))) \
             or max(weir_lab_latency_seconds_p99)",
        )],
    },
    Panel {
        title: "Met thresholds",
        shape: Number,
        unit: Unit::Count,
        queries: &[("met", "sum(weir_lab_threshold_kept)")],
    },
    Panel {
        title: "p99 of the scheduling delay",
        shape: Number,
        unit: Unit::Seconds,
        queries: &[(
            "p99",
            "histogram_quantile(0.99, sum(rate(weir_lab_scheduling_delay_seconds[$__rate_interval]))) \
             or max(weir_lab_scheduling_delay_seconds_p99)",
        )],
    },
    Panel {
        title: "Time since the start",
        shape: Number,
        unit: Unit::Seconds,
        queries: &[("passed", "max(weir_lab_run_passed_seconds)")],
    },
];

const CALLS: &[Panel] = &[
    Panel {
        title: "Calls by class",
        shape: Lines,
        unit: Unit::PerSecond,
        queries: &[("{{class}}", "sum by (class) (rate(weir_lab_calls_total[$__rate_interval]))")],
    },
    Panel {
        title: "Results by method",
        shape: Lines,
        unit: Unit::PerSecond,
        queries: &[(
            "{{method}}",
            "sum by (method) (rate(weir_lab_calls_total{class=\"ok\"}[$__rate_interval]))",
        )],
    },
    Panel {
        title: "p99 of latency by method",
        shape: Lines,
        unit: Unit::Seconds,
        queries: &[(
            "{{method}}",
            "histogram_quantile(0.99, sum by (method) \
             (rate(weir_lab_latency_seconds[$__rate_interval]))) \
             or max by (method) (weir_lab_latency_seconds_p99)",
        )],
    },
    Panel {
        title: "p50 of latency by method",
        shape: Lines,
        unit: Unit::Seconds,
        queries: &[(
            "{{method}}",
            "histogram_quantile(0.5, sum by (method) \
             (rate(weir_lab_latency_seconds[$__rate_interval]))) \
             or max by (method) (weir_lab_latency_seconds_p50)",
        )],
    },
    Panel {
        title: "p99 of service time by method",
        shape: Lines,
        unit: Unit::Seconds,
        queries: &[(
            "{{method}}",
            "histogram_quantile(0.99, sum by (method) \
             (rate(weir_lab_service_seconds[$__rate_interval]))) \
             or max by (method) (weir_lab_service_seconds_p99)",
        )],
    },
    Panel {
        title: "JSON-RPC errors by code",
        shape: Lines,
        unit: Unit::PerSecond,
        queries: &[(
            "{{method}} {{code}}",
            "sum by (method, code) (rate(weir_lab_rpc_errors_total[$__rate_interval]))",
        )],
    },
    Panel {
        title: "HTTP requests by status",
        shape: Lines,
        unit: Unit::PerSecond,
        queries: &[(
            "{{status}}",
            "sum by (status) (rate(weir_lab_responses_total[$__rate_interval]))",
        )],
    },
    Panel {
        title: "Thresholds: 1 is met",
        shape: Lines,
        unit: Unit::Count,
        queries: &[("{{threshold}}", "min by (threshold) (weir_lab_threshold_kept)")],
    },
    Panel {
        title: "p50 of Retry-After",
        shape: Lines,
        unit: Unit::Seconds,
        queries: &[(
            "p50",
            "histogram_quantile(0.5, sum(rate(weir_lab_retry_after_seconds[$__rate_interval]))) \
             or max(weir_lab_retry_after_seconds_p50)",
        )],
    },
];

const GENERATOR: &[Panel] = &[
    Panel {
        title: "Planned level",
        shape: Lines,
        unit: Unit::Count,
        queries: &[(
            "{{scenario}} {{stage}} {{model}}",
            "sum by (scenario, stage, model) (weir_lab_level)",
        )],
    },
    Panel {
        title: "Iterations",
        shape: Lines,
        unit: Unit::PerSecond,
        queries: &[
            ("scheduled", "sum(rate(weir_lab_iterations_scheduled_total[$__rate_interval]))"),
            ("started", "sum(rate(weir_lab_iterations_started_total[$__rate_interval]))"),
            ("finished", "sum(rate(weir_lab_iterations_ended_total[$__rate_interval]))"),
            ("dropped", "sum(rate(weir_lab_iterations_dropped_total[$__rate_interval]))"),
        ],
    },
    Panel {
        title: "Busy workers, calls in flight, waiting iterations",
        shape: Lines,
        unit: Unit::Count,
        queries: &[
            ("busy workers", "sum(weir_lab_workers_busy)"),
            ("calls in flight", "sum(weir_lab_calls_in_flight)"),
            ("waiting iterations", "sum(weir_lab_iterations_waiting)"),
        ],
    },
    Panel {
        title: "Busy share of the generator's threads",
        shape: Lines,
        unit: Unit::Share,
        queries: &[("busy", "max(weir_lab_generator_busy_ratio)")],
    },
    Panel {
        title: "CPU of the generator: seconds per second",
        shape: Lines,
        unit: Unit::Count,
        queries: &[
            ("used", "sum(rate(weir_lab_generator_cpu_seconds_total[$__rate_interval]))"),
            (
                "waited for a core",
                "sum(rate(weir_lab_generator_run_delay_seconds_total[$__rate_interval]))",
            ),
        ],
    },
    Panel {
        title: "p99 of the scheduling delay",
        shape: Lines,
        unit: Unit::Seconds,
        queries: &[(
            "p99",
            "histogram_quantile(0.99, sum(rate(weir_lab_scheduling_delay_seconds[$__rate_interval]))) \
             or max(weir_lab_scheduling_delay_seconds_p99)",
        )],
    },
];

const CONNECTIONS: &[Panel] = &[
    Panel {
        title: "Connections by outcome",
        shape: Lines,
        unit: Unit::PerSecond,
        queries: &[(
            "{{outcome}}",
            "sum by (outcome) (rate(weir_lab_connections_total[$__rate_interval]))",
        )],
    },
    Panel {
        title: "TLS handshakes",
        shape: Lines,
        unit: Unit::PerSecond,
        queries: &[(
            "{{kind}}",
            "sum by (kind) (rate(weir_lab_handshakes_total[$__rate_interval]))",
        )],
    },
    Panel {
        title: "Bytes",
        shape: Lines,
        unit: Unit::BytesPerSecond,
        queries: &[
            ("sent", "sum(rate(weir_lab_sent_bytes_total[$__rate_interval]))"),
            ("received", "sum(rate(weir_lab_received_bytes_total[$__rate_interval]))"),
        ],
    },
];
