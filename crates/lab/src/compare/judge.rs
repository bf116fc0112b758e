//! Compares variants and returns a [`CompareResult`]. A variant has the runs of one target, build
//! or setting (`variant.rs`). This code reads no files and prints nothing.

use std::collections::BTreeSet;

use lab_model::results::compare::{
    CompareResult, Difference, Metric, Mismatch, NormalRow, SCHEMA, VariantRow, Weight,
};
use lab_model::results::{Basis, Outcome};

use crate::analysis::comparability::{Tool, find_mismatches};
use crate::analysis::compare::{
    Design, Values, compare as compare_values, judge_all, measure_spread,
};
use crate::analysis::statistics::median;
use crate::variant::{MetricKey, Run, TOTAL, Variant, make_unique};
use crate::wording::number::join_first;
use crate::wording::{comparability, difference};

use super::mix;

/// How variants are compared.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Equal runs, made to measure the spread between runs (A/A). A difference counts only if it is
    /// larger than the spread of these runs. `None` if there are no such runs.
    pub control_runs: Option<Variant>,
    /// True if run n of one variant belongs to run n of the other.
    pub paired: bool,
    /// True to compare even invalid runs and variants with mismatches that refuse a comparison.
    pub despite_mismatches: bool,
    /// True if the interval of paired runs must also cover the interval of a bootstrap over the
    /// pairs.
    pub bootstrap: bool,
}

/// The metrics that get a verdict, each with its replacement. If a variant has no latencies (from
/// the scheduled send), service times (from the actual send) replace them. The list is short,
/// because the p-values are corrected for the number of metrics: each further metric makes all
/// differences harder to detect.
const METRICS: [(Metric, Option<Metric>); 5] = [
    (Metric::LatencyP50, Some(Metric::ServiceP50)),
    (Metric::LatencyP95, Some(Metric::ServiceP95)),
    (Metric::LatencyP99, Some(Metric::ServiceP99)),
    (Metric::Goodput, None),
    (Metric::FailedShare, None),
];

/// Compares every other variant with the first. If a mismatch refuses the comparison, the result
/// has no differences, unless [`Options::despite_mismatches`] is set. `random` returns random bits.
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
    let run_counts: Vec<usize> = variants.iter().map(|variant| variant.runs.len()).collect();
    let has_pairs = options.paired && run_counts.iter().all(|runs| *runs == run_counts[0]);
    for variant in &mut variants {
        let runs = variant.runs.iter_mut().enumerate();
        runs.for_each(|(number, run)| run.number = number);
        result.mismatches.extend(check_runs(variant, options.despite_mismatches));
        result
            .warnings
            .extend(variant.notes.iter().map(|note| format!("{}: {note}", variant.name)));
        result.variants.push(variant_row(variant));
    }
    let Some((first, others)) = variants.split_first() else { return result };
    for other in others {
        if let Some((a, b)) = first.runs.first().zip(other.runs.first()) {
            let mismatches = find_mismatches(&a.facts, &b.facts);
            let reported = mismatches
                .iter()
                .map(|mismatch| comparability::report_mismatch(mismatch, &other.name));
            result.mismatches.extend(reported);
        }
    }
    result.normalised = variants.iter().map(normal_row).collect();
    let is_refused = result.mismatches.iter().any(|mismatch| mismatch.weight == Weight::Refuse);
    if is_refused && !options.despite_mismatches {
        result.conclusions.push("not compared: the variants do not measure the same".to_owned());
        return result;
    }
    let mut unjudged = Vec::new();
    for other in others {
        let has_other_mix = !mix::find_changes(first, other).is_empty();
        for key in shared_keys(first, other) {
            let with_key = |run: &&Run| run.values.contains_key(&key);
            let mut a: Vec<&Run> = first.runs.iter().filter(with_key).collect();
            let mut b: Vec<&Run> = other.runs.iter().filter(with_key).collect();
            let pairs = if has_pairs { pair_runs(&a, &b) } else { Vec::new() };
            let paired = pairs.len() >= PAIRS_MIN;
            if paired {
                (a, b) = pairs.into_iter().unzip();
            }
            let spread =
                measure_control_spread(options.control_runs.as_ref(), &key, a.len().min(b.len()));
            let design = Design { paired, spread, bootstrap: options.bootstrap };
            let (a, b) = (values(&a, &key), values(&b, &key));
            let (method, metric) = key;
            if let Some(mut compared) = compare_values(metric, &a, &b, design, random) {
                // The rate of a method follows its share of the calls.
                if has_other_mix && (method == TOTAL || metric == Metric::Goodput) {
                    compared = compared.without_test(Basis::MixDiffers);
                }
                compared.difference.variant.clone_from(&other.name);
                compared.difference.method = method;
                unjudged.push(compared);
            }
        }
    }
    result.differences = judge_all(unjudged);
    result.conclusions = others
        .iter()
        .map(|other| {
            let sentence = difference::describe_variant(&result, &first.name, &other.name);
            sentence + &mix::describe(&mix::find_changes(first, other), &first.name, &other.name)
        })
        .collect();
    result.warnings.extend(find_doubts(&result));
    let pairs_of = |other: &Variant| {
        let pairs = pair_runs(&Vec::from_iter(&first.runs), &Vec::from_iter(&other.runs));
        pairs.into_iter().map(|(a, b)| (a.started, b.started)).collect::<Vec<_>>()
    };
    if options.paired
        && (!has_pairs || others.iter().any(|other| pairs_of(other).len() < PAIRS_MIN))
    {
        result
            .warnings
            .push("pairs need two runs or more of each variant, equally many".to_owned());
    }
    let order_warning = |other: &Variant| match options.paired {
        true => has_pairs.then(|| warn_of_pair_order(first, other, &pairs_of(other))).flatten(),
        false => warn_of_order(first, other),
    };
    result.warnings.extend(others.iter().filter_map(order_warning));
    result.warnings.extend(warn_of_directions(&result));
    result
}

