//! What the operator wants, checked: the second of the two stages of configuration.
//!
//! Everything here is ready to use: durations, addresses, indexes into lists that exist, TLS
//! clients that were built. Nothing is optional where a default exists, and nothing has a
//! `Default`: the defaults stand in one table, `config/field.rs`, which the reference in
//! `docs/config.md` is printed from. The first stage, what was written and where, is
//! `config/file.rs`; the step from the first to the second is `config/checked.rs`; what is told
//! to the operator when it fails is `config/fault.rs`.
//!
//! It opens no sockets and starts nothing.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use wire::call::Limits;
use wire::method::FamilyName;

pub mod access;
pub mod database;
pub mod diff;
pub mod fault;
pub mod field;
pub mod redis_url;
pub mod reference;
pub mod url;

mod checked;
mod expand;
mod file;
mod jwt;
pub(crate) mod kind;
mod mask;
mod tls;

#[cfg(test)]
mod tests;

use crate::quota::file::Kept;
use crate::rules::client::{AddressSource, Trusted};
use crate::rules::limit::{Rate, Terms};
use crate::rules::overload::Priorities;
use crate::rules::overload::limiter::LimiterSettings;
use crate::tls::{ClientAuth, SessionTerms, TicketKeys};
use access::{Access, AccessLog};
use database::Database;
use fault::{Faults, Report};
use redis_url::RedisUrl;
use url::{NodeUrl, Transport};

use crate::rules::access::{MethodRules, MethodSet};
use crate::rules::direct::Rule;

/// The whole configuration of one gateway. A reload replaces it as one value.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where clients connect in clear text; `None` where they cannot, and then
    /// [`Config::listen_tls`] says where they can.
    pub listen: Option<SocketAddr>,
    /// Where and how clients are served over TLS.
    pub listen_tls: Option<Arc<ListenTls>>,
    /// Where metrics, health and the status page are served; `None` when turned off.
    pub admin: Option<SocketAddr>,
    /// Number of serving threads, one single-threaded runtime each; at least 1.
    pub threads: usize,
    /// Bytes that bodies, responses and queues of all connections may take together; none for a
    /// quarter of the memory.
    pub memory_max: Option<usize>,
    /// How long a graceful stop goes on as before, but for readiness, so that load balancers notice.
    pub drain_delay: Duration,
    /// How long it keeps idle connections open for one more request.
    pub drain_linger: Duration,
    /// How long a graceful stop waits for requests that have begun.
    pub drain_deadline: Duration,
    /// Whether a changed file is read anew without being told to.
    pub reload_on_change: bool,
    /// The files that were read for it: certificates, keys, secrets.
    pub files: Vec<PathBuf>,
    /// What is accepted from clients, and how they are answered.
    pub front: Front,
    /// What request limits count in, in the order of the file.
    pub zones: Vec<Zone>,
    /// Which calls the zones limit, in the order of the file.
    pub limits: Vec<Limit>,
    /// The cache in memory and coalescing.
    pub cache: Cache,
    /// A Redis that gateways share; `None` where there is none, or no use for it.
    pub redis: Option<Redis>,
    /// The file with a chain's past; `None` without one.
    pub index: Option<Index>,
    /// When a node is taken out and when it comes back.
    pub health: Health,
    /// How many repeats the gateway may add to the load of the nodes.
    pub retry: RetryBudget,
    /// What becomes of calls when nodes have no room for more; `None` when turned off.
    pub overload: Option<Overload>,
    /// What is logged.
    pub log: Log,
    /// Who may call, and which methods are served.
    pub access: Access,
    /// Where calls go, in the order in which rules are tried.
    pub rules: Vec<Rule>,
    /// How quotas are kept; `None` where no key has one.
    pub quota: Option<Quota>,
    /// What is written of requests; `None` when nothing is.
    pub access_log: Option<AccessLog>,
    /// Headers that rules and the access log look at, lower case.
    pub kept_headers: Vec<Box<str>>,
    /// At least one chain; no two share a name or a path.
    pub chains: Vec<Chain>,
    /// At least one node for each chain, in the order of the file.
    pub nodes: Vec<Node>,
    /// At least one group for each chain; see [`Chain::groups`].
    pub groups: Vec<Group>,
    /// What is allowed but looks like a mistake; printed by `weir check` and at start.
    pub warnings: Faults,
    /// What was written, to compare with another configuration; see [`diff::diff`].
    keys: Arc<diff::Keys>,
}

