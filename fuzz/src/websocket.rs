//! Tries the reader of WebSocket frames on made-up bytes; `Cargo.toml` tells how.
//!
//! What must hold is in `crates/gateway/src/io/websocket/fuzz.rs`. The gateway's own files are
//! compiled here by themselves.
#![cfg_attr(fuzzing, no_main)]
#![allow(dead_code)] // A part of it is for the gateway only.

#[path = "../../crates/gateway/src/io/websocket/deflate.rs"]
mod deflate;
#[path = "../../crates/gateway/src/io/websocket/frame.rs"]
mod frame;
#[path = "../../crates/gateway/src/io/websocket/fuzz.rs"]
mod fuzz;
#[path = "../../crates/gateway/src/io/websocket/mask.rs"]
mod mask;

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::websocket(bytes));

#[cfg(not(fuzzing))]
mod blind;

#[cfg(not(fuzzing))]
fn main() {
    blind::run(&blind::Target {
        try_one: fuzz::websocket,
        seeds: fuzz::seeds,
        mutate: fuzz::mutate,
    });
}
