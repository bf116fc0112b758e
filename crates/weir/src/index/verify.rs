//! `weir index verify`.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, bail};
use clap::Args;
use index::audit::{self, FINDINGS_MAX, Finding, Report, Step};
use index::fragments::hash_text;
use index::nodes::{Call, Client, Endpoint};
use index::reader::Reader;
use index::verify::Level;
use wire::hex;
use wire::json::walk;
use wire::quantity;

use super::{IndexArgs, NODE, progress_bar};
use crate::load::INTERRUPTED;
use crate::stop;

/// Verify that an index is complete and correct
///
/// Reads the whole index without calling a node. Checks the structures of SQLite (PostgreSQL does
/// not expose its own). Checks that no block is missing, that blocks are linked and that all
/// contents match the block hashes. Checks that lookups by hash and searches for logs find exactly
/// the stored objects. With --from it also compares the first, the last and the last finalized
/// block with nodes.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  weir index verify --db chain.db
  weir index verify --db chain.db --level senders
  weir index verify --db chain.db --from http://127.0.0.1:8545

If the hashes could not be verified during the sync, as those of Harmony, the default level is off.

Exit codes: 0 the index is complete and correct; 1 it is not, or cannot be read (at most 20 findings
are printed); 2 faulty arguments; 6 interrupted.")]
pub(crate) struct Verify {
    #[command(flatten)]
    database: IndexArgs,

    /// Level of verification: off, headers, full, senders [default: full]
    #[arg(long, value_name = "LEVEL")]
    level: Option<Level>,

    /// Compare the hashes of a few blocks with this node; may be repeated
    #[arg(long = "from", value_name = "URL", value_parser = NODE)]
    nodes: Vec<Endpoint>,

    /// Print no progress
    #[arg(long, short)]
    quiet: bool,
}

impl Verify {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let mut reader = self.database.reader()?;
        let stop = Arc::new(AtomicBool::new(false));
        let stop_flag = Arc::clone(&stop);
        stop::on_signals(INTERRUPTED, "ending", move || stop_flag.store(true, Ordering::Relaxed))?;
        let level = self.level.unwrap_or_else(|| default_level(&reader));
        let bar = progress_bar(self.quiet, 0);
        let mut on_step = |step: Step| {
            let Some(bar) = &bar else { return };
            match step {
                Step::Structures => bar.set_message("structures"),
                Step::Postings => bar.set_message("lists of logs"),
                Step::Block { first, at, last } => {
                    bar.set_length((last + 1).saturating_sub(first));
                    bar.set_position((at + 1).saturating_sub(first));
                    bar.set_message(format!("block {at} of {last}"));
                }
            }
        };
        let report = audit::audit(&mut reader, level, &mut on_step, &stop)?;
        if let Some(bar) = &bar {
            bar.finish_and_clear();
        }
        // A node that cannot be reached must not hide what was found in the index.
        let compared = match report.stopped {
            true => Ok(Vec::new()),
            false => self.compare_with_nodes(&reader, &report),
        };
        let (differing, failure) = match compared {
            Ok(differing) => (differing, None),
            Err(error) => (Vec::new(), Some(error)),
        };
        let code = print(&report, &differing, level)?;
        failure.map_or(Ok(code), Err)
    }

    /// Compares the first, the last finalized and the last block with the nodes.
    fn compare_with_nodes(&self, reader: &Reader, report: &Report) -> Result<Vec<Finding>> {
        let Some(range) = report.range else { return Ok(Vec::new()) };
        let mut numbers = vec![range.first, range.finalized.max(range.first), range.last];
        numbers.dedup();
        let mut differing = Vec::new();
        for node in &self.nodes {
            let node = Arc::new(node.clone());
            let mut client = Client::new(Arc::clone(&node));
            let mut calls = vec![Call::new("eth_chainId", "[]")];
            calls.extend(numbers.iter().map(|number| {
                Call::new("eth_getBlockByNumber", format!(r#"["{number:#x}",false]"#))
            }));
            let responses = match client.call(&calls) {
                Ok(responses) => responses,
                Err(error) => bail!("{node}: {error}"),
            };
            let id = responses.result(0).ok().and_then(quantity::from_value);
            if id.map(|id| id.to_string()).as_ref() != Some(&reader.metadata().chain.id) {
                let theirs = id.map_or("no chain id".to_owned(), |id| format!("chain {id}"));
                let what = format!("the index is of chain {}", reader.metadata().chain.id);
                differing
                    .push(Finding { block: None, what: format!("{what}, {node} has {theirs}") });
                continue;
            }
            for (at, number) in numbers.iter().enumerate() {
                let hash = responses.result(at + 1).ok().and_then(|raw| walk::member(raw, "hash"));
                let Some(hash) = hash.and_then(hex::hash_from_value) else {
                    let what = format!("{node} does not have it");
                    differing.push(Finding { block: Some(*number), what });
                    continue;
                };
                let own = reader.store().block_hash_and_timestamp(*number)?.map(|(hash, _)| hash);
                if own.is_some_and(|own| own != hash) {
                    let theirs = String::from_utf8_lossy(&hash_text(&hash)).into_owned();
                    let what = format!("{node} has a block with another hash, {theirs}");
                    differing.push(Finding { block: Some(*number), what });
                }
            }
        }
        Ok(differing)
    }
}

/// Returns the default level: full, or off if the chain's hashes cannot be verified.
fn default_level(reader: &Reader) -> Level {
    let recorded = &reader.metadata().verification;
    if recorded.parse::<Level>().is_ok() {
        return Level::Full;
    }
    eprintln!("hashes are not verified: {recorded}");
    Level::Off
}

fn print(report: &Report, differing: &[Finding], level: Level) -> Result<ExitCode> {
    for finding in report.findings.iter().chain(differing) {
        println!("{finding}");
    }
    if report.findings.len() >= FINDINGS_MAX {
        println!("stopped after {FINDINGS_MAX} findings; the index may have more");
    }
    if report.stopped {
        return Ok(ExitCode::from(INTERRUPTED));
    }
    if !(report.findings.is_empty() && differing.is_empty()) {
        return Ok(ExitCode::FAILURE);
    }
    let Some(range) = report.range else {
        println!("no blocks: sound");
        return Ok(ExitCode::SUCCESS);
    };
    let caveat = match report.unverifiable {
        0 => String::new(),
        some => format!("; {some} of them have transactions that cannot be verified"),
    };
    println!("blocks {} to {}: sound (level {level}){caveat}", range.first, range.last);
    Ok(ExitCode::SUCCESS)
}
