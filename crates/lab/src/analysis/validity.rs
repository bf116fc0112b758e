//! Whether the numbers of a run may be believed: was the generator healthy, did the plan itself bound
//! the rate, did the target take what was offered?
//!
//! Only the time after the warm-up is looked at, except where the plan's own limit is worked out.
//! What follows from doubts is `verdict`'s; `wording/verdict.rs` writes them as sentences.

use std::time::Duration;

use lab_engine::aggregate;
use lab_model::plan::{Model, Plan, Scenario, Validity};
use lab_model::record::{Iterations, Slot, Totals};
use lab_model::results::run::{Row, Second};

#[cfg(test)]
mod tests;

/// Busy share of the engine threads from which they are the limit, and for how many seconds in a
/// row: a single busy second is a burst.
const BUSY_MAX: f64 = 0.9;
const BUSY_SECONDS: f64 = 3.0;
/// Bytes of answers per second and engine thread from which reading and judging them is a good part
/// of what the thread does: some 5 to 10 %, and far more where memory is slow.
const HEAVY_BYTES: f64 = 50e6;
/// Share of them from which one method is named.
const HEAVY_SHARE: f64 = 0.5;
/// Share of the rate that pauses alone allow, from which the pauses were what bounded it: the target
/// then took less than a tenth of the time.
const PACED_SHARE: f64 = 0.9;

/// Calls below which the 95 % interval of a p99 is wider than from the 98th to the largest.
pub(crate) const CALLS_MIN: u64 = 1_000;

/// What is looked at.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// Everything, warm-up included.
    pub all: &'a Totals,
    /// The same without the warm-up.
    pub judged: &'a Totals,
    /// Seconds after the warm-up.
    pub seconds: &'a [Second],
    /// When load ended, since the start of the run.
    pub end: Duration,
}

/// A reason not to believe the numbers. Shares are of 1, times without a unit are in seconds.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "each field is a number of the sentence in wording/verdict.rs")]
pub enum Doubt {
    EndedInWarmup {
        end: f64,
        warmup: f64,
    },
    NoCalls,
    Busy {
        share: f64,
        lasted: f64,
        until: f64,
    },
    NoPorts(u64),
    Starved {
        threads: usize,
        waited: f64,
        share: f64,
    },
    Heavy {
        bytes_per_second: f64,
        share: f64,
        method: String,
        bytes_each: f64,
    },
    Late {
        p99_ms: f64,
        longest_ms: f64,
        allowed: Validity,
        median_ms: f64,
    },
    Paced {
        scenario: String,
        allowed: f64,
        workers: f64,
        pause_ms: f64,
        reached: f64,
    },
    FewWorkers {
        scenario: String,
        begun: Begun,
        workers: usize,
        allowed: f64,
        best_ms: f64,
        peak: f64,
    },
    Behind {
        scenario: String,
        begun: Begun,
        workers: usize,
        mean_ms: f64,
        best_ms: f64,
    },
    FewCalls(Vec<(String, u64)>),
}

/// Planned iterations, and those that began in time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Begun {
    /// Their share.
    pub share: f64,
    /// Those that began in time.
    pub begun: u64,
    /// Those that were planned.
    pub due: u64,
}

/// What stands against the numbers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Doubts {
    /// Nothing was measured.
    pub empty: Option<Doubt>,
    /// The engine threads had no time or no port left.
    pub overloaded: Vec<Doubt>,
    /// The engine threads waited for a core.
    pub starved: Option<Delay>,
    /// Sends were late because of the generator.
    pub late: Option<Delay>,
    /// The plan's own pauses bounded the rate.
    pub paced: Vec<Doubt>,
    /// The plan's own number of workers could not begin what was planned.
    pub workers: Vec<Doubt>,
    /// The target did not take what was offered to it, and how far the share of delivered iterations
    /// is below the least that is allowed.
    pub behind: Vec<(Doubt, f64)>,
}

/// Time by which the generator itself delayed calls.
///
/// Latency counts from the planned instant, so a delay only ever adds to it. A server that works off
/// calls first come, first served, ends each call later by at most the longest delay.
#[derive(Clone, Debug, PartialEq)]
pub struct Delay {
    /// The doubt that it raises.
    pub doubt: Doubt,
    /// Longest delay of one call, in milliseconds.
    pub longest_ms: f64,
    /// Share of the calls that were sent later than the plan allows.
    pub share: f64,
}

/// Looks for everything that stands against the numbers.
pub fn doubts(seen: Seen<'_>) -> Doubts {
    let calls = seen.judged.count(|_| true);
    let mut doubts = Doubts { empty: empty(seen, calls), ..Doubts::default() };
    doubts.overloaded.extend(busy(seen.seconds));
    doubts.overloaded.extend(ports(seen.judged));
    doubts.starved = starved(seen);
    doubts.late = late(seen);
    if !doubts.overloaded.is_empty() || doubts.starved.is_some() || doubts.late.is_some() {
        doubts.overloaded.extend(heavy(seen));
    }
    for scenario in &seen.plan.scenarios {
        match scenario.model {
            Model::Closed => doubts.paced.extend(paced(seen, scenario)),
            Model::Open { .. } => match behind(seen, scenario) {
                Some((doubt @ Doubt::FewWorkers { .. }, _)) => doubts.workers.push(doubt),
                found => doubts.behind.extend(found),
            },
        }
    }
    doubts
}

