//! A simulated node: a deterministic chain with true hashes behind a scripted JSON-RPC server.
//! Not a client of any network, and not a part of the gateway or the lab: they meet it at sockets.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod bech32;
pub mod block;
mod hex;
mod millis;
mod pool;
pub mod rpc;
pub mod schedule;
pub mod seed;
pub mod world;
