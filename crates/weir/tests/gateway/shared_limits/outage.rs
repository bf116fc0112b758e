//! Three gateways share a zone of 1,000 calls per second and get 70, 20 and 10 % of the calls.
//! Redis is killed in the middle and restarts empty.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::redis_server::Redis;
use crate::support::scene::{Scene, Served, body, polled_once};
use crate::support::stalls::Stalls;
use test_support::raw::Client;
use test_support::wait::{pause, wait_until};

/// Offered load of each gateway, in calls per second.
const OFFERED: [u32; 3] = [2_100, 600, 300];
/// Rate of the zone, in calls per second.
const RATE: f64 = 1_000.0;
/// Burst of the zone, in calls: large enough for stalls of a busy machine.
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
pub(super) fn metric(served: &Served, name: &str) -> f64 {
    let text = served.look("/metrics").text().to_owned();
    let found = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    found.unwrap_or_else(|| panic!("no {name} in {text}"))
}

/// Returns the number of a gateway's threads that limit the zone without Redis.
pub(super) fn fallback_threads(served: &Served, zone: &str) -> f64 {
    metric(served, &format!("weir_limit_redis_fallback_threads{{zone=\"{zone}\"}}"))
}

/// When calls passed, and when they were rejected.
#[derive(Debug, Default)]
struct Arrivals {
    passed: Vec<Instant>,
    refused: Vec<Instant>,
}

/// Sends calls at a rate until it is stopped.
fn load(address: &str, rate: u32, stop: &AtomicBool) -> Arrivals {
    let mut client = Client::connect(address);
    let call = body("eth_blockNumber", "[]");
    let pause = Duration::from_secs(1) / rate;
    let began = Instant::now();
    let mut arrivals = Arrivals::default();
    for turn in 0u32.. {
        if stop.load(Ordering::Acquire) {
            break;
        }
        while let Some(left) = (began + pause * turn).checked_duration_since(Instant::now()) {
            std::thread::park_timeout(left); // Sleeps: the planned rate.
        }
        match client.call("/", &call).status {
            200 => arrivals.passed.push(Instant::now()),
            429 => arrivals.refused.push(Instant::now()),
            other => panic!("status {other}"),
        }
    }
    arrivals
}

/// Returns the least number of calls per second that a limit lets pass between two instants. It
/// replays the recorded calls with a burst that is used up at first.
fn passed_per_second_min(arrivals: &Arrivals, from: Instant, to: Instant) -> f64 {
    let mut arrival_times: Vec<Instant> =
        arrivals.passed.iter().chain(&arrivals.refused).copied().collect();
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

/// Longest tolerated stall of a client. After a longer one, responses arrive in bursts that look
/// like an exceeded rate: 5 % of the rate arrive in this time.
const STALL: Duration = Duration::from_millis(20);
/// Maximum number of attempts if the machine stalls.
const TRIES: usize = 3;

#[test]
fn three_gateways_keep_one_rate_and_never_more_while_redis_is_dead() {
    for _ in 0..TRIES {
        let Some(redis) = Redis::start(&[]) else { return };
        let stalls = Stalls::watch();
        let faults = outage(redis);
        let stalled = stalls.worst();
        if faults.is_empty() {
            return;
        }
        println!("{faults:?}; the machine stalled for {stalled:?} at the worst");
        assert!(stalled >= STALL, "{faults:?}");
    }
    panic!("the machine stalls too often to judge: {TRIES} times");
}

/// Kills and restarts a Redis under load; returns the violations.
fn outage(mut redis: Redis) -> Vec<String> {
    let scene = Scene::set();
    let [node] = scene.nodes(["node"]);
    let text = polled_once(&limits(&redis.url()));
    let gateways = [(); 3].map(|()| Served::before(&[&node], &text));
    for served in &gateways {
        wait_until("redis is used", || fallback_threads(served, "all") == 0.0);
    }
    let stop = AtomicBool::new(false);
    // Sleeps: the load continues.
    let seconds = |seconds: f64| pause(Duration::from_secs_f64(seconds));
    // Number of calls that gateways decided without Redis, also because it responded too late.
    let calls_by_share = || -> f64 {
        let calls_of = |served| metric(served, "weir_limit_shared_calls_total{by=\"share\"}");
        gateways.iter().map(calls_of).sum()
    };
    let (mut marks, mut shares) = (Vec::new(), Vec::new());
    let mut arrivals = Arrivals::default();
    std::thread::scope(|scope| {
        let loads: Vec<_> = gateways
            .iter()
            .zip(OFFERED)
            .map(|(served, rate)| {
                let stop = &stop;
                scope.spawn(move || load(&served.address, rate, stop))
            })
            .collect();
        let mut mark = || {
            marks.push(Instant::now());
            shares.push(calls_by_share());
        };
        seconds(1.0);
        mark(); // The first burst is used up.
        seconds(5.0);
        mark();
        redis.kill();
        seconds(4.0);
        mark();
        redis.start_again();
        seconds(4.0);
        mark();
        seconds(5.0);
        mark();
        stop.store(true, Ordering::Release);
        for load in loads {
            let Arrivals { passed, refused } = load.join().unwrap();
            arrivals.passed.extend(passed);
            arrivals.refused.extend(refused);
        }
    });
    let [started, killed, restarted, recovered, end] = marks[..] else { panic!("{marks:?}") };
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
    let mut faults = Vec::new();
    let phases = [
        (before, passed_per_second_min(&arrivals, started, killed), shares[1] - shares[0]),
        (after, passed_per_second_min(&arrivals, recovered, end), shares[4] - shares[3]),
    ];
    for (actual, least, decided_alone) in phases {
        // The gateway with the least load does not use up its share.
        let share = if decided_alone > 0.0 { 0.95 } else { 0.99 };
        if actual > RATE * 1.01 || actual < least * share {
            faults.push(format!(
                "{actual} per second, at least {least} due, {decided_alone} decided without Redis"
            ));
        }
    }
    if worst > RATE * 1.05 {
        faults.push(format!("{worst} in one second"));
    }
    if dead <= 800.0 {
        faults.push(format!("{dead}: a dead redis must not stop the calls"));
    }
    for served in &gateways {
        assert!(metric(served, "weir_limit_shared_calls_total{by=\"redis\"}") > 0.0);
        assert!(metric(served, "weir_limit_shared_calls_total{by=\"share\"}") > 0.0);
        assert!(metric(served, "weir_limit_shared_breakers_opened_total") >= 1.0);
        assert_eq!(fallback_threads(served, "all"), 0.0);
    }
    faults
}
