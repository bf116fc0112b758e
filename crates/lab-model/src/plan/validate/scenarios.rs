//! Reads scenarios and their stages. Converts the levels of a plan's file (constant rates, ramps,
//! staircases and spikes) to linear stages. A level is a number of iterations per second in the
//! open model, and a number of workers in the closed model. A staircase reaches its last level in
//! flat steps. After a spike, the level before the spike returns.
//!
//! `report.error(key, message, allowed)` reports a problem of a key, with the values that would be
//! allowed. `report.error_without_value` does the same, but does not print the value of the key.

use std::time::Duration;

use settings::{Key, Located, Location, Report};

use super::super::requests::Methods;
use super::super::tables::{BatchTable, PlanFile, ScenarioTable, StageTable, WORKERS_MAX};
use super::super::values::Delayed;
use super::super::{Model, Scenario, Stage, level_at};
use super::mixes::Mixes;
use crate::plan::threshold::parse::StageName;

/// Maximum number of stages of a plan, including the steps of staircases.
const STAGES_MAX: usize = 5000;
/// Maximum number of scenarios of a plan.
const SCENARIOS_MAX: usize = 1000;

/// The names of stages, to which thresholds can refer.
#[derive(Default)]
pub(super) struct StageNames {
    /// The stages in the order of their indexes.
    pub(super) list: Vec<StageName>,
    /// True if names may be missing from the list, because a stage or scenario could not be read.
    pub(super) is_incomplete: bool,
}

/// Reads all scenarios. Also returns the names of their stages.
pub(super) fn check(
    file: &PlanFile,
    mixes: &mut Mixes,
    methods: &mut Methods,
    report: &mut Report<'_>,
) -> (Vec<Scenario>, StageNames) {
    let mut reader = ScenarioReader { scenarios: Vec::new(), names: StageNames::default() };
    let tables = &file.scenario;
    reader.names.is_incomplete = tables.is_empty();
    if tables.is_empty() && tables.valid_value().is_some() {
        report.error_without_value(
            &tables.location,
            "there is no scenario, so nothing is sent",
            "[[scenario]]",
        );
    }
    if tables.len() > SCENARIOS_MAX {
        report.error(tables, "too many scenarios", format!("at most {SCENARIOS_MAX}"));
        return (reader.scenarios, reader.names);
    }
    for (index, table) in tables.iter().enumerate() {
        let mix = mixes.index(table, methods, report);
        reader.read_scenario(index, table, mix, mixes, report);
    }
    (reader.scenarios, reader.names)
}

/// Reads scenarios in the order of the plan.
struct ScenarioReader {
    scenarios: Vec<Scenario>,
    /// Names of the stages of all scenarios so far.
    names: StageNames,
}

impl ScenarioReader {
    /// Reads a scenario. `index` is the scenario's position in the plan's file, from 0. `mix` is
    /// the index of its mix, or `None` if the mix has problems.
    fn read_scenario(
        &mut self,
        index: usize,
        table: &ScenarioTable,
        mix: Option<usize>,
        mixes: &Mixes,
        report: &mut Report<'_>,
    ) {
        let name = (*table.name).clone().unwrap_or_else(|| format!("scenario-{}", index + 1));
        if self.scenarios.iter().any(|scenario| scenario.name == name) {
            let message = format!("two scenarios are called {name}");
            report.error(&table.name, message, "another name");
        }
        let is_closed = *table.model == Model::Closed;
        check_model_keys(table, is_closed, report);
        let stages = self.read_stages(&name, table, is_closed, report);
        let level_max = stages.iter().map(|stage| stage.from.max(stage.to)).fold(0.0, f64::max);
        // True if the table has an unknown key or an invalid value.
        let is_faulty = report.is_faulty(&table.location);
        self.names.is_incomplete |= is_faulty;
        let is_complete = !stages.is_empty() && !is_faulty;
        if is_complete && level_max == 0.0 {
            report.error(&table.stages, "never start an iteration", "a level above 0");
        }
        let scenario = Scenario {
            name,
            start: *table.start,
            model: *table.model,
            workers_max: read_workers_max(table, is_closed, level_max, report),
            queue_max: match (is_closed, *table.delayed) {
                (false, Delayed::Queue) => *table.queue_max,
                _ => 0,
            },
            stages,
            // If the mix is missing, the plan already has an error.
            mix: mix.unwrap_or_default(),
            pause: *table.pause,
            batch: table
                .batch
                .as_ref()
                .map(BatchTable::values)
                .filter(|batch| batch.probability > 0.0),
            iterations_max: *table.iterations,
            transactions: mix
                .and_then(|mix| Some(mixes.used.get(mix)?.transactions()?.len() as u64)),
            grace: *table.grace,
        };
        if is_complete && scenario.duration().is_zero() {
            report.error(&table.stages, "take no time at all", "a duration above 0");
        }
        self.scenarios.push(scenario);
    }

