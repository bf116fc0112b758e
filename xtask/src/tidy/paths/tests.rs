//! Dead paths in pages, links and module docs are found. Names of the reader's own files pass.

use super::super::tree::Tree;
use super::{find_machine_paths, find_missing_paths, find_missing_tests};

fn dead(path: &str, text: &str) -> Vec<usize> {
    let tree = Tree::from_texts(&[
        (path, text),
        ("crates/gateway/src/policy/limit.rs", "//! Limits."),
        ("docs/style.md", "# Style\n\n## What is `x`, and why?"),
    ]);
    find_missing_paths(&tree).iter().map(|finding| finding.line).collect()
}

#[test]
fn dead_paths_in_pages_are_caught() {
    assert_eq!(dead("ARCHITECTURE.md", "\nsee `crates/gateway/src/gone.rs`"), [2]);
    assert_eq!(
        dead("docs/life.md", "see `rules/gone.rs` and `gone.rs` and `crates/none/`"),
        [1; 3]
    );
    assert_eq!(dead("README.md", "a [link](docs/none.md#part)"), [1]);
    assert_eq!(dead("docs/life.md", "a [link](../none.md)"), [1]);
    assert_eq!(dead("README.md", "a [link](docs/style.md#none)"), [1]);
    assert_eq!(dead("docs/life.md", "# Life\na [link](#style)"), [2]);
}

#[test]
fn living_paths_and_other_words_pass() {
    for text in [
        "`crates/gateway/src/policy/limit.rs`, `policy/limit.rs`, `limit.rs`, `policy/`, `crates/gateway`",
        "`/metrics`, `application/json`, `gateway.toml`, `target/bench/x.json`, `a b/c.rs`, `eth_*`",
        "[a](docs/style.md#what-is-x-and-why), [b](https://x.y/z.md)",
        "## Here\n[c](#here)",
        "```sh\ncat `crates/none.rs`\n```",
    ] {
        assert!(dead("ARCHITECTURE.md", text).is_empty(), "{text}");
    }
}

#[test]
fn links_out_of_the_site_are_caught() {
    assert_eq!(dead("docs/life.md", "[a](../crates/gateway), [b](style.md)"), [1]);
    assert!(dead("README.md", "[a](crates/gateway), [b](docs/style.md)").is_empty());
}

#[test]
fn dead_paths_in_module_docs_are_caught_and_in_code_ignored() {
    assert_eq!(dead("crates/wire/src/key.rs", "//! Next: `rules/none.rs`.\n// `none.rs`"), [1]);
}

#[test]
fn paths_of_one_machine_are_caught() {
    let caught = |path, text: &str| find_machine_paths(&Tree::from_texts(&[(path, text)])).len();
    let home = concat!("/ho", "me/");
    assert_eq!(caught("docs/x.md", &format!("see {home}me/x")), 1);
    assert_eq!(caught("docs/x.md", &format!("https://x.y{home}me")), 0);
    assert_eq!(caught("testdata/x/log.txt", &format!("{home}me")), 0);
}

#[test]
fn names_of_missing_tests_are_found() {
    let caught = |page, text: &str| {
        let source = "mod outage;\nfn data_is_served() {}\n";
        let tree = Tree::from_texts(&[("crates/weir/tests/gateway.rs", source), (page, text)]);
        find_missing_tests(&tree).len()
    };
    let gone = "| `outage::gone` | `cargo test -p weir -- lost::` | `std::net::IpAddr` |";
    assert_eq!(caught("docs/testing.md", gone), 2);
    assert_eq!(caught("docs/decisions/0001-x.md", gone), 0);
    let present = "`outage::data_is_served`, `cargo test -p weir outage::`, `[::]:8545`";
    assert_eq!(caught("docs/testing.md", present), 0);
}
