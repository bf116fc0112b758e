//! Checks for causes that make the host's metrics irrelevant: the generator, connections, rate
//! limits and upstreams of the target. They run before the checks of resources
//! (`bottleneck/resource.rs`).
//!
//! The breach is the moment at which the first threshold was broken. The window is a short time
//! around the breach. The class of a call is its outcome: success, or the kind of its failure.
//! `host!("…")` is the host metric with this name; the macro checks the name at compile time. A `*`
//! in a name stands for a process, thread or device; `.of(name)` replaces it.

use lab_model::metrics::host::host;
use lab_model::record::Class;
use lab_model::results::run::Second;

use super::Context;
use super::diagnosis::{Bottleneck, Claim, Doubt, Evidence};
use super::resource::{Saturated, waits_for_cores};
use crate::analysis::validity::is_late;

/// The generator is the limit if its threads are busy for at least this share of the time.
const BUSY_MIN: f64 = 0.9;
/// A generator thread is starved if it waits for a core for at least this share of the time.
const STARVED_MIN: f64 = 0.5;
/// A cause dominates if it accounts for at least this share of time, calls or failures.
const DOMINANT_SHARE: f64 = 0.5;
/// Late sends explain latency only if the longest call takes at most this multiple of the p99
/// scheduling delay.
const LATE_SENDS_RATIO_MAX: f64 = 20.0;
/// Failed or rejected calls count only if they are at least this share of all calls. Fewer failures
/// do not break a usual threshold.
const NOTABLE_SHARE: f64 = 0.01;
/// A rate limit is the cause only if it rejects at least this share of the calls.
const LIMITED_SHARE_MIN: f64 = 0.05;
/// The error code of "limit exceeded" in EIP-1474, which providers return with HTTP status 200.
const LIMIT_EXCEEDED_CODE: i64 = -32_005;

/// Returns the generator as the cause if its threads were busy, waited for a core, or had no free
/// port. Its late sends are a cause if they explain the latency.
pub(super) fn check_generator(context: &Context<'_>) -> Option<Bottleneck> {
    let mut evidence = Vec::new();
    let busy = context.mean_second(|second| second.generator_busy).unwrap_or(0.0);
    if busy >= BUSY_MIN {
        evidence.push(Evidence::GeneratorBusy { share: busy });
    }
    let thread_delay =
        context.generator_mean(host!("process.*.thread_max_delay").of("generator")).unwrap_or(0.0);
    let process_delay =
        context.generator_mean(host!("process.*.run_delay").of("generator")).unwrap_or(0.0);
    // Time for which threads were runnable but waited for a core, in seconds per second.
    let seconds_per_second = thread_delay.max(process_delay);
    if seconds_per_second >= STARVED_MIN && !context.in_process {
        evidence.push(Evidence::GeneratorStarved { seconds_per_second });
    }
    let (worst_p99, lowest_p99) = context.p99_range();
    let delay_ms = context.mean_second(|second| second.scheduling_delay_p99_ms).unwrap_or(0.0);
    // Late sends do not explain failures, rate limits, or single calls that are far slower.
    let (unexplained, all_calls) =
        count_calls(context, |class| class.is_failure() || class == Class::Limited);
    let only_latency_rose = unexplained < NOTABLE_SHARE * all_calls
        && context.longest_call_ms() <= LATE_SENDS_RATIO_MAX * delay_ms;
    let latency_rise_ms = worst_p99 - lowest_p99;
    if late_sends_ms(context).is_some()
        && only_latency_rose
        && delay_ms >= DOMINANT_SHARE * latency_rise_ms
    {
        evidence.push(Evidence::LateSends { delay_ms, latency_rise_ms });
    }
    let gap_ms = context.window().map(|second| second.generator_gap_ms).fold(0.0, f64::max);
    if gap_ms > 0.0
        && unexplained < NOTABLE_SHARE * all_calls
        && context.longest_call_ms() <= LATE_SENDS_RATIO_MAX * gap_ms
        && gap_ms >= DOMINANT_SHARE * latency_rise_ms
    {
        evidence.push(Evidence::GeneratorStopped { gap_ms, latency_rise_ms });
    }
    let ports = context.result.wire.traffic.ports_exhausted;
    if ports > 0 {
        evidence.push(Evidence::PortsExhausted { connections: ports });
    }
    if evidence.is_empty() {
        return None;
    }
    if let Some(used) = context.target_mean(host!("process.*.cpu")).filter(|used| *used > 0.2) {
        evidence.push(Evidence::SharedCores { target_cores: used, host_cores: context.cores });
    }
    let (at, claim) = (Some(context.broken_at), Claim::Generator);
    Some(Bottleneck { at, claim, evidence, doubts: Vec::new() })
}

