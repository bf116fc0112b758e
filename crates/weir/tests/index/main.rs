//! The tests of the index, its commands, and the gateway with it: one program, so that the product
//! is linked once.
//!
//! Each module says its goal and method at its top. `cargo test -p weir --test index crash::` runs
//! those of one.

#![allow(clippy::unwrap_used)] // A failure fails the test.

mod kills;

mod backup;
mod commands;
mod crash;
mod faults;
mod gateway;
mod harmony;
mod postgres;
mod recorded;
mod regression;
mod transparency;
