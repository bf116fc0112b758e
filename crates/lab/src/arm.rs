//! An arm: runs of one thing, from results of our own or of other tools, in one form.

use std::collections::BTreeMap;

use lab_engine::aggregate;
use lab_model::record::Class;
use lab_model::results::compare::Metric;
use lab_model::results::run::{MethodSecond, ProcessRole, Row, RunResult, Second, StageRow};

use crate::analysis::sameness::{Facts, Tool};

/// One metric of one method: the key by which arms are compared.
pub type Key = (String, Metric);

/// All methods together.
pub const ALL: &str = "all";

/// Runs of one thing.
#[derive(Clone, Debug)]
pub struct Arm {
    /// Its name.
    pub name: String,
    /// Its runs, in the order given.
    pub runs: Vec<Run>,
    /// Runs that were left out, with why.
    pub left_out: Vec<String>,
    /// What to know of how it was read.
    pub notes: Vec<String>,
}

/// One run, as far as it is compared.
#[derive(Clone, Debug)]
pub struct Run {
    /// Where it was read.
    pub label: String,
    /// How it was made.
    pub facts: Facts,
    /// Its values.
    pub values: BTreeMap<Key, f64>,
    /// When it was started, in seconds since 1970.
    pub started: Option<f64>,
    /// Values by second, warm-up left out, as far as known.
    pub seconds: BTreeMap<Key, Vec<f64>>,
    /// Calls by method, as far as known.
    pub calls: BTreeMap<String, u64>,
    /// CPU milliseconds per request of the target's processes, or of the named ones.
    pub cpu_ms_per_request: Option<f64>,
    /// Cores that the target may use.
    pub cores: Option<f64>,
}

impl Run {
    /// Nothing but where it was read and by whom it was made.
    pub fn new(label: &str, tool: Tool) -> Run {
        Run {
            label: label.to_owned(),
            facts: Facts::of(tool),
            values: BTreeMap::new(),
            started: None,
            seconds: BTreeMap::new(),
            calls: BTreeMap::new(),
            cpu_ms_per_request: None,
            cores: None,
        }
    }

    /// Sets a value, unless it is not a number.
    pub fn put(&mut self, method: &str, metric: Metric, value: f64) {
        if value.is_finite() {
            self.values.insert((method.to_owned(), metric), value);
        }
    }
}

/// A result of our own.
pub fn of_result(label: &str, result: &RunResult) -> Run {
    let mut run = Run::new(label, Tool::Weir);
    run.facts = facts(result);
    run.started = Some(result.started_unix).filter(|started| *started > 0.0);
    let machine = &result.fingerprint;
    let own = machine.target_local.then_some(machine.cores as f64);
    run.cores = result.watched.target_cores.or(own);
    let processes = result.watched.processes.iter();
    let target = processes.filter(|process| process.role != ProcessRole::Generator);
    let costs: Vec<f64> = target.filter_map(|process| process.cpu_ms_per_request).collect();
    run.cpu_ms_per_request = (!costs.is_empty()).then(|| costs.iter().sum());
    // With one method, all methods together are that method again.
    if result.methods.len() != 1 {
        put_row(&mut run, ALL, &result.overall);
    }
    for row in &result.methods {
        put_row(&mut run, &row.method, row);
    }
    let judged = aggregate::whole_seconds(&result.series, &result.stages, result.plan.warmup);
    let each = aggregate::point_seconds(&result.series);
    for row in &result.methods {
        put_seconds(&mut run, row, &judged, each);
    }
    if result.methods.len() != 1 {
        put_seconds_of_all(&mut run, &judged, each);
    }
    run
}

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

/// Calls from which a 95th and a 99th percentile are more than just the largest.
pub(crate) const P95_CALLS: u64 = 20;
pub(crate) const P99_CALLS: u64 = 100;

