//! Three gateways, one zone of 1,000 calls per second, calls that come 70 : 20 : 10; Redis is
//! killed in the middle and comes back empty.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::redis_server::Redis;
use crate::support::scene::{Scene, Served, body, polled_once};
use crate::support::stalls::Stalls;
use test_support::raw::Client;
use test_support::wait::{pause, wait_until};

/// Calls per second that come to each gateway.
const COME: [u32; 3] = [2_100, 600, 300];
const RATE: f64 = 1_000.0;
/// Longer than a busy machine may stall a client.
const BURST: f64 = 300.0;

/// The zone.
fn limits(url: &str) -> String {
    format!(
        "[redis]\nurl = \"{url}\"\nresponses = false\ngateways = 3\ntimeout = \"50ms\"\n\
         backoff = \"200ms\"\n[zone.all]\nkey = [\"chain\"]\nrate = \"1000r/s\"\nshared = true\n\
         [[limit]]\nzone = \"all\"\nburst = {BURST}\nnodelay = true\n"
    )
}

/// A sample of `/metrics`.
pub(super) fn metric(served: &Served, name: &str) -> f64 {
    let text = served.look("/metrics").text().to_owned();
    let found = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    found.unwrap_or_else(|| panic!("no {name} in {text}"))
}

pub(super) fn away(served: &Served, zone: &str) -> f64 {
    metric(served, &format!("weir_limit_redis_fallback_threads{{zone=\"{zone}\"}}"))
}

/// When calls were let through, and when refused.
#[derive(Debug, Default)]
struct Seen {
    passed: Vec<Instant>,
    refused: Vec<Instant>,
}

/// Sends calls at a rate until it is stopped.
fn load(address: &str, rate: u32, stop: &AtomicBool) -> Seen {
    let mut client = Client::connect(address);
    let call = body("eth_blockNumber", "[]");
    let pause = Duration::from_secs(1) / rate;
    let began = Instant::now();
    let mut seen = Seen::default();
    for turn in 0u32.. {
        if stop.load(Ordering::Acquire) {
            break;
        }
        while let Some(left) = (began + pause * turn).checked_duration_since(Instant::now()) {
            std::thread::park_timeout(left); // Sleeps: the planned rate.
        }
        match client.call("/", &call).status {
            200 => seen.passed.push(Instant::now()),
            429 => seen.refused.push(Instant::now()),
            other => panic!("status {other}"),
        }
    }
    seen
}

/// Calls per second that one limit lets through at the least, of those that came between two
/// instants: as many as when its burst is used up at the first. So many bring a slow machine's
/// clients, too.
fn least(seen: &Seen, from: Instant, to: Instant) -> f64 {
    let mut came: Vec<Instant> = seen.passed.iter().chain(&seen.refused).copied().collect();
    came.retain(|at| (from..to).contains(at));
    came.sort_unstable();
    let (mut excess, mut last, mut passed) = (BURST, from, 0);
    for at in came {
        excess = (excess - (at - last).as_secs_f64() * RATE).max(0.0);
        last = at;
        if excess + 1.0 <= BURST {
            excess += 1.0;
            passed += 1;
        }
    }
    f64::from(passed) / (to - from).as_secs_f64()
}

/// Calls per second that were let through between two instants.
fn rate(passed: &[Instant], from: Instant, to: Instant) -> f64 {
    let count = passed.iter().filter(|at| (from..to).contains(*at)).count();
    count as f64 / (to - from).as_secs_f64()
}

/// Longest tolerated stall of a client. After a longer one, responses arrive in bursts that look
/// like an exceeded rate: 5 % of the rate arrive in this time.
const STALL: Duration = Duration::from_millis(20);
/// How often it is tried where such a stall was seen.
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
        wait_until("redis is used", || away(served, "all") == 0.0);
    }
    let stop = AtomicBool::new(false);
    // Sleeps: the load continues.
    let seconds = |seconds: f64| pause(Duration::from_secs_f64(seconds));
    // Calls that gateways judged alone: a Redis that answers too late is as good as a dead one.
    let alone = || -> f64 {
        let of = |served| metric(served, "weir_limit_shared_calls_total{by=\"share\"}");
        gateways.iter().map(of).sum()
    };
    let (mut marks, mut shares) = (Vec::new(), Vec::new());
    let mut seen = Seen::default();
    std::thread::scope(|scope| {
        let loads: Vec<_> = gateways
            .iter()
            .zip(COME)
            .map(|(served, come)| {
                let stop = &stop;
                scope.spawn(move || load(&served.address, come, stop))
            })
            .collect();
        let mut mark = || {
            marks.push(Instant::now());
            shares.push(alone());
        };
        seconds(1.0);
        mark(); // The first burst is over.
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
            let Seen { passed, refused } = load.join().unwrap();
            seen.passed.extend(passed);
            seen.refused.extend(refused);
        }
    });
    let [well, killed, back, used, end] = marks[..] else { panic!("{marks:?}") };
    let rates = [(well, killed), (killed, back), (back, used), (used, end)];
    let [before, dead, returning, after] = rates.map(|(from, to)| rate(&seen.passed, from, to));
    let mut worst: f64 = 0.0;
    let second = Duration::from_secs(1);
    let mut from = killed - second;
    while from + second < end {
        worst = worst.max(rate(&seen.passed, from, from + second));
        from += Duration::from_millis(50);
    }
    println!(
        "admitted per second: {before:.1} with redis, {dead:.1} without, {returning:.1} while it \
         comes back, {after:.1} afterwards; most in any second from the kill on: {worst}"
    );
    // Whatever the machine does, more than a second's rate and the burst is never let through.
    assert!(worst <= RATE * 1.05 + BURST, "{worst} in one second");
    let mut faults = Vec::new();
    let phases = [
        (before, least(&seen, well, killed), shares[1] - shares[0]),
        (after, least(&seen, used, end), shares[4] - shares[3]),
    ];
    for (kept, due, judged_alone) in phases {
        // The smallest gateway does not use up its share.
        let share = if judged_alone > 0.0 { 0.95 } else { 0.99 };
        if kept > RATE * 1.01 || kept < due * share {
            faults.push(format!("{kept} of {due} that were due, {judged_alone} judged alone"));
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
        assert_eq!(away(served, "all"), 0.0);
    }
    faults
}
