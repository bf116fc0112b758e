//! Fuzzes the arithmetic of request limits; `Cargo.toml` documents how to run it.
//!
//! The invariants are in `crates/gateway/src/limits/fuzz.rs`. This target compiles the gateway's
//! files separately: they depend on little, and the whole gateway takes minutes to build.
#![cfg_attr(fuzzing, no_main)]
#![allow(dead_code)] // Only the gateway uses some items.

#[path = "../../crates/gateway/src/limits/fuzz.rs"]
mod fuzz;
#[path = "../../crates/gateway/src/policy/limit.rs"]
mod limit;

/// The module `limit`, at the path that the gateway's files import it from.
mod policy {
    pub(crate) use crate::limit;
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::limit(bytes));

#[cfg(not(fuzzing))]
mod blind;

#[cfg(not(fuzzing))]
fn main() {
    blind::run(&blind::Target {
        inputs: 130_000, run_input: fuzz::limit, seeds: fuzz::seeds, mutate: fuzz::mutate });
}
