//! Chains: families, what follows from them, and paths that must not collide.

use std::collections::HashMap;
use std::time::Duration;

use wire::method::FamilyName;

use super::super::Chain;
use super::super::fault::Report;
use super::super::field::CHAIN;
use super::super::file::{Entry, Written};
use super::super::kind::check_name;
use super::{refuse, refuse_element};

/// The chain of a file that names none.
const ONLY_CHAIN: &str = "ethereum";

/// All chains, without their nodes and groups yet.
pub(super) fn check(written: &Written, report: &mut Report<'_>) -> Vec<Chain> {
    let entries: Vec<&Entry> = written.all(&CHAIN).collect();
    if entries.is_empty() {
        return vec![chain(&Entry::absent(&CHAIN, ONLY_CHAIN), true, report)];
    }
    let only = entries.len() == 1;
    let mut chains = Vec::with_capacity(entries.len());
    for entry in &entries {
        if let Err(message) = check_name(&entry.name) {
            let allowed = Some("[chain.NAME], with a name such as eth".to_owned());
            report.fault(entry.span.as_ref(), "chain", None, message, allowed);
        }
        chains.push(chain(entry, only, report));
        warn_of_no_id(entry, &chains[chains.len() - 1], report);
    }
    one_default(&entries, &chains, report);
    no_shared_paths(&entries, &chains, report);
    chains
}

fn chain(entry: &Entry, only: bool, report: &mut Report<'_>) -> Chain {
    let family = match entry.value("family").choice() {
        "harmony" => FamilyName::Harmony,
        "bitcoin" => FamilyName::Bitcoin,
        _ => FamilyName::Ethereum,
    };
    // Ethereum: 12 s slots, and 2 epochs of 32 slots to finality. Harmony: 2 s blocks, final by
    // agreement when they are made, with a small margin (gateway-rules 47). Bitcoin: 10 minutes,
    // and the customary 6 confirmations.
    let (block_time, finality_depth) = match family {
        FamilyName::Ethereum => (Duration::from_secs(12), 64),
        FamilyName::Harmony => (Duration::from_secs(2), 2),
        FamilyName::Bitcoin => (Duration::from_secs(600), 6),
    };
    let default = entry.chosen("default").map_or(only, |value| value.switch());
    let paths = match entry.chosen("paths") {
        Some(paths) => paths.texts(),
        None if default => vec!["/".to_owned(), format!("/{}", entry.name)],
        None => vec![format!("/{}", entry.name)],
    };
    if paths.is_empty() && !default {
        refuse(report, entry, "paths", "no path leads to this chain", "at least one path");
    }
    Chain {
        name: entry.name.as_str().into(),
        family,
        id: entry.chosen("id").map(|value| value.count()),
        block_time: entry.chosen("block_time").map_or(block_time, |value| value.duration()),
        finality_depth: entry
            .chosen("finality_depth")
            .map_or(finality_depth, |value| value.count()),
        poll_interval: entry.value("poll_interval").duration(),
        lag_max: entry.value("lag_max").count(),
        jump_max: entry.value("jump_max").count(),
        paths: paths.into_iter().map(String::into_boxed_str).collect(),
        default,
        methods: super::access::method_rules(entry),
        nodes: Vec::new(),
        groups: Vec::new(),
    }
}

fn warn_of_no_id(entry: &Entry, chain: &Chain, report: &mut Report<'_>) {
    // Bitcoin's nodes give no number that names the chain.
    if chain.id.is_none() && chain.family != FamilyName::Bitcoin {
        let message = "not set: a node of another chain would not be noticed at start";
        let advice = "the number that eth_chainId gives, such as 1 for ethereum";
        report.warn(entry.span.as_ref(), entry.key("id"), message, advice);
    }
}

fn one_default(entries: &[&Entry], chains: &[Chain], report: &mut Report<'_>) {
    let mut defaults = entries.iter().zip(chains).filter(|(_, chain)| chain.default);
    let Some((_, first)) = defaults.next() else { return };
    for (entry, _) in defaults {
        let message = format!("{} is the default chain already", first.name);
        refuse(report, entry, "default", &message, "true for one chain at most");
    }
}

fn no_shared_paths(entries: &[&Entry], chains: &[Chain], report: &mut Report<'_>) {
    let mut owners: HashMap<&str, &str> = HashMap::new();
    for (entry, chain) in entries.iter().zip(chains) {
        for (at, path) in chain.paths.iter().enumerate() {
            if let Some(owner) = owners.insert(path, &chain.name) {
                let message = format!("the path {path} leads to chain {owner} already");
                refuse_element(report, entry, "paths", at, &message, "each path once");
            }
        }
    }
}
