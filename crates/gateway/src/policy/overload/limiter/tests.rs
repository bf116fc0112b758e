//! Goal: the limiter finds the capacity of all kinds of upstreams, recovers after failures, and
//! does nothing while no call waits. Method: simulated upstreams with several kinds of service
//! times, behind the limiter and a short queue, in virtual time. The tests measure the throughput
//! as a share of the capacity, the limit and the latency.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::*;
use crate::policy::overload::queue::STANDING_AFTER;

mod grid;

/// Maximum number of calls that wait for permits. Further calls are shed.
const QUEUE_MAX: usize = 50;

/// Seconds after which clients give up.
const PATIENCE: f64 = 1.0;

/// A function from a mean service time to a service time, both in seconds.
type Service = fn(&mut Random, f64) -> f64;

struct Random(u64);

impl Random {
    /// Returns a number from 0 to 1.
    fn share(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        -self.share().ln() * mean
    }
}

/// Calls of one method.
#[derive(Clone, Copy)]
struct Kind {
    /// Their share of all calls.
    share: f64,
    /// Their mean service time in seconds.
    seconds: f64,
    service: Service,
}

/// Returns calls with a fixed service time.
fn fixed(share: f64, seconds: f64) -> Kind {
    Kind { share, seconds, service: |_, seconds| seconds }
}

/// Returns calls with exponentially distributed service times.
fn random(share: f64, mean: f64) -> Kind {
    Kind { share, seconds: mean, service: |random, mean| random.exponential(mean) }
}

/// An upstream that processes a fixed number of calls at once.
struct Upstream {
    /// Number of calls that the upstream processes at once.
    slots: usize,
    /// Factor on all service times.
    slowness: f64,
    /// Relative growth of service times per call that waits for a slot.
    thrashing: f64,
    /// Number of calls in process.
    busy: usize,
    /// Calls that wait for a slot.
    waiting: VecDeque<Call>,
}

/// A call with its times in seconds.
#[derive(Clone, Copy)]
struct Call {
    /// Index in [`Sim::kinds`].
    kind: usize,
    arrived: f64,
    sent: f64,
    /// [`Limiter::epoch`], the number of changes of the limit, when the call was sent.
    epoch: u32,
}

/// Upstreams behind a limiter and a queue. All times are seconds of virtual time.
struct Sim {
    limiter: Limiter,
    random: Random,
    kinds: Vec<Kind>,
    upstreams: Vec<Upstream>,
    now: f64,
    in_flight: usize,
    /// Arrival times of the waiting calls.
    queue: VecDeque<f64>,
    queue_max: usize,
    /// Calls in process: end in nanoseconds, index of the upstream, and index in `calls`.
    ends: BinaryHeap<Reverse<(u64, usize, u64)>>,
    /// All calls that were ever in process.
    calls: Vec<Call>,
    next_arrival: f64,
    /// True if calls are sent by round robin. False if each call goes to the less busy of two
    /// random upstreams.
    round_robin: bool,
    /// Number of calls sent by round robin.
    turn: usize,
    /// Mean seconds between pauses of the simulated machine. In a pause, nothing happens for about
    /// a tenth of a second; afterwards all delayed events happen at once. `None` for no pauses.
    halts_every: Option<f64>,
    next_halt: f64,
    /// A moving average of latencies, as in `shares.rs`.
    latency_mean: f64,
    /// Seconds that each sent call has waited for a permit.
    waits: Vec<f64>,
}

/// Measurements of an interval.
#[derive(Debug)]
struct Measured {
    /// Responses per second.
    rate: f64,
    /// Mean limit, over all responses.
    limit_mean: f64,
    /// Median latency at upstreams, in seconds.
    p50: f64,
    /// 99th percentile of the latency at upstreams, in seconds.
    p99: f64,
    /// 99th percentile of the time from a call to its response, in seconds.
    p99_with_wait: f64,
    /// Number of shed calls.
    shed: usize,
    /// Goodput: number of responses per second that arrive within [`PATIENCE`] of their call.
    in_time: f64,
}

