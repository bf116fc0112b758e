//! Section about host metrics, with the same time axis as the load.
//!
//! A chart contains metrics of one kind and one unit. `metrics/host.rs` of lab-model defines the
//! names and units of metrics.
//!
//! `report/document.rs` explains the functions and macros that build sections.

use std::collections::BTreeMap;

use lab_model::metrics::Unit;
use lab_model::metrics::host::{HostMetric, host};
use lab_model::results::run::{HostFacts, HostSample, RunResult};

use super::super::chart::axis::{Axis, Scale};
use super::super::chart::{Chart, HUES, Ink, curve};
use super::super::document::{Block, Column, List, Section, Text, table, tone};
use super::super::parts::or_dash;
use super::over_time::{WIDE, marks, marks_note, time_axis};
use crate::wording::number::{bytes, short, with_unit};

/// Maximum number of points of a curve. A point is the maximum of its samples.
const POINTS_MAX: usize = 400;
/// Number of charts that are visible at first. The others are collapsed.
const EXPANDED_CHARTS: usize = 2;
/// Maximum number of charts of one host.
const CHARTS_MAX: usize = 40;
/// Height of a chart in pixels.
const CHART_HEIGHT: i32 = 150;
/// Width of a curve in tenths of a pixel.
const LINE_WIDTH: u32 = 14;

/// Returns the charts of each host, and a table of the processes.
pub(super) fn hosts(result: &RunResult) -> Section {
    let mut hosts: Vec<&str> = result.host.iter().map(|sample| sample.host.as_str()).collect();
    // In descending order of names, `target` comes before `generator`.
    hosts.sort_unstable_by(|a, b| b.cmp(a));
    hosts.dedup();
    let intro = match hosts.is_empty() {
        true => "No host was sampled.".to_owned(),
        false => format!(
            "[Sampled](host samples) during the run, with the same time axis as the load.{} A point is \
             the maximum of its samples.",
            marks_note(result)
        ),
    };
    let watched = &result.watched;
    let mut section = Section::new("hosts", "Hosts").intro(&intro).add(processes(watched));
    section = section.add(missing(&watched.missing));
    section.nav = (!hosts.is_empty()).then_some("Hosts");
    for host in hosts {
        let title = Block::Subheading(title_of(host, watched));
        section = section.add(title).add(Block::Card(charts(result, host)));
    }
    section
}

/// Returns a table of the watched processes, or `None` if no process was watched.
fn processes(watched: &HostFacts) -> Option<Block> {
    let restarted =
        |was_restarted| if was_restarted { tone("bad", "was restarted") } else { Text::default() };
    let table = table!(&watched.processes, |process|
        Column::text("process") => &process.name,
        Column::text("role") => process.role.as_str(),
        Column::number("CPU seconds") => short(process.cpu),
        Column::number("[CPU ms per request](CPU per request)") =>
            or_dash(process.cpu_ms_per_request, short),
        Column::number("memory, maximum") => bytes(process.memory_bytes_max),
        Column::text("") => restarted(process.restarted),
    );
    (!watched.processes.is_empty()).then_some(Block::Table(table))
}

/// Returns the list of metrics that were not sampled, or `None` if it is empty.
fn missing(missing: &[String]) -> Option<Block> {
    let summary = format!("Missing metrics ({})", missing.len());
    let blocks = vec![Block::List(List::of(missing))];
    (!missing.is_empty()).then_some(Block::Fold { summary, open: false, blocks })
}

/// Identifies the charts of one kind of metrics, which has a chart per unit. The values are the
/// index in [`KINDS`] and the title. The charts are in the order of the index.
type Group = (usize, String);

/// The curves of one host: by chart, then by name of the metric. A point is a time in seconds and a
/// value.
type Curves<'a> = BTreeMap<(Group, Unit), BTreeMap<&'a str, Vec<(f64, f64)>>>;

/// Returns the charts of a host. Charts in which all values are zero are left out.
fn charts(result: &RunResult, host: &str) -> Vec<Block> {
    let mut curves: Curves<'_> = BTreeMap::new();
    for sample in result.host.iter().filter(|sample: &&HostSample| sample.host == host) {
        for (name, value) in &sample.values {
            let Some(chart) = chart_of(name) else { continue };
            curves.entry(chart).or_default().entry(name).or_default().push((sample.at, *value));
        }
    }
    curves.retain(|_, curves| curves.values().flatten().any(|(_, value)| *value != 0.0));
    let omitted = curves.len().saturating_sub(CHARTS_MAX);
    let drawn = curves.iter().take(CHARTS_MAX);
    let charts = drawn.map(|(((_, title), unit), curves)| chart(result, title, *unit, curves));
    let mut blocks: Vec<Block> = charts.collect();
    if blocks.len() > EXPANDED_CHARTS {
        let collapsed = blocks.split_off(EXPANDED_CHARTS);
        let summary = format!("Further {} charts", collapsed.len());
        blocks.push(Block::Fold { summary, open: false, blocks: collapsed });
    }
    if omitted > 0 {
        let note = format!("{omitted} further groups are in result.json.");
        blocks.push(Block::Note(note.into()));
    }
    blocks
}

