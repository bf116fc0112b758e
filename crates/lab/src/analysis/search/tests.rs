//! Goal: a search finds the capacity of a target, or reports why it cannot. Method: searches
//! against simulated targets in virtual time, without sockets and clocks. Each target has a known
//! capacity and a property that makes the capacity hard to find.

use lab_model::results::capacity::{Boundary, EndReason, Kind, ProbeOutcome};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::{
    Change, Health, Probe, Settings, Step, Summary, estimate, next, probes_max, round_rate,
    summarize,
};

const SETTINGS: Settings = Settings {
    rate_start: 100.0,
    rate_max: 100_000.0,
    rate_baseline: 50.0,
    precision: 0.02,
    repeats: 3,
    soak: true,
};

/// A simulated target. The arguments are the kind and the rate of a probe and the drain times
/// before it. Returns outcome, margin and health.
type Target<'a> = dyn FnMut(Kind, f64, u32) -> (ProbeOutcome, Option<f64>, Health) + 'a;

const CALM: Health = Health { p50_ms: 2.0, failed_share: 0.0 };

fn search(settings: &Settings, target: &mut Target<'_>) -> (EndReason, Summary, Vec<Probe>) {
    let mut history = Vec::new();
    loop {
        match next(settings, &history) {
            Step::End(end) => {
                let summary = summarize(settings, &history);
                return (end, summary, history);
            }
            Step::Probe { kind, rate, drains } => {
                let (outcome, margin, health) = target(kind, rate, drains);
                history.push(Probe { kind, rate, outcome, margin, health, drains });
                // At most four baselines follow each probe.
                assert!(history.len() <= 5 * probes_max(settings) + 5, "it does not end");
            }
        }
    }
}

/// Returns a target that passes exactly the rates up to its capacity.
fn sharp(capacity: f64) -> impl FnMut(Kind, f64, u32) -> (ProbeOutcome, Option<f64>, Health) {
    move |_, rate, _| {
        let outcome = if rate <= capacity { ProbeOutcome::Pass } else { ProbeOutcome::Fail };
        (outcome, Some((capacity - rate) / capacity), CALM)
    }
}

fn assert_within(summary: &Summary, capacity: f64, tolerance: f64) {
    for end in [summary.highest_pass.unwrap(), summary.lowest_fail.unwrap()] {
        assert!((end / capacity - 1.0).abs() <= tolerance, "{end} is not {capacity}: {summary:?}");
    }
}

#[test]
fn five_known_capacities_are_found_within_three_per_cent() {
    for capacity in [37.0, 250.0, 1_234.0, 7_777.0, 61_000.0] {
        let (end, summary, history) = search(&SETTINGS, &mut sharp(capacity));
        assert_eq!(end, EndReason::Converged, "{capacity}");
        assert_within(&summary, capacity, 0.03);
        let (pass, fail) = (summary.highest_pass.unwrap(), summary.lowest_fail.unwrap());
        assert!(pass <= capacity && capacity < fail);
        assert!((fail - pass) / pass <= SETTINGS.precision);
        assert!(summary.monotone);
        assert_eq!(summary.soak_held, Some(true));
        assert_eq!(summary.boundary, Boundary::Gradual);
        assert_eq!(history[summary.failed_index.unwrap()].rate, fail);
        assert_eq!(history[summary.passed_index.unwrap()].kind, Kind::Soak);
        assert!(history.len() <= 40, "{} probes for {capacity}", history.len());
    }
}

/// Within 1 % of its capacity the target passes or fails by chance. One probe in thirty has the
/// wrong outcome at any rate.
#[test]
fn a_noisy_target_is_still_found() {
    let (mut near, mut probes) = (0, 0);
    for seed in 0..100 {
        let mut random = StdRng::seed_from_u64(seed);
        let capacity = 300.0 * f64::exp2(6.0 * random.random::<f64>());
        let mut target = |_, rate: f64, _| {
            let noise = 0.01 * (random.random::<f64>() + random.random::<f64>() - 1.0);
            let wrong = random.random::<f64>() < 1.0 / 30.0;
            let passed = (rate <= capacity * (1.0 + noise)) != wrong;
            (if passed { ProbeOutcome::Pass } else { ProbeOutcome::Fail }, None, CALM)
        };
        let (_, summary, history) = search(&SETTINGS, &mut target);
        probes += history.len();
        let pass = summary.highest_pass.unwrap();
        // If chance breaks a soak, the result is one step lower, because only rates whose soak held
        // count.
        near += usize::from((-0.08..=0.03).contains(&(pass / capacity - 1.0)));
    }
    assert!(near >= 90, "{near} of 100 within 3 %, or a step of a soak below");
    assert!(probes / 100 <= 45, "{} probes each", probes / 100);
}

