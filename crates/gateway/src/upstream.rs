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
//! time are `Instant`s, or `Duration`s since the start of the process. `cx` is the
//! `UpstreamContext` of the current thread. Modules of this folder do not import the cache or any
//! higher layer. In reading order:
//!
//! | module | what |
//! |---|---|
//! | `registry`, `topology`, `chain`, `state` | state that all threads share; one file each for the process, a configuration, a chain, an upstream |
//! | `thread` | state of one thread |
//! | `fetch` | one call: chooses upstreams, sends, retries |
//! | `overload` | permits for calls to the upstreams of a group |
//! | `choose`, `balance` | the upstream of the next attempt; a group's balancer on one thread |
//! | `race` | attempts at several upstreams at a time |
//! | `rank` | which attempt of a call the client gets |
//! | `send` | one attempt at one upstream |
//! | `doubt` | checks whether a response is complete |
//! | `broadcast` | the result for a transaction that was sent twice |
//! | `batcher` | several calls as one batch |
//! | `post` | one HTTP request, and the pool of HTTP/1.1 connections |
//! | `http1`, `http2` | connections that carry HTTP |
//! | `multiplexed_pool`, `multiplexed_connection` | WebSockets and local sockets, which carry many calls at a time |
//! | `connector` | opens a connection |
//! | `watch` | polls heads and health, on a separate thread, and reports `ChainEvent`s |

pub(crate) mod balance;
pub(crate) mod batcher;
pub(crate) mod broadcast;
pub(crate) mod chain;
pub(crate) mod choose;
pub(crate) mod connector;
pub(crate) mod doubt;
pub(crate) mod fault;
pub(crate) mod fetch;
pub(crate) mod http1;
pub(crate) mod http2;
pub(crate) mod multiplexed_connection;
pub(crate) mod multiplexed_pool;
pub(crate) mod overload;
pub(crate) mod post;
pub(crate) mod race;
pub(crate) mod rank;
pub(crate) mod registry;
pub(crate) mod send;
pub(crate) mod state;
pub(crate) mod thread;
pub(crate) mod topology;
pub(crate) mod watch;
