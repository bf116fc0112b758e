//! Sections about calls: by method, by outcome, by stage, and the latency distribution.
//!
//! `section.on(PAGE, block)` adds a block that only the HTML page has; `FILES` stands for Markdown
//! and the page. `table!(&rows, |row| Column::text("name") => &row.name)` creates a table with one
//! row for each of `rows`. `text!["a ", code("b")]` joins texts. `cells![…]` creates the cells of a
//! row. In a heading, intro or note, `[latency](latency)` is a text that links to the glossary
//! entry "latency".

use lab_model::record::{Class, Times, Totals};
use lab_model::results::Quantiles;
use lab_model::results::run::{self, ClassRow, RunResult};

use super::super::chart::axis::{Axis, log, rarity};
use super::super::chart::{Chart, Ink, Shape, curve};
use super::super::document::{
    Block, Column, FILES, MARKDOWN, PAGE, Row, Section, Span, TERMINAL, Table, Text, cells, code,
    name, table, text, tone,
};
use super::over_time::WIDE;
use crate::wording::number::{WEAK_P99, bare_ms, clock, count, percent, rate, short};

/// Smallest number of calls for a reliable p99.9. With fewer calls, fewer than 100 are slower than
/// the p99.9.
const WEAK_P999: u64 = 100_000;
/// Maximum number of methods on the terminal.
const METHODS_MAX: usize = 9;

/// Returns a table of every method with its outcomes.
pub(super) fn methods(result: &RunResult) -> Section {
    let all_rows: Vec<&run::Row> =
        std::iter::once(&result.overall).chain(&result.methods).collect();
    let selected_rows: Vec<&run::Row> =
        std::iter::once(&result.overall).chain(select_rows(&result.methods)).collect();
    let called_methods = result.methods.iter().filter(|row| row.calls > 0).count();
    // The table has one more row: the totals.
    let mut terminal_table = table(&selected_rows).at_most(METHODS_MAX + 1, "method");
    terminal_table.total_rows = Some(called_methods + 1);
    let is_uncertain = |row: &&run::Row| (1..WEAK_P99).contains(&row.latency.count);
    let uncertain_note = |rows: &[&run::Row], sign: Text, remark: &str| {
        let min_calls = count(WEAK_P99);
        let note = text![sign, format!(" uncertain: fewer than {min_calls} calls.{remark}")];
        rows.iter().any(is_uncertain).then_some(Block::Note(note))
    };
    let intro = "Latency in milliseconds from the scheduled send, all outcomes; a timeout counts \
                 with its full time.";
    Section::new("methods", "Methods and outcomes")
        .nav("Methods")
        .intro(
            "[Latency](latency) in milliseconds. The first line of a method covers all its \
             [outcomes](outcome), where a timeout counts with its full time. The lines below it are \
             single outcomes, because errors may be faster than results. A ~ marks a figure with \
             [too few calls](uncertain figures).",
        )
        .on(MARKDOWN, Block::Paragraph(intro.into()))
        .on(TERMINAL, Block::Table(terminal_table))
        .on(FILES, Block::Table(table(&all_rows)))
        .on(TERMINAL, uncertain_note(&selected_rows, "~".into(), " A timeout counts with its full time."))
        .on(MARKDOWN, uncertain_note(&all_rows, code("~"), ""))
        .on(MARKDOWN, classes(result))
}

/// Returns the called methods in the plan's order. If there are more than [`METHODS_MAX`], returns
/// the methods with the largest shares of failures.
fn select_rows(methods: &[run::Row]) -> Vec<&run::Row> {
    let mut rows: Vec<_> = methods.iter().enumerate().filter(|(_, row)| row.calls > 0).collect();
    rows.sort_by(|(_, a), (_, b)| b.failed_share.total_cmp(&a.failed_share));
    rows.truncate(METHODS_MAX);
    rows.sort_by_key(|(index, _)| *index);
    rows.into_iter().map(|(_, row)| row).collect()
}

/// Number of columns of [`quantile_columns`].
const QUANTILES: usize = 8;

/// Returns the columns of a latency distribution.
fn quantile_columns() -> [Column; QUANTILES] {
    [
        Column::number("mean").only(PAGE),
        Column::number("p50"),
        Column::number("p90").only(PAGE),
        Column::number("p95"),
        Column::number("p99"),
        Column::number("[95 % interval](interval of the p99)").only(PAGE),
        Column::number("p99.9").only(PAGE),
        Column::number("max"),
    ]
}