/// A single wrong fail, far below the capacity, is outvoted by repeated probes.
#[test]
fn repeated_probes_outvote_one_wrong_fail() {
    let mut wrong = true;
    let (end, summary, history) = search(&SETTINGS, &mut |_, rate, _| {
        let outcome = if rate == 400.0 && std::mem::take(&mut wrong) {
            ProbeOutcome::Fail
        } else if rate <= 5_000.0 {
            ProbeOutcome::Pass
        } else {
            ProbeOutcome::Fail
        };
        (outcome, None, CALM)
    });
    assert_eq!(end, EndReason::Converged);
    assert_within(&summary, 5_000.0, 0.03);
    assert!(summary.monotone);
    assert!(history.iter().filter(|probe| probe.rate == 400.0).count() >= 3);
}

/// A rate fails and a higher rate passes. Both are repeated until a majority decides. If the
/// contradiction stays, it is reported, and the lower rate is the result.
#[test]
fn passes_above_fails_are_reported() {
    let probe = |rate, outcome| Probe {
        kind: Kind::Climb,
        rate,
        outcome,
        margin: None,
        health: CALM,
        drains: 1,
    };
    let mut history = vec![
        Probe { kind: Kind::Baseline, ..probe(50.0, ProbeOutcome::Pass) },
        probe(100.0, ProbeOutcome::Pass),
        probe(200.0, ProbeOutcome::Fail),
        Probe { kind: Kind::Baseline, ..probe(50.0, ProbeOutcome::Pass) },
        probe(300.0, ProbeOutcome::Pass),
    ];
    let repeated = |history: &[Probe]| match next(&SETTINGS, history) {
        Step::Probe { kind: Kind::Repeat, rate, .. } => Some(rate),
        _ => None,
    };
    assert_eq!(repeated(&history), Some(200.0));
    history.push(probe(300.0, ProbeOutcome::Pass));
    assert_eq!(repeated(&history), Some(200.0));
    history.extend([
        probe(200.0, ProbeOutcome::Fail),
        Probe { kind: Kind::Baseline, ..probe(50.0, ProbeOutcome::Pass) },
    ]);
    assert_eq!(repeated(&history), None, "both are decided");
    let summary = summarize(&SETTINGS, &history);
    assert!(!summary.monotone);
    assert_eq!((summary.highest_pass, summary.lowest_fail), (Some(100.0), Some(200.0)));
}

#[test]
fn a_cliff_is_recognised_by_its_margins() {
    let (_, summary, _) = search(&SETTINGS, &mut |_, rate, _| {
        if rate <= 1_000.0 {
            (ProbeOutcome::Pass, Some(0.8), CALM)
        } else {
            (ProbeOutcome::Fail, Some(-1.0), CALM)
        }
    });
    assert_eq!(summary.boundary, Boundary::Cliff);
}

/// The generator is the limit above 980/s. No probe fails, and the search does not climb without
/// end.
#[test]
fn a_limited_generator_gives_a_lower_bound() {
    let mut target = |_, rate: f64, _| {
        let outcome = if rate <= 980.0 { ProbeOutcome::Pass } else { ProbeOutcome::ClientLimited };
        (outcome, Some(0.5), CALM)
    };
    let (end, summary, history) = search(&SETTINGS, &mut target);
    assert_eq!(end, EndReason::ClientLimited);
    assert_eq!(summary.lowest_fail, None);
    let pass = summary.highest_pass.unwrap();
    assert!((880.0..=980.0).contains(&pass), "{pass}");
    assert!(history.len() <= 20, "{}", history.len());
    // If no rate can be measured, the search goes down and then ends.
    let (end, summary, _) =
        search(&SETTINGS, &mut |_, _, _| (ProbeOutcome::ClientLimited, None, CALM));
    assert_eq!((end, summary.highest_pass), (EndReason::ClientLimited, None));
    let (end, summary, _) = search(&SETTINGS, &mut |_, _, _| (ProbeOutcome::Invalid, None, CALM));
    assert_eq!((end, summary.highest_pass), (EndReason::Invalid, None));
}

/// The limit of the generator (1800/s) is above that of the target (1700/s), so the target's limit
/// is found.
#[test]
fn a_target_below_the_generators_limit_is_found() {
    let mut target = |_, rate: f64, _| {
        let outcome = match rate {
            rate if rate > 1_800.0 => ProbeOutcome::ClientLimited,
            rate if rate > 1_700.0 => ProbeOutcome::Fail,
            _ => ProbeOutcome::Pass,
        };
        (outcome, None, CALM)
    };
    let (end, summary, _) = search(&SETTINGS, &mut target);
    assert_eq!(end, EndReason::Converged);
    assert_within(&summary, 1_700.0, 0.03);
}

