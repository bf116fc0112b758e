//! Prints the aggregates of `weir logs` as tables or as JSON. A step is one interval of the time
//! series: a second, a minute, or longer for a long log.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::sums::{Method, Sums};

/// Maximum number of status columns, which limits the width of the table.
const STATUS_COLUMNS_MAX: usize = 12;

/// Formats the aggregates as tables with at most `rows_max` rows each.
pub(super) fn to_tables(sums: &Sums, rows_max: usize) -> String {
    let mut out = String::new();
    let plural = if sums.lines == 1 { "" } else { "s" };
    let _ = write!(out, "{} line{plural}", sums.lines);
    if sums.lines > 0 {
        let rate = sums.lines as f64 / sums.duration_seconds();
        let (first, last) = (format_time(sums.first_seconds), format_time(sums.last_seconds));
        let _ = write!(out, " from {first} to {last}, {rate:.1} per second");
    }
    if sums.faulty_lines > 0 {
        let _ = write!(out, "; {} could not be read", sums.faulty_lines);
    }
    out.push('\n');
    if sums.lines == 0 {
        return out;
    }
    write_time_series(&mut out, sums, rows_max);
    write_methods(&mut out, sums, rows_max);
    if !sums.errors.is_empty() {
        let rows = sums.errors.iter().map(|(code, count)| (code.to_string(), *count));
        write_table(&mut out, "error", rows.collect(), sums.lines, rows_max);
    }
    for (heading, counts) in [
        ("key", &sums.keys),
        ("client", &sums.clients),
        ("upstream", &sums.upstreams),
        ("cache", &sums.caches),
    ] {
        if !counts.is_empty() {
            let rows = counts.iter().map(|(name, count)| (name.clone(), *count)).collect();
            write_table(&mut out, heading, rows, sums.lines, rows_max);
        }
    }
    out
}

/// Writes the busiest steps of the time series, in order of time.
fn write_time_series(out: &mut String, sums: &Sums, rows_max: usize) {
    let statuses: Vec<u16> = sums.statuses.keys().copied().take(STATUS_COLUMNS_MAX).collect();
    let total = |start: &u64| sums.counts_by_step[start].values().sum::<u64>();
    let mut starts: Vec<u64> = sums.counts_by_step.keys().copied().collect();
    let is_truncated = starts.len() > rows_max;
    if is_truncated {
        starts.sort_by_key(|start| std::cmp::Reverse(total(start)));
        starts.truncate(rows_max);
        starts.sort_unstable();
    }
    let unit = match sums.step_seconds {
        1 => "second".to_owned(),
        60 => "minute".to_owned(),
        step => format!("{step} s"),
    };
    let selection = if is_truncated {
        format!(", the busiest {rows_max} of {}", sums.counts_by_step.len())
    } else {
        String::new()
    };
    let _ = write!(out, "\n{:<22}{:>9}", format!("by {unit}"), "all");
    for status in &statuses {
        let _ = write!(out, "{status:>9}");
    }
    let _ = writeln!(out, "{selection}");
    for start in starts {
        let _ = write!(out, "{:<22}{:>9}", format_time(start as f64), total(&start));
        for status in &statuses {
            let _ =
                write!(out, "{:>9}", sums.counts_by_step[&start].get(status).copied().unwrap_or(0));
        }
        out.push('\n');
    }
}

fn write_methods(out: &mut String, sums: &Sums, rows_max: usize) {
    let (count, errors, quantiles) = ("count", "errors", ["p50 ms", "p95 ms", "p99 ms"]);
    let _ = write!(out, "\n{:<34}{count:>10}{errors:>9}", "method");
    for quantile in quantiles {
        let _ = write!(out, "{quantile:>10}");
    }
    out.push('\n');
    for (name, method) in top_rows(&sums.methods, rows_max, |method| method.count) {
        let _ = write!(out, "{name:<34}{:>10}{:>9}", method.count, method.errors);
        for quantile in quantiles_of(method) {
            let _ = match quantile {
                Some(ms) => write!(out, "{ms:>10.2}"),
                None => write!(out, "{:>10}", "-"),
            };
        }
        out.push('\n');
    }
}

