//! Goal: whole searches find the capacity and report it correctly. Method: the real loop with
//! simulated runs in virtual time.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lab_model::plan::{self, Plan};
use lab_model::record::{Iterations, Totals};
use lab_model::results::capacity::{CapacityResult, EndReason, Kind, ProbeOutcome};
use lab_model::results::run::{Row, RunResult, Second};
use lab_model::results::{
    Cause, Confidence, Finding, Outcome, Quantiles, ThresholdOutcome, Verdict,
};

use super::estimate_cost;
use super::search::{CapacityFault, Environment, Event, search_in};
use crate::report::example;
use crate::run::{Finished, RunFault};
use crate::target::{Reason, TargetFault};

const PLAN: &str = r#"
[target]
url = "http://127.0.0.1:1"
family = "ethereum"

[[scenario]]
name = "reads"
workers_max = 500
stages = [{ name = "up", duration = "10s", to = 300 }, { name = "top", duration = "10s" }]
mix = "reads"

[[scenario]]
name = "logs"
start = "5s"
workers_max = 500
stages = [{ duration = "10s", rate = 100 }]
mix = "logs"

[[mix.reads.step]]
calls = [{ method = "eth_blockNumber" }]

[[mix.logs.step]]
calls = [{ method = "eth_getLogs", params = [{ draw = "logs", blocks = 10 }] }]

[capacity]
rate_start = 100
rate_max = 10000
precision = 0.02
probe = "12s"
probe_warmup = "2s"
repeats = 3
drain = "5s"
soak = "60s"
"#;

fn plan(more: &str) -> Plan {
    plan::read(&format!("{PLAN}\n{more}"), "test", &[]).unwrap()
}

fn times(calls: u64, ms: f64) -> Quantiles {
    Quantiles { count: calls, mean_ms: ms, p50_ms: ms, p99_ms: 3.0 * ms, ..Quantiles::default() }
}

fn row(like: &Row, method: &str, calls: u64, ms: f64) -> Row {
    Row {
        method: method.to_owned(),
        calls,
        failed_share: 0.0,
        limited_share: 0.0,
        null_share: Some(0.0),
        wrong_type_share: Some(0.0),
        latency: times(calls, ms),
        service: times(calls, ms),
        ..like.clone()
    }
}

/// Simulates a run against a server that completes `capacity` iterations per second. Each iteration
/// takes 20 ms, and iterations beyond the capacity wait. The run's own verdict is always a pass, so
/// only the growing backlog can fail a probe.
fn run(plan: &Plan, capacity: f64) -> RunResult {
    let rate: f64 = plan.stages().map(|(_, stage)| stage.to).sum();
    let seconds = plan.duration().as_secs();
    let measured_seconds = seconds - plan.warmup.as_secs();
    let growth = (rate - capacity).max(0.0);
    let busy = (rate.min(capacity) * 0.02).max(1.0) as u64;
    let series = (1..=seconds).map(|at| Second {
        at: at as f64,
        scheduled: rate.round() as u64,
        started: rate.min(capacity).round() as u64,
        workers_busy: busy,
        in_flight: busy,
        waiting: (growth * at as f64) as u64,
        ..Second::default()
    });
    let calls = |part: f64| (rate.min(capacity) * part * measured_seconds as f64) as u64;
    let slow = 20.0 + growth;
    let mut result = example::passing().result;
    let rows = vec![
        row(&result.overall, "eth_blockNumber", calls(0.75), if growth > 0.0 { slow } else { 1.0 }),
        row(&result.overall, "eth_getLogs", calls(0.25), slow),
    ];
    result.overall = row(&result.overall, "all", calls(1.0), slow);
    result.methods = rows;
    result.series = series.collect();
    result.duration = seconds as f64;
    result.plan.warmup = plan.warmup.as_secs_f64();
    result.verdict = Verdict { outcome: Outcome::Pass, reasons: Vec::new() };
    result.generator.iterations = Iterations::default();
    let outcome = |text: &String| ThresholdOutcome {
        text: text.clone(),
        kept: true,
        observed: Some(0.0),
        broken_at: None,
        ..ThresholdOutcome::default()
    };
    result.thresholds = plan.thresholds.iter().map(|own| outcome(&own.text)).collect();
    result.warnings = Vec::new();
    result.bottleneck = None;
    result.partial = false;
    result
}

