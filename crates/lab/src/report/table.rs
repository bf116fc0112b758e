//! Writes `series.csv`, `methods.csv` and `samples.csv` for spreadsheets and data frames.
//!
//! Column names include the unit. A cell without a value is empty, never zero. A line is a row of
//! the file; [`Row`] is a row of the result, which becomes several lines.

use lab_model::record::Class;
use lab_model::results::Quantiles;
use lab_model::results::run::{MethodSecond, Row, RunResult, Second};

use super::ReportFault;
use crate::analysis::calendar::rfc3339;
use crate::analysis::sync::VariantRuns;

/// Returns the time series as CSV. Each second has one line with the totals (method `all`), and one
/// line per method with percentiles. The totals have no percentiles, because percentiles of several
/// methods cannot be combined.
///
/// # Errors
/// Fails if a value cannot be serialized.
pub fn series(result: &RunResult) -> Result<Vec<u8>, ReportFault> {
    let mut header = vec!["at_s", "method", "stage", "calls"];
    header.extend(Class::ALL.map(Class::as_str));
    header.extend(["p50_ms", "p95_ms", "p99_ms", "max_ms", "scheduled", "started", "dropped"]);
    header.extend(["requests", "scheduling_delay_p99_ms", "generator_busy"]);
    header.extend(["in_flight", "workers_busy", "waiting"]);
    let mut rows = vec![header.into_iter().map(String::from).collect()];
    for second in &result.series {
        rows.push(totals_line(second));
        rows.extend(second.methods.iter().map(|method| method_line(result, second, method)));
    }
    csv("series.csv", &rows)
}

/// Returns the cells of the line with a second's totals. The stage and the percentiles are empty.
fn totals_line(second: &Second) -> Vec<String> {
    let counts = Class::ALL.map(|column| second.count(|class| class == column));
    let mut row = vec![second.at.to_string(), String::from("all"), String::new()];
    row.push(counts.iter().sum::<u64>().to_string());
    row.extend(counts.iter().map(u64::to_string));
    // The four percentiles are empty.
    row.extend([const { String::new() }; 4]);
    let iterations = [second.scheduled, second.started, second.dropped, second.requests];
    row.extend(iterations.iter().map(u64::to_string));
    row.extend([second.scheduling_delay_p99_ms.to_string(), second.generator_busy.to_string()]);
    let concurrency = [second.in_flight, second.workers_busy, second.waiting];
    row.extend(concurrency.iter().map(u64::to_string));
    row
}

/// Returns the cells of the line of a method in a second.
fn method_line(result: &RunResult, second: &Second, method: &MethodSecond) -> Vec<String> {
    let stage = result.stages.get(method.stage);
    let mut row = vec![second.at.to_string(), method.method.clone()];
    row.push(stage.map_or_else(String::new, |stage| format!("{}/{}", stage.scenario, stage.stage)));
    let counts = Class::ALL.map(|column| method.count(|class| class == column));
    row.push(counts.iter().sum::<u64>().to_string());
    row.extend(counts.iter().map(u64::to_string));
    let times = [method.p50_ms, method.p95_ms, method.p99_ms, method.max_ms];
    row.extend(times.iter().map(f64::to_string));
    // The nine columns from `scheduled` on are empty, because only the totals have them.
    row.extend([const { String::new() }; 9]);
    row
}

/// Returns `methods.csv`: a line per method and class of outcome. The first lines are about the
/// whole run without its warm-up and have no stage. The lines of each stage follow. Only the class
/// `all`, which is the sum of all classes, has shares and service times. The shares of `null` and of
/// wrong types are empty for methods without a known form of results.
pub(crate) fn methods(result: &RunResult) -> Result<Vec<u8>, ReportFault> {
    let first_columns = [
        "stage",
        "method",
        "class",
        "calls",
        "share",
        "goodput_per_s",
        "failed_share",
        "limited_share",
        "null_share",
        "wrong_type_share",
    ];
    let mut header = first_columns.map(String::from).to_vec();
    for kind in ["latency", "service"] {
        header.extend(QUANTILES.map(|name| format!("{kind}_{name}_ms")));
    }
    let mut rows = vec![header];
    push_rows(&mut rows, "", std::iter::once(&result.overall).chain(&result.methods));
    for stage in &result.stages {
        let name = format!("{}/{}", stage.scenario, stage.stage);
        push_rows(&mut rows, &name, std::iter::once(&stage.overall).chain(&stage.methods));
    }
    csv("methods.csv", &rows)
}

