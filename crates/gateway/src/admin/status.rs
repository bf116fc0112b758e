//! The gateway's state in one value. `/status` prints it as JSON, and the status page draws it.
//!
//! The schema of the status is published: `docs/status.schema.json` is generated from these types
//! and their comments. Counts are since the start. Only the name, host and port of an upstream are
//! shown, because the rest of its URL may contain a secret. `status/read.rs` reads the state.

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::{Deserialize, Serialize};

use crate::policy::closed_set::closed_set;
use crate::policy::memory::Purpose;

mod read;

#[cfg(test)]
pub(crate) mod tests;

/// The state of the gateway at one instant.
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
    /// The tier of the cache in Redis; null if the tier is off.
    pub redis: Option<RedisStatus>,
    /// The gateways that share limits and quotas through Redis; null if nothing is shared.
    pub gateways: Option<GatewaysStatus>,
    /// The index; null if no index is configured.
    pub index: Option<IndexStatus>,
    /// Memory taken by bodies, responses and queues.
    pub memory: MemoryStatus,
    /// Zones of request limits, in the order of the configuration.
    pub zones: Vec<ZoneStatus>,
    /// Keys, and then issuers of tokens, in the order of the configuration.
    pub keys: Vec<KeyStatus>,
    /// The methods with the most refused calls since the start, at most 64, in descending order.
    pub refused_methods: Vec<RefusedMethodStatus>,
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

/// Identity of a process. An earlier process with the same id has another identity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProcessStatus {
    /// Process id, in the PID namespace of the process.
    pub id: u32,
    /// Start of the process, in clock ticks since the machine started; null if it cannot be read.
    pub start_ticks: Option<u64>,
    /// Name of the abstract Unix socket that accepts commands such as `weir cordon` from the user
    /// of the process and root; null if it cannot be opened.
    pub control_socket: Option<String>,
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
    /// Reason of the last failed attempt; null if no attempt has failed.
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
    /// Reason of a refusal, secrets masked; null if the reload was applied.
    pub why: Option<String>,
}

/// One chain.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ChainStatus {
    /// Name in the configuration.
    pub name: String,
    /// Family, which determines the method table.
    pub family: &'static str,
    /// The served head, which is the newest block that clients see; null while no upstream has
    /// confirmed one.
    pub head: Option<HeadStatus>,
    /// Time since the served head last changed; null without a head.
    pub head_age_seconds: Option<f64>,
    /// Why the head stands still although an upstream reports new blocks; null while it moves.
    pub head_stall: Option<HeadStallStatus>,
    /// The head that was served until all upstreams were lost; null while there is a head, and
    /// before the first head.
    pub last_head: Option<LastHeadStatus>,
    /// Number of the last block that no reorg may drop; null while it is unknown.
    pub finalized: Option<u64>,
    /// Reorgs of the served chain.
    pub reorgs: u64,
    /// Blocks dropped by the deepest reorg.
    pub reorg_depth_max: u64,
    /// Number of branch changes of the upstreams and of the served chain.
    pub generation: u64,
    /// Upstreams in the order of the configuration.
    pub upstreams: Vec<UpstreamStatus>,
    /// Groups in the order of the configuration.
    pub groups: Vec<GroupStatus>,
    /// The 20 methods with the most calls, in descending order; methods without calls are omitted.
    pub methods: Vec<MethodStatus>,
}

/// A block as a head.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct HeadStatus {
    /// Height of the block.
    pub number: u64,
    /// Hash of the block: `0x` and 64 digits.
    pub hash: String,
}

/// A head that stands still although an upstream reports new blocks.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct HeadStallStatus {
    /// Name of the upstream with the highest reported head.
    pub upstream: String,
    /// Height of this head.
    pub number: u64,
    /// Why this head is not served, in words.
    pub reason: String,
}

/// A head that is no longer served, because no upstream confirms it.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct LastHeadStatus {
    /// Height of the block.
    pub number: u64,
    /// Hash of the block: `0x` and 64 digits.
    pub hash: String,
    /// Time since the head was last served.
    pub seconds_ago: f64,
}

