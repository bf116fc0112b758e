//! `weir study`: several runs that answer one question. A study compares variants, such as one node
//! with two settings. `lab::study` does the work. This file has the arguments, the progress output
//! and the exit codes.

mod input;
mod load;
mod variants;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use lab::analysis::sync::VariantRuns;
use lab::analysis::sync::judge::main_row;
use lab::report::RESULT_FILES;
use lab::run::Stop;
use lab::study::read::FileFormat;
use lab::study::runner::{self, Event, StudyRuns, VariantProgress};
use lab::study::{self, Options, ProcessGroups, StudyFault, analyse, file, poll};
use lab_model::plan;
use lab_model::results::study::{Align, Source, StudyResult};
use wire::family::Family;

use crate::ci::CiOutput;
use crate::exit_code::{EXIT_FAULTY, EXIT_INTERRUPTED, EXIT_INVALID};
use crate::out::OutFolder;
use crate::stop;
use crate::terminal::{ProgressOutput, stdout_colour};
use crate::variant::resampling_source;
use input::InputArgs;
use variants::{parse_nodes, read_variants};

/// Answer one question by several runs
#[derive(Args)]
pub(crate) struct Study {
    #[command(subcommand)]
    kind: Command,
}

#[derive(Subcommand)]
enum Command {
    Load(load::LoadStudy),
    Sync(Sync),
}

impl Study {
    pub(crate) fn run(self) -> Result<ExitCode> {
        match self.kind {
            Command::Load(load) => load.run(),
            Command::Sync(sync) => sync.run(),
        }
    }
}

/// Find which variant syncs faster, since when, and why
///
/// A variant is a node or an index with one setting. Its progress is the height over time, with the
/// counters of its page cache. Weir reads the progress from files, polls it from running nodes, or
/// runs the variants of a study file. It compares every variant with the first: the time to reach a
/// height, the lead over time and at equal height, rates and hit ratios by height, crossovers,
/// stalls, and when a variant reaches the newest block. A single variant gets the same tables and
/// charts.
///
/// The report states the conclusions and their limits in sentences. One run of each variant shows no
/// effect size; for a verdict give several runs of a variant, as NAME=FILE,FILE.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  weir study sync studies/page-cache.toml --out results/page-cache     # run the variants
  weir study sync --log pocketcoin 5MB=a/debug.log 500MB=b/debug.log   # with debug=stat
  weir study sync --log geth pebble=a/geth.log leveldb=b/geth.log
  weir study sync --csv 5MB=a1.csv,a2.csv 500MB=b1.csv,b2.csv          # two runs of each variant
  weir study sync --samples small=a.jsonl large=b.jsonl                # written by --samples
  weir study sync --csv 5MB=a.csv 50MB=a2.csv --log pocketcoin 500MB=b/debug.log
  weir study sync --rpc geth=http://127.0.0.1:8545 reth=http://127.0.0.1:8645 --until-height 100000
  weir study sync --csv a.csv b.csv --at 100000,500000 --bin 50000 --subtract-stalls

Exit codes:
  0  the study is complete, with any result
  1  a file or program could not be read, run or written
  2  faulty study file, arguments or data
  4  no reliable result: no other variant can be compared with the first, because one of the two has
     no usable run, did not reach the height to compare, or that height is above the newest block
  6  interrupted by Ctrl-C: the samples until then are saved and reported; a second Ctrl-C ends at
     once and saves nothing. Without --duration and --until-height, Ctrl-C is the usual end of
     watching nodes, with code 0")]
#[command(mut_arg("out", |arg| arg.help(
    "Write report.html, report.md, samples.csv and study.json to a folder, and for a study file also \
     the output of each run"
)))]
struct Sync {
    // This field must precede `given`, because clap fills the fields in order. `input` reads the
    // positions of the variants. Filling `given` removes the variants from clap's matches.
    #[command(flatten)]
    input: InputArgs,

    /// A study file; or, with --log, --csv, --samples or --rpc, the variants. The first variant is the
    /// baseline
    #[arg(value_name = "STUDY.TOML | [NAME=]FILE[,FILE…] | NAME=URL", required = true)]
    given: Vec<String>,

    #[command(flatten)]
    analysis: Analysis,

    #[command(flatten)]
    live: Live,

    #[command(flatten)]
    folder: OutFolder,

