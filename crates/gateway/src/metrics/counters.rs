//! Every counter of the gateway, declared once.
//!
//! To add a counter, add a field here and count with it; nothing else lists them. The text above a
//! field is its help in `/metrics` and its row in `docs/metrics.md`. A field without a name in
//! quotes is storage only: it is exported elsewhere, or holds further counters.

use std::time::Duration;

use super::export::{MetricSet, Metrics};
use super::instrument::{By, Counter, Gauge, Histogram, Sum};
use super::label::{
    AttemptOutcome, Handshake, HandshakeFailure, IndexLookup, LimitJudge, LimitOutcome,
    ProxyRefusal, RedisFailure, RedisLookup, RedisStore, RefusedStatus, TlsVersion,
};
use crate::call::cache_status::CacheStatus;
use crate::policy::access::Denial;
use crate::policy::overload::{Class, Shed};

/// Declares the counters of one type of object, after the labels that tell the objects apart.
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
                // A field keeps its numbers when others are declared.
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
        $metrics.instrument($name, concat!($($help),+), |own| &own.$field);
    };
    (@list $metrics:ident, $field:ident, [$($help:literal)+]) => {};
}

counters! {
    /// Counters without a label of the configuration.
    ThreadCounters[] {
        /// Client connections that are open.
        connections_open: Gauge = "weir_connections_open",
        /// Client connections that were accepted.
        connections_accepted: Counter = "weir_connections_accepted",
        /// Client connections closed at once, because the most that are allowed were open.
        connections_refused: Counter = "weir_connections_refused",
        /// Client connections that are open as WebSockets.
        websockets_open: Gauge = "weir_websockets_open",
        /// Client connections that went on as WebSockets.
        websockets_opened: Counter = "weir_websockets_opened",
        /// Subscriptions of clients that are open.
        subscriptions_open: Gauge = "weir_subscriptions_open",
        /// Messages to clients that have subscribed to something.
        subscription_notifications: Counter = "weir_subscription_notifications",
        /// Client connections closed for their PROXY protocol header: from a peer that is not
        /// trusted, malformed, or not in time.
        proxy_refused: By<ProxyRefusal> = "weir_proxy_refused",
        /// TLS handshakes with clients that were completed, in full or by resuming a session.
        tls_handshakes: By<TlsVersion, By<Handshake>> = "weir_tls_handshakes",
        /// TLS handshakes with clients that failed.
        tls_handshakes_failed: By<HandshakeFailure> = "weir_tls_handshakes_failed",
        /// HTTP requests whose body was looked at; a batch is one.
        requests: Counter = "weir_requests",
        /// HTTP requests refused as a whole; statuses that are not listed count as 500.
        requests_refused: By<RefusedStatus> = "weir_requests_refused",
        /// HTTP requests that were batches.
        batches: Counter = "weir_batches",
        /// Calls that asked for no answer.
        notifications: Counter = "weir_notifications",
        /// Calls and bodies refused for their form, with a JSON-RPC error.
        calls_refused: Counter = "weir_calls_refused",
        /// Requests and calls that their sender may not make.
        denied: By<Denial> = "weir_access_denied",
        /// Lines handed to the access log.
        log_lines: Counter = "weir_access_log_lines",
        /// Lines of the access log that were lost: its queue was full, or its file took nothing.
        log_dropped: Counter = "weir_access_log_dropped",
        /// Calls that wait for their turn by a limit.
        calls_waiting: Gauge = "weir_limit_waiting",
        /// Further attempts after one that failed.
        retries: Counter = "weir_retries",
        /// Further attempts after a response that may lack logs or receipts.
        second_opinions: Counter = "weir_second_opinions",
        /// Second upstreams asked before the first had answered.
        hedges: Counter = "weir_hedges",
        /// Second upstreams that answered first.
        hedges_won: Counter = "weir_hedges_won",
        /// Calls to upstreams under way that equal calls may join; brought up to date each second.
        calls_in_flight: Gauge = "weir_coalesced_calls",
        /// Answers put into the cache.
        fills: Counter = "weir_cache_fills",
        /// Answers that could be kept by their method but were not: too large, or outdated by a
        /// reorg or a new head while they came.
        fills_refused: Counter = "weir_cache_fills_refused",
        /// Counters of the index; exported where there is an index.
        index: IndexCounters,
        /// Counters of the tier in Redis; exported where that is on.
        redis: RedisCounters,
        /// Counters of zones that gateways share; exported where there is one.
        shared_limits: SharedLimitCounters,
    }

    /// Lookups in the index.
    IndexCounters[] {
        /// Calls that the index was asked for: those that neither memory nor Redis could answer,
        /// and ranges of logs. `part`: it had some of the blocks of a range; `failed`: it could not
        /// be read, had too much to do, or did not answer in time.
        lookups: By<IndexLookup> = "weir_index_lookups",
    }

    /// Lookups and stores in Redis.
    RedisCounters[] {
        /// Keys looked up in Redis, one for each call that memory could not answer.
        lookups: By<RedisLookup> = "weir_redis_lookups",
        /// Time of one exchange with Redis; lookups of one moment share an exchange.
        latency: Histogram = "weir_redis_lookup_duration_seconds",
        /// Answers that were to be stored in Redis.
        stores: By<RedisStore> = "weir_redis_stores",
        /// Answers that wait for the next poll of their upstream before they are stored.
        unproved: Gauge = "weir_redis_stores_unproved",
        /// Connections to Redis, of all threads, that are left alone or not yet made.
        breakers_open: Gauge = "weir_redis_breakers_open",
        /// Times that a connection was left alone after failures in a row.
        breakers_opened: Counter = "weir_redis_breakers_opened",
    }

    /// Zones of request limits that gateways share.
    SharedLimitCounters[] {
        /// Calls judged by zones that gateways share, by who has judged them.
        calls: By<LimitJudge> = "weir_limit_shared_calls",
        /// Calls that Redis was asked to judge and did not: each was judged by the share.
        failures: By<RedisFailure> = "weir_limit_shared_failures",
        /// Time of one judgement in Redis, the way there and back included.
        latency: Histogram = "weir_limit_shared_duration_seconds",
        /// Times that a thread began to judge by the share alone, after failures in a row.
        breakers_opened: Counter = "weir_limit_shared_breakers_opened",
        /// Threads that judge by the share now; exported by zone.
        fallback_threads: Gauge,
    }

    /// Calls of one method of a chain.
    MethodCounters["chain", "method"] {
        /// Calls answered, each of a batch by itself, by how the cache took part.
        answered: By<CacheStatus> = "weir_calls",
        /// Calls answered with a JSON-RPC error of an upstream.
        errors: Counter = "weir_call_errors",
        /// Calls that no upstream answered.
        failed: Counter = "weir_call_failures",
        /// Time from the decoded call to its answer, hits included.
        latency: Histogram = "weir_call_duration_seconds",
    }

    /// Calls of one group that need a place at an upstream.
    GroupCounters["chain", "group"] {
        /// Calls under way at the upstreams of a group, as far as they count against its limit.
        in_flight: Gauge = "weir_group_in_flight",
        /// Calls that wait for a place at the upstreams of a group.
        queued: Gauge = "weir_group_queued",
        /// Calls that were told to come back later, because the upstreams had no room for them.
        shed: By<Class, By<Shed>> = "weir_group_shed",
        /// How long calls waited for a place that got one; those that need not wait are not in it.
        waited: By<Class, Histogram> = "weir_group_queue_duration_seconds",
    }

    /// Attempts at one upstream.
    UpstreamCounters["chain", "upstream"] {
        /// Attempts at the upstream under way.
        in_flight: Gauge = "weir_upstream_in_flight",
        /// Attempts at the upstream that ended.
        attempts: By<AttemptOutcome> = "weir_upstream_attempts",
        /// Time from an attempt's start, with the wait for a connection, to its end.
        latency: Histogram = "weir_upstream_attempt_duration_seconds",
        /// Connections to the upstream that were begun for calls.
        connections_opened: Counter = "weir_upstream_connections_opened",
        /// Attempts at the upstream over a WebSocket, local socket or HTTP/2, which carries many
        /// calls at a time.
        multiplexed_calls: Counter = "weir_upstream_multiplexed_calls",
        /// Batches that were gathered from several calls and sent to the upstream as one request.
        batches: Counter = "weir_upstream_batches",
        /// Attempts at the upstream that left in such batches.
        batched_calls: Counter = "weir_upstream_batched_calls",
        /// WebSockets or local sockets that are open; exported with their transport.
        multiplexed_open: Gauge,
        /// WebSockets or local sockets to the upstream that ended while they were in use; new ones
        /// are opened.
        multiplexed_lost: Counter = "weir_upstream_multiplexed_connections_lost",
    }

    /// Calls under one key, or under tokens of one issuer.
    KeyCounters["key"] {
        /// Calls under a key, or under tokens of an issuer; those that were denied too.
        calls: Counter = "weir_key_calls",
    }

    /// Calls that one rule fits.
    RuleCounters["rule"] {
        /// Calls that a rule fitted.
        calls: Counter = "weir_rule_calls",
    }

    /// Calls judged by one zone of request limits.
    ZoneCounters["zone"] {
        /// Calls judged by request limits, by zone. A call that is refused counts only where it
        /// was; one that waits counts as delayed in the zone that asked for the longest wait.
        calls: By<LimitOutcome> = "weir_limit_calls",
    }
}

