//! `cargo xtask fuzz`: one decoder against made-up input, on the stable toolchain.
//!
//! The targets live in the fuzz folder, a workspace of its own because it is built with other flags.

use anyhow::{Context, Result, ensure};
use toml::{Table, Value};

use crate::shell;

const MANIFEST: &str = "fuzz/Cargo.toml";

/// The names of all targets.
///
/// # Errors
/// If the manifest is missing or not TOML.
pub(crate) fn targets() -> Result<Vec<String>> {
    let path = shell::root().join(MANIFEST);
    let text = std::fs::read_to_string(&path).with_context(|| format!("no {}", path.display()))?;
    names(&text)
}

fn names(manifest: &str) -> Result<Vec<String>> {
    let manifest: Table = manifest.parse().with_context(|| format!("{MANIFEST} is not TOML"))?;
    let targets = manifest.get("bin").and_then(Value::as_array).into_iter().flatten();
    let name = |target: &Value| target.get("name").and_then(Value::as_str).map(str::to_owned);
    Ok(targets.filter_map(name).collect())
}

/// Fuzzes one target for so many seconds.
///
/// # Errors
/// If there is no such target, it does not build, or it found an input that fails.
pub(crate) fn run(name: &str, seconds: u64) -> Result<()> {
    let known = targets()?;
    let allowed = known.join(", ");
    ensure!(
        known.iter().any(|target| target == name),
        "fuzz target is {name:?}, one of {allowed} is allowed"
    );
    let mut command = shell::cargo_command();
    command
        .args(["run", "--quiet", "--release", "--manifest-path", MANIFEST, "--bin", name, "--"])
        .arg(format!("-max_total_time={seconds}"));
    shell::run(&mut command)
}

#[cfg(test)]
mod tests;
