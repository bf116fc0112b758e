//! `[access_log]`: format and destination of the log of requests.

use std::path::{Path, PathBuf};

use settings::Report;
use settings::value::{Bool, Count};

use super::header_index;
use super::values::{LogFormat, OutputFile, Share};
use format::Format;

pub mod format;
#[cfg(test)]
mod fuzz;

settings::choice! {
    /// Subject of one line.
    pub enum Per {
        /// A request, with all calls of a batch.
        "request" => Request,
        /// A call.
        "call" => Call,
    }
}

settings::table! {
    /// One line for each request or call. `docs/access.md` lists the variables; `weir logs`
    /// summarises the lines.
    pub struct AccessLogTable {
        /// File to which lines are written; `-` is standard output. A file that was moved away is
        /// reopened within a second.
        file: OutputFile = described "off";
        /// Format of a line: one JSON object, nginx's combined format, or text with variables.
        format: LogFormat = "json";
        /// `request`: one line per batch; `call`: one line per call of a batch.
        per: Per = "request";
        /// Share of lines that are written, chosen at random.
        sample: Share = "1";
        /// If true, lines with an error or a status of 400 or above are always written.
        errors_always: Bool = "true";
        /// Lines that may wait to be written, over all threads. Further lines are dropped and
        /// counted: a slow disk never delays a response.
        queue_lines: Count<16, 10_000_000, usize> = "16384";
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
    /// Share of lines that are written.
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
    /// A file. Lines are appended. If the file is moved, a new one is opened.
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
    let format = (*table.format).clone();
    for name in format.headers() {
        header_index(used_headers, name);
    }
    Some(AccessLog {
        target: match &**file {
            "-" => LogTarget::Stdout,
            file => LogTarget::File(folder.join(file)),
        },
        format: format
            .with_header_indices(|name| used_headers.iter().position(|kept| **kept == *name)),
        per_call: *table.per == Per::Call,
        sample: *table.sample,
        errors_always: *table.errors_always,
        queue_lines: *table.queue_lines,
    })
}
