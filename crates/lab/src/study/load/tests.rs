//! Goal: planted differences are found, equal variants are not called different, unusable rounds
//! are left out, and stored runs are read back. Method: runs with invented values. A random factor
//! applies to all variants of a round, and each value has noise of its own.

use lab_model::results::compare::Metric;
use lab_model::results::load_study::{
    AccessLogCounts, CpuLimit, CpuLimitKind, EndReason, LoadStudyResult, RatioVerdict, RunCounts,
};
use lab_model::results::{ComparisonVerdict, Outcome, schema};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::Value;
use tempfile::TempDir;

use super::analyse::{analyse, progress};
use super::file::{LoadStudy, read};
use super::finished::{FinishedRun, RunFacts, RunId};
use super::store::Store;
use crate::analysis::comparability::Tool;
use crate::report::Colour;
use crate::study::StudyFault;
use crate::study::load::{checks, report};
use crate::variant::Run;

const METHODS: [&str; 3] = ["eth_call", "eth_getLogs", "eth_chainId"];

/// Returns a study of three variants under two plans.
pub(crate) fn study(folder: &TempDir, keys: &str) -> LoadStudy {
    let plan = "[[scenario]]\nmix = 'x'\nmodel = 'closed'\nstages = [{ duration = '10s', workers = 1 }]\n\
                [[mix.x.calls]]\nmethod = 'eth_chainId'\n";
    for name in ["reads.toml", "logs.toml"] {
        std::fs::write(folder.path().join(name), plan).unwrap();
    }
    let text = format!(
        "study = 'load'\nname = 'gateways'\nquestion = 'Which <gateway> is faster?'\n\
         plans = ['reads.toml', 'logs.toml']\n{keys}\n\
         [[variant]]\nname = 'direct'\ntarget = 'http://127.0.0.1:1'\n\
         [[variant]]\nname = 'slow'\ntarget = 'http://127.0.0.1:2'\n\
         [[variant]]\nname = 'cached'\ntarget = 'http://127.0.0.1:3'\n"
    );
    read(&text, &folder.path().join("s.toml").display().to_string(), &[]).unwrap()
}

/// Width of the noise of a quiet target, as a share.
const NOISE: f64 = 0.02;
/// Width of the noise of a noisy target, as a share.
const HIGH_NOISE: f64 = 0.3;
/// Share of the runs of a noisy target in which a method takes twice as long.
const OUTLIER_SHARE: f64 = 0.05;

/// Returns a run whose three methods have median latencies around 10, 20 and 30 ms. All latencies
/// are multiplied by `level`. The latency of the first method is also multiplied by `factor`.
/// `width` is the width of the noise.
fn run(random: &mut StdRng, level: f64, factor: f64, width: f64) -> Run {
    let mut run = Run::new("round", Tool::Weir);
    run.facts.outcome = Some(Outcome::Measured);
    for (index, method) in METHODS.iter().enumerate() {
        let noise = 1.0 + width * (random.random::<f64>() - 0.5);
        let is_outlier = width >= HIGH_NOISE && random.random::<f64>() < OUTLIER_SHARE;
        let noise = if is_outlier { 2.0 * noise } else { noise };
        let p50 = 10.0 * (index + 1) as f64 * level * noise;
        let p50 = if index == 0 { p50 * factor } else { p50 };
        run.put(method, Metric::LatencyP50, p50);
        run.put(method, Metric::LatencyP95, 2.0 * p50);
        run.put(method, Metric::LatencyP99, 3.0 * p50);
        run.put(method, Metric::Goodput, 1000.0 / p50);
        run.put(method, Metric::FailedShare, 0.0);
        run.calls.insert((*method).to_owned(), 1_000);
    }
    run.put("all", Metric::LatencyP50, 20.0 * level);
    run.put("all", Metric::Goodput, 100.0 / level);
    run
}

/// Returns the runs of a number of rounds. `factors` has a factor for each variant, by which its
/// first method is slower. The last factor is that of the A/A control.
pub(crate) fn runs(
    study: &LoadStudy,
    rounds: usize,
    factors: [f64; 4],
    seed: u64,
) -> Vec<FinishedRun> {
    runs_with_noise(study, rounds, factors, NOISE, seed)
}

