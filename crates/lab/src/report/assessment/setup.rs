//! Sections about the origin of the data: the scope of the report, the set-up of each system, and
//! the method of measurement.
//!
//! A system is a target on its machine. A result is a load run or a capacity search of a system.
//! The evidence is the systems with all their results and comparisons.
//!
//! `report/document.rs` explains the functions and macros that build sections.

use lab_model::results::run::StageRow;
use lab_model::results::{Fingerprint, Outcome, PlanFacts, TargetFacts};

use super::super::capacity;
use super::super::document::{
    Block, Column, List, Section, Table, Text, code, name, table, text, tone,
};
use super::section;
use crate::analysis::assessment::System;
use crate::assessment::Assessed;
use crate::distinct;
use crate::wording::number::{bytes, count, percent, plural, rate, short, span};

/// Maximum number of stages of a plan that the table lists.
const STAGES_MAX: usize = 6;

/// The facts that runs and capacity searches share.
pub(super) struct ResultFacts<'a> {
    /// Name of the system.
    pub(super) system: &'a str,
    /// Label of the result.
    pub(super) label: &'a str,
    /// "load run" or "capacity search".
    pub(super) kind: &'static str,
    /// Start, as RFC 3339.
    pub(super) started: &'a str,
    /// Duration in seconds.
    duration: f64,
    plan: &'a PlanFacts,
    target: &'a TargetFacts,
    machine: &'a Fingerprint,
    verdict: Text,
    /// Description of the planned load.
    load: String,
    thresholds: Vec<String>,
    warnings: &'a [String],
}

/// Returns the facts of all results, by system.
pub(super) fn results(assessed: &Assessed) -> Vec<ResultFacts<'_>> {
    assessed.evidence.systems.iter().flat_map(results_of).collect()
}

/// Returns the facts of all results of a system.
fn results_of(system: &System) -> Vec<ResultFacts<'_>> {
    let runs = system.runs.iter().map(|labelled| {
        let run = &labelled.result;
        ResultFacts {
            system: &system.name,
            label: &labelled.label,
            kind: "load run",
            started: &run.started,
            duration: run.duration,
            plan: &run.plan,
            target: &run.target,
            machine: &run.fingerprint,
            verdict: outcome_text(run.verdict.outcome),
            load: describe_stages(&run.stages),
            thresholds: run.thresholds.iter().map(|threshold| threshold.text.clone()).collect(),
            warnings: &run.warnings,
        }
    });
    let searches = system.searches.iter().map(|labelled| {
        let search = &labelled.result;
        let settings = &search.settings;
        let load = format!(
            "search from {} to at most {}, precision {}, probes of {}, {} at each side of the \
             boundary, soak {}",
            rate(settings.rate_start),
            rate(settings.rate_max),
            percent(settings.precision),
            span(settings.probe),
            plural(settings.repeats as u64, "probe"),
            if settings.soak > 0.0 { span(settings.soak) } else { "none".to_owned() }
        );
        ResultFacts {
            system: &system.name,
            label: &labelled.label,
            kind: "capacity search",
            started: &search.started,
            duration: search.duration,
            plan: &search.plan,
            target: &search.target,
            machine: &search.fingerprint,
            verdict: capacity::answer(search).into(),
            load,
            thresholds: search.thresholds.clone(),
            warnings: &search.warnings,
        }
    });
    runs.chain(searches).collect()
}

/// Returns the outcome of a run in colour: green (`kept`), red (`broken`) or amber (`limited`). A run
/// without thresholds has no colour.
fn outcome_text(outcome: Outcome) -> Text {
    let class = match outcome {
        Outcome::Pass => "kept",
        Outcome::Measured => "",
        Outcome::Fail => "broken",
        Outcome::Invalid | Outcome::ClientLimited => "limited",
    };
    tone(class, outcome.as_str())
}

/// Describes the stages of a run: `main/ramp: 20 to 100/s for 1 min`.
fn describe_stages(stages: &[StageRow]) -> String {
    let describe = |stage: &StageRow| {
        let unit = if stage.model == "closed" { " workers" } else { "/s" };
        let level = match stage.level_from == stage.level_to {
            true => format!("{}{unit}", short(stage.level_to)),
            false => format!("{} to {}{unit}", short(stage.level_from), short(stage.level_to)),
        };
        let length = span((stage.to - stage.from).round());
        format!("{}/{}: {level} for {length}", stage.scenario, stage.stage)
    };
    let mut described: Vec<String> = stages.iter().take(STAGES_MAX).map(describe).collect();
    if stages.len() > STAGES_MAX {
        described.push(format!("and {} more", stages.len() - STAGES_MAX));
    }
    described.join("; ")
}

