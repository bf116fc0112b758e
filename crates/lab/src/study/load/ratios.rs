//! Judges the ratios for which a study sets a limit: the key `ratio_max` of its variants.
//!
//! Latency and goodput are those of the comparison, so a round that the load generator limited is
//! left out. The CPU time of a request is judged in such rounds too, because the generator's limit
//! does not change it. The interval of each ratio is that of the study: Student's t over the
//! rounds, widened to a bootstrap and by the drift within the rounds.

use lab_model::results::Outcome;
use lab_model::results::compare::{CompareResult, Difference, Metric};
use lab_model::results::load_study::{RatioRow, RatioVerdict};

use super::analyse::service_metric;
use super::counts::cpu_ms_per_request;
use super::file::{LoadStudy, RatioLimit};
use super::finished::FinishedRun;
use crate::analysis::compare::{Design, Values, compare};
use crate::variant::TOTAL;

/// Judges the ratios of a plan. `comparison` compares the variants under this plan.
pub(super) fn judge_ratios(
    study: &LoadStudy,
    runs: &[FinishedRun],
    plan: usize,
    comparison: &CompareResult,
    random: &mut dyn FnMut() -> u64,
) -> Vec<RatioRow> {
    let limits = study.ratio_limits.iter().filter(|limit| limit.plan == plan);
    let row = |limit: &RatioLimit| {
        let variant = study.variants[limit.variant].name.as_str();
        let difference = match limit.metric {
            Metric::CpuPerRequest => compare_cpu(runs, limit, random),
            metric => find_total(comparison, variant, metric).cloned(),
        };
        judge(variant, limit, difference.as_ref())
    };
    limits.map(row).collect()
}

/// Judges one ratio. `difference` is the variant's difference from the first one, or `None` if a
/// value is unknown.
fn judge(variant: &str, limit: &RatioLimit, difference: Option<&Difference>) -> RatioRow {
    // A ratio above 1 means that the variant is worse.
    let ratio_of = |change: f64| match limit.metric.more_is_better() {
        true => 1.0 / (1.0 + change),
        false => 1.0 + change,
    };
    let ratio = difference.map(|difference| ratio_of(difference.change));
    let interval = difference.and_then(|difference| difference.interval).map(|(low, high)| {
        let (x, y) = (ratio_of(low), ratio_of(high));
        (x.min(y), x.max(y))
    });
    let verdict = match interval {
        Some((_, high)) if high <= limit.max => RatioVerdict::Kept,
        Some((low, _)) if low > limit.max => RatioVerdict::Broken,
        _ => RatioVerdict::CannotTell,
    };
    RatioRow {
        variant: variant.to_owned(),
        metric: limit.metric,
        a: difference.map(|difference| difference.a),
        b: difference.map(|difference| difference.b),
        rounds: difference.map_or(0, |difference| difference.a_count.min(difference.b_count)),
        ratio,
        interval,
        ratio_max: limit.max,
        verdict,
    }
}

/// Returns a variant's difference in a metric over all methods. A comparison of a single method has
/// no separate total.
fn find_total<'a>(
    comparison: &'a CompareResult,
    variant: &str,
    metric: Metric,
) -> Option<&'a Difference> {
    let metrics = [metric, service_metric(metric)];
    let rows = || {
        let differences = comparison.differences.iter();
        differences.filter(|row| row.variant == variant && metrics.contains(&row.metric))
    };
    rows().find(|row| row.method == TOTAL).or_else(|| rows().next().filter(|_| rows().count() == 1))
}

/// Compares the CPU time of a request in the rounds in which it is known for both variants.
fn compare_cpu(
    runs: &[FinishedRun],
    limit: &RatioLimit,
    random: &mut dyn FnMut() -> u64,
) -> Option<Difference> {
    let cost = |run: &FinishedRun| {
        let outcome = run.run.as_ref()?.facts.outcome;
        let value = cpu_ms_per_request(run.facts.counts.as_ref()?)?;
        (outcome != Some(Outcome::Invalid)).then_some((value, run.facts.started_unix))
    };
    let (mut a, mut b) = (Values::default(), Values::default());
    for first in runs.iter().filter(|run| run.id.plan == limit.plan && run.id.variant == 0) {
        let is_partner = |run: &&FinishedRun| {
            (run.id.round, run.id.plan, run.id.variant)
                == (first.id.round, limit.plan, limit.variant)
        };
        let Some(partner) = runs.iter().find(is_partner) else { continue };
        let Some((first, partner)) = cost(first).zip(cost(partner)) else { continue };
        for (values, (value, start)) in [(&mut a, first), (&mut b, partner)] {
            values.runs.push(value);
            values.starts.push(start);
        }
    }
    let design = Design { paired: true, bootstrap: true, ..Design::default() };
    compare(limit.metric, &a, &b, design, random).map(|compared| compared.difference)
}
