//! Goal: whole comparisons reach the right verdicts. Method: made-up results of `weir load`, and
//! published reports of other tools.

use std::path::{Path, PathBuf};

use lab_model::record::{Class, Iterations};
use lab_model::results::compare::{CompareResult, Metric, Weight};
use lab_model::results::run::{
    Generator, HostFacts, MethodSecond, Row, RunResult, SCHEMA, Second, StageRow, WireFacts,
};
use lab_model::results::{
    Basis, ComparisonVerdict, Fingerprint, Outcome, PlanFacts, Quantiles, TargetFacts, Verdict,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::{Options, compare, merge_runs, variants_at};
use crate::report::{Colour, Report};
use crate::variant::{Variant, run_of_result};

fn row(method: &str, calls: u64, p50_ms: f64) -> Row {
    let times = Quantiles {
        count: calls,
        mean_ms: p50_ms,
        p50_ms,
        p95_ms: 2.0 * p50_ms,
        p99_ms: 3.0 * p50_ms,
        ..Quantiles::default()
    };
    Row {
        method: method.to_owned(),
        calls,
        share: 0.5,
        rate: calls as f64 / 60.0,
        goodput: calls as f64 / 60.0,
        failed_share: 0.0,
        limited_share: 0.0,
        null_share: Some(0.0),
        wrong_type_share: Some(0.0),
        classes: Vec::new(),
        latency: times,
        latency_least: None,
        service: times,
        codes: Vec::new(),
    }
}

/// Returns a made-up run of 60 s with two methods and little noise. Latencies are multiplied by
/// `factor`.
fn result(seed: u64, factor: f64) -> RunResult {
    let mut random = StdRng::seed_from_u64(seed);
    let mut noise = move |size: f64| 1.0 + size * (random.random::<f64>() - 0.5);
    let slow = factor * noise(0.02);
    let methods = ["eth_call", "eth_getLogs"];
    let series = (1..=62).map(|at| Second {
        at: f64::from(at),
        scheduled: 1000,
        started: 1000,
        methods: methods
            .iter()
            .map(|method| MethodSecond {
                method: (*method).to_owned(),
                classes: vec![(Class::Ok, 500)],
                p50_ms: slow * noise(0.1),
                p95_ms: 2.0 * slow * noise(0.2),
                p99_ms: 3.0 * slow * noise(0.4),
                ..MethodSecond::default()
            })
            .collect(),
        ..Second::default()
    });
    let stage = StageRow {
        scenario: "main".to_owned(),
        stage: "steady".to_owned(),
        model: "open".to_owned(),
        from: 0.0,
        to: 62.0,
        level_from: 1000.0,
        level_to: 1000.0,
        iterations: Iterations::default(),
        rate_started: 1000.0,
        overall: row("all", 60_000, slow),
        methods: Vec::new(),
    };
    RunResult {
        schema: SCHEMA.to_owned(),
        weir: "0".to_owned(),
        started: String::new(),
        started_unix: 0.0,
        duration: 62.0,
        partial: false,
        plan: PlanFacts {
            name: "p".to_owned(),
            text: "[target]\nurl = \"http://a\"\n".to_owned(),
            hash: "h".to_owned(),
            seed: 1,
            warmup: 2.0,
            threads: 1,
            http: "1.1".to_owned(),
            connections: "reuse".to_owned(),
            insecure: false,
        },
        target: TargetFacts { family: "ethereum".to_owned(), ..TargetFacts::default() },
        fingerprint: Fingerprint { cores: 4, target_local: true, ..Fingerprint::default() },
        verdict: Verdict { outcome: Outcome::Pass, reasons: Vec::new() },
        thresholds: Vec::new(),
        findings: Vec::new(),
        few_calls: Vec::new(),
        warnings: Vec::new(),
        overall: row("all", 60_000, slow),
        methods: methods.iter().map(|method| row(method, 30_000, slow)).collect(),
        stages: vec![stage],
        series: series.collect(),
        generator: Generator::default(),
        wire: WireFacts::default(),
        host: Vec::new(),
        watched: HostFacts::default(),
        bottleneck: None,
        compared: None,
        subscriptions: Vec::new(),
        transactions: None,
    }
}

fn variant(name: &str, results: &[RunResult]) -> Variant {
    let runs =
        results.iter().enumerate().map(|(place, result)| run_of_result(&place.to_string(), result));
    Variant { name: name.to_owned(), runs: runs.collect(), left_out: Vec::new(), notes: Vec::new() }
}

fn runs(seeds: std::ops::Range<u64>, factor: f64) -> Vec<RunResult> {
    seeds.map(|seed| result(seed, factor)).collect()
}

fn compared(variants: Vec<Variant>, options: &Options) -> CompareResult {
    let mut random = StdRng::seed_from_u64(7);
    compare(variants, options, &mut || random.random())
}

fn verdict(comparison: &CompareResult, method: &str, metric: Metric) -> ComparisonVerdict {
    let is_wanted = |difference: &&lab_model::results::compare::Difference| {
        difference.method == method && difference.metric == metric
    };
    comparison.differences.iter().find(is_wanted).unwrap().verdict
}

#[test]
fn five_runs_of_each_variant_reveal_planted_differences() {
    let variants = vec![variant("old", &runs(0..5, 1.0)), variant("new", &runs(10..15, 0.8))];
    let comparison = compared(variants, &Options::default());
    assert_eq!(verdict(&comparison, "eth_call", Metric::LatencyP50), ComparisonVerdict::Better);
    assert_eq!(verdict(&comparison, "eth_call", Metric::Goodput), ComparisonVerdict::Same);
    assert_eq!(comparison.differences[0].basis, Basis::Runs);
    assert!(
        comparison.conclusions[0].starts_with("new compared with old: better in "),
        "{:?}",
        comparison.conclusions
    );
    let same = compared(
        vec![variant("one", &runs(0..5, 1.0)), variant("two", &runs(20..25, 1.0))],
        &Options::default(),
    );
    assert!(
        same.differences.iter().all(|difference| difference.verdict != ComparisonVerdict::Better)
    );
    assert!(same.conclusions[0].contains("no significant difference"), "{:?}", same.conclusions);
}

/// Returns a run of two methods. eth_getLogs takes a hundred times as long as eth_call, which gets
/// `share` of all calls.
fn mixed(seed: u64, share: f64, factor: f64) -> RunResult {
    let mut mixed = result(seed, factor);
    let slow = mixed.methods[0].latency.p50_ms;
    let calls = (60_000.0 * share) as u64;
    mixed.methods =
        vec![row("eth_call", calls, slow), row("eth_getLogs", 60_000 - calls, 100.0 * slow)];
    let p50_ms = if share > 0.5 { slow } else { 100.0 * slow };
    mixed.overall = row("all", 60_000, p50_ms);
    mixed
}

fn mixed_runs(seeds: std::ops::Range<u64>, share: f64, factor: f64) -> Vec<RunResult> {
    seeds.map(|seed| mixed(seed, share, factor)).collect()
}

/// Each method is 20 % faster, but the slow one gets more of the calls.
#[test]
fn totals_of_another_mix_cannot_be_told() {
    let variants = vec![
        variant("old", &mixed_runs(0..5, 0.9, 1.0)),
        variant("new", &mixed_runs(5..10, 0.4, 0.8)),
    ];
    let comparison = compared(variants, &Options::default());
    let total = comparison.differences.iter().find(|row| row.metric == Metric::LatencyP50).unwrap();
    assert_eq!((total.method.as_str(), total.basis), ("all", Basis::MixDiffers));
    assert!(total.change > 10.0 && total.interval.is_none(), "{total:?}");
    assert!(!comparison.differences.iter().any(|row| row.verdict == ComparisonVerdict::Worse));
    for method in ["eth_call", "eth_getLogs"] {
        assert_eq!(verdict(&comparison, method, Metric::LatencyP50), ComparisonVerdict::Better);
    }
    let expected = "the mix of methods differs (eth_call 90.0 % and 40.0 % of the calls";
    assert!(comparison.conclusions[0].contains(expected), "{:?}", comparison.conclusions);
    // By chance the shares differ a little.
    let variants = vec![
        variant("old", &mixed_runs(0..5, 0.9, 1.0)),
        variant("new", &mixed_runs(5..10, 0.898, 0.8)),
    ];
    let comparison = compared(variants, &Options::default());
    assert_eq!(verdict(&comparison, "all", Metric::LatencyP50), ComparisonVerdict::Better);
    assert!(!comparison.conclusions[0].contains("mix"), "{:?}", comparison.conclusions);
    // A few more slow calls.
    let variants = vec![
        variant("old", &mixed_runs(0..5, 0.99, 1.0)),
        variant("new", &mixed_runs(5..10, 0.98, 0.8)),
    ];
    let comparison = compared(variants, &Options::default());
    assert_eq!(verdict(&comparison, "all", Metric::LatencyP99), ComparisonVerdict::CannotTell);
}

#[test]
fn a_method_that_only_one_variant_calls_is_named() {
    let mut without = runs(5..10, 1.0);
    for run in &mut without {
        run.methods[1] = row("eth_getBalance", 30_000, 1.0);
    }
    let variants = vec![variant("old", &runs(0..5, 1.0)), variant("new", &without)];
    let comparison = compared(variants, &Options::default());
    let expected = "only old calls eth_getLogs; only new calls eth_getBalance";
    assert!(comparison.conclusions[0].contains(expected), "{:?}", comparison.conclusions);
    assert_eq!(verdict(&comparison, "all", Metric::LatencyP50), ComparisonVerdict::CannotTell);
}

/// With few pairs, a large change is not called "no significant difference".
#[test]
fn a_large_change_that_cannot_be_told_is_named_with_the_reason() {
    let with_medians = |name: &str, medians: [f64; 2]| {
        let mut all = runs(0..2, 1.0);
        for (run, median) in all.iter_mut().zip(medians) {
            run.methods[0].latency.p50_ms = median;
        }
        variant(name, &all)
    };
    let paired = Options { paired: true, ..Options::default() };
    let noisy = vec![with_medians("a", [10.0, 12.0]), with_medians("b", [13.0, 25.0])];
    let comparison = compared(noisy, &paired);
    let conclusion = &comparison.conclusions[0];
    let expected = "b compared with a: cannot tell: eth_call latency p50 (+64.";
    assert!(conclusion.starts_with(expected), "{conclusion}");
    assert!(
        conclusion.contains("but 2 pairs of runs cannot tell that from noise or a drift"),
        "{conclusion}"
    );
    // No noise explains a factor of 89 in all runs.
    let far = vec![with_medians("a", [89.0, 91.0]), with_medians("b", [1.0, 1.4])];
    let comparison = compared(far, &paired);
    assert_eq!(verdict(&comparison, "eth_call", Metric::LatencyP50), ComparisonVerdict::Better);
    assert!(comparison.conclusions[0].contains("better in eth_call latency p50 (÷"));
    let overlapping = vec![with_medians("a", [89.0, 2.0]), with_medians("b", [1.0, 1.4])];
    let comparison = compared(overlapping, &paired);
    assert_eq!(verdict(&comparison, "eth_call", Metric::LatencyP50), ComparisonVerdict::CannotTell);
}

/// The answer comes before the tables, and many rows without an answer are one line.
#[test]
fn the_terminal_begins_with_the_answer_and_folds_undecided_rows() {
    let many = |seeds: std::ops::Range<u64>, factor: f64| {
        let mut all = runs(seeds, factor);
        for (index, run) in all.iter_mut().enumerate() {
            let noise = if index == 0 { 1.0 } else { 3.0 };
            run.methods =
                (0..12).map(|n| row(&format!("method{n}"), 30_000, factor * noise)).collect();
            run.methods.push(row("eth_call", 30_000, factor));
        }
        all
    };
    let variants = vec![variant("old", &many(0..2, 1.0)), variant("new", &many(2..4, 0.5))];
    let comparison = compared(variants, &Options::default());
    let text = Report::compare(&comparison).text(Colour::Plain);
    let (answer, table) =
        (text.find("new compared with old").unwrap(), text.find("B = new").unwrap());
    assert!(answer < table, "{text}");
    assert!(
        text.contains("figures cannot be told, and are listed by --markdown: method0, method1, "),
        "{text}"
    );
    assert!(!text.contains("cannot tell  "), "{text}");
    assert!(text.lines().count() < 75, "{text}");
    // Files keep every row.
    assert!(Report::compare(&comparison).markdown().matches("cannot tell").count() >= 36);
}

#[test]
fn a_comparison_of_single_runs_says_so() {
    let variants = vec![variant("old", &runs(0..1, 1.0)), variant("new", &runs(1..2, 1.5))];
    let comparison = compared(variants, &Options::default());
    assert_eq!(verdict(&comparison, "eth_call", Metric::LatencyP50), ComparisonVerdict::Worse);
    // The total has no percentiles by second.
    assert_eq!(verdict(&comparison, "all", Metric::LatencyP50), ComparisonVerdict::CannotTell);
    assert!(comparison.conclusions[0].contains("one run each"));
    let near = vec![variant("old", &runs(0..1, 1.0)), variant("new", &runs(1..2, 1.05))];
    let near = compared(near, &Options::default());
    assert_ne!(
        verdict(&near, "eth_call", Metric::LatencyP50),
        ComparisonVerdict::Worse,
        "5 % of one run is nothing"
    );
    // With a measured spread of equal runs, a smaller difference counts.
    let same = Some(variant("same", &runs(30..34, 1.0)));
    let near = vec![variant("old", &runs(0..1, 1.0)), variant("new", &runs(1..2, 1.1))];
    let near = compared(near, &Options { control_runs: same, ..Options::default() });
    assert_eq!(verdict(&near, "eth_call", Metric::LatencyP50), ComparisonVerdict::Worse);
}

#[test]
fn runs_of_different_loads_are_refused() {
    let mut other = result(1, 1.0);
    other.target.family = "bitcoin".to_owned();
    let variants =
        || vec![variant("a", &runs(0..1, 1.0)), variant("b", std::slice::from_ref(&other))];
    let comparison = compared(variants(), &Options::default());
    assert!(comparison.differences.is_empty());
    assert_eq!(comparison.mismatches[0].weight, Weight::Refuse);
    assert!(
        !compared(variants(), &Options { despite_mismatches: true, ..Options::default() })
            .differences
            .is_empty()
    );
}

/// On a growing chain, each run begins at another head.
#[test]
fn runs_that_differ_in_the_same_fact_are_one_mismatch() {
    let mut growing = runs(0..4, 1.0);
    for (run, head) in growing.iter_mut().zip([1_000, 5_000, 9_000, 13_000]) {
        run.target.head_start = Some(head);
    }
    let comparison =
        compared(vec![variant("a", &growing), variant("b", &growing)], &Options::default());
    let rows = comparison.mismatches.iter().map(|row| (row.b.as_str(), row.variant.as_str()));
    assert_eq!(
        rows.collect::<Vec<_>>(),
        [
            ("5000", "a, 1 compared with 0, and 2 more of its runs"),
            ("5000", "b, 1 compared with 0, and 2 more of its runs"),
        ]
    );
}

/// All runs of one variant started before those of the other, so a drift looks like a difference.
#[test]
fn runs_that_do_not_alternate_cause_a_warning() {
    let variants = |starts: [f64; 4]| {
        let mut all = runs(0..4, 1.0);
        for (run, started) in all.iter_mut().zip(starts) {
            run.started_unix = started;
        }
        vec![variant("old", &all[..2]), variant("new", &all[2..])]
    };
    let warned = |starts| {
        let comparison = compared(variants(starts), &Options::default());
        let expected = "all runs of old were started before those of new";
        comparison.warnings.iter().any(|warning| warning.starts_with(expected))
    };
    assert!(warned([1.0, 2.0, 3.0, 4.0]));
    assert!(!warned([1.0, 4.0, 2.0, 3.0]), "A B B A");
    assert!(!warned([0.0; 4]), "not known");
}

/// In pairs, one variant must not always run first.
#[test]
fn pairs_in_one_order_cause_a_warning() {
    let warnings = |starts: [f64; 4]| {
        let mut all = runs(0..4, 1.0);
        for (run, started) in all.iter_mut().zip(starts) {
            run.started_unix = started;
        }
        let variants = vec![variant("old", &all[..2]), variant("new", &all[2..])];
        compared(variants, &Options { paired: true, ..Options::default() }).warnings.join("; ")
    };
    let one_order = warnings([1.0, 3.0, 2.0, 4.0]);
    assert!(one_order.contains("old ran before new in every pair (A B A B)"), "{one_order}");
    assert!(one_order.contains("(A B B A)"), "{one_order}");
    let reversed = warnings([1.0, 4.0, 2.0, 3.0]);
    assert!(!reversed.contains("in every pair"), "{reversed}");
    let unknown = warnings([0.0; 4]);
    assert!(unknown.contains("do not tell when the runs of old and new started"), "{unknown}");
}

/// Each variant loses another run, so three of five pairs are left. The pairs of the machine's slow
/// hours must not be compared with those of its fast hours.
#[test]
fn runs_keep_their_partners_when_others_are_left_out() {
    let with_medians = |name: &str, medians: [f64; 5], lost: usize| {
        let mut all = runs(0..5, 1.0);
        for (run, median) in all.iter_mut().zip(medians) {
            run.methods[0].latency.p50_ms = median;
        }
        all[lost].verdict.outcome = Outcome::Invalid;
        variant(name, &all)
    };
    let variants = || {
        vec![
            with_medians("a", [10.0, 20.0, 40.0, 80.0, 160.0], 0),
            with_medians("b", [11.0, 22.1, 44.0, 88.1, 176.0], 4),
        ]
    };
    let comparison = compared(variants(), &Options { paired: true, ..Options::default() });
    let mut differences = comparison.differences.iter();
    let median = differences
        .find(|row| row.method == "eth_call" && row.metric == Metric::LatencyP50)
        .unwrap();
    assert_eq!((median.a_count, median.b_count, median.basis), (3, 3, Basis::PairedRuns));
    assert!((median.change - 0.1).abs() < 0.01, "{median:?}");
    assert!(!comparison.warnings.iter().any(|warning| warning.starts_with("pairs need")));
    // A single pair is left.
    let mut few = variants();
    few.iter_mut().for_each(|variant| variant.runs.truncate(3));
    few[1].runs[1].facts.outcome = Some(Outcome::Invalid);
    let comparison = compared(few, &Options { paired: true, ..Options::default() });
    assert!(comparison.warnings.iter().any(|warning| warning.starts_with("pairs need")));
    assert!(comparison.differences.iter().all(|row| row.basis != Basis::PairedRuns));
}

/// The medians rise while the paired change falls, which needs an explanation.
#[test]
fn medians_that_contradict_the_change_are_explained() {
    let variant_with_medians = |name: &str, values: [f64; 6]| {
        let mut all = runs(0..6, 1.0);
        for (run, value) in all.iter_mut().zip(values) {
            run.methods[0].latency.p50_ms = value;
        }
        variant(name, &all)
    };
    let variants = vec![
        variant_with_medians("a", [10.0, 10.0, 12.0, 12.0, 14.0, 14.0]),
        variant_with_medians("b", [1.0, 2.0, 13.0, 13.0, 15.0, 15.0]),
    ];
    let comparison = compared(variants, &Options { paired: true, ..Options::default() });
    let mut differences = comparison.differences.iter();
    let falling = differences.find(|difference| difference.change < -0.3).unwrap();
    assert!(falling.b > falling.a, "{falling:?}");
    let expected = "medians and change differ in direction for eth_call";
    assert!(
        comparison.warnings.iter().any(|warning| warning.starts_with(expected)),
        "{:?}",
        comparison.warnings
    );
}

#[test]
fn runs_that_the_generator_limited_are_left_out() {
    let mut all = runs(0..5, 1.0);
    all[2].verdict.outcome = Outcome::ClientLimited;
    let comparison =
        compared(vec![variant("a", &all), variant("b", &runs(5..9, 1.0))], &Options::default());
    assert_eq!(comparison.variants[0].runs, 4);
    assert_eq!(comparison.variants[0].left_out, ["2: the generator was its limit"]);
    let limited = &all[2..3];
    let none = compared(vec![variant("a", limited), variant("b", &all[..1])], &Options::default());
    assert_eq!(none.mismatches[0].weight, Weight::Refuse);
    assert!(none.differences.is_empty());
}

/// Compares results of three machines, one of which has a run that is left out.
pub(crate) fn machines() -> CompareResult {
    let machine = |cores: usize| {
        let mut machine_result = result(1, 1.0);
        machine_result.fingerprint.cores = cores;
        machine_result.fingerprint.cpu = format!("{cores} cores");
        machine_result
    };
    let mut limited = machine(8);
    limited.verdict.outcome = Outcome::ClientLimited;
    let variants = [vec![machine(2)], vec![machine(4)], vec![machine(8), limited]];
    let names = ["2", "4", "8"].iter().zip(variants);
    compared(names.map(|(name, runs)| variant(name, &runs)).collect(), &Options::default())
}

#[test]
fn three_machines_are_set_side_by_side() {
    let comparison = machines();
    let per_core: Vec<f64> =
        comparison.normalised.iter().map(|row| row.goodput_per_core.unwrap()).collect();
    assert_eq!(per_core, [500.0, 250.0, 125.0]);
    assert!(
        Report::compare(&comparison).text(Colour::Plain).contains("Machines differ"),
        "{}",
        Report::compare(&comparison).text(Colour::Plain)
    );
    assert!(Report::compare(&comparison).markdown().contains("## Per core and per request"));
}

fn reports(part: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/erigon-perf");
    let all = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> =
        all.filter(|path| path.to_string_lossy().contains(part)).collect();
    paths.sort();
    paths
}

/// In this report silk's median at 1000/s is about a third of rpcdaemon's, once silk's caches are
/// warm.
#[test]
fn a_published_report_is_judged_by_its_repetitions() {
    let variants = variants_at(&reports("eth_getBalance")[0]).unwrap();
    assert_eq!(variants.len(), 2);
    let comparison = compared(variants, &Options::default());
    let key = "eth_getBalance at 1000/s";
    let mut differences = comparison.differences.iter();
    let difference = differences.find(|difference| difference.method == key).unwrap();
    assert_eq!(difference.basis, Basis::Runs);
    assert!(difference.b_count < difference.a_count, "silk's cold repetition is left out");
    assert!(
        Report::compare(&comparison).text(Colour::Plain).contains("cold"),
        "{}",
        Report::compare(&comparison).text(Colour::Plain)
    );
}

/// In a run of 20 s, the 21st point holds the calls that ended slightly late. It is not a second of
/// the run.
#[test]
fn an_incomplete_second_is_not_compared() {
    let mut run_result = result(1, 1.0);
    run_result.plan.warmup = 0.0;
    run_result.series.truncate(21);
    run_result.series[20].at = 20.02;
    run_result.series[20].methods[0].classes = vec![(Class::Ok, 1)];
    run_result.stages[0].to = 20.0;
    let run = run_of_result("one", &run_result);
    let goodput = &run.seconds[&("eth_call".to_owned(), Metric::Goodput)];
    assert_eq!(*goodput, [500.0; 20]);
}

#[test]
fn folders_and_lists_become_variants() {
    let folder = tempfile::tempdir().unwrap();
    for seed in 0..3_u64 {
        let run_folder = folder.path().join(format!("run{seed}"));
        std::fs::create_dir(&run_folder).unwrap();
        let json = serde_json::to_string(&result(seed, 1.0)).unwrap();
        std::fs::write(run_folder.join("result.json"), json).unwrap();
    }
    let all = variants_at(folder.path()).unwrap();
    assert_eq!((all.len(), all[0].runs.len()), (1, 3));
    let single_run = variants_at(&folder.path().join("run1")).unwrap();
    assert_eq!((single_run[0].name.as_str(), single_run[0].runs.len()), ("run1", 1));
    let two_paths = [folder.path().join("run0"), folder.path().join("run2/result.json")];
    let variant = merge_runs("mine", &two_paths).unwrap();
    assert_eq!((variant.name.as_str(), variant.runs.len()), ("mine", 2));
    assert_eq!(variant.runs[0].values.len(), 30);
    let empty = folder.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    assert!(variants_at(&empty).unwrap_err().to_string().contains("no result.json"));
}

#[test]
fn texts_of_results_are_escaped_in_markdown() {
    let mut all = runs(0..1, 1.0);
    all[0].target.client = Some("<b>|x|</b> `y`\n# z".to_owned());
    let comparison =
        compared(vec![variant("a|b", &all), variant("a|b", &runs(1..2, 1.0))], &Options::default());
    assert_eq!(comparison.variants[1].name, "a|b (2)");
    let page = Report::compare(&comparison).markdown();
    assert!(page.contains(r"&lt;b\>\|x\|&lt;/b\> \`y\` \# z"), "{page}");
    let json = serde_json::to_string(&comparison).unwrap();
    let again: CompareResult = serde_json::from_str(&json).unwrap();
    assert_eq!((again.variants, again.conclusions), (comparison.variants, comparison.conclusions));
}
