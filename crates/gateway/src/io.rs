//! Tools for connections to clients and to upstreams. In alphabetical order:
//!
//! | module | what |
//! |---|---|
//! | `background` | a background thread with a stop flag |
//! | `buffers` | a pool of buffers per thread |
//! | `chunked` | the decoder of chunked bodies |
//! | `clock` | a cached clock per thread, and the wall clock |
//! | `head_cache` | a cache of parsed HTTP heads |
//! | `memory` | the memory budget of all connections |
//! | `random` | pseudo-random numbers |
//! | `wait` | socket reads and writes with deadlines |
//! | `websocket` | the WebSocket protocol |

pub(crate) mod background;
pub(crate) mod buffers;
pub(crate) mod chunked;
pub(crate) mod clock;
pub(crate) mod head_cache;
pub(crate) mod memory;
pub(crate) mod random;
pub(crate) mod wait;
pub(crate) mod websocket;