impl Sim {
    /// `limits` are the lowest and the highest limit. `upstreams` lists the slots and the slowness
    /// of each upstream.
    fn new(limits: (u32, u32), upstreams: &[(usize, f64)], kinds: &[Kind]) -> Sim {
        let settings = LimiterSettings { limit_min: limits.0, limit_max: limits.1 };
        let upstream = |(slots, slowness)| Upstream {
            slots,
            slowness,
            thrashing: 0.0,
            busy: 0,
            waiting: VecDeque::new(),
        };
        Sim {
            limiter: Limiter::new(settings),
            random: Random(0x1234_5678_9abc_def1),
            kinds: kinds.to_vec(),
            upstreams: upstreams.iter().copied().map(upstream).collect(),
            now: 0.0,
            in_flight: 0,
            queue: VecDeque::new(),
            queue_max: QUEUE_MAX,
            ends: BinaryHeap::new(),
            calls: Vec::new(),
            next_arrival: 0.0,
            round_robin: false,
            turn: 0,
            halts_every: None,
            next_halt: 0.0,
            latency_mean: 0.0,
            waits: Vec::new(),
        }
    }

    fn seeded(mut self, seed: u64) -> Sim {
        self.random = Random(0x1234_5678_9abc_def1_u64.wrapping_mul(seed));
        self
    }

    /// Returns the average latency, if it is known.
    fn typical_latency(&self) -> Option<Duration> {
        (self.latency_mean > 0.0).then(|| Duration::from_secs_f64(self.latency_mean))
    }

    /// Returns the capacity of the upstreams, in responses per second.
    fn capacity(&self) -> f64 {
        let mean: f64 = self.kinds.iter().map(|kind| kind.share * kind.seconds).sum();
        self.upstreams
            .iter()
            .map(|upstream| upstream.slots as f64 / (mean * upstream.slowness))
            .sum()
    }

    /// Sends calls at this rate for this many seconds.
    fn run(&mut self, rate: f64, seconds: f64) -> Measured {
        let until = self.now + seconds;
        self.next_arrival = self.now + self.random.exponential(1.0 / rate);
        let (mut latencies, mut shed, mut in_time, mut limits) = (Vec::new(), 0, 0, Vec::new());
        let mut with_wait = Vec::new();
        loop {
            let end = self.ends.peek().map_or(f64::MAX, |end| end.0.0 as f64 / 1e9);
            if end.min(self.next_arrival) > until {
                break;
            }
            if let Some(every) = self.halts_every
                && end.min(self.next_arrival) >= self.next_halt
            {
                self.now = self.now.max(self.next_halt) + 0.1 * (0.5 + self.random.share());
                self.next_halt = self.now + self.random.exponential(every);
            }
            if end <= self.next_arrival {
                let Reverse((nanos, upstream, call)) = self.ends.pop().unwrap();
                self.now = self.now.max(nanos as f64 / 1e9);
                let (latency, since_arrival) = self.end(upstream, call as usize);
                latencies.push(latency);
                with_wait.push(since_arrival);
                in_time += usize::from(since_arrival <= PATIENCE);
                limits.push(f64::from(self.limiter.limit));
            } else {
                self.now = self.now.max(self.next_arrival);
                self.next_arrival += self.random.exponential(1.0 / rate);
                if self.queue.len() < self.queue_max
                    && !(self.limiter.saturated && self.queue.len() > rate as usize / 5)
                {
                    self.queue.push_back(self.now);
                    if self.in_flight >= self.limiter.limit as usize {
                        let typical_latency = self.typical_latency();
                        self.limiter
                            .record_wait(Duration::from_secs_f64(self.now), typical_latency);
                    }
                } else {
                    shed += 1;
                }
            }
            while self.in_flight < self.limiter.limit as usize
                && let Some(arrived) = self.queue.pop_front()
            {
                // `queue.rs` does the same: while upstreams are overloaded, it drops calls that
                // waited too long.
                if self.limiter.saturated && self.now - arrived > STANDING_AFTER.as_secs_f64() {
                    shed += 1;
                } else {
                    self.waits.push(self.now - arrived);
                    self.send(arrived);
                }
            }
        }
        self.now = until;
        latencies.sort_by(f64::total_cmp);
        with_wait.sort_by(f64::total_cmp);
        let quantile = |sorted: &[f64], share: f64| {
            sorted.get((sorted.len() as f64 * share) as usize).copied().unwrap_or(0.0)
        };
        Measured {
            rate: latencies.len() as f64 / seconds,
            limit_mean: limits.iter().sum::<f64>() / limits.len().max(1) as f64,
            p50: quantile(&latencies, 0.5),
            p99: quantile(&latencies, 0.99),
            p99_with_wait: quantile(&with_wait, 0.99),
            shed,
            in_time: in_time as f64 / seconds,
        }
    }

