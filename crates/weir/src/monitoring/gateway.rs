//! The panels of the gateway's dashboard.

use super::dashboard::Shape::{Lines, Number};
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
        matchers: &[
            Matcher { label: "instance", text: "instance=~\"$instance\"", everywhere: true },
            Matcher { label: "chain", text: "chain=~\"$chain\"", everywhere: false },
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
    Panel {
        title: "Calls",
        shape: Number,
        unit: Unit::PerSecond,
        queries: &[("calls", "sum(rate(weir_calls_total[$__rate_interval]))")],
    },
    Panel {
        title: "Failed calls",
        shape: Number,
        unit: Unit::Share,
        queries: &[(
            "failed",
            "sum(rate(weir_call_failures_total[$__rate_interval])) \
             / sum(rate(weir_calls_total[$__rate_interval]))",
        )],
    },
    Panel {
        title: "p99 of calls",
        shape: Number,
        unit: Unit::Seconds,
        queries: &[(
            "p99",
            "histogram_quantile(0.99, sum by (le) \
             (rate(weir_call_duration_seconds_bucket[$__rate_interval])))",
        )],
    },
    Panel {
        title: "Cache hits",
        shape: Number,
        unit: Unit::Share,
        queries: &[(
            "hits",
            "sum(rate(weir_calls_total{cache=\"hit\"}[$__rate_interval])) \
             / sum(rate(weir_calls_total[$__rate_interval]))",
        )],
    },
    Panel {
        title: "Healthy upstreams",
        shape: Number,
        unit: Unit::Count,
        queries: &[("healthy", "sum(weir_upstream_state{state=\"healthy\"})")],
    },
    Panel {
        title: "Age of the oldest head",
        shape: Number,
        unit: Unit::Seconds,
        queries: &[("age", "max(weir_chain_head_age_seconds)")],
    },
];

