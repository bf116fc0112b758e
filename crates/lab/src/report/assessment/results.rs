//! Sections about results: methods by plan and system, capacities, and first bottlenecks.
//!
//! `report/document.rs` explains the functions and macros that build sections.

use lab_model::results::Finding;
use lab_model::results::run::{Row, RunResult};

use super::super::chart::axis::{Axis, Scale, Tick};
use super::super::chart::{Chart, Ink, Shape, curve};
use super::super::document::{
    Block, Column, Section, Span, Table, Text, cells, code, name, table, text, tone,
};
use super::super::parts::{self, or_dash};
use super::super::{capacity, run};
use super::section;
use crate::analysis::assessment::{PlanRuns, System};
use crate::analysis::statistics::median;
use crate::assessment::Assessed;
use crate::distinct;
use crate::wording::number::{WEAK_P99, bare_ms, count, percent, rate, short};

/// Maximum number of runs with charts. A page with more charts is too long to print.
const CHARTS_MAX: usize = 8;
/// Maximum number of capacity searches with charts.
const SEARCHES_MAX: usize = 4;
/// Width and height of the chart of capacities in pixels.
const SIZE: (i32, i32) = (1000, 240);
/// Width of the line from pass to fail in the chart of capacities, in tenths of a pixel.
const LINE_WIDTH: u32 = 40;
/// Radius of a dot in the chart of capacities, in pixels.
const DOT_RADIUS: i32 = 4;
/// Maximum number of characters of a system's name on an axis.
const AXIS_NAME_MAX: usize = 28;

/// Returns the results: methods and thresholds by plan, then capacities.
pub(super) fn results(assessed: &Assessed) -> Section {
    let mut section = section("results", "Results per method").intro(
        "Medians over the valid runs of each system, in milliseconds, all outcomes. A ~ marks a \
         figure with [too few calls](uncertain figures). A bar shows the share of the largest p99.",
    );
    if assessed.evidence.plans.is_empty() {
        let no_runs = "No valid load run is among the results, so there are no figures per method.";
        section = section.add(Block::Paragraph(no_runs.into()));
    }
    for plan in &assessed.evidence.plans {
        section = section
            .add(Block::Subheading(format!("Plan {}", plan.name)))
            .add(Block::Table(methods(assessed, plan)))
            .add(thresholds(assessed, plan));
    }
    capacities(assessed, section)
}

/// Returns the results with charts for the page.
pub(super) fn page_results(assessed: &Assessed) -> Section {
    charts(assessed, results(assessed).add(capacity_chart(assessed)))
}

/// The values of a method over the valid runs of a system. Times and goodput are medians of the
/// runs. Shares are computed over the calls of all runs together.
struct MethodRow {
    runs: usize,
    calls: u64,
    /// Successful calls per second.
    goodput: f64,
    /// Share of calls that failed.
    failed: f64,
    /// Share of calls that a rate limit rejected.
    limited: f64,
    p50_ms: f64,
    p95_ms: f64,
    p99_ms: f64,
}

/// Returns the runs of a system whose indexes are in `runs`.
fn runs_of<'a>(system: &'a System, runs: &[usize]) -> Vec<&'a RunResult> {
    runs.iter().map(|run| &system.runs[*run].result).collect()
}

/// Summarizes a method over runs. `row_of` returns the method's row in the result of a run, or
/// `None` if the run does not have the method. Returns `None` if no run called the method.
fn summarize(runs: &[&RunResult], row_of: &dyn Fn(&RunResult) -> Option<Row>) -> Option<MethodRow> {
    let rows: Vec<Row> =
        runs.iter().filter_map(|run| row_of(run)).filter(|row| row.calls > 0).collect();
    let calls: u64 = rows.iter().map(|row| row.calls).sum();
    let median_of = |value: fn(&Row) -> f64| {
        median(&rows.iter().map(value).collect::<Vec<_>>()).unwrap_or_default()
    };
    let share_of = |value: fn(&Row) -> f64| {
        rows.iter().map(|row| value(row) * row.calls as f64).sum::<f64>() / calls.max(1) as f64
    };
    (calls > 0).then(|| MethodRow {
        runs: rows.len(),
        calls,
        goodput: median_of(|row| row.goodput),
        failed: share_of(|row| row.failed_share),
        limited: share_of(|row| row.limited_share),
        p50_ms: median_of(|row| row.latency.p50_ms),
        p95_ms: median_of(|row| row.latency.p95_ms),
        p99_ms: median_of(|row| row.latency.p99_ms),
    })
}