// `closed_set!` gives each variant the name that the page and the metrics use.
closed_set! {
    /// State of an upstream.
    #[derive(Serialize, JsonSchema)]
    #[serde(rename_all = "lowercase")]
    // The type keeps its name in the published schema.
    #[schemars(rename = "HealthState")]
    pub enum HealthStatus {
        /// The upstream is called.
        Healthy = "healthy",
        /// The upstream is behind, on another branch or silent, and is called only if no
        /// healthy upstream can serve the call.
        Lagging = "lagging",
        /// The upstream's ejection has ended, or it has stopped responding to calls. A poll decides
        /// whether it is called again.
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
    /// Index in the configuration.
    #[serde(skip)]
    pub(crate) index: usize,
    /// Name in the configuration.
    pub name: String,
    /// Host and port, or the file name of a socket. Parts of the host that look like a key are
    /// masked.
    pub address: String,
    /// State of the upstream.
    pub state: HealthStatus,
    /// Time until an ejected upstream is probed or until a pause ends; null in other states.
    pub state_ends_seconds: Option<f64>,
    /// Why the upstream fails; null while it responds to polls and is in service.
    pub fault: Option<FaultStatus>,
    /// The cordon, which keeps the upstream out of rotation; null if it is not cordoned.
    pub cordon: Option<CordonStatus>,
    /// Head of the upstream; null before its first poll.
    pub head: Option<u64>,
    /// Blocks behind the served head; null before its first poll.
    pub lag: Option<u64>,
    /// True if the upstream responds, is consistent and does not lag, so it can serve reads at the
    /// head.
    pub at_head: bool,
    /// True if the upstream is on the served chain: both have the same block at the lower of the
    /// upstream's head and the served head. The last polls of the upstream must also match its
    /// known blocks.
    pub consistent: bool,
    /// Weight of the upstream in load balancing, relative to the other upstreams.
    pub weight: u32,
    /// True if the upstream is called only while no other upstream of the group can be called.
    pub backup: bool,
    /// Which data of old blocks the upstream is known to lack; empty if it lacks none or nothing is
    /// known.
    pub history: Vec<HistoryStatus>,
    /// Maximum number of blocks of one call for logs, as the refusals of the upstream have shown; null
    /// if it has refused none in the last hour.
    pub log_range_blocks_max: Option<u64>,
    /// Attempts in flight.
    pub in_flight: u64,
    /// Attempts that ended.
    pub attempts: u64,
    /// Attempts that failed because of the upstream.
    pub failed: u64,
    /// Attempts that the upstream refused by its own rate limit.
    pub rate_limited: u64,
    /// Connections opened for calls.
    pub connections_opened: u64,
    /// Transports, the cheapest first: `websocket`, `ipc`, `http2` if it is offered, or `http`.
    pub transports: Vec<&'static str>,
    /// Attempts over a WebSocket, local socket or HTTP/2.
    pub multiplexed_calls: u64,
    /// Batches of several calls that were sent to the upstream as one request.
    pub batches: u64,
    /// Attempts that were sent in batches.
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
    /// 99th percentile of the duration of attempts, from the buckets of `/metrics`.
    pub latency_p99_ms: Option<f64>,
}

/// Data that an upstream has of the newest blocks only.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct HistoryStatus {
    /// `blocks`, `receipts` (with logs), `state` or `traces`.
    pub data: &'static str,
    /// Number of the newest blocks whose data the upstream has.
    pub blocks: u64,
}

/// Why an upstream fails.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct FaultStatus {
    /// Reason of the last failure, without secrets.
    pub reason: String,
    /// Time since the upstream began to fail.
    pub since_seconds: f64,
}

/// A cordon: an operator has taken the upstream out of rotation with `weir cordon`.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct CordonStatus {
    /// Reason that the operator gave; null if none was given.
    pub reason: Option<String>,
    /// Time until the cordon expires.
    pub ends_seconds: f64,
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
    /// Number of its upstreams that are healthy and not cordoned.
    #[serde(skip)]
    pub(crate) upstreams_healthy: u64,
    /// Limit of calls in flight; null without a limit.
    pub in_flight_limit: Option<u32>,
    /// Calls in flight that count against the limit.
    pub in_flight: u64,
    /// Calls in the queue.
    pub queued: u64,
    /// Calls that were shed because the queue was full or they waited too long.
    pub shed: u64,
}

/// One method of one chain.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct MethodStatus {
    /// Name; `other` for all methods that are not in the chain's method table.
    pub name: String,
    /// Calls answered.
    pub calls: u64,
    /// Calls answered from a cache or from the gateway's own state.
    pub hit: u64,
    /// Cacheable calls that no cache could answer.
    pub miss: u64,
    /// Calls answered with the response of an equal call that was in flight.
    pub coalesced: u64,
    /// Calls whose response may not be cached.
    pub bypass: u64,
    /// Calls answered with a JSON-RPC error of an upstream.
    pub errors: u64,
    /// Calls that no upstream answered.
    pub failed: u64,
    /// Median time from the decoded call to its response, from the buckets of `/metrics`.
    pub latency_p50_ms: Option<f64>,
    /// 99th percentile of the same time.
    pub latency_p99_ms: Option<f64>,
}

/// The cache in memory.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct MemoryCache {
    /// True if the cache is on.
    pub enabled: bool,
    /// Number of cached responses.
    pub entries: u64,
    /// Bytes of the cached responses, with keys and bookkeeping.
    pub bytes: u64,
    /// Upper limit of `bytes`.
    pub bytes_max: u64,
    /// Calls answered from a cache or from the gateway's own state.
    pub hits: u64,
    /// Cacheable calls that no cache could answer.
    pub misses: u64,
    /// Calls answered with the response of an equal call that was in flight.
    pub coalesced: u64,
    /// Calls whose response may not be cached.
    pub bypasses: u64,
    /// Hits as a share of hits, misses and coalesced calls; null before the first of these calls.
    pub hit_ratio: Option<f64>,
}

