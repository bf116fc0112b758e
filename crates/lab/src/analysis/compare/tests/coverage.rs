//! Goal: a 95 % interval contains the true change, and equal variants are not called different, for
//! all arrangements of runs and kinds of noise. Method: many generated pairs of variants for each
//! combination of arrangement and noise. Two shares are checked: the intervals that contain the
//! true change, and the equal variants that are called better or worse. Comparisons without an
//! interval count in neither share.
//!
//! `COVERAGE_PAIRS=1000 cargo test -p lab --lib coverage -- --nocapture` prints the whole table.

use lab_model::results::ComparisonVerdict;
use lab_model::results::compare::Metric;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::{Design, Values, compare, judge_all, normal};
use crate::analysis::statistics::mean;
use crate::analysis::sync::judge::{Times, judge};

/// Default number of pairs of variants for each combination; `COVERAGE_PAIRS` overrides it. With
/// this number, intervals that contain the true change in only 85 % of the cases fail the check
/// almost certainly.
const PAIRS: usize = 200;
/// The true change of the second variant.
const FACTOR: f64 = 1.3;
/// Maximum share of intervals that do not contain the true change.
const MISSED_MAX: f64 = 0.07;
/// Maximum share of equal variants that are called different.
const DIFFERENT_MAX: f64 = 0.05;
/// Standard deviation of the logarithm of a run's value.
const SPREAD: f64 = 0.05;
/// Standard deviation of the logarithm of a second's value. It is far above the floor of single
/// runs, so equal variants can be called different.
const SPREAD_OF_SECONDS: f64 = 0.5;

#[derive(Clone, Copy, Debug)]
enum Arrangement {
    /// Alternating runs of each variant.
    Unpaired(usize, usize),
    /// Pairs of runs. In half of them the second variant runs first.
    Paired(usize),
    /// Pairs of runs. The first variant always runs first.
    PairedInOrder(usize),
    /// One run of each variant, with this number of seconds.
    Seconds(usize),
    /// Times of a sync study, in pairs. Such a study compares how long nodes take to reach a block
    /// height.
    Study(usize),
    /// Times of a sync study, without pairs.
    StudyUnpaired(usize),
}

#[derive(Clone, Copy, Debug)]
enum Noise {
    Normal,
    /// Student's t with three degrees of freedom.
    Heavy,
    /// A first-order autoregressive series with this correlation between successive runs or
    /// seconds.
    Drift(f64),
    /// The same drift, hidden by independent noise with twice its variance.
    Hidden(f64),
    /// A steady rise of half the spread from run to run.
    Rise,
}

/// Returns a series of noise with a standard deviation of about 1.
fn series(random: &mut StdRng, noise: Noise, count: usize) -> Vec<f64> {
    let mut drift = normal(random);
    let next = |index: usize| match noise {
        Noise::Normal => normal(random),
        Noise::Heavy => {
            let chi: f64 = (0..3).map(|_| normal(random).powi(2)).sum();
            normal(random) / (chi / 3.0).sqrt()
        }
        Noise::Drift(rho) | Noise::Hidden(rho) => {
            drift = rho * drift + (1.0 - rho * rho).sqrt() * normal(random);
            match noise {
                Noise::Drift(_) => drift,
                _ => (drift + 2_f64.sqrt() * normal(random)) / 3_f64.sqrt(),
            }
        }
        Noise::Rise => 0.5 * index as f64 + normal(random),
    };
    (0..count).map(next).collect()
}

/// Result of one comparison: true if the interval contains the true change (`None` without an
/// interval), and true if the variants are called different.
type Outcome = (Option<bool>, bool);

fn compare_generated(
    random: &mut StdRng,
    combination: (Arrangement, Noise),
    metric: Metric,
    factor: f64,
) -> Outcome {
    let (arrangement, noise) = combination;
    let spread = match arrangement {
        Arrangement::Seconds(_) => SPREAD_OF_SECONDS,
        _ => SPREAD,
    };
    let value = |noise: &f64| (spread * noise).exp();
    // Each variant has its own series, or both share one series in the order A B B A or A B A B.
    let (mut a, mut b) = (Vec::new(), Vec::new());
    match arrangement {
        Arrangement::Seconds(count) => {
            a = series(random, noise, count).iter().map(value).collect();
            b = series(random, noise, count).iter().map(value).collect();
        }
        Arrangement::Unpaired(few, many) if few < many => {
            // The variant with fewer runs has them in the middle of the session.
            let session = series(random, noise, few + many);
            for (index, noise) in session.iter().enumerate() {
                let first = index >= many / 2 && a.len() < few;
                if first { &mut a } else { &mut b }.push(value(noise));
            }
        }
        Arrangement::Unpaired(runs, _)
        | Arrangement::Paired(runs)
        | Arrangement::PairedInOrder(runs)
        | Arrangement::Study(runs)
        | Arrangement::StudyUnpaired(runs) => {
            let session = series(random, noise, 2 * runs);
            let alternates = !matches!(arrangement, Arrangement::PairedInOrder(_));
            for (index, pair) in session.chunks(2).enumerate() {
                let swapped = usize::from(alternates && index % 2 == 1);
                a.push(value(&pair[swapped]));
                b.push(value(&pair[1 - swapped]));
            }
        }
    }
    b.iter_mut().for_each(|value| *value *= factor);
    comparison(random, arrangement, metric, (a, b), factor - 1.0)
}

