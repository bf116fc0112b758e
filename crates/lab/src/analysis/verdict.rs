//! The verdict of a run: pass, fail, measured, invalid, or limited by the generator.
//!
//! In this order, the first that applies:
//! 1. nothing was measured: invalid;
//! 2. something failed that the generator cannot have caused: fail. The generator causes no error
//!    response and no wrong answer, no 429 beyond the share of late sends, no timeout that is longer
//!    than its own delay, and no latency that is beyond its limit by more than that delay. Where its
//!    threads had no time left, its delay has no bound;
//! 3. the generator was the limit: client-limited; a broken objective is then told but not believed;
//! 4. an objective was broken by less than the generator's delay: invalid;
//! 5. nothing is broken but an objective about throughput, and the plan's own pauses bounded the
//!    throughput: client-limited;
//! 6. ended by hand: invalid, because the rest might have broken something;
//! 7. the plan's own pauses bounded the rate: client-limited, also where objectives were kept, because
//!    such a load never asks more than its pauses allow, however slow the target becomes;
//! 8. measured where there are no objectives, else pass. Late sends only add to latencies, so an
//!    upper limit that was kept would have been kept without them.

use lab_model::metrics::{Metric, Samples};
use lab_model::plan::threshold::{Aggregation, Operator};
use lab_model::plan::{Model, Plan};
use lab_model::record::Class;
use lab_model::results::Outcome;
use lab_model::results::run::{Compared, Difference, Row};

use crate::analysis::findings::Stalls;
use crate::analysis::knee::Knee;
use crate::analysis::thresholds::Ruling;
use crate::analysis::validity;
use crate::analysis::validity::{Delay, Doubt, Doubts};

#[cfg(test)]
mod tests;

/// What a verdict rests on.
#[derive(Clone, Copy, Debug)]
pub struct Evidence<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// Its objectives, in its order.
    pub rulings: &'a [Ruling],
    /// What stands against the numbers.
    pub doubts: &'a Doubts,
    /// All calls, warm-up left out.
    pub overall: &'a Row,
    /// By method.
    pub methods: &'a [Row],
    /// Methods of which most calls failed for a time.
    pub knees: &'a [(String, Knee)],
    /// Answers compared with a reference's.
    pub compared: Option<&'a Compared>,
    /// Seconds in which a closed load stalled.
    pub stalls: Option<&'a Stalls>,
    /// Why and when the run ended before its plan, if it did.
    pub early: Option<Early>,
}

/// What a run comes to.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    /// The verdict.
    pub outcome: Outcome,
    /// Why, most important first.
    pub reasons: Vec<Reason>,
    /// What is worth knowing of the target.
    pub findings: Vec<Reason>,
    /// What is worth knowing of the run.
    pub warnings: Vec<Reason>,
}

/// A reason for a verdict. Shares are of 1, times without a unit are in seconds.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "each field is a number of the sentence in wording/verdict.rs")]
pub enum Reason {
    /// The numbers may not be believed.
    Doubt(Doubt),
    /// So many objectives were kept under a load that paced itself.
    KeptWhenPaced(usize),
    /// Somebody ended the run.
    EndedByHand { at: f64, of: f64, nothing_broken: bool },
    /// A broken objective ended the run.
    Aborted { at: f64, of: f64 },
    /// An objective about a metric was broken.
    Broken(Ruling, Metric),
    /// All calls of a method were answered with an error from the first on.
    NeverAnswered { method: String },
    /// Most calls of a method failed from some time on; the share is that of all calls.
    Knee { method: String, knee: Knee, failed_share: f64 },
    /// All calls of a method failed.
    AllFailed { method: String, calls: u64, class: Class },
    /// Many calls of a method failed.
    ManyFailed { method: String, share: f64, class: Class },
    /// An objective was kept only because workers wait.
    KeptByStalls { objective: String, stalls: Stalls },
    /// Answers of a method differ from the reference's.
    Wrong { method: String, calls: u64, wrong: u64, reference: String, first: Option<Difference> },
    /// No answer could be compared.
    NotCompared { reference: String, unanswered: u64, skipped: u64 },
}

impl Reason {
    /// Returns true if the reason is that calls of the method `name` failed.
    fn is_about(&self, name: &str) -> bool {
        match self {
            Reason::Broken(ruling, _) => ruling.outcome.method.as_deref() == Some(name),
            Reason::NeverAnswered { method }
            | Reason::Knee { method, .. }
            | Reason::AllFailed { method, .. } => method == name,
            _ => false,
        }
    }
}

