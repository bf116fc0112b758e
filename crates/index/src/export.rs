//! Exports the content of an index for other tools: Parquet tables, and requests for load tests.
//!
//! Hashes, addresses and bytes are text with `0x`, as in block explorers and in JSON. DuckDB,
//! pandas and similar tools show, join and filter such columns without a conversion. Binary columns
//! would need blob literals in each query. Dictionary encoding and Snappy compression save most of
//! the additional space. Numbers within 64 bits are unsigned integers. Amounts of wei have up to
//! 256 bits, so they are decimal text. SQL converts such a text with `CAST(value AS HUGEINT)`.

mod error;
mod requests;
mod schema;
#[cfg(test)]
mod tests;
mod writer;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use wire::json::walk;
use wire::logs::LogMatcher;

pub use self::error::ExportError;
pub use self::requests::write_requests;
pub use self::schema::Table;
use self::writer::TableWriter;
use crate::contents::StoredRange;
use crate::reader::Reader;
use crate::search::SearchLimits;
use crate::store::TransactionPart;

/// A table that was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrittenTable {
    /// The file.
    pub path: PathBuf,
    /// The number of rows.
    pub rows: u64,
    /// Bytes of the file.
    pub bytes: u64,
}

/// Returns the first and the last block to export. If `from` or `to` is `None`, the range begins or
/// ends with the index.
///
/// # Errors
/// Fails if the index does not hold all blocks of the range.
pub fn range(
    stored: Option<StoredRange>,
    from: Option<u64>,
    to: Option<u64>,
) -> Result<(u64, u64), ExportError> {
    let Some(stored) = stored else {
        return Err(ExportError::NotInIndex("the index has no blocks yet".to_owned()));
    };
    let (first, last) = (from.unwrap_or(stored.first), to.unwrap_or(stored.last));
    if first > last {
        return Err(ExportError::NotInIndex(format!("blocks {first} to {last}: an empty range")));
    }
    if first < stored.first || last > stored.last {
        return Err(ExportError::NotInIndex(format!(
            "blocks {first} to {last}: the index has {} to {}",
            stored.first, stored.last
        )));
    }
    Ok((first, last))
}

/// Writes tables of a range of blocks into a folder, which is created if it does not exist. A file
/// gets its final name when its table is complete. `on_block` is called with the number of each
/// written block.
///
/// # Errors
/// Fails if the index does not hold the data of a table or cannot be read. Fails if a file cannot
/// be written, or if the caller sets `stop` to true.
pub fn export(
    reader: &mut Reader,
    tables: &[Table],
    folder: &Path,
    (from, to): (u64, u64),
    on_block: &mut dyn FnMut(u64),
    stop: &AtomicBool,
) -> Result<Vec<WrittenTable>, ExportError> {
    let contents = reader.metadata().contents;
    for table in tables {
        let is_stored = match table {
            Table::Blocks => true,
            Table::Transactions => contents.transactions,
            Table::Logs => contents.logs || contents.receipts,
        };
        if !is_stored {
            let name = table.name();
            return Err(ExportError::NotInIndex(format!(
                "{name}: the index contains only {contents}"
            )));
        }
    }
    std::fs::create_dir_all(folder).map_err(ExportError::for_file(folder))?;
    let mut files = Vec::new();
    for table in tables {
        files.push(TableFile::create(*table, folder)?);
    }
    let mut block = DecodedBlock::default();
    for number in from..=to {
        if stop.load(Ordering::Relaxed) {
            return Err(ExportError::Stopped);
        }
        block.read(reader, number, tables)?;
        for file in &mut files {
            block.write(number, file)?;
        }
        on_block(number);
    }
    files.into_iter().map(TableFile::finish).collect()
}

/// A table file that is written under a temporary name, and removed if it is dropped unfinished.
struct TableFile {
    table: Table,
    /// The writer; `None` once the table is finished.
    writer: Option<TableWriter>,
    /// The path while the file is written.
    temporary_path: PathBuf,
    /// The path of the finished file.
    path: PathBuf,
}

impl TableFile {
    /// Creates the file under its temporary name.
    fn create(table: Table, folder: &Path) -> Result<TableFile, ExportError> {
        let path = folder.join(table.file_name());
        let temporary_path = folder.join(table.file_name() + ".part");
        let file = File::create(&temporary_path).map_err(ExportError::for_file(&temporary_path))?;
        let writer = TableWriter::new(&temporary_path, file, table)?;
        Ok(TableFile { table, writer: Some(writer), temporary_path, path })
    }

    /// Completes the file and gives it its final name.
    fn finish(mut self) -> Result<WrittenTable, ExportError> {
        let rows = self.writer.take().map_or(Ok(0), TableWriter::finish)?;
        let file_error = ExportError::for_file(&self.path);
        std::fs::rename(&self.temporary_path, &self.path).map_err(&file_error)?;
        let bytes = self.path.metadata().map_err(&file_error)?.len();
        Ok(WrittenTable { path: self.path.clone(), rows, bytes })
    }
}

impl Drop for TableFile {
    fn drop(&mut self) {
        // A finished file has its final name, so there is nothing to remove.
        let _ = std::fs::remove_file(&self.temporary_path);
    }
}

/// The decoded JSON of one block.
#[derive(Default)]
struct DecodedBlock {
    block: Vec<u8>,
    /// The array of receipts; empty if no table needs receipts or the index holds none.
    receipts: Vec<u8>,
    /// The array of logs; empty if the receipts contain the logs, or if no table needs logs.
    logs: Vec<u8>,
}

impl DecodedBlock {
    /// Reads the parts of a block that the tables need.
    fn read(
        &mut self,
        reader: &mut Reader,
        number: u64,
        tables: &[Table],
    ) -> Result<(), ExportError> {
        let contents = reader.metadata().contents;
        let Some((_, context)) = reader.block_row(number)? else {
            return Err(ExportError::NotInIndex(format!("block {number} is missing")));
        };
        self.block.clear();
        self.receipts.clear();
        self.logs.clear();
        let needs_transactions = tables.contains(&Table::Transactions);
        let part = if needs_transactions { TransactionPart::Body } else { TransactionPart::Hash };
        reader.write_block(&mut self.block, number, part)?;
        if contents.receipts && (needs_transactions || tables.contains(&Table::Logs)) {
            let part = TransactionPart::Receipt;
            reader.write_transactions(&mut self.receipts, &context, number, part)?;
        } else if tables.contains(&Table::Logs) {
            let (every_log, limits) = (LogMatcher::default(), SearchLimits::NONE);
            self.logs.push(b'[');
            reader.write_logs(&mut self.logs, &every_log, (number, number), limits)?;
            self.logs.push(b']');
        }
        Ok(())
    }

    /// Adds the rows of the block to a table.
    fn write(&self, number: u64, file: &mut TableFile) -> Result<(), ExportError> {
        let Some(writer) = &mut file.writer else { return Ok(()) };
        match file.table {
            Table::Blocks => writer.add(number, [&self.block, b"null"])?,
            Table::Transactions => {
                let mut receipts = walk::elements(&self.receipts);
                let transactions = walk::member(&self.block, "transactions").unwrap_or_default();
                for transaction in walk::elements(transactions) {
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
