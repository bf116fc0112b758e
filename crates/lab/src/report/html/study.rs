//! A study of syncs as a page: what follows, then heights, leads, rates and hit ratios as curves.
//!
//! Each arm has one colour in all charts; where it has several runs they are thin lines, and what is
//! over all of them is a thick one. A lead above the line is the other arm's in every chart.

use maud::{Markup, html};

use super::verdict::{tile, warnings};
use super::{document, figure};
use crate::analysis::sync::conclude::change;
use crate::report::chart::axis::{Axis, Scale, Tick};
use crate::report::chart::{Chart, Ink, Shape};
use crate::report::number::{count, percent, plural, short};
use crate::report::study::{Table, bins, how, main, runs, signed, time, times, verdict, word};
use crate::results::Word;
use crate::results::study::{About, Against, ArmRow, StudyResult};

/// Size of a chart in pixels.
const WIDE: i32 = 1000;
const TALL: i32 = 300;
/// Tenths of a pixel: a run among several, and what stands for all of an arm.
const THIN: u32 = 9;
const THICK: u32 = 19;

/// See [`crate::report::study_html`].
pub(in crate::report) fn page(result: &StudyResult) -> String {
    let body = html! {
        (head(result))
        (conclusions(result))
        (warnings(&result.warnings))
        h2 id="times" { "Times to heights" }
        p.lead {
            "From each run's beginning to its first sample at or above the height; of several runs the \
             median, with the fastest and the slowest. The last height that all reached is judged."
        }
        (table(&times(result), 1))
        (height(result))
        @for (place, against) in result.against.iter().enumerate() { (leads(result, place, against)) }
        (rates(result))
        h2 id="bins" { "By height, in numbers" }
        (table(&bins(result), 1))
        h2 id="runs" { "Runs" }
        (table(&runs(result), 3))
        (left_out(result))
        p.note {
            "Written by weir " (result.weir) ", " (result.schema) ". Every sample is in samples.csv, \
             everything else in study.json; how it is counted is in docs/studies.md."
        }
    };
    document(&format!("study: {}", result.name), &body)
}

fn head(result: &StudyResult) -> Markup {
    let judged = verdict(result);
    let (class, name) = match judged {
        Word::Better => ("pass", "FASTER"),
        Word::Same => ("pass", "SAME"),
        Word::Negligible => ("pass", "NEGLIGIBLE"),
        Word::Worse => ("fail", "SLOWER"),
        Word::CannotTell => ("invalid", "CANNOT TELL"),
    };
    html! {
        header {
            div.kind { "weir study sync" }
            h1 { (result.name) }
            @if let Some(question) = &result.question { div.lead { (question) } }
            div.lead { (how(result)) }
            nav {
                a href="#conclusions" { "What follows" }
                a href="#times" { "Times" }
                a href="#height" { "Heights" }
                a href="#lead-0" { "Leads" }
                a href="#rates" { "Rates" }
                a href="#bins" { "Numbers" }
                a href="#runs" { "Runs" }
            }
        }
        @if result.partial {
            div.partial {
                b { "Partial result. " }
                "The study was ended before its plan; everything below is of the part that ran."
            }
        }
        div class={ "verdict " (class) } {
            span.word { (name) }
            @for one in result.conclusions.iter().filter(|one| one.about == About::Verdict) {
                p { (one.text) }
            }
        }
        (tiles(result))
    }
}

fn tiles(result: &StudyResult) -> Markup {
    let Some((row, judged)) = main(result).and_then(|row| Some((row, row.judged.as_ref()?))) else {
        return html! {};
    };
    let names = result.against.first().map(|one| (one.first.as_str(), one.other.as_str()));
    let (first, other) = names.unwrap_or_default();
    let spread = [judged.a_spread, judged.b_spread]
        .into_iter()
        .flatten()
        .fold(None, |most, one| Some(f64::max(most.unwrap_or(0.0), one)));
    html! {
        div.tiles {
            (tile("", &time(judged.a), html! { (first) " to " (count(row.height)) }))
            (tile("", &time(judged.b), html! { (other) " to " (count(row.height)) }))
            (tile("", &signed(judged.b - judged.a), html! { "difference" }))
            (tile("", &change(judged.change), html! { "change" }))
            (tile("", &spread.map_or_else(|| String::from("not known"), time),
                html! { "most that repeats differ by" }))
            (tile("", &percent(judged.floor), html! { "what matters" }))
        }
    }
}

fn conclusions(result: &StudyResult) -> Markup {
    html! {
        h2 id="conclusions" { "What follows" }
        div.card { dl.facts {
            @for one in result.conclusions.iter().filter(|one| one.about != About::Verdict) {
                dt {
                    (one.about.as_str())
                    @if let Some(arm) = one.arm.as_ref().filter(|_| result.against.len() > 1) {
                        ", " (arm)
                    }
                }
                dd { (one.text) }
            }
        } }
    }
}

