//! Sentences of caveats: what may not be concluded, and why.

use lab_model::results::Finding;
use lab_model::results::compare::Weight;
use lab_model::results::run::RunResult;

use super::Writer;
use crate::analysis::assessment::{Caveat, Setting, Source};
use crate::analysis::validity::CALLS_MIN;
use crate::wording::number::{count, rate, span};

/// Maximum number of names that a sentence lists.
const LISTED_MAX: usize = 6;

impl Writer<'_> {
    /// Returns a caveat as a sentence.
    pub(crate) fn caveat(&self, caveat: &Caveat) -> String {
        match caveat {
            Caveat::Invalid(sources) => format!(
                "The numbers of {} may not be used, because they are invalid{}.",
                self.list(sources),
                self.reason(sources)
            ),
            Caveat::ClientLimited(sources) => format!(
                "The limit of the target is unknown in {}, because the generator was the limit{}.",
                self.list(sources),
                self.reason(sources)
            ),
            Caveat::Partial(sources) => format!(
                "{} ended early, so the behaviour after the end is unknown.",
                self.list(sources)
            ),
            Caveat::NoThresholds(sources) => format!(
                "{} neither passed nor failed, because the plan has no thresholds.",
                self.list(sources)
            ),
            Caveat::SingleRun { system, plan } => format!(
                "It is unknown how much the numbers of {} vary, because only one run of the plan \
                 {plan} is valid.",
                self.system(*system)
            ),
            Caveat::NoCapacity { system } => format!(
                "The highest load that {} sustains is unknown, because no capacity was searched. A \
                 planned rate, or the mean of several, is no capacity.",
                self.system(*system)
            ),
            Caveat::ClosedLoad(sources) => format!(
                "The latencies of {} do not hold for a fixed rate, because its workers send less \
                 while the target is slow.",
                self.list(sources)
            ),
            Caveat::SharedMachine { system } => format!(
                "The numbers of {} do not hold for a machine without the generator, because target \
                 and generator shared one machine, without a network between them.",
                self.system(*system)
            ),
            Caveat::MachineUnknown { system } => format!(
                "The effect of the machine of {} is unknown, because the fingerprint of a remote \
                 target describes only the generator.",
                self.system(*system)
            ),
            Caveat::CauseUnknown(source) => format!(
                "The cause of the limit in {} is unknown{}.",
                self.named(*source),
                self.bottleneck(*source).map_or_else(String::new, |found| {
                    let sentence = found.sentence.trim_end_matches('.');
                    let reason = sentence.strip_prefix("cannot tell: ").unwrap_or(sentence);
                    format!(": {reason}")
                })
            ),
            Caveat::CauseUncertain { source, cause } => format!(
                "The cause of the limit in {} is uncertain: the evidence for \"{}\" has several gaps.",
                self.named(*source),
                cause.as_str()
            ),
            Caveat::FewCalls { sources, methods } => format!(
                "The p99 of {} is uncertain in {}, because each method has fewer than {} calls.",
                listed(methods),
                self.list(sources),
                count(CALLS_MIN)
            ),
            search @ (Caveat::LowerBound(source)
            | Caveat::CapacityUnknown(source)
            | Caveat::NoSoak(source)
            | Caveat::NotMonotone(source)) => self.search(search, *source),
            _ => self.comparison(caveat),
        }
    }

    fn search(&self, caveat: &Caveat, source: Source) -> String {
        let system = source.system().and_then(|system| self.0.systems.get(system));
        let search = match source {
            Source::Search { search, .. } => {
                system.and_then(|system| system.searches.get(search)).map(|search| &search.result)
            }
            _ => None,
        };
        let (Some(system), Some(search)) = (system, search) else { return String::new() };
        let (name, pass) = (&system.name, rate(search.answer.highest_pass.unwrap_or(0.0)));
        match caveat {
            Caveat::LowerBound(_) => format!(
                "The capacity of {name} is unknown: the search only shows that it is at least {pass}."
            ),
            Caveat::NoSoak(_) => format!(
                "It is unknown if {name} sustains {pass} for longer than a probe of {}, because the \
                 search made no soak.",
                span(search.settings.probe)
            ),
            Caveat::NotMonotone(_) => format!(
                "The capacity of {name} is not one sharp rate: a rate passed above one that failed."
            ),
            _ => format!(
                "The capacity of {name} is unknown: no rate of the search has a valid pass."
            ),
        }
    }

    fn comparison(&self, caveat: &Caveat) -> String {
        match caveat {
            Caveat::UnlikePlans(unlike) => format!(
                "{} and {} may not be compared, because no result of the one has the plan of the \
                 other: {}.",
                self.system(unlike.a),
                self.system(unlike.b),
                differ_in(&unlike.settings, "the plans")
            ),
            Caveat::UnlikeSystems(unlike) => format!(
                "No single property explains a difference between {} and {}: {}.",
                self.system(unlike.a),
                self.system(unlike.b),
                differ_in(&unlike.properties, "the systems")
            ),
            Caveat::Refused { comparison } => {
                let Some(comparison) = self.0.comparisons.get(*comparison) else {
                    return String::new();
                };
                let refused = comparison.result.mismatches.iter();
                let refused = refused.filter(|mismatch| mismatch.weight == Weight::Refuse);
                let what: Vec<String> = refused.map(|mismatch| mismatch.what.clone()).collect();
                format!(
                    "The variants of {} may not be compared, because they differ in {}.",
                    comparison.name,
                    listed(&what)
                )
            }
            Caveat::CannotTell { comparison, variant, figures, total } => {
                let comparison = self.0.comparisons.get(*comparison);
                let baseline = comparison.and_then(|comparison| comparison.result.variants.first());
                format!(
                    "In {figures} of {total} figures the data do not show which of {} and {variant} \
                     is better ({}).",
                    baseline.map_or("", |baseline| baseline.name.as_str()),
                    comparison.map_or("", |comparison| comparison.name.as_str())
                )
            }
            Caveat::OneRunEach { comparison, variant } => {
                let comparison = self.0.comparisons.get(*comparison);
                let baseline = comparison.and_then(|comparison| comparison.result.variants.first());
                format!(
                    "The differences of {variant} from {} hold for these runs only, because not all \
                     of them rest on several runs of each ({}).",
                    baseline.map_or("", |baseline| baseline.name.as_str()),
                    comparison.map_or("", |comparison| comparison.name.as_str())
                )
            }
            Caveat::OneSearchEach { capacities } => {
                let Some(pair) = self.0.capacities.get(*capacities) else { return String::new() };
                format!(
                    "The difference between the capacities of {} and {} holds for these searches \
                     only, because it does not rest on several searches of each.",
                    self.system(pair.a),
                    self.system(pair.b)
                )
            }
            Caveat::CapacitiesCannotTell { capacities } => {
                let Some(pair) = self.0.capacities.get(*capacities) else { return String::new() };
                let reason = match &pair.difference {
                    None => "a capacity is unknown, or only a lower bound",
                    Some(found) if found.a_count.min(found.b_count) < 2 => {
                        "with one search, the spread between searches is unknown"
                    }
                    Some(_) => "the interval of the change contains too small changes",
                };
                format!(
                    "It is unknown if the capacities of {} and {} differ: {reason}.",
                    self.system(pair.a),
                    self.system(pair.b)
                )
            }
            _ => String::new(),
        }
    }

    fn run(&self, source: Source) -> Option<&RunResult> {
        let Source::Run { system, run } = source else { return None };
        Some(&self.0.systems.get(system)?.runs.get(run)?.result)
    }

    fn bottleneck(&self, source: Source) -> Option<&Finding> {
        match source {
            Source::Search { system, search } => {
                self.0.systems.get(system)?.searches.get(search)?.result.bottleneck.as_ref()
            }
            _ => self.run(source)?.bottleneck.as_ref(),
        }
    }

    /// Returns the first reason of the verdict of the first run.
    fn reason(&self, sources: &[Source]) -> String {
        let run = sources.iter().find_map(|source| self.run(*source));
        let reason = run.and_then(|run| run.verdict.reasons.first());
        reason.map_or_else(String::new, |reason| format!(": {}", reason.trim_end_matches('.')))
    }

    /// Returns the system and the labels of its results: `bench-1 (fast1, fast2)`.
    fn list(&self, sources: &[Source]) -> String {
        let labels: Vec<String> =
            sources.iter().map(|source| self.label(*source).to_owned()).collect();
        let system = sources.first().and_then(|source| source.system());
        format!("{} ({})", system.map_or("", |system| self.system(system)), listed(&labels))
    }
}

/// Joins names with commas; further names are counted.
fn listed(names: &[String]) -> String {
    let mut shown: Vec<String> = names.iter().take(LISTED_MAX).cloned().collect();
    if names.len() > LISTED_MAX {
        shown.push(format!("and {} more", names.len() - LISTED_MAX));
    }
    shown.join(", ")
}

fn differ_in(settings: &[Setting], subject: &str) -> String {
    let names: Vec<String> = settings.iter().map(ToString::to_string).collect();
    match names.is_empty() {
        true => format!("{subject} differ"),
        false => format!("{subject} differ in {}", listed(&names)),
    }
}
