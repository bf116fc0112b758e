//! `weir equal`: the same calls to two servers without load, and the differences of the responses.
//! `lab::equal` does the work; this file has the arguments, the progress output and the exit codes.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use lab::equal::Options;
use lab::report::Report;
use lab::report::checks::Checks;
use lab_model::plan::Plan;
use lab_model::plan::line::UrlOptions;
use lab_model::results::equal::{EqualResult, EqualVerdict};
use wire::family::Family;

use crate::ci::CiOutput;
use crate::exit_code::EXIT_FAULTY;
use crate::load::argument_error;
use crate::terminal::stdout_colour;

/// Exit code if a response differs. Code 2 means that the servers could not be compared.
const EXIT_DIFFERENT: u8 = 1;
/// Exit code if responses differ only now and then.
const EXIT_UNSTEADY: u8 = 3;

/// Compare the responses of two nodes or gateways to the same calls
///
/// Sends each call to both servers without load and compares the responses: values, spellings,
/// missing members, order, errors. The order of members and white space are ignored. After a
/// difference both are called twice again: one that persists makes the servers different, and one
/// that goes away makes them unsteady. Calls whose responses depend on the head are compared while
/// both servers have the same head.
///
/// The default calls read final blocks that both servers have, with their transactions, receipts,
/// logs and accounts, and include calls that must return null or an error. With --requests, recorded
/// calls are sent instead: only those that are safe to repeat and about the chain. Block tags such as
/// latest are replaced with the number of a common block.
///
/// Known habits of clients (geth, Nethermind, Erigon, Reth, Besu) are allowed and reported, unless
/// --strict is set or both servers report the same client version. docs/equal.md lists classes and
/// habits.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  weir equal http://127.0.0.1:8545 http://10.0.0.1:8545
  weir equal http://127.0.0.1:8545 http://127.0.0.1:8645 --strict     # a node and its gateway
  weir equal http://127.0.0.1:8545 http://10.0.0.1:8545 --requests calls.jsonl --json -
  weir equal http://127.0.0.1:8545 http://10.0.0.1:8545 --ignore '/result/*/blockTimestamp'
  weir equal http://127.0.0.1:8545 http://10.0.0.1:8545 --junit equal.xml --summary summary.md

Exit codes:
  0  equal, apart from allowed differences
  1  different
  2  not compared: faulty arguments, an unreachable server, different chains, calls without response,
     or a file that cannot be written
  3  unsteady: responses differ only now and then, and the chain's movement does not explain that")]
pub(crate) struct Equal {
    /// URL of the first server (http://, https://, ws:// or wss://)
    #[arg(value_name = "A")]
    a: String,

    /// URL of the second server
    #[arg(value_name = "B")]
    b: String,

    /// Write the result as JSON of schema weir.equal/1; - prints it on standard output instead of
    /// the text
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Print Markdown instead of text
    #[arg(long)]
    markdown: bool,

    /// Print no progress
    #[arg(long)]
    quiet: bool,

    #[command(flatten)]
    calls: CallArgs,

    #[command(flatten)]
    comparison: ComparisonArgs,

    #[command(flatten)]
    ci: CiOutput,
}

#[derive(Args)]
#[command(next_help_heading = "Calls")]
struct CallArgs {
    /// Send recorded requests: JSON lines or vegeta's JSON targets; - is standard input
    #[arg(long, value_name = "FILE")]
    requests: Option<String>,

    /// Send at most this many different recorded calls
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10_000, requires = "requests")]
    count: usize,

    /// Send block tags of recorded calls as they are
    #[arg(long, requires = "requests")]
    keep_tags: bool,

    /// Send recorded calls of unknown methods, and of methods whose responses depend on the node,
    /// too
    #[arg(long, requires = "requests")]
    all_methods: bool,

    /// Set the newest block of the calls [default: a final block that both servers have]
    #[arg(long, value_name = "NUMBER")]
    block: Option<u64>,

    /// Read this many blocks with the default calls
    #[arg(long, value_name = "N", default_value_t = 4, conflicts_with = "requests",
          value_parser = clap::value_parser!(u64).range(1..=1000))]
    blocks: u64,

    /// Set the family of methods: ethereum, harmony or bitcoin [default: detected]
    #[arg(long, value_name = "FAMILY")]
    family: Option<Family>,

    /// Add a request header for both servers; may be repeated
    #[arg(short = 'H', long, value_name = "NAME: VALUE")]
    header: Vec<String>,

    /// Add a request header for the first server; may be repeated
    #[arg(long, value_name = "NAME: VALUE")]
    header_a: Vec<String>,

    /// Add a request header for the second server; may be repeated
    #[arg(long, value_name = "NAME: VALUE")]
    header_b: Vec<String>,

    /// Skip the check of the servers' certificates
    #[arg(long)]
    insecure: bool,

    /// Set the timeout of a response, from 5s to 30s
    #[arg(long, value_name = "DURATION", default_value = "15s")]
    timeout: String,

    /// Send this many calls at once to each server
    #[arg(short = 'c', long, value_name = "N", default_value_t = 4,
          value_parser = clap::value_parser!(u64).range(1..=64))]
    concurrency: u64,
}

