//! The comparison itself: variants in, [`CompareResult`] out. It reads no files and prints nothing.

use std::collections::BTreeSet;

use lab_model::results::compare::{
    CompareResult, Difference, Metric, Mismatch, NormalRow, SCHEMA, VariantRow, Weight,
};
use lab_model::results::{Basis, ComparisonVerdict, Outcome};

use crate::analysis::comparability::{Tool, find_mismatches};
use crate::analysis::compare::{Design, Values, compare as compare_values, judge_all, spread};
use crate::analysis::statistics::median;
use crate::variant::{ALL, Key, Run, Variant, make_unique};
use crate::wording::number::join_first;
use crate::wording::{comparability, difference};

/// How variants are compared.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Runs of equal variants (A/A). Their spread is the smallest difference that counts.
    pub same: Option<Variant>,
    /// True if run n of one variant belongs to run n of the other.
    pub paired: bool,
    /// True if mismatches that refuse a comparison are ignored.
    pub anyway: bool,
    /// True if the intervals of paired runs also cover a bootstrap over the pairs.
    pub bootstrap: bool,
}

/// Metrics with a verdict, each with its replacement. If a variant has no latencies (from the
/// scheduled send), service times (from the actual send) replace them. The list is short, because
/// each further metric makes all differences harder to detect.
const METRICS: [(Metric, Option<Metric>); 5] = [
    (Metric::LatencyP50, Some(Metric::ServiceP50)),
    (Metric::LatencyP95, Some(Metric::ServiceP95)),
    (Metric::LatencyP99, Some(Metric::ServiceP99)),
    (Metric::Goodput, None),
    (Metric::FailedShare, None),
];

/// Compares every other variant with the first. If a mismatch refuses the comparison, the result
/// has no differences, unless [`Options::anyway`] is set.
pub fn compare(
    mut variants: Vec<Variant>,
    options: &Options,
    random: &mut dyn FnMut() -> u64,
) -> CompareResult {
    make_unique(variants.iter_mut().map(|variant| &mut variant.name));
    let mut result = CompareResult {
        schema: SCHEMA.to_owned(),
        weir: env!("CARGO_PKG_VERSION").to_owned(),
        variants: Vec::new(),
        mismatches: Vec::new(),
        differences: Vec::new(),
        normalised: Vec::new(),
        conclusions: Vec::new(),
        warnings: Vec::new(),
    };
    for variant in &mut variants {
        result.mismatches.extend(check_runs(variant, options.anyway));
        result
            .warnings
            .extend(variant.notes.iter().map(|note| format!("{}: {note}", variant.name)));
        result.variants.push(variant_row(variant));
    }
    let Some((first, others)) = variants.split_first() else { return result };
    for other in others {
        if let Some((a, b)) = first.runs.first().zip(other.runs.first()) {
            let unlike = find_mismatches(&a.facts, &b.facts);
            let unlike =
                unlike.iter().map(|mismatch| comparability::report_mismatch(mismatch, &other.name));
            result.mismatches.extend(unlike);
        }
    }
    result.normalised = variants.iter().map(normal_row).collect();
    let refused = result.mismatches.iter().any(|mismatch| mismatch.weight == Weight::Refuse);
    if refused && !options.anyway {
        result.conclusions.push("not compared: the variants do not measure the same".to_owned());
        return result;
    }
    let mut all_compared = Vec::new();
    for other in others {
        for key in shared_keys(first, other) {
            let design = Design {
                paired: options.paired,
                spread: measure_floor(options, first, other, &key),
                bootstrap: options.bootstrap,
            };
            let (a, b) = (values(first, &key), values(other, &key));
            if let Some(mut compared) = compare_values(key.1, &a, &b, design, random) {
                compared.difference.variant.clone_from(&other.name);
                compared.difference.method = key.0;
                all_compared.push(compared);
            }
        }
    }
    result.differences = judge_all(all_compared);
    result.conclusions =
        others.iter().map(|other| describe_variant(&result, first, other)).collect();
    result.warnings.extend(find_doubts(&result, options));
    result.warnings.extend(others.iter().filter_map(|other| warn_of_order(first, other)));
    result.warnings.extend(warn_of_directions(&result));
    result
}

/// Removes invalid runs from a variant, and returns the mismatches between its remaining runs.
fn check_runs(variant: &mut Variant, anyway: bool) -> Vec<Mismatch> {
    let mut unlike = Vec::new();
    let invalid =
        |run: &Run| matches!(run.facts.outcome, Some(Outcome::Invalid | Outcome::ClientLimited));
    if !anyway {
        for run in variant.runs.iter().filter(|run| invalid(run)) {
            let reason = match run.facts.outcome {
                Some(Outcome::ClientLimited) => "the generator was its limit",
                _ => "the verdict of the run is invalid",
            };
            variant.left_out.push(format!("{}: {reason}", run.label));
        }
        variant.runs.retain(|run| !invalid(run));
    }
    if variant.runs.is_empty() {
        unlike.push(Mismatch {
            what: "runs".to_owned(),
            a: String::new(),
            b: "none is left".to_owned(),
            variant: variant.name.clone(),
            weight: Weight::Refuse,
            why: variant.left_out.first().cloned().unwrap_or("it has no runs".to_owned()),
        });
    }
    let Some((first, others)) = variant.runs.split_first() else { return unlike };
    for other in others {
        let pair = format!("{}, {} compared with {}", variant.name, other.label, first.label);
        let mut differing = find_mismatches(&first.facts, &other.facts);
        differing.retain(|mismatch| mismatch.weight > Weight::Note);
        unlike.extend(
            differing.iter().map(|mismatch| comparability::report_mismatch(mismatch, &pair)),
        );
    }
    let partial = variant.runs.iter().filter(|run| run.facts.partial);
    variant.notes.extend(partial.map(|run| format!("{} ended before its plan", run.label)));
    unlike
}

