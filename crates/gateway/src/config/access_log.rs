//! `[access_log]`: format and destination of the log of requests.
//!
//! `config.rs` explains the syntax of `settings::table!`.

use std::path::{Path, PathBuf};

use settings::Report;
use settings::value::{Bool, Integer};

use super::validate::add_header;
use super::values::{OutputFile, Share};
use format::{Format, USER_AGENT};

pub mod format;
#[cfg(test)]
mod fuzz;

settings::choice! {
    /// What one line is about.
    pub enum LineSubject {
        /// A request. A batch is one request.
        "request" => Request,
        /// A single call.
        "call" => Call,
    }
}

settings::string_scalar! {
    /// Format of an access log line.
    pub LogFormat: Format = Format::parse, "a format",
        "\"json\", \"combined\", or a text with variables such as \"$remote_addr $status\"",
        "json";
}

settings::table! {
    /// One line for each request or call. `docs/access.md` lists the variables; `weir logs`
    /// summarises the lines.
    pub struct AccessLogTable {
        /// File to which lines are written; `-` is standard output. If the file is moved away, the
        /// gateway opens a new file within a second.
        file: OutputFile = described "off";
        /// Format of a line: one JSON object, nginx's combined format, or text with variables.
        format: LogFormat = "json";
        /// `request` writes one line for a batch, `call` one line for each call of a batch.
        per: LineSubject = "request";
        /// Share of lines that are written, chosen at random.
        sample: Share = "1";
        /// If true, lines with an error or a status of 400 or above are always written, whatever
        /// `sample` is.
        errors_always: Bool = "true";
        /// Maximum number of lines that wait to be written, over all threads. Further lines are
        /// dropped and counted, so a slow disk never delays a response.
        queue_lines: Integer<16, 10_000_000, usize> = "16384";
    }
}

/// The access log.
#[derive(Clone, Debug, PartialEq)]
pub struct AccessLog {
    /// Destination of the lines.
    pub target: LogTarget,
    /// Format of a line.
    pub format: Format,
    /// True for one line per call instead of one per request.
    pub per_call: bool,
    /// Share of lines that are written, from 0 to 1.
    pub sample: f64,
    /// True if lines about errors are always written.
    pub errors_always: bool,
    /// Maximum number of lines that wait to be written, over all threads.
    pub queue_lines: usize,
}

/// Destination of the lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogTarget {
    /// Standard output.
    Stdout,
    /// A file to which lines are appended. If the file is moved, a new file is opened.
    File(PathBuf),
}

/// Validates the table; `None` if the access log is off. Adds the headers of the format to
/// `used_headers`.
pub(super) fn check(
    table: &AccessLogTable,
    folder: &Path,
    used_headers: &mut Vec<Box<str>>,
    report: &mut Report<'_>,
) -> Option<AccessLog> {
    let Some(file) = &*table.file else {
        if table.location.table.is_some() && !table.file.is_set() {
            let advice = "file = \"access.log\", or \"-\" for standard output";
            report.warn(&table.file, "no file is set, so nothing is logged", advice);
        }
        return None;
    };
    if *table.format == Format::Json {
        add_header(used_headers, USER_AGENT);
    }
    Some(AccessLog {
        target: match &**file {
            "-" => LogTarget::Stdout,
            file => LogTarget::File(folder.join(file)),
        },
        format: (*table.format).clone().with_headers(|name| add_header(used_headers, name)),
        per_call: *table.per == LineSubject::Call,
        sample: *table.sample,
        errors_always: *table.errors_always,
        queue_lines: *table.queue_lines,
    })
}
