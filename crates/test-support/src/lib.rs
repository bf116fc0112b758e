//! Support for the tests of several crates: outside programs, `weir` processes, and a byte-exact
//! HTTP client.
//!
//! It makes no assertions about behaviour; the tests do. It depends on none of our other crates, so
//! that the tests of every crate can use it. Support for one test program is beside that program
//! (`crates/weir/tests/gateway/support.rs`).

#![allow(clippy::unwrap_used)] // A failure here fails the test that runs.

pub mod programs;

pub mod dashboard;
pub mod members;
pub mod raw;

pub mod geth;
pub mod port;
pub mod postgres;
pub mod prometheus;
pub mod proxy;
pub mod running;
pub mod signing;
pub mod wait;
