//! Blobs, empty folders and data without a source are found.

use super::super::tree::Tree;
use super::{
    find_data_without_source, find_empty_folders, find_large_files, find_long_functions, list_notes,
};

#[test]
fn a_blob_is_caught_outside_of_recorded_data() {
    let large = "x".repeat(200_001);
    assert_eq!(find_large_files(&Tree::from_texts(&[("docs/picture.svg", &large)])).len(), 1);
    assert!(find_large_files(&Tree::from_texts(&[("testdata/geth/chain.rlp", &large)])).is_empty());
    assert!(find_large_files(&Tree::from_texts(&[("docs/picture.svg", &large[1..])])).is_empty());
}

#[test]
fn an_empty_folder_is_caught() {
    let tree = Tree::from_texts(&[]).with_empty_folder("crates/gateway/tests/config/invalid");
    assert_eq!(find_empty_folders(&tree).len(), 1);
    assert!(find_empty_folders(&Tree::from_texts(&[])).is_empty());
}

#[test]
fn data_without_source_licence_or_data_is_caught() {
    let good = "From https://x.y/z at commit 1a2b, licence CC0.";
    let caught = |readme| {
        find_data_without_source(&Tree::from_texts(&[
            ("testdata/x/README.md", readme),
            ("testdata/x/a.io", ""),
        ]))
        .len()
    };
    assert_eq!(caught(good), 0);
    assert_eq!(caught("From https://x.y/z at commit 1a2b."), 1);
    assert_eq!(caught(""), 3);
    assert_eq!(find_data_without_source(&Tree::from_texts(&[("testdata/x/a.io", "")])).len(), 4);
    let only_readme = Tree::from_texts(&[("testdata/x/README.md", good)]);
    assert_eq!(find_data_without_source(&only_readme).len(), 1);
}

#[test]
fn long_functions_and_files_are_noted() {
    let long = format!("fn long() {{\n{}}}\nfn short() {{\n}}\n", "    a();\n".repeat(69));
    assert_eq!(find_long_functions(&long), [(1, 71)]);
    assert_eq!(list_notes(&Tree::from_texts(&[("crates/wire/src/a.rs", &long)])).len(), 1);
    let lines = "a\n".repeat(601);
    assert_eq!(list_notes(&Tree::from_texts(&[("crates/wire/src/a.rs", &lines)])).len(), 1);
    assert!(list_notes(&Tree::from_texts(&[("crates/wire/src/a/tests.rs", &lines)])).is_empty());
}
