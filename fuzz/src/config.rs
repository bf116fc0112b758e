//! Fuzzes the parser of configurations; `Cargo.toml` documents how to run it.
//!
//! This target needs the whole gateway, which takes minutes to build with the fuzzer's flags. The
//! feature `config` enables it.
#![cfg_attr(fuzzing, no_main)]

use std::path::Path;

use gateway::config::Config;

/// Parses the bytes as a configuration file, which must be valid or have errors with a line.
///
/// # Panics
/// If an invariant is violated.
fn run_input(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    // The folder for relative paths does not exist: the contents of files are not fuzzed.
    let environment = |name: &str| (name == "TOKEN").then(|| "secret-0123456789".to_owned());
    match Config::from_text("fuzz.toml", text, Path::new("/nowhere"), &environment) {
        Ok(config) => {
            assert!(!format!("{config:?}").contains("secret-0123456789"), "a secret is spilled");
            assert!(config.changes_to(&config).is_empty(), "a configuration differs from itself");
        }
        Err(errors) => {
            assert!(!errors.is_empty(), "the configuration is rejected without an error");
            let lines = text.split('\n').count();
            for error in &errors.list {
                match &error.position {
                    Some(position) => assert!((1..=lines).contains(&position.line), "{error:?}"),
                    // An error about a missing table has no line.
                    None => assert_eq!(error.message, "the chain has no upstream"),
                }
            }
            assert!(!errors.to_string().contains("secret-0123456789"), "a secret is spilled");
        }
    }
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run_input(bytes));

#[cfg(not(fuzzing))]
mod blind;

#[cfg(not(fuzzing))]
fn main() {
    blind::run(&blind::Target { inputs: 2_000, run_input, seeds, mutate });
}

/// The valid and invalid configurations of the gateway's tests, without those that refer to files.
#[cfg(not(fuzzing))]
fn seeds() -> Vec<Vec<u8>> {
    let texts = [
        include_str!("../../crates/gateway/tests/config/valid/least.toml"),
        include_str!("../../crates/gateway/tests/config/valid/backup.toml"),
        include_str!("../../crates/gateway/tests/config/valid/chains.toml"),
        include_str!("../../crates/gateway/tests/config/valid/limits.toml"),
        include_str!("../../crates/gateway/tests/config/valid/redis.toml"),
        include_str!("../../crates/gateway/tests/config/valid/warnings.toml"),
        include_str!("../../crates/gateway/tests/config/invalid/access.toml"),
        include_str!("../../crates/gateway/tests/config/invalid/limits.toml"),
        include_str!("../../crates/gateway/tests/config/invalid/names.toml"),
        include_str!("../../crates/gateway/tests/config/invalid/out-of-range.toml"),
        include_str!("../../crates/gateway/tests/config/invalid/paths.toml"),
        include_str!("../../crates/gateway/tests/config/invalid/urls.toml"),
        include_str!("../../crates/gateway/tests/config/invalid/wrong-types.toml"),
        "[[upstream]]\nurl = \"http://a:${TOKEN}@b:8545\"\nheaders = { authorization = \"Bearer ${TOKEN}\" }\n",
    ];
    texts.map(|text| text.as_bytes().to_vec()).into()
}

#[cfg(not(fuzzing))]
fn mutate(seed: u64, should_continue: &mut dyn FnMut(u64) -> bool) -> u64 {
    wire::fuzz::mutate_all(&seeds(), run_input, seed, should_continue)
}
