//! The gateway's state in one value, which `/status` prints as JSON and the page draws.
//!
//! Its shape is published: `docs/status.schema.json` is made from these types and their comments.
//! Counts are since the start. An upstream has name, host and port here; the rest of its URL may
//! hold a key and is left out. `status/read.rs` reads the state.

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::{Deserialize, Serialize};

use crate::policy::closed_set::closed_set;
use crate::policy::memory::Purpose;

mod read;

#[cfg(test)]
pub(crate) mod tests;

/// The whole gateway at one instant.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Status {
    /// Version of the program.
    pub version: &'static str,
    /// Time since the start.
    pub uptime_seconds: f64,
    /// The process that serves.
    pub process: ProcessStatus,
    /// The configuration in use, and the result of the last reload.
    pub config: ConfigStatus,
    /// Chains in the order of the configuration.
    pub chains: Vec<ChainStatus>,
    /// The cache in memory.
    pub cache: MemoryCache,
    /// The tier of the cache in Redis; null where that is off.
    pub redis: Option<RedisStatus>,
    /// The index; null where none is configured.
    pub index: Option<IndexStatus>,
    /// Memory taken by bodies, responses and queues.
    pub memory: MemoryStatus,
    /// Zones of request limits, in the order of the configuration.
    pub zones: Vec<ZoneStatus>,
    /// Keys, and then issuers of tokens, in the order of the configuration.
    pub keys: Vec<KeyStatus>,
    /// Sums over all chains.
    pub totals: Totals,
}

/// Memory taken by bodies, responses and queues.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct MemoryStatus {
    /// Upper limit of all bytes together.
    pub bytes_max: u64,
    /// Bytes by purpose.
    pub purposes: [MemoryPurpose; Purpose::ALL.len()],
    /// Client connections that were closed because too many bytes were held.
    pub connections_closed: u64,
}

/// Bytes that are held for one purpose.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct MemoryPurpose {
    /// `request`, `upstream` or `response`.
    pub name: &'static str,
    /// Bytes held now.
    pub bytes: u64,
    /// Number of times that further bytes were refused.
    pub refused: u64,
}

/// Identity of a process, also among those that had the same number before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProcessStatus {
    /// Process id in its own namespace.
    pub id: u32,
    /// Start of the process, in clock ticks since the machine started.
    pub start_ticks: Option<u64>,
}

/// The configuration in use.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ConfigStatus {
    /// Number of the configuration; the process starts with 1.
    pub generation: u64,
    /// Reloads that were applied.
    pub reloads_applied: u64,
    /// Reloads that were refused because the new configuration has errors.
    pub reloads_refused: u64,
    /// The last reload; null before the first.
    pub last_reload: Option<ReloadStatus>,
    /// Failed attempts to hand over to another process.
    pub upgrades_failed: u64,
    /// Reason of the last failed attempt.
    pub upgrade_fault: Option<String>,
}

/// One reload.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ReloadStatus {
    /// End of the reload, in seconds since 1970.
    pub unix_seconds: f64,
    /// True if the new configuration is in use.
    pub applied: bool,
    /// Changed keys, secrets masked.
    pub changes: Vec<String>,
    /// Reason of a refusal, secrets masked.
    pub why: Option<String>,
}

/// One chain.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ChainStatus {
    /// Name in the configuration.
    pub name: String,
    /// Family, which gives the method table.
    pub family: &'static str,
    /// The served head; null while no upstream has confirmed one.
    pub head: Option<HeadStatus>,
    /// Time since the served head last changed.
    pub head_age_seconds: Option<f64>,
    /// The height that no reorg may undo.
    pub finalized: Option<u64>,
    /// Reorgs of the served chain.
    pub reorgs: u64,
    /// Blocks dropped by the deepest reorg.
    pub reorg_depth_max: u64,
    /// Number of branch changes on all upstreams.
    pub generation: u64,
    /// Upstreams in the order of the configuration.
    pub upstreams: Vec<UpstreamStatus>,
    /// Groups in the order of the configuration.
    pub groups: Vec<GroupStatus>,
    /// The 20 methods with the most calls, most first; methods without calls are left out.
    pub methods: Vec<MethodStatus>,
}

/// A block as a head.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct HeadStatus {
    /// Height.
    pub number: u64,
    /// Hash, `0x` and 64 digits.
    pub hash: String,
}

