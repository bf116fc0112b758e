//! The table of all keys of a configuration file: the one place where a key, its kind, its
//! bounds, its default and its meaning are stated.
//!
//! The reader (`config/file.rs`), the check for unknown keys, the defaults and `docs/config.md`
//! (`config/reference.rs`) all follow it. Apart from the types at the top this file holds only
//! equal entries, so it may grow past the usual length.

use std::time::Duration;

use super::kind::Kind;

/// A table of a configuration file.
pub struct Section {
    /// Its name: `front`, `node`.
    pub name: &'static str,
    /// How it stands in a file.
    pub form: Form,
    /// What it is for.
    pub doc: &'static str,
    /// Its keys, in the order of the reference.
    pub fields: &'static [Field],
}

/// How a table stands in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `[front]`, at most once.
    Once,
    /// `[chain.NAME]`, once per name.
    Named,
    /// `[[node]]`, any number of times.
    Listed,
}

/// A key of a configuration file.
pub struct Field {
    /// Its name.
    pub key: &'static str,
    /// What it may be set to.
    pub(super) kind: Kind,
    /// What holds when it is not set.
    pub default: Default,
    /// What it does.
    pub doc: &'static str,
}

/// What holds when a key is not set.
#[derive(Clone, Copy, Debug)]
pub enum Default {
    /// This value, in the form of the file without quotes.
    Is(&'static str),
    /// An empty list or table.
    Empty,
    /// Something that follows from elsewhere, in words.
    Follows(&'static str),
    /// It must be set.
    Required,
}

impl Field {
    /// What it may be set to, in words.
    pub fn allowed(&self) -> String {
        self.kind.to_string()
    }

    /// What kind of value it is, in words.
    pub fn noun(&self) -> &'static str {
        self.kind.noun()
    }
}

impl Section {
    /// The key of this name.
    pub fn field(&self, key: &str) -> Option<&'static Field> {
        self.fields.iter().find(|field| field.key == key)
    }

    /// Its heading in a file.
    pub fn heading(&self) -> String {
        match self.form {
            Form::Once => format!("[{}]", self.name),
            Form::Named => format!("[{}.NAME]", self.name),
            Form::Listed => format!("[[{}]]", self.name),
        }
    }
}

/// All tables, in the order of the reference.
pub static SECTIONS: [&Section; 22] = [
    &SERVER,
    &CHAIN,
    &NODE,
    &GROUP,
    &CALL,
    &OVERLOAD,
    &CACHE,
    &REDIS,
    &INDEX,
    &HEALTH,
    &FRONT,
    &TLS,
    &CERTIFICATE,
    &ZONE,
    &LIMIT,
    &ACCESS,
    &KEY,
    &QUOTA,
    &JWT,
    &RULE,
    &ACCESS_LOG,
    &LOG,
];

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86400);
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

pub(super) static SERVER: Section = Section {
    name: "server",
    form: Form::Once,
    doc: "Where the gateway listens and what it runs on.",
    fields: &[
        Field {
            key: "listen",
            kind: Kind::AddressOrOff,
            default: Default::Is("127.0.0.1:8645"),
            doc: "Where clients connect in clear text. Port 0 takes a free one. It may be off where \
                  `listen_tls` is set.",
        },
        Field {
            key: "listen_tls",
            kind: Kind::AddressOrOff,
            default: Default::Is("off"),
            doc: "Where clients connect over TLS, beside `listen`. Needs at least one \
                  `[[certificate]]`.",
        },
        Field {
            key: "admin",
            kind: Kind::AddressOrOff,
            default: Default::Is("127.0.0.1:8646"),
            doc: "Where `/metrics`, `/healthz`, `/readyz`, `/status` and the status page are \
                  served. It has no password: keep it off public addresses.",
        },
        Field {
            key: "threads",
            kind: Kind::Count { min: 1, max: 1024 },
            default: Default::Follows("the number of cores"),
            doc: "Serving threads. Each has its own listener and its own connections to the nodes.",
        },
        Field {
            key: "memory_max",
            kind: Kind::Bytes { min: 16 * MIB, max: 1 << 50 },
            default: Default::Follows("a quarter of the memory of the machine or control group"),
            doc: "Bytes that request bodies, responses and queues of all connections may take \
                  together. Beyond it requests get 503 with `Retry-After`, and the connections of \
                  the clients that are slowest to read or to send are closed. Requests take at \
                  most half of it, responses that upstreams are sending a quarter, one connection \
                  an eighth. The cache is not part of it.",
        },
        Field {
            key: "drain_delay",
            kind: Kind::Duration { min: Duration::ZERO, max: HOUR },
            default: Default::Is("0s"),
            doc: "How long a graceful stop serves on as before while `/readyz` says that it stops: \
                  time for load balancers to notice.",
        },
        Field {
            key: "drain_linger",
            kind: Kind::Duration { min: Duration::ZERO, max: HOUR },
            default: Default::Is("1s"),
            doc: "How long a graceful stop keeps idle connections open. A request that comes in \
                  that time is answered, and told that the connection closes.",
        },
        Field {
            key: "drain_deadline",
            kind: Kind::Duration { min: Duration::ZERO, max: HOUR },
            default: Default::Is("10s"),
            doc: "How long a graceful stop waits for requests that have begun.",
        },
        Field {
            key: "reload_on_change",
            kind: Kind::Switch,
            default: Default::Is("false"),
            doc: "Whether this file and those that it names (certificates, keys, `keys_file`, \
                  `${file:…}`), once changed and at rest for a second, are read anew by themselves.",
        },
    ],
};

pub(super) static CHAIN: Section = Section {
    name: "chain",
    form: Form::Named,
    doc: "A chain or shard. A file without one has the chain `ethereum`, on every path.",
    fields: &[
        Field {
            key: "family",
            kind: Kind::Choice(&["ethereum", "harmony", "bitcoin"]),
            default: Default::Is("ethereum"),
            doc: "Which methods there are, and what their answers are bound to.",
        },
        Field {
            key: "id",
            kind: Kind::Count { min: 1, max: u64::MAX },
            default: Default::Follows("not verified"),
            doc: "The chain id that every node must give. A node that gives another is not used.",
        },
        Field {
            key: "paths",
            kind: Kind::Paths,
            default: Default::Follows("`[\"/NAME\"]`, and `\"/\"` for the default chain"),
            doc: "URL paths that lead to this chain.",
        },
        Field {
            key: "default",
            kind: Kind::Switch,
            default: Default::Follows("true for the only chain"),
            doc: "Whether paths that belong to no chain lead here.",
        },
        Field {
            key: "block_time",
            kind: Kind::Duration { min: MS, max: DAY },
            default: Default::Follows("ethereum `\"12s\"`, harmony `\"2s\"`, bitcoin `\"10m\"`"),
            doc: "Expected time between blocks. A hint: it bounds how far a head may jump.",
        },
        Field {
            key: "finality_depth",
            kind: Kind::Count { min: 0, max: 1_000_000 },
            default: Default::Follows("ethereum 64, harmony 2, bitcoin 6"),
            doc: "Blocks behind the head that count as final, where the nodes do not say it.",
        },
        Field {
            key: "poll_interval",
            kind: Kind::Duration { min: Duration::from_millis(10), max: HOUR },
            default: Default::Is("500ms"),
            doc: "How often each node is asked for its head. Longer saves calls, and makes the \
                  served head older by as much.",
        },
        Field {
            key: "lag_max",
            kind: Kind::Count { min: 0, max: 1_000_000 },
            default: Default::Is("2"),
            doc: "Blocks that a node may be behind the head before it is used no longer.",
        },
        Field {
            key: "jump_max",
            kind: Kind::Count { min: 0, max: 1_000_000_000 },
            default: Default::Is("64"),
            doc: "Blocks that a head may jump beyond what the block time explains before a second \
                  node must confirm it.",
        },
        Field {
            key: "methods_allow",
            kind: Kind::Methods,
            default: Default::Empty,
            doc: "Methods that are served; empty is all.",
        },
        Field {
            key: "methods_deny",
            kind: Kind::Methods,
            default: Default::Empty,
            doc: "Methods that are not served, whatever allows them.",
        },
    ],
};

