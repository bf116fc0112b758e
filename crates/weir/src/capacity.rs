//! `weir capacity`: searches for the highest rate at which all thresholds hold. A probe is a short
//! run at one rate. `lab::capacity` runs the search. This file has the arguments, the progress
//! output and the exit codes.

use std::io;
use std::io::{BufRead as _, IsTerminal as _};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use lab::capacity::{CapacityFault, Cost, Event, probe_head, probe_line};
use lab::report::checks::Checks;
use lab::report::{self, Report};
use lab::run::Stop;
use lab::self_check;
use lab_model::plan::lint::Warning;
use lab_model::plan::{self, Plan};
use lab_model::record::Totals;
use lab_model::results::capacity::{CapacityResult, EndReason};
use lab_model::results::run::RunResult;

use crate::ci::CiOutput;
use crate::exit_code::{
    EXIT_CLIENT_LIMITED, EXIT_FAILED, EXIT_FAULTY, EXIT_INTERRUPTED, EXIT_INVALID, EXIT_SELF_CHECK,
};
use crate::load::arguments::TargetArgs;
use crate::load::{argument_error, report_self_check};
use crate::out::OutFolder;
use crate::stop;
use crate::terminal::{ProgressOutput, stdout_colour};

/// Default number of workers for a URL. A worker runs one iteration at a time. So 500 workers
/// sustain 500 iterations per second with a latency of one second. Idle workers open no
/// connections.
const DEFAULT_WORKERS: u64 = 500;
/// Exit code if a run failed; the partial result is kept.
const EXIT_RUN_FAILED: u8 = 1;
/// Default first rate for a URL, in iterations per second.
const DEFAULT_RATE_START: f64 = 50.0;

/// Find the highest rate a target sustains, and what breaks first
///
/// A probe is a short run at one rate. The search doubles the rate until a probe fails, and then
/// bisects. It repeats the probes at both sides of the boundary until a majority decides, and
/// confirms the highest passing rate by a soak, which is a longer run. Between probes it waits for
/// the target to drain. After each failed probe it checks at a low rate that the target has
/// recovered.
///
/// A probe passes if every threshold holds, no method fails completely, and responses keep up with
/// requests: above the capacity a backlog grows, while all thresholds may still hold. A probe that
/// this host limits counts as neither passed nor failed.
///
/// With a plan in the open model, its mixes and thresholds apply, all scenarios run at once in the
/// ratio of their highest rates, and its `capacity` table configures the search. With a URL, the
/// chain's usual reads are sent. Without thresholds, defaults are chosen and printed.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  weir capacity plan.toml                                     # with the plan's [capacity] table
  weir capacity plan.toml --precision 0.05 --soak 0s --yes    # faster, coarser, unconfirmed
  weir capacity http://127.0.0.1:8545 --rate-max 20000 --out results/capacity
  weir capacity http://127.0.0.1:8545 --method eth_getLogs \\
    --params '[{\"draw\":\"logs\",\"blocks\":10}]' --threshold 'latency p(95)<500'

Exit codes:
  0  the boundary was found, or the largest rate passes
  1  a run failed (the partial result is kept), or results could not be written
  2  faulty plan or arguments, or the start was not confirmed
  3  the lowest rate fails
  4  no reliable result: probes were invalid, every soak failed, or there were too many probes
  5  the load generator was the limit: only a lower bound of the capacity is known, if any
  6  interrupted by Ctrl-C: the partial result is kept and marked as such; a second Ctrl-C ends at
     once and keeps nothing
  7  a bug in Weir: the result contradicts its own evidence")]
#[command(mut_arg("url_or_plan", |arg| {
    let help = "URL of the target (http:// or https://), or a load plan";
    arg.help(help).help_heading(None::<&'static str>)
}))]
#[command(mut_arg("set", |arg| arg.help_heading(None::<&'static str>)))]
#[command(mut_arg("out", |arg| arg.help(
    "Write capacity.json, capacity.html, capacity.md and the runs of all probes to a folder"
)))]
#[command(mut_arg("plan_target", |arg| arg.help("Search this URL instead of the plan's target")))]
pub(crate) struct Capacity {
    #[command(flatten)]
    search: SearchOptions,

    #[command(flatten)]
    folder: OutFolder,

    /// Print the result as JSON (schema weir.capacity/1) instead of text
    #[arg(long)]
    json: bool,

    /// Start without confirmation
    #[arg(short, long)]
    yes: bool,

    /// Print no progress, and start without confirmation
    #[arg(long)]
    quiet: bool,

    #[command(flatten)]
    target: TargetArgs,

    #[command(flatten)]
    ci: CiOutput,
}

