//! The comparison itself: arms in, [`CompareResult`] out. It reads no files and prints nothing.

use std::collections::BTreeSet;

use lab_model::results::compare::{
    ArmRow, CompareResult, Difference, Metric, Mismatch, NormalRow, SCHEMA, Weight,
};
use lab_model::results::{Basis, Outcome, Word};

use crate::analysis::comparability::{Tool, mismatches};
use crate::analysis::compare::{
    Design, MetricDifference, Values, classify_all, compare as compare_values, spread,
};
use crate::analysis::statistics::median;
use crate::arm::{ALL, Arm, Key, Run};
use crate::wording::{comparability, difference};

/// How arms are compared.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Runs of equal arms (A/A). Their spread is the smallest difference that counts.
    pub same: Option<Arm>,
    /// True if run n of one arm belongs to run n of the other.
    pub paired: bool,
    /// True if mismatches that refuse a comparison are ignored.
    pub anyway: bool,
}

/// Metrics with a verdict, each with its replacement. If an arm has no latencies (from the
/// scheduled send), service times (from the actual send) replace them. The list is short, because
/// each further metric makes all differences harder to detect.
const METRICS: [(Metric, Option<Metric>); 5] = [
    (Metric::LatencyP50, Some(Metric::ServiceP50)),
    (Metric::LatencyP95, Some(Metric::ServiceP95)),
    (Metric::LatencyP99, Some(Metric::ServiceP99)),
    (Metric::Goodput, None),
    (Metric::FailedShare, None),
];

/// Compares every other arm with the first. If a mismatch refuses the comparison, the result has no
/// differences, unless [`Options::anyway`] is set.
pub fn compare(
    mut arms: Vec<Arm>,
    options: &Options,
    random: &mut dyn FnMut() -> u64,
) -> CompareResult {
    make_names_unique(&mut arms);
    let mut result = CompareResult {
        schema: SCHEMA.to_owned(),
        weir: env!("CARGO_PKG_VERSION").to_owned(),
        arms: Vec::new(),
        mismatches: Vec::new(),
        differences: Vec::new(),
        normalised: Vec::new(),
        sentences: Vec::new(),
        warnings: Vec::new(),
    };
    for arm in &mut arms {
        result.mismatches.extend(check_runs(arm, options.anyway));
        result.warnings.extend(arm.notes.iter().map(|note| format!("{}: {note}", arm.name)));
        result.arms.push(arm_row(arm));
    }
    let Some((first, others)) = arms.split_first() else { return result };
    for other in others {
        if let Some((a, b)) = first.runs.first().zip(other.runs.first()) {
            let found = mismatches(&a.facts, &b.facts);
            let found = found.iter().map(|one| comparability::mismatch(one, &other.name));
            result.mismatches.extend(found);
        }
    }
    result.normalised = arms.iter().map(normal_row).collect();
    let refused = result.mismatches.iter().any(|mismatch| mismatch.weight == Weight::Refuse);
    if refused && !options.anyway {
        result.sentences.push("not compared: the arms do not measure the same".to_owned());
        return result;
    }
    let mut keys = Vec::new();
    let mut found = Vec::new();
    for other in others {
        for (method, metric) in common(first, other) {
            let key = (method, metric);
            let design =
                Design { paired: options.paired, spread: floor(options, first, other, &key) };
            let (a, b) = (values(first, &key), values(other, &key));
            if let Some(one) = compare_values(metric, &a, &b, design, random) {
                keys.push((other.name.clone(), key.0));
                found.push(one);
            }
        }
    }
    let classified = classify_all(&found);
    for (((arm, method), found), (verdict, p)) in keys.into_iter().zip(&found).zip(classified) {
        result.differences.push(difference(arm, method, found, verdict, p));
    }
    result.sentences = others.iter().map(|other| sentence(&result, first, other)).collect();
    result.warnings.extend(doubts(&result, options));
    result.warnings.extend(others.iter().filter_map(|other| one_after_another(first, other)));
    result.warnings.extend(against_medians(&result));
    result
}

