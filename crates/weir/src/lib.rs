//! The command line of `weir`. This file parses the arguments and selects the command. Each command
//! has a file with its arguments, output and exit codes; the other crates do its work.
//!
//! The program is `main.rs`. This is a library so that the generator of the documentation can read
//! the arguments of all commands without being part of the program.
//!
//! Exit codes of every command: 0 done, 1 failed while running, 2 faulty configuration or
//! arguments. Commands of the lab have further exit codes for verdicts.
#![cfg_attr(test, allow(clippy::unwrap_used))]

// The macros of `print` are visible in the modules after it.
#[macro_use]
mod print;

mod capacity;
mod chains;
mod check;
mod ci;
mod compare;
mod completions;
mod control;
mod cordon;
mod demo;
mod diff;
mod discover;
mod equal;
mod exit_code;
mod explain;
mod index;
mod key;
mod load;
mod logs;
mod node;
mod nodes;
mod out;
mod probe;
mod ready;
mod report;
mod serve;
mod source;
mod stop;
mod study;
mod terminal;
mod top;
mod variant;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

use exit_code::EXIT_FAULTY;

/// A gateway, a load tester and a chain index for blockchain JSON-RPC nodes.
///
/// The gateway gives clients one URL for several nodes: it balances calls, caches without ever
/// serving stale data, and survives a dead node. The lab load-tests nodes and gateways and reports
/// a verdict. The index keeps a verified local copy of a chain.
#[derive(Parser)]
#[command(name = "weir", bin_name = "weir", version, max_term_width = 100, after_long_help = AFTER_HELP)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

const AFTER_HELP: &str = "\
Exit codes:
  0  done
  1  failed while running: an address is taken, a file cannot be written
  2  faulty configuration or arguments
Commands that report a verdict have further exit codes; see their help.

Start here:
  weir demo                                      # see it work, with nothing else installed
  weir node                                      # a simulated node on port 8545
  weir serve --upstream http://127.0.0.1:8545    # a gateway in front of it
  weir load http://127.0.0.1:8545                # measure how fast it responds";

#[derive(Subcommand)]
enum Command {
    Demo(demo::Demo),
    Serve(serve::Serve),
    Check(check::Check),
    // Measures nodes and writes a configuration for them.
    Discover(discover::Discover),
    Diff(diff::Diff),
    Reload(control::Reload),
    Upgrade(control::Upgrade),
    Cordon(cordon::Cordon),
    Uncordon(cordon::Uncordon),
    Ready(ready::Ready),
    Top(top::Top),
    Explain(explain::Explain),
    Chains(chains::Chains),
    Key(key::Key),
    Logs(logs::Logs),
    Index(index::Index),
    Load(load::Load),
    // Observes targets with a small load that never ends.
    Probe(probe::Probe),
    Capacity(capacity::Capacity),
    Compare(compare::Compare),
    // Compares the responses of two servers to the same calls.
    Equal(equal::Equal),
    Report(report::Report),
    // Answers one question by several load runs or syncs.
    Study(study::Study),
    Node(node::Node),
    Completions(completions::Completions),
}

/// Returns all commands with their arguments and help texts.
pub fn command_line() -> clap::Command {
    Arguments::command()
}

/// Renders `docs/demo.svg`, a picture of the table that `weir demo` prints.
pub fn demo_picture() -> String {
    demo::picture::svg()
}

/// Renders `docs/chains.md`.
pub fn chains_page() -> String {
    chains::render_page()
}

/// Runs the command of the process's arguments, and returns its exit code.
pub fn run() -> ExitCode {
    let arguments = Arguments::parse();
    let result = match arguments.command {
        Command::Demo(demo) => demo.run(),
        Command::Serve(serve) => serve.run(),
        Command::Check(check) => Ok(check.run()),
        Command::Discover(discover) => discover.run(),
        Command::Diff(diff) => Ok(diff.run()),
        Command::Reload(reload) => reload.run(),
        Command::Upgrade(upgrade) => upgrade.run(),
        Command::Cordon(cordon) => cordon.run(),
        Command::Uncordon(uncordon) => uncordon.run(),
        Command::Ready(ready) => ready.run(),
        Command::Top(top) => top.run(),
        Command::Explain(explain) => explain.run(),
        Command::Chains(chains) => chains.run(),
        Command::Key(key) => key.run(),
        Command::Logs(logs) => logs.run(),
        Command::Index(index) => index.run(),
        Command::Load(load) => {
            disable_huge_pages();
            load.run()
        }
        Command::Probe(probe) => probe.run(),
        Command::Capacity(capacity) => {
            disable_huge_pages();
            capacity.run()
        }
        Command::Compare(compare) => compare.run(),
        Command::Equal(equal) => equal.run(),
        Command::Report(report) => report.run(),
        Command::Study(study) => study.run(),
        Command::Node(node) => node.run(),
        Command::Completions(completions) => Ok(completions.run(&mut command_line())),
    };
    match result {
        Ok(_) if print::has_failed() => ExitCode::FAILURE,
        Ok(code) => code,
        Err(error) => {
            eprintln!("weir: {error:#}");
            let is_faulty = error.is::<out::EarlierResult>();
            if is_faulty { ExitCode::from(EXIT_FAULTY) } else { ExitCode::FAILURE }
        }
    }
}

/// Disables transparent huge pages, which the allocator requests. With huge pages, the load
/// generator's memory would grow by 2 MiB at the first write to a histogram.
fn disable_huge_pages() {
    // The call fails only on a kernel without huge pages.
    let _disabled = rustix::thread::disable_transparent_huge_pages(true);
}