closed_set! {
    /// State of an upstream.
    #[derive(Serialize, JsonSchema)]
    #[serde(rename_all = "lowercase")]
    pub enum HealthState {
        /// The upstream is called.
        Healthy = "healthy",
        /// The upstream is behind, on another branch or silent: it gets no calls that need the
        /// head.
        Lagging = "lagging",
        /// The upstream was ejected; one call decides whether it is readmitted.
        Probing = "probing",
        /// The upstream limits the request rate, with status 429 for example.
        Paused = "paused",
        /// The upstream failed and is ejected for a while.
        Ejected = "ejected",
        /// The upstream serves another chain than configured and is never called.
        Foreign = "foreign",
    }
}

/// One upstream.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct UpstreamStatus {
    /// Place in the configuration.
    #[serde(skip)]
    pub(crate) index: usize,
    /// Name in the configuration.
    pub name: String,
    /// Host and port, with parts of the host that look like a key masked; or the file name of a
    /// socket.
    pub address: String,
    /// State of the upstream.
    pub state: HealthState,
    /// Time until the state ends by itself: the probe of an ejected upstream, or the end of a
    /// pause.
    pub state_ends_seconds: Option<f64>,
    /// Head of the upstream; null before its first poll.
    pub head: Option<u64>,
    /// Blocks behind the served head; null before its first poll.
    pub lag: Option<u64>,
    /// True if the upstream is fit for reads at the head.
    pub at_head: bool,
    /// True if the upstream has the served chain's block at the lower of the two heads.
    pub consistent: bool,
    /// Share of calls, relative to other upstreams.
    pub weight: u32,
    /// True if the upstream is called only while no other upstream of the group can be called.
    pub backup: bool,
    /// Attempts in flight.
    pub in_flight: u64,
    /// Attempts that ended.
    pub attempts: u64,
    /// Attempts that the upstream failed.
    pub failed: u64,
    /// Attempts that the upstream refused by its own rate limit.
    pub rate_limited: u64,
    /// Connections opened for calls.
    pub connections_opened: u64,
    /// Transports, the cheapest first: `websocket`, `ipc`, `http2` where it is offered, or `http`.
    pub transports: Vec<&'static str>,
    /// Attempts over a WebSocket, local socket or HTTP/2.
    pub multiplexed_calls: u64,
    /// Batches of several calls.
    pub batches: u64,
    /// Attempts that were sent in such batches.
    pub batched_calls: u64,
    /// WebSockets or local sockets that are open.
    pub multiplexed_connections: u64,
    /// WebSockets or local sockets that ended while they were in use.
    pub multiplexed_connections_lost: u64,
    /// Number of times that the upstream was ejected.
    pub ejections: u64,
    /// Number of times that the upstream was readmitted.
    pub readmissions: u64,
    /// Median duration of attempts, from the buckets of `/metrics`.
    pub latency_p50_ms: Option<f64>,
    /// 99th percentile of the duration of attempts.
    pub latency_p99_ms: Option<f64>,
}

/// One group.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct GroupStatus {
    /// Name in the configuration.
    pub name: String,
    /// Load balancing policy.
    pub balance: String,
    /// Names of the upstreams that get calls now.
    pub candidates: Vec<String>,
    /// Limit of calls in flight; null without a limit.
    pub in_flight_limit: Option<u32>,
    /// Calls in flight that count against the limit.
    pub in_flight: u64,
    /// Calls in the queue.
    pub queued: u64,
    /// Calls refused because the queue had no room or their wait was too long.
    pub shed: u64,
}

/// One method of one chain.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct MethodStatus {
    /// Name; `other` for all methods that the chain's table does not know.
    pub name: String,
    /// Calls answered.
    pub calls: u64,
    /// Calls answered from a cache or without an upstream.
    pub hit: u64,
    /// Calls answered by an upstream whose response may be cached.
    pub miss: u64,
    /// Calls answered by an equal call of another client that was in flight.
    pub coalesced: u64,
    /// Calls answered by an upstream whose response may not be cached.
    pub bypass: u64,
    /// Calls answered with a JSON-RPC error of an upstream.
    pub errors: u64,
    /// Calls that no upstream answered.
    pub failed: u64,
    /// Median time from the decoded call to its response, from the buckets of `/metrics`.
    pub latency_p50_ms: Option<f64>,
    /// 99th percentile of that time.
    pub latency_p99_ms: Option<f64>,
}

