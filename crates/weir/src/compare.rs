//! `weir compare`: statistical comparison of results. `lab::compare` does the work; this file has
//! the arguments and the output.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use lab::arm::Arm;
use lab::compare::Options;
use lab::import::ImportFault;
use lab::report::{Colour, Report};
use lab::self_check;
use lab_model::results::Word;
use lab_model::results::compare::{CompareResult, Weight};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::FAULTY;
use crate::load::{SELF_CHECK, report_self_check};
use crate::study::{arm_name, split_name};

/// Exit code with `--fail-if-worse` if something is worse.
const WORSE: u8 = 3;
/// Seed of the resampling, constant so that the same files give the same verdicts.
const SEED: u64 = 1;

/// Compare results, and tell differences from chance
///
/// Every further result is compared with the first, by method and metric: change, 95 % interval,
/// chance corrected for the number of metrics, and one of better, worse, negligible, same, cannot
/// tell. The unit is the run: give several runs of each arm, best taken in turn (A B B A). With one
/// run of each arm, its seconds are compared, and only large differences are believed.
///
/// An arm is a folder written by a run, a folder of such folders, a result.json, or a result of
/// another tool: k6's summary JSON, vegeta's report (JSON) or results (JSON lines, CSV), the CSV
/// reports of erigontech/rpc-tests (several servers in one file are several arms).
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  weir compare before/ after/
  weir compare old=old1,old2,old3,old4 new=new1,new2,new3,new4
  weir compare --same quiet/ before/ after/     # the floor is what runs of one thing differ by
  weir compare k6-summary.json results/
  weir compare silkworm.csv rpcdaemon.csv --markdown > eth_call.md
  weir compare before/ after/ --html > compare.html

Exit codes: 0 compared, whatever came of it; 1 something could not be read; 2 faulty arguments, or
the arms are not of the same thing (--anyway compares them nevertheless); 3 with --fail-if-worse,
if something is worse; 7 a fault of weir itself: the result contradicts its own evidence.")]
pub(crate) struct Compare {
    /// Arms, each of one result or of several; the first is what the others are compared with
    #[arg(value_name = "[NAME=]RESULT[,RESULT…]", value_parser = parse_arm)]
    arms: Vec<(Option<String>, Vec<PathBuf>)>,

    /// Runs of one and the same thing (A/A); what they differ by is the least that matters
    #[arg(long, value_name = "RESULT[,RESULT…]", value_delimiter = ',')]
    same: Vec<PathBuf>,

    /// The first run of an arm belongs to the first of the other, and so on; two or more
    #[arg(long)]
    paired: bool,

    /// Compare although the arms are not of the same thing, and with runs that are not believed
    #[arg(long)]
    anyway: bool,

    /// Print Markdown
    #[arg(long, conflicts_with = "json")]
    markdown: bool,

    /// Print a page (HTML) that needs nothing else
    #[arg(long, conflicts_with_all = ["json", "markdown"])]
    html: bool,

    /// Print JSON of schema weir.compare/1
    #[arg(long)]
    json: bool,

    /// End with exit code 3 if something is worse
    #[arg(long)]
    fail_if_worse: bool,
}

fn parse_arm(text: &str) -> Result<(Option<String>, Vec<PathBuf>), String> {
    let (name, list) = split_name(text);
    let paths = list.split(',').filter(|path| !path.is_empty()).map(PathBuf::from);
    let paths: Vec<PathBuf> = paths.collect();
    match paths.is_empty() {
        true => Err("not of the form [NAME=]RESULT[,RESULT…]".to_owned()),
        false => Ok((name.map(str::to_owned), paths)),
    }
}

/// Reads the arms of one argument. A report of several servers contains several arms.
fn read_arms(name: Option<&str>, paths: &[PathBuf]) -> Result<Vec<Arm>, ImportFault> {
    match (name, paths) {
        (None, [path]) => lab::compare::arms_at(path),
        (None, paths) => Ok(vec![lab::compare::arm_of(&arm_name(&paths[0]), paths)?]),
        (Some(name), paths) => Ok(vec![lab::compare::arm_of(name, paths)?]),
    }
}

impl Compare {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let mut arms: Vec<Arm> = Vec::new();
        for (name, paths) in &self.arms {
            arms.extend(read_arms(name.as_deref(), paths)?);
        }
        if arms.len() < 2 {
            let found = match arms.len() {
                0 => "none was given".to_owned(),
                _ => format!("only {:?} was given", arms[0].name),
            };
            eprintln!("weir: a comparison needs at least two arms; {found}");
            return Ok(ExitCode::from(FAULTY));
        }
        let same = match self.same.as_slice() {
            [] => None,
            paths => Some(lab::compare::arm_of("same", paths)?),
        };
        let options = Options { same, paired: self.paired, anyway: self.anyway };
        let mut random = StdRng::seed_from_u64(SEED);
        let result = lab::compare::compare(arms, &options, &mut || random.random());
        let sound = report_self_check(&self_check::comparison(&result));
        self.print(&result)?;
        Ok(if sound { self.exit_code(&result) } else { ExitCode::from(SELF_CHECK) })
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
        Ok(())
    }

    fn exit_code(&self, result: &CompareResult) -> ExitCode {
        let refused = result.mismatches.iter().any(|one| one.weight == Weight::Refuse);
        if refused && !self.anyway {
            return ExitCode::from(FAULTY);
        }
        let worse = result.differences.iter().any(|one| one.verdict == Word::Worse);
        if worse && self.fail_if_worse { ExitCode::from(WORSE) } else { ExitCode::SUCCESS }
    }
}
