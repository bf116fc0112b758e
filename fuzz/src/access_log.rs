//! Fuzzes the formats of the access log and the log parser of `weir logs`; `Cargo.toml` documents
//! how to run it.
//!
//! The invariants are in `crates/gateway/src/config/access_log/fuzz.rs` and
//! `crates/weir/src/logs/fuzz.rs`. This target compiles the files separately: the rest of the
//! program takes minutes to build with the fuzzer's flags.
#![cfg_attr(fuzzing, no_main)]
#![allow(dead_code)] // Only the program uses some items.

#[path = "../../crates/weir/src/logs"]
mod logs {
    pub(crate) mod format;
    pub(crate) mod fuzz;
    mod read;
}

#[path = "../../crates/gateway/src/config/access_log"]
mod configured {
    pub(crate) mod format;
    pub(crate) mod fuzz;
}

/// The macro `closed_set`, at the path that the gateway's files import it from.
#[path = "../../crates/gateway/src/policy"]
mod policy {
    pub(crate) mod closed_set;
}

fn run_input(bytes: &[u8]) {
    configured::fuzz::format(bytes);
    logs::fuzz::logs(bytes);
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run_input(bytes));

#[cfg(not(fuzzing))]
mod blind;

#[cfg(not(fuzzing))]
fn main() {
    blind::run(&blind::Target { inputs: 600_000, run_input, seeds, mutate });
}

#[cfg(not(fuzzing))]
fn seeds() -> Vec<Vec<u8>> {
    [configured::fuzz::seeds(), logs::fuzz::seeds()].concat()
}

#[cfg(not(fuzzing))]
fn mutate(seed: u64, should_continue: &mut dyn FnMut(u64) -> bool) -> u64 {
    wire::fuzz::mutate_all(&seeds(), run_input, seed, should_continue)
}
