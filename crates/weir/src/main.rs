//! The `weir` binary. `main.rs` parses the command line and selects the command. Each command has a
//! file with its arguments, output and exit codes; the other crates do its work.
//!
//! Exit codes of every command: 0 done, 1 failed while running, 2 faulty configuration or
//! arguments. Commands of the lab have further exit codes for verdicts.
#![cfg_attr(test, allow(clippy::unwrap_used))]

// The macros of `print` are visible in the modules after it.
#[macro_use]
mod print;

mod capacity;
mod check;
mod ci;
mod compare;
mod completions;
mod control;
mod cordon;
mod demo;
mod diff;
mod equal;
mod explain;
mod index;
mod key;
mod load;
mod logs;
mod monitoring;
mod node;
mod pages;
mod probe;
mod ready;
mod report;
mod serve;
mod source;
mod stop;
mod study;
mod terminal;
mod top;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The gateway allocates and frees small buffers for every call. mimalloc is faster at this than
/// the allocator of the system.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Exit code for a faulty configuration or faulty arguments. clap uses the same code.
const EXIT_FAULTY: u8 = 2;

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
    Diff(diff::Diff),
    Reload(control::Reload),
    Upgrade(control::Upgrade),
    Cordon(cordon::Cordon),
    Uncordon(cordon::Uncordon),
    Ready(ready::Ready),
    Top(top::Top),
    Explain(explain::Explain),
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
    #[command(hide = true)]
    GenerateDocs(pages::GenerateDocs),
}

/// mimalloc's option `purge_delay` (`mi_option_e` in `mimalloc.h`). The bindings do not name it.
const PURGE_DELAY: i32 = 15;
/// Time in milliseconds after which mimalloc returns free memory to the system. With the default of
/// mimalloc 3, which is 1 s, the process takes twice the memory that large responses need. Without a
/// delay a call to an upstream costs 4 % more CPU time, with 1 ms about 1 %.
const PURGE_DELAY_MS: i64 = 1;

#[allow(unsafe_code)] // The option has no safe wrapper.
fn return_free_memory_soon() {
    // SAFETY: the function takes plain numbers, and may be called at any time.
    unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, PURGE_DELAY_MS) }
}

fn main() -> ExitCode {
    return_free_memory_soon();
    let arguments = Arguments::parse();
    let result = match arguments.command {
        Command::Demo(demo) => demo.run(),
        Command::Serve(serve) => serve.run(),
        Command::Check(check) => Ok(check.run()),
        Command::Diff(diff) => Ok(diff.run()),
        Command::Reload(reload) => reload.run(),
        Command::Upgrade(upgrade) => upgrade.run(),
        Command::Cordon(cordon) => cordon.run(),
        Command::Uncordon(uncordon) => uncordon.run(),
        Command::Ready(ready) => ready.run(),
        Command::Top(top) => top.run(),
        Command::Explain(explain) => explain.run(),
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
        Command::Completions(completions) => completions.run(),
        Command::GenerateDocs(pages) => pages.run(),
    };
    match result {
        Ok(_) if print::has_failed() => ExitCode::FAILURE,
        Ok(code) => code,
        Err(error) => {
            eprintln!("weir: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Disables transparent huge pages, which the allocator requests. With huge pages, the load
/// generator's memory would grow by 2 MiB at the first write to a histogram.
fn disable_huge_pages() {
    // The call fails only on a kernel without huge pages.
    let _disabled = rustix::thread::disable_transparent_huge_pages(true);
}