    /// Print the result as JSON of schema weir.study/1 instead of text
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

#[derive(Args)]
#[command(next_help_heading = "Analysis")]
struct Analysis {
    /// Heights at which to compare times [default: automatic, or the study file's]
    #[arg(long, value_name = "HEIGHT[,HEIGHT…]", value_delimiter = ',')]
    at: Vec<u64>,

    /// Blocks per bucket, for rates by height [default: automatic, or the study file's]
    #[arg(long, value_name = "BLOCKS", value_parser = clap::value_parser!(u64).range(1..))]
    bin: Option<u64>,

    /// Compare by the clock, or by the time since each variant started [default: by the clock if all
    /// started within one sample]
    #[arg(long, value_name = "clock|start", value_parser = parse_align)]
    align: Option<Align>,

    /// Block time of the chain. A variant that gains less than two blocks in this time counts as
    /// synced to the newest block [default: from the timestamps of blocks in the log, else measured
    /// where a variant grows steadily at its end, else 12s for geth and Ethereum, 2s for Harmony,
    /// 10m for Bitcoin, 60s]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    block_time: Option<Duration>,

    /// Subtract stalls from times: periods of at least four samples at the same height
    #[arg(long)]
    subtract_stalls: bool,

    /// Pair the runs of the variants by their order
    #[arg(long)]
    paired: bool,
}

#[derive(Args)]
#[command(next_help_heading = "Running nodes")]
struct Live {
    /// Family of the nodes: ethereum, harmony or bitcoin [default: detected]
    #[arg(long, value_name = "FAMILY", requires = "rpc")]
    family: Option<Family>,

    /// Interval between two polls of a node
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_every)]
    every: Duration,

    /// End after this time
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, requires = "rpc")]
    duration: Option<Duration>,

    /// End when all nodes have this height
    #[arg(long, value_name = "HEIGHT", requires = "rpc")]
    until_height: Option<u64>,
}

/// Argument of [`Sync::report`] if the result of the study determines the exit code.
const EXIT_BY_RESULT: u8 = 0;

fn parse_duration(text: &str) -> Result<Duration, String> {
    let time = plan::line::parse_duration(text)?;
    if time.is_zero() { Err("must be above 0".to_owned()) } else { Ok(time) }
}

fn parse_every(text: &str) -> Result<Duration, String> {
    let allowed = Duration::from_millis(100)..=Duration::from_secs(600);
    let time = parse_duration(text)?;
    if allowed.contains(&time) { Ok(time) } else { Err("allowed: 100ms to 10m".to_owned()) }
}

fn parse_align(text: &str) -> Result<Align, String> {
    match text {
        "clock" => Ok(Align::Clock),
        "start" => Ok(Align::Start),
        _ => Err("allowed: clock, start".to_owned()),
    }
}

impl Sync {
    fn run(self) -> Result<ExitCode> {
        self.folder.create(&RESULT_FILES)?;
        let formats = match self.input.formats() {
            Ok(formats) => formats,
            Err(message) => return Ok(argument_error(&message)),
        };
        let result = match formats {
            Some(formats) => self.run_files(&formats),
            None if self.input.rpc => self.run_nodes(),
            None => self.run_study_file(),
        };
        match result {
            Ok(code) => Ok(code),
            Err(error) => match error.downcast_ref::<StudyFault>() {
                Some(
                    StudyFault::Line { .. } | StudyFault::Empty { .. } | StudyFault::Option(_),
                ) => {
                    eprintln!("weir: {error:#}");
                    Ok(ExitCode::from(EXIT_FAULTY))
                }
                _ => Err(error),
            },
        }
    }

    /// Analyses runs from files.
    fn run_files(&self, formats: &[(FileFormat, Source)]) -> Result<ExitCode> {
        let file_formats: Vec<FileFormat> = formats.iter().map(|(format, _)| *format).collect();
        let variants = match read_variants(&self.given, &file_formats)? {
            Ok(variants) => variants,
            Err(message) => return Ok(argument_error(&message)),
        };
        // The result names the source of the runs: the kind of their files.
        let (_, first) = formats[0];
        let is_mixed = formats.iter().any(|(_, source)| *source != first);
        let source = if is_mixed { Source::Mixed } else { first };
        let mut options = self.override_options(Options::new("", source));
        options.block_time_assumed = file_formats[0].block_time();
        self.report(&variants, &[], options, EXIT_BY_RESULT)
    }

