//! Checks if the numbers of a run are valid. They are valid if the generator was healthy, the plan
//! itself did not limit the rate, and the target accepted the offered load. Each failed check
//! returns a doubt.
//!
//! The engine threads send the calls. An iteration is one pass through the steps of a scenario. An
//! open scenario schedules iterations at planned times; in a closed scenario each worker starts its
//! next iteration when its previous one has ended.
//!
//! The checks cover the time after the warm-up, except where they compute the plan's own limit.
//! `verdict.rs` decides what follows from the doubts; `wording/verdict.rs` writes the sentences.

use std::time::Duration;

use lab_engine::aggregate;
use lab_model::plan::{Model, Plan, Scenario, Validity};
use lab_model::record::{Class, Iterations, Slot, Totals};
use lab_model::results::run::{Row, Second};
use lab_model::results::subscription::SubscriptionRow;

mod own_delay;

#[cfg(test)]
mod tests;

pub use own_delay::{Allowed, Moved, find_moved, is_moved, is_read_late};

/// The engine threads are the limit if they are busy for at least this share of the time.
const BUSY_SHARE: f64 = 0.9;
/// Number of consecutive seconds for which the threads must be that busy. A single busy second is
/// only a burst.
const BUSY_SECONDS: f64 = 3.0;
/// Response bytes per second and engine thread that count as heavy. Reading and classifying them
/// takes 5 to 10 % of the thread's time, and far more if memory is slow.
const HEAVY_BYTES_PER_SECOND: f64 = 50e6;
/// A method is reported as heavy if it has at least this share of the response bytes.
const HEAVY_METHOD_SHARE: f64 = 0.5;
/// The pauses limited the rate if the achieved rate is at least this share of the rate that the
/// pauses alone allow. If so, the target took at most a tenth of the time.
const PACED_SHARE: f64 = 0.9;

/// Smallest number of calls for a p99. With fewer calls, the 95 % interval of the p99 reaches from
/// the 98th percentile to the maximum.
pub(crate) const CALLS_MIN: u64 = 1_000;

/// The parts of a run's result that are checked.
#[derive(Clone, Copy, Debug)]
pub struct ValidityInput<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// Totals with the warm-up.
    pub all: &'a Totals,
    /// Totals without the warm-up.
    pub measured: &'a Totals,
    /// Seconds after the warm-up.
    pub seconds: &'a [Second],
    /// The subscriptions.
    pub subscriptions: &'a [SubscriptionRow],
    /// End of the load, since the start of the run.
    pub end: Duration,
}

/// A reason to doubt the numbers. Shares are between 0 and 1; times without a unit are in seconds.
///
/// - `Busy`: the engine threads were busy for `lasted` seconds in a row, on average for `share` of
///   the time. `until` is the end of that period, in seconds since the start of the run.
/// - `NoPorts`: number of connections that failed because no local port was free.
/// - `Starved`: the engine threads waited for a core for `waited` seconds in total, which is
///   `share` of their time.
/// - `Heavy`: reading large responses may limit the generator. `method` has the `share` of all
///   response bytes, and `bytes_each` is the mean size of its responses.
/// - `Delayed`: calls were sent late. `p99_ms` and `longest_ms` are scheduling delays, from the
///   scheduled to the actual send. `median_ms` is the median service time, from the actual send to
///   the response. One limit in `allowed` is a share of `median_ms`.
/// - `Stopped`: engine threads did not run although they should have, `longest_ms` at most, and
///   `total` seconds in all, which is `share` of their time.
/// - `Moved`: percentiles that the generator's own delays may have raised by more than `allowed`, a
///   share of the percentile.
/// - `SubscriptionReadLate`: notifications of the subscription `name` were read up to `gap_ms` late.
/// - `LimitedByPauses`: with `workers` workers on average, the pauses allow `allowed` iterations
///   per second. The run reached `reached`.
/// - `FewWorkers`: if each iteration took only `best_ms`, the workers would allow `allowed`
///   iterations per second. The plan's highest rate is `peak`.
/// - `Behind`: the target was too slow. An iteration took `mean_ms` on average, and `best_ms` at
///   best.
/// - `Undelivered`: too few iterations started in time, and the generator may be the cause.
/// - `FewCalls`: methods with too few calls for their percentiles, with their numbers of calls.
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
        /// True if a scenario is closed: its load takes all that the target gives.
        is_closed: bool,
    },
    Heavy {
        bytes_per_second: f64,
        share: f64,
        method: String,
        bytes_each: f64,
    },
    Delayed {
        p99_ms: f64,
        longest_ms: f64,
        allowed: Validity,
        median_ms: f64,
    },
    Stopped {
        longest_ms: f64,
        total: f64,
        share: f64,
    },
    SubscriptionReadLate {
        name: String,
        gap_ms: f64,
        p99_ms: f64,
    },
    Moved {
        percentiles: Vec<Moved>,
        allowed: f64,
    },
    LimitedByPauses {
        scenario: String,
        allowed: f64,
        workers: f64,
        pause_ms: f64,
        reached: f64,
    },
    FewWorkers {
        scenario: String,
        delivery: Delivered,
        workers: usize,
        allowed: f64,
        best_ms: f64,
        peak: f64,
    },
    Behind {
        scenario: String,
        delivery: Delivered,
        workers: usize,
        mean_ms: f64,
        best_ms: f64,
    },
    Undelivered {
        scenario: String,
        delivery: Delivered,
    },
    FewCalls(Vec<(String, u64)>),
}

