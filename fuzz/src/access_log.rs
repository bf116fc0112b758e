//! Fuzzes the formats of the access log and the log parser of `weir logs`; `Cargo.toml` documents
//! how to run it.
//!
//! The invariants are in `crates/gateway/src/config/access_log/fuzz.rs` and
//! `crates/weir/src/logs/fuzz.rs`. This target compiles the files separately: the rest of the
//! program takes minutes to build with other flags.
#![cfg_attr(fuzzing, no_main)]
#![allow(dead_code)] // Only the program uses some items.

#[path = "../../crates/weir/src/logs"]
mod logs {
    pub(crate) mod format;
    pub(crate) mod fuzz;
    mod read;
}

#[path = "../../crates/gateway/src/config/access_log"]
mod written {
    pub(crate) mod format;
    pub(crate) mod fuzz;
}

/// The macro `closed_set` under its path in the gateway.
#[path = "../../crates/gateway/src/policy"]
mod policy {
    pub(crate) mod closed_set;
}

fn try_one(bytes: &[u8]) {
    written::fuzz::format(bytes);
    logs::fuzz::logs(bytes);
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| try_one(bytes));

#[cfg(not(fuzzing))]
mod blind;

#[cfg(not(fuzzing))]
fn main() {
    blind::run(&blind::Target { try_one, seeds, mutate });
}

#[cfg(not(fuzzing))]
fn seeds() -> Vec<Vec<u8>> {
    [written::fuzz::seeds(), logs::fuzz::seeds()].concat()
}

#[cfg(not(fuzzing))]
fn mutate(seed: u64, go_on: &mut dyn FnMut(u64) -> bool) -> u64 {
    wire::fuzz::mutate_all(&seeds(), try_one, seed, go_on)
}
