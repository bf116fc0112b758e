//! Arms over their repeats: is one sooner there than the other, by how much, and is that more than
//! repeats of one arm differ by?
//!
//! A time to a height is compared by ratio, less is better, with the rules of `analysis/compare.rs`.

use lab_model::results::Word;
use lab_model::results::compare::Metric;
use lab_model::results::study::{Against, Judged, StudyResult, TimeRow};

use crate::analysis::compare::{Design, Found, Values, compare, words};
use crate::analysis::statistics::{median, sorted};

/// What a time is to the rules of comparison: a ratio of which less is better.
const TIME: Metric = Metric::ServiceMean;

/// Times to one height, of the runs that reached it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Times {
    /// Of the first arm, by run; none where a run did not reach it.
    pub a: Vec<Option<f64>>,
    /// Of the other.
    pub b: Vec<Option<f64>>,
    /// Whether the first run of the one belongs to the first of the other, and so on.
    pub paired: bool,
    /// Seconds between samples, the longer of both arms: a time is not known more closely.
    pub period: f64,
}

/// Judges times to several heights. The first height is the one that was to be judged; it stands
/// alone, while the others are corrected for each other. None where an arm never reached a height.
pub fn judge(all: &[Times], random: &mut dyn FnMut() -> u64) -> Vec<Option<Judged>> {
    let found: Vec<Option<Found>> = all.iter().map(|times| one(times, random)).collect();
    let (first, others) = found.split_at(found.len().min(1));
    let mut told = Vec::new();
    for part in [first, others] {
        let known: Vec<Found> = part.iter().flatten().cloned().collect();
        let mut words = words(&known).into_iter();
        told.extend(part.iter().map(|found| found.as_ref().and_then(|_| words.next())));
    }
    let whole = all.iter().zip(found).zip(told);
    whole.map(|((times, found), told)| Some(row(times, &found?, told?))).collect()
}

fn one(times: &Times, random: &mut dyn FnMut() -> u64) -> Option<Found> {
    let known = |runs: &[Option<f64>]| Values {
        runs: runs.iter().flatten().copied().filter(|time| *time > 0.0).collect(),
        ..Values::default()
    };
    let (mut a, mut b) = (known(&times.a), known(&times.b));
    let pairs = pairs(times);
    let paired = times.paired && pairs.len() >= 2;
    if paired {
        a.runs = pairs.iter().map(|pair| pair.0).collect();
        b.runs = pairs.iter().map(|pair| pair.1).collect();
    }
    let shortest = sorted(&[a.runs.as_slice(), &b.runs].concat()).first().copied()?;
    // A single run of an arm shows nothing of what its runs differ by, however many the other has.
    if a.runs.len().min(b.runs.len()) < 2 {
        a.runs = median(&a.runs).into_iter().collect();
        b.runs = median(&b.runs).into_iter().collect();
    }
    let design = Design { paired, spread: Some(times.period / shortest) };
    compare(TIME, &a, &b, design, random)
}

/// Times of runs that belong together and both reached it.
fn pairs(times: &Times) -> Vec<(f64, f64)> {
    let both = times.a.iter().zip(&times.b).filter_map(|(a, b)| (*a).zip(*b));
    both.filter(|(a, b)| *a > 0.0 && *b > 0.0).collect()
}

fn row(times: &Times, found: &Found, (verdict, p): (Word, Option<f64>)) -> Judged {
    let known = |runs: &[Option<f64>]| sorted(&runs.iter().flatten().copied().collect::<Vec<_>>());
    let (a, b) = (known(&times.a), known(&times.b));
    let spread = |runs: &[f64]| match runs {
        [least, .., most] => Some(most - least),
        _ => None,
    };
    let pairs = if times.paired { pairs(times) } else { Vec::new() };
    Judged {
        a: median(&a).unwrap_or(found.a),
        b: median(&b).unwrap_or(found.b),
        a_count: a.len(),
        b_count: b.len(),
        a_spread: spread(&a),
        b_spread: spread(&b),
        pairs: pairs.iter().map(|(a, b)| b - a).collect(),
        change: found.change,
        interval: found.interval.map(|interval| (interval.low, interval.high)),
        p,
        floor: found.floor,
        basis: found.basis,
        verdict,
    }
}

/// The time that is judged: to the highest height that every run reached.
pub fn main_row<'a>(result: &StudyResult, against: &'a Against) -> Option<&'a TimeRow> {
    let runs = result.arms.iter().flat_map(|arm| &arm.runs);
    let common = runs.map(|run| run.height).min()?;
    against.times.iter().rev().find(|row| row.height <= common)
}

#[cfg(test)]
mod tests {
    //! Goal: what is told of few runs is one thing.

    use super::*;

    #[test]
    fn one_run_is_held_against_the_median_of_several() {
        let times = Times {
            a: vec![Some(100.0)],
            b: vec![Some(90.0), Some(150.0), Some(160.0)],
            paired: false,
            period: 1.0,
        };
        let told = judge(&[times], &mut || 0).remove(0).unwrap();
        assert_eq!((told.a, told.b), (100.0, 150.0));
        assert!((told.change - 0.5).abs() < 1e-9, "{told:?}");
        assert_eq!(told.verdict, Word::CannotTell);
    }
}
