//! What was watched on hosts, on the axis of time that the load has.
//!
//! A chart holds metrics of one kind and one unit; the names and units are those of `metrics/host.rs`.

use std::collections::BTreeMap;

use maud::{Markup, html};

use super::over_time::{WIDE, marks, marks_note, time};
use super::{figure, term};
use crate::metrics::Unit;
use crate::metrics::host::{HostMetric, host};
use crate::report::chart::axis::{Axis, Scale};
use crate::report::chart::{Chart, HUES, Ink, Shape};
use crate::report::number::{bytes, percent, short};
use crate::results::run::{HostFacts, HostSample, RunResult};

/// Points of a curve; several samples become the largest of them.
const POINTS_MAX: usize = 400;
/// Charts that are drawn at once; all further ones fold away.
const OPEN: usize = 6;
/// Charts of one host.
const CHARTS_MAX: usize = 40;

/// All hosts, each with its charts, and the processes.
pub(super) fn hosts(result: &RunResult) -> Markup {
    let mut hosts: Vec<&str> = result.host.iter().map(|sample| sample.host.as_str()).collect();
    hosts.sort_unstable_by(|a, b| b.cmp(a));
    hosts.dedup();
    html! {
        h2 id="hosts" { "Hosts" }
        @if hosts.is_empty() {
            p.lead { "No host was watched." }
        } @else {
            p.lead {
                (term("host samples", "Sampled")) " during the run, on the same axis as the load."
                (marks_note(result)) " Points are the largest of the samples that they stand for."
            }
        }
        (processes(&result.watched))
        @for host in hosts { (one_host(result, host)) }
    }
}

fn processes(watched: &HostFacts) -> Markup {
    html! {
        @if !watched.processes.is_empty() {
            div.card { div.scroll { table {
                thead { tr {
                    th.l { "process" } th.l { "role" } th { "CPU seconds" }
                    th { (term("CPU per request", "CPU ms per request")) } th { "memory at most" }
                    th.l { "" }
                } }
                tbody { @for process in &watched.processes {
                    tr {
                        td.l { (process.name) }
                        td.l { (process.role.as_str()) }
                        td { (short(process.cpu)) }
                        td { (process.cpu_ms_per_request.map_or_else(|| String::from("–"), short)) }
                        td { (bytes(process.memory_bytes_max)) }
                        td.l { @if process.restarted { span.bad { "was restarted" } } }
                    }
                } }
            } } }
        }
        @if !watched.missing.is_empty() {
            details {
                summary { "What could not be read (" (watched.missing.len()) ")" }
                ul.plain { @for missing in &watched.missing { li { (missing) } } }
            }
        }
    }
}

/// Metrics of one host that share a chart: in which order, under which title.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Group {
    rank: usize,
    title: String,
}

/// Curves of one host by chart; a curve's points are time and value.
type Curves<'a> = BTreeMap<(Group, &'static str), BTreeMap<&'a str, Vec<(f64, f64)>>>;

fn one_host(result: &RunResult, host: &str) -> Markup {
    let samples: Vec<&HostSample> = result.host.iter().filter(|s| s.host == host).collect();
    let mut curves: Curves<'_> = BTreeMap::new();
    for sample in &samples {
        for (name, value) in &sample.values {
            let Some(place) = place(name) else { continue };
            curves.entry(place).or_default().entry(name).or_default().push((sample.at, *value));
        }
    }
    curves.retain(|_, curves| curves.values().flatten().any(|(_, value)| *value != 0.0));
    let charts: Vec<Markup> = curves
        .iter()
        .take(CHARTS_MAX)
        .map(|((group, unit), curves)| chart(result, &group.title, unit, curves))
        .collect();
    let left_out = curves.len().saturating_sub(CHARTS_MAX);
    html! {
        h3 { (title_of(host, &result.watched)) }
        div.card {
            @for chart in charts.iter().take(OPEN) { (chart) }
            @if charts.len() > OPEN {
                details {
                    summary { "Further " (charts.len() - OPEN) " charts" }
                    @for chart in charts.iter().skip(OPEN) { (chart) }
                }
            }
            @if left_out > 0 { p.note { (left_out) " further groups are in result.json." } }
        }
    }
}

