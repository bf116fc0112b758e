//! Goal: with at most one faulty upstream of three, the served head is always a true one, goes back
//! only for a true reorg, and marks cover all reads from any upstream. Method: seeded runs of a
//! growing chain with reorgs; its upstreams follow late, freeze, lie, or fork.

use super::*;

const NODES: usize = 3;
const STEPS: usize = 400;
const SEEDS: u64 = 150;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    Frozen,
    LyingNumber,
    OwnFork,
    Silent,
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// A value that a client read from an upstream about a height, and the state needed to judge it.
struct Read {
    upstream: usize,
    at_poll: u64,
    generation: u64,
    number: u64,
    hash: Hash,
}

struct Sim {
    random: Random,
    tracker: HeadTracker,
    now: Duration,
    truth: Vec<Hash>,
    ever_true: std::collections::HashSet<Hash>,
    chains: Vec<Vec<Hash>>,
    polls: Vec<u64>,
    faulty: usize,
    flaw: Flaw,
    reads: Vec<Read>,
    forks: u64,
    served: Option<Head>,
    checked: u64,
    reorgs: u64,
}

impl Sim {
    fn new(seed: u64) -> Self {
        let truth: Vec<Hash> = (0..50).map(|number| hash(b'a', number)).collect();
        let settings = HeadSettings {
            window: 64,
            finality: Finality::FromUpstreams,
            lag_max: 2,
            jump_max: 16,
            rollback_max: 4,
            block_time: Duration::from_millis(500),
        };
        Self {
            random: Random(seed),
            tracker: HeadTracker::new(settings, NODES),
            now: Duration::from_secs(1),
            ever_true: truth.iter().copied().collect(),
            chains: vec![truth.clone(); NODES],
            truth,
            polls: vec![0; NODES],
            faulty: 0,
            flaw: Flaw::None,
            reads: Vec::new(),
            forks: 0,
            served: None,
            checked: 0,
            reorgs: 0,
        }
    }

    fn step(&mut self) {
        self.now += Duration::from_millis(100);
        match self.random.below(12) {
            0 | 1 => self.grow(0),
            2 if self.random.below(4) == 0 => {
                let depth = 1 + self.random.below(5);
                self.grow(depth);
            }
            3 if self.random.below(12) == 0 => self.change_flaw(),
            4 | 5 => self.read(),
            _ => {
                let upstream = self.random.below(NODES as u64) as usize;
                self.follow(upstream);
                self.poll(upstream);
            }
        }
        self.judge();
    }

    /// Drops `depth` blocks from the true chain and adds one more than that.
    fn grow(&mut self, depth: u64) {
        self.truth.truncate(self.truth.len() - depth as usize);
        self.reorgs += u64::from(depth > 0);
        self.forks += u64::from(depth > 0);
        for _ in 0..=depth {
            let block = hash(self.forks as u8, self.truth.len() as u64);
            self.truth.push(block);
            self.ever_true.insert(block);
        }
    }

    /// The former faulty upstream recovers first, so that two are never at fault.
    fn change_flaw(&mut self) {
        self.flaw = Flaw::None;
        self.chains[self.faulty] = self.truth.clone();
        self.poll(self.faulty);
        self.faulty = self.random.below(NODES as u64) as usize;
        let flaws = [Flaw::None, Flaw::Frozen, Flaw::LyingNumber, Flaw::OwnFork, Flaw::Silent];
        self.flaw = flaws[self.random.below(5) as usize];
    }

    fn flaw_of(&self, upstream: usize) -> Flaw {
        if upstream == self.faulty { self.flaw } else { Flaw::None }
    }

    /// Moves the upstream to the true chain, if its flaw permits.
    fn follow(&mut self, upstream: usize) {
        match self.flaw_of(upstream) {
            Flaw::Frozen => {}
            Flaw::OwnFork => {
                let number = self.chains[upstream].len() as u64;
                self.chains[upstream].push(hash(200 + upstream as u8, number));
            }
            Flaw::None | Flaw::LyingNumber | Flaw::Silent => {
                if self.random.below(4) > 0 {
                    self.chains[upstream] = self.truth.clone();
                }
            }
        }
    }

