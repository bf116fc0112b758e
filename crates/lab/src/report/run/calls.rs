//! Sections about calls: by method, by outcome, by stage, and the latency distribution.
//!
//! `report/document.rs` explains the functions and macros that build sections.

use lab_model::record::{Class, Times, Totals};
use lab_model::results::Quantiles;
use lab_model::results::run::{self, ClassRow, RunResult};

use super::super::chart::axis::{Axis, log, rarity};
use super::super::chart::{Chart, Ink, Shape, curve};
use super::super::document::{
    Block, Column, Row, Section, Span, Table, Text, cells, name, table, text, tone,
};
use super::over_time::WIDE;
use crate::analysis::validity::{Allowed, is_moved};
use crate::wording::number::{WEAK_P99, bare_ms, clock, count, percent, rate, short};

/// Smallest number of calls for a reliable p99.9. With fewer calls, fewer than 100 are slower than
/// the p99.9.
const WEAK_P999: u64 = 100_000;
/// Maximum number of methods on the terminal.
const METHODS_MAX: usize = 9;

/// Returns a table of every method. The terminal has at most [`METHODS_MAX`] of the called methods:
/// those with the largest shares of failures.
pub(super) fn methods(result: &RunResult) -> Section {
    let rows = rows(result);
    let allowed = Allowed::of_run(&result.generator);
    let first_columns = [
        Column::text("method"),
        Column::number("calls"),
        Column::number("share"),
        Column::number("results/s"),
        Column::number("ok"),
        Column::number("failed"),
        Column::number("429"),
    ];
    let quantile_columns = ["p50", "p95", "p99", "max"].map(Column::number);
    let shares = result_shares(&rows);
    let share_columns = shares.iter().map(|(heading, _)| Column::number(heading));
    let columns = first_columns.into_iter().chain(share_columns).chain(quantile_columns);
    let mut table = Table::new(columns.chain([Column::text("failed as")]));
    for row in &rows {
        let ok_row = row.classes.iter().find(|class| class.class == Class::Ok);
        let ok_share = ok_row.map_or(0.0, |ok| ok.calls as f64 / row.calls.max(1) as f64);
        let mut cells = cells![
            name(&row.method),
            count(row.calls),
            percent(row.share),
            short(row.goodput),
            percent(ok_share),
            percent(row.failed_share),
            percent(row.limited_share),
        ];
        cells.extend(share_cells(&shares, row));
        let [_, p50, _, p95, p99, _, _, max] =
            quantiles(&row.latency, row.latency_least.as_ref(), allowed);
        cells.extend([p50, p95, p99, max, tone("bad", failures(row))]);
        table.row(cells);
    }
    let called = |index: &usize| rows[*index].calls > 0;
    let mut selected: Vec<usize> = (1..rows.len()).filter(called).collect();
    let called_methods = selected.len();
    selected.sort_by(|a, b| rows[*b].failed_share.total_cmp(&rows[*a].failed_share));
    selected.truncate(METHODS_MAX);
    // The first row has the totals.
    selected.push(0);
    selected.sort_unstable();
    let note = text![
        "Latency in ms from the scheduled send, all outcomes; a timeout counts with its full time. ",
        Span::Weak,
        format!(" uncertain: fewer than {} calls.", count(WEAK_P99))
    ];
    Section::new("", "Methods and outcomes")
        .add(Block::Table(table.excerpt(selected, called_methods + 1, "method")))
        .add(Block::Note(note))
}

/// Returns the totals, and the rows of all methods.
fn rows(result: &RunResult) -> Vec<&run::Row> {
    std::iter::once(&result.overall).chain(&result.methods).collect()
}

/// Number of columns of a latency distribution.
const QUANTILES: usize = 8;

/// Returns a share of a method's calls.
type ShareOf = fn(&run::Row) -> Option<f64>;

/// Columns of shares that are 0 in most runs: heading and share.
const RESULT_SHARES: [(&str, ShareOf); 2] =
    [("null", |row| row.null_share), ("wrong type", |row| row.wrong_type_share)];

/// Returns the columns of [`RESULT_SHARES`] that are not 0 in all rows.
fn result_shares(rows: &[&run::Row]) -> Vec<(&'static str, ShareOf)> {
    let is_used = |share_of: ShareOf| rows.iter().any(|row| share_of(row) > Some(0.0));
    RESULT_SHARES.into_iter().filter(|(_, share_of)| is_used(*share_of)).collect()
}

/// Returns the cells of [`result_shares`].
fn share_cells(shares: &[(&str, ShareOf)], row: &run::Row) -> Vec<Text> {
    let cell = |(_, share_of): &(&str, ShareOf)| {
        let share = share_of(row).unwrap_or_default();
        tone(if share > 0.0 { "bad" } else { "" }, percent(share))
    };
    shares.iter().map(cell).collect()
}