#[test]
fn an_invalid_probe_is_repeated_once() {
    let mut first = true;
    let mut inner = sharp(1_000.0);
    let (end, summary, history) = search(&SETTINGS, &mut |kind, rate, drains| {
        if rate == 400.0 && std::mem::take(&mut first) {
            return (ProbeOutcome::Invalid, None, CALM);
        }
        inner(kind, rate, drains)
    });
    assert_eq!(end, EndReason::Converged);
    assert_within(&summary, 1_000.0, 0.03);
    assert_eq!(history.iter().filter(|probe| probe.rate == 400.0).count(), 2);
}

/// After an overload the target has half its capacity until a pause of four drain times.
#[test]
fn a_target_that_recovers_slowly_gets_longer_pauses() {
    let mut tired = false;
    let mut target = |kind: Kind, rate: f64, drains: u32| {
        tired &= drains < 4;
        let capacity = if tired { 500.0 } else { 1_000.0 };
        let health = if tired { Health { p50_ms: 20.0, failed_share: 0.0 } } else { CALM };
        let passed = rate <= capacity;
        tired |= !passed && kind != Kind::Baseline;
        (if passed { ProbeOutcome::Pass } else { ProbeOutcome::Fail }, None, health)
    };
    let (end, summary, history) = search(&SETTINGS, &mut target);
    assert_eq!(end, EndReason::Converged);
    assert_within(&summary, 1_000.0, 0.03);
    assert_eq!(summary.degraded, None);
    assert_eq!(summary.recovery_drains, 4);
    // The search learns the long pause once and uses it after later overloads.
    let waits = history.iter().filter(|probe| probe.kind == Kind::Baseline && probe.drains < 4);
    assert!(waits.count() <= 4, "{history:?}");
}

/// After the first overload the target stays slower.
#[test]
fn a_target_that_never_recovers_is_reported() {
    let mut broken = false;
    let mut target = |kind: Kind, rate: f64, _| {
        let passed = rate <= if broken { 700.0 } else { 1_000.0 };
        let health = if broken { Health { p50_ms: 9.0, failed_share: 0.0 } } else { CALM };
        broken |= !passed && kind != Kind::Baseline;
        (if passed { ProbeOutcome::Pass } else { ProbeOutcome::Fail }, None, health)
    };
    let (end, summary, history) = search(&SETTINGS, &mut target);
    assert_eq!(end, EndReason::Converged);
    let degraded = summary.degraded.unwrap();
    assert_eq!((degraded.first.p50_ms, degraded.latest.p50_ms), (2.0, 9.0));
    let baselines = history.iter().filter(|probe| probe.kind == Kind::Baseline).count();
    let fails = history.iter().filter(|probe| probe.outcome == ProbeOutcome::Fail).count();
    assert!(baselines <= fails + 1 + 4, "it is waited for only once");
    assert_within(&summary, 700.0, 0.03);
}

/// Each probe reduces the capacity by half a per cent for good. The search must end, and its result
/// must be close to the capacity at that time.
#[test]
fn a_slow_degradation_ends() {
    let mut capacity = 5_000.0;
    let mut target = |_, rate: f64, _| {
        let outcome = if rate <= capacity { ProbeOutcome::Pass } else { ProbeOutcome::Fail };
        capacity *= 0.995;
        (outcome, None, CALM)
    };
    let (_, summary, history) = search(&SETTINGS, &mut target);
    assert!(history.len() < 80, "{}", history.len());
    let pass = summary.highest_pass.unwrap();
    assert!(pass < 5_000.0 && pass > 0.8 * capacity, "{pass} {capacity}");
}

#[test]
fn a_soak_that_fails_steps_down() {
    // The capacity is 1000/s for the time of a probe, but 940/s for a soak.
    let mut target = |kind: Kind, rate: f64, _| {
        let capacity = if kind == Kind::Soak { 940.0 } else { 1_000.0 };
        (if rate <= capacity { ProbeOutcome::Pass } else { ProbeOutcome::Fail }, None, CALM)
    };
    let (end, summary, history) = search(&SETTINGS, &mut target);
    assert_eq!(end, EndReason::Converged);
    assert_eq!(summary.soak_held, Some(true));
    assert!((880.0..=940.0).contains(&summary.highest_pass.unwrap()), "{summary:?}");
    assert_eq!(history[summary.failed_index.unwrap()].kind, Kind::Soak);
    // No soak ever passes. After three soaks, the result follows from short probes at lower rates.
    let mut never = |kind: Kind, rate: f64, _| {
        let fails = kind == Kind::Soak || rate > 1_000.0;
        (if fails { ProbeOutcome::Fail } else { ProbeOutcome::Pass }, None, CALM)
    };
    let (_, summary, history) = search(&SETTINGS, &mut never);
    assert_eq!(summary.soak_held, Some(false));
    assert_eq!(history.iter().filter(|probe| probe.kind == Kind::Soak).count(), 3);
}

