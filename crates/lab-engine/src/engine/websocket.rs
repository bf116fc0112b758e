//! A WebSocket client (RFC 6455) without input and output: the opening handshake, and frames.
//!
//! Extensions are not offered, so messages are not compressed.

mod frame;
mod handshake;

#[cfg(test)]
pub(crate) mod tests;

pub(crate) use frame::{Decoder, Event, Masking};
pub(crate) use handshake::{Handshake, HandshakeState, Opener};
pub(crate) use wire::websocket::Opcode;
