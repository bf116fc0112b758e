//! A variant of a comparison: a name with the runs of one target, build or setting. This file
//! converts a result of `weir load` into a run; `import.rs` converts results of other tools.

use std::collections::{BTreeMap, BTreeSet};

use lab_engine::aggregate;
use lab_model::record::Class;
use lab_model::results::compare::Metric;
use lab_model::results::run::{MethodSecond, ProcessRole, Row, RunResult, Second, StageRow};
use lab_model::results::{Fingerprint, PlanFacts, TargetFacts};

use crate::analysis::comparability::{Facts, Tool};

/// The name of a method with a metric. Values of variants are compared by this key.
pub type MetricKey = (String, Metric);

/// Name that stands for the total over all methods, in place of a method's name.
pub const TOTAL: &str = "all";

/// One side of a comparison: runs under the same conditions.
#[derive(Clone, Debug, Default)]
pub struct Variant {
    /// Name of the variant.
    pub name: String,
    /// The runs, in the order of the arguments.
    pub runs: Vec<Run>,
    /// A sentence with the reason for each run that was left out.
    pub left_out: Vec<String>,
    /// Remarks on the import of the runs.
    pub notes: Vec<String>,
}

impl Variant {
    /// Creates a variant without runs.
    pub(crate) fn named(name: &str) -> Variant {
        Variant { name: name.to_owned(), ..Variant::default() }
    }
}

/// Makes names unique: every repetition of a name gets a number, such as `name (2)`.
pub(crate) fn make_unique<'a>(names: impl Iterator<Item = &'a mut String>) {
    let mut used_names = BTreeSet::new();
    for name in names {
        let base_name = name.clone();
        let mut number = 2;
        while !used_names.insert(name.clone()) {
            *name = format!("{base_name} ({number})");
            number += 1;
        }
    }
}

/// The compared values of one run.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// File or folder of the run.
    pub label: String,
    /// Index of the run among all runs of its variant, including those that are left out. Runs with
    /// the same number form a pair.
    pub number: usize,
    /// Facts about how the run was made.
    pub facts: Facts,
    /// Values over the whole run.
    pub values: BTreeMap<MetricKey, f64>,
    /// Start, in seconds since 1970; `None` if unknown.
    pub started: Option<f64>,
    /// Values over time, without the warm-up. Each value covers one point of the time series: one
    /// second, or several seconds in a long run. Percentiles and failed shares skip points without
    /// calls. Empty if unknown.
    pub seconds: BTreeMap<MetricKey, Vec<f64>>,
    /// Number of calls by method; empty if unknown.
    pub calls: BTreeMap<String, u64>,
    /// CPU milliseconds per request, summed over the watched processes except the generator. `None`
    /// if unknown.
    pub cpu_ms_per_request: Option<f64>,
    /// Number of cores that the target may use; `None` if unknown.
    pub cores: Option<f64>,
}

impl Run {
    /// Creates a run without values. `label` is its file or folder.
    pub fn new(label: &str, tool: Tool) -> Run {
        Run { label: label.to_owned(), facts: Facts { tool, ..Facts::default() }, ..Run::default() }
    }

    /// Sets a value, unless it is infinite or NaN.
    pub fn put(&mut self, method: &str, metric: Metric, value: f64) {
        if value.is_finite() {
            self.values.insert((method.to_owned(), metric), value);
        }
    }
}

