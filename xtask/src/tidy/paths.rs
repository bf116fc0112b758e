//! Checks paths in text. Paths of this repository and names of tests must exist; paths of a single
//! machine must not occur.

use std::collections::HashSet;

use super::Finding;
use super::tree::{Tree, join};

/// Folders at the root. A path in backticks that begins with one of these folders belongs to this
/// repository.
const ROOTS: &[&str] = &[
    "crates", "docs", "examples", "studies", "deploy", "xtask", "testdata", "fuzz", ".ci", ".cargo",
];
/// Extensions of files that a page refers to.
const ENDINGS: &[&str] = &[".rs", ".toml", ".md"];

/// Finds paths in backticks that do not exist, in pages at the root, in docs/ and in module docs.
/// Also finds relative links with a missing target or heading, in any page.
pub(crate) fn find_missing_paths(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts(".md").filter(|(path, _)| !path.starts_with("testdata/")) {
        let checks_paths = path.starts_with("docs/") || !path.contains('/');
        let mut fenced = false;
        for (index, line) in text.lines().enumerate() {
            if line.trim_start().starts_with("```") {
                fenced = !fenced;
            } else if !fenced {
                let errors =
                    find_link_targets(line).filter_map(|link| link_error(tree, path, link));
                findings.extend(errors.map(|error| Finding::new(path, index + 1, "paths", error)));
                if checks_paths {
                    let missing_paths =
                        find_repository_paths(line).filter(|span| !path_exists(tree, span));
                    findings
                        .extend(missing_paths.map(|span| missing_path_finding(path, index, span)));
                }
            }
        }
    }
    for (path, text) in tree.texts(".rs") {
        for (index, line) in text.lines().enumerate() {
            let Some(doc) = line.strip_prefix("//!") else { continue };
            let missing_paths = find_repository_paths(doc).filter(|span| !path_exists(tree, span));
            findings.extend(missing_paths.map(|span| missing_path_finding(path, index, span)));
        }
    }
    findings
}

/// Returns the finding for a line. `index` counts lines from 0.
fn missing_path_finding(path: &str, index: usize, target: &str) -> Finding {
    Finding::new(path, index + 1, "paths", format!("{target} does not exist"))
}

/// Returns the texts between backticks that are paths of this repository.
fn find_repository_paths(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2).filter(|span| is_repository_path(span))
}

/// Returns true if the text has the form of a path of this repository.
fn is_repository_path(span: &str) -> bool {
    let is_path_char = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
    if !span.chars().all(is_path_char) || span.starts_with('/') || span.contains("..") {
        return false;
    }
    match span.split_once('/') {
        // Without a folder, `gateway.toml` is a user's file, and `limit.rs` is ours.
        None => span.len() > 3 && span.ends_with(".rs"),
        Some(("target", _)) => false,
        Some((first, _)) => {
            ROOTS.contains(&first) || ENDINGS.iter().any(|ending| span.ends_with(ending))
        }
    }
}

/// Returns true if the path of a file or folder equals `span` or ends in it. Module docs use paths
/// relative to a parent folder.
fn path_exists(tree: &Tree, span: &str) -> bool {
    let span = span.trim_start_matches("./").trim_end_matches('/');
    let (inner, folder, inner_folder) =
        (format!("/{span}"), format!("{span}/"), format!("/{span}/"));
    tree.files().keys().any(|path| {
        path == span
            || path.ends_with(&inner)
            || path.starts_with(&folder)
            || path.contains(&inner_folder)
    })
}

/// Returns the targets of Markdown links, without web addresses.
fn find_link_targets(line: &str) -> impl Iterator<Item = &str> {
    let targets = line.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
    targets.filter(|target| !target.contains("://") && !target.starts_with("mailto:"))
}

