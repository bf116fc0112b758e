//! The panels of the gateway's dashboard.

use super::dashboard::{Dashboard, Panel, Row, Unit, Variable};
use super::query::Matcher;

/// Returns the dashboard of gateways.
pub(super) fn dashboard() -> Dashboard {
    Dashboard {
        uid: "weir-gateway",
        title: "Weir gateway",
        description: "Calls, upstreams, chains, limits, cache and process of Weir gateways.",
        from: "now-1h",
        refresh: "10s",
        variables: &[
            Variable { label: "instance", title: "Gateway", metric: "weir_build_info" },
            Variable { label: "chain", title: "Chain", metric: "weir_upstream_state" },
        ],
        // Prometheus adds `instance` to every series. Only some metrics have the label `chain`.
        matchers: &[
            Matcher { label: "instance", text: "instance=~\"$instance\"", on_every_series: true },
            Matcher { label: "chain", text: "chain=~\"$chain\"", on_every_series: false },
        ],
        rows: ROWS,
    }
}

const ROWS: &[Row] = &[
    Row { title: "Overview", panels: OVERVIEW },
    Row { title: "Calls", panels: CALLS },
    Row { title: "Upstreams", panels: UPSTREAMS },
    Row { title: "Chain", panels: CHAIN },
    Row { title: "Overload", panels: OVERLOAD },
    Row { title: "Limits, keys and quotas", panels: LIMITS },
    Row { title: "Cache and index", panels: CACHE },
    Row { title: "Clients and process", panels: PROCESS },
];

const OVERVIEW: &[Panel] = &[
    Panel::number(
        "Calls",
        Unit::PerSecond,
        &[("calls", "sum(rate(weir_calls_total[$__rate_interval]))")],
    ),
    Panel::number(
        "Failed calls",
        Unit::Share,
        &[(
            "failed",
            "sum(rate(weir_call_failures_total[$__rate_interval])) \
             / sum(rate(weir_calls_total[$__rate_interval]))",
        )],
    ),
    Panel::number(
        "p99 of calls",
        Unit::Seconds,
        &[(
            "p99",
            "histogram_quantile(0.99, sum by (le) \
             (rate(weir_call_duration_seconds_bucket[$__rate_interval])))",
        )],
    ),
    Panel::number(
        "Cache hits",
        Unit::Share,
        &[(
            "hits",
            "sum(rate(weir_calls_total{cache=\"hit\"}[$__rate_interval])) \
             / sum(rate(weir_calls_total[$__rate_interval]))",
        )],
    ),
    Panel::number(
        "Healthy upstreams",
        Unit::Count,
        &[("healthy", "sum(weir_upstream_state{state=\"healthy\"})")],
    ),
    Panel::number(
        "Age of the oldest head",
        Unit::Seconds,
        &[("age", "max(weir_chain_head_age_seconds)")],
    ),
];

const CALLS: &[Panel] = &[
    Panel::lines(
        "Calls by cache status",
        Unit::PerSecond,
        &[("{{cache}}", "sum by (cache) (rate(weir_calls_total[$__rate_interval]))")],
    ),
    Panel::lines(
        "Calls by method, the 10 most frequent",
        Unit::PerSecond,
        &[(
            "{{chain}} {{method}}",
            "topk(10, sum by (chain, method) (rate(weir_calls_total[$__rate_interval])))",
        )],
    ),
    Panel::lines(
        "Duration of calls",
        Unit::Seconds,
        &[
            (
                "p50",
                "histogram_quantile(0.5, sum by (le) \
                 (rate(weir_call_duration_seconds_bucket[$__rate_interval])))",
            ),
            (
                "p95",
                "histogram_quantile(0.95, sum by (le) \
                 (rate(weir_call_duration_seconds_bucket[$__rate_interval])))",
            ),
            (
                "p99",
                "histogram_quantile(0.99, sum by (le) \
                 (rate(weir_call_duration_seconds_bucket[$__rate_interval])))",
            ),
        ],
    ),
    Panel::lines(
        "Share of failed calls by method",
        Unit::Share,
        &[(
            "{{chain}} {{method}}",
            "sum by (chain, method) (rate(weir_call_failures_total[$__rate_interval])) \
             / sum by (chain, method) (rate(weir_calls_total[$__rate_interval]))",
        )],
    ),
    Panel::lines(
        "Calls with a JSON-RPC error of an upstream",
        Unit::PerSecond,
        &[(
            "{{chain}} {{method}}",
            "sum by (chain, method) (rate(weir_call_errors_total[$__rate_interval]))",
        )],
    ),
    Panel::lines(
        "p99 by method, the 10 slowest",
        Unit::Seconds,
        &[(
            "{{chain}} {{method}}",
            "topk(10, histogram_quantile(0.99, sum by (le, chain, method) \
             (rate(weir_call_duration_seconds_bucket[$__rate_interval]))))",
        )],
    ),
    Panel::lines(
        "Requests, batches and notifications",
        Unit::PerSecond,
        &[
            ("requests", "sum(rate(weir_requests_total[$__rate_interval]))"),
            ("batches", "sum(rate(weir_batches_total[$__rate_interval]))"),
            ("notifications", "sum(rate(weir_notifications_total[$__rate_interval]))"),
        ],
    ),
    Panel::lines(
        "Refused requests by status",
        Unit::PerSecond,
        &[
            ("{{status}}", "sum by (status) (rate(weir_requests_refused_total[$__rate_interval]))"),
            ("malformed calls", "sum(rate(weir_calls_refused_total[$__rate_interval]))"),
        ],
    ),
    Panel::lines(
        "Second attempts",
        Unit::PerSecond,
        &[
            ("retries", "sum(rate(weir_retries_total[$__rate_interval]))"),
            ("hedges", "sum(rate(weir_hedges_total[$__rate_interval]))"),
            ("hedges that ended first", "sum(rate(weir_hedges_won_total[$__rate_interval]))"),
            ("second opinions", "sum(rate(weir_second_opinions_total[$__rate_interval]))"),
        ],
    ),
];

