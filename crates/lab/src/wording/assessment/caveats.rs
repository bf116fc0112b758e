//! Writes the caveats of an assessment. A caveat names a conclusion that the results do not
//! support, and the reason.

use lab_model::results::Finding;
use lab_model::results::capacity::CapacityResult;
use lab_model::results::compare::Weight;
use lab_model::results::run::RunResult;

use super::AssessmentText;
use crate::analysis::assessment::{Caveat, Source};
use crate::analysis::comparability::Fact;
use crate::analysis::validity::CALLS_MIN;
use crate::wording::number::{count, join_first, rate, span};

/// Maximum number of names that a sentence lists.
const LISTED_MAX: usize = 6;

impl AssessmentText<'_> {
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
                self.system_name(*system)
            ),
            Caveat::NoCapacity { system } => format!(
                "The highest load that {} sustains is unknown, because no capacity was searched. A \
                 planned rate, or the mean of several, is no capacity.",
                self.system_name(*system)
            ),
            Caveat::ClosedLoad(sources) => format!(
                "The latencies of {} do not hold for a fixed rate, because its workers send less \
                 while the target is slow.",
                self.list(sources)
            ),
            Caveat::SharedMachine { system } => format!(
                "The numbers of {} do not hold for a machine without the generator, because target \
                 and generator shared one machine, without a network between them.",
                self.system_name(*system)
            ),
            Caveat::MachineUnknown { system } => format!(
                "The effect of the machine of {} is unknown, because the fingerprint of a remote \
                 target describes only the generator.",
                self.system_name(*system)
            ),
            Caveat::CauseUnknown(source) => format!(
                "The cause of the limit in {} is unknown{}.",
                self.system_and_label(*source),
                self.bottleneck(*source).map_or_else(String::new, |found| {
                    let sentence = found.sentence.trim_end_matches('.');
                    let reason = sentence.strip_prefix("cannot tell: ").unwrap_or(sentence);
                    format!(": {reason}")
                })
            ),
            Caveat::CauseUncertain { source, cause } => format!(
                "The cause of the limit in {} is uncertain: the evidence for \"{}\" has several gaps.",
                self.system_and_label(*source),
                cause.as_str()
            ),
            Caveat::FewCalls { sources, methods } => format!(
                "The p99 of {} is uncertain in {}, because each method has fewer than {} calls.",
                join_names(methods),
                self.list(sources),
                count(CALLS_MIN)
            ),
            Caveat::LowerBound(source) => format!(
                "The capacity of {} is unknown: the search only shows that it is at least {}.",
                self.system_name_of_source(*source),
                self.highest_pass(*source)
            ),
            Caveat::CapacityUnknown(source) => format!(
                "The capacity of {} is unknown: no rate of the search has a valid pass.",
                self.system_name_of_source(*source)
            ),
            Caveat::NoSoak(source) => format!(
                "It is unknown if {} sustains {} for longer than a probe of {}, because the search \
                 made no soak.",
                self.system_name_of_source(*source),
                self.highest_pass(*source),
                span(self.search(*source).map_or(0.0, |search| search.settings.probe))
            ),
            Caveat::NotMonotone(source) => format!(
                "The capacity of {} is not one sharp rate: a rate passed above one that failed.",
                self.system_name_of_source(*source)
            ),
            Caveat::UnlikePlans(unlike) => format!(
                "{} and {} may not be compared, because they have no results of the same plan: {}.",
                self.system_name(unlike.a),
                self.system_name(unlike.b),
                differ_in(&unlike.facts, "the plans")
            ),
            Caveat::UnlikeSystems(unlike) => format!(
                "No single property explains a difference between {} and {}: {}.",
                self.system_name(unlike.a),
                self.system_name(unlike.b),
                differ_in(&unlike.facts, "the systems")
            ),
            Caveat::Refused { comparison } => {
                let comparison = &self.evidence.comparisons[*comparison];
                let mismatches = comparison.result.mismatches.iter();
                let fatal = mismatches.filter(|mismatch| mismatch.weight == Weight::Refuse);
                let facts: Vec<String> = fatal.map(|mismatch| mismatch.what.clone()).collect();
                format!(
                    "The variants of {} may not be compared, because they differ in {}.",
                    comparison.label,
                    join_names(&facts)
                )
            }
            Caveat::CannotTell { comparison, variant, figures, total } => format!(
                "In {figures} of {total} figures the data do not show which of {} and {variant} is \
                 better ({}).",
                self.baseline(*comparison),
                self.label(Source::Comparison(*comparison))
            ),
            Caveat::OneRunEach { comparison, variant } => format!(
                "The differences of {variant} from {} hold for these runs only, because some of \
                 them rest on one run of a variant ({}).",
                self.baseline(*comparison),
                self.label(Source::Comparison(*comparison))
            ),
            Caveat::OneSearchEach { capacities } => {
                let pair = &self.evidence.capacities[*capacities];
                format!(
                    "The difference between the capacities of {} and {} holds for these searches \
                     only, because it rests on one search of a system.",
                    self.system_name(pair.a),
                    self.system_name(pair.b)
                )
            }
            Caveat::CapacitiesCannotTell { capacities } => {
                let pair = &self.evidence.capacities[*capacities];
                let reason = match &pair.difference {
                    None => "a capacity is unknown, or only a lower bound",
                    Some(found) if found.a_count.min(found.b_count) < 2 => {
                        "with one search, the spread between searches is unknown"
                    }
                    Some(_) => "the interval of the change contains too small changes",
                };
                format!(
                    "It is unknown if the capacities of {} and {} differ: {reason}.",
                    self.system_name(pair.a),
                    self.system_name(pair.b)
                )
            }
        }
    }

    /// Returns the result of a run, or `None` if the source is another kind of result.
    fn run(&self, source: Source) -> Option<&RunResult> {
        let Source::Run { system, run } = source else { return None };
        Some(&self.evidence.systems[system].runs[run].result)
    }

    /// Returns the result of a capacity search, or `None` if the source is another kind of result.
    fn search(&self, source: Source) -> Option<&CapacityResult> {
        let Source::Search { system, search } = source else { return None };
        Some(&self.evidence.systems[system].searches[search].result)
    }

    /// Returns the first bottleneck of a run or a capacity search.
    fn bottleneck(&self, source: Source) -> Option<&Finding> {
        let run_bottleneck = self.run(source).and_then(|run| run.bottleneck.as_ref());
        run_bottleneck.or(self.search(source).and_then(|search| search.bottleneck.as_ref()))
    }

    /// Returns the highest passing rate of a capacity search.
    fn highest_pass(&self, source: Source) -> String {
        let pass = self.search(source).and_then(|search| search.answer.highest_pass);
        rate(pass.unwrap_or(0.0))
    }

    /// Returns the first reason of the verdict of the first run, after a colon. Returns an empty
    /// text if there is no run or no reason.
    fn reason(&self, sources: &[Source]) -> String {
        let run = sources.iter().find_map(|source| self.run(*source));
        let reason = run.and_then(|run| run.verdict.reasons.first());
        reason.map_or_else(String::new, |reason| format!(": {}", reason.trim_end_matches('.')))
    }

    /// Returns the system and the labels of its results: `bench-1 (fast1, fast2)`.
    fn list(&self, sources: &[Source]) -> String {
        let labels: Vec<String> =
            sources.iter().map(|source| self.label(*source).to_owned()).collect();
        let system = sources.first().map_or("", |source| self.system_name_of_source(*source));
        format!("{system} ({})", join_names(&labels))
    }
}

/// Joins at most [`LISTED_MAX`] names with commas, and adds the number of further names.
fn join_names(names: &[String]) -> String {
    join_first(names, LISTED_MAX, ", ")
}

/// Describes the facts in which plans or systems differ.
fn differ_in(facts: &[Fact], subject: &str) -> String {
    let names: Vec<String> = facts.iter().map(ToString::to_string).collect();
    match names.is_empty() {
        true => format!("{subject} differ"),
        false => format!("{subject} differ in {}", join_names(&names)),
    }
}
