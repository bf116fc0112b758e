//! The simnode crate.