const UPSTREAMS: &[Panel] = &[
    Panel::lines(
        "State",
        Unit::Count,
        &[(
            "{{chain}} {{upstream}} {{state}}",
            "max by (chain, upstream, state) (weir_upstream_state) == 1",
        )],
    ),
    Panel::lines(
        "Attempts by outcome",
        Unit::PerSecond,
        &[(
            "{{upstream}} {{outcome}}",
            "sum by (upstream, outcome) (rate(weir_upstream_attempts_total[$__rate_interval]))",
        )],
    ),
    Panel::lines(
        "Duration of attempts, p50 and p99",
        Unit::Seconds,
        &[
            (
                "{{upstream}} p50",
                "histogram_quantile(0.5, sum by (le, upstream) \
                 (rate(weir_upstream_attempt_duration_seconds_bucket[$__rate_interval])))",
            ),
            (
                "{{upstream}} p99",
                "histogram_quantile(0.99, sum by (le, upstream) \
                 (rate(weir_upstream_attempt_duration_seconds_bucket[$__rate_interval])))",
            ),
        ],
    ),
    Panel::lines(
        "Attempts in flight",
        Unit::Count,
        &[("{{upstream}}", "sum by (upstream) (weir_upstream_in_flight)")],
    ),
    Panel::lines(
        "Blocks behind the served head",
        Unit::Count,
        &[("{{chain}} {{upstream}}", "max by (chain, upstream) (weir_upstream_lag_blocks)")],
    ),
    Panel::lines(
        "Ejections and readmissions",
        Unit::PerSecond,
        &[
            (
                "{{upstream}} ejected",
                "sum by (upstream) (rate(weir_upstream_ejections_total[$__rate_interval]))",
            ),
            (
                "{{upstream}} readmitted",
                "sum by (upstream) (rate(weir_upstream_readmissions_total[$__rate_interval]))",
            ),
        ],
    ),
    Panel::lines(
        "Connections opened",
        Unit::PerSecond,
        &[(
            "{{upstream}}",
            "sum by (upstream) (rate(weir_upstream_connections_opened_total[$__rate_interval]))",
        )],
    ),
    Panel::lines(
        "Calls over shared connections and in batches",
        Unit::PerSecond,
        &[
            (
                "{{upstream}} shared connection",
                "sum by (upstream) (rate(weir_upstream_multiplexed_calls_total[$__rate_interval]))",
            ),
            (
                "{{upstream}} in batches",
                "sum by (upstream) (rate(weir_upstream_batched_calls_total[$__rate_interval]))",
            ),
        ],
    ),
    Panel::lines(
        "WebSockets and local sockets",
        Unit::Count,
        &[
            (
                "{{upstream}} {{transport}} open",
                "sum by (upstream, transport) (weir_upstream_multiplexed_connections)",
            ),
            (
                "{{upstream}} lost in 5 minutes",
                "sum by (upstream) \
                 (increase(weir_upstream_multiplexed_connections_lost_total[5m]))",
            ),
        ],
    ),
];

