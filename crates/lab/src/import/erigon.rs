//! Reports of erigontech/rpc-tests (`perf/reports`): vegeta at rising rates, each rate repeated,
//! one line per repetition.
//!
//! The first lines of a report have facts of the machine, with the name in column 13 and the value
//! in column 14. A header that begins with `Daemon` follows. A report may cover several servers.
//! Each server becomes an arm, and each repetition becomes a run at its rate. Two kinds of
//! repetitions would distort a comparison and are treated separately: the first repetition of a
//! rate if it ran on cold caches, and repetitions that failed because of the client.

use std::collections::BTreeMap;
use std::path::Path;

use lab_model::results::Fingerprint;
use lab_model::results::compare::Metric;

use super::{ImportFault, label};
use crate::analysis::comparability::Tool;
use crate::arm::{Arm, P95_CALLS, P99_CALLS, Run};

const HEADER: &str = "Daemon,TestNo,TG-Threads,Qps,Time,Min,Mean,50,90,95,99,Max,Ratio,Error";
/// Columns of the header.
const COLUMNS: usize = 14;
/// A first repetition ran on cold caches if its mean exceeds that of the slowest other repetition
/// by this factor. At least [`OTHERS_MIN`] others are needed. In 27 published reports, cold
/// repetitions are 1.6 to 1,400 times slower. Other repetitions differ by ±20 %.
const COLD: f64 = 1.5;
const OTHERS_MIN: usize = 2;

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
    /// The server, or something in between, closed connections.
    ConnectionClosed,
}

/// One repetition.
#[derive(Clone, Debug)]
struct Repetition {
    daemon: String,
    level: u32,
    number: u32,
    rate: f64,
    /// Requests of the repetition.
    calls: f64,
    /// Mean, median, 95th and 99th percentile.
    times_ms: [f64; 4],
    success: f64,
    error: Option<ErrorKind>,
}

/// Returns one arm for each server in the report.
pub(super) fn read(content: &[u8], path: &Path) -> Result<Vec<Arm>, ImportFault> {
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .trim(csv::Trim::All)
        .from_reader(content);
    let mut record = csv::StringRecord::new();
    let mut facts: BTreeMap<String, String> = BTreeMap::new();
    let mut repetitions: Vec<Repetition> = Vec::new();
    let mut within = false;
    loop {
        let line = reader.position().line();
        let wrong = |why: String| ImportFault::Line { path: path.to_owned(), line, why };
        if !reader.read_record(&mut record).map_err(|error| wrong(error.to_string()))? {
            break;
        }
        if record.get(0) == Some("Daemon") {
            within = true;
        } else if within {
            repetitions.push(repetition(&record).map_err(wrong)?);
        } else if let Some((key, value)) = record.get(12).zip(record.get(13)) {
            facts.insert(key.to_owned(), value.to_owned());
        }
    }
    if repetitions.is_empty() {
        let why = "no line follows the header".to_owned();
        return Err(ImportFault::Empty { path: path.to_owned(), why });
    }
    let mut daemons: Vec<String> = repetitions.iter().map(|it| it.daemon.clone()).collect();
    daemons.sort();
    daemons.dedup();
    let several = daemons.len() > 1;
    let arms = daemons.iter().map(|daemon| {
        let own: Vec<&Repetition> = repetitions.iter().filter(|it| it.daemon == *daemon).collect();
        let file = label(path);
        let name = if several { format!("{daemon} in {file}") } else { file };
        arm(name, &own, &facts)
    });
    Ok(arms.collect())
}

fn repetition(record: &csv::StringRecord) -> Result<Repetition, String> {
    if record.len() != COLUMNS {
        return Err(format!("{} columns instead of {COLUMNS} as in the header", record.len()));
    }
    let column = |place: usize| record.get(place).unwrap_or_default();
    let test = column(1).trim_matches(['[', ']']);
    let numbers = test.split_once('.').map(|(level, number)| (level.trim(), number.trim()));
    let (level, number) = numbers
        .and_then(|(level, number)| Some((level.parse().ok()?, number.parse().ok()?)))
        .ok_or_else(|| format!("TestNo is {:?}, not [level. repetition]", column(1)))?;
    let rate = column(3).parse().ok().filter(|rate: &f64| rate.is_finite() && *rate > 0.0);
    let rate = rate.ok_or_else(|| format!("Qps is {:?}, not a number above 0", column(3)))?;
    let seconds = column(4).parse().ok().filter(|seconds: &f64| *seconds > 0.0);
    let seconds = seconds.ok_or_else(|| format!("Time is {:?}, not seconds above 0", column(4)))?;
    let mut times_ms = [0.0; 4];
    for (time, place) in times_ms.iter_mut().zip([6, 7, 9, 10]) {
        let text = column(place);
        *time = go_duration_ms(text).ok_or_else(|| {
            format!("column {} is {text:?}, not a duration such as 1.5ms", place + 1)
        })?;
    }
    let ratio = column(12).strip_suffix('%').and_then(|share| share.parse::<f64>().ok());
    let ratio = ratio.filter(|share| (0.0..=100.0).contains(share));
    let ratio = ratio.ok_or_else(|| format!("Ratio is {:?}, not a percentage", column(12)))?;
    Ok(Repetition {
        daemon: column(0).to_owned(),
        level,
        number,
        rate,
        calls: rate * seconds,
        times_ms,
        success: ratio / 100.0,
        error: error_kind(column(13)),
    })
}