/// Returns the section that lists the results and studies of the report.
pub(super) fn scope(assessed: &Assessed) -> Section {
    let results = results(assessed);
    let table = table!(&results, |result|
        Column::text("system") => result.system,
        Column::text("result") => name(result.label),
        Column::text("kind") => result.kind,
        Column::text("plan") => name(&result.plan.name),
        Column::prose("target") => code(&result.target.url),
        Column::text("started") => result.started,
        Column::number("took") => span(result.duration.round()),
        Column::text("verdict") => result.verdict.clone(),
    );
    let studies = table!(&assessed.studies, |study|
        Column::text("study") => &study.result.name,
        Column::prose("question") => study.result.question.as_deref().unwrap_or("–"),
        Column::prose("variants") => {
            let names = study.result.variants.iter().map(|variant| variant.name.as_str());
            names.collect::<Vec<_>>().join(", ")
        },
        Column::number("rounds") => study.result.rounds.len().to_string(),
        Column::text("started") => &study.result.started,
    );
    section("scope", "Scope")
        .add(Block::Paragraph(
            "This report covers the results below and nothing else. A system is a target on its \
             machine; the first system is the baseline of comparisons."
                .into(),
        ))
        .add((!results.is_empty()).then_some(Block::Table(table)))
        .add((!assessed.studies.is_empty()).then_some(Block::Table(studies)))
}

/// Returns the section with the facts about targets and machines: a row per fact, a column per
/// system. `None` if there are no systems.
pub(super) fn setup(assessed: &Assessed) -> Option<Section> {
    // A row of the table: the name of the fact, and a function that returns its value.
    type FactValue = fn(&ResultFacts<'_>) -> String;
    let facts: [(&str, FactValue); 14] = [
        ("Target", |result| result.target.url.clone()),
        ("Client", |result| result.target.client.clone().unwrap_or_default()),
        ("Family, chain", |result| {
            let chain = result.target.chain_id.as_ref().map(|id| format!(", chain {id}"));
            format!("{}{}", result.target.family, chain.unwrap_or_default())
        }),
        // The number of the newest block at the start.
        ("Head", |result| result.target.head_start.map(count).unwrap_or_default()),
        ("Generator's host", |result| result.machine.host.clone()),
        ("Target on this host", |result| {
            if result.machine.target_local { "yes" } else { "no" }.to_owned()
        }),
        ("CPU", |result| result.machine.cpu.clone()),
        ("Cores", |result| result.machine.cores.to_string()),
        ("CPU limit in cores", |result| result.machine.cpu_limit.map(short).unwrap_or_default()),
        ("Memory", |result| bytes(result.machine.memory_bytes as f64)),
        ("Kernel", |result| result.machine.kernel.clone()),
        ("Governor", |result| result.machine.governor.clone().unwrap_or_default()),
        ("Congestion control", |result| result.machine.congestion.clone().unwrap_or_default()),
        ("HTTP, connections", |result| {
            format!("{}, {}", result.plan.protocol(), result.plan.connections)
        }),
    ];
    let systems: Vec<Vec<ResultFacts<'_>>> =
        assessed.evidence.systems.iter().map(results_of).collect();
    // The headings are plain text, because a name may contain brackets.
    let names = assessed
        .evidence
        .systems
        .iter()
        .map(|system| Column { head: Text::from(&system.name), ..Column::prose("") });
    let mut table = Table::new(std::iter::once(Column::text("fact")).chain(names));
    for (fact, value_of) in facts {
        let join_values = |results: &Vec<ResultFacts<'_>>| {
            let values = results.iter().map(value_of).filter(|value| !value.is_empty());
            distinct(values).join(" / ")
        };
        let values: Vec<String> = systems.iter().map(join_values).collect();
        if values.iter().all(String::is_empty) {
            continue;
        }
        let differs = values.iter().any(|value| *value != values[0]);
        let cell = |value: &String| {
            let value: &str = if value.is_empty() { "–" } else { value };
            if differs { tone("limited", value) } else { value.into() }
        };
        table.row(std::iter::once(Text::from(fact)).chain(values.iter().map(cell)).collect());
    }
    let section = section("setup", "Set-up and fingerprints")
        .intro(
            "Target and [generator](fingerprint) of each system. Values that differ between the \
             systems are coloured.",
        )
        .add(Block::Table(table));
    (!systems.is_empty()).then_some(section)
}

