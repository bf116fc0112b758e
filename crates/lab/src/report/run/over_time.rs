//! Sections about the run over time: planned and achieved load, and the latency of each method.
//!
//! All these charts share one time axis and one set of marks.

use lab_model::results::run::RunResult;

use super::super::chart::axis::{Axis, Scale, log};
use super::super::chart::{Chart, Ink, Shape, curve};
use super::super::document::{Block, PAGE, Section, Text};
use super::super::timeline::{MethodPoint, MethodSeries, Point, Timeline};
use crate::wording::number::clock;

/// Width of a chart over time, in pixels.
pub(super) const WIDE: i32 = 1000;
/// Width of one of two charts side by side, in pixels.
const HALF: i32 = 500;
/// Height of the strip of failures, in pixels.
const STRIP: i32 = 8;
/// Maximum number of methods with a separate chart. The methods with the most failures are chosen.
const METHODS_MAX: usize = 24;

/// The time axis of a run.
pub(super) fn time(result: &RunResult) -> Axis {
    let last = result.series.last().map_or(0.0, |second| second.at);
    Axis::time(result.duration.max(last))
}

/// Returns when a threshold was first broken, if one was.
pub(super) fn first_break(result: &RunResult) -> Option<f64> {
    let breaks = result.thresholds.iter().filter_map(|threshold| threshold.broken_at);
    breaks.min_by(f64::total_cmp)
}

/// Returns the marks of every chart over time: warm-up, stages, the first breach, the bottleneck.
pub(super) fn marks(result: &RunResult, width: i32) -> Vec<Shape> {
    let axis = time(result);
    let mut shapes = Vec::new();
    if result.plan.warmup > 0.0 {
        let x = (0.0, result.plan.warmup.min(axis.to));
        shapes.push(Shape::Band(x, Ink::Shade, 0.14));
    }
    let mut named_to = 0.0;
    for stage in &result.stages {
        let pixels = (stage.to - stage.from) / axis.to * f64::from(width - 80);
        let fits =
            stage.from >= named_to && pixels >= stage.stage.chars().count() as f64 * 7.0 + 10.0;
        if fits {
            named_to = stage.to;
        }
        if fits || stage.from > 0.0 {
            let text = fits.then(|| stage.stage.clone());
            shapes.push(Shape::Mark(stage.from, Ink::Stage, text));
        }
    }
    if let Some(at) = result.bottleneck.as_ref().and_then(|finding| finding.at) {
        shapes.push(Shape::Mark(at, Ink::Limited, None));
    }
    if let Some(at) = first_break(result) {
        shapes.push(Shape::Mark(at, Ink::Bad, Some(String::from("broken"))));
    }
    shapes
}

/// Explains the marks.
pub(super) fn marks_note(result: &RunResult) -> String {
    let broken = first_break(result).map(|at| {
        let at = clock(at);
        format!(" The red line marks when the first threshold was broken ({at}).")
    });
    let began = result.bottleneck.as_ref().and_then(|finding| finding.at);
    let began = began.map(|at| {
        format!(" The amber line marks when the first bottleneck began ({}).", clock(at))
    });
    broken.into_iter().chain(began).collect()
}

