//! Audits an index: reads all its rows and reports damage. An audit calls no node.
//!
//! The audit compares all data that an index stores twice. Rows are compared with their decoded
//! JSON. Hash tables, which lead from hashes to blocks and transactions, are compared with these
//! rows. Posting lists, the search index of the logs, are compared with the logs. All other data is
//! verified by the block's hash; [`crate::verify`] lists the members that no hash covers. The order
//! of blocks is verified by their parent hashes. The audit does not decide whether the blocks are
//! on the chain of other nodes.
//!
//! The memory of an audit does not grow with the index, except for two numbers per 256 blocks.
//!
//! A position is a transaction's block number and index in one `i64` (`postings.rs`). A fragment is
//! a part of a block's JSON, stored in compressed form (`compression.rs`).

mod postings;
#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

use wire::json;
use wire::json::walk;
use wire::logs;
use wire::logs::LogMatcher;
use wire::quantity;

use self::postings::{Segment, SegmentSums};
use crate::contents::StoredRange;
use crate::error::ReadError;
use crate::fragments::BlockHeader;
use crate::harmony::{self, BlockOptions};
use crate::postings::{INDEX_MAX, block_and_index, log_keys, position};
use crate::reader::Reader;
use crate::search::SearchLimits;
use crate::store::{BlockRow, StoreError, Table, TransactionPart};
use crate::verify::{self, Level};

/// Maximum number of findings. The audit ends at this number, because the index must be restored or
/// synced again in any case.
pub const FINDINGS_MAX: usize = 20;
/// Maximum nesting of arrays and objects in stored JSON, as in responses of nodes.
const DEPTH_MAX: usize = 64;

/// One damage that the audit has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The number of the damaged block; `None` if the damage concerns no single block.
    pub block: Option<u64>,
    /// Description of the damage.
    pub description: String,
}

impl Finding {
    /// Creates the finding of damage that concerns a block.
    fn in_block(number: u64, description: impl Into<String>) -> Finding {
        Finding { block: Some(number), description: description.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.block {
            Some(number) => write!(f, "block {number}: {}", self.description),
            None => f.write_str(&self.description),
        }
    }
}

/// The result of an audit.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// The range of blocks that the index holds; `None` if the index is empty.
    pub range: Option<StoredRange>,
    /// The findings, at most [`FINDINGS_MAX`].
    pub findings: Vec<Finding>,
    /// Number of blocks that have transactions or receipts of a type that cannot be verified.
    pub unverifiable: u64,
    /// True if the caller stopped the audit.
    pub stopped: bool,
}

/// The progress of an audit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuditStep {
    /// SQLite checks its own structures, which takes as long as reading the file.
    Structures,
    /// The posting lists are read.
    Postings,
    /// A block was audited.
    Block {
        /// The first block.
        first: u64,
        /// The block that was audited.
        current: u64,
        /// The last block.
        last: u64,
    },
}

/// Audits an index, and verifies its blocks at this level of [`crate::verify`]. The audit passes
/// its progress to `on_step`, and ends early once `stop` is true.
///
/// # Errors
/// Fails if the index cannot be read at all. Damage is a finding instead.
pub fn audit(
    reader: &mut Reader,
    level: Level,
    on_step: &mut dyn FnMut(AuditStep),
    stop: &AtomicBool,
) -> Result<Report, ReadError> {
    reader.store().begin_snapshot()?;
    let mut audit = Audit { reader, level, stop, report: Report::default(), previous: None };
    let outcome = audit.run(on_step);
    let report = audit.report;
    reader.store().end_snapshot()?;
    outcome.map(|_| report)
}

/// The state of a running audit.
struct Audit<'a> {
    reader: &'a mut Reader,
    level: Level,
    stop: &'a AtomicBool,
    report: Report,
    /// The number and the hash of the block that was audited before the current block.
    previous: Option<(u64, [u8; 32])>,
}

