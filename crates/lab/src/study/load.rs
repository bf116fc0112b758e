//! Studies of load runs: `weir study load`. Several variants of a target take turns under the same
//! load plans. The study reports which variants differ, in which metrics, and by how much.
//!
//! `load/file.rs` reads the study file, and `load/runner.rs` runs the rounds. A *round* is one run
//! of each variant under each plan. A study may have *cases* in place of plans; a case is a plan
//! with values for the servers' settings. `load/servers.rs` starts the servers of the variants.
//! `load/store.rs` saves finished runs, so an interrupted study can continue. `load/counts.rs` and
//! `load/access_log.rs` count requests and resources. [`analyse()`] turns the runs into the result,
//! and `load/document.rs` writes its report.

use std::path::{Path, PathBuf};

use lab_model::results::load_study::{EndReason, LoadStudyResult, RatioVerdict};
use lab_model::results::schema;

use super::{CheckedFile, Kind};
use crate::report::checks::{Case, CaseOutcome, Checks};
use crate::report::{self, Report, ReportFault};
use crate::wording::checks::{NO_ROUNDS, PARTIAL_STUDY, describe_difference};

mod access_log;
mod analyse;
mod counts;
mod cpu_limit;
mod document;
pub mod file;
mod finished;
mod machine;
mod ratios;
pub mod runner;
mod servers;
pub mod store;
mod wording;

#[cfg(test)]
pub(crate) mod tests;

pub use analyse::analyse;
pub use finished::FinishedRun;

/// Studies of load runs.
pub(super) const KIND: Kind = Kind {
    is_file: file::is_load_study,
    has_variables: true,
    check: |text, name, variables| {
        let study = file::read(text, name, variables)?;
        Ok(CheckedFile { warnings: study.warnings(), summary: study.summary() })
    },
    pages: &[
        ("load-study-file.md", file::reference),
        ("load-study-file.schema.json", file::schema),
        ("study-load.schema.json", schema::closed::<LoadStudyResult>),
    ],
};

/// Creates the report of a study of load runs.
pub fn report(result: &LoadStudyResult) -> Report {
    Report::new(document::document(result))
}

/// Returns the cases of a study of load runs: one for each plan, and one for each ratio with a
/// limit. A slower variant alone is no failure, because the purpose of a study is to find the faster
/// variant.
pub fn checks(result: &LoadStudyResult) -> Checks {
    let first = result.variants.first().map_or("", |variant| variant.name.as_str());
    let ratio_cases = result.plans.iter().flat_map(|plan| {
        plan.ratios.iter().map(|row| {
            let name = format!("{}: {}: {}", plan.plan, row.variant, row.metric.as_str());
            let text = wording::describe_ratio(first, row);
            let outcome = match row.verdict {
                RatioVerdict::Kept => return Case::passed(name, text),
                RatioVerdict::Broken => CaseOutcome::Failed("ratio", text),
                RatioVerdict::CannotTell => CaseOutcome::Error("cannot-tell", text),
            };
            Case::new(name, outcome)
        })
    });
    let cases = result.plans.iter().map(|plan| {
        let differences = plan.comparison.differences.iter();
        let output: Vec<String> = differences
            .map(|row| format!("{}: {}", row.variant, describe_difference(row)))
            .collect();
        let outcome = match result.end {
            EndReason::Interrupted => CaseOutcome::Error("partial", PARTIAL_STUDY.to_owned()),
            // The limits alone decide about a plan with limits.
            _ if output.is_empty() && plan.ratios.is_empty() => {
                CaseOutcome::Error("no-result", NO_ROUNDS.to_owned())
            }
            _ => CaseOutcome::Passed,
        };
        Case { output: output.join("\n"), ..Case::new(&plan.plan, outcome) }
    });
    let cases = cases.chain(ratio_cases);
    let runs = result.rounds.iter().flat_map(|round| &round.runs);
    let name = format!("weir study load {}", result.name);
    Checks {
        started: Some(result.started.clone()).filter(|started| !started.is_empty()),
        seconds: runs.map(|run| run.seconds).sum(),
        ..Checks::new("weir.study", name, cases.collect())
    }
}

/// Writes `study.json`, `report.md` and `report.html` of a study of load runs.
///
/// # Errors
/// Fails if a file cannot be written. The files that were written before remain.
pub fn write(dir: &Path, result: &LoadStudyResult) -> Result<Vec<PathBuf>, ReportFault> {
    report::write_study(dir, result, &report(result), &[])
}
