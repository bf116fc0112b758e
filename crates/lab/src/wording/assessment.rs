//! Writes the findings, conclusions and caveats of an assessment (`analysis/assessment.rs`). A
//! source is a result on which a finding is based: a run, a search, or a comparison, by index.
//! `assessment/advice.rs` writes the recommendations, risks and next steps.

pub(crate) mod advice;
mod caveats;

use lab_model::results::compare::Difference;

use super::difference;
use super::number::{percent, plural, rate, short, with_unit};
use crate::analysis::assessment::{
    CapacityComparison, Conclusion, Evidence, Extent, Finding, FindingKind, Source, USUAL_LIMIT,
};

/// Converts findings, conclusions and caveats to sentences. The evidence has the names of the
/// systems and results that the sentences mention.
#[derive(Clone, Copy)]
pub(crate) struct AssessmentText<'a> {
    evidence: &'a Evidence,
}

impl<'a> AssessmentText<'a> {
    /// Creates the converter for an assessment of the evidence.
    pub(crate) fn new(evidence: &'a Evidence) -> AssessmentText<'a> {
        AssessmentText { evidence }
    }

    /// Returns the name of the system with this index.
    fn system_name(&self, index: usize) -> &str {
        &self.evidence.systems[index].name
    }

    /// Returns the label of a result. Returns an empty text for a comparison of capacities.
    pub(crate) fn label(&self, source: Source) -> &str {
        match source {
            Source::Run { system, run } => &self.evidence.systems[system].runs[run].label,
            Source::Search { system, search } => {
                &self.evidence.systems[system].searches[search].label
            }
            Source::Comparison(index) => &self.evidence.comparisons[index].label,
            Source::Capacities(_) => "",
        }
    }

    /// Returns the name of the first variant of a comparison.
    fn baseline(&self, comparison: usize) -> &str {
        let variants = &self.evidence.comparisons[comparison].result.variants;
        variants.first().map_or("", |baseline| baseline.name.as_str())
    }

    /// Returns the name of the system and the label of a result: `bench-1 (fast1)`.
    fn system_and_label(&self, source: Source) -> String {
        match source.system() {
            Some(system) => format!("{} ({})", self.system_name(system), self.label(source)),
            None => self.label(source).to_owned(),
        }
    }

    /// Returns the name of the system to which a result belongs. Returns an empty text if the
    /// result compares systems.
    fn system_name_of_source(&self, source: Source) -> &str {
        source.system().map_or("", |system| self.system_name(system))
    }

    /// Returns a finding as a sentence.
    pub(crate) fn finding(&self, finding: &Finding) -> String {
        let subject =
            finding.sources.first().map_or("", |source| self.system_name_of_source(*source));
        let sentence = match &finding.kind {
            FindingKind::MethodFails { method, calls, failed_share, class, overall, extent } => {
                let failed = failed_calls(method, *calls, *failed_share, class.as_str(), extent);
                let (overall_share, clause) =
                    (percent(*overall), hidden_failure_clause(&finding.kind));
                format!("{subject}: {failed}. Of all calls {overall_share} failed{clause}.")
            }
            FindingKind::WrongResponses { method, compared, wrong } => format!(
                "{subject}: {wrong} of {compared} compared responses of {method} differ from those \
                 of the reference node."
            ),
            FindingKind::ThresholdBroken { threshold, observed, unit } => format!(
                "{subject}: the threshold {threshold} was broken; the observed value is {}.",
                with_unit(*observed, *unit)
            ),
            FindingKind::RunFails { reason } => format!("{subject}: a run failed: {reason}."),
            FindingKind::NotDelivered { share } => format!(
                "{subject}: only {} of the scheduled iterations started in time.",
                percent(*share)
            ),
            FindingKind::RateLimited { share } => format!(
                "{subject}: the target rejected {} of the calls with HTTP 429.",
                percent(*share)
            ),
            FindingKind::Bottleneck { cause, confidence, sentence } => format!(
                "{subject}: the first bottleneck is \"{}\", with {} confidence: {}.",
                cause.as_str(),
                confidence_word(*confidence),
                sentence.trim_end_matches('.')
            ),
            FindingKind::CapacityDiffers { baseline, variant, better, .. } => {
                self.capacity_differs(finding, (*baseline, *variant), *better)
            }
            FindingKind::Differs { baseline, variant, better, worse, by_runs } => {
                let name = finding.sources.first().map_or("", |source| self.label(*source));
                let doubt = match by_runs {
                    true => "",
                    false => " Some of them rest on one run of a variant.",
                };
                format!(
                    "{variant} compared with {baseline} ({name}): better in {}, worse in {}.{doubt}",
                    plural(*better as u64, "figure"),
                    plural(*worse as u64, "figure")
                )
            }
            FindingKind::Capacity { pass, fail, soaked } => {
                let soak = match soaked {
                    true => " A long run at the highest passing rate confirms it.",
                    false => "",
                };
                format!(
                    "{subject} sustains {} and not {}, in iterations of the plan.{soak}",
                    rate(*pass),
                    rate(*fail)
                )
            }
            FindingKind::CapacityAtLeast { pass } => {
                let pass = rate(*pass);
                format!("{subject} sustains at least {pass}, the highest rate of the search.")
            }
            FindingKind::NothingPassed { fail } => {
                let fail = rate(*fail);
                format!("{subject} does not sustain {fail}, the lowest rate of the search.")
            }
            FindingKind::LimitBroken { threshold, method, rate: broken_rate } => {
                let method =
                    method.as_ref().map_or_else(String::new, |method| format!(" for {method}"));
                format!(
                    "{subject}: \"{threshold}\"{method} breaks first, at {}.",
                    rate(*broken_rate)
                )
            }
            FindingKind::Cliff { pass, fail } => format!(
                "{subject} fails suddenly between {} and {}: no threshold was near its limit \
                 before.",
                rate(*pass),
                rate(*fail)
            ),
            FindingKind::SoakBroke { pass } => {
                let pass = rate(*pass);
                format!("{subject} did not sustain {pass} for the duration of the soak.")
            }
            FindingKind::NotRecovered => format!(
                "{subject} did not return to its first state after a rate that it cannot sustain."
            ),
        };
        match finding.sources.len() {
            0 | 1 => sentence,
            sources => {
                format!("{sentence} {} of the system show it.", plural(sources as u64, "result"))
            }
        }
    }

    /// Describes a difference between the capacities of two systems.
    fn capacity_differs(
        &self,
        finding: &Finding,
        (baseline, variant): (usize, usize),
        better: bool,
    ) -> String {
        let direction = if better { "higher" } else { "lower" };
        let difference = finding.sources.first().and_then(|source| match source {
            Source::Capacities(index) => self.evidence.capacities[*index].difference.as_ref(),
            _ => None,
        });
        let change =
            difference.map_or_else(String::new, |known| format!(": {}", with_interval(known)));
        format!(
            "The capacity of {} is {direction} than that of {}{change}.",
            self.system_name(variant),
            self.system_name(baseline)
        )
    }

    /// Returns a conclusion as a sentence.
    pub(crate) fn conclusion(&self, conclusion: &Conclusion, findings: &[Finding]) -> String {
        match conclusion {
            Conclusion::Finding(index) => self.finding(&findings[*index]),
            Conclusion::Kept { system, plan, runs, thresholds } => format!(
                "{} kept {} of the plan {plan} in {}.",
                self.system_name(*system),
                match thresholds {
                    1 => "the threshold".to_owned(),
                    _ => format!("all {thresholds} thresholds"),
                },
                plural(*runs as u64, "run")
            ),
            Conclusion::Measured { system, plan, runs } => format!(
                "The numbers of {} under the plan {plan} are valid in {}; the plan has no thresholds.",
                self.system_name(*system),
                plural(*runs as u64, "run")
            ),
            Conclusion::Same { comparison, variant, same, total } => format!(
                "{variant} equals {} in {same} of {} ({}): any difference is too small to matter.",
                self.baseline(*comparison),
                plural(*total as u64, "figure"),
                self.label(Source::Comparison(*comparison))
            ),
        }
    }

    /// Returns the change between the capacities of two systems with its interval, or a reason why
    /// they are not compared.
    pub(crate) fn capacities(&self, capacities: &CapacityComparison) -> String {
        match &capacities.difference {
            Some(difference) => with_interval(difference),
            None => "not compared, because a capacity is unknown or only a lower bound".to_owned(),
        }
    }
}

/// Formats a change with its interval: `+12.3 % (8.1 to 16.9 %)`.
fn with_interval(difference: &Difference) -> String {
    let interval = difference::interval(difference);
    let interval = interval.map_or_else(String::new, |interval| format!(" ({interval})"));
    format!("{}{interval}", difference::change(difference))
}

fn confidence_word(confidence: lab_model::results::Confidence) -> &'static str {
    use lab_model::results::Confidence;
    match confidence {
        Confidence::Low => "low",
        Confidence::Medium => "medium",
        Confidence::High => "high",
    }
}

