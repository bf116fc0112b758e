//! The WebSocket protocol (RFC 6455), for both sides of a connection.
//!
//! `decoder` decodes messages. `deflate` compresses messages; only client connections use it, if
//! both sides agree. These modules use no socket and no clock, and do not parse JSON.
//! `wire::websocket` has the opening handshake, the headers of frames and the masking keys.
//! `upstream/multiplexed_connection.rs` holds the connections to upstreams.

pub(crate) mod decoder;
pub(crate) mod deflate;
#[cfg(test)]
mod fuzz;
