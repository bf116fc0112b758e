//! Goal: equal variants are hardly ever called different, planted differences are found, and too
//! little data is reported as such. Method: made-up variants with known differences.

mod coverage;
mod drift;

use lab_model::results::compare::{Difference, Metric};
use lab_model::results::{Basis, ComparisonVerdict};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::{Design, UnjudgedDifference, Values, compare, judge_all, measure_spread};

const METRICS: [Metric; 5] = [
    Metric::LatencyP50,
    Metric::LatencyP95,
    Metric::LatencyP99,
    Metric::Goodput,
    Metric::FailedShare,
];

fn normal(random: &mut StdRng) -> f64 {
    let (u, v): (f64, f64) = (random.random(), random.random());
    (-2.0 * (1.0 - u).ln()).sqrt() * (std::f64::consts::TAU * v).cos()
}

/// Number of seconds of a single run. With 60 s, half of the runs would have no estimate, because
/// their seconds drift.
const SECONDS_OF_ONE: u32 = 240;

/// Makes a run of `length` seconds. Each metric varies at random from run to run (by 3 %, high
/// percentiles by 8 %), and from second to second with a correlation of 0.7. Returns the value of
/// the run and its seconds.
fn run(random: &mut StdRng, metric: Metric, factor: f64, length: u32) -> (f64, Vec<f64>) {
    let (base, between, within) = match metric {
        Metric::FailedShare => (0.002, 0.0002, 0.002),
        Metric::Goodput => (5000.0, 0.01, 0.02),
        Metric::LatencyP99 => (40.0 * factor, 0.08, 0.3),
        Metric::LatencyP95 => (20.0 * factor, 0.05, 0.15),
        _ => (5.0 * factor, 0.03, 0.08),
    };
    let effect = between * normal(random);
    let mut noise = normal(random);
    let mut second = || {
        noise = 0.7 * noise + 0.51_f64.sqrt() * normal(random);
        match metric.is_share() {
            true => (base + effect + within * noise).max(0.0),
            false => base * (effect + within * noise).exp(),
        }
    };
    let seconds: Vec<f64> = (0..length).map(|_| second()).collect();
    (seconds.iter().sum::<f64>() / f64::from(length), seconds)
}

fn variant(random: &mut StdRng, metric: Metric, runs: usize, factor: f64) -> Values {
    let length = if runs == 1 { SECONDS_OF_ONE } else { 60 };
    let all: Vec<(f64, Vec<f64>)> =
        (0..runs).map(|_| run(random, metric, factor, length)).collect();
    let seconds = if runs == 1 { all[0].1.clone() } else { Vec::new() };
    Values { runs: all.into_iter().map(|(value, _)| value).collect(), seconds, ..Values::default() }
}

/// Compares five metrics of two methods. Returns the judged and the unjudged differences.
fn comparison(
    seed: u64,
    runs: (usize, usize),
    factor: f64,
    paired: bool,
) -> Vec<(Difference, UnjudgedDifference)> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut all = Vec::new();
    for metric in METRICS.into_iter().chain(METRICS) {
        let a = variant(&mut random, metric, runs.0, 1.0);
        let b = variant(&mut random, metric, runs.1, factor);
        let design = Design { paired, ..Design::default() };
        all.push(compare(metric, &a, &b, design, &mut || random.random()).unwrap());
    }
    judge_all(all.clone()).into_iter().zip(all).collect()
}

/// Returns the verdict and the basis of a single metric.
fn verdict(compared: UnjudgedDifference) -> (ComparisonVerdict, Basis) {
    let judged = judge_all(vec![compared]).remove(0);
    (judged.verdict, judged.basis)
}

fn differs(comparison: &[(Difference, UnjudgedDifference)]) -> bool {
    comparison.iter().any(|(judged, _)| {
        matches!(judged.verdict, ComparisonVerdict::Better | ComparisonVerdict::Worse)
    })
}

