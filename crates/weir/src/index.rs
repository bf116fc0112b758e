//! `weir index`: a local copy of a chain's immutable data. Each subcommand has its file; what they do
//! is in the crate `index`.

mod export;
mod query;
mod stats;
mod sync;
mod vacuum;
mod verify;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, anyhow};
use clap::{Args, Subcommand};
use index::reader::Reader;
use indicatif::{ProgressBar, ProgressStyle};

/// Keep a verified local copy of a chain, and ask it
///
/// One file of SQLite holds blocks, transactions, receipts and logs as nodes wrote them, byte for
/// byte. It is synced from nodes, verified against the hashes of the blocks, and answers questions
/// about blocks, transactions and logs without them.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  weir index sync --from http://127.0.0.1:8545 --db chain.db
  weir index sync --from http://127.0.0.1:8545 --db chain.db --end follow
  weir index stats --db chain.db
  weir index verify --db chain.db
  weir index query logs --db chain.db --address 0xdac17f958d2ee523a2206206994597c13d831ec7
  weir index export --db chain.db --out tables --what blocks,transactions,logs

Exit codes: 0 done; 1 could not go on: the message tells why, and what was written is safe; 2 faulty
arguments; 6 interrupted, to be gone on with.")]
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

/// The file that a subcommand works on.
#[derive(Args)]
struct Database {
    /// The file of the index
    #[arg(long = "db", value_name = "FILE")]
    path: PathBuf,

    /// Memory for pages of the file, such as 64MiB
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = size)]
    page_cache: u64,

    /// How much of the file to map into memory instead of reading it; 0 for none
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = size)]
    mmap: u64,
}

impl Database {
    fn settings(&self) -> index::store::Settings {
        index::store::Settings { page_cache: self.page_cache, mmap: self.mmap }
    }
}

/// Opens a file that holds something.
fn reader(database: &Database) -> Result<Reader> {
    let reader = Reader::open(&database.path, database.settings())?;
    reader.ok_or_else(|| anyhow!("{}: nothing was synced yet", database.path.display()))
}

/// A bar on a terminal, over this many steps; none elsewhere.
fn bar(quiet: bool, steps: u64) -> Option<ProgressBar> {
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

/// Reads a size such as 64MiB, 2GiB or 4096.
fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => Some(1),
        "k" | "kib" => Some(1 << 10),
        "m" | "mib" => Some(1 << 20),
        "g" | "gib" => Some(1 << 30),
        _ => None,
    };
    let number = digits.trim().parse::<u64>().ok();
    factor
        .zip(number)
        .and_then(|(factor, number)| number.checked_mul(factor))
        .ok_or_else(|| "a size is a number and B, KiB, MiB or GiB, such as 64MiB".to_owned())
}

/// A number of bytes to be read by people.
fn shown_bytes(bytes: u64) -> String {
    indicatif::BinaryBytes(bytes).to_string()
}
