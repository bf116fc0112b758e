//! Decisions as pure functions and small state machines: inputs in, decision out.
//!
//! Nothing here waits or reads the world: no sockets, tasks, clocks, files or randomness. `now` is
//! the time since the process started, random bits are arguments, and every table has a bound. The
//! callers are `path` (order of steps), `nodes` (polls and calls) and `cache` (validity on hit).
//!
//! Read in this order: `limit` (whether at all), `access` (who may call what), `direct` and `route`
//! (which group), `cacheable` (bound to what), `overload` (whether there is room), `choose` (which node),
//! `classify` (what its reply means), `retry`, `hedge` and `stall` (what to do then), `logs` (split ranges),
//! `complete` (whether logs may be missing, by the headers in `contents`), `batch` (calls gathered for one node);
//! `client` and `proxy` (whose address it is); `memory` (who may hold how many bytes);
//! `heads` and `health` keep what is known of the chain and of the nodes, `trail` tells what has changed; `portable` says what may
//! leave the process and come back, `breaker` when its store is left alone.

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
pub mod portable;
pub mod proxy;
pub mod quota;
pub mod retry;
pub mod route;
pub mod stall;
pub mod trail;