/// A table of which the first `left` columns are words.
fn table(table: &Table, left: usize) -> Markup {
    html! {
        div.card { div.scroll { table {
            thead { tr {
                @for (place, head) in table.heads.iter().enumerate() {
                    th.l[place < left] { (head) }
                }
            } }
            tbody { @for row in &table.rows { tr {
                @for (place, cell) in row.iter().enumerate() {
                    td class=[if place < left { Some("l") } else { paint(cell) }] { (cell) }
                }
            } } }
        } } }
    }
}

fn paint(cell: &str) -> Option<&'static str> {
    let is = |one: Word| cell == word(one);
    match () {
        () if is(Word::Better) => Some("kept"),
        () if is(Word::Worse) => Some("broken"),
        () if is(Word::CannotTell) => Some("weak"),
        () => None,
    }
}

fn left_out(result: &StudyResult) -> Markup {
    let all: Vec<String> = result
        .arms
        .iter()
        .flat_map(|arm| arm.left_out.iter().map(|one| format!("{}, {one}", arm.name)))
        .collect();
    html! {
        @if !all.is_empty() {
            h3 { "Left out: " (plural(all.len() as u64, "run")) }
            ul.plain { @for one in &all { li { (one) } } }
        }
    }
}

fn keys(arms: &[ArmRow]) -> Vec<(Ink, &str)> {
    arms.iter().enumerate().map(|(place, arm)| (Ink::Series(place), arm.name.as_str())).collect()
}

fn runs_of(result: &StudyResult) -> impl Iterator<Item = &crate::results::study::RunRow> {
    result.arms.iter().flat_map(|arm| &arm.runs)
}

fn height(result: &StudyResult) -> Markup {
    let mut shapes = Vec::new();
    for cross in
        result.against.iter().flat_map(|one| one.pairs.first()).flat_map(|one| &one.crosses)
    {
        let text = Some(format!("heights cross at {}", count(cross.height)));
        shapes.push(Shape::Mark { x: cross.elapsed, ink: Ink::Stage, text });
    }
    for (place, arm) in result.arms.iter().enumerate() {
        let width = if arm.runs.len() > 1 { THIN } else { THICK };
        for run in &arm.runs {
            let points = run.points.iter().map(|(at, height)| Some((*at, *height as f64)));
            shapes.push(Shape::Curve { points: points.collect(), ink: Ink::Series(place), width });
        }
    }
    let chart = Chart {
        title: String::from("Height"),
        size: (WIDE, TALL),
        x: Axis::time(runs_of(result).map(|run| run.elapsed).fold(0.0, f64::max)),
        y: Axis::up_to(most_height(result), Scale::Number),
        strip: 0,
        shapes,
    };
    html! {
        h2 id="height" { "Heights over time" }
        p.lead { "From each run's beginning." }
        div.card { (figure(&chart, &keys(&result.arms))) }
    }
}

fn most_height(result: &StudyResult) -> f64 {
    runs_of(result).map(|run| run.height as f64).fold(1.0, f64::max)
}

/// The other arm's lead, in blocks over time and in seconds over height.
fn leads(result: &StudyResult, place: usize, against: &Against) -> Markup {
    let (first, other) = (&against.first, &against.other);
    let width = if against.pairs.len() > 1 { THIN } else { THICK };
    let ink = Ink::Series(place + 1);
    let curve = |points: Vec<(f64, f64)>| Shape::Curve {
        points: points.into_iter().map(Some).collect(),
        ink,
        width,
    };
    let blocks: Vec<Vec<(f64, f64)>> = against
        .pairs
        .iter()
        .map(|pair| pair.by_time.iter().map(|(at, blocks)| (*at, -blocks)).collect())
        .collect();
    let seconds: Vec<Vec<(f64, f64)>> = against
        .pairs
        .iter()
        .map(|pair| pair.by_height.iter().map(|one| (one.height, one.seconds)).collect())
        .collect();
    let last = blocks.iter().flatten().map(|point| point.0).fold(0.0, f64::max);
    let over_time = Chart {
        title: format!("Lead of {other} over {first}, in blocks over time"),
        size: (WIDE, TALL),
        x: Axis::time(last),
        y: around_zero(&blocks, in_blocks),
        strip: 0,
        shapes: [vec![zero(last)], blocks.into_iter().map(curve).collect()].concat(),
    };
    let most = most_height(result);
    let over_height = Chart {
        title: format!("Lead of {other} over {first}, in time at equal height"),
        size: (WIDE, TALL),
        x: Axis::up_to(most, Scale::Number),
        y: around_zero(&seconds, in_time),
        strip: 0,
        shapes: [vec![zero(most * 2.0)], seconds.into_iter().map(curve).collect()].concat(),
    };
    html! {
        h2 id={ "lead-" (place) } { "Lead of " (other) }
        p.lead { "Above the line " (other) " is ahead, below it " (first) "." }
        div.card { (figure(&over_time, &[])) }
        div.card { (figure(&over_height, &[])) }
    }
}