/// Returns the p99 delay of sends in the window, in milliseconds. `None` if the sends were not
/// later than the plan allows, or if the window has no seconds.
pub(super) fn late_sends_ms(context: &Context<'_>) -> Option<f64> {
    let delay_p99_ms = context.mean_second(|second| second.scheduling_delay_p99_ms)?;
    let largest_median =
        |second: &Second| second.methods.iter().map(|method| method.p50_ms).fold(0.0, f64::max);
    let median_ms = context.mean_second(largest_median).unwrap_or(0.0);
    is_late(context.validity, delay_p99_ms, median_ms).then_some(delay_p99_ms)
}

/// Returns the number of calls of the counted classes in the window, and the number of all calls.
fn count_calls(context: &Context<'_>, is_counted: impl Fn(Class) -> bool) -> (f64, f64) {
    let (mut counted, mut total) = (0.0, 0.0);
    for second in context.window() {
        for (class, count) in second.methods.iter().flat_map(|method| &method.classes) {
            let count = *count as f64;
            total += count;
            counted += if is_counted(*class) { count } else { 0.0 };
        }
    }
    (counted, total)
}

/// Returns the end of the first second in which the counted classes made up at least `share` of the
/// calls. Ignores the warm-up.
fn first_second_with(
    context: &Context<'_>,
    is_counted: impl Fn(Class) -> bool,
    share: f64,
) -> Option<f64> {
    let mut seconds =
        context.result.series.iter().filter(|second| second.at > context.result.plan.warmup);
    let onset = seconds.find(|second| {
        let classes = || second.methods.iter().flat_map(|method| &method.classes);
        let total: u64 = classes().map(|(_, count)| count).sum();
        let counted = classes().filter(|(class, _)| is_counted(*class)).map(|(_, count)| count);
        total > 0 && counted.sum::<u64>() as f64 >= share * total as f64
    });
    onset.map(|second| second.at)
}

/// Returns a cause if connecting takes most of the time, or if connections wait to be accepted, are
/// refused, or are closed.
pub(super) fn check_connections(
    context: &Context<'_>,
    saturated: &[Saturated],
) -> Option<Bottleneck> {
    if let Some(finding) = check_connecting_time(context) {
        return Some(finding);
    }
    // A target that lacks a resource, such as CPU, may not accept connections either. That resource
    // is then the cause.
    if saturated.iter().any(|resource| resource.precedes_breach(context)) {
        return None;
    }
    check_accept_queue(context).or_else(|| check_refused_connections(context))
}

/// Returns a cause if connects and TLS handshakes take most of the time of all calls.
fn check_connecting_time(context: &Context<'_>) -> Option<Bottleneck> {
    let wire = &context.result.wire;
    let total_ms = |times: &lab_model::results::Quantiles| times.mean_ms * times.count as f64;
    let handshakes_ms = total_ms(&wire.handshake_full) + total_ms(&wire.handshake_resumed);
    let calls_ms = total_ms(&context.result.overall.latency);
    let share = (total_ms(&wire.connect) + handshakes_ms) / calls_ms.max(f64::MIN_POSITIVE);
    if calls_ms <= 0.0 || share < DOMINANT_SHARE {
        return None;
    }
    let (count, mean_ms) = (wire.connect.count, wire.connect.mean_ms);
    let mut evidence = vec![Evidence::Connects { count, mean_ms }];
    for (resumed, times) in [(false, &wire.handshake_full), (true, &wire.handshake_resumed)] {
        if times.count > 0 {
            let (count, mean_ms) = (times.count, times.mean_ms);
            evidence.push(Evidence::Handshakes { resumed, count, mean_ms });
        }
    }
    let (at, claim) = (Some(context.broken_at), Claim::Connecting(share.min(1.0)));
    Some(Bottleneck { at, claim, evidence, doubts: context.doubts() })
}

