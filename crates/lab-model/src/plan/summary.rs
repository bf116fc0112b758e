//! Writes a short summary of a plan, which `weir check` and each run print. The summary does not
//! contain the warnings of [`Plan::warnings`].

use std::fmt::Write;
use std::time::Duration;

use super::planned::Planned;
use super::{Mix, Model, Plan, Reuse, Scenario, Step, SubscriptionKind};
use crate::number::count;

/// Maximum number of methods that are listed one by one.
const METHODS_SHOWN_MAX: usize = 40;

/// Maximum number of stages of a scenario that are listed one by one.
const STAGES_SHOWN_MAX: usize = 20;

/// Summarizes a plan: target, connections, scenarios with their stages, duration, numbers of
/// iterations and requests, mean and peak rate, and shares of methods.
pub fn summarize(plan: &Plan) -> String {
    let mut text = String::new();
    let target = &plan.target;
    let family =
        target.family.map_or("family detected by calling the target", |family| family.as_str());
    let _ = writeln!(
        text,
        "target {} ({family}), timeout {}",
        target.url,
        format_duration(target.timeout)
    );
    let protocol = plan.protocol();
    let reuse = match plan.connections.reuse {
        Reuse::Always => "kept open".to_owned(),
        Reuse::Never => "closed after each request".to_owned(),
        Reuse::Requests(requests) => format!("closed after {requests} requests"),
    };
    let tls = match (target.url.tls(), plan.connections.tls.resume) {
        (false, _) => "",
        (true, true) => ", TLS sessions resumed",
        (true, false) => ", TLS sessions not resumed",
    };
    let _ = writeln!(text, "connections {protocol}, {reuse}{tls}");
    for scenario in &plan.scenarios {
        write_scenario(plan, scenario, &mut text);
    }
    for subscription in &plan.subscriptions {
        let connections = match subscription.connections {
            1 => "1 connection".to_owned(),
            more => format!("{} connections", count(more as u64)),
        };
        let _ = writeln!(
            text,
            "subscription {} ({}), {connections} to {}",
            subscription.name,
            SubscriptionKind::name_of(subscription.kind),
            subscription.target.url
        );
    }
    write_schedule(plan, &mut text);
    write_methods(plan, &mut text);
    let thresholds = match plan.threshold_count() {
        0 => "no thresholds".to_owned(),
        1 => "1 threshold".to_owned(),
        more => format!("{more} thresholds"),
    };
    let warmup = match plan.warmup.is_zero() {
        true => String::new(),
        false => format!(", the first {} excluded from the verdict", format_duration(plan.warmup)),
    };
    let _ = writeln!(text, "{thresholds}{warmup}");
    text
}

/// Writes a scenario and its stages.
fn write_scenario(plan: &Plan, scenario: &Scenario, text: &mut String) {
    let mix = &plan.mixes[scenario.mix];
    let (model, unit) = match scenario.model {
        Model::Open => ("open", "iterations/s"),
        Model::Closed => ("closed", "workers"),
    };
    let start = match scenario.start.is_zero() {
        true => String::new(),
        false => format!(" from {}", format_duration(scenario.start)),
    };
    let _ = write!(text, "scenario {} ({model}, mix {}){start}", scenario.name, mix.name);
    let _ = match scenario.model {
        Model::Open => {
            let handling = if scenario.queue_max > 0 { "queued" } else { "dropped" };
            write!(text, ", up to {} workers, delayed iterations {handling}", scenario.workers_max)
        }
        Model::Closed if scenario.pause.is_zero() => Ok(()),
        Model::Closed => write!(text, ", pause {}", format_duration(scenario.pause)),
    };
    if let Some(batch) = scenario.batch {
        let probability = batch.probability * 100.0;
        let _ = write!(text, ", {probability} % as batches of {}", batch.size);
    }
    if let Some(iterations) = scenario.iterations_max {
        let _ = write!(text, ", at most {iterations} iterations");
    }
    if let Some(transactions) = mix.transactions() {
        let _ = write!(
            text,
            ", {} signed transactions of {} senders, each sent once",
            count(transactions.len() as u64),
            count(transactions.first_of_senders.len() as u64)
        );
    }
    text.push('\n');
    for stage in scenario.stages.iter().take(STAGES_SHOWN_MAX) {
        let level = match stage.from == stage.to {
            true => format_number(stage.from),
            false => format!("{} to {}", format_number(stage.from), format_number(stage.to)),
        };
        let _ =
            writeln!(text, "  {} {}: {level} {unit}", stage.name, format_duration(stage.duration));
    }
    if let Some(more) = scenario.stages.len().checked_sub(STAGES_SHOWN_MAX).filter(|more| *more > 0)
    {
        let _ = writeln!(text, "  and {more} more stages");
    }
}