    fn poll(&mut self, upstream: usize) {
        self.polls[upstream] += 1;
        if self.flaw_of(upstream) == Flaw::Silent {
            self.tracker.record_missed_poll(upstream, self.now);
            return;
        }
        let chain = self.chains[upstream].clone();
        let top = chain.len() - 1;
        let lie = if self.flaw_of(upstream) == Flaw::LyingNumber { 1000 } else { 0 };
        let poll = HeadPoll {
            number: top as u64 + lie,
            hash: chain[top],
            parent: chain[top - 1],
            finalized: None,
        };
        let mut requests = self.tracker.observe(upstream, self.now, poll).requests;
        for _ in 0..1000 {
            let Some(request) = requests.pop() else { break };
            let index = request.number as usize;
            if index > 0 && index < chain.len() {
                let step = self.tracker.record_header(
                    upstream,
                    self.now,
                    request.number,
                    chain[index],
                    chain[index - 1],
                );
                requests.extend(step.requests);
            }
        }
    }

    /// Reads a value without a block from an upstream that the view allows.
    fn read(&mut self) {
        let view = self.tracker.view();
        let upstream = self.random.below(NODES as u64) as usize;
        let Some(head) = view.head.filter(|_| view.upstreams[upstream].consistent) else { return };
        let number = head.number - self.random.below(6);
        let Some(&hash) = self.chains[upstream].get(number as usize) else { return };
        if view.upstreams[upstream].head.is_some_and(|head| head >= number) {
            let at_poll = self.polls[upstream];
            let generation = view.generation;
            self.reads.push(Read { upstream, at_poll, generation, number, hash });
        }
    }

    fn judge(&mut self) {
        let view = self.tracker.view();
        if let Some(head) = view.head {
            assert!(
                self.ever_true.contains(&head.hash),
                "served a block that was never true: {head:?}"
            );
            if let Some(former) = self.served.filter(|former| head.number < former.number) {
                let still = self.truth.get(former.number as usize) == Some(&former.hash);
                assert!(!still, "the head went back from {former:?} to {head:?} without a reorg");
            }
            self.served = Some(head);
        }
        for read in &self.reads {
            // A change of an upstream is unknown until its next poll.
            let polled_since = self.polls[read.upstream] > read.at_poll;
            // Changes of a silent or lying upstream become known only when it recovers.
            let unknown = matches!(self.flaw_of(read.upstream), Flaw::Silent | Flaw::LyingNumber);
            if polled_since
                && !unknown
                && view.valid_since(read.generation, read.number)
                && let Some(served) = view.canonical(read.number)
            {
                assert_eq!(served, read.hash, "a read of block {} passes for true", read.number);
                self.checked += 1;
            }
        }
        if self.reads.len() > 200 {
            self.reads.drain(..100);
        }
    }

    /// Makes all upstreams honest and polls them: the head must be the true one.
    fn elect_and_serve(&mut self) {
        self.flaw = Flaw::None;
        for _ in 0..30 {
            self.now += Duration::from_millis(500);
            for upstream in 0..NODES {
                self.chains[upstream] = self.truth.clone();
                self.poll(upstream);
            }
            self.judge();
        }
        let view = self.tracker.view();
        assert_eq!(view.head.map(|head| head.hash), self.truth.last().copied());
        assert!(
            view.upstreams.iter().all(|upstream| upstream.at_head && upstream.consistent),
            "{:?}",
            view.upstreams
        );
    }
}

#[test]
fn one_faulty_upstream_of_three_never_shows() {
    let (mut checked, mut reorgs) = (0, 0);
    for seed in 0..SEEDS {
        let mut sim = Sim::new(seed);
        for upstream in 0..NODES {
            sim.poll(upstream);
        }
        for step in 0..STEPS {
            let run = std::panic::AssertUnwindSafe(|| sim.step());
            assert!(std::panic::catch_unwind(run).is_ok(), "seed {seed}, step {step}");
        }
        let run = std::panic::AssertUnwindSafe(|| sim.elect_and_serve());
        assert!(std::panic::catch_unwind(run).is_ok(), "seed {seed}, settling");
        checked += sim.checked;
        reorgs += sim.reorgs;
    }
    assert!(checked > 10_000 && reorgs > 200, "{checked} reads judged, {reorgs} reorgs");
}
