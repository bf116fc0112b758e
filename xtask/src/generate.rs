//! `cargo xtask generate`: the pages in docs/ that are printed from tables in the code.
//!
//! The program itself prints them (`weir generate-docs`), so that a page cannot say what the
//! program does not know.

use anyhow::Result;

use crate::shell;

/// Writes the pages anew.
///
/// # Errors
/// If weir does not build or cannot write.
pub(crate) fn write() -> Result<()> {
    run(&[])
}

/// Fails if a page is not what would be written now.
///
/// # Errors
/// If weir does not build or a page is stale.
pub(crate) fn check() -> Result<()> {
    run(&["--check"])
}

fn run(more: &[&str]) -> Result<()> {
    let ours = ["run", "--quiet", "--package", "weir", "--", "generate-docs", "--dir", "docs"];
    shell::cargo(&[ours.as_slice(), more].concat())
}
