//! `cargo xtask generate`: writes the pages in docs/ and the files in deploy/ that are generated
//! from tables and types in the code.
//!
//! The program `crates/generate` writes or checks these files. Then `generate/copies.rs` writes or
//! checks copies of files that a second folder needs.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::shell;

mod copies;

/// The arguments of the program that write the pages and files.
const GENERATE: &[&str] = &["--dir", "docs", "--deploy", "deploy"];

/// The arguments of cargo that build and run the program.
const CARGO_RUN: &[&str] = &["run", "--quiet", "--package", "generate", "--"];

/// Writes the pages, the files and the copies. The alert rules link to the page at `runbook_url`;
/// with `None` they link to a placeholder.
///
/// # Errors
/// Fails if the program does not build, or a file cannot be written.
pub(crate) fn write(runbook_url: Option<&str>) -> Result<()> {
    match runbook_url {
        Some(url) => run(&["--runbook-url", url])?,
        None => run(&[])?,
    }
    copies::write(&shell::root())
}

/// Builds the program and checks that no page, file or copy is stale.
///
/// # Errors
/// Fails if the program does not build, or something is stale.
pub(crate) fn check() -> Result<()> {
    run(&["--check"])?;
    copies::check(&shell::root())
}

/// Checks the same as [`check`], but builds nothing. It runs the program that the build of the tests
/// has written.
///
/// # Errors
/// Fails if that program does not exist, or something is stale.
pub(crate) fn check_built() -> Result<()> {
    let mut command = Command::new(built_program()?);
    command.current_dir(shell::root()).args(GENERATE).arg("--check");
    shell::run(&mut command)?;
    copies::check(&shell::root())
}

/// Builds the program and writes the man pages into a folder.
///
/// # Errors
/// Fails if the program does not build, or a file cannot be written.
pub(crate) fn write_man_pages(folder: &Path) -> Result<()> {
    let mut command = shell::cargo_command();
    shell::run(command.args(CARGO_RUN).arg("--man").arg(folder))
}

/// Writes the same as [`write_man_pages`], but builds nothing, as [`check_built`].
///
/// # Errors
/// Fails if that program does not exist, or a file cannot be written.
pub(crate) fn write_man_pages_built(folder: &Path) -> Result<()> {
    shell::run(Command::new(built_program()?).arg("--man").arg(folder))
}

/// Returns the path of the program that the build of the tests has written: it is in the folder of
/// this program.
fn built_program() -> Result<PathBuf> {
    Ok(std::env::current_exe()?.with_file_name("generate"))
}

/// Builds the program and runs it with the arguments of [`GENERATE`] and these options.
fn run(options: &[&str]) -> Result<()> {
    shell::run_cargo(&[CARGO_RUN, GENERATE, options].concat())
}