pub(super) static NODE: Section = Section {
    name: "node",
    form: Form::Listed,
    doc: "A node. Its URL and header values are secrets and are printed nowhere.",
    fields: &[
        Field {
            key: "name",
            kind: Kind::Name,
            default: Default::Follows("host and port of the URL"),
            doc: "How headers, metrics and logs call it.",
        },
        Field {
            key: "url",
            kind: Kind::Url,
            default: Default::Required,
            doc: "Where it is: `http://`, `https://`, `ws://`, `wss://`, or `ipc:` and the path of a \
                  socket. A user part becomes an `authorization` header.",
        },
        Field {
            key: "ws_url",
            kind: Kind::Url,
            default: Default::Follows("none"),
            doc: "A WebSocket (`ws://`, `wss://`) or socket (`ipc:`) of the same node beside its HTTP \
                  address. Calls go there while it works, and to `url` otherwise.",
        },
        Field {
            key: "chain",
            kind: Kind::Name,
            default: Default::Follows("the only chain"),
            doc: "Which chain it serves. Needed where there are several.",
        },
        Field {
            key: "weight",
            kind: Kind::Count { min: 1, max: 1000 },
            default: Default::Is("1"),
            doc: "Its share of calls relative to the others, for `weighted` and `hash`.",
        },
        Field {
            key: "backup",
            kind: Kind::Switch,
            default: Default::Is("false"),
            doc: "Used only while no other node of the group can be.",
        },
        Field {
            key: "connections_max",
            kind: Kind::Count { min: 1, max: 100_000 },
            default: Default::Is("512"),
            doc: "Open connections over all threads.",
        },
        Field {
            key: "calls_per_connection_max",
            kind: Kind::Count { min: 1, max: 65_536 },
            default: Default::Is("256"),
            doc: "Calls under way at a time on one WebSocket, socket or HTTP/2 connection. Further ones \
                  open another.",
        },
        Field {
            key: "message_bytes_max",
            kind: Kind::Bytes { min: 1024, max: 4 * GIB },
            default: Default::Follows("1MiB beside an HTTP address, no bound without"),
            doc: "Longest call sent over the WebSocket or socket, because a node may close the \
                  connection at a longer one, and all calls on it are lost then (besu by default \
                  takes 1 MiB, geth 32 MiB). Longer ones go over HTTP where the node has such an \
                  address, and to another node where it has not.",
        },
        Field {
            key: "ping_interval",
            kind: Kind::Duration { min: MS, max: HOUR },
            default: Default::Is("5s"),
            doc: "How long a WebSocket may be silent before the node is pinged, and how long it may \
                  take to answer that. Over HTTP/2 it is pinged as often.",
        },
        Field {
            key: "http2",
            kind: Kind::Switch,
            default: Default::Is("false"),
            doc: "Whether HTTP/2 is offered to it in TLS: many calls at a time share a connection. A \
                  node that declines gets HTTP/1.1 for ten minutes, and polls always do. Only for \
                  https.",
        },
        Field {
            key: "batch_calls_max",
            kind: Kind::Count { min: 1, max: 1000 },
            default: Default::Is("1"),
            doc: "Calls of any clients that may leave as one JSON-RPC batch, of those that a thread \
                  has for the node at a moment; 1 for no batches. For providers that are reached \
                  over HTTP alone. Reads of little weight are gathered, others go alone. A batch \
                  that is refused as a whole is sent call by call, and the next ones are smaller.",
        },
        Field {
            key: "batch_wait",
            kind: Kind::Duration { min: Duration::ZERO, max: SECOND },
            default: Default::Is("1ms"),
            doc: "How long the first call of a batch waits for others. With `0ms` only those that \
                  come in the same turn of a thread share one, such as the calls of a client's own \
                  batch.",
        },
        Field {
            key: "idle_timeout",
            kind: Kind::Duration { min: MS, max: DAY },
            default: Default::Is("10s"),
            doc: "How long an unused connection is kept. Keep it below the node's own.",
        },
        Field {
            key: "keep_alive",
            kind: Kind::Switch,
            default: Default::Is("true"),
            doc: "Whether a connection over HTTP carries one call after the other. Without it each \
                  call makes its own, and says `connection: close`.",
        },
        Field {
            key: "connect_timeout",
            kind: Kind::Duration { min: MS, max: HOUR },
            default: Default::Is("2s"),
            doc: "Time for a connection to be made, TLS included.",
        },
        Field {
            key: "headers",
            kind: Kind::Headers,
            default: Default::Empty,
            doc: "Headers to add to every request, such as \
                  `{ authorization = \"Bearer ${TOKEN}\" }`.",
        },
        Field {
            key: "tls_ca",
            kind: Kind::File,
            default: Default::Follows("Mozilla's roots, built in"),
            doc: "File of PEM certificates to trust in place of the built-in ones. Only for https and wss.",
        },
        Field {
            key: "tls_server_name",
            kind: Kind::Host,
            default: Default::Follows("the host of the URL"),
            doc: "The name that is asked for and verified. Only for https and wss.",
        },
        Field {
            key: "tls_verify",
            kind: Kind::Switch,
            default: Default::Is("true"),
            doc: "Whether the node's certificate is verified. Only for https and wss.",
        },
    ],
};

pub(super) static GROUP: Section = Section {
    name: "group",
    form: Form::Listed,
    doc: "Nodes that serve certain methods in one way. The longest pattern that fits a method \
          decides. Methods that no group names go to all nodes of the chain.",
    fields: &[
        Field {
            key: "name",
            kind: Kind::Name,
            default: Default::Required,
            doc: "How metrics and `weir explain` call it.",
        },
        Field {
            key: "chain",
            kind: Kind::Name,
            default: Default::Follows("the only chain"),
            doc: "Which chain it belongs to. Needed where there are several.",
        },
        Field {
            key: "nodes",
            kind: Kind::Names,
            default: Default::Follows("all nodes of the chain"),
            doc: "Names of its nodes.",
        },
        Field {
            key: "methods",
            kind: Kind::Methods,
            default: Default::Required,
            doc: "Methods that it serves.",
        },
        Field {
            key: "methods_deny",
            kind: Kind::Methods,
            default: Default::Empty,
            doc: "Methods that it does not serve, and no other group does in its place.",
        },
        Field {
            key: "balance",
            kind: Kind::Choice(&["least_loaded", "weighted", "hash"]),
            default: Default::Follows("as in `[call]`"),
            doc: "How one of its nodes is chosen.",
        },
        Field {
            key: "hash_key",
            kind: Kind::HashKey,
            default: Default::Follows("as in `[call]`"),
            doc: "What `hash` is taken of.",
        },
        Field {
            key: "load_factor",
            kind: Kind::Number { min: 1.0, max: 100.0 },
            default: Default::Follows("as in `[call]`"),
            doc: "Bound of `hash` on one node's load.",
        },
        Field {
            key: "deadline",
            kind: Kind::Duration { min: MS, max: HOUR },
            default: Default::Follows("as in `[call]`"),
            doc: "Time for the whole call.",
        },
        Field {
            key: "attempt_deadline",
            kind: Kind::Duration { min: MS, max: HOUR },
            default: Default::Follows("as in `[call]`"),
            doc: "Time for one attempt.",
        },
        Field {
            key: "retries_max",
            kind: Kind::Count { min: 0, max: 16 },
            default: Default::Follows("as in `[call]`"),
            doc: "Further attempts after the first.",
        },
        Field {
            key: "hedge",
            kind: Kind::Switch,
            default: Default::Follows("as in `[call]`"),
            doc: "Whether a slow call is asked of a second node.",
        },
        Field {
            key: "answer_bytes_max",
            kind: Kind::Bytes { min: 1024, max: 4 * GIB },
            default: Default::Follows("as in `[call]`"),
            doc: "Bytes of one answer of a node.",
        },
        Field {
            key: "in_flight_min",
            kind: Kind::Count { min: 1, max: 1_000_000 },
            default: Default::Follows("as in `[overload]`"),
            doc: "The limit of calls under way at its nodes is never lower.",
        },
        Field {
            key: "in_flight_max",
            kind: Kind::Count { min: 1, max: 1_000_000 },
            default: Default::Follows("as in `[overload]`"),
            doc: "Nor higher.",
        },
    ],
};

