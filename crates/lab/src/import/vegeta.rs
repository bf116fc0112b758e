//! Reads vegeta's outputs: summaries (`report -type=json`), and single results as JSON lines
//! (`encode -to=json`) or CSV (`encode -to=csv`). The CSV has nine or more columns; its format is
//! in `lib/results.go` of tsenart/vegeta 12.
//!
//! vegeta's clock starts when a worker takes a request, and its times include connecting. If no
//! worker is free, the clock starts after the scheduled time. So vegeta's times are compared with
//! service times, which start at the actual send.

use std::collections::BTreeMap;
use std::path::Path;

use lab_model::results::compare::Metric;
use serde::Deserialize;
use serde_json::Value;

use super::{ImportFault, csv_reader, label};
use crate::analysis::comparability::Tool;
use crate::analysis::statistics::sorted;
use crate::variant::{Run, TOTAL};

const NANOS_PER_MS: f64 = 1e6;
const NANOS_PER_S: i64 = 1_000_000_000;
/// Maximum length of a run in seconds. It limits memory if time stamps are wrong, because each
/// second has an entry.
const SECONDS_MAX: i64 = 1_000_000;
/// Error messages of vegeta that mean that the client had no free local port.
const OUT_OF_PORTS: [&str; 2] = ["address already in use", "cannot assign requested address"];

/// Note on every run of vegeta.
const NOTE: &str = "vegeta measures from when a worker takes a request, including connecting, and \
                    counts a JSON-RPC error with status 200 as success";

/// Returns true if the value looks like a report.
pub(super) fn is_report(value: &Value) -> bool {
    value.get("latencies").is_some_and(Value::is_object)
}

/// Reads the run of a JSON report (`vegeta report -type=json`), and notes on it.
pub(super) fn report(value: &Value, path: &Path) -> Result<(Run, Vec<String>), ImportFault> {
    let mut run = Run::new(&label(path), Tool::Vegeta);
    let number = |pointer: &str| value.pointer(pointer).and_then(Value::as_f64);
    let requests = number("/requests").unwrap_or(0.0);
    if requests <= 0.0 {
        return Err(ImportFault::empty(path, "the report counts no requests"));
    }
    for (metric, key) in [
        (Metric::ServiceMean, "/latencies/mean"),
        (Metric::ServiceP50, "/latencies/50th"),
        (Metric::ServiceP95, "/latencies/95th"),
        (Metric::ServiceP99, "/latencies/99th"),
    ] {
        if let Some(nanos) = number(key) {
            run.put(TOTAL, metric, nanos / NANOS_PER_MS);
        }
    }
    if let Some(throughput) = number("/throughput") {
        run.put(TOTAL, Metric::Goodput, throughput);
    }
    if let Some(success) = number("/success") {
        run.put(TOTAL, Metric::FailedShare, 1.0 - success);
    }
    let earliest = value.get("earliest").and_then(Value::as_str).and_then(unix_nanos);
    run.started = earliest.map(seconds_of_nanos);
    run.facts.load = number("/rate").map(|rate| format!("{rate:.0} requests/s"));
    let errors = value.get("errors").and_then(Value::as_array).into_iter().flatten();
    let texts: Vec<&str> = errors.filter_map(Value::as_str).collect();
    let mut notes = vec![NOTE.to_owned()];
    notes.extend(note_exhausted_ports(&texts));
    Ok((run, notes))
}

/// Returns a note if some errors mean that the generator had no free local port.
fn note_exhausted_ports(errors: &[&str]) -> Option<String> {
    let is_out_of_ports = |error: &&str| OUT_OF_PORTS.iter().any(|text| error.contains(text));
    errors.iter().any(is_out_of_ports).then(|| {
        "some requests failed because the generator ran out of local ports: they are part of the failed \
         share, but not the target's fault"
            .to_owned()
    })
}

/// One request of vegeta, with the fields that are used. vegeta calls a request a hit.
#[derive(Deserialize)]
struct Hit {
    code: u16,
    /// RFC 3339.
    timestamp: String,
    latency: i64,
    #[serde(default)]
    error: String,
}

