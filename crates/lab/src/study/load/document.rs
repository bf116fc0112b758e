//! The document of a study of load runs. The study compares variants: targets, or configurations of
//! a target.
//!
//! For each plan the document has tables of methods and variants, the differences with their
//! intervals, and the A/A control. The control compares the first variant with itself, which shows
//! how large chance differences are. Then follow the drift of the machine from round to round, and
//! the runs in their order. A round is one run of every variant.
//!
//! `report/document.rs` explains the functions and macros that build sections.

use std::collections::BTreeSet;

use lab_model::results::ComparisonVerdict;
use lab_model::results::compare::{CompareResult, Difference, Metric};
use lab_model::results::load_study::{
    DriftSubject, LoadStudyResult, PlanResult, RatioRow, RatioVerdict,
};

use crate::analysis::rounds::is_trend;
use crate::distinct;
use crate::report::chart::axis::{Axis, round_step};
use crate::report::chart::{Chart, Ink, Points, curve};
use crate::report::compare;
use crate::report::document::{
    Block, Column, Document, List, Section, Table, Text, name, table, tone,
};
use crate::report::parts::{self, or_dash};
use crate::wording::difference;
use crate::wording::number::{percent, plural, short, span};

mod counts;
#[cfg(test)]
mod tests;

/// Maximum number of rows of a table on the terminal.
const ROWS_MAX: usize = 30;
/// Maximum number of warnings on the terminal.
const WARNINGS_MAX: usize = 6;
/// Size of a chart in pixels.
const CHART_SIZE: (i32, i32) = (1000, 240);
/// Line width of a chart in tenths of a pixel.
const LINE_WIDTH: u32 = 19;
/// Maximum number of steps between the ticks of an axis.
const AXIS_STEPS_MAX: f64 = 8.0;

/// Builds the document of a study.
pub(super) fn document(result: &LoadStudyResult) -> Document {
    let left_out = || {
        let plans = result.plans.iter();
        parts::left_out(plans.map(|plan| (&plan.plan, &plan.left_out)))
    };
    let warnings = || parts::warnings(&result.warnings, WARNINGS_MAX);
    let paragraph = |text: String| Block::Paragraph(text.into());
    let summary_head = head(result)
        .add(result.question.clone().map(paragraph))
        .add(paragraph(arrangement(result)));
    let mut summary = vec![Some(summary_head), left_out()];
    let mut page = vec![Some(head(result)), warnings(), left_out()];
    summary.extend([ratios(result), counts::section(result)]);
    page.extend([ratios(result), counts::section(result)]);
    for (index, plan) in result.plans.iter().enumerate() {
        summary.extend(sections_of_plan(result, index, plan));
        page.extend(sections_of_plan(result, index, plan));
        page.extend(details_of_plan(plan));
    }
    summary.extend([Some(drift(result)), Some(variants(result)), warnings()]);
    summary.push(Some(origin_note(result)));
    page.extend([drift(result).add(drift_chart(result)), rounds(result)].map(Some));
    page.extend([variants(result), origin_note(result)].map(Some));
    let question = result.question.as_ref().map(Text::from);
    Document {
        command: "weir study load",
        title: result.name.clone(),
        window: format!("study: {}", result.name),
        heading: format!("Study: {}", result.name),
        intro: question.into_iter().chain([Text::from(arrangement(result))]).collect(),
        summary: summary.into_iter().flatten().collect(),
        page: page.into_iter().flatten().collect(),
        glossary: true,
    }
}

/// Returns the tables of one plan, the mismatches, and the values per core.
fn sections_of_plan(
    result: &LoadStudyResult,
    index: usize,
    plan: &PlanResult,
) -> Vec<Option<Section>> {
    let mut sections: Vec<_> = tables(result, index, plan).map(Some).into();
    // A plan without a usable round has nothing to compare.
    if plan.rounds > 0 {
        let mismatches = compare::mismatches(&plan.comparison);
        sections.push(
            mismatches.map(|section| Section { id: format!("mismatches-{index}"), ..section }),
        );
        sections.push(per_request(index, plan));
    }
    sections
}

/// Returns all differences of each variant and of the A/A control, with intervals and p-values.
fn details_of_plan(plan: &PlanResult) -> Vec<Option<Section>> {
    let variants = plan.comparison.variants.iter().skip(1);
    let differences = variants.map(|variant| compare::differences(&plan.comparison, &variant.name));
    differences.chain([control(plan)]).filter(|_| plan.rounds > 0).collect()
}