pub(super) static CALL: Section = Section {
    name: "call",
    form: Form::Once,
    doc: "How a call is brought to a node, unless its group says otherwise.",
    fields: &[
        Field {
            key: "balance",
            kind: Kind::Choice(&["least_loaded", "weighted", "hash"]),
            default: Default::Is("least_loaded"),
            doc: "How a node is chosen: the less loaded of two by latency and calls in flight, \
                  smooth weighted round robin, or consistent hash.",
        },
        Field {
            key: "hash_key",
            kind: Kind::HashKey,
            default: Default::Is("call"),
            doc: "What `hash` is taken of: method and params, the client's address, or a header \
                  of the request.",
        },
        Field {
            key: "load_factor",
            kind: Kind::Number { min: 1.0, max: 100.0 },
            default: Default::Is("1.25"),
            doc: "With `hash`, a node takes at most this many times the mean load; what is beyond \
                  goes to the next one on the ring.",
        },
        Field {
            key: "deadline",
            kind: Kind::Duration { min: MS, max: HOUR },
            default: Default::Is("30s"),
            doc: "Time for the whole call, repeats included.",
        },
        Field {
            key: "attempt_deadline",
            kind: Kind::Duration { min: MS, max: HOUR },
            default: Default::Is("10s"),
            doc: "Time for one attempt at one node.",
        },
        Field {
            key: "retries_max",
            kind: Kind::Count { min: 0, max: 16 },
            default: Default::Is("2"),
            doc: "Further attempts after the first. A call is repeated only where that is safe.",
        },
        Field {
            key: "retry_share_max",
            kind: Kind::Number { min: 0.0, max: 1.0 },
            default: Default::Is("0.2"),
            doc: "Repeats as a share of calls, over all groups.",
        },
        Field {
            key: "retry_rate_min",
            kind: Kind::Count { min: 0, max: 1_000_000 },
            default: Default::Is("10"),
            doc: "Repeats per second that are allowed whatever the share.",
        },
        Field {
            key: "hedge",
            kind: Kind::Switch,
            default: Default::Is("true"),
            doc: "Whether a slow call that is safe to repeat is asked of a second node, and the \
                  first answer taken.",
        },
        Field {
            key: "hedge_quantile",
            kind: Kind::Number { min: 0.5, max: 0.999 },
            default: Default::Is("0.95"),
            doc: "Share of calls of its kind that are faster than a call which counts as slow.",
        },
        Field {
            key: "hedge_delay_min",
            kind: Kind::Duration { min: MS, max: HOUR },
            default: Default::Is("10ms"),
            doc: "A call that has taken less never counts as slow.",
        },
        Field {
            key: "hedge_share_max",
            kind: Kind::Number { min: 0.0, max: 1.0 },
            default: Default::Is("0.05"),
            doc: "Second askings as a share of calls.",
        },
        Field {
            key: "answer_bytes_max",
            kind: Kind::Bytes { min: 1024, max: 4 * GIB },
            default: Default::Is("64MiB"),
            doc: "Bytes of one answer of a node. A longer one fails the call. Traces and receipts \
                  of full blocks reach tens of MiB.",
        },
    ],
};

pub(super) static OVERLOAD: Section = Section {
    name: "overload",
    form: Form::Once,
    doc: "What becomes of calls when nodes have no room for more. For each group the gateway finds \
          out how many calls keep its nodes busy; further ones wait, by class, for a bounded time. \
          Classes are `high`, `normal` and `low`.",
    fields: &[
        Field {
            key: "enabled",
            kind: Kind::Switch,
            default: Default::Is("true"),
            doc: "Whether calls at nodes are limited. Without it every call goes to a node at once.",
        },
        Field {
            key: "in_flight_min",
            kind: Kind::Count { min: 1, max: 1_000_000 },
            default: Default::Is("4"),
            doc: "The limit of calls under way at the nodes of a group, over all threads, is never \
                  lower.",
        },
        Field {
            key: "in_flight_max",
            kind: Kind::Count { min: 1, max: 1_000_000 },
            default: Default::Follows("what `connections_max` of the group's nodes adds up to"),
            doc: "Nor higher. Equal to `in_flight_min`, the limit is fixed.",
        },
        Field {
            key: "queue_max",
            kind: Kind::Count { min: 0, max: 1_000_000 },
            default: Default::Is("2000"),
            doc: "Calls of a group that may wait for a place, over all threads. Where there are more, \
                  the oldest of the worst class is told to come back later.",
        },
        Field {
            key: "queue_timeout",
            kind: Kind::Duration { min: MS, max: HOUR },
            default: Default::Is("2s"),
            doc: "How long one waits at the most. Once a queue has not been empty for 200 ms, and more \
                  calls in flight are known to bring no more responses, the newest of a class goes first \
                  and none waits longer than 200 ms.",
        },
        Field {
            key: "high_tiers",
            kind: Kind::Names,
            default: Default::Empty,
            doc: "Tiers of keys and tokens whose calls are of the class `high`.",
        },
        Field {
            key: "low_tiers",
            kind: Kind::Names,
            default: Default::Empty,
            doc: "Tiers whose calls are of the class `low`. All others, and callers without a key, \
                  are `normal`.",
        },
        Field {
            key: "heavy_weight",
            kind: Kind::Count { min: 1, max: 1_000_000 },
            default: Default::Is("10"),
            doc: "A call of a method that weighs at least this much is one class lower \
                  (`weir explain` shows the weight): heavy calls are shed before cheap ones.",
        },
        Field {
            key: "share_kept",
            kind: Kind::Number { min: 0.0, max: 0.5 },
            default: Default::Is("0.1"),
            doc: "Share of places that a class keeps while better ones wait too.",
        },
        Field {
            key: "status",
            kind: Kind::Count { min: 400, max: 599 },
            default: Default::Is("503"),
            doc: "HTTP status of a call that is shed, with `Retry-After`, and of a batch all of whose \
                  calls are. The JSON-RPC code is -32005 always.",
        },
    ],
};

pub(super) static CACHE: Section = Section {
    name: "cache",
    form: Form::Once,
    doc: "Answers kept in memory. Each is bound to the block that it is about and dropped when \
          that block is; so the cache is on by default.",
    fields: &[
        Field {
            key: "enabled",
            kind: Kind::Switch,
            default: Default::Is("true"),
            doc: "Whether answers are kept.",
        },
        Field {
            key: "coalesce",
            kind: Kind::Switch,
            default: Default::Is("true"),
            doc: "Whether equal calls that are under way at the same time share one call to a node.",
        },
        Field {
            key: "bytes_max",
            kind: Kind::Bytes { min: MIB, max: 1024 * GIB },
            default: Default::Is("256MiB"),
            doc: "Bytes of all entries together, keys included.",
        },
        Field {
            key: "entry_bytes_max",
            kind: Kind::Bytes { min: 1024, max: GIB },
            default: Default::Is("8MiB"),
            doc: "Bytes of one entry. A larger answer is passed on and not kept.",
        },
        Field {
            key: "head_age_max",
            kind: Kind::Duration { min: Duration::ZERO, max: DAY },
            default: Default::Is("12s"),
            doc: "Longest life of an answer that is bound to the head, should the head stand still.",
        },
        Field {
            key: "null_age_max",
            kind: Kind::Duration { min: Duration::ZERO, max: DAY },
            default: Default::Is("2s"),
            doc: "Longest life of `null`; it also ends with the head that it was given at.",
        },
        Field {
            key: "error_age_max",
            kind: Kind::Duration { min: Duration::ZERO, max: HOUR },
            default: Default::Is("5s"),
            doc: "Life of an error that every node would repeat, such as a method that none knows.",
        },
        Field {
            key: "logs_chunk_blocks",
            kind: Kind::Count { min: 1, max: 1_000_000 },
            default: Default::Is("1000"),
            doc: "Blocks of one aligned part that the finalized range of an `eth_getLogs` is cut \
                  into. Keep it at or below the nodes' own limit.",
        },
        Field {
            key: "logs_parts_max",
            kind: Kind::Count { min: 1, max: 10_000 },
            default: Default::Is("64"),
            doc: "Parts that one `eth_getLogs` may be cut into. A longer range stays whole.",
        },
    ],
};

