//! Bytes between the gateway and its peers: what both sides of it need.

pub(crate) mod buffers;
pub(crate) mod chunked;
pub(crate) mod clock;
pub(crate) mod head_cache;
pub(crate) mod memory;
pub(crate) mod random;
pub(crate) mod wait;
pub(crate) mod websocket;
