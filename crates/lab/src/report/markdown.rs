//! The result in short as Markdown, for pasting into an issue.
//!
//! Everything from outside stands in code spans or is escaped, so that a method's name cannot
//! become a heading, a link or a mention.

use super::number::{
    WEAK_P99, bare_ms, bytes, clock, count, ms, percent, plural, rate, short, span,
};
use super::text::{failures, observed, plain};
use crate::results::Finding;
use crate::results::run::{Row, RunResult};

/// See [`super::markdown()`].
pub(super) fn markdown(result: &RunResult) -> String {
    let mut text = String::new();
    push_verdict(&mut text, result);
    push_list(&mut text, "Findings", &result.findings);
    push_objectives(&mut text, result);
    push_methods(&mut text, result);
    push_classes(&mut text, result);
    push_stages(&mut text, result);
    push_health(&mut text, result);
    push_bottleneck(&mut text, result.bottleneck.as_ref());
    push_list(&mut text, "Warnings", &result.warnings);
    push_origin(&mut text, result);
    text
}

fn push_verdict(text: &mut String, result: &RunResult) {
    let word = result.verdict.outcome.as_str();
    *text += &format!("## {word}: {}\n\n", escaped(&result.plan.name));
    if result.partial {
        *text += "> **Partial result**: the run was ended before its plan. Everything below is of \
                  the part that ran.\n\n";
    }
    for reason in &result.verdict.reasons {
        *text += &format!("- {}\n", escaped(reason));
    }
    if !result.verdict.reasons.is_empty() {
        text.push('\n');
    }
    let target = &result.target;
    let client = target.client.as_ref().map_or_else(String::new, |c| format!(", {}", code(c)));
    *text += &format!(
        "{} of load on {} ({}{client}): {}, {} results per second, {} failed, {} limited (429).\n",
        span(result.duration),
        code(&target.url),
        escaped(&target.family),
        plural(result.overall.calls, "call"),
        short(result.overall.goodput),
        percent(result.overall.failed_share),
        percent(result.overall.limited_share),
    );
}

fn push_objectives(text: &mut String, result: &RunResult) {
    *text += "\n### Objectives\n\n";
    if result.thresholds.is_empty() {
        *text += "None were set, so the run can neither pass nor fail.\n";
        return;
    }
    *text += "| | objective | observed | first broken | note |\n| --- | --- | --: | --: | --- |\n";
    for threshold in &result.thresholds {
        *text += &format!(
            "| {} | {} | {} | {} | {} |\n",
            if threshold.kept { "kept" } else { "**broken**" },
            code(&threshold.text),
            observed(threshold),
            threshold.broken_at.map_or_else(String::new, clock),
            threshold.note.as_deref().map_or_else(String::new, escaped),
        );
    }
}

fn push_methods(text: &mut String, result: &RunResult) {
    *text += "\n### Methods\n\nLatency in milliseconds from the planned send, all outcomes; a timeout \
              counts at its deadline.\n\n";
    *text += "| method | calls | share | results/s | failed | 429 | p50 | p95 | p99 | max | failed \
              as |\n| --- | --: | --: | --: | --: | --: | --: | --: | --: | --: | --- |\n";
    for row in std::iter::once(&result.overall).chain(&result.methods) {
        let latency = &row.latency;
        *text += &format!(
            "| {} | {} | {} | {} | {} | {} | {} | {} | {}{} | {} | {} |\n",
            code(&row.method),
            count(row.calls),
            percent(row.share),
            short(row.goodput),
            percent(row.failed_share),
            percent(row.limited_share),
            bare_ms(latency.p50_ms),
            bare_ms(latency.p95_ms),
            if weak(row) { "~" } else { "" },
            bare_ms(latency.p99_ms),
            bare_ms(latency.max_ms),
            escaped(&failures(row)),
        );
    }
    if result.methods.iter().any(weak) {
        *text += &format!("\n`~` weak: fewer than {} calls.\n", count(WEAK_P99));
    }
}

fn weak(row: &Row) -> bool {
    row.latency.count > 0 && row.latency.count < WEAK_P99
}

/// Where a method had several outcomes, each with its own latency.
fn push_classes(text: &mut String, result: &RunResult) {
    let mixed: Vec<&Row> = result.methods.iter().filter(|row| row.classes.len() > 1).collect();
    if mixed.is_empty() {
        return;
    }
    *text += "\n<details><summary>Latency by outcome, of methods with several</summary>\n\n";
    *text += "| method | outcome | calls | p50 | p95 | p99 | max |\n";
    *text += "| --- | --- | --: | --: | --: | --: | --: |\n";
    for row in mixed {
        for class in &row.classes {
            let latency = &class.latency;
            *text += &format!(
                "| {} | {} | {} | {} | {} | {} | {} |\n",
                code(&row.method),
                class.class.as_str(),
                count(class.calls),
                bare_ms(latency.p50_ms),
                bare_ms(latency.p95_ms),
                bare_ms(latency.p99_ms),
                bare_ms(latency.max_ms),
            );
        }
    }
    *text += "\n</details>\n";
}

