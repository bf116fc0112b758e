//! Checks that each line of the workspace's dependency table has a comment with a reason.

use super::Finding;
use super::tree::Tree;

/// Finds dependencies without a comment. A line that is a comment counts for all following lines up
/// to an empty line.
pub(crate) fn find_unexplained_dependencies(tree: &Tree) -> Vec<Finding> {
    let Some(text) = tree.text("Cargo.toml") else { return Vec::new() };
    let mut findings = Vec::new();
    let (mut in_table, mut has_reason) = (false, false);
    for (index, line) in text.lines().enumerate() {
        if line.starts_with('[') {
            in_table = line.starts_with("[workspace.dependencies]");
            has_reason = false;
        } else if line.trim().is_empty() {
            has_reason = false;
        } else if line.starts_with('#') {
            has_reason = true;
        } else if in_table && !has_reason && !line.contains('#') {
            let name = line.split([' ', '=', '.']).next().unwrap_or(line);
            let message = format!("{name} does not say why it is here");
            findings.push(Finding::new("Cargo.toml", index + 1, "dependency table", message));
        }
    }
    findings
}

#[cfg(test)]
mod tests;