#[derive(Args)]
#[command(next_help_heading = "Comparison")]
struct ComparisonArgs {
    /// Count known habits of clients as differences
    #[arg(long)]
    strict: bool,

    /// Ignore the value at this JSON pointer, relative to the response; * is any name or index, a
    /// leading ** any path. May be repeated
    #[arg(long, value_name = "POINTER", value_parser = parse_pointer)]
    ignore: Vec<String>,
}

fn parse_pointer(text: &str) -> Result<String, String> {
    match text.starts_with('/') || text.starts_with("**/") {
        true => Ok(text.to_owned()),
        false => Err("a pointer begins with / or **/, as in /result/hash or **/yParity".to_owned()),
    }
}

impl Equal {
    pub(crate) fn run(self) -> Result<ExitCode> {
        match self.compare() {
            Ok(code) => Ok(code),
            Err(error) => {
                eprintln!("weir: {error:#}");
                Ok(ExitCode::from(EXIT_FAULTY))
            }
        }
    }

    fn compare(&self) -> Result<ExitCode> {
        let requests = self.calls.requests.as_deref();
        let plan_a = self.build_plan(&self.a, &self.calls.header_a, requests);
        // Both servers get the calls of the first plan, so the second plan needs no requests.
        let plan_b = self.build_plan(&self.b, &self.calls.header_b, None);
        let (plan_a, plan_b) = match (plan_a, plan_b) {
            (Ok(plan_a), Ok(plan_b)) => (plan_a, plan_b),
            (Err(fault), _) | (_, Err(fault)) => return Ok(argument_error(&fault)),
        };
        let bar = self.progress_bar();
        let on_progress = |finished: usize, total: usize| {
            bar.set_length(total as u64);
            bar.set_position(finished as u64);
        };
        let result = lab::equal::run([&plan_a, &plan_b], &self.options(), &on_progress);
        bar.finish_and_clear();
        let result = result?;
        self.write(&result)?;
        Ok(match result.verdict {
            EqualVerdict::Equal => ExitCode::SUCCESS,
            EqualVerdict::Different => ExitCode::from(EXIT_DIFFERENT),
            EqualVerdict::Unsteady => ExitCode::from(EXIT_UNSTEADY),
            EqualVerdict::CannotTell => ExitCode::from(EXIT_FAULTY),
        })
    }

    /// Builds the plan of a server, or describes the errors in the arguments.
    fn build_plan(
        &self,
        url: &str,
        headers: &[String],
        requests: Option<&str>,
    ) -> Result<Plan, String> {
        let options = UrlOptions {
            family: self.calls.family,
            requests: requests.map(str::to_owned),
            header: [&self.calls.header, headers].concat(),
            timeout: Some(self.calls.timeout.clone()),
            insecure: self.calls.insecure,
            ..UrlOptions::default()
        };
        // `None` leaves the detection of the family to `lab::equal`.
        let Ok(plan) = options.plan(url, |_, _| Ok::<_, Infallible>(None));
        plan.map_err(|faults| faults.to_string())
    }

    fn options(&self) -> Options {
        Options {
            recorded: self.calls.requests.is_some(),
            calls_max: self.calls.count,
            block: self.calls.block,
            blocks: self.calls.blocks,
            keep_tags: self.calls.keep_tags,
            all_methods: self.calls.all_methods,
            strict: self.comparison.strict,
            ignore: self.comparison.ignore.clone(),
            concurrency: self.calls.concurrency as usize,
        }
    }

    fn progress_bar(&self) -> ProgressBar {
        // indicatif hides the bar if standard error is not a terminal.
        let bar = if self.quiet { ProgressBar::hidden() } else { ProgressBar::new(0) };
        bar.set_style(
            ProgressStyle::with_template("{pos} of {len} calls").expect("it is a template"),
        );
        bar
    }

    /// Prints the result and writes its files.
    fn write(&self, result: &EqualResult) -> Result<()> {
        let report = Report::equal(result);
        let to_json = || serde_json::to_string_pretty(result).context("the result as JSON");
        match self.json.as_deref() {
            Some(path) if path == Path::new("-") => println!("{}", to_json()?),
            _ if self.markdown => print!("{}", report.markdown()),
            _ => print!("{}", report.text(stdout_colour())),
        }
        if let Some(path) = self.json.as_deref().filter(|path| *path != Path::new("-")) {
            std::fs::write(path, to_json()? + "\n")
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        self.ci.write(&Checks::equal(result), &report)
    }
}
