//! Builds the result of a capacity search from its probes: figures, sentences and warnings. A probe
//! is one run at one rate. A *baseline* is a probe at a low rate, and a *soak* is a long probe at
//! the highest rate that passed. The *binding* threshold is the one that limits the capacity.

use lab_model::results::capacity::{
    Answer, Binding, CapacityResult, EndReason, Kind, ProbeOutcome, ProbeRow, ProcessCost, SCHEMA,
    Scaling,
};
use lab_model::results::run::ProcessRole;
use lab_model::results::{Cause, Finding};

use super::search::{FinishedProbe, Search};
use crate::analysis::scaling::fit;
use crate::analysis::search::{Degradation, Summary, summarize};
use crate::wording::number::{percent, short};

/// A search warns if the counted calls in flight differ from Little's law by more than this share.
const LITTLES_LAW_TOLERANCE: f64 = 0.3;
/// Little's law is checked only if it gives at least this many calls in flight. For fewer calls,
/// one sample per second is too coarse.
const LITTLES_LAW_CALLS_MIN: f64 = 5.0;

/// Builds the result of a search that took `seconds`.
pub(super) fn build(search: Search<'_>, end: EndReason, seconds: f64) -> CapacityResult {
    let summary = summarize(&search.probes.settings, &search.history);
    let first_run = search.first_run.as_ref().expect("a search without a run ends with an error");
    let failed_probe = summary.failed_index.map(|index| &search.finished[index]);
    let passed_probe = summary.passed_index.map(|index| &search.finished[index]);
    // The binding threshold broke at the lowest rate that failed.
    let binding = failed_probe.and_then(|probe| probe.binding.clone());
    // True if no rate failed, so the highest pass is only a lower bound of the capacity.
    let at_least = summary.lowest_fail.is_none() && summary.highest_pass.is_some();
    let answer = Answer {
        end,
        sentence: [
            passed_probe.and_then(|probe| describe_few_results(&probe.row)).unwrap_or_default(),
            write_answer(&search, &summary, end, binding.as_ref()),
        ]
        .concat(),
        highest_pass: summary.highest_pass,
        lowest_fail: summary.lowest_fail,
        at_least,
        monotone: summary.monotone,
        boundary: summary.boundary,
        soak_held: summary.soak_held,
        degraded: describe_degradation(&summary),
    };
    let mut warnings = search.probes.warnings.clone();
    warnings.extend(search.warnings.iter().cloned());
    warnings.extend(find_doubts(&search, &summary));
    warnings.extend(add_rates(&[passed_probe, failed_probe], &warnings));
    let mut unique = std::collections::BTreeSet::new();
    warnings.retain(|warning| unique.insert(warning.clone()));
    CapacityResult {
        schema: SCHEMA.to_owned(),
        weir: first_run.weir.clone(),
        started: first_run.started.clone(),
        started_unix: first_run.started_unix,
        duration: seconds,
        partial: end == EndReason::Stopped,
        plan: first_run.plan.clone(),
        target: first_run.target.clone(),
        fingerprint: first_run.fingerprint.clone(),
        settings: search.probes.facts(),
        thresholds: search
            .probes
            .plan
            .thresholds
            .iter()
            .map(|threshold| threshold.text.clone())
            .collect(),
        thresholds_by_default: search.default_thresholds.clone(),
        answer,
        binding,
        bottleneck: failed_probe.and_then(|probe| find_bottleneck(&search.finished, probe)),
        costs: summary
            .passed_index
            .map_or_else(Vec::new, |index| list_costs(&search.finished[index], index)),
        scaling: fit_scaling(&search.finished),
        probes: search.finished.into_iter().map(|probe| probe.row).collect(),
        warnings,
    }
}

/// Describes how many results the highest pass delivered, if that is notably less than it sent.
/// The thresholds then allow calls without a result. Ends with a separator.
fn describe_few_results(row: &ProbeRow) -> Option<String> {
    row.has_few_results().then(|| {
        format!(
            "{} results/s at the highest pass, because {} of its calls failed and {} were rejected with \
             429, which the thresholds allow; ",
            short(row.goodput),
            percent(row.failed_share),
            percent(row.limited_share)
        )
    })
}

/// Returns the warnings of these probes that are not among `listed` warnings, each with the rates
/// at which it occurred.
fn add_rates(probes: &[Option<&FinishedProbe>], listed: &[String]) -> Vec<String> {
    let mut rates_by_warning: Vec<(&str, Vec<String>)> = Vec::new();
    for probe in probes.iter().flatten() {
        for warning in probe.warnings.iter().filter(|warning| !listed.contains(*warning)) {
            let rate = format!("{}/s", probe.row.rate);
            match rates_by_warning.iter_mut().find(|(other, _)| other == warning) {
                Some((_, rates)) => rates.push(rate),
                None => rates_by_warning.push((warning, vec![rate])),
            }
        }
    }
    rates_by_warning
        .iter()
        .map(|(warning, rates)| format!("at {}: {warning}", rates.join(" and ")))
        .collect()
}