/// Runs a search in a simulated environment, in which `make` makes the runs. Returns the result and
/// the events as text.
fn search(
    plan: &Plan,
    save: Option<&Path>,
    make: &mut dyn FnMut(&Plan) -> Result<RunResult, RunFault>,
    stopped: &dyn Fn() -> bool,
) -> (Result<CapacityResult, CapacityFault>, Vec<String>) {
    let clock = Cell::new(Duration::ZERO);
    let messages = RefCell::new(Vec::new());
    let environment = Environment {
        run: &mut |plan: &Arc<Plan>, _| {
            clock.set(clock.get() + plan.duration());
            let result = make(plan)?;
            Ok(Finished { result, totals: Totals::new(plan.stages().count()) })
        },
        wait: &mut |time| clock.set(clock.get() + time),
        now: &|| clock.get(),
        is_stopped: stopped,
        save: &mut |name, run, totals, methods| {
            let Some(folder) = save else { return Ok(false) };
            let result = crate::report::write_folder(&folder.join(name), run, totals, methods);
            result.map(|_| true).map_err(|fault| fault.to_string())
        },
    };
    let result = search_in(plan, environment, &mut |event| {
        messages.borrow_mut().push(match event {
            Event::Waiting { drains, .. } => format!("waits {drains}"),
            Event::ProbeStarted { kind, rate, .. } => format!("{} {rate}", kind.as_str()),
            Event::Ended(row) => row.outcome.as_str().to_owned(),
            Event::DefaultThresholds(_) => "thresholds".to_owned(),
            Event::Warning(text) => format!("warning {text}"),
            Event::Second(_) => "second".to_owned(),
        });
    });
    (result, messages.into_inner())
}

fn never() -> bool {
    false
}

fn unreachable_target() -> RunFault {
    RunFault::Target(TargetFault {
        url: "http://x".to_owned(),
        reason: Reason::Resolve { host: "x".to_owned() },
    })
}

#[test]
fn a_known_capacity_is_found_with_the_broken_threshold() {
    let (result, messages) = search(&plan(""), None, &mut |plan| Ok(run(plan, 1500.0)), &never);
    let result = result.unwrap();
    let answer = &result.answer;
    assert_eq!(answer.end, EndReason::Converged);
    for rate in [answer.highest_pass.unwrap(), answer.lowest_fail.unwrap()] {
        assert!((rate / 1500.0 - 1.0).abs() < 0.03, "{rate}");
    }
    assert_eq!(answer.soak_held, Some(true));
    // In a failing probe, calls of both methods wait equally long, so it cannot name the slow
    // method. The baseline can: eth_getLogs has a quarter of its calls, and each of them takes 20
    // times as long as an eth_blockNumber.
    let binding = result.binding.as_ref().unwrap();
    assert_eq!(binding.method.as_deref(), Some("eth_getLogs"));
    assert_eq!(result.probes[binding.probe].rate, answer.lowest_fail.unwrap());
    assert!(answer.sentence.contains("held for 60 s"), "{}", answer.sentence);
    assert_eq!(messages[..3], ["baseline 50", "pass", "thresholds"]);
    assert_eq!(result.thresholds, ["failed rate<0.01", "limited rate<0.01", "latency p(99)<600"]);
    assert!(result.thresholds_by_default.unwrap().contains("10 times the p99 of the idle target"));
    assert!(!result.partial);
    let total: f64 = result.probes.iter().map(|row| row.drained + row.duration).sum();
    assert!((result.duration - total).abs() < 1e-6);
}

