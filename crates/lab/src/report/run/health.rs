//! Sections about the health of the load generator, connections, and compared responses. The
//! generator is this program, which sends the calls. The reference is a second node. A sample of
//! the target's responses is compared with the reference's responses.
//!
//! `report/document.rs` explains the functions and macros that build sections.

use lab_model::results::run::RunResult;

use super::super::chart::axis::{Axis, Scale};
use super::super::chart::{Chart, Ink, Shape, curve};
use super::super::document::{Block, Column, Section, Text, code, table, text, tone};
use super::super::timeline::{Point, Timeline};
use super::over_time::{AREA_OPACITY, WIDE, marks, time_axis};
use crate::wording::number::{bare_ms, bytes, count, ms, percent, span};

/// Height of a chart in pixels.
const CHART_HEIGHT: i32 = 130;
/// Width of a curve in tenths of a pixel.
const LINE_WIDTH: u32 = 15;

/// Describes the health of the generator in one line.
pub(super) fn describe_generator(result: &RunResult) -> String {
    let generator = &result.generator;
    format!(
        "started {} of {} scheduled iterations · {} dropped · sends late by {} (p99) · busy at most \
         {} · CPU per request {} · waited {} for a core",
        percent(generator.delivered_share),
        count(generator.iterations.scheduled),
        count(generator.iterations.dropped),
        ms(generator.scheduling_delay.p99_ms),
        percent(generator.busy_max),
        ms(generator.cpu_us_per_request / 1e3),
        span(generator.run_delay),
    )
}

/// Returns the numbers and charts of the generator's health: calls that were sent late, busy
/// threads, and waits for a core.
pub(super) fn generator(result: &RunResult, timeline: &Timeline) -> Section {
    let generator = &result.generator;
    let (iterations, delay) = (&generator.iterations, &generator.scheduling_delay);
    let unfinished = format!("{} / {}", count(iterations.dropped), count(iterations.interrupted));
    let tiles = [
        (percent(generator.delivered_share), "[of scheduled iterations started](delivered)"),
        (ms(delay.p99_ms), "[scheduling delay, p99](scheduling delay)"),
        (ms(delay.max_ms), "[scheduling delay, maximum](scheduling delay)"),
        (percent(generator.busy_max), "[busy in the busiest second](busy)"),
        (span(generator.run_delay), "[waited for a core](run delay)"),
        (
            ms(generator.cpu_us_per_request / 1e3),
            "[CPU per request of its threads](CPU per request)",
        ),
        (unfinished, "[iterations dropped / interrupted](scheduled, started, dropped)"),
        (ms(generator.iteration_time.p99_ms), "[p99 of whole iterations](iteration time)"),
    ];
    let tiles = tiles.map(|(value, description)| ("", value, Text::marked(description))).to_vec();
    let chart = |title: &str, value_of: fn(&Point) -> f64, scale, ink, legend_text: &str| {
        let maximum = timeline.points.iter().map(value_of).fold(0.0, f64::max);
        let points =
            || timeline.points.iter().map(|point| (point.middle(), value_of(point))).collect();
        let mut shapes = marks(result, WIDE);
        shapes.push(Shape::Area(points(), ink, AREA_OPACITY));
        shapes.push(curve(points(), ink, LINE_WIDTH));
        let axes = (time_axis(result), Axis::up_to(maximum, scale));
        Block::Figure(
            Chart::new(title, (WIDE, CHART_HEIGHT), axes, shapes),
            vec![(ink, legend_text.to_owned())],
        )
    };
    let delay_of = |point: &Point| point.scheduling_delay_ms;
    let busy_of = |point: &Point| point.busy;
    let (delay_ink, busy_ink) = (Ink::Series(3), Ink::Series(7));
    let delay_text = "largest p99 of a second";
    let charts = vec![
        chart("Scheduling delay", delay_of, Scale::Milliseconds, delay_ink, delay_text),
        chart("Busy", busy_of, Scale::Share, busy_ink, "busy share of a second"),
    ];
    Section::new("generator", "Generator")
        .nav("Generator")
        .intro(
            "The health of the load generator. If it was the limit, the verdict says so, and the other \
             numbers of this page do not describe the target.",
        )
        .add(Block::Tiles(tiles))
        .add(Block::Fold { summary: "Delay and load over time".into(), open: false, blocks: charts })
}