fn runs_with_noise(
    study: &LoadStudy,
    rounds: usize,
    factors: [f64; 4],
    width: f64,
    seed: u64,
) -> Vec<FinishedRun> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut runs = Vec::new();
    for round in 0..rounds {
        let level = 1.0 + 0.3 * random.random::<f64>();
        for plan in 0..study.plans.len() {
            for variant in study.order(round) {
                let facts = RunFacts {
                    started_unix: 1_700_000_000.0 + 20.0 * runs.len() as f64,
                    seconds: 13.0,
                    calibration_ms: 5.0 + 0.01 * round as f64,
                    fault: None,
                    counts: None,
                };
                let run = Some(run(&mut random, level, factors[variant], width));
                runs.push(FinishedRun { id: RunId { round, plan, variant }, facts, run });
            }
        }
    }
    runs
}

/// Analyses a study, and checks that the result fits the published schema.
pub(crate) fn analysed(study: &LoadStudy, runs: &[FinishedRun]) -> LoadStudyResult {
    let mut random = StdRng::seed_from_u64(1);
    let result = analyse(study, runs, EndReason::RoundsMax, &mut || random.random());
    let schema: Value = serde_json::from_str(&schema::closed::<LoadStudyResult>()).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let value = serde_json::to_value(&result).unwrap();
    let faults: Vec<String> =
        validator.iter_errors(&value).map(|fault| fault.to_string()).collect();
    assert!(faults.is_empty(), "{faults:#?}");
    result
}

/// Returns the verdicts about the median latency of a method.
fn verdicts(
    result: &LoadStudyResult,
    plan: usize,
    variant: &str,
    method: &str,
) -> Vec<ComparisonVerdict> {
    let differences = result.plans[plan].comparison.differences.iter();
    let of_method = differences.filter(|row| row.variant == variant && row.method == method);
    of_method.filter(|row| row.metric == Metric::LatencyP50).map(|row| row.verdict).collect()
}

/// Returns the result of a study in which the variant "slow" is slower and "cached" is faster.
pub(crate) fn planted_difference() -> LoadStudyResult {
    let folder = TempDir::new().unwrap();
    let study = study(&folder, "");
    analysed(&study, &runs(&study, 8, [1.0, 1.3, 0.5, 1.0], 1))
}

#[test]
fn a_planted_difference_is_found_in_its_method_only() {
    let result = planted_difference();
    for plan in 0..2 {
        assert_eq!(result.plans[plan].rounds, 8);
        assert_eq!(verdicts(&result, plan, "slow", "eth_call"), [ComparisonVerdict::Worse]);
        assert_eq!(verdicts(&result, plan, "cached", "eth_call"), [ComparisonVerdict::Better]);
        for method in &METHODS[1..] {
            let found = verdicts(&result, plan, "slow", method);
            assert!(
                !found.contains(&ComparisonVerdict::Worse)
                    && !found.contains(&ComparisonVerdict::Better),
                "{found:?}"
            );
        }
    }
    let change = |variant: &str| {
        let differences = &result.plans[0].comparison.differences;
        let row = differences
            .iter()
            .find(|row| row.variant == variant && row.method == "eth_call")
            .unwrap();
        (row.change, row.interval.unwrap())
    };
    let (slower, (low, high)) = change("slow");
    assert!((0.27..0.33).contains(&slower) && low < 0.3 && high > 0.3, "{slower} {low} {high}");
    let text = result.conclusions.join("\n");
    assert!(text.contains("reads: slow compared with direct: worse in eth_call"), "{text}");
    assert!(text.contains("direct does not differ from itself"), "{text}");
}

/// The answer comes with the number of rounds, if there are too few.
#[test]
fn a_study_of_too_few_rounds_says_so_in_its_answer() {
    let folder = TempDir::new().unwrap();
    let study = study(&folder, "");
    let result = analysed(&study, &runs(&study, 2, [1.0, 1.0 / 89.0, 1.0, 1.0], 3));
    let answer = &result.conclusions[0];
    assert!(answer.contains("slow compared with direct: better in "), "{answer}");
    assert!(answer.contains("÷"), "{answer}");
    let min = *study.file.rounds_min;
    let expected = format!("; this is from 2 of at least {min} rounds (the study was ended by ");
    assert!(answer.contains(&expected), "{answer}");
    let one = analysed(&study, &runs(&study, 1, [1.0, 1.0, 1.0, 1.2], 3));
    let control = "A/A control: cannot tell whether direct differs from itself in ";
    assert!(one.conclusions.join("\n").contains(control), "{:?}", one.conclusions);
    let enough = analysed(&study, &runs(&study, min, [1.0, 1.3, 1.0, 1.0], 3));
    assert!(!enough.conclusions[0].contains("this is from"), "{:?}", enough.conclusions);
}

