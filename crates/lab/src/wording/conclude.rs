//! Sentences with the conclusions of a study.
//!
//! Each sentence names its evidence, or says that nothing can be concluded. A single run of an arm
//! is never an effect size, however large the difference. Conclusions from cache counters are in
//! `conclude/cause.rs`, the limits of the data in `conclude/limits.rs`.

mod cause;
mod limits;

use lab_model::results::study::{
    About, Against, ArmRow, Conclusion, Cross, Judged, StudyResult, TimeRow,
};
use lab_model::results::{Basis, Word};

use crate::analysis::sync::judge::main_row;
use crate::wording::number::{clock, count, percent, plural, short, span};

fn conclusion(about: About, text: String) -> Conclusion {
    Conclusion { about, arm: None, word: None, text }
}

/// All conclusions of a study; the verdicts come first.
pub(crate) fn conclusions(result: &StudyResult) -> Vec<Conclusion> {
    let mut all: Vec<Conclusion> = Vec::new();
    let several = result.against.len() > 1;
    let Some(first) = result.arms.first() else { return all };
    let others = || result.against.iter().zip(result.arms.iter().skip(1));
    for (against, other) in others() {
        all.push(verdict(result, against));
        all.extend(repeats(result, against));
        let mut own = Vec::new();
        own.extend(heights(against));
        own.extend(rates(result, against));
        own.extend(cause::warmup(result.bin, first, other));
        own.extend(cause::warmup(result.bin, other, first));
        own.extend(cause::work(first, other));
        own.extend(cause::reads(result.bin, first, other, &against.faster));
        own.extend(limits::tip_lead(against));
        all.extend(own.into_iter().map(|one| {
            let arm = several.then(|| other.name.clone());
            Conclusion { arm, ..one }
        }));
    }
    all.extend(limits::tips(result));
    all.extend(limits::stalls(result));
    all
}

fn verdict(result: &StudyResult, against: &Against) -> Conclusion {
    let (first, other) = (&against.first, &against.other);
    let (word, text) = match main_row(result, against) {
        None => (
            Word::CannotTell,
            format!("cannot tell: no height was reached by every run of {first} and {other}"),
        ),
        Some(row) if row.above_tip => (
            Word::CannotTell,
            format!(
                "cannot tell whether {other} syncs faster than {first}: the target {} was above the \
                 chain tip when it could have been reached, so its time depends on the block time",
                count(row.height)
            ),
        ),
        Some(TimeRow { height, judged: None, .. }) => (
            Word::CannotTell,
            format!("cannot tell: {first} and {other} did not both reach {}", count(*height)),
        ),
        Some(TimeRow { height, judged: Some(judged), .. }) => {
            (judged.verdict, verdict_sentence(*height, judged, (first, other)))
        }
    };
    Conclusion { about: About::Verdict, arm: Some(other.clone()), word: Some(word), text }
}

fn verdict_sentence(height: u64, judged: &Judged, (first, other): (&str, &str)) -> String {
    let difference = judged.b - judged.a;
    let side = if difference < 0.0 { "earlier" } else { "later" };
    let apart = format!("{} {side} ({})", span(difference.abs()), change(judged.change));
    let height = count(height);
    let interval = judged.interval.map(|(low, high)| {
        format!(
            "95 % interval {} to {}, {}",
            change(low),
            change(high),
            basis(judged.basis, judged)
        )
    });
    let interval = interval.unwrap_or_default();
    match judged.verdict {
        Word::Better => {
            format!("{other} syncs faster than {first}: it reaches {height} {apart}; {interval}")
        }
        Word::Worse => {
            format!("{other} syncs slower than {first}: it reaches {height} {apart}; {interval}")
        }
        Word::Same => format!(
            "{other} and {first} are equally fast: any difference at {height} is below {} ({interval})",
            percent(judged.floor)
        ),
        Word::Negligible => {
            let faster = if difference < 0.0 { "faster" } else { "slower" };
            format!(
                "{other} syncs {faster} than {first}, but the difference is negligible: it reaches \
                 {height} {apart}; {interval}; a change matters from {} on",
                percent(judged.floor)
            )
        }
        Word::CannotTell if judged.a_count.min(judged.b_count) < 2 => {
            let runs = match (judged.a_count, judged.b_count) {
                (1, 1) => "one run of each arm is".to_owned(),
                _ => "a single run of an arm is".to_owned(),
            };
            format!(
                "cannot tell whether {other} syncs faster than {first}: {runs} no effect size, because \
                 the spread between equal runs is unknown; in these runs {other} reached {height} {apart}"
            )
        }
        Word::CannotTell => format!(
            "cannot tell whether {other} syncs faster than {first}: its median time to {height} is \
             {apart}, {interval}, and a change matters from {} on",
            percent(judged.floor)
        ),
    }
}

fn basis(basis: Basis, judged: &Judged) -> String {
    match basis {
        Basis::PairedRuns => plural(judged.pairs.len() as u64, "pair"),
        _ => format!("{} and {} runs", judged.a_count, judged.b_count),
    }
}

