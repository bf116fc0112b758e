//! Reads runs from files: logs of nodes (`read/pocketcoin_log.rs`, `read/line_log.rs`), tables
//! (`read/table.rs`) and sample files (`read/samples.rs`).
//!
//! A file is read line by line, and the memory for its run is bounded. `read/fuzz.rs` tests
//! invariants with arbitrary bytes.

mod builder;
#[cfg(test)]
mod fuzz;
mod line_log;
mod pocketcoin_log;
mod samples;
mod table;

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

pub(crate) use builder::{RunBuilder, RunLimits};
pub use line_log::LogFormat;
pub use samples::SampleLine;

use super::StudyFault;
use crate::analysis::sync::SyncRun;

/// Memory limits of reading a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Maximum length in bytes of a line, and of a sample that covers several lines. Real samples
    /// are shorter. The limit bounds the memory for a file without line breaks.
    pub(super) line_bytes: usize,
    /// Limits of a run.
    pub(super) run: RunLimits,
}

impl Limits {
    pub(super) const DEFAULT: Limits = Limits { line_bytes: 64 << 10, run: RunLimits::DEFAULT };
}

/// Format of a file.
#[derive(Clone, Copy, Debug)]
pub enum FileFormat {
    /// A `debug.log` of a Pocketcoin node with log category `stat`.
    PocketcoinLog,
    /// A log of a node in which one line announces a new block.
    LineLog(&'static LogFormat),
    /// A CSV table with a header line.
    Table,
    /// JSON lines, as `--samples` of the index commands writes them.
    Samples,
}

impl FileFormat {
    /// Names of the log formats.
    pub fn log_names() -> impl Iterator<Item = &'static str> {
        let line_logs = LogFormat::all().iter().map(|format| format.name.as_str());
        std::iter::once(POCKETCOIN).chain(line_logs)
    }

    /// Returns the log format with a name, or `None` if there is no such format.
    pub fn log(name: &str) -> Option<FileFormat> {
        match name {
            POCKETCOIN => Some(FileFormat::PocketcoinLog),
            _ => {
                LogFormat::all().iter().find(|format| format.name == name).map(FileFormat::LineLog)
            }
        }
    }
}

impl FileFormat {
    /// Returns the assumed time between two blocks, in seconds, for files that do not show it.
    pub fn block_time(self) -> f64 {
        match self {
            FileFormat::LineLog(format) => format.block_time,
            // Pocketcoin makes a block per minute. Tables and samples may be of any chain.
            FileFormat::PocketcoinLog | FileFormat::Table | FileFormat::Samples => 60.0,
        }
    }
}

/// Name of the log format of Pocketcoin nodes.
const POCKETCOIN: &str = "pocketcoin";

/// Reads a run from a file.
///
/// # Errors
/// Fails if the file cannot be read, a line is invalid, or the file has no sample.
pub fn read_run(path: &Path, form: FileFormat) -> Result<SyncRun, StudyFault> {
    let fault = |source| StudyFault::Read { path: path.to_owned(), source };
    let file = File::open(path).map_err(fault)?;
    read(path, &mut BufReader::with_capacity(64 << 10, file), form, Limits::DEFAULT)
}

/// Reads a run from an open file. `path` is only for messages and for the label of the run.
pub(super) fn read(
    path: &Path,
    reader: &mut dyn BufRead,
    form: FileFormat,
    limits: Limits,
) -> Result<SyncRun, StudyFault> {
    let lines = Lines { path, reader, limits, line: Vec::new(), number: 0, ends_with_break: true };
    let label = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into());
    let (run, message_if_empty) = match form {
        FileFormat::PocketcoinLog => (
            pocketcoin_log::read(lines)?,
            "it has no statistic: the node must log category stat (debug=stat)",
        ),
        FileFormat::LineLog(format) => {
            (line_log::read(lines, format)?, "no line announces a new block")
        }
        FileFormat::Table => (table::read(lines)?, "it has no row after its header"),
        FileFormat::Samples => (samples::read(lines)?, "it has no sample with a height"),
    };
    let what = message_if_empty.to_owned();
    let empty_fault = || StudyFault::Empty { path: path.to_owned(), what };
    run.finish(&label).ok_or_else(empty_fault)
}

/// The numbered lines of a file, each of bounded length.
struct Lines<'a> {
    path: &'a Path,
    reader: &'a mut dyn BufRead,
    limits: Limits,
    /// The line that was read last.
    line: Vec<u8>,
    /// Number of that line, from 1.
    number: u64,
    /// True if that line ends with a line break in the file.
    ends_with_break: bool,
}

impl Lines<'_> {
    /// Returns a builder without samples, with the limits of these lines.
    fn new_run(&self) -> RunBuilder {
        RunBuilder::with_limits(self.limits.run)
    }

    /// Returns the next line without its line break, or `None` after the last line. A line that is
    /// longer than [`Limits::line_bytes`] is cut.
    fn next(&mut self) -> Result<Option<&str>, StudyFault> {
        self.line.clear();
        let fault = |source| StudyFault::Read { path: self.path.to_owned(), source };
        self.ends_with_break =
            read_line(self.reader, &mut self.line, self.limits.line_bytes).map_err(fault)?;
        if self.line.is_empty() && !self.ends_with_break {
            return Ok(None);
        }
        self.number += 1;
        while matches!(self.line.last(), Some(b'\n' | b'\r')) {
            self.line.pop();
        }
        // A line of a log may contain any bytes. Invalid UTF-8 is replaced.
        if std::str::from_utf8(&self.line).is_err() {
            self.line = String::from_utf8_lossy(&self.line).into_owned().into_bytes();
        }
        Ok(Some(std::str::from_utf8(&self.line).unwrap_or_default()))
    }

    /// Returns an error about the line that was read last.
    fn fault(&self, what: impl Into<String>) -> StudyFault {
        StudyFault::Line { path: self.path.to_owned(), line: self.number, what: what.into() }
    }
}

/// Reads up to the next line break, but stores at most `max_bytes` bytes. Returns true if there was
/// a line break before the end of the file.
fn read_line(reader: &mut dyn BufRead, line: &mut Vec<u8>, max_bytes: usize) -> io::Result<bool> {
    loop {
        let buffer = match reader.fill_buf() {
            Ok(buffer) => buffer,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if buffer.is_empty() {
            return Ok(false);
        }
        let newline = memchr::memchr(b'\n', buffer);
        let length = newline.map_or(buffer.len(), |index| index + 1);
        let stored_length = max_bytes.saturating_sub(line.len()).min(length);
        line.extend_from_slice(&buffer[..stored_length]);
        reader.consume(length);
        if newline.is_some() {
            return Ok(true);
        }
    }
}

/// Converts an RFC 3339 instant to seconds since 1970.
fn parse_instant(text: &str) -> Result<f64, String> {
    let parsed: Result<jiff::Timestamp, _> = text.trim().parse();
    let fault = |_| format!("{:?} is not a time such as 2026-11-22T15:00:00Z", excerpt(text));
    #[expect(clippy::cast_precision_loss, reason = "to the microsecond until the year 2200")]
    parsed.map(|timestamp| timestamp.as_microsecond() as f64 / 1e6).map_err(fault)
}

/// Returns the beginning of a text for a message.
fn excerpt(text: &str) -> String {
    truncate(text, 60)
}

/// Returns the first characters of a text, with an ellipsis if the text is longer.
fn truncate(text: &str, max_chars: usize) -> String {
    let start: String = text.chars().take(max_chars).collect();
    if start.len() < text.len() { start + "…" } else { start }
}