fn put_seconds(run: &mut Run, row: &Row, judged: &[&Second], each: f64) {
    let of = |second: &Second| second.methods.iter().find(|one| one.method == row.method).cloned();
    let all: Vec<MethodSecond> =
        judged.iter().map(|second| of(second).unwrap_or_default()).collect();
    let counts: Vec<f64> = all.iter().map(|second| calls(second) as f64).collect();
    let middle = crate::analysis::statistics::median(&counts).unwrap_or_default() as u64;
    let with_calls = || all.iter().filter(|second| calls(second) > 0);
    let mut put = |metric, values: Vec<f64>| {
        run.seconds.insert((row.method.clone(), metric), values);
    };
    put(Metric::LatencyP50, with_calls().map(|second| second.p50_ms).collect());
    if middle >= P95_CALLS {
        put(Metric::LatencyP95, with_calls().map(|second| second.p95_ms).collect());
    }
    if middle >= P99_CALLS {
        put(Metric::LatencyP99, with_calls().map(|second| second.p99_ms).collect());
    }
    put(Metric::Goodput, all.iter().map(|second| ok(second) as f64 / each).collect());
    put(
        Metric::FailedShare,
        with_calls().map(|one| failed(one) as f64 / calls(one) as f64).collect(),
    );
}

/// Percentiles of all methods together cannot be had from those of each, so there are none.
fn put_seconds_of_all(run: &mut Run, judged: &[&Second], each: f64) {
    let sum = |second: &Second, of: fn(&MethodSecond) -> u64| -> u64 {
        second.methods.iter().map(of).sum()
    };
    let goodput = judged.iter().map(|second| sum(second, ok) as f64 / each).collect();
    run.seconds.insert((ALL.to_owned(), Metric::Goodput), goodput);
    let share = |second: &&&Second| {
        let all = sum(second, calls);
        (all > 0).then(|| sum(second, failed) as f64 / all as f64)
    };
    let failed = judged.iter().filter_map(|second| share(&second)).collect();
    run.seconds.insert((ALL.to_owned(), Metric::FailedShare), failed);
}

fn calls(second: &MethodSecond) -> u64 {
    second.classes.iter().map(|(_, count)| count).sum()
}

fn ok(second: &MethodSecond) -> u64 {
    second.classes.iter().filter(|(class, _)| *class == Class::Ok).map(|(_, count)| count).sum()
}

fn failed(second: &MethodSecond) -> u64 {
    second.classes.iter().filter(|(class, _)| class.failed()).map(|(_, count)| count).sum()
}

fn facts(result: &RunResult) -> Facts {
    let plan = &result.plan;
    let target = &result.target;
    let known = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    Facts {
        plan_hash: known(&plan.hash),
        settings: settings(&plan.text),
        seed: Some(plan.seed),
        threads: Some(plan.threads),
        connections: Some(format!("HTTP/{}, {}", plan.http, plan.connections)),
        schedule: result.stages.iter().map(in_words).collect(),
        shares: result.methods.iter().map(|row| (row.method.clone(), row.share)).collect(),
        family: known(&target.family),
        chain_id: target.chain_id.clone(),
        client: target.client.clone(),
        head: target.head_start,
        machine: Some(result.fingerprint.clone()),
        outcome: Some(result.verdict.outcome),
        partial: result.partial,
        ..Facts::of(Tool::Weir)
    }
}

fn in_words(stage: &StageRow) -> String {
    let unit = if stage.model == "closed" { " workers" } else { "/s" };
    let level = match stage.level_from == stage.level_to {
        true => format!("{}{unit}", stage.level_from),
        false => format!("{} to {}{unit}", stage.level_from, stage.level_to),
    };
    let StageRow { scenario, stage: name, from, to, .. } = stage;
    format!("{scenario}/{name}: {level} from {from:.0} to {to:.0} s")
}

/// A plan's settings, flattened; empty if the text is not TOML, as that of a one-line plan.
fn settings(text: &str) -> BTreeMap<String, String> {
    let mut flat = BTreeMap::new();
    if let Ok(table) = text.parse::<toml::Table>() {
        flatten(&toml::Value::Table(table), String::new(), &mut flat);
    }
    flat
}

fn flatten(value: &toml::Value, path: String, into: &mut BTreeMap<String, String>) {
    let under = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    match value {
        toml::Value::Table(table) => {
            for (key, value) in table {
                flatten(value, under(key), into);
            }
        }
        toml::Value::Array(list) if list.iter().any(toml::Value::is_table) => {
            for (place, value) in list.iter().enumerate() {
                flatten(value, under(&place.to_string()), into);
            }
        }
        plain => {
            into.insert(path, plain.to_string());
        }
    }
}
