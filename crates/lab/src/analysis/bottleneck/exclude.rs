//! The causes that make what a host shows beside the point, in the order in which they are asked.

use lab_model::metrics::host::host;
use lab_model::record::Class;
use lab_model::results::Cause;
use lab_model::results::run::Second;

use super::Sight;
use super::found::{Bottleneck, Claim, Doubt, Evidence};
use super::resource::{Saturated, waits_for_cores};

/// Busy share of the engine threads from which they are the limit.
const BUSY_MIN: f64 = 0.9;
/// Share of the time in which the busiest thread of the generator was ready but had no core.
const STARVED_MIN: f64 = 0.5;
/// A cause dominates if it makes up this share of time, calls or failures.
const DOMINATES: f64 = 0.5;
/// The longest call may take so many times what sends were late by (p99), to be explained by it.
const LATENESS_TIMES: f64 = 20.0;
/// Share of calls below which an outcome breaks nothing.
const NOTABLE: f64 = 0.01;
/// Share of answers 429 from which a limit is seen to answer.
const LIMITED_MIN: f64 = 0.05;
/// The code of "limit exceeded" in EIP-1474, which providers answer with HTTP status 200.
const LIMIT_EXCEEDED: i64 = -32_005;

/// The generator: it had no time, no core or no port, or its own lateness is what was measured.
pub(super) fn generator(sight: &Sight<'_>) -> Option<Bottleneck> {
    let mut evidence = Vec::new();
    let busy = sight.second_around(|second| second.generator_busy).unwrap_or(0.0);
    if busy >= BUSY_MIN {
        evidence.push(Evidence::EngineBusy(busy));
    }
    let delay =
        sight.own_around(host!("process.*.thread_max_delay").of("generator")).unwrap_or(0.0);
    let all = sight.own_around(host!("process.*.run_delay").of("generator")).unwrap_or(0.0);
    if delay.max(all) >= STARVED_MIN && !sight.in_process {
        evidence.push(Evidence::EngineStarved(delay.max(all)));
    }
    let (worst, least) = sight.latency();
    let late = sight.second_around(|second| second.lateness_p99_ms).unwrap_or(0.0);
    // Neither a limit nor a fault comes of lateness, nor a call that took very much longer.
    let (odd, all) = calls(sight, |class| class.failed() || class == Class::Limited);
    let timely = odd < NOTABLE * all && sight.longest() <= LATENESS_TIMES * late;
    if lateness(sight).is_some() && timely && late >= DOMINATES * (worst - least) {
        evidence.push(Evidence::LateSends { late_ms: late, rise_ms: worst - least });
    }
    let ports = sight.input.wire.traffic.ports_exhausted;
    if ports > 0 {
        evidence.push(Evidence::NoPorts(ports));
    }
    if evidence.is_empty() {
        return None;
    }
    if let Some(used) = sight.target_around(host!("process.*.cpu")).filter(|used| *used > 0.2) {
        evidence.push(Evidence::SharedCores { used, cores: sight.cores });
    }
    let (at, claim) = (Some(sight.broken_at), Claim::Generator);
    Some(Bottleneck::new(Cause::Generator, at, claim, evidence, Vec::new()))
}

/// Milliseconds by which sends were late around the break (p99), if the plan allows less.
pub(super) fn lateness(sight: &Sight<'_>) -> Option<f64> {
    let late = sight.second_around(|second| second.lateness_p99_ms)?;
    let median = |second: &Second| second.methods.iter().map(|m| m.p50_ms).fold(0.0, f64::max);
    let usual = sight.second_around(median).unwrap_or(0.0);
    let limit = sight.input.validity.lateness_p99_max.as_secs_f64() * 1_000.0;
    let broken = late > limit && late > sight.input.validity.lateness_share_max * usual;
    broken.then_some(late)
}

/// Calls of some classes around the break, and all calls.
fn calls(sight: &Sight<'_>, wanted: impl Fn(Class) -> bool) -> (f64, f64) {
    let (mut found, mut all) = (0.0, 0.0);
    for second in sight.around() {
        for (class, count) in second.methods.iter().flat_map(|method| &method.classes) {
            let count = *count as f64;
            all += count;
            found += if wanted(*class) { count } else { 0.0 };
        }
    }
    (found, all)
}

/// The first second in which calls of some classes were notable.
fn since(sight: &Sight<'_>, wanted: impl Fn(Class) -> bool, share: f64) -> Option<f64> {
    let first = sight.input.series.iter().find(|second| {
        let classes = || second.methods.iter().flat_map(|method| &method.classes);
        let all: u64 = classes().map(|(_, count)| count).sum();
        let found = classes().filter(|(class, _)| wanted(*class)).map(|(_, count)| count);
        all > 0 && found.sum::<u64>() as f64 >= share * all as f64
    });
    first.map(|second| second.at)
}

