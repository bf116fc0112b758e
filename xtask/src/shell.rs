//! Runs other programs and locates this repository.

use std::env;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

pub(crate) use test_support::programs::find;

/// Returns the root folder of the workspace.
pub(crate) fn root() -> PathBuf {
    // Several checkouts may share one build of this tool, so the value at run time takes precedence
    // over the value at build time.
    let package =
        env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    PathBuf::from(package).parent().map_or_else(|| PathBuf::from("."), PathBuf::from)
}

/// Returns a command that runs cargo in the workspace: the same cargo that runs this program.
pub(crate) fn cargo_command() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    if env::var_os("CI").is_some() {
        // Incremental compilation does not help a single build.
        command.env("CARGO_INCREMENTAL", "0");
    }
    command
}

/// Runs cargo with these arguments and passes its output through.
///
/// # Errors
/// Fails if cargo cannot be run or fails.
pub(crate) fn run_cargo(arguments: &[&str]) -> Result<()> {
    run(cargo_command().args(arguments))
}

/// Runs a command to its end and passes its output through.
///
/// # Errors
/// Fails if it cannot be started or fails.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let command_line = format_command(command);
    let status = command.status().with_context(|| format!("cannot run {command_line}"))?;
    ensure!(status.success(), "{command_line} failed ({status})");
    Ok(())
}

/// Runs a command and returns its standard output, without white space at the end.
///
/// # Errors
/// Fails if it cannot be started or fails. The message quotes its standard error.
pub(crate) fn read_output(command: &mut Command) -> Result<String> {
    let line = format_command(command);
    let out = command.output().with_context(|| format!("cannot run {line}"))?;
    let stderr = String::from_utf8_lossy(&out.stderr);
    ensure!(out.status.success(), "{line} failed: {}", stderr.trim_end());
    Ok(String::from_utf8_lossy(&out.stdout).trim_end().to_owned())
}

/// Sleeps between two polls of another program. This tool must poll, because it gets no
/// notification when the program listens or ends.
#[expect(clippy::disallowed_methods, reason = "this tool has no runtime that it could stop")]
pub(crate) fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// Formats a command as typed in a shell.
pub(crate) fn format_command(command: &Command) -> String {
    let program = PathBuf::from(command.get_program());
    let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let arguments = command.get_args().map(|argument| argument.to_string_lossy().into_owned());
    [name].into_iter().chain(arguments).collect::<Vec<_>>().join(" ")
}