/// Delivered iterations of an open scenario.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Delivered {
    /// Share of the scheduled iterations that started in time.
    pub share: f64,
    /// Number of iterations that started in time.
    pub started: u64,
    /// Number of scheduled iterations.
    pub scheduled: u64,
}

/// All doubts about a run, by kind.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Doubts {
    /// Nothing was measured.
    pub empty: Option<Doubt>,
    /// The engine threads had no CPU time or no free port left. A doubt about large responses
    /// follows if the threads were overloaded, starved or late.
    pub overloaded: Vec<Doubt>,
    /// The engine threads waited for a core.
    pub starved: Option<Delay>,
    /// Sends were late because of the generator.
    pub late: Option<Delay>,
    /// The engine threads were stopped, or had no core when they had to act.
    pub stopped: Option<Delay>,
    /// The generator may have caused a notable share of a subscription's delays.
    pub subscriptions: Vec<Doubt>,
    /// The plan's own pauses limited the rate.
    pub pauses: Vec<Doubt>,
    /// The plan has too few workers for its rate.
    pub workers: Vec<Doubt>,
    /// The target did not accept the offered load. The number is how far the share of iterations
    /// that started in time is below its limit: 0.04 for a share of 0.95 and a limit of 0.99.
    pub undelivered: Vec<(Doubt, f64)>,
}

/// A delay of calls that the generator itself caused.
///
/// Latency counts from the scheduled time, so a delay can only raise the latency. If the server
/// works first come, first served, each call ends at most `longest_ms` later.
#[derive(Clone, Debug, PartialEq)]
pub struct Delay {
    /// The doubt for the report.
    pub doubt: Doubt,
    /// Longest delay of one call, in milliseconds.
    pub longest_ms: f64,
    /// Share of the sends that were later than the plan allows.
    pub share: f64,
}

/// Collects all doubts about the numbers.
pub fn find_doubts(input: ValidityInput<'_>) -> Doubts {
    let calls = input.measured.count(|_| true);
    let mut doubts = Doubts { empty: check_calls(input, calls), ..Doubts::default() };
    doubts.overloaded.extend(check_busy(input.seconds));
    doubts.overloaded.extend(check_ports(input.measured));
    doubts.starved = check_run_delay(input);
    doubts.late = check_scheduling_delay(input);
    doubts.stopped = own_delay::check_gaps(input);
    doubts.subscriptions = own_delay::check_subscriptions(input);
    if !doubts.overloaded.is_empty() || doubts.starved.is_some() || doubts.late.is_some() {
        doubts.overloaded.extend(check_response_sizes(input));
    }
    for scenario in &input.plan.scenarios {
        match scenario.model {
            Model::Closed => doubts.pauses.extend(check_pauses(input, scenario)),
            Model::Open => match check_delivery(input, scenario) {
                Some((doubt @ Doubt::FewWorkers { .. }, _)) => doubts.workers.push(doubt),
                found => doubts.undelivered.extend(found),
            },
        }
    }
    doubts
}

