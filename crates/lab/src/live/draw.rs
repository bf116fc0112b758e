//! Draws the screen as a pure function of a `State`, without a terminal and without a clock.
//!
//! Of the sixteen colours that the terminal itself defines, it uses only those that are readable on
//! light and dark backgrounds. Text repeats all information that colours show.

use std::time::Duration;

use lab_model::plan::Model;
use lab_model::record::Class;
use lab_model::results::ThresholdOutcome;
use lab_model::results::run::HostSample;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Axis, Chart, Dataset, GraphType, Paragraph};

use super::state::{Rates, State};
use crate::wording::number;

/// Table of calls by method.
mod table;

#[cfg(test)]
mod tests;

/// Maximum number of thresholds on the screen. Broken thresholds come first.
const THRESHOLDS_MAX: usize = 6;
/// Minimum width of the screen in cells. A smaller screen shows only one line.
const WIDTH_MIN: u16 = 40;
/// Minimum height of the screen in cells. A smaller screen shows only one line.
const HEIGHT_MIN: u16 = 10;

/// Style of secondary text.
const QUIET: Style = Style::new().add_modifier(Modifier::DIM);
/// Style of headings.
const STRONG: Style = Style::new().add_modifier(Modifier::BOLD);
/// Style of values within their limits.
const GOOD: Style = Style::new().fg(Color::Green);
/// Style of doubtful values. Yellow is not used, because it is unreadable on a light background.
const DOUBTFUL: Style = Style::new().fg(Color::Magenta).add_modifier(Modifier::BOLD);
/// Style of failures and of values beyond their limits.
const BAD: Style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);

/// Draws the whole screen.
pub(super) fn draw(frame: &mut Frame<'_>, state: &State) {
    let area = frame.area();
    if area.width < WIDTH_MIN || area.height < HEIGHT_MIN {
        let line =
            format!("{}  {}", format_elapsed(state), number::rate(state.second.started as f64));
        frame.render_widget(Paragraph::new(line), area);
        return;
    }
    // A screen with few lines lists at most two thresholds.
    let thresholds_max = if area.height < 32 { 2 } else { THRESHOLDS_MAX };
    let threshold_lines = format_thresholds(&state.thresholds, thresholds_max);
    let host_lines: Vec<Line<'_>> = state.hosts.iter().filter_map(format_host).collect();
    // The chart gets the space that the table does not use. On a screen of 20 or more lines, the
    // chart gets at least a quarter of the height.
    let chart_min = if area.height < 20 { 0 } else { area.height / 4 };
    let fixed = |lines: usize| Constraint::Length(u16::try_from(lines).unwrap_or(u16::MAX));
    let [title, bar, rates, chart, calls, failures, generator, pressure, thresholds, keys] =
        Layout::vertical([
            fixed(1),
            fixed(1),
            fixed(1),
            Constraint::Min(chart_min),
            Constraint::Max(table::height(state)),
            fixed(1),
            fixed(1),
            fixed(host_lines.len().min(2)),
            fixed(threshold_lines.len()),
            fixed(1),
        ])
        .areas(area);
    draw_title(frame, title, state);
    frame.render_widget(format_progress(state), bar);
    frame.render_widget(format_rates(state), rates);
    draw_chart(frame, chart, state);
    table::draw(frame, calls, state);
    frame.render_widget(format_failures(state), failures);
    frame.render_widget(format_generator(state), generator);
    frame.render_widget(Paragraph::new(host_lines), pressure);
    frame.render_widget(Paragraph::new(threshold_lines), thresholds);
    let keys_text = "q stop   t toggle times: last second or whole run";
    frame.render_widget(Span::styled(keys_text, QUIET), keys);
    if !state.colour {
        frame.buffer_mut().content.iter_mut().for_each(|cell| cell.fg = Color::Reset);
    }
}

/// Formats the elapsed time and the duration of the plan.
fn format_elapsed(state: &State) -> String {
    let clock = |time: Duration| number::clock(time.as_secs_f64());
    format!("{} of {}", clock(state.elapsed), clock(state.duration))
}

