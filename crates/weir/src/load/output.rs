//! Progress output of a run, and the files of its results.

use std::io;
use std::io::{IsTerminal as _, Stderr};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use lab::export::remote::{PushSummary, RemoteWrite, Settings};
use lab::export::scrape::Scrape;
use lab::export::{Labels, Names, Stat, Trends};
use lab::live::plain::PlainProgress;
use lab::live::screen::Screen;
use lab::report::checks::Checks;
use lab::report::{self, Report};
use lab::run::{Progress, Stop};
use lab_model::plan::Plan;
use lab_model::record::Totals;
use lab_model::results::run::RunResult;

use crate::ci::CiOutput;
use crate::out::OutFolder;
use crate::terminal::stdout_colour;

#[derive(Args, Debug)]
#[command(next_help_heading = "Output")]
#[command(mut_arg("out", |arg| arg.help(
    "Write everything to a folder: result.json, report.html, report.md, histograms, time series"
)))]
pub(crate) struct Output {
    #[command(flatten)]
    folder: OutFolder,

    /// Write the result as JSON; - prints it on standard output instead of the text
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Write the time series as CSV
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,

    /// Write the result in the shape of k6's --summary-export
    #[arg(long, value_name = "FILE")]
    k6_summary: Option<PathBuf>,

    /// Push metrics during the run to this URL by Prometheus remote write
    #[arg(long, value_name = "URL")]
    remote_write: Option<String>,

    /// Serve metrics at this address during the run
    #[arg(long, value_name = "IP:PORT")]
    scrape: Option<SocketAddr>,

    /// Names of metrics: Weir's, or k6's for its dashboards
    #[arg(long, value_name = "weir|k6", default_value = "weir",
          value_parser = PossibleValuesParser::new(["weir", "k6"]).map(|name| match &*name {
              "k6" => Names::K6,
              _ => Names::Weir,
          }))]
    metric_names: Names,

    /// Form of distributions with --remote-write: native or native:SCHEMA for native histograms, or
    /// a list of avg, min, max, med, count, sum, p(NUMBER)
    #[arg(long, value_name = "LIST", default_value = "avg,max,p(50),p(95),p(99)", value_parser = parse_trends)]
    metric_trends: Trends,

    /// Label for all metrics; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    metric_label: Vec<String>,

    /// Print progress as lines even on a terminal
    #[arg(long)]
    plain: bool,

    /// Print no progress
    #[arg(long, conflicts_with = "plain")]
    quiet: bool,

    #[command(flatten)]
    ci: CiOutput,
}

/// Default schema of native histograms, with buckets 2.2 % wide.
const DEFAULT_SCHEMA: i32 = lab::export::SCHEMA_MIN;

/// Parses the form of distributions: `native`, `native:SCHEMA`, or a list of statistics.
fn parse_trends(text: &str) -> Result<Trends, String> {
    if let Some(schema_part) = text.strip_prefix("native") {
        let schema = match schema_part.strip_prefix(':') {
            None if schema_part.is_empty() => DEFAULT_SCHEMA,
            number => number
                .and_then(|number| number.parse().ok())
                .ok_or_else(|| "native is followed by : and a schema, 5 to 8".to_owned())?,
        };
        return Ok(Trends::Native { schema });
    }
    let stats = text.split(',').map(|stat| stat.trim().parse::<Stat>());
    stats.collect::<Result<_, _>>().map(Trends::Stats).map_err(|fault| fault.to_string())
}

impl Output {
    /// Prints the plan's warnings before the run.
    pub(super) fn warn(&self, plan: &Plan) {
        if !self.quiet {
            plan.warnings.iter().for_each(|warning| eprintln!("warning: {warning}"));
        }
    }

    /// Creates the output folder, so that an error is reported before the run.
    pub(super) fn create_folder(&self) -> Result<()> {
        self.folder.create(&report::RESULT_FILES)
    }

    /// Starts the progress output and the metrics exports.
    pub(super) fn start(&self, plan: &Arc<Plan>, stop: &Arc<Stop>) -> Result<Sinks> {
        let labels = Labels::parse(&self.metric_label)?;
        let push_settings = self.remote_write.as_ref().map(|url| Settings {
            names: self.metric_names,
            trends: self.metric_trends.clone(),
            labels: labels.clone(),
            ..Settings::new(url)
        });
        let listen = |address| Scrape::listen(address, self.metric_names, labels);
        let scrape = self.scrape.map(listen);
        let scrape = scrape.transpose()?;
        if let Some(scrape) = scrape.as_ref().filter(|_| !self.quiet) {
            eprintln!("metrics at http://{}/metrics", scrape.address());
        }
        Ok(Sinks {
            push: push_settings.as_ref().map(RemoteWrite::start).transpose()?,
            scrape,
            live: self.start_live(plan, stop),
        })
    }