/// For each number of runs, 400 variants are compared with themselves. At most 5 % of the
/// comparisons report a difference in any of ten metrics.
#[test]
fn equal_variants_are_rarely_called_different() {
    for runs in [(1, 1), (1, 5), (2, 2), (3, 3), (4, 4), (5, 10), (12, 12)] {
        let wrong = (0..400).filter(|seed| differs(&comparison(*seed, runs, 1.0, false))).count();
        assert!(wrong <= 20, "{wrong} of 400 with {runs:?} runs");
    }
    let wrong = (0..60).filter(|seed| differs(&comparison(*seed, (8, 8), 1.0, true))).count();
    assert!(wrong <= 3, "{wrong} of 60 in pairs");
}

/// Checks that the test above depends on the floor and the correction: without them, far more
/// differences are reported.
#[test]
fn without_floor_and_correction_equal_variants_often_differ() {
    let naive = |compared: &UnjudgedDifference| compared.difference.p.is_some_and(|p| p <= 0.05);
    let wrong = |seed: &u64| comparison(*seed, (5, 5), 1.0, false).iter().any(|(_, c)| naive(c));
    assert!((0..100).filter(wrong).count() > 20);
}

#[test]
fn a_planted_difference_is_found() {
    for (runs, factor, basis) in
        [((1, 1), 1.6, Basis::WithinRun), ((3, 3), 1.6, Basis::FewRuns), ((6, 6), 1.4, Basis::Runs)]
    {
        let mut difference = 0;
        for seed in 0..50 {
            let all = comparison(seed, runs, factor, false);
            let (p50, _) = &all[0];
            assert!(p50.basis == basis || p50.basis == Basis::ValuesOnly, "{p50:?}");
            difference += usize::from(p50.verdict == ComparisonVerdict::Worse);
            assert!(!all.iter().any(|(judged, _)| {
                judged.verdict == ComparisonVerdict::Better && judged.metric == Metric::LatencyP50
            }));
        }
        // One in six single runs has no estimate, because its seconds drift.
        let least = if runs == (1, 1) { 40 } else { 45 };
        assert!(difference >= least, "{difference} of 50 with {runs:?} runs");
    }
}

#[test]
fn the_metric_decides_which_direction_is_better() {
    let values = |base: f64| Values {
        runs: (0..6).map(|run| base * (1.0 + 0.001 * f64::from(run))).collect(),
        ..Values::default()
    };
    let verdict_of = |metric, a: f64, b: f64| {
        verdict(compare(metric, &values(a), &values(b), Design::default(), &mut || 0).unwrap()).0
    };
    assert_eq!(verdict_of(Metric::Goodput, 100.0, 150.0), ComparisonVerdict::Better);
    assert_eq!(verdict_of(Metric::Goodput, 150.0, 100.0), ComparisonVerdict::Worse);
    assert_eq!(verdict_of(Metric::LatencyP50, 100.0, 150.0), ComparisonVerdict::Worse);
    assert_eq!(verdict_of(Metric::LatencyP50, 150.0, 100.0), ComparisonVerdict::Better);
    assert_eq!(verdict_of(Metric::LatencyP50, 100.0, 100.0), ComparisonVerdict::Same);
    assert_eq!(
        verdict_of(Metric::LatencyP50, 100.0, 101.0),
        ComparisonVerdict::Negligible,
        "it excludes zero"
    );
    assert_eq!(verdict_of(Metric::FailedShare, 0.0, 0.05), ComparisonVerdict::Worse);
    assert_eq!(verdict_of(Metric::FailedShare, 0.0, 0.0), ComparisonVerdict::Same);
    assert_eq!(
        verdict_of(Metric::Goodput, 100.0, 0.0),
        ComparisonVerdict::Worse,
        "nothing at all has no logarithm"
    );
}