/// A study with the smallest number of rounds must find most planted differences of 10 % and more.
/// The test analyses twenty studies for each size of the difference.
#[test]
fn planted_differences_are_found_and_their_intervals_cover_them() {
    let folder = TempDir::new().unwrap();
    let study = study(&folder, "");
    let mut covered = 0;
    for (planted, found_min) in [(0.05, 0), (0.1, 15), (0.3, 20)] {
        let mut found = 0;
        for seed in 0..20 {
            let factors = [1.0, 1.0 + planted, 1.0, 1.0];
            let result = analysed(&study, &runs(&study, *study.file.rounds_min, factors, seed));
            let difference = result.plans[0].comparison.differences.iter().find(|difference| {
                difference.variant == "slow"
                    && difference.method == "eth_call"
                    && difference.metric == Metric::LatencyP50
            });
            let difference = difference.unwrap();
            found += usize::from(difference.verdict == ComparisonVerdict::Worse);
            let (low, high) = difference.interval.unwrap();
            covered += usize::from(low <= planted && planted <= high);
        }
        println!("{planted}: found in {found} of 20 studies");
        assert!(found >= found_min, "{planted}: found in {found} of 20 studies");
    }
    println!("{covered} of 60 intervals cover the planted difference");
    // 93 % of 60.
    assert!(covered >= 56, "{covered} of 60 intervals cover the planted difference");
}

#[test]
fn at_most_two_of_forty_studies_of_equal_variants_report_a_difference() {
    let folder = TempDir::new().unwrap();
    let study = study(&folder, "");
    for width in [NOISE, HIGH_NOISE] {
        let mut called = 0;
        for seed in 0..40 {
            let result = analysed(&study, &runs_with_noise(&study, 6, [1.0; 4], width, seed));
            let differs = |row: &lab_model::results::compare::Difference| {
                matches!(row.verdict, ComparisonVerdict::Better | ComparisonVerdict::Worse)
            };
            let plan = &result.plans[0];
            let differences = plan.comparison.differences.iter();
            let control = plan.control.iter().flat_map(|control| &control.differences);
            called += usize::from(differences.chain(control).any(differs));
        }
        assert!(called <= 2, "noise {width}: {called} of 40 studies call a difference");
    }
}

#[test]
fn a_control_that_differs_raises_the_floor_and_is_reported() {
    let folder = TempDir::new().unwrap();
    let study = study(&folder, "");
    let result = analysed(&study, &runs(&study, 8, [1.0, 1.2, 1.0, 1.3], 3));
    let text = result.conclusions.join("\n");
    assert!(text.contains("A/A control: direct differs from itself in eth_call"), "{text}");
    assert_eq!(
        verdicts(&result, 0, "slow", "eth_call"),
        [ComparisonVerdict::CannotTell],
        "below the A/A difference"
    );
    let warns = result.warnings.iter().any(|warning| warning.contains("the A/A control differs"));
    assert!(warns, "{text}");
}

