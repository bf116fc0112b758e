//! The gateway: a caching reverse proxy between JSON-RPC clients and upstreams.
//!
//! A folder imports only from folders above it in this list (`cargo xtask tidy`):
//!
//! | folder | what |
//! |---|---|
//! | `policy` | decisions as pure functions: `now` and randomness are arguments |
//! | `config` | the configuration: keys, validation, what a reload changes |
//! | `io` | bytes to and from peers: chunks, WebSocket frames, write stalls, memory |
//! | `trace` | spans of sampled requests, and the thread that sends them to a collector |
//! | `call` | a call in flight: its request, response and failure |
//! | `metrics` | counters, and their export |
//! | `access` | authentication and authorization of clients |
//! | `process` | state of the process that no reload replaces |
//! | `limits`, `quota`, `access_log` | request limits, monthly quotas of keys, the access log |
//! | `upstream` | chains, groups and upstreams: connections, health, heads, attempts |
//! | `cache` | coalescing of calls, and the cache tiers: memory, Redis, index |
//! | `state` | the snapshot of a configuration, and the state of each thread |
//! | `resolve` | finds the response to a call in a cache tier or at an upstream |
//! | `subscribe` | subscriptions and filters |
//! | `path` | the order of all steps of a call |
//! | `downstream`, `admin` | client connections; status and metrics |
//! | `runtime` | threads, reload, stop |
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod access;
pub mod access_log;
pub mod admin;
pub mod cache;
mod call;
pub mod config;
mod downstream;
mod io;
mod limits;
mod metrics;
mod path;
pub mod policy;
mod process;
mod quota;
mod resolve;
pub mod runtime;
mod state;
mod subscribe;
mod trace;
mod upstream;

pub use cache::index;
pub use cache::redis::check_redis;
pub use downstream::explain;
pub use runtime::error::Error;
pub use trace::export::check_collector;
pub use upstream::connector::MemoryConnector;