/// The p99 values of two single runs differ by 28 %. This is far from zero, but within the floor of
/// 50 %.
#[test]
fn an_interval_without_zero_is_never_the_same() {
    let mut random = StdRng::seed_from_u64(11);
    let mut seconds = |base: f64| -> Values {
        let all: Vec<f64> = (0..60).map(|_| base * (0.15 * normal(&mut random)).exp()).collect();
        Values { runs: vec![all.iter().sum::<f64>() / 60.0], seconds: all, ..Values::default() }
    };
    let (a, b) = (seconds(10.0), seconds(12.8));
    let compared = compare(Metric::LatencyP99, &a, &b, Design::default(), &mut || 0).unwrap();
    let (low, high) = compared.difference.interval.unwrap();
    assert!(low > 0.05 && high < compared.difference.floor, "{compared:?}");
    assert_eq!(verdict(compared).0, ComparisonVerdict::CannotTell);
    for seed in 0..100 {
        for (difference, _) in comparison(seed, (6, 6), 1.02, false) {
            let (low, high) = difference.interval.unwrap();
            let zero = low <= 0.0 && 0.0 <= high;
            assert!(difference.verdict != ComparisonVerdict::Same || zero, "{difference:?}");
            assert!(difference.verdict != ComparisonVerdict::Negligible || !zero, "{difference:?}");
        }
    }
}

#[test]
fn too_little_data_gives_no_verdict() {
    let single_run = |value| Values { runs: vec![value], ..Values::default() };
    let compared = compare(
        Metric::LatencyP50,
        &single_run(1.0),
        &single_run(9.0),
        Design::default(),
        &mut || 0,
    )
    .unwrap();
    let difference = judge_all(vec![compared]).remove(0);
    assert_eq!((difference.basis, difference.interval), (Basis::ValuesOnly, None));
    assert!((difference.change - 8.0).abs() < 1e-9);
    assert_eq!((difference.verdict, difference.p), (ComparisonVerdict::CannotTell, None));
    let short = Values { runs: vec![1.0], seconds: vec![1.0; 10], ..Values::default() };
    let compared =
        compare(Metric::LatencyP50, &short, &short, Design::default(), &mut || 0).unwrap();
    assert_eq!(compared.difference.basis, Basis::ValuesOnly);
    let none = Values::default();
    assert!(
        compare(Metric::Goodput, &none, &single_run(1.0), Design::default(), &mut || 0).is_none()
    );
}

/// The seconds of short runs have no estimate, so failures are judged by the number of calls.
#[test]
fn failures_of_short_runs_are_judged_by_their_calls() {
    let run = |share: f64, calls, seconds: &[f64]| Values {
        runs: vec![share],
        seconds: seconds.to_vec(),
        calls: Some(calls),
        ..Values::default()
    };
    let verdict_of = |a: &Values, b: &Values| {
        let compared = compare(Metric::FailedShare, a, b, Design::default(), &mut || 0).unwrap();
        let (verdict, basis) = verdict(compared);
        assert_eq!(basis, Basis::Calls);
        verdict
    };
    let never = run(0.0, 5_000, &[0.0; 10]);
    let mostly = run(0.736, 5_000, &[0.72, 0.74, 0.75, 0.73, 0.74, 0.72, 0.76, 0.73, 0.74, 0.73]);
    assert_eq!(verdict_of(&never, &mostly), ComparisonVerdict::Worse);
    assert_eq!(verdict_of(&mostly, &never), ComparisonVerdict::Better);
    assert_eq!(verdict_of(&run(0.0, 500, &[]), &run(0.736, 500, &[])), ComparisonVerdict::Worse);
    assert_eq!(verdict_of(&run(0.0, 30, &[]), &run(0.1, 30, &[])), ComparisonVerdict::CannotTell);
    let mut outage = [0.0; 10];
    outage[4] = 1.0;
    let outage = run(0.1, 5_000, &outage);
    assert_eq!(
        verdict_of(&never, &outage),
        ComparisonVerdict::CannotTell,
        "one second of ten, which may be chance"
    );
}