/// A plan, with the systems that it was run against.
struct TestedPlan<'a> {
    /// The first result of the plan.
    result: ResultFacts<'a>,
    systems: Vec<&'a str>,
}

/// Returns each tested plan once.
fn tested_plans(assessed: &Assessed) -> Vec<TestedPlan<'_>> {
    let mut plans: Vec<TestedPlan<'_>> = Vec::new();
    for result in results(assessed) {
        let is_same = |known: &&mut TestedPlan<'_>| {
            let other = &known.result;
            other.plan.name == result.plan.name
                && other.plan.seed == result.plan.seed
                && other.plan.warmup == result.plan.warmup
                && other.load == result.load
                && other.thresholds == result.thresholds
        };
        match plans.iter_mut().find(is_same) {
            Some(known) if known.systems.contains(&result.system) => {}
            Some(known) => known.systems.push(result.system),
            None => {
                let systems = vec![result.system];
                plans.push(TestedPlan { result, systems });
            }
        }
    }
    plans
}

/// Returns the section with the plans, and the rules of measurement and comparison.
pub(super) fn method(assessed: &Assessed) -> Section {
    let plans = tested_plans(assessed);
    let table = table!(&plans, |TestedPlan { result, systems }|
        Column::text("plan") => name(&result.plan.name),
        Column::prose("load") => result.load.as_str(),
        Column::number("[seed](seed)") => result.plan.seed.to_string(),
        Column::number("warm-up") => span(result.plan.warmup),
        Column::prose("[thresholds](threshold)") => match result.thresholds.is_empty() {
            true => "none".to_owned(),
            false => result.thresholds.join("; "),
        },
        Column::prose("systems") => systems.join(", "),
    );
    let rules = [
        "[Latency](latency) counts from the scheduled send, so the wait for a slow target is \
         included. A timeout counts with its full time.",
        "Each method has its own line. A method with a small [share](share) can fail completely \
         without a visible change of the total.",
        "The unit of a comparison is the run. A [difference](difference) counts only if its whole \
         95 % interval lies beyond the smallest change that matters.",
        "Only runs of the same plan are compared. Plans that differ only in target or seed are the \
         same.",
        "The [first bottleneck](first bottleneck) needs high utilisation and waiting on one time \
         axis with the first broken threshold.",
    ];
    section("method", "Method")
        .add((!plans.is_empty()).then_some(Block::Table(table)))
        .add(Block::List(List::of(rules.map(Text::marked))))
}

/// Returns the texts of the plans as a block that is collapsed at first. `None` if no result has
/// the text of its plan.
pub(super) fn plan_texts(assessed: &Assessed) -> Option<Block> {
    let plans = tested_plans(assessed);
    let plans = plans.iter().map(|tested| tested.result.plan);
    let texts = plans.map(|plan| (&plan.name, &plan.text)).filter(|(_, text)| !text.is_empty());
    let blocks = distinct(texts)
        .into_iter()
        .flat_map(|(name, text)| [Block::Subheading(name.clone()), Block::Code(text.clone())]);
    let blocks: Vec<Block> = blocks.collect();
    let summary = "Texts of the plans".to_owned();
    (!blocks.is_empty()).then_some(Block::Fold { summary, open: false, blocks })
}

/// Returns each distinct warning once, after the names of the results that have it.
pub(super) fn warnings(assessed: &Assessed) -> Section {
    let mut warnings: Vec<(&str, Vec<String>)> = Vec::new();
    let mut add =
        |warning, source: String| match warnings.iter_mut().find(|(text, _)| *text == warning) {
            Some((_, sources)) => sources.push(source),
            None => warnings.push((warning, vec![source])),
        };
    let results = results(assessed);
    for result in &results {
        let source = format!("{} ({})", result.system, result.label);
        result.warnings.iter().for_each(|warning| add(warning.as_str(), source.clone()));
    }
    for comparison in &assessed.evidence.comparisons {
        let warnings = comparison.result.warnings.iter();
        warnings.for_each(|warning| add(warning.as_str(), comparison.label.clone()));
    }
    for study in &assessed.studies {
        let warnings = study.result.warnings.iter();
        warnings.for_each(|warning| add(warning.as_str(), study.result.name.clone()));
    }
    let items =
        warnings.iter().map(|(text, sources)| text![format!("{}: ", sources.join(", ")), *text]);
    let section = Section::default().detail();
    match warnings.is_empty() {
        true => section,
        false => section
            .add(Block::Subheading("Warnings of the results".to_owned()))
            .add(Block::List(List::of(items))),
    }
}
