//! Reads mixes of calls: from the plan, from mix files, or shipped with the program. A mix is a
//! list of steps, and each step of an iteration sends one request.
//!
//! `report.error(key, message, allowed)` reports a problem of a key, with the values that would be
//! allowed. `report.error_without_value` does the same, but does not print the value of the key.

use settings::value::Name;
use settings::{
    Diagnostics, Input, Key, Location, Report, Scalar, TEXT_BYTES_MAX, not_found_message,
};

use super::super::lint::Warning;
use super::super::requests::{self, METHODS_MAX, Methods};
use super::super::tables::{CallTable, MixTable, PlanFile, ScenarioTable, StepKeys, StepTable};
use super::super::{Environment, Mix, Step, Template, WeightedCall, shipped, transactions};

/// Maximum number of steps of an iteration.
const STEPS_MAX: usize = 100;
/// Maximum number of calls that a step chooses from.
const CALLS_MAX: usize = 10_000;

/// All mixes that a plan can refer to.
pub(super) struct Mixes {
    /// The mixes of the plan's file by name. `None` marks a mix with problems.
    defined: Vec<(String, Option<Mix>)>,
    /// The mixes that scenarios use, in the order of their indexes.
    pub(super) used: Vec<Mix>,
    /// Warnings about likely mistakes.
    pub(super) warnings: Vec<Warning>,
}

impl Mixes {
    /// Reads the mixes of the plan's file. Adds the methods of the used mixes to `methods`.
    pub(super) fn read(
        file: &PlanFile,
        environment: &Environment<'_>,
        methods: &mut Methods,
        report: &mut Report<'_>,
    ) -> Mixes {
        let is_used = |name: &String| file.scenario.iter().any(|scenario| *scenario.mix == *name);
        let mut mixes = Mixes { defined: Vec::new(), used: Vec::new(), warnings: Vec::new() };
        let has_no_mix = |scenario: &ScenarioTable| scenario.mix.valid_value().is_none();
        // A scenario that names no valid mix may use methods that are not in the list.
        methods.is_incomplete = file.scenario.is_empty() || file.scenario.iter().any(has_no_mix);
        for (name, table) in file.mix.iter() {
            if let Err(message) = <Name as Scalar>::parse(Input::String(name)) {
                report.error_without_value(&table.location, message, <Name as Scalar>::allowed());
            }
            let is_used = is_used(name);
            let mut unused_methods = Methods::default();
            let methods = if is_used { &mut *methods } else { &mut unused_methods };
            let mix = MixReader { environment, methods, report }.read_mix_or_file(name, table);
            if !is_used {
                let text = format!("no scenario names the mix {name}");
                mixes.warnings.push(Warning::Other(text));
            }
            mixes.defined.push((name.clone(), mix));
        }
        mixes
    }

    /// Returns the index in `used` of the mix that a scenario uses. Adds the mix to `used` if it is
    /// not there yet. Returns `None` if the scenario has no valid mix name, or if the mix is
    /// unknown or has problems.
    pub(super) fn index(
        &mut self,
        scenario: &ScenarioTable,
        methods: &mut Methods,
        report: &mut Report<'_>,
    ) -> Option<usize> {
        let name = scenario.mix.valid_value()?;
        if let Some(index) = self.used.iter().position(|mix| mix.name == *name) {
            return Some(index);
        }
        let defined = self.defined.iter().find(|(defined, _)| defined == name);
        let mix = match (defined, shipped::text(name)) {
            (Some((_, mix)), _) => mix.clone()?,
            (None, Some(text)) => read_shipped(name, text, methods),
            (None, None) => {
                let defined = self.defined.iter().map(|(name, _)| name.as_str());
                let known: Vec<_> =
                    defined.chain(shipped::MIXES.iter().map(|(name, _)| *name)).collect();
                let (message, allowed) = not_found_message("mix", name, &known);
                report.error(&scenario.mix, message, allowed);
                methods.is_incomplete = true;
                return None;
            }
        };
        self.used.push(mix);
        Some(self.used.len() - 1)
    }
}

/// Reads a shipped mix.
fn read_shipped(name: &str, text: &str, methods: &mut Methods) -> Mix {
    read_mix(name, name, text, methods).expect("a test reads every shipped mix")
}