/// The tier of the cache in Redis.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct RedisStatus {
    /// Address, with its password masked.
    pub url: String,
    /// Redis connections that are not connected yet or whose circuit breaker is open, summed over
    /// all threads.
    pub breakers_open: u64,
    /// Lookups that found a response.
    pub hits: u64,
    /// Lookups that found no response, or a response that is not valid.
    pub misses: u64,
    /// Lookups that Redis answered with an error or not in time, and lookups that were skipped
    /// because the circuit breaker was open.
    pub failed: u64,
    /// Messages sent to other gateways.
    pub messages_sent: u64,
    /// Messages received from other gateways.
    pub messages_received: u64,
}

/// The gateways that share limits and quotas through Redis.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct GatewaysStatus {
    /// Number of gateways. While Redis is down, this gateway divides shared rates and quotas by
    /// this number.
    pub count: u64,
    /// Origin of the number: `configured` by `redis.gateways`; `counted` by the last heartbeat;
    /// `last_counted` by an earlier one, because Redis is down or has just come back; `assumed` by
    /// `redis.gateways_assumed` before the first count.
    pub source: &'static str,
}

/// The index.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct IndexStatus {
    /// File or database, with its password masked.
    pub db: String,
    /// Name of the indexed chain.
    pub chain: String,
    /// Lookups that the index answered.
    pub hits: u64,
    /// Lookups for which the index has some of the blocks of a range.
    pub parts: u64,
    /// Lookups for which the index has no data.
    pub misses: u64,
    /// Lookups that failed because the index could not be read, was overloaded or took too long.
    pub failed: u64,
}

/// One key, or one issuer of tokens.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct KeyStatus {
    /// Name in the configuration.
    pub name: String,
    /// Calls made with the key or token, including denied calls.
    pub calls: u64,
    /// Monthly quota; null without a quota.
    pub quota: Option<QuotaStatus>,
}

/// The monthly quota of one key.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct QuotaStatus {
    /// Units used in this month.
    pub used: u64,
    /// Units that may be used in a month.
    pub units: u64,
}

/// One zone of request limits.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ZoneStatus {
    /// Name in the configuration.
    pub name: String,
    /// Number of keys in the zone.
    pub keys: u64,
    /// Maximum number of keys in the zone.
    pub keys_max: u64,
    /// Keys evicted because the zone was full.
    pub evicted: u64,
    /// True if gateways share the zone through Redis.
    pub shared: bool,
    /// Number of threads that now apply this gateway's local share of the zone, because Redis is
    /// unreachable; `None` if the zone is not shared.
    #[serde(skip)]
    pub(crate) fallback_threads: Option<u64>,
    /// Calls that passed without a wait.
    pub passed: u64,
    /// Calls that a limit delayed.
    pub delayed: u64,
    /// Calls that a limit rejected.
    pub rejected: u64,
    /// Calls that a limit in dry run would have delayed.
    pub delayed_dry_run: u64,
    /// Calls that a limit in dry run would have rejected.
    pub rejected_dry_run: u64,
}

/// A method that the gateway refuses.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct RefusedMethodStatus {
    /// Name of the method.
    pub method: String,
    /// The configuration key that refuses the method, for example `access.node_methods`.
    pub refused_by: &'static str,
    /// Refused calls.
    pub calls: u64,
}

/// Sums over all chains and threads.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Totals {
    /// Client connections that are open.
    pub connections_open: u64,
    /// Client connections that were accepted.
    pub connections_accepted: u64,
    /// Client connections closed at once because the maximum number was open.
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
    /// HTTP requests refused as a whole, by status. A rejected call counts in `rejected` instead,
    /// even if it is the only call of its request, whose status then reports the rejection.
    pub refused: Vec<Refused>,
    /// Calls rejected by the gateway, by reason. Calls that a request limit rejected are also
    /// listed by zone.
    pub rejected: Vec<Rejected>,
    /// Calls answered with a JSON-RPC error of an upstream.
    pub errors: u64,
    /// Calls that no upstream answered.
    pub failed: u64,
    /// Further attempts after a failed one.
    pub retries: u64,
    /// Hedges: second attempts started before the first attempt had ended.
    pub hedges: u64,
    /// Hedges that ended before the first attempt.
    pub hedges_won: u64,
    /// Attempts at upstreams in flight.
    pub in_flight: u64,
    /// Calls in flight that identical calls can join. Such a call counts once, no matter how many
    /// clients wait for it.
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

/// Calls that the gateway rejected for one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Rejected {
    /// `limit` for a request limit, `quota` for a monthly quota, `overload` if the upstreams of a
    /// group are overloaded, `malformed` for calls that cannot be parsed; otherwise a reason of
    /// `weir_access_denied`.
    pub reason: &'static str,
    /// Zone of the limit; null for other reasons.
    pub zone: Option<String>,
    /// Number of calls. Denied requests count too.
    pub calls: u64,
}

/// Returns the JSON Schema of `/status`.
pub fn render_schema() -> String {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    let schema = settings.into_generator().into_root_schema_for::<Status>();
    let text = serde_json::to_string_pretty(&schema).expect("a schema is JSON");
    text + "\n"
}