/// Why and when a run ended before its plan, in seconds since its start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Early {
    /// Somebody asked for it.
    Asked(f64),
    /// A threshold that aborts was broken.
    Aborted(f64),
}

/// The verdict, and what is worth knowing beside it.
pub fn verdict(evidence: Evidence<'_>) -> Judged {
    let mut failures = Failures::default();
    failures.thresholds(evidence);
    failures.methods(evidence);
    failures.partly(evidence);
    failures.answers(evidence);
    failures.stalls(evidence);
    let doubts = evidence.doubts;
    for (doubt, missing) in &doubts.behind {
        failures.push(Breach::Share(*missing), Reason::Doubt(doubt.clone()));
    }
    let stands = |failure: &Failure| failure.stands(evidence);
    let (limited, mut warnings) = limits(evidence, &failures);
    warnings.extend(validity::few(evidence.methods).map(Reason::Doubt));

    failures.list.sort_by_key(|failure| !stands(failure));
    let told: Vec<Reason> = failures.list.iter().map(|failure| failure.reason.clone()).collect();
    let late: Vec<Reason> =
        doubts.late.iter().map(|late| Reason::Doubt(late.doubt.clone())).collect();
    let paced: Vec<Reason> = doubts.paced.iter().cloned().map(Reason::Doubt).collect();
    let doubtful = |delay: &Delay| failures.list.iter().any(|one| one.within(delay, evidence));
    let (outcome, mut reasons) = if let Some(empty) = &doubts.empty {
        (Outcome::Invalid, vec![Reason::Doubt(empty.clone())])
    } else if failures.list.iter().any(stands) {
        (Outcome::Fail, [told, limited, late.clone()].concat())
    } else if !limited.is_empty() {
        (Outcome::ClientLimited, [limited, late.clone(), told].concat())
    } else if doubts.late.as_ref().is_some_and(doubtful) {
        (Outcome::Invalid, [late.clone(), told].concat())
    } else if !told.is_empty() {
        (Outcome::ClientLimited, [paced.clone(), told].concat())
    } else if let Some(Early::Asked(_)) = evidence.early {
        (Outcome::Invalid, Vec::new())
    } else if !doubts.paced.is_empty() {
        let objectives = evidence.plan.thresholds.len();
        let kept = (objectives > 0).then_some(Reason::KeptWhenPaced(objectives));
        (Outcome::ClientLimited, paced.iter().cloned().chain(kept).collect())
    } else if evidence.plan.thresholds.is_empty() {
        (Outcome::Measured, Vec::new())
    } else {
        (Outcome::Pass, Vec::new())
    };
    if outcome != Outcome::ClientLimited {
        warnings.extend(paced);
    }
    if matches!(outcome, Outcome::Pass | Outcome::Measured) {
        warnings.extend(late);
    }
    early(evidence, outcome, &mut reasons);
    Judged { outcome, reasons, findings: failures.findings, warnings }
}

/// What limited the run on our side, and what is only worth a warning: where all that was planned was
/// done in time and nothing is broken, busy threads and a wait for a core changed nothing.
fn limits(evidence: Evidence<'_>, failures: &Failures) -> (Vec<Reason>, Vec<Reason>) {
    let doubts = evidence.doubts;
    let unpaced = |scenario: &lab_model::plan::Scenario| {
        scenario.model == Model::Closed && scenario.pause.is_zero()
    };
    let closed = evidence.plan.scenarios.iter().any(unpaced);
    let (mut limited, mut warnings) = (Vec::new(), Vec::new());
    let matters =
        closed || !failures.list.is_empty() || doubts.late.is_some() || !doubts.workers.is_empty();
    let into = if matters { &mut limited } else { &mut warnings };
    into.extend(doubts.overloaded.iter().cloned().map(Reason::Doubt));
    if let Some(starved) = &doubts.starved {
        let matters = closed || failures.list.iter().any(|one| one.within(starved, evidence));
        let into = if matters { &mut limited } else { &mut warnings };
        into.push(Reason::Doubt(starved.doubt.clone()));
    }
    limited.extend(doubts.workers.iter().cloned().map(Reason::Doubt));
    (limited, warnings)
}

