//! Every counter of the gateway, declared once.
//!
//! To add a counter, add a field here and count with it. The comment of a field is its help text in
//! `/metrics` and its row in `docs/metrics.md`. A field without a name in quotes is not a metric
//! itself: another module exports it, or it holds further counters.

use std::time::Duration;

use super::export::{MetricSet, Metrics};
use super::instrument::{Counter, Gauge, Histogram, PerLabel, Sum};
use super::label::{
    AttemptOutcome, Handshake, HandshakeFailure, IndexLookup, LimitJudge, LimitOutcome,
    ProxyRefusal, RedisFailure, RedisLookup, RedisStore, RefusedStatus, TlsVersion,
};
use crate::call::CacheStatus;
use crate::policy::access::Denial;
use crate::policy::overload::{Class, Shed};

/// Declares the counters of one type of object. In `Type["label", …] { … }`, the labels in brackets
/// distinguish the objects. In `field: Instrument = "name"`, the name makes the field a metric. The
/// macro's `@list` rules add such a field to the exported metrics, and skip a field without a name.
macro_rules! counters {
    ($(
        $(#[doc = $about:literal])+
        $Set:ident[$($label:literal),*] {
            $($(#[doc = $help:literal])+ $field:ident: $Instrument:ty $(= $name:literal)?,)+
        }
    )+) => { $(
        $(#[doc = $about])+
        #[derive(Debug, Default)]
        pub(crate) struct $Set {
            $($(#[doc = $help])+ pub(crate) $field: $Instrument,)+
        }

        impl Sum for $Set {
            fn merge(&self, other: &$Set) {
                $(self.$field.merge(&other.$field);)+
            }

            #[cfg(test)]
            fn fill(&self, seed: u64) {
                // A value depends only on the seed and the field's name, so that new fields do not
                // change the values of the others.
                $(
                    let name = stringify!($field).bytes();
                    self.$field.fill(name.fold(seed, |sum, byte| (sum * 31 + u64::from(byte)) % 10_007));
                )+
            }
        }

        impl MetricSet for $Set {
            const LABELS: &'static [&'static str] = &[$($label),*];

            fn list(metrics: &mut Metrics<$Set>) {
                $(counters!(@list metrics, $field, [$($help)+] $($name)?);)+
            }
        }
    )+ };
    (@list $metrics:ident, $field:ident, [$($help:literal)+] $name:literal) => {
        $metrics.add_instrument($name, concat!($($help),+), |counters| &counters.$field);
    };
    (@list $metrics:ident, $field:ident, [$($help:literal)+]) => {};
}

counters! {
    /// Counters whose labels do not come from the configuration.
    ThreadCounters[] {
        /// Client connections that are open.
        connections_open: Gauge = "weir_connections_open",
        /// Client connections that were accepted.
        connections_accepted: Counter = "weir_connections_accepted",
        /// Client connections closed at once because the maximum number was open.
        connections_refused: Counter = "weir_connections_refused",
        /// Client connections that are open as WebSockets.
        websockets_open: Gauge = "weir_websockets_open",
        /// Client connections that were upgraded to WebSockets.
        websockets_opened: Counter = "weir_websockets_opened",
        /// Subscriptions of clients that are open.
        subscriptions_open: Gauge = "weir_subscriptions_open",
        /// Notifications to subscribers.
        subscription_notifications: Counter = "weir_subscription_notifications",
        /// Client connections closed for their PROXY protocol header: from a peer that is not
        /// trusted, malformed, or not in time.
        proxy_refused: PerLabel<ProxyRefusal> = "weir_proxy_refused",
        /// TLS handshakes with clients that were completed, in full or by resuming a session.
        tls_handshakes: PerLabel<TlsVersion, PerLabel<Handshake>> = "weir_tls_handshakes",
        /// TLS handshakes with clients that failed.
        tls_handshakes_failed: PerLabel<HandshakeFailure> = "weir_tls_handshakes_failed",
        /// HTTP requests whose body was read; a batch counts once.
        requests: Counter = "weir_requests",
        /// HTTP requests refused as a whole; statuses that are not listed count as 500. Calls that
        /// a request limit rejects count in `weir_limit_calls_total` instead, by zone.
        requests_refused: PerLabel<RefusedStatus> = "weir_requests_refused",
        /// HTTP requests that were batches.
        batches: Counter = "weir_batches",
        /// Calls without an id, which get no response.
        notifications: Counter = "weir_notifications",
        /// Calls and bodies refused for their form, with a JSON-RPC error.
        calls_refused: Counter = "weir_calls_refused",
        /// Requests and calls that were denied.
        denied: PerLabel<Denial> = "weir_access_denied",
        /// Lines handed to the access log.
        log_lines: Counter = "weir_access_log_lines",
        /// Lines of the access log that were lost, because its queue was full or its file could not
        /// be written.
        log_dropped: Counter = "weir_access_log_dropped",
        /// Calls that a request limit delays now.
        calls_waiting: Gauge = "weir_limit_waiting",
        /// Further attempts after one that failed.
        retries: Counter = "weir_retries",
        /// Further attempts after a response that may lack logs or receipts.
        second_opinions: Counter = "weir_second_opinions",
        /// Hedges: second attempts started before the first attempt had ended.
        hedges: Counter = "weir_hedges",
        /// Hedges that ended before the first attempt.
        hedges_won: Counter = "weir_hedges_won",
        /// Calls in flight that identical calls can join. Updated once per second.
        calls_in_flight: Gauge = "weir_coalesced_calls",
        /// Responses stored in the cache.
        fills: Counter = "weir_cache_fills",
        /// Cacheable responses that were not stored: too large, or outdated by a reorg or a new
        /// head meanwhile.
        fills_refused: Counter = "weir_cache_fills_refused",
        /// Counters of the index; exported if there is an index.
        index: IndexCounters,
        /// Counters of the tier in Redis; exported if the tier is on.
        redis: RedisCounters,
        /// Counters of zones that gateways share; exported if there is such a zone.
        shared_limits: SharedLimitCounters,
    }

    /// Lookups in the index.
    IndexCounters[] {
        /// Lookups in the index: calls that neither memory nor Redis could answer, and ranges of
        /// logs. `part`: the index has some of the blocks of a range; `failed`: the index could not
        /// be read, was overloaded, or did not respond in time.
        lookups: PerLabel<IndexLookup> = "weir_index_lookups",
    }

    /// Lookups and stores in Redis.
    RedisCounters[] {
        /// Keys looked up in Redis, one for each call that memory could not answer.
        lookups: PerLabel<RedisLookup> = "weir_redis_lookups",
        /// Time of one request to Redis, which can hold several lookups.
        latency: Histogram = "weir_redis_lookup_duration_seconds",
        /// Stores of responses in Redis.
        stores: PerLabel<RedisStore> = "weir_redis_stores",
        /// Responses that wait for the next poll of their upstream before they are stored.
        unproved: Gauge = "weir_redis_stores_unproved",
        /// Redis connections that are not connected yet or whose circuit breaker is open, summed
        /// over all threads.
        breakers_open: Gauge = "weir_redis_breakers_open",
        /// Times that the circuit breaker of a connection opened after consecutive failures.
        breakers_opened: Counter = "weir_redis_breakers_opened",
    }

    /// Zones of request limits that gateways share.
    SharedLimitCounters[] {
        /// Calls judged in zones that gateways share, by the judge.
        calls: PerLabel<LimitJudge> = "weir_limit_shared_calls",
        /// Calls that Redis failed to judge; each was judged by the local share.
        failures: PerLabel<RedisFailure> = "weir_limit_shared_failures",
        /// Time of one judgement in Redis, round trip included.
        latency: Histogram = "weir_limit_shared_duration_seconds",
        /// Times that a thread fell back to the local share after consecutive failures.
        breakers_opened: Counter = "weir_limit_shared_breakers_opened",
        /// Threads that judge by the local share now; exported by zone.
        fallback_threads: Gauge,
    }

    /// Calls of one method of a chain.
    MethodCounters["chain", "method"] {
        /// Calls answered, by cache status; each call of a batch counts.
        answered: PerLabel<CacheStatus> = "weir_calls",
        /// Calls answered with a JSON-RPC error of an upstream.
        errors: Counter = "weir_call_errors",
        /// Calls that no upstream answered.
        failed: Counter = "weir_call_failures",
        /// Time from the decoded call to its response, hits included.
        latency: Histogram = "weir_call_duration_seconds",
    }

    /// Calls of one group. Such a call needs a *permit*: the right to be in flight at the group's
    /// upstreams.
    GroupCounters["chain", "group"] {
        /// Calls in flight at the upstreams of a group that count against its limit.
        in_flight: Gauge = "weir_group_in_flight",
        /// Calls that wait for a permit of a group.
        queued: Gauge = "weir_group_queued",
        /// Calls that were shed because the upstreams are overloaded.
        shed: PerLabel<Class, PerLabel<Shed>> = "weir_group_shed",
        /// Time that admitted calls waited for a permit; calls without a wait are not counted.
        waited: PerLabel<Class, Histogram> = "weir_group_queue_duration_seconds",
    }

    /// Attempts at one upstream.
    UpstreamCounters["chain", "upstream"] {
        /// Attempts at the upstream in flight.
        in_flight: Gauge = "weir_upstream_in_flight",
        /// Attempts at the upstream that ended.
        attempts: PerLabel<AttemptOutcome> = "weir_upstream_attempts",
        /// Time from an attempt's start, with the wait for a connection, to its end.
        latency: Histogram = "weir_upstream_attempt_duration_seconds",
        /// Connections to the upstream opened for calls, failed attempts included.
        connections_opened: Counter = "weir_upstream_connections_opened",
        /// Attempts at the upstream over a WebSocket, local socket or HTTP/2, which carries many
        /// calls at a time.
        multiplexed_calls: Counter = "weir_upstream_multiplexed_calls",
        /// Batches of several calls that were sent to the upstream as one request.
        batches: Counter = "weir_upstream_batches",
        /// Attempts at the upstream that were sent in batches.
        batched_calls: Counter = "weir_upstream_batched_calls",
        /// Open WebSockets and local sockets to the upstream. Exported by transport.
        multiplexed_open: Gauge,
        /// WebSockets or local sockets to the upstream that ended while they were in use; new ones
        /// are opened.
        multiplexed_lost: Counter = "weir_upstream_multiplexed_connections_lost",
    }

    /// Calls under one key, or under tokens of one issuer.
    KeyCounters["key"] {
        /// Calls under a key, or under tokens of an issuer, including denied calls.
        calls: Counter = "weir_key_calls",
    }

    /// Calls that match one rule.
    RuleCounters["rule"] {
        /// Calls that matched a rule.
        calls: Counter = "weir_rule_calls",
    }

    /// Calls judged by one zone of request limits.
    ZoneCounters["zone"] {
        /// Calls judged by request limits, by zone. A refused call counts only in the zone that
        /// refused it; a delayed call counts as delayed in the zone with the longest wait.
        calls: PerLabel<LimitOutcome> = "weir_limit_calls",
    }
}

impl ThreadCounters {
    /// Counts a client connection that was accepted.
    pub(crate) fn record_connection_opened(&self) {
        self.connections_accepted.add(1);
        self.connections_open.add(1);
    }

    /// Counts the end of a client connection.
    pub(crate) fn record_connection_closed(&self) {
        self.connections_open.subtract_one();
    }

    /// Counts a client connection that was upgraded to a WebSocket.
    pub(crate) fn record_websocket_opened(&self) {
        self.websockets_opened.add(1);
        self.websockets_open.add(1);
    }

    /// Counts an HTTP request that was refused as a whole.
    pub(crate) fn record_refusal(&self, status: u16) {
        self.requests_refused[RefusedStatus::of(status)].add(1);
    }
}

impl MethodCounters {
    /// Counts a call that was answered.
    pub(crate) fn record_call(&self, cache: CacheStatus, duration: Duration) {
        self.answered[cache].add(1);
        self.latency.observe(duration);
    }

    /// Returns the number of calls that were answered.
    pub(crate) fn calls(&self) -> u64 {
        self.answered.total()
    }
}

impl UpstreamCounters {
    /// Counts an attempt that ended.
    pub(crate) fn record_attempt(&self, outcome: AttemptOutcome, duration: Duration) {
        self.attempts[outcome].add(1);
        self.latency.observe(duration);
    }
}