#[test]
fn a_round_with_an_unusable_run_is_left_out_for_all() {
    let folder = TempDir::new().unwrap();
    let study = study(&folder, "");
    let mut runs = runs(&study, 7, [1.0; 4], 1);
    let index =
        runs.iter().position(|run| run.id == RunId { round: 2, plan: 0, variant: 1 }).unwrap();
    runs[index].run.as_mut().unwrap().facts.outcome = Some(Outcome::ClientLimited);
    let index =
        runs.iter().position(|run| run.id == RunId { round: 6, plan: 1, variant: 0 }).unwrap();
    runs[index].run = None;
    runs[index].facts.fault = Some("connection refused".to_owned());
    let result = analysed(&study, &runs);
    assert_eq!((result.plans[0].rounds, result.plans[1].rounds), (6, 6));
    assert_eq!(result.plans[0].left_out, ["round 3: slow: the load generator was its limit"]);
    assert_eq!(result.plans[1].left_out, ["round 7: direct: connection refused"]);
    assert!(result.plans[0].comparison.variants.iter().all(|variant| variant.runs == 6));
    let state = progress(&study, &runs, &mut || 4);
    assert_eq!(
        (state.progress.rounds, state.progress.usable, state.progress.failed_rounds),
        (7, 6, 1)
    );
    // Rounds with the same variant and reason share a line.
    for (round, variant) in [(0, 1), (4, 0)] {
        let id = RunId { round, plan: 0, variant };
        let run = runs.iter_mut().find(|run| run.id == id).unwrap();
        run.run.as_mut().unwrap().facts.outcome = Some(Outcome::ClientLimited);
    }
    let result = analysed(&study, &runs);
    let expected = [
        "rounds 1, 3: slow: the load generator was its limit",
        "round 5: direct: the load generator was its limit",
    ];
    assert_eq!(result.plans[0].left_out, expected);
}

#[test]
fn the_precision_is_reached_with_more_rounds() {
    let folder = TempDir::new().unwrap();
    let study = study(&folder, "precision = 0.02");
    let state = |rounds| {
        let mut random = StdRng::seed_from_u64(1);
        progress(&study, &runs(&study, rounds, [1.0; 4], 5), &mut || random.random())
    };
    let (few, many) = (state(2), state(20));
    assert!(!few.progress.precise && many.progress.precise, "{few:?} {many:?}");
    assert!(many.precision.unwrap() < few.precision.unwrap());
}

/// Stores runs as failed runs, which have no result files.
fn store_rounds(store: &Store, study: &LoadStudy, runs: &[FinishedRun]) -> Result<(), StudyFault> {
    for run in runs {
        let faulty = FinishedRun {
            facts: RunFacts { fault: Some("x".to_owned()), ..run.facts.clone() },
            ..run.clone()
        };
        store.write_run(study, &faulty, None, &mut |_, _, _, _| Ok(()))?;
    }
    Ok(())
}

#[test]
fn complete_rounds_are_read_and_an_incomplete_round_is_removed() {
    let folder = TempDir::new().unwrap();
    let study = study(&folder, "");
    let out = folder.path().join("out");
    let all = runs(&study, 3, [1.0; 4], 1);
    let store = Store::open(&out, &study).unwrap();
    let fault = Store::open(&out, &study).unwrap_err().to_string();
    assert!(fault.contains("another weir runs a study"), "{fault}");
    store_rounds(&store, &study, &all[..all.len() - 1]).unwrap();
    drop(store);
    let store = Store::open(&out, &study).unwrap();
    let read_runs = store.load_complete_rounds(&study).unwrap();
    let id_of = |run: &FinishedRun| run.id;
    let complete: Vec<_> = all.iter().filter(|run| run.id.round < 2).map(id_of).collect();
    assert_eq!(read_runs.iter().map(id_of).collect::<Vec<_>>(), complete);
    assert!(!out.join("runs/direct/reads/round-003").exists(), "it belongs to no complete round");
    assert!(out.join("runs/direct/reads/round-002/run.json").exists());
    drop(store);
    // A study with other limits can use the folder. Another study cannot.
    let longer = self::study(&folder, "rounds_max = 80");
    assert_eq!(
        Store::open(&out, &longer).unwrap().load_complete_rounds(&longer).unwrap().len(),
        complete.len()
    );
    let other = self::study(&folder, "order = 'latin-square'");
    let fault = Store::open(&out, &other).unwrap_err().to_string();
    assert!(fault.contains("it has runs of the study \"gateways\" with other variants"), "{fault}");
}

