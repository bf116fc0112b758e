//! Decisions as pure functions and small state machines: inputs in, decision out.
//!
//! Nothing here waits or reads the world: no sockets, tasks, clocks, files or randomness. `now` is
//! the time since the process started, random bits are arguments, and every table has a bound. The
//! callers are all folders below it in the list of `lib.rs`.
//!
//! | module | decides |
//! |---|---|
//! | `client`, `proxy` | which address is the client's |
//! | `limit`, `quota` | whether a call is within its limits and quota |
//! | `direct`, `route` | the group that a call goes to |
//! | `access` | whether the caller may make it |
//! | `plan` | how a call is resolved: as it is, in parts, from the view, by its key |
//! | `cacheable`, `blocks` | what a response depends on, and how long it may be cached |
//! | `logs` | how a range of logs is split and merged |
//! | `overload` | whether a call gets a permit, waits or is shed |
//! | `choose` | which upstream |
//! | `batch` | how many calls an upstream takes in one batch |
//! | `classify` | what a reply means |
//! | `retry`, `hedge`, `stall` | whether another upstream is asked |
//! | `complete`, `contents` | whether logs may be missing, by the headers of their blocks |
//! | `health`, `heads` | the state of upstreams and of the chain |
//! | `trail` | what changed on the chain since a subscriber was last notified |
//! | `portable`, `breaker` | what may go to Redis and come back, and when Redis is skipped |
//! | `memory` | which connections may hold how many bytes |

pub mod access;
pub mod batch;
pub mod blocks;
pub mod breaker;
pub mod cacheable;
pub mod choose;
pub mod classify;
pub mod client;
pub(crate) mod closed_set;
pub mod complete;
pub mod contents;
pub mod direct;
pub mod heads;
pub mod health;
pub mod hedge;
pub mod limit;
pub mod logs;
pub mod memory;
pub mod overload;
pub mod plan;
pub mod portable;
pub mod proxy;
pub mod quota;
pub mod retry;
pub mod route;
pub mod stall;
pub mod trail;
