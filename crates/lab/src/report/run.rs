//! The document of a run. It lists the sections in order; most of them are in the submodules.
//!
//! `section.on(PAGE, block)` adds a block that only the HTML page has; `FILES` stands for Markdown
//! and the page. `table!(&rows, |row| Column::text("name") => &row.name)` creates a table with one
//! row for each of `rows`. `text!["a ", code("b")]` joins texts. In a heading, intro or note,
//! `[threshold](threshold)` is a text that links to the glossary entry "threshold".

mod calls;
mod health;
mod hosts;
mod over_time;
mod subscriptions;
mod transactions;

use lab_model::metrics::Unit;
use lab_model::record::Totals;
use lab_model::results::run::RunResult;
use lab_model::results::{Outcome, ThresholdOutcome};

use super::document::{
    ALL, Block, Column, Document, FILES, List, MARKDOWN, PAGE, Section, TERMINAL, Table, Text,
    code, table, text, tone,
};
use super::parts::{self, line};
use super::timeline::build_timeline;
use crate::wording::number::{clock, count, ms, percent, plural, rate, short, span, with_unit};

/// Maximum number of reasons on the terminal. Findings and warnings are never omitted.
const REASONS_MAX: usize = 4;
/// Maximum number of thresholds on the terminal.
const THRESHOLDS_MAX: usize = 6;

/// Builds the document of a run. `methods` are the plan's methods; `totals` refers to them by
/// index.
pub(super) fn document(result: &RunResult, totals: &Totals, methods: &[Box<str>]) -> Document {
    let timeline = build_timeline(result);
    let text_formats = TERMINAL | MARKDOWN;
    let findings = List { prefix: "finding: ", ..List::of(&result.findings) };
    let (plan, target, finding) = (&result.plan, &result.target, result.bottleneck.as_ref());
    let version_and_schema = (result.weir.as_str(), result.schema.as_str());
    let sections = [
        Some(head(result)),
        parts::sentences("Findings", findings, ALL),
        Some(settings_and_target(result)),
        Some(thresholds(&result.thresholds)),
        parts::bottleneck(finding, PAGE),
        parts::warnings(&result.warnings, usize::MAX, PAGE),
        Some(over_time::load(result, &timeline)),
        Some(over_time::latency(result, &timeline)),
        Some(calls::methods(result)),
        calls::spectrum(result, totals, methods),
        Some(calls::stages(result)),
        transactions::transactions(result),
        subscriptions::subscriptions(result),
        Some(health::generator(result, &timeline)),
        Some(hosts::hosts(result)),
        Some(health::connections(result)),
        health::compared(result),
        parts::bottleneck(finding, text_formats),
        parts::warnings(&result.warnings, usize::MAX, text_formats),
        Some(origin(result)),
        Some(parts::repeat(plan, target, "load", version_and_schema)),
    ];
    let (time, warmup) = (span(result.duration), format_warmup(result));
    Document {
        command: "weir load",
        title: plan.name.clone(),
        window: plan.name.clone(),
        heading: format!("{}: {}", result.verdict.outcome.as_str(), plan.name),
        intro: vec![format!("{} · {} · {time}{warmup}", target.url, result.started).into()],
        sections: sections.into_iter().flatten().collect(),
        glossary: true,
    }
}

/// Returns the section with the charts of the latency over time.
pub(super) fn latency_over_time(result: &RunResult) -> Section {
    over_time::latency(result, &build_timeline(result))
}

/// Formats the warm-up as an addition to the duration. Returns an empty text if there is none.
fn format_warmup(result: &RunResult) -> String {
    match result.plan.warmup {
        0.0 => String::new(),
        warmup => format!(" with {} of warm-up", span(warmup)),
    }
}

/// Returns the verdict with its reasons, and a summary.
fn head(result: &RunResult) -> Section {
    let broken_count = result.thresholds.iter().filter(|threshold| !threshold.kept).count();
    let total = result.thresholds.len();
    let outcome = result.verdict.outcome;
    let (class, summary) = match outcome {
        Outcome::Measured => ("pass", "the plan has no thresholds; the numbers are valid".into()),
        Outcome::Pass if total == 1 => ("pass", "the threshold was kept".into()),
        Outcome::Pass => ("pass", format!("all {total} thresholds were kept")),
        Outcome::Fail if broken_count == 0 => {
            ("fail", "for another reason than its thresholds".into())
        }
        Outcome::Fail => ("fail", format!("{broken_count} of {total} thresholds broken")),
        Outcome::Invalid => ("invalid", "the numbers are not valid".into()),
        Outcome::ClientLimited => {
            ("client", "the generator was the limit: the target's limit is unknown".into())
        }
    };
    let partial_note = if result.partial { "  PARTIAL: ended before its plan" } else { "" };
    let (word, reasons) = (outcome.as_str().to_owned(), result.verdict.reasons.clone());
    let banner = format!("{}: {summary}{partial_note}", result.plan.name);
    let list = List { terminal_max: REASONS_MAX, noun: "reason", ..List::of(&reasons) };
    Section::default()
        .on(FILES, result.partial.then_some(Block::Partial("the run ended before its plan")))
        .on(TERMINAL, Block::Banner(class, word.clone(), banner))
        .on(PAGE, Block::Verdict { class, word, summary, reasons })
        .on(PAGE, Block::Tiles(tiles(result)))
        .on(TERMINAL | MARKDOWN, Block::List(list))
        .on(MARKDOWN, Block::Paragraph(summary_text(result)))
}