/// Returns true if the first line that is not empty is a result in JSON.
pub(super) fn is_json_lines(content: &[u8]) -> bool {
    let first_line =
        content.split(|byte| *byte == b'\n').find(|line| !line.trim_ascii().is_empty());
    first_line.is_some_and(|line| serde_json::from_slice::<Hit>(line).is_ok())
}

/// Reads results, one JSON object per line.
pub(super) fn json_lines(content: &[u8], path: &Path) -> Result<(Run, Vec<String>), ImportFault> {
    let mut hits = Hits::default();
    for (index, line) in content.split(|byte| *byte == b'\n').enumerate() {
        let line = line.trim_ascii();
        if line.is_empty() {
            continue;
        }
        let line_fault =
            |reason| ImportFault::Line { path: path.to_owned(), line: index as u64 + 1, reason };
        let hit: Hit = serde_json::from_slice(line)
            .map_err(|error| line_fault(format!("not a vegeta result: {error}")))?;
        let sent_at = unix_nanos(&hit.timestamp)
            .ok_or_else(|| line_fault(format!("{:?} is not an RFC 3339 time", hit.timestamp)))?;
        hits.add(sent_at, hit.code, hit.latency, &hit.error);
    }
    hits.into_run(path)
}

/// Returns true if the first line has the columns of a result.
pub(super) fn is_csv(content: &[u8]) -> bool {
    let mut reader = csv_reader(content);
    let mut record = csv::ByteRecord::new();
    let has_record = reader.read_byte_record(&mut record).unwrap_or(false);
    has_record && record.len() >= 9 && (0..5).all(|column| integer(&record, column).is_some())
}

/// Returns a column as a whole number; `None` if it is missing or not a number.
fn integer(record: &csv::ByteRecord, column: usize) -> Option<i64> {
    std::str::from_utf8(record.get(column)?).ok()?.parse().ok()
}

/// Reads results as CSV: time in nanoseconds since 1970, status, latency in nanoseconds, bytes out,
/// bytes in, error, and more.
pub(super) fn csv(content: &[u8], path: &Path) -> Result<(Run, Vec<String>), ImportFault> {
    let mut hits = Hits::default();
    let mut reader = csv_reader(content);
    let mut record = csv::ByteRecord::new();
    loop {
        let line = reader.position().line();
        let line_fault = |reason| ImportFault::Line { path: path.to_owned(), line, reason };
        if !reader.read_byte_record(&mut record).map_err(|error| line_fault(error.to_string()))? {
            break;
        }
        let column = |index: usize, name: &str| {
            integer(&record, index).ok_or_else(|| {
                let text = String::from_utf8_lossy(record.get(index).unwrap_or_default());
                line_fault(format!("column {} ({name}) is {text:?}, not a whole number", index + 1))
            })
        };
        let (sent_at, code, latency) =
            (column(0, "time")?, column(1, "status")?, column(2, "latency")?);
        let code = u16::try_from(code)
            .map_err(|_| line_fault(format!("the status is {code}, not from 0 to 999")))?;
        let error = String::from_utf8_lossy(record.get(5).unwrap_or_default());
        hits.add(sent_at, code, latency, &error);
    }
    hits.into_run(path)
}

/// The requests of a run, grouped by second.
#[derive(Default)]
struct Hits {
    /// The requests by the second in which they were sent, since 1970.
    seconds: BTreeMap<i64, Second>,
    /// Times of the first and the last send, in nanoseconds since 1970.
    span: Option<(i64, i64)>,
    /// Number of requests that failed because no local port was free. They are left out.
    out_of_ports: u64,
}

/// The requests that were sent in one second.
#[derive(Default)]
struct Second {
    /// Latency of each request.
    latencies_ms: Vec<f64>,
    /// Number of failed requests.
    failed: u64,
}

impl Hits {
    /// Adds a request that was sent at `sent_at`. That time and the latency are in nanoseconds.
    /// Requests that failed because no port was free are only counted.
    fn add(&mut self, sent_at: i64, code: u16, latency: i64, error: &str) {
        if OUT_OF_PORTS.iter().any(|text| error.contains(text)) {
            self.out_of_ports += 1;
            return;
        }
        let (first_send, last_send) = self.span.unwrap_or((sent_at, sent_at));
        self.span = Some((first_send.min(sent_at), last_send.max(sent_at)));
        let second = self.seconds.entry(sent_at.div_euclid(NANOS_PER_S)).or_default();
        second.latencies_ms.push(latency as f64 / NANOS_PER_MS);
        // As in vegeta's own report, a status from 200 to 399 is a success.
        second.failed += u64::from(!(200..400).contains(&code));
    }