/// Adds numbers to equal names of arms.
fn make_names_unique(arms: &mut [Arm]) {
    let mut taken = BTreeSet::new();
    for arm in arms {
        let own = arm.name.clone();
        let mut number = 2;
        while !taken.insert(arm.name.clone()) {
            arm.name = format!("{own} ({number})");
            number += 1;
        }
    }
}

/// Removes invalid runs from an arm, and returns the mismatches between its remaining runs.
fn check_runs(arm: &mut Arm, anyway: bool) -> Vec<Mismatch> {
    let mut found = Vec::new();
    let invalid =
        |run: &Run| matches!(run.facts.outcome, Some(Outcome::Invalid | Outcome::ClientLimited));
    if !anyway {
        for run in arm.runs.iter().filter(|run| invalid(run)) {
            let why = match run.facts.outcome {
                Some(Outcome::ClientLimited) => "the generator was its limit",
                _ => "the verdict of the run is invalid",
            };
            arm.left_out.push(format!("{}: {why}", run.label));
        }
        arm.runs.retain(|run| !invalid(run));
    }
    if arm.runs.is_empty() {
        found.push(Mismatch {
            what: "runs".to_owned(),
            a: String::new(),
            b: "none is left".to_owned(),
            arm: arm.name.clone(),
            weight: Weight::Refuse,
            why: arm.left_out.first().cloned().unwrap_or("it has no runs".to_owned()),
        });
    }
    let Some((first, others)) = arm.runs.split_first() else { return found };
    for other in others {
        let pair = format!("{}, {} compared with {}", arm.name, other.label, first.label);
        let mut unlike = mismatches(&first.facts, &other.facts);
        unlike.retain(|mismatch| mismatch.weight > Weight::Note);
        found.extend(unlike.iter().map(|one| comparability::mismatch(one, &pair)));
    }
    let partial = arm.runs.iter().filter(|run| run.facts.partial);
    arm.notes.extend(partial.map(|run| format!("{} ended before its plan", run.label)));
    found
}

fn arm_row(arm: &Arm) -> ArmRow {
    let facts = arm.runs.first().map(|run| &run.facts);
    let known = facts.map(|facts| {
        let machine = facts.machine.as_ref().map(|machine| machine.cpu.clone());
        let parts = [
            facts.client.clone(),
            facts.chain_id.as_ref().map(|id| format!("chain {id}")),
            facts.load.clone(),
            facts.connections.clone(),
            facts.schedule.first().cloned(),
            machine,
        ];
        parts.into_iter().flatten().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ")
    });
    ArmRow {
        name: arm.name.clone(),
        tool: facts.map_or("none", |facts| facts.tool.as_str()).to_owned(),
        runs: arm.runs.len(),
        left_out: arm.left_out.clone(),
        described: known.unwrap_or_default(),
    }
}

/// Returns the methods and metrics that both arms have.
fn common(a: &Arm, b: &Arm) -> Vec<Key> {
    let of = |run: &Run| run.values.keys().map(|(method, _)| method.clone()).collect::<Vec<_>>();
    let theirs: BTreeSet<String> = b.runs.iter().flat_map(of).collect();
    // The total over all methods comes first, then the methods in the order of the first arm.
    let mut seen = BTreeSet::new();
    let mut shared: Vec<String> = a.runs.iter().flat_map(of).collect();
    shared.retain(|method| theirs.contains(method) && seen.insert(method.clone()));
    shared.sort_by_key(|method| method != ALL);
    let knows = |arm: &Arm, key: &Key| arm.runs.iter().any(|run| run.values.contains_key(key));
    let mut keys = Vec::new();
    for method in shared {
        for (metric, instead) in METRICS {
            let choices = [Some(metric), instead].into_iter().flatten();
            let mut choices = choices.map(|metric| (method.clone(), metric));
            keys.extend(choices.find(|key| knows(a, key) && knows(b, key)));
        }
    }
    keys
}

