//! One snapshot of a configuration and all that hangs on it, and what each thread has to itself.

pub(crate) mod context;
pub(crate) mod process;
pub(crate) mod snapshot;
pub(crate) mod thread;