    /// Computes the values of the run. Returns the run and notes on it.
    fn into_run(mut self, path: &Path) -> Result<(Run, Vec<String>), ImportFault> {
        let (Some((&first_second, _)), Some((&last_second, _))) =
            (self.seconds.first_key_value(), self.seconds.last_key_value())
        else {
            return Err(ImportFault::empty(path, "no request was sent"));
        };
        if last_second - first_second >= SECONDS_MAX {
            return Err(ImportFault::empty(path, "its time stamps span more than 11 days"));
        }
        let mut run = Run::new(&label(path), Tool::Vegeta);
        let mut series: BTreeMap<Metric, Vec<f64>> = BTreeMap::new();
        // The first and the last second are incomplete.
        for unix_second in first_second + 1..last_second {
            let second = self.seconds.entry(unix_second).or_default();
            let calls = second.latencies_ms.len() as f64;
            let mut put = |metric, value| series.entry(metric).or_default().push(value);
            put(Metric::Goodput, calls - second.failed as f64);
            if calls > 0.0 {
                let ascending = sorted(&second.latencies_ms);
                put(Metric::ServiceP50, quantile(&ascending, 0.5));
                put(Metric::ServiceP95, quantile(&ascending, 0.95));
                put(Metric::ServiceP99, quantile(&ascending, 0.99));
                put(Metric::FailedShare, second.failed as f64 / calls);
            }
        }
        let latencies =
            self.seconds.values().flat_map(|second| second.latencies_ms.iter().copied());
        let latencies = sorted(&latencies.collect::<Vec<_>>());
        let failed: u64 = self.seconds.values().map(|second| second.failed).sum();
        let count = latencies.len() as f64;
        run.put(TOTAL, Metric::ServiceMean, latencies.iter().sum::<f64>() / count);
        run.put(TOTAL, Metric::ServiceP50, quantile(&latencies, 0.5));
        run.put(TOTAL, Metric::ServiceP95, quantile(&latencies, 0.95));
        run.put(TOTAL, Metric::ServiceP99, quantile(&latencies, 0.99));
        run.put(TOTAL, Metric::FailedShare, failed as f64 / count);
        // As in vegeta, n sends have n - 1 intervals between them, so the span is extended by one
        // interval.
        let span_nanos =
            self.span.map_or(0, |(first_send, last_send)| last_send.saturating_sub(first_send));
        let duration_seconds = match span_nanos {
            0 => 1.0,
            span_nanos => span_nanos as f64 / NANOS_PER_S as f64 * count / (count - 1.0).max(1.0),
        };
        run.put(TOTAL, Metric::Goodput, (count - failed as f64) / duration_seconds);
        run.started = self.span.map(|(first_send, _)| seconds_of_nanos(first_send));
        run.seconds = series
            .into_iter()
            .map(|(metric, values)| ((TOTAL.to_owned(), metric), values))
            .collect();
        let mut notes = vec![NOTE.to_owned()];
        if self.out_of_ports > 0 {
            notes.push(format!(
                "{} requests were left out: the generator ran out of local ports",
                self.out_of_ports
            ));
        }
        Ok((run, notes))
    }
}

/// Returns the value below which `share` of the ascending values lie. There must be a value.
fn quantile(ascending: &[f64], share: f64) -> f64 {
    let index = (share * (ascending.len() - 1) as f64).round();
    ascending[index as usize]
}

/// Converts nanoseconds to seconds.
fn seconds_of_nanos(nanos: i64) -> f64 {
    nanos as f64 / NANOS_PER_S as f64
}

/// Converts an RFC 3339 time, as Go writes it, to nanoseconds since 1970. `None` if the text is no
/// such time.
fn unix_nanos(text: &str) -> Option<i64> {
    let time: jiff::Timestamp = text.parse().ok()?;
    i64::try_from(time.as_nanosecond()).ok()
}
