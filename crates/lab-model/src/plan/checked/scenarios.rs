//! Scenarios and their stages: from levels as they were written to one linear course after another.

use std::time::Duration;

use super::super::fault::Report;
use super::super::field::{SCENARIO, WORKERS_MAX};
use super::super::file::{Entry, Written};
use super::super::kind::Value;
use super::super::requests::Methods;
use super::super::{Batch, Late, Model, Scenario, Stage, level_at};
use super::mixes::Mixes;
use super::refuse;
use crate::plan::threshold::parse::StageName;

/// Stages of one plan, steps included.
const STAGES_MAX: usize = 5000;
/// Scenarios of one plan.
const SCENARIOS_MAX: usize = 1000;

/// All scenarios, and how thresholds name all stages.
pub(super) fn check(
    written: &Written,
    mixes: &mut Mixes,
    methods: &mut Methods,
    report: &mut Report<'_>,
) -> (Vec<Scenario>, Vec<StageName>) {
    let mut checked = Checked { scenarios: Vec::new(), names: Vec::new() };
    let entries: Vec<_> = written.all(&SCENARIO).collect();
    if entries.is_empty() {
        let message = "there is no scenario, so nothing is sent";
        report.fault(None, "scenario", None, message, Some("[[scenario]]".to_owned()));
    }
    if entries.len() > SCENARIOS_MAX {
        let allowed = Some(format!("at most {SCENARIOS_MAX}"));
        report.fault(entries[0].span.as_ref(), "scenario", None, "too many scenarios", allowed);
        return (checked.scenarios, checked.names);
    }
    for (at, entry) in entries.into_iter().enumerate() {
        let mix = mixes.index(entry, methods, report);
        checked.scenario(at, entry, mix, report);
    }
    (checked.scenarios, checked.names)
}

struct Checked {
    scenarios: Vec<Scenario>,
    names: Vec<StageName>,
}

impl Checked {
    fn scenario(&mut self, at: usize, entry: &Entry, mix: Option<usize>, report: &mut Report<'_>) {
        let name = entry.chosen("name").map(Value::text);
        let name = name.unwrap_or_else(|| format!("scenario-{}", at + 1));
        if self.scenarios.iter().any(|scenario| scenario.name == name) {
            let span = entry.span_of("name");
            let message = format!("two scenarios are called {name}");
            report.fault(span, entry.key("name"), None, message, Some("another name".to_owned()));
        }
        let closed = entry.value("model").choice() == "closed";
        model_keys(entry, closed, report);
        let stages = self.stages(&name, entry, closed, report);
        let most = stages.iter().map(|stage| stage.from.max(stage.to)).fold(0.0, f64::max);
        if !stages.is_empty() && most == 0.0 && !entry.faulty {
            refuse(report, entry, "stages", "never begin an iteration", "a level above 0");
        }
        let scenario = Scenario {
            name,
            start: entry.value("start").duration(),
            model: model(entry, closed),
            workers_max: workers(entry, closed, most, report),
            stages,
            // Without its mix the plan has a fault and is given up.
            mix: mix.unwrap_or_default(),
            pause: entry.value("pause").duration(),
            batch: batch(entry),
            iterations_max: entry.chosen("iterations").map(Value::count),
            grace: entry.value("grace").duration(),
        };
        if !scenario.stages.is_empty() && scenario.duration().is_zero() && !entry.faulty {
            refuse(report, entry, "stages", "take no time at all", "a duration above 0");
        }
        self.scenarios.push(scenario);
    }

    fn stages(
        &mut self,
        scenario: &str,
        entry: &Entry,
        closed: bool,
        report: &mut Report<'_>,
    ) -> Vec<Stage> {
        let Some(entries) = entry.chosen("stages").map(Value::entries) else { return Vec::new() };
        if entries.is_empty() {
            refuse(report, entry, "stages", "is empty", "at least one stage");
        }
        let first = self.names.len();
        let mut stages = Vec::new();
        let mut before = None;
        for (at, stage) in entries.iter().enumerate() {
            let name = stage.chosen("name").map(Value::text);
            let name = name.unwrap_or_else(|| format!("stage-{}", at + 1));
            let Some(course) = course(stage, closed, &mut before, report) else { continue };
            if self.names.len() + course.parts > STAGES_MAX {
                refuse(
                    report,
                    entry,
                    "stages",
                    "too many stages",
                    &format!("at most {STAGES_MAX}"),
                );
                break;
            }
            for part in 0..course.parts {
                let own = match course.parts {
                    1 => name.clone(),
                    _ => format!("{name}-{}", part + 1),
                };
                if self.names[first..].iter().any(|other| other.stage == own) {
                    let span = stage.span_of("name");
                    let message = format!("two stages of this scenario are called {own}");
                    let allowed = Some("another name".to_owned());
                    report.fault(span, stage.key("name"), None, message, allowed);
                }
                stages.push(course.part(part, self.names.len(), own.clone()));
                let (scenario, written) = (scenario.to_owned(), name.clone());
                self.names.push(StageName { scenario, stage: own, written });
            }
        }
        stages
    }
}

/// How the level of one written stage goes.
struct Course {
    duration: Duration,
    from: f64,
    to: f64,
    /// Stages that it becomes: 1, or the steps of a staircase.
    parts: usize,
}

