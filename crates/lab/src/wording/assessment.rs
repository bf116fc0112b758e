//! Sentences of an assessment: findings, conclusions and caveats. Recommendations, risks and next
//! steps are in `assessment/advice.rs`.

pub(crate) mod advice;
mod caveats;

use lab_model::results::compare::Difference;

use super::difference;
use super::number::{percent, plural, rate, short, with_unit};
use crate::analysis::assessment::{
    CapacityComparison, Conclusion, Evidence, Extent, Finding, FindingKind, Source, USUAL_LIMIT,
};

/// Writes sentences about results, which it names.
#[derive(Clone, Copy)]
pub(crate) struct Writer<'a>(pub(crate) Evidence<'a>);

impl Writer<'_> {
    fn system(&self, index: usize) -> &str {
        self.0.systems.get(index).map_or("", |system| system.name.as_str())
    }

    /// Returns the label of a result.
    pub(crate) fn label(&self, source: Source) -> &str {
        let of_system = |index: usize| self.0.systems.get(index);
        let label = match source {
            Source::Run { system, run } => {
                of_system(system).and_then(|with| with.runs.get(run)).map(|run| &run.label)
            }
            Source::Search { system, search } => of_system(system)
                .and_then(|with| with.searches.get(search))
                .map(|search| &search.label),
            Source::Comparison(index) => {
                self.0.comparisons.get(index).map(|comparison| &comparison.name)
            }
            Source::Capacities(_) => None,
        };
        label.map_or("", String::as_str)
    }

    /// Returns the system and the label of a result: `bench-1 (fast1)`.
    fn named(&self, source: Source) -> String {
        match source.system() {
            Some(system) => format!("{} ({})", self.system(system), self.label(source)),
            None => self.label(source).to_owned(),
        }
    }

    /// Returns the system of a finding.
    fn subject(&self, finding: &Finding) -> String {
        let system = finding.sources.first().and_then(|source| source.system());
        system.map_or_else(String::new, |system| self.system(system).to_owned())
    }

    /// Returns a finding as a sentence.
    pub(crate) fn finding(&self, finding: &Finding) -> String {
        let subject = self.subject(finding);
        let sentence = match &finding.kind {
            FindingKind::MethodFails { .. } => method_fails(&subject, &finding.kind),
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
            kind => capacity(&subject, kind),
        };
        match finding.sources.len() {
            0 | 1 => sentence,
            sources => {
                format!("{sentence} {} of the system show it.", plural(sources as u64, "result"))
            }
        }
    }

    fn capacity_differs(
        &self,
        finding: &Finding,
        (baseline, variant): (usize, usize),
        better: bool,
    ) -> String {
        let word = if better { "higher" } else { "lower" };
        let difference = finding.sources.first().and_then(|source| match source {
            Source::Capacities(index) => self.0.capacities.get(*index)?.difference.as_ref(),
            _ => None,
        });
        let change =
            difference.map_or_else(String::new, |found| format!(": {}", with_interval(found)));
        format!(
            "The capacity of {} is {word} than that of {}{change}.",
            self.system(variant),
            self.system(baseline)
        )
    }

    /// Returns a conclusion as a sentence.
    pub(crate) fn conclusion(&self, conclusion: &Conclusion, findings: &[Finding]) -> String {
        match conclusion {
            Conclusion::Finding(index) => {
                findings.get(*index).map_or_else(String::new, |finding| self.finding(finding))
            }
            Conclusion::Kept { system, plan, runs, thresholds } => format!(
                "{} kept {} of the plan {plan} in {}.",
                self.system(*system),
                match thresholds {
                    1 => "the threshold".to_owned(),
                    _ => format!("all {thresholds} thresholds"),
                },
                plural(*runs as u64, "run")
            ),
            Conclusion::Measured { system, plan, runs } => format!(
                "The numbers of {} under the plan {plan} are valid in {}; the plan has no thresholds.",
                self.system(*system),
                plural(*runs as u64, "run")
            ),
            Conclusion::Same { comparison, variant, same, total } => {
                let comparison = self.0.comparisons.get(*comparison);
                let baseline = comparison.and_then(|comparison| comparison.result.variants.first());
                format!(
                    "{variant} equals {} in {same} of {} ({}): any difference is too small to matter.",
                    baseline.map_or("", |baseline| baseline.name.as_str()),
                    plural(*total as u64, "figure"),
                    comparison.map_or("", |comparison| comparison.name.as_str())
                )
            }
        }
    }

    /// Returns the verdict on the capacities of two systems with its numbers.
    pub(crate) fn capacities(&self, capacities: &CapacityComparison) -> String {
        match &capacities.difference {
            Some(difference) => with_interval(difference),
            None => "not compared, because a capacity is unknown or only a lower bound".to_owned(),
        }
    }
}