/// An accept queue counts as full if at least this share of its places is used.
const QUEUE_FULL_SHARE: f64 = 0.9;

/// Returns a cause if the accept queue is full or overflows. Also returns a cause if most
/// connections wait in the queue although the target does not lack CPU.
fn check_accept_queue(context: &Context<'_>) -> Option<Bottleneck> {
    let queue = context.generator_host.get(host!("target.accept_queue"));
    let waiting = context.generator_mean(host!("target.accept_queue"))?;
    let open_connections =
        context.generator_mean(host!("target.connections_in")).unwrap_or(0.0).max(waiting);
    let capacity = context.generator_mean(host!("target.accept_queue_max"));
    let overflows =
        context.generator_mean(host!("listen_overflows")).filter(|overflows| *overflows > 0.0);
    let is_full = overflows.is_some()
        || capacity.is_some_and(|capacity| waiting >= QUEUE_FULL_SHARE * capacity);
    let waits_needlessly =
        waiting >= DOMINANT_SHARE * open_connections && !waits_for_cores(context);
    if waiting < 1.0 || !(is_full || waits_needlessly) {
        return None;
    }
    let at = queue.0.iter().find(|(at, value)| *at >= 0.0 && *value >= 1.0).map(|(at, _)| *at);
    let queue_evidence = [
        Some(Evidence::Unaccepted { queued: waiting, connections: open_connections }),
        capacity.map(|connections| Evidence::AcceptQueueMax { connections }),
        overflows.map(|per_second| Evidence::AcceptQueueOverflows { per_second }),
    ];
    let cpu_evidence = target_cpu_evidence(context);
    let evidence = queue_evidence.into_iter().flatten().chain(cpu_evidence).collect();
    let mut doubts = context.doubts();
    if !is_full {
        doubts.push(Doubt::QueueNotFull);
    }
    Some(Bottleneck { at, claim: Claim::AcceptQueue, evidence, doubts })
}

/// Returns the CPU use of the target's processes, as evidence that the processes were not busy.
/// `None` if their CPU use was not observed.
fn target_cpu_evidence(context: &Context<'_>) -> Option<Evidence> {
    let used = context.target_mean(host!("process.*.cpu"))?;
    let cores = context.result.watched.target_cores.unwrap_or(context.cores);
    Some(Evidence::CpuIdle { cores_used: used, cores_allowed: cores })
}

/// Returns a cause if calls fail because connections cannot be made or are closed.
fn check_refused_connections(context: &Context<'_>) -> Option<Bottleneck> {
    let is_not_opened = |class| matches!(class, Class::Connect | Class::Tls | Class::Upgrade);
    let has_no_connection =
        |class| is_not_opened(class) || matches!(class, Class::Reset | Class::Closed);
    let (failed, total) = count_calls(context, Class::is_failure);
    let (without_connection, _) = count_calls(context, has_no_connection);
    if total <= 0.0
        || without_connection / total < NOTABLE_SHARE
        || without_connection < DOMINANT_SHARE * failed
    {
        return None;
    }
    let has_restarted = |process: &&lab_model::results::run::ProcessFacts| {
        process.restarted && context.target_names.contains(&process.name.as_str())
    };
    if context.result.watched.processes.iter().any(|process| has_restarted(&process)) {
        // The restart of the target closed the connections.
        return None;
    }
    let (not_opened, _) = count_calls(context, is_not_opened);
    let mut doubts = context.doubts();
    if not_opened < DOMINANT_SHARE * without_connection {
        doubts.push(Doubt::ClosedLater);
    }
    if context.target_names.is_empty() {
        doubts.push(Doubt::ProcessesUnseen);
    }
    let traffic = &context.result.wire.traffic;
    let failed_calls = Evidence::FailedCalls {
        connection_share: without_connection / total,
        other_share: (failed - without_connection) / total,
    };
    let connections = Evidence::Connections {
        opened: traffic.connections,
        failed: traffic.connections_failed,
        closed_by_server: traffic.closed_by_server,
    };
    let evidence = vec![failed_calls, connections];
    let at = first_second_with(context, has_no_connection, NOTABLE_SHARE);
    Some(Bottleneck { at, claim: Claim::Refused, evidence, doubts })
}