/// Draws the plan's name and the target at the left, and the time at the right. A narrow screen
/// cuts the left text off.
fn draw_title(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let mut spans = vec![
        Span::styled(state.plan.name.as_str(), STRONG),
        Span::raw(format!("  {}", state.plan.target.url)),
    ];
    if let Some(client) = &state.target.client {
        spans.push(Span::styled(format!("  {client}"), QUIET));
    }
    if state.elapsed < state.plan.warmup {
        spans.push(Span::styled("  warm-up", DOUBTFUL));
    }
    let time = Line::from(format_elapsed(state));
    let width = u16::try_from(time.width()).unwrap_or(area.width);
    let [left, right] =
        Layout::horizontal([Constraint::Fill(1), Constraint::Length(width)]).areas(area);
    frame.render_widget(Line::from(spans), left);
    frame.render_widget(time, right);
}

/// Returns the progress bar, and the running stages with their remaining times.
fn format_progress(state: &State) -> Line<'static> {
    const BAR_CELLS: u16 = 24;
    let share = state.elapsed.as_secs_f64() / state.duration.as_secs_f64().max(f64::MIN_POSITIVE);
    let filled_cells = (share.clamp(0.0, 1.0) * f64::from(BAR_CELLS)) as usize;
    let mut spans = vec![
        Span::styled("━".repeat(filled_cells), GOOD),
        Span::styled("─".repeat(usize::from(BAR_CELLS) - filled_cells), QUIET),
        Span::raw("  "),
    ];
    let stages = state.stages();
    let has_several_scenarios = state.plan.scenarios.len() > 1;
    for (index, (scenario, stage, remaining)) in stages.iter().enumerate() {
        let separator = if index > 0 { ", " } else { "" };
        let scenario_prefix =
            if has_several_scenarios { format!("{}: ", scenario.name) } else { String::new() };
        let unit = match scenario.model {
            Model::Open => "/s",
            Model::Closed => " workers",
        };
        let (start_level, end_level) = (number::short(stage.from), number::short(stage.to));
        let level = if start_level == end_level {
            format!("{end_level}{unit}")
        } else {
            format!("{start_level} to {end_level}{unit}")
        };
        let remaining = number::clock(remaining.as_secs_f64());
        let name = &stage.name;
        spans.push(Span::raw(format!(
            "{separator}{scenario_prefix}{name} at {level}, {remaining} left"
        )));
    }
    if stages.is_empty() {
        let ended = state.elapsed >= state.duration;
        let text = if ended { "waiting for calls in flight" } else { "no stage has started" };
        spans.push(Span::raw(text));
    }
    Line::from(spans)
}

/// Returns the rates of the last second, the calls in flight, and the waiting iterations.
fn format_rates(state: &State) -> Line<'static> {
    let second = &state.second;
    let results = second.count(|class| class == Class::Ok);
    // Less than 99 % of the planned iterations started.
    let is_behind = second.started * 100 < second.scheduled * 99;
    let mut spans = Vec::new();
    if state.is_open() {
        let planned = number::count(second.scheduled);
        spans.push(Span::styled(format!("planned {planned}/s  "), QUIET));
    }
    let started = number::count(second.started);
    let started_style = if is_behind { BAD } else { GOOD };
    spans.push(Span::styled(format!("started {started}/s"), started_style));
    spans.push(Span::raw(format!("  requests {}/s", number::count(second.requests))));
    spans.push(Span::raw(format!("  results {}/s", number::count(results))));
    spans.push(Span::raw(format!("  in flight {}", number::count(second.in_flight))));
    if second.waiting > 0 {
        let waiting = number::count(second.waiting);
        spans.push(Span::styled(format!("  waiting {waiting}"), DOUBTFUL));
    }
    Line::from(spans)
}

/// Draws the planned and started iterations per second since the start.
fn draw_chart(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let points = &state.rates.points;
    if area.height < 3 || points.is_empty() {
        return;
    }
    let curve = |value_of: fn(&Rates) -> f64| -> Vec<(f64, f64)> {
        points.iter().enumerate().map(|(index, point)| (index as f64, value_of(point))).collect()
    };
    let (planned, started) = (curve(|point| point.planned), curve(|point| point.started));
    let top = points.iter().map(|point| point.planned.max(point.started)).fold(1.0, f64::max);
    let dataset = |name: &'static str, style: Style| {
        Dataset::default()
            .name(name)
            .marker(Marker::Braille)
            .graph_type(GraphType::Line)
            .style(style)
    };
    let mut datasets = Vec::new();
    if state.is_open() {
        datasets.push(dataset("planned", QUIET).data(&planned));
    }
    datasets.push(dataset("started", GOOD).data(&started));
    let seconds = state.rates.seconds();
    let axis = |labels: [String; 2], upper_bound: f64| {
        Axis::default().bounds([0.0, upper_bound]).labels(labels).style(QUIET)
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

/// Returns the counts of calls without success, by class. The count of JSON-RPC errors is followed
/// by their most frequent codes.
fn format_failures(state: &State) -> Line<'static> {
    if state.classes.is_empty() {
        return Line::styled("no call failed", GOOD);
    }
    let mut spans = Vec::new();
    for (class, count) in &state.classes {
        let style = if class.is_failure() { BAD } else { DOUBTFUL };
        let text = format!("{} {}  ", class.as_str(), number::count(*count));
        spans.push(Span::styled(text, style));
        if *class == Class::RpcError {
            let shown: Vec<String> = (state.codes.iter().take(3))
                .map(|(code, count)| format!("{code}: {}", number::count(*count)))
                .collect();
            spans.push(Span::raw(format!("({})  ", shown.join(", "))));
        }
    }
    Line::from(spans)
}

