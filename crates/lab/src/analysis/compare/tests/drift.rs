//! Goal: a drift over the session does not look like a difference between paired variants, in any
//! order of the runs. Method: generated pairs of runs with a known change, a known drift and known
//! starts. Intervals must contain the true change, and equal variants must not be called different.
//!
//! `COVERAGE_PAIRS=1000 cargo test -p lab --lib drift -- --nocapture` prints the whole table.

use lab_model::results::compare::{Difference, Metric};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::{Design, Values, compare, judge_all, normal};

/// Default number of sessions for each combination; `COVERAGE_PAIRS` overrides it.
const SESSIONS: usize = 60;
/// Maximum share of intervals that do not contain the true change.
const MISSED_MAX: f64 = 0.07;
/// Maximum share of equal variants that are called different.
const DIFFERENT_MAX: f64 = 0.05;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Order {
    /// The first variant always runs first.
    Abab,
    /// The order is reversed in every second pair.
    Abba,
}

/// How a value changes over the session, of which `share` has passed.
#[derive(Clone, Copy, Debug)]
enum Shape {
    Linear,
    /// Four time constants.
    Exponential,
    /// All at once, between two pairs.
    StepBetweenPairs,
    /// All at once, within a pair.
    StepWithinPair,
}

#[derive(Clone, Copy, Debug)]
struct Session {
    order: Order,
    pairs: usize,
    shape: Shape,
    /// Change from the first to the last run.
    drift: f64,
    /// Standard deviation of the logarithm of a run's value.
    noise: f64,
    has_starts: bool,
}

impl Session {
    fn drift_at(&self, run: usize) -> f64 {
        let share = run as f64 / (2 * self.pairs - 1) as f64;
        let half = self.pairs / 2 * 2;
        (1.0 + self.drift).ln()
            * match self.shape {
                Shape::Linear => share,
                Shape::Exponential => (1.0 - (-4.0 * share).exp()) / (1.0 - (-4.0_f64).exp()),
                Shape::StepBetweenPairs => f64::from(run >= half),
                Shape::StepWithinPair => f64::from(run > half),
            }
    }

    /// Returns the difference of two variants. The second one has `factor` times the value.
    fn compare(&self, seed: u64, factor: f64) -> Difference {
        let mut random = StdRng::seed_from_u64(seed);
        let (mut a, mut b) = (Values::default(), Values::default());
        for run in 0..2 * self.pairs {
            let is_reversed = self.order == Order::Abba && run / 2 % 2 == 1;
            let is_second = (run % 2 == 1) != is_reversed;
            let value = (self.drift_at(run) + self.noise * normal(&mut random)).exp();
            let values = if is_second { &mut b } else { &mut a };
            values.runs.push(if is_second { factor * value } else { value });
            values.starts.extend(self.has_starts.then_some(1e9 + 40.0 * run as f64));
        }
        let design = Design { paired: true, ..Design::default() };
        let compared =
            compare(Metric::LatencyP50, &a, &b, design, &mut || random.random()).unwrap();
        judge_all(vec![compared]).remove(0)
    }
}

/// Returns a line about a kind of session, and true if it is within its limits.
fn measure(session: Session, sessions: usize) -> (String, bool) {
    const FACTOR: f64 = 1.1;
    let (mut missed, mut different) = (0, 0);
    for seed in 0..sessions as u64 {
        let (low, high) = session.compare(seed, FACTOR).interval.unwrap();
        missed += usize::from(!(low..=high).contains(&(FACTOR - 1.0)));
        different += usize::from(session.compare(seed, 1.0).verdict.is_different());
    }
    // Chance: 2.33 standard deviations in one of a hundred cases.
    let most = |share: f64| {
        let expected = share * sessions as f64;
        expected + 2.33 * (expected * (1.0 - share)).sqrt()
    };
    let fits = missed as f64 <= most(MISSED_MAX) && different as f64 <= most(DIFFERENT_MAX);
    (format!("{session:?}: missed {missed}, different {different} of {sessions}"), fits)
}

#[test]
fn a_drift_is_no_difference_in_any_order() {
    let sessions = std::env::var("COVERAGE_PAIRS").ok().and_then(|pairs| pairs.parse().ok());
    let sessions = sessions.unwrap_or(SESSIONS);
    let mut out = Vec::new();
    let shapes =
        [Shape::Linear, Shape::Exponential, Shape::StepBetweenPairs, Shape::StepWithinPair];
    for order in [Order::Abab, Order::Abba] {
        for pairs in [3, 4, 6, 10] {
            for (shape, drift) in
                shapes.iter().flat_map(|shape| [0.0, 0.1, 0.3, -0.25].map(|drift| (*shape, drift)))
            {
                for (noise, has_starts) in [(0.003, true), (0.03, true), (0.003, false)] {
                    let session = Session { order, pairs, shape, drift, noise, has_starts };
                    let (line, fits) = measure(session, sessions);
                    println!("{line}");
                    out.extend((!fits).then_some(line));
                }
            }
        }
    }
    assert!(out.is_empty(), "{}", out.join("\n"));
}

/// In the order A B B A the allowance for a drift costs nothing without a drift, and a change of 10 %
/// is found in spite of a drift of 10 %.
#[test]
fn the_reversed_order_needs_no_allowance() {
    let session = |order, drift| Session {
        order,
        pairs: 4,
        shape: Shape::Linear,
        drift,
        noise: 0.003,
        has_starts: true,
    };
    let width = |order| {
        let widths = (0..100).map(|seed| {
            let (low, high) = session(order, 0.0).compare(seed, 1.1).interval.unwrap();
            (high - low) / 2.0
        });
        widths.sum::<f64>() / 100.0
    };
    // Student's t with three degrees of freedom: 3.18 * 0.003 * sqrt(2) / sqrt(4) = 0.7 %.
    assert!(width(Order::Abba) < 0.008, "{}", width(Order::Abba));
    assert!(width(Order::Abab) < 0.015, "{}", width(Order::Abab));
    let found = |order| {
        let is_found = |seed: &u64| session(order, 0.1).compare(*seed, 1.1).verdict.is_different();
        (0..60).filter(is_found).count()
    };
    assert!(found(Order::Abba) >= 55, "{} of 60", found(Order::Abba));
}
