//! Decides what the results of one or several systems support: findings, conclusions, caveats,
//! recommendations, risks and next steps.
//!
//! A finding is a fact that the data show. A caveat is a reason why something may not be concluded.
//! A variant is one of the compared systems; the first variant is the baseline. A figure is one
//! metric of one method in a comparison. A soak is a long run at the highest rate that passed in a
//! capacity search. A closed load has workers that send the next call only after the response to
//! the previous one.
//!
//! Every recommendation rests on a finding, and every risk and next step on a finding or a caveat.
//! A run whose numbers are invalid, or that the generator limited, gives no finding, only a caveat.
//! `crate::assessment` reads and compares the results; `wording/assessment.rs` writes the
//! sentences.

mod advice;
mod caveats;
mod findings;

#[cfg(test)]
mod tests;

use lab_model::metrics::Unit;
use lab_model::record::Class;
use lab_model::results::capacity::CapacityResult;
use lab_model::results::compare::{CompareResult, Difference};
use lab_model::results::run::RunResult;
use lab_model::results::{Cause, Confidence, Outcome};

use crate::analysis::comparability::{Fact, Facts};

/// A result with its name.
#[derive(Clone, Debug)]
pub struct Labelled<T> {
    /// Name of the folder or file from which the result was read. For a comparison that this report
    /// made, the name of the plan. For a comparison of a study, the names of the study and the
    /// plan.
    pub label: String,
    /// The result.
    pub result: T,
}

/// A system under test: a target on its machine, with its results.
#[derive(Clone, Debug, Default)]
pub struct System {
    /// Name of the system.
    pub name: String,
    /// Load runs, in the order of time.
    pub runs: Vec<Labelled<RunResult>>,
    /// Capacity searches, in the order of time.
    pub searches: Vec<Labelled<CapacityResult>>,
}

/// Valid runs of one plan. Plans that differ only in their target or seed are one plan.
#[derive(Clone, Debug)]
pub struct PlanRuns {
    /// Name of the plan.
    pub name: String,
    /// Facts about the first run of the plan.
    pub facts: Facts,
    /// The runs of each system, as the index of the system and the indexes of its runs.
    pub systems: Vec<(usize, Vec<usize>)>,
}

/// A comparison of the capacities of two systems, under one plan and the same thresholds.
#[derive(Clone, Debug)]
pub struct CapacityComparison {
    /// Index of the first system.
    pub a: usize,
    /// Index of the other system.
    pub b: usize,
    /// The difference; `None` if a capacity is only a lower bound or unknown.
    pub difference: Option<Difference>,
}

/// Two systems with the facts in which they differ.
#[derive(Clone, Debug, PartialEq)]
pub struct UnlikeSystems {
    /// Index of the first system.
    pub a: usize,
    /// Index of the other system.
    pub b: usize,
    /// The facts, the most severe first.
    pub facts: Vec<Fact>,
}

/// The input of an assessment.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    /// The systems with their results, in the order of the arguments. The first one is the
    /// baseline.
    pub systems: Vec<System>,
    /// The valid runs of the systems by plan.
    pub plans: Vec<PlanRuns>,
    /// Comparisons of runs: first the comparisons of the systems, then the comparisons of studies,
    /// then the comparisons that were read from files.
    pub comparisons: Vec<Labelled<CompareResult>>,
    /// Comparisons of capacities.
    pub capacities: Vec<CapacityComparison>,
    /// Pairs of systems that are not compared, because they have no results of the same plan. Their
    /// facts are the differing settings of their plans.
    pub unlike_plans: Vec<UnlikeSystems>,
    /// Pairs of compared systems. Their facts are the properties in which they and their machines
    /// differ.
    pub unlike_systems: Vec<UnlikeSystems>,
}

impl Evidence {
    /// Returns all runs with their sources.
    fn runs(&self) -> impl Iterator<Item = (Source, &RunResult)> {
        self.systems.iter().enumerate().flat_map(|(system, results)| {
            let runs = results.runs.iter().enumerate();
            runs.map(move |(run, labelled)| (Source::Run { system, run }, &labelled.result))
        })
    }

