//! Goal: while upstreams have capacity left, no call is shed and calls take hardly longer than at the
//! upstreams, whatever the latency does. Without capacity left, the goodput is close to the
//! capacity. Method: a grid of latencies and loads in virtual time.
//!
//! Two kinds of scenes are left out. A latency that rises by hundreds of milliseconds within a
//! second, but not at once, looks like saturation, so calls wait for a second or more, and some are
//! shed. Upstreams with few slots that respond to fewer than 100 calls per second need more than a
//! minute to be measured.

use super::*;

/// Calls per second in the scenes with capacity left.
const RATE: f64 = 500.0;

/// With capacity left, the 99th percentile of the time to a response is at most this multiple of
/// the latency at the upstreams.
const P99_RATIO_MAX: f64 = 1.3;

/// Without capacity left, the goodput is at least this share of the capacity. The score of the
/// search gives up a few per cent of the throughput for a lower limit.
const GOODPUT_MIN: f64 = 0.9;

/// Factors on a latency of 1 ms.
const FACTORS: [f64; 8] = [2.0, 5.0, 10.0, 50.0, 100.0, 250.0, 500.0, 1_000.0];

/// Collects the scenes that miss a bar, so that a failure shows all of them.
#[derive(Default)]
struct Misses {
    scenes: usize,
    missed: Vec<String>,
}

impl Misses {
    fn check(&mut self, holds: bool, scene: impl FnOnce() -> String) {
        self.scenes += 1;
        if !holds {
            self.missed.push(scene());
        }
    }
}

impl Drop for Misses {
    fn drop(&mut self) {
        let (missed, scenes) = (self.missed.len(), self.scenes);
        assert!(missed == 0, "{missed} of {scenes} scenes:\n{}", self.missed.join("\n"));
    }
}

/// Returns upstreams with capacity for every call, which takes 1 ms.
fn with_room(kind: Kind, seed: u64) -> Sim {
    let mut sim = Sim::new((4, 1_536), &[(2_000, 1.0); 3], &[kind]).seeded(seed);
    // The longest wait is two seconds.
    sim.queue_max = RATE as usize * 2;
    sim
}

