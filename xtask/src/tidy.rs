//! `cargo xtask tidy`: checks conventions of this repository that no other tool checks.
//!
//! A *finding* is a violation of a convention. Each check is a pure function from the tree of files
//! to findings. Each has a test with a violation that it must find. This file lists the checks in
//! order and prints their findings; the checks are in `tidy/`. docs/style.md explains the
//! conventions. Other stages of `cargo xtask check` cover formatting, lints, licences and dead
//! links in code docs.

mod book;
mod circles;
mod crate_dependencies;
mod dependency_table;
mod layers;
mod names;
mod paths;
mod reach;
mod size;
mod source;
mod tree;
mod words;

use std::fmt;

use anyhow::{Result, ensure};

use crate::shell;
use tree::Tree;

/// A violation of a convention. Reports call a convention a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    /// Path of the file, relative to the root.
    path: String,
    /// Number of the line, counted from 1.
    line: usize,
    /// Name of the violated rule, for the report.
    rule: &'static str,
    message: String,
}

impl Finding {
    fn new(path: &str, line: usize, rule: &'static str, message: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, rule, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}: {}", self.path, self.line, self.rule, self.message)
    }
}

/// Every check, in the order of the report.
const CHECKS: &[fn(&Tree) -> Vec<Finding>] = &[
    source::find_missing_docs,
    source::find_side_effects_in_pure_code,
    source::find_sentences_in_analysis,
    source::find_misplaced_error_responses,
    source::find_unexplained_sleeps,
    source::find_unnumbered_open_work,
    crate_dependencies::find_forbidden_dependencies,
    layers::find_upward_imports,
    circles::find_circles,
    dependency_table::find_unexplained_dependencies,
    reach::find_unreachable_files,
    names::find_banned_file_names,
    words::find_former_words,
    paths::find_missing_paths,
    paths::find_missing_tests,
    paths::find_machine_paths,
    book::find_unlisted_pages,
    size::find_large_files,
    size::find_empty_folders,
    size::find_data_without_source,
];

/// Runs every check over the repository.
///
/// # Errors
/// Fails if the tree cannot be read or a check has findings.
pub(crate) fn run() -> Result<()> {
    let tree = Tree::read(&shell::root())?;
    let found: Vec<Finding> = CHECKS.iter().flat_map(|check| check(&tree)).collect();
    for finding in &found {
        println!("{finding}");
    }
    for note in size::list_notes(&tree) {
        println!("note: {note}");
    }
    ensure!(found.is_empty(), "tidy found {} places", found.len());
    println!("tidy: {} checks over {} files", CHECKS.len(), tree.files().len());
    Ok(())
}