/// Where and how clients are served over TLS.
#[derive(Clone)]
pub struct ListenTls {
    /// Where they connect.
    pub address: SocketAddr,
    /// Certificates, versions, ciphers and sessions; shared by all threads.
    pub server: Arc<rustls::ServerConfig>,
    /// Time for a handshake.
    pub handshake_timeout: Duration,
    /// Whether clients show certificates.
    pub client_auth: ClientAuth,
    /// The names that each certificate is shown for, in the order of the file.
    pub names: Vec<Vec<String>>,
    /// True if the time of one of them is over.
    pub ended: bool,
    /// What must be equal for sessions to be carried over.
    pub(crate) terms: SessionTerms,
}

impl ListenTls {
    /// The same, with the sessions and the ticket keys in memory of a configuration that it
    /// replaces: a reload costs clients no full handshake. They are carried only where both
    /// verify clients alike and keep sessions alike.
    #[must_use]
    pub fn carrying(self, former: &ListenTls) -> ListenTls {
        if self.terms != former.terms {
            return self;
        }
        let mut server = (*self.server).clone();
        server.session_storage = Arc::clone(&former.server.session_storage);
        if self.terms.tickets == TicketKeys::OfProcess {
            server.ticketer = Arc::clone(&former.server.ticketer);
        }
        ListenTls { server: Arc::new(server), ..self }
    }
}

impl fmt::Debug for ListenTls {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let suites = &self.server.crypto_provider().cipher_suites;
        let suites: Vec<_> = suites.iter().map(rustls::SupportedCipherSuite::suite).collect();
        formatter
            .debug_struct("ListenTls")
            .field("address", &self.address)
            .field("handshake_timeout", &self.handshake_timeout)
            .field("client_auth", &self.client_auth)
            .field("names", &self.names)
            .field("suites", &suites)
            .field("tickets", &self.server.ticketer)
            .finish_non_exhaustive()
    }
}

/// What is accepted from clients, and how they are answered.
#[derive(Clone, Debug)]
pub struct Front {
    /// Open client connections over all threads; at least 1.
    pub connections_max: usize,
    /// Open connections of one client over all threads; at least 1; `None` when not limited.
    pub connections_per_client_max: Option<usize>,
    /// Bounds for the decoder of calls: body, depth, batch, method name, id.
    pub limits: Limits,
    /// Bytes of a request's head.
    pub header_bytes_max: usize,
    /// Bytes of all answers of one batch together.
    pub batch_answer_bytes_max: usize,
    /// Time for a request's head to arrive, from its first byte or from the connection's start.
    pub header_timeout: Duration,
    /// Time for a request's body to arrive whole.
    pub body_timeout: Duration,
    /// How long a client may take nothing of an answer.
    pub write_timeout: Duration,
    /// How long a connection may stay open between two requests.
    pub idle_timeout: Duration,
    /// Which web pages may call.
    pub cors: Cors,
    /// The header that holds a key, which web pages may send too.
    pub key_header: Box<str>,
    /// Whether answers are compressed when the client accepts it.
    pub compression: bool,
    /// Answers smaller than this are not compressed.
    pub compression_bytes_min: usize,
    /// Whether other content types than JSON's are accepted.
    pub content_type: ContentType,
    /// Whether answers carry `x-weir-cache` and `x-weir-node`.
    pub answer_headers: bool,
    /// HTTP/1.1 requests that one connection may carry; at least 1.
    pub keep_alive_requests_max: u64,
    /// How WebSockets are served.
    pub websocket: WebSocket,
    /// Filters that are remembered.
    pub filters: Filters,
    /// Where a client's address is taken from.
    pub client_address: AddressSource,
    /// Who may say it.
    pub trusted_proxies: Trusted,
}

/// How long and how many filters are remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filters {
    /// Of one chain.
    pub filters_max: usize,
    /// Of one chain and client.
    pub per_client_max: usize,
    /// How long after it was asked for last.
    pub timeout: Duration,
}