/// Returns why a link of a page is broken, or `None` if it is valid.
fn link_error(tree: &Tree, page: &str, link: &str) -> Option<String> {
    let (target, heading) = link.split_once('#').unwrap_or((link, ""));
    let folder = page.rsplit_once('/').map_or("", |(folder, _)| folder);
    let path = if target.is_empty() { page.to_owned() } else { join(folder, target) };
    let inside = format!("{path}/");
    if !tree.files().keys().any(|file| *file == path || file.starts_with(&inside)) {
        return Some(format!("{link} does not exist"));
    }
    if page.starts_with("docs/") && !path.starts_with("docs/") {
        return Some(format!("{link} leads out of docs/, so the site has no such page"));
    }
    let text = tree.text(&path).unwrap_or_default();
    let has_heading =
        heading.is_empty() || find_heading_anchors(text).any(|other| other == heading);
    (!has_heading).then(|| format!("{link}: {path} has no such heading"))
}

/// Returns the anchors of a page's headings, as GitHub and mdBook derive them.
fn find_heading_anchors(text: &str) -> impl Iterator<Item = String> {
    let titles = text.lines().filter(|line| line.starts_with('#'));
    titles.map(|line| {
        let title = line.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
        title.chars().filter(|c| c.is_alphanumeric() || "-_".contains(*c)).collect()
    })
}

/// Finds names of tests in pages, such as `serving::outage`, if no function or module has the name.
/// `cargo test` passes if its filter matches no test, so it detects no stale name. Decisions are
/// not checked, because they are history.
pub(crate) fn find_missing_tests(tree: &Tree) -> Vec<Finding> {
    let defined: HashSet<&str> =
        tree.texts(".rs").flat_map(|(_, text)| find_defined_names(text)).collect();
    let mut findings = Vec::new();
    let is_page = |path: &str| {
        let is_at_root = !path.contains('/');
        let is_decision = path.starts_with("docs/decisions/");
        is_at_root || (path.starts_with("docs/") && !is_decision)
    };
    for (path, text) in tree.texts(".md").filter(|(path, _)| is_page(path)) {
        for (index, line) in text.lines().enumerate() {
            let words = line.split('`').skip(1).step_by(2).flat_map(str::split_whitespace);
            for word in words.filter(|word| is_test_path(word)) {
                let name = word.trim_end_matches("::").rsplit("::").next().unwrap_or_default();
                if !defined.contains(name) {
                    let message = format!("no test has the name {word}");
                    findings.push(Finding::new(path, index + 1, "tests", message));
                }
            }
        }
    }
    findings
}

/// Returns the names of all functions and modules of a source file.
fn find_defined_names(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| {
        let (_, rest) = line.split_once("fn ").or_else(|| line.split_once("mod "))?;
        rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()
    })
}

/// Returns true if the text has the form of a path of modules and functions, such as
/// `serving::outage` or `tls::`.
fn is_test_path(word: &str) -> bool {
    let is_path_char = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_:".contains(c);
    word.contains("::") && word.chars().all(is_path_char)
}

/// Prefixes of paths that exist on one machine only. The literals are split, so this file contains
/// no such path.
const MACHINE_PREFIXES: &[&str] = &[
    concat!("/wo", "rk/"),
    concat!("/ho", "me/"),
    concat!("/Us", "ers/"),
    concat!("/ro", "ot/"),
    concat!("../sh", "ared"),
];

/// Finds paths of one machine in any file except recorded data.
pub(crate) fn find_machine_paths(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts("").filter(|(path, _)| !path.starts_with("testdata/")) {
        for (index, line) in text.lines().enumerate() {
            for start in MACHINE_PREFIXES.iter().filter(|start| begins_path(line, start)) {
                let message = format!("{start} is a path of one machine");
                findings.push(Finding::new(path, index + 1, "machine paths", message));
            }
        }
    }
    findings
}

/// Returns true if `start` occurs in `line` at a place where a path can begin. So `/x/home/`, which
/// is a different path, does not count.
fn begins_path(line: &str, start: &str) -> bool {
    line.match_indices(start).any(|(index, _)| {
        let previous = line[..index].chars().next_back();
        !previous.is_some_and(|c| c.is_ascii_alphanumeric() || "_-./:}".contains(c))
    })
}

#[cfg(test)]
mod tests;
