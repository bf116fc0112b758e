//! The document of a comparison: the differences of each variant from the first one, with
//! intervals.
//!
//! `section.on(PAGE, block)` adds a block that only the HTML page has; `FILES` stands for Markdown
//! and the page. `table!(&rows, |row| Column::text("name") => &row.name)` creates a table with one
//! row for each of `rows`. In a heading, intro or note, `[difference](difference)` is a text that
//! links to the glossary entry "difference".

use std::convert::identity;

use lab_model::results::ComparisonVerdict;
use lab_model::results::compare::{CompareResult, Difference, Mismatch, Weight};

use super::document::{
    ALL, Block, Column, Document, FILES, List, MARKDOWN, PAGE, Row, Section, Span, TERMINAL, Text,
    table, tone,
};
use super::parts::{self, or_dash};
use crate::wording::difference;
use crate::wording::number::short;

#[cfg(test)]
pub(in crate::report) mod tests;

/// Width of an interval's bar in pixels.
const BAR_WIDTH: f64 = 180.0;
/// Factor at the right end of a bar. The left end is its reciprocal: a bar reaches from a third of
/// the first variant's value to three times that value.
const FACTOR_MAX: f64 = 3.0;
/// Maximum number of characters of a mismatch's value on the terminal. A mismatch is a fact, such
/// as the CPU, in which the compared runs differ.
const VALUE_CHARS_MAX: usize = 60;

/// Builds the document of a comparison.
pub(super) fn document(result: &CompareResult) -> Document {
    let names: Vec<&str> = result.variants.iter().map(|variant| variant.name.as_str()).collect();
    let names = names.join(" · ");
    let left_out = result.variants.iter().map(|variant| (&variant.name, &variant.left_out));
    let mut sections = vec![
        Some(verdict(result)),
        Some(variants(result)),
        parts::left_out(left_out, ALL),
        mismatches(result),
    ];
    sections
        .extend(result.variants.iter().skip(1).map(|variant| differences(result, &variant.name)));
    sections.push(normalised_section(result));
    let warnings = parts::warnings(&result.warnings, usize::MAX, ALL);
    sections.push(warnings.map(|section| Section { tight: false, ..section }));
    // The verdict comes last on the terminal and first in files.
    let list = Block::List(List::of(&result.conclusions));
    sections.push(Some(Section::default().on(TERMINAL, list)));
    Document {
        command: "weir compare",
        title: names.clone(),
        window: "comparison".to_owned(),
        heading: format!("Comparison: {names}"),
        intro: Vec::new(),
        sections: sections.into_iter().flatten().collect(),
        glossary: true,
    }
}

/// Returns the verdict: the sentences about all variants.
fn verdict(result: &CompareResult) -> Section {
    let has =
        |verdict: ComparisonVerdict| result.differences.iter().any(|row| row.verdict == verdict);
    let class = match () {
        () if has(ComparisonVerdict::Worse) => "fail",
        () if has(ComparisonVerdict::Better) => "pass",
        () => "invalid",
    };
    let reasons = result.conclusions.clone();
    let block = || Block::Verdict { class, word: String::new(), summary: String::new(), reasons };
    Section::default()
        .on(PAGE, (!result.conclusions.is_empty()).then(block))
        .on(MARKDOWN, Block::List(List::of(&result.conclusions)))
}

/// Returns the letter of a variant: `A` for the first variant. After `Z` it returns a number.
fn letter(index: usize) -> String {
    let letter = u8::try_from(index).ok().filter(|index| *index < 26);
    letter.map_or_else(|| (index + 1).to_string(), |index| char::from(b'A' + index).to_string())
}

/// Returns a table of the compared variants.
fn variants(result: &CompareResult) -> Section {
    let table = table!(result.variants.iter().enumerate(), |(index, variant)|
        Column::text("") => letter(index),
        Column::text("variant") => &variant.name,
        Column::text("tool") => &variant.tool,
        Column::number("runs") => variant.runs.to_string(),
        Column::prose("description") => &variant.described,
    );
    let intro = format!("The others are compared with the first. Written by weir {}.", result.weir);
    Section::new("variants", "Variants").intro(&intro).on(ALL, Block::Table(table))
}

