//! Sections about the run over time: planned and achieved load, and the latency of each method.
//!
//! All these charts have the same time axis and the same marks.
//!
//! In a heading, intro or note, `[limited](limited)` is a text that links to the glossary entry
//! "limited".

use lab_model::results::run::RunResult;

use super::super::chart::axis::{Axis, Scale, log};
use super::super::chart::{Chart, Ink, Shape, curve};
use super::super::document::{Block, Section, Text};
use super::super::timeline::{MethodPoint, MethodSeries, Point, Timeline};
use crate::wording::number::{clock, plural};

/// Width of a chart over time, in pixels.
pub(super) const WIDE: i32 = 1000;
/// Width of a chart of one method, in pixels. Two of these charts are side by side.
const HALF: i32 = 500;
/// Height of the strip above a chart, in pixels. The strip shows failures and rate limits.
const STRIP: i32 = 8;
/// Opacity of the area below a curve.
pub(super) const AREA_OPACITY: f64 = 0.12;
/// Opacity of the band over the warm-up.
const WARMUP_OPACITY: f64 = 0.14;
/// Maximum number of methods with a separate chart: those with the largest shares of failures.
const METHODS_MAX: usize = 24;

/// Returns the time axis of a run.
pub(super) fn time_axis(result: &RunResult) -> Axis {
    let last_second = result.series.last().map_or(0.0, |second| second.at);
    Axis::time(result.duration.max(last_second))
}

/// Returns the time at which the first threshold was broken, or `None` if all were kept.
pub(super) fn first_break(result: &RunResult) -> Option<f64> {
    let breaks = result.thresholds.iter().filter_map(|threshold| threshold.broken_at);
    breaks.min_by(f64::total_cmp)
}