fn values(arm: &Arm, key: &Key) -> Values {
    let runs: Vec<f64> = arm.runs.iter().filter_map(|run| run.values.get(key).copied()).collect();
    let only = arm.runs.iter().find(|run| run.values.contains_key(key));
    let only = only.filter(|_| runs.len() == 1);
    let seconds = only.and_then(|run| run.seconds.get(key));
    let calls = only.and_then(|run| run.calls.get(&key.0)).copied();
    Values { seconds: seconds.cloned().unwrap_or_default(), calls, runs }
}

/// Returns the spread of a metric between equal runs. If the arms have a single run, it is the
/// largest difference of any two equal runs. Otherwise it is the difference between the medians of
/// two halves of them.
fn floor(options: &Options, a: &Arm, b: &Arm, key: &Key) -> Option<f64> {
    let runs = values(options.same.as_ref()?, key).runs;
    let least = values(a, key).runs.len().min(values(b, key).runs.len());
    if least < 2 {
        return spread(key.1, &runs);
    }
    let half = |first| -> Option<f64> {
        median(&runs.iter().skip(first).step_by(2).copied().collect::<Vec<_>>())
    };
    spread(key.1, &[half(0)?, half(1)?])
}

fn difference(
    arm: String,
    method: String,
    found: &MetricDifference,
    verdict: Word,
    p: Option<f64>,
) -> Difference {
    Difference {
        arm,
        method,
        metric: found.metric,
        a: found.a,
        b: found.b,
        a_count: found.a_count,
        b_count: found.b_count,
        change: found.change,
        interval: found.interval.map(|interval| (interval.low, interval.high)),
        p,
        floor: found.floor,
        basis: found.basis,
        verdict,
    }
}

fn normal_row(arm: &Arm) -> NormalRow {
    let of = |metrics: [Metric; 2]| {
        let wanted = |key: &Key| key.0 == ALL && metrics.contains(&key.1);
        let only = arm.runs.iter().flat_map(|run| run.values.keys()).map(|(method, _)| method);
        let methods: BTreeSet<&String> = only.collect();
        let alone = methods.len() == 1;
        let any = |key: &Key| wanted(key) || alone && metrics.contains(&key.1);
        let value =
            |run: &Run| run.values.iter().find(|(key, _)| any(key)).map(|(_, value)| *value);
        median(&arm.runs.iter().filter_map(value).collect::<Vec<_>>())
    };
    let first = arm.runs.first();
    let machine = first.and_then(|run| run.facts.machine.as_ref());
    let cores = first.and_then(|run| run.cores).filter(|cores| *cores > 0.0);
    let goodput = of([Metric::Goodput, Metric::Goodput]);
    let costs: Vec<f64> = arm.runs.iter().filter_map(|run| run.cpu_ms_per_request).collect();
    NormalRow {
        arm: arm.name.clone(),
        machine: machine.map_or(String::new(), |machine| {
            [machine.host.trim(), machine.cpu.trim()].join(" ").trim().to_owned()
        }),
        cores,
        goodput,
        goodput_per_core: goodput.zip(cores).map(|(goodput, cores)| goodput / cores),
        p50_ms: of([Metric::LatencyP50, Metric::ServiceP50]),
        p99_ms: of([Metric::LatencyP99, Metric::ServiceP99]),
        cpu_ms_per_request: median(&costs),
    }
}

/// Maximum number of differences that a sentence names.
const NAMED_MAX: usize = 4;

fn sentence(result: &CompareResult, first: &Arm, other: &Arm) -> String {
    let own = || result.differences.iter().filter(|one| one.arm == other.name);
    let count = |word| own().filter(|one| one.verdict == word).count();
    let named = |word| -> Vec<String> {
        let mut all: Vec<&Difference> = own().filter(|one| one.verdict == word).collect();
        all.sort_by(|x, y| y.change.abs().total_cmp(&x.change.abs()));
        let mut names: Vec<String> =
            all.iter().take(NAMED_MAX).map(|one| difference::sentence(one)).collect();
        if all.len() > NAMED_MAX {
            names.push(format!("and {} more", all.len() - NAMED_MAX));
        }
        names
    };
    let mut parts = Vec::new();
    for (word, name) in [(Word::Worse, "worse"), (Word::Better, "better")] {
        if count(word) > 0 {
            parts.push(format!("{name} in {}", named(word).join(", ")));
        }
    }
    let (same, open) = (count(Word::Same), count(Word::CannotTell));
    if parts.is_empty() {
        parts.push("no significant difference".to_owned());
    }
    let total = own().count();
    let mut text = format!("{} compared with {}: {}", other.name, first.name, parts.join("; "));
    let small = match count(Word::Negligible) {
        0 => String::new(),
        small => format!(", {small} differ negligibly"),
    };
    text.push_str(&format!(
        "; of {total} figures {same} are the same{small} and {open} cannot be told"
    ));
    if own().any(|one| matches!(one.basis, Basis::WithinRun | Basis::Calls | Basis::FarApart)) {
        text.push_str(
            " (one run each: the spread between runs is unknown, so the floors are wider)",
        );
    }
    text
}

