//! Support for the tests of several crates: outside programs, `weir` processes, and a byte-exact
//! HTTP client.
//!
//! This crate makes no assertions about the behaviour of a program under test. It depends on no
//! other crate of this repository, so that the tests of every crate can use it. Support for a
//! single test program is beside that program, for example in
//! `crates/weir/tests/gateway/support.rs`.

#![allow(clippy::unwrap_used)] // A failure here fails the test that runs.

pub mod programs;

pub mod dashboard;
pub mod members;
pub mod raw;

#[cfg(feature = "signing")]
pub mod geth;
pub mod port;
pub mod postgres;
pub mod prometheus;
pub mod proxy;
pub mod running;
#[cfg(feature = "signing")]
pub mod signing;
pub mod wait;
