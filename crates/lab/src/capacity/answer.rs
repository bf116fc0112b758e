//! From all probes to the answer: what the rule found, in figures and in a sentence.

use lab_model::results::capacity::{
    Answer, Binding, CapacityResult, End, Judged, Kind, ProcessCost, SCHEMA, Scaling,
};
use lab_model::results::run::ProcessRole;
use lab_model::results::{Cause, Finding};

use super::course::{Course, Made};
use crate::analysis::scaling::{fit, little};
use crate::analysis::search::{Found, found};
use crate::wording::number::short;

/// By how much the counted number under way may differ from Little's law before it is said.
const LITTLE_OFF: f64 = 0.3;
/// Fewer calls under way than this are counted too coarsely, once a second.
const LITTLE_MIN: f64 = 5.0;

/// The result of a search that has ended so, after so many seconds.
pub(super) fn put_together(course: Course<'_>, end: End, seconds: f64) -> CapacityResult {
    let found = found(&course.probes.settings, &course.history);
    let first = course.first.as_ref().expect("a search without a run ends with a fault");
    let failed = found.failed.map(|place| &course.made[place]);
    let passed = found.passed.map(|place| &course.made[place]);
    let binding = failed.and_then(|made| made.binding.clone());
    let at_least = found.lowest_fail.is_none() && found.highest_pass.is_some();
    let answer = Answer {
        end,
        sentence: sentence(&course, &found, end, binding.as_ref()),
        highest_pass: found.highest_pass,
        lowest_fail: found.lowest_fail,
        at_least,
        monotone: found.monotone,
        boundary: found.boundary,
        soak_held: found.soak_held,
        degraded: degraded(&found),
    };
    let mut warnings = course.probes.warnings.clone();
    warnings.extend(course.warnings.iter().cloned());
    warnings.extend(doubts(&course, &found));
    warnings.extend(at_rates(&[passed, failed], &warnings));
    let mut seen = std::collections::BTreeSet::new();
    warnings.retain(|warning| seen.insert(warning.clone()));
    CapacityResult {
        schema: SCHEMA.to_owned(),
        weir: first.weir.clone(),
        started: first.started.clone(),
        started_unix: first.started_unix,
        duration: seconds,
        partial: end == End::Stopped,
        plan: first.plan.clone(),
        target: first.target.clone(),
        fingerprint: first.fingerprint.clone(),
        settings: course.probes.facts(),
        objectives: course.probes.objectives().iter().map(|own| own.text.clone()).collect(),
        objectives_by_default: course.defaults.clone(),
        answer,
        binding,
        bottleneck: failed.and_then(|made| bottleneck(&course.made, made)),
        costs: found.passed.map_or_else(Vec::new, |place| costs(&course.made[place], place)),
        scaling: scaling(&course.made),
        probes: course.made.into_iter().map(|made| made.row).collect(),
        warnings,
    }
}

/// The warnings of these probes that are not told yet, each once with the rates that it is about.
fn at_rates(probes: &[Option<&Made>], told: &[String]) -> Vec<String> {
    let mut found: Vec<(&str, Vec<String>)> = Vec::new();
    for made in probes.iter().flatten() {
        for warning in made.warnings.iter().filter(|warning| !told.contains(*warning)) {
            let rate = format!("{}/s", made.row.rate);
            match found.iter_mut().find(|(known, _)| known == warning) {
                Some((_, rates)) => rates.push(rate),
                None => found.push((warning, vec![rate])),
            }
        }
    }
    found.iter().map(|(warning, rates)| format!("at {}: {warning}", rates.join(" and "))).collect()
}

