//! Compares how long two variants took to reach a height, and to sync a bin (a range of heights),
//! over all runs of each variant.
//!
//! A variant is one of the compared nodes. Times are compared by ratio, with the rules of
//! `analysis/compare.rs`. A lower time is better.

use lab_model::results::ComparisonVerdict;
use lab_model::results::compare::{Difference, Metric};
use lab_model::results::study::{
    Bin, StudyResult, TimeComparison, TimeRow, VariantComparison, VariantRow,
};

use crate::analysis::compare::{Design, UnjudgedDifference, Values, compare, judge_all};
use crate::analysis::statistics::{median, sorted};
use crate::analysis::sync::bins::faster_by_bin;

/// The metric that stands for a time in `analysis/compare.rs`. Like a time, it is compared by
/// ratio, and lower is better.
const TIME: Metric = Metric::ServiceMean;

/// Times in which the runs of two variants reached one height, in seconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Times {
    /// Times of the first variant by run; `None` if a run did not reach the height.
    pub a: Vec<Option<f64>>,
    /// Times of the second variant by run.
    pub b: Vec<Option<f64>>,
    /// Starts of the runs of both variants, in seconds; empty if unknown. Used only for pairs.
    pub starts: (Vec<f64>, Vec<f64>),
    /// True if run n of one variant forms a pair with run n of the other.
    pub paired: bool,
    /// Seconds between samples, from the variant with the longer period. This is the resolution of
    /// the times.
    pub period: f64,
}

/// Judges times to several heights. The first height is the main result, so its p-value is not
/// corrected. The p-values of the other heights are corrected for the number of these heights.
/// `None` for a height that a variant never reached.
pub fn judge(heights: &[Times], random: &mut dyn FnMut() -> u64) -> Vec<Option<TimeComparison>> {
    let (main, others) = heights.split_at(heights.len().min(1));
    [main, others].iter().flat_map(|group| judge_group(group, random)).collect()
}

/// Judges times of equal importance. All p-values are corrected for the number of known
/// differences. `None` where a variant has no times.
fn judge_group(group: &[Times], random: &mut dyn FnMut() -> u64) -> Vec<Option<TimeComparison>> {
    let unjudged: Vec<Option<UnjudgedDifference>> =
        group.iter().map(|times| compare_times(times, random)).collect();
    // `judge_all` gets only the known differences, so it returns fewer items than the group has.
    let is_known: Vec<bool> = unjudged.iter().map(Option::is_some).collect();
    let mut judged = judge_all(unjudged.into_iter().flatten().collect()).into_iter();
    let rows = group.iter().zip(is_known);
    rows.map(|(times, is_known)| {
        let difference = if is_known { judged.next() } else { None };
        difference.map(|difference| time_comparison(times, &difference))
    })
    .collect()
}

/// Returns the faster variant of each bin: true for the first variant, false for the second. `None`
/// if a rate is unknown, or if the runs do not show that one variant is faster. `paired` is true if
/// run n of one variant forms a pair with run n of the other. `starts` is as in [`Times`].
///
/// One run of a variant has no spread, so the rates of single runs are compared as they are.
pub fn find_faster(
    a: &VariantRow,
    b: &VariantRow,
    starts: &(Vec<f64>, Vec<f64>),
    paired: bool,
    random: &mut dyn FnMut() -> u64,
) -> Vec<Option<bool>> {
    if a.runs.len().min(b.runs.len()) < 2 {
        return faster_by_bin(&a.rates, &b.rates);
    }
    // A run that stayed at one height has no time for the bin.
    let time_of = |bin: &Bin| {
        bin.rate.filter(|rate| *rate > 0.0).map(|rate| (bin.to - bin.from) as f64 / rate)
    };
    let times_of = |variant: &VariantRow, index: usize| -> Vec<Option<f64>> {
        variant.runs.iter().map(|run| run.bins.get(index).and_then(time_of)).collect()
    };
    // A rate is measured between two samples, so the period between samples does not limit it.
    let period = 0.0;
    let bins: Vec<Times> = (0..a.rates.len().min(b.rates.len()))
        .map(|index| Times {
            a: times_of(a, index),
            b: times_of(b, index),
            starts: starts.clone(),
            paired,
            period,
        })
        .collect();
    let is_first_faster = |comparison: Option<TimeComparison>| match comparison?.verdict {
        ComparisonVerdict::Better => Some(false),
        ComparisonVerdict::Worse => Some(true),
        ComparisonVerdict::Same | ComparisonVerdict::Negligible | ComparisonVerdict::CannotTell => {
            None
        }
    };
    judge_group(&bins, random).into_iter().map(is_first_faster).collect()
}

