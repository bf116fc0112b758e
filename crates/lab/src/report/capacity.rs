//! A capacity search for terminal, Markdown and folder. Its page is `html/capacity.rs`.
//!
//! Told from a [`CapacityResult`] alone; what passed is decided in `analysis/search.rs`.

use std::path::{Path, PathBuf};

use super::folder::{make, put_file};
use super::json::json;
use super::markdown::{code, escaped, push_bottleneck, push_list};
use super::number::{bare_ms, clock, percent, plural, rate, short, span};
use super::text::{Paint, painted, plain, prose, push_more, wrapped};
use super::{Colour, ReportFault, html};
use crate::results::capacity::{Answer, Binding, Boundary, CapacityResult, End, ProbeRow};

#[cfg(test)]
pub(crate) mod example;
#[cfg(test)]
mod tests;

/// Probes in the terminal's table; those around the boundary are kept.
const PROBES: usize = 20;
/// Warnings in the terminal.
const WARNINGS: usize = 3;

/// See [`super::write_capacity`].
pub(super) fn write(dir: &Path, result: &CapacityResult) -> Result<Vec<PathBuf>, ReportFault> {
    make(dir)?;
    Ok(vec![
        put_file(dir, "capacity.json", &json("capacity.json", result)?)?,
        put_file(dir, "capacity.md", markdown(result).as_bytes())?,
        put_file(dir, "capacity.html", html::capacity::page(result).as_bytes())?,
    ])
}

/// The answer as a heading: `1,200 to 1,250/s`, `at least 1,200/s`, `below 50/s`.
pub(super) fn answer(result: &CapacityResult) -> String {
    let answer = &result.answer;
    match (answer.highest_pass, answer.lowest_fail) {
        (Some(pass), Some(fail)) if !answer.at_least => {
            format!("{} to {}", short(pass), rate(fail))
        }
        (Some(pass), _) => format!("at least {}", rate(pass)),
        (None, Some(fail)) => format!("below {}", rate(fail)),
        (None, None) => String::from("not known"),
    }
}

/// Why a search ended, in words.
pub(super) fn end(answer: &Answer) -> &'static str {
    match answer.end {
        End::Converged => "the boundary is as close as was asked",
        End::RateMax => "the largest rate that was allowed passed",
        End::ClientLimited => "the generator was the limit before the target",
        End::Invalid if answer.highest_pass.is_none() => "the numbers may not be believed",
        End::Invalid => "above the highest pass the numbers may not be believed",
        End::NothingPassed => "even the lowest rate failed",
        End::ProbesMax => "the limit of probes was reached",
        End::Stopped => "it was stopped, or the target could not be reached any more",
    }
}

/// How it breaks at the boundary, in words; none if that is not known.
pub(super) fn boundary(boundary: Boundary) -> Option<&'static str> {
    match boundary {
        Boundary::Cliff => Some("cliff: nothing warns before it"),
        Boundary::Gradual => Some("gradual: objectives are approached step by step"),
        Boundary::Unknown => None,
    }
}

/// A margin in whole per cent.
pub(super) fn margin(margin: Option<f64>) -> String {
    margin.map_or_else(|| String::from("–"), |margin| format!("{:.0} %", margin * 100.0))
}

/// What broke first, in one sentence.
pub(super) fn binding(binding: &Binding) -> String {
    let method =
        binding.method.as_ref().map_or_else(String::new, |method| format!(" for {method}"));
    let seen = match (binding.observed, binding.limit) {
        (Some(observed), Some(limit)) => {
            format!(": {} where {} is allowed", short(observed), short(limit))
        }
        (Some(observed), None) => format!(": {}", short(observed)),
        (None, _) => String::new(),
    };
    format!("{}{method} at {}{seen}", binding.objective, rate(binding.rate))
}

/// Short of an answer, or with doubts about it.
pub(super) fn doubts(result: &CapacityResult) -> Vec<String> {
    let answer = &result.answer;
    let mut doubts = Vec::new();
    if !answer.monotone {
        doubts.push(String::from(
            "a rate passed above one that failed: the boundary is not sharp, or the target changed",
        ));
    }
    if answer.soak_held == Some(false) {
        doubts.push(String::from("the soak at the highest pass did not hold"));
    }
    doubts.extend(answer.degraded.clone());
    doubts
}