    /// Polls running nodes and analyses their heights.
    fn run_nodes(&self) -> Result<ExitCode> {
        let nodes = match parse_nodes(&self.given) {
            Ok(nodes) => nodes,
            Err(message) => return Ok(argument_error(&message)),
        };
        let stop = Arc::new(Stop::new());
        stop::stop_run_on_signals(&stop, || {})?;
        let progress = ProgressOutput::new(self.quiet);
        let watch = poll::PollOptions {
            every: self.live.every,
            family: self.live.family,
            duration: self.live.duration,
            height: self.live.until_height,
            folder: self.folder.path().map(Path::to_owned),
        };
        let polled = poll::poll(&nodes, &watch, &stop, &mut |elapsed, states| {
            let texts: Vec<String> = states
                .iter()
                .map(|poll::NodeState { name, height, failed }| {
                    let failed =
                        if *failed > 0 { format!(" ({failed} failed)") } else { String::new() };
                    format!(
                        "{name} {}{failed}",
                        height.map_or("–".to_owned(), |height| height.to_string())
                    )
                })
                .collect();
            progress.set_message(format!("{:.0} s  {}", elapsed.as_secs_f64(), texts.join("  ")));
        });
        progress.finish();
        let (family, variants) = polled?;
        let mut options = self.override_options(Options::new("", Source::Nodes));
        options.block_time_assumed = poll::block_time(family);
        // Without a limit, an interrupt is the normal end of a study.
        let has_limit = self.live.duration.is_some() || self.live.until_height.is_some();
        options.partial = has_limit && stop.is_requested();
        let code = if options.partial { EXIT_INTERRUPTED } else { EXIT_BY_RESULT };
        self.report(&variants, &[], options, code)
    }

    /// Runs the variants of a study file and analyses them.
    fn run_study_file(&self) -> Result<ExitCode> {
        let [path] = self.given.as_slice() else {
            return Ok(argument_error(
                "one study file is run at a time; variants that are files or URLs need --log, --csv, --samples \
                 or --rpc",
            ));
        };
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) => {
                return Ok(argument_error(&format!("cannot read the study {path}: {error}")));
            }
        };
        let study = match file::read(&text, path) {
            Ok(study) => study,
            Err(faults) => return Ok(argument_error(&faults.to_string())),
        };
        let weir_binary = std::env::current_exe().context("cannot find the running program")?;
        let folder = RunFolder::new(self.folder.path())?;
        let (stop, groups) = (Arc::new(Stop::new()), ProcessGroups::default());
        stop_study_on_signals(&stop, &groups)?;
        let progress = ProgressOutput::new(self.quiet);
        let on_event = &mut |event: Event<'_>| show_event(&progress, &event);
        let runs = runner::run(&study, &weir_binary, &folder.path, &stop, &groups, on_event);
        progress.finish();
        let StudyRuns { variants, exclusion_reasons, partial } = runs?;
        let without_runs = variants.iter().position(|variant| variant.runs.is_empty());
        if let Some(index) = without_runs {
            eprintln!("weir: variant {:?} has no run that can be used", variants[index].name);
            exclusion_reasons[index].iter().for_each(|reason| eprintln!("  {reason}"));
            return Ok(ExitCode::from(if partial { EXIT_INTERRUPTED } else { EXIT_INVALID }));
        }
        let mut options = Options::new(&study.file.name, Source::Runs);
        options.question = study.file.question.as_ref().cloned();
        options.design = Some(format!(
            "{}; they differ in {}",
            study.file.order.as_words(),
            if study.differ.is_empty() { "nothing".to_owned() } else { study.differ.join(", ") }
        ));
        options.heights.clone_from(&study.file.targets);
        options.bin = *study.file.bin;
        options.block_time = study.file.block_time.map(|time| time.as_secs_f64());
        options.align = Some(Align::Start);
        options.paired = true;
        let mut options = self.override_options(options);
        options.partial = partial;
        self.report(
            &variants,
            &exclusion_reasons,
            options,
            if partial { EXIT_INTERRUPTED } else { EXIT_BY_RESULT },
        )
    }

    /// Overrides options of the study file with those of the command line.
    fn override_options(&self, mut options: Options) -> Options {
        let args = &self.analysis;
        if !args.at.is_empty() {
            options.heights.clone_from(&args.at);
        }
        options.bin = args.bin.or(options.bin);
        options.align = args.align.or(options.align);
        options.block_time = args.block_time.map(|time| time.as_secs_f64()).or(options.block_time);
        options.subtract_stalls |= args.subtract_stalls;
        options.paired |= args.paired;
        options
    }

    /// Analyses the runs, prints the result and writes its files. `exclusion_reasons` has the
    /// reason of each excluded run, by variant. An empty name in `options` is replaced by the names
    /// of the variants. Returns `code`, or the exit code of the result if `code` is
    /// [`EXIT_BY_RESULT`].
    fn report(
        &self,
        variants: &[VariantRuns],
        exclusion_reasons: &[Vec<String>],
        options: Options,
        code: u8,
    ) -> Result<ExitCode> {
        let mut options = options;
        if options.name.is_empty() {
            let names: Vec<&str> = variants.iter().map(|variant| variant.name.as_str()).collect();
            options.name = names.join(" against ");
        }
        let result = analyse(variants, exclusion_reasons, &options, &mut resampling_source())?;
        let report = study::report(&result);
        match () {
            () if self.json => println!("{}", serde_json::to_string_pretty(&result)?),
            () if self.markdown => print!("{}", report.markdown()),
            () => print!("{}", report.text(stdout_colour())),
        }
        self.folder.write(self.quiet, |dir| study::write(dir, &result, variants))?;
        self.ci.write(&study::checks(&result), &report)?;
        Ok(ExitCode::from(if code == EXIT_BY_RESULT { exit_code(&result) } else { code }))
    }
}

