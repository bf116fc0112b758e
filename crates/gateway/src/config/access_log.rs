//! `[access_log]`: what is logged of requests, and where.

use std::path::{Path, PathBuf};

use settings::Report;
use settings::value::{Bool, Count};

use super::kept_header;
use super::values::{LogFormat, OutputFile, Share};
use format::Format;

pub mod format;
#[cfg(test)]
mod fuzz;

settings::choice! {
    /// What a line is about.
    pub enum Per {
        /// A request, with all calls of a batch.
        "request" => Request,
        /// A call.
        "call" => Call,
    }
}

settings::table! {
    /// A line for each request or call. `docs/access.md` lists the variables; `weir logs` sums
    /// lines up.
    pub struct AccessLogTable {
        /// Where lines are written; `-` is standard output. A file that was moved away is reopened
        /// within a second.
        file: OutputFile = follows "off";
        /// What a line holds: one JSON object, nginx's combined format, or variables.
        format: LogFormat = "json";
        /// Whether a batch is one line, or one for each of its calls.
        per: Per = "request";
        /// Share of lines that are written, chosen at random.
        sample: Share = "1";
        /// Whether lines with an error or a status of 400 or above are written whatever the share.
        errors_always: Bool = "true";
        /// Lines that may wait to be written, over all threads. What is beyond is dropped and
        /// counted: a slow disk never delays a response.
        queue_lines: Count<16, 10_000_000, usize> = "16384";
    }
}

/// What is logged of requests, and where.
#[derive(Clone, Debug, PartialEq)]
pub struct AccessLog {
    /// Where lines are written.
    pub to: LogTarget,
    /// What a line holds.
    pub format: Format,
    /// One line for each call in place of one for each request.
    pub per_call: bool,
    /// Share of lines that are written.
    pub sample: f64,
    /// True if lines about errors are written whatever the share.
    pub errors_always: bool,
    /// Lines that may wait to be written, over all threads.
    pub queue_lines: usize,
}

/// Where lines are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogTarget {
    /// Standard output.
    Stdout,
    /// A file, which is appended to, and reopened when it was moved away.
    File(PathBuf),
}

/// `None` if nothing is logged. Adds the headers of the format to `kept_headers`.
pub(super) fn check(
    table: &AccessLogTable,
    folder: &Path,
    kept_headers: &mut Vec<Box<str>>,
    report: &mut Report<'_>,
) -> Option<AccessLog> {
    let Some(file) = &*table.file else {
        if table.at.table.is_some() && !table.file.is_set() {
            let advice = "file = \"access.log\", or \"-\" for standard output";
            report.warn(&table.file, "without a file nothing is written", advice);
        }
        return None;
    };
    let format = (*table.format).clone();
    for name in format.headers() {
        kept_header(kept_headers, name);
    }
    Some(AccessLog {
        to: match &**file {
            "-" => LogTarget::Stdout,
            file => LogTarget::File(folder.join(file)),
        },
        format: format.placed(|name| kept_headers.iter().position(|kept| **kept == *name)),
        per_call: *table.per == Per::Call,
        sample: *table.sample,
        errors_always: *table.errors_always,
        queue_lines: *table.queue_lines,
    })
}
