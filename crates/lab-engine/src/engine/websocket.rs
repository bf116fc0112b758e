//! A WebSocket client (RFC 6455) without input and output: the opening handshake, and frames.
//!
//! The gateway has its own frames, because the lab measures the gateway and shares no code with it.
//! Extensions are not offered, so messages are not compressed.

mod frame;
mod handshake;

#[cfg(test)]
pub(crate) mod tests;

pub(crate) use frame::{Decoder, Event, Masking, Opcode};
pub(crate) use handshake::{Handshake, HandshakeState, Opener};
