//! JSON-RPC as bytes: calls and responses as slices of the body that carried them, and tables of
//! facts about methods.
//!
//! Ids, parameters, results and error objects are passed on as they were received; nothing is
//! parsed and printed again. The crate opens no socket, keeps no state and makes no decision.
//!
//! A module imports only from the lines above its own (`cargo xtask tidy` checks that):
//!
//! 1. `json` (validation, slices), `error` (codes), `family` (families of chains);
//! 2. `quantity` (numbers), `hex` (hashes and addresses);
//! 3. `call` (requests), `block` (block references), `effect` (what a method changes);
//! 4. `block_param` (the block of a call), `response`, `filter` (block range of a log filter),
//!    `logs` (addresses and topics of a log filter);
//! 5. `method` (the method tables);
//! 6. `key` (equality of calls).
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod json;

pub mod error;

pub mod family;

pub mod quantity;

pub mod hex;

pub mod call;

pub mod block;

pub mod effect;

pub mod block_param;

pub mod response;

pub mod filter;

pub mod logs;

pub mod method;

pub mod key;

#[cfg(any(test, feature = "fuzz"))]
#[doc(hidden)]
pub mod fuzz;