/// Returns the facts in which the variants differ although they should be equal. `None` if there
/// are no such facts.
pub(super) fn mismatches(result: &CompareResult) -> Option<Section> {
    let shorten = |value: &str| match value.char_indices().nth(VALUE_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &value[..end]),
        None => value.to_owned(),
    };
    let lines = result.mismatches.iter().map(|mismatch| {
        let Mismatch { what, a, b, variant, weight, why } = mismatch;
        format!("{} {what}: {} / {} ({variant}): {why}", weight.as_str(), shorten(a), shorten(b))
    });
    let weight = |weight: Weight| match weight {
        Weight::Note => tone("weak", weight.as_str()),
        Weight::Warn => tone("limited", weight.as_str()),
        Weight::Refuse => tone("broken", weight.as_str()),
    };
    let table = table!(&result.mismatches, |mismatch|
        Column::text("") => weight(mismatch.weight),
        Column::text("fact") => &mismatch.what,
        Column::prose("A") => &mismatch.a,
        Column::prose("other") => &mismatch.b,
        Column::text("variant") => &mismatch.variant,
        Column::prose("meaning") => &mismatch.why,
    );
    let section = Section::new("mismatches", "Mismatches")
        .on(TERMINAL, Block::Note("Mismatches:".into()))
        .on(TERMINAL, Block::List(List::of(lines)))
        .on(FILES, Block::Table(table));
    (!result.mismatches.is_empty()).then_some(section)
}

/// Returns the differences of a variant (column B) from the first variant (column A). `None` if
/// there are no differences.
pub(super) fn differences(result: &CompareResult, variant: &str) -> Option<Section> {
    let differences: Vec<&Difference> =
        result.differences.iter().filter(|difference| difference.variant == variant).collect();
    let baseline = result.variants.first().map_or("", |variant| &variant.name);
    let format_p = |p: f64| if p < 0.001 { "<0.001".to_owned() } else { format!("{p:.3}") };
    let mut table = table!(differences.iter().copied(), |difference|
        Column::text("method").only(MARKDOWN) => &difference.method,
        Column::text("metric").only(MARKDOWN) => difference.metric.as_str(),
        Column::text("").page_head("method, metric").only(TERMINAL | PAGE) => difference.metric.as_str(),
        Column::number("A") => difference::value(difference, difference.a),
        Column::number("B") => difference::value(difference, difference.b),
        Column::number("change") => difference::change(difference),
        Column::number("95 % interval") => or_dash(difference::interval(difference), identity),
        Column::text("").only(PAGE) =>
            bar(difference).map_or_else(Text::default, |svg| Span::Drawing(svg).into()),
        Column::number("p") => or_dash(difference.p, format_p),
        Column::text("verdict") => tone(tone_class(difference.verdict), difference.verdict.as_str()),
        Column::text("basis").only(FILES) => Span::Small(difference.basis.as_str().to_owned()),
    );
    // Each method becomes a group: a row with its name, and a sub-row per metric.
    let rows = std::mem::take(&mut table.groups).into_iter().flatten();
    for (difference, row) in differences.iter().zip(rows) {
        if table.groups.last().is_none_or(|group| group[0].cells[0] != row.cells[0]) {
            let basis = format!("{}  [{}]", difference.method, difference.basis.as_str());
            let page_heading = Row { cells: row.cells.clone(), ..Row::across(0, "", PAGE) };
            table.groups.push(vec![page_heading, Row::across(0, basis, TERMINAL)]);
        }
        table.groups.last_mut()?.push(Row { is_sub_row: true, ..row });
    }
    table.group_class = Some("");
    let section = Section::new("", format!("A = {baseline}, B = {variant}"))
        .intro(
            "Each [difference](difference) with its 95 % interval. Changes within the grey field do \
             not matter; a bar outside of it is a change. The bars reach from a third to three times.",
        )
        .on(TERMINAL, Block::Note(format!("B = {variant}").into()))
        .on(ALL, Block::Table(table));
    (!differences.is_empty()).then_some(section)
}

