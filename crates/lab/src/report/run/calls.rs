//! Sections about calls: by method, by outcome, by stage, and the latency distribution.

use lab_model::record::{Class, Times, Totals};
use lab_model::results::Quantiles;
use lab_model::results::run::{self, ClassRow, RunResult};

use super::super::chart::axis::{Axis, log, rarity};
use super::super::chart::{Chart, Ink, Shape, curve};
use super::super::document::{
    Block, FILES, MARKDOWN, PAGE, Row, Section, Span, TERMINAL, Table, Text, cells, code, name,
    table, text, tone,
};
use super::over_time::WIDE;
use crate::wording::number::{WEAK_P99, bare_ms, clock, count, percent, rate, short};

/// With fewer calls, fewer than 100 lie beyond the 99.9th percentile.
const WEAK_P999: u64 = 100_000;
/// Maximum number of methods on the terminal.
const METHODS: usize = 9;

/// Every method with its outcomes.
pub(super) fn methods(result: &RunResult) -> Section {
    let all: Vec<&run::Row> = std::iter::once(&result.overall).chain(&result.methods).collect();
    let chosen: Vec<&run::Row> =
        std::iter::once(&result.overall).chain(chosen(&result.methods)).collect();
    let called = result.methods.iter().filter(|row| row.calls > 0).count();
    let mut on_terminal = table(&chosen).at_most(METHODS + 1, "method");
    on_terminal.all = Some(called + 1);
    let weak = |row: &&run::Row| (1..WEAK_P99).contains(&row.latency.count);
    let weak = |rows: &[&run::Row], sign: Text, more: &str| {
        let least = count(WEAK_P99);
        let note = text![sign, format!(" uncertain: fewer than {least} calls.{more}")];
        rows.iter().any(weak).then_some(Block::Note(note))
    };
    let what = "Latency in milliseconds from the scheduled send, all outcomes; a timeout counts with \
                its full time.";
    Section::new("methods", "Methods and outcomes")
        .nav("Methods")
        .lead(
            "[Latency](latency) in milliseconds. The first line of a method covers all its \
             [outcomes](outcome), where a timeout counts with its full time. The lines below it are \
             single outcomes, because errors may be faster than results. A ~ marks a figure with \
             [too few calls](uncertain figures).",
        )
        .on(MARKDOWN, Block::Paragraph(what.into()))
        .on(TERMINAL, Block::Table(on_terminal))
        .on(FILES, Block::Table(table(&all)))
        .on(TERMINAL, weak(&chosen, "~".into(), " A timeout counts with its full time."))
        .on(MARKDOWN, weak(&all, code("~"), ""))
        .on(MARKDOWN, classes(result))
}

/// Returns the called methods in the plan's order. If there are too many, it returns those with the
/// most failures.
fn chosen(methods: &[run::Row]) -> Vec<&run::Row> {
    let mut rows: Vec<_> = methods.iter().enumerate().filter(|(_, row)| row.calls > 0).collect();
    rows.sort_by(|(_, a), (_, b)| b.failed_share.total_cmp(&a.failed_share));
    rows.truncate(METHODS);
    rows.sort_by_key(|(index, _)| *index);
    rows.into_iter().map(|(_, row)| row).collect()
}

/// The columns of quantiles.
const QUANTILES: [&str; 8] = [
    "mean @p",
    "p50",
    "p90 @p",
    "p95",
    "p99",
    "[95 % interval](interval of the p99) @p",
    "p99.9 @p",
    "max",
];

fn table(rows: &[&run::Row]) -> Table {
    let first = ["<method|method, outcome", "calls", "share @tm", "<share @p", "ok @t"];
    let first = first.into_iter().chain(["results/s @mp", "failed @tm", "429 @tm"]);
    let last = ["<latency in ms, all outcomes @t", "<failed as @m"];
    let mut table = Table::new(&first.chain(QUANTILES).chain(last).collect::<Vec<_>>());
    for row in rows {
        let ok = row.classes.iter().find(|one| one.class == Class::Ok);
        let ok = ok.map_or(0.0, |ok| ok.calls as f64 / row.calls.max(1) as f64);
        let mut cells = cells![
            name(&row.method),
            count(row.calls),
            percent(row.share),
            text![Span::Bar(row.share), percent(row.share)],
            percent(ok),
            short(row.goodput),
            percent(row.failed_share),
            percent(row.limited_share),
        ];
        cells.extend(quantiles(&row.latency));
        cells.extend(cells![tone("bad", failures(row)), failures(row)]);
        table.row(cells);
    }
    table.with_parts("", |index| parts(rows[index]))
}