impl Course {
    fn part(&self, part: usize, index: usize, name: String) -> Stage {
        if self.parts == 1 {
            let (duration, from, to) = (self.duration, self.from, self.to);
            return Stage { index, name, duration, from, to };
        }
        let level = level_at(self.from, self.to, (part + 1) as f64, self.parts as f64);
        // Cut by whole nanoseconds, so that the parts add up to the whole.
        let nanos = |part: usize| self.duration.as_nanos() * part as u128 / self.parts as u128;
        let length = nanos(part + 1) - nanos(part);
        let duration = Duration::from_nanos(u64::try_from(length).unwrap_or(u64::MAX));
        Stage { index, name, duration, from: level, to: level }
    }
}

/// Reads a stage's level. `before` is the level that the stage before it left.
fn course(
    stage: &Entry,
    closed: bool,
    before: &mut Option<f64>,
    report: &mut Report<'_>,
) -> Option<Course> {
    let (own, other) = if closed { ("workers", "rate") } else { ("rate", "workers") };
    if stage.set(other).is_some() {
        let model = if closed { "closed" } else { "open" };
        let message = format!("the scenario's model is {model}");
        refuse(report, stage, other, &message, own);
        return None;
    }
    let ways: Vec<_> =
        [own, "to", "spike"].into_iter().filter(|key| stage.set(key).is_some()).collect();
    if let [_, second, ..] = ways.as_slice() {
        refuse(
            report,
            stage,
            second,
            "gives the level in two ways",
            "one of rate, workers, to, spike",
        );
        return None;
    }
    for key in ["from", "steps"] {
        if stage.set(key).is_some() && ways != ["to"] {
            refuse(report, stage, key, "belongs to a ramp", "together with to");
            return None;
        }
    }
    if stage.faulty {
        // Its level is unknown, and the next stage shall not be faulted for that.
        before.get_or_insert(1.0);
        return None;
    }
    let level = |key: &str| stage.chosen(key).map(Value::number);
    let duration = stage.chosen("duration")?.duration();
    let constant = level(own).or(level("spike"));
    let (from, to) = match (constant, level("to")) {
        (Some(level), _) => (level, level),
        (None, Some(to)) => (level("from").or(*before).unwrap_or(0.0), to),
        (None, None) => {
            let Some(level) = *before else {
                let message = "the first stage has no level before it to go on with";
                let allowed = Some(format!("{own}, to or spike"));
                report.fault(stage.span.as_ref(), stage.path.clone(), None, message, allowed);
                return None;
            };
            (level, level)
        }
    };
    if level("spike").is_none() {
        *before = Some(to);
    }
    workers_level(stage, closed, &[own, "from", "to", "spike"], report);
    let parts = stage.chosen("steps").map_or(1, Value::size);
    Some(Course { duration, from, to, parts })
}

/// Faults levels that no number of workers can have.
fn workers_level(stage: &Entry, closed: bool, keys: &[&str], report: &mut Report<'_>) {
    for key in keys.iter().filter(|_| closed) {
        let level = stage.chosen(key).map(Value::number);
        if level.is_some_and(|level| level.fract() != 0.0 || level > WORKERS_MAX as f64) {
            let allowed = format!("a whole number up to {WORKERS_MAX}");
            refuse(report, stage, key, "no number of workers", &allowed);
        }
    }
}

/// Faults keys that mean nothing in the scenario's model.
fn model_keys(entry: &Entry, closed: bool, report: &mut Report<'_>) {
    let (keys, model): (&[&str], _) =
        if closed { (&["late", "queue_max"], "open") } else { (&["pause"], "closed") };
    for key in keys.iter().filter(|key| entry.set(key).is_some()) {
        let message = format!("only the {model} model has it");
        refuse(report, entry, key, &message, &format!("model = \"{model}\""));
    }
    if !closed && entry.value("late").choice() == "drop" && entry.set("queue_max").is_some() {
        refuse(report, entry, "queue_max", "nothing waits", "late = \"queue\"");
    }
}

fn model(entry: &Entry, closed: bool) -> Model {
    match (closed, entry.value("late").choice()) {
        (true, _) => Model::Closed,
        (false, "drop") => Model::Open { late: Late::Drop },
        (false, _) => Model::Open { late: Late::Queue { max: entry.value("queue_max").size() } },
    }
}

fn workers(entry: &Entry, closed: bool, most: f64, report: &mut Report<'_>) -> usize {
    let set = entry.chosen("workers_max").map(Value::size);
    match (set, closed) {
        (Some(workers), true) if (workers as f64) < most => {
            let message = format!("its stages reach {most} workers");
            refuse(report, entry, "workers_max", &message, &format!("at least {most}, or not set"));
            workers
        }
        (Some(workers), _) => workers,
        (None, true) => (most.min(WORKERS_MAX as f64) as usize).max(1),
        (None, false) if entry.faulty => 1,
        (None, false) => {
            let message = "must be set in the open model: how many iterations may run at once";
            let allowed = format!("1 to {WORKERS_MAX}");
            refuse(report, entry, "workers_max", message, &allowed);
            1
        }
    }
}

fn batch(entry: &Entry) -> Option<Batch> {
    let batch = entry.chosen("batch")?.entries().into_iter().next()?;
    let size = batch.chosen("size")?.size();
    Some(Batch { probability: batch.value("probability").number(), size })
}