impl ThreadCounters {
    /// Counts a client connection that was accepted.
    pub(crate) fn connection_opened(&self) {
        self.connections_accepted.add(1);
        self.connections_open.add(1);
    }

    /// Counts the end of a client connection.
    pub(crate) fn connection_closed(&self) {
        self.connections_open.subtract_one();
    }

    /// Counts a client connection that goes on as a WebSocket.
    pub(crate) fn websocket_opened(&self) {
        self.websockets_opened.add(1);
        self.websockets_open.add(1);
    }

    /// Counts an HTTP request that was refused as a whole.
    pub(crate) fn refused(&self, status: u16) {
        self.requests_refused[RefusedStatus::of(status)].add(1);
    }
}

impl MethodCounters {
    /// Counts a call that was answered.
    pub(crate) fn answered(&self, cache: CacheStatus, took: Duration) {
        self.answered[cache].add(1);
        self.latency.observe(took);
    }

    /// Returns the number of calls that were answered.
    pub(crate) fn calls(&self) -> u64 {
        self.answered.total()
    }
}

impl UpstreamCounters {
    /// Counts an attempt that ended.
    pub(crate) fn attempted(&self, outcome: AttemptOutcome, took: Duration) {
        self.attempts[outcome].add(1);
        self.latency.observe(took);
    }
}
