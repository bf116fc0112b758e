//! Checks a study file: its names, plans, ports and placeholders. Reads its plans.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use lab_model::plan::{self, Plan};
use settings::{Key, Location, Report};

use super::cases::Case;
use super::{
    LoadStudy, LoadStudyFile, ServerTable, StudyVariant, VariantTable, control_name, hash_runs,
    plan_names,
};
use crate::study::placeholders;

/// Allowed number of variants, without the A/A control, which repeats the first variant.
const VARIANTS: RangeInclusive<usize> = 1..=16;
/// Allowed number of plans of a variant.
const PLANS: RangeInclusive<usize> = 1..=16;

/// Checks a study file, and reads the plans and cases that it names.
pub(super) struct Checker<'c, 'r> {
    /// Folder of the study file.
    pub(super) folder: &'c Path,
    /// Values of plans' variables from the command line.
    pub(super) overrides: &'c [(String, f64)],
    /// Collects the problems of the file.
    pub(super) report: &'c mut Report<'r>,
    /// Paths of plans whose problems are already in the report.
    pub(super) faulty_plans: BTreeSet<PathBuf>,
    /// The cases that this machine can run.
    pub(super) cases: Vec<Case>,
}

/// A plan of a variant.
pub(super) struct PlanUse {
    /// File name of the plan.
    pub(super) file: String,
    /// Location of the file name in the study file.
    pub(super) location: Location,
    /// Values of the case for the plan's variables; empty without cases.
    pub(super) variables: Vec<(String, f64)>,
}

impl Checker<'_, '_> {
    /// Checks the file and returns the study. The study may be used only if the report has no
    /// error.
    pub(super) fn check(&mut self, file: LoadStudyFile) -> LoadStudy {
        let cases_left_out = self.read_cases(&file);
        // Shared servers run for all cases, so their texts cannot use the values of one case.
        file.server.iter().for_each(|server| self.check_server(server, false));
        let mut variants: Vec<StudyVariant> =
            file.variant.iter().map(|table| self.read_variant(table, &file)).collect();
        self.check_count(&file);
        self.check_names(&file);
        self.check_plans(&file, &variants);
        self.check_ports(&file, &variants);
        self.check_limits(&file);
        let cases = std::mem::take(&mut self.cases);
        let plans = match (cases.is_empty(), variants.first()) {
            (false, _) => cases.iter().map(|case| case.name.clone()).collect(),
            (true, Some(first)) => plan_names(&first.plan_files),
            (true, None) => Vec::new(),
        };
        let ratio_limits = self.read_ratio_limits(&file, &plans);
        if let Some(first) = variants.first().cloned().filter(|_| *file.control) {
            let name = control_name(&first.name);
            variants.push(StudyVariant { name, control_of: Some(0), ..first });
        }
        let hash = hash_runs(&file, &cases, &variants);
        LoadStudy { file, plans, cases, cases_left_out, variants, ratio_limits, hash }
    }

    /// Checks the command, the files and the address of a server. `has_case` is true if the
    /// server runs for one case only, so that its texts may use the values of the case.
    fn check_server(&mut self, table: &ServerTable, has_case: bool) {
        if table.command.is_empty() && table.command.is_set() {
            self.report.error(&table.command, "the command is empty", "at least one word");
        }
        self.check_placeholders(&table.command.location, table.command.iter(), has_case);
        self.check_placeholders(&table.env.location, table.env.values(), has_case);
        self.check_placeholders(&table.ready.location, table.ready.iter(), has_case);
        self.check_placeholders(&table.access_log.location, table.access_log.iter(), has_case);
        for name in table.files.keys() {
            if !is_file_name(name) {
                let message = format!("{name:?} is not the name of a file in {{dir}}");
                self.report.error_without_value(
                    &table.files.location,
                    message,
                    "letters, digits, `-`, `_` and `.`",
                );
            }
        }
        if let Some(address) = table.ready.as_ref() {
            let replaced = placeholders::replace_by_port(address);
            let port = replaced.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
            if port.is_none() {
                let allowed = "HOST:PORT, such as 127.0.0.1:{port.NAME}";
                self.report.error(&table.ready, "not an address with a port", allowed);
            }
        }
    }