/// Returns the bottleneck at the lowest rate that failed, which is the rate of `failed`. If the
/// bottleneck is unknown there, returns the known bottleneck of the nearest higher rate that
/// failed.
fn find_bottleneck(finished: &[FinishedProbe], failed: &FinishedProbe) -> Option<Finding> {
    let at_lowest_fail = failed.row.bottleneck.clone();
    if at_lowest_fail.as_ref().is_some_and(|finding| finding.cause != Cause::Unknown) {
        return at_lowest_fail;
    }
    let is_known = |probe: &&FinishedProbe| {
        let cause = probe.row.bottleneck.as_ref().map(|finding| finding.cause);
        probe.row.outcome == ProbeOutcome::Fail
            && probe.row.rate >= failed.row.rate
            && cause.is_some_and(|cause| cause != Cause::Unknown)
    };
    let nearest = finished.iter().filter(is_known).min_by(|a, b| a.row.rate.total_cmp(&b.row.rate));
    let Some(nearest) = nearest else { return at_lowest_fail };
    let mut finding = nearest.row.bottleneck.clone()?;
    let (observed_rate, failed_rate) = (short(nearest.row.rate), short(failed.row.rate));
    finding
        .evidence
        .insert(0, format!("observed at {observed_rate}/s; unclear at {failed_rate}/s"));
    Some(finding)
}

/// Returns the CPU time per request of each watched process in one probe. The load generator is
/// left out. `probe` is the index of the probe.
fn list_costs(finished: &FinishedProbe, probe: usize) -> Vec<ProcessCost> {
    let target_processes =
        finished.processes.iter().filter(|process| process.role != ProcessRole::Generator);
    let cost = |process: &lab_model::results::run::ProcessFacts| {
        Some(ProcessCost {
            process: process.name.clone(),
            cpu_ms_per_request: process.cpu_ms_per_request?,
            probe,
        })
    };
    target_processes.filter_map(cost).collect()
}

/// Fits the scaling law (`analysis/scaling.rs`) to throughput and iterations in flight of the valid
/// probes. Failed calls may be cheaper, so probes in which at least 1 % of the calls failed are
/// left out.
fn fit_scaling(finished: &[FinishedProbe]) -> Option<Scaling> {
    let valid = finished.iter().filter(|probe| {
        matches!(probe.row.outcome, ProbeOutcome::Pass | ProbeOutcome::Fail)
            && probe.row.failed_share < 0.01
    });
    let points: Vec<(f64, f64)> =
        valid.map(|probe| (probe.row.in_flight, probe.row.rate_ended)).collect();
    fit(&points)
}

/// Describes a target that did not recover from an overload. `None` if the target recovered, or if
/// it was not overloaded.
fn describe_degradation(summary: &Summary) -> Option<String> {
    let Degradation { first, latest } = summary.degraded?;
    Some(format!(
        "the target did not recover: at the baseline's rate its median was {:.2} ms at the start and \
         {:.2} ms later ({:.1} % and {:.1} % failed), even after eight times the usual wait; later \
         probes measure the capacity of the target in that state",
        first.p50_ms,
        latest.p50_ms,
        first.failed_share * 100.0,
        latest.failed_share * 100.0
    ))
}

/// Returns the reasons to doubt the answer.
fn find_doubts(search: &Search<'_>, summary: &Summary) -> Vec<String> {
    let mut doubts = Vec::new();
    if let Some(change) = summary.changed {
        let (early, late) = match change.worse {
            true => (format!("{}/s passed", change.passed), format!("{}/s failed", change.failed)),
            false => (format!("{}/s failed", change.failed), format!("{}/s passed", change.passed)),
        };
        doubts.push(format!(
            "the target changed: in early probes {early}, in all late ones {late}; repeat the search \
             once it is steady"
        ));
    } else if !summary.monotone {
        doubts.push(
            "a rate passed above one that failed, and repeats did not resolve it: the boundary is not \
             sharp, or the target changed during the search; the lower rate is reported"
                .to_owned(),
        );
    }
    if summary.recovery_drains > 1 && summary.degraded.is_none() {
        let drain = search.probes.plan.capacity.drain.as_secs_f64();
        doubts.push(format!(
            "after an overload the target needed {:.0} s to recover, {} times the plan's drain; the \
             search waited for it",
            drain * f64::from(summary.recovery_drains),
            summary.recovery_drains
        ));
    }
    let soak = search.finished.iter().rev().find(|probe| probe.row.kind == Kind::Soak);
    match soak.map(|probe| (probe.row.outcome, probe.row.rate)) {
        Some((ProbeOutcome::ClientLimited | ProbeOutcome::Invalid, rate)) => doubts.push(format!(
            "the soak at {rate}/s could not be judged, so it is unknown how long the highest pass holds"
        )),
        Some((ProbeOutcome::Fail, rate)) => doubts.push(format!(
            "no soak held, down to {rate}/s: the highest pass holds for short probes, but not for long \
             ones"
        )),
        _ => {}
    }
    let passed_probe = summary.passed_index.map(|index| &search.finished[index]);
    doubts.extend(passed_probe.and_then(check_littles_law));
    let has_no_limit_on_429 = !search.probes.plan.thresholds.iter().any(|threshold| {
        matches!(
            threshold.selector.metric,
            lab_model::metrics::Metric::Limited | lab_model::metrics::Metric::Goodput
        )
    });
    let with_429 =
        passed_probe.filter(|probe| has_no_limit_on_429 && probe.row.limited_share > 0.01);
    doubts.extend(with_429.map(|probe| {
        format!(
            "at the highest pass {:.1} % of the calls got HTTP 429, and no threshold limits that: with \
             `limited rate<0.01` the capacity would be lower",
            probe.row.limited_share * 100.0
        )
    }));
    doubts
}