/// Returns the kind of an error message of Go's HTTP client.
fn error_kind(error: &str) -> Option<ErrorKind> {
    let says = |texts: &[&str]| texts.iter().any(|text| error.contains(text));
    if error.is_empty() {
        None
    } else if says(&["address already in use", "cannot assign requested address"]) {
        Some(ErrorKind::PortsExhausted)
    } else if says(&["Client.Timeout", "context deadline exceeded"]) {
        Some(ErrorKind::TimedOut)
    } else {
        Some(ErrorKind::ConnectionClosed)
    }
}

fn arm(name: String, repetitions: &[&Repetition], facts: &BTreeMap<String, String>) -> Arm {
    let mut arm = Arm { name, runs: Vec::new(), left_out: Vec::new(), notes: Vec::new() };
    let method = method(facts, &arm.name);
    let mut levels: Vec<u32> = repetitions.iter().map(|it| it.level).collect();
    levels.sort_unstable();
    levels.dedup();
    for level in levels {
        let mut own: Vec<&Repetition> =
            repetitions.iter().copied().filter(|it| it.level == level).collect();
        own.sort_by_key(|it| it.number);
        let cold = cold(&own);
        for it in own {
            let key = format!("{method} at {}/s", it.rate);
            let place = format!("{key}, repetition {}", it.number);
            if cold == Some(it.number) {
                arm.left_out.push(format!(
                    "{place}: cold caches: a mean of {:.3} ms, far above all later ones",
                    it.times_ms[0]
                ));
            } else if it.error == Some(ErrorKind::PortsExhausted) {
                arm.left_out.push(format!(
                    "{place}: the client ran out of local ports ({:.2} % of the calls succeeded): \
                     this is not the server's fault",
                    it.success * 100.0
                ));
            } else {
                arm.runs.push(run(it, &key, &place, facts));
            }
        }
    }
    notes(&mut arm, repetitions);
    arm
}

fn notes(arm: &mut Arm, repetitions: &[&Repetition]) {
    let count = |kind| repetitions.iter().filter(|it| it.error == Some(kind)).count();
    let timed_out = count(ErrorKind::TimedOut);
    if timed_out > 0 {
        arm.notes.push(format!(
            "in {timed_out} repetitions the client timed out; the timeout cuts off their times, so only \
             their failed share is used"
        ));
    }
    let closed = count(ErrorKind::ConnectionClosed);
    if closed > 0 {
        arm.notes.push(format!(
            "in {closed} repetitions the server's side closed connections; they are used, including \
             their failures"
        ));
    }
}

/// Returns the number of the first repetition if it ran on cold caches.
fn cold(level: &[&Repetition]) -> Option<u32> {
    let (first, others) = level.split_first()?;
    let slowest = others.iter().map(|it| it.times_ms[0]).fold(0.0, f64::max);
    let enough = first.number == 1 && others.len() >= OTHERS_MIN;
    (enough && first.times_ms[0] > COLD * slowest).then_some(first.number)
}

fn run(it: &Repetition, key: &str, place: &str, facts: &BTreeMap<String, String>) -> Run {
    let mut run = Run::new(place, Tool::Erigon);
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
    if it.error != Some(ErrorKind::TimedOut) {
        let metrics = [
            (Metric::ServiceMean, 1),
            (Metric::ServiceP50, 1),
            (Metric::ServiceP95, P95_CALLS),
            (Metric::ServiceP99, P99_CALLS),
        ];
        for ((metric, least), value) in metrics.into_iter().zip(it.times_ms) {
            if it.calls >= least as f64 {
                run.put(key, metric, value);
            }
        }
    }
    run.put(key, Metric::FailedShare, 1.0 - it.success);
    run
}

/// Returns the method from the name of the request file (`stress_test_eth_call_001_14M.tar`), else
/// from the name of the report.
fn method(facts: &BTreeMap<String, String>, name: &str) -> String {
    let file = facts.get("VegetaFile").map_or("", String::as_str);
    let prefixes = ["eth", "trace", "debug", "ots", "erigon", "net", "web3", "txpool", "parity"];
    let found = [file, name].into_iter().find_map(|text| {
        let words: Vec<&str> = text.split(|c: char| !c.is_ascii_alphanumeric()).collect();
        let place = words.windows(2).position(|pair| prefixes.contains(&pair[0]))?;
        Some(format!("{}_{}", words[place], words[place + 1]))
    });
    found.unwrap_or_else(|| "calls".to_owned())
}

/// Parses a duration as Go prints it (`time.Duration.String`): `104.244µs`, `1.053ms`, `1m24s`,
/// `0s`.
fn go_duration_ms(text: &str) -> Option<f64> {
    let mut rest = text.trim();
    let mut sum = 0.0;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let end = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let unit_ms = match &rest[..end] {
            "ns" => 1e-6,
            "µs" | "μs" | "us" => 1e-3,
            "ms" => 1.0,
            "s" => 1e3,
            "m" => 60e3,
            "h" => 3600e3,
            _ => return None,
        };
        sum += number * unit_ms;
        rest = &rest[end..];
    }
    Some(sum)
}

#[cfg(test)]
mod tests;