/// Returns a table of every method for the page. A percentile is marked if the generator may have
/// caused more of it than is allowed. The sub-rows of a method are its outcomes.
pub(super) fn page_methods(result: &RunResult) -> Section {
    let rows = rows(result);
    let allowed = Allowed::of_run(&result.generator);
    let first_columns = [
        Column::text("method, outcome"),
        Column::number("calls"),
        Column::text("share"),
        Column::number("results/s"),
    ];
    let quantile_columns: [Column; QUANTILES] = [
        "mean",
        "p50",
        "p90",
        "p95",
        "p99",
        "[95 % interval](interval of the p99)",
        "p99.9",
        "max",
    ]
    .map(Column::number);
    let shares = result_shares(&rows);
    let share_columns = shares.iter().map(|(heading, _)| Column::number(heading));
    let mut table =
        Table::new(first_columns.into_iter().chain(share_columns).chain(quantile_columns));
    for row in &rows {
        let mut cells = cells![
            name(&row.method),
            count(row.calls),
            text![Span::Bar(row.share), percent(row.share)],
            short(row.goodput),
        ];
        cells.extend(share_cells(&shares, row));
        cells.extend(quantiles(&row.latency, row.latency_least.as_ref(), allowed));
        table.row(cells);
    }
    let table = table.with_sub_rows("", |index| outcome_rows(rows[index], shares.len()));
    Section::new("methods", "Methods and outcomes")
        .nav("Methods")
        .intro(
            "[Latency](latency) in milliseconds. The first line of a method covers all its \
             [outcomes](outcome), where a timeout counts with its full time. The lines below it are \
             single outcomes, because errors may be faster than results. A ~ marks a figure with \
             [too few calls](uncertain figures).",
        )
        .add(Block::Table(table))
}

/// Returns the sub-rows of a method: a row per outcome, and a row with the codes of JSON-RPC
/// errors. If all calls succeeded, there are none. `shares` is the number of columns of
/// [`result_shares`].
fn outcome_rows(row: &run::Row, shares: usize) -> Vec<Row> {
    let has_other_outcomes = row.classes.iter().any(|class| class.class != Class::Ok);
    let outcomes = row.classes.iter().filter(|_| has_other_outcomes);
    let mut rows: Vec<Row> = outcomes.map(|class| outcome_row(row, class, shares)).collect();
    if row.codes.iter().any(|(_, calls)| *calls > 0) {
        let mut codes = vec![Span::Small("codes of JSON-RPC errors: ".to_owned())];
        for (index, (code, calls)) in row.codes.iter().enumerate() {
            codes.extend((index > 0).then(|| Span::Small(", ".to_owned())));
            codes.push(Span::Code(code.to_string()));
            codes.push(Span::Small(format!(" × {}", count(*calls))));
        }
        rows.push(Row { is_sub_row: true, ..Row::across(0, Text(codes)) });
    }
    rows
}

/// Returns the sub-row of one outcome of a method.
fn outcome_row(row: &run::Row, class: &ClassRow, shares: usize) -> Row {
    let tone_class = match class.class {
        class if class.is_failure() => "bad",
        Class::Limited => "limited",
        _ => "",
    };
    let share = format!("\u{2003}{}", percent(class.calls as f64 / row.calls.max(1) as f64));
    let label = text!["\u{2003}", tone(tone_class, class.class.as_str())];
    // Empty cells belong to columns that only a method has.
    let mut cells = cells![label, count(class.calls), share, ""];
    cells.extend(vec![Text::default(); shares]);
    cells.extend(quantiles(&class.latency, None, Allowed { share: 1.0, delay_ms: 0.0 }));
    Row::sub_row(cells)
}

/// Returns the cells for mean, p50, p90, p95, p99, its interval, p99.9 and maximum. `least` has the lower bounds without the delays of the
/// generator. A time is marked if more of it than is allowed may be such a delay.
fn quantiles(
    quantiles: &Quantiles,
    least: Option<&Quantiles>,
    allowed: Allowed,
) -> [Text; QUANTILES] {
    if quantiles.count == 0 {
        return Default::default();
    }
    let (low, high) = quantiles.p99_interval_ms;
    let cell = |min_calls: u64, value_of: fn(&Quantiles) -> f64| {
        let value = value_of(quantiles);
        let text = mark_if_uncertain(quantiles.count, min_calls, value);
        match least {
            Some(least) if is_moved(value, value_of(least), allowed) => text![text, "!"],
            _ => text,
        }
    };
    let interval = Span::Small(format!("{}–{}", bare_ms(low), bare_ms(high)));
    [
        cell(0, |times| times.mean_ms),
        cell(0, |times| times.p50_ms),
        cell(0, |times| times.p90_ms),
        cell(0, |times| times.p95_ms),
        cell(WEAK_P99, |times| times.p99_ms),
        interval.into(),
        cell(WEAK_P999, |times| times.p999_ms),
        cell(0, |times| times.max_ms),
    ]
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
pub(super) fn classes(result: &RunResult) -> Option<Section> {
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
    let fold = Block::Fold { summary, open: false, blocks: vec![Block::Table(table)] };
    has_rows.then(|| Section::default().detail().add(fold))
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
    Some(section.add(Block::Figure(chart, legend)))
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
        Column::number("from"),
        Column::number("to"),
        Column::number("planned"),
        Column::number("started"),
        Column::number("dropped"),
        Column::number("interrupted"),
        Column::number("calls"),
        Column::number("failed"),
        Column::number("429"),
        Column::number("p50 ms"),
        Column::number("p95 ms"),
        Column::number("p99 ms"),
        Column::number("max ms"),
    ]);
    for stage in &result.stages {
        let mut cells = cells![
            name(format!("{}/{}", stage.scenario, stage.stage)),
            clock(stage.from),
            clock(stage.to),
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
        let mut cells = cells![format!("\u{2003}{}", row.method), "", "", "", "", "", ""];
        cells.extend(stage_calls(row));
        Row::sub_row(cells)
    };
    let table = table.with_sub_rows("", |index| {
        result.stages[index].methods.iter().filter(has_failures).map(sub_row).collect()
    });
    let note = "The methods that failed are listed below their stage; methods.csv has all methods.";
    Section::new("stages", "Stages")
        .nav("Stages")
        .detail()
        .intro(
            "Planned and achieved load of each [stage](stage). A call belongs to the stage in which its \
             iteration was scheduled.",
        )
        .add(Block::Table(table))
        .add(Block::Note(note.into()))
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