    fn send(&mut self, arrived: f64) {
        let mut share = self.random.share();
        let kind = self.kinds.iter().position(|kind| {
            share -= kind.share;
            share <= 0.0
        });
        let kind = kind.unwrap_or(self.kinds.len() - 1);
        let call = Call { kind, arrived, sent: self.now, epoch: self.limiter.epoch };
        let upstream = if self.round_robin {
            self.turn += 1;
            self.turn % self.upstreams.len()
        } else {
            let mut random_upstream =
                || (self.random.share() * self.upstreams.len() as f64) as usize;
            let (first, mut second) = (random_upstream(), random_upstream());
            if first == second {
                second = (second + 1) % self.upstreams.len();
            }
            let load = |upstream: usize| {
                let upstream = &self.upstreams[upstream];
                (upstream.busy + upstream.waiting.len() + 1) as f64 * upstream.slowness
            };
            if load(first) <= load(second) { first } else { second }
        };
        self.in_flight += 1;
        let chosen = &mut self.upstreams[upstream];
        if chosen.busy < chosen.slots {
            chosen.busy += 1;
            self.begin(upstream, call);
        } else {
            chosen.waiting.push_back(call);
        }
    }

    fn begin(&mut self, upstream: usize, call: Call) {
        let kind = self.kinds[call.kind];
        let Upstream { slowness, thrashing, ref waiting, .. } = self.upstreams[upstream];
        let slowness = slowness * (1.0 + thrashing * waiting.len() as f64);
        let latency = (kind.service)(&mut self.random, kind.seconds) * slowness;
        // A small random delay, because networks and timers are never exact.
        let latency = latency + 0.000_1 + self.random.exponential(0.000_1);
        self.calls.push(call);
        let end = ((self.now + latency) * 1e9) as u64;
        self.ends.push(Reverse((end, upstream, self.calls.len() as u64 - 1)));
    }

    /// Ends a call. Returns its latency at the upstream, and since its arrival.
    fn end(&mut self, upstream: usize, call: usize) -> (f64, f64) {
        let call = self.calls[call];
        let served_by = &mut self.upstreams[upstream];
        // A test may have reduced the number of slots below the number of busy ones.
        let is_slot_free = served_by.busy <= served_by.slots;
        let next = if is_slot_free { served_by.waiting.pop_front() } else { None };
        match next {
            Some(next) => self.begin(upstream, next),
            None => served_by.busy -= 1,
        }
        self.in_flight -= 1;
        let latency = self.now - call.sent;
        self.latency_mean = if self.latency_mean == 0.0 {
            latency
        } else {
            self.latency_mean + (latency - self.latency_mean) / 10.0
        };
        if !self.queue.is_empty() || self.limiter.limited {
            let (epoch, flow, queue) = (call.epoch, Flow::default(), self.queue.len() as u32);
            let sample =
                ResponseSample { epoch, flow, latency: Duration::from_secs_f64(latency), queue };
            self.limiter.record_response(Duration::from_secs_f64(self.now), sample);
        }
        (latency, self.now - call.arrived)
    }
}

/// Lowest and highest limit in most tests.
const WIDE: (u32, u32) = (1, 2_000);

/// Seeds with which a test is repeated.
const SEEDS: std::ops::RangeInclusive<u64> = 1..=8;