/// Returns the numbers of connections, TLS handshakes, HTTP statuses and bytes, and the times to
/// open connections.
pub(super) fn connections(result: &RunResult) -> Section {
    let (wire, traffic) = (&result.wire, &result.wire.traffic);
    let (full_handshakes, resumed_handshakes) =
        (traffic.handshakes_full, traffic.handshakes_resumed);
    let (protocol, reuse) = (result.plan.protocol(), &result.plan.connections);
    let resumption_fact = wire.resumption.map(|share| {
        let resumed_text = format!(
            "{} ({} of {})",
            percent(share),
            count(resumed_handshakes),
            count(full_handshakes + resumed_handshakes)
        );
        ("[TLS sessions resumed](resumption)".to_owned(), resumed_text)
    });
    let facts = [
        (
            if protocol == "WebSocket" { "Requests ended" } else { "HTTP requests ended" },
            count(traffic.requests),
        ),
        ("Connections opened", count(traffic.connections)),
        ("Connections failed", count(traffic.connections_failed)),
        ("Closed by the server", count(traffic.closed_by_server)),
        ("[Sent again after GOAWAY or REFUSED_STREAM](retried)", count(traffic.retried)),
        ("[No local port left](ports exhausted)", count(traffic.ports_exhausted)),
        ("Responses received twice", count(traffic.duplicates)),
        ("Sent", bytes(traffic.bytes_sent as f64)),
        ("Received", bytes(traffic.bytes_received as f64)),
    ];
    let statuses = wire.statuses.iter();
    let statuses =
        statuses.map(|(status, responses)| (format!("HTTP status {status}"), count(*responses)));
    let facts = facts.map(|(name, value)| (name.to_owned(), value)).into_iter();
    let close_codes = wire.close_codes.iter().map(|(code, websockets)| {
        (format!("WebSockets closed by the server with code {code}"), count(*websockets))
    });
    let facts = facts.chain(resumption_fact).chain(statuses).chain(close_codes);
    let facts = facts.map(|(name, value)| (Text::marked(&name), value.into())).collect();
    let opening = (protocol == "WebSocket").then_some(("WebSocket opening", &wire.upgrade));
    let times = [
        ("TCP connect", &wire.connect),
        ("TLS handshake, full", &wire.handshake_full),
        ("TLS handshake, resumed", &wire.handshake_resumed),
    ];
    let times = times.into_iter().chain(opening).chain([("Retry-After", &wire.retry_after)]);
    let ms_or_empty = |count: u64, ms: f64| if count == 0 { String::new() } else { bare_ms(ms) };
    let times = table!(times, |(name, quantiles)|
        Column::text("") => name,
        Column::number("count") => count(quantiles.count),
        Column::number("p50 ms") => ms_or_empty(quantiles.count, quantiles.p50_ms),
        Column::number("p95 ms") => ms_or_empty(quantiles.count, quantiles.p95_ms),
        Column::number("p99 ms") => ms_or_empty(quantiles.count, quantiles.p99_ms),
        Column::number("max ms") => ms_or_empty(quantiles.count, quantiles.max_ms),
    );
    let intro = format!(
        "{protocol}, connections: {reuse}. Times are of connections opened during the run."
    );
    Section::new("connections", "Connections")
        .nav("Connections")
        .detail()
        .add(Block::Intro(intro.into()))
        .add(Block::Columns(vec![Block::Facts(facts), Block::Table(times)]))
}

/// Returns the comparison of the target's responses with those of the reference. The responses in
/// `moved` differed at first, and were equal after a repeated call, so a new block may explain the
/// difference. `None` if the plan names no reference.
pub(super) fn compared(result: &RunResult) -> Option<Section> {
    let compared = result.compared.as_ref()?;
    let red_unless_zero = |number: u64, text| tone(if number > 0 { "bad" } else { "" }, text);
    let other_counts = format!(
        ", {} moved with the chain, {} without a response of the reference, {} skipped because the \
         reference was slower than the run. [Explanation](compared responses).",
        count(compared.moved),
        count(compared.unanswered),
        count(compared.skipped)
    );
    let intro = text![
        "A sample of the responses, compared with those of ",
        code(&compared.reference),
        format!(": {} compared, ", count(compared.compared)),
        red_unless_zero(compared.wrong, format!("{} wrong", count(compared.wrong))),
        Text::marked(&other_counts)
    ];
    let methods = table!(&compared.methods, |(method, compared_count, wrong_count)|
        Column::text("method") => method,
        Column::number("compared") => count(*compared_count),
        Column::number("wrong") => red_unless_zero(*wrong_count, count(*wrong_count)),
    );
    let examples = table!(&compared.examples, |example|
        Column::text("method") => &example.method,
        Column::prose("request") => code(&example.request),
        Column::prose("pointer") => code(&example.pointer),
        Column::prose("target") => code(&example.target),
        Column::prose("reference") => code(&example.reference),
    );
    let has_examples = !compared.examples.is_empty();
    let section = Section::new("compared", "Compared responses").add(Block::Intro(intro));
    let section = section.add(Block::Table(methods));
    Some(section.add(has_examples.then_some(Block::Table(examples))))
}
