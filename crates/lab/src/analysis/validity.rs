//! Whether the numbers of a run may be believed: was the generator healthy, did the plan itself bound
//! the rate, did the target take what was offered?
//!
//! Only the time after the warm-up is looked at, except where the plan's own limit is worked out. Each
//! doubt is a sentence with its numbers. What follows from doubts is `verdict`'s.

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
const CALLS_MIN: u64 = 1_000;

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

/// What stands against the numbers; each in a sentence.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Doubts {
    /// Nothing was measured.
    pub empty: Option<String>,
    /// The engine threads had no time or no port left.
    pub overloaded: Vec<String>,
    /// The engine threads waited for a core.
    pub starved: Option<Delay>,
    /// Sends were late because of the generator.
    pub late: Option<Delay>,
    /// The plan's own pauses bounded the rate.
    pub paced: Vec<String>,
    /// The plan's own number of workers could not begin what was planned.
    pub workers: Vec<String>,
    /// The target did not take what was offered to it: the sentence, and how far the share of
    /// delivered iterations is below the least that is allowed.
    pub behind: Vec<(String, f64)>,
}

/// Time by which the generator itself delayed calls.
///
/// Latency counts from the planned instant, so a delay only ever adds to it. A server that works off
/// calls first come, first served, ends each call later by at most the longest delay.
#[derive(Clone, Debug, PartialEq)]
pub struct Delay {
    /// The doubt in words.
    pub sentence: String,
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
                Some(Behind::Workers(sentence)) => doubts.workers.push(sentence),
                Some(Behind::Target(sentence, missing)) => doubts.behind.push((sentence, missing)),
                None => {}
            },
        }
    }
    doubts
}

fn empty(seen: Seen<'_>, calls: u64) -> Option<String> {
    if calls > 0 {
        return None;
    }
    let warmup = seen.plan.warmup;
    Some(if seen.end <= warmup && !warmup.is_zero() {
        let (end, warmup) = (seen.end.as_secs_f64(), warmup.as_secs_f64());
        format!(
            "nothing was measured: the run ended at {end:.1} s, within the warm-up of {warmup} s"
        )
    } else {
        "nothing was measured: not one call ended".to_owned()
    })
}

fn busy(seconds: &[Second]) -> Option<String> {
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
    let (percent, to) = (mean * 100.0, longest[longest.len() - 1].at);
    Some(format!(
        "the generator's threads were {percent:.0} % busy for {lasted:.0} s in a row until {to:.1} s: \
         give them more cores, or ask for less"
    ))
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
        sentence: format!(
            "the generator's {threads} threads waited {waited:.1} s, {:.0} % of their time, for a \
             core: something else used this machine",
            waited / time * 100.0
        ),
        longest_ms: if open { most.min(sends) } else { most },
        share: late_share(seen),
    })
}

fn ports(judged: &Totals) -> Option<String> {
    let refused = judged.traffic.ports_exhausted;
    (refused > 0).then(|| {
        format!(
            "{refused} connections were not made because this host had no local port left: reuse \
             connections, or widen net.ipv4.ip_local_port_range"
        )
    })
}

/// Which method's answers are so many bytes that the generator may be the limit for them.
fn heavy(seen: Seen<'_>) -> Option<String> {
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
    let name = seen.plan.methods.get(method)?;
    Some(format!(
        "the generator read {:.0} MB/s of answers, {:.0} % of them those of {name}, {:.1} MB each: ask \
         for smaller ones, such as a shorter range or one address, or give it more cores",
        read / 1e6,
        share * 100.0,
        most as f64 / calls as f64 / 1e6
    ))
}

fn late(seen: Seen<'_>) -> Option<Delay> {
    let lateness = aggregate::percentile_ms(&seen.judged.lateness, 99.0)?;
    let median =
        aggregate::percentile_ms(&seen.judged.times(|cell| &cell.service, |_| true), 50.0)?;
    let validity = seen.plan.validity;
    let longest_ms = seen.judged.lateness.max() as f64 / 1e6;
    is_late(validity, lateness, median).then(|| Delay {
        sentence: format!(
            "sends were late by {lateness:.2} ms (p99), {longest_ms:.1} ms at most, because of the \
             generator; allowed are {} ms or {:.0} % of the median time of {median:.2} ms: the \
             latencies include this",
            validity.lateness_p99_max.as_secs_f64() * 1e3,
            validity.lateness_share_max * 100.0
        ),
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

fn paced(seen: Seen<'_>, scenario: &Scenario) -> Option<String> {
    let pause = scenario.pause.as_secs_f64();
    let offered = offered(seen, scenario);
    if pause <= 0.0 || offered.seconds <= 0.0 {
        return None;
    }
    let allowed = offered.level_seconds / offered.seconds / pause;
    let reached = offered.iterations.begun as f64 / offered.seconds;
    (reached >= PACED_SHARE * allowed).then(|| {
        let workers = offered.level_seconds / offered.seconds;
        format!(
            "{}: the plan's own pacing allows at most {allowed:.0}/s ({workers:.0} workers, a pause of \
             {:.0} ms after each iteration), and {reached:.0}/s were reached: the target was not the \
             limit",
            scenario.name,
            pause * 1e3
        )
    })
}

enum Behind {
    Workers(String),
    /// The sentence, and how far the delivered share is below what is allowed.
    Target(String, f64),
}

/// Whether fewer iterations were begun than planned, and whose limit that was. The best time of each
/// method, weighted by its calls, is what the target takes when nothing waits; if even then the
/// workers could not begin the planned rate, the plan is the limit, otherwise the target.
fn behind(seen: Seen<'_>, scenario: &Scenario) -> Option<Behind> {
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
    let begun_of = format!(
        "{:.1} % of the planned iterations were begun ({begun} of {due})",
        delivered * 100.0
    );
    let workers = scenario.workers_max;
    let best = best_time(seen, scenario);
    let allowed = workers as f64 / best.max(1e-9);
    let (name, peak, best_ms) = (&scenario.name, offered.peak, best * 1e3);
    if allowed < peak {
        return Some(Behind::Workers(format!(
            "{name}: {begun_of}: its {workers} workers can begin at most {allowed:.0}/s even at the \
             target's best time of {best_ms:.1} ms an iteration, and {peak:.0}/s were planned: give it \
             more workers"
        )));
    }
    let mean = aggregate::quantiles(&service_of(seen, scenario)).mean_ms;
    let sentence = format!(
        "{name}: {begun_of}: the target did not keep up; all {workers} workers waited for it, {mean:.1} \
         ms a call in the mean against {best_ms:.1} ms an iteration at its best"
    );
    Some(Behind::Target(sentence, seen.plan.validity.delivered_share_min - delivered))
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
pub fn few(methods: &[Row]) -> Option<String> {
    let few: Vec<String> = methods
        .iter()
        .filter(|row| row.calls < CALLS_MIN)
        .map(|row| format!("{} ({} calls)", row.method, row.calls))
        .collect();
    (!few.is_empty()).then(|| {
        format!(
            "a p99 of fewer than {CALLS_MIN} calls is weak; see its interval: {}",
            few.join(", ")
        )
    })
}
