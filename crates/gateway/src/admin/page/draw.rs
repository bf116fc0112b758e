//! Small SVG drawings for the status page: line charts of the last two minutes, and divided bars.
//!
//! Each drawing has a text alternative for screen readers. Colours and sizes are in `style.css`.

use std::fmt::Write;

use maud::{Markup, html};

use crate::admin::history::{SAMPLES_MAX, Series};

/// Width of a drawing in SVG units: one unit per interval between two samples.
const WIDTH: usize = SAMPLES_MAX - 1;
/// Height of a drawing in SVG units.
const HEIGHT: f64 = 30.0;
/// Space in SVG units above the highest value. Without it, the stroke of the line would be clipped.
const MARGIN: f64 = 2.0;

/// Contents of a line chart.
pub(super) struct Plot<'a> {
    /// CSS class, which determines the size.
    pub(super) class: &'static str,
    /// Text alternative for screen readers.
    pub(super) label: &'a str,
    /// The values of the line.
    pub(super) line: &'a Series,
    /// A part of each value of `line`, such as the number of cache hits among the calls. It is
    /// drawn as an area below the line. `None` draws no area.
    pub(super) part: Option<&'a Series>,
}

/// Draws a line chart. The newest value is at the right edge. The vertical scale ends at the
/// highest value. Intervals without a value are gaps in the line.
pub(super) fn draw_plot(plot: &Plot<'_>) -> Markup {
    let scale_max = plot.line.iter().flatten().fold(0.0_f64, |highest, value| highest.max(*value));
    let view = format!("0 0 {WIDTH} {HEIGHT}");
    html! {
        svg class=(plot.class) viewBox=(view) preserveAspectRatio="none" role="img"
            aria-label=(plot.label)
        {
            line.floor x1="0" y1=(HEIGHT) x2=(WIDTH) y2=(HEIGHT) {}
            @for run in split_at_gaps(plot.line) {
                path.under d=(write_area_path(&run, scale_max)) {}
            }
            @for run in plot.part.map(split_at_gaps).unwrap_or_default() {
                path.spared d=(write_area_path(&run, scale_max)) {}
            }
            @for run in split_at_gaps(plot.line) {
                path.stroke d=(write_line_path(&run, scale_max)) {}
            }
        }
    }
}

/// Draws a bar with one segment per part. `parts` holds the CSS class and the amount of each part.
/// The bar is empty if all amounts are 0.
pub(super) fn draw_bar(label: &str, parts: &[(&'static str, u64)]) -> Markup {
    let total: u64 = parts.iter().map(|(_, amount)| amount).sum();
    let mut start = 0.0;
    let segments = parts.iter().filter(|_| total > 0).map(|(class, amount)| {
        let width = *amount as f64 * 100.0 / total as f64;
        let x = start;
        start += width;
        (class, format!("{x:.3}"), format!("{width:.3}"))
    });
    html! {
        svg.bar viewBox="0 0 100 1" preserveAspectRatio="none" role="img" aria-label=(label) {
            rect.miss width="100" height="1" {}
            @for (class, x, width) in segments {
                rect class=(class) x=(x) width=(width) height="1" {}
            }
        }
    }
}

/// A section of a line without gaps. Each point is a horizontal position and a value.
type Run = Vec<(f64, f64)>;

/// Splits a line at its gaps. Places the newest value at the right edge.
fn split_at_gaps(line: &Series) -> Vec<Run> {
    let offset = WIDTH.saturating_sub(line.len());
    let mut runs: Vec<Run> = Vec::new();
    let mut continues_run = false;
    for (index, value) in line.iter().enumerate() {
        let Some(value) = value else {
            continues_run = false;
            continue;
        };
        if !continues_run {
            runs.push(Run::new());
        }
        continues_run = true;
        if let Some(run) = runs.last_mut() {
            // A value spans nine tenths of its interval, so that a single value is visible too.
            run.push(((offset + index) as f64, *value));
            run.push(((offset + index) as f64 + 0.9, *value));
        }
    }
    runs
}

/// Returns the vertical position of a value, from the top of the drawing.
fn vertical_position(value: f64, scale_max: f64) -> f64 {
    if scale_max > 0.0 { HEIGHT - value / scale_max * (HEIGHT - MARGIN) } else { HEIGHT }
}

/// Returns the SVG path of a line.
fn write_line_path(run: &Run, scale_max: f64) -> String {
    let mut path = String::new();
    for (index, (x, value)) in run.iter().enumerate() {
        let letter = if index == 0 { 'M' } else { 'L' };
        let _ = write!(path, "{letter}{x:.1} {:.1}", vertical_position(*value, scale_max));
    }
    path
}

/// Returns the SVG path of the area below a line; empty without points.
fn write_area_path(run: &Run, scale_max: f64) -> String {
    let (Some(first_point), Some(last_point)) = (run.first(), run.last()) else {
        return String::new();
    };
    format!(
        "{}L{:.1} {HEIGHT}L{:.1} {HEIGHT}Z",
        write_line_path(run, scale_max),
        last_point.0,
        first_point.0
    )
}
