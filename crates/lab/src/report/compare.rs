//! The document of a comparison: the differences of each arm from the first one, with intervals.

use lab_model::results::Word;
use lab_model::results::compare::{CompareResult, Difference, Mismatch, Weight};

use super::document::{
    ALL, Block, Document, FILES, List, MARKDOWN, PAGE, Row, Section, Span, TERMINAL, Text, table,
    tone,
};
use super::parts;
use crate::wording::difference;
use crate::wording::number::short;

#[cfg(test)]
pub(in crate::report) mod tests;

/// Width of an interval's bar in pixels.
const BAR: f64 = 180.0;
/// Factor at the right end of a bar; the left end is its reciprocal.
const FACTOR_MAX: f64 = 3.0;
/// Maximum number of characters of a mismatch's value on the terminal.
const SHOWN_MAX: usize = 60;

/// The document of a comparison.
pub(super) fn document(result: &CompareResult) -> Document {
    let names: Vec<&str> = result.arms.iter().map(|arm| arm.name.as_str()).collect();
    let names = names.join(" · ");
    let left_out = result.arms.iter().map(|arm| (&arm.name, &arm.left_out));
    let mut sections = vec![
        Some(verdict(result)),
        Some(arms(result)),
        parts::left_out(left_out, ALL),
        mismatches(result),
    ];
    sections.extend(result.arms.iter().skip(1).map(|arm| differences(result, &arm.name)));
    sections.push(normalised(result));
    let warnings = parts::warnings(&result.warnings, usize::MAX, ALL);
    sections.push(warnings.map(|section| Section { tight: false, ..section }));
    // The verdict comes last on the terminal and first in files.
    let list = Block::List(List::of(&result.sentences));
    sections.push(Some(Section::default().on(TERMINAL, list)));
    Document {
        command: "weir compare",
        title: names.clone(),
        window: "comparison".to_owned(),
        heading: format!("Comparison: {names}"),
        lead: Vec::new(),
        sections: sections.into_iter().flatten().collect(),
        glossary: true,
    }
}

/// The verdict: the sentences about all arms.
fn verdict(result: &CompareResult) -> Section {
    let has = |word: Word| result.differences.iter().any(|one| one.verdict == word);
    let class = match () {
        () if has(Word::Worse) => "fail",
        () if has(Word::Better) => "pass",
        () => "invalid",
    };
    let (none, sentences) = (String::new, result.sentences.clone());
    let any = !sentences.is_empty();
    Section::default()
        .on(PAGE, any.then(|| Block::Verdict(class, none(), none(), sentences)))
        .on(MARKDOWN, Block::List(List::of(&result.sentences)))
}

fn letter(place: usize) -> String {
    let letter = u8::try_from(place).ok().filter(|place| *place < 26);
    letter.map_or_else(|| (place + 1).to_string(), |place| char::from(b'A' + place).to_string())
}

fn arms(result: &CompareResult) -> Section {
    let table = table!(result.arms.iter().enumerate(), |(place, arm)|
        "<" => letter(place),
        "<arm" => &arm.name,
        "<tool" => &arm.tool,
        "runs" => arm.runs.to_string(),
        "~description" => &arm.described,
    );
    let lead = format!("The others are compared with the first. Written by weir {}.", result.weir);
    Section::new("arms", "Arms").lead(&lead).on(ALL, Block::Table(table))
}

fn mismatches(result: &CompareResult) -> Option<Section> {
    let shown = |value: &str| match value.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{}…", &value[..end]),
        None => value.to_owned(),
    };
    let lines = result.mismatches.iter().map(|one| {
        let Mismatch { what, a, b, arm, weight, why } = one;
        format!("{} {what}: {} / {} ({arm}): {why}", weight.as_str(), shown(a), shown(b))
    });
    let weight = |weight: Weight| match weight {
        Weight::Note => tone("weak", weight.as_str()),
        Weight::Warn => tone("limited", weight.as_str()),
        Weight::Refuse => tone("broken", weight.as_str()),
    };
    let table = table!(&result.mismatches, |one|
        "<" => weight(one.weight),
        "<fact" => &one.what,
        "~A" => &one.a,
        "~other" => &one.b,
        "<arm" => &one.arm,
        "~meaning" => &one.why,
    );
    let section = Section::new("mismatches", "Mismatches")
        .on(TERMINAL, Block::Note("Mismatches:".into()))
        .on(TERMINAL, Block::List(List::of(lines)))
        .on(FILES, Block::Table(table));
    (!result.mismatches.is_empty()).then_some(section)
}

