//! JSON-RPC as bytes. Calls and responses are slices of the body that contains them. Tables
//! describe the methods. The crate also reads and writes the frame headers of WebSockets.
//!
//! Ids, parameters, results and error objects are forwarded as received. They are never parsed and
//! written again. A raw value is a JSON value in this form: its bytes as received. The crate opens
//! no socket, keeps no state and makes no decision.
//!
//! A module imports only from modules in earlier lines of this list (`cargo xtask tidy` checks
//! this):
//!
//! 1. `json` (validation, slices), `error` (codes), `family` (chains whose nodes have the same
//!    methods), `websocket` (frame headers, masking);
//! 2. `quantity` (numbers), `hex` (hashes and addresses);
//! 3. `call` (requests), `block` (block references), `effect` (what a method changes);
//! 4. `block_param` (the block of a call), `response`, `filter` (block range of a log filter),
//!    `logs` (addresses and topics of a log filter);
//! 5. `method` (the method tables);
//! 6. `key` (equality of calls).
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod block;
pub mod block_param;
pub mod call;
pub mod effect;
pub mod error;
pub mod family;
pub mod filter;
pub mod hex;
pub mod json;
pub mod key;
pub mod logs;
pub mod method;
pub mod quantity;
pub mod response;
pub mod websocket;

#[cfg(any(test, feature = "fuzz"))]
#[doc(hidden)]
pub mod fuzz;