    /// Reads the stages of the scenario with this name. Each step of a staircase becomes a stage.
    fn read_stages(
        &mut self,
        scenario: &str,
        table: &ScenarioTable,
        is_closed: bool,
        report: &mut Report<'_>,
    ) -> Vec<Stage> {
        if table.stages.is_empty_list() {
            report.error(&table.stages, "is empty", "at least one stage");
        }
        let first_index = self.names.list.len();
        let mut stages = Vec::new();
        let mut previous_level = None;
        for (index, stage) in table.stages.iter().enumerate() {
            let name = (*stage.name).clone().unwrap_or_else(|| format!("stage-{}", index + 1));
            let Some(levels) = read_levels(stage, is_closed, &mut previous_level, report) else {
                self.names.is_incomplete = true;
                continue;
            };
            if self.names.list.len() + levels.steps > STAGES_MAX {
                report.error(&table.stages, "too many stages", format!("at most {STAGES_MAX}"));
                break;
            }
            for step in 0..levels.steps {
                let step_name = match levels.steps {
                    1 => name.clone(),
                    _ => format!("{name}-{}", step + 1),
                };
                let scenario_names = &self.names.list[first_index..];
                if scenario_names.iter().any(|other| other.stage == step_name) {
                    let message = format!("two stages of this scenario are called {step_name}");
                    report.error(&stage.name, message, "another name");
                }
                stages.push(levels.stage(step, self.names.list.len(), step_name.clone()));
                let (scenario, written) = (scenario.to_owned(), name.clone());
                self.names.list.push(StageName { scenario, stage: step_name, written });
            }
        }
        stages
    }
}

/// The levels of one stage of the plan's file. A staircase is one stage there, and becomes one
/// linear stage per step.
struct StageLevels {
    duration: Duration,
    /// Level at the start.
    from: f64,
    /// Level at the end.
    to: f64,
    /// Number of steps of a staircase; 1 for all other stages.
    steps: usize,
}

impl StageLevels {
    /// Returns the linear stage for a step, counted from 0. `index` is the index of this stage in
    /// the plan.
    fn stage(&self, step: usize, index: usize, name: String) -> Stage {
        if self.steps == 1 {
            let (duration, from, to) = (self.duration, self.from, self.to);
            return Stage { index, name, duration, from, to };
        }
        let level = level_at(self.from, self.to, (step + 1) as f64, self.steps as f64);
        // The start of each step is rounded to a nanosecond, and the length is the difference of
        // two starts. So the lengths add up to the duration of the stage.
        let start_ns = |step: usize| self.duration.as_nanos() * step as u128 / self.steps as u128;
        let length_ns = start_ns(step + 1) - start_ns(step);
        let duration = Duration::from_nanos(u64::try_from(length_ns).unwrap_or(u64::MAX));
        Stage { index, name, duration, from: level, to: level }
    }
}