/// Returns the marks of every chart over time: the warm-up, the stages, the first broken threshold,
/// and the start of the bottleneck. `width` is that of the chart in pixels.
pub(super) fn marks(result: &RunResult, width: i32) -> Vec<Shape> {
    let axis = time_axis(result);
    let mut shapes = Vec::new();
    if result.plan.warmup > 0.0 {
        let x = (0.0, result.plan.warmup.min(axis.to));
        shapes.push(Shape::Band(x, Ink::Shade, WARMUP_OPACITY));
    }
    // A stage gets a label if the label fits, and if no earlier stage with a label still runs.
    let mut labelled_until = 0.0;
    for stage in &result.stages {
        // The margins at the left and right of a plot are 80 pixels together (`chart.rs`).
        let stage_pixels = (stage.to - stage.from) / axis.to * f64::from(width - 80);
        // A character is 7 pixels wide.
        let label_pixels = stage.stage.chars().count() as f64 * 7.0 + 10.0;
        let has_label = stage.from >= labelled_until && stage_pixels >= label_pixels;
        if has_label {
            labelled_until = stage.to;
        }
        if has_label || stage.from > 0.0 {
            let text = has_label.then(|| stage.stage.clone());
            shapes.push(Shape::Mark(stage.from, Ink::Annotation, text));
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

/// Explains the marks of the first broken threshold and of the bottleneck.
pub(super) fn marks_note(result: &RunResult) -> String {
    let broken = first_break(result).map(|broken_at| {
        let broken_at = clock(broken_at);
        format!(" The red line marks when the first threshold was broken ({broken_at}).")
    });
    let bottleneck_at = result.bottleneck.as_ref().and_then(|finding| finding.at);
    let bottleneck = bottleneck_at.map(|began_at| {
        format!(" The amber line marks when the first bottleneck began ({}).", clock(began_at))
    });
    broken.into_iter().chain(bottleneck).collect()
}

/// Returns a chart of planned and started iterations.
pub(super) fn load(result: &RunResult, timeline: &Timeline) -> Section {
    let points_of = |value_of: fn(&Point) -> f64| -> Vec<(f64, f64)> {
        timeline.points.iter().map(|point| (point.middle(), value_of(point))).collect()
    };
    let started = |point: &Point| point.started;
    // Name, values, colour, width in tenths of a pixel, and true if the curve is drawn even if all
    // its values are zero.
    type Curve = (&'static str, fn(&Point) -> f64, Ink, u32, bool);
    let curves: [Curve; 5] = [
        ("planned", |point| point.scheduled, Ink::Plan, 22, true),
        ("started", started, Ink::Series(0), 18, true),
        ("results", |point| point.ok, Ink::Good, 14, true),
        ("dropped", |point| point.dropped, Ink::Limited, 18, false),
        ("failed calls", |point| point.failed, Ink::Bad, 16, false),
    ];
    let mut shapes = marks(result, WIDE);
    shapes.push(Shape::Area(points_of(started), Ink::Series(0), AREA_OPACITY));
    let mut legend = Vec::new();
    for (name, value_of, ink, width, always_drawn) in curves {
        if always_drawn || timeline.points.iter().any(|point| value_of(point) > 0.0) {
            shapes.push(curve(points_of(value_of), ink, width));
            legend.push((ink, name.to_owned()));
        }
    }
    let maximum =
        timeline.points.iter().map(|point| point.scheduled.max(point.started).max(point.ok));
    let axes = (time_axis(result), Axis::up_to(maximum.fold(0.0, f64::max), Scale::Number));
    let chart = Chart::new("Iterations and results per second", (WIDE, 260), axes, shapes);
    let intro = format!(
        "[Scheduled](scheduled, started, dropped) and [started](scheduled, started, dropped) iterations. \
         Where the curves differ, the load was not as planned.{}",
        marks_note(result)
    );
    Section::new("load", "Load: planned and achieved")
        .nav("Load")
        .intro(&intro)
        .add(Block::Card(with_step_note(Block::Figure(chart, legend), timeline)))
}

/// Returns a figure, followed by a note if each of its points covers several seconds.
fn with_step_note(figure: Block, timeline: &Timeline) -> Vec<Block> {
    let note =
        format!("Each point covers {} seconds: rates are means, times are maxima.", timeline.step);
    let note = (timeline.step > 1).then(|| Block::Note(note.into()));
    [Some(figure), note].into_iter().flatten().collect()
}

/// Returns a chart with the p99 of all methods, followed by a chart for each method.
pub(super) fn latency(result: &RunResult, timeline: &Timeline) -> Section {
    let mut ranked: Vec<(usize, &MethodSeries)> = timeline.methods.iter().enumerate().collect();
    let failed_share = |series: &MethodSeries| {
        let row = result.methods.iter().find(|row| row.method == series.method);
        row.map_or(0.0, |row| row.failed_share)
    };
    ranked.sort_by(|(_, a), (_, b)| failed_share(b).total_cmp(&failed_share(a)));
    let omitted = ranked.len().saturating_sub(METHODS_MAX);
    ranked.truncate(METHODS_MAX);
    ranked.sort_by_key(|(index, _)| *index);
    let (lowest_ms, highest_ms) = latency_range(timeline);
    let y = Axis::log_ms(lowest_ms, highest_ms);
    let legend =
        ranked.iter().map(|(index, series)| (Ink::Series(*index), series.method.clone())).collect();
    let overview = Block::Figure(overview_chart(result, timeline, &y), legend);
    let method_charts: Vec<Block> =
        ranked.iter().map(|(_, series)| method_figure(result, timeline, series, &y)).collect();
    let method_charts = Block::Fold {
        summary: format!("Quantiles of {}", plural(method_charts.len() as u64, "method")),
        open: false,
        blocks: vec![Block::Columns(method_charts)],
    };
    let note = format!(
        "The charts are of the methods with the most failures; series.csv has {omitted} more."
    );
    let note = (omitted > 0).then(|| Block::Note(Text::from(note)));
    Section::new("latency", "Latency over time")
        .nav("Latency")
        .intro(
            "From the [scheduled send](latency), all outcomes, on a logarithmic scale. The strip above \
             each chart is red where calls [failed](failed), amber where they were [limited](limited).",
        )
        .add(Block::Card(with_step_note(overview, timeline)))
        .add(method_charts)
        .add(note)
}

/// Returns the lowest median and the highest p99 of all methods, in milliseconds.
fn latency_range(timeline: &Timeline) -> (f64, f64) {
    let points = || timeline.methods.iter().flat_map(|series| series.points.iter().flatten());
    let lowest_ms =
        points().map(|point| point.p50_ms).filter(|ms| *ms > 0.0).fold(f64::MAX, f64::min);
    let highest_ms = points().map(|point| point.p99_ms).fold(0.0, f64::max);
    (if lowest_ms == f64::MAX { 0.1 } else { lowest_ms }, highest_ms)
}

/// Draws the p99 of each method as a curve.
fn overview_chart(result: &RunResult, timeline: &Timeline, y: &Axis) -> Chart {
    let mut shapes = marks(result, WIDE);
    for point in &timeline.points {
        shapes.extend(strip(point.time, point.failed_share, point.limited_share));
    }
    for (index, series) in timeline.methods.iter().enumerate() {
        shapes.push(method_curve(timeline, series, |point| point.p99_ms, Ink::Series(index), 17));
    }
    let axes = (time_axis(result), y.clone());
    Chart::new("99th percentile by method", (WIDE, 300), axes, shapes).with_strip(STRIP)
}

/// Draws three quantiles of one method.
fn method_figure(
    result: &RunResult,
    timeline: &Timeline,
    series: &MethodSeries,
    y: &Axis,
) -> Block {
    let mut shapes = marks(result, HALF);
    for (point, method) in timeline.points.iter().zip(&series.points) {
        if let Some(method) = method {
            shapes.extend(strip(point.time, method.failed_share, method.limited_share));
        }
    }
    type Quantile = (&'static str, fn(&MethodPoint) -> f64, Ink);
    let quantiles: [Quantile; 3] = [
        ("p50", |point| point.p50_ms, Ink::Series(2)),
        ("p95", |point| point.p95_ms, Ink::Series(0)),
        ("p99", |point| point.p99_ms, Ink::Series(1)),
    ];
    shapes.extend(
        quantiles.map(|(_, value_of, ink)| method_curve(timeline, series, value_of, ink, 14)),
    );
    let axes = (with_fewer_ticks(time_axis(result)), y.clone());
    let chart = Chart::new(series.method.clone(), (HALF, 190), axes, shapes);
    let legend = quantiles.map(|(name, _, ink)| (ink, name.to_owned())).to_vec();
    Block::Figure(chart.with_strip(STRIP), legend)
}

/// Removes every second label of an axis with many labels, for charts of half the width.
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

/// Draws a quantile of a method over time. A step without calls is a gap in the curve. `width` is
/// in tenths of a pixel.
fn method_curve(
    timeline: &Timeline,
    series: &MethodSeries,
    value_of: fn(&MethodPoint) -> f64,
    ink: Ink,
    width: u32,
) -> Shape {
    let points = timeline.points.iter().zip(&series.points);
    let positions =
        points.map(|(step, method)| method.map(|method| (step.middle(), log(value_of(&method)))));
    Shape::Curve(positions.collect(), ink, width)
}

/// Returns the cells of the strip for one step of the timeline. The opacity grows with the share.
/// It is at least 0.3, so that small shares are visible.
fn strip(time: (f64, f64), failed: f64, limited: f64) -> impl Iterator<Item = Shape> {
    let cell = move |share: f64, ink| {
        let opacity = 0.3 + 0.7 * share.sqrt();
        (share > 0.0).then_some(Shape::Cell(time, ink, opacity))
    };
    // Failures are drawn on top of rate limits.
    [cell(limited, Ink::Limited), cell(failed, Ink::Bad)].into_iter().flatten()
}
