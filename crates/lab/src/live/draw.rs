//! Draws the screen as a pure function of a `State`, without a terminal and without a clock.
//!
//! Colours are the sixteen that the terminal defines itself, so they are readable on light and dark
//! backgrounds. No information is in colours alone.

use std::time::Duration;

use lab_model::plan::Model;
use lab_model::record::Class;
use lab_model::results::ThresholdOutcome;
use lab_model::results::run::HostSample;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span as Text};
use ratatui::widgets::{Axis, Chart, Dataset, GraphType, Paragraph};

use super::state::State;
use crate::wording::number;

/// Table of calls by method.
mod table;

#[cfg(test)]
mod tests;

/// Maximum number of thresholds on the screen; broken ones come first.
const THRESHOLDS_MAX: usize = 6;
/// Minimum width and height in cells. A smaller screen shows one line.
const SMALL: (u16, u16) = (40, 10);

/// Style of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tone {
    Plain,
    Quiet,
    Strong,
    Good,
    Doubtful,
    Bad,
}

impl Tone {
    /// Yellow is not used, because it is unreadable on a light background.
    fn style(self, colour: bool) -> Style {
        let coloured = |tint| if colour { Style::new().fg(tint) } else { Style::new() };
        match self {
            Tone::Plain => Style::new(),
            Tone::Quiet => Style::new().add_modifier(Modifier::DIM),
            Tone::Strong => Style::new().add_modifier(Modifier::BOLD),
            Tone::Good => coloured(Color::Green),
            Tone::Doubtful => coloured(Color::Magenta).add_modifier(Modifier::BOLD),
            Tone::Bad => coloured(Color::Red).add_modifier(Modifier::BOLD),
        }
    }
}

/// A styled span of a line.
type Part = (Tone, String);

/// Draws the whole screen.
pub(super) fn draw(frame: &mut Frame<'_>, state: &State) {
    let area = frame.area();
    if area.width < SMALL.0 || area.height < SMALL.1 {
        let line =
            format!("{}  {}", elapsed_text(state), number::rate(state.second.started as f64));
        frame.render_widget(Paragraph::new(line), area);
        return;
    }
    let thresholds_max = if area.height < 32 { 2 } else { THRESHOLDS_MAX };
    let threshold_lines = format_thresholds(&state.thresholds, thresholds_max);
    let hosts: Vec<Vec<Part>> = state.hosts.iter().filter_map(host).collect();
    // The chart gets the space that the table does not use. On a larger screen it gets at least a
    // quarter of the height.
    let chart_min = if area.height < 20 { 0 } else { area.height / 4 };
    let fixed = |lines: usize| Constraint::Length(u16::try_from(lines).unwrap_or(u16::MAX));
    let [title, bar, rates, chart, calls, failures, generator, pressure, thresholds, keys] =
        Layout::vertical([
            fixed(1),
            fixed(1),
            fixed(1),
            Constraint::Min(chart_min),
            Constraint::Max(table::lines(state)),
            fixed(1),
            fixed(1),
            fixed(hosts.len().min(2)),
            fixed(threshold_lines.len()),
            fixed(1),
        ])
        .areas(area);
    draw_sides(frame, title, state, title_parts(state), vec![(Tone::Plain, elapsed_text(state))]);
    draw_bar(frame, bar, state);
    draw_line(frame, rates, state, rate_parts(state));
    draw_chart(frame, chart, state);
    table::draw(frame, calls, state);
    draw_line(frame, failures, state, failure_parts(state));
    draw_line(frame, generator, state, generator_parts(state));
    draw_lines(frame, pressure, state, hosts);
    draw_lines(frame, thresholds, state, threshold_lines);
    draw_line(frame, keys, state, key_parts());
}

fn line(state: &State, parts: Vec<Part>) -> Line<'static> {
    let styled = |(tone, text): Part| Text::styled(text, tone.style(state.colour));
    Line::from_iter(parts.into_iter().map(styled))
}

fn draw_line(frame: &mut Frame<'_>, area: Rect, state: &State, parts: Vec<Part>) {
    frame.render_widget(line(state, parts), area);
}

fn draw_lines(frame: &mut Frame<'_>, area: Rect, state: &State, lines: Vec<Vec<Part>>) {
    let lines: Vec<Line<'_>> = lines.into_iter().map(|parts| line(state, parts)).collect();
    frame.render_widget(Paragraph::new(lines), area);
}

/// Draws text at both ends of a line. On a narrow screen the left text is cut.
fn draw_sides(frame: &mut Frame<'_>, area: Rect, state: &State, left: Vec<Part>, right: Vec<Part>) {
    let right = line(state, right);
    let width = u16::try_from(right.width()).unwrap_or(area.width);
    let [start, end] =
        Layout::horizontal([Constraint::Fill(1), Constraint::Length(width)]).areas(area);
    draw_line(frame, start, state, left);
    frame.render_widget(right, end);
}

