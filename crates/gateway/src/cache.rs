//! Ways to respond without an upstream call: memory cache, call coalescing, Redis, index.

pub(crate) mod coalesce;
pub mod index;
pub(crate) mod memory;
pub(crate) mod redis;
