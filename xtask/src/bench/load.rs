//! Runs wrk, a load generator, on the load's core: writes its scripts, parses its summary, and
//! measures the CPU time of the server.

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};

use super::machine;
use super::server::{LOAD_CORE, SERVER_CORE, Server, pinned_command};
use crate::shell;

/// The requests that wrk sends.
#[derive(Debug, Clone)]
pub(crate) enum Load {
    /// One body, repeated.
    Constant(String),
    /// Calls for the transaction count of `count` blocks, starting at `first`.
    Counter { first: u64, count: u64 },
    /// One body, repeated. The header `X-Key` takes `count` values in rotation.
    Keyed { body: String, count: u64 },
}

/// First block of [`Load::Counter`]: the smallest number with six hexadecimal digits. Its script
/// writes numbers of this length only.
pub(crate) const COUNTER_FIRST: u64 = 0x10_0000;
/// Largest count of [`Load::Counter`]: there are this many numbers with six hexadecimal digits.
pub(crate) const COUNTER_MAX: u64 = 0x100_0000 - COUNTER_FIRST;
/// Step from one number to the next, modulo the count. This prime divides no count in use, so the
/// steps visit every number.
const COUNTER_STEP: u64 = 7919;

impl Load {
    /// Returns one call of this load, as a probe of a server.
    pub(crate) fn probe(&self) -> String {
        match self {
            Self::Constant(body) | Self::Keyed { body, .. } => body.clone(),
            Self::Counter { first, .. } => transaction_count_call(*first),
        }
    }

    /// Returns the Lua script of this load, which prints the summary at the end.
    fn build_script(&self) -> String {
        let load_script = match self {
            Self::Constant(body) => include_str!("constant.lua").replace("@BODY@", body),
            Self::Keyed { body, count } => include_str!("keyed.lua")
                .replace("@COUNT@", &count.to_string())
                .replace("@STEP@", &COUNTER_STEP.to_string())
                .replace("@LENGTH@", &body.len().to_string())
                .replace("@BODY@", body),
            Self::Counter { first, count } => {
                let call = transaction_count_call(*first);
                let digits = format!("{first:06x}");
                let (before, after) = call.split_once(&digits).expect("a call names its block");
                include_str!("counter.lua")
                    .replace("@FIRST@", &first.to_string())
                    .replace("@COUNT@", &count.to_string())
                    .replace("@STEP@", &COUNTER_STEP.to_string())
                    .replace("@LENGTH@", &call.len().to_string())
                    .replace("@BEFORE@", before)
                    .replace("@AFTER@", after)
            }
        };
        load_script + include_str!("summary.lua")
    }
}

/// Returns the call of [`Load::Counter`] for one block.
pub(crate) fn transaction_count_call(number: u64) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"eth_getBlockTransactionCountByNumber","params":["{number:#x}"]}}"#
    )
}

/// The summary of a run that wrk prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) requests: u64,
    pub(crate) bytes: u64,
    pub(crate) duration: Duration,
    /// Numbers of errors in the order connect, read, write, timeout, status above 399. A valid run
    /// has no error.
    pub(crate) errors: [u64; 5],
}

impl Summary {
    /// Parses the line that the scripts print at the end.
    fn parse(output: &str) -> Result<Self> {
        let line = output.lines().find_map(|line| line.strip_prefix("SUMMARY "));
        let line = line.with_context(|| format!("wrk printed no summary: {output}"))?;
        let numbers: Vec<u64> = line
            .split_whitespace()
            .map(str::parse)
            .collect::<Result<_, _>>()
            .with_context(|| format!("wrk's summary is {line:?}"))?;
        let [requests, bytes, micros, errors @ ..] = numbers.as_slice() else {
            anyhow::bail!("wrk's summary is {line:?}, 8 numbers are needed");
        };
        let errors = <[u64; 5]>::try_from(errors)
            .ok()
            .with_context(|| format!("wrk's summary is {line:?}, 8 numbers are needed"))?;
        let duration = Duration::from_micros(*micros);
        Ok(Self { requests: *requests, bytes: *bytes, duration, errors })
    }
}

