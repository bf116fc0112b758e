//! Mixes of calls: from the plan, from files, or shipped with the program.

use settings::value::Name;
use settings::{Diagnostics, Input, Key, Location, Report, Scalar, TEXT_BYTES_MAX, not_found};

use super::super::requests::{self, METHODS_MAX, Methods};
use super::super::tables::{CallTable, MixTable, PlanFile, Request, ScenarioTable, StepTable};
use super::super::{Mix, Step, Template, Weighted, World, shipped};

/// Maximum number of steps of an iteration.
const STEPS_MAX: usize = 100;
/// Maximum number of calls of a step.
const CALLS_MAX: usize = 10_000;

/// All mixes that a plan can refer to.
pub(super) struct Mixes {
    /// The mixes of the plan's file by name; `None` for a mix with problems.
    defined: Vec<(String, Option<Mix>)>,
    /// The mixes that scenarios use, in the order of their indexes.
    pub(super) used: Vec<Mix>,
    /// Warnings about likely mistakes.
    pub(super) warnings: Vec<String>,
}

impl Mixes {
    /// Reads the mixes of the plan's file. Methods of unused mixes do not become methods of the
    /// plan.
    pub(super) fn read(
        file: &PlanFile,
        world: &World<'_>,
        methods: &mut Methods,
        report: &mut Report<'_>,
    ) -> Mixes {
        let is_used = |name: &String| file.scenario.iter().any(|scenario| *scenario.mix == *name);
        let mut mixes = Mixes { defined: Vec::new(), used: Vec::new(), warnings: Vec::new() };
        let has_no_mix = |scenario: &ScenarioTable| scenario.mix.readable().is_none();
        methods.are_partial = file.scenario.is_empty() || file.scenario.iter().any(has_no_mix);
        for (name, table) in file.mix.iter() {
            if let Err(message) = <Name as Scalar>::parse(Input::Text(name)) {
                report.missing(&table.location, message, <Name as Scalar>::allowed());
            }
            let is_used = is_used(name);
            let mut unused_methods = Methods::default();
            let methods = if is_used { &mut *methods } else { &mut unused_methods };
            let mix = MixReader { world, methods, report }.mix_or_file(name, table);
            if !is_used {
                mixes.warnings.push(format!("no scenario names the mix {name}"));
            }
            mixes.defined.push((name.clone(), mix));
        }
        mixes
    }

    /// Returns the index of the mix that a scenario uses.
    pub(super) fn index(
        &mut self,
        scenario: &ScenarioTable,
        methods: &mut Methods,
        report: &mut Report<'_>,
    ) -> Option<usize> {
        let name = scenario.mix.readable()?;
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
                let (message, allowed) = not_found("mix", name, &known);
                report.error(&scenario.mix, message, allowed);
                methods.are_partial = true;
                return None;
            }
        };
        self.used.push(mix);
        Some(self.used.len() - 1)
    }
}

fn read_shipped(name: &str, text: &str, methods: &mut Methods) -> Mix {
    read_mix(name, name, text, methods).expect("a test reads every shipped mix")
}

/// Reads a mix from the text of a mix file. The text cannot refer to files, variables or the
/// environment.
///
/// # Errors
/// Returns all problems of the text.
pub(in crate::plan) fn read_mix(
    name: &str,
    file: &str,
    text: &str,
    methods: &mut Methods,
) -> Result<Mix, Diagnostics> {
    let world = World::closed();
    let (table, mut report) = settings::read::<MixTable>(text, file, &world.settings());
    let mix = table.and_then(|table| {
        if table.file.is_set() {
            report.error(&table.file, "a mix file cannot refer to another", "its keys");
        }
        MixReader { world: &world, methods, report: &mut report }.mix(name, &table)
    });
    match mix {
        Some(mix) if !report.has_errors() => Ok(mix),
        _ => Err(report.finish()),
    }
}

/// Reads mixes from tables and reports their problems.
struct MixReader<'a, 'r, 't> {
    world: &'a World<'a>,
    methods: &'a mut Methods,
    report: &'r mut Report<'t>,
}