/// Making connections: the time it takes, calls that fail because of it, or connections that the
/// target leaves unaccepted while it has time.
pub(super) fn connection(sight: &Sight<'_>, saturated: &[Saturated]) -> Option<Bottleneck> {
    if let Some(finding) = connecting(sight) {
        return Some(finding);
    }
    // A target without CPU accepts nothing either: then that is the cause.
    if saturated.iter().any(|resource| resource.before(sight)) {
        return None;
    }
    unaccepted(sight).or_else(|| refused(sight))
}

/// Connects and handshakes take most of the time of all calls.
fn connecting(sight: &Sight<'_>) -> Option<Bottleneck> {
    let wire = sight.input.wire;
    let total = |times: &lab_model::results::Quantiles| times.mean_ms * times.count as f64;
    let handshakes = total(&wire.handshake_full) + total(&wire.handshake_resumed);
    let all = total(&sight.input.overall.latency);
    let share = (total(&wire.connect) + handshakes) / all.max(f64::MIN_POSITIVE);
    if all <= 0.0 || share < DOMINATES {
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
    let (at, claim) = (Some(sight.broken_at), Claim::Connecting(share.min(1.0)));
    Some(Bottleneck::new(Cause::Connection, at, claim, evidence, sight.doubts()))
}

/// Share of its places from which an accept queue is nearly full.
const QUEUE_FULL: f64 = 0.9;

/// Connections wait to be accepted: the queue is nearly full or overflows, or a target that has time
/// leaves most connections in it.
fn unaccepted(sight: &Sight<'_>) -> Option<Bottleneck> {
    let queue = sight.own.get(host!("target.accept_queue"));
    let waiting = sight.own_around(host!("target.accept_queue"))?;
    let connected = sight.own_around(host!("target.connections_in")).unwrap_or(0.0).max(waiting);
    let most = sight.own_around(host!("target.accept_queue_max"));
    let lost = sight.own_around(host!("listen_overflows")).filter(|lost| *lost > 0.0);
    let full = lost.is_some() || most.is_some_and(|most| waiting >= QUEUE_FULL * most);
    let left = waiting >= DOMINATES * connected && !waits_for_cores(sight);
    if waiting < 1.0 || !(full || left) {
        return None;
    }
    let began = queue.0.iter().find(|(at, value)| *at >= 0.0 && *value >= 1.0).map(|(at, _)| *at);
    let mut evidence = vec![Evidence::Unaccepted { waiting, connected }];
    evidence.extend(most.map(Evidence::QueueLength));
    evidence.extend(lost.map(Evidence::QueueOverflows));
    evidence.extend(idle(sight));
    let mut doubts = sight.doubts();
    if !full {
        doubts.push(Doubt::QueueNotFull);
    }
    Some(Bottleneck::new(Cause::Connection, began, Claim::Unaccepted, evidence, doubts))
}

/// What the target's processes used, which was little.
fn idle(sight: &Sight<'_>) -> Option<Evidence> {
    let used = sight.target_around(host!("process.*.cpu"))?;
    let cores = sight.input.watched.target_cores.unwrap_or(sight.cores);
    Some(Evidence::Idle { used, cores })
}

/// Calls fail because connections cannot be made or are closed.
fn refused(sight: &Sight<'_>) -> Option<Bottleneck> {
    let cannot = |class| matches!(class, Class::Connect | Class::Tls);
    let closed = |class| matches!(class, Class::Connect | Class::Tls | Class::Reset);
    let (failed, all) = calls(sight, Class::failed);
    let (refused, _) = calls(sight, closed);
    if all <= 0.0 || refused / all < NOTABLE || refused < DOMINATES * failed {
        return None;
    }
    let ended = |process: &&lab_model::results::run::ProcessFacts| {
        process.restarted && sight.targets.contains(&process.name.as_str())
    };
    if sight.input.watched.processes.iter().any(|process| ended(&process)) {
        // It may as well have been killed: closed connections then say nothing of a limit.
        return None;
    }
    let (connect, _) = calls(sight, cannot);
    let mut doubts = sight.doubts();
    if connect < DOMINATES * refused {
        doubts.push(Doubt::ClosedLater);
    }
    if sight.targets.is_empty() {
        doubts.push(Doubt::ProcessesUnseen);
    }
    let traffic = &sight.input.wire.traffic;
    let evidence = vec![
        Evidence::NotConnected { refused: refused / all, otherwise: (failed - refused) / all },
        Evidence::Connections {
            made: traffic.connections,
            failed: traffic.connections_failed,
            closed: traffic.closed_by_server,
        },
    ];
    let began = since(sight, closed, NOTABLE);
    Some(Bottleneck::new(Cause::Connection, began, Claim::Refused, evidence, doubts))
}

/// Answers 429, or the JSON-RPC error that means the same, dominate what is not a result.
pub(super) fn rate_limit(sight: &Sight<'_>) -> Option<Bottleneck> {
    let (limited, all) = calls(sight, |class| class == Class::Limited);
    let (failed, _) = calls(sight, Class::failed);
    if all > 0.0 && limited / all >= LIMITED_MIN && limited >= failed {
        let began = since(sight, |class| class == Class::Limited, LIMITED_MIN);
        let mut evidence = vec![
            Evidence::TooManyRequests { limited: limited / all, failed: failed / all },
            Evidence::Admitted(sight.second_around(results).unwrap_or(0.0)),
        ];
        if sight.input.wire.retry_after.count > 0 {
            let wait = sight.input.wire.retry_after.p50_ms / 1_000.0;
            evidence.push(Evidence::RetryAfter(wait));
        }
        let (claim, doubts) = (Claim::TooManyRequests, sight.doubts());
        return Some(Bottleneck::new(Cause::RateLimit, began, claim, evidence, doubts));
    }
    limited_by_code(sight, failed, all)
}

fn results(second: &Second) -> f64 {
    let classes = second.methods.iter().flat_map(|method| &method.classes);
    classes.filter(|(class, _)| *class == Class::Ok).map(|(_, count)| *count as f64).sum()
}

fn limited_by_code(sight: &Sight<'_>, failed: f64, all: f64) -> Option<Bottleneck> {
    let (errors, _) = calls(sight, |class| class == Class::RpcError);
    let codes = &sight.input.overall.codes;
    let every: u64 = codes.iter().map(|(_, count)| count).sum();
    let limits = codes.iter().filter(|(code, _)| *code == LIMIT_EXCEEDED);
    let limits: u64 = limits.map(|(_, count)| count).sum();
    let dominate = limits as f64 >= DOMINATES * every.max(1) as f64;
    if all <= 0.0 || errors / all < LIMITED_MIN || errors < DOMINATES * failed || !dominate {
        return None;
    }
    let code = LIMIT_EXCEEDED;
    let evidence = vec![Evidence::LimitExceeded { errors: errors / all, limits, every, code }];
    let mut doubts = sight.doubts();
    doubts.push(Doubt::CodeAmbiguous);
    let began = since(sight, |class| class == Class::RpcError, LIMITED_MIN);
    Some(Bottleneck::new(Cause::RateLimit, began, Claim::LimitExceeded, evidence, doubts))
}

/// The target waits for a server behind it during most of the time of its calls.
pub(super) fn upstream(sight: &Sight<'_>, saturated: &[Saturated]) -> Option<Bottleneck> {
    if saturated.iter().any(|resource| resource.of_target && resource.before(sight)) {
        return None;
    }
    let inside = sight.own_around(host!("target.waiting_in"))?;
    let behind = sight.own_around(host!("target.waiting_out"))?;
    let share = behind / inside.max(f64::MIN_POSITIVE);
    if behind < 1.0 || share < DOMINATES {
        return None;
    }
    let waits = sight.own.get(host!("target.waiting_out"));
    let began = super::course::rise(&waits, &sight.load, 1.0, sight.end).map(|rise| rise.at);
    let mut evidence = vec![Evidence::Behind { inside, behind, share: share.min(1.0) }];
    let longest = sight.own_around(host!("target.waiting_out_max_ms"));
    evidence.extend(longest.map(|ms| Evidence::LongestWait { ms }));
    evidence.extend(idle(sight));
    for upstream in sight.input.watched.upstreams.iter().filter_map(|one| one.process.as_deref()) {
        if let Some(used) = sight.own_around(host!("process.*.cpu").of(upstream)) {
            let busiest = sight.own_around(host!("process.*.thread_max").of(upstream));
            let (name, busiest) = (upstream.to_owned(), busiest.unwrap_or(0.0));
            evidence.push(Evidence::UpstreamCpu { name, used, busiest });
        }
    }
    let claim = Claim::Upstream(sight.input.watched.upstreams.first().cloned());
    Some(Bottleneck::new(Cause::Upstream, began, claim, evidence, sight.doubts()))
}