/// Returns calls with fixed and with random service times of a mean of 1 ms, and the highest factor
/// on it. At the start with random times of a second, the limit needs some seconds, because the
/// quick ones of them respond at once.
fn kinds_of_calls() -> [(&'static str, Kind, f64); 2] {
    [("fixed", fixed(1.0, 0.001), 1_000.0), ("random", random(1.0, 0.001), 500.0)]
}

fn set_slowness(sim: &mut Sim, slowness: f64) {
    sim.upstreams.iter_mut().for_each(|upstream| upstream.slowness = slowness);
}

/// Returns true if no call was shed and calls hardly waited.
fn is_undisturbed(measured: &Measured) -> bool {
    measured.shed == 0 && measured.p99_with_wait <= measured.p99 * P99_RATIO_MAX + 0.001
}

#[test]
fn steps_of_latency_with_room_neither_shed_nor_delay_calls() {
    let mut misses = Misses::default();
    for (name, kind, times_max) in kinds_of_calls() {
        for times in FACTORS.into_iter().filter(|times| *times <= times_max) {
            for seed in SEEDS {
                let mut sim = with_room(kind, seed);
                // The later steps meet a limiter that has measured the earlier ones.
                for step in 1..=3 {
                    let scene = || format!("{name}, {times} times, seed {seed}, step {step}");
                    set_slowness(&mut sim, 1.0);
                    let quick = sim.run(RATE, 4.0);
                    misses.check(quick.shed == 0, || format!("{}, quick: {quick:?}", scene()));
                    set_slowness(&mut sim, times);
                    let first = sim.run(RATE, 1.0);
                    misses.check(first.shed == 0, || format!("{}, first: {first:?}", scene()));
                    let later = sim.run(RATE, 10.0);
                    misses.check(is_undisturbed(&later), || format!("{}: {later:?}", scene()));
                }
            }
        }
    }
}

#[test]
fn upstreams_that_become_slow_one_after_the_other_shed_no_call() {
    let mut misses = Misses::default();
    for (name, kind, times_max) in kinds_of_calls() {
        for times in FACTORS.into_iter().filter(|times| *times <= times_max) {
            for gap in [0.02, 0.1] {
                for seed in SEEDS {
                    let mut sim = with_room(kind, seed);
                    let mut shed = sim.run(RATE, 2.0).shed;
                    for upstream in 0..sim.upstreams.len() {
                        sim.upstreams[upstream].slowness = times;
                        shed += sim.run(RATE, gap).shed;
                    }
                    shed += sim.run(RATE, 10.0).shed;
                    misses.check(shed == 0, || {
                        format!("{name}, {times} times, {gap} s apart, seed {seed}: {shed}")
                    });
                }
            }
        }
    }
}

#[test]
fn a_fresh_start_with_slow_upstreams_neither_sheds_nor_delays_calls() {
    let mut misses = Misses::default();
    for (name, kind, times_max) in kinds_of_calls() {
        for times in FACTORS.into_iter().filter(|times| *times <= times_max) {
            for seed in SEEDS {
                let mut sim = with_room(kind, seed);
                set_slowness(&mut sim, times);
                let first = sim.run(RATE, 1.0);
                misses.check(first.shed == 0, || format!("first second: {first:?}"));
                let measured = sim.run(RATE, 10.0);
                misses.check(is_undisturbed(&measured), || {
                    format!("{name}, {times} times, seed {seed}: {measured:?}")
                });
            }
        }
    }
}

/// Runs for this many seconds. The slowness of all upstreams follows `slowness`, a function of the
/// seconds since the start of the run. Returns the number of shed calls and the share of calls that
/// waited for longer than 0.3 times the highest latency.
fn follow(sim: &mut Sim, seconds: f64, slowness: &Course) -> (usize, f64) {
    sim.waits.clear();
    let (mut shed, mut highest) = (0, 0.0_f64);
    for tick in 0..(seconds * 50.0) as u32 {
        let slowness = slowness(f64::from(tick) / 50.0);
        set_slowness(sim, slowness);
        highest = highest.max(slowness / 1_000.0);
        shed += sim.run(RATE, 0.02).shed;
        if tick == 50 {
            // The bar for waits applies after the first second.
            sim.waits.clear();
        }
    }
    let wait_max = (P99_RATIO_MAX - 1.0) * highest + 0.001;
    (shed, share_above(&sim.waits, wait_max))
}

/// Returns the share of waits above `wait_max`.
fn share_above(waits: &[f64], wait_max: f64) -> f64 {
    waits.iter().filter(|wait| **wait > wait_max).count() as f64 / waits.len() as f64
}

/// A function from the seconds since the start to a factor on the latency.
type Course = Box<dyn Fn(f64) -> f64>;

/// Runs each course with fixed and random service times. Asserts that no call is shed, and that at
/// most this share of the calls waits long after the first second.
#[track_caller]
fn assert_courses(courses: Vec<(String, f64, Course)>, long_max: f64) {
    let mut misses = Misses::default();
    for (course_name, seconds, course) in courses {
        for (name, kind, _) in kinds_of_calls() {
            for seed in SEEDS {
                let mut sim = with_room(kind, seed);
                let (shed, long) = follow(&mut sim, seconds, &course);
                misses.check(shed == 0 && long <= long_max, || {
                    format!("{course_name}, {name}, seed {seed}: {shed} {long}")
                });
            }
        }
    }
}

/// Returns a steady rise by this factor within this many seconds, and five seconds after it.
fn ramp(times: f64, seconds: f64) -> (String, f64, Course) {
    let course = move |at: f64| 1.0 + (times - 1.0) * (at / seconds).min(1.0);
    (format!("{times} times in {seconds} s"), seconds + 5.0, Box::new(course))
}

/// Returns 30 seconds of a sine wave with this highest factor and this period in seconds.
fn wave(times: f64, period: f64) -> (String, f64, Course) {
    let course = move |at: f64| {
        let phase = at / period * std::f64::consts::TAU;
        1.0 + (times - 1.0) * (0.5 - 0.5 * phase.cos())
    };
    (format!("{times} times every {period} s"), 30.0, Box::new(course))
}

/// Returns all pairs of the factors and the seconds.
fn grid(factors: &[f64], seconds: &[f64]) -> Vec<(f64, f64)> {
    factors.iter().flat_map(|times| seconds.iter().map(|seconds| (*times, *seconds))).collect()
}

#[test]
fn ramps_of_latency_with_room_neither_shed_nor_delay_calls() {
    let factors = &FACTORS[..6];
    let ramps = grid(factors, &[2.0, 10.0, 30.0]);
    assert_courses(ramps.into_iter().map(|(times, seconds)| ramp(times, seconds)).collect(), 0.01);
    let quick = grid(&FACTORS[..5], &[0.5]);
    assert_courses(quick.into_iter().map(|(times, seconds)| ramp(times, seconds)).collect(), 0.01);
}

#[test]
fn long_ramps_of_latency_with_room_delay_few_calls() {
    // Each proof phase delays the calls of about two latencies.
    let ramps = grid(&FACTORS[6..], &[10.0, 30.0]);
    assert_courses(ramps.into_iter().map(|(times, seconds)| ramp(times, seconds)).collect(), 0.1);
}

#[test]
fn waves_of_latency_with_room_neither_shed_nor_delay_calls() {
    let waves = grid(&FACTORS[..5], &[0.5, 2.0, 10.0, 30.0]);
    assert_courses(waves.into_iter().map(|(times, period)| wave(times, period)).collect(), 0.01);
    let slower = grid(&FACTORS[..6], &[0.5, 10.0, 30.0]);
    assert_courses(slower.into_iter().map(|(times, period)| wave(times, period)).collect(), 0.01);
}

#[test]
fn high_waves_of_latency_with_room_delay_few_calls() {
    let waves = grid(&[500.0], &[0.5, 10.0, 30.0]);
    assert_courses(waves.into_iter().map(|(times, period)| wave(times, period)).collect(), 0.05);
}

#[test]
fn a_method_that_becomes_slow_among_quick_ones_sheds_none_and_delays_few() {
    let mut misses = Misses::default();
    for share in [0.01, 0.05, 0.2] {
        for seconds in [0.1, 0.5, 2.0, 5.0] {
            for seed in SEEDS {
                let mut sim = with_room(fixed(1.0 - share, 0.003), seed);
                sim.kinds.push(fixed(share, 0.003));
                let quick = sim.run(RATE, 4.0);
                misses.check(quick.shed == 0, || format!("quick: {quick:?}"));
                sim.kinds[1].seconds = seconds;
                let first = sim.run(RATE, 1.0);
                sim.waits.clear();
                let later = sim.run(RATE, 20.0);
                let long = share_above(&sim.waits, 0.001);
                let shed = first.shed + later.shed;
                // The limit grows step by step, and calls wait at each step.
                misses.check(shed == 0 && is_undisturbed(&later) && long <= 0.1, || {
                    format!("{share} of {seconds} s, seed {seed}: {long}, {first:?} {later:?}")
                });
            }
        }
    }
}

#[test]
fn saturated_upstreams_are_used_fully_and_respond_in_time() {
    let mut misses = Misses::default();
    for slots in [2, 4, 8, 16, 32, 64] {
        for kind in [fixed(1.0, 0.010), random(1.0, 0.010)] {
            for load in [1.5, 3.0, 10.0] {
                // Without and with a collapse: each waiting call makes all others slower.
                for thrashing in [0.0, 0.02] {
                    let mut sim = Sim::new((1, 1_536), &[(slots, 1.0)], &[kind]);
                    sim.upstreams[0].thrashing = thrashing;
                    let capacity = sim.capacity();
                    sim.queue_max = (capacity * load) as usize * 2;
                    sim.run(capacity * 0.5, 5.0);
                    sim.run(capacity * load, 20.0);
                    let measured = sim.run(capacity * load, 30.0);
                    misses.check(measured.in_time >= capacity * GOODPUT_MIN, || {
                        let seconds = kind.seconds;
                        let scene = format!("{slots} slots of {seconds} s, load {load}");
                        format!("{scene}, thrashing {thrashing}, of {capacity}: {measured:?}")
                    });
                }
            }
        }
    }
}
