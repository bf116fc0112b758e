//! Groups: which nodes serve which methods, and what a group leaves to `[call]`.

use std::collections::{HashMap, HashSet};

use super::super::fault::Report;
use super::super::field::{CALL, GROUP, OVERLOAD};
use super::super::file::{Entry, Written};
use super::super::kind::Value;
use super::super::{Balance, Chain, Group, Hedge, Node};
use super::nodes::chain_of;
use super::{not_found, refuse, refuse_element, shown};
use crate::rules::access::MethodSet;
use crate::rules::overload::limiter::LimiterSettings;

/// The group that serves the methods which no other one names.
const OTHER_METHODS: &str = "all";

/// The pattern of every method.
const EVERY_METHOD: &str = "*";

/// All groups; each chain learns which are its own, the one for every method last.
pub(super) fn check(
    written: &Written,
    chains: &mut [Chain],
    nodes: &[Node],
    report: &mut Report<'_>,
) -> Vec<Group> {
    let call = written.once(&CALL);
    let overload = written.once(&OVERLOAD);
    if call.value("attempt_deadline").duration() > call.value("deadline").duration() {
        let (key, other) = if call.set("attempt_deadline").is_some() {
            ("attempt_deadline", "at most call.deadline")
        } else {
            ("deadline", "at least call.attempt_deadline")
        };
        let message = "one attempt may take longer than the whole call";
        let deadline = if key == "deadline" { "attempt_deadline" } else { "deadline" };
        let allowed = format!("{other}, {}", shown(call.value(deadline).duration()));
        refuse(report, &call, key, message, &allowed);
    }
    let mut groups: Vec<Group> = Vec::new();
    let mut patterns: HashMap<(usize, String), String> = HashMap::new();
    for entry in written.all(&GROUP) {
        let Some(chain) = chain_of(entry, chains, report) else { continue };
        let group = group(entry, &call, &overload, chain, chains, nodes, report);
        let same = |other: &&usize| groups[**other].name == group.name;
        if chains[chain].groups.iter().any(|other| same(&other)) {
            refuse(
                report,
                entry,
                "name",
                "another group of the chain has this name",
                "each name once",
            );
        }
        for (at, pattern) in group.methods.iter().enumerate() {
            let owner = patterns.insert((chain, pattern.to_string()), group.name.to_string());
            if let Some(owner) = owner {
                let message = format!("group {owner} serves this pattern already");
                refuse_element(report, entry, "methods", at, &message, "each pattern once");
            }
        }
        chains[chain].groups.push(groups.len());
        groups.push(group);
    }
    for (at, chain) in chains.iter_mut().enumerate() {
        other_methods(at, chain, &call, written, nodes, &mut groups, report);
    }
    groups
}

fn group(
    entry: &Entry,
    call: &Entry,
    overload: &Entry,
    chain: usize,
    chains: &[Chain],
    nodes: &[Node],
    report: &mut Report<'_>,
) -> Group {
    let name = entry.chosen("name").map_or_else(String::new, |name| name.text());
    let methods = entry.chosen("methods").map_or_else(Vec::new, |methods| methods.texts());
    if entry.set("methods").is_some_and(|set| set.elements.is_empty()) {
        refuse(report, entry, "methods", "the group serves nothing", "at least one pattern");
    }
    let members = members(entry, &chains[chain], nodes, report);
    let group = Group {
        name: name.into(),
        chain,
        in_flight: in_flight(entry, overload, &members, nodes, report),
        nodes: members,
        methods: methods.into_iter().map(String::into_boxed_str).collect(),
        methods_deny: super::access::methods(entry, "methods_deny"),
        balance: balance(entry, call),
        deadline: either(entry, call, "deadline").duration(),
        attempt_deadline: either(entry, call, "attempt_deadline").duration(),
        retries_max: either(entry, call, "retries_max").count() as u32,
        answer_bytes_max: either(entry, call, "answer_bytes_max").size(),
        hedge: hedge(entry, call),
    };
    let set = |key| entry.set(key).is_some();
    if group.attempt_deadline > group.deadline && (set("attempt_deadline") || set("deadline")) {
        let message = "one attempt may take longer than the whole call";
        let (key, allowed) = if set("attempt_deadline") {
            ("attempt_deadline", format!("at most deadline, {}", shown(group.deadline)))
        } else {
            ("deadline", format!("at least attempt_deadline, {}", shown(group.attempt_deadline)))
        };
        refuse(report, entry, key, message, &allowed);
    }
    if !matches!(group.balance, Balance::Hash { .. }) {
        for key in ["hash_key", "load_factor"] {
            if set(key) {
                refuse(
                    report,
                    entry,
                    key,
                    "the group does not balance by hash",
                    "balance = \"hash\"",
                );
            }
        }
    }
    group
}

