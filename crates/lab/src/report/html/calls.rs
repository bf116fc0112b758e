//! Calls by method, outcome and stage, and how their latencies are spread.

use maud::{Markup, html};

use super::over_time::WIDE;
use super::{figure, term};
use crate::record::{Class, Times, Totals};
use crate::report::chart::axis::{Axis, log, rarity};
use crate::report::chart::{Chart, Ink, Shape};
use crate::report::markdown::level;
use crate::report::number::{WEAK_P99, bare_ms, clock, count, percent, rate, short};
use crate::results::Quantiles;
use crate::results::run::{ClassRow, Row, RunResult};

/// Calls below which a 99.9th percentile rests on fewer than 100 of them.
const WEAK_P999: u64 = 100_000;

/// Every method with every outcome that it had.
pub(super) fn methods(result: &RunResult) -> Markup {
    html! {
        h2 id="methods" { "Methods and outcomes" }
        p.lead {
            (term("latency", "Latency")) " in milliseconds. The line of a method is over all its "
            (term("outcome", "outcomes")) ", a timeout counted at its deadline; below it each \
             outcome on its own, because a fast error says nothing of how fast a result is. "
            "A ~ marks a figure with " (term("weak figures", "too few calls")) " behind it."
        }
        div.card { div.scroll { table {
            thead { tr {
                th.l { "method, outcome" } th { "calls" } th.l { "share" } th { "results/s" }
                th { "mean" }
                th { "p50" } th { "p90" } th { "p95" } th { "p99" }
                th { (term("interval of the p99", "95 % interval")) } th { "p99.9" } th { "max" }
            } }
            @for row in std::iter::once(&result.overall).chain(&result.methods) { (method(row)) }
        } } }
    }
}

fn method(row: &Row) -> Markup {
    let only_results = row.classes.iter().all(|class| class.class == Class::Ok);
    html! {
        tbody.group {
            tr {
                td.l { (row.method) }
                td { (count(row.calls)) }
                td.l { (bar(row.share)) (percent(row.share)) }
                td { (short(row.goodput)) }
                (quantiles(&row.latency))
            }
            @if !only_results {
                @for class in &row.classes { (outcome(row, class)) }
            }
            @if !row.codes.is_empty() && row.codes.iter().any(|(_, calls)| *calls > 0) {
                tr.part { td.l.wrap colspan="12" {
                    small {
                        "codes of JSON-RPC errors: "
                        @for (index, (code, calls)) in row.codes.iter().enumerate() {
                            @if index > 0 { ", " }
                            code { (code) } " × " (count(*calls))
                        }
                    }
                } }
            }
        }
    }
}

fn bar(share: f64) -> Markup {
    html! { span.bar style={ "width:" (format!("{:.1}", (share * 60.0).clamp(0.0, 60.0))) "px" } {} }
}

fn outcome(row: &Row, class: &ClassRow) -> Markup {
    let paint = match class.class {
        class if class.failed() => "bad",
        Class::Limited => "limited",
        _ => "",
    };
    let share = class.calls as f64 / row.calls.max(1) as f64;
    html! {
        tr.part {
            td class={ "l " (paint) } { "\u{2003}" (class.class.as_str()) }
            td { (count(class.calls)) }
            td.l { "\u{2003}" (percent(share)) }
            td {}
            (quantiles(&class.latency))
        }
    }
}

fn quantiles(of: &Quantiles) -> Markup {
    let (low, high) = of.p99_interval_ms;
    let times = [of.mean_ms, of.p50_ms, of.p90_ms, of.p95_ms];
    html! {
        @if of.count == 0 {
            @for _ in 0..8 { td {} }
        } @else {
            @for time in times { td { (bare_ms(time)) } }
            td { (weak(of.count, WEAK_P99)) (bare_ms(of.p99_ms)) }
            td { small { (bare_ms(low)) "–" (bare_ms(high)) } }
            td { (weak(of.count, WEAK_P999)) (bare_ms(of.p999_ms)) }
            td { (bare_ms(of.max_ms)) }
        }
    }
}

fn weak(calls: u64, least: u64) -> Markup {
    html! { @if calls < least { span.weak { "~" } } }
}

