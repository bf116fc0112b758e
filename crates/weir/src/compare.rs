//! `weir compare`: statistical comparison of results. `lab::compare` does the work; this file has
//! the arguments and the output.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use lab::compare::Options;
use lab::import::ImportFault;
use lab::report::checks::Checks;
use lab::report::{Colour, Report};
use lab::self_check;
use lab::variant::Variant;
use lab_model::results::ComparisonVerdict;
use lab_model::results::compare::{CompareResult, Weight};

use crate::ci::CiOutput;
use crate::exit_code::{EXIT_FAULTY, EXIT_SELF_CHECK};
use crate::load::report_self_check;
use crate::variant::{parse_variant, resampling_source, variant_name};

/// Exit code with `--fail-if-worse` if something is worse.
const EXIT_WORSE: u8 = 3;

/// Compare results, and distinguish differences from noise
///
/// Every further variant is compared with the first, by method and metric. Each comparison has a
/// change, a 95 % interval, a p-value corrected for the number of metrics, and a verdict: better,
/// worse, negligible, same or cannot tell. The statistics compare whole runs, so give several runs
/// of each variant, preferably interleaved (A B B A). With one run of each variant, the seconds of
/// the two runs are compared, and only large differences count.
///
/// A variant is a folder written by a run, a folder of such folders, a result.json, or a result of
/// another tool: k6's summary JSON, vegeta's report (JSON) or results (JSON lines, CSV), or a CSV
/// report of erigontech/rpc-tests. In the latter, each server is a variant.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  weir compare before/ after/
  weir compare old=old1,old2,old3,old4 new=new1,new2,new3,new4
  weir compare --same quiet/ before/ after/     # quiet/ has A/A runs, whose difference is noise
  weir compare k6-summary.json results/
  weir compare silkworm.csv rpcdaemon.csv --markdown > eth_call.md
  weir compare before/ after/ --html > compare.html

Exit codes: 0 compared, with any result; 1 a file could not be read; 2 faulty arguments, or the variants
are not comparable (--anyway compares them nevertheless); 3 with --fail-if-worse, if something is
worse; 7 a bug in Weir: the result contradicts its own evidence.")]
pub(crate) struct Compare {
    /// Variants, each with one or more results; the first variant is the baseline
    #[arg(value_name = "[NAME=]RESULT[,RESULT…]", value_parser = parse_variant)]
    variants: Vec<(Option<String>, Vec<PathBuf>)>,

    /// Runs of one unchanged target (A/A); differences below theirs count as negligible
    #[arg(long, value_name = "RESULT[,RESULT…]", value_delimiter = ',')]
    same: Vec<PathBuf>,

    /// Pair the runs of the variants by their order; each variant needs two or more
    #[arg(long)]
    paired: bool,

    /// Compare variants that are not comparable, and include invalid runs
    #[arg(long)]
    anyway: bool,

    /// Print Markdown
    #[arg(long, conflicts_with = "json")]
    markdown: bool,

    /// Print a self-contained HTML page
    #[arg(long, conflicts_with_all = ["json", "markdown"])]
    html: bool,

    /// Print JSON of schema weir.compare/1
    #[arg(long)]
    json: bool,

    /// End with exit code 3 if something is worse
    #[arg(long)]
    fail_if_worse: bool,

    #[command(flatten)]
    ci: CiOutput,
}

/// Reads the variants of one argument. A report of several servers contains several variants.
fn read_variants(name: Option<&str>, paths: &[PathBuf]) -> Result<Vec<Variant>, ImportFault> {
    match (name, paths) {
        (None, [path]) => lab::compare::variants_at(path),
        (None, paths) => Ok(vec![lab::compare::merge_runs(&variant_name(&paths[0]), paths)?]),
        (Some(name), paths) => Ok(vec![lab::compare::merge_runs(name, paths)?]),
    }
}

impl Compare {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let mut variants: Vec<Variant> = Vec::new();
        for (name, paths) in &self.variants {
            variants.extend(read_variants(name.as_deref(), paths)?);
        }
        if variants.len() < 2 {
            let found_variants = match variants.len() {
                0 => "none was given".to_owned(),
                _ => format!("only {:?} was given", variants[0].name),
            };
            eprintln!("weir: a comparison needs at least two variants; {found_variants}");
            return Ok(ExitCode::from(EXIT_FAULTY));
        }
        let same = match self.same.as_slice() {
            [] => None,
            paths => Some(lab::compare::merge_runs("same", paths)?),
        };
        let options = Options {
            control_runs: same,
            paired: self.paired,
            despite_mismatches: self.anyway,
            ..Options::default()
        };
        let result = lab::compare::compare(variants, &options, &mut resampling_source());
        let is_consistent = report_self_check(&self_check::check_comparison(&result));
        self.print(&result)?;
        Ok(if is_consistent { self.exit_code(&result) } else { ExitCode::from(EXIT_SELF_CHECK) })
    }

    fn print(&self, result: &CompareResult) -> Result<()> {
        let report = Report::compare(result);
        if self.json {
            println!("{}", serde_json::to_string_pretty(result)?);
        } else if self.markdown {
            print!("{}", report.markdown());
        } else if self.html {
            println!("{}", report.html());
        } else {
            print!("{}", report.text(Colour::Plain));
        }
        self.ci.write(&Checks::comparison(result), &report)
    }

    fn exit_code(&self, result: &CompareResult) -> ExitCode {
        // A mismatch is a difference in the set-ups. If its weight is `Refuse`, the results are not
        // comparable.
        let is_refused = result.mismatches.iter().any(|mismatch| mismatch.weight == Weight::Refuse);
        if is_refused && !self.anyway {
            return ExitCode::from(EXIT_FAULTY);
        }
        let is_worse = result
            .differences
            .iter()
            .any(|difference| difference.verdict == ComparisonVerdict::Worse);
        if is_worse && self.fail_if_worse { ExitCode::from(EXIT_WORSE) } else { ExitCode::SUCCESS }
    }
}