fn differences(result: &CompareResult, arm: &str) -> Option<Section> {
    let own: Vec<&Difference> = result.differences.iter().filter(|one| one.arm == arm).collect();
    let first = result.arms.first().map_or("", |first| &first.name);
    let none = || "–".to_owned();
    let p = |p: f64| if p < 0.001 { "<0.001".to_owned() } else { format!("{p:.3}") };
    let mut table = table!(own.iter().copied(), |one|
        "<method @m" => &one.method,
        "<metric @m" => one.metric.as_str(),
        "<|method, metric @tp" => one.metric.as_str(),
        "A" => difference::value(one, one.a),
        "B" => difference::value(one, one.b),
        "change" => difference::change(one),
        "95 % interval" => difference::interval(one).unwrap_or_else(none),
        "< @p" => bar(one).map_or_else(Text::default, |svg| Span::Drawing(svg).into()),
        "p" => one.p.map_or_else(none, p),
        "<verdict" => tone(paint(one.verdict), one.verdict.as_str()),
        "<basis @mp" => Span::Small(one.basis.as_str().to_owned()),
    );
    // Each method is a group, with its name above its metrics.
    let rows = std::mem::take(&mut table.groups).into_iter().flatten();
    for (one, row) in own.iter().zip(rows) {
        if table.groups.last().is_none_or(|group| group[0].cells[0] != row.cells[0]) {
            let basis = format!("{}  [{}]", one.method, one.basis.as_str());
            let name = Row { cells: row.cells.clone(), ..Row::across(0, "", PAGE) };
            table.groups.push(vec![name, Row::across(0, basis, TERMINAL)]);
        }
        table.groups.last_mut()?.push(Row { part: true, ..row });
    }
    table.grouped = Some("");
    let section = Section::new("", format!("A = {first}, B = {arm}"))
        .lead(
            "Each [difference](difference) with its 95 % interval. Changes within the grey field do \
             not matter; a bar outside of it is a change. The bars reach from a third to three times.",
        )
        .on(TERMINAL, Block::Note(format!("B = {arm}").into()))
        .on(ALL, Block::Table(table));
    (!own.is_empty()).then_some(section)
}

fn paint(word: Word) -> &'static str {
    match word {
        Word::Better => "kept",
        Word::Worse => "broken",
        Word::Same | Word::Negligible => "",
        Word::CannotTell => "weak",
    }
}

/// Position of a relative change on the bar, in pixels. The scale is logarithmic.
fn place(change: f64) -> f64 {
    let factor = (1.0 + change).clamp(1.0 / FACTOR_MAX, FACTOR_MAX);
    BAR / 2.0 * (1.0 + factor.ln() / FACTOR_MAX.ln())
}

/// Draws an interval as a bar, or returns `None` for shares, whose changes are not factors.
fn bar(one: &Difference) -> Option<String> {
    if difference::is_share(one) || !one.change.is_finite() {
        return None;
    }
    let ink = match one.verdict {
        Word::Better => "good",
        Word::Worse => "bad",
        Word::Same | Word::Negligible | Word::CannotTell => "shade",
    };
    let px = |x: f64| format!("{x:.1}");
    let (from, to) = (place(-one.floor), place(one.floor));
    let interval = one.interval.map(|(low, high)| (px(place(low)), px(place(high))));
    let svg = maud::html! {
        svg.forest viewBox={ "0 0 " (BAR) " 14" } role="img" aria-label="interval" {
            rect class="f-grid" x=(px(from)) y="0" width=(px((to - from).max(0.5))) height="14" {}
            line class="s-shade" x1=(px(BAR / 2.0)) x2=(px(BAR / 2.0)) y1="0" y2="14" stroke-width="0.6" {}
            @if let Some((low, high)) = interval {
                line class={ "s-" (ink) } x1=(low) x2=(high) y1="7" y2="7" stroke-width="2.4" {}
            }
            circle class={ "f-" (ink) } cx=(px(place(one.change))) cy="7" r="3.4" {}
        }
    };
    Some(svg.into_string())
}

const CAUTION: &str = "Per core and per request. Machines differ in more than cores: use these figures \
                       to choose what to measure side by side, not to decide which is faster.";

/// Returns figures per core and per request, for arms from different machines or for three or more
/// arms.
fn normalised(result: &CompareResult) -> Option<Section> {
    let mut machines: Vec<&str> =
        result.normalised.iter().map(|row| row.machine.as_str()).collect();
    machines.sort_unstable();
    machines.dedup();
    if machines.len() < 2 && result.arms.len() < 3 {
        return None;
    }
    let shown = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), short);
    let table = table!(&result.normalised, |row|
        "<arm" => &row.arm,
        "cores" => shown(row.cores),
        "results/s" => shown(row.goodput),
        "per core" => shown(row.goodput_per_core),
        "p50 ms" => shown(row.p50_ms),
        "p99 ms" => shown(row.p99_ms),
        "CPU ms/request" => shown(row.cpu_ms_per_request),
        "~machine" => &row.machine,
    );
    let section = Section::new("normalised", "Per core and per request");
    Some(section.on(ALL, Block::Note(CAUTION.into())).on(ALL, Block::Table(table)))
}
