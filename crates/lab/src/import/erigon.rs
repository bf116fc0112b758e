//! Reads reports of erigontech/rpc-tests (`perf/reports`). The tool runs vegeta at rising rates and
//! repeats each rate; a report has one line per repetition.
//!
//! The first lines of a report have facts about the machine, with the name in column 13 and the
//! value in column 14. A header that begins with `Daemon` follows. A report may cover several
//! servers (the column `Daemon`). Each server becomes a variant of a comparison, and each
//! repetition becomes a run at its rate.
//!
//! Two kinds of repetitions would distort a comparison, so they are left out. The first repetition
//! of a rate is left out if it ran on cold caches. Repetitions in which the client ran out of ports
//! are left out, too.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use lab_model::results::Fingerprint;
use lab_model::results::compare::Metric;

use super::{ImportFault, csv_reader, label};
use crate::analysis::comparability::Tool;
use crate::variant::{P95_CALLS_MIN, P99_CALLS_MIN, Run, Variant};

/// The header of the table. The columns `50` to `99` are percentiles of the times.
const HEADER: &str = "Daemon,TestNo,TG-Threads,Qps,Time,Min,Mean,50,90,95,99,Max,Ratio,Error";
/// Number of columns of the header.
const COLUMNS: usize = 14;
/// The first repetition of a rate ran on cold caches if its mean time is more than this many times
/// the mean time of the slowest other repetition. In 27 published reports, cold repetitions are 1.6
/// to 1,400 times slower. Other repetitions differ by ±20 %.
const COLD_FACTOR: f64 = 1.5;
/// The first repetition can count as cold only if at least this many repetitions follow it.
const LATER_REPETITIONS_MIN: usize = 2;

/// Returns true if the content has the header.
pub(super) fn is_report(content: &[u8]) -> bool {
    content.split(|byte| *byte == b'\n').any(|line| line.trim_ascii() == HEADER.as_bytes())
}

/// The kind of error of a repetition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ErrorKind {
    /// The client ran out of local ports.
    PortsExhausted,
    /// The client timed out.
    TimedOut,
    /// Any other error, such as a connection that the server closed.
    Other,
}

/// One repetition.
#[derive(Clone, Debug)]
struct Repetition {
    /// Name of the server.
    daemon: String,
    /// Number of the rate in the sequence of rising rates.
    rate_step: u32,
    /// Number of the repetition at this rate, from 1.
    number: u32,
    /// Requests per second.
    rate: f64,
    /// Requests of the repetition.
    calls: f64,
    /// Mean, median, 95th and 99th percentile of the times, in milliseconds.
    times_ms: [f64; 4],
    /// Share of the requests that succeeded.
    success_share: f64,
    /// `None` if the report shows no error.
    error: Option<ErrorKind>,
}

/// Returns one variant for each server in the report.
pub(super) fn read(content: &[u8], path: &Path) -> Result<Vec<Variant>, ImportFault> {
    let mut reader = csv_reader(content);
    let mut record = csv::StringRecord::new();
    let mut facts: BTreeMap<String, String> = BTreeMap::new();
    let mut repetitions: Vec<Repetition> = Vec::new();
    let mut in_table = false;
    loop {
        let line = reader.position().line();
        let line_fault = |reason: String| ImportFault::Line { path: path.to_owned(), line, reason };
        if !reader.read_record(&mut record).map_err(|error| line_fault(error.to_string()))? {
            break;
        }
        if record.get(0) == Some("Daemon") {
            in_table = true;
        } else if in_table {
            repetitions.push(parse_repetition(&record).map_err(line_fault)?);
        } else if let Some((key, value)) = record.get(12).zip(record.get(13)) {
            facts.insert(key.to_owned(), value.to_owned());
        }
    }
    if repetitions.is_empty() {
        return Err(ImportFault::empty(path, "no line follows the header"));
    }
    let daemons: BTreeSet<&str> =
        repetitions.iter().map(|repetition| repetition.daemon.as_str()).collect();
    let has_several_servers = daemons.len() > 1;
    let variants = daemons.iter().map(|daemon| {
        let daemon_repetitions: Vec<&Repetition> =
            repetitions.iter().filter(|repetition| repetition.daemon == *daemon).collect();
        let file = label(path);
        let name = if has_several_servers { format!("{daemon} in {file}") } else { file };
        build_variant(name, &daemon_repetitions, &facts)
    });
    Ok(variants.collect())
}

