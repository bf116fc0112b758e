//! `weir index query logs`.

use std::io::{BufWriter, Write};
use std::process::ExitCode;

use anyhow::{Result, anyhow, bail};
use clap::Args;
use index::error::ReadError;
use index::export;
use index::reader::Reader;
use index::search::SearchLimits;
use wire::json::string::JsonString;
use wire::json::walk;
use wire::logs::LogMatcher;
use wire::quantity;

use super::super::IndexArgs;

/// Initial and maximum number of blocks per search.
const BLOCKS_PER_SEARCH_MAX: u64 = 4096;
/// Maximum number of bytes of logs per search. A search of a single block has no limit.
const BYTES_PER_SEARCH_MAX: u64 = 16 << 20;

/// Print logs
///
/// Prints JSON lines by default, each as the node sent it. Topics at different positions must all
/// match; several topics at one position, or several addresses, are alternatives.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  weir index query logs --db chain.db --address 0xdac17f958d2ee523a2206206994597c13d831ec7 --limit 9
  weir index query logs --db chain.db --from 100 --to 200 --csv > logs.csv
  weir index query logs --db chain.db \\
    --topic0 0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef \\
    --topic2 0x0000000000000000000000005a52e96bacdabb82fd05763e25335261b270efcb

CSV has the columns block_number, block_hash, transaction_index, transaction_hash, log_index, address,
topic0 to topic3, data; numbers are decimal, and an absent topic is empty.

Exit codes: 0 printed, possibly without logs; 1 the blocks or their logs are not in the index, or the
index cannot be read; 2 faulty arguments.")]
pub(super) struct Logs {
    #[command(flatten)]
    database: IndexArgs,

    /// Address of the contract; may be repeated
    #[arg(long = "address", value_name = "ADDRESS", value_parser = parse_address)]
    addresses: Vec<String>,

    /// First topic of the log; may be repeated
    #[arg(long, value_name = "TOPIC", value_parser = parse_topic)]
    topic0: Vec<String>,

    /// Second topic of the log; may be repeated
    #[arg(long, value_name = "TOPIC", value_parser = parse_topic)]
    topic1: Vec<String>,

    /// Third topic of the log; may be repeated
    #[arg(long, value_name = "TOPIC", value_parser = parse_topic)]
    topic2: Vec<String>,

    /// Fourth topic of the log; may be repeated
    #[arg(long, value_name = "TOPIC", value_parser = parse_topic)]
    topic3: Vec<String>,

    /// First block [default: the first of the index]
    #[arg(long, value_name = "NUMBER")]
    from: Option<u64>,

    /// Last block [default: the last of the index]
    #[arg(long, value_name = "NUMBER")]
    to: Option<u64>,

    /// Maximum number of logs to print
    #[arg(long, value_name = "N")]
    limit: Option<u64>,

    /// Print CSV
    #[arg(long)]
    csv: bool,
}

fn parse_address(text: &str) -> Result<String, String> {
    parse_hex(text, 40).ok_or_else(|| "an address is 0x and 40 hexadecimal digits".to_owned())
}

fn parse_topic(text: &str) -> Result<String, String> {
    parse_hex(text, 64).ok_or_else(|| "a topic is 0x and 64 hexadecimal digits".to_owned())
}

/// Returns the text in lower case if it is `0x` and `count` hexadecimal digits.
fn parse_hex(text: &str, count: usize) -> Option<String> {
    let digits = text.strip_prefix("0x")?;
    let is_valid = digits.len() == count && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_valid.then(|| text.to_ascii_lowercase())
}

impl Logs {
    pub(super) fn run(self) -> Result<ExitCode> {
        let mut reader = self.database.reader()?;
        let contents = reader.metadata().contents;
        if !contents.logs {
            bail!("the index has only {contents}");
        }
        let range = export::range(reader.stored_range()?, self.from, self.to)?;
        let matcher = self.matcher()?;
        let mut out = BufWriter::new(std::io::stdout().lock());
        let write_result = self.print(&mut reader, &matcher, range, &mut out)?;
        super::exit_code(write_result.and_then(|()| out.flush()))
    }

    /// Builds the log filter from the arguments.
    fn matcher(&self) -> Result<LogMatcher> {
        let json_array = |texts: &[String]| {
            let texts: Vec<String> = texts.iter().map(|text| format!("\"{text}\"")).collect();
            format!("[{}]", texts.join(","))
        };
        let topics = [&self.topic0, &self.topic1, &self.topic2, &self.topic3];
        let count = topics.iter().rposition(|topics| !topics.is_empty()).map_or(0, |last| last + 1);
        let topics: Vec<String> = topics[..count].iter().map(|topics| json_array(topics)).collect();
        let filter = format!(
            r#"{{"address":{},"topics":[{}]}}"#,
            json_array(&self.addresses),
            topics.join(",")
        );
        LogMatcher::parse(filter.as_bytes()).map_err(|error| anyhow!("{error}"))
    }

