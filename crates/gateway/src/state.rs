//! The snapshot of a configuration with the state that depends on it, and the state of each thread.

pub(crate) mod context;
pub(crate) mod snapshot;