    /// Returns all capacity searches with their sources.
    fn searches(&self) -> impl Iterator<Item = (Source, &CapacityResult)> {
        self.systems.iter().enumerate().flat_map(|(system, results)| {
            let searches = results.searches.iter().enumerate();
            searches.map(move |(search, labelled)| {
                (Source::Search { system, search }, &labelled.result)
            })
        })
    }
}

/// The result on which a finding or a caveat rests. The numbers are indexes into the lists of
/// [`Evidence`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each field is an index of a list of `Evidence`")]
pub enum Source {
    /// A run of a system.
    Run { system: usize, run: usize },
    /// A capacity search of a system.
    Search { system: usize, search: usize },
    /// A comparison of runs.
    Comparison(usize),
    /// A comparison of capacities.
    Capacities(usize),
}

impl Source {
    /// Returns the index of the system; `None` for comparisons.
    pub fn system(self) -> Option<usize> {
        match self {
            Source::Run { system, .. } | Source::Search { system, .. } => Some(system),
            Source::Comparison(_) | Source::Capacities(_) => None,
        }
    }
}

/// A fact that the data show.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// The fact, with the numbers of the first source.
    pub kind: FindingKind,
    /// The results that show the fact.
    pub sources: Vec<Source>,
}

/// How far the failures of a method extend over a run.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "each field is a number of the sentence in wording/assessment.rs")]
pub enum Extent {
    /// All calls of the method failed in the whole run.
    Run,
    /// All calls of the method failed in one stage, but not in the whole run. The levels are those
    /// at the stage's start and end: numbers of workers if `closed` is true, else iterations per
    /// second.
    Stage { name: String, level_from: f64, level_to: f64, closed: bool },
    /// There is no stage in which all calls of the method failed.
    Part,
}

/// The kind of a finding. Shares are between 0 and 1, rates are per second.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "each field is a number of the sentence in wording/assessment.rs")]
pub enum FindingKind {
    /// Calls of a method fail. `overall` is the share of failed calls among all calls of the run;
    /// `extent` states how far the failures extend over the run.
    MethodFails {
        method: String,
        calls: u64,
        failed_share: f64,
        class: Class,
        overall: f64,
        extent: Extent,
    },
    /// Responses differ from those of the reference node.
    WrongResponses { method: String, compared: u64, wrong: u64 },
    /// A threshold was broken.
    ThresholdBroken { threshold: String, observed: f64, unit: Unit },
    /// A run failed for a reason that no other finding shows, such as a threshold without data.
    RunFails { reason: String },
    /// Fewer iterations started in time than the plan scheduled. `share` is the share of the
    /// scheduled iterations that started in time.
    NotDelivered { share: f64 },
    /// The target rejects this share of the calls with HTTP 429.
    RateLimited { share: f64 },
    /// The first bottleneck.
    Bottleneck { cause: Cause, confidence: Confidence, sentence: String },
    /// The capacity is between the rates `pass` and `fail`. `soaked` is true if a long run at
    /// `pass` passed.
    Capacity { pass: f64, fail: f64, soaked: bool },
    /// The highest allowed rate passed.
    CapacityAtLeast { pass: f64 },
    /// Even the lowest rate failed.
    NothingPassed { fail: f64 },
    /// The first threshold that breaks above the capacity. `rate` is the rate at which it breaks.
    /// `method` is `None` if no single method breaks it.
    LimitBroken { threshold: String, method: Option<String>, rate: f64 },
    /// The capacity is between `pass` and `fail`. Above the capacity, thresholds break without
    /// warning.
    Cliff { pass: f64, fail: f64 },
    /// The capacity did not hold for the duration of the soak.
    SoakBroke { pass: f64 },
    /// The target did not recover from a load above its capacity.
    NotRecovered,
    /// A variant differs from the baseline: it is better in `better` figures, and worse in `worse`
    /// figures. `by_runs` is true if every difference rests on several runs of each variant.
    Differs { baseline: String, variant: String, better: usize, worse: usize, by_runs: bool },
    /// Capacities of two systems differ. `baseline` and `variant` are the indexes of the systems.
    /// `better` is true if the variant's capacity is higher. `by_runs` is true if the difference
    /// rests on several searches of each system.
    CapacityDiffers { baseline: usize, variant: usize, better: bool, by_runs: bool },
}

