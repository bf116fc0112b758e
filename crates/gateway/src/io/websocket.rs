//! The WebSocket protocol (RFC 6455), for both sides of a connection.
//!
//! `decoder` decodes messages, `keys` generates masking keys, and `handshake` builds and checks the
//! opening HTTP messages. `deflate` compresses messages; only client connections use it, if both
//! sides agree. These modules use no socket and no clock, and do not parse JSON.
//! `upstream/multiplexed_connection.rs` holds the connections to upstreams.

pub(crate) mod decoder;
pub(crate) mod deflate;
#[cfg(test)]
mod fuzz;
pub(crate) mod handshake;
pub(crate) mod keys;
