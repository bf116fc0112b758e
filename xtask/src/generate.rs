//! `cargo xtask generate`: the pages in docs/ that are printed from tables in the code.
//!
//! The program itself prints them (`weir generate-docs`), so that a page cannot say what the
//! program does not know.

use std::process::Command;

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

/// The same by the weir that lies beside this program: the tests' build, so that none is made for it.
///
/// # Errors
/// If weir is not built there or a page is stale.
pub(crate) fn check_built() -> Result<()> {
    let weir = std::env::current_exe()?.with_file_name("weir");
    let mut command = Command::new(weir);
    command.current_dir(shell::root()).args(["generate-docs", "--dir", "docs", "--check"]);
    shell::run(&mut command)
}

fn run(more: &[&str]) -> Result<()> {
    let ours = ["run", "--quiet", "--package", "weir", "--", "generate-docs", "--dir", "docs"];
    shell::cargo(&[ours.as_slice(), more].concat())
}
