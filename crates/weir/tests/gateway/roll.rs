//! Goal: while replicas are replaced, killed, added, removed and reconfigured, no call fails, and
//! their shared limit holds.
//!
//! Method: gateway processes run with the arguments and the `[server]` table of the Helm chart. A
//! real HAProxy is in front of them, and checks `/readyz` as the chart's probe does. A real
//! `redis-server` has the counters of the shared limit. An open-loop load uses keep-alive
//! connections, and a part of it exceeds the shared limit. `WEIR_ROLL_CALLS` sets the calls per
//! second. The default is 2,000.
//!
//! The test uses shorter times than the chart, so that it takes half a minute: probes are ten times
//! as frequent, and the drain delay is 1.5 s instead of 5 s.

mod balancer;
mod clients;
mod replicas;

use std::time::{Duration, Instant};

use crate::support::redis_server::Redis;
use crate::support::stall_detector::StallDetector;
use test_support::wait::pause;

use balancer::Balancer;
use clients::{Outcome, Record, passed_min, run_under_load};
use replicas::Replicas;

/// Maximum number of replicas: five, and the additional pod of a rolling update. Each replica has a
/// fixed slot, which is an address in HAProxy's configuration.
const SLOTS: usize = 6;
/// The slot of the replica that the test kills.
const KILLED: usize = 3;
/// The shared rate in calls per second.
const RATE: f64 = 200.0;
/// The burst of the shared limit, in calls.
const BURST: f64 = 30.0;
/// If the machine stalls for longer, the measured rates are wrong, and a probe may time out.
const STALL: Duration = Duration::from_millis(100);
/// Number of attempts on a machine that stalls.
const TRIES: usize = 3;

#[test]
fn replicas_roll_without_a_failed_call() {
    for _ in 0..TRIES {
        let Some(redis) = Redis::start(&[]) else { return };
        let Some(violations) = run_phases(&redis) else { return };
        let Violations { failures, limit, stalled } = violations;
        assert!(failures.is_empty(), "the machine stalled for {stalled:?}: {failures:#?}");
        if limit.is_empty() {
            return;
        }
        println!("{limit:#?}; the machine stalled for {stalled:?}");
        assert!(stalled >= STALL, "{limit:#?}");
    }
    panic!("the machine stalls too often to judge: {TRIES} times");
}

/// The violations in a run.
struct Violations {
    /// Failed calls.
    failures: Vec<String>,
    /// Phases in which the shared limit let too many or too few calls pass.
    limit: Vec<String>,
    /// Longest stall of the machine.
    stalled: Duration,
}

/// Runs all phases. Returns `None` if HAProxy is missing.
fn run_phases(redis: &Redis) -> Option<Violations> {
    let mut replicas = Replicas::new(redis);
    let balancer = Balancer::start(&replicas.addresses())?;
    for slot in 0..3 {
        replicas.start(slot);
    }
    balancer.wait_for(&[0, 1, 2]);
    let stalls = StallDetector::start();
    let mut phases: Vec<(&str, Instant)> = Vec::new();
    let mut killed = (Instant::now(), Instant::now());
    let rate = std::env::var("WEIR_ROLL_CALLS").map_or(2000, |text| text.parse().unwrap());
    let calls = run_under_load(&balancer.address, rate, || {
        // Sleeps: the load continues.
        let seconds = |seconds: f64| pause(Duration::from_secs_f64(seconds));
        let mut begin = |phase| phases.push((phase, Instant::now()));
        // Gateways use an empty Redis for decisions only after the time in which all gateways must
        // have noticed it.
        replicas.wait_until_redis_decides();
        replicas.wait_for_count(3);
        seconds(1.0); // The load uses up the burst.
        begin("three replicas");
        seconds(3.0);
        begin("a rolling restart");
        for (old, new) in [(0, 3), (1, 4), (2, 5)] {
            replicas.start(new);
            replicas.stop(&[old]);
        }
        replicas.wait_for_count(3);
        begin("a killed replica");
        killed.0 = Instant::now();
        replicas.kill(KILLED);
        killed.1 = Instant::now();
        seconds(1.0);
        // The kubelet starts the container again in its pod.
        replicas.start(KILLED);
        replicas.wait_for_count(3);
        begin("five replicas");
        replicas.start(0);
        replicas.start(1);
        replicas.wait_for_count(5);
        seconds(2.0);
        begin("another configuration");
        replicas.reconfigure();
        seconds(2.0);
        begin("two replicas");
        replicas.stop(&[0, 3, 5]);
        replicas.wait_for_count(2);
        seconds(3.0);
        begin("the end");
    });
    let stalled = stalls.longest_stall();
    replicas.assert_sound();
    // A call that was in flight during the kill may fail.
    let at_risk = |call: &&Record| call.started < killed.1 && call.ended > killed.0;
    let in_flight = calls.iter().filter(at_risk).count();
    let failed = |call: &&Record| matches!(call.outcome, Outcome::Failed(_));
    let (lost, failed): (Vec<&Record>, Vec<&Record>) =
        calls.iter().filter(failed).partition(at_risk);
    println!(
        "{} calls, {} failed; {} of {in_flight} in flight at the kill were lost; {} judged by \
         shares; the machine stalled for {stalled:?}",
        calls.len(),
        failed.len(),
        lost.len(),
        replicas.decided_by_shares(),
    );
    assert!(calls.len() > 20 * rate as usize, "{} calls", calls.len());
    // HAProxy divides calls equally, so the killed replica has about a third of them. Until its
    // process has ended, the kernel accepts connections for it. So a client may lose two calls.
    assert!(lost.len() <= in_flight / 2 + 2, "{lost:#?}");
    let mut errors = balancer.response_errors();
    errors[KILLED] = 0;
    assert_eq!(errors, [0; SLOTS], "response errors of replicas that were not killed");
    let failures = failed.iter().map(|call| {
        let phase = phases.iter().rfind(|(_, began)| *began <= call.started);
        let (phase, began) = phase.unwrap_or(&phases[0]);
        format!("{:?} after the start of {phase}: {:?}", call.started - *began, call.outcome)
    });
    Some(Violations {
        failures: failures.collect(),
        limit: check_limit(&calls, &phases, stalled),
        stalled,
    })
}

/// Returns the phases in which the shared limit let too many or too few calls pass.
fn check_limit(calls: &[Record], phases: &[(&str, Instant)], stalled: Duration) -> Vec<String> {
    let (first, last) = (phases[0].1, phases[phases.len() - 1].1);
    let phases = phases.windows(2).map(|pair| (pair[0].0, pair[0].1, pair[1].1));
    let mut violations = Vec::new();
    for (phase, from, to) in phases.chain([("the whole run", first, last)]) {
        let time = to - from;
        let passed = calls
            .iter()
            .filter(|call| call.outcome == Outcome::Passed && (from..to).contains(&call.ended));
        let passed = passed.count() as f64;
        // A stall may delay calls of the phase before into this one. One call at each end may count
        // in either phase.
        let delayed = stalled.as_secs_f64() * RATE + 2.0;
        let (least, most) = (passed_min(calls, from, to), time.as_secs_f64() * RATE);
        println!("{phase}: {passed} passed in {time:?}, due {least} to {most:.0}");
        if passed > most * 1.01 + delayed || passed < least * 0.99 - delayed {
            violations.push(format!("{phase}: {passed} passed, due {least} to {most:.0}"));
        }
    }
    violations
}
