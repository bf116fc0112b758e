//! Reports of results: a folder of files, text for the terminal, Markdown, an HTML page, and k6's
//! summary.
//!
//! Each result becomes one document (`document.rs`), which three renderers write. Reports only
//! present numbers; `analysis/` computes them and `docs/measuring.md` explains them.

pub mod checks;
pub(crate) mod document;

mod assessment;
mod capacity;
pub(crate) mod compare;
mod equal;
mod run;

pub(crate) mod parts;

pub(crate) mod markdown;
pub(crate) mod page;
mod terminal;

pub(crate) mod chart;
mod folder;
mod hlog;
mod json;
mod k6;
mod reference;
pub(crate) mod table;
mod timeline;
mod words;

#[cfg(test)]
pub(crate) use capacity::example as capacity_example;
#[cfg(test)]
pub(crate) mod example;
#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};

use lab_model::record::Totals;
use lab_model::results::capacity::CapacityResult;
use lab_model::results::compare::CompareResult;
use lab_model::results::equal::EqualResult;
use lab_model::results::run::RunResult;
use serde::Serialize;

use document::Document;

use crate::assessment::Assessed;

pub use k6::k6_summary;
pub use reference::{client_habits, host_metrics};
pub use table::series as series_csv;

/// Reason why a report could not be written.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each field is a part of the message")]
pub enum ReportFault {
    /// The folder could not be created.
    #[error("cannot create the folder {}: {source}", path.display())]
    Folder { path: PathBuf, source: io::Error },
    /// The disk is full, or a quota is used up.
    #[error(
        "no space is left for {} ({bytes} bytes): free some, or choose a folder on another disk",
        path.display()
    )]
    Full { path: PathBuf, bytes: usize },
    /// A file could not be written for another reason.
    #[error("cannot write {} ({bytes} bytes): {source}", path.display())]
    Write { path: PathBuf, bytes: usize, source: io::Error },
    /// A part of the result cannot be serialized.
    #[error("cannot serialize the result for {file}: {reason}")]
    Form { file: &'static str, reason: String },
}

/// Use of colours in terminal text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// No escape sequences.
    Plain,
    /// ANSI escape sequences.
    Ansi,
}

/// A result as a document for people.
pub struct Report(Document);

impl Report {
    /// Creates the report of a run. `methods` are the plan's methods; `totals` refers to them by
    /// index.
    pub fn run(result: &RunResult, totals: &Totals, methods: &[Box<str>]) -> Report {
        Report(run::document(result, totals, methods))
    }

    /// Creates the report of a capacity search.
    pub fn capacity(result: &CapacityResult) -> Report {
        Report(capacity::document(result))
    }

    /// Creates the report of a comparison of variants.
    pub fn compare(result: &CompareResult) -> Report {
        Report(compare::document(result))
    }

    /// Creates the report of a comparison of two servers' responses.
    pub fn equal(result: &EqualResult) -> Report {
        Report(equal::document(result))
    }

    /// Creates a report with this document. `study.rs` and `study/load.rs` create those of studies.
    pub(crate) fn new(document: Document) -> Report {
        Report(document)
    }

    /// Creates the report of several results.
    pub fn assessment(assessed: &Assessed) -> Report {
        Report(assessment::document(assessed))
    }

    /// Returns text for a terminal. The part before the warnings has at most 40 lines.
    pub fn text(&self, colour: Colour) -> String {
        terminal::render(&self.0, colour)
    }

    /// Returns short Markdown for an issue or a pull request.
    pub fn markdown(&self) -> String {
        markdown::render(&self.0)
    }

    /// Returns a self-contained HTML page without scripts, for light and dark mode. Only the page
    /// of a capacity search links to other files: the folders of its probes.
    pub fn html(&self) -> String {
        page::render(&self.0)
    }
}

/// Names of all files that the functions `write_…` of this module write.
pub const RESULT_FILES: [&str; 11] = [
    "result.json",
    "capacity.json",
    "study.json",
    "report.html",
    "report.md",
    "capacity.html",
    "capacity.md",
    "latency.hlog",
    "series.csv",
    "methods.csv",
    "samples.csv",
];

/// Writes all files of a run into a folder, which is created if it is missing. Returns their paths.
///
/// Each file is written under a temporary name and renamed, so readers never see an incomplete
/// file. The disk may fill up, so `result.json`, the most important file, is written first.
///
/// # Errors
/// Fails if a file cannot be written. The files that were written before remain.
pub fn write_folder(
    dir: &Path,
    result: &RunResult,
    totals: &Totals,
    methods: &[Box<str>],
) -> Result<Vec<PathBuf>, ReportFault> {
    let report = Report::run(result, totals, methods);
    folder::write(
        dir,
        &[
            ("result.json", &|| json::json("result.json", result)),
            ("latency.hlog", &|| hlog::log(result, totals, methods)),
            ("series.csv", &|| table::series(result)),
            ("methods.csv", &|| table::methods(result)),
            ("report.html", &|| Ok(report.html().into_bytes())),
            ("report.md", &|| Ok(report.markdown().into_bytes())),
        ],
    )
}

/// Writes `capacity.json`, `capacity.md` and `capacity.html`, as [`write_folder`] does.
///
/// # Errors
/// Fails if a file cannot be written. The files that were written before remain.
pub fn write_capacity(dir: &Path, result: &CapacityResult) -> Result<Vec<PathBuf>, ReportFault> {
    let report = Report::capacity(result);
    folder::write(
        dir,
        &[
            ("capacity.json", &|| json::json("capacity.json", result)),
            ("capacity.md", &|| Ok(report.markdown().into_bytes())),
            ("capacity.html", &|| Ok(report.html().into_bytes())),
        ],
    )
}

/// Writes `study.json`, `report.md` and `report.html` of a study, and further files, as
/// [`write_folder`] does.
///
/// # Errors
/// Fails if a file cannot be written. The files that were written before remain.
pub(crate) fn write_study(
    dir: &Path,
    result: &impl Serialize,
    report: &Report,
    further_files: &[folder::File<'_>],
) -> Result<Vec<PathBuf>, ReportFault> {
    let json = || json::json("study.json", result);
    let markdown = || Ok(report.markdown().into_bytes());
    let html = || Ok(report.html().into_bytes());
    let first: [folder::File<'_>; 1] = [("study.json", &json)];
    let last: [folder::File<'_>; 2] = [("report.md", &markdown), ("report.html", &html)];
    folder::write(dir, &[&first[..], further_files, &last[..]].concat())
}

/// Writes `report.md` and `report.html` of several results, as [`write_folder`] does.
///
/// # Errors
/// Fails if a file cannot be written. The files that were written before remain.
pub fn write_assessment(dir: &Path, assessed: &Assessed) -> Result<Vec<PathBuf>, ReportFault> {
    let report = Report::assessment(assessed);
    folder::write(
        dir,
        &[
            ("report.md", &|| Ok(report.markdown().into_bytes())),
            ("report.html", &|| Ok(report.html().into_bytes())),
        ],
    )
}
