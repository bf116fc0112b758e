//! An example of a capacity search for tests. The search raises the rate until the target fails,
//! then bisects, repeats probes near the boundary, and soaks.

use lab_model::results::capacity::*;
use lab_model::results::{Outcome, Quantiles};

use crate::report::example;

/// The rate above which the imaginary target fails.
const LIMIT: f64 = 1220.0;

/// Returns a search that ended early, with every possible doubt.
pub(crate) fn doubtful() -> CapacityResult {
    let mut result = found();
    result.partial = true;
    result.answer.end = EndReason::Stopped;
    result.answer.monotone = false;
    result.answer.soak_held = Some(false);
    result.answer.degraded = Some("p50 at the baseline rose from 1 to 9 ms".into());
    result.answer.boundary = Boundary::Gradual;
    result.thresholds_by_default = Some("the plan has none".into());
    result.warnings = ["few", "late", "closed", "short"].map(|word| format!("{word} <b>")).to_vec();
    result.probes[3].outcome = ProbeOutcome::Invalid;
    result.probes[4].margin = None;
    result.settings.soak = 0.0;
    result.target.url = "https://node.example.net/***".into();
    result
}

/// Returns a search that found the boundary.
pub(crate) fn found() -> CapacityResult {
    let run = example::failing().result;
    let kinds_and_rates = [
        (Kind::Baseline, 100.0),
        (Kind::Climb, 200.0),
        (Kind::Climb, 400.0),
        (Kind::Climb, 800.0),
        (Kind::Climb, 1600.0),
        (Kind::Bisect, 1200.0),
        (Kind::Bisect, 1400.0),
        (Kind::Bisect, 1300.0),
        (Kind::Bisect, 1250.0),
        (Kind::Repeat, 1200.0),
        (Kind::Repeat, 1250.0),
        (Kind::Repeat, 1200.0),
        (Kind::Repeat, 1250.0),
        (Kind::Soak, 1200.0),
        (Kind::Climb, 3200.0),
    ];
    let mut at = 0.0;
    let probes = kinds_and_rates.iter().enumerate().map(|(index, (kind, rate))| {
        at += 35.0;
        probe(index, *kind, *rate, at - 35.0)
    });
    CapacityResult {
        schema: SCHEMA.into(),
        weir: run.weir,
        started: run.started,
        started_unix: run.started_unix,
        duration: 560.0,
        partial: false,
        plan: run.plan,
        target: run.target,
        fingerprint: run.fingerprint,
        settings: SearchFacts {
            rate_start: 200.0,
            rate_max: 5000.0,
            precision: 0.05,
            probe: 30.0,
            probe_warmup: 5.0,
            repeats: 3,
            drain: 5.0,
            soak: 120.0,
            rate_baseline: 100.0,
        },
        thresholds: vec!["latency{method:eth_getLogs} p(95)<800".into(), "failed rate<0.01".into()],
        thresholds_by_default: None,
        answer: Answer {
            end: EndReason::Converged,
            sentence: "Held 1,200 iterations per second and broke at 1,250.".into(),
            highest_pass: Some(1200.0),
            lowest_fail: Some(1250.0),
            at_least: false,
            monotone: true,
            boundary: Boundary::Cliff,
            soak_held: Some(true),
            degraded: None,
        },
        binding: Some(Binding {
            threshold: "latency{method:eth_getLogs} p(95)<800".into(),
            method: Some("eth_getLogs".into()),
            observed: Some(5003.8),
            limit: Some(800.0),
            rate: 1250.0,
            probe: 8,
        }),
        bottleneck: run.bottleneck,
        costs: vec![ProcessCost { process: "geth".into(), cpu_ms_per_request: 2.41, probe: 5 }],
        probes: probes.collect(),
        scaling: Some(Scaling {
            lambda: 310.0,
            sigma: 0.043,
            kappa: 0.0011,
            peak_in_flight: Some(29.5),
            peak_rate: Some(1640.0),
            r_squared: 0.987,
            points: 9,
        }),
        warnings: vec![],
    }
}

fn probe(index: usize, kind: Kind, rate: f64, at: f64) -> ProbeRow {
    let overload = (rate / LIMIT).powi(6);
    let fails = rate > LIMIT;
    let p50 = 1.1 + 2.0 * overload.min(40.0) + 0.05 * (index % 3) as f64;
    let p99 = if fails { 5003.8 } else { 18.0 + 120.0 * overload };
    let outcome = match () {
        () if rate > 3000.0 => ProbeOutcome::ClientLimited,
        () if fails => ProbeOutcome::Fail,
        () => ProbeOutcome::Pass,
    };
    let latency = Quantiles {
        count: (rate * 25.0) as u64,
        mean_ms: p50 * 1.4,
        min_ms: 0.3,
        p50_ms: p50,
        p90_ms: p50 * 2.0,
        p95_ms: p50 * 3.0,
        p99_ms: p99,
        p999_ms: p99 * 1.2,
        max_ms: p99 * 1.5,
        p99_interval_ms: (p99 * 0.9, p99 * 1.1),
    };
    let failed = if fails { 0.004 + 0.01 * (overload - 1.0).min(12.0) } else { 0.0 };
    let reasons = match outcome {
        ProbeOutcome::Fail => vec![format!("eth_getLogs p(95) was {p99:.0} ms, 800 are allowed")],
        ProbeOutcome::ClientLimited => vec!["only 84 % of the scheduled iterations started".into()],
        _ => vec![],
    };
    ProbeRow {
        kind,
        rate,
        at,
        duration: 30.0,
        drained: 5.0,
        outcome,
        run_verdict: if fails { Outcome::Fail } else { Outcome::Pass },
        reasons,
        margin: Some(if fails { -5.25 } else { 1.0 - overload * 0.6 }),
        rate_ended: if fails { LIMIT + (rate - LIMIT) * 0.3 } else { rate },
        delivered_share: if rate > 3000.0 { 0.84 } else { 0.9998 },
        backlog_growth: 0.0,
        in_flight: rate * p50 / 1000.0,
        waiting: 0.0,
        calls_per_second: rate,
        goodput: rate * (1.0 - failed),
        failed_share: failed,
        limited_share: 0.0,
        latency,
        service: latency,
        scheduling_delay_p99_ms: 0.031,
        thresholds: vec![],
        bottleneck: None,
        folder: (index != 3).then(|| format!("probe-{:02}", index + 1)),
    }
}
