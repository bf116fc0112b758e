//! I/O between the gateway and its peers, for both the client and the upstream side.

pub(crate) mod background;
pub(crate) mod buffers;
pub(crate) mod chunked;
pub(crate) mod clock;
pub(crate) mod head_cache;
pub(crate) mod memory;
pub(crate) mod random;
pub(crate) mod wait;
pub(crate) mod websocket;
