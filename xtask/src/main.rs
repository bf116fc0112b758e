//! The repository's own tool: `cargo xtask check`, `tidy`, `generate`, `fuzz`, `sim`, `bench`.
//!
//! One file per command. It knows the project only from outside, by its files and commands, and
//! imports none of its crates, so that it builds fast and cannot share their bugs.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod backend;
mod bench;
mod shell;

use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "This repository's own tool")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measures the gateway beside its peers.
    #[command(subcommand)]
    Bench(bench::What),
    /// The bench's constant node.
    #[command(hide = true)]
    Backend {
        #[arg(long, required = true)]
        listen: Vec<SocketAddr>,
    },
}

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::Bench(what) => bench::run(&what),
        Command::Backend { listen } => backend::serve(&listen),
    }
}
