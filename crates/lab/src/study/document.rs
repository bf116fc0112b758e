//! The document of a sync study, which compares how fast variants of a node synchronize with their
//! chain. It has conclusions, heights, leads, rates and hit ratios of the page cache.
//!
//! Each variant has one colour in all charts. If a variant has several runs, thin lines show the
//! runs, and a thick line shows the median of the variant. The first variant is the reference: in
//! charts of leads, a value above zero means that the other variant is ahead of it.
//!
//! A bin is a range of block heights; all bins have the same width. The tip is the newest block of
//! the chain. `wording/conclude.rs` explains the terms, and writes the conclusions.
//!
//! `report/document.rs` explains the functions and macros that build sections.

mod charts;

use lab_model::results::ComparisonVerdict;
use lab_model::results::study::{
    About, Align, CacheFull, Source, StudyResult, TimeRow, VariantRow,
};

use crate::analysis::statistics::{median, sorted};
use crate::analysis::sync::judge::main_row;
use crate::report::compare::tone_class;
use crate::report::document::{
    Block, Column, Document, List, Section, Table, Text, cells, table, tone,
};
use crate::report::parts::{self, or_dash};
use crate::wording::conclude::change;
use crate::wording::number::{bytes, clock, count, percent, plural, short, span};

#[cfg(test)]
mod tests;

/// Maximum number of rows of a table on the terminal.
const ROWS_MAX: usize = 24;
/// Maximum number of warnings on the terminal.
const WARNINGS_MAX: usize = 6;

/// Builds the document of a study.
pub(super) fn document(result: &StudyResult) -> Document {
    let left_out = || {
        let variants = result.variants.iter();
        parts::left_out(variants.map(|variant| (&variant.name, &variant.left_out)))
    };
    let warnings = || parts::warnings(&result.warnings, WARNINGS_MAX);
    let paragraph = |text: String| Block::Paragraph(text.into());
    let summary_head = head(result, List::default())
        .add(result.question.clone().map(paragraph))
        .add(paragraph(describe_setup(result)));
    let verdicts =
        result.conclusions.iter().filter(|conclusion| conclusion.about == About::Verdict);
    let page_head = head(result, List::of(verdicts.map(|conclusion| &conclusion.text)));
    let summary = [
        Some(summary_head),
        left_out(),
        Some(times(result)),
        Some(bins(result)),
        Some(runs(result)),
        Some(conclusions(result)),
        warnings(),
        Some(origin_note(result)),
    ];
    let leads = result.against.iter().enumerate();
    let leads = leads.map(|(index, against)| Some(charts::leads(result, index, against)));
    let page = [
        Some(page_head.add(tiles(result))),
        Some(page_conclusions(result)),
        warnings(),
        Some(times(result)),
        Some(charts::height(result)),
    ];
    let page = page.into_iter().chain(leads).chain([
        Some(charts::rates(result)),
        Some(bins(result)),
        Some(runs(result)),
        left_out(),
        Some(origin_note(result)),
    ]);
    let question = result.question.as_ref().map(Text::from);
    Document {
        command: "weir study sync",
        title: result.name.clone(),
        window: format!("study: {}", result.name),
        heading: format!("Study: {}", result.name),
        intro: question.into_iter().chain([Text::from(describe_setup(result))]).collect(),
        summary: summary.into_iter().flatten().collect(),
        page: page.flatten().collect(),
        glossary: false,
    }
}

/// Returns the verdict about the other variants, or "cannot tell" if they have different verdicts.
/// `None` if there is only one variant.
fn verdict(result: &StudyResult) -> Option<ComparisonVerdict> {
    let mut verdicts = result.conclusions.iter().filter_map(|conclusion| conclusion.word);
    let first_verdict = verdicts.next()?;
    let all_agree = verdicts.all(|verdict| verdict == first_verdict);
    Some(if all_agree { first_verdict } else { ComparisonVerdict::CannotTell })
}

/// Returns the name of a verdict about times, where "better" means "faster".
fn name_verdict(verdict: ComparisonVerdict) -> &'static str {
    match verdict {
        ComparisonVerdict::Better => "faster",
        ComparisonVerdict::Worse => "slower",
        other => other.as_str(),
    }
}

/// Describes variants, source and alignment in one line.
fn describe_setup(result: &StudyResult) -> String {
    let variants = result.variants.iter();
    let variants = variants
        .map(|variant| format!("{} ({})", variant.name, plural(variant.runs.len() as u64, "run")));
    let variants: Vec<String> = variants.collect();
    let source = match result.source {
        Source::Logs => "from logs",
        Source::Tables => "from tables",
        Source::Samples => "from samples",
        Source::Mixed => "from files of different formats",
        Source::Nodes => "from running nodes",
        Source::Runs => "run by this study",
    };
    let align = match result.align {
        Align::Clock => "aligned by clock",
        Align::Start => "aligned by start",
    };
    let mut parts = vec![variants.join(", "), source.to_owned(), align.to_owned()];
    parts.extend(result.design.clone());
    parts.push(format!("bins of {} blocks", count(result.bin)));
    if result.stalls_subtracted {
        parts.push("stalls subtracted".to_owned());
    }
    parts.join(" · ")
}