/// Writes a change with its interval: `+12.3 % (8.1 to 16.9 %)`.
fn with_interval(found: &Difference) -> String {
    let interval = difference::interval(found);
    let interval = interval.map_or_else(String::new, |interval| format!(" ({interval})"));
    format!("{}{interval}", difference::change(found))
}

fn confidence_word(confidence: lab_model::results::Confidence) -> &'static str {
    use lab_model::results::Confidence;
    match confidence {
        Confidence::Low => "low",
        Confidence::Medium => "medium",
        Confidence::High => "high",
    }
}

/// Writes a failing method: `every call of eth_getLogs failed …`.
fn method_fails(subject: &str, kind: &FindingKind) -> String {
    let FindingKind::MethodFails { method, calls, failed_share, class, overall, extent } = kind
    else {
        return String::new();
    };
    let (class, all) = (class.as_str(), percent(*overall));
    let share = percent(*failed_share);
    let failed = match extent {
        Extent::Run => format!("all {} of {method} failed ({class})", plural(*calls, "call")),
        Extent::Stage { name, level_from, level_to, closed } => {
            let unit = if *closed { " workers" } else { "/s" };
            let level = match level_from == level_to {
                true => format!("{}{unit}", short(*level_to)),
                false => format!("{} to {}{unit}", short(*level_from), short(*level_to)),
            };
            format!(
                "all calls of {method} failed ({class}) in the stage {name} ({level}); over the run \
                 {share} of its calls failed"
            )
        }
        Extent::Part => {
            format!("{share} of {} of {method} failed, mostly as {class}", plural(*calls, "call"))
        }
    };
    let hidden = match kind.is_hidden() {
        true => format!(", so a limit of {} on all calls does not show it", percent(USUAL_LIMIT)),
        false => String::new(),
    };
    format!("{subject}: {failed}. Of all calls {all} failed{hidden}.")
}

fn capacity(subject: &str, kind: &FindingKind) -> String {
    match kind {
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
            format!("{subject} sustains at least {}, the highest rate of the search.", rate(*pass))
        }
        FindingKind::NothingPassed { fail } => {
            format!("{subject} does not sustain {}, the lowest rate of the search.", rate(*fail))
        }
        FindingKind::LimitBroken { threshold, method, rate: broken_rate } => {
            let method =
                method.as_ref().map_or_else(String::new, |method| format!(" for {method}"));
            format!("{subject}: \"{threshold}\"{method} breaks first, at {}.", rate(*broken_rate))
        }
        FindingKind::Cliff { pass, fail } => format!(
            "{subject} fails suddenly between {} and {}: no threshold was near its limit before.",
            rate(*pass),
            rate(*fail)
        ),
        FindingKind::SoakBroke { pass } => {
            format!("{subject} did not sustain {} for the duration of the soak.", rate(*pass))
        }
        FindingKind::NotRecovered => {
            format!(
                "{subject} did not return to its first state after a rate that it cannot sustain."
            )
        }
        _ => String::new(),
    }
}
