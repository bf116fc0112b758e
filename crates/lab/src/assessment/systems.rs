//! Groups results by system. Results to which the user gave the same name form a system. Results
//! without a name form a system if they have the same target and machine.

use lab_model::results::{Fingerprint, TargetFacts};

use super::read::{Input, SystemResult};
use crate::analysis::assessment::{Labelled, System};
use crate::variant::make_unique;

/// The results of one system, with the facts that identify it.
struct Group {
    /// The user's name for the system, if there is one.
    given_name: Option<String>,
    /// The target of the first result.
    target: TargetFacts,
    /// The load generator's machine in the first result.
    machine: Fingerprint,
    system: System,
}

impl Group {
    /// Returns true if a result with this name, target and machine belongs to the system.
    fn accepts(&self, name: Option<&str>, target: &TargetFacts, machine: &Fingerprint) -> bool {
        if self.given_name.is_some() || name.is_some() {
            return self.given_name.as_deref() == name;
        }
        self.target.url == target.url
            && self.machine.host == machine.host
            && self.machine.cpu == machine.cpu
            && self.machine.cores == machine.cores
    }

    /// Returns the user's name. Without one, returns the host of a local target, or the address of
    /// a remote target.
    fn short_name(&self) -> String {
        let Group { target, machine, .. } = self;
        match &self.given_name {
            Some(name) => name.clone(),
            None if machine.target_local && !machine.host.is_empty() => machine.host.clone(),
            None => authority(&target.url).to_owned(),
        }
    }
}

/// Groups results by system, in the order of their first results. Systems with equal short names
/// are named by address and host.
pub(super) fn group_by_system(inputs: Vec<Input>) -> Vec<System> {
    let mut groups: Vec<Group> = Vec::new();
    for Input { system: given_name, label, result } in inputs {
        let (target, machine) = match &result {
            SystemResult::Run(run) => (&run.target, &run.fingerprint),
            SystemResult::Search(search) => (&search.target, &search.fingerprint),
        };
        let existing =
            groups.iter().position(|group| group.accepts(given_name.as_deref(), target, machine));
        let index = existing.unwrap_or(groups.len());
        if existing.is_none() {
            let (target, machine) = (target.clone(), machine.clone());
            groups.push(Group { given_name, target, machine, system: System::default() });
        }
        let system = &mut groups[index].system;
        match result {
            SystemResult::Run(result) => system.runs.push(Labelled { label, result }),
            SystemResult::Search(result) => system.searches.push(Labelled { label, result }),
        }
    }
    let short_names: Vec<String> = groups.iter().map(Group::short_name).collect();
    let name_system = |(group, short_name): (Group, &String)| {
        let Group { given_name, target, machine, mut system } = group;
        let is_shared = short_names.iter().filter(|name| *name == short_name).count() > 1;
        system.name = match given_name {
            None if is_shared => [authority(&target.url), machine.host.as_str()].join(" on "),
            _ => short_name.clone(),
        };
        system.runs.sort_by(|a, b| a.result.started_unix.total_cmp(&b.result.started_unix));
        system.searches.sort_by(|a, b| a.result.started_unix.total_cmp(&b.result.started_unix));
        system
    };
    let mut systems: Vec<System> = groups.into_iter().zip(&short_names).map(name_system).collect();
    make_unique(systems.iter_mut().map(|system| &mut system.name));
    systems
}

/// Returns the host and port of a URL.
fn authority(url: &str) -> &str {
    let without_scheme = url.split_once("://").map_or(url, |(_, rest)| rest);
    without_scheme.split(['/', '?']).next().unwrap_or(without_scheme)
}