/// Returns the table of these methods. On the page, the sub-rows of a method are its outcomes.
fn table(rows: &[&run::Row]) -> Table {
    let text_formats = TERMINAL | MARKDOWN;
    let first_columns = [
        Column::text("method").page_head("method, outcome"),
        Column::number("calls"),
        Column::number("share").only(text_formats),
        Column::text("share").only(PAGE),
        Column::number("ok").only(TERMINAL),
        Column::number("results/s").only(FILES),
        Column::number("failed").only(text_formats),
        Column::number("429").only(text_formats),
    ];
    // Both columns list the failures. The heading of the column for the terminal describes the
    // quantiles to its left.
    let last_columns = [
        Column::text("latency in ms, all outcomes").only(TERMINAL),
        Column::text("failed as").only(MARKDOWN),
    ];
    let columns = first_columns.into_iter().chain(quantile_columns()).chain(last_columns);
    let mut table = Table::new(columns);
    for row in rows {
        let ok_row = row.classes.iter().find(|class| class.class == Class::Ok);
        let ok_share = ok_row.map_or(0.0, |ok| ok.calls as f64 / row.calls.max(1) as f64);
        let mut cells = cells![
            name(&row.method),
            count(row.calls),
            percent(row.share),
            text![Span::Bar(row.share), percent(row.share)],
            percent(ok_share),
            short(row.goodput),
            percent(row.failed_share),
            percent(row.limited_share),
        ];
        cells.extend(quantiles(&row.latency));
        cells.extend(cells![tone("bad", failures(row)), failures(row)]);
        table.row(cells);
    }
    table.with_sub_rows("", |index| outcome_rows(rows[index]))
}

/// Returns the sub-rows of a method: a row per outcome, and a row with the codes of JSON-RPC
/// errors. If all calls succeeded, there are none.
fn outcome_rows(row: &run::Row) -> Vec<Row> {
    let has_other_outcomes = row.classes.iter().any(|class| class.class != Class::Ok);
    let outcomes = row.classes.iter().filter(|_| has_other_outcomes);
    let mut rows: Vec<Row> = outcomes.map(|class| outcome_row(row, class)).collect();
    if row.codes.iter().any(|(_, calls)| *calls > 0) {
        let mut codes = vec![Span::Small("codes of JSON-RPC errors: ".to_owned())];
        for (index, (code, calls)) in row.codes.iter().enumerate() {
            codes.extend((index > 0).then(|| Span::Small(", ".to_owned())));
            codes.push(Span::Code(code.to_string()));
            codes.push(Span::Small(format!(" × {}", count(*calls))));
        }
        rows.push(Row { is_sub_row: true, ..Row::across(0, Text(codes), PAGE) });
    }
    rows
}

/// Returns the sub-row of one outcome of a method.
fn outcome_row(row: &run::Row, class: &ClassRow) -> Row {
    let tone_class = match class.class {
        class if class.is_failure() => "bad",
        Class::Limited => "limited",
        _ => "",
    };
    let share = format!("\u{2003}{}", percent(class.calls as f64 / row.calls.max(1) as f64));
    let label = text!["\u{2003}", tone(tone_class, class.class.as_str())];
    // Empty cells belong to columns that the page does not have, or that only a method has.
    let mut cells = cells![label, count(class.calls), "", share, "", "", "", ""];
    cells.extend(quantiles(&class.latency));
    cells.extend(cells!["", ""]);
    Row::sub_row(cells)
}

/// Returns the cells of [`quantile_columns`].
fn quantiles(quantiles: &Quantiles) -> Vec<Text> {
    if quantiles.count == 0 {
        return vec![Text::default(); QUANTILES];
    }
    let (low, high) = quantiles.p99_interval_ms;
    let (p99, p999) = (
        mark_if_uncertain(quantiles.count, WEAK_P99, quantiles.p99_ms),
        mark_if_uncertain(quantiles.count, WEAK_P999, quantiles.p999_ms),
    );
    let interval = Span::Small(format!("{}–{}", bare_ms(low), bare_ms(high)));
    let mut cells = [quantiles.mean_ms, quantiles.p50_ms, quantiles.p90_ms, quantiles.p95_ms]
        .map(|ms| bare_ms(ms).into())
        .to_vec();
    cells.extend(cells![p99, interval, p999, bare_ms(quantiles.max_ms)]);
    cells
}