/// Returns the health of the generator, coloured by the plan's limits.
fn format_generator(state: &State) -> Line<'static> {
    let validity = &state.plan.validity;
    let iterations = state.iterations;
    let delivered = iterations.started as f64 / iterations.scheduled.max(1) as f64;
    let style_for = |is_bad: bool| if is_bad { BAD } else { GOOD };
    let delay_p99_ms = state.scheduling_delay_p99_ms;
    let delay_p99_max_ms = validity.scheduling_delay_p99_max.as_secs_f64() * 1e3;
    let busy_share = state.second.generator_busy;
    let mut spans = vec![Span::raw("generator  ")];
    if state.is_open() && iterations.scheduled > 0 {
        let style = style_for(delivered < validity.delivered_share_min);
        spans.push(Span::styled(format!("delivered {}", number::percent(delivered)), style));
    }
    let delay_text = format!("  late p99 {}", number::ms(delay_p99_ms));
    spans.push(Span::styled(delay_text, style_for(delay_p99_ms > delay_p99_max_ms)));
    // Threads that are busy for more than 90 % of the time cannot handle a burst.
    let busy_style = if busy_share > 0.9 { DOUBTFUL } else { Style::new() };
    spans.push(Span::styled(format!("  busy {}", number::percent(busy_share)), busy_style));
    if iterations.dropped > 0 {
        spans.push(Span::styled(format!("  dropped {}", number::count(iterations.dropped)), BAD));
    }
    Line::from(spans)
}

/// Returns the largest values of CPU use and of pressure (the time in which tasks waited) of a
/// host. `None` if they were not sampled.
fn format_host(sample: &HostSample) -> Option<Line<'static>> {
    const VALUES_MAX: usize = 6;
    let is_listed = |name: &str| name.starts_with("cpu") || name.starts_with("psi");
    let mut values: Vec<&(String, f64)> =
        sample.values.iter().filter(|(name, value)| is_listed(name) && value.is_finite()).collect();
    values.sort_by(|(_, left), (_, right)| right.total_cmp(left));
    values.truncate(VALUES_MAX);
    let texts: Vec<String> =
        values.into_iter().map(|(name, value)| format!("{name} {value:.2}  ")).collect();
    (!texts.is_empty()).then(|| Line::from(format!("{}  {}", sample.host, texts.concat())))
}

/// Returns one line per threshold, broken ones first.
fn format_thresholds(outcomes: &[ThresholdOutcome], max_lines: usize) -> Vec<Line<'static>> {
    let mut sorted: Vec<&ThresholdOutcome> = outcomes.iter().collect();
    sorted.sort_by_key(|outcome| outcome.kept);
    let lines = sorted.into_iter().take(max_lines).map(|outcome| {
        let (style, word) = match (outcome.kept, outcome.observed) {
            (true, Some(_)) => (GOOD, "kept  "),
            (_, None) => (QUIET, "      "),
            (false, Some(_)) => (BAD, "BROKEN"),
        };
        let observed = outcome.observed.map_or_else(|| "no data".to_owned(), format_number);
        let mut text = format!("  {}  is {observed}", outcome.text);
        if let Some(broken_at) = outcome.broken_at.filter(|_| !outcome.kept) {
            text.push_str(&format!("  since {broken_at:.0} s"));
        }
        Line::from(vec![Span::styled(word, style), Span::raw(text)])
    });
    lines.collect()
}

/// Formats a number with at most four decimals.
fn format_number(value: f64) -> String {
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
