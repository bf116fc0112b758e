//! `weir load`: one run against one target, given as a URL or a plan, with a verdict and an exit
//! code.
//!
//! `lab::run` executes the run. `load/arguments.rs` parses the arguments, and `load/output.rs`
//! prints progress and writes the results.

pub(crate) mod arguments;
pub(crate) mod output;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use clap::Args;
use lab::run::{Finished, Stop};
use lab::self_check;
use lab_model::results::Outcome;
use lab_model::results::run::RunResult;

use crate::exit_code::{
    EXIT_CLIENT_LIMITED, EXIT_FAILED, EXIT_FAULTY, EXIT_INTERRUPTED, EXIT_INVALID, EXIT_SELF_CHECK,
};
use crate::stop;
use arguments::TargetArgs;
use output::Output;

/// Load-test a node or gateway and report a verdict
///
/// With a URL, the chain's family is detected and its usual mix of reads is sent over 50
/// connections for 10 seconds. A plan sets everything else: stages, several scenarios, weights,
/// thresholds. docs/plan.md lists all keys, and `weir check PLAN.TOML` prints what a plan would do
/// and which failures it could not reveal.
///
/// With a rate (-r), latency counts from the scheduled time of a call, so that a target that stalls
/// cannot hide it. Without a rate each connection waits for its response, and stalls are detected
/// by seconds without results. The verdict is PASS, MEASURED (no thresholds), FAIL (a threshold was
/// broken, or every call of a method failed), INVALID (the numbers are unreliable) or
/// CLIENT-LIMITED (this host or the plan was the limit, not the target). Its reasons are sentences
/// with numbers.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  weir load http://127.0.0.1:8545                   # the chain's usual reads for 10 s
  weir load http://127.0.0.1:8545 -c 10 -d 30s      # 10 connections for 30 s
  weir load http://127.0.0.1:8545 -r 500 -d 1m      # 500 requests per second, in an open loop
  weir load http://127.0.0.1:8545 -n 1000 --method eth_getBalance \\
    --params '[{\"draw\":\"address\"},\"latest\"]'
  weir load http://127.0.0.1:8545 --mix somnia \\
    --threshold 'latency p(95)<300' --threshold 'failed rate<0.01'
  weir load ws://127.0.0.1:8546                     # the same calls over WebSockets
  weir load https://node.example --connections close --tls-resume off
  weir load http://127.0.0.1:8545 --requests calls.jsonl --out results/today
  weir load studies/somnia.toml --set load_percent=1
  weir load studies/rpcstest.toml --target http://127.0.0.1:8545 --seed 7

Exit codes:
  0  PASS or MEASURED
  1  the run failed, or its results could not be written
  2  faulty plan or arguments
  3  FAIL
  4  INVALID
  5  CLIENT-LIMITED
  6  interrupted by Ctrl-C: the partial result is kept and marked as such; a second Ctrl-C ends at
     once and keeps nothing
  7  a bug in Weir: the result contradicts its own evidence")]
pub(crate) struct Load {
    #[command(flatten)]
    target: TargetArgs,

    #[command(flatten)]
    output: Output,
}

impl Load {
    pub(crate) fn run(self) -> Result<ExitCode> {
        self.output.create_folder()?;
        let plan = match self.target.build_plan()? {
            Ok(plan) => Arc::new(plan),
            Err(faults) => return Ok(argument_error(&faults)),
        };
        self.output.warn(&plan);
        let stop = Arc::new(Stop::new());
        stop::stop_run_on_signals(&stop, || {})?;
        let mut sinks = self.output.start(&plan, &stop)?;
        let finished = lab::run::run(&plan, &stop, &mut |progress| sinks.update(progress));
        let warnings = sinks.finish();
        let Finished { result, totals } = finished.map_err(|fault| self.target.explain(fault))?;
        let is_consistent = report_self_check(&self_check::check_run(&result));
        self.output.print(&result, &totals, &plan);
        warnings.iter().for_each(|line| eprintln!("{line}"));
        self.output.write(&result, &totals, &plan)?;
        Ok(ExitCode::from(if is_consistent { exit_code(&result, &stop) } else { EXIT_SELF_CHECK }))
    }
}

/// Prints an error in the plan or the arguments, and returns its exit code.
pub(crate) fn argument_error(fault: &str) -> ExitCode {
    eprintln!("{}", fault.trim_end());
    ExitCode::from(EXIT_FAULTY)
}

/// Prints the contradictions between a result and its evidence. Returns true if there are none.
pub(crate) fn report_self_check(faults: &[String]) -> bool {
    for fault in faults {
        eprintln!("weir: a bug in Weir, not in the target (please report it): {fault}");
    }
    faults.is_empty()
}

fn exit_code(result: &RunResult, stop: &Stop) -> u8 {
    if stop.is_requested() && result.partial {
        return EXIT_INTERRUPTED;
    }
    match result.verdict.outcome {
        Outcome::Pass | Outcome::Measured => 0,
        Outcome::Fail => EXIT_FAILED,
        Outcome::Invalid => EXIT_INVALID,
        Outcome::ClientLimited => EXIT_CLIENT_LIMITED,
    }
}
