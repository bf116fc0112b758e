//! Courses from files: logs of nodes (`read/log.rs`), tables (`read/table.rs`) and our own samples
//! (`read/samples.rs`). Files are read as a stream; what is kept of one is bounded. What holds for any
//! bytes at all is `read/fuzz.rs`.

mod course;
#[cfg(test)]
mod fuzz;
mod log;
mod samples;
mod table;

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

pub(crate) use course::{Builder, Kept};
pub use samples::Line as SampleLine;

use super::StudyFault;
use crate::analysis::sync::Course;

/// How much is kept of a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Bytes of a line that are looked at, and of a statistic on many lines; no sample is that long,
    /// and a file without line breaks must not fill the memory.
    pub(super) line_bytes: usize,
    /// Of a course.
    pub(super) kept: Kept,
}

impl Limits {
    pub(super) const USUAL: Limits = Limits { line_bytes: 64 << 10, kept: Kept::USUAL };
}

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A `debug.log` of a Pocketcoin node with log category `stat`.
    PocketcoinLog,
    /// A table with a header.
    Table,
    /// JSON lines, as `--samples` of our own commands writes them.
    Samples,
}

/// Reads a file.
///
/// # Errors
/// If it cannot be read, a line is not what it must be, or there is no sample in it.
pub fn course(path: &Path, form: Form) -> Result<Course, StudyFault> {
    let fault = |source| StudyFault::Read { path: path.to_owned(), source };
    let file = File::open(path).map_err(fault)?;
    read(path, &mut BufReader::with_capacity(64 << 10, file), form, Limits::USUAL)
}

/// Reads what is behind a path.
pub(super) fn read(
    path: &Path,
    from: &mut dyn BufRead,
    form: Form,
    limits: Limits,
) -> Result<Course, StudyFault> {
    let lines = Lines { path, from, limits, line: Vec::new(), number: 0, whole: true };
    let label = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into());
    let (built, missing) = match form {
        Form::PocketcoinLog => (
            log::read(lines)?,
            "there is no statistic in it: the node must log category stat (debug=stat)",
        ),
        Form::Table => (table::read(lines)?, "there is no row after its header"),
        Form::Samples => (samples::read(lines)?, "there is no sample with a height in it"),
    };
    let empty = || StudyFault::Empty { path: path.to_owned(), what: missing.to_owned() };
    built.finish(&label).ok_or_else(empty)
}

/// The lines of a file, counted, each of bounded length.
struct Lines<'a> {
    path: &'a Path,
    from: &'a mut dyn BufRead,
    limits: Limits,
    line: Vec<u8>,
    number: u64,
    /// Whether the last line that was read ends with a line break.
    whole: bool,
}

impl Lines<'_> {
    /// A course without samples that is to be built from them.
    fn course(&self) -> Builder {
        Builder::keeping(self.limits.kept)
    }

    /// The next line without its end; none after the last. What is longer than it may be is cut.
    fn next(&mut self) -> Result<Option<&str>, StudyFault> {
        self.line.clear();
        let fault = |source| StudyFault::Read { path: self.path.to_owned(), source };
        self.whole = read_line(self.from, &mut self.line, self.limits.line_bytes).map_err(fault)?;
        if self.line.is_empty() && !self.whole {
            return Ok(None);
        }
        self.number += 1;
        while matches!(self.line.last(), Some(b'\n' | b'\r')) {
            self.line.pop();
        }
        // What is no text is no sample either; it must not end the reading of a log.
        if std::str::from_utf8(&self.line).is_err() {
            self.line = String::from_utf8_lossy(&self.line).into_owned().into_bytes();
        }
        Ok(Some(std::str::from_utf8(&self.line).unwrap_or_default()))
    }

    /// A fault of the line that was read last.
    fn fault(&self, what: impl Into<String>) -> StudyFault {
        StudyFault::Line { path: self.path.to_owned(), line: self.number, what: what.into() }
    }
}

/// Reads up to a line break, keeps a bounded part; whether a line break was found.
fn read_line(reader: &mut dyn BufRead, line: &mut Vec<u8>, most: usize) -> io::Result<bool> {
    loop {
        let piece = match reader.fill_buf() {
            Ok(piece) => piece,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if piece.is_empty() {
            return Ok(false);
        }
        let end = memchr::memchr(b'\n', piece);
        let length = end.map_or(piece.len(), |at| at + 1);
        let room = most.saturating_sub(line.len()).min(length);
        line.extend_from_slice(&piece[..room]);
        reader.consume(length);
        if end.is_some() {
            return Ok(true);
        }
    }
}

/// Seconds since 1970 of an RFC 3339 instant.
fn instant(text: &str) -> Result<f64, String> {
    let parsed: Result<jiff::Timestamp, _> = text.trim().parse();
    let told = |_| format!("{:?} is no instant; allowed: 2026-11-22T15:00:00Z", shown(text));
    #[expect(clippy::cast_precision_loss, reason = "to the microsecond until the year 2200")]
    parsed.map(|at| at.as_microsecond() as f64 / 1e6).map_err(told)
}

/// The beginning of something as it may stand in a message.
fn shown(text: &str) -> String {
    begin(text, 60)
}

/// As many characters of a text; whether there are more can be seen.
fn begin(text: &str, chars: usize) -> String {
    let cut: String = text.chars().take(chars).collect();
    if cut.len() < text.len() { cut + "…" } else { cut }
}
