//! Groups results by system: by the name that the user gave, else by target and machine.

use lab_model::results::{Fingerprint, TargetFacts};

use super::read::{Input, SystemResult};
use crate::analysis::assessment::{Labelled, System};
use crate::variant::make_unique;

/// The identity of a system.
#[derive(Clone, Debug, PartialEq)]
enum Identity {
    /// The user's name for it.
    Named(String),
    /// URL of the target; host name, CPU model and cores of the generator.
    Measured { url: String, host: String, cpu: String, cores: usize },
}

/// Groups results by system, in the order of their first results.
pub(super) fn group(inputs: Vec<Input>) -> Vec<System> {
    let mut identities: Vec<Identity> = Vec::new();
    let mut systems: Vec<System> = Vec::new();
    let mut facts: Vec<(TargetFacts, Fingerprint)> = Vec::new();
    for input in inputs {
        let (target, machine) = match &input.result {
            SystemResult::Run(run) => (&run.target, &run.fingerprint),
            SystemResult::Search(search) => (&search.target, &search.fingerprint),
        };
        let identity = match &input.system {
            Some(name) => Identity::Named(name.clone()),
            None => Identity::Measured {
                url: target.url.clone(),
                host: machine.host.clone(),
                cpu: machine.cpu.clone(),
                cores: machine.cores,
            },
        };
        let known = identities.iter().position(|other| *other == identity);
        let index = known.unwrap_or(systems.len());
        if known.is_none() {
            identities.push(identity);
            facts.push((target.clone(), machine.clone()));
            systems.push(System { name: String::new(), runs: Vec::new(), searches: Vec::new() });
        }
        let label = input.label;
        match input.result {
            SystemResult::Run(result) => systems[index].runs.push(Labelled { label, result }),
            SystemResult::Search(result) => {
                systems[index].searches.push(Labelled { label, result });
            }
        }
    }
    for (system, name) in systems.iter_mut().zip(names(&identities, &facts)) {
        system.name = name;
        system.runs.sort_by(|a, b| a.result.started_unix.total_cmp(&b.result.started_unix));
        system.searches.sort_by(|a, b| a.result.started_unix.total_cmp(&b.result.started_unix));
    }
    systems
}

/// Returns unique names: the user's; the host of a local target, or the address of a remote one.
/// Systems with equal names get the address and the host.
fn names(identities: &[Identity], facts: &[(TargetFacts, Fingerprint)]) -> Vec<String> {
    let short =
        |(identity, (target, machine)): (&Identity, &(TargetFacts, Fingerprint))| match identity {
            Identity::Named(name) => name.clone(),
            _ if machine.target_local && !machine.host.is_empty() => machine.host.clone(),
            _ => authority(&target.url).to_owned(),
        };
    let short: Vec<String> = identities.iter().zip(facts).map(short).collect();
    let full = |(index, (identity, (target, machine))): (
        usize,
        (&Identity, &(TargetFacts, Fingerprint)),
    )| {
        let is_shared = short.iter().filter(|name| **name == short[index]).count() > 1;
        match identity {
            Identity::Measured { .. } if is_shared => {
                [authority(&target.url), machine.host.as_str()].join(" on ")
            }
            _ => short[index].clone(),
        }
    };
    let mut names: Vec<String> = identities.iter().zip(facts).enumerate().map(full).collect();
    make_unique(names.iter_mut());
    names
}

/// Returns the host and port of a URL.
fn authority(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.split(['/', '?']).next().unwrap_or(rest)
}