/// Planned and started iterations.
pub(super) fn load(result: &RunResult, line: &Timeline) -> Section {
    let of = |of: fn(&Point) -> f64| -> Vec<(f64, f64)> {
        line.points.iter().map(|point| (point.middle(), of(point))).collect()
    };
    let started = |point: &Point| point.begun;
    type Curve = (&'static str, fn(&Point) -> f64, Ink, u32, bool);
    let all: [Curve; 5] = [
        ("planned", |point| point.due, Ink::Plan, 22, true),
        ("started", started, Ink::Series(0), 18, true),
        ("results", |point| point.ok, Ink::Good, 14, true),
        ("dropped", |point| point.dropped, Ink::Limited, 18, false),
        ("failed calls", |point| point.failed, Ink::Bad, 16, false),
    ];
    let mut shapes = marks(result, WIDE);
    shapes.push(Shape::Area(of(started), Ink::Series(0), 0.12));
    let mut keys = Vec::new();
    for (key, value, ink, width, always) in all {
        if always || line.points.iter().any(|point| value(point) > 0.0) {
            shapes.push(curve(of(value), ink, width));
            keys.push((ink, key.to_owned()));
        }
    }
    let most = line.points.iter().map(|point| point.due.max(point.begun).max(point.ok));
    let axes = (time(result), Axis::up_to(most.fold(0.0, f64::max), Scale::Number));
    let chart = Chart::new("Iterations and results per second", (WIDE, 260), axes, shapes);
    let lead = format!(
        "[Scheduled](scheduled, started, dropped) and [started](scheduled, started, dropped) iterations. \
         Where the curves differ, the load was not as planned.{}",
        marks_note(result)
    );
    Section::new("load", "Load: planned and achieved")
        .nav("Load")
        .lead(&lead)
        .on(PAGE, Block::Card(with_step_note(Block::Figure(chart, keys), line)))
}

fn with_step_note(figure: Block, line: &Timeline) -> Vec<Block> {
    let note =
        format!("Each point covers {} seconds: rates are means, times are maxima.", line.step);
    let note = (line.step > 1).then(|| Block::Note(note.into()));
    [Some(figure), note].into_iter().flatten().collect()
}

/// Returns a chart with the p99 of all methods, followed by a chart for each method.
pub(super) fn latency(result: &RunResult, line: &Timeline) -> Section {
    let mut ranked: Vec<(usize, &MethodSeries)> = line.methods.iter().enumerate().collect();
    let failed = |series: &MethodSeries| {
        let row = result.methods.iter().find(|row| row.method == series.method);
        row.map_or(0.0, |row| row.failed_share)
    };
    ranked.sort_by(|(_, a), (_, b)| failed(b).total_cmp(&failed(a)));
    let left_out = ranked.len().saturating_sub(METHODS_MAX);
    ranked.truncate(METHODS_MAX);
    ranked.sort_by_key(|(index, _)| *index);
    let (least, most) = extent(line);
    let y = Axis::log_ms(least, most);
    let keys =
        ranked.iter().map(|(index, one)| (Ink::Series(*index), one.method.clone())).collect();
    let all = Block::Figure(all_methods(result, line, &y), keys);
    let each = ranked.iter().map(|(_, series)| one_method(result, line, series, &y)).collect();
    let note = format!(
        "The charts are of the methods with the most failures; series.csv has {left_out} more."
    );
    let note = (left_out > 0).then(|| Block::Note(Text::from(note)));
    Section::new("latency", "Latency over time")
        .nav("Latency")
        .lead(
            "From the [scheduled send](latency), all outcomes, on a logarithmic scale. The strip above \
             each chart is red where calls [failed](failed), amber where they were [limited](limited).",
        )
        .on(PAGE, Block::Card(with_step_note(all, line)))
        .on(PAGE, Block::Columns(each))
        .on(PAGE, note)
}

fn extent(line: &Timeline) -> (f64, f64) {
    let points = || line.methods.iter().flat_map(|series| series.points.iter().flatten());
    let least = points().map(|point| point.p50_ms).filter(|ms| *ms > 0.0).fold(f64::MAX, f64::min);
    let most = points().map(|point| point.p99_ms).fold(0.0, f64::max);
    (if least == f64::MAX { 0.1 } else { least }, most)
}

fn all_methods(result: &RunResult, line: &Timeline, y: &Axis) -> Chart {
    let mut shapes = marks(result, WIDE);
    for point in &line.points {
        shapes.extend(strip(point.time, point.failed_share, point.limited_share));
    }
    for (index, series) in line.methods.iter().enumerate() {
        shapes.push(method_curve(line, series, |point| point.p99_ms, Ink::Series(index), 17));
    }
    let axes = (time(result), y.clone());
    Chart::new("99th percentile by method", (WIDE, 300), axes, shapes).strip(STRIP)
}

fn one_method(result: &RunResult, line: &Timeline, series: &MethodSeries, y: &Axis) -> Block {
    let mut shapes = marks(result, HALF);
    for (point, method) in line.points.iter().zip(&series.points) {
        if let Some(method) = method {
            shapes.extend(strip(point.time, method.failed_share, method.limited_share));
        }
    }
    type Quantile = (&'static str, fn(&MethodPoint) -> f64, Ink);
    let all: [Quantile; 3] = [
        ("p50", |point| point.p50_ms, Ink::Series(2)),
        ("p95", |point| point.p95_ms, Ink::Series(0)),
        ("p99", |point| point.p99_ms, Ink::Series(1)),
    ];
    shapes.extend(all.map(|(_, of, ink)| method_curve(line, series, of, ink, 14)));
    let axes = (with_fewer_ticks(time(result)), y.clone());
    let chart = Chart::new(series.method.clone(), (HALF, 190), axes, shapes);
    let keys = all.map(|(key, _, ink)| (ink, key.to_owned())).to_vec();
    Block::Figure(chart.strip(STRIP), keys)
}

/// Removes every second label of an axis, for charts of half the width.
fn with_fewer_ticks(mut axis: Axis) -> Axis {
    if axis.ticks.len() > 6 {
        let mut index = 0;
        axis.ticks.retain(|_| {
            index += 1;
            index % 2 == 1
        });
    }
    axis
}

fn method_curve(
    line: &Timeline,
    series: &MethodSeries,
    of: fn(&MethodPoint) -> f64,
    ink: Ink,
    width: u32,
) -> Shape {
    let points = line.points.iter().zip(&series.points);
    let points = points.map(|(at, point)| point.map(|point| (at.middle(), log(of(&point)))));
    Shape::Curve(points.collect(), ink, width)
}

/// Returns the cells of the strip for one step. The opacity is at least 0.3, so small shares are
/// visible too.
fn strip(time: (f64, f64), failed: f64, limited: f64) -> impl Iterator<Item = Shape> {
    let cell = move |share: f64, ink| {
        let opacity = 0.3 + 0.7 * share.sqrt();
        (share > 0.0).then_some(Shape::Cell(time, ink, opacity))
    };
    // Failures are drawn on top of rate limits.
    [cell(limited, Ink::Limited), cell(failed, Ink::Bad)].into_iter().flatten()
}
