//! The alerts. Each declaration has the meaning of the alert, the evidence to look at and the
//! actions to take. `docs/alerts.md` is generated from the declarations.
//!
//! Queries keep the labels of the gateway, so that an alert names the gateway. `deploy/prometheus`
//! has test cases in which each alert fires, and cases in which it does not fire.

/// An alert.
#[derive(Debug)]
pub(super) struct Alert {
    pub(super) name: &'static str,
    /// PromQL. Prometheus raises one alert for each series that the query returns.
    pub(super) query: &'static str,
    /// Time for which the query must return a series before the alert fires, such as `5m`.
    pub(super) hold: &'static str,
    pub(super) severity: Severity,
    /// Description of the event that raised the alert, as a template of Prometheus.
    pub(super) summary: &'static str,
    /// Description of the event's consequence, as a template of Prometheus.
    pub(super) description: &'static str,
    /// The explanation on the page about alerts. Its first sentence is also in the page's overview.
    pub(super) meaning: &'static str,
    /// Places to look for evidence, as noun phrases.
    pub(super) look: &'static [&'static str],
    /// Actions, as sentences. The most likely action is first.
    pub(super) act: &'static [&'static str],
}

/// The urgency of an alert: when an operator must act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Severity {
    /// An operator must act now.
    Critical,
    /// An operator must act today.
    Warning,
    /// An operator may act at a convenient time.
    Info,
}

impl Severity {
    /// Returns the value of the label.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Severity::Critical => "critical",
            Severity::Warning => "warning",
            Severity::Info => "info",
        }
    }
}

