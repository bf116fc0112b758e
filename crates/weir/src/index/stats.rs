//! `weir index stats`.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use index::fragments::hash_text;
use index::store;
use serde::Serialize;

use super::{IndexArgs, format_bytes};

/// Print the contents and the size of an index
///
/// Prints the chain, the range of blocks, the contents, the level of verification and the size.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  weir index stats --db chain.db
  weir index stats --db chain.db --json | jq .last
  weir index stats --db 'postgres:///chains?host=/run/postgresql&user=weir&schema=mainnet'

Exit codes: 0 printed; 1 the index cannot be read; 2 faulty arguments.")]
pub(crate) struct Stats {
    #[command(flatten)]
    database: IndexArgs,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The output of the command. Field names are those of the JSON output.
#[derive(Serialize)]
struct IndexStats {
    family: String,
    /// Chain id.
    chain: String,
    /// Hash of the genesis block.
    genesis: String,
    /// The parts of each block that are stored.
    what: String,
    /// The level of verification, or the reason why hashes were not verified.
    verified: String,
    /// Forms of responses that nodes write differently from the index. Nodes must answer calls for
    /// these forms.
    left_to_nodes: Vec<String>,
    /// Forms of responses that no sampled block contained. Nodes must answer calls for these forms,
    /// too.
    not_seen_yet: Vec<String>,
    first: Option<u64>,
    last: Option<u64>,
    last_hash: Option<String>,
    finalized: Option<u64>,
    blocks: u64,
    transactions: u64,
    bytes: u64,
    bytes_per_block: Option<u64>,
}

fn format_hash(hash: &[u8; 32]) -> String {
    String::from_utf8_lossy(&hash_text(hash)).into_owned()
}

impl Stats {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let store = store::open_to_read(&self.database.db, self.database.settings()?)?;
        let Some(metadata) = store.metadata()? else {
            println!("{}: nothing was synced yet", self.database.db);
            return Ok(ExitCode::SUCCESS);
        };
        let range = store.stored_range()?;
        let (blocks, transactions) = store.totals()?;
        let bytes = store.disk_bytes()?;
        let stats = IndexStats {
            family: metadata.chain.family,
            chain: metadata.chain.id,
            genesis: format_hash(&metadata.chain.genesis_hash),
            what: metadata.contents.to_string(),
            verified: metadata.verification,
            left_to_nodes: metadata.differing_forms,
            not_seen_yet: metadata.untested_forms,
            first: range.map(|range| range.first),
            last: range.map(|range| range.last),
            last_hash: range.map(|range| format_hash(&range.last_hash)),
            finalized: range.map(|range| range.finalized),
            blocks,
            transactions,
            bytes,
            bytes_per_block: bytes.checked_div(blocks),
        };
        if self.json {
            println!("{}", serde_json::to_string_pretty(&stats)?);
        } else {
            print_stats(&stats);
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn print_stats(stats: &IndexStats) {
    println!("chain         {} ({}), genesis {}", stats.chain, stats.family, stats.genesis);
    match (stats.first, stats.last, &stats.last_hash, stats.finalized) {
        (Some(first), Some(last), Some(hash), Some(finalized)) => {
            println!("blocks        {first} to {last}, final up to {finalized}");
            println!("last          {hash}");
        }
        _ => println!("blocks        none"),
    }
    println!("holds         {}", stats.what);
    println!("verified      {}", stats.verified);
    if !stats.left_to_nodes.is_empty() {
        println!("left to nodes {}", stats.left_to_nodes.join(", "));
    }
    if !stats.not_seen_yet.is_empty() {
        println!("not seen yet  {} (left to nodes so far)", stats.not_seen_yet.join(", "));
    }
    println!("transactions  {}", stats.transactions);
    let per_block = stats.bytes_per_block.map(|bytes| format!(", {bytes} bytes per block"));
    println!("disk          {}{}", format_bytes(stats.bytes), per_block.unwrap_or_default());
}