/// Converts a result of `weir load` into a run. `label` is its file or folder.
pub fn run_of_result(label: &str, result: &RunResult) -> Run {
    let mut run = Run::new(label, Tool::Weir);
    run.facts = facts(result);
    run.started = Some(result.started_unix).filter(|started| *started > 0.0);
    let machine = &result.fingerprint;
    let local_cores = machine.target_local.then_some(machine.cores as f64);
    run.cores = result.watched.target_cores.or(local_cores);
    let processes = result.watched.processes.iter();
    let target_processes = processes.filter(|process| process.role != ProcessRole::Generator);
    let costs: Vec<f64> =
        target_processes.filter_map(|process| process.cpu_ms_per_request).collect();
    run.cpu_ms_per_request = (!costs.is_empty()).then(|| costs.iter().sum());
    // With a single method the total would repeat that method.
    let has_total = result.methods.len() != 1;
    if has_total {
        put_row(&mut run, TOTAL, &result.overall);
    }
    for row in &result.methods {
        put_row(&mut run, &row.method, row);
    }
    let measured_seconds =
        aggregate::whole_seconds(&result.series, &result.stages, result.plan.warmup);
    let seconds_per_point = aggregate::point_seconds(&result.series);
    for row in &result.methods {
        put_seconds(&mut run, row, &measured_seconds, seconds_per_point);
    }
    if has_total {
        put_seconds_of_total(&mut run, &measured_seconds, seconds_per_point);
    }
    run
}

/// Sets the values of a method over the whole run. `row` has the method's totals. Without calls no
/// value is set.
fn put_row(run: &mut Run, method: &str, row: &Row) {
    if row.calls == 0 {
        return;
    }
    run.calls.insert(method.to_owned(), row.calls);
    for (metric, value) in [
        (Metric::LatencyMean, row.latency.mean_ms),
        (Metric::LatencyP50, row.latency.p50_ms),
        (Metric::LatencyP95, row.latency.p95_ms),
        (Metric::LatencyP99, row.latency.p99_ms),
        (Metric::ServiceMean, row.service.mean_ms),
        (Metric::ServiceP50, row.service.p50_ms),
        (Metric::ServiceP95, row.service.p95_ms),
        (Metric::ServiceP99, row.service.p99_ms),
        (Metric::Goodput, row.goodput),
        (Metric::FailedShare, row.failed_share),
    ] {
        run.put(method, metric, value);
    }
}

/// Minimum number of calls for a p95. With fewer calls the p95 is the maximum.
pub(crate) const P95_CALLS_MIN: u64 = 20;
/// Minimum number of calls for a p99. With fewer calls the p99 is the maximum.
pub(crate) const P99_CALLS_MIN: u64 = 100;

/// Sets the values of a method over time. A percentile is left out if the median number of calls
/// per second is too small for it.
fn put_seconds(run: &mut Run, row: &Row, seconds: &[&Second], seconds_per_point: f64) {
    let row_of =
        |second: &Second| second.methods.iter().find(|method| method.method == row.method).cloned();
    let method_seconds: Vec<MethodSecond> =
        seconds.iter().map(|second| row_of(second).unwrap_or_default()).collect();
    let count_calls = |second: &MethodSecond| second.count(|_| true);
    let counts: Vec<f64> = method_seconds.iter().map(|second| count_calls(second) as f64).collect();
    let median_calls = crate::analysis::statistics::median(&counts).unwrap_or_default() as u64;
    let with_calls = || method_seconds.iter().filter(|second| count_calls(second) > 0);
    let mut put = |metric, values: Vec<f64>| {
        run.seconds.insert((row.method.clone(), metric), values);
    };
    put(Metric::LatencyP50, with_calls().map(|second| second.p50_ms).collect());
    if median_calls >= P95_CALLS_MIN {
        put(Metric::LatencyP95, with_calls().map(|second| second.p95_ms).collect());
    }
    if median_calls >= P99_CALLS_MIN {
        put(Metric::LatencyP99, with_calls().map(|second| second.p99_ms).collect());
    }
    let goodput =
        |second: &MethodSecond| second.count(|class| class == Class::Ok) as f64 / seconds_per_point;
    put(Metric::Goodput, method_seconds.iter().map(goodput).collect());
    let failed_share =
        |second: &MethodSecond| second.count(Class::is_failure) as f64 / count_calls(second) as f64;
    put(Metric::FailedShare, with_calls().map(failed_share).collect());
}

