//! Output for CI servers: test cases as JUnit XML, and a summary as Markdown.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use lab::report::Report;
use lab::report::checks::Checks;

/// Files for CI servers.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Output for CI")]
pub(crate) struct CiOutput {
    /// Write the verdicts as test cases in JUnit XML
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,

    /// Append a summary in Markdown, for example to "$GITHUB_STEP_SUMMARY"
    #[arg(long, value_name = "FILE")]
    summary: Option<PathBuf>,
}

impl CiOutput {
    /// Writes the requested files, even if one of them fails.
    ///
    /// # Errors
    /// Returns the first failure. Prints a second failure on standard error.
    pub(crate) fn write(&self, checks: &Checks, report: &Report) -> Result<()> {
        let junit = self.junit.as_ref().map_or(Ok(()), |path| {
            std::fs::write(path, checks.junit())
                .with_context(|| format!("cannot write {}", path.display()))
        });
        let summary = self.summary.as_ref().map_or(Ok(()), |path| {
            let file = OpenOptions::new().create(true).append(true).open(path);
            // The empty line at the end separates this summary from the next one in the file.
            let text = format!("{}\n", report.markdown());
            file.and_then(|mut file| file.write_all(text.as_bytes()))
                .with_context(|| format!("cannot append to {}", path.display()))
        });
        match (junit, summary) {
            (Err(first), Err(second)) => {
                eprintln!("weir: {second:#}");
                Err(first)
            }
            (junit, summary) => junit.and(summary),
        }
    }
}
