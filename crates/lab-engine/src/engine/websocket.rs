//! A WebSocket client (RFC 6455) without input and output: the opening handshake, and frames.
//!
//! Extensions are not offered, so messages are not compressed.

mod call_socket;
mod frame;
mod handshake;

/// The close code of an endpoint that has no further use of the connection (RFC 6455, section
/// 7.4.1).
pub(crate) const NORMAL_CLOSURE: u16 = 1000;
/// The code that stands for a close frame without one (RFC 6455, section 7.4.1).
pub(crate) const NO_CLOSE_CODE: u16 = 1005;

#[cfg(test)]
pub(crate) mod tests;

pub(crate) use call_socket::CallSocket;
pub(crate) use frame::{Decoder, Event, Masking};
pub(crate) use handshake::{Handshake, HandshakeState, Opener};
pub(crate) use wire::websocket::Opcode;