#[test]
fn reaching_the_lowest_or_highest_rate_is_reported() {
    let (end, summary, history) = search(&SETTINGS, &mut sharp(1e9));
    assert_eq!((end, summary.highest_pass), (EndReason::RateMax, Some(100_000.0)));
    assert_eq!(history.last().unwrap().kind, Kind::Soak);
    let (end, summary, history) = search(&SETTINGS, &mut sharp(0.1));
    assert_eq!((end, summary.highest_pass), (EndReason::NothingPassed, None));
    assert!(history.len() <= 16, "{}", history.len());
    let single_rate = Settings { rate_max: 100.0, soak: false, ..SETTINGS };
    let (end, summary, _) = search(&single_rate, &mut sharp(1e9));
    assert_eq!((end, summary.highest_pass), (EndReason::RateMax, Some(100.0)));
}

/// Most calls fail even at the lowest rate, so the load is not the cause.
#[test]
fn a_broken_target_is_not_searched() {
    let broken = Health { p50_ms: 2.0, failed_share: 0.9 };
    let (end, summary, history) =
        search(&SETTINGS, &mut |_, _, _| (ProbeOutcome::Fail, Some(-1.0), broken));
    assert_eq!((end, summary.highest_pass, history.len()), (EndReason::NothingPassed, None, 1));
}

/// The search ends within its maximum number of probes, whatever the outcomes are.
#[test]
fn a_search_with_random_outcomes_ends() {
    for seed in 0..300 {
        let mut random = StdRng::seed_from_u64(seed);
        let settings = Settings {
            rate_start: f64::exp2(random.random_range(0.0..12.0)),
            rate_max: f64::exp2(random.random_range(12.0..20.0)),
            precision: random.random_range(0.001..0.2),
            repeats: random.random_range(1..6),
            soak: random.random(),
            ..SETTINGS
        };
        let (_, summary, history) = search(&settings, &mut |_, rate, _| {
            assert!(rate > 0.0 && rate <= settings.rate_max, "{rate}");
            let outcome = match random.random_range(0..10) {
                0..=4 => ProbeOutcome::Pass,
                5..=7 => ProbeOutcome::Fail,
                8 => ProbeOutcome::ClientLimited,
                _ => ProbeOutcome::Invalid,
            };
            let p50_ms = random.random_range(1.0..5.0);
            (outcome, Some(random.random()), Health { p50_ms, failed_share: 0.0 })
        });
        let count = history.iter().filter(|probe| probe.kind != Kind::Baseline).count();
        assert!(count <= probes_max(&settings));
        if let (Some(pass), Some(fail)) = (summary.highest_pass, summary.lowest_fail) {
            assert!(pass < fail);
        }
    }
}

#[test]
fn the_estimate_covers_the_cost_of_an_ideal_search() {
    let minutes = |kind: Kind, _: f64, drains: u32| match kind {
        Kind::Baseline => 5.0 + 5.0 * f64::from(drains),
        Kind::Soak => 125.0,
        _ => 25.0,
    };
    let estimated = estimate(&SETTINGS, minutes);
    let (_, _, history) = search(&SETTINGS, &mut sharp(3_000.0));
    let cost: f64 = history.iter().map(|probe| minutes(probe.kind, probe.rate, probe.drains)).sum();
    assert!((estimated.probes.0..=estimated.probes.1).contains(&history.len()), "{estimated:?}");
    assert!(estimated.cost.0 <= cost && cost <= estimated.cost.1, "{estimated:?} {cost}");
}

#[test]
fn rates_have_four_digits() {
    assert_eq!(round_rate(1234.56), 1235.0);
    assert_eq!(round_rate(0.012_345_6), 0.012_35);
    assert_eq!(round_rate(61_234.0), 61_230.0);
    assert_eq!(round_rate(0.0), 0.0);
}

