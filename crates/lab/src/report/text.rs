//! The result for a terminal: verdict first, then why, then findings, then the numbers, then warnings.
//!
//! Long lists end early and say so; a sentence is wrapped and never cut. Control characters from
//! outside never reach the terminal.

use super::Colour;
use super::number::{WEAK_P99, bare_ms, clock, count, ms, percent, span, with_unit};
use crate::metrics::Unit;
use crate::results::run::{Row, RunResult};
use crate::results::{Outcome, ThresholdOutcome};

/// Most lines of each list. Findings and warnings are never left out.
const REASONS: usize = 4;
const OBJECTIVES: usize = 6;
const METHODS: usize = 9;
/// Columns of a line of prose.
const WIDTH: usize = 160;

/// See [`super::text()`].
pub(super) fn text(result: &RunResult, colour: Colour) -> String {
    let mut lines = Vec::new();
    push_verdict(&mut lines, result, colour);
    for finding in &result.findings {
        lines.extend(wrapped(&format!("finding: {finding}")));
    }
    lines.push(String::new());
    push_origin(&mut lines, result);
    if !result.thresholds.is_empty() {
        lines.push(String::new());
        push_objectives(&mut lines, &result.thresholds, colour);
    }
    lines.push(String::new());
    push_methods(&mut lines, result, colour);
    lines.push(String::new());
    push_generator(&mut lines, result);
    if let Some(finding) = &result.bottleneck {
        lines.extend(prose("bottleneck", &finding.sentence));
    }
    for warning in &result.warnings {
        lines.extend(prose("warning", warning));
    }
    let mut text = lines.join("\n");
    text.push('\n');
    text
}

fn push_verdict(lines: &mut Vec<String>, result: &RunResult, colour: Colour) {
    let outcome = result.verdict.outcome;
    let paint = match outcome {
        Outcome::Pass | Outcome::Measured => Paint::Good,
        Outcome::Fail => Paint::Bad,
        Outcome::Invalid | Outcome::ClientLimited => Paint::Doubt,
    };
    let part = if result.partial { "  PARTIAL: ended before its plan" } else { "" };
    let broken = result.thresholds.iter().filter(|threshold| !threshold.kept).count();
    let objectives = match (result.thresholds.len(), broken) {
        (0, _) => String::from("no objectives were set"),
        (_, 0) if outcome == Outcome::Fail => {
            String::from("for another reason than its objectives")
        }
        (all, 0) => format!("{all} of {all} objectives kept"),
        (all, broken) => format!("{broken} of {all} objectives broken"),
    };
    let name = plain(&result.plan.name);
    lines.push(format!("{}  {name}: {objectives}{part}", painted(outcome.as_str(), paint, colour)));
    for reason in result.verdict.reasons.iter().take(REASONS) {
        lines.extend(wrapped(reason));
    }
    push_more(lines, result.verdict.reasons.len(), REASONS, "reason");
}

fn push_origin(lines: &mut Vec<String>, result: &RunResult) {
    let plan = &result.plan;
    let warmup = match plan.warmup {
        0.0 => String::new(),
        warmup => format!(", the first {} not judged", span(warmup)),
    };
    let how = format!(
        "{}{warmup} · seed {} · HTTP/{} · connections {}",
        span(result.duration),
        plan.seed,
        plan.http,
        plan.connections
    );
    lines.extend(prose("run", &how));
    let target = &result.target;
    let mut who = vec![target.url.clone(), target.family.clone()];
    who.extend(target.client.clone());
    who.extend(target.chain_id.as_ref().map(|id| format!("chain {id}")));
    who.extend(target.head_start.map(|head| format!("head {}", count(head))));
    lines.extend(prose("target", &who.join(" · ")));
}

fn push_objectives(lines: &mut Vec<String>, thresholds: &[ThresholdOutcome], colour: Colour) {
    let mut sorted: Vec<_> = thresholds.iter().collect();
    sorted.sort_by_key(|threshold| threshold.kept);
    sorted.truncate(OBJECTIVES);
    let texts: Vec<String> = sorted.iter().map(|threshold| plain(&threshold.text)).collect();
    let width = texts.iter().map(|text| text.chars().count()).max().unwrap_or(0).min(70);
    lines.push(format!("{:<10}{:<width$}  {:>12}", "objective", "", "observed"));
    for (threshold, text) in sorted.iter().zip(&texts) {
        let word = if threshold.kept {
            painted("  kept    ", Paint::Good, colour)
        } else {
            painted("  BROKEN  ", Paint::Bad, colour)
        };
        let mut line = format!("{word}{text:<width$}  {:>12}", observed(threshold));
        if let Some(at) = threshold.broken_at {
            line += &format!("  first at {}", clock(at));
        }
        let note = threshold.note.as_ref().map(|note| format!("({})", plain(note)));
        match note {
            Some(note) if line.chars().count() + 2 + note.chars().count() > WIDTH => {
                lines.push(line);
                lines.extend(hanging("            ", &note));
            }
            Some(note) => lines.push(format!("{line}  {note}")),
            None => lines.push(line),
        }
    }
    push_more(lines, thresholds.len(), OBJECTIVES, "objective");
}

/// The observed value with its unit.
pub(super) fn observed(threshold: &ThresholdOutcome) -> String {
    match threshold.observed {
        Some(value) => with_unit(value, threshold.unit.unwrap_or(Unit::Count)),
        None => String::from("no data"),
    }
}

const HEADS: [&str; 10] =
    ["method", "calls", "share", "ok", "failed", "429", "p50", "p95", "p99", "max"];

