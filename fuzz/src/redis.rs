//! Fuzzes the decoders of values and messages in Redis; `Cargo.toml` documents how to run it.
//!
//! The invariants are in `crates/gateway/src/cache/redis/fuzz.rs`. This target compiles the
//! gateway's files separately: they depend on little, and the whole gateway takes minutes to build.
#![cfg_attr(fuzzing, no_main)]

#[path = "../../crates/gateway/src/cache/redis/fuzz.rs"]
mod fuzz;
#[path = "../../crates/gateway/src/cache/redis/message.rs"]
mod message;
#[path = "../../crates/gateway/src/policy/shareable/tag.rs"]
mod tag;
#[path = "../../crates/gateway/src/cache/redis/value.rs"]
mod value;

/// The type `ShareableTag`, at the path that the gateway's files import it from.
mod policy {
    pub(crate) mod shareable {
        pub(crate) use crate::tag::ShareableTag;
    }
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::redis(bytes));

#[cfg(not(fuzzing))]
mod blind;

#[cfg(not(fuzzing))]
fn main() {
    blind::run(&blind::Target {
        inputs: 500_000, run_input: fuzz::redis, seeds: fuzz::seeds, mutate: fuzz::mutate });
}
