//! What a file holds, for other tools: Parquet tables, and requests to put load on nodes.
//!
//! Hashes, addresses and bytes are text with `0x`, as they stand in explorers and in JSON: DuckDB,
//! pandas and the like show, join and filter such columns without a conversion, where binary ones
//! would have to be written as blobs in each query. Dictionaries and Snappy take back most of the
//! room. Numbers that the protocol keeps within 64 bits are unsigned integers. Amounts of wei are
//! decimal text, since they go up to 256 bits: `CAST(value AS HUGEINT)`.

mod columns;
mod corpus;
mod tables;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};

use wire::json::walk;

use self::columns::Writer;
pub use self::corpus::corpus;
use crate::reader::{Form, ReadError, Reader};
use crate::store::Held;

/// A kind of table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Table {
    /// A row for each block: its header.
    Blocks,
    /// A row for each transaction, with what its receipt tells where receipts are held.
    Transactions,
    /// A row for each log.
    Logs,
}

impl Table {
    const ALL: [Table; 3] = [Table::Blocks, Table::Transactions, Table::Logs];

    /// Its name, which is also that of its file.
    pub fn name(self) -> &'static str {
        match self {
            Table::Blocks => "blocks",
            Table::Transactions => "transactions",
            Table::Logs => "logs",
        }
    }
}

impl FromStr for Table {
    type Err = String;

    fn from_str(name: &str) -> Result<Table, String> {
        let known = Table::ALL.into_iter().find(|table| table.name() == name.trim());
        known.ok_or_else(|| format!("`{name}`: allowed are blocks, transactions and logs"))
    }
}

/// Why nothing was written, or not all.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// What is written cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The file does not have what was asked for.
    #[error("{0}")]
    NotHeld(String),
    /// A value that does not go into its column.
    #[error("block {number}: {what}")]
    Odd {
        /// In which block.
        number: u64,
        /// Which value, and what is allowed.
        what: String,
    },
    /// Parquet.
    #[error("{path}: {why}")]
    Parquet {
        /// Which file.
        path: PathBuf,
        /// What its writer says.
        why: String,
    },
    /// A file cannot be written.
    #[error("{path}: {error}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// It was told to stop; unfinished tables are not left behind.
    #[error("stopped before the end")]
    Stopped,
}

/// A table that was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// Where.
    pub path: PathBuf,
    /// Its rows.
    pub rows: u64,
    /// Its bytes.
    pub bytes: u64,
}

/// The blocks from `from` to `to` that are held; the ends of the file where none are given.
///
/// # Errors
/// Which of them are not held.
pub fn range(
    held: Option<Held>,
    from: Option<u64>,
    to: Option<u64>,
) -> Result<(u64, u64), ExportError> {
    let Some(held) = held else {
        return Err(ExportError::NotHeld("the index holds no blocks yet".to_owned()));
    };
    let (first, last) = (from.unwrap_or(held.first), to.unwrap_or(held.last));
    if first > last {
        return Err(ExportError::NotHeld(format!("blocks {first} to {last}: none")));
    }
    if first < held.first || last > held.last {
        return Err(ExportError::NotHeld(format!(
            "blocks {first} to {last}: the index holds {} to {}",
            held.first, held.last
        )));
    }
    Ok((first, last))
}

/// Writes tables of the blocks `from` to `to` into a folder, which is made. A table appears under
/// its name when it is whole. `watch` is told of each block.
///
/// # Errors
/// What is not held, cannot be read, or cannot be written.
pub fn export(
    reader: &mut Reader,
    tables: &[Table],
    folder: &Path,
    (from, to): (u64, u64),
    watch: &mut dyn FnMut(u64),
    stop: &AtomicBool,
) -> Result<Vec<Written>, ExportError> {
    let what = reader.facts().what;
    for table in tables {
        let held = match table {
            Table::Blocks => true,
            Table::Transactions => what.blocks,
            Table::Logs => what.logs || what.receipts,
        };
        if !held {
            let name = table.name();
            return Err(ExportError::NotHeld(format!("{name}: the index holds {what} only")));
        }
    }
    std::fs::create_dir_all(folder)
        .map_err(|error| ExportError::File { path: folder.to_owned(), error })?;
    let mut open = Vec::new();
    for table in tables {
        open.push(Sink::create(*table, folder)?);
    }
    let mut rows = Rows::default();
    for number in from..=to {
        if stop.load(Ordering::Relaxed) {
            return Err(ExportError::Stopped);
        }
        rows.read(reader, number, tables)?;
        for sink in &mut open {
            rows.write(number, sink)?;
        }
        watch(number);
    }
    open.into_iter().map(Sink::finish).collect()
}

