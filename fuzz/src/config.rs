//! Fuzzes the parser of configurations; `Cargo.toml` documents how to run it.
//!
//! It needs the whole gateway, which takes minutes to build with other flags. The feature `config`
//! enables it.
#![cfg_attr(fuzzing, no_main)]

use std::path::Path;

use gateway::config::Config;

/// Parses bytes as a configuration file: it is valid, or every error has a line.
///
/// # Panics
/// If an invariant is violated.
fn config(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    // Relative paths do not exist here: the contents of files are not fuzzed.
    let environment = |name: &str| (name == "TOKEN").then(|| "secret-0123456789".to_owned());
    match Config::from_text("fuzz.toml", text, Path::new("/nowhere"), &environment) {
        Ok(config) => {
            assert!(!format!("{config:?}").contains("secret-0123456789"), "a secret is spilled");
            assert!(config.changes_to(&config).is_empty(), "it differs from itself");
        }
        Err(faults) => {
            assert!(!faults.is_empty(), "it is refused for nothing");
            let lines = text.split('\n').count();
            for fault in &faults.list {
                match &fault.position {
                    Some(position) => assert!((1..=lines).contains(&position.line), "{fault:?}"),
                    // A missing table has no line.
                    None => assert_eq!(fault.message, "the chain has no upstream"),
                }
            }
            assert!(!faults.to_string().contains("secret-0123456789"), "a secret is spilled");
        }
    }
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| config(bytes));

#[cfg(not(fuzzing))]
mod blind;

#[cfg(not(fuzzing))]
fn main() {
    blind::run(&blind::Target { try_one: config, seeds, mutate });
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
fn mutate(seed: u64, go_on: &mut dyn FnMut(u64) -> bool) -> u64 {
    wire::fuzz::mutate_all(&seeds(), config, seed, go_on)
}