/// Writes the `rows_max` rows with the highest counts, with their share of all lines.
fn write_table(
    out: &mut String,
    heading: &str,
    mut rows: Vec<(String, u64)>,
    lines: u64,
    rows_max: usize,
) {
    let _ = writeln!(out, "\n{heading:<34}{:>10}{:>9}", "count", "share");
    rows.sort_by(|left, right| right.1.cmp(&left.1).then_with(|| left.0.cmp(&right.0)));
    let hidden = rows.len().saturating_sub(rows_max);
    for (name, count) in rows.into_iter().take(rows_max) {
        let share = format!("{:.1} %", count as f64 * 100.0 / lines as f64);
        let _ = writeln!(out, "{name:<34}{count:>10}{share:>9}");
    }
    if hidden > 0 {
        let _ = writeln!(out, "and {hidden} more");
    }
}

/// Formats the aggregates as one JSON object.
pub(super) fn to_json(sums: &Sums, rows_max: usize) -> Value {
    let has_lines = sums.lines > 0;
    let quantile = |ms: Option<f64>| ms.map_or(Value::Null, |ms| json!(ms));
    let methods: Vec<Value> = top_rows(&sums.methods, rows_max, |method| method.count)
        .into_iter()
        .map(|(name, method)| {
            let [p50, p95, p99] = quantiles_of(method).map(quantile);
            json!({
                "method": name, "count": method.count, "errors": method.errors,
                "p50_ms": p50, "p95_ms": p95, "p99_ms": p99,
            })
        })
        .collect();
    let times: Vec<Value> = sums
        .counts_by_step
        .iter()
        .map(|(start, by_status)| {
            let total: u64 = by_status.values().sum();
            json!({"time": format_time(*start as f64), "all": total, "by_status": by_status})
        })
        .collect();
    let counts = |table: &HashMap<String, u64>, heading: &str| -> Vec<Value> {
        let rows = top_rows(table, rows_max, |count| *count);
        rows.into_iter().map(|(name, count)| json!({heading: name, "count": count})).collect()
    };
    json!({
        "lines": sums.lines,
        "faulty_lines": sums.faulty_lines,
        "first": has_lines.then(|| format_time(sums.first_seconds)),
        "last": has_lines.then(|| format_time(sums.last_seconds)),
        "step_seconds": sums.step_seconds,
        "times": times,
        "statuses": sums.statuses,
        "methods": methods,
        "errors": sums.errors.iter().map(|(code, count)| (code.to_string(), json!(count)))
            .collect::<serde_json::Map<_, _>>(),
        "other_errors": sums.other_errors,
        "keys": counts(&sums.keys, "key"),
        "clients": counts(&sums.clients, "client"),
        "upstreams": counts(&sums.upstreams, "upstream"),
        "caches": counts(&sums.caches, "cache"),
        "bytes_out": sums.bytes_out,
    })
}

/// Returns the `rows_max` rows with the highest counts.
fn top_rows<T>(
    table: &HashMap<String, T>,
    rows_max: usize,
    count: impl Fn(&T) -> u64,
) -> Vec<(&String, &T)> {
    // Ties are sorted by name, so that the output is deterministic.
    let sorted: BTreeSet<_> =
        table.iter().map(|(name, row)| (std::cmp::Reverse(count(row)), name)).collect();
    sorted.into_iter().take(rows_max).map(|(_, name)| (name, &table[name])).collect()
}

/// Returns p50, p95 and p99 in milliseconds. `None` means that no line of the method has a
/// duration.
fn quantiles_of(method: &Method) -> [Option<f64>; 3] {
    [0.5, 0.95, 0.99].map(|quantile| {
        (!method.micros.is_empty()).then(|| method.micros.value_at_quantile(quantile) as f64 / 1e3)
    })
}

/// Formats seconds since 1970; `-` for a time out of range.
fn format_time(seconds: f64) -> String {
    match Timestamp::from_second(seconds as i64) {
        Ok(time) => time.to_string(),
        Err(_) => "-".to_owned(),
    }
}