/// How clients' WebSockets are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WebSocket {
    /// Whether they are.
    pub enabled: bool,
    /// Whether messages may be packed.
    pub compression: bool,
    /// Messages of one connection that are under way at the same time; at least 1.
    pub messages_max: usize,
    /// Bytes of answers that may wait for one client.
    pub queue_bytes_max: usize,
    /// Subscriptions of one client.
    pub subscriptions_max: usize,
    /// After how long a silence a sign of life is asked for, and again how long it is waited for.
    pub ping: Duration,
}

/// Which web pages may call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cors {
    /// Every page: `access-control-allow-origin: *`.
    Any,
    /// Pages of these origins, lower case, without a trailing slash; may be empty.
    Origins(Vec<Box<str>>),
}

impl Cors {
    /// Whether pages of this origin may call.
    pub(crate) fn admits(&self, origin: &str) -> bool {
        match self {
            Cors::Any => true,
            Cors::Origins(allowed) => {
                allowed.iter().any(|known| known.eq_ignore_ascii_case(origin))
            }
        }
    }
}

/// Whether other content types than JSON's are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentType {
    /// `application/json`, `application/json-rpc` and `application/jsonrequest`, as geth; else 415.
    Strict,
    /// Any or none.
    Lenient,
}

/// The cache in memory and coalescing.
#[derive(Clone, Debug)]
pub struct Cache {
    /// Whether answers are kept.
    pub enabled: bool,
    /// Whether equal calls that are under way at the same time share one call to a node.
    pub coalesce: bool,
    /// Bytes of all entries, keys included.
    pub bytes_max: usize,
    /// Bytes of one entry; a larger answer is passed on and not kept.
    pub entry_bytes_max: usize,
    /// Longest life of an answer that is bound to the head, should the head stand still.
    pub head_age_max: Duration,
    /// Longest life of a `null` answer, which also ends with the head that it was given at.
    pub null_age_max: Duration,
    /// Life of an error that every node of the set would repeat.
    pub error_age_max: Duration,
    /// Blocks of one aligned part of a finalized `eth_getLogs` range; at least 1.
    pub logs_chunk_blocks: u64,
    /// Parts that one `eth_getLogs` may be cut into; a longer range stays whole.
    pub logs_parts_max: usize,
}

/// A Redis that gateways share.
#[derive(Clone, Debug)]
pub struct Redis {
    /// Where it is.
    pub url: RedisUrl,
    /// Whether answers are kept there, as a tier of the cache.
    pub answers: bool,
    /// How many gateways share it: each holds itself to its share of shared limits while it is away.
    pub gateways: u64,
    /// What its certificate is verified with; `None` for clear text.
    pub tls: Option<RedisTls>,
    /// What every key begins with.
    pub prefix: Box<str>,
    /// How long a call waits for it at most.
    pub timeout: Duration,
    /// Whether its replicas are read from.
    pub read_replicas: bool,
    /// Answers smaller than this are stored unpacked.
    pub compress_bytes_min: usize,
    /// Bytes of one answer; a larger one is not stored.
    pub entry_bytes_max: usize,
    /// Longest life of an entry.
    pub ttl_max: Duration,
    /// Failures in a row after which a thread leaves it alone; at least 1.
    pub failures_max: u32,
    /// How long it is left alone until a probe.
    pub backoff: Duration,
    /// Whether reorgs are told to other gateways, and heard from them.
    pub tell_reorgs: bool,
}

/// A file with a chain's past, as a tier of the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Index {
    /// Where it is kept.
    pub db: Database,
    /// Which chain it is of.
    pub chain: usize,
    /// Whether the gateway syncs it.
    pub follow: bool,
    /// How closely what is synced is looked at: `off`, `headers`, `full`, `senders`.
    pub verify: &'static str,
    /// Threads that read it, each over a connection of its own.
    pub readers: usize,
    /// Bytes of pages that each connection keeps.
    pub page_cache: usize,
    /// Bytes of a file that readers map.
    pub mmap: usize,
    /// Most logs of one answer.
    pub logs_max: u64,
}

/// How to speak TLS with Redis.
#[derive(Clone)]
pub struct RedisTls {
    /// Trust anchors, verification and session store.
    pub client: Arc<rustls::ClientConfig>,
}