/// Removes invalid runs from a variant, unless `despite_mismatches` is true. Returns the mismatches
/// between the first remaining run and the others.
fn check_runs(variant: &mut Variant, despite_mismatches: bool) -> Vec<Mismatch> {
    let mut mismatches = Vec::new();
    let is_invalid =
        |run: &Run| matches!(run.facts.outcome, Some(Outcome::Invalid | Outcome::ClientLimited));
    if !despite_mismatches {
        for run in variant.runs.iter().filter(|run| is_invalid(run)) {
            let reason = match run.facts.outcome {
                Some(Outcome::ClientLimited) => "the generator was its limit",
                _ => "the verdict of the run is invalid",
            };
            variant.left_out.push(format!("{}: {reason}", run.label));
        }
        variant.runs.retain(|run| !is_invalid(run));
    }
    if variant.runs.is_empty() {
        mismatches.push(Mismatch {
            what: "runs".to_owned(),
            a: String::new(),
            b: "none is left".to_owned(),
            variant: variant.name.clone(),
            weight: Weight::Refuse,
            why: variant.left_out.first().cloned().unwrap_or("it has no runs".to_owned()),
        });
    }
    mismatches.extend(find_mismatches_between_runs(variant));
    let partial = variant.runs.iter().filter(|run| run.facts.partial);
    variant.notes.extend(partial.map(|run| format!("{} ended before its plan", run.label)));
    mismatches
}

/// Returns the mismatches between the first run of a variant and its other runs. If several runs
/// differ from the first one in the same fact, they are one mismatch, with the value of the first
/// differing run. For example, all runs on a growing chain start at different newest blocks.
fn find_mismatches_between_runs(variant: &Variant) -> Vec<Mismatch> {
    let Some((first, others)) = variant.runs.split_first() else { return Vec::new() };
    let mut counted: Vec<(Mismatch, usize)> = Vec::new();
    for other in others {
        let pair = format!("{}, {} compared with {}", variant.name, other.label, first.label);
        for mismatch in find_mismatches(&first.facts, &other.facts) {
            if mismatch.weight == Weight::Note {
                continue;
            }
            let reported = comparability::report_mismatch(&mismatch, &pair);
            let is_same = |(known, _): &&mut (Mismatch, usize)| {
                known.what == reported.what && known.weight == reported.weight
            };
            match counted.iter_mut().find(is_same) {
                Some((_, runs)) => *runs += 1,
                None => counted.push((reported, 1)),
            }
        }
    }
    let mut mismatches = Vec::new();
    for (mut mismatch, runs) in counted {
        if runs > 1 {
            mismatch.variant += &format!(", and {} more of its runs", runs - 1);
        }
        mismatches.push(mismatch);
    }
    mismatches
}

