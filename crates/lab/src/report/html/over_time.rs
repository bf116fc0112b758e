//! The run over time: what was planned and begun, and how long each method took.
//!
//! All charts of this kind share one axis and one set of marks, so that what happened at one time
//! stands at one place.

use maud::{Markup, html};

use super::{figure, term};
use crate::report::chart::axis::{Axis, Scale, log};
use crate::report::chart::{Chart, Ink, Shape};
use crate::report::number::clock;
use crate::report::timeline::{Course, MethodPoint, Timeline};
use crate::results::run::RunResult;

/// Width of a chart over time in pixels, and of one of two side by side.
pub(super) const WIDE: i32 = 1000;
const HALF: i32 = 500;
/// Pixels of the strip that shows failures.
const STRIP: i32 = 8;
/// Methods that have charts of their own; those that failed most come first.
const COURSES_MAX: usize = 24;

/// The axis of time of a run.
pub(super) fn time(result: &RunResult) -> Axis {
    let last = result.series.last().map_or(0.0, |second| second.at);
    Axis::time(result.duration.max(last))
}

/// When an objective was first broken, if one was.
pub(super) fn first_break(result: &RunResult) -> Option<f64> {
    let breaks = result.thresholds.iter().filter_map(|threshold| threshold.broken_at);
    breaks.min_by(f64::total_cmp)
}

/// What every chart over time has at its back: warm-up, stages, the first break, the bottleneck.
pub(super) fn marks(result: &RunResult, width: i32) -> Vec<Shape> {
    let axis = time(result);
    let mut shapes = Vec::new();
    if result.plan.warmup > 0.0 {
        let x = (0.0, result.plan.warmup.min(axis.to));
        shapes.push(Shape::Band { x, ink: Ink::Shade, opacity: 0.14 });
    }
    let mut named_to = 0.0;
    for stage in &result.stages {
        let room = (stage.to - stage.from) / axis.to * f64::from(width - 80);
        let fits =
            stage.from >= named_to && room >= stage.stage.chars().count() as f64 * 7.0 + 10.0;
        if fits {
            named_to = stage.to;
        }
        if fits || stage.from > 0.0 {
            let text = fits.then(|| stage.stage.clone());
            shapes.push(Shape::Mark { x: stage.from, ink: Ink::Stage, text });
        }
    }
    if let Some(at) = result.bottleneck.as_ref().and_then(|finding| finding.at) {
        shapes.push(Shape::Mark { x: at, ink: Ink::Limited, text: None });
    }
    if let Some(at) = first_break(result) {
        shapes.push(Shape::Mark { x: at, ink: Ink::Bad, text: Some(String::from("broken")) });
    }
    shapes
}

/// How the marks are to be read.
pub(super) fn marks_note(result: &RunResult) -> Markup {
    html! {
        @if let Some(at) = first_break(result) {
            " The red line is the moment at which the first objective was broken (" (clock(at)) ")."
        }
        @if let Some(at) = result.bottleneck.as_ref().and_then(|finding| finding.at) {
            " The amber line is where the first bottleneck began (" (clock(at)) ")."
        }
    }
}

/// Planned and begun iterations.
pub(super) fn load(result: &RunResult, line: &Timeline) -> Markup {
    let most = line.points.iter().map(|point| point.due.max(point.begun).max(point.ok));
    let course = |of: fn(&crate::report::timeline::Point) -> f64, ink, width| Shape::Curve {
        points: line.points.iter().map(|point| Some((point.middle(), of(point)))).collect(),
        ink,
        width,
    };
    let mut shapes = marks(result, WIDE);
    let area = line.points.iter().map(|point| (point.middle(), point.begun)).collect();
    shapes.push(Shape::Area { points: area, ink: Ink::Series(0), opacity: 0.12 });
    shapes.push(course(|point| point.due, Ink::Plan, 22));
    shapes.push(course(|point| point.begun, Ink::Series(0), 18));
    shapes.push(course(|point| point.ok, Ink::Good, 14));
    let mut keys = vec![(Ink::Plan, "planned"), (Ink::Series(0), "begun"), (Ink::Good, "results")];
    if line.points.iter().any(|point| point.dropped > 0.0) {
        shapes.push(course(|point| point.dropped, Ink::Limited, 18));
        keys.push((Ink::Limited, "dropped"));
    }
    if line.points.iter().any(|point| point.failed > 0.0) {
        shapes.push(course(|point| point.failed, Ink::Bad, 16));
        keys.push((Ink::Bad, "failed calls"));
    }
    let chart = Chart {
        title: String::from("Iterations and results per second"),
        size: (WIDE, 260),
        x: time(result),
        y: Axis::up_to(most.fold(0.0, f64::max), Scale::Number),
        strip: 0,
        shapes,
    };
    html! {
        h2 id="load" { "Load: planned and achieved" }
        p.lead {
            "What was " (term("due, begun, dropped", "due")) " by the plan and what was "
            (term("due, begun, dropped", "begun")) ". Where the curves part, the plan was not kept."
            (marks_note(result))
        }
        div.card { (figure(&chart, &keys)) (step_note(line)) }
    }
}