/// The cache in memory.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct MemoryCache {
    /// True if the cache is on.
    pub enabled: bool,
    /// Responses held.
    pub entries: u64,
    /// Bytes held, with keys and bookkeeping.
    pub bytes: u64,
    /// Upper limit of the bytes.
    pub bytes_max: u64,
    /// Calls answered from a cache or without an upstream.
    pub hits: u64,
    /// Calls answered by an upstream whose response may be cached.
    pub misses: u64,
    /// Calls answered by an equal call of another client that was in flight.
    pub coalesced: u64,
    /// Calls whose response may not be cached.
    pub bypasses: u64,
    /// Hits as a share of hits, misses and coalesced; null before the first of them.
    pub hit_ratio: Option<f64>,
}

/// The tier of the cache in Redis.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct RedisStatus {
    /// Address, with its password masked.
    pub url: String,
    /// Threads whose circuit breaker for Redis is open.
    pub breakers_open: u64,
    /// Lookups that found a response.
    pub hits: u64,
    /// Lookups that found none, or one that is no longer valid.
    pub misses: u64,
    /// Lookups that Redis did not answer in time or not at all.
    pub failed: u64,
    /// Messages sent to other gateways.
    pub messages_sent: u64,
    /// Messages received from other gateways.
    pub messages_received: u64,
}

/// The index.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct IndexStatus {
    /// File or database, with its password masked.
    pub db: String,
    /// Name of its chain.
    pub chain: String,
    /// Lookups that it answered.
    pub hits: u64,
    /// Lookups for which it holds some of the blocks of a range.
    pub parts: u64,
    /// Lookups for which it holds nothing.
    pub misses: u64,
    /// Lookups for which it could not be read, was overloaded or took too long.
    pub failed: u64,
}

/// One key, or one issuer of tokens.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct KeyStatus {
    /// Name in the configuration.
    pub name: String,
    /// Calls made with it, denied ones too.
    pub calls: u64,
    /// Its quota; null where it has none.
    pub quota: Option<QuotaStatus>,
}

/// The monthly quota of one key.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct QuotaStatus {
    /// Units used in this month.
    pub used: u64,
    /// Upper limit of the units of a month.
    pub units: u64,
}

/// One zone of request limits.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ZoneStatus {
    /// Name in the configuration.
    pub name: String,
    /// Keys held.
    pub keys: u64,
    /// Upper limit of the keys.
    pub keys_max: u64,
    /// Keys evicted for others.
    pub evicted: u64,
    /// True if gateways share the zone through Redis.
    pub shared: bool,
    /// Threads that judge by this gateway's share now; `None` if the zone is not shared.
    #[serde(skip)]
    pub(crate) fallback_threads: Option<u64>,
    /// Calls that passed without a wait.
    pub passed: u64,
    /// Calls that waited for their turn.
    pub delayed: u64,
    /// Calls refused.
    pub rejected: u64,
    /// Calls that would have waited, had it not been a dry run.
    pub delayed_dry_run: u64,
    /// Calls that would have been refused, had it not been a dry run.
    pub rejected_dry_run: u64,
}

/// Sums over all chains and threads.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Totals {
    /// Client connections that are open.
    pub connections_open: u64,
    /// Client connections that were accepted.
    pub connections_accepted: u64,
    /// Client connections closed at once, because the most that are allowed were open.
    pub connections_refused: u64,
    /// HTTP requests whose body was read.
    pub requests: u64,
    /// HTTP requests that were batches.
    pub batches: u64,
    /// Calls answered; each call of a batch counts.
    pub calls: u64,
    /// Calls refused as malformed.
    pub calls_refused: u64,
    /// Calls without an id, which get no response.
    pub notifications: u64,
    /// HTTP requests refused as a whole, by status.
    pub refused: Vec<Refused>,
    /// Calls answered with a JSON-RPC error of an upstream.
    pub errors: u64,
    /// Calls that no upstream answered.
    pub failed: u64,
    /// Further attempts after a failed one.
    pub retries: u64,
    /// Second attempts made before the first had ended.
    pub hedges: u64,
    /// Second attempts that ended first.
    pub hedges_won: u64,
    /// Attempts at upstreams in flight.
    pub in_flight: u64,
    /// Calls in flight that equal calls can share.
    pub coalesced_calls: u64,
    /// Calls delayed by a request limit now.
    pub waiting: u64,
}

/// HTTP requests refused with one status.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Refused {
    /// The HTTP status.
    pub status: u16,
    /// Number of requests.
    pub requests: u64,
}

/// Returns the JSON Schema of `/status`.
pub fn schema() -> String {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    let schema = settings.into_generator().into_root_schema_for::<Status>();
    let text = serde_json::to_string_pretty(&schema).expect("a schema is JSON");
    text + "\n"
}