/// Parses a line of the table. The error describes the first invalid column.
fn parse_repetition(record: &csv::StringRecord) -> Result<Repetition, String> {
    if record.len() != COLUMNS {
        return Err(format!("{} columns instead of {COLUMNS} as in the header", record.len()));
    }
    let column = |index: usize| record.get(index).unwrap_or_default();
    let test = column(1).trim_matches(['[', ']']);
    let numbers = test.split_once('.').map(|(rate_step, number)| (rate_step.trim(), number.trim()));
    let (rate_step, number) = numbers
        .and_then(|(rate_step, number)| Some((rate_step.parse().ok()?, number.parse().ok()?)))
        .ok_or_else(|| format!("TestNo is {:?}, not [level. repetition]", column(1)))?;
    let rate = column(3).parse().ok().filter(|rate: &f64| rate.is_finite() && *rate > 0.0);
    let rate = rate.ok_or_else(|| format!("Qps is {:?}, not a number above 0", column(3)))?;
    let seconds = column(4).parse().ok().filter(|seconds: &f64| *seconds > 0.0);
    let seconds = seconds.ok_or_else(|| format!("Time is {:?}, not seconds above 0", column(4)))?;
    let mut times_ms = [0.0; 4];
    // The columns `Mean`, `50`, `95` and `99`.
    for (time, index) in times_ms.iter_mut().zip([6, 7, 9, 10]) {
        let text = column(index);
        *time = go_duration_ms(text).ok_or_else(|| {
            format!("column {} is {text:?}, not a duration such as 1.5ms", index + 1)
        })?;
    }
    let ratio = column(12).strip_suffix('%').and_then(|share| share.parse::<f64>().ok());
    let ratio = ratio.filter(|share| (0.0..=100.0).contains(share));
    let ratio = ratio.ok_or_else(|| format!("Ratio is {:?}, not a percentage", column(12)))?;
    Ok(Repetition {
        daemon: column(0).to_owned(),
        rate_step,
        number,
        rate,
        calls: rate * seconds,
        times_ms,
        success_share: ratio / 100.0,
        error: error_kind(column(13)),
    })
}

/// Returns the kind of an error message of Go's HTTP client; `None` for an empty message.
fn error_kind(error: &str) -> Option<ErrorKind> {
    let contains_any = |texts: &[&str]| texts.iter().any(|text| error.contains(text));
    if error.is_empty() {
        None
    } else if contains_any(&["address already in use", "cannot assign requested address"]) {
        Some(ErrorKind::PortsExhausted)
    } else if contains_any(&["Client.Timeout", "context deadline exceeded"]) {
        Some(ErrorKind::TimedOut)
    } else {
        Some(ErrorKind::Other)
    }
}

/// Builds the variant of one server. `facts` describe the machine and the test, by name.
fn build_variant(
    name: String,
    repetitions: &[&Repetition],
    facts: &BTreeMap<String, String>,
) -> Variant {
    let mut variant = Variant { name, ..Variant::default() };
    let method = method_name(facts, &variant.name);
    let mut by_rate_step = BTreeMap::<u32, Vec<&Repetition>>::new();
    for repetition in repetitions {
        by_rate_step.entry(repetition.rate_step).or_default().push(repetition);
    }
    for mut step_repetitions in by_rate_step.into_values() {
        step_repetitions.sort_by_key(|repetition| repetition.number);
        let cold = cold_repetition(&step_repetitions);
        for repetition in step_repetitions {
            let method_key = format!("{method} at {}/s", repetition.rate);
            let run_label = format!("{method_key}, repetition {}", repetition.number);
            if cold == Some(repetition.number) {
                variant.left_out.push(format!(
                    "{run_label}: cold caches: a mean of {:.3} ms, far above all later ones",
                    repetition.times_ms[0]
                ));
            } else if repetition.error == Some(ErrorKind::PortsExhausted) {
                variant.left_out.push(format!(
                    "{run_label}: the client ran out of local ports ({:.2} % of the calls succeeded): \
                     this is not the server's fault",
                    repetition.success_share * 100.0
                ));
            } else {
                variant.runs.push(build_run(repetition, &method_key, &run_label, facts));
            }
        }
    }
    add_notes(&mut variant, repetitions);
    variant
}

/// Adds notes about repetitions with errors.
fn add_notes(variant: &mut Variant, repetitions: &[&Repetition]) {
    let count =
        |kind| repetitions.iter().filter(|repetition| repetition.error == Some(kind)).count();
    let timed_out = count(ErrorKind::TimedOut);
    if timed_out > 0 {
        variant.notes.push(format!(
            "in {timed_out} repetitions the client timed out; the timeout cuts off their times, so only \
             their failed share is used"
        ));
    }
    let other = count(ErrorKind::Other);
    if other > 0 {
        variant.notes.push(format!(
            "in {other} repetitions calls failed for other reasons, such as closed connections; they are \
             used, including their failures"
        ));
    }
}

