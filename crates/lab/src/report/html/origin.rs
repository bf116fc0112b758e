//! Where the numbers come from: machine, target, plan, and how to get them again.

use maud::{Markup, html};

use super::term;
use crate::plan::url::MASK;
use crate::report::number::{bytes, count, plural, short, span};
use crate::results::{Fingerprint, PlanFacts, TargetFacts};

/// What was asked of whom, and by which machine.
pub(super) fn origin(plan: &PlanFacts, target: &TargetFacts, machine: &Fingerprint) -> Markup {
    html! {
        h2 id="origin" { "How it was measured" }
        p.lead {
            "Two results may be compared in what is equal here; " code { "weir compare" }
            " says what is not."
        }
        div.card { div.two {
            dl.facts {
                dt { "Target" } dd { (target.url) }
                dt { "Family" } dd { (target.family) }
                @if let Some(client) = &target.client { dt { "Client" } dd { (client) } }
                @if let Some(chain) = &target.chain_id { dt { "Chain" } dd { (chain) } }
                @if let Some(head) = target.head_start {
                    dt { "Head" }
                    dd {
                        (count(head))
                        @if let Some(end) = target.head_end { " to " (count(end)) }
                    }
                }
                dt { "Plan" } dd { (plan.name) }
                dt { (term("plan hash", "Plan hash")) } dd { code { (plan.hash) } }
                dt { (term("seed", "Seed")) } dd { (plan.seed) }
                dt { "Warm-up" } dd { (span(plan.warmup)) ", not judged" }
                dt { "Engine" } dd { (plural(plan.threads as u64, "thread")) }
            }
            dl.facts {
                dt { (term("fingerprint", "Generator")) } dd { (machine.host) }
                dt { "CPU" } dd { (machine.cpu) }
                dt { "Cores" } dd {
                    (machine.cores)
                    @if let Some(limit) = machine.cpu_limit { ", limited to " (short(limit)) }
                }
                dt { "Memory" } dd { (bytes(machine.memory_bytes as f64)) }
                dt { "Kernel" } dd { (machine.kernel) }
                @if let Some(governor) = &machine.governor { dt { "Governor" } dd { (governor) } }
                @if let Some(congestion) = &machine.congestion {
                    dt { "Congestion control" } dd { (congestion) }
                }
                dt { "Target on this host" } dd { (if machine.target_local { "yes" } else { "no" }) }
            }
        } }
    }
}

/// The command that gets the numbers again from the saved plan. A URL with a masked part is read
/// from the environment.
fn command_again(plan: &PlanFacts, target: &TargetFacts, command: &str) -> (String, bool) {
    let masked = target.url.contains(MASK);
    let url = if masked { "\"$TARGET\"" } else { &target.url };
    let insecure = if plan.insecure { " --insecure" } else { "" };
    (format!("weir {command} plan.toml --target {url} --seed {}{insecure}", plan.seed), masked)
}

/// How to get the numbers again.
pub(super) fn repeat(
    plan: &PlanFacts,
    target: &TargetFacts,
    command: &str,
    version: &str,
    schema: &str,
) -> Markup {
    let (command, masked) = command_again(plan, target, command);
    html! {
        h3 { "To repeat it" }
        p { "Save the plan below as " code { "plan.toml" } ", then:" }
        pre { (command) }
        @if masked {
            p.note { "The URL holds a secret: set " code { "TARGET" } " to it first." }
        }
        p.note { "Written by weir " (version) ", schema " (schema) "." }
        details open[plan.text.len() < 2000] {
            summary { "The plan as it was written" }
            pre { (plan.text) }
        }
    }
}
