//! Mixes: what iterations do, from the plan itself, from files, or shipped with the program.

use super::super::fault::{Faults, Report};
use super::super::field::{MIX, STEP, Section};
use super::super::file::{self, Entry, Written};
use super::super::formula::Variables;
use super::super::kind::Value;
use super::super::nearest::not_found;
use super::super::requests::{self, METHODS_MAX, Methods};
use super::super::{Mix, Step, Template, Weighted, World, params, shipped};
use super::refuse;

/// Steps of one iteration.
const STEPS_MAX: usize = 100;
/// Calls of one step.
const CALLS_MAX: usize = 10_000;

/// All mixes that a plan can name.
pub(super) struct Mixes {
    /// The plan's own, by name; none where one has faults.
    own: Vec<(String, Option<Mix>)>,
    /// Those that a scenario names, in the order of their indexes.
    pub(super) used: Vec<Mix>,
    /// What looks like a mistake.
    pub(super) warnings: Vec<String>,
}

impl Mixes {
    /// Reads the plan's own mixes. Methods of a mix that no scenario names are not called, so they
    /// do not become methods of the plan.
    pub(super) fn read(
        written: &Written,
        world: &World<'_>,
        methods: &mut Methods,
        report: &mut Report<'_>,
    ) -> Mixes {
        let named: Vec<String> = written
            .all(&super::super::field::SCENARIO)
            .filter_map(|scenario| scenario.chosen("mix").map(Value::text))
            .collect();
        let mut mixes = Mixes { own: Vec::new(), used: Vec::new(), warnings: Vec::new() };
        for entry in written.all(&MIX) {
            if let Err(message) = super::super::kind::check_name(&entry.name) {
                let allowed = Some(super::super::kind::Kind::Name.to_string());
                report.fault(entry.span.as_ref(), entry.path.clone(), None, message, allowed);
            }
            let used = named.contains(&entry.name);
            let mut unused_methods = Methods::default();
            let methods = if used { &mut *methods } else { &mut unused_methods };
            let variables = &written.variables;
            let mix = Reading { world, variables, methods, report }.own(entry);
            if !used {
                mixes.warnings.push(format!("no scenario names the mix {}", entry.name));
            }
            mixes.own.push((entry.name.clone(), mix));
        }
        mixes
    }

    /// The index of the mix that a scenario names.
    pub(super) fn index(
        &mut self,
        scenario: &Entry,
        world_methods: &mut Methods,
        report: &mut Report<'_>,
    ) -> Option<usize> {
        let name = scenario.chosen("mix")?.text();
        if let Some(at) = self.used.iter().position(|mix| mix.name == name) {
            return Some(at);
        }
        let own = self.own.iter().find(|(own, _)| *own == name);
        let mix = match (own, shipped::text(&name)) {
            (Some((_, mix)), _) => mix.clone()?,
            (None, Some(text)) => of_shipped(&name, text, world_methods),
            (None, None) => {
                let mut known: Vec<_> = self.own.iter().map(|(name, _)| name.as_str()).collect();
                known.extend(shipped::MIXES.iter().map(|(name, _)| *name));
                let (message, allowed) = not_found("mix", &name, &known);
                refuse(report, scenario, "mix", &message, &allowed);
                return None;
            }
        };
        self.used.push(mix);
        Some(self.used.len() - 1)
    }
}

/// A mix that is shipped with the program; that it has no faults is a test's business.
fn of_shipped(name: &str, text: &str, methods: &mut Methods) -> Mix {
    of_text(name, name, text, methods).expect("a test reads every shipped mix")
}

/// A mix from a text that holds its keys.
///
/// # Errors
/// All faults of the text.
pub(in crate::plan) fn of_text(
    name: &str,
    file: &str,
    text: &str,
    methods: &mut Methods,
) -> Result<Mix, Faults> {
    let mut report = Report::of_file(file, text);
    let world = World::closed();
    let mix = file::read_mix(&mut report, &MIX).and_then(|mut entry| {
        entry.name = name.to_owned();
        if entry.set("file").is_some() {
            refuse(&mut report, &entry, "file", "a file of a mix names no other", "its keys");
        }
        Reading { world: &world, variables: &[], methods, report: &mut report }.mix(&entry)
    });
    match mix {
        Some(mix) if !report.has_faults() => Ok(mix),
        _ => Err(report.finish()),
    }
}

struct Reading<'a, 'r, 't> {
    world: &'a World<'a>,
    variables: &'a Variables,
    methods: &'a mut Methods,
    report: &'r mut Report<'t>,
}