/// Returns the number of the first repetition if it ran on cold caches. `None` if it did not, or if
/// too few repetitions follow it. `repetitions` has all repetitions of one rate, in order.
fn cold_repetition(repetitions: &[&Repetition]) -> Option<u32> {
    let (first_repetition, later_repetitions) = repetitions.split_first()?;
    let slowest =
        later_repetitions.iter().map(|repetition| repetition.times_ms[0]).fold(0.0, f64::max);
    let is_comparable =
        first_repetition.number == 1 && later_repetitions.len() >= LATER_REPETITIONS_MIN;
    (is_comparable && first_repetition.times_ms[0] > COLD_FACTOR * slowest)
        .then_some(first_repetition.number)
}

/// Builds the run of a repetition. Its values have `method_key` as the name of the method.
fn build_run(
    repetition: &Repetition,
    method_key: &str,
    run_label: &str,
    facts: &BTreeMap<String, String>,
) -> Run {
    let mut run = Run::new(run_label, Tool::Erigon);
    let fact = |name: &str| facts.get(name).map(|value| value.trim().to_owned());
    run.facts.load = fact("VegetaFile")
        .zip(fact("VegetaChecksum"))
        .map(|(file, sum)| format!("{} ({sum})", file.rsplit('/').next().unwrap_or(&file)));
    run.facts.machine = fact("CPU").map(|cpu| Fingerprint {
        host: fact("Vendor").unwrap_or_default(),
        cpu,
        kernel: fact("Kernel").unwrap_or_default(),
        target_local: true,
        ..Fingerprint::default()
    });
    // The timeout cuts off the longest times, so the percentiles would look too good.
    if repetition.error != Some(ErrorKind::TimedOut) {
        // Each metric with the number of calls that it needs, in the order of `times_ms`.
        let metrics = [
            (Metric::ServiceMean, 1),
            (Metric::ServiceP50, 1),
            (Metric::ServiceP95, P95_CALLS_MIN),
            (Metric::ServiceP99, P99_CALLS_MIN),
        ];
        for ((metric, calls_min), value) in metrics.into_iter().zip(repetition.times_ms) {
            // A percentile of fewer calls is the maximum, or close to it.
            if repetition.calls >= calls_min as f64 {
                run.put(method_key, metric, value);
            }
        }
    }
    run.put(method_key, Metric::FailedShare, 1.0 - repetition.success_share);
    run
}

/// Returns the method from the name of the request file (`stress_test_eth_call_001_14M.tar`), else
/// from the name of the report. Returns `calls` if neither name contains a method.
fn method_name(facts: &BTreeMap<String, String>, name: &str) -> String {
    let file = facts.get("VegetaFile").map_or("", String::as_str);
    let prefixes = ["eth", "trace", "debug", "ots", "erigon", "net", "web3", "txpool", "parity"];
    let method = [file, name].into_iter().find_map(|text| {
        let words: Vec<&str> = text.split(|c: char| !c.is_ascii_alphanumeric()).collect();
        let index = words.windows(2).position(|pair| prefixes.contains(&pair[0]))?;
        Some(format!("{}_{}", words[index], words[index + 1]))
    });
    method.unwrap_or_else(|| "calls".to_owned())
}

/// Parses a duration as Go prints it (`time.Duration.String`), such as `104.244µs`, `1m24s` or
/// `0s`. Returns milliseconds, or `None` if the text has another form.
fn go_duration_ms(text: &str) -> Option<f64> {
    let mut remaining = text.trim();
    let mut sum_ms = 0.0;
    if remaining.is_empty() {
        return None;
    }
    while !remaining.is_empty() {
        let digits = remaining.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = remaining[..digits].parse().ok()?;
        remaining = &remaining[digits..];
        let unit_end = remaining.find(|c: char| c.is_ascii_digit()).unwrap_or(remaining.len());
        let unit_ms = match &remaining[..unit_end] {
            "ns" => 1e-6,
            "µs" | "μs" | "us" => 1e-3,
            "ms" => 1.0,
            "s" => 1e3,
            "m" => 60e3,
            "h" => 3600e3,
            _ => return None,
        };
        sum_ms += number * unit_ms;
        remaining = &remaining[unit_end..];
    }
    Some(sum_ms)
}

#[cfg(test)]
mod tests;