/// What the lowest fail says of the first bottleneck; where it cannot tell, what the nearest fail
/// above it says that can.
fn bottleneck(made: &[Made], failed: &Made) -> Option<Finding> {
    let lowest = failed.row.bottleneck.clone();
    if lowest.as_ref().is_some_and(|finding| finding.cause != Cause::Unknown) {
        return lowest;
    }
    let tells = |made: &&Made| {
        let cause = made.row.bottleneck.as_ref().map(|finding| finding.cause);
        made.row.judged == Judged::Fail
            && made.row.rate >= failed.row.rate
            && cause.is_some_and(|cause| cause != Cause::Unknown)
    };
    let nearest = made.iter().filter(tells).min_by(|a, b| a.row.rate.total_cmp(&b.row.rate));
    let Some(nearest) = nearest else { return lowest };
    let mut finding = nearest.row.bottleneck.clone()?;
    let (above, at) = (short(nearest.row.rate), short(failed.row.rate));
    finding.evidence.insert(0, format!("seen at {above}/s; at {at}/s it could not be told"));
    Some(finding)
}

fn costs(made: &Made, probe: usize) -> Vec<ProcessCost> {
    let own = made.processes.iter().filter(|process| process.role != ProcessRole::Generator);
    let cost = |process: &lab_model::results::run::ProcessFacts| {
        Some(ProcessCost {
            process: process.name.clone(),
            cpu_ms_per_request: process.cpu_ms_per_request?,
            probe,
        })
    };
    own.filter_map(cost).collect()
}

/// Probes that the generator did not limit, by what was under way at the target.
fn scaling(made: &[Made]) -> Option<Scaling> {
    let believed = made.iter().filter(|made| {
        matches!(made.row.judged, Judged::Pass | Judged::Fail) && made.row.failed_share < 0.01
    });
    let points: Vec<(f64, f64)> =
        believed.map(|made| (made.row.under_way, made.row.rate_ended)).collect();
    fit(&points)
}

fn degraded(found: &Found) -> Option<String> {
    let (first, later) = found.degraded?;
    Some(format!(
        "the target did not come back: at the baseline's rate its median was {:.2} ms at the start \
         and {:.2} ms later ({:.1} % and {:.1} % failed), also after eight times the usual wait; what \
         came after is the capacity of a target in that state",
        first.p50_ms,
        later.p50_ms,
        first.failed_share * 100.0,
        later.failed_share * 100.0
    ))
}

fn doubts(course: &Course<'_>, found: &Found) -> Vec<String> {
    let mut doubts = Vec::new();
    if let Some(change) = found.changed {
        let (early, late) = match change.worse {
            true => (format!("{}/s passed", change.passed), format!("{}/s failed", change.failed)),
            false => (format!("{}/s failed", change.failed), format!("{}/s passed", change.passed)),
        };
        doubts.push(format!(
            "the target changed: in early probes {early}, in all late ones {late}; search again once it \
             is steady"
        ));
    } else if !found.monotone {
        doubts.push(
            "a rate passed above one that failed, and repeating did not settle it: the boundary is not \
             sharp, or the target changed meanwhile; the lower side is given"
                .to_owned(),
        );
    }
    if found.patience > 1 && found.degraded.is_none() {
        let drain = course.probes.plan().capacity.drain.as_secs_f64();
        doubts.push(format!(
            "after an overload the target needed {:.0} s to come back, {} times the plan's drain; the \
             search waited for it",
            drain * f64::from(found.patience),
            found.patience
        ));
    }
    let soak = course.made.iter().rev().find(|made| made.row.kind == Kind::Soak);
    match soak.map(|made| (made.row.judged, made.row.rate)) {
        Some((Judged::ClientLimited | Judged::Invalid, rate)) => doubts.push(format!(
            "the soak at {rate}/s could not be judged, so how long the highest pass holds is not known"
        )),
        Some((Judged::Fail, rate)) => doubts.push(format!(
            "no soak held, down to {rate}/s: for short probes the highest pass is right, for longer it \
             is too much"
        )),
        _ => {}
    }
    let passed = found.passed.map(|place| &course.made[place]);
    doubts.extend(passed.and_then(little_off));
    let no_limit = !course.probes.objectives().iter().any(|own| {
        matches!(
            own.selector.metric,
            lab_model::metrics::Metric::Limited | lab_model::metrics::Metric::Goodput
        )
    });
    let limited = passed.filter(|made| no_limit && made.row.limited_share > 0.01);
    doubts.extend(limited.map(|made| {
        format!(
            "at the highest pass {:.1} % of the calls were answered 429, and no objective says whether \
             that is allowed: with `limited rate<0.01` the capacity would be lower",
            made.row.limited_share * 100.0
        )
    }));
    doubts
}