/// Runs at a low load, then at three times the capacity. Returns the measurements of the low load,
/// and of the overload after five seconds.
fn overloaded(sim: &mut Sim) -> (Measured, Measured) {
    let capacity = sim.capacity();
    let calm = sim.run(capacity * 0.4, 5.0);
    sim.run(capacity * 3.0, 5.0);
    (calm, sim.run(capacity * 3.0, 30.0))
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Asserts that the throughput is at least this share of the upstreams' capacity.
#[track_caller]
fn assert_throughput(sim: &Sim, measured: &Measured, share: f64) {
    assert!(measured.rate >= sim.capacity() * share, "of {}: {measured:?}", sim.capacity());
}

#[test]
fn one_upstream_with_fixed_times_is_busy_and_not_overloaded() {
    for slots in [1, 4, 16, 100] {
        let mut sim = Sim::new(WIDE, &[(slots, 1.0)], &[fixed(1.0, 0.010)]);
        let (calm, measured) = overloaded(&mut sim);
        assert_eq!(calm.shed, 0);
        assert_throughput(&sim, &measured, 0.93);
        assert!(measured.p50 < 2.1 * calm.p50, "{slots} slots: {measured:?}");
        assert!(measured.limit_mean < 1.5 * slots as f64 + 2.5, "{slots} slots: {measured:?}");
    }
}

#[test]
fn random_service_times_are_not_mistaken_for_a_queue() {
    for slots in [4, 32] {
        let mut limits = Vec::new();
        for seed in SEEDS {
            let mut sim = Sim::new(WIDE, &[(slots, 1.0)], &[random(1.0, 0.010)]).seeded(seed);
            let (_, measured) = overloaded(&mut sim);
            assert_throughput(&sim, &measured, 0.9);
            limits.push(measured.limit_mean);
        }
        assert!(mean(&limits) < 1.5 * slots as f64 + 10.0, "{slots} slots: {limits:?}");
    }
}

#[test]
fn a_mix_of_fast_and_slow_methods_is_not_mistaken_for_a_queue() {
    let kinds = [random(0.6, 0.001), random(0.35, 0.010), random(0.05, 0.300)];
    let mut limits = Vec::new();
    for seed in SEEDS {
        let mut sim = Sim::new(WIDE, &[(16, 1.0)], &kinds).seeded(seed);
        let (_, measured) = overloaded(&mut sim);
        assert_throughput(&sim, &measured, 0.9);
        limits.push(measured.limit_mean);
    }
    assert!(mean(&limits) < 100.0, "{limits:?}");
}

#[test]
fn one_slow_upstream_of_three_does_not_throttle_the_others() {
    for seed in SEEDS {
        let upstreams = [(8, 1.0), (8, 1.0), (8, 10.0)];
        let mut sim = Sim::new(WIDE, &upstreams, &[random(1.0, 0.010)]).seeded(seed);
        let (_, measured) = overloaded(&mut sim);
        assert_throughput(&sim, &measured, 0.88);
    }
}

#[test]
fn a_cold_start_during_an_overload_finds_the_capacity() {
    // The capacities are 200, 800 and 20,000 responses per second. A measurement takes longer if
    // fewer responses arrive, so the lowest capacity gets more time.
    for (slots, seconds) in [(4, 12.0), (16, 5.0), (400, 5.0)] {
        let mut limits = Vec::new();
        for seed in SEEDS {
            let mut sim = Sim::new(WIDE, &[(slots, 1.0)], &[random(1.0, 0.020)]).seeded(seed);
            let capacity = sim.capacity();
            sim.run(capacity * 3.0, seconds);
            let measured = sim.run(capacity * 3.0, 30.0);
            assert_throughput(&sim, &measured, 0.88);
            limits.push(measured.limit_mean);
        }
        assert!(mean(&limits) < 1.5 * slots as f64 + 10.0, "{slots} slots: {limits:?}");
    }
}

#[test]
fn a_slowly_rising_load_is_served_at_a_low_limit() {
    let mut sim = Sim::new(WIDE, &[(8, 1.0)], &[fixed(1.0, 0.010)]);
    let capacity = sim.capacity();
    for step in 1..=100 {
        sim.run(capacity * 0.012 * f64::from(step), 0.5);
    }
    let measured = sim.run(capacity * 1.2, 20.0);
    assert_throughput(&sim, &measured, 0.93);
    assert!(measured.limit_mean < 16.0, "{measured:?}");
}

#[test]
fn the_limit_recovers_after_an_upstream_recovers() {
    let mut sim = Sim::new(WIDE, &[(16, 1.0), (16, 1.0)], &[random(1.0, 0.010)]);
    overloaded(&mut sim);
    // One of two upstreams becomes 50 times slower, and recovers.
    let capacity = sim.capacity();
    sim.upstreams[1].slowness = 50.0;
    sim.run(capacity * 3.0, 10.0);
    sim.upstreams[1].slowness = 1.0;
    sim.run(capacity * 3.0, 5.0);
    let measured = sim.run(capacity * 3.0, 20.0);
    assert_throughput(&sim, &measured, 0.88);
}

#[test]
fn upstreams_that_become_slower_during_an_overload_are_still_used_fully() {
    let mut sim = Sim::new(WIDE, &[(16, 1.0)], &[random(1.0, 0.010)]);
    overloaded(&mut sim);
    sim.upstreams[0].slowness = 5.0;
    let capacity = sim.capacity();
    sim.run(capacity * 3.0, 5.0);
    let measured = sim.run(capacity * 3.0, 30.0);
    assert_throughput(&sim, &measured, 0.88);
}

#[test]
fn slower_calls_are_no_overload_while_upstreams_have_capacity_left() {
    // Many slots and an initial limit of 64: the limiter itself causes the queue.
    let mut sim = Sim::new(WIDE, &[(500, 1.0)], &[fixed(1.0, 0.010)]);
    sim.run(3_000.0, 5.0);
    sim.kinds[0].seconds = 0.100;
    sim.run(4_000.0, 3.0);
    let measured = sim.run(4_000.0, 10.0);
    assert!(measured.rate > 3_900.0 && measured.shed < 400, "{measured:?}");
}

#[test]
fn few_responses_per_second_do_not_raise_the_limit_without_bound() {
    // At eight responses a second a silence of 50 ms is normal.
    for (kind, calm) in [(fixed(1.0, 1.0), 20.0), (random(1.0, 1.0), 20.0), (random(1.0, 1.0), 0.0)]
    {
        let mut sim = Sim::new(WIDE, &[(8, 1.0)], &[kind]);
        sim.run(4.0, calm);
        sim.run(24.0, 45.0);
        let measured = sim.run(24.0, 60.0);
        assert_throughput(&sim, &measured, 0.8);
        assert!(measured.limit_mean < 100.0, "{calm} s of calm: {measured:?}");
    }
}

#[test]
fn goodput_is_at_least_that_without_a_limit() {
    let mixed = [random(0.6, 0.001), random(0.35, 0.010), random(0.05, 0.300)];
    type Scene<'a> = (&'a [(usize, f64)], &'a [Kind]);
    let scenes: [Scene<'_>; 5] = [
        (&[(16, 1.0)], &[fixed(1.0, 0.010)]),
        (&[(4, 1.0)], &[random(1.0, 0.010)]),
        (&[(8, 1.0), (8, 1.0), (8, 10.0)], &[random(1.0, 0.010)]),
        (&[(16, 1.0)], &mixed),
        (&[(500, 1.0)], &[random(1.0, 0.200)]),
    ];
    for (scene, (upstreams, kinds)) in scenes.into_iter().enumerate() {
        for load in [0.5, 0.9, 1.1, 1.5, 3.0] {
            let goodput = |limits| {
                let mut sim = Sim::new(limits, upstreams, kinds);
                let rate = sim.capacity() * load;
                sim.queue_max = rate as usize;
                sim.run(rate, 10.0);
                (sim.run(rate, 60.0).in_time, sim.capacity())
            };
            let ((with, capacity), (without, _)) = (goodput(WIDE), goodput((100_000, 100_000)));
            assert!(with >= 0.97 * without, "scene {scene}, {load}: {with} of {without}");
            // At three times the capacity, most responses would be late without the limit.
            if load == 3.0 {
                assert!(
                    with > 0.7 * capacity && without < 0.3 * capacity,
                    "scene {scene}: {with} and {without} of {capacity}"
                );
            }
        }
    }
}

#[test]
fn the_limit_does_not_change_while_no_call_waits() {
    let mut sim = Sim::new(WIDE, &[(8, 1.0)], &[random(0.9, 0.002), random(0.1, 0.200)]);
    let capacity = sim.capacity();
    let before = (sim.limiter.limit, sim.limiter.epoch);
    let measured = sim.run(capacity * 0.4, 60.0);
    assert_eq!((sim.limiter.limit, sim.limiter.epoch), before);
    assert_eq!(measured.shed, 0);
}

#[test]
fn the_limit_stays_within_its_bounds() {
    let mut sim = Sim::new((6, 12), &[(100, 1.0)], &[fixed(1.0, 0.010)]);
    assert_eq!(sim.limiter.limit, 12);
    let measured = sim.run(5_000.0, 20.0);
    assert!(measured.limit_mean > 11.0, "a limit that is too low is kept full: {measured:?}");
    let mut sim = Sim::new((6, 12), &[(1, 1.0)], &[fixed(1.0, 0.010)]);
    let measured = sim.run(5_000.0, 20.0);
    assert!(measured.limit_mean < 8.0, "{measured:?}");
    assert!(sim.limiter.limit >= 6);
}

#[test]
fn the_limit_falls_after_a_collapse_at_the_highest_limit() {
    let limits: Vec<f64> = (0..8)
        .map(|step| {
            let mut sim = Sim::new((2, 40), &[(40, 1.0)], &[fixed(1.0, 0.010)]);
            sim.run(12_000.0, 20.0 + f64::from(step) * 0.25);
            sim.upstreams[0].slots = 2;
            sim.run(12_000.0, 20.0);
            sim.run(12_000.0, 20.0).limit_mean
        })
        .collect();
    assert!(limits.iter().all(|limit| *limit < 10.0), "{limits:?}");
}

#[test]
fn no_call_is_shed_if_upstreams_become_slower_with_capacity_left() {
    for times in [10.0, 100.0, 500.0, 1000.0] {
        for overloaded_before in [false, true] {
            let upstreams: [(usize, f64); 3] = [(2_000, 1.0); 3];
            let mut sim = Sim::new((4, 1_536), &upstreams, &[fixed(1.0, 0.001)]);
            if overloaded_before {
                sim.upstreams.iter_mut().for_each(|upstream| upstream.slots = 1);
                sim.run(9_000.0, 10.0);
                assert!(sim.limiter.limit < 20, "{}", sim.limiter.limit);
                sim.run(500.0, 1.0);
                sim.upstreams.iter_mut().for_each(|upstream| upstream.slots = 2_000);
            }
            // The queue holds two seconds of calls, which is the longest wait.
            sim.queue_max = 1_000;
            sim.run(500.0, 2.0);
            sim.upstreams.iter_mut().for_each(|upstream| upstream.slowness = times);
            let measured = sim.run(500.0, 20.0);
            assert_eq!(measured.shed, 0, "{times} times, {overloaded_before}: {measured:?}");
        }
    }
}

#[test]
fn new_capacity_of_slower_upstreams_is_found_during_an_overload() {
    let mut sim = Sim::new((4, 1_536), &[(8, 1.0), (8, 1.0)], &[fixed(1.0, 0.010)]);
    overloaded(&mut sim);
    sim.upstreams.iter_mut().for_each(|upstream| {
        upstream.slots = 1_000;
        upstream.slowness = 50.0;
    });
    sim.queue_max = 1_000;
    sim.run(500.0, 5.0);
    let measured = sim.run(500.0, 20.0);
    assert_eq!(measured.shed, 0, "{measured:?}");
}

#[test]
fn few_slow_calls_beside_many_fast_ones_shed_no_call() {
    for (rate, slow_per_second) in [(500.0, 10.0), (2_000.0, 10.0), (500.0, 60.0)] {
        let share = slow_per_second / rate;
        let kinds = [fixed(1.0 - share, 0.003), fixed(share, 5.0)];
        let mut sim = Sim::new((4, 1_536), &[(2_000, 1.0); 3], &kinds);
        sim.queue_max = 1_000;
        let measured = sim.run(rate, 60.0);
        assert_eq!(measured.shed, 0, "{rate}, {slow_per_second}: {measured:?}");
    }
}

#[test]
fn few_slow_calls_on_a_machine_that_pauses_shed_no_call() {
    for every in [0.3, 1.0, 3.0] {
        for seed in 1..=20 {
            let kinds = [fixed(0.98, 0.003), fixed(0.02, 5.0)];
            let mut sim = Sim::new((4, 1_536), &[(2_000, 1.0); 3], &kinds);
            sim = sim.seeded(seed);
            sim.halts_every = Some(every);
            sim.queue_max = 1_000;
            let measured = sim.run(500.0, 60.0);
            assert_eq!(measured.shed, 0, "a halt every {every} s, seed {seed}: {measured:?}");
        }
    }
}

#[test]
fn upstreams_that_stall_briefly_do_not_count_as_overloaded() {
    let mut sim = Sim::new((4, 1_536), &[(2_000, 1.0); 3], &[fixed(1.0, 0.003)]);
    sim.queue_max = 1_000;
    sim.run(500.0, 2.0);
    sim.upstreams.iter_mut().for_each(|upstream| upstream.slowness = 500.0);
    sim.run(500.0, 1.5);
    assert!(!sim.limiter.saturated);
    sim.upstreams.iter_mut().for_each(|upstream| upstream.slowness = 1.0);
    assert_eq!(sim.run(500.0, 10.0).shed, 0);
}
