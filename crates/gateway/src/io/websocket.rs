//! WebSocket framing and handshake (RFC 6455), for both sides of a connection.
//!
//! `frame` encodes and decodes frames, `mask` applies masking keys, `keys` generates them, and
//! `handshake` builds and checks the opening HTTP messages. `deflate` compresses messages; only
//! client connections use it, if both sides agree. These modules use no socket and no clock, and do
//! not parse JSON. `upstream/multiplexed_connection.rs` holds the connections to upstreams.

pub(crate) mod deflate;
pub(crate) mod frame;
pub(crate) mod handshake;
pub(crate) mod keys;
pub(crate) mod mask;

#[cfg(test)]
mod fuzz;