fn elapsed_text(state: &State) -> String {
    let clock = |time: Duration| number::clock(time.as_secs_f64());
    format!("{} of {}", clock(state.elapsed), clock(state.duration))
}

fn title_parts(state: &State) -> Vec<Part> {
    let mut parts = vec![
        (Tone::Strong, state.plan.name.clone()),
        (Tone::Plain, format!("  {}", state.plan.target.url)),
    ];
    if let Some(client) = &state.target.client {
        parts.push((Tone::Quiet, format!("  {client}")));
    }
    if state.elapsed < state.plan.warmup {
        parts.push((Tone::Doubtful, "  warm-up".to_owned()));
    }
    parts
}

/// Draws the progress bar, and the running stages with their remaining times.
fn draw_bar(frame: &mut Frame<'_>, area: Rect, state: &State) {
    const BAR: u16 = 24;
    let share = state.elapsed.as_secs_f64() / state.duration.as_secs_f64().max(f64::MIN_POSITIVE);
    let done = (share.clamp(0.0, 1.0) * f64::from(BAR)) as usize;
    let mut parts = vec![
        (Tone::Good, "━".repeat(done)),
        (Tone::Quiet, "─".repeat(usize::from(BAR) - done)),
        (Tone::Plain, "  ".to_owned()),
    ];
    let stages = state.stages();
    let several = state.plan.scenarios.len() > 1;
    for (index, (scenario, stage, remaining)) in stages.iter().enumerate() {
        let gap = if index > 0 { ", " } else { "" };
        let scenario_prefix = if several { format!("{}: ", scenario.name) } else { String::new() };
        let level = match scenario.model {
            Model::Open { .. } => "/s",
            Model::Closed => " workers",
        };
        let (start_level, end_level) = (number::short(stage.from), number::short(stage.to));
        let level = if start_level == end_level {
            format!("{end_level}{level}")
        } else {
            format!("{start_level} to {end_level}{level}")
        };
        let remaining = number::clock(remaining.as_secs_f64());
        parts.push((
            Tone::Plain,
            format!("{gap}{scenario_prefix}{} at {level}, {remaining} left", stage.name),
        ));
    }
    if stages.is_empty() {
        let ended = state.elapsed >= state.duration;
        let text = if ended { "waiting for calls in flight" } else { "no stage has started" };
        parts.push((Tone::Plain, text.to_owned()));
    }
    draw_line(frame, area, state, parts);
}

fn rate_parts(state: &State) -> Vec<Part> {
    let second = &state.second;
    let results: u64 = (second.methods.iter())
        .flat_map(|method| &method.classes)
        .filter(|(class, _)| *class == Class::Ok)
        .map(|(_, count)| count)
        .sum();
    let is_behind = second.started * 100 < second.scheduled * 99;
    let mut parts = Vec::new();
    if state.is_open() {
        parts.push((Tone::Quiet, format!("planned {}/s  ", number::count(second.scheduled))));
    }
    let tone = if is_behind { Tone::Bad } else { Tone::Good };
    parts.push((tone, format!("started {}/s", number::count(second.started))));
    parts.push((Tone::Plain, format!("  requests {}/s", number::count(second.requests))));
    parts.push((Tone::Plain, format!("  results {}/s", number::count(results))));
    parts.push((Tone::Plain, format!("  in flight {}", number::count(second.in_flight))));
    if second.waiting > 0 {
        parts.push((Tone::Doubtful, format!("  waiting {}", number::count(second.waiting))));
    }
    parts
}

/// Draws the planned and started iterations per second since the start.
fn draw_chart(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let points = &state.rates.points;
    if area.height < 3 || points.is_empty() {
        return;
    }
    let curve = |value_of: fn(&(f64, f64)) -> f64| -> Vec<(f64, f64)> {
        points.iter().enumerate().map(|(index, point)| (index as f64, value_of(point))).collect()
    };
    let (planned, started) = (curve(|point| point.0), curve(|point| point.1));
    let top = points.iter().map(|point| point.0.max(point.1)).fold(1.0, f64::max);
    let dataset = |name: &'static str, tone: Tone| {
        let style = tone.style(state.colour);
        Dataset::default()
            .name(name)
            .marker(Marker::Braille)
            .graph_type(GraphType::Line)
            .style(style)
    };
    let mut datasets = Vec::new();
    if state.is_open() {
        datasets.push(dataset("planned", Tone::Quiet).data(&planned));
    }
    datasets.push(dataset("started", Tone::Good).data(&started));
    let seconds = state.rates.seconds();
    let axis = |labels: [String; 2], upper_bound: f64| {
        Axis::default()
            .bounds([0.0, upper_bound])
            .labels(labels)
            .style(Tone::Quiet.style(state.colour))
    };
    let chart = Chart::new(datasets)
        .legend_position(None)
        .x_axis(axis(
            ["0:00".to_owned(), number::clock(seconds as f64)],
            (points.len() - 1).max(1) as f64,
        ))
        .y_axis(axis(["0".to_owned(), number::short(top)], top));
    frame.render_widget(chart, area);
}