impl fmt::Debug for RedisTls {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("RedisTls").finish_non_exhaustive()
    }
}

/// When a node is taken out and when it comes back.
#[derive(Clone, Debug)]
pub struct Health {
    /// Failures in a row that take a node out.
    pub failures_max: u32,
    /// Length of the sliding window over which the share of failures is taken.
    pub window: Duration,
    /// Calls within the window below which the share is not judged.
    pub window_calls_min: u32,
    /// Share of failed calls in the window that takes a node out, 0 to 1.
    pub failure_share_max: f64,
    /// First time out; doubles with each further one.
    pub backoff_min: Duration,
    /// Longest time out.
    pub backoff_max: Duration,
    /// How long a node that says "too many requests" rests when it does not say how long.
    pub pause: Duration,
    /// Longest rest that a node may ask for.
    pub pause_max: Duration,
    /// How long it is remembered that a node does not know a method.
    pub unsupported_age_max: Duration,
}

/// How many repeats the gateway may add to the load of the nodes.
#[derive(Clone, Debug)]
pub struct RetryBudget {
    /// Repeats as a share of calls.
    pub share_max: f64,
    /// Repeats per second that are allowed whatever the share.
    pub rate_min: u32,
}

/// What becomes of calls when nodes have no room for more.
#[derive(Clone, Debug, PartialEq)]
pub struct Overload {
    /// Calls of a group that may wait for a place, over all threads.
    pub queue_max: usize,
    /// How long one waits at the most.
    pub queue_timeout: Duration,
    /// What decides the class of a call.
    pub priorities: Priorities,
    /// Share of places that a class keeps while better ones wait too, 0 to 0.5.
    pub share_kept: f64,
    /// HTTP status of a call that is shed.
    pub status: u16,
}

/// What is logged.
#[derive(Clone, Debug)]
pub struct Log {
    /// Text for people or JSON for collectors.
    pub format: LogFormat,
    /// The least severe level that is written.
    pub level: tracing::Level,
}

/// Text for people or JSON for collectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// One readable line per event.
    Text,
    /// One JSON object per line.
    Json,
}

/// One chain (or shard) with the nodes and groups that serve it.
#[derive(Clone, Debug)]
pub struct Chain {
    /// Unique; a part of every cache key and metric label.
    pub name: Arc<str>,
    /// Which method table applies.
    pub family: FamilyName,
    /// The number every node must give as its chain id; `None` takes whatever they agree on.
    pub id: Option<u64>,
    /// Expected time between blocks.
    pub block_time: Duration,
    /// Blocks behind the head that count as final where the nodes do not say what is final.
    pub finality_depth: u64,
    /// How often each node is asked for its head.
    pub poll_interval: Duration,
    /// Blocks that a node may be behind the chain's head and still serve it.
    pub lag_max: u64,
    /// Blocks that a head may jump beyond what the block time explains without a second witness.
    pub jump_max: u64,
    /// URL paths that lead to this chain; each begins with `/`; none is empty.
    pub paths: Vec<Box<str>>,
    /// Whether paths that belong to no chain lead here. True for at most one chain.
    pub default: bool,
    /// Which methods are served on it.
    pub methods: MethodRules,
    /// Its nodes, as indexes into [`Config::nodes`], in the order of the file.
    pub nodes: Vec<usize>,
    /// Its groups, as indexes into [`Config::groups`], in the order of the file. The last one
    /// serves every method that no other one names, and always exists.
    pub groups: Vec<usize>,
}

