//! JSON-RPC as bytes. Calls and responses are slices of the body that contains them. Tables
//! describe the methods. The crate also has what several of the other crates need to speak to a
//! server: the opening handshake and frame headers of WebSockets, TLS clients, `Retry-After`.
//!
//! Ids, parameters, results and error objects are forwarded as received. They are never parsed and
//! written again. A raw value is a JSON value in this form: its bytes as received. The crate opens
//! no socket, keeps no state and makes no decision.
//!
//! A module imports only from modules in earlier lines of this list (`cargo xtask tidy` checks
//! this):
//!
//! 1. `json` (validation, slices), `error` (codes), `family` (chains whose nodes have the same
//!    methods), `retry_after` (a header of HTTP), `tls` (clients, and the words of their errors);
//! 2. `quantity` (numbers), `hex` (hashes and addresses), `websocket` (handshake, frame headers,
//!    masking), `chain_profile` (what is known of public chains);
//! 3. `call` (requests), `block` (block references), `effect` (what a method changes);
//! 4. `block_param` (the block of a call), `response`, `filter` (block range of a log filter),
//!    `logs` (addresses and topics of a log filter);
//! 5. `method` (the method tables);
//! 6. `key` (equality of calls), `node_error` (what an error of a node means).
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod block;
pub mod block_param;
pub mod call;
pub mod chain_profile;
pub mod effect;
pub mod error;
pub mod family;
pub mod filter;
pub mod hex;
pub mod json;
pub mod key;
pub mod logs;
pub mod method;
pub mod node_error;
pub mod quantity;
pub mod response;
pub mod retry_after;
#[cfg(feature = "client")]
pub mod tls;
pub mod websocket;

#[cfg(any(test, feature = "fuzz"))]
#[doc(hidden)]
pub mod fuzz;
