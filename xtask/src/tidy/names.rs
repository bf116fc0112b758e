//! Finds meaningless file names.

use super::Finding;
use super::tree::Tree;

/// Words that fit any content, so that unrelated code collects under them.
const BANNED: &[&str] = &[
    "util", "utils", "helper", "helpers", "common", "core", "manager", "managers", "handler",
    "handlers", "data", "info", "inner", "misc",
];

/// Finds banned words in names of source files and their folders, and files named `mod.rs`.
pub(crate) fn find_banned_file_names(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, _) in tree.texts(".rs") {
        if path.ends_with("/mod.rs") {
            let message = "mod.rs says nothing; use name.rs beside name/";
            findings.push(Finding::new(path, 1, "file names", message));
        }
        let stem = path.strip_suffix(".rs").unwrap_or(path);
        for word in stem.split(['/', '_', '-']).filter(|word| BANNED.contains(word)) {
            let message = format!("{word:?} says nothing; use the domain's noun");
            findings.push(Finding::new(path, 1, "file names", message));
        }
    }
    findings
}

#[cfg(test)]
mod tests;