/// One node.
#[derive(Clone, Debug)]
pub struct Node {
    /// Unique; shown in headers, metrics and logs. Never holds a part of the URL but host and port.
    pub name: Arc<str>,
    /// Where it is. Prints itself without secrets.
    pub url: NodeUrl,
    /// Index into [`Config::chains`].
    pub chain: usize,
    /// Share of calls relative to other nodes: 1 to 1000.
    pub weight: u32,
    /// Used only while no other node of the group can be used.
    pub backup: bool,
    /// Open connections over all threads; at least 1.
    pub connections_max: usize,
    /// How long an unused connection is kept.
    pub idle_timeout: Duration,
    /// Whether a connection carries one call after the other.
    pub keep_alive: bool,
    /// Time for a connection (with TLS where the URL says so) to be made.
    pub connect_timeout: Duration,
    /// Added to every request to this node. The values are marked sensitive, so that printing
    /// them masks them.
    pub headers: Vec<(http::HeaderName, http::HeaderValue)>,
    /// How to speak TLS with it; `None` exactly when the URL is not `https://` or `wss://`.
    pub tls: Option<Tls>,
    /// Another address of the node, which takes many calls at a time: a WebSocket or a local socket.
    /// Only beside a URL that is `http://` or `https://`.
    pub ws_url: Option<NodeUrl>,
    /// How to speak TLS there; `None` exactly when that URL is not `wss://`.
    pub ws_tls: Option<Tls>,
    /// Calls under way at a time on one WebSocket or local socket; at least 1.
    pub calls_per_connection_max: usize,
    /// Longest call that is sent there; none for no bound.
    pub message_bytes_max: Option<usize>,
    /// How long a WebSocket may be silent before the node is pinged, and how long its answer may take.
    pub ping_interval: Duration,
    /// Whether HTTP/2 is offered to it. Only with a URL that is `https://`.
    pub http2: bool,
    /// Calls that one batch may have; 1 for no batches. Only where there is nothing but HTTP.
    pub batch_calls_max: usize,
    /// How long the first call of a batch waits for others.
    pub batch_wait: Duration,
}

impl Node {
    /// The address that takes one call at a time on a connection, if it has one.
    pub(crate) fn http(&self) -> Option<(&NodeUrl, Option<&Tls>)> {
        (self.url.transport() == Transport::Http).then_some((&self.url, self.tls.as_ref()))
    }

    /// The address that takes many calls at a time on a connection, if it has one.
    pub(crate) fn multiplexed(&self) -> Option<(&NodeUrl, Option<&Tls>)> {
        match &self.ws_url {
            Some(url) => Some((url, self.ws_tls.as_ref())),
            None if self.url.transport() == Transport::Http => None,
            None => Some((&self.url, self.tls.as_ref())),
        }
    }

    /// Whether both are at the same place and spoken to in the same way, so that what is known of
    /// one holds for the other.
    pub(crate) fn is_spoken_to_like(&self, other: &Node) -> bool {
        let trust = |tls: &Option<Tls>| tls.as_ref().map(|tls| tls.trust.clone());
        let server_name = |tls: &Option<Tls>| tls.as_ref().map(|tls| tls.server_name.clone());
        let same = |own: &Option<Tls>, other: &Option<Tls>| {
            trust(own) == trust(other) && server_name(own) == server_name(other)
        };
        self.url == other.url
            && self.ws_url == other.ws_url
            && self.headers == other.headers
            && same(&self.tls, &other.tls)
            && same(&self.ws_tls, &other.ws_tls)
    }

    /// Whether connections to both are made and kept in the same way.
    pub(crate) fn pools_like(&self, other: &Node) -> bool {
        self.connections_max == other.connections_max
            && self.idle_timeout == other.idle_timeout
            && self.connect_timeout == other.connect_timeout
            && self.keep_alive == other.keep_alive
            && self.calls_per_connection_max == other.calls_per_connection_max
            && self.message_bytes_max == other.message_bytes_max
            && self.ping_interval == other.ping_interval
            && self.http2 == other.http2
            && self.batch_calls_max == other.batch_calls_max
            && self.batch_wait == other.batch_wait
    }
}

/// How to speak TLS with one node.
#[derive(Clone)]
pub struct Tls {
    /// Trust anchors, verification and session store; shared by all connections to the node.
    pub client: Arc<rustls::ClientConfig>,
    /// What the client was built from, to compare: two clients cannot be.
    pub(crate) trust: Trust,
    /// The name that is asked for and verified.
    pub server_name: rustls::pki_types::ServerName<'static>,
}

/// Whom a TLS client trusts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    /// The built-in roots.
    Roots,
    /// The certificates of a file, as it was.
    File(Arc<[u8]>),
    /// Everybody.
    Anybody,
}