pub(super) static REDIS: Section = Section {
    name: "redis",
    form: Form::Once,
    doc: "What several gateways share: a second tier of the cache, which outlives them, and zones of \
          request limits that are `shared`. Whatever answer is read from it is judged by the \
          gateway's own view of the chain. A Redis (5 or later) that is slow or away costs a call \
          `timeout` at most, once for limits and once for the cache, and after a few calls nothing. \
          Who can write to it can answer in a node's place.",
    fields: &[
        Field {
            key: "url",
            kind: Kind::RedisUrl,
            default: Default::Follows("nothing is shared"),
            doc: "Where it is. `redis://` is a single server, `redis-sentinel://` one behind \
                  sentinels (with `?sentinelServiceName=NAME`), `redis-cluster://` a cluster; \
                  `rediss` in place of `redis` is TLS. Further addresses follow as \
                  `?node=HOST:PORT&node=…`.",
        },
        Field {
            key: "tls_ca",
            kind: Kind::File,
            default: Default::Follows("Mozilla's roots, built in"),
            doc: "File of PEM certificates to trust in place of the built-in ones. Only for \
                  `rediss`.",
        },
        Field {
            key: "prefix",
            kind: Kind::Name,
            default: Default::Is("weir"),
            doc: "What every key begins with. Gateways of one prefix share their answers and their \
                  shared zones: give test networks that are begun anew a new one.",
        },
        Field {
            key: "answers",
            kind: Kind::Switch,
            default: Default::Is("true"),
            doc: "Whether answers are kept there, as a tier of the cache.",
        },
        Field {
            key: "gateways",
            kind: Kind::Count { min: 1, max: 1000 },
            default: Default::Follows("none: it must be set where a zone is shared"),
            doc: "How many gateways share it. While it is away each holds itself to one part in so \
                  many of what shared zones and quotas allow: a number that is too low lets more \
                  through then.",
        },
        Field {
            key: "timeout",
            kind: Kind::Duration { min: MS, max: SECOND },
            default: Default::Is("5ms"),
            doc: "How long a call waits for it at most, for each of the two.",
        },
        Field {
            key: "read_replicas",
            kind: Kind::Switch,
            default: Default::Is("false"),
            doc: "Whether its replicas are read from: those that it has when we connect. Writes go to \
                  the primary, and so do reads while no replica answers.",
        },
        Field {
            key: "compress_bytes_min",
            kind: Kind::Bytes { min: 0, max: GIB },
            default: Default::Is("4KiB"),
            doc: "Answers smaller than this are stored as they are, others packed with zstd.",
        },
        Field {
            key: "entry_bytes_max",
            kind: Kind::Bytes { min: 1024, max: 64 * MIB },
            default: Default::Is("1MiB"),
            doc: "Bytes of one answer. A larger one is not stored.",
        },
        Field {
            key: "ttl_max",
            kind: Kind::Duration { min: SECOND, max: Duration::from_secs(86400 * 365) },
            default: Default::Is("1d"),
            doc: "Longest life of an entry. Those bound to the head, and errors, live as long as \
                  in memory. What is thrown out when Redis is full is its own `maxmemory-policy`.",
        },
        Field {
            key: "failures_max",
            kind: Kind::Count { min: 1, max: 1000 },
            default: Default::Is("5"),
            doc: "Failures and timeouts in a row after which a thread leaves it alone.",
        },
        Field {
            key: "backoff",
            kind: Kind::Duration { min: Duration::from_millis(10), max: HOUR },
            default: Default::Is("1s"),
            doc: "How long it is left alone until a probe, which no call waits for.",
        },
        Field {
            key: "tell_reorgs",
            kind: Kind::Switch,
            default: Default::Is("true"),
            doc: "Whether reorgs are told to the other gateways, which then poll their nodes at \
                  once, and heard from them. Answers are right without it too.",
        },
    ],
};

pub(super) static INDEX: Section = Section {
    name: "index",
    form: Form::Once,
    doc: "A file or database of `weir index` as a further tier of the cache: blocks, transactions, receipts and \
          logs of the past are answered from it, byte for byte as nodes write them. Only what is \
          final is, or what is on the chain as the gateway sees it; whatever it does not hold \
          goes to the nodes, and a range of logs that it holds in part is split.",
    fields: &[
        Field {
            key: "db",
            kind: Kind::Database,
            default: Default::Follows("there is no index"),
            doc: "The file, or the database of PostgreSQL, whose parameters are in \
                  [The index](index.md#postgresql). A password is written as `${VAR}` or \
                  `${file:PATH}`, or is taken from the environment, `PGPASSWORD`. With `follow` the \
                  file, or the schema in the database, is made if it is not there.",
        },
        Field {
            key: "chain",
            kind: Kind::Name,
            default: Default::Follows("the only chain"),
            doc: "Which of the chains it is of.",
        },
        Field {
            key: "follow",
            kind: Kind::Switch,
            default: Default::Is("false"),
            doc: "Whether the gateway itself syncs it from the nodes of the chain and goes on \
                  with each new block. Otherwise `weir index sync` does, beside it.",
        },
        Field {
            key: "verify",
            kind: Kind::Choice(&["off", "headers", "full", "senders"]),
            default: Default::Is("full"),
            doc: "How closely what is synced is looked at, as for `weir index sync --verify`. Blocks \
                  of a Harmony chain cannot be verified.",
        },
        Field {
            key: "readers",
            kind: Kind::Count { min: 1, max: 64 },
            default: Default::Is("2"),
            doc: "Threads that read it, each over a connection of its own.",
        },
        Field {
            key: "page_cache",
            kind: Kind::Bytes { min: 64 << 10, max: 1024 * GIB },
            default: Default::Is("64MiB"),
            doc: "Pages of a file that each of them, and who syncs, keeps in memory.",
        },
        Field {
            key: "mmap",
            kind: Kind::Bytes { min: 0, max: 1024 * GIB },
            default: Default::Is("0B"),
            doc: "How much of a file they map into memory instead of reading it: quicker, and the \
                  memory is shared by all. A disk that fails, or a file that is cut short, then ends \
                  the process, where reading would only leave the call to a node.",
        },
        Field {
            key: "logs_max",
            kind: Kind::Count { min: 1, max: 10_000_000 },
            default: Default::Is("100000"),
            doc: "Most logs of one answer. What selects more is left to the nodes, which have limits \
                  of their own.",
        },
    ],
};