/// Compares the times to one height. `None` if a variant never reached it.
fn compare_times(times: &Times, random: &mut dyn FnMut() -> u64) -> Option<UnjudgedDifference> {
    let known_times = |runs: &[Option<f64>]| Values {
        runs: runs.iter().flatten().copied().filter(|time| *time > 0.0).collect(),
        ..Values::default()
    };
    let (mut a, mut b) = (known_times(&times.a), known_times(&times.b));
    let pairs = complete_pairs(times);
    let paired = times.paired && pairs.len() >= 2;
    if paired {
        let start_of =
            |starts: &[f64], (index, _): &(usize, (f64, f64))| starts.get(*index).copied();
        let starts_of =
            |starts: &[f64]| pairs.iter().filter_map(|pair| start_of(starts, pair)).collect();
        (a.starts, b.starts) = (starts_of(&times.starts.0), starts_of(&times.starts.1));
        (a.runs, b.runs) = pairs.iter().map(|(_, pair)| *pair).unzip();
    }
    let shortest = sorted(&[a.runs.as_slice(), &b.runs].concat()).first().copied()?;
    // A single run has no spread. So the medians are compared, even if the other variant has
    // several runs.
    if a.runs.len().min(b.runs.len()) < 2 {
        a.runs = median(&a.runs).into_iter().collect();
        b.runs = median(&b.runs).into_iter().collect();
    }
    // A change of less than one sample period is below the resolution, so it does not count.
    let design = Design { paired, spread: Some(times.period / shortest), bootstrap: false };
    compare(TIME, &a, &b, design, random)
}

/// Returns the pairs in which both runs reached the height, with their indices.
fn complete_pairs(times: &Times) -> Vec<(usize, (f64, f64))> {
    let pairs = times.a.iter().zip(&times.b).enumerate();
    let pairs = pairs.filter_map(|(index, (a, b))| Some((index, (*a).zip(*b)?)));
    pairs.filter(|(_, (a, b))| *a > 0.0 && *b > 0.0).collect()
}

/// Returns the row of the result for one height.
fn time_comparison(times: &Times, difference: &Difference) -> TimeComparison {
    let known_times =
        |runs: &[Option<f64>]| sorted(&runs.iter().flatten().copied().collect::<Vec<_>>());
    let (a, b) = (known_times(&times.a), known_times(&times.b));
    let spread = |runs: &[f64]| match runs {
        [shortest, .., longest] => Some(longest - shortest),
        _ => None,
    };
    let pairs = if times.paired { complete_pairs(times) } else { Vec::new() };
    TimeComparison {
        a: median(&a).unwrap_or(difference.a),
        b: median(&b).unwrap_or(difference.b),
        a_count: a.len(),
        b_count: b.len(),
        a_spread: spread(&a),
        b_spread: spread(&b),
        pairs: pairs.iter().map(|(_, (a, b))| b - a).collect(),
        change: difference.change,
        interval: difference.interval,
        p: difference.p,
        floor: difference.floor,
        basis: difference.basis,
        verdict: difference.verdict,
    }
}

/// Returns the main result: the time to the highest height that every run reached. `against`
/// compares one variant with the first.
pub fn main_row<'a>(result: &StudyResult, against: &'a VariantComparison) -> Option<&'a TimeRow> {
    let runs = result.variants.iter().flat_map(|variant| &variant.runs);
    let common = runs.map(|run| run.height).min()?;
    against.times.iter().rev().find(|row| row.height <= common)
}

#[cfg(test)]
mod tests {
    //! The reported values of few runs are consistent.

    use super::*;

    #[test]
    fn one_run_is_compared_with_the_median_of_several() {
        let times = Times {
            a: vec![Some(100.0)],
            b: vec![Some(90.0), Some(150.0), Some(160.0)],
            starts: (Vec::new(), Vec::new()),
            paired: false,
            period: 1.0,
        };
        let comparison = judge(&[times], &mut || 0).remove(0).unwrap();
        assert_eq!((comparison.a, comparison.b), (100.0, 150.0));
        assert!((comparison.change - 0.5).abs() < 1e-9, "{comparison:?}");
        assert_eq!(comparison.verdict, ComparisonVerdict::CannotTell);
    }
}
