//! `cargo xtask fuzz`: fuzzes one decoder on the stable toolchain.
//!
//! A *target* is a program that fuzzes one decoder. The targets are in the folder `fuzz/`, which is
//! a separate workspace, because it is built with other flags.

use anyhow::{Context, Result, ensure};
use toml::{Table, Value};

use crate::shell;

const MANIFEST: &str = "fuzz/Cargo.toml";

/// Fuzzes each target without required features with its own number of inputs. These
/// targets are built from a few files. The other targets need the whole gateway, which takes
/// minutes to build. `cargo xtask fuzz` runs the other targets by name.
///
/// # Errors
/// Fails if the manifest names no such target, or for the same reasons as [`run_guided`].
pub(crate) fn run_quick_targets() -> Result<()> {
    let targets = read_targets()?.into_iter().filter(|target| target.features.is_empty());
    let names: Vec<String> = targets.map(|target| target.name).collect();
    ensure!(!names.is_empty(), "{MANIFEST} names no target");
    // One build of all targets keeps all cores busy.
    let mut command = shell::cargo_command();
    shell::run(command.args(["build", "--quiet", "--manifest-path", MANIFEST, "--bins"]))?;
    // The same seed gives the same inputs on each machine.
    names.iter().try_for_each(|name| run_blind(name, &["-seed=1"]))
}

fn read_targets() -> Result<Vec<Target>> {
    let path = shell::root().join(MANIFEST);
    let text = std::fs::read_to_string(&path).with_context(|| format!("no {}", path.display()))?;
    parse_targets(&text)
}

fn find_target(name: &str) -> Result<Target> {
    let targets = read_targets()?;
    let allowed = targets.iter().map(|target| &*target.name).collect::<Vec<_>>().join(", ");
    targets
        .into_iter()
        .find(|target| target.name == name)
        .with_context(|| format!("fuzz target is {name:?}, one of {allowed} is allowed"))
}

/// A `[[bin]]` of the manifest.
struct Target {
    name: String,
    /// Cargo features that the target requires; empty for most targets.
    features: Vec<String>,
}

fn parse_targets(manifest: &str) -> Result<Vec<Target>> {
    let manifest: Table = manifest.parse().with_context(|| format!("{MANIFEST} is not TOML"))?;
    let targets = manifest.get("bin").and_then(Value::as_array).into_iter().flatten();
    let target = |target: &Value| {
        let name = target.get("name").and_then(Value::as_str)?.to_owned();
        let features = target.get("required-features").and_then(Value::as_array);
        let features = features.into_iter().flatten().filter_map(Value::as_str);
        Some(Target { name, features: features.map(str::to_owned).collect() })
    };
    Ok(targets.filter_map(target).collect())
}

/// Fuzzes one target with libFuzzer, guided by coverage, and stores inputs that reach new code in
/// `fuzz/corpus`. Without a C++ compiler to build libFuzzer it falls back to [`run_blind`].
///
/// # Errors
/// Fails if the target does not exist, does not build, or fails on an input.
pub(crate) fn run_guided(name: &str, seconds: u64) -> Result<()> {
    let time_limit = format!("-max_total_time={seconds}");
    if shell::find("c++").is_none() {
        println!("no C++ compiler: fuzzing without coverage");
        return run_blind(name, &[&time_limit]);
    }
    let target = find_target(name)?;
    let folder = shell::root().join("fuzz");
    let corpus = folder.join("corpus").join(name);
    std::fs::create_dir_all(&corpus)
        .with_context(|| format!("cannot create {}", corpus.display()))?;
    // The working directory matters: `fuzz/.cargo/config.toml` sets the flags.
    let mut command = shell::cargo_command();
    command.current_dir(folder).args(["run", "--quiet", "--release", "--bin", name]);
    command.args(["--features", &target.features.join(","), "--"]);
    shell::run(command.arg(time_limit).arg(corpus))
}

/// Fuzzes one target with random edits of recorded inputs and these options of `fuzz/src/blind.rs`.
/// This needs no special build, so every run of `cargo xtask check` can do it.
///
/// # Errors
/// Same as [`run_guided`].
fn run_blind(name: &str, options: &[&str]) -> Result<()> {
    let target = find_target(name)?;
    let mut command = shell::cargo_command();
    command
        .args(["run", "--quiet", "--manifest-path", MANIFEST, "--bin", name])
        .args(["--features", &target.features.join(","), "--"])
        .args(options);
    shell::run(&mut command)
}

#[cfg(test)]
mod tests;
