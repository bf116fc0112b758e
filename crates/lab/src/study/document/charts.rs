//! Charts of a sync study: heights, leads, rates and hit ratios. A lead is the number of blocks, or
//! the time, by which one variant is ahead of the other.

use lab_model::results::study::{Bin, RunRow, StudyResult, VariantComparison, VariantRow};

use super::signed;
use crate::report::chart::axis::{Axis, Scale, round_step, tidy};
use crate::report::chart::{Chart, Ink, Points, Shape, curve};
use crate::report::document::{Block, Section};
use crate::wording::number::{count, short};

/// Width and height of a chart in pixels.
const SIZE: (i32, i32) = (1000, 300);
/// Line width of a run if its variant has several runs, in tenths of a pixel.
const THIN: u32 = 9;
/// Line width of a run in the charts of rates and hit ratios, in tenths of a pixel.
const FAINT: u32 = 6;
/// Line width of a variant, in tenths of a pixel.
const THICK: u32 = 19;

/// Returns the legend of a chart: the colour of each variant.
fn legend(variants: &[VariantRow]) -> Vec<(Ink, String)> {
    variants
        .iter()
        .enumerate()
        .map(|(index, variant)| (Ink::Series(index), variant.name.clone()))
        .collect()
}

/// Returns the runs of all variants.
fn runs_of(result: &StudyResult) -> impl Iterator<Item = &RunRow> {
    result.variants.iter().flat_map(|variant| &variant.runs)
}

/// Draws the height of each run over time. Marks show where the first run of a variant crosses the
/// first run of the first variant.
pub(super) fn height(result: &StudyResult) -> Section {
    let first_pairs = result.against.iter().filter_map(|against| against.pairs.first());
    let crosses = first_pairs.flat_map(|pair| &pair.crosses).map(|cross| {
        let text = format!("heights cross at {}", count(cross.height));
        Shape::Mark(cross.elapsed, Ink::Annotation, Some(text))
    });
    let mut shapes: Vec<Shape> = crosses.collect();
    for (index, variant) in result.variants.iter().enumerate() {
        let width = if variant.runs.len() > 1 { THIN } else { THICK };
        let points = |run: &RunRow| {
            run.points.iter().map(|(elapsed, height)| (*elapsed, *height as f64)).collect()
        };
        shapes.extend(variant.runs.iter().map(|run| curve(points(run), Ink::Series(index), width)));
    }
    let longest = runs_of(result).map(|run| run.elapsed).fold(0.0, f64::max);
    let axes = (Axis::time(longest), Axis::up_to(max_height(result), Scale::Number));
    let chart = Chart::new("Height", SIZE, axes, shapes);
    Section::new("height", "Heights over time")
        .nav("Heights")
        .intro("From the start of each run.")
        .add(Block::Figure(chart, legend(&result.variants)))
}

/// Returns the largest height of any run, at least 1.
fn max_height(result: &StudyResult) -> f64 {
    runs_of(result).map(|run| run.height as f64).fold(1.0, f64::max)
}

/// Draws the other variant's lead over the first variant: in blocks over time, and in seconds over
/// height. `index` is the position of `against` in the result.
pub(super) fn leads(result: &StudyResult, index: usize, against: &VariantComparison) -> Section {
    let (first, other, pairs) = (&against.first, &against.other, &against.pairs);
    let width = if pairs.len() > 1 { THIN } else { THICK };
    let figure = |unit: &str, x: Axis, x_end: f64, curves: Vec<Points>, scale: LeadScale| {
        let axes = (x, around_zero(&curves, scale));
        let mut shapes = vec![curve(vec![(0.0, 0.0), (x_end, 0.0)], Ink::Plan, 10)];
        shapes
            .extend(curves.into_iter().map(|points| curve(points, Ink::Series(index + 1), width)));
        let title = format!("Lead of {other} over {first}, {unit}");
        Block::Figure(Chart::new(title, SIZE, axes, shapes), Vec::new())
    };
    // In the result, a lead in blocks is positive if the first variant is ahead. The chart needs
    // the opposite sign.
    let block_curves: Vec<Points> = pairs
        .iter()
        .map(|pair| pair.by_time.iter().map(|(elapsed, lead)| (*elapsed, -lead)).collect())
        .collect();
    let time_curves: Vec<Points> = pairs
        .iter()
        .map(|pair| pair.by_height.iter().map(|lead| (lead.height, lead.seconds)).collect())
        .collect();
    let last_elapsed = block_curves.iter().flatten().map(|point| point.0).fold(0.0, f64::max);
    let times = Axis::time(last_elapsed);
    let by_time =
        figure("in blocks over time", times, last_elapsed, block_curves, (in_blocks, block_step));
    let max_height = max_height(result);
    let heights = Axis::up_to(max_height, Scale::Number);
    // The zero line may end beyond the axis, because charts clamp every point to the axis.
    let by_height = figure(
        "in time at equal height",
        heights,
        max_height * 2.0,
        time_curves,
        (in_time, time_step),
    );
    let intro = format!("Above the line {other} is ahead, below it {first}.");
    let mut section = Section::new(format!("lead-{index}"), format!("Lead of {other}"));
    section.nav = (index == 0).then_some("Leads");
    section.add(Block::Intro(intro.into())).add(by_time).add(by_height)
}

