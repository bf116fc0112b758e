//! Fuzzes the parser of WebSocket frames; `Cargo.toml` documents how to run it.
//!
//! The invariants are in `crates/gateway/src/io/websocket/fuzz.rs`. This target compiles the
//! gateway's files separately.
#![cfg_attr(fuzzing, no_main)]
#![allow(dead_code)] // Only the gateway uses some items.

#[path = "../../crates/gateway/src/io/websocket/decoder.rs"]
mod decoder;
#[path = "../../crates/gateway/src/io/websocket/deflate.rs"]
mod deflate;
#[path = "../../crates/gateway/src/io/websocket/fuzz.rs"]
mod fuzz;

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::websocket(bytes));

#[cfg(not(fuzzing))]
mod blind;

#[cfg(not(fuzzing))]
fn main() {
    blind::run(&blind::Target {
        inputs: 120_000,
        run_input: fuzz::websocket,
        seeds: fuzz::seeds,
        mutate: fuzz::mutate,
    });
}
