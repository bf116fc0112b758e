//! Tries `wire`'s decoder on made-up bodies, guided by coverage or blindly; `Cargo.toml` tells how.
//!
//! What must hold is in `crates/wire/src/fuzz.rs`; this only runs it.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| wire::fuzz::jsonrpc(bytes));

#[cfg(not(fuzzing))]
mod blind;

#[cfg(not(fuzzing))]
fn main() {
    blind::run(&blind::Target {
        try_one: wire::fuzz::jsonrpc,
        seeds: wire::fuzz::seeds,
        mutate: wire::fuzz::mutate,
    });
}