/// Formats a lead in blocks.
fn in_blocks(blocks: f64) -> String {
    match blocks.abs() {
        n if n >= 1e6 => format!("{}M", tidy(&short(blocks / 1e6))),
        n if n >= 1e4 => format!("{}k", tidy(&short(blocks / 1e3))),
        _ => tidy(&short(blocks)),
    }
}

/// Formats a lead in time.
fn in_time(seconds: f64) -> String {
    if seconds == 0.0 { String::from("0") } else { signed(seconds).replace('+', "") }
}

/// How an axis formats its values, and the smallest round step that is at least a minimum.
type LeadScale = (fn(f64) -> String, fn(f64) -> f64);

/// Returns an axis that contains zero and all values, with about six labels.
fn around_zero(curves: &[Vec<(f64, f64)>], (format_value, step_from): LeadScale) -> Axis {
    let values = || curves.iter().flatten().map(|point| point.1).filter(|value| value.is_finite());
    let (minimum, maximum) = (values().fold(0.0, f64::min), values().fold(0.0, f64::max));
    let step = step_from((maximum - minimum).max(1e-9) / 5.0);
    let (start, end) =
        ((minimum / step).floor() * step, ((maximum / step).ceil() * step).max(step));
    Axis::stepped(start, end, step, format_value)
}

fn block_step(minimum: f64) -> f64 {
    round_step(minimum, &[1.0, 2.0, 5.0, 10.0])
}

/// Returns a step in seconds. Steps above 12 s are whole minutes or hours.
fn time_step(minimum: f64) -> f64 {
    const CLOCK_STEPS: [f64; 9] =
        [60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0, 14_400.0, 28_800.0];
    let clock_step = CLOCK_STEPS.iter().find(|step| **step >= minimum);
    clock_step.filter(|_| minimum > 12.0).map_or_else(|| block_step(minimum), |step| *step)
}

/// Draws rates and hit ratios by height.
pub(super) fn rates(result: &StudyResult) -> Section {
    let figure =
        |title: &str, y: Axis, values_of: fn(&VariantRow) -> &[Option<f64>], value_of: BinValue| {
            let mut shapes = Vec::new();
            for (index, variant) in result.variants.iter().enumerate() {
                let ink = Ink::Series(index);
                for run in variant.runs.iter().filter(|_| variant.runs.len() > 1) {
                    let values: Vec<Option<f64>> = run.bins.iter().map(value_of).collect();
                    shapes.push(Shape::Curve(steps(&values, result), ink, FAINT));
                }
                shapes.push(Shape::Curve(steps(values_of(variant), result), ink, THICK));
            }
            let axes = (Axis::up_to(max_height(result), Scale::Number), y);
            Block::Figure(Chart::new(title, SIZE, axes, shapes), legend(&result.variants))
        };
    let highest_rates = runs_of(result).flat_map(|run| &run.bins).filter_map(|bin| bin.rate);
    let rates = Axis::up_to(highest_rates.fold(0.0, f64::max), Scale::Number);
    let shares = Axis { to: 1.0, ..Axis::up_to(0.99, Scale::Share) };
    let rates = figure("Blocks per second", rates, |variant| &variant.rates, |bin| bin.rate);
    let hit = |bin: &Bin| bin.hit_ratio;
    let hits = figure("Hit ratio of the page cache", shares, |variant| &variant.hit_ratios, hit);
    let has_hit_ratios =
        result.variants.iter().any(|variant| variant.hit_ratios.iter().any(Option::is_some));
    let intro = format!(
        "In bins of {} blocks. At equal height the variants process the same blocks, at equal time they do \
         not.",
        count(result.bin)
    );
    Section::new("rates", "Rates by height")
        .nav("Rates")
        .add(Block::Intro(intro.into()))
        .add(rates)
        .add(has_hit_ratios.then_some(hits))
}

/// A function that returns the value of a bin, or `None` if it is unknown.
type BinValue = fn(&Bin) -> Option<f64>;

/// Returns the values of the bins as a step curve, with a gap for each bin without a value.
fn steps(values: &[Option<f64>], result: &StudyResult) -> Vec<Option<(f64, f64)>> {
    let width = result.bin as f64;
    let end = max_height(result);
    let mut points = Vec::new();
    for (index, value) in values.iter().enumerate() {
        match value {
            Some(value) => {
                let bin_start = index as f64 * width;
                points.push(Some((bin_start, *value)));
                points.push(Some(((bin_start + width).min(end), *value)));
            }
            None => points.push(None),
        }
    }
    points
}
