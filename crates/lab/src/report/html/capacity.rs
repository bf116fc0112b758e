//! A capacity search as a page: what passed and failed at which rate, and what broke first.

use maud::{Markup, html};

use super::verdict::{bottleneck, tile, warnings};
use super::{document, figure, glossary, origin, term};
use crate::report::capacity::{answer, binding, boundary, doubts, end, margin};
use crate::report::chart::axis::{Axis, Scale, log};
use crate::report::chart::{Chart, Ink, Shape};
use crate::report::number::{bare_ms, clock, percent, plural, rate, short, span};
use crate::results::capacity::{CapacityResult, End, Judged, Kind, ProbeRow};

/// Size of the curves in pixels.
const WIDE: i32 = 1000;

/// See [`crate::report::capacity_html`].
pub(in crate::report) fn page(result: &CapacityResult) -> String {
    let body = html! {
        (head(result))
        (curves(result))
        (broke(result))
        (bottleneck(result.bottleneck.as_ref()))
        (costs(result))
        (warnings(&result.warnings))
        (probes(result))
        (scaling(result))
        (settings(result))
        (origin::origin(&result.plan, &result.target, &result.fingerprint))
        (origin::repeat(&result.plan, &result.target, "capacity", &result.weir, &result.schema))
        (glossary())
    };
    document(&format!("capacity: {}", result.plan.name), &body)
}

fn head(result: &CapacityResult) -> Markup {
    let class = match result.answer.end {
        End::Converged | End::RateMax => "pass",
        End::NothingPassed => "fail",
        End::ClientLimited => "client",
        End::Invalid | End::ProbesMax | End::Stopped => "invalid",
    };
    let doubts = doubts(result);
    html! {
        header {
            div.kind { "weir capacity" }
            h1 { (result.plan.name) }
            div.lead { (result.target.url) " · " (result.started) " · " (span(result.duration)) }
            nav {
                @if counted(result).next().is_some() { a href="#curves" { "Curves" } }
                @if result.binding.is_some() { a href="#binding" { "What broke" } }
                @if result.bottleneck.is_some() { a href="#bottleneck" { "First bottleneck" } }
                a href="#probes" { "Probes" }
                a href="#origin" { "How it was measured" }
                a href="#words" { "Words" }
            }
        }
        @if result.partial {
            div.partial {
                b { "Partial result. " }
                "The search was ended before its answer; everything below is of the part that ran."
            }
        }
        div class={ "verdict " (class) } {
            span.word { (answer(result)) } " "
            span.sum { (result.answer.sentence) }
            @if !doubts.is_empty() { ul { @for doubt in &doubts { li { (doubt) } } } }
        }
        (tiles(result))
    }
}

fn tiles(result: &CapacityResult) -> Markup {
    let answer = &result.answer;
    let none = || String::from("–");
    let soak = match answer.soak_held {
        None => "not made",
        Some(true) => "held",
        Some(false) => "broke",
    };
    let precision = match (answer.highest_pass, answer.lowest_fail) {
        (Some(pass), Some(fail)) if pass > 0.0 => percent((fail - pass) / pass),
        _ => none(),
    };
    html! {
        div.tiles {
            (tile("", &answer.highest_pass.map_or_else(none, rate), term("capacity", "highest pass")))
            (tile("", &answer.lowest_fail.map_or_else(none, rate), term("capacity", "lowest fail")))
            (tile("", &precision, html! { "between them, of the pass" }))
            (tile(
                if answer.soak_held == Some(false) { "bad" } else { "" },
                soak,
                term("soak", "soak"),
            ))
            (tile("", &result.probes.len().to_string(), term("probe", "probes")))
        }
        p.note {
            "Ended because " (end(answer)) "."
            @if let Some(how) = boundary(answer.boundary) {
                " " (term("boundary", "Boundary")) " " (how) "."
            }
        }
    }
}

/// Probes that are judged, and not looks at a low rate.
fn counted(result: &CapacityResult) -> impl Iterator<Item = &ProbeRow> {
    result.probes.iter().filter(|probe| probe.kind != Kind::Baseline)
}

/// Latency, failures and achieved rate against the rate that was asked for.
fn curves(result: &CapacityResult) -> Markup {
    if counted(result).next().is_none() {
        return html! {};
    }
    let most = counted(result).map(|probe| probe.rate).fold(0.0, f64::max);
    let x = Axis::up_to(most, Scale::Number);
    let points = [(Ink::Good, "passed"), (Ink::Bad, "failed"), (Ink::Plan, "counts as neither")];
    html! {
        h2 id="curves" { "Against the rate" }
        p.lead {
            "Each point is a " (term("probe", "probe")) "; curves go through the medians of their \
             rates. The band lies between the highest pass and the lowest fail: the "
            (term("capacity", "capacity")) " is in it."
        }
        p.note {
            @for (ink, text) in points {
                span.key { i class={ "dot k-" (ink.class()) } {} (text) "\u{2003}" }
            }
        }
        div.card {
            (figure(&latency(result, &x), &[(Ink::Series(0), "p99"), (Ink::Series(2), "p50")]))
            (figure(&shares(result, &x), &[(Ink::Series(5), "failed"), (Ink::Limited, "limited (429)")]))
            (figure(&achieved(result, &x), &[(Ink::Plan, "as planned"), (Ink::Series(0), "ended")]))
            p.note { "First axis: planned iterations per second." }
        }
    }
}