/// Describes failed calls of a method: `all 100 calls of eth_getLogs failed (timeout)`.
fn failed_calls(
    method: &str,
    calls: u64,
    failed_share: f64,
    class: &str,
    extent: &Extent,
) -> String {
    let share = percent(failed_share);
    match extent {
        Extent::Run => format!("all {} of {method} failed ({class})", plural(calls, "call")),
        Extent::Stage { name, level_from, level_to, closed } => {
            let unit = if *closed { " workers" } else { "/s" };
            let level = match level_from == level_to {
                true => format!("{}{unit}", short(*level_to)),
                false => format!("{} to {}{unit}", short(*level_from), short(*level_to)),
            };
            format!(
                "all calls of {method} failed ({class}) in the stage {name} ({level}); over the \
                 run {share} of its calls failed"
            )
        }
        Extent::Part => {
            format!("{share} of {} of {method} failed, mostly as {class}", plural(calls, "call"))
        }
    }
}

/// Returns a clause for a failing method with so few calls that a usual limit on all calls is still
/// kept. Returns an empty text for other findings.
fn hidden_failure_clause(kind: &FindingKind) -> String {
    match kind.is_hidden() {
        true => format!(", so a limit of {} on all calls does not show it", percent(USUAL_LIMIT)),
        false => String::new(),
    }
}