fn variant_row(variant: &Variant) -> VariantRow {
    let facts = variant.runs.first().map(|run| &run.facts);
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
    VariantRow {
        name: variant.name.clone(),
        tool: facts.map_or("none", |facts| facts.tool.as_str()).to_owned(),
        runs: variant.runs.len(),
        left_out: variant.left_out.clone(),
        described: known.unwrap_or_default(),
    }
}

/// Returns the methods and metrics that both variants have.
fn shared_keys(a: &Variant, b: &Variant) -> Vec<Key> {
    let methods_of =
        |run: &Run| run.values.keys().map(|(method, _)| method.clone()).collect::<Vec<_>>();
    let methods_of_b: BTreeSet<String> = b.runs.iter().flat_map(methods_of).collect();
    // The total over all methods comes first, then the methods in the order of the first variant.
    let mut added = BTreeSet::new();
    let mut shared: Vec<String> = a.runs.iter().flat_map(methods_of).collect();
    shared.retain(|method| methods_of_b.contains(method) && added.insert(method.clone()));
    shared.sort_by_key(|method| method != ALL);
    let knows =
        |variant: &Variant, key: &Key| variant.runs.iter().any(|run| run.values.contains_key(key));
    let mut keys = Vec::new();
    for method in shared {
        for (metric, replacement) in METRICS {
            let choices = [Some(metric), replacement].into_iter().flatten();
            let mut choices = choices.map(|metric| (method.clone(), metric));
            keys.extend(choices.find(|key| knows(a, key) && knows(b, key)));
        }
    }
    keys
}

fn values(variant: &Variant, key: &Key) -> Values {
    let runs: Vec<f64> =
        variant.runs.iter().filter_map(|run| run.values.get(key).copied()).collect();
    let only = variant.runs.iter().find(|run| run.values.contains_key(key));
    let only = only.filter(|_| runs.len() == 1);
    let seconds = only.and_then(|run| run.seconds.get(key));
    let calls = only.and_then(|run| run.calls.get(&key.0)).copied();
    Values { seconds: seconds.cloned().unwrap_or_default(), calls, runs }
}

/// Returns the spread of a metric between equal runs. If a variant has a single run, it is the
/// largest difference of any two equal runs. Otherwise it is the difference between the medians of
/// two halves of them.
fn measure_floor(options: &Options, a: &Variant, b: &Variant, key: &Key) -> Option<f64> {
    let runs = values(options.same.as_ref()?, key).runs;
    let min_runs = values(a, key).runs.len().min(values(b, key).runs.len());
    if min_runs < 2 {
        return spread(key.1, &runs);
    }
    let half = |offset| -> Option<f64> {
        median(&runs.iter().skip(offset).step_by(2).copied().collect::<Vec<_>>())
    };
    spread(key.1, &[half(0)?, half(1)?])
}

fn normal_row(variant: &Variant) -> NormalRow {
    let median_of = |metrics: [Metric; 2]| {
        let is_total = |key: &Key| key.0 == ALL && metrics.contains(&key.1);
        let method_names =
            variant.runs.iter().flat_map(|run| run.values.keys()).map(|(method, _)| method);
        let methods: BTreeSet<&String> = method_names.collect();
        let has_single_method = methods.len() == 1;
        let is_selected =
            |key: &Key| is_total(key) || has_single_method && metrics.contains(&key.1);
        let value = |run: &Run| {
            run.values.iter().find(|(key, _)| is_selected(key)).map(|(_, value)| *value)
        };
        median(&variant.runs.iter().filter_map(value).collect::<Vec<_>>())
    };
    let first_run = variant.runs.first();
    let machine = first_run.and_then(|run| run.facts.machine.as_ref());
    let cores = first_run.and_then(|run| run.cores).filter(|cores| *cores > 0.0);
    let goodput = median_of([Metric::Goodput, Metric::Goodput]);
    let costs: Vec<f64> = variant.runs.iter().filter_map(|run| run.cpu_ms_per_request).collect();
    NormalRow {
        variant: variant.name.clone(),
        machine: machine.map_or(String::new(), |machine| {
            [machine.host.trim(), machine.cpu.trim()].join(" ").trim().to_owned()
        }),
        cores,
        goodput,
        goodput_per_core: goodput.zip(cores).map(|(goodput, cores)| goodput / cores),
        p50_ms: median_of([Metric::LatencyP50, Metric::ServiceP50]),
        p99_ms: median_of([Metric::LatencyP99, Metric::ServiceP99]),
        cpu_ms_per_request: median(&costs),
    }
}