fn comparison(
    random: &mut StdRng,
    arrangement: Arrangement,
    metric: Metric,
    (a, b): (Vec<f64>, Vec<f64>),
    change: f64,
) -> Outcome {
    let (interval, verdict) = match arrangement {
        Arrangement::Study(_) | Arrangement::StudyUnpaired(_) => {
            let times = |values: Vec<f64>| values.into_iter().map(|time| Some(3_600.0 * time));
            let paired = matches!(arrangement, Arrangement::Study(_));
            let times = Times {
                a: times(a).collect(),
                b: times(b).collect(),
                paired,
                period: 1.0,
                ..Times::default()
            };
            let comparison = judge(&[times], &mut || random.random()).remove(0).unwrap();
            (comparison.interval, comparison.verdict)
        }
        _ => {
            let one = matches!(arrangement, Arrangement::Seconds(_));
            let paired =
                matches!(arrangement, Arrangement::Paired(_) | Arrangement::PairedInOrder(_));
            let variant = |values: Vec<f64>| match one {
                true => Values {
                    runs: vec![mean(&values).unwrap()],
                    seconds: values,
                    ..Values::default()
                },
                false => Values { runs: values, ..Values::default() },
            };
            let design = Design { paired, ..Design::default() };
            let compared =
                compare(metric, &variant(a), &variant(b), design, &mut || random.random()).unwrap();
            let difference = judge_all(vec![compared]).remove(0);
            (difference.interval, difference.verdict)
        }
    };
    let holds = interval.map(|(low, high)| low <= change && change <= high);
    (holds, matches!(verdict, ComparisonVerdict::Better | ComparisonVerdict::Worse))
}

/// Returns the line of a combination, and true if it is within its limits. If `strict` is true and
/// there are at least 200 pairs, the limits have no allowance for chance.
fn measure_coverage(
    combination: (Arrangement, Noise),
    metric: Metric,
    pairs: usize,
    strict: bool,
) -> (String, bool) {
    let (mut printed, mut held, mut different) = (0, 0, 0);
    for seed in 0..pairs as u64 {
        let mut random = StdRng::seed_from_u64(seed);
        if let (Some(holds), _) = compare_generated(&mut random, combination, metric, FACTOR) {
            printed += 1;
            held += usize::from(holds);
        }
        different += usize::from(compare_generated(&mut random, combination, metric, 1.0).1);
    }
    let missed = printed - held;
    // With few pairs, a true share of 7 % may look larger: by 2.33 standard deviations in one of a
    // hundred cases.
    let most = |share: f64, of: usize| {
        let expected = share * of as f64;
        let chance = if strict && of >= 200 { 0.0 } else { 2.33 };
        expected + chance * (expected * (1.0 - share)).sqrt()
    };
    let fits = missed as f64 <= most(MISSED_MAX, printed)
        && different as f64 <= most(DIFFERENT_MAX, pairs);
    let name = format!("{:?}, {metric:?}", combination.0);
    let share = |count: usize, of: usize| 100.0 * count as f64 / of.max(1) as f64;
    let line = format!(
        "{name:<34} {:<20} covered {:5.1} % of {printed:4} printed, A/A different {:4.1} %{}",
        format!("{:?}", combination.1),
        share(held, printed),
        share(different, pairs),
        if fits { "" } else { "  <-- out of limits" }
    );
    (line, fits)
}

fn check(arrangements: &[Arrangement], noises: &[Noise], metric: Metric) {
    let requested_pairs = std::env::var("COVERAGE_PAIRS").ok().and_then(|pairs| pairs.parse().ok());
    let (pairs, strict) = (requested_pairs.unwrap_or(PAIRS), requested_pairs.is_some());
    let mut out = Vec::new();
    for arrangement in arrangements {
        for noise in noises {
            let (line, fits) = measure_coverage((*arrangement, *noise), metric, pairs, strict);
            println!("{line}");
            out.extend((!fits).then_some(line));
        }
    }
    assert!(out.is_empty(), "{}", out.join("\n"));
}

const NOISES: [Noise; 4] = [Noise::Normal, Noise::Heavy, Noise::Drift(0.8), Noise::Drift(0.95)];

#[test]
fn runs_of_each_variant() {
    let arrangements = [(2, 2), (3, 3), (5, 5), (10, 10), (1, 5)];
    let arrangements = arrangements.map(|(a, b)| Arrangement::Unpaired(a, b));
    check(&arrangements, &NOISES, Metric::LatencyP50);
}

#[test]
fn runs_in_pairs() {
    let arrangements = [2, 3, 6, 8, 10].map(Arrangement::Paired);
    check(&arrangements, &NOISES, Metric::LatencyP50);
}

/// The first variant always runs first, so a drift over the session always affects the second
/// variant more.
#[test]
fn pairs_that_are_always_in_one_order() {
    let arrangements = [6, 8, 10].map(Arrangement::PairedInOrder);
    check(&arrangements, &NOISES, Metric::LatencyP50);
    check(&[Arrangement::PairedInOrder(10)], &[Noise::Rise], Metric::LatencyP50);
}

#[test]
fn one_run_of_each_variant() {
    let arrangements = [30, 60, 120].map(Arrangement::Seconds);
    check(&arrangements, &NOISES, Metric::LatencyP50);
    check(&[Arrangement::Seconds(60)], &NOISES, Metric::Goodput);
    let noises = [Noise::Hidden(0.8), Noise::Hidden(0.95)];
    check(&[Arrangement::Seconds(120), Arrangement::Seconds(300)], &noises, Metric::LatencyP50);
}

#[test]
fn times_of_a_study() {
    let arrangements = [
        Arrangement::Study(2),
        Arrangement::Study(3),
        Arrangement::Study(5),
        Arrangement::Study(8),
        Arrangement::StudyUnpaired(3),
        Arrangement::StudyUnpaired(5),
    ];
    check(&arrangements, &NOISES, Metric::LatencyP50);
}