/// Returns a warning if all runs of one arm started before all runs of the other, as far as known.
fn one_after_another(first: &Arm, other: &Arm) -> Option<String> {
    let started = |arm: &Arm| -> Option<Vec<f64>> {
        arm.runs
            .iter()
            .map(|run| run.started)
            .collect::<Option<Vec<f64>>>()
            .filter(|all| all.len() > 1)
    };
    let (a, b) = (started(first)?, started(other)?);
    let before = |a: &[f64], b: &[f64]| a.iter().all(|one| b.iter().all(|two| one < two));
    let (earlier, later) = match (before(&a, &b), before(&b, &a)) {
        (true, _) => (first, other),
        (_, true) => (other, first),
        _ => return None,
    };
    Some(format!(
        "all runs of {} were started before those of {}: a drift of the machine or the target looks \
         like a difference between the arms; alternate their runs (A B B A)",
        earlier.name, later.name
    ))
}

/// Returns a warning about changes that have the opposite sign of the difference of medians.
fn against_medians(result: &CompareResult) -> Option<String> {
    let against = |one: &&Difference| {
        let medians = one.b - one.a;
        one.interval.is_some() && medians * one.change < 0.0
    };
    let mut named: Vec<String> =
        result.differences.iter().filter(against).map(difference::sentence).collect();
    if named.is_empty() {
        return None;
    }
    let more = named.len().saturating_sub(NAMED_MAX);
    named.truncate(NAMED_MAX);
    if more > 0 {
        named.push(format!("and {more} more"));
    }
    Some(format!(
        "medians and change differ in direction for {}: A and B are medians over runs, while the \
         change is computed from pairs of runs",
        named.join(", ")
    ))
}

fn doubts(result: &CompareResult, options: &Options) -> Vec<String> {
    let mut doubts = Vec::new();
    let any = |basis| result.differences.iter().any(|one| one.basis == basis);
    if any(Basis::WithinRun) {
        doubts.push(
            "with one run per arm, the means of its seconds are compared instead of the values of \
             whole runs; make several alternating runs of each arm (A B B A) for a reliable verdict"
                .to_owned(),
        );
    }
    if any(Basis::FarApart) {
        doubts.push(
            "with only one value of an arm, only differences far beyond noise count (×3 for medians \
             and rates, ×5 for p95, ×10 for p99)"
                .to_owned(),
        );
    }
    if any(Basis::ValuesOnly) {
        doubts.push(
            "a difference cannot be told if an arm has one value and its seconds are fewer than 20, \
             unknown, or drifting: make at least two runs of each arm, better five"
                .to_owned(),
        );
    }
    if any(Basis::FewRuns) {
        doubts.push(
            "with two or three runs of an arm a normal distribution is assumed; with four or more of \
             each, a rank test is used"
                .to_owned(),
        );
    }
    if options.paired && !any(Basis::PairedRuns) {
        doubts.push("pairs need two runs or more of each arm, equally many".to_owned());
    }
    if result.arms.iter().any(|arm| arm.tool != Tool::Weir.as_str())
        && result.arms.iter().any(|arm| arm.tool == Tool::Weir.as_str())
    {
        doubts.push(
            "arms of other tools are compared by service times (from the actual send), which hide \
             the wait before a send"
                .to_owned(),
        );
    }
    doubts
}