fn band(result: &CapacityResult) -> Vec<Shape> {
    let answer = &result.answer;
    let mut shapes = Vec::new();
    if let (Some(pass), Some(fail)) = (answer.highest_pass, answer.lowest_fail) {
        shapes.push(Shape::Band { x: (pass, fail), ink: Ink::Limited, opacity: 0.28 });
    }
    shapes
}

fn dot(probe: &ProbeRow, y: f64) -> Shape {
    let (ink, filled) = match probe.judged {
        Judged::Pass => (Ink::Good, true),
        Judged::Fail => (Ink::Bad, false),
        Judged::ClientLimited | Judged::Invalid => (Ink::Plan, false),
    };
    let radius = if probe.kind == Kind::Soak { 6 } else { 4 };
    Shape::Dot { at: (probe.rate, y), ink, radius, filled }
}

/// A curve through the medians of all probes of a rate, and a dot for each probe.
fn curve(result: &CapacityResult, of: fn(&ProbeRow) -> f64, ink: Ink, width: u32) -> Shape {
    let mut rates: Vec<f64> = counted(result).map(|probe| probe.rate).collect();
    rates.sort_by(f64::total_cmp);
    rates.dedup();
    let points = rates.iter().map(|rate| {
        let same = counted(result).filter(|probe| (probe.rate - rate).abs() < 1e-9);
        let mut values: Vec<f64> = same.map(of).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).map(|middle| (*rate, *middle))
    });
    Shape::Curve { points: points.collect(), ink, width }
}

fn latency(result: &CapacityResult, x: &Axis) -> Chart {
    let lows = counted(result).map(|probe| probe.latency.p50_ms).filter(|ms| *ms > 0.0);
    let least = lows.fold(f64::MAX, f64::min);
    let most = counted(result).map(|probe| probe.latency.p99_ms).fold(0.0, f64::max);
    let mut shapes = band(result);
    shapes.push(curve(result, |probe| log(probe.latency.p50_ms), Ink::Series(2), 16));
    shapes.push(curve(result, |probe| log(probe.latency.p99_ms), Ink::Series(0), 18));
    shapes.extend(counted(result).map(|probe| dot(probe, log(probe.latency.p99_ms))));
    Chart {
        title: String::from("Latency, all outcomes"),
        size: (WIDE, 320),
        x: x.clone(),
        y: Axis::log_ms(if least == f64::MAX { 0.1 } else { least }, most),
        strip: 0,
        shapes,
    }
}

fn shares(result: &CapacityResult, x: &Axis) -> Chart {
    let most = counted(result).map(|probe| probe.failed_share.max(probe.limited_share));
    let mut shapes = band(result);
    shapes.push(curve(result, |probe| probe.limited_share, Ink::Limited, 15));
    shapes.push(curve(result, |probe| probe.failed_share, Ink::Series(5), 16));
    shapes.extend(counted(result).map(|probe| dot(probe, probe.failed_share)));
    Chart {
        title: String::from("Failed and limited calls"),
        size: (WIDE, 180),
        x: x.clone(),
        y: Axis::up_to(most.fold(0.001, f64::max), Scale::Share),
        strip: 0,
        shapes,
    }
}

fn achieved(result: &CapacityResult, x: &Axis) -> Chart {
    let mut shapes = band(result);
    shapes.push(Shape::Curve {
        points: vec![Some((0.0, 0.0)), Some((x.to, x.to))],
        ink: Ink::Plan,
        width: 14,
    });
    shapes.push(curve(result, |probe| probe.rate_ended, Ink::Series(0), 16));
    shapes.extend(counted(result).map(|probe| dot(probe, probe.rate_ended)));
    Chart {
        title: String::from("Iterations ended per second"),
        size: (WIDE, 220),
        x: x.clone(),
        y: x.clone(),
        strip: 0,
        shapes,
    }
}

fn broke(result: &CapacityResult) -> Markup {
    html! {
        @if let Some(found) = &result.binding {
            h2 id="binding" { "What broke first" }
            div.card {
                p { (binding(found)) "." }
                p.note { "Seen in probe " (found.probe + 1) "." }
            }
        }
    }
}