fn push_stages(text: &mut String, result: &RunResult) {
    if result.stages.len() < 2 {
        return;
    }
    *text += "\n### Stages\n\n";
    *text += "| stage | time | planned | begun | dropped | failed | p50 ms | p99 ms |\n";
    *text += "| --- | --- | --: | --: | --: | --: | --: | --: |\n";
    for stage in &result.stages {
        *text += &format!(
            "| {} | {}–{} | {} | {} | {} | {} | {} | {} |\n",
            code(&format!("{}/{}", stage.scenario, stage.stage)),
            clock(stage.from),
            clock(stage.to),
            level(&stage.model, stage.level_from, stage.level_to),
            rate(stage.rate_begun),
            count(stage.iterations.dropped),
            percent(stage.overall.failed_share),
            bare_ms(stage.overall.latency.p50_ms),
            bare_ms(stage.overall.latency.p99_ms),
        );
    }
}

/// The planned level of a stage: `100/s`, `20 → 100/s`, `50 workers`.
pub(super) fn level(model: &str, from: f64, to: f64) -> String {
    let unit = if model == "closed" { " workers" } else { "/s" };
    if (from - to).abs() < 1e-9 {
        return format!("{}{unit}", short(to));
    }
    format!("{} → {}{unit}", short(from), short(to))
}

fn push_health(text: &mut String, result: &RunResult) {
    let generator = &result.generator;
    *text += &format!(
        "\n### Generator and connections\n\n- began {} of {} due iterations, dropped {}; sends were \
         late by {} at the 99th percentile; busy at most {}; its threads \
         took {} CPU per request; waited {} for a core\n",
        percent(generator.delivered_share),
        count(generator.iterations.due),
        count(generator.iterations.dropped),
        ms(generator.lateness.p99_ms),
        percent(generator.busy_max),
        ms(generator.cpu_us_per_request / 1e3),
        span(generator.run_delay),
    );
    let wire = &result.wire;
    let resumption = wire.resumption.map_or_else(String::new, |share| {
        format!(
            "; TLS handshakes {} full (p50 {}), {} resumed (p50 {}), {} resumed",
            count(wire.traffic.handshakes_full),
            ms(wire.handshake_full.p50_ms),
            count(wire.traffic.handshakes_resumed),
            ms(wire.handshake_resumed.p50_ms),
            percent(share),
        )
    });
    *text += &format!(
        "- {}, {} on {} ({} failed){resumption}; {} sent, {} received\n",
        format_args!("HTTP/{}", escaped(&result.plan.http)),
        plural(wire.traffic.requests, "request"),
        plural(wire.traffic.connections, "connection"),
        count(wire.traffic.connections_failed),
        bytes(wire.traffic.bytes_sent as f64),
        bytes(wire.traffic.bytes_received as f64),
    );
}

pub(super) fn push_bottleneck(text: &mut String, finding: Option<&Finding>) {
    let Some(finding) = finding else { return };
    *text += &format!("\n### First bottleneck\n\n{}\n\n", escaped(&finding.sentence));
    for fact in &finding.evidence {
        *text += &format!("- {}\n", escaped(fact));
    }
}

pub(super) fn push_list(text: &mut String, name: &str, list: &[String]) {
    if list.is_empty() {
        return;
    }
    *text += &format!("\n### {name}\n\n");
    for item in list {
        *text += &format!("- {}\n", escaped(item));
    }
}

fn push_origin(text: &mut String, result: &RunResult) {
    let machine = &result.fingerprint;
    *text += &format!(
        "\n### How it was measured\n\nweir {}, {}, plan {} seed {}, on {} ({}, {}, kernel {}). Terms: \
         docs/measuring.md.\n",
        escaped(&result.weir),
        escaped(&result.started),
        code(result.plan.hash.get(..12).unwrap_or(&result.plan.hash)),
        result.plan.seed,
        code(&machine.host),
        escaped(&machine.cpu),
        plural(machine.cores as u64, "core"),
        escaped(&machine.kernel),
    );
}

/// As a code span that nothing in the text can end.
pub(super) fn code(text: &str) -> String {
    format!("`{}`", plain(text).replace('`', "'").replace('|', "\\|"))
}

/// As plain text in which nothing is markup.
pub(super) fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in plain(text).chars() {
        match character {
            '<' => safe.push_str("&lt;"),
            '&' => safe.push_str("&amp;"),
            '@' => safe.push_str("@\u{200b}"),
            '\\' | '`' | '*' | '[' | ']' | '|' | '#' | '~' | '>' => {
                safe.push('\\');
                safe.push(character);
            }
            other => safe.push(other),
        }
    }
    safe
}
