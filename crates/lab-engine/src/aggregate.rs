//! Computes the rows of a result from counts and histograms: one row per method, and one per stage,
//! each with quantiles and rates.
//!
//! `lab_model::record` defines the counts, and `lab_model::results` the rows. The crate `lab`
//! derives the verdict from the rows. A stage is one phase of the plan's load. A class is the way
//! in which a call ended, such as `ok` or `timeout`. A slot is a combination of stage, method and
//! class, and a cell has the times of the calls of one slot. `Times` is a histogram of durations in
//! nanoseconds.

use std::time::Duration;

use lab_model::plan::{Model, Plan};
use lab_model::record::{Cell, Class, Iterations, Slot, Times, Totals, add_times, empty_times};
use lab_model::results::Quantiles;
use lab_model::results::run::{ClassRow, Generator, Row, Second, StageRow, WireFacts};

#[cfg(test)]
mod tests;

const NANOS_PER_MS: f64 = 1e6;
/// Minimum length of a full point of a series, as a share of its planned length. A point can be a
/// few milliseconds short, because threads do not end their seconds at the same time.
const FULL_SECOND_MIN: f64 = 0.95;
/// The quantile of the normal distribution for a two-sided 95 % interval.
const Z_95: f64 = 1.96;

/// Returns a percentile of the times in milliseconds, or `None` if there are no times. The
/// percentile `p` of `n` times is at the rank `p (n - 1)`, with `p` from 0 to 1. If the rank is not
/// a whole number, the function interpolates linearly between the values at the two nearest ranks,
/// as k6 does. It also interpolates within a bucket of the histogram.
pub fn percentile_ms(times: &Times, percentile: f64) -> Option<f64> {
    let last = times.len().checked_sub(1)?;
    let [value] = interpolate_at_ranks(times, [percentile / 100.0 * last as f64]);
    Some(value / NANOS_PER_MS)
}

/// Returns the quantiles in milliseconds. All of them are 0 if there are no times.
///
/// The confidence interval of the p99 lies between the values at the two ranks
/// `np ± 1.96 sqrt(np(1 - p))` (Conover, Practical Nonparametric Statistics, chapter 3.2). There,
/// `n` is the number of times, and `p` is 0.99.
pub fn compute_quantiles(times: &Times) -> Quantiles {
    let count = times.len();
    let Some(last) = count.checked_sub(1) else { return Quantiles::default() };
    let (n, last_rank) = (count as f64, last as f64);
    let half_width = Z_95 * (n * 0.99 * 0.01).sqrt();
    // Ranks start at 0 here and at 1 in the formula.
    let low_rank = (n * 0.99 - half_width - 1.0).floor().clamp(0.0, last_rank);
    let high_rank = (n * 0.99 + half_width - 1.0).ceil().clamp(0.0, last_rank);
    let [rank_50, rank_90, rank_95, rank_99, rank_999] =
        [0.5, 0.9, 0.95, 0.99, 0.999].map(|quantile| quantile * last_rank);
    let ranks = [rank_50, rank_90, rank_95, rank_99, rank_999, low_rank, high_rank];
    let [p50, p90, p95, p99, p999, low, high] =
        interpolate_at_ranks(times, ranks).map(|nanos| nanos / NANOS_PER_MS);
    Quantiles {
        count,
        mean_ms: times.mean() / NANOS_PER_MS,
        min_ms: times.min() as f64 / NANOS_PER_MS,
        p50_ms: p50,
        p90_ms: p90,
        p95_ms: p95,
        p99_ms: p99,
        p999_ms: p999,
        max_ms: times.max() as f64 / NANOS_PER_MS,
        p99_interval_ms: (low, high),
    }
}

/// Returns the values in nanoseconds at fractional ranks, which start at 0. The histogram must not
/// be empty, and no rank may exceed its last rank.
fn interpolate_at_ranks<const N: usize>(times: &Times, ranks: [f64; N]) -> [f64; N] {
    // The values at the whole ranks below and above each fractional rank.
    let (mut floors, mut ceilings) = ([0.0; N], [0.0; N]);
    // Number of values in the buckets before the current one.
    let mut rank_offset = 0_u64;
    for bucket in times.iter_recorded() {
        let count = bucket.count_at_value();
        let value = bucket.value_iterated_to();
        let bucket_start = times.lowest_equivalent(value) as f64;
        let bucket_width = times.equivalent_range(value) as f64;
        // The values of a bucket are assumed to be spread evenly over it.
        let value_at = |rank: f64| {
            let position = rank - rank_offset as f64;
            let is_inside = (0.0..count as f64).contains(&position);
            is_inside.then(|| bucket_start + (position + 0.5) / count as f64 * bucket_width)
        };
        for (index, rank) in ranks.iter().enumerate() {
            if let Some(value) = value_at(rank.floor()) {
                floors[index] = value;
            }
            if let Some(value) = value_at(rank.ceil()) {
                ceilings[index] = value;
            }
        }
        rank_offset += count;
    }
    let interpolate = |index: usize| {
        let fraction = ranks[index].fract();
        floors[index] + (ceilings[index] - floors[index]) * fraction
    };
    std::array::from_fn(interpolate)
}