    /// Searches and prints the logs range by range. Retries with fewer blocks if the logs of a
    /// range exceed the byte limit. The outer error is a failed search, the inner error a failed
    /// write.
    fn print(
        &self,
        reader: &mut Reader,
        matcher: &LogMatcher,
        (from, to): (u64, u64),
        out: &mut impl Write,
    ) -> Result<std::io::Result<()>> {
        let mut logs_left = self.limit.unwrap_or(u64::MAX);
        if self.csv
            && let Err(error) = writeln!(out, "{}", COLUMNS.join(","))
        {
            return Ok(Err(error));
        }
        // `blocks` is the number of blocks of the next search.
        let (mut next_block, mut blocks) = (from, BLOCKS_PER_SEARCH_MAX);
        let mut logs = Vec::new();
        let mut csv = CsvFormatter::default();
        while logs_left > 0 && next_block <= to {
            let last_block = next_block.saturating_add(blocks - 1).min(to);
            logs.clear();
            logs.push(b'[');
            let bytes_max = if blocks == 1 { u64::MAX } else { BYTES_PER_SEARCH_MAX };
            let limits = SearchLimits { bytes: bytes_max, ..SearchLimits::NONE };
            match reader.write_logs(&mut logs, matcher, (next_block, last_block), limits) {
                Ok(_) => {}
                Err(ReadError::LimitExceeded(_)) => {
                    blocks = (blocks / 4).max(1);
                    continue;
                }
                Err(error) => return Err(error.into()),
            }
            logs.push(b']');
            let count_max = usize::try_from(logs_left).unwrap_or(usize::MAX);
            for log in walk::elements(&logs).take(count_max) {
                let write_result = if self.csv {
                    out.write_all(csv.row(log, reader)?.as_bytes())
                } else {
                    out.write_all(log).and_then(|()| out.write_all(b"\n"))
                };
                if write_result.is_err() {
                    return Ok(write_result);
                }
                logs_left -= 1;
            }
            let Some(following_block) = last_block.checked_add(1) else { break };
            next_block = following_block;
            blocks = (blocks * 2).min(BLOCKS_PER_SEARCH_MAX);
        }
        Ok(Ok(()))
    }
}

/// Header of the CSV output.
const COLUMNS: [&str; 12] = [
    "block_number",
    "block_hash",
    "block_timestamp",
    "transaction_index",
    "transaction_hash",
    "log_index",
    "address",
    "topic0",
    "topic1",
    "topic2",
    "topic3",
    "data",
];

/// Formats logs as lines of CSV, with quantities in decimal.
#[derive(Default)]
struct CsvFormatter {
    /// The block of the previous log, as in the log, and its timestamp in seconds.
    block: (Vec<u8>, String),
}

impl CsvFormatter {
    fn row(&mut self, log: &[u8], reader: &Reader) -> Result<String> {
        let names = ["blockNumber", "blockHash", "transactionIndex", "transactionHash", "logIndex"];
        let [number, hash, index, transaction, log_index] = walk::fields_of(log, names);
        let [address, topics, data] = walk::fields_of(log, ["address", "topics", "data"]);
        let timestamp = self.timestamp(number, reader)?.to_owned();
        let mut fields = vec![csv_number(number), csv_field(hash), timestamp];
        fields.extend([csv_number(index), csv_field(transaction), csv_number(log_index)]);
        fields.push(csv_field(address));
        let mut topics = walk::elements(topics.unwrap_or_default());
        fields.extend((0..4).map(|_| csv_field(topics.next())));
        fields.push(csv_field(data));
        Ok(fields.join(",") + "\n")
    }

    /// Returns the timestamp of a block. Nodes may omit it in logs, so it comes from the block.
    fn timestamp(&mut self, number: Option<&[u8]>, reader: &Reader) -> Result<&str> {
        let raw = number.unwrap_or_default();
        if self.block.0 != raw {
            let number = quantity::from_value(raw);
            let block = number.map(|number| reader.store().block_hash_and_timestamp(number));
            let timestamp = block.transpose()?.flatten().map(|(_, timestamp)| timestamp);
            self.block =
                (raw.to_owned(), timestamp.map(|time| time.to_string()).unwrap_or_default());
        }
        Ok(&self.block.1)
    }
}

/// Formats a quantity in decimal.
fn csv_number(raw: Option<&[u8]>) -> String {
    let number = raw.and_then(quantity::from_value);
    number.map_or_else(|| csv_field(raw), |number| number.to_string())
}

/// Formats a JSON string as a field of CSV. The field is empty if `raw` is `None` or not a string.
/// Only a field of a malformed log needs quotes.
fn csv_field(raw: Option<&[u8]>) -> String {
    let text = raw.and_then(JsonString::from_value).map(|text| text.decode().into_owned());
    let text = String::from_utf8_lossy(&text.unwrap_or_default()).into_owned();
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text
    }
}