/// The scenarios keep the ratio of their largest levels, 3 to 1. They start together, at constant
/// rates.
#[test]
fn probes_keep_the_ratio_of_scenarios() {
    let mut rates_and_seconds = Vec::new();
    let mut make = |plan: &Plan| {
        let levels: Vec<f64> = plan.stages().map(|(_, stage)| stage.to).collect();
        assert!((levels[0] / levels[1] - 3.0).abs() < 1e-9);
        assert!(plan.stages().all(|(_, stage)| stage.from == stage.to));
        assert!(plan.scenarios.iter().all(|scenario| scenario.start.is_zero()));
        let indexes: Vec<usize> = plan.stages().map(|(_, stage)| stage.index).collect();
        assert_eq!(indexes, [0, 1]);
        rates_and_seconds.push((levels[0] + levels[1], plan.duration().as_secs()));
        Ok(run(plan, 1500.0))
    };
    search(&plan(""), None, &mut make, &never).0.unwrap();
    assert_eq!(rates_and_seconds[0], (50.0, 7), "a baseline judges half as long");
    assert_eq!(rates_and_seconds[1], (100.0, 12));
    assert_eq!(rates_and_seconds.last().unwrap().1, 62, "the soak");
}

#[test]
fn a_queue_of_the_plan_is_never_lengthened() {
    let mut plan = plan("");
    (plan.scenarios[0].queue_max, plan.scenarios[1].queue_max) = (10, 100_000);
    let mut longest = [0, 0];
    let mut make = |probe: &Plan| {
        for (scenario, longest) in probe.scenarios.iter().zip(&mut longest) {
            *longest = scenario.queue_max.max(*longest);
        }
        Ok(run(probe, 1500.0))
    };
    search(&plan, None, &mut make, &never).0.unwrap();
    assert_eq!(longest[0], 10);
    assert!((100..10_000).contains(&longest[1]), "{longest:?}");
}

#[test]
fn a_threshold_of_a_stage_applies_to_the_whole_probe() {
    let more =
        "[thresholds]\n\"latency{stage:top}\" = { threshold = \"p(99)<500\", abort = true }\n";
    let mut make = |plan: &Plan| {
        assert!(plan.thresholds[0].selector.stages.is_none() && !plan.thresholds[0].abort);
        Ok(run(plan, 1500.0))
    };
    let (result, messages) = search(&plan(more), None, &mut make, &never);
    let result = result.unwrap();
    assert_eq!((result.thresholds.len(), result.thresholds_by_default), (1, None));
    assert!(!messages.contains(&"thresholds".to_owned()));
    let about =
        result.warnings.iter().any(|warning| warning.contains("a probe has only one stage"));
    assert!(about, "{:?}", result.warnings);
}

#[test]
fn a_closed_scenario_is_refused() {
    let closed =
        PLAN.replace("start = \"5s\"", "model = \"closed\"").replace("rate = 100", "workers = 9");
    let plan = plan::read(&closed, "test", &[]).unwrap();
    let (result, _) = search(&plan, None, &mut |_| unreachable!(), &never);
    assert!(result.unwrap_err().to_string().starts_with("scenario \"logs\" is closed"));
    assert!(estimate_cost(&plan).is_err());
}

#[test]
fn an_unreachable_target_is_a_fault() {
    let (result, _) = search(&plan(""), None, &mut |_| Err(unreachable_target()), &never);
    assert!(matches!(result, Err(CapacityFault::Run(_))));
}

