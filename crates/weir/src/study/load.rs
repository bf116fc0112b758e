//! `weir study load`: variants of a target take turns under the same load. `lab::study::load` runs
//! the study. This file has the arguments, the progress output and the exit codes.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use lab::report::{self, RESULT_FILES};
use lab::run::Stop;
use lab::self_check;
use lab::study::load::file::{self, LoadStudy as Study};
use lab::study::load::runner::{self, Event, LoadStudyRuns, StudyContext};
use lab::study::load::store::Store;
use lab::study::{ProcessGroups, StudyFault, load};
use lab_model::plan;
use lab_model::record::Totals;
use lab_model::results::load_study::{EndReason, LoadStudyResult, PlanResult, RatioVerdict};
use lab_model::results::run::RunResult;

use super::{RunFolder, argument_error, parse_duration, stop_study_on_signals};
use crate::ci::CiOutput;
use crate::exit_code::{EXIT_FAILED, EXIT_INTERRUPTED, EXIT_INVALID, EXIT_SELF_CHECK};
use crate::load::report_self_check;
use crate::out::OutFolder;
use crate::terminal::{ProgressOutput, stdout_colour};
use crate::variant::resampling_source;

/// Find which variant responds faster, and by how much
///
/// A study file names variants: running targets, or servers that the study starts with their
/// commands and configuration files. In each round every variant runs under the same load plans, in
/// an order that changes from round to round, so that a drift of the machine affects all variants
/// equally. The first variant runs twice in each round: the difference between its two runs (A/A
/// control) is noise, and only larger differences count. Rounds are repeated until the intervals
/// are as narrow as the file requires, or until a limit is reached.
///
/// The result is one table of methods and variants for each plan, with changes, 95 % intervals and
/// a verdict: better, worse, negligible, same, or cannot tell. Each round counts as one sample.
/// P-values are corrected for the number of methods and metrics (Holm). A file may limit the ratio
/// of a variant to the first one with `ratio_max`: the exit code says if all such limits are kept.
///
/// With --out, each run is written to the folder as soon as it ends. The same command continues an
/// interrupted or killed study after its last complete round. For a finished study, it only reports
/// the result again.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  weir study load studies/harmony-methods.toml --dry-run       # the order of the runs, and the time
  weir study load studies/harmony-methods.toml --out results/harmony
  weir study load studies/harmony-methods.toml --time-max 10m --markdown

Exit codes:
  0  the study is complete, and keeps every ratio_max of its file
  1  a server or a run could not be started, or a file could not be written
  2  faulty study file, plan or arguments, or --out is the folder of another study
  3  a ratio is above its ratio_max
  4  no reliable result: fewer than two rounds can be compared, or the interval of a ratio contains
     its ratio_max
  6  interrupted by Ctrl-C: complete rounds are kept and reported; a second Ctrl-C ends at once
  7  a fault of weir itself: its result contradicts its own evidence")]
#[command(mut_arg("out", |arg| arg.help(
    "Write study.json, report.html, report.md and the files of all runs to a folder, and continue the \
     study that the folder holds"
)))]
#[command(mut_arg("force", |arg| arg.help(
    "Replace the files of another command's result; the runs of another study are never replaced"
)))]
pub(super) struct LoadStudy {
    /// A study file with `study = \"load\"` (docs/load-study-file.md lists all keys)
    #[arg(value_name = "STUDY.TOML")]
    file: PathBuf,

    /// Set a variable of the plans; may be repeated
    #[arg(long, value_name = "NAME=NUMBER", value_parser = plan::line::parse_variable)]
    set: Vec<(String, f64)>,

    /// Print the variants, the order of the runs and the time of the study, and run nothing
    #[arg(long)]
    dry_run: bool,

    /// Smallest number of rounds [default: the study's]
    #[arg(long, value_name = "N", value_parser = parse_rounds)]
    rounds_min: Option<usize>,

    /// Largest number of rounds [default: the study's]
    #[arg(long, value_name = "N", value_parser = parse_rounds)]
    rounds_max: Option<usize>,