/// Describes the order and number of the runs in one line.
fn arrangement(result: &LoadStudyResult) -> String {
    let design = &result.design;
    let count = |number: usize, noun: &str| plural(number as u64, noun);
    let mut parts = vec![
        count(result.rounds.len(), "round"),
        format!("{} order", design.order.as_str()),
        count(result.variants.len(), "variant"),
        count(result.plans.len(), "plan"),
    ];
    if result.variants.iter().any(|variant| !variant.servers.is_empty()) {
        parts.push(format!("servers restarted: {}", design.restart.as_str()));
    }
    parts.push(match design.warm_up_rounds {
        0 => "no warm-up round".to_owned(),
        number => count(number, "warm-up round"),
    });
    parts.join(" · ")
}

/// Returns the differences of all plans, without the A/A control.
fn differences(result: &LoadStudyResult) -> impl Iterator<Item = &Difference> {
    result.plans.iter().flat_map(|plan| &plan.comparison.differences)
}

/// Returns the verdict over all plans, as a class of the page and a word. If the study has limits,
/// it is the verdict about them.
fn verdict(result: &LoadStudyResult) -> (&'static str, &'static str) {
    let has = |verdict: ComparisonVerdict| {
        differences(result).any(|difference| difference.verdict == verdict)
    };
    match result.ratio_verdict() {
        Some(RatioVerdict::Kept) => return ("pass", "PASS"),
        Some(RatioVerdict::Broken) => return ("fail", "FAIL"),
        Some(RatioVerdict::CannotTell) => return ("invalid", "CANNOT TELL"),
        None => {}
    }
    match (has(ComparisonVerdict::Better), has(ComparisonVerdict::Worse)) {
        (true, true) => ("limited", "MIXED"),
        (true, false) => ("pass", "BETTER"),
        (false, true) => ("fail", "WORSE"),
        (false, false) if has(ComparisonVerdict::CannotTell) => ("invalid", "CANNOT TELL"),
        (false, false) if differences(result).next().is_none() => ("invalid", "NOT COMPARED"),
        (false, false) => ("pass", "SAME"),
    }
}

/// Returns the verdict over all plans, with the conclusions.
fn head(result: &LoadStudyResult) -> Section {
    let (class, word) = verdict(result);
    let verdict = Block::Verdict {
        class,
        word: word.to_owned(),
        subject: result.name.clone(),
        summary: String::new(),
        reasons: List::of(&result.conclusions),
    };
    Section::default()
        .add(result.partial.then_some(Block::Partial("the study was interrupted")))
        .add(verdict)
}

/// Returns the ratios with a limit. `None` if the study has no limit.
fn ratios(result: &LoadStudyResult) -> Option<Section> {
    let rows = result.plans.iter().flat_map(|plan| plan.ratios.iter().map(move |row| (plan, row)));
    let rows: Vec<(&PlanResult, &RatioRow)> = rows.collect();
    let first = result.variants.first().map_or("", |variant| variant.name.as_str());
    let interval = |(low, high): (f64, f64)| format!("{} to {}", short(low), short(high));
    let class = |verdict: RatioVerdict| match verdict {
        RatioVerdict::Kept => "kept",
        RatioVerdict::Broken => "broken",
        RatioVerdict::CannotTell => "weak",
    };
    let is_empty = rows.is_empty();
    let table = table!(rows, |(plan, row)|
        Column::text("load") => &plan.plan,
        Column::text("variant") => &row.variant,
        Column::text("metric") => row.metric.as_str(),
        Column::number(first) => or_dash(row.a, short),
        Column::number("value") => or_dash(row.b, short),
        Column::number("ratio") => or_dash(row.ratio, short),
        Column::text("95 % interval") => or_dash(row.interval, interval),
        Column::number("ratio_max") => row.ratio_max.to_string(),
        Column::text("verdict") => tone(class(row.verdict), row.verdict.as_str()),
        Column::number("rounds") => row.rounds.to_string(),
    );
    let section = Section::new("ratios", "Ratios").nav("Ratios").intro(
        "Each variant's value in relation to that of the first variant, over all methods. For results \
         per second the ratio is inverse, so a smaller ratio is always better. A limit is kept or \
         broken if the whole interval is on one side of it.",
    );
    (!is_empty).then(|| section.add(Block::Table(table)))
}