impl Reading<'_, '_, '_> {
    /// A mix of the plan: its keys, or a file of them.
    fn own(&mut self, entry: &Entry) -> Option<Mix> {
        let Some(set) = entry.set("file") else { return self.mix(entry) };
        let Value::Text(name) = set.value.clone() else { return None };
        if ["step", "calls", "requests", "bodies"].iter().any(|key| entry.set(key).is_some()) {
            let message = "the file and the mix's own keys cannot both be";
            refuse(self.report, entry, "file", message, "one of them");
            return None;
        }
        let text = match self.world.text(&name, file::TEXT_BYTES_MAX) {
            Ok(text) => text,
            Err(message) => {
                refuse(self.report, entry, "file", &message, "a file with the keys of a mix");
                return None;
            }
        };
        match of_text(&entry.name, &name, &text, self.methods) {
            Ok(mix) => Some(mix),
            Err(faults) => {
                self.report.adopt(Some(&set.span), faults);
                None
            }
        }
    }

    fn mix(&mut self, entry: &Entry) -> Option<Mix> {
        let faults = self.report.count();
        let steps = match entry.chosen("step").map(Value::entries) {
            Some(steps) => {
                for key in ["calls", "requests", "bodies", "weights_sum"] {
                    if entry.set(key).is_some() {
                        let message = "a mix with steps has no such key of its own";
                        refuse(self.report, entry, key, message, "this key in a step");
                    }
                }
                self.steps(entry, &steps)
            }
            None => self.step(entry, &MIX).into_iter().collect(),
        };
        let whole = self.report.count() == faults && !steps.is_empty();
        whole.then(|| Mix { name: entry.name.clone(), steps })
    }

    fn steps(&mut self, entry: &Entry, steps: &[Entry]) -> Vec<Step> {
        if steps.is_empty() || steps.len() > STEPS_MAX {
            let allowed = format!("1 to {STEPS_MAX} steps");
            refuse(
                self.report,
                entry,
                "step",
                "an iteration makes no request, or too many",
                &allowed,
            );
            return Vec::new();
        }
        steps.iter().filter_map(|step| self.step(step, &STEP)).collect()
    }

    fn step(&mut self, entry: &Entry, section: &'static Section) -> Option<Step> {
        debug_assert!(std::ptr::eq(entry.section, section));
        let ways: Vec<_> = ["calls", "requests", "bodies"]
            .into_iter()
            .filter(|key| entry.set(key).is_some())
            .collect();
        if entry.set("weights_sum").is_some() && ways != ["calls"] {
            refuse(self.report, entry, "weights_sum", "there are no weights", "with calls only");
        }
        match ways.as_slice() {
            ["calls"] => self.choose(entry),
            ["requests"] => self.requests(entry),
            ["bodies"] => self.bodies(entry),
            [] if entry.faulty => None,
            [] => {
                let message = "a request has calls, requests or bodies";
                let (span, path) = (entry.span.as_ref(), entry.path.clone());
                self.report.fault(span, path, None, message, Some("one of them".to_owned()));
                None
            }
            [first, ..] => {
                let message = "says in two ways what is sent";
                refuse(self.report, entry, first, message, "one of calls, requests, bodies");
                None
            }
        }
    }

    fn choose(&mut self, entry: &Entry) -> Option<Step> {
        let calls = entry.chosen("calls")?.entries();
        if calls.is_empty() || calls.len() > CALLS_MAX {
            let allowed = format!("1 to {CALLS_MAX} calls");
            refuse(self.report, entry, "calls", "no call, or too many", &allowed);
            return None;
        }
        let weighted: Vec<_> = calls.iter().filter_map(|call| self.call(call)).collect();
        let sum: f64 = weighted.iter().map(|call| call.weight).sum();
        if let Some(meant) = entry.chosen("weights_sum").map(Value::number)
            && weighted.len() == calls.len()
            && (sum - meant).abs() > 1e-6 * meant.max(1.0)
        {
            let message = format!("the weights add up to {}, not to {meant}", rounded(sum));
            let allowed = "weights that add up to it, or their true sum";
            refuse(self.report, entry, "weights_sum", &message, allowed);
        }
        Some(Step::Choose(weighted))
    }

    fn call(&mut self, entry: &Entry) -> Option<Weighted> {
        let params = match entry.chosen("params") {
            Some(Value::Tree(node)) => {
                params::read(&node, &entry.key("params"), self.variables, self.report)
            }
            _ => Some(params::none()),
        };
        let method = entry.chosen("method")?.text();
        let known = self.methods.names().iter().any(|name| **name == *method);
        if !known && self.methods.names().len() >= METHODS_MAX {
            let allowed = format!("at most {METHODS_MAX}");
            refuse(self.report, entry, "method", "too many methods", &allowed);
            return None;
        }
        let template = Template { method: self.methods.index(&method), params: params? };
        Some(Weighted { weight: entry.value("weight").number(), template })
    }

    fn requests(&mut self, entry: &Entry) -> Option<Step> {
        let set = entry.set("requests")?;
        let Value::Text(name) = set.value.clone() else { return None };
        let bytes = match self.world.bytes(&name, requests::FILE_BYTES_MAX) {
            Ok(bytes) => bytes,
            Err(message) => {
                refuse(self.report, entry, "requests", &message, "a file of requests, or \"-\"");
                return None;
            }
        };
        match requests::read(&name, &bytes, self.methods) {
            Ok(bodies) => Some(Step::Replay(bodies)),
            Err(faults) => {
                self.report.adopt(Some(&set.span), faults);
                None
            }
        }
    }

    fn bodies(&mut self, entry: &Entry) -> Option<Step> {
        let texts = entry.chosen("bodies")?.texts();
        if texts.is_empty() {
            refuse(self.report, entry, "bodies", "is empty", "at least one body");
            return None;
        }
        let mut bodies = Vec::with_capacity(texts.len());
        for text in texts {
            match requests::of_body(text.trim().as_bytes(), self.methods) {
                Ok(body) => bodies.push(body),
                Err(message) => {
                    refuse(
                        self.report,
                        entry,
                        "bodies",
                        &message,
                        "JSON-RPC calls, or batches of them",
                    );
                    return None;
                }
            }
        }
        Some(Step::Replay(bodies))
    }
}

/// A sum of weights without the noise of its addition.
fn rounded(sum: f64) -> f64 {
    (sum * 1e6).round() / 1e6
}