#[test]
fn single_runs_differ_if_noise_cannot_explain_the_ratio() {
    let run = |value: f64, calls| Values { runs: vec![value], calls, ..Values::default() };
    let difference = |metric, a: f64, b: f64, calls| {
        let (a, b) = (run(a, calls), run(b, calls));
        verdict(compare(metric, &a, &b, Design::default(), &mut || 0).unwrap())
    };
    let far = Basis::FarApart;
    assert_eq!(
        difference(Metric::LatencyP50, 0.1, 429.0, Some(5_000)),
        (ComparisonVerdict::Worse, far)
    );
    assert_eq!(
        difference(Metric::LatencyP50, 429.0, 0.1, Some(5_000)),
        (ComparisonVerdict::Better, far)
    );
    assert_eq!(
        difference(Metric::Goodput, 100.0, 20.0, Some(5_000)),
        (ComparisonVerdict::Worse, far)
    );
    let unsure = (ComparisonVerdict::CannotTell, Basis::ValuesOnly);
    assert_eq!(difference(Metric::LatencyP50, 1.0, 2.0, Some(5_000)), unsure);
    assert_eq!(
        difference(Metric::LatencyP99, 1.0, 20.0, Some(500)),
        unsure,
        "five calls beyond it"
    );
    assert_eq!(difference(Metric::LatencyP50, 1.0, 20.0, None), unsure);
}

#[test]
fn a_second_without_results_counts_as_zero() {
    let mut seconds: Vec<f64> = (0..60).map(|at| 1_000.0 + f64::from(at % 7)).collect();
    let whole = Values { runs: vec![1_003.0], seconds: seconds.clone(), ..Values::default() };
    seconds[30] = 0.0;
    let mean = seconds.iter().sum::<f64>() / 60.0;
    let silent = Values { runs: vec![mean], seconds, ..Values::default() };
    let design = Design::default();
    let difference =
        compare(Metric::Goodput, &whole, &silent, design, &mut || 0).unwrap().difference;
    assert_eq!(difference.basis, Basis::WithinRun);
    assert!((difference.b - mean).abs() < 1e-6, "{difference:?}");
    assert!((difference.change + 0.0167).abs() < 0.001, "{difference:?}");
    let nothing = Values { runs: vec![0.0], seconds: vec![0.0; 60], ..Values::default() };
    let difference =
        compare(Metric::Goodput, &whole, &nothing, design, &mut || 0).unwrap().difference;
    assert_eq!(difference.basis, Basis::ValuesOnly, "{difference:?}");
}

/// A measured spread replaces the wide floor of single runs, and raises the floor of several runs.
#[test]
fn a_measured_spread_is_the_floor() {
    let mut random = StdRng::seed_from_u64(3);
    let (a, b) = (
        variant(&mut random, Metric::LatencyP50, 1, 1.0),
        variant(&mut random, Metric::LatencyP50, 1, 1.0),
    );
    let floor = |spread| {
        let design = Design { spread, ..Design::default() };
        compare(Metric::LatencyP50, &a, &b, design, &mut || 0).unwrap().difference.floor
    };
    assert_eq!(floor(None), 0.1);
    assert_eq!(floor(Some(0.01)), 0.025);
    assert_eq!(floor(Some(0.3)), 0.3);
    let widest = measure_spread(Metric::LatencyP50, &[10.0, 11.0, 12.0]).unwrap();
    assert!((widest - 0.2).abs() < 1e-9);
    assert_eq!(measure_spread(Metric::LatencyP50, &[10.0]), None);
}

/// Both variants share a drift of 30 % over the session. Rank tests miss a change of 8 % because of
/// it, but pairs reveal it.
#[test]
fn pairs_find_what_a_drift_hides() {
    let mut random = StdRng::seed_from_u64(4);
    let mut values = |factor: f64| Values {
        runs: (0..10)
            .map(|run| factor * (1.0 + 0.03 * f64::from(run)) * (0.005 * normal(&mut random)).exp())
            .collect(),
        ..Values::default()
    };
    let (a, b) = (values(1.0), values(1.08));
    let verdict_of = |paired| {
        let design = Design { paired, ..Design::default() };
        let mut bits = StdRng::seed_from_u64(5);
        verdict(compare(Metric::LatencyP50, &a, &b, design, &mut || bits.random()).unwrap()).0
    };
    assert_eq!(verdict_of(false), ComparisonVerdict::CannotTell);
    assert_eq!(verdict_of(true), ComparisonVerdict::Worse);
}
