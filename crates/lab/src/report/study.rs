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
//! `section.on(PAGE, block)` adds a block that only the HTML page has; `FILES` stands for Markdown
//! and the page. `table!(&rows, |row| Column::text("name") => &row.name)` creates a table with one
//! row for each of `rows`. `text!["a ", code("b")]` joins texts. `cells![…]` creates the cells of a
//! row.

mod charts;

use lab_model::results::ComparisonVerdict;
use lab_model::results::study::{
    About, Align, CacheFull, Source, StudyResult, TimeRow, VariantRow,
};

use super::compare::tone_class;
use super::document::{
    ALL, Block, Column, Document, FILES, List, MARKDOWN, PAGE, Section, TERMINAL, Table, Text,
    bold, cells, table, text, tone,
};
use super::parts::{self, line, or_dash};
use crate::analysis::statistics::{median, sorted};
use crate::analysis::sync::judge::main_row;
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
    let omitted_data = |formats| {
        parts::left_out(
            result.variants.iter().map(|variant| (&variant.name, &variant.left_out)),
            formats,
        )
    };
    let warnings = |formats| parts::warnings(&result.warnings, WARNINGS_MAX, formats);
    let mut sections = vec![
        Some(head(result)),
        omitted_data(TERMINAL),
        Some(conclusions(result)),
        omitted_data(MARKDOWN),
        warnings(PAGE),
        Some(times(result)),
        Some(charts::height(result)),
    ];
    let leads = result.against.iter().enumerate();
    sections.extend(leads.map(|(index, against)| Some(charts::leads(result, index, against))));
    sections.extend([
        Some(charts::rates(result)),
        Some(bins(result)),
        Some(runs(result)),
        omitted_data(PAGE),
        Some(terminal_conclusions(result)),
        warnings(TERMINAL | MARKDOWN),
        Some(origin_note(result)),
    ]);
    let question = result.question.as_ref().map(Text::from);
    Document {
        command: "weir study sync",
        title: result.name.clone(),
        window: format!("study: {}", result.name),
        heading: format!("Study: {}", result.name),
        intro: question.into_iter().chain([Text::from(describe_setup(result))]).collect(),
        sections: sections.into_iter().flatten().collect(),
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

/// Returns the verdict over all variants, with a summary.
fn head(result: &StudyResult) -> Section {
    let verdict = verdict(result);
    let class = match verdict {
        None
        | Some(
            ComparisonVerdict::Better | ComparisonVerdict::Same | ComparisonVerdict::Negligible,
        ) => "pass",
        Some(ComparisonVerdict::Worse) => "fail",
        Some(ComparisonVerdict::CannotTell) => "invalid",
    };
    let word = verdict.map_or("measured", name_verdict).to_uppercase();
    let verdicts =
        result.conclusions.iter().filter(|conclusion| conclusion.about == About::Verdict);
    let reasons = verdicts.map(|conclusion| conclusion.text.clone()).collect();
    let partial_note = if result.partial { "  PARTIAL: ended before its plan" } else { "" };
    let banner = Block::Banner(class, word.clone(), format!("{}{partial_note}", result.name));
    let partial = Block::Partial("the study ended before its plan");
    let question = result.question.as_ref();
    Section::default()
        .on(MARKDOWN, question.map(|text| Block::Paragraph(text.into())))
        .on(FILES, result.partial.then_some(partial))
        .on(PAGE, Block::Verdict { class, word, summary: String::new(), reasons })
        .on(PAGE, tiles(result))
        .on(TERMINAL, banner)
        .on(TERMINAL | MARKDOWN, Block::Paragraph(describe_setup(result).into()))
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

/// Returns the section of conclusions. On the page, the section omits the verdict, which is already
/// at the top.
fn conclusions(result: &StudyResult) -> Section {
    let items = result.conclusions.iter().map(|conclusion| {
        let variant =
            conclusion.variant.as_ref().map_or_else(String::new, |variant| format!(" ({variant})"));
        text![bold(conclusion.about.as_str()), format!("{variant}: {}", conclusion.text)]
    });
    let other_conclusions =
        result.conclusions.iter().filter(|conclusion| conclusion.about != About::Verdict);
    let facts = other_conclusions.map(|conclusion| {
        let variant = conclusion.variant.as_ref().filter(|_| result.against.len() > 1);
        let variant = variant.map_or_else(String::new, |variant| format!(", {variant}"));
        (format!("{}{variant}", conclusion.about.as_str()).into(), Text::from(&conclusion.text))
    });
    Section::new("conclusions", "Conclusions")
        .nav("Conclusions")
        .on(MARKDOWN, Block::List(List::of(items)))
        .on(PAGE, Block::Facts(facts.collect()))
}

/// Returns the conclusions for the terminal, which prints them last.
fn terminal_conclusions(result: &StudyResult) -> Section {
    let lines = result
        .conclusions
        .iter()
        .map(|conclusion| line(conclusion.about.as_str(), &conclusion.text));
    lines.fold(Section::default(), |section, line| section.on(TERMINAL, line))
}

/// Returns the times to heights: first the times of each variant, then the differences of the other
/// variants from the first variant.
fn times(result: &StudyResult) -> Section {
    let mut table = Table::new([Column::number("height")]).at_most(ROWS_MAX, "row");
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
        .on(ALL, Block::Table(table))
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
    let mut table = Table::new([Column::number("from")]).at_most(ROWS_MAX, "row");
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
    section.on(ALL, Block::Table(table))
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
    Section::new("runs", "Runs").nav("Runs").on(FILES, Block::Table(table))
}

/// Returns a note on the version and on further files.
fn origin_note(result: &StudyResult) -> Section {
    let note = format!(
        "weir {}, {}; samples.csv has every sample, study.json everything else. Rules: docs/studies.md.",
        result.weir, result.schema
    );
    Section::default().on(FILES, Block::Note(note.into()))
}
