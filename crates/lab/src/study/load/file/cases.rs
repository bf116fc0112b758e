//! The cases of a load study. A case is a load plan, with values for the placeholders `{case.NAME}`
//! in the texts of the variants. Every variant runs in each case.

use std::collections::BTreeMap;
use std::thread::available_parallelism;

use settings::url::NodeUrl;
use settings::value::{AnyString, File, Map, Name, Number, Once};

use super::check::{Checker, PlanUse};
use super::ratios::RatioMaxTable;
use super::{LoadStudyFile, VARIABLE_MAX, VariantTable};
use crate::study::placeholders::{self, PlaceholderValues};
use crate::wording::number::plural;

/// Largest number of cases.
const CASES_MAX: usize = 64;

settings::table! {
    /// One case: a load, with values for the texts of the variants. Every variant runs in each
    /// case, and variants are compared within a case. Servers restart when the values or the CPU
    /// limit change. A study has cases in place of `plans`.
    pub struct CaseTable {
        /// Its name, a row of the report.
        name: Name = required;
        /// Its load plan. A relative path starts at the folder of this file.
        plan: File = described "the study's only plan";
        /// Values of the plan's variables. They replace those of the study and the variant.
        variables: Map<Number<{ -VARIABLE_MAX }, VARIABLE_MAX>> = empty;
        /// Texts by name, for the placeholders `{case.NAME}` in commands, files and targets of the
        /// variants. They may contain the other placeholders.
        values: Map<AnyString> = empty;
        /// Largest ratios to the first variant in this case. Each replaces the value of the
        /// variants that have one for the same metric.
        ratio_max: Once<RatioMaxTable> = empty;
        /// Number of CPUs that the servers of a variant may use together, as the limit of a pod.
        /// The limit is the quota of a cgroup. If no cgroup can be created, it is CPU affinity, and
        /// the report says so. A case with more CPUs than the machine has is left out.
        cpus: Number<10, 1_024_000> = described "no limit";
    }
}

/// One case.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// Name of the case.
    pub name: String,
    /// Values by the names of their placeholders.
    pub values: BTreeMap<String, String>,
    /// Number of CPUs for the servers of a variant; `None` sets no limit.
    pub cpus: Option<f64>,
    /// Values of the plan's variables.
    variables: Vec<(String, f64)>,
}

impl Case {
    /// Returns true if the servers of another case can serve this case.
    pub fn can_use_servers_of(&self, other: &Case) -> bool {
        self.values == other.values && self.cpus == other.cpus
    }

    /// Adds the values of the case to those of the other placeholders. The case's values may
    /// contain the other placeholders, which are replaced.
    pub(in crate::study::load) fn add_values(&self, values: &mut PlaceholderValues) {
        let other_values = values.clone();
        let replace = |(name, text): (&String, &String)| {
            (name.clone(), placeholders::replace(text, &other_values))
        };
        values.extend(self.values.iter().map(replace));
    }
}

/// Returns the number of CPUs of this machine that this process may use.
#[expect(clippy::cast_precision_loss, reason = "machines have few CPUs")]
fn machine_cpus() -> f64 {
    available_parallelism().map_or(1.0, |count| count.get() as f64)
}

impl Checker<'_, '_> {
    /// Reads the cases. Returns the cases that this machine cannot run, each with the reason.
    pub(super) fn read_cases(&mut self, file: &LoadStudyFile) -> Vec<String> {
        let mut left_out = Vec::new();
        let names = file.case.iter().map(|table| &table.name);
        self.check_distinct(names, None, "another case has this name");
        let machine_cpus = machine_cpus();
        for table in file.case.iter() {
            self.check_placeholders(&table.values.location, table.values.values(), false);
            if let Some(cpus) = (*table.cpus).filter(|cpus| *cpus > machine_cpus) {
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
                let available = plural(machine_cpus as u64, "CPU");
                let name = table.name.to_string();
                left_out.push(format!("{name}: needs {cpus} CPUs, this machine has {available}"));
                continue;
            }
            let values = table.values.iter();
            self.cases.push(Case {
                name: table.name.to_string(),
                values: values
                    .map(|(name, text)| (placeholders::case_placeholder(name), text.clone()))
                    .collect(),
                cpus: *table.cpus,
                variables: (*table.variables).clone().into_iter().collect(),
            });
        }
        if file.case.len() > CASES_MAX {
            let message = format!("there are {} cases", file.case.len());
            self.report.error_without_value(
                &file.case.location,
                message,
                format!("1 to {CASES_MAX} cases"),
            );
        }
        if self.cases.is_empty() && !left_out.is_empty() {
            let message = format!("no case can run on this machine: {}", left_out.join("; "));
            self.report.error_without_value(&file.case.location, message, "a case with fewer CPUs");
        }
        left_out
    }

    /// Returns the plans of a variant. If the study has cases, these are the plans of the cases.
    /// Otherwise they are the variant's own plans, or the study's if it has none.
    pub(super) fn plan_uses(
        &mut self,
        table: &VariantTable,
        study: &LoadStudyFile,
    ) -> Vec<PlanUse> {
        if self.cases.is_empty() {
            let key = if table.plans.is_some() { &table.plans } else { &study.plans };
            if key.is_none() {
                let message = "the variant has no plans";
                self.report.error_without_value(
                    &table.location,
                    message,
                    "plans here or in the study",
                );
            }
            let files = key.iter().flatten().enumerate();
            let plan_use = |(index, file): (usize, &String)| PlanUse {
                file: file.clone(),
                location: key.element_location(index),
                variables: Vec::new(),
            };
            return files.map(plan_use).collect();
        }
        if table.plans.is_set() {
            let message = "the study has cases, which name the plans";
            self.report.error(&table.plans, message, "variants without plans");
        }
        let only_plan =
            study.plans.as_ref().filter(|plans| plans.len() == 1).map(|plans| &plans[0]);
        let mut uses = Vec::new();
        for case in study.case.iter() {
            // `self.cases` lacks the cases that this machine cannot run.
            let runnable_case = self.cases.iter().find(|runnable| *case.name == runnable.name);
            let Some(variables) = runnable_case.map(|runnable| runnable.variables.clone()) else {
                continue;
            };
            let (file, location) = match (case.plan.as_ref(), only_plan) {
                (Some(file), _) => (file.clone(), case.plan.location.clone()),
                (None, Some(file)) => (file.clone(), study.plans.element_location(0)),
                (None, None) => {
                    let message = "the case has no plan";
                    let allowed = "a plan here, or one plan in the study";
                    self.report.error_without_value(&case.location, message, allowed);
                    continue;
                }
            };
            uses.push(PlanUse { file, location, variables });
        }
        uses
    }

    /// Checks that the target of a variant is a valid URL with the values of each case.
    pub(super) fn check_target_of_cases(&mut self, table: &VariantTable) {
        let Some(target) = table.target.as_ref() else { return };
        let fault_message = self.cases.iter().find_map(|case| {
            let mut values = PlaceholderValues::new();
            case.add_values(&mut values);
            let case_target = placeholders::replace(target, &values);
            let error =
                NodeUrl::parse_remote(&placeholders::replace_by_port(&case_target)).err()?;
            Some(format!("in the case {:?}: {error}", case.name))
        });
        if let Some(message) = fault_message {
            let allowed = "values that make a URL";
            self.report.error(&table.target, message, allowed);
        }
    }
}
