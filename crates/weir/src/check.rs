//! `weir check`: validates a file without starting anything. A file with a target or a scenario is
//! a load plan, a file with the key `study` is a study, and any other file is a gateway
//! configuration.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use gateway::config::Config;
use lab::study::{CheckedFile, KINDS, Kind};
use lab_model::plan;
use settings::Diagnostics;

use crate::exit_code::EXIT_FAULTY;
use crate::source;

mod addresses;
mod connections;
mod mistakes;

/// Check a gateway configuration, a load plan or a study
///
/// Prints all errors at once, each with its line, the value and what is allowed. Settings that are
/// valid but look like a mistake are printed as warnings. Secrets are never printed. Nothing is
/// started, and no upstream is called; host names of upstreams are resolved, because one with several
/// addresses counts as one upstream.
///
/// With --connect, a gateway's upstreams are asked too, all at once and for at most ten seconds, with
/// at most 25 calls each: whether they are reachable and accept the key, their chain id, head, client
/// and state of old blocks, subscriptions over a WebSocket, and the methods debug_traceBlockByNumber
/// (debug), trace_block (trace), eth_getBlockReceipts (receipts) and eth_getProof (proof). So are the
/// Redis, the PostgreSQL of the index and the collector of traces, if the file has them.
///
/// For a plan it also prints what a run would do: stages, iterations and requests, mean and peak
/// rate, and each method's share of all calls. It warns about failures that the run could not
/// reveal, such as a method that fails completely without breaking a threshold.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  weir check gateway.toml
  weir check gateway.toml --connect
  weir check gateway.toml && weir reload
  weir check studies/somnia.toml --set load_percent=11
  weir check studies/page-cache.toml

Exit codes: 0 valid, possibly with warnings; 2 faulty or not readable, or with --connect an upstream
or another server cannot be used.")]
pub(crate) struct Check {
    /// Gateway configuration, plan or study (docs/config.md, docs/plan.md and docs/studies.md list
    /// all keys)
    #[arg(value_name = "FILE.TOML")]
    file: PathBuf,

    /// Set a variable of the plan, or of the plans of a load study; may be repeated
    #[arg(long, value_name = "NAME=NUMBER", value_parser = plan::line::parse_variable)]
    set: Vec<(String, f64)>,

    /// Ask the upstreams and other servers of a gateway configuration whether they can be used
    #[arg(long, conflicts_with = "set")]
    connect: bool,
}

impl Check {
    pub(crate) fn run(self) -> ExitCode {
        let text = std::fs::read_to_string(&self.file).ok();
        let kind = text.as_ref().and_then(|text| KINDS.iter().find(|kind| (kind.is_file)(text)));
        // `--set` applies to plans and to studies with variables.
        let kind = kind.filter(|kind| kind.has_variables || self.set.is_empty());
        let is_gateway = kind.is_none() && !text.as_ref().is_some_and(|text| plan::is_plan(text));
        if self.connect && !is_gateway {
            let file = self.file.display();
            eprintln!("--connect is for gateway configurations, and {file} is not one");
            return ExitCode::from(EXIT_FAULTY);
        }
        match (&text, kind) {
            (Some(text), Some(kind)) => check_study(&self.file, kind, text, &self.set),
            (Some(text), None) if plan::is_plan(text) => check_plan(&self.file, text, &self.set),
            (Some(_), None) if !self.set.is_empty() => {
                eprintln!(
                    "--set is for plans and load studies, and {} is neither",
                    self.file.display()
                );
                ExitCode::from(EXIT_FAULTY)
            }
            // An unreadable file goes to `check_gateway`, which reports it.
            _ => check_gateway(&self.file, self.connect),
        }
    }
}

fn check_plan(file: &Path, text: &str, variables: &[(String, f64)]) -> ExitCode {
    let plan = match plan::read(text, &file.display().to_string(), variables) {
        Ok(plan) => plan,
        Err(faults) => return report_faults(&faults),
    };
    print_warnings(&plan.warnings);
    if !plan.warnings.is_empty() {
        eprintln!();
    }
    report_valid(file, plan.warnings.len(), &plan::summary::summarize(&plan))
}

fn check_study(file: &Path, kind: &Kind, text: &str, variables: &[(String, f64)]) -> ExitCode {
    match (kind.check)(text, &file.display().to_string(), variables) {
        Ok(CheckedFile { warnings, summary }) => {
            print_warnings(&warnings);
            report_valid(file, warnings.len(), &summary)
        }
        Err(faults) => report_faults(&faults),
    }
}

/// Checks a gateway configuration, and its servers if `connect` is true.
fn check_gateway(file: &Path, connect: bool) -> ExitCode {
    let config = match Config::from_file(file) {
        Ok(config) => config,
        Err(faults) => return report_faults(&faults),
    };
    if !config.warnings.list.is_empty() {
        eprintln!("{}", config.warnings);
    }
    let mut found = addresses::find_warnings(&config);
    found.extend(mistakes::find_warnings(&config));
    print_warnings(&found);
    let warnings = config.warnings.list.len() + found.len();
    let code = report_valid(file, warnings, &source::summarize(&config));
    let folder = file.parent().unwrap_or(Path::new(""));
    if connect && !connections::check(&config, folder) {
        return ExitCode::from(EXIT_FAULTY);
    }
    code
}

fn print_warnings(warnings: &[impl Display]) {
    warnings.iter().for_each(|warning| eprintln!("warning: {warning}"));
}

/// Prints the faults of a file, and returns their exit code.
fn report_faults(faults: &Diagnostics) -> ExitCode {
    eprint!("{faults}");
    eprintln!("\n{}", source::count_text(faults.count(), "fault"));
    ExitCode::from(EXIT_FAULTY)
}

/// Prints that a file is valid, the number of its warnings, and its summary.
fn report_valid(file: &Path, warnings: usize, summary: &str) -> ExitCode {
    let warning_count = match warnings {
        0 => String::new(),
        _ => format!(", {}", source::count_text(warnings, "warning")),
    };
    println!("ok: {}{warning_count}", file.display());
    print!("{summary}");
    ExitCode::SUCCESS
}