/// Returns the row of the calls that `is_selected` selects. The rates are counts divided by
/// `seconds`. The share of all calls is the number of selected calls divided by `calls_all`.
pub fn compute_row(
    method: &str,
    totals: &Totals,
    is_selected: impl Fn(Slot) -> bool,
    seconds: f64,
    calls_all: u64,
) -> Row {
    let cells = totals.cells.iter().map(|(slot, cell)| (*slot, cell));
    let selected: Vec<(Slot, &Cell)> = cells.filter(|(slot, _)| is_selected(*slot)).collect();
    let mut by_class = Vec::new();
    let (mut latency, mut service) = (empty_times(), empty_times());
    for class in Class::ALL {
        let cells = selected.iter().filter(|(slot, _)| slot.class == class);
        let mut merged = empty_times();
        for (_, cell) in cells {
            add_times(&mut merged, &cell.latency);
            add_times(&mut service, &cell.service);
        }
        if !merged.is_empty() {
            add_times(&mut latency, &merged);
            by_class.push(ClassRow {
                class,
                calls: merged.len(),
                latency: compute_quantiles(&merged),
            });
        }
    }
    let calls = latency.len();
    // Rates exclude the calls that ended after their scenario. A result is a call of class `ok`.
    let calls_after_end = totals.count_after_end(&is_selected);
    let results = totals.count(|slot| slot.class == Class::Ok && is_selected(slot));
    let results_after_end =
        totals.count_after_end(|slot| slot.class == Class::Ok && is_selected(slot));
    let count = |is_counted: &dyn Fn(Class) -> bool| {
        let rows = by_class.iter().filter(|row| is_counted(row.class));
        rows.map(|row| row.calls).sum::<u64>()
    };
    Row {
        method: method.to_owned(),
        calls,
        share: share(calls, calls_all),
        rate: per_second(calls.saturating_sub(calls_after_end), seconds),
        goodput: per_second(results.saturating_sub(results_after_end), seconds),
        failed_share: share(count(&Class::is_failure), calls),
        limited_share: share(count(&|class| class == Class::Limited), calls),
        null_share: None,
        wrong_type_share: None,
        latency: compute_quantiles(&latency),
        latency_least: totals.least_latency(&is_selected).map(|times| compute_quantiles(&times)),
        service: compute_quantiles(&service),
        classes: by_class,
        codes: Vec::new(),
    }
}

/// Returns `part / whole`, or 0 if the whole is 0.
pub fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// Returns a count per second, or 0 if `seconds` is 0.
pub fn per_second(count: u64, seconds: f64) -> f64 {
    if seconds <= 0.0 { 0.0 } else { count as f64 / seconds }
}

/// Returns the row of all calls, and one row for each method that was called. `seconds` is the time
/// under load after the warm-up.
pub fn compute_method_rows(plan: &Plan, totals: &Totals, seconds: f64) -> (Row, Vec<Row>) {
    let calls_all = totals.count(|_| true);
    let mut overall = compute_row("all", totals, |_| true, seconds, calls_all);
    let mut rows = Vec::new();
    for (index, name) in plan.methods.iter().enumerate() {
        let mut row =
            compute_row(name, totals, |slot| usize::from(slot.method) == index, seconds, calls_all);
        let codes = totals.codes.iter().filter(|((method, _), _)| *method as usize == index);
        row.codes = codes.map(|(&(_, code), &count)| (code, count)).collect();
        let share_of = |counts: &[u64]| counts.get(index).map(|count| share(*count, row.calls));
        (row.null_share, row.wrong_type_share) =
            (share_of(&totals.nulls), share_of(&totals.wrong_types));
        if row.calls > 0 {
            rows.push(row);
        }
    }
    let mut counts_by_code = std::collections::BTreeMap::new();
    for (&(_, code), count) in &totals.codes {
        *counts_by_code.entry(code).or_insert(0) += count;
    }
    overall.codes = counts_by_code.into_iter().collect();
    let share_of = |counts: &[u64]| Some(share(counts.iter().sum(), calls_all));
    (overall.null_share, overall.wrong_type_share) =
        (share_of(&totals.nulls), share_of(&totals.wrong_types));
    (overall, rows)
}