const CHAIN: &[Panel] = &[
    Panel::lines(
        "Served head and heads of the upstreams",
        Unit::Count,
        &[
            ("{{chain}} served", "max by (chain) (weir_chain_head)"),
            ("{{chain}} {{upstream}}", "max by (chain, upstream) (weir_upstream_head)"),
        ],
    ),
    Panel::lines(
        "Age of the served head",
        Unit::Seconds,
        &[("{{chain}} {{instance}}", "max by (chain, instance) (weir_chain_head_age_seconds)")],
    ),
    Panel::lines(
        "Reorgs and finality",
        Unit::Count,
        &[
            (
                "{{chain}} reorgs in 1 hour",
                "sum by (chain) (increase(weir_chain_reorgs_total[1h]))",
            ),
            ("{{chain}} deepest", "max by (chain) (weir_chain_reorg_depth_max_blocks)"),
            (
                "{{chain}} blocks to final",
                "max by (chain) (weir_chain_head - weir_chain_finalized)",
            ),
        ],
    ),
];

const OVERLOAD: &[Panel] = &[
    Panel::lines(
        "Calls in flight and their limit",
        Unit::Count,
        &[
            ("{{group}} in flight", "sum by (chain, group) (weir_group_in_flight)"),
            ("{{group}} limit", "sum by (chain, group) (weir_group_in_flight_limit)"),
            ("{{group}} queued", "sum by (chain, group) (weir_group_queued)"),
        ],
    ),
    Panel::lines(
        "p99 of the wait for a permit",
        Unit::Seconds,
        &[(
            "{{group}} {{class}}",
            "histogram_quantile(0.99, sum by (le, group, class) \
             (rate(weir_group_queue_duration_seconds_bucket[$__rate_interval])))",
        )],
    ),
    Panel::lines(
        "Shed calls",
        Unit::PerSecond,
        &[(
            "{{group}} {{class}} {{reason}}",
            "sum by (group, class, reason) (rate(weir_group_shed_total[$__rate_interval]))",
        )],
    ),
    Panel::lines(
        "Upstreams of each group",
        Unit::Count,
        &[
            ("{{group}} healthy", "min by (chain, group) (weir_group_upstreams_healthy)"),
            ("{{group}} called", "min by (chain, group) (weir_group_candidates)"),
        ],
    ),
];

const LIMITS: &[Panel] = &[
    Panel::lines(
        "Calls judged by request limits",
        Unit::PerSecond,
        &[(
            "{{zone}} {{outcome}}",
            "sum by (zone, outcome) (rate(weir_limit_calls_total[$__rate_interval]))",
        )],
    ),
    Panel::lines(
        "Calls that a limit delays",
        Unit::Count,
        &[("delayed", "sum(weir_limit_waiting)")],
    ),
    Panel::lines(
        "Filled share of zones",
        Unit::Share,
        &[("{{zone}}", "max by (zone) (weir_zone_keys / weir_zone_max_keys)")],
    ),
    Panel::lines(
        "Calls in shared zones by judge",
        Unit::PerSecond,
        &[
            ("{{by}}", "sum by (by) (rate(weir_limit_shared_calls_total[$__rate_interval]))"),
            (
                "failed: {{reason}}",
                "sum by (reason) (rate(weir_limit_shared_failures_total[$__rate_interval]))",
            ),
        ],
    ),
    Panel::lines(
        "p99 of judgements in Redis",
        Unit::Seconds,
        &[(
            "p99",
            "histogram_quantile(0.99, sum by (le) \
             (rate(weir_limit_shared_duration_seconds_bucket[$__rate_interval])))",
        )],
    ),
    Panel::lines(
        "Limits and quotas without Redis",
        Unit::Count,
        &[
            ("{{zone}} threads", "sum by (zone) (weir_limit_redis_fallback_threads)"),
            ("gateways with local quotas", "sum(weir_quota_local_only)"),
        ],
    ),
    Panel::lines(
        "Gateways that share limits and quotas",
        Unit::Count,
        &[
            ("counted by {{instance}}", "max by (instance) (weir_redis_gateways)"),
            ("gateways with an old or assumed number", "sum(1 - weir_redis_gateways_current)"),
        ],
    ),
    Panel::lines(
        "Calls by key, the 10 most frequent",
        Unit::PerSecond,
        &[("{{key}}", "topk(10, sum by (key) (rate(weir_key_calls_total[$__rate_interval])))")],
    ),
    Panel::lines(
        "Used share of quotas",
        Unit::Share,
        &[("{{key}}", "topk(10, max by (key) (weir_quota_used_units / weir_quota_limit_units))")],
    ),
    Panel::lines(
        "Denied requests and calls",
        Unit::PerSecond,
        &[
            ("{{reason}}", "sum by (reason) (rate(weir_access_denied_total[$__rate_interval]))"),
            ("quota used up", "sum(rate(weir_quota_refused_total[$__rate_interval]))"),
        ],
    ),
];