/// Stops a study at the first signal. At the second signal, kills the study's processes and exits.
/// The terminal's interrupt does not reach these processes, because they have their own process
/// groups.
fn stop_study_on_signals(stop: &Arc<Stop>, groups: &ProcessGroups) -> Result<()> {
    let groups = groups.clone();
    stop::stop_run_on_signals(stop, move || groups.kill())
}

/// Returns the exit code of a result: 0 if any variant could be compared, else [`EXIT_INVALID`].
fn exit_code(result: &StudyResult) -> u8 {
    // The main row compares the times to one height, the highest that all runs reached. If a run
    // had reached the chain's newest block (the tip) below this height, these times depend on the
    // chain's block time, not on the variants.
    let is_compared = |against| {
        main_row(result, against).is_some_and(|row| !row.above_tip && row.comparison.is_some())
    };
    let is_single_variant = result.against.is_empty();
    if is_single_variant || result.against.iter().any(is_compared) { 0 } else { EXIT_INVALID }
}

fn argument_error(message: &str) -> ExitCode {
    eprintln!("weir: {message}");
    ExitCode::from(EXIT_FAULTY)
}

/// Folder of the runs: the output folder, or a temporary folder.
struct RunFolder {
    path: PathBuf,
    /// True if `drop` removes the folder.
    is_temporary: bool,
}

impl RunFolder {
    fn new(out: Option<&Path>) -> Result<RunFolder> {
        if let Some(dir) = out {
            // The path is absolute because variants may change their working directory.
            let path =
                dir.canonicalize().with_context(|| format!("cannot find {}", dir.display()))?;
            return Ok(RunFolder { path, is_temporary: false });
        }
        let path = std::env::temp_dir().join(format!("weir-study-{}", std::process::id()));
        std::fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(RunFolder { path, is_temporary: true })
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        if self.is_temporary {
            // If this fails, files stay in the system's temporary folder.
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

/// Prints an event of the study as progress.
fn show_event(progress: &ProgressOutput, event: &Event<'_>) {
    let format_height =
        |height: &Option<u64>| height.map_or("–".to_owned(), |height| height.to_string());
    match event {
        Event::Begins { repeat: 0, variants, .. } => {
            progress.print_line(format_args!("warming up: {}", variants.join(", ")));
        }
        Event::Begins { repeat, repeats, variants } => {
            progress
                .print_line(format_args!("repeat {repeat} of {repeats}: {}", variants.join(", ")));
        }
        Event::Progress(variants) => {
            let texts: Vec<String> = variants
                .iter()
                .map(|VariantProgress { variant, elapsed, height }| {
                    format!("{variant} {} ({elapsed:.0} s)", format_height(height))
                })
                .collect();
            progress.set_message(texts.join("  "));
        }
        Event::Ended { variant, seconds, height, reason } => {
            let reason = reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
            progress.print_line(format_args!(
                "  {variant}: {seconds:.1} s, height {}{reason}",
                format_height(height)
            ));
        }
    }
}
