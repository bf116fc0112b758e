//! Results of other load tools, as arms of a comparison: k6's summaries, vegeta's reports and
//! results, and the CSV reports of erigontech/rpc-tests.
//!
//! A file is recognised by what is in it, not by its name. Numbers are taken as they are; what a
//! tool measures differently (where its clock starts, what it leaves out) is said in notes.

mod erigon;
mod k6;
mod vegeta;

use std::io;
use std::path::{Path, PathBuf};

use lab_model::results::run::{RunResult, SCHEMA};
use thiserror::Error;

use crate::arm;
use crate::arm::{Arm, Run};

/// Largest file that is read at once. A result of a day at one sample a second is a tenth of it.
const FILE_BYTES_MAX: u64 = 512 << 20;

/// Why something is no arm.
#[derive(Debug, Error)]
pub enum ForeignFault {
    /// It could not be read.
    #[error("cannot read {path}")]
    Read {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is longer than what is read.
    #[error("{path} has {bytes} bytes; at most {FILE_BYTES_MAX} are read")]
    TooLong {
        /// Where.
        path: PathBuf,
        /// Its length.
        bytes: u64,
    },
    /// It is of another version.
    #[error("{path} has the schema {found:?}; this program reads {SCHEMA:?}")]
    Schema {
        /// Where.
        path: PathBuf,
        /// What it says of itself.
        found: String,
    },
    /// It is none of the forms that are known.
    #[error(
        "{path} is none of: a result.json, a k6 summary (JSON), a vegeta report (JSON) or result \
         (JSON lines, CSV), an rpc-tests report (CSV): {why}"
    )]
    Unknown {
        /// Where.
        path: PathBuf,
        /// What came closest.
        why: String,
    },
    /// It is of a known form, but wrong within.
    #[error("{path}, line {line}: {why}")]
    Line {
        /// Where.
        path: PathBuf,
        /// Counted from 1.
        line: u64,
        /// What is wrong, and what is allowed.
        why: String,
    },
    /// It holds nothing to compare.
    #[error("{path} holds no result: {why}")]
    Empty {
        /// Where.
        path: PathBuf,
        /// Why.
        why: String,
    },
}

/// Reads the arms that a file holds: one, except for reports on several servers.
///
/// # Errors
/// If it cannot be read, is of no known form, or is wrong within.
pub fn read_file(path: &Path) -> Result<Vec<Arm>, ForeignFault> {
    let failed = |source| ForeignFault::Read { path: path.to_owned(), source };
    let bytes = std::fs::metadata(path).map_err(failed)?.len();
    if bytes > FILE_BYTES_MAX {
        return Err(ForeignFault::TooLong { path: path.to_owned(), bytes });
    }
    let content = std::fs::read(path).map_err(failed)?;
    read(&content, path)
}

/// Reads the arms in the content of a file; the path is for messages and names.
pub(crate) fn read(content: &[u8], path: &Path) -> Result<Vec<Arm>, ForeignFault> {
    let start = content.iter().find(|byte| !byte.is_ascii_whitespace());
    match start {
        None => Err(ForeignFault::Empty { path: path.to_owned(), why: "it is empty".to_owned() }),
        Some(b'{') => json(content, path),
        Some(_) if erigon::is(content) => erigon::read(content, path),
        Some(_) if vegeta::is_csv(content) => Ok(vec![single(path, vegeta::csv(content, path)?)]),
        Some(_) => {
            let why = "it is neither JSON nor a CSV with known columns".to_owned();
            Err(ForeignFault::Unknown { path: path.to_owned(), why })
        }
    }
}

fn json(content: &[u8], path: &Path) -> Result<Vec<Arm>, ForeignFault> {
    if vegeta::is_lines(content) {
        return Ok(vec![single(path, vegeta::lines(content, path)?)]);
    }
    let value: serde_json::Value = serde_json::from_slice(content).map_err(|error| {
        let why = format!("it is not JSON: {error}");
        ForeignFault::Unknown { path: path.to_owned(), why }
    })?;
    if let Some(schema) = value.get("schema").and_then(serde_json::Value::as_str) {
        if schema != SCHEMA {
            let found = schema.to_owned();
            return Err(ForeignFault::Schema { path: path.to_owned(), found });
        }
        let result: RunResult = serde_json::from_value(value).map_err(|error| {
            let why = format!("it is a {SCHEMA}, but: {error}");
            ForeignFault::Unknown { path: path.to_owned(), why }
        })?;
        return Ok(vec![single(path, (arm::of_result(&label(path), &result), Vec::new()))]);
    }
    if vegeta::is_report(&value) {
        return Ok(vec![single(path, vegeta::report(&value, path)?)]);
    }
    if k6::is(&value) {
        return Ok(vec![single(path, k6::read(&value, path)?)]);
    }
    let why =
        "the JSON has neither \"schema\" nor \"metrics\", \"results\" or \"latencies\"".to_owned();
    Err(ForeignFault::Unknown { path: path.to_owned(), why })
}

fn single(path: &Path, (run, notes): (Run, Vec<String>)) -> Arm {
    Arm { name: label(path), runs: vec![run], left_out: Vec::new(), notes }
}

/// How a file is called in output: its folder's name for a `result.json`, else its own.
pub(crate) fn label(path: &Path) -> String {
    let own = path.file_stem().unwrap_or(path.as_os_str());
    let folder = path.parent().and_then(Path::file_name).filter(|_| own == "result");
    folder.unwrap_or(own).to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests;