/// Returns a warning if the counted calls in flight N do not agree with Little's law (Little 1961):
/// N = X · R, with the call rate X and the mean service time R.
fn check_littles_law(probe: &FinishedProbe) -> Option<String> {
    let row = &probe.row;
    let expected = row.calls_per_second * row.service.mean_ms / 1e3;
    let differs = (probe.calls_in_flight / expected - 1.0).abs() > LITTLES_LAW_TOLERANCE;
    (expected >= LITTLES_LAW_CALLS_MIN && differs).then(|| {
        format!(
            "at {}/s {:.1} calls were counted in flight, but rate times mean time gives {expected:.1} \
             (Little's law): the load came in waves",
            row.rate, probe.calls_in_flight
        )
    })
}

/// Writes the answer in one sentence: the rates that passed and failed, and why the search ended.
fn write_answer(
    search: &Search<'_>,
    summary: &Summary,
    end: EndReason,
    binding: Option<&Binding>,
) -> String {
    let pass = summary.highest_pass;
    let soak = match summary.soak_held {
        Some(true) => {
            let time = search.probes.plan.capacity.soak.as_secs_f64();
            format!(", held for {time:.0} s")
        }
        _ => String::new(),
    };
    let cause =
        binding.map(|binding| format!(": {}", describe_binding(binding))).unwrap_or_default();
    if let Some(reason) = explain_invalid_baselines(search, summary) {
        return match (pass, summary.lowest_fail) {
            (Some(pass), Some(fail)) => {
                format!("{pass}/s pass; {fail}/s fail{cause}; then {reason}")
            }
            (Some(pass), None) => format!("at least {pass}/s: then {reason}"),
            (None, Some(fail)) => format!("no rate passed, down to {fail}/s{cause}; then {reason}"),
            (None, None) => format!("no result: {reason}"),
        };
    }
    match (pass, summary.lowest_fail) {
        (Some(pass), Some(fail)) => {
            let bounds = format!("{pass}/s pass{soak}; {fail}/s fail{cause}");
            match end {
                EndReason::Converged => bounds,
                EndReason::ClientLimited => {
                    format!("{bounds}; between them the generator was the limit")
                }
                EndReason::Invalid => format!("{bounds}; between them no probe was valid"),
                _ => format!("{bounds}; the search ended before they were close enough"),
            }
        }
        (Some(pass), None) => {
            let beyond = match end {
                EndReason::RateMax => "the search does not try higher rates",
                EndReason::ClientLimited => "above it the generator was the limit",
                EndReason::Invalid => "above it no probe was valid",
                _ => "the search ended before a rate failed",
            };
            format!("at least {pass}/s{soak}: {beyond}")
        }
        (None, Some(fail)) => format!("no rate passed, down to {fail}/s{cause}"),
        (None, None) => match end {
            EndReason::ClientLimited => {
                "no result: the generator was the limit at every rate".into()
            }
            EndReason::NothingPassed => "no rate passed: the target fails even without load".into(),
            EndReason::Stopped => "no result: the search ended before the first probe".into(),
            _ => "no result: no probe was valid".into(),
        },
    }
}

/// Explains a search that ended because of invalid baselines, and suggests remedies. `None` if it
/// ended for another reason.
fn explain_invalid_baselines(search: &Search<'_>, summary: &Summary) -> Option<String> {
    let last_baseline = search.finished.last().filter(|_| summary.baselines_invalid)?;
    let rate = last_baseline.row.rate;
    let cause = match last_baseline.row.outcome {
        ProbeOutcome::ClientLimited => "the generator was the limit",
        _ => "the numbers were invalid",
    };
    let reason =
        last_baseline.row.reasons.first().map(|reason| format!(" ({reason})")).unwrap_or_default();
    Some(format!(
        "{cause} even at the baseline, twice in a row at {rate}/s{reason}, so further probes are useless; \
         give the generator its own machine or cores, request less data, or start lower \
         (--rate-start)"
    ))
}

/// Describes the binding threshold as a part of a sentence: `latency p(99)<100 was 412 (limit 100),
/// by eth_getLogs`.
fn describe_binding(binding: &Binding) -> String {
    let mut text = binding.threshold.clone();
    if let Some(observed) = binding.observed {
        let limit = binding.limit.map(|limit| format!(" (limit {})", short(limit)));
        text.push_str(&format!(" was {}{}", short(observed), limit.unwrap_or_default()));
    }
    if let Some(method) = &binding.method {
        text.push_str(&format!(", by {method}"));
    }
    text
}