/// Search options, which override the plan's `[capacity]` table.
#[derive(Args)]
#[command(next_help_heading = "Search")]
struct SearchOptions {
    /// First rate, in iterations per second [default: the plan's; 50 for a URL]
    #[arg(long, value_name = "PER SECOND", value_parser = parse_rate)]
    rate_start: Option<f64>,

    /// Maximum rate, in iterations per second [default: the plan's]
    #[arg(long, value_name = "PER SECOND", value_parser = parse_rate)]
    rate_max: Option<f64>,

    /// End when the lowest failing rate is within this share of the highest passing one [default:
    /// the plan's]
    #[arg(long, value_name = "SHARE", value_parser = parse_share)]
    precision: Option<f64>,

    /// Duration of a probe, including its warm-up [default: the plan's]
    #[arg(long, value_name = "DURATION", value_parser = plan::line::parse_duration)]
    probe: Option<Duration>,

    /// Warm-up of a probe, excluded from its verdict [default: the plan's]
    #[arg(long, value_name = "DURATION", value_parser = plan::line::parse_duration)]
    probe_warmup: Option<Duration>,

    /// Probes at each side of the boundary [default: the plan's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=99))]
    repeats: Option<u32>,

    /// Pause between probes [default: the plan's]
    #[arg(long, value_name = "DURATION", value_parser = plan::line::parse_duration)]
    drain: Option<Duration>,

    /// Duration of the final run at the highest passing rate; 0s for none [default: the plan's]
    #[arg(long, value_name = "DURATION", value_parser = plan::line::parse_duration)]
    soak: Option<Duration>,
}

fn parse_rate(text: &str) -> Result<f64, String> {
    let value = text.parse().ok().filter(|rate| (0.01..=10_000_000.0).contains(rate));
    value.ok_or_else(|| "a rate is 0.01 to 10000000 iterations per second".to_owned())
}

fn parse_share(text: &str) -> Result<f64, String> {
    let value = text.parse().ok().filter(|share| (0.001..=0.5).contains(share));
    value.ok_or_else(|| "a precision is 0.001 to 0.5".to_owned())
}

impl SearchOptions {
    /// Overrides the plan's search options.
    fn apply(&self, plan: &mut Plan) -> Result<(), String> {
        let search = &mut plan.capacity;
        search.rate_start = self.rate_start.unwrap_or(search.rate_start);
        search.rate_max = self.rate_max.unwrap_or(search.rate_max);
        search.precision = self.precision.unwrap_or(search.precision);
        search.probe = self.probe.unwrap_or(search.probe);
        search.probe_warmup =
            self.probe_warmup.map_or(search.probe_warmup, lab_model::plan::whole_seconds);
        search.repeats = self.repeats.map_or(search.repeats, |repeats| repeats as usize);
        search.drain = self.drain.unwrap_or(search.drain);
        search.soak = self.soak.unwrap_or(search.soak);
        if search.rate_start > search.rate_max {
            return Err(format!(
                "--rate-start {} is above --rate-max {}",
                search.rate_start, search.rate_max
            ));
        }
        let measured_time = search.probe.saturating_sub(search.probe_warmup);
        if measured_time < MEASURED_TIME_MIN {
            return Err(format!(
                "a probe of {:?} with a warm-up of {:?} is judged for less than \
                 {MEASURED_TIME_MIN:?}: too short to see a backlog grow",
                search.probe, search.probe_warmup
            ));
        }
        Ok(())
    }
}

/// Minimum duration of a probe without its warm-up. With one sample per second, a growing backlog
/// cannot be detected in a shorter probe.
const MEASURED_TIME_MIN: Duration = Duration::from_secs(4);

impl Capacity {
    pub(crate) fn run(mut self) -> Result<ExitCode> {
        self.folder.create(&report::RESULT_FILES)?;
        let rate = self.search.rate_start.unwrap_or(DEFAULT_RATE_START);
        let mut plan = match self.target.build_search_plan(rate, DEFAULT_WORKERS)? {
            Ok(plan) => plan,
            Err(faults) => return Ok(argument_error(&faults)),
        };
        if let Err(fault) = self.search.apply(&mut plan) {
            return Ok(argument_error(&fault));
        }
        // The warning does not apply: without thresholds, a search chooses default ones.
        plan.warnings.retain(|warning| *warning != Warning::NoThreshold);
        let cost = match lab::capacity::estimate_cost(&plan) {
            Ok(cost) => cost,
            Err(fault) => return Ok(argument_error(&fault.to_string())),
        };
        if !self.confirm(&plan, cost)? {
            return Ok(ExitCode::from(EXIT_FAULTY));
        }
        let stop = Arc::new(Stop::new());
        stop::stop_run_on_signals(&stop, || {})?;
        let progress = ProgressOutput::new(self.quiet);
        progress.print_line(probe_head());
        // Returns true if the run was written. Without `--out`, no run is written.
        let mut write_run = |name: &str, run: &RunResult, totals: &Totals, methods: &[Box<str>]| {
            let Some(dir) = self.folder.path() else { return Ok(false) };
            let written = lab::report::write_folder(&dir.join(name), run, totals, methods);
            written.map(|_| true).map_err(|fault| fault.to_string())
        };
        let mut on_event = |event: Event<'_>| show_event(&progress, event);
        let outcome = lab::capacity::search(&plan, &mut write_run, &stop, &mut on_event);
        progress.finish();
        let result = match outcome {
            Err(CapacityFault::Run(fault)) => return Err(self.target.explain(fault)),
            other => other?,
        };
        let is_consistent = report_self_check(&self_check::check_capacity(&result));
        self.write(&result, &plan)?;
        Ok(ExitCode::from(if is_consistent { exit_code(&result, &stop) } else { EXIT_SELF_CHECK }))
    }

