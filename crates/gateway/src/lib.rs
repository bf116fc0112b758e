//! The gateway: the serving path in front of JSON-RPC nodes.
//!
//! It does not know the lab, the index or the simulated node; they meet it in sockets and files.
//! Read in this order: `config` (what is wanted), `path` (what happens to a request, step by
//! step), `front` (clients), `nodes` (nodes), `rules` (decisions), `limits` (what request limits
//! keep), `quota` (what keys have used this month), `subscribe` (clients that are told of what is to come), `cache`, `redis` and `coalesce` (what saves asking), `recall` (what saves reading heads),
//! `shared`, `worker` and `thread` (state), `runtime` (threads), `tls` (what handshakes with clients
//! need), `websocket` (its frames, for both sides), `call` (values of a call), `metrics` (counters),
//! `access_log` and `admin` (what operators see).
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod access_log;
pub mod admin;
mod cache;
mod call;
mod coalesce;
pub mod config;
mod error;
mod front;
pub mod index;
mod limits;
mod memory;
mod metrics;
mod nodes;
mod path;
mod quota;
mod recall;
mod redis;
pub mod rules;
pub mod runtime;
mod shared;
mod subscribe;
mod thread;
pub mod tls;
mod wait;
mod websocket;
mod worker;

pub use error::Error;
pub use nodes::dial::MemoryDial;