pub(super) static HEALTH: Section = Section {
    name: "health",
    form: Form::Once,
    doc: "When a node is taken out and when it comes back.",
    fields: &[
        Field {
            key: "failures_max",
            kind: Kind::Count { min: 1, max: 1000 },
            default: Default::Is("3"),
            doc: "Failures in a row that take a node out.",
        },
        Field {
            key: "window",
            kind: Kind::Duration { min: SECOND, max: HOUR },
            default: Default::Is("10s"),
            doc: "Time over which the share of failures is taken.",
        },
        Field {
            key: "window_calls_min",
            kind: Kind::Count { min: 1, max: 1_000_000 },
            default: Default::Is("10"),
            doc: "Calls within the window below which the share is not judged.",
        },
        Field {
            key: "failure_share_max",
            kind: Kind::Number { min: 0.01, max: 1.0 },
            default: Default::Is("0.5"),
            doc: "Share of failed calls in the window that takes a node out.",
        },
        Field {
            key: "backoff_min",
            kind: Kind::Duration { min: Duration::from_millis(10), max: HOUR },
            default: Default::Is("1s"),
            doc: "First time out. It doubles with each further one.",
        },
        Field {
            key: "backoff_max",
            kind: Kind::Duration { min: Duration::from_millis(10), max: DAY },
            default: Default::Is("60s"),
            doc: "Longest time out.",
        },
        Field {
            key: "pause",
            kind: Kind::Duration { min: MS, max: HOUR },
            default: Default::Is("1s"),
            doc: "Longest rest of a node that is asked too much and does not say how long to wait: 50 ms at first, twice as long with each refusal in a row.",
        },
        Field {
            key: "pause_max",
            kind: Kind::Duration { min: MS, max: DAY },
            default: Default::Is("60s"),
            doc: "Longest rest that a node may ask for.",
        },
        Field {
            key: "unsupported_age_max",
            kind: Kind::Duration { min: SECOND, max: DAY },
            default: Default::Is("10m"),
            doc: "How long it is remembered that a node does not know a method.",
        },
    ],
};

pub(super) static FRONT: Section = Section {
    name: "front",
    form: Form::Once,
    doc: "What is accepted from clients, and how they are answered.",
    fields: &[
        Field {
            key: "connections_max",
            kind: Kind::Count { min: 1, max: 10_000_000 },
            default: Default::Is("20000"),
            doc: "Open client connections over all threads. The process needs as many file \
                  descriptors, and those to the nodes on top.",
        },
        Field {
            key: "connections_per_client_max",
            kind: Kind::Count { min: 1, max: 10_000_000 },
            default: Default::Follows("not limited"),
            doc: "Open connections of one client address over all threads. One more is closed at \
                  once. Those of `trusted_proxies` are not counted.",
        },
        Field {
            key: "body_bytes_max",
            kind: Kind::Bytes { min: 1024, max: GIB },
            default: Default::Is("5MiB"),
            doc: "Bytes of a request's body (geth: 5 MiB, `defaultBodyLimit` in rpc/http.go).",
        },
        Field {
            key: "header_bytes_max",
            kind: Kind::Bytes { min: 1024, max: MIB },
            default: Default::Is("16KiB"),
            doc: "Bytes of a request's head.",
        },
        Field {
            key: "batch_calls_max",
            kind: Kind::Count { min: 1, max: 100_000 },
            default: Default::Is("1000"),
            doc: "Calls in one batch (geth: 1000, `BatchRequestLimit` in node/defaults.go).",
        },
        Field {
            key: "batch_answer_bytes_max",
            kind: Kind::Bytes { min: 1024, max: 4 * GIB },
            default: Default::Is("25MB"),
            doc: "Bytes of all answers of one batch (geth: 25 MB, `BatchResponseMaxSize` in \
                  node/defaults.go).",
        },
        Field {
            key: "depth_max",
            kind: Kind::Count { min: 4, max: wire::json::DEPTH_CEILING as u64 },
            default: Default::Is("128"),
            doc: "Nesting of a request's JSON.",
        },
        Field {
            key: "method_bytes_max",
            kind: Kind::Count { min: 16, max: super::kind::METHOD_BYTES_MAX as u64 },
            default: Default::Is("128"),
            doc: "Bytes of a method's name.",
        },
        Field {
            key: "id_bytes_max",
            kind: Kind::Count { min: 16, max: 65536 },
            default: Default::Is("1024"),
            doc: "Bytes of a call's id.",
        },
        Field {
            key: "header_timeout",
            kind: Kind::Duration { min: MS, max: HOUR },
            default: Default::Is("10s"),
            doc: "Time for a request's head to arrive.",
        },
        Field {
            key: "body_timeout",
            kind: Kind::Duration { min: MS, max: HOUR },
            default: Default::Is("30s"),
            doc: "Time for a request's body to arrive whole.",
        },
        Field {
            key: "write_timeout",
            kind: Kind::Duration { min: Duration::from_millis(10), max: HOUR },
            default: Default::Is("30s"),
            doc: "How long a client may take nothing of an answer before its connection is closed \
                  (nginx: 60 s).",
        },
        Field {
            key: "idle_timeout",
            kind: Kind::Duration { min: MS, max: DAY },
            default: Default::Is("75s"),
            doc: "How long a connection may stay open between two requests (nginx: 75 s).",
        },
        Field {
            key: "keep_alive_requests_max",
            kind: Kind::Count { min: 1, max: u64::MAX },
            default: Default::Follows("no limit"),
            doc: "HTTP/1.1 requests that one connection may carry; then it is told to close. 1 makes \
                  every connection a short one.",
        },
        Field {
            key: "websocket",
            kind: Kind::Switch,
            default: Default::Is("true"),
            doc: "Whether a request may go on as a WebSocket, at the same address and paths. Each \
                  message is one call or batch, under the key and address of the request that opened \
                  it. Browsers may open one from the pages of `cors_origins` only.",
        },
        Field {
            key: "websocket_compression",
            kind: Kind::Switch,
            default: Default::Is("false"),
            doc: "Whether a client may ask for packed messages (permessage-deflate, RFC 7692), each \
                  packed by itself: those of `compression_bytes_min` and more. It saves bytes and \
                  costs processor time, for each subscriber too.",
        },
        Field {
            key: "websocket_messages_max",
            kind: Kind::Count { min: 1, max: 100_000 },
            default: Default::Is("100"),
            doc: "Messages of one WebSocket that are under way at the same time; further ones wait \
                  unread. Like the other bounds of a WebSocket it holds for those that are opened from \
                  now on.",
        },
        Field {
            key: "websocket_queue_bytes_max",
            kind: Kind::Bytes { min: 64 * 1024, max: GIB },
            default: Default::Is("16MiB"),
            doc: "Answers, and what it has subscribed to, that may wait for a WebSocket client that \
                  does not read. Beyond 1 MiB nothing \
                  more is read from it; beyond this it is closed with 1008.",
        },
        Field {
            key: "websocket_subscriptions_max",
            kind: Kind::Count { min: 0, max: 1_000_000 },
            default: Default::Is("1000"),
            doc: "Subscriptions (`eth_subscribe`) that one WebSocket may have at a time; 0 allows none.",
        },
        Field {
            key: "websocket_ping",
            kind: Kind::Duration { min: MS, max: DAY },
            default: Default::Is("30s"),
            doc: "After so long a silence a WebSocket client is asked for a sign of life; after as long \
                  again without one the connection ends.",
        },
        Field {
            key: "filters_max",
            kind: Kind::Count { min: 0, max: 1_000_000 },
            default: Default::Is("10000"),
            doc: "Filters (`eth_newFilter`, `eth_newBlockFilter`) that are remembered for each chain, \
                  some 3 kB each.",
        },
        Field {
            key: "filters_per_client_max",
            kind: Kind::Count { min: 0, max: 1_000_000 },
            default: Default::Is("100"),
            doc: "Those of one client, by its key or else its address.",
        },
        Field {
            key: "filter_timeout",
            kind: Kind::Duration { min: MS, max: DAY },
            default: Default::Is("5m"),
            doc: "How long a filter is remembered that nobody asks for (go-ethereum: 5 min).",
        },
        Field {
            key: "trusted_proxies",
            kind: Kind::Networks,
            default: Default::Empty,
            doc: "Peers that may say in whose name they call: proxies and balancers before the \
                  gateway.",
        },
        Field {
            key: "client_address",
            kind: Kind::Choice(&["peer", "x-forwarded-for", "forwarded", "proxy-protocol"]),
            default: Default::Is("peer"),
            doc: "Where a client's address is taken from: the connection; the header \
                  `X-Forwarded-For` or `Forwarded` (RFC 7239) of a trusted proxy, read from the \
                  right up to the first address that is not trusted; or the PROXY protocol, \
                  version 1 or 2, which every connection must then begin with and only trusted \
                  proxies may speak.",
        },
        Field {
            key: "cors_origins",
            kind: Kind::Origins,
            default: Default::Is("*"),
            doc: "Web pages that may call. An empty list forbids all.",
        },
        Field {
            key: "content_type",
            kind: Kind::Choice(&["strict", "lenient"]),
            default: Default::Is("strict"),
            doc: "`strict` takes JSON's content types as geth does, and answers 415 to others; \
                  `lenient` takes any or none.",
        },
        Field {
            key: "compression",
            kind: Kind::Switch,
            default: Default::Is("true"),
            doc: "Whether answers are compressed with zstd or gzip when the client accepts it.",
        },
        Field {
            key: "compression_bytes_min",
            kind: Kind::Bytes { min: 0, max: GIB },
            default: Default::Is("1KiB"),
            doc: "Answers smaller than this are not compressed.",
        },
        Field {
            key: "answer_headers",
            kind: Kind::Switch,
            default: Default::Is("true"),
            doc: "Whether answers carry `x-weir-cache` and `x-weir-node`.",
        },
    ],
};

