//! `cargo xtask generate`: writes the pages in docs/ and the files in deploy/ that are generated
//! from tables in the code of `weir`.
//!
//! `weir generate-docs` writes or checks these files. So the files agree with the `weir` that runs.
//! Then `generate/copies.rs` writes or checks copies of files that a second folder needs.

use std::process::Command;

use anyhow::Result;

use crate::shell;

mod copies;

/// The arguments of `weir` that write the pages and files.
const GENERATE: &[&str] = &["generate-docs", "--dir", "docs", "--deploy", "deploy"];

/// Writes the pages, the files and the copies. The alert rules link to the page at `runbook_url`;
/// with `None` they link to a placeholder.
///
/// # Errors
/// Fails if weir does not build, or a file cannot be written.
pub(crate) fn write(runbook_url: Option<&str>) -> Result<()> {
    match runbook_url {
        Some(url) => run(&["--runbook-url", url])?,
        None => run(&[])?,
    }
    copies::write(&shell::root())
}

/// Builds `weir` and checks that no page, file or copy is stale.
///
/// # Errors
/// Fails if weir does not build, or something is stale.
pub(crate) fn check() -> Result<()> {
    run(&["--check"])?;
    copies::check(&shell::root())
}

/// Checks the same as [`check`], but builds nothing. It runs the `weir` in the folder of this
/// program. The build of the tests has written that `weir`.
///
/// # Errors
/// Fails if that `weir` does not exist, or something is stale.
pub(crate) fn check_built() -> Result<()> {
    let weir = std::env::current_exe()?.with_file_name("weir");
    let mut command = Command::new(weir);
    command.current_dir(shell::root()).args(GENERATE).arg("--check");
    shell::run(&mut command)?;
    copies::check(&shell::root())
}

/// Builds `weir` and runs it with the arguments of [`GENERATE`] and these options.
fn run(options: &[&str]) -> Result<()> {
    let cargo_arguments = ["run", "--quiet", "--package", "weir", "--"];
    shell::run_cargo(&[&cargo_arguments, GENERATE, options].concat())
}
