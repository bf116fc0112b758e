//! The document of a run. It lists the sections in order; most of them are in the submodules.
//!
//! `report/document.rs` explains the functions and macros that build sections.

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

use super::document::{Block, Column, Document, List, Section, Table, Text, code, table, tone};
use super::parts::{self, fact};
use super::timeline::build_timeline;
use crate::analysis::validity::{Allowed, find_moved, is_read_late};
use crate::wording::number::{clock, count, ms, percent, rate, span, with_unit};

/// Maximum number of reasons on the terminal. Findings and warnings are never omitted.
const REASONS_MAX: usize = 4;
/// Maximum number of thresholds on the terminal.
const THRESHOLDS_MAX: usize = 6;

/// Builds the document of a run. `methods` are the plan's methods; `totals` refers to them by
/// index.
pub(super) fn document(result: &RunResult, totals: &Totals, methods: &[Box<str>]) -> Document {
    let timeline = build_timeline(result);
    let (plan, target, finding) = (&result.plan, &result.target, result.bottleneck.as_ref());
    let findings = || {
        let list = List { prefix: "finding: ", ..List::of(&result.findings) };
        parts::sentences("Findings", list)
    };
    let warnings = || parts::warnings(&result.warnings, usize::MAX);
    let origin = || {
        let origin = (&*result.weir, &*result.schema, &*result.started);
        Some(parts::origin(origin, plan, target, &result.fingerprint))
    };
    let summary = [
        Some(head(result)),
        findings(),
        Some(settings_and_target(result)),
        Some(thresholds(&result.thresholds)),
        Some(calls::methods(result)),
        calls::classes(result),
        Some(calls::stages(result)),
        transactions::transactions(result),
        transactions::refusals(result),
        subscriptions::subscriptions(result),
        subscriptions::connections(result),
        Some(health(result)),
        Some(health::connections(result)),
        parts::evidence(finding),
        warnings(),
        origin(),
    ];
    let page = [
        Some(head(result).add(Block::Tiles(tiles(result)))),
        findings(),
        Some(calls::page_methods(result)),
        Some(thresholds(&result.thresholds)),
        finding.map(parts::bottleneck),
        warnings(),
        Some(over_time::load(result, &timeline)),
        Some(over_time::latency(result, &timeline)),
        calls::spectrum(result, totals, methods),
        Some(calls::stages(result)),
        transactions::transactions(result),
        transactions::refusals(result),
        subscriptions::subscriptions(result),
        subscriptions::connections(result),
        Some(health::generator(result, &timeline)),
        Some(hosts::hosts(result)),
        Some(health::connections(result)),
        health::compared(result),
        origin(),
        Some(parts::repeat(plan, target, "load")),
    ];
    let (time, warmup) = (span(result.duration), format_warmup(result));
    Document {
        command: "weir load",
        title: plan.name.clone(),
        window: plan.name.clone(),
        heading: format!("{}: {}", result.verdict.outcome.as_str(), plan.name),
        intro: vec![format!("{} · {} · {time}{warmup}", target.url, result.started).into()],
        summary: summary.into_iter().flatten().collect(),
        page: page.into_iter().flatten().collect(),
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

/// Returns the verdict with its reasons.
fn head(result: &RunResult) -> Section {
    let broken_count = result.thresholds.iter().filter(|threshold| !threshold.kept).count();
    let total = result.thresholds.len();
    let outcome = result.verdict.outcome;
    let (class, summary) = match outcome {
        Outcome::Measured if is_marked(result) => {
            ("measured", "the plan has no thresholds; some latencies may be the generator's own: see the warnings".into())
        }
        Outcome::Measured => {
            ("measured", "the plan has no thresholds; the numbers are valid".into())
        }
        Outcome::Pass if total == 1 => ("pass", "the threshold was kept".into()),
        Outcome::Pass => ("pass", format!("all {total} thresholds were kept")),
        Outcome::Fail if broken_count == 0 => {
            // The first reason is that of the failure. Doubts about the figures may follow.
            let kept = if total == 0 { "" } else { "its thresholds were kept; it failed " };
            ("fail", format!("{kept}for the reason in the next line"))
        }
        Outcome::Fail => ("fail", format!("{broken_count} of {total} thresholds broken")),
        Outcome::Invalid => ("invalid", "the numbers are not valid".into()),
        Outcome::ClientLimited => {
            ("client", "the generator was the limit: the target's limit is unknown".into())
        }
    };
    let reasons = &result.verdict.reasons;
    let verdict = Block::Verdict {
        class,
        word: outcome.as_str().to_owned(),
        subject: result.plan.name.clone(),
        summary,
        reasons: List { terminal_max: REASONS_MAX, noun: "reason", ..List::of(reasons) },
    };
    Section::default()
        .add(result.partial.then_some(Block::Partial("the run ended before its plan")))
        .add(verdict)
}

/// Returns true if the generator may have caused a notable share of a latency percentile. The
/// percentile is marked.
fn is_marked(result: &RunResult) -> bool {
    let allowed = Allowed::of_run(&result.generator);
    let mut rows = std::iter::once(&result.overall).chain(&result.methods);
    rows.any(|row| !find_moved(row, allowed).is_empty())
        || result.subscriptions.iter().any(|row| is_read_late(row, allowed))
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
    let facts = vec![fact("run", settings), fact("target", target_description.join(" · "))];
    Section::new("", "Run").add(Block::Facts(facts))
}

/// Returns the health of the generator, and the first bottleneck.
fn health(result: &RunResult) -> Section {
    let facts = [
        Some(fact("generator", health::describe_generator(result))),
        result.bottleneck.as_ref().map(|finding| fact("bottleneck", &finding.sentence)),
    ];
    Section::new("", "Generator and bottleneck")
        .add(Block::Facts(facts.into_iter().flatten().collect()))
}

/// Returns every threshold with its observed value. The terminal shows broken thresholds first.
fn thresholds(thresholds: &[ThresholdOutcome]) -> Section {
    let section = Section::new("thresholds", "Thresholds").nav("Thresholds");
    if thresholds.is_empty() {
        let intro = "The plan has none, so the verdict says only whether the numbers are valid.";
        return section.intro(intro);
    }
    let mut rows: Vec<usize> = (0..thresholds.len()).collect();
    rows.sort_by_key(|index| thresholds[*index].kept);
    rows.truncate(THRESHOLDS_MAX);
    let table = threshold_table(thresholds).excerpt(rows, thresholds.len(), "threshold");
    section
        .intro("Judged over the run after the warm-up, unless a stage or window is named.")
        .add(Block::Table(table))
}

fn threshold_table(thresholds: &[ThresholdOutcome]) -> Table {
    table!(thresholds, |threshold|
        Column::text("") => verdict_of(threshold),
        Column::prose("[threshold](threshold)") => code(&threshold.text),
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