fn empty(seen: Seen<'_>, calls: u64) -> Option<Doubt> {
    if calls > 0 {
        return None;
    }
    let warmup = seen.plan.warmup;
    Some(if seen.end <= warmup && !warmup.is_zero() {
        Doubt::EndedInWarmup { end: seen.end.as_secs_f64(), warmup: warmup.as_secs_f64() }
    } else {
        Doubt::NoCalls
    })
}

fn busy(seconds: &[Second]) -> Option<Doubt> {
    let mut longest: &[Second] = &[];
    for row in seconds.chunk_by(|a, b| is_busy(a) == is_busy(b)).filter(|row| is_busy(&row[0])) {
        if row.len() > longest.len() {
            longest = row;
        }
    }
    // In a long run a point of the series is more than a second.
    let step = seconds.get(1).map_or(1.0, |second| second.at - seconds[0].at);
    let lasted = longest.len() as f64 * step;
    if longest.is_empty() || lasted < BUSY_SECONDS.min(seconds.len() as f64 * step) {
        return None;
    }
    let mean =
        longest.iter().map(|second| second.generator_busy).sum::<f64>() / longest.len() as f64;
    Some(Doubt::Busy { share: mean, lasted, until: longest[longest.len() - 1].at })
}

fn is_busy(second: &Second) -> bool {
    second.generator_busy >= BUSY_MAX
}

/// The wait for a core delays a call by at most the whole wait. A thread that sends at planned times
/// shows each wait as the lateness of the next send, and reads as late as it sends.
fn starved(seen: Seen<'_>) -> Option<Delay> {
    let threads = seen.plan.threads;
    let time = seen.end.saturating_sub(seen.plan.warmup).as_secs_f64() * threads as f64;
    let waited = seen.judged.run_delay.as_secs_f64();
    let most = waited * 1e3;
    let open = seen.plan.scenarios.iter().all(|one| matches!(one.model, Model::Open { .. }));
    let sends = 2.0 * seen.judged.lateness.max() as f64 / 1e6;
    (waited > seen.plan.validity.waited_share_max * time && waited > 0.0).then(|| Delay {
        doubt: Doubt::Starved { threads, waited, share: waited / time },
        longest_ms: if open { most.min(sends) } else { most },
        share: late_share(seen),
    })
}

fn ports(judged: &Totals) -> Option<Doubt> {
    let refused = judged.traffic.ports_exhausted;
    (refused > 0).then_some(Doubt::NoPorts(refused))
}

/// Which method's answers are so many bytes that the generator may be the limit for them.
fn heavy(seen: Seen<'_>) -> Option<Doubt> {
    let seconds = seen.end.saturating_sub(seen.plan.warmup).as_secs_f64();
    let bytes = &seen.judged.answer_bytes;
    let sum = bytes.iter().sum::<u64>() as f64;
    let (method, &most) = bytes.iter().enumerate().max_by_key(|(_, count)| **count)?;
    let read = sum / seconds.max(1e-9);
    let (share, calls) =
        (most as f64 / sum.max(1.0), seen.judged.count(|slot| usize::from(slot.method) == method));
    if read < HEAVY_BYTES * seen.plan.threads as f64 || share < HEAVY_SHARE || calls == 0 {
        return None;
    }
    let method = seen.plan.methods.get(method)?.to_string();
    let bytes_each = most as f64 / calls as f64;
    Some(Doubt::Heavy { bytes_per_second: read, share, method, bytes_each })
}

fn late(seen: Seen<'_>) -> Option<Delay> {
    let p99_ms = aggregate::percentile_ms(&seen.judged.lateness, 99.0)?;
    let median_ms =
        aggregate::percentile_ms(&seen.judged.times(|cell| &cell.service, |_| true), 50.0)?;
    let allowed = seen.plan.validity;
    let longest_ms = seen.judged.lateness.max() as f64 / 1e6;
    is_late(allowed, p99_ms, median_ms).then(|| Delay {
        doubt: Doubt::Late { p99_ms, longest_ms, allowed, median_ms },
        longest_ms,
        share: late_share(seen),
    })
}

/// Share of the sends that were later than the plan allows.
fn late_share(seen: Seen<'_>) -> f64 {
    let allowed = lab_model::record::nanos(seen.plan.validity.lateness_p99_max);
    let sends = &seen.judged.lateness;
    aggregate::share(sends.count_between(allowed + 1, lab_model::record::TIME_MAX), sends.len())
}