fn costs(result: &CapacityResult) -> Markup {
    html! {
        @if !result.costs.is_empty() {
            h2 id="costs" { "What a request costs" }
            p.lead { "At the highest rate that passed." }
            div.card { table {
                thead { tr {
                    th.l { "process" } th { (term("CPU per request", "CPU ms per request")) }
                    th { "probe" }
                } }
                tbody { @for cost in &result.costs { tr {
                    td.l { (cost.process) } td { (short(cost.cpu_ms_per_request)) }
                    td { (cost.probe + 1) }
                } } }
            } }
        }
    }
}

fn probes(result: &CapacityResult) -> Markup {
    html! {
        h2 id="probes" { "Probes" }
        p.lead {
            "In the order of time. " (term("margin", "Margin")) ": how far within the nearest limit."
        }
        div.card { div.scroll { table {
            thead { tr {
                th { "#" } th { "at" } th.l { "for" } th { "rate/s" } th.l { "judged" }
                th { "margin" } th { "ended/s" } th { "results/s" } th { "failed" } th { "429" }
                th { "p50 ms" } th { "p95 ms" } th { "p99 ms" } th { "begun" } th { "late p99 ms" }
            } }
            @for (index, probe) in result.probes.iter().enumerate() { (probe_rows(index, probe)) }
        } } }
    }
}

fn probe_rows(index: usize, probe: &ProbeRow) -> Markup {
    let paint = match probe.judged {
        Judged::Pass => "kept",
        Judged::Fail => "broken",
        Judged::ClientLimited | Judged::Invalid => "limited",
    };
    html! {
        tbody.group.even {
            tr {
                td { (number(index, probe)) }
                td { (clock(probe.at)) }
                td.l { (probe.kind.as_str()) }
                td { (short(probe.rate)) }
                td.l { span class=(paint) { (probe.judged.as_str()) } }
                td { (margin(probe.margin)) }
                td { (short(probe.rate_ended)) }
                td { (short(probe.goodput)) }
                td { (percent(probe.failed_share)) }
                td { (percent(probe.limited_share)) }
                td { (bare_ms(probe.latency.p50_ms)) }
                td { (bare_ms(probe.latency.p95_ms)) }
                td { (bare_ms(probe.latency.p99_ms)) }
                td { (percent(probe.delivered_share)) }
                td { (bare_ms(probe.lateness_p99_ms)) }
            }
            @for reason in &probe.reasons {
                tr.part { td {} td.l.wrap colspan="14" { (reason) } }
            }
        }
    }
}

/// The probe's number, linked to the page of its run if that was kept. The folder's name is ours,
/// but a result may come from elsewhere: only a plain name becomes a link.
fn number(index: usize, probe: &ProbeRow) -> Markup {
    let plain = |name: &str| {
        name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
            && !name.starts_with('.')
    };
    html! {
        @match probe.folder.as_deref().filter(|name| plain(name)) {
            Some(folder) => a href={ (folder) "/report.html" } { (index + 1) },
            None => (index + 1),
        }
    }
}

fn scaling(result: &CapacityResult) -> Markup {
    let Some(fit) = &result.scaling else { return html! {} };
    html! {
        h2 id="scaling" { "Scaling" }
        p.lead {
            (term("scaling", "A law fitted")) " to " (plural(fit.points as u64, "probe"))
            "; it describes, and decides nothing."
        }
        div.card { dl.facts {
            dt { "One alone" } dd { (rate(fit.lambda)) }
            dt { "Contention" } dd { (percent(fit.sigma)) }
            dt { "Coherency" } dd { (percent(fit.kappa)) }
            @if let (Some(under_way), Some(peak)) = (fit.peak_under_way, fit.peak_rate) {
                dt { "Peak" } dd { (rate(peak)) " with " (short(under_way)) " under way" }
            }
            dt { "Variance explained" } dd { (percent(fit.r_squared)) }
        } }
    }
}

fn settings(result: &CapacityResult) -> Markup {
    let settings = &result.settings;
    html! {
        h2 id="search" { "How it searched" }
        div.card { dl.facts {
            dt { "Objectives" } dd {
                @for (index, objective) in result.objectives.iter().enumerate() {
                    @if index > 0 { ", " }
                    code { (objective) }
                }
                @if let Some(why) = &result.objectives_by_default { " (" (why) ")" }
            }
            dt { "Rates" } dd {
                "from " (rate(settings.rate_start)) ", never above " (rate(settings.rate_max))
                ", to " (percent(settings.precision)) " of the highest pass"
            }
            dt { "A probe" } dd {
                (span(settings.probe)) ", the first " (span(settings.probe_warmup)) " not judged, "
                (settings.repeats) " at each side of the boundary, " (span(settings.drain))
                " to drain before each"
            }
            dt { "Baseline" } dd { "at " (rate(settings.rate_baseline)) }
            dt { "Soak" } dd {
                @if settings.soak > 0.0 { (span(settings.soak)) } @else { "none" }
            }
        } }
    }
}