/// One run of load: the CPU time of the program under test, and the summary of the load.
#[derive(Debug, Clone)]
pub(crate) struct Round {
    /// CPU time of the whole process group.
    pub(crate) cpu: Duration,
    /// CPU time of other processes on the same core, as a share of the round.
    pub(crate) disturbance: f64,
    pub(crate) summary: Summary,
}

/// Largest valid [`Round::disturbance`]. Other processes evict the server's data from the CPU
/// cache, which raises the cost.
const DISTURBANCE_MAX: f64 = 0.1;

impl Round {
    /// Returns the CPU microseconds per request.
    pub(crate) fn cpu_us_per_request(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.summary.requests as f64
    }

    /// Returns the requests per second.
    pub(crate) fn requests_per_second(&self) -> f64 {
        self.summary.requests as f64 / self.summary.duration.as_secs_f64()
    }

    /// Returns the share of the core's time that the program under test used.
    pub(crate) fn core_share(&self) -> f64 {
        self.cpu.as_secs_f64() / self.summary.duration.as_secs_f64()
    }

    /// Returns true if other processes used the core so much that the round should be repeated.
    pub(crate) fn is_disturbed(&self) -> bool {
        self.disturbance > DISTURBANCE_MAX
    }

    /// Returns why this round is invalid, or `None` if it is valid.
    pub(crate) fn find_problems(&self) -> Option<String> {
        let names = ["connect errors", "read errors", "write errors", "timeouts", "error statuses"];
        let mut problems: Vec<String> = names
            .iter()
            .zip(self.summary.errors)
            .filter(|(_, count)| *count > 0)
            .map(|(name, count)| format!("{count} {name}"))
            .collect();
        if self.summary.requests == 0 {
            problems.push("no request got a response".to_owned());
        }
        if self.is_disturbed() {
            let share = self.disturbance * 100.0;
            problems.push(format!(
                "other processes used {share:.0} % of the core; bench on a quiet machine"
            ));
        }
        (!problems.is_empty()).then(|| problems.join(", "))
    }
}

/// Loads `server` for `seconds` over `connections` keep-alive connections, and measures its CPU
/// time from just before wrk starts to just after it ends.
///
/// # Errors
/// Fails if wrk fails or the server's processes have ended.
pub(crate) fn measure_round(
    server: &Server,
    load: &Load,
    connections: usize,
    seconds: u64,
) -> Result<Round> {
    // The core's busy time minus the server's CPU time is the CPU time of other processes.
    let busy_secs_before = machine::core_busy_seconds(SERVER_CORE)?;
    let cpu_before = machine::cpu_time(server.group())?;
    let summary = run(server.address, load, connections, seconds)?;
    let cpu = machine::cpu_time(server.group())?.saturating_sub(cpu_before);
    let busy_secs = machine::core_busy_seconds(SERVER_CORE)? - busy_secs_before;
    let others_secs = busy_secs - cpu.as_secs_f64();
    let disturbance = others_secs / summary.duration.as_secs_f64();
    Ok(Round { cpu, disturbance, summary })
}

/// Runs wrk and returns its summary.
///
/// # Errors
/// Fails if wrk is missing, fails, or prints no summary.
pub(crate) fn run(
    address: SocketAddr,
    load: &Load,
    connections: usize,
    seconds: u64,
) -> Result<Summary> {
    let script = std::env::temp_dir().join(format!("weir-bench-{}.lua", std::process::id()));
    fs::write(&script, load.build_script())?;
    let mut wrk = pinned_command(LOAD_CORE);
    wrk.args(["wrk", "-t1", &format!("-c{connections}"), &format!("-d{seconds}s"), "-s"]);
    let out = shell::read_output(wrk.arg(&script).arg(format!("http://{address}/")));
    let _ignored = fs::remove_file(&script);
    Summary::parse(&out?)
}

#[cfg(test)]
mod tests;