pub(super) static TLS: Section = Section {
    name: "tls",
    form: Form::Once,
    doc: "How TLS is spoken with clients, where `server.listen_tls` is set.",
    fields: &[
        Field {
            key: "versions",
            kind: Kind::Words(&["1.2", "1.3"]),
            default: Default::Follows("`[\"1.2\", \"1.3\"]`"),
            doc: "Versions of TLS that are spoken.",
        },
        Field {
            key: "ciphers",
            kind: Kind::Ciphers,
            default: Default::Follows("all of them, in the client's order"),
            doc: "Cipher suites, the best first; those of 1.3 begin with `TLS_`. Each version that \
                  is spoken needs one.",
        },
        Field {
            key: "tickets",
            kind: Kind::Switch,
            default: Default::Is("true"),
            doc: "Whether clients may resume a session by a ticket. In TLS 1.3 there is no other \
                  way that needs no memory here.",
        },
        Field {
            key: "ticket_key_files",
            kind: Kind::Files,
            default: Default::Empty,
            doc: "Files of 48 or 80 random bytes, as nginx's `ssl_session_ticket_key`. Tickets are \
                  made with the first and taken with all, so that replicas with the same files \
                  resume each other's sessions, and keys can be changed one after the other. \
                  Without it each process makes its own keys and changes them every 6 hours.",
        },
        Field {
            key: "sessions_max",
            kind: Kind::Count { min: 0, max: 10_000_000 },
            default: Default::Is("20000"),
            doc: "Sessions kept in memory for clients that resume by session id, about 300 bytes \
                  each; 0 keeps none.",
        },
        Field {
            key: "session_age_max",
            kind: Kind::Duration { min: SECOND, max: Duration::from_secs(7 * 86400) },
            default: Default::Is("1h"),
            doc: "How long a session can be resumed, by ticket of `ticket_key_files` or by id.",
        },
        Field {
            key: "handshake_timeout",
            kind: Kind::Duration { min: MS, max: HOUR },
            default: Default::Is("10s"),
            doc: "Time for a handshake.",
        },
        Field {
            key: "client_ca",
            kind: Kind::File,
            default: Default::Follows("none"),
            doc: "File of PEM certificates that clients' certificates must come from.",
        },
        Field {
            key: "client_auth",
            kind: Kind::Choice(&["off", "optional", "required"]),
            default: Default::Follows("`required` where `client_ca` is set, else `off`"),
            doc: "Whether clients are asked for a certificate, and served without one. One that is \
                  shown is always verified.",
        },
    ],
};

pub(super) static ZONE: Section = Section {
    name: "zone",
    form: Form::Named,
    doc: "What request limits count in: whom a call counts against and how fast that drains. The \
          arithmetic is that of nginx's `limit_req`, to the thousandth of a call and the \
          millisecond; a zone without a rate counts calls in flight, as `limit_conn`. All threads \
          share a zone.",
    fields: &[
        Field {
            key: "key",
            kind: Kind::ZoneKey,
            default: Default::Required,
            doc: "What tells those apart who are limited; several parts together make one key. \
                  `client` is the client's address, `client-net` the same with IPv6 cut to 64 bits, \
                  `key` the name of its API key (`ISSUER:SUBJECT` of a token), `header:NAME` a \
                  header of the client. A call whose key is empty as a whole, or over 65535 bytes, \
                  is not limited: with `key` alone, a call without an API key is not.",
        },
        Field {
            key: "rate",
            kind: Kind::Rate,
            default: Default::Follows("none: the zone counts calls in flight"),
            doc: "How fast calls may come, per second or per minute. As in nginx it is kept in whole \
                  thousandths of a call per second: `1r/m` is 0.016 per second.",
        },
        Field {
            key: "cost",
            kind: Kind::Choice(&["call", "weight"]),
            default: Default::Is("call"),
            doc: "What a call counts as: one, or as many as the weight of its method says \
                  (`weir explain` shows it), as if that many had come at once.",
        },
        Field {
            key: "bytes",
            kind: Kind::Bytes { min: 32 << 10, max: 64 * GIB },
            default: Default::Is("16MiB"),
            doc: "Memory for keys, 64 bytes each, taken from the system as it is filled. When it is \
                  full, a key that was called least lately is forgotten; where calls in flight are \
                  counted, calls of new keys are refused.",
        },
        Field {
            key: "shared",
            kind: Kind::Switch,
            default: Default::Is("false"),
            doc: "Whether all gateways of one `redis.prefix` share it: a script in Redis does the same \
                  arithmetic by Redis's clock, and each call waits for it, `redis.timeout` at most. \
                  While Redis is away, slow or not yet connected, each gateway judges by its share, \
                  rate and burst divided by `redis.gateways`, from where Redis's last words left \
                  the key, and tells Redis afterwards: never unlimited, and no second burst. A \
                  Redis that forgets (emptied, or full with evictions) costs a burst at most. In \
                  dry run a shared zone is judged by the share.",
        },
    ],
};

pub(super) static CERTIFICATE: Section = Section {
    name: "certificate",
    form: Form::Listed,
    doc: "A certificate that the gateway shows to clients. The first one is shown to those that ask \
          for no name or for an unknown one. Several may be for one name: the first whose kind of \
          key the client can verify is shown.",
    fields: &[
        Field {
            key: "chain_file",
            kind: Kind::File,
            default: Default::Required,
            doc: "File of PEM certificates: the gateway's own first, then those that lead to the \
                  authority.",
        },
        Field {
            key: "key_file",
            kind: Kind::File,
            default: Default::Required,
            doc: "File of its private key in PEM: PKCS #8, PKCS #1 or SEC 1, without a password.",
        },
        Field {
            key: "names",
            kind: Kind::Hosts,
            default: Default::Follows("the names in the certificate"),
            doc: "Host names for which it is shown.",
        },
    ],
};