/// Returns a table of one plan. Each method has one row per system; the first method is the total
/// `all`.
fn methods(assessed: &Assessed, plan: &PlanRuns) -> Table {
    let systems: Vec<(&str, Vec<&RunResult>)> = plan
        .systems
        .iter()
        .map(|(index, runs)| {
            let system = &assessed.evidence.systems[*index];
            (system.name.as_str(), runs_of(system, runs))
        })
        .collect();
    let method_rows = systems.iter().flat_map(|(_, runs)| runs).flat_map(|run| &run.methods);
    let names = distinct(method_rows.map(|row| row.method.as_str()));
    let mut rows: Vec<(Option<&str>, &str, MethodRow)> = Vec::new();
    for method in std::iter::once(None).chain(names.into_iter().map(Some)) {
        let row_of = |run: &RunResult| match method {
            None => Some(run.overall.clone()),
            Some(method) => run.methods.iter().find(|row| row.method == method).cloned(),
        };
        for (system, runs) in &systems {
            rows.extend(summarize(runs, &row_of).map(|row| (method, *system, row)));
        }
    }
    let highest_p99 = rows.iter().map(|(.., row)| row.p99_ms).fold(0.0, f64::max);
    let mut table = Table::new([
        Column::text("method"),
        Column::text("system"),
        Column::number("runs"),
        Column::number("[calls](calls)"),
        Column::number("[results/s](goodput)"),
        Column::number("[failed](failed)"),
        Column::number("[429](limited)"),
        Column::number("p50"),
        Column::number("p95"),
        Column::text("p99"),
    ]);
    let mut previous_method = None;
    for (method, system, row) in &rows {
        // Only the first row of a method has the method's name.
        let label = match method {
            _ if previous_method == Some(*method) => Text::default(),
            None => Text::from("all"),
            Some(method) => name(*method),
        };
        previous_method = Some(*method);
        let weak_mark = match row.calls / (row.runs as u64) < WEAK_P99 {
            true => Text::from(Span::Weak),
            false => Text::default(),
        };
        table.row(cells![
            label,
            *system,
            row.runs.to_string(),
            count(row.calls),
            short(row.goodput),
            tone(if row.failed > 0.0 { "bad" } else { "" }, percent(row.failed)),
            percent(row.limited),
            bare_ms(row.p50_ms),
            bare_ms(row.p95_ms),
            text![Span::Bar(row.p99_ms / highest_p99.max(1e-9)), weak_mark, bare_ms(row.p99_ms)],
        ]);
    }
    table
}

/// Returns the thresholds of all runs of a plan, or `None` if the plan has no thresholds.
fn thresholds(assessed: &Assessed, plan: &PlanRuns) -> Option<Block> {
    let runs = plan.systems.iter().flat_map(|(index, runs)| {
        let system = &assessed.evidence.systems[*index];
        runs.iter().map(move |run| (system.name.as_str(), &system.runs[*run]))
    });
    let rows = runs.flat_map(|(system, run)| {
        run.result.thresholds.iter().map(move |threshold| (system, run.label.as_str(), threshold))
    });
    let table = table!(rows, |(system, label, threshold)|
        Column::text("system") => system,
        Column::text("run") => name(label),
        Column::prose("[threshold](threshold)") => code(&threshold.text),
        Column::text("") => run::verdict_of(threshold),
        Column::number("observed") => run::format_observed(threshold),
    );
    (!table.groups.is_empty()).then_some(Block::Table(table))
}

/// Adds the capacities.
fn capacities(assessed: &Assessed, section: Section) -> Section {
    let searches: Vec<_> = assessed
        .evidence
        .systems
        .iter()
        .flat_map(|system| system.searches.iter().map(move |search| (system, search)))
        .collect();
    if searches.is_empty() {
        return section;
    }
    let table = table!(&searches, |(system, search)|
        Column::text("system") => &system.name,
        Column::text("search") => name(&search.label),
        Column::number("[highest pass](capacity)") => or_dash(search.result.answer.highest_pass, rate),
        Column::number("[lowest fail](capacity)") => or_dash(search.result.answer.lowest_fail, rate),
        Column::text("[soak](soak)") => match search.result.answer.soak_held {
            None => Text::from("not made"),
            Some(true) => tone("kept", "held"),
            Some(false) => tone("broken", "broke"),
        },
        Column::prose("[boundary](boundary)") =>
            capacity::describe_boundary(search.result.answer.boundary).unwrap_or("unknown"),
        Column::prose("first broken limit") =>
            or_dash(search.result.binding.as_ref(), capacity::describe_binding),
    );
    section.add(Block::Subheading("Capacity".to_owned())).add(Block::Table(table))
}