/// Sets the goodput and the failed share of all methods together over time. Their percentiles are
/// left out, because they cannot be computed from the percentiles of the methods.
fn put_seconds_of_total(run: &mut Run, seconds: &[&Second], seconds_per_point: f64) {
    let goodput =
        |second: &&Second| second.count(|class| class == Class::Ok) as f64 / seconds_per_point;
    let goodput = seconds.iter().map(goodput).collect();
    run.seconds.insert((TOTAL.to_owned(), Metric::Goodput), goodput);
    let failed_share = |second: &&Second| {
        let total = second.count(|_| true);
        (total > 0).then(|| second.count(Class::is_failure) as f64 / total as f64)
    };
    let failed_shares = seconds.iter().filter_map(failed_share).collect();
    run.seconds.insert((TOTAL.to_owned(), Metric::FailedShare), failed_shares);
}

/// Returns the facts that decide if the run may be compared with another.
fn facts(result: &RunResult) -> Facts {
    let base = plan_facts(&result.plan, &result.target, &result.fingerprint);
    // With a limited number of iterations, a stage ends early, and at different times in runs of
    // the same plan.
    let is_limit = |key: &String| key.starts_with("scenario.") && key.ends_with(".iterations");
    let stages_have_planned_ends = !base.settings.keys().any(is_limit);
    Facts {
        schedule: result
            .stages
            .iter()
            .map(|stage| stage_text(stage, stages_have_planned_ends))
            .collect(),
        shares: result.methods.iter().map(|row| (row.method.clone(), row.share)).collect(),
        outcome: Some(result.verdict.outcome),
        partial: result.partial,
        ..base
    }
}

/// Returns the facts about a plan, a target and the generator's machine.
pub(crate) fn plan_facts(plan: &PlanFacts, target: &TargetFacts, machine: &Fingerprint) -> Facts {
    let if_not_empty = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    Facts {
        plan_hash: if_not_empty(&plan.hash),
        settings: settings(&plan.text),
        seed: Some(plan.seed),
        threads: Some(plan.threads),
        connections: Some(format!("{}, {}", plan.protocol(), plan.connections)),
        family: if_not_empty(&target.family),
        chain_id: target.chain_id.clone(),
        scheme: target.url.split_once(':').map(|(scheme, _)| scheme.to_owned()),
        client: target.client.clone(),
        head: target.head_start,
        machine: Some(machine.clone()),
        ..Facts::default()
    }
}

/// Describes a stage. The time of its end is included if `with_end` is true.
fn stage_text(stage: &StageRow, with_end: bool) -> String {
    let unit = if stage.model == "closed" { " workers" } else { "/s" };
    let level = match stage.level_from == stage.level_to {
        true => format!("{}{unit}", stage.level_from),
        false => format!("{} to {}{unit}", stage.level_from, stage.level_to),
    };
    let StageRow { scenario, stage: stage_name, from: start, to: end, .. } = stage;
    let end = if with_end { format!(" to {end:.0}") } else { String::new() };
    format!("{scenario}/{stage_name}: {level} from {start:.0}{end} s")
}

/// Returns the settings of a plan by their full keys, such as `scenario.0.mix`. Empty if the text
/// is not TOML.
fn settings(text: &str) -> BTreeMap<String, String> {
    let mut flat = BTreeMap::new();
    if let Ok(table) = text.parse::<toml::Table>() {
        flatten(&toml::Value::Table(table), String::new(), &mut flat);
    }
    flat
}

/// Adds a value to `flat` under its key `path`. Each value inside a table, or inside an array of
/// tables, gets a key of its own.
fn flatten(value: &toml::Value, path: String, flat: &mut BTreeMap<String, String>) {
    let path_of =
        |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    match value {
        toml::Value::Table(table) => {
            for (key, value) in table {
                flatten(value, path_of(key), flat);
            }
        }
        toml::Value::Array(list) if list.iter().any(toml::Value::is_table) => {
            for (index, value) in list.iter().enumerate() {
                flatten(value, path_of(&index.to_string()), flat);
            }
        }
        plain => {
            flat.insert(path, plain.to_string());
        }
    }
}
