//! `cargo xtask sim`: the seeded simulation of gateway and nodes, for longer than tests run it.

use anyhow::Result;

use crate::shell;

/// Runs the simulation; a seed repeats a run, none lets the test choose.
///
/// # Errors
/// If the simulation finds a wrong answer or does not build.
pub(crate) fn run(seed: Option<u64>, calls: Option<u64>) -> Result<()> {
    let mut command = shell::cargo_command();
    command.args(["test", "--release", "--package", "weir", "--test", "sim", "--", "--nocapture"]);
    if let Some(seed) = seed {
        command.env("WEIR_SIM_SEED", seed.to_string());
    }
    if let Some(calls) = calls {
        command.env("WEIR_SIM_CALLS", calls.to_string());
    }
    shell::run(&mut command)
}