/// The target dies during the probe at 1600/s. After a longer wait it gets a second chance. Then
/// the search ends with a partial result.
#[test]
fn a_target_that_dies_leaves_a_partial_result() {
    let mut dead = false;
    let mut make = |plan: &Plan| {
        let rate: f64 = plan.stages().map(|(_, stage)| stage.to).sum();
        if dead {
            return Err(unreachable_target());
        }
        dead = rate > 1500.0;
        Ok(run(plan, 1500.0))
    };
    let (result, messages) = search(&plan(""), None, &mut make, &never);
    let result = result.unwrap();
    assert!(result.partial);
    assert_eq!((result.answer.end, result.answer.highest_pass), (EndReason::Stopped, Some(800.0)));
    assert_eq!(messages.last().unwrap(), "waits 4");
    let about = result
        .warnings
        .iter()
        .any(|warning| warning.starts_with("the run after the probe at 1600/s failed"));
    assert!(about, "{:?}", result.warnings);
}

/// A probe that the user stopped is kept, but is neither pass nor fail.
#[test]
fn a_stopped_search_keeps_its_findings() {
    let stopped = Cell::new(false);
    let mut made = 0;
    let mut make = |plan: &Plan| {
        made += 1;
        let mut result = run(plan, 1500.0);
        if made == 4 {
            stopped.set(true);
            result.partial = true;
            result.verdict.outcome = Outcome::Fail;
        }
        Ok(result)
    };
    let (result, _) = search(&plan(""), None, &mut make, &|| stopped.get());
    let result = result.unwrap();
    assert!(result.partial);
    assert_eq!(result.probes.len(), 4);
    assert_eq!(result.probes[3].outcome, ProbeOutcome::Invalid);
    assert_eq!((result.answer.highest_pass, result.answer.lowest_fail), (Some(200.0), None));
    assert!(result.answer.sentence.starts_with("at least 200/s"), "{}", result.answer.sentence);
}

#[test]
fn runs_of_probes_are_kept_and_a_full_disk_does_not_end_the_search() {
    let folder = tempfile::tempdir().unwrap();
    let small = || {
        let mut plan = plan("");
        plan.capacity.rate_max = 200.0;
        plan
    };
    let mut make = |plan: &Plan| Ok(run(plan, 1500.0));
    let result = search(&small(), Some(folder.path()), &mut make, &never).0.unwrap();
    assert_eq!(result.answer.end, EndReason::RateMax);
    for row in &result.probes {
        let run_folder = folder.path().join(row.folder.as_ref().unwrap());
        assert!(run_folder.join("result.json").is_file(), "{run_folder:?}");
    }
    assert_eq!(result.probes[0].folder.as_deref(), Some("probes/01-baseline-50"));
    // A file in place of the folder makes every write fail.
    let blocked = folder.path().join("blocked");
    std::fs::write(&blocked, "").unwrap();
    let (result, messages) = search(&small(), Some(&blocked), &mut make, &never);
    let result = result.unwrap();
    assert_eq!(result.answer.end, EndReason::RateMax);
    assert!(result.probes.iter().all(|row| row.folder.is_none()));
    assert!(
        messages
            .iter()
            .any(|message| message.starts_with("warning the run of this probe could not"))
    );
    let about = result.warnings.iter().filter(|warning| warning.contains("could not be saved"));
    assert!(about.count() >= 1);
}

#[test]
fn the_generators_limit_is_reported() {
    let mut make = |plan: &Plan| {
        let rate: f64 = plan.stages().map(|(_, stage)| stage.to).sum();
        let mut result = run(plan, 1e9);
        if rate > 900.0 {
            result.verdict =
                Verdict { outcome: Outcome::ClientLimited, reasons: vec!["busy".to_owned()] };
        }
        Ok(result)
    };
    let result = search(&plan(""), None, &mut make, &never).0.unwrap();
    assert_eq!(result.answer.end, EndReason::ClientLimited);
    assert!(result.answer.at_least && result.binding.is_none());
    assert!(result.answer.sentence.contains("the generator was the limit"));
    assert!(result.probes.iter().all(|row| row.outcome != ProbeOutcome::Fail));
}

