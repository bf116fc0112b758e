//! Whether the generator kept up, what went over connections, and whether answers were right.

use maud::{Markup, html};

use super::over_time::{WIDE, marks, time};
use super::{figure, term};
use crate::report::chart::axis::{Axis, Scale};
use crate::report::chart::{Chart, Ink, Shape};
use crate::report::number::{bare_ms, bytes, count, ms, percent, span};
use crate::report::timeline::{Point, Timeline};
use crate::results::Quantiles;
use crate::results::run::RunResult;

/// Figures and charts of the generator's own health.
pub(super) fn generator(result: &RunResult, line: &Timeline) -> Markup {
    let generator = &result.generator;
    let iterations = &generator.iterations;
    html! {
        h2 id="generator" { "Generator" }
        p.lead {
            "Whether the machine that made the load was itself the limit. If it was, the verdict \
             says so and nothing else on this page is about the target."
        }
        div.tiles {
            (fact(&percent(generator.delivered_share), "delivered", "of due iterations begun"))
            (fact(&ms(generator.lateness.p99_ms), "lateness", "late at the 99th percentile"))
            (fact(&ms(generator.lateness.max_ms), "lateness", "late at most"))
            (fact(&percent(generator.busy_max), "busy", "busy in the busiest second"))
            (fact(&span(generator.run_delay), "run delay", "ready, but without a core"))
            (fact(&ms(generator.cpu_us_per_request / 1e3), "CPU per request", "its threads' CPU per request"))
            (fact(
                &format!("{} / {}", count(iterations.dropped), count(iterations.cut)),
                "due, begun, dropped",
                "iterations dropped / cut at the end",
            ))
            (fact(&ms(generator.iteration_time.p99_ms), "iteration time", "p99 of whole iterations"))
        }
        div.card {
            (figure(&lateness(result, line), &[(Ink::Series(3), "largest p99 of a second")]))
            (figure(&busy(result, line), &[(Ink::Series(7), "share of a second not idle")]))
        }
    }
}

fn fact(value: &str, word: &str, about: &str) -> Markup {
    html! { div.tile { b { (value) } span { (term(word, about)) } } }
}

fn over_time(
    result: &RunResult,
    line: &Timeline,
    title: &str,
    of: fn(&Point) -> f64,
    (scale, ink): (Scale, Ink),
) -> Chart {
    let most = line.points.iter().map(of).fold(0.0, f64::max);
    let points: Vec<_> = line.points.iter().map(|point| (point.middle(), of(point))).collect();
    let mut shapes = marks(result, WIDE);
    shapes.push(Shape::Area { points: points.clone(), ink, opacity: 0.12 });
    shapes.push(Shape::Curve { points: points.into_iter().map(Some).collect(), ink, width: 15 });
    Chart {
        title: String::from(title),
        size: (WIDE, 130),
        x: time(result),
        y: Axis::up_to(most, scale),
        strip: 0,
        shapes,
    }
}

fn lateness(result: &RunResult, line: &Timeline) -> Chart {
    let look = (Scale::Milliseconds, Ink::Series(3));
    over_time(result, line, "Lateness of sends", |point| point.lateness_ms, look)
}

fn busy(result: &RunResult, line: &Timeline) -> Chart {
    let look = (Scale::Share, Ink::Series(7));
    over_time(result, line, "Busy", |point| point.busy, look)
}

/// Connections, handshakes, statuses, bytes.
pub(super) fn connections(result: &RunResult) -> Markup {
    let (wire, traffic) = (&result.wire, &result.wire.traffic);
    html! {
        h2 id="connections" { "Connections" }
        p.lead {
            "HTTP/" (result.plan.http) ", connections: " (result.plan.connections)
            ". Times are of the connections that were made in the run."
        }
        div.card { div.two {
            dl.facts {
                dt { "HTTP requests ended" } dd { (count(traffic.requests)) }
                dt { "Connections made" } dd { (count(traffic.connections)) }
                dt { "Connections failed" } dd { (count(traffic.connections_failed)) }
                dt { "Closed by the server" } dd { (count(traffic.closed_by_server)) }
                dt { (term("ports exhausted", "No local port left")) }
                dd { (count(traffic.ports_exhausted)) }
                dt { "Sent" } dd { (bytes(traffic.bytes_sent as f64)) }
                dt { "Received" } dd { (bytes(traffic.bytes_received as f64)) }
                @if let Some(share) = wire.resumption {
                    dt { (term("resumption", "TLS sessions resumed")) }
                    dd {
                        (percent(share)) " (" (count(traffic.handshakes_resumed)) " of "
                        (count(traffic.handshakes_full + traffic.handshakes_resumed)) ")"
                    }
                }
                @for (status, requests) in &wire.statuses {
                    dt { "HTTP status " (status) } dd { (count(*requests)) }
                }
            }
            div.scroll { table {
                thead { tr {
                    th.l { "" } th { "count" } th { "p50 ms" } th { "p95 ms" } th { "p99 ms" }
                    th { "max ms" }
                } }
                tbody {
                    (times("TCP connect", &wire.connect))
                    (times("TLS handshake, full", &wire.handshake_full))
                    (times("TLS handshake, resumed", &wire.handshake_resumed))
                    (times("Retry-After asked for", &wire.retry_after))
                }
            } }
        } }
    }
}

fn times(name: &str, of: &Quantiles) -> Markup {
    html! {
        tr {
            td.l { (name) }
            td { (count(of.count)) }
            @if of.count == 0 {
                @for _ in 0..4 { td {} }
            } @else {
                @for time in [of.p50_ms, of.p95_ms, of.p99_ms, of.max_ms] { td { (bare_ms(time)) } }
            }
        }
    }
}

/// Answers compared with a reference's.
pub(super) fn compared(result: &RunResult) -> Markup {
    let Some(compared) = &result.compared else { return html! {} };
    html! {
        h2 id="compared" { "Answers compared" }
        p.lead {
            "A sample of the answers, held against those of " code { (compared.reference) } ": "
            (count(compared.compared)) " compared, "
            span class=(if compared.wrong > 0 { "bad" } else { "" }) { (count(compared.wrong)) " wrong" }
            ", " (count(compared.moved)) " where the chain had moved, " (count(compared.unanswered))
            " that the reference did not answer, " (count(compared.skipped))
            " skipped because it was slower than the run. "
            (term("compared answers", "What this means")) "."
        }
        div.card { div.scroll { table {
            thead { tr { th.l { "method" } th { "compared" } th { "wrong" } } }
            tbody { @for (method, all, wrong) in &compared.methods {
                tr {
                    td.l { (method) } td { (count(*all)) }
                    td class=(if *wrong > 0 { "bad" } else { "" }) { (count(*wrong)) }
                }
            } }
        } } }
        @if !compared.examples.is_empty() {
            div.card { div.scroll { table {
                thead { tr {
                    th.l { "method" } th.l { "request" } th.l { "where" } th.l { "target" }
                    th.l { "reference" }
                } }
                tbody { @for difference in &compared.examples {
                    tr {
                        td.l { (difference.method) }
                        td.l.wrap { code { (difference.request) } }
                        td.l.wrap { code { (difference.pointer) } }
                        td.l.wrap { code { (difference.target) } }
                        td.l.wrap { code { (difference.reference) } }
                    }
                } }
            } } }
        }
    }
}
