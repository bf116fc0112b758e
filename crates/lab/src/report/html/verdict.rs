//! The top of the page: verdict, objectives, first bottleneck, warnings.

use maud::{Markup, html};

use super::term;
use crate::report::number::{clock, count, ms, percent, rate, span};
use crate::report::text::observed;
use crate::results::run::RunResult;
use crate::results::{Finding, Outcome};

/// Heading, verdict with its reasons, and the run at a glance.
pub(super) fn head(result: &RunResult) -> Markup {
    html! {
        header {
            div.kind { "weir load" }
            h1 { (result.plan.name) }
            div.lead {
                (result.target.url) " · " (result.started) " · " (span(result.duration))
                @if result.plan.warmup > 0.0 { ", the first " (span(result.plan.warmup)) " not judged" }
            }
            (contents(result))
        }
        @if result.partial {
            div.partial {
                b { "Partial result. " }
                "The run was ended before its plan; everything below is of the part that ran."
            }
        }
        (banner(result))
        (tiles(result))
    }
}

fn contents(result: &RunResult) -> Markup {
    html! {
        nav {
            a href="#objectives" { "Objectives" }
            @if result.bottleneck.is_some() { a href="#bottleneck" { "First bottleneck" } }
            a href="#load" { "Load" }
            a href="#latency" { "Latency" }
            a href="#methods" { "Methods" }
            a href="#stages" { "Stages" }
            a href="#generator" { "Generator" }
            @if !result.host.is_empty() { a href="#hosts" { "Hosts" } }
            a href="#connections" { "Connections" }
            a href="#origin" { "How it was measured" }
            a href="#words" { "Words" }
        }
    }
}

fn banner(result: &RunResult) -> Markup {
    let broken = result.thresholds.iter().filter(|threshold| !threshold.kept).count();
    let all = result.thresholds.len();
    let (class, word, meaning) = match result.verdict.outcome {
        Outcome::Measured => (
            "pass",
            "MEASURED",
            String::from("no objectives were set; the numbers may be believed"),
        ),
        Outcome::Pass => ("pass", "PASS", format!("all {all} objectives were kept")),
        Outcome::Fail if broken == 0 => {
            ("fail", "FAIL", String::from("for another reason than its objectives"))
        }
        Outcome::Fail => ("fail", "FAIL", format!("{broken} of {all} objectives broken")),
        Outcome::Invalid => ("invalid", "INVALID", String::from("the numbers may not be believed")),
        Outcome::ClientLimited => (
            "client",
            "CLIENT-LIMITED",
            String::from("the generator was the limit: what the target holds was not learnt"),
        ),
    };
    html! {
        div class={ "verdict " (class) } {
            span.word { (word) } " "
            span.sum { (meaning) }
            @if !result.verdict.reasons.is_empty() {
                ul { @for reason in &result.verdict.reasons { li { (reason) } } }
            }
        }
    }
}

fn tiles(result: &RunResult) -> Markup {
    let (all, generator) = (&result.overall, &result.generator);
    let worst = result.methods.iter().max_by(|a, b| a.failed_share.total_cmp(&b.failed_share));
    html! {
        div.tiles {
            (tile("", &count(all.calls), term("calls", "calls that ended")))
            (tile("", &rate(all.goodput), term("goodput", "results (goodput)")))
            (tile(
                alarm(all.failed_share),
                &percent(all.failed_share),
                term("failed", "failed, all methods"),
            ))
            @if let Some(worst) = worst.filter(|row| row.failed_share > 0.0) {
                (tile(
                    alarm(worst.failed_share),
                    &percent(worst.failed_share),
                    html! { "failed of " (worst.method) },
                ))
            }
            @if all.limited_share > 0.0 {
                (tile("", &percent(all.limited_share), term("limited", "limited (429)")))
            }
            (tile("", &ms(all.latency.p50_ms), term("latency", "median latency")))
            (tile("", &ms(all.latency.p99_ms), term("latency", "p99 latency, all outcomes")))
            (tile(
                if generator.delivered_share < 0.99 { "doubt" } else { "" },
                &percent(generator.delivered_share),
                term("delivered", "of the plan was begun"),
            ))
        }
    }
}

/// Red from one call in a hundred on: fewer are in the table, and no reason for alarm by themselves.
fn alarm(failed_share: f64) -> &'static str {
    if failed_share >= 0.01 { "bad" } else { "" }
}

pub(super) fn tile(class: &str, value: &str, about: impl maud::Render) -> Markup {
    html! { div class={ "tile " (class) } { b { (value) } span { (about) } } }
}

/// Every objective with what was observed.
pub(super) fn objectives(result: &RunResult) -> Markup {
    html! {
        h2 id="objectives" { "Objectives" }
        @if result.thresholds.is_empty() {
            p.lead {
                "None were set, so a pass says only that the numbers may be believed."
            }
        } @else {
            p.lead { "Judged over everything after the warm-up unless a stage or window is named." }
            div.card { div.scroll { table {
                thead { tr {
                    th.l.slim { "" } th.l.half { (term("objective", "objective")) }
                    th.slim { "observed" } th.slim { "first broken" } th.l { "note" }
                } }
                tbody { @for threshold in &result.thresholds { tr {
                    td.l {
                        @if threshold.kept { span.kept { "kept" } }
                        @else { span.broken { "broken" } }
                    }
                    td.l.wrap { code { (threshold.text) } }
                    td { (observed(threshold)) }
                    td { @if let Some(at) = threshold.broken_at { "at " (clock(at)) } }
                    td.l.wrap { @if let Some(note) = &threshold.note { (note) } }
                } } }
            } } }
        }
    }
}

/// What saturated first, with its evidence.
pub(super) fn bottleneck(finding: Option<&Finding>) -> Markup {
    let Some(finding) = finding else { return html! {} };
    html! {
        h2 id="bottleneck" { "First bottleneck" }
        div.card {
            p { b { (finding.cause.as_str()) ". " } (finding.sentence) }
            @if !finding.evidence.is_empty() {
                ul.plain { @for fact in &finding.evidence { li { (fact) } } }
            }
            p.note {
                (term("first bottleneck", "Confidence")) " " (finding.confidence.as_str())
                @if let Some(at) = finding.at { " · began at " (clock(at)) }
            }
        }
    }
}

/// Doubts, each with advice.
pub(super) fn findings(findings: &[String]) -> Markup {
    html! {
        @if !findings.is_empty() {
            h2 id="findings" { "Findings" }
            div.card { ul.plain { @for finding in findings { li { (finding) } } } }
        }
    }
}

pub(super) fn warnings(warnings: &[String]) -> Markup {
    html! {
        @if !warnings.is_empty() {
            h2 id="warnings" { "Warnings" }
            div.card { ul.plain { @for warning in warnings { li { (warning) } } } }
        }
    }
}
