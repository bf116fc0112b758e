//! WebSocket (RFC 6455) as bytes in and bytes out, for either side of a connection.
//!
//! `frame` takes frames apart and writes them, `mask` applies masking
//! keys and `keys` makes them, `handshake` is
//! the HTTP request that opens a connection and the answer to it. Nothing here reads a socket,
//! knows a clock or understands JSON: the connections to upstreams are
//! `upstream/multiplexed_connection.rs`. `deflate` packs messages, on clients' connections alone
//! and where both sides want it.

pub(crate) mod deflate;
pub(crate) mod frame;
pub(crate) mod handshake;
pub(crate) mod keys;
pub(crate) mod mask;

#[cfg(test)]
mod fuzz;
