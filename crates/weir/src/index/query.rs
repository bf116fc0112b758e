//! `weir index query`: prints logs, blocks, transactions or receipts of an index.
//!
//! A query returns `ExitCode::SUCCESS` or an error. `main.rs` prints the error and ends with exit
//! code 1.

mod logs;

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Result, anyhow, bail};
use clap::{Args, Subcommand};
use index::reader::Reader;
use index::store::TransactionPart;
use wire::hex::parse_hash;

use super::IndexArgs;

/// Query an index
///
/// Prints data byte for byte as the node sent it.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  weir index query logs --db chain.db --address 0xdac17f958d2ee523a2206206994597c13d831ec7
  weir index query logs --db chain.db --from 100 --to 200 --csv > logs.csv
  weir index query block --db chain.db 1234
  weir index query transaction --db chain.db \\
    0x5c504ed432cb51138bcf09aa5e8a410dd4a1e204ef84bfed1be16dfba1b22060
  weir index query receipt --db chain.db \\
    0x5c504ed432cb51138bcf09aa5e8a410dd4a1e204ef84bfed1be16dfba1b22060

Exit codes: 0 printed; 1 not in the index, or not readable; 2 faulty arguments.")]
pub(crate) struct Query {
    #[command(subcommand)]
    subject: Subject,
}

#[derive(Subcommand)]
enum Subject {
    Logs(logs::Logs),
    Block(Block),
    /// Print a transaction
    #[command(after_long_help = "\
Examples:
  weir index query transaction --db chain.db \\
    0x5c504ed432cb51138bcf09aa5e8a410dd4a1e204ef84bfed1be16dfba1b22060 | jq .value

Exit codes: 0 printed; 1 not in the index; 2 faulty arguments.")]
    Transaction(TransactionArgs),
    /// Print the receipt of a transaction
    #[command(after_long_help = "\
Examples:
  weir index query receipt --db chain.db \\
    0x5c504ed432cb51138bcf09aa5e8a410dd4a1e204ef84bfed1be16dfba1b22060 | jq .status

Exit codes: 0 printed; 1 not in the index; 2 faulty arguments.")]
    Receipt(TransactionArgs),
}

/// Print a block
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  weir index query block --db chain.db 1234 | jq .miner
  weir index query block --db chain.db 1234 --hashes

Exit codes: 0 printed; 1 not in the index; 2 faulty arguments.")]
struct Block {
    #[command(flatten)]
    database: IndexArgs,

    /// Number or hash of the block
    #[arg(value_name = "NUMBER|HASH")]
    block: BlockRef,

    /// Print the hashes of the block's transactions instead of full transactions
    #[arg(long)]
    hashes: bool,
}

// A doc comment would replace the help of both commands.
#[derive(Args)]
struct TransactionArgs {
    #[command(flatten)]
    database: IndexArgs,

    /// Hash of the transaction
    #[arg(value_parser = parse_hash_argument)]
    hash: Hash,
}

type Hash = [u8; 32];

/// Reference to a block by number or hash.
#[derive(Debug, Clone, Copy)]
enum BlockRef {
    Number(u64),
    Hash(Hash),
}

impl std::str::FromStr for BlockRef {
    type Err = String;

    fn from_str(text: &str) -> Result<BlockRef, String> {
        let number = match text.strip_prefix("0x") {
            Some(_) => wire::quantity::parse(text.as_bytes()),
            None => text.parse().ok(),
        };
        let hash = || parse_hash(text.as_bytes()).map(BlockRef::Hash);
        let allowed = "a block is a number, or 0x and 64 hexadecimal digits";
        number.map(BlockRef::Number).or_else(hash).ok_or_else(|| allowed.to_owned())
    }
}

fn parse_hash_argument(text: &str) -> Result<Hash, String> {
    parse_hash(text.as_bytes()).ok_or_else(|| "a hash is 0x and 64 hexadecimal digits".to_owned())
}

impl Query {
    pub(crate) fn run(self) -> Result<ExitCode> {
        match self.subject {
            Subject::Logs(logs) => logs.run(),
            Subject::Block(block) => block.run(),
            Subject::Transaction(transaction) => {
                print_transaction(&transaction.database, transaction.hash, TransactionPart::Body)
            }
            Subject::Receipt(receipt) => {
                print_transaction(&receipt.database, receipt.hash, TransactionPart::Receipt)
            }
        }
    }
}

impl Block {
    fn run(self) -> Result<ExitCode> {
        let mut reader = self.database.reader()?;
        let number = match self.block {
            BlockRef::Number(number) => Some(number),
            BlockRef::Hash(hash) => reader.store().block_number(&hash)?,
        };
        let contents = reader.metadata().contents;
        if !self.hashes && !contents.transactions {
            bail!("the index has only {contents}: print blocks with --hashes");
        }
        let part = if self.hashes { TransactionPart::Hash } else { TransactionPart::Body };
        let mut out = Vec::new();
        let is_written =
            number.map(|number| reader.write_block(&mut out, number, part)).transpose()?;
        if is_written != Some(true) {
            let stored = stored_blocks(&reader)?;
            return Err(match self.block {
                BlockRef::Number(number) => anyhow!("block {number} is not stored: {stored}"),
                BlockRef::Hash(_) => anyhow!("no block with this hash is stored: {stored}"),
            });
        }
        print_line(out)
    }
}

/// Describes the stored range of blocks, for error messages.
fn stored_blocks(reader: &Reader) -> Result<String> {
    Ok(reader.stored_range()?.map_or("the index has no blocks".to_owned(), |range| {
        format!("the index has blocks {} to {}", range.first, range.last)
    }))
}

/// Prints a part of a transaction: its body or its receipt.
fn print_transaction(database: &IndexArgs, hash: Hash, part: TransactionPart) -> Result<ExitCode> {
    let mut reader = database.reader()?;
    let contents = reader.metadata().contents;
    let is_receipt = part == TransactionPart::Receipt;
    let is_stored = if is_receipt { contents.receipts } else { contents.transactions };
    if !is_stored {
        bail!("the index has only {contents}");
    }
    let mut out = Vec::new();
    let is_written = match reader.store().transaction_position(&hash)? {
        Some(position) => reader.write_transaction(&mut out, position, part)?,
        None => false,
    };
    if !is_written {
        bail!("no transaction with this hash is stored: {}", stored_blocks(&reader)?);
    }
    print_line(out)
}

/// Prints a line, and returns the exit code of the query.
fn print_line(mut line: Vec<u8>) -> Result<ExitCode> {
    line.push(b'\n');
    exit_code(std::io::stdout().lock().write_all(&line))
}

/// Returns the exit code for the result of a write to standard output. The write also counts as a
/// success if the reader of the pipe, such as `head`, has closed it. Any other error is returned.
fn exit_code(result: std::io::Result<()>) -> Result<ExitCode> {
    match result {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        result => {
            result?;
            Ok(ExitCode::SUCCESS)
        }
    }
}
