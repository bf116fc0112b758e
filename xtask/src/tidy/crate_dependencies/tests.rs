//! Forbidden dependencies are found in every kind of dependency table, and allowed ones pass.

use super::super::tree::Tree;
use super::find_forbidden_dependencies;

fn caught(path: &str, manifest: &str) -> Vec<String> {
    let found = find_forbidden_dependencies(&Tree::from_texts(&[(path, manifest)]));
    found.iter().map(ToString::to_string).collect()
}

#[test]
fn a_forbidden_dependency_is_caught_in_every_table() {
    for manifest in [
        "[dependencies]\ngateway.workspace = true",
        "[dev-dependencies]\ngateway = { path = \"../gateway\" }",
        "[target.'cfg(unix)'.dependencies]\ngateway = \"1\"",
        "[build-dependencies]\nproxy = { package = \"gateway\", path = \"../gateway\" }",
    ] {
        assert_eq!(caught("crates/lab/Cargo.toml", manifest).len(), 1, "{manifest}");
        assert!(caught("crates/weir/Cargo.toml", manifest).is_empty(), "{manifest}");
    }
    assert_eq!(
        caught("crates/lab/Cargo.toml", "[dependencies]\ngateway.workspace = true"),
        ["crates/lab/Cargo.toml:2: crate arrows: lab must not know gateway"]
    );
}

#[test]
fn an_unknown_crate_is_caught_and_the_rest_passes() {
    assert_eq!(caught("crates/shared/Cargo.toml", "").len(), 1);
    assert!(
        caught("crates/gateway/Cargo.toml", "[dependencies]\nwire.workspace = true").is_empty()
    );
    assert!(caught("Cargo.toml", "[workspace.dependencies]\nwire = \"1\"").is_empty());
    assert_eq!(caught("xtask/Cargo.toml", "[dependencies]\nwire.workspace = true").len(), 1);
}
