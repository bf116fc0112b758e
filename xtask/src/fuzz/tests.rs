//! Targets are parsed from the manifest.

use super::parse_targets;

#[test]
fn each_binary_is_a_target() {
    let manifest = "[package]\nname = \"fuzz\"\n[[bin]]\nname = \"jsonrpc\"\n[[bin]]\nname = \"logs\"\n\
                    required-features = [\"a\", \"b\"]\n";
    let targets: Vec<(String, Vec<String>)> = parse_targets(manifest)
        .unwrap()
        .into_iter()
        .map(|target| (target.name, target.features))
        .collect();
    let logs = ("logs".to_owned(), vec!["a".to_owned(), "b".to_owned()]);
    assert_eq!(targets, [("jsonrpc".to_owned(), Vec::new()), logs]);
    assert!(parse_targets("").unwrap().is_empty());
    assert!(parse_targets("[").is_err());
}
