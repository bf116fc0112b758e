//! Checks that every source file is compiled: it is a crate root, or reachable by `mod` lines.

use std::collections::BTreeSet;

use super::Finding;
use super::tree::Tree;

/// Finds `.rs` files that are not reachable from a crate root.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut open: Vec<(String, bool)> = tree
        .texts(".rs")
        .filter(|(path, _)| is_root(tree, path))
        .map(|(p, _)| (p.into(), true))
        .collect();
    let mut reached = BTreeSet::new();
    while let Some((path, root)) = open.pop() {
        if reached.insert(path.clone()) {
            let text = tree.text(&path).unwrap_or_default();
            open.extend(modules(tree, &path, root, text).into_iter().map(|found| (found, false)));
        }
    }
    let message = "no crate root leads to this file; add a mod line or delete it";
    tree.texts(".rs")
        .filter(|(path, _)| !path.starts_with("testdata/") && !reached.contains(*path))
        .map(|(path, _)| Finding::new(path, 1, "reachable", message))
        .collect()
}

/// Returns true for files that cargo builds by their location, or because a manifest names them.
fn is_root(tree: &Tree, path: &str) -> bool {
    let Some((folder, file)) = path.rsplit_once('/') else { return false };
    let place = folder.rsplit('/').next().unwrap_or(folder);
    let package = |depth: usize| {
        let segments: Vec<&str> = folder.split('/').collect();
        segments.len().checked_sub(depth).is_some_and(|kept| {
            tree.text(&[&segments[..kept], &["Cargo.toml"]].concat().join("/")).is_some()
        })
    };
    match (place, file) {
        ("src", "lib.rs" | "main.rs") => package(1),
        ("bin", _) => package(2),
        ("tests" | "examples" | "benches", _) => package(1),
        (_, "main.rs") if folder.ends_with(&format!("/tests/{place}")) => package(2),
        (_, "build.rs") => package(0),
        _ => named_by_manifest(tree, path),
    }
}

fn named_by_manifest(tree: &Tree, path: &str) -> bool {
    tree.texts("Cargo.toml").any(|(manifest, text)| {
        let folder = manifest.strip_suffix("Cargo.toml").unwrap_or_default();
        path.strip_prefix(folder).is_some_and(|inside| text.contains(&format!("\"{inside}\"")))
    })
}

/// Returns the files that the `mod` lines of `path` refer to.
fn modules(tree: &Tree, path: &str, root: bool, text: &str) -> Vec<String> {
    let (folder, file) = path.rsplit_once('/').unwrap_or(("", path));
    let stem = file.strip_suffix(".rs").unwrap_or(file);
    let below = if root { folder.to_owned() } else { format!("{folder}/{stem}") };
    let mut found = Vec::new();
    let mut named: Option<String> = None;
    for line in text.lines().map(str::trim) {
        if let Some(rest) = line.strip_prefix("#[path = \"") {
            named = rest.split('"').next().map(|place| join(folder, place));
        } else if let Some(name) = module_name(line) {
            let candidates = named.take().into_iter().chain([format!("{below}/{name}.rs")]);
            found.extend(candidates.filter(|place| tree.text(place).is_some()).take(1));
        }
    }
    found
}

/// Returns the name in `mod name;`, with any visibility.
fn module_name(line: &str) -> Option<&str> {
    let rest = line.strip_suffix(';')?;
    let name = rest.strip_prefix("mod ").or_else(|| {
        let (before, name) = rest.split_once(" mod ")?;
        before.starts_with("pub").then_some(name)
    })?;
    name.chars().all(|c| c.is_alphanumeric() || c == '_').then_some(name)
}

/// Returns `folder/place` with `..` resolved.
fn join(folder: &str, place: &str) -> String {
    let mut segments: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in place.split('/') {
        match part {
            ".." => {
                segments.pop();
            }
            "." => {}
            other => segments.push(other),
        }
    }
    segments.join("/")
}

#[cfg(test)]
mod tests;