/// Adds the lines of each method: first all classes together, then each class. `stage` is empty for
/// the whole run.
fn push_rows<'a>(
    rows: &mut Vec<Vec<String>>,
    stage: &str,
    method_rows: impl Iterator<Item = &'a Row>,
) {
    for row in method_rows {
        let mut cells = vec![stage.into(), row.method.clone(), "all".into(), row.calls.to_string()];
        let shares = [row.share, row.goodput, row.failed_share, row.limited_share];
        cells.extend(shares.iter().map(f64::to_string));
        let result_shares = [row.null_share, row.wrong_type_share];
        cells.extend(
            result_shares.map(|share| share.map_or_else(String::new, |share| share.to_string())),
        );
        cells.extend(quantiles(&row.latency));
        cells.extend(quantiles(&row.service));
        rows.push(cells);
        for class in &row.classes {
            let name = class.class.as_str().to_owned();
            let mut cells = vec![stage.into(), row.method.clone(), name, class.calls.to_string()];
            // The shares are empty.
            cells.extend([const { String::new() }; 6]);
            cells.extend(quantiles(&class.latency));
            // The service times are empty.
            cells.extend([const { String::new() }; QUANTILES.len()]);
            rows.push(cells);
        }
    }
}

/// Returns `samples.csv`: every sample of every run of a sync study.
pub(crate) fn samples(variants: &[VariantRuns]) -> Result<Vec<u8>, ReportFault> {
    let header = [
        "variant", "run", "elapsed", "time", "height", "used", "hit", "miss", "spill", "memory",
        "disk", "peers", "cpu",
    ];
    let mut rows = vec![header.map(String::from).to_vec()];
    let integer = |value: Option<u64>| value.map_or_else(String::new, |value| value.to_string());
    for (variant, run) in
        variants.iter().flat_map(|variant| variant.runs.iter().map(move |run| (variant, run)))
    {
        rows.extend(run.samples.iter().map(|sample| {
            let accesses = sample.accesses;
            vec![
                variant.name.clone(),
                run.label.clone(),
                format!("{:.3}", sample.at - run.origin),
                rfc3339(sample.at),
                sample.height.to_string(),
                integer(sample.used),
                integer(accesses.map(|counts| counts.hit)),
                integer(accesses.map(|counts| counts.miss)),
                integer(accesses.map(|counts| counts.spill)),
                integer(sample.memory),
                integer(sample.disk),
                integer(sample.peers),
                sample.cpu.map_or_else(String::new, |cpu| format!("{cpu:.3}")),
            ]
        }));
    }
    csv("samples.csv", &rows)
}

/// Names of the columns of [`quantiles`]. The last two are the ends of the 95 % confidence interval
/// of the p99.
const QUANTILES: [&str; 10] =
    ["mean", "min", "p50", "p90", "p95", "p99", "p999", "max", "p99_low", "p99_high"];

/// Returns the cells of a distribution. The cells are empty if the distribution has no values.
fn quantiles(quantiles: &Quantiles) -> [String; QUANTILES.len()] {
    if quantiles.count == 0 {
        return [const { String::new() }; QUANTILES.len()];
    }
    let (low, high) = quantiles.p99_interval_ms;
    let times = [
        quantiles.mean_ms,
        quantiles.min_ms,
        quantiles.p50_ms,
        quantiles.p90_ms,
        quantiles.p95_ms,
        quantiles.p99_ms,
        quantiles.p999_ms,
        quantiles.max_ms,
        low,
        high,
    ];
    times.map(|time| time.to_string())
}

/// Returns rows as CSV. `file` is the file name for the error.
fn csv(file: &'static str, rows: &[Vec<String>]) -> Result<Vec<u8>, ReportFault> {
    let fault = |reason: String| ReportFault::Form { file, reason };
    let mut writer = csv::Writer::from_writer(Vec::new());
    for row in rows {
        writer.write_record(row).map_err(|error| fault(error.to_string()))?;
    }
    writer.into_inner().map_err(|error| fault(error.to_string()))
}
