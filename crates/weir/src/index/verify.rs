//! `weir index verify`.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Result, bail};
use clap::Args;
use index::audit::{self, AuditStep, FINDINGS_MAX, Finding, Report};
use index::fragments::hash_text;
use index::nodes::{Call, Client, Endpoint, RpcError};
use index::planner::verification::recorded_level;
use index::reader::Reader;
use index::verify::Level;
use wire::hex;
use wire::json::walk;
use wire::quantity;

use super::{IndexArgs, NODE, NodeArgs, progress_bar};
use crate::exit_code::EXIT_INTERRUPTED;
use crate::stop;

/// Verify that an index is complete and correct
///
/// Reads the whole index without calling a node. Checks the structures of SQLite (PostgreSQL does
/// not expose its own). Checks that no block is missing, that each block names its parent, and that
/// all contents match the block hashes. Checks that lookups by hash and searches for logs find
/// exactly the stored objects. With --from it also compares the first, the last and the last
/// finalized block with nodes.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  weir index verify --db chain.db
  weir index verify --db chain.db --level senders
  weir index verify --db chain.db --from http://127.0.0.1:8545

The default level is off if the sync could not verify hashes, as with Harmony.

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

    #[command(flatten)]
    node_args: NodeArgs,

    /// Print no progress
    #[arg(long, short)]
    quiet: bool,
}

impl Verify {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let mut reader = self.database.reader()?;
        let stop = stop::flag_on_signals("ending")?;
        let level = self.level.unwrap_or_else(|| default_level(&reader));
        let bar = progress_bar(self.quiet, 0);
        let mut on_step = |step: AuditStep| {
            let Some(bar) = &bar else { return };
            match step {
                AuditStep::Structures => bar.set_message("structures"),
                AuditStep::Postings => bar.set_message("log postings"),
                AuditStep::Block { first, current, last } => {
                    bar.set_length((last + 1).saturating_sub(first));
                    bar.set_position((current + 1).saturating_sub(first));
                    bar.set_message(format!("block {current} of {last}"));
                }
            }
        };
        let report = audit::audit(&mut reader, level, &mut on_step, &stop)?;
        if let Some(bar) = &bar {
            bar.finish_and_clear();
        }
        let comparison = match report.stopped {
            true => Ok(Vec::new()),
            false => self.compare_with_nodes(&reader, &report),
        };
        // The findings in the index are printed even if a node is unreachable.
        let (node_findings, node_error) = match comparison {
            Ok(findings) => (findings, None),
            Err(error) => (Vec::new(), Some(error)),
        };
        let code = print_result(&report, &node_findings, level)?;
        node_error.map_or(Ok(code), Err)
    }

    /// Compares the first, the last finalized and the last block with those of the nodes. Returns
    /// the differences.
    fn compare_with_nodes(&self, reader: &Reader, report: &Report) -> Result<Vec<Finding>> {
        let Some(range) = report.range else { return Ok(Vec::new()) };
        let mut numbers = vec![range.first, range.finalized.max(range.first), range.last];
        numbers.dedup();
        let mut findings = Vec::new();
        for node in self.node_args.endpoints(&self.nodes)? {
            let mut client = Client::new(Arc::clone(&node));
            let mut calls = vec![Call::new("eth_chainId", "[]")];
            calls.extend(numbers.iter().map(|number| {
                Call::new("eth_getBlockByNumber", format!(r#"["{number:#x}",false]"#))
            }));
            let responses = match client.call(&calls) {
                Ok(responses) => responses,
                Err(error) => bail!("{node}: {error}"),
            };
            let index_chain = &reader.metadata().chain.id;
            if let Err(difference) = compare_chain(responses.result(0), index_chain) {
                let description =
                    format!("the index is of chain {index_chain}, {node} {difference}");
                findings.push(Finding { block: None, description });
                continue;
            }
            for (index, number) in (1..).zip(&numbers) {
                let row = reader.store().block_hash_and_timestamp(*number)?;
                let stored_hash = row.map(|(hash, _)| hash);
                if let Err(difference) = compare_block(responses.result(index), stored_hash) {
                    let description = format!("{node} {difference}");
                    findings.push(Finding { block: Some(*number), description });
                }
            }
        }
        Ok(findings)
    }
}

/// Compares a node's response to `eth_chainId` with the chain id of the index.
///
/// # Errors
/// Describes the difference, such as `has chain 5`. The caller puts the node's name in front.
fn compare_chain(response: Result<&[u8], &RpcError>, index_chain: &str) -> Result<(), String> {
    match response.map(quantity::from_value) {
        Ok(Some(id)) if id.to_string() == index_chain => Ok(()),
        Ok(Some(id)) => Err(format!("has chain {id}")),
        Ok(None) => Err("returned no valid chain id".to_owned()),
        Err(error) => Err(format!("did not return its chain id: {error}")),
    }
}

/// Compares a node's response to `eth_getBlockByNumber` with the hash of the stored block. Without
/// a stored hash, any block matches.
///
/// # Errors
/// Describes the difference, such as `does not have it`. The caller puts the node's name in front.
fn compare_block(
    response: Result<&[u8], &RpcError>,
    stored_hash: Option<[u8; 32]>,
) -> Result<(), String> {
    let raw = response.map_err(|error| format!("did not return it: {error}"))?;
    if raw == b"null" {
        return Err("does not have it".to_owned());
    }
    let Some(hash) = walk::member(raw, "hash").and_then(hex::hash_from_value) else {
        return Err("returned a block without a valid hash".to_owned());
    };
    if stored_hash.is_some_and(|stored_hash| stored_hash != hash) {
        let node_hash = String::from_utf8_lossy(&hash_text(&hash)).into_owned();
        return Err(format!("has a block with another hash, {node_hash}"));
    }
    Ok(())
}

/// Returns the default level. If the sync could not verify hashes, the index records the reason.
/// Then the level is off, and the reason is printed. Otherwise the level is full.
fn default_level(reader: &Reader) -> Level {
    let recorded = &reader.metadata().verification;
    if recorded_level(recorded).is_some() {
        return Level::Full;
    }
    eprintln!("hashes are not verified: {recorded}");
    Level::Off
}

/// Prints all findings, or a line that the index is sound. Returns the exit code.
fn print_result(report: &Report, node_findings: &[Finding], level: Level) -> Result<ExitCode> {
    for finding in report.findings.iter().chain(node_findings) {
        println!("{finding}");
    }
    if report.findings.len() >= FINDINGS_MAX {
        println!("stopped after {FINDINGS_MAX} findings; the index may have more");
    }
    if report.stopped {
        return Ok(ExitCode::from(EXIT_INTERRUPTED));
    }
    if !(report.findings.is_empty() && node_findings.is_empty()) {
        return Ok(ExitCode::FAILURE);
    }
    let Some(range) = report.range else {
        println!("no blocks: sound");
        return Ok(ExitCode::SUCCESS);
    };
    let caveat = match report.unverifiable {
        0 => String::new(),
        count => format!("; {count} of them have transactions that cannot be verified"),
    };
    println!("blocks {} to {}: sound (level {level}){caveat}", range.first, range.last);
    Ok(ExitCode::SUCCESS)
}
