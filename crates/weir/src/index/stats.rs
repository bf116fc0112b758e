//! `weir index stats`.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use index::pieces::hash_text;
use index::store::Store;
use serde::Serialize;

use super::{Database, shown_bytes};

/// Tell what an index has
///
/// Which chain, from where to where, what of it, how it was verified, and how large it is.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  weir index stats --db chain.db
  weir index stats --db chain.db --json | jq .last
  weir index stats --db 'postgres:///chains?host=/run/postgresql&user=weir&schema=mainnet'

Exit codes: 0 told; 1 it cannot be read; 2 faulty arguments.")]
pub(crate) struct Stats {
    #[command(flatten)]
    database: Database,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Told {
    family: String,
    chain: String,
    genesis: String,
    what: String,
    verified: String,
    left_to_nodes: Vec<String>,
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

fn text(hash: &[u8; 32]) -> String {
    String::from_utf8_lossy(&hash_text(hash)).into_owned()
}

impl Stats {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let store = Store::open_to_read(self.database.at(), self.database.settings()?)?;
        let Some(facts) = store.facts()? else {
            println!("{}: nothing was synced yet", self.database.at());
            return Ok(ExitCode::SUCCESS);
        };
        let held = store.held()?;
        let (blocks, transactions) = store.totals()?;
        let bytes = store.disk_bytes()?;
        let told = Told {
            family: facts.chain.family,
            chain: facts.chain.id,
            genesis: text(&facts.chain.genesis),
            what: facts.what.to_string(),
            verified: facts.verified,
            left_to_nodes: facts.unlike,
            not_seen_yet: facts.untried,
            first: held.map(|held| held.first),
            last: held.map(|held| held.last),
            last_hash: held.map(|held| text(&held.last_hash)),
            finalized: held.map(|held| held.finalized),
            blocks,
            transactions,
            bytes,
            bytes_per_block: bytes.checked_div(blocks),
        };
        if self.json {
            println!("{}", serde_json::to_string_pretty(&told)?);
        } else {
            print(&told);
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn print(told: &Told) {
    println!("chain         {} ({}), genesis {}", told.chain, told.family, told.genesis);
    match (told.first, told.last, &told.last_hash, told.finalized) {
        (Some(first), Some(last), Some(hash), Some(finalized)) => {
            println!("blocks        {first} to {last}, final up to {finalized}");
            println!("last          {hash}");
        }
        _ => println!("blocks        none"),
    }
    println!("holds         {}", told.what);
    println!("verified      {}", told.verified);
    if !told.left_to_nodes.is_empty() {
        println!("left to nodes {}", told.left_to_nodes.join(", "));
    }
    if !told.not_seen_yet.is_empty() {
        println!("not seen yet  {} (left to nodes so far)", told.not_seen_yet.join(", "));
    }
    println!("transactions  {}", told.transactions);
    let each = told.bytes_per_block.map(|bytes| format!(", {bytes} bytes per block"));
    println!("disk          {}{}", shown_bytes(told.bytes), each.unwrap_or_default());
}
