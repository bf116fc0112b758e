//! Goal: with at most one faulty upstream of three, the served head is always a block of the true
//! chain, and goes back only for a reorg of that chain. Every value whose block a reorg has dropped
//! is recognised as invalid. Method: seeded runs of a growing chain with reorgs. The faulty
//! upstream freezes, reports false heights, forks or stays silent, and all upstreams follow the
//! chain late.

use super::*;

const UPSTREAMS: usize = 3;
const STEPS: usize = 400;
const SEEDS: u64 = 150;

/// Behaviour of the faulty upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    /// The upstream is honest.
    None,
    /// The upstream's head does not change.
    Frozen,
    /// The upstream reports its head at a height that is 1,000 too high.
    LyingNumber,
    /// The upstream extends a branch that no other upstream has.
    OwnFork,
    /// The upstream responds to no poll.
    Silent,
}

/// A linear congruential generator.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// A value that a client read from an upstream about a height, and the state that is needed to
/// check it later.
struct Read {
    upstream: usize,
    /// Number of polls of the upstream before the read.
    polls_before: u64,
    /// Generation of the view at the read.
    generation: u64,
    number: u64,
    hash: Hash,
}

/// A true chain, three upstreams that follow it, and a tracker of the upstreams.
struct Sim {
    random: Random,
    tracker: HeadTracker,
    now: Duration,
    /// Hashes of the true chain, by height.
    true_chain: Vec<Hash>,
    /// Hashes of all blocks that were on the true chain at any time.
    ever_true: std::collections::HashSet<Hash>,
    /// The chain of each upstream.
    chains: Vec<Vec<Hash>>,
    /// Number of polls of each upstream.
    polls: Vec<u64>,
    /// Index of the upstream with the flaw.
    faulty: usize,
    flaw: Flaw,
    reads: Vec<Read>,
    /// Number of forks so far, which makes the hashes of each fork different.
    forks: u64,
    /// The last served head.
    served: Option<Head>,
    /// Number of checks of a read.
    checked: u64,
    /// Number of reorgs of the true chain.
    reorgs: u64,
}

