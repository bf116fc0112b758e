//! This repository's developer tool: `cargo xtask check`, `tidy`, `generate`, `docs`, `fuzz`,
//! `sim`, `bench`, `release`, `image`.
//!
//! Each command has its own file. The tool uses the project only through its files and commands. Of
//! the project's crates it imports only `test-support`. So it builds fast, and cannot share the
//! bugs of the other crates.
//!
//! The feature `bench` adds the bench and its dependencies. The alias `cargo xtask` builds without
//! it, and `cargo xtask bench` runs a build with it.
#![cfg_attr(test, allow(clippy::unwrap_used))]
#![cfg_attr(not(feature = "bench"), allow(dead_code))] // Only the bench uses some functions.

#[cfg(feature = "bench")]
mod backend;
#[cfg(feature = "bench")]
mod bench;
mod check;
mod fuzz;
mod generate;
mod image;
mod package_files;
mod release;
mod shell;
mod sim;
mod site;
mod static_program;
mod tidy;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use package_files::Architecture;

/// The command line after `cargo`.
#[derive(Parser)]
#[command(
    name = "xtask",
    bin_name = "cargo xtask",
    about = "Check, test and measure this repository"
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run everything that CI checks, in order; ends with `N passed, N failed, N skipped`
    Check(check::Scope),
    /// Check conventions of this repository that no other tool checks
    Tidy,
    /// Write the generated pages in docs/
    Generate {
        /// Write nothing, and fail if a page is stale
        #[arg(long)]
        check: bool,
        /// Address of the published page docs/alerts.md, to which the alert rules link
        #[arg(long, value_name = "URL", conflicts_with = "check")]
        runbook_url: Option<String>,
    },
    /// Build the site from docs/ into target/site; it needs no server
    Docs,
    /// Fuzz one decoder
    Fuzz {
        /// Target of fuzz/Cargo.toml
        name: String,
        /// Stop after this many seconds
        #[arg(long, default_value_t = 60)]
        seconds: u64,
    },
    /// Simulate gateway and nodes, or load runs, from a seed
    #[command(args_conflicts_with_subcommands = true)]
    Sim {
        #[command(subcommand)]
        simulation: Option<sim::Simulation>,
        /// Repeat the run with this seed
        seed: Option<u64>,
        /// Make this many calls
        #[arg(long)]
        calls: Option<u64>,
    },
    /// Compare the gateway with its peers, or one build with another
    #[cfg(feature = "bench")]
    #[command(subcommand)]
    Bench(bench::Benchmark),
    /// Compare the gateway with its peers, or one build with another
    #[cfg(not(feature = "bench"))]
    #[command(disable_help_flag = true)]
    Bench {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Build the program and write the files of a release to target/release-files
    Release {
        /// Build with this profile; `dev` builds fastest
        #[arg(long, default_value = static_program::RELEASE_PROFILE)]
        profile: String,
    },
    /// Build the program and write a container image as an OCI layout to target/image
    Image {
        /// Build with this profile; `dev` builds fastest
        #[arg(long, default_value = static_program::RELEASE_PROFILE)]
        profile: String,
        /// Build for these architectures, as one image [default: that of this machine]
        #[arg(long = "architecture", value_delimiter = ',')]
        architectures: Vec<Architecture>,
    },
    /// Serve as the bench's constant node
    #[cfg(feature = "bench")]
    #[command(hide = true)]
    Backend {
        #[arg(long, required = true)]
        listen: Vec<std::net::SocketAddr>,
        #[arg(long, default_value_t = 0)]
        latency_ms: u64,
    },
}

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Check(scope) => return check::run(scope),
        Command::Tidy => tidy::run()?,
        Command::Generate { check: false, runbook_url } => {
            generate::write(runbook_url.as_deref())?;
        }
        Command::Generate { check: true, .. } => generate::check()?,
        Command::Docs => site::build()?,
        Command::Fuzz { name, seconds } => fuzz::run_guided(&name, seconds)?,
        Command::Sim { simulation: Some(sim::Simulation::Lab { seed }), .. } => sim::run_lab(seed)?,
        Command::Sim { simulation: None, seed, calls } => sim::run(seed, calls)?,
        #[cfg(feature = "bench")]
        Command::Bench(benchmark) => bench::run(&benchmark)?,
        #[cfg(not(feature = "bench"))]
        Command::Bench { arguments } => {
            let mut command = shell::cargo_command();
            command.args(["run", "--quiet", "--package", "xtask", "--", "bench"]).args(arguments);
            return Ok(if command.status()?.success() {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            });
        }
        Command::Release { profile } => {
            check::programs::fetch_packager()?;
            check::programs::fetch_crate_listers(&profile)?;
            release::run(&profile)?;
        }
        Command::Image { profile, architectures } => {
            check::programs::fetch_crate_listers(&profile)?;
            image::run(&profile, &architectures)?;
        }
        #[cfg(feature = "bench")]
        Command::Backend { listen, latency_ms } => {
            backend::serve(&listen, std::time::Duration::from_millis(latency_ms))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests;