/// Whether sends with this lateness (99th percentile, ms), of calls that take `median` ms, were late.
fn is_late(validity: Validity, lateness: f64, median: f64) -> bool {
    let limit = validity.lateness_p99_max.as_secs_f64() * 1e3;
    lateness > limit && lateness > validity.lateness_share_max * median
}

/// Stages of a scenario: their iterations, the time that was offered, and level x time.
struct Offered {
    iterations: Iterations,
    seconds: f64,
    level_seconds: f64,
    peak: f64,
}

fn offered(seen: Seen<'_>, scenario: &Scenario) -> Offered {
    let mut sum =
        Offered { iterations: Iterations::default(), seconds: 0.0, level_seconds: 0.0, peak: 0.0 };
    for (of, stage, span) in seen.plan.spans() {
        if of.name != scenario.name {
            continue;
        }
        sum.iterations.add(seen.all.iterations.get(stage.index).copied().unwrap_or_default());
        let level_end = stage.level(span.overlap(Duration::ZERO, seen.end));
        let ran = span.overlap(Duration::ZERO, seen.end).as_secs_f64();
        sum.seconds += ran;
        sum.level_seconds += ran * (stage.from + level_end) / 2.0;
        sum.peak = sum.peak.max(stage.from).max(level_end);
    }
    sum
}

fn paced(seen: Seen<'_>, scenario: &Scenario) -> Option<Doubt> {
    let pause = scenario.pause.as_secs_f64();
    let offered = offered(seen, scenario);
    if pause <= 0.0 || offered.seconds <= 0.0 {
        return None;
    }
    let allowed = offered.level_seconds / offered.seconds / pause;
    let reached = offered.iterations.begun as f64 / offered.seconds;
    (reached >= PACED_SHARE * allowed).then(|| Doubt::Paced {
        scenario: scenario.name.clone(),
        allowed,
        workers: offered.level_seconds / offered.seconds,
        pause_ms: pause * 1e3,
        reached,
    })
}

/// Fewer iterations began than were planned: whose limit that was, and how far the share is below the
/// least that is allowed. The best time of each
/// method, weighted by its calls, is what the target takes when nothing waits; if even then the
/// workers could not begin the planned rate, the plan is the limit, otherwise the target.
fn behind(seen: Seen<'_>, scenario: &Scenario) -> Option<(Doubt, f64)> {
    let offered = offered(seen, scenario);
    let mut iterations = Iterations::default();
    for stage in &scenario.stages {
        iterations.add(seen.judged.iterations.get(stage.index).copied().unwrap_or_default());
    }
    let delivered = aggregate::delivered(iterations);
    if delivered >= seen.plan.validity.delivered_share_min {
        return None;
    }
    let (due, begun) = (iterations.due, iterations.in_time());
    let begun = Begun { share: delivered, begun, due };
    let workers = scenario.workers_max;
    let best = best_time(seen, scenario);
    let allowed = workers as f64 / best.max(1e-9);
    let (scenario_name, peak, best_ms) = (scenario.name.clone(), offered.peak, best * 1e3);
    let doubt = if allowed < peak {
        Doubt::FewWorkers { scenario: scenario_name, begun, workers, allowed, best_ms, peak }
    } else {
        let mean_ms = aggregate::quantiles(&service_of(seen, scenario)).mean_ms;
        Doubt::Behind { scenario: scenario_name, begun, workers, mean_ms, best_ms }
    };
    Some((doubt, seen.plan.validity.delivered_share_min - delivered))
}

/// Seconds that an iteration takes at the target's best.
fn best_time(seen: Seen<'_>, scenario: &Scenario) -> f64 {
    let mut by_method = std::collections::BTreeMap::<u16, (u64, u64)>::new();
    for (slot, cell) in &seen.all.cells {
        if scenario.stages.iter().any(|stage| stage.index == usize::from(slot.stage)) {
            let (calls, best) = by_method.entry(slot.method).or_insert((0, u64::MAX));
            *calls += cell.service.len();
            *best = (*best).min(cell.service.min());
        }
    }
    let calls: u64 = by_method.values().map(|(calls, _)| calls).sum();
    let sum: f64 = by_method.values().map(|&(calls, best)| calls as f64 * best as f64 / 1e9).sum();
    let steps = seen.plan.mixes.get(scenario.mix).map_or(1, |mix| mix.steps.len());
    if calls == 0 { 0.0 } else { sum / calls as f64 * steps as f64 }
}

fn service_of(seen: Seen<'_>, scenario: &Scenario) -> lab_model::record::Times {
    let of = |slot: Slot| scenario.stages.iter().any(|one| one.index == usize::from(slot.stage));
    seen.all.times(|cell| &cell.service, of)
}

/// Which percentiles are weak because they rest on few calls.
pub fn few(methods: &[Row]) -> Option<Doubt> {
    let few = methods.iter().filter(|row| row.calls < CALLS_MIN);
    let few: Vec<(String, u64)> = few.map(|row| (row.method.clone(), row.calls)).collect();
    (!few.is_empty()).then_some(Doubt::FewCalls(few))
}