/// Returns the sub-rows of a method: its outcomes if a call did not succeed, and codes of JSON-RPC
/// errors.
fn parts(row: &run::Row) -> Vec<Row> {
    let mixed = row.classes.iter().any(|class| class.class != Class::Ok);
    let outcomes = row.classes.iter().filter(|_| mixed);
    let mut rows: Vec<Row> = outcomes.map(|class| outcome(row, class)).collect();
    if row.codes.iter().any(|(_, calls)| *calls > 0) {
        let mut codes = vec![Span::Small("codes of JSON-RPC errors: ".to_owned())];
        for (index, (code, calls)) in row.codes.iter().enumerate() {
            codes.extend((index > 0).then(|| Span::Small(", ".to_owned())));
            codes.push(Span::Code(code.to_string()));
            codes.push(Span::Small(format!(" × {}", count(*calls))));
        }
        rows.push(Row { part: true, ..Row::across(0, Text(codes), PAGE) });
    }
    rows
}

fn outcome(row: &run::Row, class: &ClassRow) -> Row {
    let paint = match class.class {
        class if class.failed() => "bad",
        Class::Limited => "limited",
        _ => "",
    };
    let share = format!("\u{2003}{}", percent(class.calls as f64 / row.calls.max(1) as f64));
    let what = text!["\u{2003}", tone(paint, class.class.as_str())];
    let mut cells = cells![what, count(class.calls), "", share, "", "", "", ""];
    cells.extend(quantiles(&class.latency));
    cells.extend(cells!["", ""]);
    Row::part(cells)
}

/// The cells below [`QUANTILES`].
fn quantiles(of: &Quantiles) -> Vec<Text> {
    if of.count == 0 {
        return vec![Text::default(); QUANTILES.len()];
    }
    let (low, high) = of.p99_interval_ms;
    let (p99, p999) = (weak(of.count, WEAK_P99, of.p99_ms), weak(of.count, WEAK_P999, of.p999_ms));
    let interval = Span::Small(format!("{}–{}", bare_ms(low), bare_ms(high)));
    let mut cells =
        [of.mean_ms, of.p50_ms, of.p90_ms, of.p95_ms].map(|ms| bare_ms(ms).into()).to_vec();
    cells.extend(cells![p99, interval, p999, bare_ms(of.max_ms)]);
    cells
}

fn weak(calls: u64, least: u64, ms: f64) -> Text {
    if calls < least { text![Span::Weak, bare_ms(ms)] } else { bare_ms(ms).into() }
}

/// Formats counts of failures by class, and codes of JSON-RPC errors.
fn failures(row: &run::Row) -> String {
    let failed = row.classes.iter().filter(|class| class.class.failed());
    let failed = failed.map(|class| format!("{} {}", class.class.as_str(), count(class.calls)));
    let codes = row.codes.iter().take(3).filter(|(_, calls)| *calls > 0);
    let codes = codes.map(|(code, calls)| format!("code {code} ×{}", count(*calls)));
    failed.chain(codes).collect::<Vec<_>>().join(", ")
}

/// Returns the latency by outcome of methods with several outcomes.
fn classes(result: &RunResult) -> Option<Block> {
    let mixed = result.methods.iter().filter(|row| row.classes.len() > 1);
    let all = mixed.flat_map(|row| row.classes.iter().map(move |class| (row, class)));
    let table = table!(all, |(row, class)|
        "<method" => name(&row.method),
        "<outcome" => class.class.as_str(),
        "calls" => count(class.calls),
        "p50" => bare_ms(class.latency.p50_ms),
        "p95" => bare_ms(class.latency.p95_ms),
        "p99" => bare_ms(class.latency.p99_ms),
        "max" => bare_ms(class.latency.max_ms),
    );
    let summary = "Latency by outcome, of methods with several".to_owned();
    let any = !table.groups.is_empty();
    any.then(|| Block::Fold(summary, false, vec![Block::Table(table)]))
}