const CALLS: &[Panel] = &[
    Panel {
        title: "Calls by cache status",
        shape: Lines,
        unit: Unit::PerSecond,
        queries: &[("{{cache}}", "sum by (cache) (rate(weir_calls_total[$__rate_interval]))")],
    },
    Panel {
        title: "Calls by method, the 10 most frequent",
        shape: Lines,
        unit: Unit::PerSecond,
        queries: &[(
            "{{chain}} {{method}}",
            "topk(10, sum by (chain, method) (rate(weir_calls_total[$__rate_interval])))",
        )],
    },
    Panel {
        title: "Duration of calls",
        shape: Lines,
        unit: Unit::Seconds,
        queries: &[
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
    },
    Panel {
        title: "Share of failed calls by method",
        shape: Lines,
        unit: Unit::Share,
        queries: &[(
            "{{chain}} {{method}}",
            "sum by (chain, method) (rate(weir_call_failures_total[$__rate_interval])) \
             / sum by (chain, method) (rate(weir_calls_total[$__rate_interval]))",
        )],
    },
    Panel {
        title: "Calls with a JSON-RPC error of an upstream",
        shape: Lines,
        unit: Unit::PerSecond,
        queries: &[(
            "{{chain}} {{method}}",
            "sum by (chain, method) (rate(weir_call_errors_total[$__rate_interval]))",
        )],
    },
    Panel {
        title: "p99 by method, the 10 slowest",
        shape: Lines,
        unit: Unit::Seconds,
        queries: &[(
            "{{chain}} {{method}}",
            "topk(10, histogram_quantile(0.99, sum by (le, chain, method) \
             (rate(weir_call_duration_seconds_bucket[$__rate_interval]))))",
        )],
    },
    Panel {
        title: "Requests, batches and notifications",
        shape: Lines,
        unit: Unit::PerSecond,
        queries: &[
            ("requests", "sum(rate(weir_requests_total[$__rate_interval]))"),
            ("batches", "sum(rate(weir_batches_total[$__rate_interval]))"),
            ("notifications", "sum(rate(weir_notifications_total[$__rate_interval]))"),
        ],
    },
    Panel {
        title: "Refused requests by status",
        shape: Lines,
        unit: Unit::PerSecond,
        queries: &[
            ("{{status}}", "sum by (status) (rate(weir_requests_refused_total[$__rate_interval]))"),
            ("malformed calls", "sum(rate(weir_calls_refused_total[$__rate_interval]))"),
        ],
    },
    Panel {
        title: "Second attempts",
        shape: Lines,
        unit: Unit::PerSecond,
        queries: &[
            ("retries", "sum(rate(weir_retries_total[$__rate_interval]))"),
            ("hedges", "sum(rate(weir_hedges_total[$__rate_interval]))"),
            ("hedges that ended first", "sum(rate(weir_hedges_won_total[$__rate_interval]))"),
            ("second opinions", "sum(rate(weir_second_opinions_total[$__rate_interval]))"),
        ],
    },
];

const UPSTREAMS: &[Panel] = &[
    Panel {
        title: "State",
        shape: Lines,
        unit: Unit::Count,
        queries: &[(
            "{{chain}} {{upstream}} {{state}}",
            "max by (chain, upstream, state) (weir_upstream_state) == 1",
        )],
    },
    Panel {
        title: "Attempts by outcome",
        shape: Lines,
        unit: Unit::PerSecond,
        queries: &[(
            "{{upstream}} {{outcome}}",
            "sum by (upstream, outcome) (rate(weir_upstream_attempts_total[$__rate_interval]))",
        )],
    },
    Panel {
        title: "Duration of attempts, p50 and p99",
        shape: Lines,
        unit: Unit::Seconds,
        queries: &[
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
    },
    Panel {
        title: "Attempts in flight",
        shape: Lines,
        unit: Unit::Count,
        queries: &[("{{upstream}}", "sum by (upstream) (weir_upstream_in_flight)")],
    },
    Panel {
        title: "Blocks behind the served head",
        shape: Lines,
        unit: Unit::Count,
        queries: &[(
            "{{chain}} {{upstream}}",
            "max by (chain, upstream) (weir_upstream_lag_blocks)",
        )],
    },
    Panel {
        title: "Ejections and readmissions",
        shape: Lines,
        unit: Unit::PerSecond,
        queries: &[
            (
                "{{upstream}} ejected",
                "sum by (upstream) (rate(weir_upstream_ejections_total[$__rate_interval]))",
            ),
            (
                "{{upstream}} readmitted",
                "sum by (upstream) (rate(weir_upstream_readmissions_total[$__rate_interval]))",
            ),
        ],
    },
    Panel {
        title: "Connections opened",
        shape: Lines,
        unit: Unit::PerSecond,
        queries: &[(
            "{{upstream}}",
            "sum by (upstream) (rate(weir_upstream_connections_opened_total[$__rate_interval]))",
        )],
    },
    Panel {
        title: "Calls over shared connections and in batches",
        shape: Lines,
        unit: Unit::PerSecond,
        queries: &[
            (
                "{{upstream}} shared connection",
                "sum by (upstream) (rate(weir_upstream_multiplexed_calls_total[$__rate_interval]))",
            ),
            (
                "{{upstream}} in batches",
                "sum by (upstream) (rate(weir_upstream_batched_calls_total[$__rate_interval]))",
            ),
        ],
    },
    Panel {
        title: "WebSockets and local sockets",
        shape: Lines,
        unit: Unit::Count,
        queries: &[
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
    },
];

const CHAIN: &[Panel] = &[
    Panel {
        title: "Served head and heads of the upstreams",
        shape: Lines,
        unit: Unit::Count,
        queries: &[
            ("{{chain}} served", "max by (chain) (weir_chain_head)"),
            ("{{chain}} {{upstream}}", "max by (chain, upstream) (weir_upstream_head)"),
        ],
    },
    Panel {
        title: "Age of the served head",
        shape: Lines,
        unit: Unit::Seconds,
        queries: &[(
            "{{chain}} {{instance}}",
            "max by (chain, instance) (weir_chain_head_age_seconds)",
        )],
    },
    Panel {
        title: "Reorgs and finality",
        shape: Lines,
        unit: Unit::Count,
        queries: &[
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
    },
];

const OVERLOAD: &[Panel] = &[
    Panel {
        title: "Calls in flight and their limit",
        shape: Lines,
        unit: Unit::Count,
        queries: &[
            ("{{group}} in flight", "sum by (chain, group) (weir_group_in_flight)"),
            ("{{group}} limit", "sum by (chain, group) (weir_group_in_flight_limit)"),
            ("{{group}} queued", "sum by (chain, group) (weir_group_queued)"),
        ],
    },
    Panel {
        title: "p99 of the wait for a permit",
        shape: Lines,
        unit: Unit::Seconds,
        queries: &[(
            "{{group}} {{class}}",
            "histogram_quantile(0.99, sum by (le, group, class) \
             (rate(weir_group_queue_duration_seconds_bucket[$__rate_interval])))",
        )],
    },
    Panel {
        title: "Shed calls",
        shape: Lines,
        unit: Unit::PerSecond,
        queries: &[(
            "{{group}} {{class}} {{reason}}",
            "sum by (group, class, reason) (rate(weir_group_shed_total[$__rate_interval]))",
        )],
    },
    Panel {
        title: "Upstreams of each group",
        shape: Lines,
        unit: Unit::Count,
        queries: &[
            ("{{group}} healthy", "min by (chain, group) (weir_group_upstreams_healthy)"),
            ("{{group}} called", "min by (chain, group) (weir_group_candidates)"),
        ],
    },
];

const LIMITS: &[Panel] = &[
    Panel {
        title: "Calls judged by request limits",
        shape: Lines,
        unit: Unit::PerSecond,
        queries: &[(
            "{{zone}} {{outcome}}",
            "sum by (zone, outcome) (rate(weir_limit_calls_total[$__rate_interval]))",
        )],
    },
    Panel {
        title: "Calls that a limit delays",
        shape: Lines,
        unit: Unit::Count,
        queries: &[("delayed", "sum(weir_limit_waiting)")],
    },
    Panel {
        title: "Filled share of zones",
        shape: Lines,
        unit: Unit::Share,
        queries: &[("{{zone}}", "max by (zone) (weir_zone_keys / weir_zone_max_keys)")],
    },
    Panel {
        title: "Calls in shared zones by judge",
        shape: Lines,
        unit: Unit::PerSecond,
        queries: &[
            ("{{by}}", "sum by (by) (rate(weir_limit_shared_calls_total[$__rate_interval]))"),
            (
                "failed: {{reason}}",
                "sum by (reason) (rate(weir_limit_shared_failures_total[$__rate_interval]))",
            ),
        ],
    },
    Panel {
        title: "p99 of judgements in Redis",
        shape: Lines,
        unit: Unit::Seconds,
        queries: &[(
            "p99",
            "histogram_quantile(0.99, sum by (le) \
             (rate(weir_limit_shared_duration_seconds_bucket[$__rate_interval])))",
        )],
    },
    Panel {
        title: "Limits and quotas without Redis",
        shape: Lines,
        unit: Unit::Count,
        queries: &[
            ("{{zone}} threads", "sum by (zone) (weir_limit_redis_fallback_threads)"),
            ("gateways with local quotas", "sum(weir_quota_local_only)"),
        ],
    },
    Panel {
        title: "Gateways that share limits and quotas",
        shape: Lines,
        unit: Unit::Count,
        queries: &[
            ("counted by {{instance}}", "max by (instance) (weir_redis_gateways)"),
            ("gateways with an old or assumed number", "sum(1 - weir_redis_gateways_current)"),
        ],
    },
    Panel {
        title: "Calls by key, the 10 most frequent",
        shape: Lines,
        unit: Unit::PerSecond,
        queries: &[(
            "{{key}}",
            "topk(10, sum by (key) (rate(weir_key_calls_total[$__rate_interval])))",
        )],
    },
    Panel {
        title: "Used share of quotas",
        shape: Lines,
        unit: Unit::Share,
        queries: &[(
            "{{key}}",
            "topk(10, max by (key) (weir_quota_used_units / weir_quota_limit_units))",
        )],
    },
    Panel {
        title: "Denied requests and calls",
        shape: Lines,
        unit: Unit::PerSecond,
        queries: &[
            ("{{reason}}", "sum by (reason) (rate(weir_access_denied_total[$__rate_interval]))"),
            ("quota used up", "sum(rate(weir_quota_refused_total[$__rate_interval]))"),
        ],
    },
];

const CACHE: &[Panel] = &[
    Panel {
        title: "Bytes in memory and their limit",
        shape: Lines,
        unit: Unit::Bytes,
        queries: &[
            ("{{instance}}", "sum by (instance) (weir_cache_bytes)"),
            ("{{instance}} limit", "sum by (instance) (weir_cache_max_bytes)"),
        ],
    },
    Panel {
        title: "Stored and refused responses",
        shape: Lines,
        unit: Unit::PerSecond,
        queries: &[
            ("stored", "sum(rate(weir_cache_fills_total[$__rate_interval]))"),
            ("refused", "sum(rate(weir_cache_fills_refused_total[$__rate_interval]))"),
        ],
    },
    Panel {
        title: "Lookups in Redis",
        shape: Lines,
        unit: Unit::PerSecond,
        queries: &[(
            "{{outcome}}",
            "sum by (outcome) (rate(weir_redis_lookups_total[$__rate_interval]))",
        )],
    },
    Panel {
        title: "p99 of exchanges with Redis",
        shape: Lines,
        unit: Unit::Seconds,
        queries: &[(
            "p99",
            "histogram_quantile(0.99, sum by (le) \
             (rate(weir_redis_lookup_duration_seconds_bucket[$__rate_interval])))",
        )],
    },
    Panel {
        title: "Stores in Redis",
        shape: Lines,
        unit: Unit::PerSecond,
        queries: &[(
            "{{outcome}}",
            "sum by (outcome) (rate(weir_redis_stores_total[$__rate_interval]))",
        )],
    },
    Panel {
        title: "Open circuit breakers to Redis",
        shape: Lines,
        unit: Unit::Count,
        queries: &[("{{instance}}", "sum by (instance) (weir_redis_breakers_open)")],
    },
    Panel {
        title: "Lookups in the index",
        shape: Lines,
        unit: Unit::PerSecond,
        queries: &[(
            "{{outcome}}",
            "sum by (outcome) (rate(weir_index_lookups_total[$__rate_interval]))",
        )],
    },
];

const PROCESS: &[Panel] = &[
    Panel {
        title: "Client connections",
        shape: Lines,
        unit: Unit::Count,
        queries: &[
            ("open", "sum(weir_connections_open)"),
            ("WebSockets", "sum(weir_websockets_open)"),
            ("subscriptions", "sum(weir_subscriptions_open)"),
        ],
    },
    Panel {
        title: "New client connections",
        shape: Lines,
        unit: Unit::PerSecond,
        queries: &[
            ("accepted", "sum(rate(weir_connections_accepted_total[$__rate_interval]))"),
            ("refused", "sum(rate(weir_connections_refused_total[$__rate_interval]))"),
        ],
    },
    Panel {
        title: "TLS handshakes",
        shape: Lines,
        unit: Unit::PerSecond,
        queries: &[
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
    },
    Panel {
        title: "Time until certificates expire",
        shape: Lines,
        unit: Unit::Seconds,
        queries: &[(
            "{{certificate}}",
            "min by (certificate) (weir_certificate_expiry_timestamp_seconds) - time()",
        )],
    },
    Panel {
        title: "Memory for bodies, responses and queues",
        shape: Lines,
        unit: Unit::Bytes,
        queries: &[
            ("{{purpose}}", "sum by (purpose) (weir_memory_held_bytes)"),
            ("limit", "sum(weir_memory_max_bytes)"),
        ],
    },
    Panel {
        title: "Refusals by the memory budget",
        shape: Lines,
        unit: Unit::PerSecond,
        queries: &[
            (
                "{{purpose}}",
                "sum by (purpose) (rate(weir_memory_refusals_total[$__rate_interval]))",
            ),
            (
                "closed connections",
                "sum(rate(weir_memory_connections_closed_total[$__rate_interval]))",
            ),
        ],
    },
    Panel {
        title: "Access log",
        shape: Lines,
        unit: Unit::PerSecond,
        queries: &[
            ("lines", "sum(rate(weir_access_log_lines_total[$__rate_interval]))"),
            ("dropped", "sum(rate(weir_access_log_dropped_total[$__rate_interval]))"),
        ],
    },
    Panel {
        title: "Reloads",
        shape: Lines,
        unit: Unit::Count,
        queries: &[
            ("{{instance}} generation", "max by (instance) (weir_config_generation)"),
            ("{{instance}} last reload applied", "min by (instance) (weir_reload_last_applied)"),
        ],
    },
    Panel {
        title: "Uptime",
        shape: Lines,
        unit: Unit::Seconds,
        queries: &[("{{instance}}", "max by (instance) (weir_uptime_seconds)")],
    },
    Panel {
        title: "Versions",
        shape: Lines,
        unit: Unit::Count,
        queries: &[("{{version}}", "count by (version) (weir_build_info)")],
    },
];