/// Writes the duration, the numbers of iterations and requests, and the mean and peak rate.
fn write_schedule(plan: &Plan, text: &mut String) {
    let (iterations, requests) = (plan.iterations(), plan.requests());
    let duration = plan.duration();
    let _ = match (format_planned(iterations), format_planned(requests)) {
        (Some(iterations), Some(requests)) => {
            write!(
                text,
                "duration {}: {iterations} iterations, {requests} requests",
                format_duration(duration)
            )
        }
        _ => write!(
            text,
            "duration {}: the target's speed determines the number of requests",
            format_duration(duration)
        ),
    };
    if let (Some(peak), Planned::Exactly(requests)) = (plan.peak(), requests) {
        let mean = requests / duration.as_secs_f64();
        let _ = write!(
            text,
            "; schedule's mean {} requests/s, peak {}",
            format_number(mean),
            format_number(peak)
        );
    }
    text.push('\n');
}

/// Writes each method's share of the calls. Also reports weights that do not add up to 100.
fn write_methods(plan: &Plan, text: &mut String) {
    let mut used_mixes: Vec<&Mix> = Vec::new();
    for scenario in &plan.scenarios {
        let mix = &plan.mixes[scenario.mix];
        if !used_mixes.iter().any(|other| other.name == mix.name) {
            used_mixes.push(mix);
        }
    }
    for mix in &used_mixes {
        for (index, step) in mix.steps.iter().enumerate() {
            let Step::Choose(calls) = step else { continue };
            let weight_sum: f64 = calls.iter().map(|call| call.weight).sum();
            let is_unweighted = calls.iter().all(|call| call.weight == 1.0);
            if !is_unweighted && (weight_sum - 100.0).abs() > 1e-6 {
                let step = match mix.steps.len() {
                    1 => String::new(),
                    _ => format!(", step {}", index + 1),
                };
                let _ = writeln!(
                    text,
                    "mix {}{step}: weights add up to {}, so a share is weight / sum",
                    mix.name,
                    format_number(weight_sum)
                );
            }
        }
    }
    match plan.shares() {
        Some(shares) => write_shares(plan, "share of all calls", &shares, text),
        None => {
            let _ =
                writeln!(text, "shares of all calls depend on the target's speed; by scenario:");
            for scenario in &plan.scenarios {
                if let Some(shares) = plan.shares_of(|other| other.name == scenario.name) {
                    let heading = format!("share of calls of {}", scenario.name);
                    write_shares(plan, &heading, &shares, text);
                }
            }
        }
    }
}

/// Writes the shares of all methods with calls, largest first.
fn write_shares(plan: &Plan, heading: &str, shares: &[f64], text: &mut String) {
    let mut rows: Vec<_> =
        plan.methods.iter().zip(shares).filter(|(_, share)| **share > 0.0).collect();
    rows.sort_by(|(_, first), (_, second)| second.total_cmp(first));
    let _ = writeln!(text, "{heading}:");
    for (name, share) in rows.iter().take(METHODS_SHOWN_MAX) {
        let _ = writeln!(text, "  {:>7.3} % {name}", *share * 100.0);
    }
    if let Some(more) = rows.len().checked_sub(METHODS_SHOWN_MAX).filter(|more| *more > 0) {
        let _ = writeln!(text, "  and {more} more methods");
    }
}

/// Formats a planned number, or returns `None` if it is unknown.
fn format_planned(number: Planned) -> Option<String> {
    match number {
        Planned::Exactly(exact) => Some(count(exact.round() as u64)),
        Planned::AtMost(bound) => Some(format!("at most {}", count(bound.round() as u64))),
        Planned::Unknown => None,
    }
}

/// Formats a number with at most three decimals.
fn format_number(number: f64) -> String {
    let rounded = (number * 1000.0).round() / 1000.0;
    if rounded.abs() >= 1000.0 { format!("{}", rounded.round()) } else { format!("{rounded}") }
}

/// Formats a duration in hours, minutes and seconds, such as `1h 30m`. A duration below a minute,
/// or with a fraction of a second, has the `Debug` format.
fn format_duration(duration: Duration) -> String {
    let total_seconds = duration.as_secs();
    if total_seconds < 60 || duration.subsec_nanos() != 0 {
        return format!("{duration:?}");
    }
    let (hours, minutes, seconds) =
        (total_seconds / 3600, total_seconds / 60 % 60, total_seconds % 60);
    let parts = [(hours, 'h'), (minutes, 'm'), (seconds, 's')];
    let nonzero_parts = parts.iter().filter(|(number, _)| *number > 0);
    let texts: Vec<_> = nonzero_parts.map(|(number, unit)| format!("{number}{unit}")).collect();
    texts.join(" ")
}