fn early(evidence: Evidence<'_>, outcome: Outcome, reasons: &mut Vec<Reason>) {
    let of = evidence.plan.duration().as_secs_f64();
    match evidence.early {
        Some(Early::Asked(at)) => {
            let nothing_broken = outcome == Outcome::Invalid && reasons.is_empty();
            reasons.push(Reason::EndedByHand { at, of, nothing_broken });
        }
        Some(Early::Aborted(at)) => reasons.push(Reason::Aborted { at, of }),
        None => {}
    }
}

/// How something failed, for what the generator can have to do with it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Breach {
    /// The server's own error responses or wrong answers, or too few of anything.
    Server,
    /// The server's 429: so much beyond the share that is allowed.
    Refused(f64),
    /// Calls without a response.
    Silent,
    /// A time that is so many milliseconds beyond its limit.
    Time(f64),
    /// A share of iterations that is so much beyond its limit.
    Share(f64),
    /// Less throughput than was asked for.
    Throughput,
}

#[derive(Debug)]
struct Failure {
    breach: Breach,
    reason: Reason,
}

impl Failure {
    /// Returns true if the generator cannot have caused it.
    fn stands(&self, evidence: Evidence<'_>) -> bool {
        let doubts = evidence.doubts;
        let told = matches!(self.breach, Breach::Server | Breach::Refused(_));
        let out_of_time = !doubts.overloaded.is_empty() || !doubts.workers.is_empty();
        let paced = self.breach == Breach::Throughput && !doubts.paced.is_empty();
        let mut delays = [&doubts.starved, &doubts.late].into_iter().flatten();
        (told || !out_of_time) && !paced && !delays.any(|delay| self.within(delay, evidence))
    }

    /// Returns true if a delay of the generator can have caused it.
    fn within(&self, delay: &Delay, evidence: Evidence<'_>) -> bool {
        let plan = evidence.plan;
        match self.breach {
            Breach::Server => false,
            Breach::Refused(beyond) | Breach::Share(beyond) => beyond <= delay.share,
            Breach::Silent => plan.target.timeout.as_secs_f64() * 1e3 <= delay.longest_ms,
            Breach::Time(beyond) => beyond <= delay.longest_ms,
            Breach::Throughput => plan.scenarios.iter().any(|one| one.model == Model::Closed),
        }
    }
}

#[derive(Debug, Default)]
struct Failures {
    list: Vec<Failure>,
    findings: Vec<Reason>,
}

impl Failures {
    fn push(&mut self, breach: Breach, reason: Reason) {
        self.list.push(Failure { breach, reason });
    }

    fn thresholds(&mut self, evidence: Evidence<'_>) {
        for (threshold, ruling) in evidence.plan.thresholds.iter().zip(evidence.rulings) {
            if !ruling.outcome.kept {
                let metric = threshold.selector.metric;
                let reason = Reason::Broken(ruling.clone(), metric);
                self.push(breach(evidence.plan, metric, ruling), reason);
            }
        }
    }

    /// Methods that mostly failed from some time on, whether or not an objective covers them.
    fn methods(&mut self, evidence: Evidence<'_>) {
        let nothing_answered = evidence.overall.calls > 0 && evidence.overall.failed_share >= 1.0;
        for (method, knee) in evidence.knees {
            let told = Class::RpcError == knee.class;
            let refused = told && knee.answered_before == 0 && knee.until.is_none();
            let row = evidence.methods.iter().find(|row| row.method == *method);
            // Of the calls since it began.
            let lasting = row.is_some_and(|row| {
                knee.failed * 2 > row.calls.saturating_sub(knee.answered_before)
            });
            let failed_share = evidence.overall.failed_share;
            let reason = Reason::Knee { method: method.clone(), knee: knee.clone(), failed_share };
            if refused && has_own_objective(evidence.plan, method) {
                continue;
            }
            if refused && !nothing_answered {
                self.push(Breach::Server, Reason::NeverAnswered { method: method.clone() });
            } else if knee.until.is_none() || lasting {
                let alone = evidence.overall.failed_share < 0.5;
                let told = knee.class.failed_by_server() || alone;
                self.push(if told { Breach::Server } else { Breach::Silent }, reason);
            } else {
                self.findings.push(reason);
            }
        }
        for row in evidence.methods {
            let known = evidence.knees.iter().any(|(method, _)| *method == row.method);
            if row.failed_share >= 1.0 && !known {
                let (method, calls, class) = (row.method.clone(), row.calls, worst_class(row));
                let reason = Reason::AllFailed { method, calls, class };
                match nothing_answered {
                    true => self.push(silent_unless(class), reason),
                    false => self.findings.push(reason),
                }
            }
        }
    }