/// Returns the tables of one plan: one table of methods and variants for each metric. The terminal
/// shows only the first table.
fn tables(result: &LoadStudyResult, index: usize, plan: &PlanResult) -> [Section; 2] {
    let metrics = plan.comparison.differences.iter().map(|difference| difference.metric);
    let metrics: BTreeSet<Metric> = metrics.collect();
    let title = match result.plans.len() {
        1 => "Methods and variants".to_owned(),
        _ => format!("Methods and variants: {}", plan.plan),
    };
    let mut first = Section::new(format!("methods-{index}"), title).intro(
        "The first variant's value, and for each other variant its value, the change with its 95 % \
         interval, and the verdict.",
    );
    first.nav = (index == 0).then_some("Methods");
    let mut tables = [first, Section::default().detail()];
    for (position, metric) in metrics.into_iter().enumerate() {
        tables[position.min(1)].blocks.extend([
            Block::Subheading(metric.as_str().to_owned()),
            Block::Table(metric_table(&plan.comparison, metric)),
        ]);
    }
    tables
}

/// Returns a table of one metric: a row for each method, a column for each variant.
fn metric_table(comparison: &CompareResult, metric: Metric) -> Table {
    let mut table = Table::new([Column::text(metric.as_str())]);
    comparison.variants.iter().for_each(|variant| table.column(&variant.name));
    let metric_differences =
        || comparison.differences.iter().filter(|difference| difference.metric == metric);
    let methods = distinct(metric_differences().map(|difference| &difference.method));
    let is_decided = |method: &String| {
        let mut rows = metric_differences().filter(|difference| difference.method == *method);
        rows.any(|row| row.verdict != ComparisonVerdict::CannotTell)
    };
    for method in &methods {
        let method_differences =
            || metric_differences().filter(|difference| difference.method == **method);
        let baseline =
            or_dash(method_differences().next(), |first| difference::value(first, first.a));
        let variant_cells = comparison.variants.iter().skip(1).map(|variant| {
            let difference =
                method_differences().find(|difference| difference.variant == variant.name);
            difference.map_or_else(|| "–".into(), variant_cell)
        });
        let first_cells = [name(*method), Text::from(baseline)];
        table.row(first_cells.into_iter().chain(variant_cells).collect());
    }
    let (decided, undecided): (Vec<usize>, Vec<usize>) =
        (0..methods.len()).partition(|index| is_decided(methods[*index]));
    if undecided.len() <= compare::UNDECIDED_ROWS_MAX {
        return table.at_most(ROWS_MAX, "method");
    }
    let undecided: Vec<&String> = undecided.iter().map(|index| methods[*index]).collect();
    let note = compare::describe_folded(undecided.len(), "method", &undecided);
    let decided = decided.into_iter().take(ROWS_MAX).collect();
    Table { excerpt: Some((decided, Some(note))), ..table }
}

/// Formats a variant's value with its change, its interval and its verdict.
fn variant_cell(row: &Difference) -> Text {
    let value = difference::value(row, row.b);
    let change = difference::change(row);
    let interval =
        difference::interval(row).map_or_else(String::new, |interval| format!(" ({interval})"));
    let text = format!("{value}  {change}{interval}  {}", row.verdict.as_str());
    tone(compare::tone_class(row.verdict), text)
}

/// Returns the differences of the A/A control from the first variant. `None` if the study has no
/// control.
fn control(plan: &PlanResult) -> Option<Section> {
    let control = plan.control.as_ref()?;
    let name = &control.variants.get(1)?.name;
    let section = compare::differences(control, name)?;
    Some(Section { title: format!("A/A control: {name}"), ..section })
}

/// Returns values per core and per request. Omits the caution of `weir compare` about different
/// machines, because all variants run on the same machine.
fn per_request(index: usize, plan: &PlanResult) -> Option<Section> {
    let mut section = compare::normalised_section(&plan.comparison)?.detail();
    section.blocks.retain(|block| matches!(block, Block::Table(_)));
    Some(Section { id: format!("normalised-{index}"), ..section })
}

/// Returns two kinds of drift over the rounds: the drift of the machine, and the drift of the first
/// variant (the baseline).
fn drift(result: &LoadStudyResult) -> Section {
    let percent_change = |change: f64| format!("{:+.1} %", change * 100.0);
    let trend = |p: Option<f64>| match is_trend(p) {
        true => tone("limited", "trend"),
        false => "no trend".into(),
    };
    let table = table!(&result.drifts, |drift|
        Column::text("drift of") => drift.subject.as_str(),
        Column::text("plan") => drift.plan.clone().unwrap_or_default(),
        Column::number("first to last third") => percent_change(drift.change),
        Column::number("largest to smallest") => percent(drift.spread),
        Column::text("trend") => trend(drift.p),
    );
    Section::new("drift", "Drift")
        .nav("Drift")
        .intro(
            "Each round has its own runs of all variants, so a drift from round to round affects all \
             variants alike. A fixed computation shows the drift of the machine itself.",
        )
        .add(Block::Table(table))
}