fn failure_parts(state: &State) -> Vec<Part> {
    if state.classes.is_empty() {
        return vec![(Tone::Good, "no call failed".to_owned())];
    }
    let mut parts = Vec::new();
    for (class, count) in &state.classes {
        let tone = if class.is_failure() { Tone::Bad } else { Tone::Doubtful };
        parts.push((tone, format!("{} {}  ", class.as_str(), number::count(*count))));
        if *class == Class::RpcError {
            let shown: Vec<String> = (state.codes.iter().take(3))
                .map(|(code, count)| format!("{code}: {}", number::count(*count)))
                .collect();
            parts.push((Tone::Plain, format!("({})  ", shown.join(", "))));
        }
    }
    parts
}

/// Returns the health of the generator, coloured by the plan's limits.
fn generator_parts(state: &State) -> Vec<Part> {
    let validity = &state.plan.validity;
    let iterations = state.iterations;
    let delivered = iterations.started as f64 / iterations.scheduled.max(1) as f64;
    let tone_for = |bad: bool| if bad { Tone::Bad } else { Tone::Good };
    let late = state.scheduling_delay_p99_ms;
    let late_max = validity.scheduling_delay_p99_max.as_secs_f64() * 1e3;
    let busy = state.second.generator_busy;
    let mut parts = vec![(Tone::Plain, "generator  ".to_owned())];
    if state.is_open() && iterations.scheduled > 0 {
        let tone = tone_for(delivered < validity.delivered_share_min);
        parts.push((tone, format!("delivered {}", number::percent(delivered))));
    }
    parts.push((tone_for(late > late_max), format!("  late p99 {}", number::ms(late))));
    // Threads that are busier than this cannot handle a burst.
    let tone = if busy > 0.9 { Tone::Doubtful } else { Tone::Plain };
    parts.push((tone, format!("  busy {}", number::percent(busy))));
    if iterations.dropped > 0 {
        parts.push((Tone::Bad, format!("  dropped {}", number::count(iterations.dropped))));
    }
    parts
}

/// Returns the pressure and CPU of one host, if they were sampled.
fn host(sample: &HostSample) -> Option<Vec<Part>> {
    const SHOWN: usize = 6;
    let shown = |name: &str| name.starts_with("cpu") || name.starts_with("psi");
    let mut values: Vec<&(String, f64)> =
        sample.values.iter().filter(|(name, value)| shown(name) && value.is_finite()).collect();
    values.sort_by(|left, right| right.1.total_cmp(&left.1));
    if values.is_empty() {
        return None;
    }
    let mut parts = vec![(Tone::Plain, format!("{}  ", sample.host))];
    for (name, value) in values.into_iter().take(SHOWN) {
        parts.push((Tone::Plain, format!("{name} {value:.2}  ")));
    }
    Some(parts)
}

/// Returns one line per threshold, broken ones first.
fn format_thresholds(outcomes: &[ThresholdOutcome], max_lines: usize) -> Vec<Vec<Part>> {
    let mut sorted: Vec<&ThresholdOutcome> = outcomes.iter().collect();
    sorted.sort_by_key(|outcome| outcome.kept);
    let lines = sorted.into_iter().take(max_lines).map(|outcome| {
        let (tone, word) = match (outcome.kept, outcome.observed) {
            (true, Some(_)) => (Tone::Good, "kept  "),
            (_, None) => (Tone::Quiet, "      "),
            (false, Some(_)) => (Tone::Bad, "BROKEN"),
        };
        let observed = outcome.observed.map_or_else(|| "no data".to_owned(), number);
        let mut parts = vec![(tone, word.to_owned())];
        parts.push((Tone::Plain, format!("  {}  is {observed}", outcome.text)));
        if let Some(broken_at) = outcome.broken_at.filter(|_| !outcome.kept) {
            parts.push((Tone::Plain, format!("  since {broken_at:.0} s")));
        }
        parts
    });
    lines.collect()
}

/// Formats a number with at most four decimals.
fn number(value: f64) -> String {
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn key_parts() -> Vec<Part> {
    vec![(Tone::Quiet, "q stop   t toggle times: last second or whole run".to_owned())]
}