/// A study may be killed while it removes the runs of an incomplete round.
#[test]
fn a_partly_removed_run_does_not_count() {
    let folder = TempDir::new().unwrap();
    let study = study(&folder, "");
    let out = folder.path().join("out");
    let all = runs(&study, 1, [1.0; 4], 1);
    let store = Store::open(&out, &study).unwrap();
    store_rounds(&store, &study, &all).unwrap();
    let removed = out.join("runs/direct/reads/round-001");
    std::fs::remove_file(removed.join("run.json")).unwrap();
    std::fs::write(removed.join("result.json"), "{").unwrap();
    assert!(store.load_complete_rounds(&study).unwrap().is_empty());
    assert!(!removed.exists());
    store_rounds(&store, &study, &all).unwrap();
    assert_eq!(store.load_complete_rounds(&study).unwrap().len(), all.len());
}

/// A killed study leaves its finished runs, and perhaps a part of the next run.
#[test]
fn a_study_that_is_killed_after_any_run_counts_each_round_once() {
    let folder = TempDir::new().unwrap();
    let study = study(&folder, "");
    let all = runs(&study, 3, [1.0; 4], 1);
    assert!(all.len() > 20);
    let id_of = |run: &FinishedRun| run.id;
    let ids: Vec<_> = all.iter().map(id_of).collect();
    for cut in 0..=all.len() {
        let out = folder.path().join(format!("out-{cut}"));
        let store = Store::open(&out, &study).unwrap();
        store_rounds(&store, &study, &all[..cut]).unwrap();
        drop(store);
        // The next run is being written.
        let unfinished = out.join("unfinished-run");
        std::fs::create_dir(&unfinished).unwrap();
        std::fs::write(unfinished.join("result.json"), "{").unwrap();
        std::fs::write(unfinished.join("run.part"), "{").unwrap();

        let store = Store::open(&out, &study).unwrap();
        let read_runs = store.load_complete_rounds(&study).unwrap();
        let complete = cut / (all.len() / 3) * (all.len() / 3);
        assert_eq!(read_runs.iter().map(id_of).collect::<Vec<_>>(), ids[..complete], "cut {cut}");
        store_rounds(&store, &study, &all[complete..]).unwrap();
        drop(store);
        let store = Store::open(&out, &study).unwrap();
        let finished = store.load_complete_rounds(&study).unwrap();
        assert_eq!(finished.iter().map(id_of).collect::<Vec<_>>(), ids, "cut {cut}");
        let starts = |runs: &[FinishedRun]| -> Vec<f64> {
            runs.iter().map(|run| run.facts.started_unix).collect()
        };
        assert_eq!(starts(&finished), starts(&all), "cut {cut}");
        assert_eq!(analysed(&study, &finished).rounds.len(), 3, "cut {cut}");
        std::fs::remove_dir_all(&out).unwrap();
    }
}

#[test]
fn the_published_schema_refuses_a_wrong_word() {
    expect_test::expect_file!["../../../../../docs/study-load.schema.json"]
        .assert_eq(&schema::closed::<LoadStudyResult>());
    let folder = TempDir::new().unwrap();
    let study = study(&folder, "");
    let result = analysed(&study, &runs(&study, 2, [1.0; 4], 1));
    let mut value = serde_json::to_value(&result).unwrap();
    value["end"] = "sometime".into();
    let schema: Value = serde_json::from_str(&schema::closed::<LoadStudyResult>()).unwrap();
    assert!(!jsonschema::validator_for(&schema).unwrap().is_valid(&value));
}

/// Sets the counts of every run to 1,000 requests in 10 s, and the number of requests in its access
/// log to `lines`.
fn with_counts(mut runs: Vec<FinishedRun>, lines: u64, kind: CpuLimitKind) -> Vec<FinishedRun> {
    for run in &mut runs {
        run.facts.counts = Some(RunCounts {
            seconds: 10.0,
            requests: 1_000,
            limited: 200,
            goodput: 80.0,
            server_cpu: Some(0.5),
            handshakes_full: 10,
            handshakes_resumed: 990,
            cpu_limit: Some(CpuLimit { cpus: 2.0, kind }),
            access_log: Some(AccessLogCounts {
                requests: lines,
                limited: 200,
                seconds: vec![(100, 103), (900, 897)],
            }),
            ..RunCounts::default()
        });
    }
    runs
}

