//! What saves asking upstreams: memory, calls in flight, Redis, the index.

pub(crate) mod coalesce;
pub mod index;
pub(crate) mod memory;
pub(crate) mod redis;