/// Draws a line from the highest pass to the lowest fail of each search, by system.
fn capacity_chart(assessed: &Assessed) -> Option<Block> {
    let with_searches =
        || assessed.evidence.systems.iter().filter(|system| !system.searches.is_empty());
    let rates = with_searches().flat_map(|system| &system.searches).flat_map(|search| {
        let answer = &search.result.answer;
        [answer.highest_pass, answer.lowest_fail].into_iter().flatten()
    });
    let highest = rates.reduce(f64::max)?;
    let tick = |(index, system): (usize, &System)| Tick {
        at: index as f64 + 1.0,
        label: system.name.chars().take(AXIS_NAME_MAX).collect(),
    };
    let ticks: Vec<Tick> = with_searches().enumerate().map(tick).collect();
    let x = Axis { from: 0.5, to: ticks.len() as f64 + 0.5, ticks };
    let mut shapes = Vec::new();
    for (index, system) in with_searches().enumerate() {
        let searches = system.searches.len();
        for (search_index, search) in system.searches.iter().enumerate() {
            // Searches of one system are side by side around the tick of the system. They take 60 %
            // of the distance between two ticks.
            let offset = (search_index as f64 + 1.0) / (searches as f64 + 1.0) - 0.5;
            let x = index as f64 + 1.0 + offset * 0.6;
            let (pass, fail) =
                (search.result.answer.highest_pass, search.result.answer.lowest_fail);
            if let Some((pass, fail)) = pass.zip(fail) {
                shapes.push(curve(vec![(x, pass), (x, fail)], Ink::Limited, LINE_WIDTH));
            }
            let dot =
                |rate, ink| Shape::Dot { at: (x, rate), ink, radius: DOT_RADIUS, filled: true };
            shapes.extend(pass.map(|rate| dot(rate, Ink::Good)));
            shapes.extend(fail.map(|rate| dot(rate, Ink::Bad)));
        }
    }
    let chart =
        Chart::new("Capacity by system", SIZE, (x, Axis::up_to(highest, Scale::Number)), shapes);
    let legend = [
        (Ink::Good, "highest pass, iterations/s".to_owned()),
        (Ink::Bad, "lowest fail".to_owned()),
    ];
    Some(Block::Figure(chart, legend.to_vec()))
}

/// Adds charts: the probes of each search by rate, and the latency over time of the first run of
/// each plan and system.
fn charts(assessed: &Assessed, mut section: Section) -> Section {
    let searches = assessed
        .evidence
        .systems
        .iter()
        .flat_map(|system| system.searches.iter().map(move |search| (system, search)));
    for (system, search) in searches.take(SEARCHES_MAX) {
        let Some(curves) = capacity::curves(&search.result) else { continue };
        let title = format!("Probes by rate: {} ({})", system.name, search.label);
        section = section.add_section(title, curves);
    }
    let runs = assessed.evidence.plans.iter().flat_map(|plan| {
        plan.systems.iter().filter_map(move |(index, runs)| {
            let system = &assessed.evidence.systems[*index];
            Some((system, &system.runs[*runs.first()?]))
        })
    });
    for (system, labelled) in runs.take(CHARTS_MAX) {
        if labelled.result.series.is_empty() {
            continue;
        }
        let title = format!("Latency over time: {} ({})", system.name, labelled.label);
        section = section.add_section(title, run::latency_over_time(&labelled.result));
    }
    section
}

/// Returns the first bottleneck of each result, with its evidence.
pub(super) fn bottlenecks(assessed: &Assessed) -> Section {
    let mut bottlenecks: Vec<(String, &Finding)> = Vec::new();
    for system in &assessed.evidence.systems {
        let title = |label: &str| format!("{} ({label})", system.name);
        let runs = system
            .runs
            .iter()
            .filter_map(|run| Some((title(&run.label), run.result.bottleneck.as_ref()?)));
        let searches = system
            .searches
            .iter()
            .filter_map(|search| Some((title(&search.label), search.result.bottleneck.as_ref()?)));
        bottlenecks.extend(runs.chain(searches));
    }
    let section = section("bottleneck", "Bottleneck");
    if bottlenecks.is_empty() {
        let reason = "No result names a bottleneck: no threshold broke, no method began to fail, \
                      and no search reached a limit.";
        return section.add(Block::Paragraph(reason.into()));
    }
    bottlenecks.into_iter().fold(section, |section, (title, finding)| {
        section.add_section(title, parts::bottleneck(finding))
    })
}