pub(super) static ACCESS: Section = Section {
    name: "access",
    form: Form::Once,
    doc: "Who may call, and which methods are served. `docs/access.md` says how it fits together.",
    fields: &[
        Field {
            key: "required",
            kind: Kind::Switch,
            default: Default::Follows("true where there is a key or an issuer of tokens"),
            doc: "Whether a request without a key or token is refused with 401.",
        },
        Field {
            key: "keys_file",
            kind: Kind::File,
            default: Default::Follows("none"),
            doc: "A file of further `[[key]]` tables, and nothing else.",
        },
        Field {
            key: "key_places",
            kind: Kind::Words(&["header", "bearer", "path", "query"]),
            default: Default::Follows("all four"),
            doc: "Where a key is looked for: `key_header`; `authorization: Bearer`; the last or \
                  the first segment of the path, which is then taken off; the parameter `key` of \
                  the query.",
        },
        Field {
            key: "key_header",
            kind: Kind::HeaderName,
            default: Default::Is("x-api-key"),
            doc: "The header that holds a key.",
        },
        Field {
            key: "clients_allow",
            kind: Kind::Networks,
            default: Default::Empty,
            doc: "Networks whose clients may call; empty is all. Others get 403.",
        },
        Field {
            key: "clients_deny",
            kind: Kind::Networks,
            default: Default::Empty,
            doc: "Networks whose clients may not call, whatever allows them.",
        },
        Field {
            key: "methods_allow",
            kind: Kind::Methods,
            default: Default::Empty,
            doc: "Methods that are served on all chains; empty is all.",
        },
        Field {
            key: "methods_deny",
            kind: Kind::Methods,
            default: Default::Empty,
            doc: "Methods that are served on no chain, whatever allows them.",
        },
        Field {
            key: "node_methods",
            kind: Kind::Methods,
            default: Default::Empty,
            doc: "Methods that act on the node itself or with keys that it holds (`admin_*`, \
                  `personal_*`, `miner_*`, `engine_*`, `debug_set*`, `eth_sign*`, \
                  `eth_sendTransaction` and others) and are served nevertheless. All others of \
                  them are not.",
        },
        Field {
            key: "transactions",
            kind: Kind::Switch,
            default: Default::Is("true"),
            doc: "Whether signed transactions are taken (`eth_sendRawTransaction` and relatives).",
        },
    ],
};

pub(super) static KEY: Section = Section {
    name: "key",
    form: Form::Listed,
    doc: "An API key, which `weir key` makes. Only its hash is kept; it is written nowhere and \
          sent to no node.",
    fields: &[
        Field {
            key: "name",
            kind: Kind::Name,
            default: Default::Required,
            doc: "How metrics and logs call its holder.",
        },
        Field {
            key: "hash",
            kind: Kind::Hash,
            default: Default::Follows("from `secret`"),
            doc: "SHA-256 of the key. Keys are random and long, so a slow hash would add nothing.",
        },
        Field {
            key: "secret",
            kind: Kind::Secret { bytes_min: 16 },
            default: Default::Follows("none"),
            doc: "The key itself, in place of its hash: `${VAR}` or `${file:PATH}`.",
        },
        Field {
            key: "certificate",
            kind: Kind::Text,
            default: Default::Follows("none"),
            doc: "In place of a key, a name in the verified certificate that the client shows \
                  (`client_ca` under `[tls]`): `cn:NAME`, `dns:NAME`, `uri:URI`, `email:ADDRESS`, \
                  `ip:ADDRESS` or the whole `subject:`. A key in the request goes before it.",
        },
        Field {
            key: "tier",
            kind: Kind::Name,
            default: Default::Follows("none"),
            doc: "The class that its calls belong to.",
        },
        Field {
            key: "chains",
            kind: Kind::Names,
            default: Default::Follows("all chains"),
            doc: "Chains that it leads to. Others get 403.",
        },
        Field {
            key: "methods_allow",
            kind: Kind::Methods,
            default: Default::Empty,
            doc: "Methods that it may call; empty is all.",
        },
        Field {
            key: "methods_deny",
            kind: Kind::Methods,
            default: Default::Empty,
            doc: "Methods that it may not call, whatever allows them.",
        },
        Field {
            key: "node_methods",
            kind: Kind::Methods,
            default: Default::Empty,
            doc: "Methods that act on the node itself, and that it may call nevertheless.",
        },
        Field {
            key: "transactions",
            kind: Kind::Switch,
            default: Default::Follows("as in `[access]`"),
            doc: "Whether it may send signed transactions.",
        },
        Field {
            key: "clients",
            kind: Kind::Networks,
            default: Default::Empty,
            doc: "Networks that it may be used from; empty is all.",
        },
        Field {
            key: "expires",
            kind: Kind::Time,
            default: Default::Follows("never"),
            doc: "When it becomes void.",
        },
        Field {
            key: "rate",
            kind: Kind::Rate,
            default: Default::Follows("that of the zone"),
            doc: "How fast its calls may come, in place of the rate of every zone whose key is or \
                  holds `key`.",
        },
        Field {
            key: "burst",
            kind: Kind::Count { min: 0, max: 4_000_000 },
            default: Default::Follows("that of the limit"),
            doc: "Calls of it that may come ahead of the rate, in place of the burst of every limit \
                  with such a zone.",
        },
        Field {
            key: "quota",
            kind: Kind::Count { min: 0, max: 1 << 52 },
            default: Default::Follows("none"),
            doc: "Units that it may use in a calendar month (UTC); see `[quota]`. Then its calls get \
                  429 with the time until the month ends.",
        },
    ],
};

pub(super) static QUOTA: Section = Section {
    name: "quota",
    form: Form::Once,
    doc: "How the quotas of keys are counted and kept. A call is charged when it is about to be \
          served; what limits, rules or lists refuse costs nothing. What was used outlives reloads \
          and restarts.",
    fields: &[
        Field {
            key: "file",
            kind: Kind::Output,
            default: Default::Follows("none: it must be set where a key has a quota"),
            doc: "Where it is written what keys have used this month: JSON, replaced whole each second \
                  while something is used, and when the gateway stops. A process that dies loses the \
                  units of its last second. A file that cannot be read or written keeps the gateway \
                  from starting; later it is told in the log and in `weir_quota_write_failures_total`, \
                  and counted on in memory.",
        },
        Field {
            key: "cost",
            kind: Kind::Choice(&["call", "weight"]),
            default: Default::Is("weight"),
            doc: "What a call counts as: one unit, or as many as the weight of its method \
                  (`weir explain` shows it).",
        },
        Field {
            key: "shared",
            kind: Kind::Switch,
            default: Default::Is("false"),
            doc: "Whether all gateways of one `redis.prefix` count together, through Redis: each tells \
                  each second what was used, so that together they may go beyond a quota by what is \
                  used within a second. A gateway that hears nothing for three seconds uses at most \
                  its part (by `redis.gateways`) of what was left when it last did. What Redis \
                  forgets the gateways tell it again.",
        },
    ],
};

pub(super) static JWT: Section = Section {
    name: "jwt",
    form: Form::Listed,
    doc: "An issuer of tokens (JSON web tokens), taken as `authorization: Bearer`. The kind of key \
          fixes the algorithms: HS256/384/512 for a secret, RS256/384/512 for RSA, ES256 or ES384 \
          by curve. A token needs `exp`, which is held, as `nbf` is.",
    fields: &[
        Field {
            key: "name",
            kind: Kind::Name,
            default: Default::Required,
            doc: "How metrics and logs call it.",
        },
        Field {
            key: "secret",
            kind: Kind::Secret { bytes_min: 32 },
            default: Default::Follows("none"),
            doc: "The shared secret: `${VAR}` or `${file:PATH}`.",
        },
        Field {
            key: "public_key",
            kind: Kind::File,
            default: Default::Follows("none"),
            doc: "File with a public key, RSA or elliptic, in PEM form.",
        },
        Field {
            key: "jwks",
            kind: Kind::File,
            default: Default::Follows("none"),
            doc: "File with a set of JSON web keys.",
        },
        Field {
            key: "issuer",
            kind: Kind::Text,
            default: Default::Follows("not looked at"),
            doc: "What the claim `iss` must be.",
        },
        Field {
            key: "audience",
            kind: Kind::Texts,
            default: Default::Empty,
            doc: "One of which the claim `aud` must name; empty is not looked at.",
        },
        Field {
            key: "leeway",
            kind: Kind::Duration { min: Duration::ZERO, max: HOUR },
            default: Default::Is("30s"),
            doc: "How far the issuer's clock may be from ours.",
        },
        Field {
            key: "tier",
            kind: Kind::Name,
            default: Default::Follows("none"),
            doc: "The class of calls whose token names none.",
        },
        Field {
            key: "methods_claim",
            kind: Kind::Text,
            default: Default::Is("methods"),
            doc: "The claim that lists methods which the token may call; without it, all.",
        },
        Field {
            key: "chains_claim",
            kind: Kind::Text,
            default: Default::Is("chains"),
            doc: "The claim that lists names of chains which the token leads to; without it, all.",
        },
        Field {
            key: "tier_claim",
            kind: Kind::Text,
            default: Default::Is("tier"),
            doc: "The claim that names the class of its calls.",
        },
    ],
};