/// Returns the verdict over all variants, with these reasons.
fn head(result: &StudyResult, reasons: List) -> Section {
    let verdict = verdict(result);
    let class = match verdict {
        None
        | Some(
            ComparisonVerdict::Better | ComparisonVerdict::Same | ComparisonVerdict::Negligible,
        ) => "pass",
        Some(ComparisonVerdict::Worse) => "fail",
        Some(ComparisonVerdict::CannotTell) => "invalid",
    };
    let verdict = Block::Verdict {
        class,
        word: verdict.map_or("measured", name_verdict).to_uppercase(),
        subject: result.name.clone(),
        summary: String::new(),
        reasons,
    };
    Section::default()
        .add(result.partial.then_some(Block::Partial("the study ended before its plan")))
        .add(verdict)
}

/// Returns tiles with the main result: how the second variant compares with the first. `None` if
/// there is no second variant, or if no compared height was reached by every run.
fn tiles(result: &StudyResult) -> Option<Block> {
    let against = result.against.first()?;
    let row = main_row(result, against)?;
    let comparison = row.comparison.as_ref()?;
    let spread = comparison.a_spread.into_iter().chain(comparison.b_spread).reduce(f64::max);
    let height = count(row.height);
    let tiles = [
        (time(comparison.a), format!("{} to {height}", against.first)),
        (time(comparison.b), format!("{} to {height}", against.other)),
        (signed(comparison.b - comparison.a), "difference".into()),
        (change(comparison.change), "change".into()),
        (spread.map_or_else(|| "unknown".into(), time), "largest spread between repeats".into()),
        (percent(comparison.floor), "smallest change that matters".into()),
    ];
    let tiles = tiles.map(|(value, description)| ("", value, Text::from(description)));
    Some(Block::Tiles(tiles.to_vec()))
}

/// Returns the conclusions. The summary has them after its tables, so that they are the last lines
/// on the terminal.
fn conclusions(result: &StudyResult) -> Section {
    Section::new("", "Conclusions").add(conclusion_facts(result, |_| true))
}

/// Returns the conclusions for the page, without the verdict, which is at its top.
fn page_conclusions(result: &StudyResult) -> Section {
    Section::new("conclusions", "Conclusions")
        .nav("Conclusions")
        .add(conclusion_facts(result, |about| about != About::Verdict))
}

/// Returns the conclusions about the topics for which `is_listed` returns true.
fn conclusion_facts(result: &StudyResult, is_listed: fn(About) -> bool) -> Block {
    let conclusions = result.conclusions.iter().filter(|conclusion| is_listed(conclusion.about));
    let facts = conclusions.map(|conclusion| {
        let variant = conclusion.variant.as_ref().filter(|_| result.against.len() > 1);
        let variant = variant.map_or_else(String::new, |variant| format!(", {variant}"));
        (format!("{}{variant}", conclusion.about.as_str()).into(), Text::from(&conclusion.text))
    });
    Block::Facts(facts.collect())
}

/// Returns the times to heights: first the times of each variant, then the differences of the other
/// variants from the first variant.
fn times(result: &StudyResult) -> Section {
    let mut table = Table::new([Column::number("height")]);
    result.variants.iter().for_each(|variant| table.column(&variant.name));
    for against in &result.against {
        let later = format!("{} later by", against.other);
        [&*later, "change", "95 % interval", "verdict"].iter().for_each(|head| table.column(head));
    }
    let has_repeats = result.variants.iter().any(|variant| variant.runs.len() > 1);
    for (index, height) in result.heights.iter().enumerate() {
        let mut cells = cells![count(*height)];
        for variant in &result.variants {
            let times = variant.runs.iter().filter_map(|run| run.times.get(index));
            let times = times.filter_map(|time| {
                let stalled = if result.stalls_subtracted { time.stalled } else { 0.0 };
                time.elapsed.map(|elapsed| elapsed - stalled)
            });
            cells.push(variant_time(&times.collect::<Vec<_>>(), has_repeats).into());
        }
        for against in &result.against {
            let row = against.times.get(index).map(difference_cells);
            cells.extend(row.unwrap_or_else(|| cells!["–", "–", "–", "–"]));
        }
        table.row(cells);
    }
    Section::new("times", "Times to heights")
        .nav("Times")
        .intro(
            "From the start of a run to its first sample at or above the height; with several runs the \
             median, the fastest and the slowest. The main result is the last height that all reached.",
        )
        .add(Block::Table(table.at_most(ROWS_MAX, "row")))
}

