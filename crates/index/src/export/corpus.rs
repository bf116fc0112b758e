//! Requests about what a file holds, to put load on nodes and gateways: with real hashes, so that
//! nothing is refused for naming what does not exist.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng};
use wire::json::walk;

use super::ExportError;
use crate::places::place;
use crate::reader::{Form, ReadError, Reader};
use crate::search::Bounds;

/// Longest range of blocks of a call for logs: what most providers allow at least.
const LOGS_RANGE_MAX: u64 = 1000;
/// Blocks that are tried to find one with transactions, or with logs.
const TRIES: usize = 32;

/// What a call is about.
#[derive(Debug, Clone, Copy)]
enum About {
    BlockByNumber,
    BlockByHash,
    BlockReceipts,
    Transaction,
    Receipt,
    Logs,
}

/// Writes a file of `count` calls about the blocks `from` to `to`, one a line, in the form that
/// `weir load --requests` reads; how many of each method. The same seed of the same file gives the
/// same calls. What is asked about is drawn evenly from what the file holds.
///
/// # Errors
/// If the file cannot be read or the calls not be written.
pub fn corpus(
    reader: &mut Reader,
    path: &Path,
    range: (u64, u64),
    count: u64,
    seed: u64,
) -> Result<Vec<(&'static str, u64)>, ExportError> {
    let failed = |error| ExportError::File { path: path.to_owned(), error };
    let mut out = BufWriter::new(File::create(path).map_err(failed)?);
    let what = reader.facts().what;
    let mut kinds = vec![About::BlockByNumber, About::BlockByHash];
    let more = [
        (what.receipts, About::BlockReceipts),
        (true, About::Transaction),
        (what.receipts, About::Receipt),
        (what.logs, About::Logs),
    ];
    kinds.extend(more.iter().filter(|(held, _)| *held).map(|(_, about)| *about));
    let mut draw = Draw { reader, random: StdRng::seed_from_u64(seed), range };
    let mut counts: Vec<(&'static str, u64)> = Vec::new();
    for id in 1..=count {
        let about = kinds[draw.random.random_range(0..kinds.len())];
        let (method, params) = draw.call(about)?;
        let line =
            format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#);
        writeln!(out, "{line}").map_err(failed)?;
        match counts.iter_mut().find(|(known, _)| *known == method) {
            Some((_, count)) => *count += 1,
            None => counts.push((method, 1)),
        }
    }
    out.flush().map_err(failed)?;
    counts.sort_unstable();
    Ok(counts)
}

struct Draw<'a> {
    reader: &'a mut Reader,
    random: StdRng,
    range: (u64, u64),
}

type Call = (&'static str, String);

impl Draw<'_> {
    fn number(&mut self) -> u64 {
        self.random.random_range(self.range.0..=self.range.1)
    }

    fn call(&mut self, about: About) -> Result<Call, ReadError> {
        let found = match about {
            About::Transaction => self.of_transaction("eth_getTransactionByHash")?,
            About::Receipt => self.of_transaction("eth_getTransactionReceipt")?,
            About::Logs => self.logs()?,
            About::BlockByNumber => None,
            About::BlockReceipts => {
                Some(("eth_getBlockReceipts", format!(r#"["{:#x}"]"#, self.number())))
            }
            About::BlockByHash => {
                let number = self.number();
                let whole = self.random.random_bool(0.5);
                let row = self.reader.store().block(number)?;
                row.map(|row| ("eth_getBlockByHash", format!(r#"["{}",{whole}]"#, hex(&row.hash))))
            }
        };
        // Where there are no transactions, or no logs, there are blocks.
        Ok(found.unwrap_or_else(|| {
            let (number, whole) = (self.number(), self.random.random_bool(0.5));
            ("eth_getBlockByNumber", format!(r#"["{number:#x}",{whole}]"#))
        }))
    }

    fn of_transaction(&mut self, method: &'static str) -> Result<Option<Call>, ReadError> {
        for _ in 0..TRIES {
            let number = self.number();
            let Some(row) = self.reader.store().block(number)? else { continue };
            if row.count == 0 {
                continue;
            }
            let index = self.random.random_range(0..row.count);
            let mut hash = Vec::new();
            if self.reader.item(&mut hash, place(number, index), Form::Hash)? {
                let hash = String::from_utf8_lossy(&hash);
                return Ok(Some((method, format!("[{hash}]"))));
            }
        }
        Ok(None)
    }

    /// The address of a log, its first topic, or both, in a range around its block.
    fn logs(&mut self) -> Result<Option<Call>, ReadError> {
        for _ in 0..TRIES {
            let number = self.number();
            let mut logs = b"[".to_vec();
            let all = wire::logs::Selection::default();
            let bounds = Bounds::NONE;
            let count = self.reader.logs(&mut logs, &all, (number, number), bounds)?;
            logs.push(b']');
            if count == 0 {
                continue;
            }
            let at = self.random.random_range(0..count) as usize;
            let Some(log) = walk::elements(&logs).nth(at) else { continue };
            let text = |raw: &[u8]| String::from_utf8_lossy(raw).into_owned();
            let address = text(walk::member(log, "address").unwrap_or_default());
            let topics = walk::member(log, "topics").unwrap_or_default();
            let topic = walk::elements(topics).next().map(text);
            let part = match (self.random.random_range(0..3u8), topic) {
                (0, Some(topic)) => format!(r#""topics":[{topic}]"#),
                (1, Some(topic)) => format!(r#""address":{address},"topics":[{topic}]"#),
                _ => format!(r#""address":{address}"#),
            };
            let span = self.random.random_range(0..LOGS_RANGE_MAX);
            let back = self.random.random_range(0..=span);
            let from = number.saturating_sub(back).max(self.range.0);
            let to = from.saturating_add(span).clamp(number, self.range.1);
            let params = format!(r#"[{{"fromBlock":"{from:#x}","toBlock":"{to:#x}",{part}}}]"#);
            return Ok(Some(("eth_getLogs", params)));
        }
        Ok(None)
    }
}

fn hex(hash: &[u8; 32]) -> String {
    String::from_utf8_lossy(&crate::pieces::hash_text(hash)).into_owned()
}