/// The generator is the limit, or the numbers are invalid, even at the baseline. The search ends
/// after two baselines, and does not probe lower rates.
#[test]
fn invalid_baselines_end_the_search() {
    for (outcome, end) in [
        (ProbeOutcome::Invalid, EndReason::Invalid),
        (ProbeOutcome::ClientLimited, EndReason::ClientLimited),
    ] {
        let (ended, summary, history) = search(&SETTINGS, &mut |_, _, _| (outcome, None, CALM));
        assert_eq!((ended, summary.baselines_invalid, summary.highest_pass), (end, true, None));
        let kinds: Vec<(Kind, u32)> =
            history.iter().map(|probe| (probe.kind, probe.drains)).collect();
        assert_eq!(kinds, [(Kind::Baseline, 0), (Kind::Baseline, 2)]);
    }
}

/// A single invalid baseline is repeated, and the search continues.
#[test]
fn a_single_invalid_baseline_is_repeated() {
    let mut invalid_from = vec![1, 7];
    let mut probe_count = 0;
    let mut sharp = sharp(1_234.0);
    let (end, summary, history) = search(&SETTINGS, &mut |kind, rate, drains| {
        probe_count += 1;
        let result = sharp(kind, rate, drains);
        if kind == Kind::Baseline && invalid_from.first().is_some_and(|first| *first <= probe_count)
        {
            invalid_from.remove(0);
            return (ProbeOutcome::Invalid, None, CALM);
        }
        result
    });
    assert_eq!(
        (end, summary.baselines_invalid, invalid_from.len()),
        (EndReason::Converged, false, 0)
    );
    assert_within(&summary, 1_234.0, 0.03);
    let invalid = |probe: &Probe| probe.outcome == ProbeOutcome::Invalid;
    assert!(
        history
            .windows(2)
            .filter(|pair| invalid(&pair[0]))
            .all(|pair| pair[1].kind == Kind::Baseline)
    );
}

/// Passes from the time before the generator got busy remain in the result.
#[test]
fn invalid_baselines_do_not_discard_earlier_passes() {
    let mut busy = false;
    let (end, summary, _) = search(&SETTINGS, &mut |_, rate, _| {
        busy |= rate > 1_000.0;
        (if busy { ProbeOutcome::Invalid } else { ProbeOutcome::Pass }, None, CALM)
    });
    assert_eq!(
        (end, summary.highest_pass, summary.baselines_invalid),
        (EndReason::Invalid, Some(800.0), true)
    );
}

fn probe_of(kind: Kind, rate: f64, outcome: ProbeOutcome) -> Probe {
    let health = Health { p50_ms: 1.0, failed_share: 0.0 };
    Probe { kind, rate, outcome, margin: None, health, drains: 1 }
}

/// 175/s passed short probes. A soak failed at 178.1/s, and the next soak passed at 169.2/s.
#[test]
fn only_a_rate_whose_soak_passed_is_the_highest_pass() {
    let history = [
        probe_of(Kind::Climb, 175.0, ProbeOutcome::Pass),
        probe_of(Kind::Bisect, 178.1, ProbeOutcome::Pass),
        probe_of(Kind::Climb, 200.0, ProbeOutcome::Fail),
        probe_of(Kind::Soak, 178.1, ProbeOutcome::Fail),
        probe_of(Kind::Soak, 169.2, ProbeOutcome::Pass),
    ];
    let summary = summarize(&SETTINGS, &history);
    assert_eq!((summary.highest_pass, summary.lowest_fail), (Some(169.2), Some(178.1)));
    assert_eq!((summary.soak_held, summary.passed_index), (Some(true), Some(4)));
}

#[test]
fn early_and_late_probes_that_contradict_each_other_are_a_change() {
    use ProbeOutcome::{Fail, Pass};
    let changed = |probes: &[(f64, ProbeOutcome)]| {
        let history: Vec<Probe> =
            probes.iter().map(|(rate, outcome)| probe_of(Kind::Repeat, *rate, *outcome)).collect();
        summarize(&SETTINGS, &history).changed
    };
    let slower = [(100.0, Pass), (200.0, Pass), (400.0, Fail), (200.0, Fail), (150.0, Fail)];
    let expected = Change { passed: 200.0, failed: 150.0, worse: true };
    assert_eq!(changed(&slower), Some(expected));
    let faster = [(100.0, Pass), (200.0, Fail), (150.0, Pass), (200.0, Pass), (250.0, Pass)];
    assert!(changed(&faster).is_some_and(|change| !change.worse));
    let steady = [(100.0, Pass), (200.0, Fail), (150.0, Pass), (175.0, Fail), (150.0, Pass)];
    assert_eq!(changed(&steady), None);
    let noisy = [(150.0, Pass), (150.0, Fail), (150.0, Pass), (150.0, Fail)];
    assert_eq!(changed(&noisy), None);
}
