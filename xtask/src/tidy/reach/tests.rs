//! A file that no module includes is found; every way to include a file is accepted.

use super::super::tree::Tree;
use super::find_unreachable_files;

fn caught(files: &[(&str, &str)]) -> Vec<String> {
    let found = find_unreachable_files(&Tree::from_texts(files));
    found.into_iter().map(|finding| finding.path).collect()
}

#[test]
fn a_forgotten_file_is_caught() {
    let files = [
        ("crates/wire/Cargo.toml", ""),
        ("crates/wire/src/lib.rs", "pub mod key;\n// mod gone;\n"),
        ("crates/wire/src/key.rs", "#[cfg(test)]\nmod tests;"),
        ("crates/wire/src/key/tests.rs", ""),
        ("crates/wire/src/gone.rs", ""),
        ("crates/wire/src/tests.rs", ""),
    ];
    assert_eq!(caught(&files), ["crates/wire/src/gone.rs", "crates/wire/src/tests.rs"]);
}

#[test]
fn roots_that_cargo_or_a_manifest_knows_and_path_attributes_reach_files() {
    let files = [
        ("crates/weir/Cargo.toml", ""),
        ("crates/weir/src/main.rs", "pub(crate) mod serve;"),
        ("crates/weir/src/serve.rs", ""),
        (
            "crates/weir/tests/cli.rs",
            "mod golden;\n#[path = \"support/programs.rs\"]\nmod programs;",
        ),
        ("crates/weir/tests/support/programs.rs", ""),
        ("crates/weir/tests/gateway/main.rs", "mod limits;"),
        ("crates/weir/tests/gateway/limits.rs", ""),
        ("crates/weir/tests/golden.rs", ""),
        ("crates/weir/build.rs", ""),
        ("fuzz/Cargo.toml", "[[bin]]\npath = \"targets/jsonrpc.rs\""),
        ("fuzz/targets/jsonrpc.rs", ""),
        ("xtask/Cargo.toml", ""),
        ("xtask/src/main.rs", "#[path = \"../../crates/weir/tests/support/more.rs\"]\nmod more;"),
        ("crates/weir/tests/support/more.rs", ""),
    ];
    assert_eq!(caught(&files), [""; 0]);
}

#[test]
fn a_main_file_is_a_root_only_right_below_tests() {
    let files = [
        ("crates/weir/Cargo.toml", ""),
        ("crates/weir/tests/gateway/main.rs", ""),
        ("crates/weir/tests/gateway/limits/main.rs", ""),
        ("crates/weir/tests/gateway/limits.rs", ""),
    ];
    assert_eq!(
        caught(&files),
        ["crates/weir/tests/gateway/limits.rs", "crates/weir/tests/gateway/limits/main.rs"]
    );
}

#[test]
fn a_root_without_a_package_is_caught() {
    assert_eq!(caught(&[("crates/old/src/lib.rs", "")]), ["crates/old/src/lib.rs"]);
}
