//! Goal: a flow that takes all permits for slow calls hardly delays other flows, and can use every
//! permit that no other flow needs. A *permit* allows one call to be in flight, and a *flow* is the
//! calls of one client to similar methods. Method: by hand, and with a simulated upstream behind
//! the queue and the limiter, in virtual time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::*;
use crate::policy::overload::limiter::{Limiter, LimiterSettings, ResponseSample};
use crate::policy::overload::queue::{PushResult, Queue, QueueSettings};

const SLOW: Flow = Flow::from_index(1);
const FAST: Flow = Flow::from_index(2);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[test]
fn permits_are_reserved_up_to_an_equal_share_for_a_short_time() {
    let mut shares = Shares::default();
    (0..60).for_each(|_| shares.take_permit(Class::Normal, SLOW));
    (0..40).for_each(|_| shares.take_permit(Class::Normal, FAST));
    (0..40).for_each(|_| shares.return_permit(FAST));
    shares.divide_permits(ms(500), 64);
    assert_eq!(shares.count_spare(Class::Normal, 40), 8, "32 of 64 are kept");
    assert!(shares.admits(SLOW, 8) && !shares.admits(SLOW, 0) && shares.admits(FAST, 0));
    assert_eq!(shares.count_spare(Class::High, 40), 40, "nothing is kept from a higher class");
    for second in 1..=2 {
        shares.divide_permits(ms(1000 * second), 64);
    }
    assert_eq!(shares.count_spare(Class::Normal, 40), 40, "who stays away keeps nothing");
}

#[test]
fn a_new_flow_gets_the_only_permit_when_it_is_returned() {
    let mut shares = Shares::default();
    shares.take_permit(Class::Normal, SLOW);
    shares.record_wait(Class::Normal, FAST);
    shares.return_permit(SLOW);
    shares.divide_permits(ms(1), 1);
    assert!(shares.admits(FAST, shares.count_spare(Class::Normal, 1)));
}

#[test]
fn a_lone_flow_uses_all_permits() {
    let mut shares = Shares::default();
    for free in (1..=64).rev() {
        shares.divide_permits(ms(0), 64);
        assert!(shares.admits(SLOW, shares.count_spare(Class::Normal, free)));
        shares.take_permit(Class::Normal, SLOW);
    }
}

#[test]
fn calls_belong_to_flows_by_client_and_by_weight() {
    let distinct = |flows: Vec<Flow>| {
        let mut used = [false; FLOWS];
        flows.iter().for_each(|flow| used[flow.index()] = true);
        used.iter().filter(|used| **used).count()
    };
    assert!(distinct((0..8).map(|shift| Flow::new(7, 1 << shift)).collect()) >= 7);
    assert!(distinct((0..1000).map(|client| Flow::new(client * 77, 1)).collect()) > 120);
    assert_eq!(Flow::new(7, 4), Flow::new(7, 5));
}

/// The calls of one client: their flow, their rate per second, and the latency of each at an
/// upstream.
#[derive(Clone, Copy)]
struct Client {
    flow: Flow,
    rate: f64,
    latency: Duration,
}

/// Outcomes of one client's calls in the second half of a run.
#[derive(Debug, Default)]
struct Outcomes {
    served: usize,
    shed: usize,
    /// Time that each served call waited for a permit.
    waited: Vec<Duration>,
}

impl Outcomes {
    fn shed_share(&self) -> f64 {
        self.shed as f64 / (self.served + self.shed) as f64
    }

    fn p99(&mut self) -> Duration {
        self.waited.sort_unstable();
        self.waited[self.waited.len() * 99 / 100]
    }
}

/// An upstream behind the queue of one thread.
struct Sim {
    clients: [Client; 2],
    limiter: Limiter,
    queue: Queue<usize>,
    shares: Shares,
    in_flight: u32,
    slots: usize,
    busy: usize,
    /// Calls that wait for a slot of the upstream: client, epoch, and sending time.
    waiting_in_upstream: VecDeque<(usize, u32, Duration)>,
    /// Calls in process: end, client, epoch, and sending time.
    ends: BinaryHeap<Reverse<(Duration, usize, u32, Duration)>>,
    outcomes: [Outcomes; 2],
    /// Calls before this time do not count.
    counted_from: Duration,
    /// Highest limit during the run.
    highest_limit: u32,
}

impl Sim {
    fn new(slots: usize, limits: (u32, u32), clients: [Client; 2]) -> Sim {
        let settings = QueueSettings { calls_max: 1_000, wait_max: ms(2000), share_kept: 0.1 };
        let limits = LimiterSettings { limit_min: limits.0, limit_max: limits.1 };
        Sim {
            clients,
            limiter: Limiter::new(limits),
            queue: Queue::new(settings),
            shares: Shares::default(),
            in_flight: 0,
            slots,
            busy: 0,
            waiting_in_upstream: VecDeque::new(),
            ends: BinaryHeap::new(),
            outcomes: Default::default(),
            counted_from: Duration::ZERO,
            highest_limit: 0,
        }
    }