/// Reads a mix from the text of a mix file. `name` is the name of the mix, and `file` the name of
/// the file in diagnostics. The text cannot refer to other files, variables or the environment.
///
/// # Errors
/// Returns all problems of the text.
pub(in crate::plan) fn read_mix(
    name: &str,
    file: &str,
    text: &str,
    methods: &mut Methods,
) -> Result<Mix, Diagnostics> {
    let environment = Environment::none();
    let (table, mut report) = settings::read::<MixTable>(text, file, &environment.settings());
    let mix = table.and_then(|table| {
        if table.file.is_set() {
            let message = "a mix file cannot refer to another";
            report.error(
                &table.file,
                message,
                "the keys of a mix: step, calls, requests, bodies or transactions",
            );
        }
        MixReader { environment: &environment, methods, report: &mut report }
            .read_keys(name, &table)
    });
    match mix {
        Some(mix) if !report.has_errors() => Ok(mix),
        _ => Err(report.finish()),
    }
}

/// Reads mixes from tables and reports their problems. The functions return `None` for a part with
/// a problem.
struct MixReader<'a, 'r, 't> {
    environment: &'a Environment<'a>,
    methods: &'a mut Methods,
    report: &'r mut Report<'t>,
}

impl MixReader<'_, '_, '_> {
    /// Reads a mix from the keys of its table, or from the file that the table names.
    fn read_mix_or_file(&mut self, name: &str, table: &MixTable) -> Option<Mix> {
        let Some(file) = &*table.file else { return self.read_keys(name, table) };
        let key_locations = [
            &table.step.location,
            &table.calls.location,
            &table.requests.location,
            &table.bodies.location,
            &table.transactions.location,
        ];
        if key_locations.into_iter().any(Location::is_written) {
            let message = "a mix has either a file or keys of its own, not both";
            self.report.error(&table.file, message, "file, or keys of the mix");
            return None;
        }
        let text = match self.environment.read_text(file, TEXT_BYTES_MAX) {
            Ok(text) => text,
            Err(message) => {
                self.methods.is_incomplete = true;
                self.report.error(&table.file, message, "a file with the keys of a mix");
                return None;
            }
        };
        match read_mix(name, file, &text, self.methods) {
            Ok(mix) => Some(mix),
            Err(problems) => {
                self.methods.is_incomplete = true;
                self.report.absorb(problems);
                None
            }
        }
    }

    /// Reads a mix from the keys of its table, which has steps or the keys of a single step.
    fn read_keys(&mut self, name: &str, table: &MixTable) -> Option<Mix> {
        let problems = self.report.count();
        let keys = table.step_keys();
        let steps = match table.step.is_set() {
            true => {
                for location in
                    keys.positions().into_iter().filter(|location| location.is_written())
                {
                    let message = "a mix with steps has no such key of its own";
                    self.report.error(location, message, "this key in a step");
                }
                self.read_steps(&table.step)
            }
            false => self.read_step(&keys).into_iter().collect(),
        };
        let is_complete = self.report.count() == problems && !steps.is_empty();
        is_complete.then(|| Mix { name: name.to_owned(), steps })
    }

    /// Reads the steps of a mix. Returns an empty list if their number is not allowed.
    fn read_steps(&mut self, steps: &Key<Vec<StepTable>>) -> Vec<Step> {
        if steps.is_empty_list() || steps.len() > STEPS_MAX {
            let message = "an iteration makes no request, or too many";
            self.report.error(steps, message, format!("1 to {STEPS_MAX} steps"));
            return Vec::new();
        }
        for step in steps.iter().filter(|step| step.transactions.is_set() && steps.len() > 1) {
            let message = "an iteration that sends a transaction makes no other request";
            self.report.error(&step.transactions, message, "a mix with this step alone");
        }
        steps.iter().filter_map(|step| self.read_step(&step.step_keys())).collect()
    }

    /// Reads a step. If its requests or bodies cannot be read, marks the list of the plan's methods
    /// as incomplete. For calls, [`MixReader::read_call`] does this.
    fn read_step(&mut self, keys: &StepKeys<'_>) -> Option<Step> {
        let step = self.read_step_source(keys);
        self.methods.is_incomplete |= step.is_none() && !keys.calls.is_set();
        step
    }

    /// Reads a step. Exactly one of the keys `calls`, `requests`, `bodies` and `transactions` must
    /// be set.
    fn read_step_source(&mut self, keys: &StepKeys<'_>) -> Option<Step> {
        let StepKeys { calls, weights_sum, requests, bodies, transactions, .. } = keys;
        let sources =
            [&calls.location, &requests.location, &bodies.location, &transactions.location];
        let mut sources = sources.into_iter().filter(|location| location.is_written());
        let (source, second_source) = (sources.next(), sources.next());
        if weights_sum.is_set() && (second_source.is_some() || !calls.is_set()) {
            let message = "only calls have weights";
            self.report.error(*weights_sum, message, "weights_sum beside calls");
        }
        match (source, second_source) {
            (Some(source), Some(_)) => {
                let message = "a step has only one of calls, requests, bodies and transactions";
                self.report.error(source, message, "one of them");
                None
            }
            (None, _) => {
                // If the table has an unknown or invalid key, that key may be the missing one.
                if !self.report.is_faulty(keys.location) {
                    let message = "a step has neither calls nor requests, bodies or transactions";
                    self.report.error_without_value(keys.location, message, "one of them");
                }
                None
            }
            _ if calls.is_set() => self.read_calls(keys),
            _ if requests.is_set() => self.read_request_file(requests),
            _ if transactions.is_set() => self.read_transaction_file(transactions),
            _ => self.read_bodies(bodies),
        }
    }

    /// Reads a step that chooses one of its calls by weight.
    fn read_calls(&mut self, keys: &StepKeys<'_>) -> Option<Step> {
        let StepKeys { calls, weights_sum, .. } = keys;
        if calls.is_empty_list() || calls.len() > CALLS_MAX {
            self.report.error(*calls, "no call, or too many", format!("1 to {CALLS_MAX} calls"));
            return None;
        }
        let weighted: Vec<_> = calls.iter().filter_map(|call| self.read_call(call)).collect();
        let weight_sum: f64 = weighted.iter().map(|call| call.weight).sum();
        if let Some(expected) = ***weights_sum
            && weighted.len() == calls.len()
            && (weight_sum - expected).abs() > 1e-6 * expected.max(1.0)
        {
            let sum = round_sum(weight_sum);
            let message = format!("the weights add up to {sum}, not to {expected}");
            let allowed = format!("weights that add up to {expected}, or weights_sum = {sum}");
            self.report.error(*weights_sum, message, allowed);
        }
        (weighted.len() == calls.len()).then_some(Step::Choose(weighted))
    }

    /// Reads a call with its weight, and adds its method to the plan's methods.
    fn read_call(&mut self, table: &CallTable) -> Option<WeightedCall> {
        if *table.weight == 0.0 {
            let allowed = "a weight above 0, or no such call";
            self.report.error(&table.weight, "the call is never made", allowed);
        }
        let Some(method) = table.method.valid_value() else {
            self.methods.is_incomplete = true;
            return None;
        };
        let Some(method) = self.methods.add(method) else {
            self.report.error(&table.method, "too many methods", format!("at most {METHODS_MAX}"));
            return None;
        };
        let params = table.params.valid_value()?.clone();
        Some(WeightedCall { weight: *table.weight, template: Template { method, params } })
    }

    /// Reads a step that replays the requests of a file.
    fn read_request_file(&mut self, key: &Key<Option<String>>) -> Option<Step> {
        let name = key.as_ref()?;
        let bodies = match self.environment.read_bytes(name, requests::FILE_BYTES_MAX) {
            Ok(bytes) => requests::read(name, &bytes, self.methods),
            Err(message) => {
                self.report.error(key, message, "a file of requests, or \"-\"");
                return None;
            }
        };
        match bodies {
            Ok(bodies) => Some(Step::Replay(bodies)),
            Err(problems) => {
                self.report.absorb(problems);
                None
            }
        }
    }

    /// Reads a step that sends the transactions of a file.
    fn read_transaction_file(&mut self, key: &Key<Option<String>>) -> Option<Step> {
        let name = key.as_ref()?;
        let Some(method) = self.methods.add(transactions::METHOD) else {
            self.report.error(key, "too many methods", format!("at most {METHODS_MAX}"));
            return None;
        };
        let transactions = match self.environment.read_bytes(name, requests::FILE_BYTES_MAX) {
            Ok(bytes) => transactions::read(name, &bytes, method),
            Err(message) => {
                self.report.error(key, message, "a file of signed transactions, or \"-\"");
                return None;
            }
        };
        match transactions {
            Ok(transactions) => Some(Step::Transactions(transactions.into())),
            Err(problems) => {
                self.report.absorb(problems);
                None
            }
        }
    }

    /// Reads a step that replays the bodies of a list.
    fn read_bodies(&mut self, key: &Key<Option<Vec<String>>>) -> Option<Step> {
        let texts = key.as_ref()?;
        if texts.is_empty() {
            self.report.error(key, "is empty", "at least one body");
            return None;
        }
        let mut bodies = Vec::with_capacity(texts.len());
        for (index, text) in texts.iter().enumerate() {
            match requests::read_body(text.trim().as_bytes(), self.methods) {
                Ok(body) => bodies.push(body),
                Err(message) => {
                    let allowed = "JSON-RPC calls, or batches of them";
                    self.report.error(&key.element_location(index), message, allowed);
                }
            }
        }
        (bodies.len() == texts.len()).then_some(Step::Replay(bodies))
    }
}

/// Removes the floating-point error from a sum of weights.
fn round_sum(sum: f64) -> f64 {
    (sum * 1e6).round() / 1e6
}