/// `Break` means that the audit has [`FINDINGS_MAX`] findings or was stopped.
type Flow = ControlFlow<()>;
const CONTINUE: Flow = Flow::Continue(());
const BREAK: Flow = Flow::Break(());

impl Audit<'_> {
    /// Runs all steps of the audit.
    fn run(&mut self, on_step: &mut dyn FnMut(AuditStep)) -> Result<Flow, ReadError> {
        on_step(AuditStep::Structures);
        let errors = self.reader.store().integrity_errors()?.into_iter();
        let findings =
            errors.map(|error| Finding { block: None, description: format!("SQLite: {error}") });
        if self.report_all(findings).is_break() || self.check_dictionaries()?.is_break() {
            return Ok(BREAK);
        }
        let range = match self.reader.stored_range() {
            Err(error) => return self.report_error(None, error),
            Ok(range) => range,
        };
        self.report.range = range;
        let Some(range) = range else { return Ok(CONTINUE) };
        if self.check_range(range)?.is_break() {
            return Ok(BREAK);
        }
        on_step(AuditStep::Postings);
        let mut sums = match SegmentSums::read(self.reader.store(), range, self.stop) {
            Err(error) => match self.report_error(None, error.into())? {
                Flow::Continue(()) => None,
                Flow::Break(()) => return Ok(BREAK),
            },
            Ok((sums, damaged_lists)) => {
                if self.report_all(damaged_lists).is_break() {
                    return Ok(BREAK);
                }
                Some(sums)
            }
        };
        if self.check_blocks(range, &mut sums, on_step)?.is_break() {
            return Ok(BREAK);
        }
        self.check_dangling(sums)
    }

    /// Adds a finding to the report.
    fn report(&mut self, block: Option<u64>, description: impl Into<String>) -> Flow {
        self.report_all([Finding { block, description: description.into() }])
    }

    /// Adds findings to the report, until the report is full.
    fn report_all(&mut self, findings: impl IntoIterator<Item = Finding>) -> Flow {
        findings.into_iter().try_for_each(|finding| {
            self.report.findings.push(finding);
            if self.report.findings.len() >= FINDINGS_MAX { BREAK } else { CONTINUE }
        })
    }

    /// Adds a finding for an error that damage in the index has caused.
    ///
    /// # Errors
    /// Returns any other error.
    fn report_error(&mut self, block: Option<u64>, error: ReadError) -> Result<Flow, ReadError> {
        match error {
            ReadError::Compression(error) => Ok(self.report(block, error.to_string())),
            ReadError::Store(StoreError::Damaged(description)) => {
                let prefix = block.map(|number| format!("block {number}, ")).unwrap_or_default();
                Ok(self.report(block, description.strip_prefix(&prefix).unwrap_or(&description)))
            }
            // The cause is a value of a wrong type or length in a column.
            ReadError::Store(StoreError::Sqlite(error)) => {
                Ok(self.report(block, error.to_string()))
            }
            error => Err(error),
        }
    }

    /// Checks the digest of the compression dictionaries. Without the digest, the audit would find
    /// a changed byte only if a fragment refers to that byte.
    fn check_dictionaries(&mut self) -> Result<Flow, ReadError> {
        match self.reader.store().dictionaries_match() {
            Ok(Some(false)) => {
                let description = "the dictionaries have changed since the index was created";
                Ok(self.report(None, description))
            }
            // The digest matches, or an index of an older version has no digest.
            Ok(Some(true) | None) => Ok(CONTINUE),
            Err(error) => self.report_error(None, error.into()),
        }
    }

    /// Checks that the first stored block is the first block according to the metadata. Also checks
    /// that no block number or position is negative.
    fn check_range(&mut self, range: StoredRange) -> Result<Flow, ReadError> {
        let first_block = self.reader.store().next_block(0)?;
        if first_block != Some(range.first) {
            let actual = first_block.map_or("it has no blocks".to_owned(), |first_block| {
                format!("its first block is {first_block}")
            });
            let expected = range.first;
            let description = format!("the index must begin with block {expected}, but {actual}");
            if self.report(None, description).is_break() {
                return Ok(BREAK);
            }
        }
        if self.reader.store().has_negative_keys()? {
            return Ok(self.report(None, "blocks or transactions have negative numbers"));
        }
        Ok(CONTINUE)
    }

    /// Checks all blocks in order, and the posting lists of each segment after its last block. A
    /// segment is a fixed number of consecutive blocks (`audit/postings.rs`). `sums` is `None` if
    /// the posting lists are unreadable.
    fn check_blocks(
        &mut self,
        range: StoredRange,
        sums: &mut Option<SegmentSums>,
        on_step: &mut dyn FnMut(AuditStep),
    ) -> Result<Flow, ReadError> {
        let mut segment = Segment::default();
        let mut next = range.first;
        while let Some(number) = self.reader.store().next_block(next)? {
            if self.stop.load(Ordering::Relaxed) {
                self.report.stopped = true;
                return Ok(BREAK);
            }
            let is_after_gap = number > next;
            if is_after_gap {
                let description = if number == next + 1 {
                    "the block is missing".to_owned()
                } else {
                    format!("all blocks from here to {} are missing", number - 1)
                };
                if self.report(Some(next), description).is_break() {
                    return Ok(BREAK);
                }
                // The postings of the missing blocks may belong to this segment or to the previous
                // one. So the audit compares neither segment with its logs.
                segment.skip_comparison();
            }
            if !segment.contains(number) {
                if self.check_segment(&mut segment, sums)?.is_break() {
                    return Ok(BREAK);
                }
                if is_after_gap {
                    segment.skip_comparison();
                }
            }
            let flow = match self.check_block(number, &mut segment) {
                Ok(flow) => flow,
                Err(error) => {
                    // The posting keys of unreadable logs are unknown.
                    segment.skip_comparison();
                    self.report_error(Some(number), error)?
                }
            };
            if flow.is_break() {
                return Ok(BREAK);
            }
            on_step(AuditStep::Block { first: range.first, current: number, last: range.last });
            let Some(next_number) = number.checked_add(1) else { break };
            next = next_number;
        }
        self.check_segment(&mut segment, sums)
    }

    /// Compares the posting lists of a segment with its logs. Does nothing if `sums` is `None`.
    fn check_segment(
        &mut self,
        segment: &mut Segment,
        sums: &mut Option<SegmentSums>,
    ) -> Result<Flow, ReadError> {
        let Some(sums) = sums else { return Ok(CONTINUE) };
        let differences = segment.finish(sums, self.reader.store(), FINDINGS_MAX)?;
        Ok(self.report_all(differences))
    }

    /// Checks one block with its rows and JSON, and adds the postings of its logs to the segment.
    fn check_block(&mut self, number: u64, segment: &mut Segment) -> Result<Flow, ReadError> {
        segment.begin_block(number);
        let Some((row, context)) = self.reader.block_row(number)? else { return Ok(CONTINUE) };
        let mut faults = self.find_transaction_faults(&row)?;
        if !faults.is_empty() {
            // The logs of missing transactions are missing too.
            segment.skip_comparison();
        }
        let contents = self.reader.metadata().contents;
        let mut block = Vec::new();
        self.reader.write_block(&mut block, number, TransactionPart::Body)?;
        let (mut receipts, mut logs) = (None, None);
        if contents.receipts {
            let array = receipts.insert(Vec::new());
            self.reader.write_transactions(array, &context, number, TransactionPart::Receipt)?;
        } else if contents.logs {
            let array = logs.insert(b"[".to_vec());
            let (every_log, limits) = (LogMatcher::default(), SearchLimits::NONE);
            self.reader.write_logs(array, &every_log, (number, number), limits)?;
            array.push(b']');
        }
        let decoded =
            DecodedBlock { block: &block, receipts: receipts.as_deref(), logs: logs.as_deref() };
        faults.extend(find_row_faults(&row, decoded.block, self.previous));
        if !self.reader.store().has_block_hash_entry(&row.hash, row.number)? {
            faults.push("its hash has no entry in block_hashes".to_owned());
        }
        match decoded.verify(self.level, contents.transactions) {
            Ok(()) => {}
            Err(VerifyFailure::Fault(description)) => faults.push(description),
            Err(VerifyFailure::Unverifiable) => self.report.unverifiable += 1,
        }
        if contents.hmyv2 {
            faults.extend(self.find_harmony_fault(&row)?);
        }
        if contents.logs {
            decoded.add_postings(number, segment);
        }
        self.previous = Some((number, row.hash));
        Ok(self.report_all(faults.into_iter().map(|fault| Finding::in_block(number, fault))))
    }

    /// Returns the fault of a block in its `hmyv2_` form, or `None` if there is no fault. This form
    /// is the block as Harmony's `hmyv2_` methods write it.
    fn find_harmony_fault(&mut self, row: &BlockRow) -> Result<Option<String>, ReadError> {
        let mut raw = Vec::new();
        if !self.reader.write_harmony_block(&mut raw, row.number, BlockOptions::STORED)? {
            return Ok(Some("its hmyv2 form is missing".to_owned()));
        }
        if let Err(error) = json::validate(&raw, DEPTH_MAX) {
            return Ok(Some(format!("hmyv2 block: not JSON: {error}")));
        }
        Ok(harmony::check_identity(&raw, row.number, &row.hash).err())
    }

    /// Returns the faults in the rows of a block's transactions.
    fn find_transaction_faults(&mut self, row: &BlockRow) -> Result<Vec<String>, ReadError> {
        let store = self.reader.store();
        let mut rows = Vec::new();
        let (from, to) = (position(row.number, 0), position(row.number, INDEX_MAX));
        store.try_visit_transactions(from, to, TransactionPart::Hash, |row| {
            rows.push((row.position, row.hash));
            Ok::<_, ReadError>(true)
        })?;
        let mut faults = Vec::new();
        let (count, expected) = (rows.len() as u64, row.transaction_count);
        if count != expected {
            faults.push(format!("{count} transactions are stored, but its row counts {expected}"));
        }
        let indexes = rows.iter().map(|(position, _)| block_and_index(*position).1);
        if let Some((index, _)) = (0..).zip(indexes).find(|(expected, index)| expected != index) {
            faults.push(format!("transaction {index} is missing"));
        }
        if let Some(position) = store.missing_hash_entry(&rows)? {
            let index = block_and_index(position).1;
            faults.push(format!(
                "the hash of transaction {index} has no entry in transaction_hashes"
            ));
        }
        Ok(faults)
    }

    /// Reports rows that belong to no block. A hash table is read only if its number of entries
    /// differs from the number of blocks or transactions. If the numbers are equal, `check_block`
    /// has already found every entry of the table.
    fn check_dangling(&mut self, sums: Option<SegmentSums>) -> Result<Flow, ReadError> {
        let store = self.reader.store();
        let mut dangling = Vec::new();
        if store.count(Table::BlockHashes)? != store.count(Table::Blocks)? {
            for number in store.dangling_block_hashes(FINDINGS_MAX)? {
                let description = "block_hashes has an entry with another hash for it";
                dangling.push(Finding::in_block(number as u64, description));
            }
        }
        if store.count(Table::TransactionHashes)? != store.count(Table::Transactions)? {
            for position in store.dangling_transaction_hashes(FINDINGS_MAX)? {
                let (number, index) = block_and_index(position);
                let description = format!(
                    "transaction_hashes has an entry with another hash for transaction {index}"
                );
                dangling.push(Finding::in_block(number, description));
            }
        }
        for position in store.dangling_transactions(FINDINGS_MAX)? {
            let (number, index) = block_and_index(position);
            let description = format!("transaction {index} is stored without its block");
            dangling.push(Finding::in_block(number, description));
        }
        for number in store.dangling_harmony_blocks(FINDINGS_MAX)? {
            let description = "its hmyv2 form is stored without the block";
            dangling.push(Finding::in_block(number as u64, description));
        }
        dangling.extend(sums.map(SegmentSums::into_dangling).unwrap_or_default());
        Ok(self.report_all(dangling))
    }
}

