//! Calls to upstreams: attempts and retries, connections, health checks, and the state of chains,
//! groups and upstreams.
//!
//! An upstream is a node that the gateway calls. A group is a set of upstreams of one chain among
//! which calls are balanced. An attempt sends a call to one upstream. A *head* is the newest block
//! of a chain or of an upstream. A chain's *view* is an immutable snapshot of the heads of the
//! chain and of its upstreams. A chain's *family*, such as Ethereum or Bitcoin, selects its
//! methods. An upstream that fails is *ejected*: it gets calls only as a last resort. A *probe* is
//! a poll that may readmit an ejected upstream.
//!
//! Chains, groups and upstreams are identified by their indices in the configuration. Points in
//! time are `Instant`s, or `Duration`s since the start of the process. `upstreams` is the
//! [`thread::Upstreams`] of the current thread, and `thread` its [`resources::ThreadResources`].
//!
//! Modules of this folder do not import the cache or any higher layer. Among themselves they have
//! layers too (`xtask/src/tidy/layers.rs`): a module imports only from modules above it in this
//! table.
//!
//! | layer | module | what |
//! |---|---|---|
//! | ground | `connector` | opens a connection |
//! | | `exchange`, `request_head` | requests, responses and errors of all transports |
//! | | `chain`, `state`, `fault` | state that all threads share: one file each for a chain, an upstream and its last fault |
//! | | `resources` | what the connections of one thread share |
//! | connections | `http1`, `http2` | connections that carry HTTP |
//! | | `http` | HTTP requests to one upstream, and the pool of HTTP/1.1 connections |
//! | | `multiplexed_connection`, `multiplexed_pool` | WebSockets and local sockets, which carry many calls at a time |
//! | | `batcher` | several calls as one batch |
//! | health and heads | `overload` | permits for calls to the upstreams of a group |
//! | | `topology` | the chains, groups and upstreams of one configuration, which all threads share |
//! | | `watch` | polls heads and health, on a separate thread, and reports `ChainEvent`s |
//! | choice | `local` | the state of one upstream in one thread |
//! | | `balance` | a group's balancer on one thread |
//! | | `thread` | all upstreams in one thread |
//! | | `choose` | the upstream of the next attempt |
//! | attempts | `send` | one attempt at one upstream |
//! | | `rank` | which attempt of a call the client gets |
//! | | `doubt` | checks whether a response is complete |
//! | | `broadcast` | the result for a transaction that was sent twice |
//! | | `attempts` | the attempts of one call so far |
//! | | `race` | attempts at several upstreams at a time |
//! | | `fetch` | one call: chooses upstreams, sends, retries |

pub(crate) mod attempts;
pub(crate) mod balance;
pub(crate) mod batcher;
pub(crate) mod broadcast;
pub(crate) mod chain;
pub(crate) mod choose;
pub(crate) mod connector;
pub(crate) mod doubt;
pub(crate) mod exchange;
pub(crate) mod fault;
pub(crate) mod fetch;
pub(crate) mod http;
pub(crate) mod http1;
pub(crate) mod http2;
pub(crate) mod local;
pub(crate) mod multiplexed_connection;
pub(crate) mod multiplexed_pool;
pub(crate) mod overload;
pub(crate) mod race;
pub(crate) mod rank;
pub(crate) mod request_head;
pub(crate) mod resources;
pub(crate) mod send;
pub(crate) mod state;
pub(crate) mod thread;
pub(crate) mod topology;
pub(crate) mod watch;