fn step_note(line: &Timeline) -> Markup {
    html! {
        @if line.step > 1 {
            p.note {
                "Each point stands for " (line.step) " seconds: rates are their mean, times the \
                 largest of their seconds."
            }
        }
    }
}

/// 99th percentiles of all methods together, then each method on its own.
pub(super) fn latency(result: &RunResult, line: &Timeline) -> Markup {
    let mut ranked: Vec<(usize, &Course)> = line.courses.iter().enumerate().collect();
    let failed = |course: &Course| {
        let row = result.methods.iter().find(|row| row.method == course.method);
        row.map_or(0.0, |row| row.failed_share)
    };
    ranked.sort_by(|(_, a), (_, b)| failed(b).total_cmp(&failed(a)));
    let left_out = ranked.len().saturating_sub(COURSES_MAX);
    ranked.truncate(COURSES_MAX);
    ranked.sort_by_key(|(index, _)| *index);
    let (least, most) = extent(line);
    let y = Axis::log_ms(least, most);
    html! {
        h2 id="latency" { "Latency over time" }
        p.lead {
            "From the " (term("latency", "planned send")) ", all outcomes, on a logarithmic scale. \
             The strip above each chart is redder the more calls " (term("failed", "failed"))
            ", amber where they were " (term("limited", "limited")) "."
        }
        div.card {
            (figure(&all_methods(result, line, &y), &method_keys(&ranked)))
            (step_note(line))
        }
        div.card { div.two {
            @for (_, course) in &ranked { (one_method(result, line, course, &y)) }
        } }
        @if left_out > 0 {
            p.note { (left_out) " further methods are in series.csv; those that failed most are shown." }
        }
    }
}

fn extent(line: &Timeline) -> (f64, f64) {
    let points = || line.courses.iter().flat_map(|course| course.points.iter().flatten());
    let least = points().map(|point| point.p50_ms).filter(|ms| *ms > 0.0).fold(f64::MAX, f64::min);
    let most = points().map(|point| point.p99_ms).fold(0.0, f64::max);
    (if least == f64::MAX { 0.1 } else { least }, most)
}

fn method_keys<'a>(ranked: &[(usize, &'a Course)]) -> Vec<(Ink, &'a str)> {
    let keys = ranked.iter().map(|(index, course)| (Ink::Series(*index), course.method.as_str()));
    keys.collect()
}

fn all_methods(result: &RunResult, line: &Timeline, y: &Axis) -> Chart {
    let mut shapes = marks(result, WIDE);
    for point in &line.points {
        shapes.extend(strip(point.time, point.failed_share, point.limited_share));
    }
    for (index, course) in line.courses.iter().enumerate() {
        shapes.push(curve(line, course, |point| point.p99_ms, Ink::Series(index), 17));
    }
    Chart {
        title: String::from("99th percentile by method"),
        size: (WIDE, 300),
        x: time(result),
        y: y.clone(),
        strip: STRIP,
        shapes,
    }
}

fn one_method(result: &RunResult, line: &Timeline, course: &Course, y: &Axis) -> Markup {
    let mut shapes = marks(result, HALF);
    for (point, method) in line.points.iter().zip(&course.points) {
        if let Some(method) = method {
            shapes.extend(strip(point.time, method.failed_share, method.limited_share));
        }
    }
    shapes.push(curve(line, course, |point| point.p50_ms, Ink::Series(2), 14));
    shapes.push(curve(line, course, |point| point.p95_ms, Ink::Series(0), 14));
    shapes.push(curve(line, course, |point| point.p99_ms, Ink::Series(1), 14));
    let chart = Chart {
        title: course.method.clone(),
        size: (HALF, 190),
        x: thinned(time(result)),
        y: y.clone(),
        strip: STRIP,
        shapes,
    };
    figure(&chart, &[(Ink::Series(2), "p50"), (Ink::Series(0), "p95"), (Ink::Series(1), "p99")])
}

/// Every second label of an axis, for charts of half the width.
fn thinned(mut axis: Axis) -> Axis {
    if axis.ticks.len() > 6 {
        let mut index = 0;
        axis.ticks.retain(|_| {
            index += 1;
            index % 2 == 1
        });
    }
    axis
}

fn curve(
    line: &Timeline,
    course: &Course,
    of: fn(&MethodPoint) -> f64,
    ink: Ink,
    width: u32,
) -> Shape {
    let points = line.points.iter().zip(&course.points);
    let points = points.map(|(at, point)| point.map(|point| (at.middle(), log(of(&point)))));
    Shape::Curve { points: points.collect(), ink, width }
}

/// Cells of the strip for one step: small shares must be seen too, so that they begin at a third.
fn strip(time: (f64, f64), failed: f64, limited: f64) -> impl Iterator<Item = Shape> {
    let cell = move |share: f64, ink| {
        let opacity = 0.3 + 0.7 * share.sqrt();
        (share > 0.0).then_some(Shape::Cell { x: time, ink, opacity })
    };
    // What failed covers what was limited.
    [cell(limited, Ink::Limited), cell(failed, Ink::Bad)].into_iter().flatten()
}