impl MixReader<'_, '_, '_> {
    /// Reads a mix from the keys of its table, or from the file that the table names.
    fn mix_or_file(&mut self, name: &str, table: &MixTable) -> Option<Mix> {
        let Some(file) = &*table.file else { return self.mix(name, table) };
        let others = [
            &table.step.location,
            &table.calls.location,
            &table.requests.location,
            &table.bodies.location,
        ];
        if others.into_iter().any(Location::is_written) {
            let message = "the file and the mix's own keys cannot both be";
            self.report.error(&table.file, message, "one of them");
            return None;
        }
        let text = match self.world.text(file, TEXT_BYTES_MAX) {
            Ok(text) => text,
            Err(message) => {
                self.methods.are_partial = true;
                self.report.error(&table.file, message, "a file with the keys of a mix");
                return None;
            }
        };
        match read_mix(name, file, &text, self.methods) {
            Ok(mix) => Some(mix),
            Err(problems) => {
                self.methods.are_partial = true;
                self.report.absorb(problems);
                None
            }
        }
    }

    fn mix(&mut self, name: &str, table: &MixTable) -> Option<Mix> {
        let problems = self.report.count();
        let request = table.request();
        let steps = match table.step.is_set() {
            true => {
                for location in request.keys().into_iter().filter(|location| location.is_written())
                {
                    let message = "a mix with steps has no such key of its own";
                    self.report.error(location, message, "this key in a step");
                }
                self.steps(&table.step)
            }
            false => self.step(&request).into_iter().collect(),
        };
        let is_complete = self.report.count() == problems && !steps.is_empty();
        is_complete.then(|| Mix { name: name.to_owned(), steps })
    }

    fn steps(&mut self, steps: &Key<Vec<StepTable>>) -> Vec<Step> {
        if steps.is_empty_list() || steps.len() > STEPS_MAX {
            let message = "an iteration makes no request, or too many";
            self.report.error(steps, message, format!("1 to {STEPS_MAX} steps"));
            return Vec::new();
        }
        steps.iter().filter_map(|step| self.step(&step.request())).collect()
    }

    /// Reads the request of a step. Without its calls, the methods of the plan are partial.
    fn step(&mut self, request: &Request<'_>) -> Option<Step> {
        let step = self.request(request);
        self.methods.are_partial |= step.is_none() && !request.calls.is_set();
        step
    }

    fn request(&mut self, request: &Request<'_>) -> Option<Step> {
        let Request { calls, weights_sum, requests, bodies, .. } = request;
        let sources = [&calls.location, &requests.location, &bodies.location];
        let mut sources = sources.into_iter().filter(|location| location.is_written());
        let (source, second_source) = (sources.next(), sources.next());
        if weights_sum.is_set() && (second_source.is_some() || !calls.is_set()) {
            self.report.error(*weights_sum, "there are no weights", "with calls only");
        }
        match (source, second_source) {
            (Some(source), Some(_)) => {
                let message = "says in two ways what is sent";
                self.report.error(source, message, "one of calls, requests, bodies");
                None
            }
            (None, _) => {
                if !self.report.is_faulty(request.location) {
                    let message = "a request has calls, requests or bodies";
                    self.report.missing(request.location, message, "one of them");
                }
                None
            }
            _ if calls.is_set() => self.choose(request),
            _ if requests.is_set() => self.requests(requests),
            _ => self.bodies(bodies),
        }
    }

    fn choose(&mut self, request: &Request<'_>) -> Option<Step> {
        let Request { calls, weights_sum, .. } = request;
        if calls.is_empty_list() || calls.len() > CALLS_MAX {
            self.report.error(*calls, "no call, or too many", format!("1 to {CALLS_MAX} calls"));
            return None;
        }
        let weighted: Vec<_> = calls.iter().filter_map(|call| self.call(call)).collect();
        let sum: f64 = weighted.iter().map(|call| call.weight).sum();
        if let Some(expected) = ***weights_sum
            && weighted.len() == calls.len()
            && (sum - expected).abs() > 1e-6 * expected.max(1.0)
        {
            let message = format!("the weights add up to {}, not to {expected}", round_sum(sum));
            let allowed = "weights that add up to it, or their true sum";
            self.report.error(*weights_sum, message, allowed);
        }
        (weighted.len() == calls.len()).then_some(Step::Choose(weighted))
    }

    fn call(&mut self, table: &CallTable) -> Option<Weighted> {
        if *table.weight == 0.0 {
            let allowed = "a weight above 0, or no such call";
            self.report.error(&table.weight, "the call is never made", allowed);
        }
        let Some(method) = table.method.readable() else {
            self.methods.are_partial = true;
            return None;
        };
        if !self.methods.can_add(method) {
            self.report.error(&table.method, "too many methods", format!("at most {METHODS_MAX}"));
            return None;
        }
        let method = self.methods.index(method);
        let params = table.params.readable()?.clone();
        Some(Weighted { weight: *table.weight, template: Template { method, params } })
    }

    fn requests(&mut self, key: &Key<Option<String>>) -> Option<Step> {
        let name = key.as_ref()?;
        let bodies = match self.world.bytes(name, requests::FILE_BYTES_MAX) {
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

    fn bodies(&mut self, key: &Key<Option<Vec<String>>>) -> Option<Step> {
        let texts = key.as_ref()?;
        if texts.is_empty() {
            self.report.error(key, "is empty", "at least one body");
            return None;
        }
        let mut bodies = Vec::with_capacity(texts.len());
        for (index, text) in texts.iter().enumerate() {
            match requests::of_body(text.trim().as_bytes(), self.methods) {
                Ok(body) => bodies.push(body),
                Err(message) => {
                    let allowed = "JSON-RPC calls, or batches of them";
                    self.report.error(&key.element(index), message, allowed);
                }
            }
        }
        (bodies.len() == texts.len()).then_some(Step::Replay(bodies))
    }
}

/// Rounds off the floating-point error of a sum of weights.
fn round_sum(sum: f64) -> f64 {
    (sum * 1e6).round() / 1e6
}