/// A relative change: `−16.0 %`, `+3.2 %`.
pub(crate) fn change(change: f64) -> String {
    let sign = if change < 0.0 { "−" } else { "+" };
    format!("{sign}{:.1} %", change.abs() * 100.0)
}

/// The spread between repeats, next to the difference between arms.
fn repeats(result: &StudyResult, against: &Against) -> Option<Conclusion> {
    let row = main_row(result, against).filter(|row| !row.above_tip)?;
    let judged = row.judged.as_ref()?;
    let mut parts = Vec::new();
    for (name, spread, runs) in [
        (&against.first, judged.a_spread, judged.a_count),
        (&against.other, judged.b_spread, judged.b_count),
    ] {
        if let Some(spread) = spread {
            parts.push(format!("{runs} runs of {name} differ by {}", span(spread)));
        }
    }
    let apart = span((judged.b - judged.a).abs());
    let text = format!(
        "at {} {}; the medians of both arms differ by {apart}",
        count(row.height),
        parts.join(" and ")
    );
    (!parts.is_empty()).then(|| Conclusion {
        arm: Some(against.other.clone()),
        ..conclusion(About::Repeats, text)
    })
}

/// Which arm leads, and where the lead changes.
fn heights(against: &Against) -> Option<Conclusion> {
    let pairs = &against.pairs;
    let (first, other) = (&against.first, &against.other);
    let crossed = pairs.iter().filter(|pair| !pair.crosses.is_empty()).count();
    let pair = pairs.first()?;
    let name = |to_first: bool| if to_first { first } else { other };
    let at = |cross: &Cross| format!("{} (height {})", clock(cross.elapsed), count(cross.height));
    let mut text = match pair.crosses.as_slice() {
        [] => {
            let leads = |side: bool| {
                pairs.iter().all(|pair| match side {
                    true => pair.blocks.1.is_none_or(|lead| lead.blocks > -1.0),
                    false => pair.blocks.0.is_none_or(|lead| lead.blocks < 1.0),
                })
            };
            match (leads(true), leads(false)) {
                (true, false) => format!("{first} is never behind {other}"),
                (false, true) => format!("{other} is never behind {first}"),
                _ => return None,
            }
        }
        [only] => format!(
            "{} leads until {}, then {} leads",
            name(!only.to_first),
            at(only),
            name(only.to_first)
        ),
        [begin, .., last] => format!(
            "the lead changes {} times, first at {} and last at {}; after that {} leads",
            pair.crosses.len(),
            at(begin),
            at(last),
            name(last.to_first)
        ),
    };
    if pairs.len() > 1 {
        text += &format!(" ({}; heights cross in {crossed} of {} pairs)", pair.first, pairs.len());
    }
    Some(conclusion(About::Heights, text))
}

/// At which heights an arm is faster, and how much earlier that is than its lead in height.
fn rates(result: &StudyResult, against: &Against) -> Option<Conclusion> {
    let (first, other) = (&against.first, &against.other);
    let crosses = &against.rate_crosses;
    let last = crosses.last()?;
    let finally_first = last.to_first;
    let name = if finally_first { first } else { other };
    // The arm that is faster in the end: the height from which it is, and the exceptions.
    let since = crosses.iter().find(|cross| cross.to_first == finally_first)?;
    let lost: Vec<String> = crosses
        .iter()
        .filter(|cross| cross.height > since.height)
        .collect::<Vec<_>>()
        .chunks(2)
        .filter_map(|pair| match pair {
            [from, to] => Some(format!("from {} to {}", count(from.height), count(to.height))),
            _ => None,
        })
        .collect();
    let mut text = format!("{name} is faster from {} on", count(since.height));
    if !lost.is_empty() {
        text += &format!(", except {}", lost.join(", "));
    }
    let crossed: Vec<f64> = against
        .pairs
        .iter()
        .filter_map(|pair| pair.crosses.iter().rev().find(|cross| cross.to_first == finally_first))
        .map(|cross| cross.height as f64)
        .collect();
    let height = crate::analysis::statistics::median(&crossed);
    if let Some(height) = height.filter(|height| *height > (since.height + result.bin) as f64) {
        text += &format!(
            ": the rates cross {} blocks before the heights do",
            short(height - since.height as f64)
        );
    }
    Some(conclusion(About::Rates, text))
}

/// The value of a bucket, if there is one.
fn at(values: &[Option<f64>], place: usize) -> Option<f64> {
    values.get(place).copied().flatten()
}

/// Rate of an arm over some buckets: the sum of blocks of all runs ÷ the sum of seconds.
fn rate_over(arm: &ArmRow, bins: &[usize]) -> Option<f64> {
    let own =
        || arm.runs.iter().flat_map(|run| bins.iter().filter_map(|place| run.bins.get(*place)));
    let blocks: f64 = own().map(|bin| bin.blocks as f64).sum();
    let seconds: f64 = own().map(|bin| bin.seconds).sum();
    (seconds > 0.0).then(|| blocks / seconds)
}
