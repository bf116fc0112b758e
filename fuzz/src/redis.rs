//! Tries what the gateway reads from Redis on made-up bytes; `Cargo.toml` tells how.
//!
//! What must hold is in `crates/gateway/src/cache/redis/fuzz.rs`. The gateway's own files are
//! compiled here by themselves: they are pure, and the rest of the gateway would take minutes to
//! build.
#![cfg_attr(fuzzing, no_main)]

#[path = "../../crates/gateway/src/policy/shareable/bond.rs"]
mod bond;
#[path = "../../crates/gateway/src/cache/redis/fuzz.rs"]
mod fuzz;
#[path = "../../crates/gateway/src/cache/redis/message.rs"]
mod message;
#[path = "../../crates/gateway/src/cache/redis/value.rs"]
mod value;

/// Where the files above look for it.
mod policy {
    pub(crate) mod portable {
        pub(crate) use crate::bond::ShareableTag;
    }
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::redis(bytes));

#[cfg(not(fuzzing))]
mod blind;

#[cfg(not(fuzzing))]
fn main() {
    blind::run(&blind::Target {
        try_one: fuzz::redis,
        seeds: fuzz::seeds,
        mutate: fuzz::mutate,
    });
}
