//! Small SVG drawings for the page: lines over the last two minutes, and a divided bar.
//!
//! Each drawing has a text alternative for screen readers. Colours and sizes are in `style.css`.

use std::fmt::Write;

use maud::{Markup, html};

use crate::admin::history::{SAMPLES_MAX, Series};

/// Width of a drawing in SVG units: one unit per interval between two samples.
const WIDTH: usize = SAMPLES_MAX - 1;
/// Height of a drawing in SVG units.
const HEIGHT: f64 = 30.0;
/// Space above the highest value in SVG units. It keeps a thick stroke from being cut.
const MARGIN: f64 = 2.0;

/// Contents of a line chart.
pub(super) struct Plot<'a> {
    /// CSS class, which gives the size.
    pub(super) class: &'static str,
    /// Text alternative for screen readers.
    pub(super) label: &'a str,
    /// The line itself.
    pub(super) line: &'a Series,
    /// A subset of the values of `line`, such as cache hits. It is drawn as an area below the line.
    pub(super) part: Option<&'a Series>,
}

/// Draws a line. The newest value is at the right. The scale ends at the highest value. Intervals
/// without a value are gaps.
pub(super) fn plot(plot: &Plot<'_>) -> Markup {
    let top = plot.line.iter().flatten().fold(0.0_f64, |top, value| top.max(*value));
    let view = format!("0 0 {WIDTH} {HEIGHT}");
    html! {
        svg class=(plot.class) viewBox=(view) preserveAspectRatio="none" role="img"
            aria-label=(plot.label)
        {
            line.floor x1="0" y1=(HEIGHT) x2=(WIDTH) y2=(HEIGHT) {}
            @for run in runs(plot.line) { path.under d=(area(&run, top)) {} }
            @for run in plot.part.map(runs).unwrap_or_default() {
                path.spared d=(area(&run, top)) {}
            }
            @for run in runs(plot.line) { path.stroke d=(stroke(&run, top)) {} }
        }
    }
}

/// Draws a bar divided by these amounts, each with its CSS class. The bar is empty if all are 0.
pub(super) fn bar(label: &str, parts: &[(&'static str, u64)]) -> Markup {
    let whole: u64 = parts.iter().map(|part| part.1).sum();
    let mut start = 0.0;
    let placed = parts.iter().filter(|_| whole > 0).map(|(class, amount)| {
        let width = *amount as f64 * 100.0 / whole as f64;
        let at = start;
        start += width;
        (class, format!("{at:.3}"), format!("{width:.3}"))
    });
    html! {
        svg.bar viewBox="0 0 100 1" preserveAspectRatio="none" role="img" aria-label=(label) {
            rect.miss width="100" height="1" {}
            @for (class, at, width) in placed {
                rect class=(class) x=(at) width=(width) height="1" {}
            }
        }
    }
}

/// Points of a line without gaps, as x and value.
type Run = Vec<(f64, f64)>;

/// Splits a line at its gaps. The newest value is at the right edge.
fn runs(line: &Series) -> Vec<Run> {
    let offset = WIDTH.saturating_sub(line.len());
    let mut runs: Vec<Run> = Vec::new();
    let mut joined = false;
    for (at, value) in line.iter().enumerate() {
        let Some(value) = value else {
            joined = false;
            continue;
        };
        if !joined {
            runs.push(Run::new());
        }
        joined = true;
        if let Some(run) = runs.last_mut() {
            // A value spans its whole interval, so that a single value is visible too.
            run.push(((offset + at) as f64, *value));
            run.push(((offset + at) as f64 + 0.9, *value));
        }
    }
    runs
}

fn height(value: f64, top: f64) -> f64 {
    if top > 0.0 { HEIGHT - value / top * (HEIGHT - MARGIN) } else { HEIGHT }
}

fn stroke(run: &Run, top: f64) -> String {
    let mut path = String::new();
    for (at, (x, value)) in run.iter().enumerate() {
        let letter = if at == 0 { 'M' } else { 'L' };
        let _ = write!(path, "{letter}{x:.1} {:.1}", height(*value, top));
    }
    path
}

fn area(run: &Run, top: f64) -> String {
    let (Some(first), Some(last)) = (run.first(), run.last()) else { return String::new() };
    format!("{}L{:.1} {HEIGHT}L{:.1} {HEIGHT}Z", stroke(run, top), last.0, first.0)
}
