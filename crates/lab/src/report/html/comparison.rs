//! A comparison as a page: for each further arm what changed, with its interval as a bar.
//!
//! Numbers are written by `compare/text.rs`, so that page, Markdown and terminal say the same.

use maud::{Markup, html};

use super::verdict::warnings;
use super::{document, glossary, term};
use crate::report::number::{bare_ms, short};
use crate::results::Word;
use crate::results::compare::{CompareResult, Difference, Weight};

#[cfg(test)]
pub(in crate::report) mod tests;

/// Width of a bar in pixels, and the factor at its right end.
const BAR: f64 = 180.0;
const FACTOR_MAX: f64 = 3.0;

/// See [`crate::report::compare_html`].
pub(in crate::report) fn page(result: &CompareResult) -> String {
    let body = html! {
        header {
            div.kind { "weir compare" }
            h1 {
                @for (index, arm) in result.arms.iter().enumerate() {
                    @if index > 0 { " · " }
                    (arm.name)
                }
            }
        }
        (banner(result))
        (mismatches(result))
        @for arm in result.arms.iter().skip(1) { (differences(result, &arm.name)) }
        (normalised(result))
        (warnings(&result.warnings))
        (arms(result))
        (glossary())
    };
    document("comparison", &body)
}

fn banner(result: &CompareResult) -> Markup {
    let has = |word: Word| result.differences.iter().any(|one| one.verdict == word);
    let class = match () {
        () if has(Word::Worse) => "fail",
        () if has(Word::Better) => "pass",
        () => "invalid",
    };
    html! {
        @if !result.sentences.is_empty() {
            div class={ "verdict " (class) } {
                @for sentence in &result.sentences { p { (sentence) } }
            }
        }
    }
}

fn arms(result: &CompareResult) -> Markup {
    html! {
        h2 id="arms" { "Arms" }
        p.lead { "The first is what the others are compared with. Written by weir " (result.weir) "." }
        div.card { div.scroll { table {
            thead { tr { th.l { "arm" } th.l { "tool" } th { "runs" } th.l { "what" } } }
            tbody { @for arm in &result.arms { tr {
                td.l { b { (arm.name) } }
                td.l { (arm.tool) }
                td { (arm.runs) }
                td.l.wrap {
                    (arm.described)
                    @for left_out in &arm.left_out { br; small { "left out: " (left_out) } }
                }
            } } }
        } } }
    }
}

fn mismatches(result: &CompareResult) -> Markup {
    html! {
        @if !result.mismatches.is_empty() {
            h2 id="mismatches" { "Not the same" }
            div.card { div.scroll { table {
                thead { tr {
                    th.l.slim { "" } th.l { "what" } th.l { "first" } th.l { "other" } th.l { "arm" }
                    th.l { "so" }
                } }
                tbody { @for one in &result.mismatches { tr {
                    td.l { span class=(weight(one.weight)) { (one.weight.as_str()) } }
                    td.l { (one.what) }
                    td.l.wrap { (one.a) }
                    td.l.wrap { (one.b) }
                    td.l { (one.arm) }
                    td.l.wrap { (one.why) }
                } } }
            } } }
        }
    }
}

fn weight(weight: Weight) -> &'static str {
    match weight {
        Weight::Note => "weak",
        Weight::Warn => "limited",
        Weight::Refuse => "broken",
    }
}

fn differences(result: &CompareResult, arm: &str) -> Markup {
    let own: Vec<&Difference> = result.differences.iter().filter(|one| one.arm == arm).collect();
    if own.is_empty() {
        return html! {};
    }
    let mut methods: Vec<&str> = own.iter().map(|one| one.method.as_str()).collect();
    methods.dedup();
    html! {
        h2 { "From " (result.arms.first().map_or("", |first| &first.name)) " to " (arm) }
        p.lead {
            "Each " (term("difference", "difference")) " with its 95 % interval. The grey field is \
             what does not matter; a bar that leaves it on one side is a change. Ends of the field \
             of bars: a third and three times."
        }
        div.card { div.scroll { table {
            thead { tr {
                th.l { "method, metric" } th { "first" } th { "other" } th { "change" }
                th { "95 % interval" } th.l { "" } th { "p" } th.l { "verdict" } th.l { "rests on" }
            } }
            @for method in methods {
                tbody.group {
                    tr { td.l colspan="9" { (method) } }
                    @for one in own.iter().filter(|one| one.method == method) { (row(one)) }
                }
            }
        } } }
    }
}