/// Latency by percentile.
pub(super) fn spectrum(
    result: &RunResult,
    totals: &Totals,
    methods: &[Box<str>],
) -> Option<Section> {
    let times = methods.iter().enumerate().map(|(index, method)| {
        (&**method, totals.latency(|slot| usize::from(slot.method) == index))
    });
    let all: Vec<(&str, Times)> = times.filter(|(_, times)| !times.is_empty()).collect();
    let least = all.iter().map(|(_, times)| at(times, 0.01)).reduce(f64::min)?;
    let most = all.iter().map(|(_, times)| at(times, 1.0)).fold(0.0, f64::max);
    let calls = all.iter().map(|(_, times)| times.len()).max().unwrap_or(0);
    // The colours are those of the charts over time. Methods without calls are missing there.
    let ink = |name: &str| {
        let called = result.methods.iter().filter(|row| row.calls > 0);
        Ink::Series(called.take_while(|row| row.method != name).count())
    };
    let mut shapes = Vec::new();
    for (name, times) in &all {
        let (points, ink) = (quantile_points(times), ink(name));
        let slowest = points.last().copied();
        shapes.push(curve(points, ink, 17));
        shapes.extend(slowest.map(|at| Shape::Dot { at, ink, radius: 3, filled: true }));
    }
    let axes = (Axis::quantile(calls), Axis::log_ms(least, most));
    let chart = Chart::new("Latency by percentile", (WIDE, 320), axes, shapes);
    let keys = all.iter().map(|(name, _)| (ink(name), (*name).to_owned())).collect();
    let section = Section::new("spectrum", "Percentile spectrum").lead(
        "Latency of all outcomes, from the fastest to the slowest call: each step to the right is ten \
         times rarer. A curve ends at its slowest call. latency.hlog has the complete distribution.",
    );
    Some(section.on(PAGE, Block::Figure(chart, keys)))
}

fn at(times: &Times, quantile: f64) -> f64 {
    times.value_at_quantile(quantile) as f64 / 1e6
}

/// Returns the points of a curve, up to the rarest quantile that the calls resolve.
fn quantile_points(times: &Times) -> Vec<(f64, f64)> {
    const STEPS: u32 = 160;
    let rarest = (times.len() as f64).log10();
    let point = |step: u32| {
        let quantile = 1.0 - 10f64.powf(-rarest * f64::from(step) / f64::from(STEPS));
        (rarity(quantile), log(at(times, quantile)))
    };
    (0..=STEPS).map(point).collect()
}

/// Every stage, with the methods that failed in it.
pub(super) fn stages(result: &RunResult) -> Section {
    let mut table = Table::new(&[
        "<stage",
        "<time @m",
        "from @p",
        "to @p",
        "planned",
        "started",
        "dropped",
        "interrupted @p",
        "calls @p",
        "failed",
        "429 @p",
        "p50 ms",
        "p95 ms @p",
        "p99 ms",
        "max ms @p",
    ]);
    for stage in &result.stages {
        let (from, to) = (clock(stage.from), clock(stage.to));
        let mut cells = cells![
            name(format!("{}/{}", stage.scenario, stage.stage)),
            format!("{from}–{to}"),
            from,
            to,
            level(&stage.model, stage.level_from, stage.level_to),
            rate(stage.rate_begun),
            count(stage.iterations.dropped),
            count(stage.iterations.cut),
        ];
        cells.extend(stage_calls(&stage.overall));
        table.row(cells);
    }
    let failed = |row: &&run::Row| row.failed_share > 0.0;
    let sub_row = |row: &run::Row| {
        let mut cells = cells![format!("\u{2003}{}", row.method), "", "", "", "", "", "", ""];
        cells.extend(stage_calls(row));
        Row::part(cells)
    };
    let table = table.with_parts("", |index| {
        result.stages[index].methods.iter().filter(failed).map(sub_row).collect()
    });
    let on = if result.stages.len() < 2 { PAGE } else { FILES };
    let note = "The methods that failed are listed below their stage; methods.csv has all methods.";
    Section::new("stages", "Stages")
        .nav("Stages")
        .lead(
            "Planned and achieved load of each [stage](stage). A call belongs to the stage in which its \
             iteration was scheduled.",
        )
        .on(on, Block::Table(table))
        .on(PAGE, Block::Note(note.into()))
}

/// Returns the cells for calls, failed, limited, and four quantiles.
fn stage_calls(row: &run::Row) -> Vec<Text> {
    let (of, paint) = (&row.latency, if row.failed_share > 0.0 { "bad" } else { "" });
    let failed = tone(paint, percent(row.failed_share));
    let mut cells = cells![count(row.calls), failed, percent(row.limited_share)];
    cells.extend(match of.count {
        0 => vec![Text::default(); 4],
        _ => cells![
            bare_ms(of.p50_ms),
            bare_ms(of.p95_ms),
            weak(of.count, WEAK_P99, of.p99_ms),
            bare_ms(of.max_ms),
        ],
    });
    cells
}

/// Formats the planned level of a stage: `100/s`, `20 → 100/s`, `50 workers`.
fn level(model: &str, from: f64, to: f64) -> String {
    let unit = if model == "closed" { " workers" } else { "/s" };
    if (from - to).abs() < 1e-9 {
        return format!("{}{unit}", short(to));
    }
    format!("{} → {}{unit}", short(from), short(to))
}
