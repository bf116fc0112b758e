//! The gateway's decisions, as pure functions and small state machines.
//!
//! Code here does not wait and does no I/O: it uses no sockets, tasks, clocks, files or randomness.
//! The argument `now` is the time since the process started. Random bits are arguments too. Every
//! table is bounded. The folders that follow `policy` in the table of `lib.rs` call this code.
//!
//! A *group* is a set of upstreams of one chain that serve certain methods. The *served chain*
//! consists of the blocks that clients can read; its newest block is the *served head*. A *view* is
//! the immutable snapshot of a chain's state that `heads` builds.
//!
//! | module | decides |
//! |---|---|
//! | `client`, `proxy` | the address of the client |
//! | `limit`, `quota` | whether a call is within its limits and quota |
//! | `routing_rules`, `route` | the group that serves a call |
//! | `access` | whether the caller may make a call |
//! | `plan` | how a call is resolved: forwarded, split, from the chain view, or by its cache key |
//! | `cacheable`, `blocks` | what a response depends on, and how long it may be cached |
//! | `causal` | whether a response shows a block above the served head |
//! | `logs` | how a range of logs is split and merged |
//! | `log_range` | the longest range of logs that an upstream returns |
//! | `overload` | whether a call may be in flight, waits or is shed (rejected) |
//! | `choose` | load balancing: the upstream of a call |
//! | `cordon` | whether an operator may take an upstream out of rotation, and until when |
//! | `batch` | how many calls an upstream takes in one batch |
//! | `classify` | what the response of an upstream means |
//! | `retry`, `hedge`, `stall` | whether and when another upstream gets the call |
//! | `complete`, `block_headers` | whether logs may be missing, by the headers of their blocks |
//! | `health`, `heads` | the state of upstreams and of the chain |
//! | `history` | which data of old blocks an upstream has |
//! | `chain_cursor` | what changed on the chain since a subscriber was last notified |
//! | `shareable`, `breaker` | what replicas may share through Redis, and when Redis is skipped |
//! | `gateways` | how many gateways share limits and quotas |
//! | `memory` | which connections may hold how many bytes |
//! | `trace_context` | the trace of a request, and whether it is sampled |
//!
//! `branch`, `closed_set` and `sliding_window` are data structures that these modules share.

pub mod absence;
pub mod access;
pub mod availability;
pub mod avoided_methods;
pub mod batch;
pub mod block_headers;
pub mod blocks;
pub(crate) mod branch;
pub mod breaker;
pub mod cacheable;
pub mod causal;
pub mod chain_cursor;
pub mod choose;
pub mod classify;
pub mod client;
pub(crate) mod closed_set;
pub mod complete;
pub mod cordon;
pub mod gateways;
pub mod heads;
pub mod health;
pub mod hedge;
pub mod history;
pub mod limit;
pub mod log_range;
pub mod logs;
pub mod memory;
pub mod overload;
pub mod plan;
pub mod proxy;
pub mod quota;
pub mod retry;
pub mod route;
pub mod routing_rules;
pub mod shareable;
mod sliding_window;
pub mod stall;
pub(crate) mod trace_context;