impl Tls {
    /// The certificates of `tls_ca`, as they were read; none without it.
    pub fn ca_pem(&self) -> Option<&[u8]> {
        match &self.trust {
            Trust::File(pem) => Some(pem),
            Trust::Roots | Trust::Anybody => None,
        }
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Tls")
            .field("server_name", &self.server_name)
            .finish_non_exhaustive()
    }
}

/// Nodes that serve certain methods of one chain in one way.
#[derive(Clone, Debug)]
pub struct Group {
    /// Unique within its chain.
    pub name: Arc<str>,
    /// Index into [`Config::chains`].
    pub chain: usize,
    /// Indexes into [`Config::nodes`], all of the same chain; at least one, none twice.
    pub nodes: Vec<usize>,
    /// Exact names, or prefixes that end in `*`; `*` alone is every method. At least one.
    pub methods: Vec<Box<str>>,
    /// Methods that are not served, though they come to it.
    pub methods_deny: MethodSet,
    /// How one of the nodes is chosen.
    pub balance: Balance,
    /// Time for the whole call, repeats included.
    pub deadline: Duration,
    /// Time for one attempt at one node.
    pub attempt_deadline: Duration,
    /// Further attempts after the first.
    pub retries_max: u32,
    /// Bytes of one answer of a node.
    pub answer_bytes_max: usize,
    /// When a second node is asked before the first has answered; `None` when never.
    pub hedge: Option<Hedge>,
    /// Between what bounds the limit of calls under way at its nodes lies.
    pub in_flight: LimiterSettings,
}

/// How one of a group's nodes is chosen.
#[derive(Clone, Debug, PartialEq)]
pub enum Balance {
    /// The less loaded of two, by peak-EWMA latency.
    LeastLoaded,
    /// Smooth weighted round robin, as nginx.
    Weighted,
    /// The same node for the same key, on a consistent-hash ring.
    Hash {
        /// What is hashed.
        key: HashKey,
        /// A node takes at most this many times the mean load; at least 1.
        load_factor: f64,
    },
}

/// What a consistent hash is taken of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HashKey {
    /// Method and params.
    Call,
    /// The client's address.
    Client,
    /// The value of one header of the client's request; without it, the client's address.
    Header(http::HeaderName),
}

/// When a second node is asked before the first has answered.
#[derive(Clone, Debug, PartialEq)]
pub struct Hedge {
    /// Quantile of the method's latency after which the second node is asked, 0.5 to 0.999.
    pub quantile: f64,
    /// Shortest wait before the second node is asked.
    pub delay_min: Duration,
    /// Second askings as a share of calls, 0 to 1.
    pub share_max: f64,
}

/// What request limits count in: whom a call counts against, and how fast that drains.
#[derive(Clone, Debug)]
pub struct Zone {
    /// Unique; a metric label.
    pub name: Arc<str>,
    /// What a key is made of; at least one part, none twice.
    pub key: Vec<KeyPart>,
    /// How fast a key's excess drains; `None` where calls in flight are counted.
    pub rate: Option<Rate>,
    /// What a call counts as.
    pub cost: Cost,
    /// Memory for keys; beyond it those called least lately are forgotten.
    pub bytes: usize,
    /// Whether gateways share it through Redis.
    pub shared: bool,
}

/// A part of the key of a zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyPart {
    /// The client's whole address.
    Client,
    /// The first 64 bits of an IPv6 address, which one client has to itself; a whole IPv4 address.
    ClientNet,
    /// The name of the caller's API key, or of its token's holder; empty without one.
    Key,
    /// The value of a header of the client's request; empty without it.
    Header(http::HeaderName),
    /// The method's name; empty where the body could not be read.
    Method,
    /// The chain's name.
    Chain,
}

/// What a call counts as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cost {
    /// One.
    Call,
    /// The weight of its method's row; one for a method that no table knows.
    Weight,
}

/// How the quotas of keys are kept.
#[derive(Clone, Debug)]
pub struct Quota {
    /// Where.
    pub file: PathBuf,
    /// What a call counts as.
    pub cost: Cost,
    /// Whether gateways share them through Redis.
    pub shared: bool,
    /// What the file said.
    pub(crate) kept: Arc<Kept>,
}