#[test]
fn the_predicted_cost_is_close_to_the_real_one() {
    let plan = plan("");
    let cost = estimate_cost(&plan).unwrap();
    let result = search(&plan, None, &mut |plan| Ok(run(plan, 1500.0)), &never).0.unwrap();
    let overhead = 2.0 * result.probes.len() as f64;
    let took = result.duration + overhead;
    assert!(cost.time.contains(&Duration::from_secs_f64(took)), "{cost:?} {took}");
    assert!(cost.probes.contains(&result.probes.len()));
    assert!(result.probes.iter().any(|row| row.kind == Kind::Soak));
}

/// The generator is the limit even at the baseline. The search ends after two probes, and its
/// answer names the cause and the remedies.
#[test]
fn a_generator_that_is_the_limit_at_the_baseline_ends_the_search() {
    for (outcome, end, what) in [
        (
            Outcome::ClientLimited,
            EndReason::ClientLimited,
            "the generator was the limit even at the baseline",
        ),
        (Outcome::Invalid, EndReason::Invalid, "the numbers were invalid even at the baseline"),
    ] {
        let mut make = |plan: &Plan| {
            let mut result = run(plan, 1e9);
            let reasons = vec!["the generator read 600 MB/s".to_owned()];
            result.verdict = Verdict { outcome, reasons };
            Ok(result)
        };
        let (result, messages) = search(&plan(""), None, &mut make, &never);
        let result = result.unwrap();
        assert_eq!((result.answer.end, result.probes.len()), (end, 2));
        let sentence = &result.answer.sentence;
        for part in [what, "at 50/s (the generator read 600 MB/s)", "start lower"] {
            assert!(sentence.contains(part), "{sentence}");
        }
        assert!(!messages.contains(&"thresholds".to_owned()), "chosen of what is not believed");
    }
}

/// The machine gets busy after the search has found both a pass and a fail. Both stay in the
/// answer.
#[test]
fn a_generator_that_becomes_slow_keeps_earlier_findings() {
    let mut failed = false;
    let mut make = |plan: &Plan| {
        let rate: f64 = plan.stages().map(|(_, stage)| stage.to).sum();
        let mut result = run(plan, 1500.0);
        if failed {
            let reasons = vec!["sends were late".to_owned()];
            result.verdict = Verdict { outcome: Outcome::Invalid, reasons };
        }
        failed |= rate > 1500.0;
        Ok(result)
    };
    let result = search(&plan(""), None, &mut make, &never).0.unwrap();
    assert_eq!(result.answer.end, EndReason::Invalid);
    assert!(result.answer.sentence.starts_with("800/s pass; 1600/s fail: "), "{:?}", result.answer);
    assert!(result.answer.sentence.contains("; then the numbers were invalid even at the"));
}

/// The bottleneck is unknown near the boundary, but known at a higher rate that failed.
#[test]
fn the_nearest_failed_rate_with_a_known_cause_names_the_bottleneck() {
    let mut make = |plan: &Plan| {
        let rate: f64 = plan.stages().map(|(_, stage)| stage.to).sum();
        let mut result = run(plan, 1500.0);
        result.bottleneck = Some(Finding {
            cause: if rate < 1600.0 { Cause::Unknown } else { Cause::Cpu },
            confidence: Confidence::Low,
            sentence: format!("at {rate}"),
            evidence: Vec::new(),
            at: None,
        });
        Ok(result)
    };
    let (result, _) = search(&plan(""), None, &mut make, &never);
    let result = result.unwrap();
    assert!(result.answer.lowest_fail.unwrap() < 1600.0, "{:?}", result.answer);
    let finding = result.bottleneck.unwrap();
    assert_eq!((finding.cause, finding.sentence.as_str()), (Cause::Cpu, "at 1600"));
    assert!(
        finding.evidence[0].starts_with("observed at 1,600/s; unclear at 1,5"),
        "{:?}",
        finding.evidence
    );
}