/// Returns the summary for Markdown: duration, target, and the most important numbers.
fn summary_text(result: &RunResult) -> Text {
    let (target, overall) = (&result.target, &result.overall);
    let client = target.client.as_ref().map(|client| text![", ", code(client)]);
    let summary = format!(
        "): {}, {} results per second, {} failed, {} limited (429).",
        plural(overall.calls, "call"),
        short(overall.goodput),
        percent(overall.failed_share),
        percent(overall.limited_share)
    );
    text![
        format!("{} of load on ", span(result.duration)),
        code(&target.url),
        format!(" ({}", target.family),
        client.unwrap_or_default(),
        summary
    ]
}

/// Returns the most important values for the page: style class, value and description.
fn tiles(result: &RunResult) -> Vec<(&'static str, String, Text)> {
    // A failed share of 1 % or more is red.
    let failed_class = |failed_share: f64| if failed_share >= 0.01 { "bad" } else { "" };
    let tile = |class, value, description: &str| (class, value, Text::marked(description));
    let (overall, delivered) = (&result.overall, result.generator.delivered_share);
    let worst_method =
        result.methods.iter().max_by(|a, b| a.failed_share.total_cmp(&b.failed_share));
    let worst_tile = worst_method.filter(|row| row.failed_share > 0.0).map(|row| {
        let description = Text::from(format!("failed of {}", row.method));
        (failed_class(row.failed_share), percent(row.failed_share), description)
    });
    let limited = percent(overall.limited_share);
    let limited_tile =
        (overall.limited_share > 0.0).then(|| tile("", limited, "[limited (429)](limited)"));
    let delivered_class = if delivered < 0.99 { "doubt" } else { "" };
    let failed = percent(overall.failed_share);
    let tiles = [
        Some(tile("", count(overall.calls), "[calls that ended](calls)")),
        Some(tile("", rate(overall.goodput), "[results (goodput)](goodput)")),
        Some(tile(failed_class(overall.failed_share), failed, "[failed, all methods](failed)")),
        worst_tile,
        limited_tile,
        Some(tile("", ms(overall.latency.p50_ms), "[median latency](latency)")),
        Some(tile("", ms(overall.latency.p99_ms), "[p99 latency, all outcomes](latency)")),
        Some(tile(delivered_class, percent(delivered), "[of the plan was started](delivered)")),
    ];
    tiles.into_iter().flatten().collect()
}

/// Returns the settings of the run, and the target.
fn settings_and_target(result: &RunResult) -> Section {
    let (plan, target) = (&result.plan, &result.target);
    let (time, warmup) = (span(result.duration), format_warmup(result));
    let (seed, protocol, reuse) = (plan.seed, plan.protocol(), &plan.connections);
    let settings = format!("{time}{warmup} · seed {seed} · {protocol} · connections {reuse}");
    let mut target_description = vec![target.url.clone(), target.family.clone()];
    target_description.extend(target.client.clone());
    target_description.extend(target.chain_id.as_ref().map(|id| format!("chain {id}")));
    target_description.extend(target.head_start.map(|head| format!("head {}", count(head))));
    Section::default()
        .on(TERMINAL, line("run", settings))
        .on(TERMINAL, line("target", target_description.join(" · ")))
}

/// Returns every threshold with its observed value. The terminal shows broken thresholds first.
fn thresholds(thresholds: &[ThresholdOutcome]) -> Section {
    let section = Section::new("thresholds", "Thresholds").nav("Thresholds");
    if thresholds.is_empty() {
        let intro = "The plan has none, so the verdict says only that the numbers are valid.";
        return section.on(FILES, Block::Intro(intro.into()));
    }
    let mut sorted: Vec<&ThresholdOutcome> = thresholds.iter().collect();
    sorted.sort_by_key(|threshold| threshold.kept);
    section
        .intro("Judged over the run after the warm-up, unless a stage or window is named.")
        .on(TERMINAL, Block::Table(table(sorted).at_most(THRESHOLDS_MAX, "threshold")))
        .on(FILES, Block::Table(table(thresholds.iter().collect())))
}

fn table(thresholds: Vec<&ThresholdOutcome>) -> Table {
    table!(thresholds, |threshold|
        Column::text("") => verdict_of(threshold),
        Column::prose("threshold").page_head("[threshold](threshold)") => code(&threshold.text),
        Column::number("observed") => format_observed(threshold),
        Column::number("first broken") => threshold.broken_at.map_or_else(String::new, clock),
        Column::prose("note") => threshold.note.as_deref().unwrap_or_default(),
    )
}

/// Returns the text "kept" or "broken" in its colour.
pub(super) fn verdict_of(threshold: &ThresholdOutcome) -> Text {
    if threshold.kept { tone("kept", "kept") } else { tone("broken", "broken") }
}

/// Formats the observed value with its unit.
pub(super) fn format_observed(threshold: &ThresholdOutcome) -> String {
    match threshold.observed {
        Some(value) => with_unit(value, threshold.unit.unwrap_or(Unit::Count)),
        None => String::from("no data"),
    }
}

/// Returns the target, the plan and the generator's machine.
fn origin(result: &RunResult) -> Section {
    let machine = &result.fingerprint;
    let cores = plural(machine.cores as u64, "core");
    let summary = text![
        parts::plan_in_short(&result.weir, &result.started, &result.plan),
        ", on ",
        code(&machine.host),
        format!(
            " ({}, {cores}, kernel {}). Terms: docs/measuring.md.",
            machine.cpu, machine.kernel
        ),
    ];
    parts::origin(&result.plan, &result.target, machine).on(MARKDOWN, Block::Paragraph(summary))
}
