//! Tries the arithmetic of request limits on made-up terms and arrivals; `Cargo.toml` tells how.
//!
//! What must hold is in `crates/gateway/src/limits/fuzz.rs`. The gateway's own files are compiled
//! here by themselves: they are pure, and the rest of the gateway would take minutes to build.
#![cfg_attr(fuzzing, no_main)]
#![allow(dead_code)] // A part of it is for the gateway only.

#[path = "../../crates/gateway/src/limits/fuzz.rs"]
mod fuzz;
#[path = "../../crates/gateway/src/policy/limit.rs"]
mod limit;

/// Where the file above looks for it.
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
        try_one: fuzz::limit,
        seeds: fuzz::seeds,
        mutate: fuzz::mutate,
    });
}