    /// Methods of which a good part failed all the time.
    fn partly(&mut self, evidence: Evidence<'_>) {
        let told = |method: &str| self.list.iter().any(|failure| failure.reason.is_about(method));
        let mut found = Vec::new();
        for row in evidence.methods {
            let failed = row.failed_share * row.calls as f64;
            let much = row.failed_share >= FAILING_SHARE && failed >= FAILING_MIN;
            if much && !has_own_objective(evidence.plan, &row.method) && !told(&row.method) {
                let class = worst_class(row);
                let (method, share) = (row.method.clone(), row.failed_share);
                found.push((silent_unless(class), Reason::ManyFailed { method, share, class }));
            }
        }
        found.into_iter().for_each(|(breach, reason)| self.push(breach, reason));
    }

    /// Latency objectives that were kept only because closed workers wait while the target stalls.
    fn stalls(&mut self, evidence: Evidence<'_>) {
        let Some(stalls) = evidence.stalls else { return };
        for (threshold, ruling) in evidence.plan.thresholds.iter().zip(evidence.rulings) {
            let Aggregation::Percentile(percent) = threshold.aggregation else { continue };
            let upper = matches!(threshold.operator, Operator::Less | Operator::LessOrEqual);
            let beyond = stalls.longest_ms - threshold.limit;
            let hidden = stalls.missing >= 1.0 - percent / 100.0 && beyond > 0.0;
            let latency = threshold.selector.metric == Metric::Latency;
            if ruling.outcome.kept && upper && latency && hidden {
                let (objective, stalls) = (threshold.text.clone(), stalls.clone());
                self.push(Breach::Time(beyond), Reason::KeptByStalls { objective, stalls });
            }
        }
    }

    fn answers(&mut self, evidence: Evidence<'_>) {
        let Some(compared) = evidence.compared else { return };
        for (method, calls, wrong) in &compared.methods {
            if *wrong > 0 {
                let first = compared.examples.iter().find(|example| example.method == *method);
                let reason = Reason::Wrong {
                    method: method.clone(),
                    calls: *calls,
                    wrong: *wrong,
                    reference: compared.reference.clone(),
                    first: first.cloned(),
                };
                self.push(Breach::Server, reason);
            }
        }
        if compared.compared == 0 {
            self.findings.push(Reason::NotCompared {
                reference: compared.reference.clone(),
                unanswered: compared.unanswered,
                skipped: compared.skipped,
            });
        }
    }
}

/// Share of a method's calls that fail, and their least number, from which the run fails unless an
/// objective about the failures of this method says otherwise.
const FAILING_SHARE: f64 = 0.25;
const FAILING_MIN: f64 = 10.0;

/// Returns true if the plan says how many calls of a method may fail.
fn has_own_objective(plan: &Plan, method: &str) -> bool {
    plan.thresholds.iter().any(|threshold| {
        let own = threshold.selector.method.and_then(|index| plan.methods.get(index));
        threshold.selector.metric == Metric::Failed && own.is_some_and(|own| **own == *method)
    })
}

fn silent_unless(class: Class) -> Breach {
    if class.failed_by_server() { Breach::Server } else { Breach::Silent }
}

/// How an objective about `metric` was broken. Where it is not known by how much, by any delay.
fn breach(plan: &Plan, metric: Metric, ruling: &Ruling) -> Breach {
    let beyond = ruling.beyond.unwrap_or(0.0);
    match metric.samples() {
        _ if ruling.by_server => Breach::Server,
        Samples::CallShare(is) if is(Class::Limited) => Breach::Refused(beyond),
        Samples::CallShare(_) => Breach::Silent,
        Samples::CallTimes(..) => Breach::Time(beyond),
        Samples::IterationTimes(_) => {
            // Each call of an iteration can be late.
            let steps = plan.mixes.iter().map(|mix| mix.steps.len()).max().unwrap_or(1);
            Breach::Time(beyond / steps.max(1) as f64)
        }
        Samples::IterationShare(_) => Breach::Share(beyond),
        Samples::CallCount(_) | Samples::IterationCount(_) => Breach::Throughput,
    }
}

fn worst_class(row: &Row) -> Class {
    let failed = row.classes.iter().filter(|class| class.class.failed());
    failed.max_by_key(|class| class.calls).map_or(Class::Ok, |class| class.class)
}
