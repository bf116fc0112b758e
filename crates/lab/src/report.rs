//! What a run leaves behind for people and for other programs: a folder of files, a text for the
//! terminal, a page for the browser, k6's summary.
//!
//! Everything is told from a [`RunResult`] and its [`Totals`]; nothing is judged here, and no number
//! is made that `docs/measuring.md` does not explain. Judging is `analysis/`, running is `run.rs`.

mod capacity;
mod chart;
mod folder;
mod hlog;
mod html;
mod json;
mod k6;
mod markdown;
pub(crate) mod number;
mod reference;
mod study;
mod table;
mod text;
mod timeline;
mod words;

#[cfg(test)]
pub(crate) use capacity::example as capacity_example;
#[cfg(test)]
pub(crate) mod example;
#[cfg(test)]
mod pins;
#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::analysis::sync::ArmCourses;
use crate::record::Totals;
use crate::results::capacity::CapacityResult;
use crate::results::compare::CompareResult;
use crate::results::run::RunResult;
use crate::results::study::StudyResult;

/// Why a report could not be written.
#[derive(Debug, thiserror::Error)]
pub enum ReportFault {
    /// The folder could not be made.
    #[error("cannot make the folder {}: {source}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The disk is full, or a quota is used up.
    #[error(
        "no space is left for {} ({bytes} bytes): free some, or choose a folder on another disk",
        path.display()
    )]
    Full {
        /// The file that did not fit.
        path: PathBuf,
        /// Its length.
        bytes: usize,
    },
    /// A file could not be written for another reason.
    #[error("cannot write {} ({bytes} bytes): {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Its length.
        bytes: usize,
        /// What the system said.
        source: io::Error,
    },
    /// A part of the result has no written form.
    #[error("cannot put the result into the form of {file}: {reason}")]
    Form {
        /// The file.
        file: &'static str,
        /// What the writer of the form said.
        reason: String,
    },
}

/// Whether a text may hold terminal colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// Plain characters only.
    Plain,
    /// ANSI escapes.
    Ansi,
}

/// Writes all files of a result into a folder, which is made if need be; `methods` are the plan's,
/// in the order of the indexes in `totals`. Returns the paths, `result.json` first.
///
/// Each file is written beside its place and moved there when it is whole, so that a reader never
/// sees half of one.
///
/// # Errors
/// At the first file that cannot be written; those before it stay.
pub fn write_folder(
    dir: &Path,
    result: &RunResult,
    totals: &Totals,
    methods: &[Box<str>],
) -> Result<Vec<PathBuf>, ReportFault> {
    folder::write(dir, result, totals, methods)
}

/// The result for a terminal, in at most 40 lines.
pub fn text(result: &RunResult, colour: Colour) -> String {
    text::text(result, colour)
}

/// The result in short as Markdown, for an issue or a pull request.
pub fn markdown(result: &RunResult) -> String {
    markdown::markdown(result)
}

/// The result as one page that needs nothing else: no network, no script, light and dark.
pub fn html(result: &RunResult, totals: &Totals, methods: &[Box<str>]) -> String {
    html::page(result, totals, methods)
}

/// The time series as CSV: a row for each second and method, as in the folder's `series.csv`.
///
/// # Errors
/// If a value has no written form.
pub fn series_csv(result: &RunResult) -> Result<Vec<u8>, ReportFault> {
    table::series(result)
}

/// The result in the shape of k6's `--summary-export`, warm-up left out; in `thresholds`, as there,
/// true means broken.
///
/// Shape: <https://grafana.com/docs/k6/latest/results-output/end-of-test/#summary-export>, compared
/// with what k6 1.8.1 wrote (`testdata/k6`).
pub fn k6_summary(result: &RunResult, totals: &Totals, methods: &[Box<str>]) -> Value {
    k6::summary(result, totals, methods)
}

/// Writes `capacity.json`, `capacity.md` and `capacity.html` into a folder, which is made if need
/// be. Returns the paths, `capacity.json` first.
///
/// # Errors
/// At the first file that cannot be written; those before it stay.
pub fn write_capacity(dir: &Path, result: &CapacityResult) -> Result<Vec<PathBuf>, ReportFault> {
    capacity::write(dir, result)
}

/// A capacity search for a terminal, in at most 40 lines.
pub fn capacity_text(result: &CapacityResult, colour: Colour) -> String {
    capacity::text(result, colour)
}

/// A capacity search in short as Markdown.
pub fn capacity_markdown(result: &CapacityResult) -> String {
    capacity::markdown(result)
}

/// A capacity search as one page that needs nothing else but, for its links, the folders of its
/// probes.
pub fn capacity_html(result: &CapacityResult) -> String {
    html::capacity::page(result)
}

/// A comparison as one page that needs nothing else.
pub fn compare_html(result: &CompareResult) -> String {
    html::comparison::page(result)
}

/// Writes `study.json`, `samples.csv`, `report.md` and `report.html` of a study into a folder, which is
/// made if need be. Returns the paths, `study.json` first.
///
/// # Errors
/// At the first file that cannot be written; those before it stay.
pub fn write_study(
    dir: &Path,
    result: &StudyResult,
    arms: &[ArmCourses],
) -> Result<Vec<PathBuf>, ReportFault> {
    study::write(dir, result, arms)
}

/// A study for a terminal.
pub fn study_text(result: &StudyResult, colour: Colour) -> String {
    study::text(result, colour)
}

/// A study as Markdown.
pub fn study_markdown(result: &StudyResult) -> String {
    study::markdown(result)
}

/// A study as one page that needs nothing else.
pub fn study_html(result: &StudyResult) -> String {
    html::study::page(result)
}

/// The page of the documentation that lists what is sampled on hosts, as Markdown.
pub fn host_metrics() -> String {
    reference::host_metrics()
}