    /// Checks that all placeholders in texts are known. `{case.NAME}` is known if `has_case` is
    /// true and every case has a value of this name.
    pub(super) fn check_placeholders<'t>(
        &mut self,
        location: &Location,
        texts: impl Iterator<Item = &'t String>,
        has_case: bool,
    ) {
        let cases = if has_case { self.cases.as_slice() } else { &[] };
        let names = texts.flat_map(|text| placeholders::names(text));
        let is_known = |name: &str| match placeholders::is_case_value(name) {
            true => {
                let has_value = |case: &Case| case.values.contains_key(name);
                !cases.is_empty() && cases.iter().all(has_value)
            }
            false => placeholders::is_known(name),
        };
        let unknown: Vec<&str> = names.filter(|name| !is_known(name)).collect();
        for name in unknown {
            let names = placeholders::NAMES.join("}, {");
            let message = format!("unknown placeholder {{{name}}}");
            let case_values = if cases.is_empty() { "" } else { ", {case.NAME} of all cases" };
            let allowed = format!("{{{names}}}, {{port.NAME}}{case_values}");
            self.report.error(location, message, allowed);
        }
    }

    /// Checks a variant and reads its plans.
    fn read_variant(&mut self, table: &VariantTable, study: &LoadStudyFile) -> StudyVariant {
        self.check_placeholders(&table.target.location, table.target.iter(), true);
        self.check_target_of_cases(table);
        let uses = self.plan_uses(table, study);
        let mut variables: BTreeMap<String, f64> = (*study.variables).clone();
        variables.extend((*table.variables).clone());
        variables.extend(self.overrides.iter().cloned());
        let plans: Vec<Plan> = uses
            .iter()
            .filter_map(|plan| {
                // Values of the case replace those of the study and the variant. Values of the
                // command line replace all others.
                let mut plan_variables: BTreeMap<String, f64> = variables.clone();
                plan_variables.extend(plan.variables.iter().cloned());
                plan_variables.extend(self.overrides.iter().cloned());
                let plan_variables: Vec<(String, f64)> = plan_variables.into_iter().collect();
                self.read_plan(&plan.file, &plan.location, &plan_variables)
            })
            .collect();
        table.server.iter().for_each(|server| self.check_server(server, true));
        StudyVariant {
            name: table.name.to_string(),
            control_of: None,
            target: (*table.target).clone(),
            plan_files: uses.into_iter().map(|plan| plan.file).collect(),
            variables: variables.into_iter().collect(),
            plans,
            servers: (*table.server).clone(),
        }
    }

    /// Reads a plan. If several variants use a faulty plan, its problems are reported only once.
    fn read_plan(
        &mut self,
        file: &str,
        location: &Location,
        variables: &[(String, f64)],
    ) -> Option<Plan> {
        let path = self.folder.join(file);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) => {
                if self.faulty_plans.insert(path) {
                    let message = format!("cannot read the plan: {error}");
                    let allowed = "name of a plan, from the folder of this file";
                    self.report.error(location, message, allowed);
                }
                return None;
            }
        };
        match plan::read(&text, &path.display().to_string(), variables) {
            Ok(plan) => Some(plan),
            Err(problems) => {
                if self.faulty_plans.insert(path) {
                    self.report.absorb(problems);
                }
                None
            }
        }
    }

    /// Checks the number of variants.
    fn check_count(&mut self, file: &LoadStudyFile) {
        let count = file.variant.len();
        if file.variant.is_set() && !VARIANTS.contains(&count) {
            let message = format!("there are {count} variants");
            let allowed = format!("{} to {} variants", VARIANTS.start(), VARIANTS.end());
            self.report.error_without_value(&file.variant.location, message, allowed);
        }
        if count == 1 && !*file.control {
            let message = "there is one variant, and no control to compare it with";
            self.report.error_without_value(
                &file.variant.location,
                message,
                "two variants, or control = true",
            );
        }
    }

    /// Checks that variants, the A/A control and the servers of a variant have distinct names.
    fn check_names(&mut self, file: &LoadStudyFile) {
        let controlled = file.variant.first().filter(|_| *file.control);
        let control = controlled.map(|first| control_name(&first.name));
        let names = file.variant.iter().map(|table| &table.name);
        let message = "another variant, or the A/A control, has this name";
        self.check_distinct(names, control, message);
        let variant_servers = file.variant.iter().map(|table| &table.server);
        for servers in variant_servers.chain([&file.server]) {
            let names = servers.iter().map(|server| &server.name);
            self.check_distinct(names, None, "another server of the same variant has this name");
        }
    }

    /// Checks that names differ from each other, and from a name that is already taken.
    pub(super) fn check_distinct<'t>(
        &mut self,
        names: impl Iterator<Item = &'t Key<String>>,
        taken: Option<String>,
        message: &str,
    ) {
        let mut used: BTreeSet<String> = taken.into_iter().collect();
        for name in names {
            if !used.insert(name.to_string()) {
                self.report.error(name, message, "each name once");
            }
        }
    }

    /// Checks that all variants have the same number of plans, and that plans have distinct names.
    /// A study with cases needs no check, because its cases name the plans.
    fn check_plans(&mut self, file: &LoadStudyFile, variants: &[StudyVariant]) {
        let Some(first) = variants.first().filter(|_| self.cases.is_empty()) else { return };
        let expected = first.plan_files.len();
        for (table, variant) in file.variant.iter().zip(variants) {
            let count = variant.plan_files.len();
            let keys = if table.plans.is_set() { &table.plans } else { &file.plans };
            if keys.is_set() && !PLANS.contains(&count) {
                let allowed = format!("{} to {} plans", PLANS.start(), PLANS.end());
                self.report.error(keys, format!("there are {count} plans"), allowed);
            } else if count != expected && count > 0 && expected > 0 {
                let message = format!("{count} plans, but {:?} has {expected}", first.name);
                self.report.error(keys, message, format!("{expected} plans, in the same order"));
            }
        }
        let names = plan_names(&first.plan_files);
        let unique: BTreeSet<&String> = names.iter().collect();
        if unique.len() < names.len() {
            let keys =
                file.variant.first().map(|table| &table.plans).filter(|plans| plans.is_set());
            let message = "two plans have the same file name without folder and extension";
            self.report.error(keys.unwrap_or(&file.plans), message, "distinct file names");
        }
    }

    /// Checks that each placeholder of a port is used at least twice: where a server listens on the
    /// port, and where a client or the readiness check connects to it.
    fn check_ports(&mut self, file: &LoadStudyFile, variants: &[StudyVariant]) {
        let shared_ports = ports(&file.server, None, &[]);
        let mut shared_uses: BTreeMap<String, usize> = shared_ports.clone();
        let mut used_once = Vec::new();
        for (table, variant) in file.variant.iter().zip(variants) {
            for (port, count) in ports(&variant.servers, variant.target.as_deref(), &self.cases) {
                if shared_ports.contains_key(&port) {
                    *shared_uses.entry(port).or_default() += count;
                } else if count < 2 {
                    used_once.push((&table.location, port));
                }
            }
        }
        let shared_once = shared_uses.into_iter().filter(|(_, count)| *count < 2);
        used_once.extend(shared_once.map(|(port, _)| (&file.server.location, port)));
        for (location, port) in used_once {
            let message = format!("the port {{port.{port}}} is used only once");
            let allowed = "each port at its server and at what connects to it";
            self.report.error_without_value(location, message, allowed);
        }
    }

    /// Checks the limits of the number of rounds.
    fn check_limits(&mut self, file: &LoadStudyFile) {
        if *file.rounds_max < *file.rounds_min {
            let message = format!("rounds_max is below rounds_min, which is {}", *file.rounds_min);
            let keys = if file.rounds_max.is_set() { &file.rounds_max } else { &file.rounds_min };
            self.report.error(keys, message, "rounds_min at most rounds_max");
        }
    }
}

/// Counts the uses of each port in the texts of servers and of a target. If one of these texts has
/// a placeholder of a case, counts the uses in the values of all cases too.
fn ports(servers: &[ServerTable], target: Option<&str>, cases: &[Case]) -> BTreeMap<String, usize> {
    let mut uses = BTreeMap::new();
    let texts: Vec<&str> = servers.iter().flat_map(ServerTable::texts).chain(target).collect();
    let uses_case =
        texts.iter().flat_map(|text| placeholders::names(text)).any(placeholders::is_case_value);
    let case_values = cases.iter().filter(|_| uses_case).flat_map(|case| case.values.values());
    let texts = texts.into_iter().chain(case_values.map(String::as_str));
    for port in texts.flat_map(placeholders::names).filter_map(placeholders::port_name) {
        *uses.entry(port.to_owned()).or_default() += 1;
    }
    uses
}

/// Returns true if a name is a plain file name without a folder.
fn is_file_name(name: &str) -> bool {
    let allowed = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    !name.is_empty() && !name.starts_with('.') && name.chars().all(allowed)
}
