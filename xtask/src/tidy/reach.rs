//! Checks that every source file is compiled: it is a crate root, or reachable by `mod` lines.

use std::collections::BTreeSet;

use super::Finding;
use super::tree::{Tree, join};

/// Finds `.rs` files that are not reachable from a crate root.
pub(crate) fn find_unreachable_files(tree: &Tree) -> Vec<Finding> {
    // Files to visit, each with true for a crate root.
    let mut unvisited: Vec<(String, bool)> = tree
        .texts(".rs")
        .filter(|(path, _)| is_root(tree, path))
        .map(|(path, _)| (path.into(), true))
        .collect();
    let mut reached = BTreeSet::new();
    while let Some((path, is_root)) = unvisited.pop() {
        if reached.insert(path.clone()) {
            let text = tree.text(&path).unwrap_or_default();
            let files = find_modules(tree, &path, is_root, text).into_iter();
            unvisited.extend(files.map(|file| (file, false)));
        }
    }
    let message = "no crate root leads to this file; add a mod line or delete it";
    tree.texts(".rs")
        .filter(|(path, _)| !path.starts_with("testdata/") && !reached.contains(*path))
        .map(|(path, _)| Finding::new(path, 1, "reachable", message))
        .collect()
}

/// Returns true for a crate root: a file that cargo builds because of its location, or because a
/// manifest names it.
fn is_root(tree: &Tree, path: &str) -> bool {
    let Some((folder, file)) = path.rsplit_once('/') else { return false };
    let folder_name = folder.rsplit('/').next().unwrap_or(folder);
    // True if the folder `depth` levels above `folder` has a Cargo.toml.
    let is_package_above = |depth: usize| {
        let segments: Vec<&str> = folder.split('/').collect();
        segments.len().checked_sub(depth).is_some_and(|length| {
            tree.text(&[&segments[..length], &["Cargo.toml"]].concat().join("/")).is_some()
        })
    };
    match (folder_name, file) {
        ("src", "lib.rs" | "main.rs") => is_package_above(1),
        ("bin", _) => is_package_above(2),
        ("tests" | "examples" | "benches", _) => is_package_above(1),
        (_, "main.rs") if folder.ends_with(&format!("/tests/{folder_name}")) => is_package_above(2),
        (_, "build.rs") => is_package_above(0),
        _ => is_named_by_manifest(tree, path),
    }
}

/// Returns true if a manifest names the file, for example as a `path`.
fn is_named_by_manifest(tree: &Tree, path: &str) -> bool {
    tree.texts("Cargo.toml").any(|(manifest, text)| {
        let folder = manifest.strip_suffix("Cargo.toml").unwrap_or_default();
        path.strip_prefix(folder).is_some_and(|inside| text.contains(&format!("\"{inside}\"")))
    })
}

/// Returns the files that the `mod` lines of `path` refer to.
fn find_modules(tree: &Tree, path: &str, is_root: bool, text: &str) -> Vec<String> {
    let (folder, file) = path.rsplit_once('/').unwrap_or(("", path));
    let stem = file.strip_suffix(".rs").unwrap_or(file);
    let module_folder = if is_root { folder.to_owned() } else { format!("{folder}/{stem}") };
    let mut files = Vec::new();
    let mut path_attribute: Option<String> = None;
    for line in text.lines().map(str::trim) {
        if let Some(rest) = line.strip_prefix("#[path = \"") {
            path_attribute = rest.split('"').next().map(|path| join(folder, path));
        } else if let Some(name) = parse_module_name(line) {
            let default = format!("{module_folder}/{name}.rs");
            let candidates = path_attribute.take().into_iter().chain([default]);
            files.extend(candidates.filter(|file| tree.text(file).is_some()).take(1));
        }
    }
    files
}

/// Returns the name in `mod name;`, with any visibility.
fn parse_module_name(line: &str) -> Option<&str> {
    let rest = line.strip_suffix(';')?;
    let name = rest.strip_prefix("mod ").or_else(|| {
        let (visibility, name) = rest.split_once(" mod ")?;
        visibility.starts_with("pub").then_some(name)
    })?;
    name.chars().all(|c| c.is_alphanumeric() || c == '_').then_some(name)
}

#[cfg(test)]
mod tests;