    /// Half-width of the intervals that ends the study, as a share [default: the study's]
    #[arg(long, value_name = "SHARE", value_parser = parse_share)]
    precision: Option<f64>,

    /// Time limit [default: the study's]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    time_max: Option<Duration>,

    #[command(flatten)]
    folder: OutFolder,

    /// Print the result as JSON of schema weir.study-load/1 instead of text
    #[arg(long, conflicts_with = "markdown")]
    json: bool,

    /// Print Markdown instead of text
    #[arg(long)]
    markdown: bool,

    /// Print no progress
    #[arg(long)]
    quiet: bool,

    #[command(flatten)]
    ci: CiOutput,
}

fn parse_rounds(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count| (1..=1_000).contains(count));
    count.ok_or_else(|| "allowed: 1 to 1000 rounds".to_owned())
}

fn parse_share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.001..=1.0).contains(share));
    share.ok_or_else(|| "allowed: a share from 0.001 to 1".to_owned())
}

/// Minimum number of rounds that a comparison needs: one round has no spread.
const ROUNDS_COMPARED_MIN: usize = 2;

impl LoadStudy {
    pub(super) fn run(self) -> Result<ExitCode> {
        let name = self.file.display().to_string();
        let text = match std::fs::read_to_string(&self.file) {
            Ok(text) => text,
            Err(error) => {
                return Ok(argument_error(&format!("cannot read the study {name}: {error}")));
            }
        };
        let mut study = match file::read(&text, &name, &self.set) {
            Ok(study) => study,
            Err(problems) => return Ok(argument_error(&problems.to_string())),
        };
        if let Err(message) = self.override_limits(&mut study) {
            return Ok(argument_error(&message));
        }
        if self.dry_run {
            print!("{}\n{}  order\n{}", study.file.name, study.summary(), study.describe_order());
            return Ok(ExitCode::SUCCESS);
        }
        if !self.quiet {
            study.warnings().iter().for_each(|warning| eprintln!("warning: {warning}"));
        }
        // The same study continues in its folder, which then has a report already.
        let continues = self.folder.path().is_some_and(Store::has_study);
        self.folder.create(if continues { &[] } else { &RESULT_FILES })?;
        let folder = RunFolder::new(self.folder.path())?;
        let store = match Store::open(&folder.path, &study) {
            Ok(store) => store,
            Err(fault) => return Ok(argument_error(&fault.to_string())),
        };
        let LoadStudyRuns { runs, end } = self.run_rounds(&study, &store)?;
        let mut random = resampling_source();
        let result = lab::study::load::analyse(&study, &runs, end, &mut random);
        let faults: Vec<String> = result
            .plans
            .iter()
            .flat_map(|plan| std::iter::once(&plan.comparison).chain(&plan.control))
            .flat_map(self_check::check_comparison)
            .collect();
        let is_sound = report_self_check(&faults);
        self.write(&result)?;
        Ok(ExitCode::from(if is_sound { exit_code(&result) } else { EXIT_SELF_CHECK }))
    }

    /// Runs the rounds whose results are not in the store yet.
    fn run_rounds(&self, study: &Study, store: &Store) -> Result<LoadStudyRuns, StudyFault> {
        let to_fault = |error: &dyn std::fmt::Display| StudyFault::Operation(error.to_string());
        let weir_binary = std::env::current_exe().map_err(|error| to_fault(&error))?;
        let (stop, groups) = (Arc::new(Stop::new()), ProcessGroups::default());
        stop_study_on_signals(&stop, &groups).map_err(|error| to_fault(&error))?;
        let progress = ProgressOutput::new(self.quiet);
        let mut write_run = |dir: &Path, run: &RunResult, totals: &Totals, methods: &[Box<str>]| {
            let written = report::write_folder(dir, run, totals, methods);
            written.map(|_| ()).map_err(|fault| fault.to_string())
        };
        let context = StudyContext {
            weir_binary: &weir_binary,
            stop: &stop,
            groups: &groups,
            write_run: &mut write_run,
            random: &mut resampling_source(),
        };
        let runs = runner::run(study, store, context, &mut |event| show_event(&progress, &event));
        progress.finish();
        runs
    }