fn push_methods(lines: &mut Vec<String>, result: &RunResult, colour: Colour) {
    let rows: Vec<&Row> = std::iter::once(&result.overall).chain(chosen(&result.methods)).collect();
    let cells: Vec<[String; 10]> = rows.iter().map(|row| cells(row)).collect();
    let widths: [usize; 10] = std::array::from_fn(|column| {
        let lengths = cells.iter().map(|cells| cells[column].chars().count());
        lengths.chain([HEADS[column].len()]).max().unwrap_or(0)
    });
    let head = line(&HEADS.map(String::from), &widths);
    lines.push(format!("{head}  latency in ms, all outcomes"));
    for (row, cells) in rows.iter().zip(&cells) {
        let mut text = line(cells, &widths);
        let failures = failures(row);
        if !failures.is_empty() {
            text += &format!("  {}", painted(&failures, Paint::Bad, colour));
        }
        lines.push(text);
    }
    let all = result.methods.iter().filter(|row| row.calls > 0).count();
    push_more(lines, all, METHODS, "method");
    if rows.iter().any(|row| row.latency.count < WEAK_P99) {
        let least = count(WEAK_P99);
        lines.push(format!("~ weak: fewer than {least} calls. A timeout counts at its deadline."));
    }
}

/// Methods that were called, in the plan's order; if there are too many, those that failed most.
fn chosen(methods: &[Row]) -> Vec<&Row> {
    let mut rows: Vec<_> = methods.iter().enumerate().filter(|(_, row)| row.calls > 0).collect();
    rows.sort_by(|(_, a), (_, b)| b.failed_share.total_cmp(&a.failed_share));
    rows.truncate(METHODS);
    rows.sort_by_key(|(index, _)| *index);
    rows.into_iter().map(|(_, row)| row).collect()
}

fn cells(row: &Row) -> [String; 10] {
    let weak = if row.latency.count < WEAK_P99 { "~" } else { "" };
    let latency = &row.latency;
    let ok = row.classes.iter().find(|class| !class.class.failed() && class.class.as_str() == "ok");
    let ok = ok.map_or(0.0, |class| class.calls as f64 / row.calls.max(1) as f64);
    [
        name(&row.method),
        count(row.calls),
        percent(row.share),
        percent(ok),
        percent(row.failed_share),
        percent(row.limited_share),
        bare_ms(latency.p50_ms),
        bare_ms(latency.p95_ms),
        format!("{weak}{}", bare_ms(latency.p99_ms)),
        bare_ms(latency.max_ms),
    ]
}

/// The failing classes with their counts, and codes of JSON-RPC errors.
pub(super) fn failures(row: &Row) -> String {
    let failed = row.classes.iter().filter(|class| class.class.failed());
    let mut parts: Vec<String> =
        failed.map(|class| format!("{} {}", class.class.as_str(), count(class.calls))).collect();
    for (code, calls) in row.codes.iter().take(3).filter(|(_, calls)| *calls > 0) {
        parts.push(format!("code {code} ×{}", count(*calls)));
    }
    parts.join(", ")
}

fn line(cells: &[String; 10], widths: &[usize; 10]) -> String {
    let mut text = String::new();
    for (column, (cell, width)) in cells.iter().zip(widths).enumerate() {
        match column {
            0 => text += &format!("{cell:<width$}"),
            _ => text += &format!("  {cell:>width$}"),
        }
    }
    text
}

fn push_generator(lines: &mut Vec<String>, result: &RunResult) {
    let generator = &result.generator;
    let text = format!(
        "begun {} of {} due iterations · {} dropped · late p99 {} · busy at most {} · its threads \
         took {} CPU per request · waited {} for a core",
        percent(generator.delivered_share),
        count(generator.iterations.due),
        count(generator.iterations.dropped),
        ms(generator.lateness.p99_ms),
        percent(generator.busy_max),
        ms(generator.cpu_us_per_request / 1e3),
        span(generator.run_delay),
    );
    lines.extend(prose("generator", &text));
}

/// Prose after the name of what it is about.
pub(super) fn prose(about: &str, text: &str) -> Vec<String> {
    hanging(&format!("{about:<12}"), text)
}

pub(super) fn push_more(lines: &mut Vec<String>, all: usize, shown: usize, noun: &str) {
    if all > shown {
        let rest = all - shown;
        let s = if rest == 1 { "" } else { "s" };
        lines.push(format!("  … and {rest} more {noun}{s}; --out DIR keeps all of them"));
    }
}

/// A method's name, at most 32 characters of it.
fn name(method: &str) -> String {
    let name = plain(method);
    if name.chars().count() <= 32 {
        return name;
    }
    name.chars().take(31).chain(['…']).collect()
}

/// Without control characters: a terminal obeys them.
pub(super) fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// A sentence on as many lines as it takes.
pub(super) fn wrapped(text: &str) -> Vec<String> {
    hanging("  ", text)
}

/// Text that begins with `head` and is wrapped between words; its further lines begin below the first
/// word after the head.
pub(super) fn hanging(head: &str, text: &str) -> Vec<String> {
    let indent = head.chars().count();
    let mut lines: Vec<String> = Vec::new();
    for word in plain(text).split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= WIDTH => {
                line.push(' ');
                line.push_str(word);
            }
            Some(_) => lines.push(format!("{:indent$}{word}", "")),
            None => lines.push(format!("{head}{word}")),
        }
    }
    lines
}

#[derive(Clone, Copy)]
pub(super) enum Paint {
    Good,
    Bad,
    Doubt,
}

pub(super) fn painted(text: &str, paint: Paint, colour: Colour) -> String {
    let code = match paint {
        Paint::Good => "32",
        Paint::Bad => "31",
        Paint::Doubt => "33",
    };
    match colour {
        Colour::Plain => text.to_owned(),
        Colour::Ansi => format!("\u{1b}[1;{code}m{text}\u{1b}[0m"),
    }
}