/// Compares the row of a block with its decoded JSON and with the previous block, and describes the
/// differences.
fn find_row_faults(row: &BlockRow, raw: &[u8], previous: Option<(u64, [u8; 32])>) -> Vec<String> {
    let header = match BlockHeader::read(raw) {
        Ok(header) => header,
        Err(error) => return vec![error],
    };
    let mut faults = Vec::new();
    let comparisons = [
        ("number", header.number == row.number),
        ("hash", header.hash == row.hash),
        ("time", header.timestamp == row.timestamp),
    ];
    for (name, _) in comparisons.iter().filter(|(_, is_equal)| !is_equal) {
        faults.push(format!("its {name} differs between its row and its JSON"));
    }
    if let Some((_, hash)) = previous.filter(|(number, _)| number + 1 == row.number)
        && header.parent_hash != hash
    {
        faults.push("its parentHash is not the hash of the block before".to_owned());
    }
    let transactions = walk::member(raw, "transactions").unwrap_or_default();
    let (count, expected) = (walk::elements(transactions).count() as u64, row.transaction_count);
    if count != expected {
        faults.push(format!("its JSON lists {count} transactions, but its row counts {expected}"));
    }
    faults
}

/// The decoded JSON of a block.
#[derive(Clone, Copy)]
struct DecodedBlock<'a> {
    block: &'a [u8],
    /// The array of receipts; `None` if the index does not hold receipts.
    receipts: Option<&'a [u8]>,
    /// The array of logs; `None` if the index holds no logs. Also `None` if the index holds
    /// receipts, which contain the logs.
    logs: Option<&'a [u8]>,
}