/// Returns a doubt if no call was measured.
fn check_calls(input: ValidityInput<'_>, calls: u64) -> Option<Doubt> {
    if calls > 0 {
        return None;
    }
    let warmup = input.plan.warmup;
    Some(if input.end <= warmup && !warmup.is_zero() {
        Doubt::EndedInWarmup { end: input.end.as_secs_f64(), warmup: warmup.as_secs_f64() }
    } else {
        Doubt::NoCalls
    })
}

/// Returns a doubt if the engine threads were busy for several consecutive seconds, or for all
/// seconds of a shorter run.
fn check_busy(seconds: &[Second]) -> Option<Doubt> {
    let mut longest: &[Second] = &[];
    let same_state = seconds.chunk_by(|a, b| is_busy(a) == is_busy(b));
    for busy_seconds in same_state.filter(|chunk| is_busy(&chunk[0])) {
        if busy_seconds.len() > longest.len() {
            longest = busy_seconds;
        }
    }
    // In a long run a point of the series covers more than a second.
    let seconds_per_point = seconds.get(1).map_or(1.0, |second| second.at - seconds[0].at);
    let lasted = longest.len() as f64 * seconds_per_point;
    let run_seconds = seconds.len() as f64 * seconds_per_point;
    if longest.is_empty() || lasted < BUSY_SECONDS.min(run_seconds) {
        return None;
    }
    let mean =
        longest.iter().map(|second| second.generator_busy).sum::<f64>() / longest.len() as f64;
    Some(Doubt::Busy { share: mean, lasted, until: longest[longest.len() - 1].at })
}

/// Returns true if the engine threads were busy in a second.
fn is_busy(second: &Second) -> bool {
    second.generator_busy >= BUSY_SHARE
}

/// Returns a delay if engine threads waited too long for a core (run delay). The delay of one call
/// is at most the sum of all waits. In an open scenario a wait also delays the next send, so the
/// scheduling delay includes it. A wait may delay the send and the read of a call. So if all
/// scenarios are open, the delay of a call is also at most twice the longest scheduling delay.
fn check_run_delay(input: ValidityInput<'_>) -> Option<Delay> {
    let threads = input.plan.threads;
    let measured_seconds = input.end.saturating_sub(input.plan.warmup).as_secs_f64();
    let thread_seconds = measured_seconds * threads as f64;
    let waited = input.measured.run_delay.as_secs_f64();
    let waited_ms = waited * 1e3;
    let is_open = input.plan.scenarios.iter().all(|scenario| scenario.model == Model::Open);
    let send_and_read_ms = 2.0 * input.measured.scheduling_delay.max() as f64 / 1e6;
    let allowed = input.plan.validity.waited_share_max * thread_seconds;
    (waited > allowed && waited > 0.0).then(|| Delay {
        doubt: Doubt::Starved {
            threads,
            waited,
            share: waited / thread_seconds,
            is_closed: !is_open,
        },
        longest_ms: if is_open { waited_ms.min(send_and_read_ms) } else { waited_ms },
        share: late_share(input),
    })
}

/// Returns a doubt if connections failed because no local port was free.
fn check_ports(measured: &Totals) -> Option<Doubt> {
    let failed_connections = measured.traffic.ports_exhausted;
    (failed_connections > 0).then_some(Doubt::NoPorts(failed_connections))
}

/// Returns a doubt if reading large responses may limit the generator. The doubt names the method
/// with the most response bytes.
fn check_response_sizes(input: ValidityInput<'_>) -> Option<Doubt> {
    let seconds = input.end.saturating_sub(input.plan.warmup).as_secs_f64();
    let bytes_by_method = &input.measured.response_bytes;
    let total_bytes = bytes_by_method.iter().sum::<u64>() as f64;
    let (method, &method_bytes) =
        bytes_by_method.iter().enumerate().max_by_key(|(_, bytes)| **bytes)?;
    let bytes_per_second = total_bytes / seconds.max(1e-9);
    let share = method_bytes as f64 / total_bytes.max(1.0);
    let calls = input.measured.count(|slot| usize::from(slot.method) == method);
    if bytes_per_second < HEAVY_BYTES_PER_SECOND * input.plan.threads as f64
        || share < HEAVY_METHOD_SHARE
        || calls == 0
    {
        return None;
    }
    let method = input.plan.methods.get(method)?.to_string();
    let bytes_each = method_bytes as f64 / calls as f64;
    Some(Doubt::Heavy { bytes_per_second, share, method, bytes_each })
}