    /// Overrides limits of the study file with those of the command line.
    fn override_limits(&self, study: &mut Study) -> Result<(), String> {
        let file = &mut study.file;
        let value_source = "from the command line".to_owned();
        if let Some(rounds) = self.rounds_min {
            file.rounds_min.set(rounds, value_source.clone());
        }
        if let Some(rounds) = self.rounds_max {
            file.rounds_max.set(rounds, value_source.clone());
        }
        if let Some(precision) = self.precision {
            file.precision.set(precision, value_source.clone());
        }
        if let Some(time) = self.time_max {
            file.time_max.set(time, value_source);
        }
        if *file.rounds_min > *file.rounds_max {
            return Err(format!(
                "{} rounds at least are more than {} at most: set --rounds-min and --rounds-max",
                *file.rounds_min, *file.rounds_max
            ));
        }
        Ok(())
    }

    /// Prints the result and writes its files.
    fn write(&self, result: &LoadStudyResult) -> Result<()> {
        let report = load::report(result);
        match () {
            () if self.json => println!("{}", serde_json::to_string_pretty(result)?),
            () if self.markdown => print!("{}", report.markdown()),
            () => print!("{}", report.text(stdout_colour())),
        }
        self.folder.write(self.quiet, |dir| load::write(dir, result))?;
        self.ci.write(&load::checks(result), &report)
    }
}

/// Returns the exit code of a result. Limits of ratios decide about their plans, even if the load
/// generator limited all rounds: the CPU time of a request is known in such rounds.
fn exit_code(result: &LoadStudyResult) -> u8 {
    let is_undecided =
        |plan: &PlanResult| plan.ratios.is_empty() && plan.rounds < ROUNDS_COMPARED_MIN;
    match result.end {
        EndReason::Interrupted => EXIT_INTERRUPTED,
        _ if result.ratio_verdict() == Some(RatioVerdict::Broken) => EXIT_FAILED,
        _ if result.ratio_verdict() == Some(RatioVerdict::CannotTell) => EXIT_INVALID,
        _ if result.plans.iter().any(is_undecided) => EXIT_INVALID,
        _ => 0,
    }
}

/// Prints an event of the study as progress.
fn show_event(progress: &ProgressOutput, event: &Event<'_>) {
    match event {
        Event::Continues(rounds) => {
            progress.print_line(format_args!("continues after round {rounds}"))
        }
        Event::RoundBegins { round: None, variants } => {
            progress.print_line(format_args!("warm-up: {}", variants.join(", ")));
        }
        Event::RoundBegins { round: Some(round), variants } => {
            progress.print_line(format_args!("round {round}: {}", variants.join(", ")));
        }
        Event::RunBegins { plan, variant } => {
            progress.set_message(format!("{variant}, {plan}"));
        }
        Event::Second(second) => {
            let (elapsed, total) = (second.elapsed.as_secs(), second.duration.as_secs());
            progress.set_message(format!("{elapsed} of {total} s"));
        }
        Event::RunEnded { plan, variant, result, left_out } => {
            let measured = result.map_or_else(String::new, |result| {
                let row = &result.overall;
                format!(
                    " {} p50 {:.2} ms, {:.0} results/s",
                    result.verdict.outcome.as_str(),
                    row.latency.p50_ms,
                    row.goodput
                )
            });
            let left_out =
                left_out.as_ref().map_or_else(String::new, |reason| format!(" left out: {reason}"));
            progress.print_line(format_args!("  {variant}, {plan}:{measured}{left_out}"));
        }
        Event::RoundEnded { round, precision: Some(width) } => {
            progress.print_line(format_args!(
                "after round {round}: intervals of ±{:.1} %",
                width * 100.0
            ));
        }
        Event::RoundEnded { precision: None, .. } => {}
    }
}