/// A zone put to use.
#[derive(Clone, Debug)]
pub struct Limit {
    /// Index into [`Config::zones`].
    pub zone: usize,
    /// Index into [`Config::chains`]; `None` for every chain.
    pub chain: Option<usize>,
    /// Exact names, or prefixes that end in `*`; empty for every method.
    pub methods: Vec<Box<str>>,
    /// Whether it counts requests refused with 401 or 403, in place of calls.
    pub failures: bool,
    /// What is limited.
    pub kind: LimitKind,
    /// Whether it only counts what it would do.
    pub dry_run: bool,
    /// HTTP status of a single call that is refused.
    pub status: u16,
}

/// What a limit limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitKind {
    /// How many calls come, by the zone's rate.
    Rate(Terms),
    /// How many calls are in flight at a time.
    Concurrent(u64),
}

/// Reads a duration as it is written in a file, `250ms` or `10s`: for arguments that take one.
///
/// # Errors
/// What is wrong with the text.
pub fn read_duration(text: &str) -> Result<Duration, &'static str> {
    kind::duration(text)
}

/// Whether a text can name a chain, node, group or key.
pub fn is_name(text: &str) -> bool {
    kind::check_name(text).is_ok()
}

/// What the command line says over the file; `None` leaves the file's value or the default.
#[derive(Clone, Debug)]
pub struct Overrides {
    /// In place of `server.listen`.
    pub listen: Option<SocketAddr>,
    /// In place of `server.admin`; `Some(None)` turns it off.
    pub admin: Option<Option<SocketAddr>>,
    /// In place of `server.threads`; at least 1.
    pub threads: Option<usize>,
    /// Turns cache and coalescing off, so that every call reaches a node.
    pub no_cache: bool,
}

impl Config {
    /// Reads and checks a file. Relative file names in it are taken from the file's own folder;
    /// `${VAR}` from the environment of this process.
    ///
    /// # Errors
    /// Every fault of the file at once, each with its place, ready to print; also when the file
    /// cannot be read.
    pub fn from_file(path: &Path) -> Result<Config, Faults> {
        let name = path.display().to_string();
        let text =
            std::fs::read_to_string(path).map_err(|error| Faults::unreadable(&name, &error))?;
        let folder = path.parent().unwrap_or(Path::new(""));
        Config::from_text(&name, &text, folder, &|name| std::env::var(name).ok())
    }

    /// Checks the text of a file. `name` is how faults call the file, `folder` where relative
    /// file names in it begin, `environment` what `${VAR}` stands for.
    ///
    /// # Errors
    /// Every fault of the text at once, each with its place; of a text that is not TOML, only those
    /// of its syntax.
    pub fn from_text(
        name: &str,
        text: &str,
        folder: &Path,
        environment: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Config, Faults> {
        let mut report = Report::of_file(name, text);
        let world = expand::World::new(folder, environment);
        match file::read(text, &world, &mut report) {
            Some(written) => checked::check(&written, &world, report),
            None => Err(report.finish()),
        }
    }

    /// The configuration of `weir serve --upstream URL…`: one chain of the `ethereum` family on
    /// every path, all nodes equal, every other value at its default.
    ///
    /// # Errors
    /// Every fault of the URLs at once, named by their position.
    pub fn from_upstreams(
        upstreams: &[String],
        listen: Option<SocketAddr>,
        threads: Option<usize>,
        no_cache: bool,
    ) -> Result<Config, Faults> {
        let mut report = Report::of_arguments();
        let written = file::of_upstreams(upstreams, &mut report);
        let world = expand::World::new(Path::new(""), &|_| None);
        let config = checked::check(&written, &world, report)?;
        Ok(config.overridden(&Overrides { listen, admin: None, threads, no_cache }))
    }

    /// The same configuration with what the command line says put over it.
    #[must_use]
    pub fn overridden(mut self, overrides: &Overrides) -> Config {
        if let Some(listen) = overrides.listen {
            self.listen = Some(listen);
        }
        if let Some(admin) = overrides.admin {
            self.admin = admin;
        }
        if let Some(threads) = overrides.threads {
            self.threads = threads.max(1);
        }
        if overrides.no_cache {
            self.cache.enabled = false;
            self.cache.coalesce = false;
        }
        self
    }
}