#[test]
fn counts_are_compared_with_the_access_log() {
    let folder = TempDir::new().unwrap();
    let study = study(&folder, "");
    let counted =
        |lines, kind| analysed(&study, &with_counts(runs(&study, 2, [1.0; 4], 1), lines, kind));
    let equal = counted(1_000, CpuLimitKind::Quota);
    assert_eq!(equal.counts.len(), 8, "two plans, three variants and the control");
    let row = &equal.counts[0];
    assert_eq!((row.runs, row.requests, row.limited), (2, 100.0, 20.0));
    assert_eq!(row.cpu_ms_per_request, Some(0.5));
    assert_eq!((row.handshakes_full, row.handshakes_resumed), (1.0, 99.0));
    let log = row.access_log.unwrap();
    assert_eq!((log.total, log.generator_total, log.second_difference_max), (2_000, 2_000, 3));
    let conclusions = equal.conclusions.join("\n");
    assert!(
        conclusions.contains("the access logs have exactly the 16,000 requests"),
        "{conclusions}"
    );
    assert!(!equal.warnings.join("\n").contains("access log"), "{:#?}", equal.warnings);
    let table = report(&equal).text(Colour::Plain);
    for part in ["log − generator", "resumed/s", "429/s", "CPU ms/request"] {
        assert!(table.contains(part), "{part} is not in {table}");
    }

    let lost = counted(999, CpuLimitKind::Affinity);
    assert!(!lost.conclusions.join("\n").contains("access logs"), "{:#?}", lost.conclusions);
    let warnings = lost.warnings.join("\n");
    let expected = "reads, direct: the access log has 1,998 requests (400 with status 429), but the \
                    generator counted 2,000 requests";
    assert!(warnings.contains(expected), "{warnings}");
    assert!(warnings.contains("CPU affinity limits the servers in place of a quota"), "{warnings}");
    let table = report(&lost).text(Colour::Plain);
    assert!(table.contains("−2") && table.contains("2 (CPU affinity)"), "{table}");
}

/// Returns the runs of a study whose variant "slow" is worse by `factor` in CPU time, in the median
/// latency and in goodput. The CPU times have noise.
fn runs_with_ratio(study: &LoadStudy, rounds: usize, factor: f64) -> Vec<FinishedRun> {
    let mut random = StdRng::seed_from_u64(7);
    let mut runs = with_counts(runs(study, rounds, [1.0; 4], 1), 1_000, CpuLimitKind::Quota);
    for run in &mut runs {
        let factor = if run.id.variant == 1 { factor } else { 1.0 };
        let noise = 1.0 + NOISE * (random.random::<f64>() - 0.5);
        run.facts.counts.as_mut().unwrap().server_cpu = Some(0.5 * factor * noise);
        for ((method, metric), value) in &mut run.run.as_mut().unwrap().values {
            match (method.as_str(), metric) {
                ("all", Metric::LatencyP50) => *value *= factor,
                ("all", Metric::Goodput) => *value /= factor,
                _ => {}
            }
        }
    }
    runs
}

/// Returns a study whose variant "slow" has a limit for the ratio of three metrics.
fn study_with_limit(folder: &TempDir, ratio_max: f64) -> LoadStudy {
    let name = folder.path().join("ratios.toml").display().to_string();
    let mut text = String::from("study = 'load'\nname = 'ratios'\nplans = ['reads.toml']\n");
    study(folder, "");
    for (variant, port) in [("direct", 1), ("slow", 2), ("cached", 3)] {
        text += &format!("[[variant]]\nname = '{variant}'\ntarget = 'http://127.0.0.1:{port}'\n");
        if variant == "slow" {
            let keys = ["cpu_ms_per_request", "latency_p50", "goodput"];
            let limits = keys.map(|key| format!("{key} = {ratio_max}")).join(", ");
            text += &format!("ratio_max = {{ {limits} }}\n");
        }
    }
    read(&text, &name, &[]).unwrap()
}