/// Formats a time in milliseconds. Adds a mark if fewer than `min_calls` calls were measured.
fn mark_if_uncertain(calls: u64, min_calls: u64, ms: f64) -> Text {
    if calls < min_calls { text![Span::Weak, bare_ms(ms)] } else { bare_ms(ms).into() }
}

/// Formats the counts of failures by class, and up to three codes of JSON-RPC errors.
fn failures(row: &run::Row) -> String {
    let failures = row.classes.iter().filter(|class| class.class.is_failure());
    let failures = failures.map(|class| format!("{} {}", class.class.as_str(), count(class.calls)));
    let codes = row.codes.iter().take(3).filter(|(_, calls)| *calls > 0);
    let codes = codes.map(|(code, calls)| format!("code {code} ×{}", count(*calls)));
    failures.chain(codes).collect::<Vec<_>>().join(", ")
}

/// Returns a table of the methods with several outcomes: the latency of each outcome. `None` if
/// there is no such method.
fn classes(result: &RunResult) -> Option<Block> {
    let mixed_methods = result.methods.iter().filter(|row| row.classes.len() > 1);
    let rows = mixed_methods.flat_map(|row| row.classes.iter().map(move |class| (row, class)));
    let table = table!(rows, |(row, class)|
        Column::text("method") => name(&row.method),
        Column::text("outcome") => class.class.as_str(),
        Column::number("calls") => count(class.calls),
        Column::number("p50") => bare_ms(class.latency.p50_ms),
        Column::number("p95") => bare_ms(class.latency.p95_ms),
        Column::number("p99") => bare_ms(class.latency.p99_ms),
        Column::number("max") => bare_ms(class.latency.max_ms),
    );
    let summary = "Latency by outcome, of methods with several".to_owned();
    let has_rows = !table.groups.is_empty();
    has_rows.then(|| Block::Fold { summary, open: false, blocks: vec![Block::Table(table)] })
}

/// Returns a chart of the latency by percentile, with a curve per method. `totals` refers to the
/// plan's `methods` by index. `None` if there was no call.
pub(super) fn spectrum(
    result: &RunResult,
    totals: &Totals,
    methods: &[Box<str>],
) -> Option<Section> {
    let times = methods.iter().enumerate().map(|(index, method)| {
        (&**method, totals.latency(|slot| usize::from(slot.method) == index))
    });
    let histograms: Vec<(&str, Times)> = times.filter(|(_, times)| !times.is_empty()).collect();
    let lowest_ms =
        histograms.iter().map(|(_, times)| quantile_ms(times, 0.01)).reduce(f64::min)?;
    let highest_ms =
        histograms.iter().map(|(_, times)| quantile_ms(times, 1.0)).fold(0.0, f64::max);
    let calls = histograms.iter().map(|(_, times)| times.len()).max().unwrap_or(0);
    // The charts over time leave out methods without calls. These methods are not counted here
    // either, so each method has the same colour in all charts.
    let ink = |name: &str| {
        let called = result.methods.iter().filter(|row| row.calls > 0);
        Ink::Series(called.take_while(|row| row.method != name).count())
    };
    let mut shapes = Vec::new();
    for (name, times) in &histograms {
        let (points, ink) = (quantile_points(times), ink(name));
        let slowest = points.last().copied();
        // The width is in tenths of a pixel, the radius in pixels.
        shapes.push(curve(points, ink, 17));
        shapes.extend(slowest.map(|point| Shape::Dot { at: point, ink, radius: 3, filled: true }));
    }
    let axes = (Axis::quantile(calls), Axis::log_ms(lowest_ms, highest_ms));
    let chart = Chart::new("Latency by percentile", (WIDE, 320), axes, shapes);
    let legend = histograms.iter().map(|(name, _)| (ink(name), (*name).to_owned())).collect();
    let section = Section::new("spectrum", "Percentile spectrum").intro(
        "Latency of all outcomes, from the fastest to the slowest call: each step to the right is ten \
         times rarer. A curve ends at its slowest call. latency.hlog has the complete distribution.",
    );
    Some(section.on(PAGE, Block::Figure(chart, legend)))
}

