//! File names that say nothing.

use super::Finding;
use super::tree::Tree;

/// Words under which anything can hide, so that everything ends up there.
const BANNED: &[&str] = &[
    "util", "utils", "helper", "helpers", "common", "core", "manager", "managers", "handler",
    "handlers", "data", "info", "inner", "misc",
];

/// A banned word in the name of a source file or of a folder that holds source, or a `mod.rs`.
pub(crate) fn banned(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (path, _) in tree.texts(".rs") {
        if path.ends_with("/mod.rs") {
            let message = "mod.rs says nothing; use name.rs beside name/";
            found.push(Finding::new(path, 1, "file names", message));
        }
        let stem = path.strip_suffix(".rs").unwrap_or(path);
        for word in stem.split(['/', '_', '-']).filter(|word| BANNED.contains(word)) {
            let message = format!("{word:?} says nothing; use the domain's noun");
            found.push(Finding::new(path, 1, "file names", message));
        }
    }
    found
}

#[cfg(test)]
mod tests;