    /// Starts the progress output on the terminal.
    fn start_live(&self, plan: &Arc<Plan>, stop: &Arc<Stop>) -> Live {
        if self.quiet {
            return Live::Quiet;
        }
        let is_terminal = !self.plain && io::stderr().is_terminal() && io::stdin().is_terminal();
        match is_terminal.then(|| Screen::start(plan, stop)) {
            Some(Ok(screen)) => Live::Screen(screen),
            // If the full screen cannot start, progress is printed as plain lines.
            Some(Err(_)) | None => Live::Plain(PlainProgress::new(io::stderr())),
        }
    }

    /// Prints the result, without the plan's warnings, which [`Output::warn`] has printed.
    pub(super) fn print(&self, result: &RunResult, totals: &Totals, plan: &Plan) {
        if self.json.as_deref() != Some(Path::new("-")) {
            let mut result = result.clone();
            if !self.quiet {
                // The plan's warnings are the last ones of a result.
                let others = result.warnings.len().saturating_sub(plan.warnings.len());
                result.warnings.truncate(others);
            }
            let report = Report::run(&result, totals, &plan.methods);
            println!("{}", report.text(stdout_colour()).trim_end());
        }
    }

    /// Writes all requested files, even if one of them fails.
    ///
    /// # Errors
    /// Returns the first failure. Prints further failures on standard error.
    pub(super) fn write(&self, result: &RunResult, totals: &Totals, plan: &Plan) -> Result<()> {
        let methods = &plan.methods;
        let mut results = Vec::new();
        if let Some(dir) = self.folder.path() {
            let write_result = report::write_folder(dir, result, totals, methods);
            results.push(write_result.map(|_| ()).map_err(anyhow::Error::from));
            if !self.quiet && results.iter().all(Result::is_ok) {
                eprintln!("written to {}", dir.display());
            }
        }
        if let Some(path) = &self.json {
            let text = serde_json::to_string_pretty(result).context("the result as JSON");
            results.push(text.and_then(|text| write_text(path, &(text + "\n"))));
        }
        if let Some(path) = &self.csv {
            let csv = report::series_csv(result).map_err(anyhow::Error::from);
            results.push(csv.and_then(|csv| write_text(path, &String::from_utf8_lossy(&csv))));
        }
        if let Some(path) = &self.k6_summary {
            let summary = report::k6_summary(result, totals, methods);
            results.push(write_text(path, &format!("{summary:#}\n")));
        }
        results.push(self.ci.write(&Checks::run(result), &Report::run(result, totals, methods)));
        let mut errors = results.into_iter().filter_map(Result::err);
        let first_error = errors.next();
        errors.for_each(|error| eprintln!("weir: {error:#}"));
        first_error.map_or(Ok(()), Err)
    }
}

fn write_text(path: &Path, text: &str) -> Result<()> {
    if path == Path::new("-") {
        print!("{text}");
        return Ok(());
    }
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Sinks of a run's progress: terminal, remote write, scrape endpoint.
pub(super) struct Sinks {
    push: Option<RemoteWrite>,
    scrape: Option<Scrape>,
    live: Live,
}

/// The progress output on the terminal.
enum Live {
    Screen(Screen),
    Plain(PlainProgress<Stderr>),
    Quiet,
}

impl Sinks {
    /// Passes one second's progress to all sinks.
    pub(super) fn update(&mut self, progress: &Progress<'_>) {
        if let Some(push) = &mut self.push {
            push.update(progress);
        }
        if let Some(scrape) = &mut self.scrape {
            scrape.update(progress);
        }
        match &mut self.live {
            Live::Screen(screen) => screen.update(progress),
            Live::Plain(plain) => plain.update(progress),
            Live::Quiet => {}
        }
    }

    /// Stops all sinks and restores the terminal. Returns warnings about pushed metrics.
    pub(super) fn finish(self) -> Vec<String> {
        if let Live::Screen(screen) = self.live {
            screen.finish();
        }
        self.scrape.into_iter().for_each(Scrape::finish);
        self.push.map(|push| push_warnings(push.finish())).unwrap_or_default()
    }
}

/// Returns warnings about samples that the receiver of remote write did not store.
pub(crate) fn push_warnings(summary: PushSummary) -> Vec<String> {
    let PushSummary { stored, rejected, rejected_status, discarded, skipped, .. } = summary;
    let mut lines = Vec::new();
    if rejected > 0 {
        let status = rejected_status.map_or_else(String::new, |status| format!(" (HTTP {status})"));
        lines.push(format!(
            "remote write: {rejected} samples were rejected{status}, {stored} stored"
        ));
    }
    if discarded > 0 || skipped > 0 {
        lines.push(format!(
            "remote write: {discarded} samples, and those of {skipped} further pushes, were discarded \
             because the receiver did not respond in time; {stored} samples were stored"
        ));
    }
    lines
}
