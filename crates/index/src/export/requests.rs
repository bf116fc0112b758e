//! Writes requests about the content of an index, to load-test nodes and gateways. The requests
//! contain numbers and hashes from the index, so their blocks and transactions exist.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng};
use wire::json::walk;

use super::error::ExportError;
use crate::error::ReadError;
use crate::fragments::hash_text;
use crate::postings::position;
use crate::reader::Reader;
use crate::search::SearchLimits;
use crate::store::TransactionPart;

/// Maximum distance between the bounds of a call for logs, in blocks. Most providers allow this
/// range.
const LOGS_RANGE_MAX: u64 = 1000;
/// Maximum number of blocks that are drawn at random to find a block with transactions or logs.
const DRAWS_MAX: usize = 32;

/// The kind of a request.
#[derive(Debug, Clone, Copy)]
enum RequestKind {
    BlockByNumber,
    BlockByHash,
    BlockReceipts,
    Transaction,
    Receipt,
    Logs,
}

/// Writes a file of `count` requests about a range of blocks, one per line, in the format of `weir
/// load --requests`. Returns the number of requests of each method. Blocks are drawn at random with
/// equal probability, and so are the transactions and logs of a block. The same seed and index give
/// the same requests.
///
/// # Errors
/// Fails if the index cannot be read, or the file cannot be written.
pub fn write_requests(
    reader: &mut Reader,
    path: &Path,
    range: (u64, u64),
    count: u64,
    seed: u64,
) -> Result<Vec<(&'static str, u64)>, ExportError> {
    let file_error = ExportError::for_file(path);
    let mut out = BufWriter::new(File::create(path).map_err(&file_error)?);
    let contents = reader.metadata().contents;
    let mut kinds = vec![RequestKind::BlockByNumber, RequestKind::BlockByHash];
    // Every index holds the hashes of transactions, so requests for transactions are always
    // possible.
    let optional_kinds = [
        (contents.receipts, RequestKind::BlockReceipts),
        (true, RequestKind::Transaction),
        (contents.receipts, RequestKind::Receipt),
        (contents.logs, RequestKind::Logs),
    ];
    kinds.extend(optional_kinds.iter().filter(|(is_stored, _)| *is_stored).map(|(_, kind)| *kind));
    let mut sampler = RequestSampler { reader, rng: StdRng::seed_from_u64(seed), range };
    let mut counts: Vec<(&'static str, u64)> = Vec::new();
    for id in 1..=count {
        let kind = kinds[sampler.rng.random_range(0..kinds.len())];
        let (method, params) = sampler.draw_request(kind)?;
        let line =
            format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#);
        writeln!(out, "{line}").map_err(&file_error)?;
        match counts.iter_mut().find(|(counted_method, _)| *counted_method == method) {
            Some((_, count)) => *count += 1,
            None => counts.push((method, 1)),
        }
    }
    out.flush().map_err(file_error)?;
    counts.sort_unstable();
    Ok(counts)
}

/// Draws requests at random.
struct RequestSampler<'a> {
    reader: &'a mut Reader,
    rng: StdRng,
    /// The first and the last block.
    range: (u64, u64),
}

/// A method and its parameters.
type Request = (&'static str, String);

impl RequestSampler<'_> {
    /// Draws the number of a block.
    fn draw_block(&mut self) -> u64 {
        self.rng.random_range(self.range.0..=self.range.1)
    }

    /// Draws a request of this kind.
    fn draw_request(&mut self, kind: RequestKind) -> Result<Request, ReadError> {
        let drawn = match kind {
            RequestKind::Transaction => {
                self.draw_transaction_request("eth_getTransactionByHash")?
            }
            RequestKind::Receipt => self.draw_transaction_request("eth_getTransactionReceipt")?,
            RequestKind::Logs => self.draw_logs_request()?,
            RequestKind::BlockByNumber => None,
            RequestKind::BlockReceipts => {
                Some(("eth_getBlockReceipts", format!(r#"["{:#x}"]"#, self.draw_block())))
            }
            RequestKind::BlockByHash => {
                let number = self.draw_block();
                let full = self.rng.random_bool(0.5);
                let row = self.reader.store().block(number)?;
                row.map(|row| {
                    let hash = hash_text(&row.hash);
                    let hash = String::from_utf8_lossy(&hash);
                    ("eth_getBlockByHash", format!(r#"["{hash}",{full}]"#))
                })
            }
        };
        // `drawn` is `None` for the kind `BlockByNumber`. It is also `None` if no drawn block has
        // transactions or logs, or if the index lacks the drawn block. The request is then for a
        // block by number.
        Ok(drawn.unwrap_or_else(|| {
            let (number, full) = (self.draw_block(), self.rng.random_bool(0.5));
            ("eth_getBlockByNumber", format!(r#"["{number:#x}",{full}]"#))
        }))
    }

    /// Draws a call with the hash of a transaction. Returns `None` if no drawn block has
    /// transactions.
    fn draw_transaction_request(
        &mut self,
        method: &'static str,
    ) -> Result<Option<Request>, ReadError> {
        for _ in 0..DRAWS_MAX {
            let number = self.draw_block();
            let Some(row) = self.reader.store().block(number)? else { continue };
            if row.transaction_count == 0 {
                continue;
            }
            let index = self.rng.random_range(0..row.transaction_count);
            let mut hash = Vec::new();
            let position = position(number, index);
            if self.reader.write_transaction(&mut hash, position, TransactionPart::Hash)? {
                let hash = String::from_utf8_lossy(&hash);
                return Ok(Some((method, format!("[{hash}]"))));
            }
        }
        Ok(None)
    }

    /// Draws a log, and returns a call with a filter that matches it: by address, by first topic,
    /// or by both, in a range of blocks around the log. Returns `None` if no drawn block has logs.
    fn draw_logs_request(&mut self) -> Result<Option<Request>, ReadError> {
        for _ in 0..DRAWS_MAX {
            let number = self.draw_block();
            let mut logs = b"[".to_vec();
            let every_log = wire::logs::LogMatcher::default();
            let limits = SearchLimits::NONE;
            let count = self.reader.write_logs(&mut logs, &every_log, (number, number), limits)?;
            logs.push(b']');
            if count == 0 {
                continue;
            }
            let index = self.rng.random_range(0..count) as usize;
            let Some(log) = walk::elements(&logs).nth(index) else { continue };
            let to_text = |raw: &[u8]| String::from_utf8_lossy(raw).into_owned();
            let address = to_text(walk::member(log, "address").unwrap_or_default());
            let topics = walk::member(log, "topics").unwrap_or_default();
            let topic = walk::elements(topics).next().map(to_text);
            let criteria = match (self.rng.random_range(0..3u8), topic) {
                (0, Some(topic)) => format!(r#""topics":[{topic}]"#),
                (1, Some(topic)) => format!(r#""address":{address},"topics":[{topic}]"#),
                _ => format!(r#""address":{address}"#),
            };
            // The range has at most `distance + 1` blocks, and the log is at a random place in it.
            let distance = self.rng.random_range(0..LOGS_RANGE_MAX);
            let offset = self.rng.random_range(0..=distance);
            let from = number.saturating_sub(offset).max(self.range.0);
            let to = from.saturating_add(distance).clamp(number, self.range.1);
            let params = format!(r#"[{{"fromBlock":"{from:#x}","toBlock":"{to:#x}",{criteria}}}]"#);
            return Ok(Some(("eth_getLogs", params)));
        }
        Ok(None)
    }
}
