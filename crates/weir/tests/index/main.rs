//! The tests of the index, its commands, and the gateway with an index. They form one program, so
//! that the product is linked once.
//!
//! Each module states its goal and method at its top. `cargo test -p weir --test index crash::`
//! runs the tests of the module `crash`.

#![allow(clippy::unwrap_used)] // A failure fails the test.

mod kills;
mod limits;

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