fn describe_variant(result: &CompareResult, first: &Variant, other: &Variant) -> String {
    let differences_of_other =
        || result.differences.iter().filter(|difference| difference.variant == other.name);
    let with_verdict = |verdict: ComparisonVerdict| {
        differences_of_other().filter(move |difference| difference.verdict == verdict)
    };
    let count = |verdict| with_verdict(verdict).count();
    let mut parts = Vec::new();
    for verdict in [ComparisonVerdict::Worse, ComparisonVerdict::Better] {
        if count(verdict) > 0 {
            let names = difference::name_largest(with_verdict(verdict));
            parts.push(format!("{} in {names}", verdict.as_str()));
        }
    }
    let (same, open) = (count(ComparisonVerdict::Same), count(ComparisonVerdict::CannotTell));
    if parts.is_empty() {
        parts.push("no significant difference".to_owned());
    }
    let total = differences_of_other().count();
    let mut text = format!("{} compared with {}: {}", other.name, first.name, parts.join("; "));
    let small = match count(ComparisonVerdict::Negligible) {
        0 => String::new(),
        small => format!(", {small} differ negligibly"),
    };
    text.push_str(&format!(
        "; of {total} figures {same} are the same{small} and {open} cannot be told"
    ));
    if differences_of_other().any(|difference| {
        matches!(difference.basis, Basis::WithinRun | Basis::Calls | Basis::FarApart)
    }) {
        text.push_str(
            " (one run each: the spread between runs is unknown, so the floors are wider)",
        );
    }
    text
}

/// Returns a warning if all runs of one variant started before all runs of the other, as far as
/// known.
fn warn_of_order(first: &Variant, other: &Variant) -> Option<String> {
    let started = |variant: &Variant| -> Option<Vec<f64>> {
        variant
            .runs
            .iter()
            .map(|run| run.started)
            .collect::<Option<Vec<f64>>>()
            .filter(|starts| starts.len() > 1)
    };
    let (a, b) = (started(first)?, started(other)?);
    let all_before = |a: &[f64], b: &[f64]| {
        a.iter().all(|start| b.iter().all(|other_start| start < other_start))
    };
    let (earlier, later) = match (all_before(&a, &b), all_before(&b, &a)) {
        (true, _) => (first, other),
        (_, true) => (other, first),
        _ => return None,
    };
    Some(format!(
        "all runs of {} were started before those of {}: a drift of the machine or the target looks \
         like a difference between the variants; alternate their runs (A B B A)",
        earlier.name, later.name
    ))
}

/// Returns a warning about changes that have the opposite sign of the difference of medians.
fn warn_of_directions(result: &CompareResult) -> Option<String> {
    let is_against = |difference: &&Difference| {
        let medians = difference.b - difference.a;
        // A change below the floor does not matter, in whatever direction.
        let matters = difference.change.abs() > difference.floor;
        matters && difference.interval.is_some() && medians * difference.change < 0.0
    };
    let sentences: Vec<String> =
        result.differences.iter().filter(is_against).map(difference::sentence).collect();
    (!sentences.is_empty()).then(|| {
        format!(
            "medians and change differ in direction for {}: A and B are medians over runs, while \
             the change is computed from pairs of runs",
            join_first(&sentences, difference::NAMED_MAX, ", ")
        )
    })
}

fn find_doubts(result: &CompareResult, options: &Options) -> Vec<String> {
    let mut doubts = Vec::new();
    let any_with = |basis| result.differences.iter().any(|difference| difference.basis == basis);
    if any_with(Basis::WithinRun) {
        doubts.push(
            "with one run per variant, the means of its seconds are compared instead of the values of \
             whole runs; make several alternating runs of each variant (A B B A) for a reliable verdict"
                .to_owned(),
        );
    }
    if any_with(Basis::FarApart) {
        doubts.push(
            "with only one value of a variant, only differences far beyond noise count (×3 for medians \
             and rates, ×5 for p95, ×10 for p99)"
                .to_owned(),
        );
    }
    if any_with(Basis::ValuesOnly) {
        doubts.push(
            "a difference cannot be told if a variant has one value and its seconds are fewer than 20, \
             unknown, or drifting: make at least two runs of each variant, better five"
                .to_owned(),
        );
    }
    if any_with(Basis::FewRuns) {
        doubts.push(
            "with two or three runs of a variant a normal distribution is assumed; with four or more of \
             each, a rank test is used"
                .to_owned(),
        );
    }
    if options.paired && !any_with(Basis::PairedRuns) {
        doubts.push("pairs need two runs or more of each variant, equally many".to_owned());
    }
    if result.variants.iter().any(|variant| variant.tool != Tool::Weir.as_str())
        && result.variants.iter().any(|variant| variant.tool == Tool::Weir.as_str())
    {
        doubts.push(
            "variants of other tools are compared by service times (from the actual send), which hide \
             the wait before a send"
                .to_owned(),
        );
    }
    doubts
}