/// Draws the drift over the rounds. `None` if there is only one round.
fn drift_chart(result: &LoadStudyResult) -> Option<Block> {
    let mut legend = Vec::new();
    let mut curves: Vec<Points> = Vec::new();
    for (index, drift) in result.drifts.iter().enumerate() {
        let first_value = drift.values.first().copied().unwrap_or(1.0);
        let point = |(round, value): (usize, &f64)| {
            ((round + 1) as f64, (value / first_value - 1.0) * 100.0)
        };
        curves.push(drift.values.iter().enumerate().map(point).collect());
        let plan = drift.plan.as_ref().map_or_else(String::new, |plan| format!(", {plan}"));
        legend.push((Ink::Series(index), format!("{}{plan}", drift.subject.as_str())));
    }
    let changes = || curves.iter().flatten().map(|point| point.1);
    let (lowest, highest) = (changes().fold(0.0, f64::min), changes().fold(0.0, f64::max));
    let rounds = result.rounds.len().max(2) as f64;
    let axes = (
        axis((1.0, rounds), short),
        axis((lowest, highest), |change| format!("{} %", short(change))),
    );
    let shapes = curves.into_iter().enumerate();
    let shapes =
        shapes.map(|(index, points)| curve(points, Ink::Series(index), LINE_WIDTH)).collect();
    let chart = Chart::new("Change since the first round", CHART_SIZE, axes, shapes);
    (result.rounds.len() > 1).then_some(Block::Figure(chart, legend))
}

/// Returns an axis over a range, with at most eight steps. A step is 1, 2 or 5 times a power of
/// ten, and at least 1.
fn axis((lowest, highest): (f64, f64), label: impl Fn(f64) -> String) -> Axis {
    let min_step = ((highest - lowest) / AXIS_STEPS_MAX).max(1.0);
    let step = round_step(min_step, &[1.0, 2.0, 5.0, 10.0]);
    let (from, to) = ((lowest / step).floor() * step, (highest / step).ceil() * step);
    Axis::stepped(from, to.max(from + step), step, label)
}

/// Returns the runs in the order of time.
fn rounds(result: &LoadStudyResult) -> Section {
    let runs =
        result.rounds.iter().flat_map(|round| round.runs.iter().map(move |run| (round, run)));
    let table = table!(runs, |(round, run)|
        Column::number("round") => round.round.to_string(),
        Column::text("plan") => &run.plan,
        Column::text("variant") => &run.variant,
        Column::text("verdict") => run.outcome.map_or("–", |outcome| outcome.as_str()),
        Column::number("p50 ms") => or_dash(run.p50_ms, short),
        Column::number("results/s") => or_dash(run.goodput, short),
        Column::number("calibration ms") => short(run.calibration_ms),
        Column::number("took") => span(run.seconds.round()),
        Column::prose("left out") => run.left_out.clone().unwrap_or_default(),
    );
    Section::new("runs", "Runs in their order").nav("Runs").add(Block::Table(table))
}

/// Returns the variants, with the servers that the study started.
fn variants(result: &LoadStudyResult) -> Section {
    let format_variables = |variables: &[(String, f64)]| {
        let assignments = variables.iter().map(|(name, value)| format!("{name} = {value}"));
        assignments.collect::<Vec<_>>().join(", ")
    };
    let table = table!(&result.variants, |variant|
        Column::text("variant") => &variant.name,
        Column::text("target") => match &variant.control_of {
            Some(original) => format!("as {original} (A/A control)"),
            None => variant.target.clone().unwrap_or_else(|| "the plan's".to_owned()),
        },
        Column::text("plans") => variant.plans.join(", "),
        Column::prose("variables") => format_variables(&variant.variables),
        Column::prose("servers") => variant.servers.join(", "),
    );
    Section::new("variants", "Variants").nav("Variants").detail().add(Block::Table(table))
}

/// Returns a note on the version and on further files.
fn origin_note(result: &LoadStudyResult) -> Section {
    let has_baseline = result.drifts.iter().any(|drift| drift.subject == DriftSubject::Baseline);
    let note = format!(
        "weir {}, {}; study.json has all values{}. Rules: docs/load-studies.md.",
        result.weir,
        result.schema,
        if has_baseline { ", runs/ the result of each run" } else { "" },
    );
    Section::default().detail().add(Block::Note(note.into()))
}