/// Returns the heading of a host's charts.
fn title_of(host: &str, watched: &HostFacts) -> String {
    match host {
        "generator" if watched.target_local => "This host, which also runs the target".into(),
        "generator" => "The generator's host".into(),
        "target" => "The target's host".into(),
        other => other.to_owned(),
    }
}

/// Kinds of metrics in the order of their charts: the prefix of a metric's name, and the title of
/// the chart. The first kind with a matching prefix applies.
const KINDS: [(&str, &str); 12] = [
    ("psi_", "Pressure (PSI): tasks waited"),
    ("cpu_", "CPU, all cores together"),
    ("process.", "Process"),
    ("cgroup.", "Control group"),
    ("disk.", "Disk"),
    ("net.", "Network"),
    ("tcp_", "TCP"),
    ("listen_", "Listeners"),
    ("memory_", "Memory"),
    ("swap_", "Swap"),
    ("target.", "The target's sockets"),
    ("", "Other"),
];

/// Metrics without a chart, because they are constant or repeat the information of other metrics.
/// `host!(NAME)` is the entry of the host metric with this name.
const METRICS_WITHOUT_CHART: [&HostMetric; 8] = [
    host!("cores"),
    host!("cpu_idle"),
    host!("psi_cpu_full"),
    host!("psi_irq_some"),
    host!("memory_bytes"),
    host!("cpu_nice"),
    host!("load1"),
    host!("files_share"),
];

/// Returns the chart that a metric belongs to: its group and unit. `None` if no chart has the
/// metric.
fn chart_of(name: &str) -> Option<(Group, Unit)> {
    let is_omitted = METRICS_WITHOUT_CHART.iter().any(|metric| metric.name == name);
    if is_omitted || name.contains(".thread.") || name.contains("limit") {
        return None;
    }
    let unit = HostMetric::of_sample(name).map_or(Unit::Count, |metric| metric.unit);
    let rank = KINDS.iter().position(|(start, _)| name.starts_with(start))?;
    let kind = KINDS[rank].1;
    // Each process, disk and interface has its own charts.
    let owner = name.split_once('.').and_then(|(_, after_kind)| after_kind.rsplit_once('.'));
    let title = match owner {
        Some((owner, _)) => format!("{kind} {owner}"),
        None => kind.to_owned(),
    };
    Some(((rank, title), unit))
}

/// Draws the chart of one kind of metrics. A legend text has the maximum of its curve.
fn chart(
    result: &RunResult,
    title: &str,
    unit: Unit,
    curves: &BTreeMap<&str, Vec<(f64, f64)>>,
) -> Block {
    let scale = match unit {
        Unit::Share => Scale::Share,
        Unit::Bytes | Unit::BytesPerSecond => Scale::Bytes,
        Unit::Milliseconds => Scale::Milliseconds,
        _ => Scale::Number,
    };
    // If there are more curves than colours, the curves with the largest maxima are drawn.
    let maximum_of =
        |points: &[(f64, f64)]| points.iter().map(|(_, value)| *value).fold(0.0_f64, f64::max);
    let mut drawn: Vec<_> =
        curves.iter().map(|(name, points)| (*name, maximum_of(points), points)).collect();
    drawn.sort_by(|(_, a_maximum, _), (_, b_maximum, _)| b_maximum.total_cmp(a_maximum));
    drawn.truncate(HUES);
    let maximum = drawn.first().map_or(0.0, |(_, maximum, _)| *maximum);
    drawn.sort_by_key(|(name, ..)| *name);
    let mut shapes = marks(result, WIDE);
    let mut legend = Vec::new();
    for (index, (name, curve_maximum, points)) in drawn.iter().enumerate() {
        shapes.push(curve(downsample(points), Ink::Series(index), LINE_WIDTH));
        let short_name = name.rsplit('.').next().unwrap_or(name);
        let value_unit = if unit == Unit::PerSecond { Unit::Count } else { unit };
        let maximum_text = with_unit(*curve_maximum, value_unit);
        legend.push((Ink::Series(index), format!("{short_name} (max {maximum_text})")));
    }
    let unit = match unit {
        Unit::Share if title.starts_with("Memory") => "% of memory",
        Unit::Share => "% of the time",
        other => other.as_str(),
    };
    let axes = (time_axis(result), Axis::up_to(maximum, scale));
    let chart = Chart::new(format!("{title}, {unit}"), (WIDE, CHART_HEIGHT), axes, shapes);
    Block::Figure(chart, legend)
}

/// Reduces a curve to [`POINTS_MAX`] points, each the maximum of its samples.
fn downsample(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let step = points.len().div_ceil(POINTS_MAX).max(1);
    let merge = |samples: &[(f64, f64)]| {
        let mean_time = samples.iter().map(|(time, _)| time).sum::<f64>() / samples.len() as f64;
        let maximum = samples.iter().map(|(_, value)| *value).fold(f64::MIN, f64::max);
        (mean_time, maximum)
    };
    // Samples from before the start of the load have negative times.
    points.chunks(step).map(merge).filter(|(mean_time, _)| *mean_time >= 0.0).collect()
}