/// Describes a variant by the facts about its first run.
fn variant_row(variant: &Variant) -> VariantRow {
    let facts = variant.runs.first().map(|run| &run.facts);
    let description = facts.map(|facts| {
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
        described: description.unwrap_or_default(),
    }
}

/// Returns the methods and metrics for which both variants have a value.
fn shared_keys(a: &Variant, b: &Variant) -> Vec<MetricKey> {
    let methods_of =
        |run: &Run| run.values.keys().map(|(method, _)| method.clone()).collect::<Vec<_>>();
    let methods_of_b: BTreeSet<String> = b.runs.iter().flat_map(methods_of).collect();
    // The total over all methods comes first, then the methods in the order of the first variant.
    let mut seen_methods = BTreeSet::new();
    let mut shared_methods: Vec<String> = a.runs.iter().flat_map(methods_of).collect();
    shared_methods
        .retain(|method| methods_of_b.contains(method) && seen_methods.insert(method.clone()));
    shared_methods.sort_by_key(|method| method != TOTAL);
    let has_value = |variant: &Variant, key: &MetricKey| {
        variant.runs.iter().any(|run| run.values.contains_key(key))
    };
    let mut keys = Vec::new();
    for method in shared_methods {
        for (metric, replacement) in METRICS {
            let choices = [Some(metric), replacement].into_iter().flatten();
            let mut choices = choices.map(|metric| (method.clone(), metric));
            keys.extend(choices.find(|key| has_value(a, key) && has_value(b, key)));
        }
    }
    keys
}

/// Smallest number of pairs that can be compared.
const PAIRS_MIN: usize = 2;

/// Returns the pairs of runs with the same number. A run whose partner was left out has no pair.
fn pair_runs<'a>(a: &[&'a Run], b: &[&'a Run]) -> Vec<(&'a Run, &'a Run)> {
    let partner = |run: &Run| b.iter().copied().find(|other| other.number == run.number);
    a.iter().filter_map(|run| Some((*run, partner(run)?))).collect()
}

/// Returns the values of a key, which all of these runs have. The values by second are included
/// only for a single run.
fn values(runs: &[&Run], key: &MetricKey) -> Values {
    let starts: Option<Vec<f64>> = runs.iter().map(|run| run.started).collect();
    let single_run = runs.first().filter(|_| runs.len() == 1);
    let (method, _) = key;
    let seconds = single_run.and_then(|run| run.seconds.get(key));
    let calls: Option<Vec<u64>> = runs.iter().map(|run| run.calls.get(method).copied()).collect();
    let calls = calls.and_then(|calls| calls.into_iter().min());
    let runs = runs.iter().filter_map(|run| run.values.get(key).copied()).collect();
    let (starts, seconds) = (starts.unwrap_or_default(), seconds.cloned().unwrap_or_default());
    Values { runs, starts, seconds, calls }
}

/// Returns the spread of a metric between equal runs (A/A). If a variant has a single run, the
/// spread is the largest difference between any two equal runs. Otherwise it is the difference
/// between the medians of two halves of the equal runs. `None` if there are too few equal runs.
/// `min_runs` is the number of runs of the variant that has fewer.
fn measure_control_spread(
    control_runs: Option<&Variant>,
    key: &MetricKey,
    min_runs: usize,
) -> Option<f64> {
    let equal_runs = control_runs?.runs.iter();
    let equal_runs: Vec<f64> = equal_runs.filter_map(|run| run.values.get(key).copied()).collect();
    let (_, metric) = *key;
    if min_runs < 2 {
        return measure_spread(metric, &equal_runs);
    }
    let median_of_half = |offset| -> Option<f64> {
        median(&equal_runs.iter().skip(offset).step_by(2).copied().collect::<Vec<_>>())
    };
    measure_spread(metric, &[median_of_half(0)?, median_of_half(1)?])
}

/// Returns the medians of a variant over its runs: goodput in total and per core, latency, and CPU
/// time per request.
fn normal_row(variant: &Variant) -> NormalRow {
    let all_keys = variant.runs.iter().flat_map(|run| run.values.keys());
    let methods: BTreeSet<&String> = all_keys.map(|(method, _)| method).collect();
    let has_single_method = methods.len() == 1;
    let median_of = |metrics: &[Metric]| {
        let is_selected = |(method, metric): &MetricKey| {
            (method == TOTAL || has_single_method) && metrics.contains(metric)
        };
        let value = |run: &Run| {
            run.values.iter().find(|(key, _)| is_selected(key)).map(|(_, value)| *value)
        };
        median(&variant.runs.iter().filter_map(value).collect::<Vec<_>>())
    };
    let first_run = variant.runs.first();
    let machine = first_run.and_then(|run| run.facts.machine.as_ref());
    let cores = first_run.and_then(|run| run.cores).filter(|cores| *cores > 0.0);
    let goodput = median_of(&[Metric::Goodput]);
    let costs: Vec<f64> = variant.runs.iter().filter_map(|run| run.cpu_ms_per_request).collect();
    NormalRow {
        variant: variant.name.clone(),
        machine: machine.map_or(String::new(), |machine| {
            [machine.host.trim(), machine.cpu.trim()].join(" ").trim().to_owned()
        }),
        cores,
        goodput,
        goodput_per_core: goodput.zip(cores).map(|(goodput, cores)| goodput / cores),
        p50_ms: median_of(&[Metric::LatencyP50, Metric::ServiceP50]),
        p99_ms: median_of(&[Metric::LatencyP99, Metric::ServiceP99]),
        cpu_ms_per_request: median(&costs),
    }
}