    /// Sends calls at random times for this many seconds. Returns the outcomes of both clients and
    /// the highest limit.
    fn run(mut self, seconds: u64) -> (Outcomes, Outcomes, u32) {
        let until = Duration::from_secs(seconds);
        self.counted_from = until / 2;
        let mut random = 0x1234_5678_9abc_def1_u64;
        let mut gap = |rate: f64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let share = ((random >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
            Duration::from_secs_f64(-share.ln() / rate)
        };
        let mut next_arrivals = self.clients.map(|client| gap(client.rate));
        loop {
            let next = usize::from(next_arrivals[1] < next_arrivals[0]);
            let now = next_arrivals[next];
            if now > until {
                let [slow, fast] = self.outcomes;
                return (slow, fast, self.highest_limit);
            }
            while self.ends.peek().is_some_and(|end| end.0.0 <= now) {
                self.end();
            }
            // The slow client starts with a tenth of its rate.
            let rate_divisor = if next == 0 && now < until / 8 { 10.0 } else { 1.0 };
            next_arrivals[next] += gap(self.clients[next].rate / rate_divisor);
            self.shares.record_wait(Class::Normal, self.clients[next].flow);
            let pushed = self.queue.push(now, Class::Normal, self.clients[next].flow, next);
            if let PushResult::Replaced(_, (shed, _)) = pushed {
                self.shed(now, shed);
            }
            self.serve(now);
            if self.queue.len > 0 {
                self.limiter.record_wait(now, self.shares.typical_latency());
                self.serve(now);
            }
            self.highest_limit = self.highest_limit.max(self.limiter.limit);
        }
    }

    fn serve(&mut self, now: Duration) {
        let limit = self.limiter.limit;
        self.shares.divide_permits(now, limit);
        while self.in_flight < limit {
            let saturated = self.limiter.saturated;
            while let Some((shed, _)) = self.queue.take_expired(now, saturated) {
                self.shed(now, shed);
            }
            let free = limit - self.in_flight;
            let taken = self.queue.take(now, saturated, &self.shares, free);
            let Some((client, class, waited)) = taken else { return };
            if now >= self.counted_from {
                self.outcomes[client].served += 1;
                self.outcomes[client].waited.push(waited);
            }
            self.in_flight += 1;
            self.shares.take_permit(class, self.clients[client].flow);
            self.waiting_in_upstream.push_back((client, self.limiter.epoch, now));
            self.begin(now);
        }
    }

    fn begin(&mut self, now: Duration) {
        if self.busy < self.slots
            && let Some((client, epoch, sent)) = self.waiting_in_upstream.pop_front()
        {
            self.busy += 1;
            self.ends.push(Reverse((now + self.clients[client].latency, client, epoch, sent)));
        }
    }

    fn end(&mut self) {
        let Reverse((now, client, epoch, sent)) = self.ends.pop().unwrap();
        let flow = self.clients[client].flow;
        self.busy -= 1;
        self.in_flight -= 1;
        self.shares.return_permit(flow);
        self.shares.record_latency(flow, now - sent);
        self.begin(now);
        if self.queue.len > 0 || self.limiter.limited {
            let queue = self.queue.len as u32;
            let sample = ResponseSample { epoch, flow, latency: now - sent, queue };
            self.limiter.record_response(now, sample);
        }
        self.serve(now);
    }

    fn shed(&mut self, now: Duration, client: usize) {
        self.outcomes[client].shed += usize::from(now >= self.counted_from);
    }
}

fn slow(rate: f64) -> Client {
    Client { flow: SLOW, rate, latency: ms(5000) }
}

fn fast(rate: f64, latency: u64) -> Client {
    Client { flow: FAST, rate, latency: ms(latency) }
}

#[test]
fn slow_calls_that_fill_all_permits_cost_other_flows_next_to_nothing() {
    // The upstream has twelve slots and the limit is twelve. The fast client needs four slots. The
    // other eight serve a sixth of the slow client's calls.
    let scene = |fast| Sim::new(12, (12, 12), [slow(10.0), fast]).run(120);
    let (slow, mut others, _) = scene(fast(400.0, 10));
    assert!(others.shed_share() <= 0.01, "{} served, {} shed", others.served, others.shed);
    assert!(others.p99() <= ms(50), "{:?}", others.p99());
    assert!(slow.served >= 60, "slow: {} served, {} shed", slow.served, slow.shed);
    // Negative check: if both clients belong to one flow, the slow calls block the fast ones.
    let (_, others, _) = scene(Client { flow: SLOW, ..fast(400.0, 10) });
    assert!(others.shed_share() > 0.1, "{} served, {} shed", others.served, others.shed);
}

#[test]
fn slow_calls_get_spare_capacity_in_the_end_and_cost_others_nothing() {
    for rate in [10.0, 20.0, 60.0] {
        let scene = Sim::new(2_000, (4, 1_536), [slow(rate), fast(500.0, 3)]);
        let (slow, mut others, _) = scene.run(120);
        assert_eq!((slow.shed, others.shed), (0, 0), "{rate}/s");
        assert!(others.p99() <= ms(5), "{rate}/s: {:?}", others.p99());
    }
}

#[test]
fn a_client_that_floods_upstreams_costs_others_little() {
    // The fast client needs four of the sixteen slots. The flood would need 48, 240 or 480 slots.
    for rate in [240.0, 1_200.0, 2_400.0] {
        let scene = |flow| {
            let flood = Client { flow: SLOW, rate, latency: ms(200) };
            Sim::new(16, (4, 1_536), [flood, Client { flow, ..fast(400.0, 10) }]).run(120)
        };
        let (flood, others, _) = scene(FAST);
        let shed = others.shed_share();
        assert!(shed <= 0.05, "{rate}: {shed}");
        assert!(flood.served > 2_000, "{rate}: {}", flood.served);
        // Negative check: both clients belong to one flow.
        let (_, others, _) = scene(SLOW);
        assert!(others.shed_share() > 0.3, "{rate}: {}", others.shed_share());
    }
}