/// Returns a quantile in milliseconds. The values of the histogram are nanoseconds.
fn quantile_ms(times: &Times, quantile: f64) -> f64 {
    times.value_at_quantile(quantile) as f64 / 1e6
}

/// Returns the points of a method's curve. The last point is the rarest quantile that the number of
/// calls resolves.
fn quantile_points(times: &Times) -> Vec<(f64, f64)> {
    const STEPS: u32 = 160;
    let rarest = (times.len() as f64).log10();
    let point = |step: u32| {
        let quantile = 1.0 - 10f64.powf(-rarest * f64::from(step) / f64::from(STEPS));
        (rarity(quantile), log(quantile_ms(times, quantile)))
    };
    (0..=STEPS).map(point).collect()
}

/// Returns a table of every stage, with the methods that failed in it.
pub(super) fn stages(result: &RunResult) -> Section {
    let mut table = Table::new([
        Column::text("stage"),
        Column::text("time").only(MARKDOWN),
        Column::number("from").only(PAGE),
        Column::number("to").only(PAGE),
        Column::number("planned"),
        Column::number("started"),
        Column::number("dropped"),
        Column::number("interrupted").only(PAGE),
        Column::number("calls").only(PAGE),
        Column::number("failed"),
        Column::number("429").only(PAGE),
        Column::number("p50 ms"),
        Column::number("p95 ms").only(PAGE),
        Column::number("p99 ms"),
        Column::number("max ms").only(PAGE),
    ]);
    for stage in &result.stages {
        let (start, end) = (clock(stage.from), clock(stage.to));
        let mut cells = cells![
            name(format!("{}/{}", stage.scenario, stage.stage)),
            format!("{start}–{end}"),
            start,
            end,
            level(&stage.model, stage.level_from, stage.level_to),
            rate(stage.rate_started),
            count(stage.iterations.dropped),
            count(stage.iterations.interrupted),
        ];
        cells.extend(stage_calls(&stage.overall));
        table.row(cells);
    }
    let has_failures = |row: &&run::Row| row.failed_share > 0.0;
    let sub_row = |row: &run::Row| {
        let mut cells = cells![format!("\u{2003}{}", row.method), "", "", "", "", "", "", ""];
        cells.extend(stage_calls(row));
        Row::sub_row(cells)
    };
    let table = table.with_sub_rows("", |index| {
        result.stages[index].methods.iter().filter(has_failures).map(sub_row).collect()
    });
    let formats = if result.stages.len() < 2 { PAGE } else { FILES };
    let note = "The methods that failed are listed below their stage; methods.csv has all methods.";
    Section::new("stages", "Stages")
        .nav("Stages")
        .intro(
            "Planned and achieved load of each [stage](stage). A call belongs to the stage in which its \
             iteration was scheduled.",
        )
        .on(formats, Block::Table(table))
        .on(PAGE, Block::Note(note.into()))
}

/// Returns the cells of a stage for calls, failed, limited, and four quantiles.
fn stage_calls(row: &run::Row) -> Vec<Text> {
    let (latency, tone_class) = (&row.latency, if row.failed_share > 0.0 { "bad" } else { "" });
    let failed_cell = tone(tone_class, percent(row.failed_share));
    let mut cells = cells![count(row.calls), failed_cell, percent(row.limited_share)];
    cells.extend(match latency.count {
        0 => vec![Text::default(); 4],
        _ => cells![
            bare_ms(latency.p50_ms),
            bare_ms(latency.p95_ms),
            mark_if_uncertain(latency.count, WEAK_P99, latency.p99_ms),
            bare_ms(latency.max_ms),
        ],
    });
    cells
}

/// Formats the planned level of a stage: `100/s`, `20 → 100/s`, `50 workers`. The model is `open`,
/// which plans a rate, or `closed`, which plans a number of workers.
fn level(model: &str, start_level: f64, end_level: f64) -> String {
    let unit = if model == "closed" { " workers" } else { "/s" };
    if (start_level - end_level).abs() < 1e-9 {
        return format!("{}{unit}", short(end_level));
    }
    format!("{} → {}{unit}", short(start_level), short(end_level))
}
