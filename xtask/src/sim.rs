//! `cargo xtask sim` runs the simulation of gateway and nodes for longer than the tests do. A seed
//! determines a run. `cargo xtask sim lab` simulates load runs against a virtual server.

use anyhow::Result;

use crate::shell;

/// The test that runs one seed, or a thousand.
const SEED_TEST: &str = "counters_match_the_simulated_events";

/// Simulations other than that of the gateway.
#[derive(clap::Subcommand)]
pub(crate) enum Simulation {
    /// Simulate load runs in virtual time, and compare their counts with the server's
    Lab {
        /// Repeat the run with this seed and print its result [default: run a thousand seeds]
        seed: Option<u64>,
    },
}

/// Simulates load runs. A seed repeats one run; `None` runs a thousand seeds.
///
/// # Errors
/// Fails if a run's counts are wrong, or the simulation does not build.
pub(crate) fn run_lab(seed: Option<u64>) -> Result<()> {
    let mut command = shell::cargo_command();
    command.args(["test", "--package", "lab", "--test", "sim", "--", "--nocapture"]);
    if let Some(seed) = seed {
        command.arg(SEED_TEST).env("WEIR_SIM_SEED", seed.to_string());
    }
    shell::run(&mut command)
}

/// Runs the simulation. A seed repeats a run; without a seed the test chooses one. `calls` is the
/// number of calls to make; `None` for the test's default.
///
/// # Errors
/// Fails if the simulation finds a wrong response or does not build.
pub(crate) fn run(seed: Option<u64>, calls: Option<u64>) -> Result<()> {
    let mut command = shell::cargo_command();
    command.args(["test", "--release", "--package", "weir", "--test", "gateway"]);
    command.args(["--", "sim::", "--nocapture"]);
    if let Some(seed) = seed {
        command.env("WEIR_SIM_SEED", seed.to_string());
    }
    if let Some(calls) = calls {
        command.env("WEIR_SIM_CALLS", calls.to_string());
    }
    shell::run(&mut command)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `cargo test` passes if no test has the name.
    #[test]
    fn the_test_of_a_seed_exists() {
        let tests = std::fs::read_to_string(shell::root().join("crates/lab/tests/sim.rs")).unwrap();
        assert!(tests.contains(&format!("\nfn {SEED_TEST}() {{")));
    }
}