/// A table that is being written, under another name. Removed if it is dropped before the end.
struct Sink {
    table: Table,
    writer: Option<Writer>,
    part: PathBuf,
    path: PathBuf,
}

impl Sink {
    fn create(table: Table, folder: &Path) -> Result<Sink, ExportError> {
        let path = folder.join(format!("{}.parquet", table.name()));
        let part = folder.join(format!("{}.parquet.part", table.name()));
        let failed = |error| ExportError::File { path: part.clone(), error };
        let file = File::create(&part).map_err(failed)?;
        let writer = Writer::new(&part, file, table)?;
        Ok(Sink { table, writer: Some(writer), part, path })
    }

    fn finish(mut self) -> Result<Written, ExportError> {
        let rows = self.writer.take().map_or(Ok(0), Writer::finish)?;
        let failed = |error| ExportError::File { path: self.path.clone(), error };
        std::fs::rename(&self.part, &self.path).map_err(failed)?;
        let bytes = self.path.metadata().map_err(failed)?.len();
        Ok(Written { path: self.path.clone(), rows, bytes })
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        // After the end it has its own name, and there is nothing to remove.
        let _ = std::fs::remove_file(&self.part);
    }
}

/// What is kept of one block, put together.
#[derive(Default)]
struct Rows {
    block: Vec<u8>,
    receipts: Vec<u8>,
    logs: Vec<u8>,
}

impl Rows {
    fn read(
        &mut self,
        reader: &mut Reader,
        number: u64,
        tables: &[Table],
    ) -> Result<(), ExportError> {
        let what = reader.facts().what;
        let Some((_, of)) = reader.row(number)? else {
            return Err(ExportError::NotHeld(format!("block {number} is not there")));
        };
        self.block.clear();
        self.receipts.clear();
        self.logs.clear();
        let whole = tables.contains(&Table::Transactions);
        let form = if whole { Form::Whole } else { Form::Hash };
        reader.block(&mut self.block, number, form)?;
        if what.receipts && (whole || tables.contains(&Table::Logs)) {
            reader.list(&mut self.receipts, &of, number, Form::Receipt)?;
        } else if tables.contains(&Table::Logs) {
            let bounds = crate::search::Bounds::NONE;
            self.logs.push(b'[');
            let all = wire::logs::Selection::default();
            reader.logs(&mut self.logs, &all, (number, number), bounds)?;
            self.logs.push(b']');
        }
        Ok(())
    }

    fn write(&self, number: u64, sink: &mut Sink) -> Result<(), ExportError> {
        let Some(writer) = &mut sink.writer else { return Ok(()) };
        match sink.table {
            Table::Blocks => writer.add(number, [&self.block, b"null"])?,
            Table::Transactions => {
                let mut receipts = walk::elements(&self.receipts);
                let listed = walk::member(&self.block, "transactions").unwrap_or_default();
                for transaction in walk::elements(listed) {
                    writer.add(number, [transaction, receipts.next().unwrap_or(b"null")])?;
                }
            }
            Table::Logs => {
                for receipt in walk::elements(&self.receipts) {
                    for log in walk::elements(walk::member(receipt, "logs").unwrap_or_default()) {
                        writer.add(number, [log, &self.block])?;
                    }
                }
                for log in walk::elements(&self.logs) {
                    writer.add(number, [log, &self.block])?;
                }
            }
        }
        Ok(())
    }
}
