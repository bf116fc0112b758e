//! The wire crate.