/// Returns a rate limit as the cause if most of the failed or rejected calls ended with HTTP 429,
/// or with the JSON-RPC error of the same meaning.
pub(super) fn check_rate_limit(context: &Context<'_>) -> Option<Bottleneck> {
    check_rejections(context, LIMITED_SHARE_MIN).or_else(|| {
        let (failed, total) = count_calls(context, Class::is_failure);
        check_limit_code(context, failed, total)
    })
}

/// Returns a rate limit as the cause if it rejected only a few calls, but enough to break a usual
/// threshold, and more than failed. If a resource saturated too, that is a doubt: a server may reject
/// calls because it is overloaded.
pub(super) fn check_few_rejections(
    context: &Context<'_>,
    saturated: &[Saturated],
) -> Option<Bottleneck> {
    let mut found = check_rejections(context, NOTABLE_SHARE)?;
    if saturated.iter().any(|resource| resource.precedes_breach(context)) {
        found.doubts.push(Doubt::OtherSaturated);
    }
    Some(found)
}

/// Returns a rate limit as the cause if at least `share_min` of the calls ended with HTTP 429, and
/// not fewer than failed.
fn check_rejections(context: &Context<'_>, share_min: f64) -> Option<Bottleneck> {
    let (limited, total) = count_calls(context, |class| class == Class::Limited);
    let (failed, _) = count_calls(context, Class::is_failure);
    if total > 0.0 && limited / total >= share_min && limited >= failed {
        let at = first_second_with(context, |class| class == Class::Limited, share_min);
        let mut evidence = vec![
            Evidence::TooManyRequests {
                limited_share: limited / total,
                failed_share: failed / total,
            },
            Evidence::Successes { per_second: context.mean_second(count_successes).unwrap_or(0.0) },
        ];
        if context.result.wire.retry_after.count > 0 {
            let seconds = context.result.wire.retry_after.p50_ms / 1_000.0;
            evidence.push(Evidence::RetryAfter { seconds });
        }
        let (claim, doubts) = (Claim::TooManyRequests, context.doubts());
        return Some(Bottleneck { at, claim, evidence, doubts });
    }
    None
}

/// Longest time for which a receiver delays its acknowledgement, with a margin, in milliseconds. The
/// round-trip time includes it (`TCP_DELACK_MIN` of Linux is 40 ms).
const DELAYED_ACK_MS: f64 = 45.0;

/// Returns the link to the target as the cause if packets wait in a queue on the way. The round-trip
/// time must have risen, and the target must have sent the responses to most calls in flight. If its
/// sockets are not observed, the round-trip time must have risen by most of the latency's rise. A
/// resource of the target's host that saturated before the breach takes precedence.
pub(super) fn check_link(context: &Context<'_>, saturated: &[Saturated]) -> Option<Bottleneck> {
    if saturated.iter().any(|resource| resource.precedes_breach(context)) {
        return None;
    }
    let (before_ms, ms) = round_trip_rise(context)?;
    let in_flight = context.mean_second(|second| second.in_flight as f64).unwrap_or(0.0);
    let mut evidence = vec![Evidence::RoundTrip { before_ms, ms }];
    let is_on_link = match context.generator_mean(host!("target.unacknowledged_in")) {
        Some(responses) => {
            let responses = responses.min(in_flight);
            evidence.push(Evidence::ResponsesOnTheWay { responses, in_flight });
            responses >= 1.0 && responses >= DOMINANT_SHARE * in_flight
        }
        None => {
            let (worst_p99, lowest_p99) = context.p99_range();
            ms - before_ms - DELAYED_ACK_MS >= DOMINANT_SHARE * (worst_p99 - lowest_p99)
        }
    };
    if !is_on_link {
        return None;
    }
    evidence.extend(target_cpu_evidence(context));
    let (at, claim) = (Some(context.broken_at), Claim::Link);
    Some(Bottleneck { at, claim, evidence, doubts: context.doubts() })
}