/// Thresholds usually allow this share of all calls to fail.
pub const USUAL_LIMIT: f64 = 0.01;

impl FindingKind {
    /// Returns true if a method fails, but so few of all calls fail that a usual threshold is kept.
    pub fn is_hidden(&self) -> bool {
        matches!(self, FindingKind::MethodFails { overall, .. } if *overall < USUAL_LIMIT)
    }

    /// Returns true if the finding rests on single runs. Another run may show the opposite, because
    /// the spread between runs is unknown.
    pub fn rests_on_single_runs(&self) -> bool {
        use FindingKind::*;
        matches!(self, Differs { by_runs: false, .. } | CapacityDiffers { by_runs: false, .. })
    }

    /// Returns true if the finding is a failure of the target.
    pub fn is_failure(&self) -> bool {
        use FindingKind::*;
        matches!(
            self,
            MethodFails { .. }
                | WrongResponses { .. }
                | ThresholdBroken { .. }
                | RunFails { .. }
                | NotDelivered { .. }
                | RateLimited { .. }
                | NothingPassed { .. }
                | SoakBroke { .. }
                | NotRecovered
        )
    }
}

/// A statement that the data support.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "each field is a number of the sentence in wording/assessment.rs")]
pub enum Conclusion {
    /// Runs of a system under one plan kept all thresholds.
    Kept { system: usize, plan: String, runs: usize, thresholds: usize },
    /// Runs of a system under one plan are valid, but have no thresholds.
    Measured { system: usize, plan: String, runs: usize },
    /// A finding, by its index.
    Finding(usize),
    /// No figure differs between two variants. In `same` of `total` figures, the data show that any
    /// difference is too small to matter.
    Same { comparison: usize, variant: String, same: usize, total: usize },
}

/// A reason why something may not be concluded. All sources of a list belong to one system.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "each field is a part of the sentence in wording/assessment.rs")]
pub enum Caveat {
    /// The numbers of runs are invalid.
    Invalid(Vec<Source>),
    /// The generator limited runs or searches.
    ClientLimited(Vec<Source>),
    /// Runs or searches ended early.
    Partial(Vec<Source>),
    /// The runs have no thresholds.
    NoThresholds(Vec<Source>),
    /// A system has one valid run under a plan.
    SingleRun { system: usize, plan: String },
    /// No search for the capacity of a system was made.
    NoCapacity { system: usize },
    /// The capacity is only known as a lower bound.
    LowerBound(Source),
    /// The search did not find the capacity.
    CapacityUnknown(Source),
    /// The capacity was not confirmed by a long run.
    NoSoak(Source),
    /// A rate passed although a lower rate failed.
    NotMonotone(Source),
    /// The generator ran on the machine of the target.
    SharedMachine { system: usize },
    /// The machine of a remote target is not described.
    MachineUnknown { system: usize },
    /// The cause of a broken threshold is unknown.
    CauseUnknown(Source),
    /// The evidence for the cause has several gaps.
    CauseUncertain { source: Source, cause: Cause },
    /// Percentiles of methods rest on too few calls.
    FewCalls { sources: Vec<Source>, methods: Vec<String> },
    /// A closed load slows down with the target.
    ClosedLoad(Vec<Source>),
    /// Two systems have no results of the same plan.
    UnlikePlans(UnlikeSystems),
    /// A comparison was refused.
    Refused { comparison: usize },
    /// Two compared systems differ in several properties.
    UnlikeSystems(UnlikeSystems),
    /// For `figures` of `total` figures, the data do not show which of two variants is better.
    CannotTell { comparison: usize, variant: String, figures: usize, total: usize },
    /// Figures of two variants differ, but not all differences rest on several runs of each
    /// variant.
    OneRunEach { comparison: usize, variant: String },
    /// Capacities of two systems differ, but the difference does not rest on several searches of
    /// each system.
    OneSearchEach { capacities: usize },
    /// The data do not show which of two systems has the higher capacity.
    CapacitiesCannotTell { capacities: usize },
}

