//! Imports that the layers forbid are found in every notation, and allowed ones pass.

use super::super::tree::Tree;
use super::{LayeredFolder, check_folder};

const SAMPLE: LayeredFolder =
    LayeredFolder { path: "crates/x/src", layers: &[&["policy"], &["call", "io"], &["path"]] };

fn caught(path: &str, text: &str) -> Vec<String> {
    let found = check_folder(&Tree::from_texts(&[(path, text)]), &SAMPLE);
    found.iter().map(ToString::to_string).collect()
}

#[test]
fn an_import_from_the_same_or_a_later_layer_is_caught_in_every_notation() {
    for text in [
        "use crate::path::Request;",
        "use crate::{policy, io::{self, read}};",
        "use super::super::path;",
        "fn f() { crate::path::answer(); }",
        "fn f() { println!(\"{}\", crate::io::READ) }",
        "mod inner { use super::super::super::path::Request; }",
        "impl crate::path::Step for X {}",
    ] {
        assert_eq!(caught("crates/x/src/call/request.rs", text).len(), 1, "{text}");
    }
    assert_eq!(
        caught("crates/x/src/policy.rs", "//! Doc.\nuse super::call::Request;"),
        ["crates/x/src/policy.rs:2: layers: policy must not import from call"]
    );
}

#[test]
fn imports_from_lower_layers_in_tests_and_within_a_folder_pass() {
    for text in [
        "use crate::policy::Choice;",
        "use super::response::Response;\nuse self::body::Body;\nuse crate::call;",
        "#[cfg(test)]\nmod tests { use crate::path::Request; }",
        "#[cfg(test)]\nuse crate::path::Request;\nuse crate::policy::Choice;",
        "use crate::Error;",
        "/// Like [`crate::path::Request`].\nstruct X; // crate::path",
    ] {
        assert_eq!(caught("crates/x/src/call/request.rs", text), [""; 0], "{text}");
    }
    let text = "use crate::path::Request;";
    assert_eq!(caught("crates/x/src/call/request/tests.rs", text), [""; 0]);
    assert_eq!(caught("crates/x/src/lib.rs", text), [""; 0]);
}

#[test]
fn a_module_in_no_layer_is_caught() {
    assert_eq!(
        caught("crates/x/src/new/file.rs", ""),
        ["crates/x/src/new/file.rs:1: layers: new has no layer in crates/x/src"]
    );
}

#[test]
fn a_folder_within_a_folder_has_its_own_layers() {
    let layers = LayeredFolder { path: "crates/x/src/json", layers: &[&["string"], &["scanner"]] };
    let caught = |path, text| {
        let found = check_folder(&Tree::from_texts(&[(path, text)]), &layers);
        found.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let string = "crates/x/src/json/string.rs";
    for text in ["use super::scanner::Scanner;", "use crate::json::scanner::Scanner;"] {
        let expected = format!("{string}:1: layers: string must not import from scanner");
        assert_eq!(caught(string, text), [expected]);
    }
    for text in ["use super::string::JsonString;", "use crate::scanner::Other;"] {
        assert_eq!(caught("crates/x/src/json/scanner.rs", text), [""; 0], "{text}");
    }
}

#[test]
fn every_fixed_folder_exists() {
    let tree = Tree::read(&crate::shell::root()).unwrap();
    for folder in super::FOLDERS {
        assert!(tree.texts(".rs").any(|(path, _)| path.starts_with(folder.path)));
        for name in folder.layers.concat() {
            let file = format!("{}/{name}.rs", folder.path);
            assert!(tree.text(&file).is_some(), "{file} is in a layer and does not exist");
        }
    }
}