/// Formats the median of the times of a variant's runs. If `with_range` is true, adds the fastest
/// and the slowest. Returns a dash if there are no times.
fn variant_time(times: &[f64], with_range: bool) -> String {
    let Some(median_time) = median(times) else { return String::from("–") };
    match sorted(times).as_slice() {
        [fastest, .., slowest] if with_range => {
            format!("{} ({} to {})", time(median_time), time(*fastest), time(*slowest))
        }
        _ => time(median_time),
    }
}

/// Formats a time in clock format, or in seconds if it is below a minute.
fn time(seconds: f64) -> String {
    if seconds.abs() < 60.0 { format!("{seconds:.1} s") } else { clock(seconds) }
}

/// Formats a difference of times with its sign.
fn signed(seconds: f64) -> String {
    let sign = if seconds < 0.0 { "−" } else { "+" };
    format!("{sign}{}", time(seconds.abs()))
}

/// Returns the cells of a difference: seconds, relative change, 95 % interval and verdict.
fn difference_cells(row: &TimeRow) -> Vec<Text> {
    let Some(comparison) = &row.comparison else {
        return cells!["–", "–", "–", "not reached"];
    };
    let interval =
        or_dash(comparison.interval, |(low, high)| format!("{} to {}", change(low), change(high)));
    let verdict = match row.above_tip {
        true => "above the tip".into(),
        false => tone(tone_class(comparison.verdict), name_verdict(comparison.verdict)),
    };
    cells![signed(comparison.b - comparison.a), change(comparison.change), interval, verdict]
}

/// Returns each variant's rates, hit ratios and page accesses by height.
fn bins(result: &StudyResult) -> Section {
    let variants = &result.variants;
    let has_hit_ratios =
        variants.iter().any(|variant| variant.hit_ratios.iter().any(Option::is_some));
    // The end of a column's heading, a function that returns a variant's values by bin, and a
    // function that formats a value.
    type Quantity = (&'static str, fn(&VariantRow) -> &[Option<f64>], fn(f64) -> String);
    let quantities: [Quantity; 3] = [
        (" blocks/s", |variant| &variant.rates, short),
        (" hits", |variant| &variant.hit_ratios, percent),
        (" pages/block", |variant| &variant.pages_per_block, short),
    ];
    // Without accesses to a page cache, only the rates have values.
    let quantities = if has_hit_ratios { &quantities[..] } else { &quantities[..1] };
    let columns = || {
        quantities
            .iter()
            .flat_map(|quantity| variants.iter().map(move |variant| (quantity, variant)))
    };
    let mut table = Table::new([Column::number("from")]);
    columns().for_each(|((unit, ..), variant)| table.column(format!("{}{unit}", variant.name)));
    for index in 0..variants.iter().map(|variant| variant.rates.len()).max().unwrap_or(0) {
        let cells = columns().map(|((_, values_of, format_value), variant)| {
            let value = values_of(variant).get(index).copied().flatten();
            Text::from(or_dash(value, format_value))
        });
        let bin_start = Text::from(count(index as u64 * result.bin));
        table.row(std::iter::once(bin_start).chain(cells).collect());
    }
    let section = Section::new("bins", "By height, in numbers").nav("Numbers");
    section.add(Block::Table(table.at_most(ROWS_MAX, "row")))
}

/// Returns a table of the runs of all variants.
fn runs(result: &StudyResult) -> Section {
    let format_moment =
        |moment: CacheFull| format!("{} (height {})", time(moment.elapsed), count(moment.height));
    let runs_with_variant = result
        .variants
        .iter()
        .flat_map(|variant| variant.runs.iter().map(move |run| (variant, run)));
    let table = table!(runs_with_variant, |(variant, run)|
        Column::text("variant") => &variant.name,
        Column::text("run") => &run.label,
        Column::text("started") => &run.first,
        Column::number("took") => time(run.elapsed),
        Column::number("height") => count(run.height),
        Column::number("samples") => format!("{} every {} s", count(run.samples as u64), short(run.period)),
        Column::number("cache full") => or_dash(run.cache_full, format_moment),
        Column::number("hits") => or_dash(run.hit_ratio, percent),
        Column::number("memory") => or_dash(run.memory_max, |bytes_used| bytes(bytes_used as f64)),
        Column::number("CPU") => or_dash(run.cpu, |cpu| span(cpu.round())),
    );
    Section::new("runs", "Runs").nav("Runs").detail().add(Block::Table(table))
}

/// Returns a note on the version and on further files.
fn origin_note(result: &StudyResult) -> Section {
    let note = format!(
        "weir {}, {}; samples.csv has every sample, study.json everything else. Rules: docs/studies.md.",
        result.weir, result.schema
    );
    Section::default().detail().add(Block::Note(note.into()))
}
