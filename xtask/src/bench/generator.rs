//! Runs load generators, `weir load` and its peers, with the same load, and parses the report of
//! each.
//!
//! Generators run pinned to the load's core. `lab.rs` reads their CPU time from the kernel, and the
//! constant node (`backend.rs`) counts their requests. Neither figure comes from a generator's own
//! report.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::Deserializer;
use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};
use serde_json::Value;

use super::cost::Labeled;
use super::server::{LOAD_CORE, create_scratch_folder, pinned_command};
use crate::shell;

/// A load generator.
#[derive(Debug, Clone)]
pub(crate) enum Generator {
    /// `weir load`, by the path of the program.
    Weir(PathBuf),
    Wrk,
    Oha,
    K6,
}

/// The load to send: one body, repeated.
#[derive(Debug, Clone)]
pub(crate) struct LoadSpec<'a> {
    pub(crate) target: SocketAddr,
    pub(crate) body: &'a str,
    /// Requests per second (open loop). With `None` each connection sends its next request after
    /// the last response (closed loop).
    pub(crate) rate: Option<u32>,
    pub(crate) connections: usize,
    pub(crate) seconds: u64,
}

impl Labeled for Generator {
    fn label(&self) -> &'static str {
        match self {
            Generator::Weir(_) => "weir load",
            Generator::Wrk => "wrk",
            Generator::Oha => "oha",
            Generator::K6 => "k6",
        }
    }
}

impl Generator {
    /// Starts the generator on the load's core.
    ///
    /// # Errors
    /// Fails if it cannot be started.
    pub(crate) fn start(&self, spec: &LoadSpec<'_>) -> Result<RunningGenerator> {
        let name = self.label();
        let folder = create_scratch_folder(name)?;
        let (url, seconds) = (format!("http://{}/", spec.target), spec.seconds.to_string());
        let connections = spec.connections.to_string();
        let rate = spec.rate.map(|rate| rate.to_string());
        let mut command = pinned_command(LOAD_CORE);
        match self {
            Generator::Weir(program) => {
                command.arg(program).args(["load", &url, "-c", &connections]);
                command.args(["-d", &format!("{seconds}s"), "--body", spec.body]);
                command.args(["--threads", "1", "--quiet", "--out"]).arg(folder.join("result"));
                command.args(rate.iter().flat_map(|rate| ["--rate", rate]));
            }
            Generator::Wrk => {
                ensure!(rate.is_none(), "wrk has no option for a rate");
                let script = folder.join("script.lua");
                fs::write(&script, include_str!("stall.lua").replace("@BODY@", spec.body))?;
                command.args(["wrk", "-t1", &format!("-c{connections}")]);
                command.arg(format!("-d{seconds}s")).args(["--timeout", "10s", "-s"]);
                command.arg(script).arg(url);
            }
            Generator::Oha => {
                command.arg(shell::find("oha").context("oha is missing")?);
                command.args(["--no-tui", "--output-format", "json", "-m", "POST"]);
                command.args(["-T", "application/json", "-d", spec.body, "-c", &connections]);
                command.args(["-z", &format!("{seconds}s")]);
                command.args(rate.iter().flat_map(|rate| ["-q", rate])).arg(url);
            }
            Generator::K6 => {
                let script = folder.join("script.js");
                let text = include_str!("k6.js")
                    .replace("@RATE@", rate.as_deref().unwrap_or("0"))
                    .replace("@SECONDS@", &seconds)
                    .replace("@WORKERS@", &connections)
                    .replace("@URL@", &url)
                    .replace("@BODY@", spec.body);
                fs::write(&script, text)?;
                command.arg(shell::find("k6").context("k6 is missing")?);
                command.args(["run", "--quiet", "--no-usage-report", "--summary-export"]);
                command.arg(folder.join("summary.json")).arg(script);
            }
        }
        let (out, err) = (File::create(folder.join("out"))?, File::create(folder.join("err"))?);
        command.stdin(Stdio::null()).stdout(out).stderr(err).process_group(0);
        let child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        Ok(RunningGenerator { generator: self.clone(), child, folder })
    }
}

/// A running generator; dropping it kills it and removes its files.
pub(crate) struct RunningGenerator {
    generator: Generator,
    child: Child,
    folder: PathBuf,
}

/// The report of a generator at the end of its run.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Report {
    /// Reasons why the run is invalid; empty for a valid run.
    pub(crate) problems: Vec<String>,
    /// 99th percentile of latencies.
    pub(crate) p99_ms: f64,
    pub(crate) max_ms: f64,
    /// Number of requests that took more than 100 ms; `None` if the generator does not count them.
    pub(crate) slow: Option<u64>,
    /// 99th percentile of the scheduling delay, the time from a request's planned start to its real
    /// start. `None` for other generators than `weir load`.
    pub(crate) scheduling_delay_p99_us: Option<f64>,
}

impl RunningGenerator {
    /// Returns the id of the generator's process group.
    pub(crate) fn group(&self) -> u32 {
        self.child.id()
    }

    /// Waits at most `limit` for the generator to end, and reads its report.
    ///
    /// # Errors
    /// Fails if it does not end, or its report cannot be read.
    pub(crate) fn finish(mut self, limit: Duration) -> Result<Report> {
        let name = self.generator.label();
        let started = Instant::now();
        while self.child.try_wait()?.is_none() {
            ensure!(started.elapsed() < limit, "{name} did not end: {}", self.log_tail());
            shell::pause(Duration::from_millis(50));
        }
        let report = match self.generator {
            Generator::Weir(_) => parse_weir(&self.folder.join("result")),
            Generator::Wrk => parse_wrk(&self.read("out")),
            Generator::Oha => parse_oha(&self.read("out")),
            Generator::K6 => parse_k6(&self.read("summary.json")),
        };
        report.with_context(|| format!("{name} printed {}", self.log_tail()))
    }