fn members(entry: &Entry, chain: &Chain, nodes: &[Node], report: &mut Report<'_>) -> Vec<usize> {
    let Some(names) = entry.chosen("nodes") else { return chain.nodes.clone() };
    let known: Vec<&str> = chain.nodes.iter().map(|node| &*nodes[*node].name).collect();
    let names = names.texts();
    if entry.set("nodes").is_some_and(|set| set.elements.is_empty()) {
        refuse(report, entry, "nodes", "the group has no node", &known.join(", "));
    }
    let mut members = Vec::with_capacity(names.len());
    let mut seen = HashSet::new();
    for (at, name) in names.iter().enumerate() {
        match chain.nodes.iter().find(|node| &*nodes[**node].name == name) {
            None => {
                let (message, allowed) = not_found("node of the chain", name, &known);
                refuse_element(report, entry, "nodes", at, &message, &allowed);
            }
            Some(_) if !seen.insert(name) => {
                refuse_element(report, entry, "nodes", at, "named twice", "each node once");
            }
            Some(node) => members.push(*node),
        }
    }
    members
}

/// Sees to it that the last group of a chain serves every method.
fn other_methods(
    at: usize,
    chain: &mut Chain,
    call: &Entry,
    written: &Written,
    nodes: &[Node],
    groups: &mut Vec<Group>,
    report: &mut Report<'_>,
) {
    let serves_all = |group: &usize| groups[*group].methods.iter().any(|m| &**m == EVERY_METHOD);
    if let Some(found) = chain.groups.iter().position(serves_all) {
        let last = chain.groups.remove(found);
        chain.groups.push(last);
        return;
    }
    if chain.groups.iter().any(|group| &*groups[*group].name == OTHER_METHODS) {
        let mut entries = written.all(&GROUP);
        let named =
            |entry: &&Entry| entry.chosen("name").is_some_and(|n| n.text() == OTHER_METHODS);
        if let Some(entry) = entries.find(named) {
            let message = "this name is kept for the group that serves every other method";
            refuse(report, entry, "name", message, "another name, or methods with \"*\"");
        }
    }
    let overload = written.once(&OVERLOAD);
    let in_flight = in_flight(&overload, &overload, &chain.nodes, nodes, report);
    chain.groups.push(groups.len());
    groups.push(Group {
        name: OTHER_METHODS.into(),
        chain: at,
        nodes: chain.nodes.clone(),
        methods: vec![EVERY_METHOD.into()],
        methods_deny: MethodSet::default(),
        balance: balance(call, call),
        deadline: call.value("deadline").duration(),
        attempt_deadline: call.value("attempt_deadline").duration(),
        retries_max: call.value("retries_max").count() as u32,
        answer_bytes_max: call.value("answer_bytes_max").size(),
        hedge: hedge(call, call),
        in_flight,
    });
}

/// Bounds of the limit of calls under way: what the group says, or else `[overload]`.
fn in_flight(
    entry: &Entry,
    overload: &Entry,
    members: &[usize],
    nodes: &[Node],
    report: &mut Report<'_>,
) -> LimiterSettings {
    let limit_min = either(entry, overload, "in_flight_min").count() as u32;
    let set = entry.chosen("in_flight_max").or_else(|| overload.chosen("in_flight_max"));
    let connections: usize = members.iter().map(|node| nodes[*node].connections_max).sum();
    let limit_max = match set {
        Some(set) => set.count() as u32,
        None => u32::try_from(connections).unwrap_or(u32::MAX).max(limit_min),
    };
    if limit_min > limit_max {
        let (at, key) = match ["in_flight_min", "in_flight_max"] {
            keys if entry.set(keys[0]).is_some() => (entry, keys[0]),
            keys if entry.set(keys[1]).is_some() => (entry, keys[1]),
            _ => (overload, "in_flight_min"),
        };
        let allowed = "in_flight_min at most in_flight_max";
        refuse(report, at, key, "the lowest limit is above the highest", allowed);
    }
    LimiterSettings { limit_min, limit_max: limit_max.max(limit_min) }
}

/// What the group says, or else `[call]`.
fn either(entry: &Entry, call: &Entry, key: &str) -> Value {
    entry.chosen(key).unwrap_or_else(|| call.value(key))
}

fn balance(entry: &Entry, call: &Entry) -> Balance {
    match either(entry, call, "balance").choice() {
        "weighted" => Balance::Weighted,
        "hash" => Balance::Hash {
            key: either(entry, call, "hash_key").hash_key(),
            load_factor: either(entry, call, "load_factor").number(),
        },
        _ => Balance::LeastLoaded,
    }
}

fn hedge(entry: &Entry, call: &Entry) -> Option<Hedge> {
    either(entry, call, "hedge").switch().then(|| Hedge {
        quantile: call.value("hedge_quantile").number(),
        delay_min: call.value("hedge_delay_min").duration(),
        share_max: call.value("hedge_share_max").number(),
    })
}
