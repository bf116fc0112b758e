//! Arranges the runs of a load study in rounds, decides when the study ends, and measures drift.
//!
//! A load study compares variants: targets, or configurations of a target. A round is one run of
//! every variant. The runs of a round are compared with each other, so a slow change of the machine
//! between rounds affects all variants alike. `study/load/runner.rs` runs the rounds;
//! `analysis/compare.rs` compares them.

use std::time::Duration;

use lab_model::results::load_study::{Drift, DriftSubject, EndReason, RunOrder};

use crate::analysis::statistics::{median, ranks};

#[cfg(test)]
mod tests;

/// Significance level of a drift.
const LEVEL: f64 = 0.05;
/// The study ends after this many consecutive rounds in which a run failed.
const FAULTY_ROUNDS_MAX: usize = 3;

/// Returns the order of the variants in a round, by index. Rounds count from 0.
///
/// With [`RunOrder::Abba`], every second round has the reverse order. With
/// [`RunOrder::LatinSquare`], each variant runs equally often at each place, and equally often
/// directly after every other variant. An odd number of variants needs a second, reversed square
/// for this. Source: Williams, Australian Journal of Scientific Research A 2, 1949.
pub fn order(order: RunOrder, variants: usize, round: usize) -> Vec<usize> {
    match order {
        RunOrder::Abba => {
            let mut sequence: Vec<usize> = (0..variants).collect();
            if round % 2 == 1 {
                sequence.reverse();
            }
            sequence
        }
        RunOrder::LatinSquare => {
            let row = round % rounds_per_balanced_order(order, variants);
            // The first row is 0, 1, n − 1, 2, n − 2, …; each further row adds 1 to every index.
            let first_row = |position: usize| match position {
                0 => 0,
                odd if odd % 2 == 1 => odd.div_ceil(2),
                even => variants - even / 2,
            };
            let mut sequence: Vec<usize> =
                (0..variants).map(|position| (first_row(position) + row) % variants).collect();
            if row >= variants {
                sequence.reverse();
            }
            sequence
        }
    }
}

/// Returns the number of rounds after which the order is balanced.
pub fn rounds_per_balanced_order(order: RunOrder, variants: usize) -> usize {
    match order {
        RunOrder::Abba => 2,
        RunOrder::LatinSquare if variants.is_multiple_of(2) => variants.max(1),
        RunOrder::LatinSquare => 2 * variants,
    }
}

/// Limits of a study.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// The precision can end the study only after at least this many usable rounds.
    pub rounds_min: usize,
    /// Largest number of rounds.
    pub rounds_max: usize,
    /// Time limit.
    pub time_max: Duration,
    /// Number of rounds after which the order is balanced. The precision ends a study only after a
    /// multiple of this number.
    pub block: usize,
}

/// The state of a study between two rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StudyProgress {
    /// Number of rounds that were run.
    pub rounds: usize,
    /// Number of rounds that can be compared. If the study has several plans with different
    /// numbers, this is the lowest number.
    pub usable: usize,
    /// Number of consecutive rounds, up to the last round, in which a run failed.
    pub failed_rounds: usize,
    /// True if all confidence intervals are narrow enough.
    pub precise: bool,
    /// Time since the start of the study, without interruptions.
    pub elapsed: Duration,
    /// Expected time of the next round.
    pub next_round: Duration,
}

/// Returns the reason to end the study before the next round; `None` to continue. The first round
/// always runs.
pub fn end(progress: StudyProgress, limits: Limits) -> Option<EndReason> {
    if progress.rounds == 0 {
        return None;
    }
    if progress.failed_rounds >= FAULTY_ROUNDS_MAX {
        return Some(EndReason::Faults);
    }
    let is_balanced = progress.rounds.is_multiple_of(limits.block.max(1));
    if progress.precise && is_balanced && progress.usable >= limits.rounds_min {
        return Some(EndReason::Precision);
    }
    if progress.rounds >= limits.rounds_max {
        return Some(EndReason::RoundsMax);
    }
    (progress.elapsed + progress.next_round > limits.time_max).then_some(EndReason::TimeMax)
}

/// Measures the drift of positive values, one for each round. `None` for fewer than two values, or
/// if a value is not positive. `plan` is the name of the runs' plan. It is `None` for the drift of
/// the machine, which concerns all plans.
pub fn drift(subject: DriftSubject, plan: Option<String>, values: Vec<f64>) -> Option<Drift> {
    if values.len() < 2 {
        return None;
    }
    let third = values.len().div_ceil(3);
    let median_at_start = median(&values[..third])?;
    let median_at_end = median(&values[values.len() - third..])?;
    let smallest = values.iter().copied().fold(f64::INFINITY, f64::min);
    let largest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    (median_at_start > 0.0 && smallest > 0.0).then(|| Drift {
        subject,
        plan,
        change: median_at_end / median_at_start - 1.0,
        spread: largest / smallest - 1.0,
        p: ranks::mann_kendall(&values).map(|trend| trend.p),
        values,
    })
}

/// Returns true if `p`, the p-value of a drift, is significant. False if `p` is unknown.
pub fn is_trend(p: Option<f64>) -> bool {
    p.is_some_and(|p| p <= LEVEL)
}