/// Returns the shortest round-trip time until the breach and the mean one in the window, in
/// milliseconds. `None` if they are unknown, or if acknowledgements that are sent late may explain the
/// rise.
pub(super) fn round_trip_rise(context: &Context<'_>) -> Option<(f64, f64)> {
    let ms = context.generator_mean(host!("target.round_trip_ms"))?;
    let series = context.generator_host.get(host!("target.round_trip_ms"));
    let values = series.0.iter().filter(|(at, _)| *at <= context.end).map(|(_, value)| *value);
    let before_ms = values.reduce(f64::min)?;
    (ms - before_ms > DELAYED_ACK_MS).then_some((before_ms, ms))
}

/// Returns the number of successful calls of a second.
fn count_successes(second: &Second) -> f64 {
    let classes = second.methods.iter().flat_map(|method| &method.classes);
    classes.filter(|(class, _)| *class == Class::Ok).map(|(_, count)| *count as f64).sum()
}

/// Returns a cause if JSON-RPC errors dominate the failures and most of them have the code of
/// "limit exceeded". `failed` and `total` are numbers of calls in the window.
fn check_limit_code(context: &Context<'_>, failed: f64, total: f64) -> Option<Bottleneck> {
    let (errors, _) = count_calls(context, |class| class == Class::RpcError);
    let codes = &context.result.overall.codes;
    let errors_of_run: u64 = codes.iter().map(|(_, count)| count).sum();
    let limit_codes = codes.iter().filter(|(code, _)| *code == LIMIT_EXCEEDED_CODE);
    let limit_errors: u64 = limit_codes.map(|(_, count)| count).sum();
    let limits_dominate = limit_errors as f64 >= DOMINANT_SHARE * errors_of_run.max(1) as f64;
    if total <= 0.0
        || errors / total < LIMITED_SHARE_MIN
        || errors < DOMINANT_SHARE * failed
        || !limits_dominate
    {
        return None;
    }
    let evidence = vec![Evidence::LimitExceeded {
        error_share: errors / total,
        limit_errors,
        errors: errors_of_run,
        code: LIMIT_EXCEEDED_CODE,
    }];
    let mut doubts = context.doubts();
    doubts.push(Doubt::CodeAmbiguous);
    let at = first_second_with(context, |class| class == Class::RpcError, LIMITED_SHARE_MIN);
    Some(Bottleneck { at, claim: Claim::LimitExceeded, evidence, doubts })
}

/// Returns a cause if the target's calls spend most of their time waiting for an upstream of the
/// target. A resource of the target that saturated before the breach takes precedence.
pub(super) fn check_upstream(context: &Context<'_>, saturated: &[Saturated]) -> Option<Bottleneck> {
    if saturated
        .iter()
        .any(|resource| resource.is_of_target(context) && resource.precedes_breach(context))
    {
        return None;
    }
    let calls_inside = context.generator_mean(host!("target.waiting_in"))?;
    let upstream_waits = context.generator_mean(host!("target.waiting_out"))?;
    let share = upstream_waits / calls_inside.max(f64::MIN_POSITIVE);
    if upstream_waits < 1.0 || share < DOMINANT_SHARE {
        return None;
    }
    let waits_over_time = context.generator_host.get(host!("target.waiting_out"));
    let smallest_rise = 1.0;
    let load = &context.load;
    let rise = super::time_series::find_rise(&waits_over_time, load, smallest_rise, context.end);
    let at = rise.map(|rise| rise.at);
    let mut evidence =
        vec![Evidence::WaitedForUpstream { calls_inside, upstream_waits, share: share.min(1.0) }];
    let longest_wait = context.generator_mean(host!("target.waiting_out_max_ms"));
    evidence.extend(longest_wait.map(|ms| Evidence::LongestUpstreamWait { ms }));
    evidence.extend(target_cpu_evidence(context));
    for upstream in
        context.result.watched.upstreams.iter().filter_map(|upstream| upstream.process.as_deref())
    {
        if let Some(cores_used) = context.generator_mean(host!("process.*.cpu").of(upstream)) {
            let busiest_thread = context.generator_mean(host!("process.*.thread_max").of(upstream));
            evidence.push(Evidence::UpstreamCpu {
                name: upstream.to_owned(),
                cores_used,
                busiest_thread: busiest_thread.unwrap_or(0.0),
            });
        }
    }
    let claim = Claim::Upstream(context.result.watched.upstreams.first().cloned());
    Some(Bottleneck { at, claim, evidence, doubts: context.doubts() })
}