/// Counted calls under way against N = X · R; they must agree if both are right.
fn little_off(made: &Made) -> Option<String> {
    let row = &made.row;
    let by_law = little(row.calls_per_second, row.service.mean_ms / 1e3);
    let off = (made.in_flight / by_law - 1.0).abs() > LITTLE_OFF;
    (by_law >= LITTLE_MIN && off).then(|| {
        format!(
            "at {}/s {:.1} calls were counted under way, but rate times mean time gives {by_law:.1} \
             (Little's law): the load came in waves",
            row.rate, made.in_flight
        )
    })
}

fn sentence(course: &Course<'_>, found: &Found, end: End, binding: Option<&Binding>) -> String {
    let pass = found.highest_pass;
    let soak = match found.soak_held {
        Some(true) => {
            let time = course.probes.plan().capacity.soak.as_secs_f64();
            format!(", held for {time:.0} s")
        }
        _ => String::new(),
    };
    let why = binding.map(|binding| format!(": {}", binding_words(binding))).unwrap_or_default();
    if let Some(told) = unbelieved(course, found) {
        return match (pass, found.lowest_fail) {
            (Some(pass), Some(fail)) => format!("{pass}/s pass; {fail}/s fail{why}; then {told}"),
            (Some(pass), None) => format!("at least {pass}/s: then {told}"),
            (None, Some(fail)) => format!("no rate passed, down to {fail}/s{why}; then {told}"),
            (None, None) => format!("nothing was learnt: {told}"),
        };
    }
    match (pass, found.lowest_fail) {
        (Some(pass), Some(fail)) => {
            let told = format!("{pass}/s pass{soak}; {fail}/s fail{why}");
            match end {
                End::Converged => told,
                End::ClientLimited => {
                    format!("{told}; between them the generator was the limit")
                }
                End::Invalid => format!("{told}; between them no probe could be believed"),
                _ => format!("{told}; the search ended before they were close enough"),
            }
        }
        (Some(pass), None) => {
            let beyond = match end {
                End::RateMax => "nothing higher was to be tried",
                End::ClientLimited => "above it the generator was the limit",
                End::Invalid => "above it no probe could be believed",
                _ => "the search ended before a rate failed",
            };
            format!("at least {pass}/s{soak}: {beyond}")
        }
        (None, Some(fail)) => format!("no rate passed, down to {fail}/s{why}"),
        (None, None) => match end {
            End::ClientLimited => {
                "nothing was learnt: the generator was the limit at every rate".into()
            }
            End::NothingPassed => "no rate passed: the target fails without load already".into(),
            End::Stopped => "nothing was learnt: the search ended before a probe did".into(),
            _ => "nothing was learnt: no probe could be believed".into(),
        },
    }
}

/// That not even baselines could be believed, why, and what may help.
fn unbelieved(course: &Course<'_>, found: &Found) -> Option<String> {
    let last = course.made.last().filter(|_| found.unbelieved)?;
    let rate = last.row.rate;
    let what = match last.row.judged {
        Judged::ClientLimited => "the generator was the limit",
        _ => "the numbers could not be believed",
    };
    let why = last.row.reasons.first().map(|reason| format!(" ({reason})")).unwrap_or_default();
    Some(format!(
        "{what} at the baseline itself, twice in a row at {rate}/s{why}, so further probes would tell \
         no more; give the generator a machine or cores of its own, ask for less of what is named, or \
         begin lower (--rate-start)"
    ))
}

/// What broke, as in a sentence: `latency p(99)<100 was 412 (limit 100), by eth_getLogs`.
fn binding_words(binding: &Binding) -> String {
    let mut told = binding.objective.clone();
    if let Some(observed) = binding.observed {
        let limit = binding.limit.map(|limit| format!(" (limit {})", short(limit)));
        told.push_str(&format!(" was {}{}", short(observed), limit.unwrap_or_default()));
    }
    if let Some(method) = &binding.method {
        told.push_str(&format!(", by {method}"));
    }
    told
}
