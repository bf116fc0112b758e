//! What tests of several programs start and talk to: outside programs, `weir` processes, and an
//! HTTP client of exact bytes.
//!
//! It judges nothing; each test does. It knows none of our other crates, so that the tests of each
//! of them may use it. What only one test program needs is there
//! (`crates/weir/tests/gateway/support.rs`).

#![allow(clippy::unwrap_used)] // A failure here fails the test that runs.

pub mod programs;

pub mod members;
pub mod raw;

pub mod front;
pub mod geth;
pub mod port;
pub mod postgres;
pub mod running;
pub mod wait;