    /// Returns the text of an output file; empty if the file does not exist.
    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.folder.join(file)).unwrap_or_default()
    }

    /// Returns about the last 1,000 characters of the generator's output, for error messages.
    fn log_tail(&self) -> String {
        let text = self.read("err") + &self.read("out");
        let start = text.trim_end().char_indices().rev().nth(1_000).map_or(0, |(index, _)| index);
        text.trim_end()[start..].to_owned()
    }
}

impl Drop for RunningGenerator {
    fn drop(&mut self) {
        // Both calls fail if the generator has ended already.
        let _ignored = self.child.kill();
        let _ignored = self.child.wait();
        let _ignored = fs::remove_dir_all(&self.folder);
    }
}

/// Reads the number at a path of object keys.
fn read_number(json: &Value, path: &[&str]) -> Result<f64> {
    let value = path.iter().try_fold(json, |value, name| value.get(*name));
    value.and_then(Value::as_f64).with_context(|| format!("no number at {}", path.join(".")))
}

/// Minimum share of the scheduled iterations that a valid run of `weir load` starts.
const DELIVERED_SHARE_MIN: f64 = 0.99;

/// Parses the results that `weir load` has written to a folder.
fn parse_weir(folder: &Path) -> Result<Report> {
    let json: Value = serde_json::from_str(&fs::read_to_string(folder.join("result.json"))?)?;
    let mut problems = Vec::new();
    let failed = read_number(&json, &["overall", "failed_share"])?;
    if failed > 0.0 {
        problems.push(format!("{:.3} % of the calls failed", failed * 100.0));
    }
    let delivered = read_number(&json, &["generator", "delivered_share"])?;
    if delivered < DELIVERED_SHARE_MIN {
        problems.push(format!(
            "only {:.1} % of the scheduled iterations were started",
            delivered * 100.0
        ));
    }
    Ok(Report {
        problems,
        p99_ms: read_number(&json, &["overall", "latency", "p99_ms"])?,
        max_ms: read_number(&json, &["overall", "latency", "max_ms"])?,
        slow: Some(count_slow(&fs::read(folder.join("latency.hlog"))?)?),
        scheduling_delay_p99_us: Some(
            read_number(&json, &["generator", "scheduling_delay", "p99_ms"])? * 1e3,
        ),
    })
}

/// Counts the values above 100 ms in a histogram log of nanoseconds.
fn count_slow(log: &[u8]) -> Result<u64> {
    const SLOW_NS: u64 = 100_000_000;
    let mut slow = 0;
    let mut reader = Deserializer::new();
    for entry in IntervalLogIterator::new(log) {
        let entry = entry.map_err(|error| anyhow::anyhow!("no histogram log: {error:?}"))?;
        let LogEntry::Interval(interval) = entry else { continue };
        let bytes = BASE64_STANDARD.decode(interval.encoded_histogram())?;
        let histogram: Histogram<u64> =
            reader.deserialize(&mut &*bytes).map_err(|error| anyhow::anyhow!("{error}"))?;
        slow += histogram.len() - histogram.count_between(0, SLOW_NS);
    }
    Ok(slow)
}

fn parse_wrk(out: &str) -> Result<Report> {
    // `stall.lua` prints p99 and maximum in microseconds, and the number of slow requests.
    let line = out.lines().find_map(|line| line.strip_prefix("STALL ")).context("no summary")?;
    let numbers: Vec<f64> = line.split(' ').map(str::parse).collect::<Result<_, _>>()?;
    let [p99_us, max_us, slow] = numbers[..] else {
        anyhow::bail!("{line:?}, 3 numbers are needed")
    };
    let markers = ["Socket errors", "Non-2xx"];
    let problems = out.lines().filter(|line| markers.iter().any(|marker| line.contains(marker)));
    Ok(Report {
        problems: problems.map(|line| line.trim().to_owned()).collect(),
        p99_ms: p99_us / 1e3,
        max_ms: max_us / 1e3,
        slow: Some(slow as u64),
        scheduling_delay_p99_us: None,
    })
}

fn parse_oha(out: &str) -> Result<Report> {
    let json: Value = serde_json::from_str(out)?;
    let success_rate = read_number(&json, &["summary", "successRate"])?;
    let problem = (success_rate < 1.0).then(|| format!("its success rate is {success_rate}"));
    Ok(Report {
        problems: problem.into_iter().collect(),
        p99_ms: read_number(&json, &["latencyPercentiles", "p99"])? * 1e3,
        max_ms: read_number(&json, &["summary", "slowest"])? * 1e3,
        slow: None,
        scheduling_delay_p99_us: None,
    })
}

fn parse_k6(summary: &str) -> Result<Report> {
    let json: Value = serde_json::from_str(summary)?;
    let metrics = &json["metrics"];
    let failed = read_number(metrics, &["http_req_failed", "value"])?;
    let problem = (failed > 0.0).then(|| format!("{:.3} % of its requests failed", failed * 100.0));
    Ok(Report {
        problems: problem.into_iter().collect(),
        p99_ms: read_number(metrics, &["http_req_duration", "p(99)"])?,
        max_ms: read_number(metrics, &["http_req_duration", "max"])?,
        slow: Some(read_number(metrics, &["slow", "count"]).unwrap_or(0.0) as u64),
        scheduling_delay_p99_us: None,
    })
}

#[cfg(test)]
mod tests;