/// Returns a delay if the generator sent calls too late.
fn check_scheduling_delay(input: ValidityInput<'_>) -> Option<Delay> {
    let p99_ms = aggregate::percentile_ms(&input.measured.scheduling_delay, 99.0)?;
    let median_ms =
        aggregate::percentile_ms(&input.measured.times(|cell| &cell.service, |_| true), 50.0)?;
    let allowed = input.plan.validity;
    let longest_ms = input.measured.scheduling_delay.max() as f64 / 1e6;
    is_late(allowed, p99_ms, median_ms).then(|| Delay {
        doubt: Doubt::Delayed { p99_ms, longest_ms, allowed, median_ms },
        longest_ms,
        share: late_share(input),
    })
}

/// Returns the share of sends that were later than the plan allows.
fn late_share(input: ValidityInput<'_>) -> f64 {
    let allowed_nanos = lab_model::record::to_nanos(input.plan.validity.scheduling_delay_p99_max);
    let delays = &input.measured.scheduling_delay;
    let late_sends = delays.count_between(allowed_nanos + 1, lab_model::record::TIME_MAX_NS);
    aggregate::share(late_sends, delays.len())
}

/// Returns true if a p99 scheduling delay is too long for calls with this median time.
pub(crate) fn is_late(validity: Validity, delay_p99_ms: f64, median_ms: f64) -> bool {
    let limit_ms = validity.scheduling_delay_p99_max.as_secs_f64() * 1e3;
    delay_p99_ms > limit_ms && delay_p99_ms > validity.scheduling_delay_share_max * median_ms
}

/// The offered load of a scenario until the end of the run.
struct OfferedLoad {
    /// Counts of the scenario's iterations.
    iterations: Iterations,
    /// Duration of the scenario's stages, in seconds.
    seconds: f64,
    /// Integral of the level (iterations per second or workers) over time.
    level_seconds: f64,
    /// Highest level of the scenario's stages.
    peak: f64,
}

/// Returns the load that a scenario offered until the end of the run, with the warm-up.
fn sum_offered_load(input: ValidityInput<'_>, scenario: &Scenario) -> OfferedLoad {
    let iterations = Iterations::default();
    let mut offered = OfferedLoad { iterations, seconds: 0.0, level_seconds: 0.0, peak: 0.0 };
    for (owner, stage, span) in input.plan.spans() {
        if owner.name != scenario.name {
            continue;
        }
        offered.iterations.add(input.all.iterations.get(stage.index).copied().unwrap_or_default());
        let stage_time = span.overlap(Duration::ZERO, input.end);
        let (stage_seconds, level_end) = (stage_time.as_secs_f64(), stage.level(stage_time));
        offered.seconds += stage_seconds;
        offered.level_seconds += stage_seconds * (stage.from + level_end) / 2.0;
        offered.peak = offered.peak.max(stage.from).max(level_end);
    }
    offered
}

/// Returns a doubt if the pauses of a closed scenario limited its rate. The pauses alone allow one
/// iteration per worker and pause.
fn check_pauses(input: ValidityInput<'_>, scenario: &Scenario) -> Option<Doubt> {
    let pause_seconds = scenario.pause.as_secs_f64();
    let offered = sum_offered_load(input, scenario);
    if pause_seconds <= 0.0 || offered.seconds <= 0.0 {
        return None;
    }
    let mean_workers = offered.level_seconds / offered.seconds;
    let allowed = mean_workers / pause_seconds;
    let reached = offered.iterations.started as f64 / offered.seconds;
    (reached >= PACED_SHARE * allowed).then(|| Doubt::LimitedByPauses {
        scenario: scenario.name.clone(),
        allowed,
        workers: mean_workers,
        pause_ms: pause_seconds * 1e3,
        reached,
    })
}

