//! Checks that each line of the workspace's dependency table has a reason.

use super::Finding;
use super::tree::Tree;

/// Finds lines without a comment, outside paragraphs that begin with one.
pub(crate) fn find_unexplained(tree: &Tree) -> Vec<Finding> {
    let Some(text) = tree.text("Cargo.toml") else { return Vec::new() };
    let mut findings = Vec::new();
    let (mut inside, mut explained) = (false, false);
    for (index, line) in text.lines().enumerate() {
        if line.starts_with('[') {
            inside = line.starts_with("[workspace.dependencies]");
            explained = false;
        } else if line.trim().is_empty() {
            explained = false;
        } else if line.starts_with('#') {
            explained = true;
        } else if inside && !explained && !line.contains('#') {
            let name = line.split([' ', '=', '.']).next().unwrap_or(line);
            let message = format!("{name} does not say why it is here");
            findings.push(Finding::new("Cargo.toml", index + 1, "dependency table", message));
        }
    }
    findings
}

#[cfg(test)]
mod tests;
