//! `cargo xtask generate`: writes the pages in docs/ and the files in deploy/ that are generated
//! from tables in the code.
//!
//! The program itself prints them (`weir generate-docs`), so that pages and program agree.

use std::process::Command;

use anyhow::Result;

use crate::shell;

mod copies;

/// The command of `weir` that writes the pages and files.
const GENERATE: &[&str] = &["generate-docs", "--dir", "docs", "--deploy", "deploy"];

/// Regenerates the pages. The alert rules link to the page at `runbook_url`, or to a placeholder.
///
/// # Errors
/// Fails if weir does not build or cannot write.
pub(crate) fn write(runbook_url: Option<&str>) -> Result<()> {
    match runbook_url {
        Some(url) => run(&["--runbook-url", url])?,
        None => run(&[])?,
    }
    copies::write(&shell::root())
}

/// Fails if a page is stale.
///
/// # Errors
/// Fails if weir does not build or a page is stale.
pub(crate) fn check() -> Result<()> {
    run(&["--check"])?;
    copies::check(&shell::root())
}

/// Does the same as [`check`] with the `weir` beside this program, which the build of the tests has
/// made.
///
/// # Errors
/// Fails if that `weir` does not exist or a page is stale.
pub(crate) fn check_built() -> Result<()> {
    let weir = std::env::current_exe()?.with_file_name("weir");
    let mut command = Command::new(weir);
    command.current_dir(shell::root()).args(GENERATE).arg("--check");
    shell::run(&mut command)?;
    copies::check(&shell::root())
}

fn run(options: &[&str]) -> Result<()> {
    let command = ["run", "--quiet", "--package", "weir", "--"];
    shell::run_cargo(&[&command, GENERATE, options].concat())
}
