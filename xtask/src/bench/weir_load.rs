//! Runs `weir load` on the load's core as the client of a case, and reads the figures of its
//! result.

use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::Bench;
use super::server::{LOAD_CORE, pinned_command};

/// Figures of all calls of a load after its warm-up. The latencies are of successful calls only.
pub(crate) struct CallFigures {
    /// Number of calls.
    pub(crate) calls: f64,
    /// Share of calls that failed.
    pub(crate) failed_share: f64,
    /// Successful calls per second.
    pub(crate) goodput: f64,
    pub(crate) p99_ms: f64,
    pub(crate) p999_ms: f64,
    pub(crate) slowest_ms: f64,
}

/// Writes `text`, a plan of load, to the file `plan` and starts that load.
///
/// # Errors
/// Fails if the file cannot be written, or the program cannot be started.
pub(crate) fn start(bench: &Bench, plan: &Path, text: &str) -> Result<Child> {
    fs::write(plan, text)?;
    let mut command = pinned_command(LOAD_CORE);
    command.arg(&bench.weir).args(["load", "--json", "-", "--quiet"]).arg(plan);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().context("cannot start weir load")
}

/// Waits for the end of a load and returns its figures.
///
/// # Errors
/// Fails if the load has no result, or no successful call.
pub(crate) fn finish(load: Child) -> Result<CallFigures> {
    let output = load.wait_with_output()?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    let result: Value = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("weir load printed no result: {stderr}"))?;
    let overall = &result["overall"];
    // A class is a set of calls with the same kind of outcome, such as `ok`.
    let mut classes = overall["classes"].as_array().into_iter().flatten();
    let Some(ok) = classes.find(|class| class["class"] == "ok") else {
        bail!("the result of weir load has no successful call: {overall}");
    };
    let figure = |part: &Value, name: &str| {
        part[name]
            .as_f64()
            .with_context(|| format!("the result of weir load has no {name}: {part}"))
    };
    Ok(CallFigures {
        calls: figure(overall, "calls")?,
        failed_share: figure(overall, "failed_share")?,
        goodput: figure(overall, "goodput")?,
        p99_ms: figure(&ok["latency"], "p99_ms")?,
        p999_ms: figure(&ok["latency"], "p999_ms")?,
        slowest_ms: figure(&ok["latency"], "max_ms")?,
    })
}