fn row(one: &Difference) -> Markup {
    let [metric, first, other, change, interval, p, verdict] = one.cells();
    html! {
        tr.part {
            td.l { "\u{2003}" (metric) }
            td { (first) } td { (other) } td { (change) } td { (interval) }
            td.l { (bar(one)) }
            td { (p) }
            td.l { span class=(paint(one.verdict)) { (verdict) } }
            td.l { small { (one.basis.as_str()) } }
        }
    }
}

fn paint(word: Word) -> &'static str {
    match word {
        Word::Better => "kept",
        Word::Worse => "broken",
        Word::Same | Word::Negligible => "",
        Word::CannotTell => "weak",
    }
}

/// Where a relative change lies on the bar: equal factors are equally far from the middle.
fn place(change: f64) -> f64 {
    let factor = (1.0 + change).clamp(1.0 / FACTOR_MAX, FACTOR_MAX);
    BAR / 2.0 * (1.0 + factor.ln() / FACTOR_MAX.ln())
}

/// The interval as a bar; nothing for shares, whose changes are not factors.
fn bar(one: &Difference) -> Markup {
    if one.metric.is_share() || !one.change.is_finite() {
        return html! {};
    }
    let ink = match one.verdict {
        Word::Better => "good",
        Word::Worse => "bad",
        Word::Same | Word::Negligible | Word::CannotTell => "shade",
    };
    let px = |x: f64| format!("{x:.1}");
    let (from, to) = (place(-one.floor), place(one.floor));
    html! {
        svg.forest viewBox={ "0 0 " (BAR) " 14" } role="img" aria-label="interval" {
            rect class="f-grid" x=(px(from)) y="0" width=(px((to - from).max(0.5))) height="14" {}
            line class="s-shade" x1=(px(BAR / 2.0)) x2=(px(BAR / 2.0)) y1="0" y2="14" stroke-width="0.6" {}
            @if let Some((low, high)) = one.interval {
                line class={ "s-" (ink) } x1=(px(place(low))) x2=(px(place(high))) y1="7" y2="7"
                    stroke-width="2.4" {}
            }
            circle class={ "f-" (ink) } cx=(px(place(one.change))) cy="7" r="3.4" {}
        }
    }
}

fn normalised(result: &CompareResult) -> Markup {
    if result.normalised.len() < 2 {
        return html! {};
    }
    let shown = |value: Option<f64>| value.map_or_else(|| String::from("–"), short);
    html! {
        h2 id="normalised" { "Per core and per request" }
        p.lead {
            "Caution: machines differ in more than cores. This says which is worth a measurement \
             side by side, not which is faster."
        }
        div.card { div.scroll { table {
            thead { tr {
                th.l { "arm" } th.l { "machine" } th { "cores" } th { "results/s" } th { "per core" }
                th { "p50 ms" } th { "p99 ms" } th { "CPU ms per request" }
            } }
            tbody { @for row in &result.normalised { tr {
                td.l { (row.arm) }
                td.l.wrap { (row.machine) }
                td { (shown(row.cores)) }
                td { (shown(row.goodput)) }
                td { (shown(row.goodput_per_core)) }
                td { (row.p50_ms.map_or_else(|| String::from("–"), bare_ms)) }
                td { (row.p99_ms.map_or_else(|| String::from("–"), bare_ms)) }
                td { (shown(row.cpu_ms_per_request)) }
            } } }
        } } }
    }
}
