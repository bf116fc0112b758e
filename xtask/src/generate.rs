//! `cargo xtask generate`: writes the pages in docs/ that are generated from tables in the code.
//!
//! The program itself prints them (`weir generate-docs`), so that pages and program agree.

use std::process::Command;

use anyhow::Result;

use crate::shell;

/// Regenerates the pages.
///
/// # Errors
/// Fails if weir does not build or cannot write.
pub(crate) fn write() -> Result<()> {
    run(&[])
}

/// Fails if a page is stale.
///
/// # Errors
/// Fails if weir does not build or a page is stale.
pub(crate) fn check() -> Result<()> {
    run(&["--check"])
}

/// As [`check`], with the `weir` beside this program: the tests have built it already.
///
/// # Errors
/// Fails if that `weir` does not exist or a page is stale.
pub(crate) fn check_built() -> Result<()> {
    let weir = std::env::current_exe()?.with_file_name("weir");
    let mut command = Command::new(weir);
    command.current_dir(shell::root()).args(["generate-docs", "--dir", "docs", "--check"]);
    shell::run(&mut command)
}

fn run(options: &[&str]) -> Result<()> {
    let command = ["run", "--quiet", "--package", "weir", "--", "generate-docs", "--dir", "docs"];
    shell::cargo(&[command.as_slice(), options].concat())
}
