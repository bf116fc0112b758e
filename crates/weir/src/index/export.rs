//! `weir index export`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use index::export::{self, ExportError, Table};

use super::{IndexArgs, format_bytes, progress_bar};
use crate::exit_code::{EXIT_FAULTY, EXIT_INTERRUPTED};
use crate::out::OutFolder;
use crate::stop;

/// Export Parquet tables, or requests for load tests
///
/// Tables are Parquet: blocks.parquet, transactions.parquet, logs.parquet. Hashes, addresses and
/// bytes are text with 0x; amounts of wei are decimal text, since they go up to 256 bits; other
/// numbers are unsigned integers of 64 bits.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  weir index export --db chain.db --out tables --what blocks,transactions,logs
  weir index export --db chain.db --out logs --what logs --from 20000000 --to 20009999
  duckdb -c \"SELECT address, count(*) FROM 'logs/logs.parquet' GROUP BY 1 ORDER BY 2 DESC LIMIT 9\"
  weir index export --db chain.db --corpus calls.jsonl --count 10000 --seed 7
  weir load http://127.0.0.1:8545 --requests calls.jsonl

Exit codes: 0 written; 1 data are not in the index, or cannot be read or written; 2 faulty
arguments; 6 interrupted: unfinished tables are removed.")]
#[command(mut_arg("out", |arg| arg.help("Folder for the tables")))]
pub(crate) struct Export {
    #[command(flatten)]
    database: IndexArgs,

    #[command(flatten)]
    folder: OutFolder,

    /// Tables to export: blocks, transactions and logs, separated by commas
    #[arg(
        long,
        value_name = "TABLES",
        value_delimiter = ',',
        requires = "out",
        default_value = "blocks,transactions,logs"
    )]
    what: Vec<Table>,

    /// First block [default: the first of the index]
    #[arg(long, value_name = "NUMBER")]
    from: Option<u64>,

    /// Last block [default: the last of the index]
    #[arg(long, value_name = "NUMBER")]
    to: Option<u64>,

    /// Write calls with hashes, addresses and topics of the index, one JSON-RPC body per line, for
    /// `weir load --requests`
    #[arg(long, value_name = "FILE")]
    corpus: Option<PathBuf>,

    /// Number of calls
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=2_000_000))]
    count: u64,

    /// Seed of the calls; the same seed and index give the same calls
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Print only errors
    #[arg(long, short)]
    quiet: bool,
}

impl Export {
    pub(crate) fn run(mut self) -> Result<ExitCode> {
        if self.folder.path().is_none() && self.corpus.is_none() {
            eprintln!("weir index export: give --out for tables, --corpus for requests, or both");
            return Ok(ExitCode::from(EXIT_FAULTY));
        }
        self.what.sort_unstable_by_key(|table| table.name());
        self.what.dedup();
        let files: Vec<String> = self.what.iter().map(|table| table.file_name()).collect();
        self.folder.create(&files.iter().map(String::as_str).collect::<Vec<_>>())?;
        let mut reader = self.database.reader()?;
        let range = export::range(reader.stored_range()?, self.from, self.to)?;
        let (first_block, last_block) = range;
        if let Some(folder) = self.folder.path() {
            let stop = stop::flag_on_signals("ending")?;
            let bar = progress_bar(self.quiet, last_block - first_block + 1);
            let mut on_block = |number: u64| {
                if let Some(bar) = &bar {
                    bar.set_position(number - first_block + 1);
                    bar.set_message(format!("block {number}"));
                }
            };
            let export_result =
                export::export(&mut reader, &self.what, folder, range, &mut on_block, &stop);
            if let Some(bar) = &bar {
                bar.finish_and_clear();
            }
            let tables = match export_result {
                Err(ExportError::Stopped) => return Ok(ExitCode::from(EXIT_INTERRUPTED)),
                export_result => export_result?,
            };
            for table in tables.iter().filter(|_| !self.quiet) {
                let bytes = format_bytes(table.bytes);
                println!("{}: {} rows, {bytes}", table.path.display(), table.rows);
            }
        }
        if let Some(path) = &self.corpus {
            let counts = export::write_requests(&mut reader, path, range, self.count, self.seed)?;
            if !self.quiet {
                let counts: Vec<String> =
                    counts.iter().map(|(method, count)| format!("{count} {method}")).collect();
                println!("{}: {}", path.display(), counts.join(", "));
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