/// Returns the starts of a variant's runs. `None` if a start is unknown, or for a single run.
fn start_times(variant: &Variant) -> Option<Vec<f64>> {
    let starts: Option<Vec<f64>> = variant.runs.iter().map(|run| run.started).collect();
    starts.filter(|starts| starts.len() > 1)
}

/// Returns a warning if one variant runs first in every pair, or if the order is unknown. `starts`
/// has the starts of the two runs of each pair.
fn warn_of_pair_order(
    first: &Variant,
    other: &Variant,
    starts: &[(Option<f64>, Option<f64>)],
) -> Option<String> {
    if starts.len() < PAIRS_MIN {
        return None;
    }
    let known_starts: Option<Vec<(f64, f64)>> = starts.iter().map(|(a, b)| a.zip(*b)).collect();
    let Some(known_starts) = known_starts else {
        return Some(format!(
            "the results do not tell when the runs of {} and {} started, so each interval is wider by \
             the drift that one variant would get if it ran first in every pair",
            first.name, other.name
        ));
    };
    let is_always =
        |is_first: fn(f64, f64) -> bool| known_starts.iter().all(|(a, b)| is_first(*a, *b));
    let (earlier, later) = match (is_always(|a, b| a < b), is_always(|a, b| a > b)) {
        (true, _) => (first, other),
        (_, true) => (other, first),
        _ => return None,
    };
    Some(format!(
        "{} ran before {} in every pair (A B A B): a drift of the machine or the target looks like a \
         difference, so each interval is wider by the drift; reverse the order in every second pair \
         (A B B A)",
        earlier.name, later.name
    ))
}

/// Returns a warning if all runs of one variant started before all runs of the other. `None` if
/// they did not, if a start is unknown, or if a variant has a single run.
fn warn_of_order(first: &Variant, other: &Variant) -> Option<String> {
    let (a, b) = (start_times(first)?, start_times(other)?);
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

/// Returns a warning about metrics whose change has the opposite sign of the difference between
/// their medians.
fn warn_of_directions(result: &CompareResult) -> Option<String> {
    let has_opposite_signs = |difference: &&Difference| {
        let median_difference = difference.b - difference.a;
        // A change below the floor, the smallest relevant change, does not matter.
        let matters = difference.change.abs() > difference.floor;
        matters && difference.interval.is_some() && median_difference * difference.change < 0.0
    };
    let sentences: Vec<String> =
        result.differences.iter().filter(has_opposite_signs).map(difference::sentence).collect();
    (!sentences.is_empty()).then(|| {
        format!(
            "medians and change differ in direction for {}: A and B are medians over runs, while \
             the change is computed from pairs of runs",
            join_first(&sentences, difference::NAMED_MAX, ", ")
        )
    })
}

/// Returns warnings about weak statistical bases of the differences.
fn find_doubts(result: &CompareResult) -> Vec<String> {
    let mut doubts = Vec::new();
    let has_basis = |basis| result.differences.iter().any(|difference| difference.basis == basis);
    if has_basis(Basis::WithinRun) {
        doubts.push(
            "with one run per variant, the means of its seconds are compared instead of the values of \
             whole runs; make several alternating runs of each variant (A B B A) for a reliable verdict"
                .to_owned(),
        );
    }
    if has_basis(Basis::FarApart) {
        doubts.push(
            "with too few runs for a test, only differences far beyond noise count (×3 for medians and \
             rates, ×5 for p95, ×10 for p99)"
                .to_owned(),
        );
    }
    if has_basis(Basis::ValuesOnly) {
        doubts.push(
            "a difference cannot be told if a variant has one value and its seconds are fewer than 20, \
             unknown, or drifting: make at least two runs of each variant, better five"
                .to_owned(),
        );
    }
    if has_basis(Basis::FewRuns) {
        doubts.push(
            "with two or three runs of a variant a normal distribution is assumed; with four or more of \
             each, a rank test is used"
                .to_owned(),
        );
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