/// Latencies by how rare they are.
pub(super) fn spectrum(result: &RunResult, totals: &Totals, methods: &[Box<str>]) -> Markup {
    let all: Vec<(&str, Times)> = methods
        .iter()
        .enumerate()
        .map(|(index, method)| {
            (&**method, totals.latency(|slot| usize::from(slot.method) == index))
        })
        .filter(|(_, times)| !times.is_empty())
        .collect();
    if all.is_empty() {
        return html! {};
    }
    let least = all.iter().map(|(_, times)| at(times, 0.01)).fold(f64::MAX, f64::min);
    let most = all.iter().map(|(_, times)| at(times, 1.0)).fold(0.0, f64::max);
    let calls = all.iter().map(|(_, times)| times.len()).max().unwrap_or(0);
    // A method's colour is the one that it has over time, where methods without calls have none.
    let called = |name: &str| {
        let called = result.methods.iter().filter(|row| row.calls > 0);
        called.take_while(|row| row.method != name).count()
    };
    let mut shapes = Vec::new();
    for (name, times) in &all {
        let (points, ink) = (quantile_points(times), Ink::Series(called(name)));
        let slowest = points.last().copied();
        let points = points.into_iter().map(Some).collect();
        shapes.push(Shape::Curve { points, ink, width: 17 });
        shapes.extend(slowest.map(|at| Shape::Dot { at, ink, radius: 3, filled: true }));
    }
    let chart = Chart {
        title: String::from("Latency by percentile"),
        size: (WIDE, 320),
        x: Axis::quantile(calls),
        y: Axis::log_ms(least, most),
        strip: 0,
        shapes,
    };
    let keys: Vec<(Ink, &str)> =
        all.iter().map(|(name, _)| (Ink::Series(called(name)), *name)).collect();
    html! {
        h2 id="spectrum" { "Percentile spectrum" }
        p.lead {
            "How long calls took, from the fastest to the slowest: each step to the right is ten \
             times rarer. All outcomes; a curve ends at its slowest call. The whole distribution \
             is in latency.hlog."
        }
        div.card { (figure(&chart, &keys)) }
    }
}

fn at(times: &Times, quantile: f64) -> f64 {
    times.value_at_quantile(quantile) as f64 / 1e6
}

/// Points of a spectrum, to the rarest quantile that the calls can tell.
fn quantile_points(times: &Times) -> Vec<(f64, f64)> {
    let rarest = (times.len() as f64).log10();
    let steps = 160;
    let points = (0..=steps).map(|step| {
        let place = rarest * f64::from(step) / f64::from(steps);
        let quantile = 1.0 - 10f64.powf(-place);
        (rarity(quantile), log(at(times, quantile)))
    });
    points.collect()
}

/// Every stage, and in it every method that failed.
pub(super) fn stages(result: &RunResult) -> Markup {
    html! {
        h2 id="stages" { "Stages" }
        p.lead {
            "What each " (term("stage", "stage")) " was to do and did. A call belongs to the stage \
             in which its iteration was due."
        }
        div.card { div.scroll { table {
            thead { tr {
                th.l { "stage" } th { "from" } th { "to" } th { "planned" } th { "begun" }
                th { "dropped" } th { "cut" } th { "calls" } th { "failed" } th { "429" }
                th { "p50 ms" } th { "p95 ms" } th { "p99 ms" } th { "max ms" }
            } }
            @for stage in &result.stages {
                tbody.group {
                    tr {
                        td.l { (stage.scenario) " / " (stage.stage) }
                        td { (clock(stage.from)) }
                        td { (clock(stage.to)) }
                        td { (level(&stage.model, stage.level_from, stage.level_to)) }
                        td { (rate(stage.rate_begun)) }
                        td { (count(stage.iterations.dropped)) }
                        td { (count(stage.iterations.cut)) }
                        (stage_calls(&stage.overall))
                    }
                    @for row in stage.methods.iter().filter(|row| row.failed_share > 0.0) {
                        tr.part {
                            td.l { "\u{2003}" (row.method) }
                            @for _ in 0..6 { td {} }
                            (stage_calls(row))
                        }
                    }
                }
            }
        } } }
        p.note { "Below a stage stand the methods that failed in it; all others are in methods.csv." }
    }
}

fn stage_calls(row: &Row) -> Markup {
    let paint = if row.failed_share > 0.0 { "bad" } else { "" };
    html! {
        td { (count(row.calls)) }
        td class=(paint) { (percent(row.failed_share)) }
        td { (percent(row.limited_share)) }
        @if row.latency.count == 0 {
            @for _ in 0..4 { td {} }
        } @else {
            td { (bare_ms(row.latency.p50_ms)) }
            td { (bare_ms(row.latency.p95_ms)) }
            td { (weak(row.latency.count, WEAK_P99)) (bare_ms(row.latency.p99_ms)) }
            td { (bare_ms(row.latency.max_ms)) }
        }
    }
}