#[test]
fn a_planted_ratio_is_judged_by_its_interval() {
    let folder = TempDir::new().unwrap();
    let judged = |factor, ratio_max, rounds| {
        let study = study_with_limit(&folder, ratio_max);
        analysed(&study, &runs_with_ratio(&study, rounds, factor))
    };
    for (factor, ratio_max, expected) in [
        (1.3, 1.5, RatioVerdict::Kept),
        (1.3, 1.1, RatioVerdict::Broken),
        (0.7, 0.9, RatioVerdict::Kept),
        (0.7, 0.6, RatioVerdict::Broken),
    ] {
        let result = judged(factor, ratio_max, 8);
        let ratios = &result.plans[0].ratios;
        assert_eq!(
            ratios.iter().map(|row| row.metric).collect::<Vec<_>>(),
            [Metric::LatencyP50, Metric::Goodput, Metric::CpuPerRequest]
        );
        for row in ratios {
            assert_eq!((row.variant.as_str(), row.rounds), ("slow", 8));
            assert_eq!(row.verdict, expected, "{factor} {row:#?}");
            let (low, high) = row.interval.unwrap();
            // The values of latency and goodput have no noise.
            let is_covered = low <= factor + 1e-9 && factor - 1e-9 <= high;
            assert!(is_covered && high - low < 0.05, "{factor} {row:#?}");
            assert!((row.ratio.unwrap() / factor - 1.0).abs() < 0.02, "{factor} {row:#?}");
        }
        assert_eq!(result.ratio_verdict(), Some(expected));
        let failed = matches!(expected, RatioVerdict::Broken);
        assert_eq!(checks(&result).junit().contains("<failure"), failed);
    }
    // The interval of noisy values contains the limit.
    let close = judged(1.0, 1.0, 8);
    let verdict_of = |result: &LoadStudyResult, metric| {
        let mut rows = result.plans[0].ratios.iter();
        rows.find(|row| row.metric == metric).unwrap().verdict
    };
    assert_eq!(verdict_of(&close, Metric::CpuPerRequest), RatioVerdict::CannotTell);
    assert_eq!(close.ratio_verdict(), Some(RatioVerdict::CannotTell));
    let single = judged(1.3, 1.5, 1);
    assert_eq!(verdict_of(&single, Metric::CpuPerRequest), RatioVerdict::CannotTell, "no spread");
}

#[test]
fn rounds_that_the_generator_limits_have_a_cpu_time_and_no_latency() {
    let folder = TempDir::new().unwrap();
    let study = study_with_limit(&folder, 1.5);
    let mut runs = runs_with_ratio(&study, 8, 1.3);
    let set_outcome = |runs: &mut Vec<FinishedRun>, outcome| {
        runs.iter_mut().for_each(|run| run.run.as_mut().unwrap().facts.outcome = Some(outcome));
    };
    set_outcome(&mut runs, Outcome::ClientLimited);
    let result = analysed(&study, &runs);
    assert_eq!(result.plans[0].rounds, 0);
    let verdicts = |result: &LoadStudyResult| {
        let rows = result.plans[0].ratios.iter();
        rows.map(|row| (row.verdict, row.rounds)).collect::<Vec<_>>()
    };
    let unknown = (RatioVerdict::CannotTell, 0);
    assert_eq!(verdicts(&result), [unknown, unknown, (RatioVerdict::Kept, 8)]);
    let text = report(&result).text(Colour::Plain);
    for part in [
        "CANNOT TELL  ratios",
        "slow compared with direct: ratio of latency p50 is unknown, so its limit 1.5 cannot be judged",
        "slow compared with direct: ratio of CPU ms/request 1.30 (1.29 to 1.31) keeps the limit 1.5",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    // Numbers of an invalid run prove nothing.
    set_outcome(&mut runs, Outcome::Invalid);
    assert_eq!(verdicts(&analysed(&study, &runs)), [unknown; 3]);
    // A remote target has no CPU time.
    set_outcome(&mut runs, Outcome::Measured);
    runs.iter_mut().for_each(|run| run.facts.counts.as_mut().unwrap().server_cpu = None);
    assert_eq!(verdicts(&analysed(&study, &runs))[2], unknown);
}

/// Servers work and log during the warm-up too. If their figures were divided by the requests after
/// it, a request would seem to cost more than it does.
#[test]
fn requests_of_the_warm_up_are_counted_with_the_work_of_the_servers() {
    let mut result = crate::report::example::passing().result;
    (result.duration, result.plan.warmup) = (10.0, 2.0);
    result.series.truncate(1);
    result.series[0].requests = 1_000;
    result.wire.traffic.requests = 800;
    let counts = super::counts::count_run(&result, None, None);
    assert_eq!((counts.requests, counts.seconds, counts.measured_seconds), (1_000, 10.0, 8.0));
}
