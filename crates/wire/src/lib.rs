//! JSON-RPC on the wire: calls and answers as slices of the bytes that carried them, and the facts
//! about methods that a gateway decides by.
//!
//! Bytes in, bytes out: no id, parameter, result or error object is parsed and printed again. The
//! crate opens no socket, keeps no state and takes no decision; `gateway` and `simnode` build on
//! it.
//!
//! Reading order: `json` (bytes), `call` and `answer` (envelopes), `error` (codes), `method` and `reach`
//! (the tables), `block`, `filter` and `logs` (which blocks and logs a call is about), `key` (when two calls are the same),
//! `quantity` (numbers in text).
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod json;

pub mod call;

pub mod answer;

pub mod error;

pub mod method;

pub mod reach;

pub mod block;

pub mod filter;

pub mod logs;

pub mod key;

pub mod quantity;

#[cfg(any(test, feature = "fuzz"))]
#[doc(hidden)]
pub mod fuzz;
