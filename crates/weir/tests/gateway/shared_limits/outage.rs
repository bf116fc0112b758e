//! Three gateways share a zone of 1,000 calls per second and get 70, 20 and 10 % of the calls.
//! Redis is killed in the middle and restarts empty.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::harness::{NodeRuntime, TestGateway, body, chain_polled_once};
use crate::support::redis_server::Redis;
use crate::support::stall_detector::StallDetector;
use test_support::raw::Client;
use test_support::wait::{pause, wait_until};

/// Calls per second that the clients send to each gateway.
const OFFERED: [u32; 3] = [2_100, 600, 300];
/// Rate of the zone, in calls per second.
const RATE: f64 = 1_000.0;
/// Burst of the zone, in calls. After a stall of a busy machine, many calls arrive at once.
const BURST: f64 = 300.0;

/// Returns the configuration of Redis and of the zone.
fn limits(url: &str) -> String {
    format!(
        "[redis]\nurl = \"{url}\"\nresponses = false\ngateways = 3\ntimeout = \"50ms\"\n\
         backoff = \"200ms\"\n[zone.all]\nkey = [\"chain\"]\nrate = \"1000r/s\"\nshared = true\n\
         [[limit]]\nzone = \"all\"\nburst = {BURST}\nnodelay = true\n"
    )
}

/// Returns the value of a metric, whose name may include labels.
pub(super) fn metric(gateway: &TestGateway, name: &str) -> f64 {
    let text = gateway.get_admin("/metrics").text().to_owned();
    let found = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    found.unwrap_or_else(|| panic!("no {name} in {text}"))
}

/// Returns the number of a gateway's threads that limit the zone without Redis.
pub(super) fn fallback_threads(gateway: &TestGateway, zone: &str) -> f64 {
    metric(gateway, &format!("weir_limit_redis_fallback_threads{{zone=\"{zone}\"}}"))
}

/// The times of the responses to calls that passed, and to calls that were rejected.
#[derive(Debug, Default)]
struct Arrivals {
    passed: Vec<Instant>,
    rejected: Vec<Instant>,
}

/// Sends calls at a rate, in calls per second, until `stop` is set.
fn send_calls(address: &str, rate: u32, stop: &AtomicBool) -> Arrivals {
    let mut client = Client::connect(address);
    let call = body("eth_blockNumber", "[]");
    let interval = Duration::from_secs(1) / rate;
    let began = Instant::now();
    let mut arrivals = Arrivals::default();
    for index in 0u32.. {
        if stop.load(Ordering::Acquire) {
            break;
        }
        while let Some(left) = (began + interval * index).checked_duration_since(Instant::now()) {
            std::thread::park_timeout(left); // Sleeps: the planned rate.
        }
        match client.call("/", &call).status {
            200 => arrivals.passed.push(Instant::now()),
            429 => arrivals.rejected.push(Instant::now()),
            other => panic!("status {other}"),
        }
    }
    arrivals
}

/// Returns the least number of calls per second that a correct limit lets pass between two
/// instants. This function simulates the limit for the recorded calls, starting with a burst that
/// is used up.
fn passed_per_second_min(arrivals: &Arrivals, from: Instant, to: Instant) -> f64 {
    let mut arrival_times: Vec<Instant> =
        arrivals.passed.iter().chain(&arrivals.rejected).copied().collect();
    arrival_times.retain(|arrival| (from..to).contains(arrival));
    arrival_times.sort_unstable();
    let (mut excess, mut last, mut passed) = (BURST, from, 0);
    for arrival in arrival_times {
        excess = (excess - (arrival - last).as_secs_f64() * RATE).max(0.0);
        last = arrival;
        if excess + 1.0 <= BURST {
            excess += 1.0;
            passed += 1;
        }
    }
    f64::from(passed) / (to - from).as_secs_f64()
}

/// Returns the number of passed calls per second between two instants.
fn passed_per_second(passed: &[Instant], from: Instant, to: Instant) -> f64 {
    let count = passed.iter().filter(|at| (from..to).contains(*at)).count();
    count as f64 / (to - from).as_secs_f64()
}

/// Longest tolerated stall of a client. In this time, clients send more than 5 % of the calls that
/// may pass in a second. After a longer stall, responses arrive in bursts that look like an
/// exceeded rate.
const STALL: Duration = Duration::from_millis(20);
/// Maximum number of attempts if the machine stalls.
const TRIES: usize = 3;