/// The reason why the verification of a block failed.
enum VerifyFailure {
    /// The block is damaged, as the text describes.
    Fault(String),
    /// The block has a transaction of an unknown type.
    Unverifiable,
}

impl DecodedBlock<'_> {
    /// Checks that all parts are JSON, and verifies them by the block's hash.
    /// `has_full_transactions` is true if the block has full transactions instead of their hashes.
    fn verify(self, level: Level, has_full_transactions: bool) -> Result<(), VerifyFailure> {
        let parts = [("block", Some(self.block)), ("receipts", self.receipts), ("logs", self.logs)];
        for (name, raw) in parts {
            if let Some(Err(error)) = raw.map(|raw| json::validate(raw, DEPTH_MAX)) {
                return Err(VerifyFailure::Fault(format!("{name}: not JSON: {error}")));
            }
        }
        let result =
            verify::verify_all(self.block, has_full_transactions, self.receipts, self.logs, level);
        result.map_err(|error| match error.is_unverifiable() {
            true => VerifyFailure::Unverifiable,
            false => VerifyFailure::Fault(error.to_string()),
        })
    }

    /// Adds the postings of all logs to a segment.
    fn add_postings(self, number: u64, segment: &mut Segment) {
        let mut add = |index: u64, log: &[u8]| match logs::parse_address_and_topics(log) {
            Some((address, topics)) => {
                for key in log_keys(&address, &topics) {
                    segment.add(key, position(number, index));
                }
            }
            // The verification reports malformed logs.
            None => segment.skip_comparison(),
        };
        for (index, receipt) in walk::elements(self.receipts.unwrap_or_default()).enumerate() {
            for log in walk::elements(walk::member(receipt, "logs").unwrap_or_default()) {
                add(index as u64, log);
            }
        }
        for log in walk::elements(self.logs.unwrap_or_default()) {
            // A log without a valid index gets the greatest index, which no stored transaction has.
            let index = walk::member(log, "transactionIndex").and_then(quantity::from_value);
            add(index.unwrap_or(INDEX_MAX), log);
        }
    }
}