fn zero(to: f64) -> Shape {
    Shape::Curve { points: vec![Some((0.0, 0.0)), Some((to, 0.0))], ink: Ink::Plan, width: 10 }
}

fn in_blocks(blocks: f64) -> String {
    // Labels are round: without zeros behind the point.
    let tidy = |text: String| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    };
    match blocks.abs() {
        n if n >= 1e6 => format!("{}M", tidy(short(blocks / 1e6))),
        n if n >= 1e4 => format!("{}k", tidy(short(blocks / 1e3))),
        _ => tidy(short(blocks)),
    }
}

fn in_time(seconds: f64) -> String {
    if seconds == 0.0 { String::from("0") } else { signed(seconds).replace('+', "") }
}

/// An axis that holds zero and all values, with about six labels.
fn around_zero(curves: &[Vec<(f64, f64)>], write: fn(f64) -> String) -> Axis {
    let values = || curves.iter().flatten().map(|point| point.1).filter(|value| value.is_finite());
    let (least, most) = (values().fold(0.0, f64::min), values().fold(0.0, f64::max));
    let step = step((most - least).max(1e-9) / 5.0, write(120.0).contains(':'));
    let (from, to) = ((least / step).floor() * step, ((most / step).ceil() * step).max(step));
    let mut ticks = Vec::new();
    let mut at = from;
    while at <= to + step * 1e-6 {
        let rounded = (at / step).round() * step;
        ticks.push(Tick { at: rounded, label: write(rounded + 0.0) });
        at += step;
    }
    Axis { from, to, ticks }
}

/// The next round step; of times that are written as a clock, in whole minutes or hours.
fn step(least: f64, clock: bool) -> f64 {
    const CLOCK: [f64; 9] = [60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0, 14_400.0, 28_800.0];
    if let Some(step) = CLOCK.iter().find(|step| clock && least > 12.0 && **step >= least) {
        return *step;
    }
    let power = 10f64.powf(least.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * power);
    steps.into_iter().find(|step| *step >= least * 0.999).unwrap_or(power * 10.0)
}

/// Rates and hit ratios by height.
fn rates(result: &StudyResult) -> Markup {
    let x = Axis::up_to(most_height(result), Scale::Number);
    let of = |title: &str, y: Axis, all: fn(&ArmRow) -> &[Option<f64>], one: Of| {
        let mut shapes = Vec::new();
        for (place, arm) in result.arms.iter().enumerate() {
            let ink = Ink::Series(place);
            if arm.runs.len() > 1 {
                for run in &arm.runs {
                    let values: Vec<Option<f64>> = run.bins.iter().map(one).collect();
                    shapes.push(Shape::Curve { points: steps(&values, result), ink, width: 6 });
                }
            }
            shapes.push(Shape::Curve { points: steps(all(arm), result), ink, width: THICK });
        }
        Chart { title: title.into(), size: (WIDE, TALL), x: x.clone(), y, strip: 0, shapes }
    };
    let most = runs_of(result).flat_map(|run| &run.bins).filter_map(|bin| bin.rate);
    let rate = of(
        "Blocks per second",
        Axis::up_to(most.fold(0.0, f64::max), Scale::Number),
        |arm| &arm.rates,
        |bin| bin.rate,
    );
    let hits = of(
        "Hit ratio of the page cache",
        Axis { to: 1.0, ..Axis::up_to(0.99, Scale::Share) },
        |arm| &arm.hit_ratios,
        |bin| bin.hit_ratio,
    );
    let counted = result.arms.iter().any(|arm| arm.hit_ratios.iter().any(Option::is_some));
    html! {
        h2 id="rates" { "Rates by height" }
        p.lead {
            "In bins of " (count(result.bin)) " blocks: at equal height the arms have the same blocks \
             before them, at equal time they do not."
        }
        div.card { (figure(&rate, &keys(&result.arms))) }
        @if counted { div.card { (figure(&hits, &keys(&result.arms))) } }
    }
}

type Of = fn(&crate::results::study::Bin) -> Option<f64>;

/// A value for each bin, as steps.
fn steps(values: &[Option<f64>], result: &StudyResult) -> Vec<Option<(f64, f64)>> {
    let width = result.bin as f64;
    let end = most_height(result);
    let mut points = Vec::new();
    for (place, value) in values.iter().enumerate() {
        match value {
            Some(value) => {
                let from = place as f64 * width;
                points.push(Some((from, *value)));
                points.push(Some(((from + width).min(end), *value)));
            }
            None => points.push(None),
        }
    }
    points
}