#[test]
fn three_gateways_keep_one_rate_and_never_more_while_redis_is_dead() {
    for _ in 0..TRIES {
        let Some(redis) = Redis::start(&[]) else { return };
        let stalls = StallDetector::start();
        let violations = run_outage(redis);
        let stalled = stalls.longest_stall();
        if violations.is_empty() {
            return;
        }
        println!("{violations:?}; the machine stalled for {stalled:?} at the worst");
        assert!(stalled >= STALL, "{violations:?}");
    }
    panic!("the machine stalls too often to judge: {TRIES} times");
}

/// Kills and restarts a Redis under load. Returns descriptions of the violations.
fn run_outage(mut redis: Redis) -> Vec<String> {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    let text = chain_polled_once(&limits(&redis.url()));
    let gateways = [(); 3].map(|()| TestGateway::in_front_of(&[&node], &text));
    for gateway in &gateways {
        wait_until("redis is used", || fallback_threads(gateway, "all") == 0.0);
    }
    let stop = AtomicBool::new(false);
    // Sleeps: the load continues.
    let wait_seconds = |seconds: f64| pause(Duration::from_secs_f64(seconds));
    // Number of calls that the gateways decided by their shares, because Redis was down or
    // responded too late.
    let calls_by_share = || -> f64 {
        let calls_of = |gateway| metric(gateway, "weir_limit_shared_calls_total{by=\"share\"}");
        gateways.iter().map(calls_of).sum()
    };
    // The start of each phase, and `calls_by_share` at that time.
    let (mut phase_starts, mut by_share_at_start) = (Vec::new(), Vec::new());
    let mut arrivals = Arrivals::default();
    std::thread::scope(|scope| {
        let loads: Vec<_> = gateways
            .iter()
            .zip(OFFERED)
            .map(|(gateway, rate)| {
                let stop = &stop;
                scope.spawn(move || send_calls(&gateway.address, rate, stop))
            })
            .collect();
        let mut start_phase = || {
            phase_starts.push(Instant::now());
            by_share_at_start.push(calls_by_share());
        };
        wait_seconds(1.0);
        start_phase(); // The first burst is used up.
        wait_seconds(5.0);
        start_phase();
        redis.kill();
        wait_seconds(4.0);
        start_phase();
        redis.start_again();
        wait_seconds(4.0);
        start_phase();
        wait_seconds(5.0);
        start_phase();
        stop.store(true, Ordering::Release);
        for load in loads {
            let Arrivals { passed, rejected } = load.join().unwrap();
            arrivals.passed.extend(passed);
            arrivals.rejected.extend(rejected);
        }
    });
    let [started, killed, restarted, recovered, end] = phase_starts[..] else {
        panic!("{phase_starts:?}")
    };
    let rates = [(started, killed), (killed, restarted), (restarted, recovered), (recovered, end)];
    let [before, dead, returning, after] =
        rates.map(|(from, to)| passed_per_second(&arrivals.passed, from, to));
    let mut worst: f64 = 0.0;
    let second = Duration::from_secs(1);
    let mut from = killed - second;
    while from + second < end {
        worst = worst.max(passed_per_second(&arrivals.passed, from, from + second));
        from += Duration::from_millis(50);
    }
    println!(
        "admitted per second: {before:.1} with redis, {dead:.1} without, {returning:.1} while it \
         comes back, {after:.1} afterwards; most in any second from the kill on: {worst}"
    );
    // Even on a slow machine, no second may exceed the rate plus the burst.
    assert!(worst <= RATE * 1.05 + BURST, "{worst} in one second");
    let mut violations = Vec::new();
    let by_share_in = |phase: usize| by_share_at_start[phase + 1] - by_share_at_start[phase];
    let phases_with_redis = [
        (before, passed_per_second_min(&arrivals, started, killed), by_share_in(0)),
        (after, passed_per_second_min(&arrivals, recovered, end), by_share_in(3)),
    ];
    for (actual, least, by_share) in phases_with_redis {
        // Calls that were decided by shares lower the rate, because the gateway with the least
        // load does not use up its share.
        let tolerance = if by_share > 0.0 { 0.95 } else { 0.99 };
        if actual > RATE * 1.01 || actual < least * tolerance {
            violations.push(format!(
                "{actual} per second, at least {least} due, {by_share} decided without Redis"
            ));
        }
    }
    if worst > RATE * 1.05 {
        violations.push(format!("{worst} in one second"));
    }
    if dead <= 800.0 {
        violations.push(format!("{dead}: a dead redis must not stop the calls"));
    }
    for gateway in &gateways {
        assert!(metric(gateway, "weir_limit_shared_calls_total{by=\"redis\"}") > 0.0);
        assert!(metric(gateway, "weir_limit_shared_calls_total{by=\"share\"}") > 0.0);
        assert!(metric(gateway, "weir_limit_shared_breakers_opened_total") >= 1.0);
        assert_eq!(fallback_threads(gateway, "all"), 0.0);
    }
    violations
}
