//! The recording rules: shares and rates that several alerts need or that operators often query.
//!
//! Names follow Prometheus' scheme LEVEL:METRIC:OPERATION, for example `chain:weir_calls:rate5m`.
//! The level lists the labels that remain after aggregation. It omits the labels that identify the
//! gateway, which always remain. See <https://prometheus.io/docs/practices/rules/>.

/// A recording rule.
#[derive(Debug)]
pub(super) struct Recording {
    /// The name of the series that Prometheus stores.
    pub(super) name: &'static str,
    /// PromQL. Its results are the values of the stored series.
    pub(super) query: &'static str,
    /// The help text of the series.
    pub(super) meaning: &'static str,
}

/// Every recording rule.
pub(super) const RECORDINGS: &[Recording] = &[
    Recording {
        name: "chain:weir_calls:rate5m",
        query: "sum without (method, cache) (rate(weir_calls_total[5m]))",
        meaning: "Calls per second.",
    },
    Recording {
        name: "chain:weir_call_failures:ratio_rate5m",
        query: "sum without (method) (rate(weir_call_failures_total[5m]))\n\
                / sum without (method, cache) (rate(weir_calls_total[5m]))",
        meaning: "Share of calls that no upstream answered.",
    },
    Recording {
        name: "chain:weir_calls_hit:ratio_rate5m",
        query: "sum without (method, cache) (rate(weir_calls_total{cache=\"hit\"}[5m]))\n\
                / sum without (method, cache) (rate(weir_calls_total[5m]))",
        meaning: "Share of calls answered from a cache.",
    },
    Recording {
        name: "chain:weir_call_duration_seconds:p99_rate5m",
        query: "histogram_quantile(0.99,\n  \
                sum without (method) (rate(weir_call_duration_seconds_bucket[5m])))",
        meaning: "99th percentile of the duration of calls.",
    },
    Recording {
        name: "chain:weir_chain_head:deriv1h",
        query: "deriv(weir_chain_head[1h])",
        meaning: "Blocks per second.",
    },
    Recording {
        name: "upstream:weir_upstream_attempts_failed:ratio_rate5m",
        query: "sum without (outcome) (rate(weir_upstream_attempts_total{outcome=\"failed\"}[5m]))\n\
                / sum without (outcome) (rate(weir_upstream_attempts_total[5m]))",
        meaning: "Share of attempts that the upstream failed.",
    },
    Recording {
        name: "upstream:weir_upstream_attempts_rate_limited:ratio_rate5m",
        query: "sum without (outcome)\n  \
                (rate(weir_upstream_attempts_total{outcome=\"rate_limited\"}[5m]))\n\
                / sum without (outcome) (rate(weir_upstream_attempts_total[5m]))",
        meaning: "Share of attempts that the upstream refused by its own rate limit.",
    },
    Recording {
        name: "upstream:weir_upstream_attempt_duration_seconds:p95_rate5m",
        query: "histogram_quantile(0.95, rate(weir_upstream_attempt_duration_seconds_bucket[5m]))",
        meaning: "95th percentile of the duration of attempts.",
    },
    Recording {
        name: "zone:weir_limit_calls_rejected:ratio_rate5m",
        query: "sum without (outcome) (rate(weir_limit_calls_total{outcome=\"rejected\"}[5m]))\n\
                / sum without (outcome) (rate(weir_limit_calls_total[5m]))",
        meaning: "Share of judged calls that a request limit rejected.",
    },
];
