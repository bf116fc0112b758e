//! Sync studies. A *variant* is one of the compared ways to sync a chain, for example a node with
//! one setting. A sync study has runs of each variant. It answers the question: which variant syncs
//! faster, and why?
//!
//! The runs of a study are read from files (`study/read.rs`), polled from running nodes
//! (`study/poll.rs`), or started by a study file (`study/runner.rs`, `study/file.rs`).
//! `study/process.rs` starts and stops processes for both kinds of studies, and
//! `study/placeholders.rs` replaces the placeholders of their texts.
//! [`analyse()`] turns them into a [`StudyResult`] by the rules of `analysis/sync.rs`.
//! `study/document.rs` writes the reports. `study/load.rs` has the studies of load runs.
//!
//! To add a kind of study, add its folder here, an entry of [`KINDS`], the published shape of its
//! result to `results.rs` of lab-model, and its command to `study.rs` of the program.

use std::io;
use std::path::{Path, PathBuf};

use lab_model::results::schema;
use lab_model::results::study::StudyResult;
use settings::Diagnostics;

use crate::analysis::sync::VariantRuns;
use crate::analysis::sync::judge::main_row;
use crate::report::checks::{Case, CaseOutcome, Checks};
use crate::report::{self, Report, ReportFault};
use crate::wording::checks::NOT_COMPARED;

mod analyse;
mod document;
mod fault;
pub mod file;
pub mod load;
mod placeholders;
pub mod poll;
mod process;
pub mod read;
pub mod runner;

#[cfg(test)]
pub(crate) mod tests;

pub use analyse::{Options, analyse};
pub use fault::StudyFault;
pub use process::ProcessGroups;

/// A kind of study.
#[derive(Debug)]
pub struct Kind {
    /// Returns true if a text is a study file of this kind.
    pub is_file: fn(&str) -> bool,
    /// True if a study file of this kind can have variables.
    pub has_variables: bool,
    /// Validates a study file.
    pub check: CheckFile,
    /// The generated pages of `docs/`.
    pub pages: &'static [Page],
}

/// A function that validates a study file. Its arguments are the file's text, its name, and the
/// values of variables.
pub type CheckFile = fn(&str, &str, &[(String, f64)]) -> Result<CheckedFile, Diagnostics>;

/// A generated page: file name, and the function that generates the text.
pub type Page = (&'static str, fn() -> String);

/// A valid study file.
#[derive(Debug)]
pub struct CheckedFile {
    /// Valid settings that look like mistakes.
    pub warnings: Vec<String>,
    /// A description of the study.
    pub summary: String,
}

/// The kinds of studies. The first kind whose `is_file` accepts a file reads it.
pub const KINDS: &[Kind] = &[load::KIND, KIND];

/// Sync studies.
const KIND: Kind = Kind {
    is_file: file::is_study,
    has_variables: false,
    check: |text, name, _| {
        let study = file::read(text, name)?;
        Ok(CheckedFile { warnings: Vec::new(), summary: study.summary() })
    },
    pages: &[
        ("study-file.md", file::reference),
        ("study-file.schema.json", file::schema),
        ("study.schema.json", schema::closed::<StudyResult>),
    ],
};

/// Creates the report of a sync study.
pub fn report(result: &StudyResult) -> Report {
    Report::new(document::document(result))
}

/// Returns the cases of a sync study: one for each comparison of a variant with the first
/// variant. A study of a single variant has one case. A slower variant is no failure, because
/// the purpose of a study is to find the faster variant.
pub fn checks(result: &StudyResult) -> Checks {
    let conclusions: Vec<&str> =
        result.conclusions.iter().map(|conclusion| conclusion.text.as_str()).collect();
    let output = conclusions.join("\n");
    let only_variant = result.variants.first().filter(|_| result.against.is_empty());
    let only_case = only_variant.map(|variant| Case::passed(&variant.name, output.clone()));
    let compared = result.against.iter().map(|against| {
        let name = format!("{} against {}", against.other, against.first);
        let comparison = main_row(result, against).filter(|row| !row.above_tip);
        match comparison.and_then(|row| row.comparison.as_ref()) {
            Some(_) => Case::passed(name, output.clone()),
            None => {
                let reason = NOT_COMPARED.to_owned();
                Case::new(name, CaseOutcome::Error("no-result", reason))
            }
        }
    });
    let cases = only_case.into_iter().chain(compared).collect();
    Checks::new("weir.study", format!("weir study {}", result.name), cases)
}

/// Writes `study.json`, `samples.csv`, `report.md` and `report.html` of a sync study.
///
/// # Errors
/// Fails if a file cannot be written. The files that were written before remain.
pub fn write(
    dir: &Path,
    result: &StudyResult,
    variants: &[VariantRuns],
) -> Result<Vec<PathBuf>, ReportFault> {
    let samples = || report::table::samples(variants);
    report::write_study(dir, result, &report(result), &[("samples.csv", &samples)])
}

/// Removes a folder with its contents, if it exists.
fn remove_folder(folder: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