/// Returns the style class of a verdict, or an empty text for the normal colour.
pub(super) fn tone_class(verdict: ComparisonVerdict) -> &'static str {
    match verdict {
        ComparisonVerdict::Better => "kept",
        ComparisonVerdict::Worse => "broken",
        ComparisonVerdict::Same | ComparisonVerdict::Negligible => "",
        ComparisonVerdict::CannotTell => "weak",
    }
}

/// Returns the position of a relative change on the bar, in pixels. The scale is logarithmic.
fn bar_position(change: f64) -> f64 {
    let factor = (1.0 + change).clamp(1.0 / FACTOR_MAX, FACTOR_MAX);
    BAR_WIDTH / 2.0 * (1.0 + factor.ln() / FACTOR_MAX.ln())
}

/// Draws a change and its interval as an SVG bar. A grey field marks changes that do not matter.
/// Returns `None` for shares, because their changes are not factors.
fn bar(difference: &Difference) -> Option<String> {
    if difference::is_share(difference) || !difference.change.is_finite() {
        return None;
    }
    let ink = match difference.verdict {
        ComparisonVerdict::Better => "good",
        ComparisonVerdict::Worse => "bad",
        ComparisonVerdict::Same | ComparisonVerdict::Negligible | ComparisonVerdict::CannotTell => {
            "shade"
        }
    };
    let px = |x: f64| format!("{x:.1}");
    let (floor_start, floor_end) =
        (bar_position(-difference.floor), bar_position(difference.floor));
    let interval =
        difference.interval.map(|(low, high)| (px(bar_position(low)), px(bar_position(high))));
    let svg = maud::html! {
        svg.forest viewBox={ "0 0 " (BAR_WIDTH) " 14" } role="img" aria-label="interval" {
            rect class="f-grid" x=(px(floor_start)) y="0" width=(px((floor_end - floor_start).max(0.5))) height="14" {}
            line class="s-shade" x1=(px(BAR_WIDTH / 2.0)) x2=(px(BAR_WIDTH / 2.0)) y1="0" y2="14" stroke-width="0.6" {}
            @if let Some((low, high)) = interval {
                line class={ "s-" (ink) } x1=(low) x2=(high) y1="7" y2="7" stroke-width="2.4" {}
            }
            circle class={ "f-" (ink) } cx=(px(bar_position(difference.change))) cy="7" r="3.4" {}
        }
    };
    Some(svg.into_string())
}

/// Warning above the figures per core and per request.
const CAUTION: &str = "Per core and per request. Machines differ in more than cores: use these figures \
                       to choose what to measure side by side, not to decide which is faster.";

/// Returns values per core and per request. `None` if all variants ran on one machine and there are
/// fewer than three variants.
pub(super) fn normalised_section(result: &CompareResult) -> Option<Section> {
    let mut machines: Vec<&str> =
        result.normalised.iter().map(|row| row.machine.as_str()).collect();
    machines.sort_unstable();
    machines.dedup();
    if machines.len() < 2 && result.variants.len() < 3 {
        return None;
    }
    let table = table!(&result.normalised, |row|
        Column::text("variant") => &row.variant,
        Column::number("cores") => or_dash(row.cores, short),
        Column::number("results/s") => or_dash(row.goodput, short),
        Column::number("per core") => or_dash(row.goodput_per_core, short),
        Column::number("p50 ms") => or_dash(row.p50_ms, short),
        Column::number("p99 ms") => or_dash(row.p99_ms, short),
        Column::number("CPU ms/request") => or_dash(row.cpu_ms_per_request, short),
        Column::prose("machine") => &row.machine,
    );
    let section = Section::new("normalised", "Per core and per request");
    Some(section.on(ALL, Block::Note(CAUTION.into())).on(ALL, Block::Table(table)))
}
