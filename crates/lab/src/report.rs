//! Results for people and for other programs: a folder of files, a text for the terminal, Markdown, a
//! page for the browser, k6's summary.
//!
//! Each result becomes one document (`document.rs`), which three renderers write. Nothing is judged here,
//! and no number is made that `docs/measuring.md` does not explain. Judging is `analysis/`.

mod document;

mod capacity;
pub(crate) mod compare;
mod run;
mod study;

mod parts;

mod markdown;
mod page;
mod terminal;

mod chart;
mod folder;
mod hlog;
mod json;
mod k6;
mod reference;
mod table;
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

use lab_model::record::Totals;
use lab_model::results::capacity::CapacityResult;
use lab_model::results::compare::CompareResult;
use lab_model::results::run::RunResult;
use lab_model::results::study::StudyResult;
use serde_json::Value;

use document::Document;

use crate::analysis::sync::ArmCourses;

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

/// A result as people read it.
pub struct Report(Document);

impl Report {
    /// Of a run; `methods` are the plan's, in the order of the indexes in `totals`.
    pub fn run(result: &RunResult, totals: &Totals, methods: &[Box<str>]) -> Report {
        Report(run::document(result, totals, methods))
    }

    /// Of a capacity search.
    pub fn capacity(result: &CapacityResult) -> Report {
        Report(capacity::document(result))
    }

    /// Of a comparison.
    pub fn compare(result: &CompareResult) -> Report {
        Report(compare::document(result))
    }

    /// Of a study.
    pub fn study(result: &StudyResult) -> Report {
        Report(study::document(result))
    }

    /// For a terminal, in at most 40 lines before its warnings.
    pub fn text(&self, colour: Colour) -> String {
        terminal::render(&self.0, colour)
    }

    /// In short as Markdown, for an issue or a pull request.
    pub fn markdown(&self) -> String {
        markdown::render(&self.0)
    }

    /// As one page that needs nothing else, but a capacity search's links to the folders of its probes:
    /// no network, no script, light and dark.
    pub fn html(&self) -> String {
        page::render(&self.0)
    }
}

/// Writes all files of a run into a folder, which is made if need be. Returns their paths.
///
/// Each file is written beside its place and moved there when it is whole, so that a reader never
/// sees half of one. `result.json` comes first: if the disk fills up, it is what must be kept.
///
/// # Errors
/// At the first file that cannot be written; those before it stay.
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
/// At the first file that cannot be written; those before it stay.
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

/// Writes `study.json`, `samples.csv`, `report.md` and `report.html` of a study, as [`write_folder`]
/// does.
///
/// # Errors
/// At the first file that cannot be written; those before it stay.
pub fn write_study(
    dir: &Path,
    result: &StudyResult,
    arms: &[ArmCourses],
) -> Result<Vec<PathBuf>, ReportFault> {
    let report = Report::study(result);
    folder::write(
        dir,
        &[
            ("study.json", &|| json::json("study.json", result)),
            ("samples.csv", &|| table::samples(arms)),
            ("report.md", &|| Ok(report.markdown().into_bytes())),
            ("report.html", &|| Ok(report.html().into_bytes())),
        ],
    )
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

/// The page of the documentation that lists what is sampled on hosts, as Markdown.
pub fn host_metrics() -> String {
    reference::host_metrics()
}
