//! The document of a comparison: the differences of each variant from the first one, with
//! intervals.
//!
//! `report/document.rs` explains the functions and macros that build sections.

use std::convert::identity;

use lab_model::results::ComparisonVerdict;
use lab_model::results::compare::{CompareResult, Difference, Weight};

use super::document::{
    Block, Column, Document, List, Row, Section, Span, Start, Table, bold, table, text, tone,
};
use super::parts::{self, or_dash};
use crate::distinct;
use crate::variant::TOTAL;
use crate::wording::difference;
use crate::wording::number::{join_first, plural, short};

#[cfg(test)]
pub(in crate::report) mod tests;

/// Width of an interval's bar in pixels.
const BAR_WIDTH: f64 = 180.0;
/// Factor at the right end of a bar. The left end is its reciprocal: a bar reaches from a third of
/// the first variant's value to three times that value.
const FACTOR_MAX: f64 = 3.0;
/// Takes the place of a bar, so that the intervals of all rows are aligned.
const NO_BAR: &str = "<span class=\"no-bar\"></span>";
/// If more rows than this cannot be told, the terminal shows only their number.
pub(crate) const UNDECIDED_ROWS_MAX: usize = 20;
/// Maximum number of methods that the terminal names in place of their rows.
const FOLDED_METHODS_MAX: usize = 6;

/// Builds the document of a comparison.
pub(crate) fn document(result: &CompareResult) -> Document {
    let names: Vec<&str> = result.variants.iter().map(|variant| variant.name.as_str()).collect();
    let names = names.join(" · ");
    Document {
        command: "weir compare",
        title: names.clone(),
        window: "comparison".to_owned(),
        heading: format!("Comparison: {names}"),
        intro: Vec::new(),
        summary: sections(result),
        page: sections(result),
        glossary: true,
    }
}

/// Returns the sections of the document.
fn sections(result: &CompareResult) -> Vec<Section> {
    let left_out = result.variants.iter().map(|variant| (&variant.name, &variant.left_out));
    let first = [Some(verdict(result)), Some(variants(result)), parts::left_out(left_out)];
    let warnings = parts::warnings(&result.warnings, usize::MAX);
    let warnings = warnings.map(|section| section.start(Start::EmptyLine));
    first.into_iter().flatten().chain(data(result)).chain(warnings).collect()
}

/// Returns the mismatches, the differences of each variant, and the values per core.
pub(crate) fn data(result: &CompareResult) -> impl Iterator<Item = Section> {
    let variants = result.variants.iter().skip(1);
    std::iter::once(mismatches(result))
        .chain(variants.map(|variant| differences(result, &variant.name)))
        .chain([normalised_section(result)])
        .flatten()
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
    let verdict = Block::Verdict {
        class,
        word: String::new(),
        subject: String::new(),
        summary: String::new(),
        reasons: List::of(&result.conclusions),
    };
    Section::default().add((!result.conclusions.is_empty()).then_some(verdict))
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
    Section::new("variants", "Variants").intro(&intro).add(Block::Table(table))
}

/// Returns the facts in which the variants differ although they should be equal. `None` if there
/// are no such facts.
pub(crate) fn mismatches(result: &CompareResult) -> Option<Section> {
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
    let section = Section::new("mismatches", "Mismatches").start(Start::Title);
    let section = section.add(Block::Table(table));
    (!result.mismatches.is_empty()).then_some(section)
}

/// Returns the differences of a variant (column B) from the first variant (column A). `None` if
/// there are no differences.
pub(crate) fn differences(result: &CompareResult, variant: &str) -> Option<Section> {
    let differences: Vec<&Difference> =
        result.differences.iter().filter(|difference| difference.variant == variant).collect();
    let baseline = result.variants.first().map_or("", |variant| &variant.name);
    let section = Section::new("", format!("A = {baseline}, B = {variant}"))
        .start(Start::Title)
        .intro(
            "Each [difference](difference) with its 95 % interval. Changes within the grey field do \
             not matter; a bar outside of it is a change. The bars reach from a third to three times.",
        );
    (!differences.is_empty()).then(|| section.add(Block::Table(difference_table(&differences))))
}

/// Returns a table of differences: a group per method, with a heading and a row per metric. If there
/// are many rows that cannot be told, the terminal shows only their number.
fn difference_table(differences: &[&Difference]) -> Table {
    let format_p = |p: f64| if p < 0.001 { "<0.001".to_owned() } else { format!("{p:.3}") };
    let mut table = table!(differences.iter().copied(), |difference|
        Column::text("method, metric") => difference.metric.as_str(),
        Column::number("A") => difference::value(difference, difference.a),
        Column::number("B") => difference::value(difference, difference.b),
        Column::number("change") => difference::change(difference),
        Column::number("95 % interval") => text![
            or_dash(difference::interval(difference), identity),
            Span::Drawing(bar(difference).unwrap_or_else(|| NO_BAR.to_owned()))
        ],
        Column::number("p") => or_dash(difference.p, format_p),
        Column::text("verdict") => tone(tone_class(difference.verdict), difference.verdict.as_str()),
        Column::text("basis") => Span::Small(difference.basis.as_str().to_owned()),
    );
    let mut rows = std::mem::take(&mut table.groups).into_iter().flatten();
    for method in differences.chunk_by(|a, b| a.method == b.method) {
        let heading = Row::across(0, bold(&method[0].method));
        let sub_rows = rows.by_ref().take(method.len());
        let sub_rows = sub_rows.map(|row| Row { is_sub_row: true, ..row });
        table.groups.push(std::iter::once(heading).chain(sub_rows).collect());
    }
    table.group_class = Some("");
    // The rows of the whole run are never folded.
    let is_foldable = |row: &&Difference| is_undecided(row) && row.method != TOTAL;
    let undecided: Vec<&Difference> = differences.iter().copied().filter(is_foldable).collect();
    if undecided.len() <= UNDECIDED_ROWS_MAX {
        return table;
    }
    let mut rows = Vec::new();
    let mut next_row = 0;
    for method in differences.chunk_by(|a, b| a.method == b.method) {
        let shown = (0..method.len()).filter(|index| !is_foldable(&method[*index]));
        let shown: Vec<usize> = shown.map(|index| next_row + 1 + index).collect();
        rows.extend((!shown.is_empty()).then_some(next_row));
        rows.extend(shown);
        next_row += 1 + method.len();
    }
    let methods = distinct(undecided.iter().map(|row| &row.method));
    let note = describe_folded(undecided.len(), "figure", &methods);
    Table { excerpt: Some((rows, Some(note))), ..table }
}

fn is_undecided(difference: &Difference) -> bool {
    difference.verdict == ComparisonVerdict::CannotTell
}

/// Describes rows that the terminal leaves out because they cannot be told.
pub(crate) fn describe_folded(count: usize, noun: &str, methods: &[&String]) -> String {
    let methods: Vec<String> = methods.iter().map(|method| (*method).clone()).collect();
    format!(
        "{} cannot be told, and are listed by --markdown: {}",
        plural(count as u64, noun),
        join_first(&methods, FOLDED_METHODS_MAX, ", ")
    )
}

/// Returns the style class of a verdict, or an empty text for the normal colour.
pub(crate) fn tone_class(verdict: ComparisonVerdict) -> &'static str {
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
pub(crate) fn normalised_section(result: &CompareResult) -> Option<Section> {
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
    Some(section.add(Block::Note(CAUTION.into())).add(Block::Table(table)))
}
