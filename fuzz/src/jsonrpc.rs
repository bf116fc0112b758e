//! Fuzzes the JSON-RPC decoder of `wire`; `Cargo.toml` documents how to run it.
//!
//! The invariants are in `crates/wire/src/fuzz.rs`.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| wire::fuzz::jsonrpc(bytes));

#[cfg(not(fuzzing))]
mod blind;

#[cfg(not(fuzzing))]
fn main() {
    blind::run(&blind::Target {
        inputs: 110_000,
        run_input: wire::fuzz::jsonrpc,
        seeds: wire::fuzz::seeds,
        mutate: wire::fuzz::mutate,
    });
}
