//! Reads results of `weir load` and of other load-testing tools as variants of a comparison. The
//! other tools are k6 (summaries), vegeta (reports and results) and erigontech/rpc-tests (CSV
//! reports).
//!
//! The content of a file determines its format; its name does not matter. Numbers are used
//! unchanged. Notes state how a tool measures differently: when its clock starts, and which times
//! it leaves out.

mod erigon;
mod k6;
mod vegeta;

use std::io;
use std::path::{Path, PathBuf};

use lab_model::results::run::{RunResult, SCHEMA};
use thiserror::Error;

use crate::variant;
use crate::variant::{Run, Variant};

/// Maximum size of a result file in bytes. The result of a run of one day, with one sample per
/// second, has about 50 MB.
pub(crate) const FILE_BYTES_MAX: u64 = 512 << 20;

/// Reason why a file or folder cannot be used as a variant.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "each field is a part of the message")]
pub enum ImportFault {
    /// Reading failed.
    #[error("cannot read {path}")]
    Read { path: PathBuf, source: io::Error },
    /// The file is too long.
    #[error("{path} has {bytes} bytes; at most {FILE_BYTES_MAX} are allowed")]
    TooLong { path: PathBuf, bytes: u64 },
    /// The result has an unsupported schema.
    #[error("{path} has the schema {found_schema:?}; this program reads {SCHEMA:?}")]
    Schema { path: PathBuf, found_schema: String },
    /// The format is unknown.
    #[error(
        "{path} is not one of: a result.json, a k6 summary (JSON), a vegeta report (JSON) or result \
         (JSON lines, CSV), an rpc-tests report (CSV): {reason}"
    )]
    Unknown {
        path: PathBuf,
        /// Why the format that comes closest does not match.
        reason: String,
    },
    /// A line is invalid.
    #[error("{path}, line {line}: {reason}")]
    Line {
        path: PathBuf,
        /// Line number, from 1.
        line: u64,
        /// The fault, and what is allowed.
        reason: String,
    },
    /// The folder has too many runs.
    #[error("{path} has {runs} runs; at most {runs_max} are compared")]
    TooManyRuns { path: PathBuf, runs: usize, runs_max: usize },
    /// There is nothing to compare.
    #[error("{path} contains no result: {reason}")]
    Empty { path: PathBuf, reason: String },
}

impl ImportFault {
    /// Returns the fault for a file of unknown format.
    fn unknown(path: &Path, reason: impl Into<String>) -> ImportFault {
        ImportFault::Unknown { path: path.to_owned(), reason: reason.into() }
    }

    /// Returns the fault for a file without a result.
    fn empty(path: &Path, reason: &str) -> ImportFault {
        ImportFault::Empty { path: path.to_owned(), reason: reason.to_owned() }
    }
}

/// Reads the variants of a file. A report of erigontech/rpc-tests has one variant for each server;
/// every other file has one variant.
///
/// Fails if the file cannot be read, has an unknown format or contains an invalid line.
pub fn read_file(path: &Path) -> Result<Vec<Variant>, ImportFault> {
    let read_fault = |source| ImportFault::Read { path: path.to_owned(), source };
    let bytes = std::fs::metadata(path).map_err(read_fault)?.len();
    if bytes > FILE_BYTES_MAX {
        return Err(ImportFault::TooLong { path: path.to_owned(), bytes });
    }
    let content = std::fs::read(path).map_err(read_fault)?;
    read(&content, path)
}

/// Reads the variants from the content of a file; the path is used in messages and names.
pub(crate) fn read(content: &[u8], path: &Path) -> Result<Vec<Variant>, ImportFault> {
    let first_byte = content.iter().find(|byte| !byte.is_ascii_whitespace());
    match first_byte {
        None => Err(ImportFault::empty(path, "it is empty")),
        Some(b'{') => read_json(content, path),
        Some(_) if erigon::is_report(content) => erigon::read(content, path),
        Some(_) if vegeta::is_csv(content) => {
            Ok(vec![single_variant(path, vegeta::csv(content, path)?)])
        }
        Some(_) => {
            Err(ImportFault::unknown(path, "it is neither JSON nor a CSV with known columns"))
        }
    }
}

/// Reads the variant of a JSON file.
fn read_json(content: &[u8], path: &Path) -> Result<Vec<Variant>, ImportFault> {
    if vegeta::is_json_lines(content) {
        return Ok(vec![single_variant(path, vegeta::json_lines(content, path)?)]);
    }
    let value: serde_json::Value = serde_json::from_slice(content)
        .map_err(|error| ImportFault::unknown(path, format!("it is not JSON: {error}")))?;
    if let Some(schema) = value.get("schema").and_then(serde_json::Value::as_str) {
        if schema != SCHEMA {
            let found_schema = schema.to_owned();
            return Err(ImportFault::Schema { path: path.to_owned(), found_schema });
        }
        let result: RunResult = serde_json::from_value(value).map_err(|error| {
            ImportFault::unknown(path, format!("it is an invalid {SCHEMA}: {error}"))
        })?;
        return Ok(vec![single_variant(
            path,
            (variant::run_of_result(&label(path), &result), Vec::new()),
        )]);
    }
    if vegeta::is_report(&value) {
        return Ok(vec![single_variant(path, vegeta::report(&value, path)?)]);
    }
    if k6::is_summary(&value) {
        return Ok(vec![single_variant(path, k6::read(&value, path)?)]);
    }
    let reason = "the JSON has neither \"schema\" nor \"metrics\", \"results\" or \"latencies\"";
    Err(ImportFault::unknown(path, reason))
}

/// Returns a reader of CSV without a header, whose lines may have different numbers of columns.
fn csv_reader(content: &[u8]) -> csv::Reader<&[u8]> {
    csv::ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .trim(csv::Trim::All)
        .from_reader(content)
}

/// Returns a variant with one run and the notes on its import. The file's label names the variant.
fn single_variant(path: &Path, (run, notes): (Run, Vec<String>)) -> Variant {
    Variant { name: label(path), runs: vec![run], left_out: Vec::new(), notes }
}

/// Returns the name of a file in messages and results. A `result.json` has the name of its folder.
pub(crate) fn label(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or(path.as_os_str());
    let folder = path.parent().and_then(Path::file_name).filter(|_| stem == "result");
    folder.unwrap_or(stem).to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests;
