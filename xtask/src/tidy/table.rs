//! The dependency table of the workspace: each line says why the crate is here.

use super::Finding;
use super::tree::Tree;

/// A line without a comment of its own must stand in a paragraph that begins with one.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let Some(text) = tree.text("Cargo.toml") else { return Vec::new() };
    let mut found = Vec::new();
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
            found.push(Finding::new("Cargo.toml", index + 1, "dependency table", message));
        }
    }
    found
}

#[cfg(test)]
mod tests;