/// Returns the rows of all stages, warm-up included. `end` is the end of the load. If the load
/// ended within a stage, the rates of that stage are per second under load.
pub fn compute_stage_rows(plan: &Plan, totals: &Totals, end: Duration) -> Vec<StageRow> {
    let calls_all = totals.count(|_| true);
    let rows = plan.spans().map(|(scenario, stage, span)| {
        let to = span.to.min(end).max(span.from);
        let seconds = (to - span.from).as_secs_f64();
        let in_stage = |slot: Slot| usize::from(slot.stage) == stage.index;
        // The rates of a stage count only calls that ended within the stage. A carried call ended
        // after its stage.
        let stage_row = |name: &str, is_selected: &dyn Fn(Slot) -> bool, calls_all: u64| {
            let carried = totals.count_carried(is_selected);
            let is_result = |slot: Slot| slot.class == Class::Ok && is_selected(slot);
            let results = totals.count(is_result).saturating_sub(totals.count_carried(is_result));
            let mut row = compute_row(name, totals, is_selected, seconds, calls_all);
            row.rate = per_second(row.calls.saturating_sub(carried), seconds);
            row.goodput = per_second(results, seconds);
            row
        };
        let overall = stage_row("all", &in_stage, calls_all);
        let method_row = |index: usize| {
            let is_selected = |slot: Slot| in_stage(slot) && usize::from(slot.method) == index;
            stage_row(&plan.methods[index], &is_selected, overall.calls)
        };
        let methods = (0..plan.methods.len()).map(method_row).filter(|row| row.calls > 0);
        let methods = methods.collect();
        let iterations = totals.iterations.get(stage.index).copied().unwrap_or_default();
        StageRow {
            scenario: scenario.name.clone(),
            stage: stage.name.clone(),
            model: Model::name_of(scenario.model).to_owned(),
            from: span.from.as_secs_f64(),
            to: to.as_secs_f64(),
            level_from: stage.from,
            level_to: stage.to,
            iterations,
            rate_started: per_second(iterations.in_time(), seconds),
            overall,
            methods,
        }
    });
    rows.collect()
}

/// Returns the seconds per point of a series. A long run has more than one second per point.
pub fn point_seconds(series: &[Second]) -> f64 {
    match series {
        [first, second, ..] => (second.at - first.at).round().max(1.0),
        _ => 1.0,
    }
}

/// Returns the full points of a run's series between the end of the warm-up and the end of the
/// load. Excludes shorter points, because they have fewer results. `warmup` is in seconds.
pub fn whole_seconds<'a>(
    series: &'a [Second],
    stages: &[StageRow],
    warmup: f64,
) -> Vec<&'a Second> {
    let point_length = point_seconds(series);
    let end = stages.iter().map(|stage| stage.to).fold(0.0, f64::max);
    // A point has only its end, `at`. It starts where the previous point ends.
    let starts = std::iter::once(0.0).chain(series.iter().map(|second| second.at));
    let selected = starts.zip(series).filter(|(start, second)| {
        let is_full = second.at - start >= FULL_SECOND_MIN * point_length;
        let after_warmup = second.at >= warmup + FULL_SECOND_MIN * point_length;
        // Without stages, `end` is 0, and the end of the load is unknown.
        let before_end = end <= 0.0 || second.at <= end + (1.0 - FULL_SECOND_MIN);
        is_full && after_warmup && before_end
    });
    selected.map(|(_, second)| second).collect()
}

/// Returns the facts about the load generator. `seconds` are the points of the series after the
/// warm-up.
pub fn summarize_generator(plan: &Plan, totals: &Totals, seconds: &[Second]) -> Generator {
    let iterations = sum_iterations(totals);
    let cpu = totals.cpu.as_secs_f64();
    Generator {
        iterations,
        delivered_share: delivered_share(iterations),
        scheduling_delay: compute_quantiles(&totals.scheduling_delay),
        busy_max: seconds.iter().map(|second| second.generator_busy).fold(0.0, f64::max),
        cpu,
        // `per_second(1, n)` is 1 / n, or 0 if n is 0.
        cpu_us_per_request: per_second(1, totals.traffic.requests as f64) * cpu * 1e6,
        run_delay: totals.run_delay.as_secs_f64(),
        gaps: compute_quantiles(&totals.gaps),
        gap_time: totals.gap_time.as_secs_f64(),
        share_max: plan.validity.generator_share_max,
        delay_max_ms: plan.validity.scheduling_delay_p99_max.as_secs_f64() * 1e3,
        iteration_time: compute_quantiles(&totals.iteration_time),
    }
}

/// Returns the sum of the iterations of all stages.
pub fn sum_iterations(totals: &Totals) -> Iterations {
    let mut sum = Iterations::default();
    totals.iterations.iter().for_each(|stage| sum.add(*stage));
    sum
}

/// Returns the share of scheduled iterations that started in time, or 1 if nothing was scheduled.
pub fn delivered_share(iterations: Iterations) -> f64 {
    if iterations.scheduled == 0 { 1.0 } else { share(iterations.in_time(), iterations.scheduled) }
}

/// Returns the facts about connections, handshakes, bytes and HTTP statuses.
pub fn summarize_wire(totals: &Totals) -> WireFacts {
    let traffic = totals.traffic;
    let handshakes = traffic.handshakes_full + traffic.handshakes_resumed;
    WireFacts {
        traffic,
        connect: compute_quantiles(&totals.connect_time),
        handshake_full: compute_quantiles(&totals.handshake_full_time),
        handshake_resumed: compute_quantiles(&totals.handshake_resumed_time),
        resumption: (handshakes > 0).then(|| share(traffic.handshakes_resumed, handshakes)),
        upgrade: compute_quantiles(&totals.upgrade_time),
        statuses: totals.statuses.iter().map(|(&status, &count)| (status, count)).collect(),
        close_codes: totals.close_codes.iter().map(|(&code, &count)| (code, count)).collect(),
        retry_after: compute_quantiles(&totals.retry_after),
    }
}