/// A recommended action.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "each field is a part of the sentence in wording/assessment.rs")]
pub enum Advice {
    /// Repair or restrict a method.
    RepairMethod { method: String },
    /// Set an alert on the failures of this method alone.
    WatchMethod { method: String },
    /// Do not serve a method until its responses are right.
    CorrectResponses { method: String },
    /// Relieve the first bottleneck.
    Relieve(Cause),
    /// Raise the rate limit, or send less.
    RaiseRateLimit,
    /// Keep the load below the capacity.
    KeepBelow { rate: f64 },
    /// Reject load above the capacity before it reaches the target.
    LimitAdmission { rate: f64 },
    /// Choose a variant.
    Prefer { variant: String },
}

/// The index of the finding or caveat on which a statement rests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// A finding.
    Finding(usize),
    /// A caveat.
    Caveat(usize),
}

/// A risk of acting on the results.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each field is a part of the sentence in wording/assessment.rs")]
pub enum Risk {
    /// Figures over all calls hide a failing method.
    HiddenFailure { method: String },
    /// The target breaks without warning.
    BreaksSuddenly,
    /// The target stays slow after an overload.
    StaysDegraded,
    /// The target may fail after a longer time at the same load.
    FailsLater,
    /// Another run may give other numbers.
    NotRepeated,
    /// The numbers may differ in production, because the generator shared the target's machine.
    OtherInProduction,
    /// The capacity is unknown, so it may be just above the measured load.
    UnknownLimit,
    /// A difference between systems may have another cause than the intended one.
    OtherCause,
}

/// A next measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Repeat with a stronger generator.
    StrongerGenerator,
    /// Repeat invalid or interrupted runs.
    RepeatInvalid,
    /// Make several alternating runs.
    RepeatAlternating,
    /// Search the capacity.
    SearchCapacity,
    /// Raise the highest allowed rate of the search.
    RaiseRateMax,
    /// Confirm the capacity by a soak.
    Soak,
    /// Repeat the search because its boundary is not sharp.
    RepeatSearch,
    /// Run the generator on another machine.
    SeparateGenerator,
    /// Set thresholds.
    SetThresholds,
    /// Observe the target's host.
    ObserveHost,
    /// Run longer.
    RunLonger,
    /// Plan the load as a rate.
    PlanRate,
    /// Use one plan for all systems.
    OnePlan,
    /// Change one property at a time.
    ChangeOneProperty,
    /// Repeat after the change that was recommended.
    VerifyChange,
}

/// A recommendation, a risk or a next step, with the finding or caveat on which it rests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Derived<T> {
    /// The recommendation, the risk or the step.
    pub statement: T,
    /// The finding or caveat on which it rests.
    pub basis: Basis,
}

/// The assessment of all results.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Assessment {
    /// Facts that the data show, the most severe first.
    pub findings: Vec<Finding>,
    /// Statements that the data support.
    pub conclusions: Vec<Conclusion>,
    /// Reasons why something may not be concluded.
    pub caveats: Vec<Caveat>,
    /// Recommended actions. Empty if no finding supports a recommendation.
    pub recommendations: Vec<Derived<Advice>>,
    /// Risks of acting on the results.
    pub risks: Vec<Derived<Risk>>,
    /// Next measurements.
    pub steps: Vec<Derived<Step>>,
}

/// Assesses the evidence.
pub fn assess(evidence: &Evidence) -> Assessment {
    let findings = findings::find(evidence);
    let caveats = caveats::find(evidence);
    let conclusions = findings::conclusions(evidence, &findings);
    let recommendations = advice::recommendations(&findings);
    let risks = advice::risks(&findings, &caveats);
    let steps = advice::steps(&caveats, &recommendations);
    Assessment { findings, conclusions, caveats, recommendations, risks, steps }
}

/// Returns true if a run's numbers may be used.
pub(crate) fn is_valid(outcome: Outcome) -> bool {
    !matches!(outcome, Outcome::Invalid | Outcome::ClientLimited)
}