impl Sim {
    fn new(seed: u64) -> Self {
        let true_chain: Vec<Hash> = (0..50).map(|number| hash(b'a', number)).collect();
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
            tracker: HeadTracker::new(settings, UPSTREAMS),
            now: Duration::from_secs(1),
            ever_true: true_chain.iter().copied().collect(),
            chains: vec![true_chain.clone(); UPSTREAMS],
            true_chain,
            polls: vec![0; UPSTREAMS],
            faulty: 0,
            flaw: Flaw::None,
            reads: Vec::new(),
            forks: 0,
            served: None,
            checked: 0,
            reorgs: 0,
        }
    }

    /// Does one random action, and checks the result. Most often an upstream is polled.
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
                let upstream = self.random.below(UPSTREAMS as u64) as usize;
                self.follow(upstream);
                self.poll(upstream);
            }
        }
        self.judge();
    }

    /// Drops `depth` blocks from the true chain, and adds `depth + 1` others.
    fn grow(&mut self, depth: u64) {
        self.true_chain.truncate(self.true_chain.len() - depth as usize);
        self.reorgs += u64::from(depth > 0);
        self.forks += u64::from(depth > 0);
        for _ in 0..=depth {
            let block = hash(self.forks as u8, self.true_chain.len() as u64);
            self.true_chain.push(block);
            self.ever_true.insert(block);
        }
    }

    /// Gives a random upstream a random flaw. The former faulty upstream recovers first, so at most
    /// one upstream is faulty at a time.
    fn change_flaw(&mut self) {
        self.flaw = Flaw::None;
        self.chains[self.faulty] = self.true_chain.clone();
        self.poll(self.faulty);
        self.faulty = self.random.below(UPSTREAMS as u64) as usize;
        let flaws = [Flaw::None, Flaw::Frozen, Flaw::LyingNumber, Flaw::OwnFork, Flaw::Silent];
        self.flaw = flaws[self.random.below(5) as usize];
    }

    fn flaw_of(&self, upstream: usize) -> Flaw {
        if upstream == self.faulty { self.flaw } else { Flaw::None }
    }

    /// Moves the upstream to the true chain. It may stay where it is, by chance or because of its
    /// flaw.
    fn follow(&mut self, upstream: usize) {
        match self.flaw_of(upstream) {
            Flaw::Frozen => {}
            Flaw::OwnFork => {
                let number = self.chains[upstream].len() as u64;
                self.chains[upstream].push(hash(200 + upstream as u8, number));
            }
            Flaw::None | Flaw::LyingNumber | Flaw::Silent => {
                if self.random.below(4) > 0 {
                    self.chains[upstream] = self.true_chain.clone();
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

    /// Reads a value about a recent block from a random upstream, if the view allows reads from
    /// this upstream. The response does not name its block.
    fn read(&mut self) {
        let view = self.tracker.view();
        let upstream = self.random.below(UPSTREAMS as u64) as usize;
        let Some(head) = view.head.filter(|_| view.upstreams[upstream].consistent) else { return };
        let number = head.number - self.random.below(6);
        let Some(&hash) = self.chains[upstream].get(number as usize) else { return };
        if view.upstreams[upstream].head.is_some_and(|head| head >= number) {
            let polls_before = self.polls[upstream];
            let generation = view.generation;
            self.reads.push(Read { upstream, polls_before, generation, number, hash });
        }
    }

    /// Checks the served head and all stored reads against the true chain.
    fn judge(&mut self) {
        let view = self.tracker.view();
        if let Some(head) = view.head {
            assert!(
                self.ever_true.contains(&head.hash),
                "served a block that was never true: {head:?}"
            );
            if let Some(former) = self.served.filter(|former| head.number < former.number) {
                let is_still_true =
                    self.true_chain.get(former.number as usize) == Some(&former.hash);
                assert!(
                    !is_still_true,
                    "the head went back from {former:?} to {head:?} without a reorg"
                );
            }
            self.served = Some(head);
        }
        for read in &self.reads {
            // A change of an upstream is unknown until its next poll.
            let polled_since = self.polls[read.upstream] > read.polls_before;
            // Changes of a silent or lying upstream become known only when it recovers.
            let is_state_unknown =
                matches!(self.flaw_of(read.upstream), Flaw::Silent | Flaw::LyingNumber);
            if polled_since
                && !is_state_unknown
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
    fn settle(&mut self) {
        self.flaw = Flaw::None;
        for _ in 0..30 {
            self.now += Duration::from_millis(500);
            for upstream in 0..UPSTREAMS {
                self.chains[upstream] = self.true_chain.clone();
                self.poll(upstream);
            }
            self.judge();
        }
        let view = self.tracker.view();
        assert_eq!(view.head.map(|head| head.hash), self.true_chain.last().copied());
        assert!(
            view.upstreams.iter().all(|upstream| upstream.at_head && upstream.consistent),
            "{:?}",
            view.upstreams
        );
    }
}

#[test]
fn one_faulty_upstream_of_three_never_affects_the_served_chain() {
    let (mut checked, mut reorgs) = (0, 0);
    for seed in 0..SEEDS {
        let mut sim = Sim::new(seed);
        for upstream in 0..UPSTREAMS {
            sim.poll(upstream);
        }
        for step in 0..STEPS {
            let run = std::panic::AssertUnwindSafe(|| sim.step());
            assert!(std::panic::catch_unwind(run).is_ok(), "seed {seed}, step {step}");
        }
        let run = std::panic::AssertUnwindSafe(|| sim.settle());
        assert!(std::panic::catch_unwind(run).is_ok(), "seed {seed}, settling");
        checked += sim.checked;
        reorgs += sim.reorgs;
    }
    assert!(checked > 10_000 && reorgs > 200, "{checked} reads judged, {reorgs} reorgs");
}