/// Reads the levels of a stage, or reports its problem and returns `None`. `previous_level` is the
/// level at the end of the previous stage. The function sets `previous_level` to the level at the
/// end of this stage, except for a spike.
fn read_levels(
    stage: &StageTable,
    is_closed: bool,
    previous_level: &mut Option<f64>,
    report: &mut Report<'_>,
) -> Option<StageLevels> {
    // The key of a constant level in this model, the corresponding key of the other model, and the
    // name of this model.
    let (constant_key, wrong_key, model) = match is_closed {
        true => (&stage.workers, &stage.rate, "closed"),
        false => (&stage.rate, &stage.workers, "open"),
    };
    if wrong_key.is_set() {
        let message = format!("the scenario's model is {model}");
        report.error(wrong_key, message, constant_key.location.name());
        return None;
    }
    let level_keys: Vec<_> =
        [constant_key, &stage.to, &stage.spike].into_iter().filter(|key| key.is_set()).collect();
    if let [_, second, ..] = level_keys.as_slice() {
        report.error(*second, "gives the level in two ways", "one of rate, workers, to, spike");
        return None;
    }
    let ramp_keys = [stage.from.location(), stage.steps.location()];
    if let Some(location) =
        ramp_keys.into_iter().find(|location| location.is_written() && !stage.to.is_set())
    {
        report.error(location, "belongs to a ramp", "together with to");
        return None;
    }
    if report.is_faulty(&stage.location) {
        // The level of this stage is unknown. The placeholder prevents a second error, which says
        // that the next stage has no previous level.
        previous_level.get_or_insert(1.0);
        return None;
    }
    let constant = constant_key.or(*stage.spike);
    let (from, to) = match (constant, *stage.to) {
        (Some(level), _) => (level, level),
        (None, Some(to)) => (stage.from.or(*previous_level).unwrap_or(0.0), to),
        (None, None) => {
            let Some(level) = *previous_level else {
                let message = "the first stage has no previous level to continue from";
                let allowed = format!("{}, to or spike", constant_key.location.name());
                report.error_without_value(&stage.location, message, allowed);
                return None;
            };
            (level, level)
        }
    };
    if stage.spike.is_none() {
        *previous_level = Some(to);
    }
    if is_closed {
        check_worker_levels([constant_key, &stage.from, &stage.to, &stage.spike], report);
    }
    Some(StageLevels { duration: *stage.duration, from, to, steps: stage.steps.unwrap_or(1) })
}

/// Rejects levels that are not a valid number of workers.
fn check_worker_levels(levels: [&Key<Option<f64>>; 4], report: &mut Report<'_>) {
    for level in levels {
        if level.is_some_and(|level| level.fract() != 0.0 || level > WORKERS_MAX as f64) {
            let allowed = format!("a whole number up to {WORKERS_MAX}");
            report.error(level, "no number of workers", allowed);
        }
    }
}

/// Rejects keys that have no effect in the scenario's model.
fn check_model_keys(table: &ScenarioTable, is_closed: bool, report: &mut Report<'_>) {
    let ScenarioTable { delayed, queue_max, pause, .. } = table;
    let (useless_keys, model): (&[&Location], _) = match is_closed {
        true => (&[&delayed.location, &queue_max.location], "open"),
        false => (&[&pause.location], "closed"),
    };
    for location in useless_keys.iter().filter(|location| location.is_written()) {
        let message = format!("only the {model} model has it");
        report.error(*location, message, format!("model = \"{model}\""));
    }
    if !is_closed && **delayed == Delayed::Drop && queue_max.is_set() {
        report.error(queue_max, "there is no queue", "delayed = \"queue\"");
    }
}

/// Returns the maximum number of workers. In the closed model, the default is the highest level.
fn read_workers_max(
    table: &ScenarioTable,
    is_closed: bool,
    level_max: f64,
    report: &mut Report<'_>,
) -> usize {
    match (*table.workers_max, is_closed) {
        (Some(workers), true) if (workers as f64) < level_max => {
            let message = format!("its stages reach {level_max} workers");
            report.error(&table.workers_max, message, format!("at least {level_max}, or not set"));
            workers
        }
        (Some(workers), _) => workers,
        (None, true) => (level_max.min(WORKERS_MAX as f64) as usize).max(1),
        (None, false) if report.is_faulty(&table.location) => 1,
        (None, false) => {
            let message = "must be set in the open model: the maximum number of iterations at once";
            report.error_without_value(
                &table.workers_max.location,
                message,
                format!("1 to {WORKERS_MAX}"),
            );
            1
        }
    }
}
