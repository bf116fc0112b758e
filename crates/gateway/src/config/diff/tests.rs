//! Goal: a diff names exactly what a reload would change, in the words of the file, and no secret.

use std::path::Path;

use super::{AT_START_ONLY, diff};
use crate::config::Config;
use crate::config::field::SECTIONS;

fn config(text: &str) -> Config {
    let environment = |name: &str| Some(format!("sekrit-of-{name}"));
    Config::from_text("test", text, Path::new("/"), &environment)
        .unwrap_or_else(|faults| panic!("{faults}"))
}

fn check(before: &str, after: &str, expected: &expect_test::Expect) {
    let changes: Vec<String> =
        diff(&config(before), &config(after)).iter().map(ToString::to_string).collect();
    let text = changes.join("\n");
    assert!(!text.contains("sekrit"), "{text}");
    expected.assert_eq(&text);
}

const NODES: &str = r#"
[[node]]
name = "a"
url = "http://127.0.0.1:1"
[[node]]
name = "b"
url = "https://user:sekrit1@b.example/v3/sekrit2sekrit2sekrit2sekrit2?key=sekrit3"
headers = { x-api-key = "sekrit4" }
"#;

#[test]
fn the_same_in_another_order_is_no_change() {
    let other = r#"
        [call]
        deadline = "30s"
        [[node]]
        name = "b"
        headers = { x-api-key = "sekrit4" }
        url = "https://user:sekrit1@b.example/v3/sekrit2sekrit2sekrit2sekrit2?key=sekrit3"
        [[node]]
        url = "http://127.0.0.1:1"
        name = "a"
    "#;
    check(NODES, other, &expect_test::expect![[""]]);
}

#[test]
fn each_key_is_told_with_what_held_before() {
    let after = r#"
        [server]
        listen = "0.0.0.0:8645"
        [call]
        deadline = "15s"
        [[node]]
        name = "a"
        url = "http://127.0.0.1:2"
        weight = 3
        [[node]]
        name = "c"
        url = "http://${HOST:-c}:1"
        [[group]]
        name = "logs"
        methods = ["eth_getLogs"]
    "#;
    check(
        NODES,
        after,
        &expect_test::expect![[r#"
        ~ server.listen = "127.0.0.1:8645" (default) -> "0.0.0.0:8645"   (only after a restart or `weir upgrade`)
        ~ node.a.url = "http://127.0.0.1:1" -> "http://127.0.0.1:2"
        ~ node.a.weight = 1 (default) -> 3
        - node.b.headers = ***
        - node.b.url = "https://***@b.example/v3/***?***"
        + node.c.url = "***"
        + group.logs.methods = ["eth_getLogs"]
        ~ call.deadline = "30s" (default) -> "15s""#]],
    );
}

#[test]
fn a_secret_that_changes_is_told_and_not_shown() {
    let after = NODES.replace("sekrit4", "sekrit5").replace("sekrit3", "sekrit6");
    check(
        NODES,
        &after,
        &expect_test::expect![[r#"
        ~ node.b.headers = ***: another value behind what is shown
        ~ node.b.url = "https://***@b.example/v3/***?***": another value behind what is shown"#]],
    );
}

#[test]
fn what_needs_a_restart_is_in_the_table_of_keys() {
    for key in AT_START_ONLY {
        let (section, key) = key.split_once('.').unwrap();
        let section = SECTIONS.iter().find(|own| own.name == section).unwrap();
        assert!(section.field(key).is_some(), "{key} is no key");
    }
}
