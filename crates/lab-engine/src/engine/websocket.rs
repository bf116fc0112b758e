//! A WebSocket client (RFC 6455): encodes and decodes the opening handshake and frames. The caller
//! reads and writes the socket.
//!
//! The client offers no extensions, so messages are not compressed.

mod call_socket;
mod frame;
mod handshake;

/// Close code of an endpoint that needs the connection no more (RFC 6455, section 7.4.1).
pub(crate) const NORMAL_CLOSURE: u16 = 1000;
/// Code under which a close frame without a code is counted (RFC 6455, section 7.4.1).
pub(crate) const NO_CLOSE_CODE: u16 = 1005;

#[cfg(test)]
pub(crate) mod tests;

pub(crate) use call_socket::CallSocket;
pub(crate) use frame::{Decoder, Event, Masking};
pub(crate) use handshake::{Handshake, HandshakeState, Opener};
pub(crate) use wire::websocket::Opcode;