pub(super) static RULE: Section = Section {
    name: "rule",
    form: Form::Listed,
    doc: "A rule about where calls go. Rules are tried in their order, for each call of a batch by \
          itself; all that is set must fit. The first that fits decides; one that rewrites the \
          path leaves the rest to those behind it.",
    fields: &[
        Field {
            key: "name",
            kind: Kind::Name,
            default: Default::Required,
            doc: "How metrics and `weir explain` call it.",
        },
        Field {
            key: "hosts",
            kind: Kind::Texts,
            default: Default::Empty,
            doc: "Hosts of the request, without port; `*.example` is every name below.",
        },
        Field {
            key: "path",
            kind: Kind::Path,
            default: Default::Follows("any"),
            doc: "What the path begins with, in whole segments; without a key.",
        },
        Field {
            key: "headers",
            kind: Kind::HeaderTests,
            default: Default::Empty,
            doc: "Headers that must all be there.",
        },
        Field {
            key: "keys",
            kind: Kind::Names,
            default: Default::Empty,
            doc: "Names of keys; `ISSUER:SUBJECT` is the holder of a token.",
        },
        Field {
            key: "tiers",
            kind: Kind::Names,
            default: Default::Empty,
            doc: "Tiers of keys and tokens.",
        },
        Field { key: "methods", kind: Kind::Methods, default: Default::Empty, doc: "Methods." },
        Field {
            key: "params",
            kind: Kind::Text,
            default: Default::Follows("any"),
            doc: "What the parameters begin with, byte for byte as the client writes them.",
        },
        Field {
            key: "first_param",
            kind: Kind::Text,
            default: Default::Follows("any"),
            doc: "The first parameter: a text without its quotes, anything else as it is written.",
        },
        Field {
            key: "share",
            kind: Kind::Number { min: 0.0, max: 1.0 },
            default: Default::Is("1"),
            doc: "Which share of what fits otherwise, in steps of 0.0001. The same client or call \
                  is always in, or always out.",
        },
        Field {
            key: "share_of",
            kind: Kind::Choice(&["client", "call"]),
            default: Default::Is("client"),
            doc: "What `share` is a share of: callers (key, or else address), or calls (method \
                  and parameters).",
        },
        Field {
            key: "group",
            kind: Kind::Name,
            default: Default::Follows("none"),
            doc: "The group that takes it. Chains without a group of this name are not meant.",
        },
        Field {
            key: "deny",
            kind: Kind::Count { min: 400, max: 599 },
            default: Default::Follows("none"),
            doc: "Refuses it. The HTTP status where it is the only call of its request.",
        },
        Field {
            key: "message",
            kind: Kind::Text,
            default: Default::Follows("`\"request is not allowed here\"`"),
            doc: "What the client is told by `deny`.",
        },
        Field {
            key: "rewrite",
            kind: Kind::Path,
            default: Default::Follows("none"),
            doc: "Takes the place of what `path` names. The path then leads to its chain.",
        },
    ],
};

pub(super) static ACCESS_LOG: Section = Section {
    name: "access_log",
    form: Form::Once,
    doc: "A line for each request or call. `docs/access.md` lists the variables; `weir logs` \
          sums lines up.",
    fields: &[
        Field {
            key: "file",
            kind: Kind::Output,
            default: Default::Follows("off"),
            doc: "Where lines go; `-` is standard output. A file that was moved away is opened \
                  anew within a second.",
        },
        Field {
            key: "format",
            kind: Kind::LogFormat,
            default: Default::Is("json"),
            doc: "What a line holds: one JSON object, nginx's combined format, or variables.",
        },
        Field {
            key: "per",
            kind: Kind::Choice(&["request", "call"]),
            default: Default::Is("request"),
            doc: "Whether a batch is one line, or one for each of its calls.",
        },
        Field {
            key: "sample",
            kind: Kind::Number { min: 0.0, max: 1.0 },
            default: Default::Is("1"),
            doc: "Share of lines that are written, chosen by chance.",
        },
        Field {
            key: "errors_always",
            kind: Kind::Switch,
            default: Default::Is("true"),
            doc: "Whether lines with an error or a status of 400 or above are written whatever \
                  the share.",
        },
        Field {
            key: "queue_lines",
            kind: Kind::Count { min: 16, max: 10_000_000 },
            default: Default::Is("16384"),
            doc: "Lines that may wait to be written, over all threads. What is beyond is dropped \
                  and counted: a slow disk never delays an answer.",
        },
    ],
};

pub(super) static LIMIT: Section = Section {
    name: "limit",
    form: Form::Listed,
    doc: "A zone put to use. Every call of a batch is judged by itself. All limits that fit a call \
          apply, of several with one zone the first; it is charged to all zones or, if one of them \
          refuses it, to none.",
    fields: &[
        Field {
            key: "zone",
            kind: Kind::Name,
            default: Default::Required,
            doc: "Name of the zone.",
        },
        Field {
            key: "chain",
            kind: Kind::Name,
            default: Default::Follows("every chain"),
            doc: "Name of the chain whose calls it applies to.",
        },
        Field {
            key: "methods",
            kind: Kind::Methods,
            default: Default::Follows("every method"),
            doc: "Methods that it applies to. Without this, bodies that are no call count too.",
        },
        Field {
            key: "failures",
            kind: Kind::Switch,
            default: Default::Is("false"),
            doc: "Whether it counts, in place of calls, requests refused with 401 or 403 before a call is \
                  looked at, so that keys cannot be guessed fast. A client that is over it gets `status` \
                  before its key is looked at, be it right or wrong; those behind one address share \
                  that. Its zone has a key of `client` or `client-net` alone.",
        },
        Field {
            key: "burst",
            kind: Kind::Count { min: 0, max: 4_000_000 },
            default: Default::Is("0"),
            doc: "Calls that may come ahead of the rate; more are refused.",
        },
        Field {
            key: "delay",
            kind: Kind::Count { min: 0, max: 4_000_000 },
            default: Default::Is("0"),
            doc: "Calls ahead of the rate from which on they wait for their turn, within the burst.",
        },
        Field {
            key: "nodelay",
            kind: Kind::Switch,
            default: Default::Is("false"),
            doc: "Whether calls within the burst go on at once.",
        },
        Field {
            key: "concurrent",
            kind: Kind::Count { min: 1, max: 1_000_000_000 },
            default: Default::Follows("none: the zone's rate counts"),
            doc: "Calls that may be in flight at a time, for a zone without a rate. A call that \
                  waits for its turn is not in flight yet.",
        },
        Field {
            key: "dry_run",
            kind: Kind::Switch,
            default: Default::Is("false"),
            doc: "Whether it only counts what it would do. Limits in dry run are judged after the \
                  others, and only by each other.",
        },
        Field {
            key: "status",
            kind: Kind::Count { min: 400, max: 599 },
            default: Default::Is("429"),
            doc: "HTTP status of a refused call (nginx: 503), and of a batch all of whose calls are \
                  refused. The JSON-RPC code is -32005 always.",
        },
    ],
};

pub(super) static LOG: Section = Section {
    name: "log",
    form: Form::Once,
    doc: "What is logged, to standard error.",
    fields: &[
        Field {
            key: "format",
            kind: Kind::Choice(&["text", "json"]),
            default: Default::Is("text"),
            doc: "One readable line or one JSON object per event.",
        },
        Field {
            key: "level",
            kind: Kind::Choice(&["error", "warn", "info", "debug", "trace"]),
            default: Default::Is("info"),
            doc: "The least severe level that is written.",
        },
    ],
};