    /// Prints the expected duration, and asks for confirmation on a terminal. Returns true if the
    /// search may start.
    fn confirm(&self, plan: &Plan, cost: Cost) -> Result<bool> {
        let to_minutes = |time: Duration| (time.as_secs_f64() / 60.0).ceil();
        let (shortest, longest) = (to_minutes(*cost.time.start()), to_minutes(*cost.time.end()));
        if !self.quiet {
            plan.warnings.iter().for_each(|warning| eprintln!("warning: {warning}"));
            eprintln!(
                "searching {} to {} iterations/s at {}: {shortest} to {longest} minutes, {} to {} probes; a \
                 noisy target, or one that recovers slowly, takes longer",
                plan.capacity.rate_start,
                plan.capacity.rate_max,
                plan.target.url,
                cost.probes.start(),
                cost.probes.end()
            );
        }
        let is_interactive = io::stdin().is_terminal() && io::stderr().is_terminal();
        if self.yes || self.quiet || !is_interactive {
            return Ok(true);
        }
        eprint!("start? [Y/n] ");
        let mut answer = String::new();
        io::stdin().lock().read_line(&mut answer)?;
        Ok(matches!(answer.trim().to_lowercase().as_str(), "" | "y" | "yes"))
    }

    /// Prints the result and writes its files. Omits the plan's warnings if they were printed
    /// before the search.
    fn write(&self, result: &CapacityResult, plan: &Plan) -> Result<()> {
        if self.json {
            println!("{}", serde_json::to_string_pretty(result)?);
        } else {
            let mut printed = result.clone();
            if !self.quiet {
                // The plan's warnings are the first ones of a result, without the warnings about
                // few samples.
                let is_listed = |warning: &&Warning| !matches!(warning, Warning::FewSamples(_));
                let count = plan.warnings.iter().filter(is_listed).count();
                printed.warnings.drain(..count.min(result.warnings.len()));
            }
            print!("{}", Report::capacity(&printed).text(stdout_colour()));
        }
        self.folder.write(self.quiet, |dir| report::write_capacity(dir, result))?;
        self.ci.write(&Checks::capacity(result), &Report::capacity(result))
    }
}

fn exit_code(result: &CapacityResult, stop: &Stop) -> u8 {
    if result.partial {
        return if stop.is_requested() { EXIT_INTERRUPTED } else { EXIT_RUN_FAILED };
    }
    // `soak_held` is `None` without a soak.
    let soak_failed = result.answer.soak_held == Some(false);
    match result.answer.end {
        EndReason::Converged | EndReason::RateMax if !soak_failed => 0,
        EndReason::NothingPassed => EXIT_FAILED,
        EndReason::ClientLimited => EXIT_CLIENT_LIMITED,
        _ => EXIT_INVALID,
    }
}

/// Prints an event of the search as progress.
fn show_event(progress: &ProgressOutput, event: Event<'_>) {
    match event {
        Event::Waiting { time, .. } => {
            progress.set_message(format!("waiting {:.0} s", time.as_secs_f64()));
        }
        Event::ProbeStarted { kind, rate, time } => {
            let (kind, time) = (kind.as_str(), time.as_secs_f64());
            progress.set_message(format!("{kind} at {rate}/s for {time:.0} s"));
        }
        Event::Second(second) => {
            let (elapsed, duration) = (second.elapsed.as_secs(), second.duration.as_secs());
            let (started, waiting) = (second.second.started, second.second.waiting);
            progress.set_message(format!(
                "{elapsed} of {duration} s: {started}/s started, {waiting} waiting"
            ));
        }
        Event::Ended(row) => progress.print_line(probe_line(row)),
        Event::DefaultThresholds(text) => progress.print_line(text),
        Event::Warning(text) => progress.print_line(format_args!("warning: {text}")),
    }
}
