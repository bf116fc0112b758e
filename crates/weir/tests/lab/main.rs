//! The tests of the lab's commands, and of the commands `check`, `explain` and `diff`. They form
//! one program, so that the product is linked once.
//!
//! Each module states its goal and method at its top. `cargo test -p weir --test lab studies::`
//! runs the tests of the module `studies`.

#![allow(clippy::unwrap_used)] // A failure fails the test.

mod ci;
mod cli;
mod compare;
mod dashboard;
mod demo;
mod equal;
mod examples;
mod generator;
mod load;
mod load_study;
mod plans;
mod probe;
mod regression;
mod remote_write;
mod report;
mod report_studies;
mod studies;
mod study;
mod subscriptions;
mod transactions;
mod websocket_load;