/// See [`super::capacity_text`].
pub(super) fn text(result: &CapacityResult, colour: Colour) -> String {
    let paint = match result.answer.end {
        End::Converged | End::RateMax => Paint::Good,
        End::NothingPassed => Paint::Bad,
        _ => Paint::Doubt,
    };
    let part = if result.partial { "  PARTIAL: ended before its answer" } else { "" };
    let head = painted(&format!("CAPACITY {}", answer(result)), paint, colour);
    let mut lines = vec![format!("{head}  {}{part}", plain(&result.plan.name))];
    lines.extend(wrapped(&result.answer.sentence));
    lines.push(format!("  ended because {}", end(&result.answer)));
    lines.extend(doubts(result).iter().flat_map(|doubt| wrapped(doubt)));
    lines.push(String::new());
    if let Some(found) = &result.binding {
        lines.extend(prose("binding", &binding(found)));
    }
    if let Some(how) = boundary(result.answer.boundary) {
        lines.extend(prose("boundary", how));
    }
    if let Some(finding) = &result.bottleneck {
        lines.extend(prose("bottleneck", &finding.sentence));
    }
    let costs: Vec<String> = result
        .costs
        .iter()
        .map(|cost| format!("{} {} ms", cost.process, short(cost.cpu_ms_per_request)))
        .collect();
    if !costs.is_empty() {
        lines.extend(prose("CPU/request", &costs.join(", ")));
    }
    lines.extend(prose("target", &result.target.url));
    lines.extend(prose("search", &format!("{}, {}", probes(result), span(result.duration))));
    lines.push(String::new());
    push_probes(&mut lines, result);
    for warning in result.warnings.iter().take(WARNINGS) {
        lines.extend(prose("warning", warning));
    }
    push_more(&mut lines, result.warnings.len(), WARNINGS, "warning");
    lines.join("\n") + "\n"
}

fn probes(result: &CapacityResult) -> String {
    plural(result.probes.len() as u64, "probe")
}

const HEADS: [&str; 9] =
    ["rate/s", "probe", "judged", "results/s", "failed", "p50 ms", "p95 ms", "p99 ms", "margin"];

fn push_probes(lines: &mut Vec<String>, result: &CapacityResult) {
    let near = result.answer.highest_pass.or(result.answer.lowest_fail).unwrap_or(0.0);
    let mut chosen: Vec<&ProbeRow> = result.probes.iter().collect();
    chosen.sort_by(|a, b| (a.rate - near).abs().total_cmp(&(b.rate - near).abs()));
    chosen.truncate(PROBES);
    chosen.sort_by(|a, b| a.rate.total_cmp(&b.rate).then(a.at.total_cmp(&b.at)));
    let rows: Vec<[String; 9]> = chosen.iter().map(|probe| cells(probe)).collect();
    let widths: [usize; 9] = std::array::from_fn(|column| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([HEADS[column].len()]).max().unwrap_or(0)
    });
    let line = |cells: &[String; 9]| {
        let cells = cells.iter().zip(widths).map(|(cell, width)| format!("{cell:>width$}"));
        cells.collect::<Vec<_>>().join("  ")
    };
    lines.push(line(&HEADS.map(String::from)));
    lines.extend(rows.iter().map(line));
    push_more(lines, result.probes.len(), PROBES, "probe");
}

fn cells(probe: &ProbeRow) -> [String; 9] {
    [
        short(probe.rate),
        probe.kind.as_str().into(),
        probe.judged.as_str().into(),
        short(probe.goodput),
        percent(probe.failed_share),
        bare_ms(probe.latency.p50_ms),
        bare_ms(probe.latency.p95_ms),
        bare_ms(probe.latency.p99_ms),
        margin(probe.margin),
    ]
}

/// See [`super::capacity_markdown`].
pub(super) fn markdown(result: &CapacityResult) -> String {
    let mut text = format!("## Capacity {}: {}\n\n", answer(result), escaped(&result.plan.name));
    if result.partial {
        text += "> **Partial result**: the search was ended before its answer.\n\n";
    }
    text += &format!(
        "{}\n\nEnded because {}. {} in {}, on {}.\n",
        escaped(&result.answer.sentence),
        end(&result.answer),
        probes(result),
        span(result.duration),
        code(&result.target.url),
    );
    if let Some(found) = &result.binding {
        text += &format!("\n**Binding**: {}.\n", escaped(&binding(found)));
    }
    if let Some(how) = boundary(result.answer.boundary) {
        text += &format!("\n**Boundary**: {how}.\n");
    }
    push_list(&mut text, "Doubts", &doubts(result));
    push_bottleneck(&mut text, result.bottleneck.as_ref());
    text += "\n### Probes\n\n| at | rate/s | probe | judged | results/s | failed | p50 ms | p95 ms | \
             p99 ms | margin |\n| --: | --: | --- | --- | --: | --: | --: | --: | --: | --: |\n";
    for probe in &result.probes {
        let [rate, kind, judged, goodput, failed, p50, p95, p99, margin] = cells(probe);
        let at = clock(probe.at);
        text += &format!(
            "| {at} | {rate} | {kind} | {judged} | {goodput} | {failed} | {p50} | {p95} | {p99} | \
             {margin} |\n"
        );
    }
    push_list(&mut text, "Warnings", &result.warnings);
    let objectives: Vec<String> = result.objectives.iter().map(|text| code(text)).collect();
    text += &format!(
        "\n### How it was measured\n\nweir {}, {}, plan {} seed {}; objectives: {}. Terms: \
         docs/measuring.md.\n",
        escaped(&result.weir),
        escaped(&result.started),
        code(result.plan.hash.get(..12).unwrap_or(&result.plan.hash)),
        result.plan.seed,
        if objectives.is_empty() { String::from("none") } else { objectives.join(", ") },
    );
    text
}