/// Returns a doubt if too few of the scheduled iterations started. The doubt names the limit: the
/// plan or the target. The number is how far the share of iterations that started in time is below
/// its limit: 0.04 for a share of 0.95 and a limit of 0.99.
///
/// The best time of each method, weighted by its calls, is the target's time without queueing. If
/// the workers are too few for the rate even at that time, the plan is the limit. Otherwise the
/// target is the limit.
fn check_delivery(input: ValidityInput<'_>, scenario: &Scenario) -> Option<(Doubt, f64)> {
    let offered = sum_offered_load(input, scenario);
    let mut iterations = Iterations::default();
    for stage in &scenario.stages {
        iterations.add(input.measured.iterations.get(stage.index).copied().unwrap_or_default());
    }
    let delivered = aggregate::delivered_share(iterations);
    if delivered >= input.plan.validity.delivered_share_min {
        return None;
    }
    let (scheduled, started) = (iterations.scheduled, iterations.in_time());
    let delivery = Delivered { share: delivered, started, scheduled };
    let workers = scenario.workers_max;
    let best_seconds = best_iteration_seconds(input, scenario);
    let allowed = workers as f64 / best_seconds.max(1e-9);
    let (scenario_name, peak, best_ms) = (scenario.name.clone(), offered.peak, best_seconds * 1e3);
    let doubt = if allowed < peak {
        Doubt::FewWorkers { scenario: scenario_name, delivery, workers, allowed, best_ms, peak }
    } else {
        let service = input.all.times(|cell| &cell.service, |slot| belongs_to(scenario, slot));
        let mean_ms =
            count_steps(input, scenario) as f64 * aggregate::compute_quantiles(&service).mean_ms;
        Doubt::Behind { scenario: scenario_name, delivery, workers, mean_ms, best_ms }
    };
    Some((doubt, input.plan.validity.delivered_share_min - delivered))
}

/// Returns the duration of an iteration, in seconds, if each call takes the best time of its
/// method. Failed calls count only if no call succeeded, because a target may reject calls faster
/// than it serves them. Returns 0 without calls.
fn best_iteration_seconds(input: ValidityInput<'_>, scenario: &Scenario) -> f64 {
    // A slot is a combination of stage, method and class of result. Its cell has the times of its
    // calls.
    let cells = input.all.cells.iter().filter(|(slot, _)| belongs_to(scenario, **slot));
    let cells: Vec<_> = cells.filter(|(_, cell)| !cell.service.is_empty()).collect();
    let any_succeeded = cells.iter().any(|(slot, _)| slot.class == Class::Ok);
    // Number of calls of each method, and the method's best time in nanoseconds.
    let mut by_method = std::collections::BTreeMap::<u16, (u64, u64)>::new();
    for (slot, cell) in cells {
        if slot.class == Class::Ok || !any_succeeded {
            let (calls, best_nanos) = by_method.entry(slot.method).or_insert((0, u64::MAX));
            *calls += cell.service.len();
            *best_nanos = (*best_nanos).min(cell.service.min());
        }
    }
    let calls: u64 = by_method.values().map(|(calls, _)| calls).sum();
    if calls == 0 {
        return 0.0;
    }
    let seconds = |&(calls, best_nanos): &(u64, u64)| calls as f64 * best_nanos as f64 / 1e9;
    let mean_call_seconds = by_method.values().map(seconds).sum::<f64>() / calls as f64;
    mean_call_seconds * count_steps(input, scenario) as f64
}

/// Returns the number of steps of an iteration; each step is one request.
fn count_steps(input: ValidityInput<'_>, scenario: &Scenario) -> usize {
    input.plan.mixes.get(scenario.mix).map_or(1, |mix| mix.steps.len())
}

/// Returns true if a slot belongs to a stage of the scenario.
fn belongs_to(scenario: &Scenario, slot: Slot) -> bool {
    scenario.stages.iter().any(|stage| stage.index == usize::from(slot.stage))
}

/// Returns a doubt about methods that have too few calls for their percentiles.
pub fn find_few_calls(methods: &[Row]) -> Option<Doubt> {
    let rows = methods.iter().filter(|row| row.calls < CALLS_MIN);
    let calls_by_method: Vec<(String, u64)> =
        rows.map(|row| (row.method.clone(), row.calls)).collect();
    (!calls_by_method.is_empty()).then_some(Doubt::FewCalls(calls_by_method))
}