/// Every alert, in the order of the page.
pub(super) const ALERTS: &[Alert] = &[
    Alert {
        name: "WeirDown",
        query: "up{job=~\".*weir.*\"} == 0",
        hold: "1m",
        severity: Severity::Critical,
        summary: "Prometheus cannot scrape the gateway {{ $labels.instance }}.",
        description: "The gateway is down, or its admin address cannot be reached.",
        meaning: "Prometheus gets no metrics from the gateway. It may be down, or it may serve \
                  calls while Prometheus has no way to it.",
        look: &[
            "the log of the process, and why it ended",
            "`curl http://ADDRESS/healthz` from the machine of Prometheus, with the address that it \
             scrapes",
        ],
        act: &[
            "Start the gateway, and keep the log.",
            "Fix the network, `server.admin` or `server.health` if the gateway serves calls.",
        ],
    },
    Alert {
        name: "WeirRestarting",
        query: "resets(weir_uptime_seconds[15m]) > 2",
        hold: "0m",
        severity: Severity::Warning,
        summary: "The gateway {{ $labels.instance }} has restarted {{ $value | humanize }} times \
                  in 15 minutes.",
        description: "Each restart loses the cache in memory and the connections of clients.",
        meaning: "The process ends and starts again and again, or somebody replaces it often.",
        look: &[
            "the log before each start",
            "limits of memory of the container or unit, such as an out-of-memory kill",
        ],
        act: &[
            "Lower `server.memory_max` or `cache.bytes_max`, or raise the limit of the container.",
            "Report a panic in the log as a bug.",
        ],
    },
    Alert {
        name: "WeirNoHead",
        query: "count without (upstream) (weir_upstream_at_head)\n\
                unless weir_chain_head",
        hold: "2m",
        severity: Severity::Critical,
        summary: "The gateway {{ $labels.instance }} has no head of chain {{ $labels.chain }}.",
        description: "No upstream has confirmed a head, so calls about the newest block fail.",
        meaning: "The gateway has had no head of the chain since its start. Either no upstream \
                  can be reached, or none has the chain id that is configured.",
        look: &[
            "`/status`: the state and the head of each upstream",
            "the log: why the polls fail",
        ],
        act: &[
            "Fix the upstreams' addresses, credentials or network.",
            "Correct `chain.NAME.id` if every upstream is foreign.",
        ],
    },
    Alert {
        name: "WeirHeadStale",
        query: "weir_chain_head_age_seconds > 60\n\
                and (\n  \
                weir_chain_head_age_seconds * avg_over_time(chain:weir_chain_head:deriv1h[1d]) > 10\n  \
                or weir_chain_head_age_seconds > 7200\n\
                )",
        hold: "1m",
        severity: Severity::Critical,
        summary: "The head of chain {{ $labels.chain }} has not changed for {{ $value | \
                  humanizeDuration }}.",
        description: "The gateway {{ $labels.instance }} serves an old head: the chain should \
                      have made more than 10 blocks meanwhile, or two hours have passed.",
        meaning: "The served head has stopped. By the mean rate of blocks over the last day, more \
                  than 10 blocks are missing. Without such a rate the alert fires after two \
                  hours.",
        look: &[
            "a block explorer: the chain itself may have halted",
            "the panel of the upstreams' heads, and `/status`",
        ],
        act: &[
            "Restart or replace nodes that do not sync.",
            "Add an upstream of another operator, so that one of them cannot stop the head.",
            "Wait if the chain has halted: responses are right for its last block.",
        ],
    },
    Alert {
        name: "WeirDeepReorg",
        query: "weir_chain_reorg_depth_max_blocks > 10\n\
                and delta(weir_chain_reorg_depth_max_blocks[15m]) > 0",
        hold: "0m",
        severity: Severity::Warning,
        summary: "A reorg of chain {{ $labels.chain }} has dropped {{ $value | humanize }} blocks.",
        description: "The gateway {{ $labels.instance }} has followed the deepest reorg since its \
                      start.",
        meaning: "The served chain has replaced more than 10 blocks. The gateway has dropped the \
                  cached responses of the old blocks, but clients may have acted on them.",
        look: &[
            "a block explorer, and news of the chain",
            "the heads of the upstreams: one of them may be on a wrong branch",
        ],
        act: &[
            "Remove an upstream that follows a wrong branch.",
            "Tell clients that act on unfinalized blocks.",
        ],
    },
    Alert {
        name: "WeirGroupWithoutUpstreams",
        query: "weir_group_upstreams_healthy == 0",
        hold: "1m",
        severity: Severity::Critical,
        summary: "No upstream of group {{ $labels.group }} of chain {{ $labels.chain }} is healthy.",
        description: "The gateway {{ $labels.instance }} sends calls of the group to the least \
                      unhealthy upstreams, or fails them.",
        meaning: "All upstreams of a group are ejected, paused, behind the head or of a wrong \
                  chain. Cached responses are still served.",
        look: &[
            "`/status`: the state of each upstream of the group",
            "the log: why the upstreams were ejected",
            "the panels of attempts by outcome and of lag",
        ],
        act: &[
            "Restart the nodes, or fix the network or the credentials.",
            "Add an upstream, if need be of a provider, with `backup = true`.",
        ],
    },
    Alert {
        name: "WeirUpstreamEjected",
        query: "sum without (state) (weir_upstream_state{state=~\"ejected|probing\"}) == 1",
        hold: "2m",
        severity: Severity::Warning,
        summary: "Upstream {{ $labels.upstream }} of chain {{ $labels.chain }} is ejected.",
        description: "The gateway {{ $labels.instance }} sends no calls to it, except probes, \
                      because calls or polls failed.",
        meaning: "The upstream has failed several times in a row, or too large a share of its \
                  calls. The gateway probes it after growing pauses and readmits it by itself.",
        look: &[
            "the log: the reason of the ejection",
            "the node's own log, disk and memory",
            "the panel of attempts by outcome",
        ],
        act: &[
            "Restart or fix the node. It needs no change of the gateway.",
            "Remove the upstream from the configuration and reload, if it stays away.",
        ],
    },
    Alert {
        name: "WeirUpstreamFlapping",
        query: "increase(weir_upstream_ejections_total[30m]) > 3",
        hold: "0m",
        severity: Severity::Warning,
        summary: "Upstream {{ $labels.upstream }} of chain {{ $labels.chain }} was ejected {{ \
                  $value | humanize }} times in 30 minutes.",
        description: "The gateway {{ $labels.instance }} readmits it each time, and it fails again.",
        meaning: "The upstream works for a while and fails again. Each time some calls need a \
                  second attempt.",
        look: &["the node's load when it fails", "the panel of the duration of attempts"],
        act: &[
            "Lower its `weight` or the group's `in_flight_max`, if it fails under load.",
            "Raise `health.failure_share_max`, if the failures are those of few methods.",
        ],
    },
    Alert {
        name: "WeirUpstreamForeign",
        query: "weir_upstream_state{state=\"foreign\"} == 1",
        hold: "1m",
        severity: Severity::Critical,
        summary: "Upstream {{ $labels.upstream }} does not serve chain {{ $labels.chain }}.",
        description: "The gateway {{ $labels.instance }} never calls it, because its chain id is \
                      another one than configured.",
        meaning: "The upstream has another chain id than `chain.NAME.id`. The address or the \
                  chain id is wrong.",
        look: &["`eth_chainId` of the upstream itself"],
        act: &["Correct the URL of the upstream or the chain id, and reload."],
    },
    Alert {
        name: "WeirUpstreamLagging",
        query: "weir_upstream_state{state=\"lagging\"} == 1",
        hold: "5m",
        severity: Severity::Warning,
        summary: "Upstream {{ $labels.upstream }} of chain {{ $labels.chain }} is behind the head.",
        description: "The gateway {{ $labels.instance }} sends it no calls that need the head.",
        meaning: "The upstream has been more than `chain.NAME.lag_max` blocks behind, on another \
                  branch or silent for five minutes.",
        look: &[
            "the panel of blocks behind the served head",
            "the node's peers, disk and sync state",
        ],
        act: &[
            "Fix or restart the node.",
            "Raise `lag_max`, if the chain is so fast that a good node is always behind.",
        ],
    },
    Alert {
        name: "WeirUpstreamFailing",
        query: "upstream:weir_upstream_attempts_failed:ratio_rate5m > 0.05",
        hold: "5m",
        severity: Severity::Warning,
        summary: "Upstream {{ $labels.upstream }} of chain {{ $labels.chain }} fails {{ $value | \
                  humanizePercentage }} of its calls.",
        description: "The gateway {{ $labels.instance }} retries safe calls elsewhere; others fail.",
        meaning: "The upstream fails more than 5 % of the calls, by no response in time or an \
                  invalid one, but not enough to be ejected.",
        look: &[
            "the panels of attempts by outcome and of their duration",
            "the log with `log.level = \"debug\"`: each failed call with its reason",
        ],
        act: &[
            "Find the method that fails; it may need a group of its own with a longer \
             `attempt_deadline`.",
            "Fix the node, or lower its `weight`.",
        ],
    },
    Alert {
        name: "WeirUpstreamRateLimited",
        query: "upstream:weir_upstream_attempts_rate_limited:ratio_rate5m > 0.05",
        hold: "10m",
        severity: Severity::Warning,
        summary: "Upstream {{ $labels.upstream }} of chain {{ $labels.chain }} refuses {{ $value \
                  | humanizePercentage }} of its calls by its own rate limit.",
        description: "The gateway {{ $labels.instance }} pauses it and sends calls elsewhere.",
        meaning: "The provider's plan is too small for the calls that it gets.",
        look: &["the panel of attempts by outcome", "the provider's own statistics"],
        act: &[
            "Lower its `weight`, add an upstream, or buy a larger plan.",
            "Limit the clients that call most with `[[limit]]`.",
        ],
    },
    Alert {
        name: "WeirUpstreamSlow",
        query: "upstream:weir_upstream_attempt_duration_seconds:p95_rate5m > 2",
        hold: "10m",
        severity: Severity::Warning,
        summary: "One call of 20 at upstream {{ $labels.upstream }} of chain {{ $labels.chain }} \
                  takes more than {{ $value | humanizeDuration }}.",
        description: "This is the 95th percentile of attempts of the gateway {{ $labels.instance \
                      }} over 5 minutes.",
        meaning: "The upstream responds slowly: it is overloaded, or clients ask for expensive \
                  calls.",
        look: &["the panel of the 10 slowest methods", "the node's CPU and disk"],
        act: &[
            "Give expensive methods a `[[group]]` with upstreams of their own.",
            "Add nodes, or limit expensive methods.",
        ],
    },
    Alert {
        name: "WeirUpstreamConnectionsLost",
        query: "increase(weir_upstream_multiplexed_connections_lost_total[10m]) > 5",
        hold: "0m",
        severity: Severity::Warning,
        summary: "Upstream {{ $labels.upstream }} of chain {{ $labels.chain }} has lost {{ $value \
                  | humanize }} connections in 10 minutes.",
        description: "WebSockets or local sockets of the gateway {{ $labels.instance }} ended \
                      while they were in use.",
        meaning: "Connections that carry many calls end again and again. Calls on a lost \
                  connection are sent again if that is safe, else they fail.",
        look: &[
            "limits of idle time or message size of a proxy before the node",
            "the node's own limits of message size",
        ],
        act: &[
            "Set `message_bytes_max` of the upstream to the node's limit.",
            "Remove `ws_url`, so that calls go over HTTP.",
        ],
    },
    Alert {
        name: "WeirCallsFailing",
        query: "chain:weir_call_failures:ratio_rate5m > 0.01\n\
                and chain:weir_calls:rate5m > 0.1",
        hold: "2m",
        severity: Severity::Critical,
        summary: "{{ $value | humanizePercentage }} of the calls of chain {{ $labels.chain }} fail.",
        description: "The gateway {{ $labels.instance }} gets no valid response from any upstream \
                      for them.",
        meaning: "More than 1 % of the calls got no response of an upstream. JSON-RPC errors of \
                  upstreams are not counted. Calls that were shed are.",
        look: &[
            "the panel of failed calls by method",
            "alerts about upstreams and overload",
            "the log with `log.level = \"debug\"`: each failed call with its reason",
        ],
        act: &[
            "Do what the alerts about upstreams or overload say.",
            "Raise `call.deadline` or the deadline of a group, if only slow methods fail.",
        ],
    },
    Alert {
        name: "WeirMethodFailing",
        query: "sum without (cache) (rate(weir_call_failures_total[5m]))\n\
                / sum without (cache) (rate(weir_calls_total[5m])) > 0.5\n\
                and rate(weir_call_failures_total[5m]) > 0.05",
        hold: "5m",
        severity: Severity::Warning,
        summary: "{{ $labels.method }} of chain {{ $labels.chain }} fails in {{ $value | \
                  humanizePercentage }} of the calls.",
        description: "Other methods of the gateway {{ $labels.instance }} may work, so that the \
                      share of all calls hides it.",
        meaning: "One method fails in more than half of its calls. Often no upstream supports it, \
                  or it takes longer than the deadline.",
        look: &[
            "`weir explain gateway.toml '{\"method\":\"METHOD\"}'`: the group and the upstreams \
             of the method",
            "the duration of the method",
        ],
        act: &[
            "Add a `[[group]]` with upstreams that support the method, or with a longer deadline.",
            "Deny the method with `methods_deny`, so that clients get a clear error.",
        ],
    },
    Alert {
        name: "WeirLatencyHigh",
        query: "chain:weir_call_duration_seconds:p99_rate5m > 2",
        hold: "10m",
        severity: Severity::Warning,
        summary: "One call of 100 of chain {{ $labels.chain }} takes more than {{ $value | \
                  humanizeDuration }}.",
        description: "This is the 99th percentile of the gateway {{ $labels.instance }} over 5 \
                      minutes.",
        meaning: "Calls take long, from the decoded call to its response.",
        look: &[
            "the panel of the 10 slowest methods",
            "the duration of attempts: if it is short, calls wait in the gateway",
            "the wait for a permit",
        ],
        act: &[
            "Do what WeirUpstreamSlow says, if attempts are slow.",
            "Do what WeirQueueNeverEmpty says, if calls wait.",
        ],
    },
    Alert {
        name: "WeirQueueNeverEmpty",
        query: "min_over_time(weir_group_queued[5m]) > 0",
        hold: "5m",
        severity: Severity::Warning,
        summary: "Calls of group {{ $labels.group }} of chain {{ $labels.chain }} always wait for \
                  a permit.",
        description: "The upstreams of the gateway {{ $labels.instance }} are saturated; more \
                      calls will be shed.",
        meaning: "The queue of the group has not been empty at any scrape of the last five \
                  minutes, so the upstreams are at their limit.",
        look: &["the panel of calls in flight and their limit", "the wait for a permit by class"],
        act: &[
            "Add upstreams.",
            "Raise `overload.in_flight_max`, if it is set and the nodes have room.",
            "Limit the clients that call most.",
        ],
    },
    Alert {
        name: "WeirCallsShed",
        query: "sum without (group, class, reason) (rate(weir_group_shed_total[5m]))\n\
                / chain:weir_calls:rate5m > 0.01",
        hold: "2m",
        severity: Severity::Warning,
        summary: "{{ $value | humanizePercentage }} of the calls of chain {{ $labels.chain }} are \
                  shed.",
        description: "The gateway {{ $labels.instance }} rejects them with 503 and Retry-After, \
                      because its upstreams are overloaded.",
        meaning: "More calls come than the upstreams can answer. The gateway sheds calls of lower \
                  classes and of the busiest clients first.",
        look: &[
            "the panel of shed calls by class and reason",
            "calls by key and by method: who calls more than before",
        ],
        act: &[
            "Add upstreams.",
            "Limit the clients that call most with `[[limit]]`, or heavy methods.",
            "Read [overload](overload.md) before you change `[overload]`.",
        ],
    },
    Alert {
        name: "WeirHighClassShed",
        query: "sum without (reason) (rate(weir_group_shed_total{class=\"high\"}[5m])) > 0",
        hold: "1m",
        severity: Severity::Critical,
        summary: "Calls of class high of group {{ $labels.group }} of chain {{ $labels.chain }} \
                  are shed.",
        description: "The gateway {{ $labels.instance }} has no permits left even for the best \
                      class.",
        meaning: "The upstreams are so overloaded that calls of the tiers in \
                  `overload.high_tiers` are rejected.",
        look: &["the panel of shed calls by class and reason"],
        act: &[
            "Add upstreams now, or stop the clients of other classes with a rule.",
            "Raise `overload.queue_max`, if the reason is `full` or `displaced` and bursts are \
             short.",
        ],
    },
    Alert {
        name: "WeirLimitRejecting",
        query: "zone:weir_limit_calls_rejected:ratio_rate5m > 0.1",
        hold: "10m",
        severity: Severity::Warning,
        summary: "Limits of zone {{ $labels.zone }} reject {{ $value | humanizePercentage }} of \
                  their calls.",
        description: "The gateway {{ $labels.instance }} answers them with 429, or the status of \
                      the limit.",
        meaning: "Clients call faster than a `[[limit]]` allows. One client may do that by \
                  mistake, or the rate is too low for all.",
        look: &[
            "`weir logs access.log`: the clients and keys with status 429",
            "the panel of calls judged by request limits",
        ],
        act: &[
            "Talk to the client, or give its key a `rate` of its own.",
            "Raise the zone's `rate` or the limit's `burst`, if many clients are affected.",
        ],
    },
    Alert {
        name: "WeirZoneEvicting",
        query: "rate(weir_zone_evictions_total[5m]) > 0",
        hold: "5m",
        severity: Severity::Warning,
        summary: "Zone {{ $labels.zone }} is full and evicts keys.",
        description: "The gateway {{ $labels.instance }} forgets clients that have called before, \
                      so their limit begins anew.",
        meaning: "More clients call than the zone has room for. Limits of evicted keys are too \
                  generous.",
        look: &[
            "the panel of the filled share of zones",
            "whether somebody calls from many addresses",
        ],
        act: &[
            "Raise `bytes` of the zone: a key takes 64 bytes.",
            "Use `client-net` instead of `client` as the key, if clients have IPv6 addresses.",
        ],
    },
    Alert {
        name: "WeirQuotaNearlyUsed",
        query: "weir_quota_used_units / weir_quota_limit_units > 0.9",
        hold: "0m",
        severity: Severity::Info,
        summary: "Key {{ $labels.key }} has used {{ $value | humanizePercentage }} of its monthly \
                  quota.",
        description: "At 100 % the gateway {{ $labels.instance }} answers its calls with 429 \
                      until the month ends.",
        meaning: "A client will soon have no units left.",
        look: &["the panels of the used share of quotas and of calls by key"],
        act: &["Tell the client, or raise `quota` of its key and reload."],
    },
    Alert {
        name: "WeirQuotaNotWritten",
        query: "increase(weir_quota_write_failures_total[10m]) > 0",
        hold: "0m",
        severity: Severity::Critical,
        summary: "The gateway {{ $labels.instance }} cannot write its file of quotas.",
        description: "Usage since the last write is lost when the process ends.",
        meaning: "The file `quota.file` could not be replaced: the disk is full, or the \
                  permissions are wrong.",
        look: &["the log: the error of the system", "free space and permissions of the folder"],
        act: &["Free space, or fix the permissions. The gateway tries again every second."],
    },
    Alert {
        name: "WeirQuotaLocalOnly",
        query: "weir_quota_local_only == 1",
        hold: "1m",
        severity: Severity::Warning,
        summary: "The gateway {{ $labels.instance }} judges shared quotas alone.",
        description: "Redis is unreachable, so each gateway uses its part of what is left.",
        meaning: "Usage is not shared with the other gateways. With `weir_redis_gateways` \
                  right, no key exceeds its quota.",
        look: &["the alert WeirRedisUnavailable"],
        act: &["Do what WeirRedisUnavailable says."],
    },
    Alert {
        name: "WeirRedisUnavailable",
        query: "weir_redis_breakers_open > 0",
        hold: "1m",
        severity: Severity::Warning,
        summary: "Threads of the gateway {{ $labels.instance }} have no connection to Redis.",
        description: "No call fails: responses come from memory, the index and the upstreams.",
        meaning: "The circuit breaker of at least one thread is open, or its connection is not \
                  yet made. Upstreams get more calls than usual.",
        look: &[
            "the log: why the connection fails",
            "`redis-cli -u URL ping` from the gateway's machine",
        ],
        act: &[
            "Start Redis, or fix the network, the password or the permissions.",
            "Raise `redis.timeout`, if Redis works but is farther away than 5 ms.",
        ],
    },
    Alert {
        name: "WeirRedisFailing",
        query: "sum without (outcome) (rate(weir_redis_lookups_total{outcome=~\"error|timeout\"}[5m]))\n\
                / sum without (outcome) (rate(weir_redis_lookups_total[5m])) > 0.05",
        hold: "5m",
        severity: Severity::Warning,
        summary: "{{ $value | humanizePercentage }} of the lookups in Redis fail.",
        description: "Calls of the gateway {{ $labels.instance }} wait for it up to redis.timeout \
                      in vain.",
        meaning: "Redis is reachable, but it is slow or returns errors.",
        look: &[
            "the panels of lookups in Redis and of their duration",
            "`redis-cli --latency`, slow commands, memory and eviction",
        ],
        act: &[
            "Give Redis more CPU or memory, or use replicas with `redis.read_replicas`.",
            "Raise `redis.timeout` a little, if the network is slow.",
        ],
    },
    Alert {
        name: "WeirLimitsLocalOnly",
        query: "weir_limit_redis_fallback_threads > 0",
        hold: "1m",
        severity: Severity::Warning,
        summary: "The gateway {{ $labels.instance }} judges the shared zone {{ $labels.zone }} \
                  alone.",
        description: "Redis is unreachable, so each gateway applies its part of the rate and the \
                      burst.",
        meaning: "Threads of the gateway apply the rate and burst divided by \
                  `weir_redis_gateways`. Clients whose calls all reach one gateway get less than \
                  their rate.",
        look: &["the alert WeirRedisUnavailable", "`weir_limit_shared_failures_total` by reason"],
        act: &[
            "Do what WeirRedisUnavailable says.",
            "Check that `weir_redis_gateways` is the number of gateways.",
        ],
    },
    Alert {
        name: "WeirIndexFailing",
        query: "sum without (outcome) (rate(weir_index_lookups_total{outcome=\"failed\"}[5m]))\n\
                / sum without (outcome) (rate(weir_index_lookups_total[5m])) > 0.05",
        hold: "2m",
        severity: Severity::Warning,
        summary: "{{ $value | humanizePercentage }} of the lookups in the index fail.",
        description: "The gateway {{ $labels.instance }} sends these calls to the upstreams \
                      instead.",
        meaning: "The file or database of the index cannot be read, is overloaded, or does not \
                  respond in time.",
        look: &["the log: the error of the database", "the disk of the file, or PostgreSQL's log"],
        act: &[
            "Start PostgreSQL, or fix the disk.",
            "Raise `index.readers` or `index.page_cache`, if the index is overloaded.",
        ],
    },
    Alert {
        name: "WeirMemoryNearlyFull",
        // Above seven eighths of the budget, or of the half for requests, the gateway frees memory
        // down to three quarters (`gateway::policy::memory`). So both bounds are below three
        // quarters.
        query: "sum without (purpose) (weir_memory_held_bytes) / weir_memory_max_bytes > 0.7 or \
                weir_memory_held_bytes{purpose=\"request\"} / ignoring (purpose) \
                weir_memory_max_bytes > 0.35",
        hold: "5m",
        severity: Severity::Warning,
        summary: "Bodies, responses and queues of the gateway {{ $labels.instance }} take {{ \
                  $value | humanizePercentage }} of their memory.",
        description: "Requests may take half of it. Above seven eighths the connections of the \
                      slowest clients are closed; at the limit requests get 503.",
        meaning: "Requests, responses of upstreams and unread responses take most of \
                  `server.memory_max`.",
        look: &[
            "the panel of memory by purpose: `response` grows with slow clients, `upstream` with \
             large responses",
        ],
        act: &[
            "Lower `call.response_bytes_max`, `downstream.batch_response_bytes_max` or \
             `downstream.write_timeout`.",
            "Raise `server.memory_max`, if the machine has memory.",
        ],
    },
    Alert {
        name: "WeirMemoryRefusing",
        query: "sum without (purpose) (rate(weir_memory_refusals_total[5m])) > 0",
        hold: "1m",
        severity: Severity::Critical,
        summary: "The gateway {{ $labels.instance }} refuses requests and responses, because its \
                  memory budget is used up.",
        description: "Clients get 503 with Retry-After.",
        meaning: "The memory budget `server.memory_max` is used up.",
        look: &["the panels of memory by purpose and of refusals"],
        act: &[
            "Do what WeirMemoryNearlyFull says.",
            "Limit the clients that send or request the most bytes.",
        ],
    },
    Alert {
        name: "WeirConnectionsRefused",
        query: "rate(weir_connections_refused_total[5m]) > 0",
        hold: "1m",
        severity: Severity::Warning,
        summary: "The gateway {{ $labels.instance }} closes new client connections.",
        description: "downstream.connections_max or connections_per_client_max is reached.",
        meaning: "More connections come than are allowed, in all or from one address.",
        look: &[
            "the panel of client connections",
            "`weir logs access.log`: the clients with the most requests",
        ],
        act: &[
            "Raise `downstream.connections_max` and the limit of file descriptors.",
            "List load balancers in `downstream.trusted_proxies`, so that they do not count as \
             one client.",
        ],
    },
    Alert {
        name: "WeirKeysRejected",
        query: "sum without (reason) \
                (rate(weir_access_denied_total{reason=~\"bad_key|expired\"}[5m])) > 1",
        hold: "10m",
        severity: Severity::Warning,
        summary: "The gateway {{ $labels.instance }} rejects {{ $value | humanize }} requests per \
                  second for a wrong or expired key.",
        description: "A client uses an old key, or somebody guesses keys.",
        meaning: "Requests arrive with keys or tokens that are unknown or expired.",
        look: &[
            "`weir logs access.log`: the addresses with status 401",
            "when the key of a client has expired",
        ],
        act: &[
            "Give the client a new key.",
            "Add a `[[limit]]` with `failures = true`, so that keys cannot be guessed fast.",
        ],
    },
    Alert {
        name: "WeirTlsHandshakesFailing",
        query: "sum without (reason) (rate(weir_tls_handshakes_failed_total{reason!=\"closed\"}[5m]))\n\
                > 0.2 * sum without (version, handshake) (rate(weir_tls_handshakes_total[5m]))\n\
                and sum without (reason) (rate(weir_tls_handshakes_failed_total{reason!=\"closed\"}[5m])) > 0.1",
        hold: "10m",
        severity: Severity::Warning,
        summary: "TLS handshakes with the gateway {{ $labels.instance }} fail, {{ $value | \
                  humanize }} per second.",
        description: "That is more than a fifth of the completed ones. Handshakes that clients \
                      closed are not counted.",
        meaning: "Clients cannot agree with the gateway on TLS, reject its certificate, or send \
                  none that is valid.",
        look: &[
            "the panel of TLS handshakes by reason",
            "the certificate that is served: `openssl s_client -connect HOST:PORT`",
        ],
        act: &[
            "Renew the certificate or add its intermediate ones, if the reason is `alert`.",
            "Allow the versions and ciphers of your clients, if it is `nothing_in_common`.",
            "Renew the clients' certificates, if it is `certificate_refused`.",
        ],
    },
    Alert {
        name: "WeirCertificateExpires",
        query: "weir_certificate_expiry_timestamp_seconds - time() < 14 * 86400",
        hold: "0m",
        severity: Severity::Warning,
        summary: "The certificate {{ $labels.certificate }} expires in {{ $value | \
                  humanizeDuration }}.",
        description: "Clients of the gateway {{ $labels.instance }} will reject it then.",
        meaning: "A certificate that the gateway sends expires within two weeks, or has expired. \
                  The file was not renewed, or the gateway has not read the new one.",
        look: &[
            "`openssl x509 -enddate -noout -in FILE`: whether the file is newer than the one in use",
            "the log of the program that renews certificates",
        ],
        act: &[
            "Renew the certificate.",
            "Run `weir reload`, or set `server.reload_on_change = true`, so that the gateway \
             reads a renewed file by itself.",
        ],
    },
    Alert {
        name: "WeirAccessLogDropped",
        query: "rate(weir_access_log_dropped_total[5m]) > 0",
        hold: "1m",
        severity: Severity::Warning,
        summary: "The gateway {{ $labels.instance }} loses lines of its access log.",
        description: "The queue of lines is full, or the file cannot be written.",
        meaning: "Responses are not delayed, but the log has gaps.",
        look: &["the log: the error of the file", "the disk: free space and write latency"],
        act: &[
            "Free space, or use a faster disk.",
            "Lower `access_log.sample` or raise `access_log.queue_lines`.",
        ],
    },
    Alert {
        name: "WeirReloadFailed",
        query: "weir_reload_last_applied == 0",
        hold: "0m",
        severity: Severity::Warning,
        summary: "The gateway {{ $labels.instance }} has refused its new configuration.",
        description: "It serves with the old one, and a restart would fail.",
        meaning: "The last reload found errors. The gateway keeps the configuration that it had.",
        look: &[
            "`weir check gateway.toml`: all errors with their places",
            "`/status`: `config.last_reload`",
        ],
        act: &["Correct the file, and run `weir reload gateway.toml`."],
    },
];
