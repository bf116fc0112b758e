//! `weir report`: one document from several results. `lab::assessment` reads, compares and assesses
//! them; this file has the arguments and the output.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use lab::assessment;
use lab::report;

use crate::out::OutFolder;
use crate::terminal::stdout_colour;
use crate::variant::{parse_variant, resampling_source};

/// Write one report of several results, with recommendations that rest on findings
///
/// Reads results of load runs, capacity searches, load studies and comparisons. The report has
/// scope, set-up and fingerprints, method, results per method, the first bottleneck with its
/// evidence, the comparison of systems, what may be concluded and what not, recommendations, risks
/// and next steps. A system is a target together with the machine that loaded it. If there are
/// several systems, their capacities and latencies are compared, but not runs of different plans. A
/// difference that the data do not support gets the verdict "cannot tell". Every recommendation
/// rests on a finding.
///
/// A result is a folder that a command wrote with --out, a folder of such folders, or a file:
/// result.json, capacity.json, study.json of weir study load, or the output of weir compare --json.
/// Results belong to the same system if their target and their machine are equal, or if one
/// argument names them: NAME=RESULT,RESULT.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  weir report results/
  weir report before/ after/ --out report/
  weir report old=old1,old2,old3,old4 new=new1,new2,new3,new4 --html > report.html
  weir report results/ --markdown > report.md

Exit codes:
  0  the report was written, whatever it says
  1  a result could not be read, or a file could not be written
  2  faulty arguments")]
#[command(mut_arg("out", |arg| arg.help("Write report.html and report.md to a folder")))]
pub(crate) struct Report {
    /// Results; the first system is the baseline of comparisons
    #[arg(value_name = "[NAME=]RESULT[,RESULT…]", value_parser = parse_variant, required = true)]
    results: Vec<(Option<String>, Vec<PathBuf>)>,

    #[command(flatten)]
    folder: OutFolder,

    /// Print Markdown
    #[arg(long)]
    markdown: bool,

    /// Print a self-contained HTML page
    #[arg(long, conflicts_with = "markdown")]
    html: bool,
}

impl Report {
    pub(crate) fn run(self) -> Result<ExitCode> {
        self.folder.create(&report::RESULT_FILES)?;
        let results = assessment::read(&self.results)?;
        let assessed = assessment::assess_results(results, &mut resampling_source());
        let report = report::Report::assessment(&assessed);
        match () {
            () if self.markdown => print!("{}", report.markdown()),
            () if self.html => println!("{}", report.html()),
            () => print!("{}", report.text(stdout_colour())),
        }
        self.folder.write(false, |dir| report::write_assessment(dir, &assessed))?;
        Ok(ExitCode::SUCCESS)
    }
}
