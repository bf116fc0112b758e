//! Tries the access log's formats and lines on made-up bytes, guided by coverage or blindly.
//!
//! What must hold is in `crates/gateway/src/fuzz.rs`; this only runs it. Its parts are compiled from
//! their own files: they need nothing of the rest of the gateway, which would take minutes to build
//! with other flags.
#![cfg_attr(fuzzing, no_main)]
#![allow(dead_code)] // A part of it is for the gateway only.

#[path = "../../crates/gateway/src/access_log/format.rs"]
mod format;
#[path = "../../crates/gateway/src/fuzz.rs"]
mod fuzz;
#[path = "../../crates/gateway/src/access_log/read.rs"]
mod read;

/// Where the gateway has them.
mod access_log {
    pub(crate) use crate::{format, read};
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::access_log(bytes));

#[cfg(not(fuzzing))]
mod blind;

#[cfg(not(fuzzing))]
fn main() {
    blind::run(&blind::Target {
        try_one: fuzz::access_log,
        seeds: fuzz::access_log_seeds,
        mutate: fuzz::access_log_mutate,
    });
}