const CACHE: &[Panel] = &[
    Panel::lines(
        "Bytes in memory and their limit",
        Unit::Bytes,
        &[
            ("{{instance}}", "sum by (instance) (weir_cache_bytes)"),
            ("{{instance}} limit", "sum by (instance) (weir_cache_max_bytes)"),
        ],
    ),
    Panel::lines(
        "Stored and refused responses",
        Unit::PerSecond,
        &[
            ("stored", "sum(rate(weir_cache_fills_total[$__rate_interval]))"),
            ("refused", "sum(rate(weir_cache_fills_refused_total[$__rate_interval]))"),
        ],
    ),
    Panel::lines(
        "Lookups in Redis",
        Unit::PerSecond,
        &[("{{outcome}}", "sum by (outcome) (rate(weir_redis_lookups_total[$__rate_interval]))")],
    ),
    Panel::lines(
        "p99 of exchanges with Redis",
        Unit::Seconds,
        &[(
            "p99",
            "histogram_quantile(0.99, sum by (le) \
             (rate(weir_redis_lookup_duration_seconds_bucket[$__rate_interval])))",
        )],
    ),
    Panel::lines(
        "Stores in Redis",
        Unit::PerSecond,
        &[("{{outcome}}", "sum by (outcome) (rate(weir_redis_stores_total[$__rate_interval]))")],
    ),
    Panel::lines(
        "Open circuit breakers to Redis",
        Unit::Count,
        &[("{{instance}}", "sum by (instance) (weir_redis_breakers_open)")],
    ),
    Panel::lines(
        "Lookups in the index",
        Unit::PerSecond,
        &[("{{outcome}}", "sum by (outcome) (rate(weir_index_lookups_total[$__rate_interval]))")],
    ),
];

const PROCESS: &[Panel] = &[
    Panel::lines(
        "Client connections",
        Unit::Count,
        &[
            ("open", "sum(weir_connections_open)"),
            ("WebSockets", "sum(weir_websockets_open)"),
            ("subscriptions", "sum(weir_subscriptions_open)"),
        ],
    ),
    Panel::lines(
        "New client connections",
        Unit::PerSecond,
        &[
            ("accepted", "sum(rate(weir_connections_accepted_total[$__rate_interval]))"),
            ("refused", "sum(rate(weir_connections_refused_total[$__rate_interval]))"),
        ],
    ),
    Panel::lines(
        "TLS handshakes",
        Unit::PerSecond,
        &[
            (
                "{{version}} {{handshake}}",
                "sum by (version, handshake) \
                 (rate(weir_tls_handshakes_total[$__rate_interval]))",
            ),
            (
                "failed: {{reason}}",
                "sum by (reason) (rate(weir_tls_handshakes_failed_total[$__rate_interval]))",
            ),
        ],
    ),
    Panel::lines(
        "Time until certificates expire",
        Unit::Seconds,
        &[(
            "{{certificate}}",
            "min by (certificate) (weir_certificate_expiry_timestamp_seconds) - time()",
        )],
    ),
    Panel::lines(
        "Memory for bodies, responses and queues",
        Unit::Bytes,
        &[
            ("{{purpose}}", "sum by (purpose) (weir_memory_held_bytes)"),
            ("limit", "sum(weir_memory_max_bytes)"),
        ],
    ),
    Panel::lines(
        "Refusals by the memory budget",
        Unit::PerSecond,
        &[
            (
                "{{purpose}}",
                "sum by (purpose) (rate(weir_memory_refusals_total[$__rate_interval]))",
            ),
            (
                "closed connections",
                "sum(rate(weir_memory_connections_closed_total[$__rate_interval]))",
            ),
        ],
    ),
    Panel::lines(
        "Access log",
        Unit::PerSecond,
        &[
            ("lines", "sum(rate(weir_access_log_lines_total[$__rate_interval]))"),
            ("dropped", "sum(rate(weir_access_log_dropped_total[$__rate_interval]))"),
        ],
    ),
    Panel::lines(
        "Reloads",
        Unit::Count,
        &[
            ("{{instance}} generation", "max by (instance) (weir_config_generation)"),
            ("{{instance}} last reload applied", "min by (instance) (weir_reload_last_applied)"),
        ],
    ),
    Panel::lines(
        "Uptime",
        Unit::Seconds,
        &[("{{instance}}", "max by (instance) (weir_uptime_seconds)")],
    ),
    Panel::lines(
        "Versions",
        Unit::Count,
        &[("{{version}}", "count by (version) (weir_build_info)")],
    ),
];