fn title_of(host: &str, watched: &HostFacts) -> String {
    match host {
        "generator" if watched.target_local => "This host, which also runs the target".into(),
        "generator" => "The generator's host".into(),
        "target" => "The target's host".into(),
        other => other.to_owned(),
    }
}

/// Kinds of metrics in the order of their charts: the beginning of a name, and the title.
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

/// Values that say nothing over time, or what others say already.
const LEFT_OUT: [&HostMetric; 8] = [
    host!("cores"),
    host!("cpu_idle"),
    host!("psi_cpu_full"),
    host!("psi_irq_some"),
    host!("memory_bytes"),
    host!("cpu_nice"),
    host!("load1"),
    host!("files_share"),
];

/// Which chart a metric belongs to, with its unit; none if it is not drawn.
fn place(name: &str) -> Option<(Group, &'static str)> {
    if LEFT_OUT.iter().any(|metric| metric.name == name)
        || name.contains(".thread.")
        || name.contains("limit")
    {
        return None;
    }
    let unit = HostMetric::of_sample(name).map_or(Unit::Count, |metric| metric.unit);
    let rank = KINDS.iter().position(|(start, _)| name.starts_with(start))?;
    let kind = KINDS[rank].1;
    // Of a process, a disk or an interface each has charts of its own.
    let owner = name.split_once('.').and_then(|(_, rest)| rest.rsplit_once('.'));
    let title = match owner {
        Some((owner, _)) => format!("{kind} {owner}"),
        None => kind.to_owned(),
    };
    Some((Group { rank, title }, words_of(unit)))
}

fn words_of(unit: Unit) -> &'static str {
    match unit {
        Unit::Share => "%",
        other => other.as_str(),
    }
}

fn chart(
    result: &RunResult,
    title: &str,
    unit: &str,
    curves: &BTreeMap<&str, Vec<(f64, f64)>>,
) -> Markup {
    let scale = match unit {
        "%" => Scale::Share,
        "bytes" | "bytes/s" => Scale::Bytes,
        "ms" => Scale::Milliseconds,
        _ => Scale::Number,
    };
    // The largest curves, if there are more than colours.
    let mut ranked: Vec<_> = curves
        .iter()
        .map(|(name, points)| (*name, points.iter().map(|p| p.1).fold(0.0_f64, f64::max), points))
        .collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
    ranked.truncate(HUES);
    let most = ranked.first().map_or(0.0, |(_, most, _)| *most);
    ranked.sort_by_key(|(name, ..)| *name);
    let mut shapes = marks(result, WIDE);
    let mut keys = Vec::new();
    for (index, (name, highest, points)) in ranked.iter().enumerate() {
        let points = thinned(points).into_iter().map(Some).collect();
        shapes.push(Shape::Curve { points, ink: Ink::Series(index), width: 14 });
        let short_name = name.rsplit('.').next().unwrap_or(name);
        keys.push((Ink::Series(index), format!("{short_name} (max {})", written(*highest, scale))));
    }
    let unit = if unit == "%" { "% of the time" } else { unit };
    let unit =
        if title.starts_with("Memory") && unit.starts_with('%') { "% of memory" } else { unit };
    let chart = Chart {
        title: format!("{title}, {unit}"),
        size: (WIDE, 150),
        x: time(result),
        y: Axis::up_to(most, scale),
        strip: 0,
        shapes,
    };
    let keys: Vec<(Ink, &str)> = keys.iter().map(|(ink, text)| (*ink, text.as_str())).collect();
    figure(&chart, &keys)
}

fn written(value: f64, scale: Scale) -> String {
    match scale {
        Scale::Share => percent(value),
        Scale::Bytes => bytes(value),
        Scale::Milliseconds => crate::report::number::ms(value),
        Scale::Number => short(value),
    }
}

/// At most [`POINTS_MAX`] points, each the largest of those that it stands for.
fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let step = points.len().div_ceil(POINTS_MAX).max(1);
    let highest = |part: &[(f64, f64)]| {
        let at = part.iter().map(|point| point.0).sum::<f64>() / part.len() as f64;
        (at, part.iter().map(|point| point.1).fold(f64::MIN, f64::max))
    };
    points.chunks(step).map(highest).filter(|(at, _)| *at >= 0.0).collect()
}
