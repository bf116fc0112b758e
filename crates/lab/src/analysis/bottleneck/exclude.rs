//! Causes that make the host's metrics irrelevant. The generator is checked first, then
//! connections, rate limits and upstreams. All of them are checked before the resources.

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
/// A cause dominates if it makes up this share of time, calls or failures.
const DOMINATES: f64 = 0.5;
/// Late sends explain latency only if the longest call takes at most this multiple of the p99
/// scheduling delay.
const LATENESS_TIMES: f64 = 20.0;
/// Smallest share of the calls at which an outcome can break a threshold.
const NOTABLE: f64 = 0.01;
/// A rate limit is assumed if at least this share of the responses have status 429.
const LIMITED_MIN: f64 = 0.05;
/// The code of "limit exceeded" in EIP-1474, which providers return with HTTP status 200.
const LIMIT_EXCEEDED: i64 = -32_005;

/// Returns the generator as the cause if its threads were busy, waited for a core, or had no free
/// port. Returns the generator too if its late sends explain the latency.
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
    let seconds_per_second = thread_delay.max(process_delay);
    if seconds_per_second >= STARVED_MIN && !context.in_process {
        evidence.push(Evidence::GeneratorStarved { seconds_per_second });
    }
    let (worst_p99, lowest_p99) = context.p99_range();
    let delay_ms = context.mean_second(|second| second.scheduling_delay_p99_ms).unwrap_or(0.0);
    // Late sends do not explain failures, rate limits, or single calls that are far slower.
    let (unexplained, all_calls) =
        count_calls(context, |class| class.is_failure() || class == Class::Limited);
    let timely =
        unexplained < NOTABLE * all_calls && context.longest_call_ms() <= LATENESS_TIMES * delay_ms;
    if late_sends_ms(context).is_some()
        && timely
        && delay_ms >= DOMINATES * (worst_p99 - lowest_p99)
    {
        evidence.push(Evidence::LateSends { delay_ms, latency_rise_ms: worst_p99 - lowest_p99 });
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

/// Returns the p99 delay of sends in the window, in milliseconds, if it exceeds the plan's limit.
pub(super) fn late_sends_ms(context: &Context<'_>) -> Option<f64> {
    let late = context.mean_second(|second| second.scheduling_delay_p99_ms)?;
    let median = |second: &Second| second.methods.iter().map(|m| m.p50_ms).fold(0.0, f64::max);
    let typical = context.mean_second(median).unwrap_or(0.0);
    is_late(context.validity, late, typical).then_some(late)
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

/// Returns the end of the first second after the warm-up in which the counted classes made up at
/// least `share` of the calls.
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

/// Returns a cause if connecting takes most of the time, connections wait to be accepted, or they
/// are refused or closed.
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
    let total = |times: &lab_model::results::Quantiles| times.mean_ms * times.count as f64;
    let handshakes = total(&wire.handshake_full) + total(&wire.handshake_resumed);
    let call_time = total(&context.result.overall.latency);
    let share = (total(&wire.connect) + handshakes) / call_time.max(f64::MIN_POSITIVE);
    if call_time <= 0.0 || share < DOMINATES {
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

/// An accept queue is full if at least this share of it is used.
const QUEUE_FULL: f64 = 0.9;

/// Returns a cause if the accept queue is full or overflows. Returns one too if the queue holds
/// most connections although the target does not lack CPU.
fn check_accept_queue(context: &Context<'_>) -> Option<Bottleneck> {
    let queue = context.generator_host.get(host!("target.accept_queue"));
    let waiting = context.generator_mean(host!("target.accept_queue"))?;
    let open_connections =
        context.generator_mean(host!("target.connections_in")).unwrap_or(0.0).max(waiting);
    let capacity = context.generator_mean(host!("target.accept_queue_max"));
    let overflows =
        context.generator_mean(host!("listen_overflows")).filter(|overflows| *overflows > 0.0);
    let is_full =
        overflows.is_some() || capacity.is_some_and(|capacity| waiting >= QUEUE_FULL * capacity);
    let neglected = waiting >= DOMINATES * open_connections && !waits_for_cores(context);
    if waiting < 1.0 || !(is_full || neglected) {
        return None;
    }
    let at = queue.0.iter().find(|(at, value)| *at >= 0.0 && *value >= 1.0).map(|(at, _)| *at);
    let queue = [
        Some(Evidence::Unaccepted { queued: waiting, connections: open_connections }),
        capacity.map(|connections| Evidence::AcceptQueueMax { connections }),
        overflows.map(|per_second| Evidence::AcceptQueueOverflows { per_second }),
    ];
    let evidence = queue.into_iter().flatten().chain(target_cpu_evidence(context)).collect();
    let mut doubts = context.doubts();
    if !is_full {
        doubts.push(Doubt::QueueNotFull);
    }
    Some(Bottleneck { at, claim: Claim::Unaccepted, evidence, doubts })
}

/// Returns the CPU use of the target's processes, as evidence that they were not busy.
fn target_cpu_evidence(context: &Context<'_>) -> Option<Evidence> {
    let used = context.target_mean(host!("process.*.cpu"))?;
    let cores = context.result.watched.target_cores.unwrap_or(context.cores);
    Some(Evidence::CpuIdle { cores_used: used, cores_allowed: cores })
}

/// Returns a cause if calls fail because connections cannot be made or are closed.
fn check_refused_connections(context: &Context<'_>) -> Option<Bottleneck> {
    let cannot = |class| matches!(class, Class::Connect | Class::Tls | Class::Upgrade);
    let closed = |class| cannot(class) || matches!(class, Class::Reset | Class::Closed);
    let (failed, total) = count_calls(context, Class::is_failure);
    let (refused, _) = count_calls(context, closed);
    if total <= 0.0 || refused / total < NOTABLE || refused < DOMINATES * failed {
        return None;
    }
    let ended = |process: &&lab_model::results::run::ProcessFacts| {
        process.restarted && context.targets.contains(&process.name.as_str())
    };
    if context.result.watched.processes.iter().any(|process| ended(&process)) {
        // The target restarted, so its connections closed for that reason.
        return None;
    }
    let (connect, _) = count_calls(context, cannot);
    let mut doubts = context.doubts();
    if connect < DOMINATES * refused {
        doubts.push(Doubt::ClosedLater);
    }
    if context.targets.is_empty() {
        doubts.push(Doubt::ProcessesUnseen);
    }
    let traffic = &context.result.wire.traffic;
    let failed_calls = Evidence::FailedCalls {
        connection_share: refused / total,
        other_share: (failed - refused) / total,
    };
    let connections = Evidence::Connections {
        opened: traffic.connections,
        failed: traffic.connections_failed,
        closed_by_server: traffic.closed_by_server,
    };
    let evidence = vec![failed_calls, connections];
    let at = first_second_with(context, closed, NOTABLE);
    Some(Bottleneck { at, claim: Claim::Refused, evidence, doubts })
}

/// Returns a cause if HTTP 429 responses, or the JSON-RPC error with the same meaning, dominate the
/// failures.
pub(super) fn check_rate_limit(context: &Context<'_>) -> Option<Bottleneck> {
    let (limited, total) = count_calls(context, |class| class == Class::Limited);
    let (failed, _) = count_calls(context, Class::is_failure);
    if total > 0.0 && limited / total >= LIMITED_MIN && limited >= failed {
        let at = first_second_with(context, |class| class == Class::Limited, LIMITED_MIN);
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
    check_limit_code(context, failed, total)
}

/// Returns the number of successful calls of a second.
fn count_successes(second: &Second) -> f64 {
    let classes = second.methods.iter().flat_map(|method| &method.classes);
    classes.filter(|(class, _)| *class == Class::Ok).map(|(_, count)| *count as f64).sum()
}

/// Returns a cause if the JSON-RPC error code of "limit exceeded" dominates the failures.
fn check_limit_code(context: &Context<'_>, failed: f64, total: f64) -> Option<Bottleneck> {
    let (errors, _) = count_calls(context, |class| class == Class::RpcError);
    let codes = &context.result.overall.codes;
    let error_codes: u64 = codes.iter().map(|(_, count)| count).sum();
    let limits = codes.iter().filter(|(code, _)| *code == LIMIT_EXCEEDED);
    let limits: u64 = limits.map(|(_, count)| count).sum();
    let dominate = limits as f64 >= DOMINATES * error_codes.max(1) as f64;
    if total <= 0.0 || errors / total < LIMITED_MIN || errors < DOMINATES * failed || !dominate {
        return None;
    }
    let evidence = vec![Evidence::LimitExceeded {
        error_share: errors / total,
        limit_errors: limits,
        errors: error_codes,
        code: LIMIT_EXCEEDED,
    }];
    let mut doubts = context.doubts();
    doubts.push(Doubt::CodeAmbiguous);
    let at = first_second_with(context, |class| class == Class::RpcError, LIMITED_MIN);
    Some(Bottleneck { at, claim: Claim::LimitExceeded, evidence, doubts })
}

/// Returns a cause if the target's calls spend most of their time waiting for its own upstream.
pub(super) fn check_upstream(context: &Context<'_>, saturated: &[Saturated]) -> Option<Bottleneck> {
    if saturated
        .iter()
        .any(|resource| resource.is_of_target(context) && resource.precedes_breach(context))
    {
        return None;
    }
    let inside = context.generator_mean(host!("target.waiting_in"))?;
    let behind = context.generator_mean(host!("target.waiting_out"))?;
    let share = behind / inside.max(f64::MIN_POSITIVE);
    if behind < 1.0 || share < DOMINATES {
        return None;
    }
    let waits = context.generator_host.get(host!("target.waiting_out"));
    let at =
        super::time_series::find_rise(&waits, &context.load, 1.0, context.end).map(|rise| rise.at);
    let mut evidence = vec![Evidence::WaitedForUpstream {
        calls_inside: inside,
        upstream_waits: behind,
        share: share.min(1.0),
    }];
    let longest = context.generator_mean(host!("target.waiting_out_max_ms"));
    evidence.extend(longest.map(|ms| Evidence::LongestUpstreamWait { ms }));
    evidence.extend(target_cpu_evidence(context));
    for upstream in
        context.result.watched.upstreams.iter().filter_map(|upstream| upstream.process.as_deref())
    {
        if let Some(cores_used) = context.generator_mean(host!("process.*.cpu").of(upstream)) {
            let busiest = context.generator_mean(host!("process.*.thread_max").of(upstream));
            let (name, busiest_thread) = (upstream.to_owned(), busiest.unwrap_or(0.0));
            evidence.push(Evidence::UpstreamCpu { name, cores_used, busiest_thread });
        }
    }
    let claim = Claim::Upstream(context.result.watched.upstreams.first().cloned());
    Some(Bottleneck { at, claim, evidence, doubts: context.doubts() })
}
