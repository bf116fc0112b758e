//! `weir index`: keeps and queries a local copy of a chain's blocks, transactions, receipts and
//! logs.
//!
//! Each subcommand has a file here, with its arguments and its output. The crate `index` does the
//! work.

mod database;
mod export;
mod query;
mod stats;
mod sync;
mod vacuum;
mod verify;

use std::io::IsTerminal;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};

use self::database::{IndexArgs, NODE, NodeArgs};

/// Keep a verified local copy of a chain and query it
///
/// A SQLite file or a PostgreSQL schema stores blocks, transactions, receipts and logs byte for
/// byte as nodes sent them. The index is synced from nodes, verified against block hashes, and
/// answers queries for blocks, transactions and logs without a node.
///
/// The rows of the file or schema are compressed JSON, which SQL cannot read: `weir index export`
/// writes Parquet tables for SQL, and `weir index query logs --csv` prints CSV.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  weir index sync --from http://127.0.0.1:8545 --db chain.db
  weir index sync --from http://127.0.0.1:8545 --db chain.db --end follow
  weir index stats --db chain.db
  weir index verify --db chain.db
  weir index query logs --db chain.db --address 0xdac17f958d2ee523a2206206994597c13d831ec7
  weir index export --db chain.db --out tables --what blocks,transactions,logs
  weir index stats --db postgres://weir@127.0.0.1:5432/chains

The password of a database is read from the environment, PGPASSWORD.

Exit codes: 0 done; 1 failed: the message has the reason, and written data are safe; 2 faulty
arguments; 6 interrupted: the next run continues.")]
pub(crate) struct Index {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Sync(sync::Sync),
    Stats(stats::Stats),
    Verify(verify::Verify),
    Query(query::Query),
    Export(export::Export),
    Vacuum(vacuum::Vacuum),
}

impl Index {
    pub(crate) fn run(self) -> Result<ExitCode> {
        match self.command {
            Command::Sync(sync) => sync.run(),
            Command::Stats(stats) => stats.run(),
            Command::Verify(verify) => verify.run(),
            Command::Query(query) => query.run(),
            Command::Export(export) => export.run(),
            Command::Vacuum(vacuum) => vacuum.run(),
        }
    }
}

/// Creates a progress bar with a number of steps. Returns `None` if `quiet` is true or standard
/// error is not a terminal.
fn progress_bar(quiet: bool, steps: u64) -> Option<ProgressBar> {
    if quiet || !std::io::stderr().is_terminal() {
        return None;
    }
    let bar = ProgressBar::new(steps);
    let template = "{bar:30} {percent:>3} %  {msg} {per_sec}, {eta} left";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    Some(bar)
}

/// Formats a number of bytes with a binary unit.
fn format_bytes(bytes: u64) -> String {
    indicatif::BinaryBytes(bytes).to_string()
}
