//! Goal: the served head has enough witnesses and never goes back without evidence, and every
//! branch change is recorded. Method: scripted polls of small forked chains in virtual time. A
//! *witness* is an upstream whose head (newest block) counts when the served head is elected.

use super::evidence::FALLEN_HEAD_POLLS;
use super::upstream::FILL_BLOCKS;
use super::*;

mod sim;
mod skipped;
mod stall;
mod syncing;

/// Returns the hash of a block in a test chain: the branch's letter and the height.
fn hash(branch: u8, number: u64) -> Hash {
    let mut hash = [branch; 32];
    hash[24..].copy_from_slice(&number.to_be_bytes());
    hash
}

/// The chain with the letter `branch`, which forks from chain `a` above the height `fork`.
#[derive(Clone, Copy)]
struct Chain {
    branch: u8,
    fork: u64,
}

const A: Chain = Chain { branch: b'a', fork: 0 };

fn fork(branch: u8, fork: u64) -> Chain {
    Chain { branch, fork }
}

impl Chain {
    fn hash(self, number: u64) -> Hash {
        let branch = if number > self.fork { self.branch } else { b'a' };
        hash(branch, number)
    }

    fn poll_at(self, number: u64) -> HeadPoll {
        HeadPoll {
            number,
            hash: self.hash(number),
            parent: self.hash(number.saturating_sub(1)),
            finalized: None,
        }
    }
}

/// A tracker in virtual time. The test scripts the polls of its upstreams.
struct Net {
    tracker: HeadTracker,
    now: Duration,
    /// All events so far.
    events: Vec<HeadEvent>,
    /// Number of headers that the tracker has asked for so far.
    headers_requested: usize,
    /// Height of the highest head that [`Net::assert_head`] has seen.
    highest_served: u64,
}

impl Net {
    fn new(upstreams: usize) -> Self {
        Self::with(upstreams, |_| {})
    }

    fn with(upstreams: usize, adjust: impl FnOnce(&mut HeadSettings)) -> Self {
        let mut settings = HeadSettings {
            window: 64,
            finality: Finality::FromUpstreams,
            lag_max: 2,
            jump_max: 16,
            rollback_max: 4,
            block_time: Duration::from_secs(1),
        };
        adjust(&mut settings);
        Self {
            tracker: HeadTracker::new(settings, upstreams),
            now: Duration::from_secs(100),
            events: Vec::new(),
            headers_requested: 0,
            highest_served: 0,
        }
    }

    /// Polls once: the upstream reports the block of `chain` at height `number` as its head. All
    /// header requests that follow get headers of `chain`.
    fn poll(&mut self, upstream: usize, chain: Chain, number: u64) -> &mut Self {
        self.poll_with(upstream, chain, chain.poll_at(number))
    }

    fn poll_final(&mut self, upstream: usize, number: u64, finalized: u64) -> &mut Self {
        let mut poll = A.poll_at(number);
        poll.finalized = Some(finalized);
        self.poll_with(upstream, A, poll)
    }

    fn poll_with(&mut self, upstream: usize, chain: Chain, poll: HeadPoll) -> &mut Self {
        self.now += Duration::from_millis(100);
        let mut step = self.tracker.observe(upstream, self.now, poll);
        let mut requests = std::mem::take(&mut step.requests);
        self.events.append(&mut step.events);
        for _ in 0..1000 {
            let Some(request) = requests.pop() else { break };
            self.headers_requested += 1;
            let (block, parent) =
                (chain.hash(request.number), chain.hash(request.number.saturating_sub(1)));
            let mut step = self.tracker.record_header(
                request.upstream,
                self.now,
                request.number,
                block,
                parent,
            );
            requests.append(&mut step.requests);
            self.events.append(&mut step.events);
        }
        assert!(requests.is_empty(), "a walk comes to rest");
        self
    }

    /// Records this many missed polls of an upstream.
    fn miss(&mut self, upstream: usize, times: u32) -> &mut Self {
        for _ in 0..times {
            self.now += Duration::from_millis(100);
            let mut step = self.tracker.record_missed_poll(upstream, self.now);
            self.events.append(&mut step.events);
        }
        self
    }

    fn wait(&mut self, seconds: u64) -> &mut Self {
        self.now += Duration::from_secs(seconds);
        self
    }

    /// Asserts that the served head is the block of a chain at a height; `None` for no head.
    #[track_caller]
    fn assert_head(&mut self, expected: Option<(Chain, u64)>) -> &mut Self {
        let expected = expected.map(|(chain, number)| Head { number, hash: chain.hash(number) });
        let view = self.tracker.view();
        assert_eq!(view.head.map(|head| head.number), expected.map(|head| head.number));
        assert_eq!(view.head, expected);
        if let Some(head) = view.head {
            assert_eq!(view.canonical(head.number), Some(head.hash));
            self.highest_served = self.highest_served.max(head.number);
        }
        self
    }

    fn upstream(&self, upstream: usize) -> UpstreamView {
        self.tracker.view().upstreams[upstream]
    }

    fn has(&self, event: HeadEvent) -> bool {
        self.events.contains(&event)
    }
}

#[test]
fn an_excluded_head_does_not_count_until_it_is_included_again() {
    let mut net = Net::new(3);
    net.poll(0, A, 100).poll(1, A, 100).poll(2, A, 100);
    // With only one counted witness, a fork is not served. Once upstream 2 counts again, two
    // witnesses move the head.
    net.tracker.set_excluded(2, net.now, true);
    net.poll(1, fork(b'b', 98), 102).poll(2, fork(b'b', 98), 102).poll(0, A, 101);
    assert_eq!(net.tracker.view().canonical(100), Some(A.hash(100)));
    let view = net.tracker.view().upstreams[2];
    assert_eq!((view.head, view.live, view.consistent), (Some(102), true, false));
    let step = net.tracker.set_excluded(2, net.now, false);
    assert!(step.changed);
    assert_eq!(net.tracker.view().head.map(|head| head.hash), Some(fork(b'b', 98).hash(102)));
    // No head is elected while all upstreams are excluded.
    for upstream in 0..3 {
        net.tracker.set_excluded(upstream, net.now, true);
    }
    assert_eq!(net.tracker.view().head, None);
}

#[test]
fn an_upstream_without_a_head_is_not_at_the_head() {
    let mut net = Net::new(2);
    net.assert_head(None).poll(0, A, 100).assert_head(Some((A, 100)));
    assert!(net.upstream(0).at_head);
    assert_eq!(net.upstream(1), UpstreamView::default());
}

#[test]
fn two_upstreams_must_hold_the_head() {
    let mut net = Net::new(3);
    net.poll(0, A, 100).poll(1, A, 100).poll(2, A, 100);
    net.poll(0, A, 101).assert_head(Some((A, 100)));
    net.poll(2, A, 102).assert_head(Some((A, 101)));
    net.poll(1, A, 102).assert_head(Some((A, 102)));
    assert_eq!(net.upstream(0).lag, 1);
    assert!(net.upstream(0).at_head);
    assert_eq!(net.tracker.view().generation, 0, "no reorg happened");
}

#[test]
fn missing_blocks_are_copied_from_other_upstreams_first() {
    let mut net = Net::new(2);
    net.poll(0, A, 100).poll(1, A, 100);
    let requested_by_fill = net.headers_requested;
    assert!((FILL_BLOCKS - 2..FILL_BLOCKS + 2).contains(&requested_by_fill), "{requested_by_fill}");
    net.poll(0, A, 110);
    assert_eq!(net.headers_requested - requested_by_fill, 9, "the gap in one round");
    net.poll(1, A, 110).assert_head(Some((A, 110)));
    assert_eq!(net.headers_requested - requested_by_fill, 9, "the second upstream needs none");
    for number in 100..=110 {
        assert_eq!(net.tracker.view().canonical(number), Some(A.hash(number)));
    }
}

#[test]
fn failed_headers_are_requested_again_at_the_next_poll() {
    let mut net = Net::new(1);
    net.poll(0, A, 100);
    let mut requests = |headers_failed: bool| {
        if headers_failed {
            net.tracker.forget_header_requests(0);
        }
        net.tracker.observe(0, net.now, A.poll_at(105)).requests.len()
    };
    assert_eq!(requests(false), 4);
    assert_eq!(requests(false), 0, "they may be on their way");
    assert_eq!(requests(true), 4);
}

#[test]
fn a_reorg_of_a_lone_upstream_is_followed_and_recorded() {
    for depth in 1..=4 {
        let mut net = Net::new(1);
        for number in 90..=100 {
            net.poll(0, A, number);
        }
        let start = net.tracker.view();
        let b = fork(b'b', 100 - depth);
        net.poll(0, b, 101).assert_head(Some((b, 101)));
        let view = net.tracker.view();
        assert!(net.has(HeadEvent::Reorg { fork: 100 - depth, depth }));
        assert!(net.has(HeadEvent::UpstreamReorg { upstream: 0, fork: 100 - depth, depth }));
        assert!(view.valid_since(start.generation, 100 - depth));
        assert!(!view.valid_since(start.generation, 101 - depth));
        assert!(view.valid_since(view.generation, 101 - depth));
    }
}

#[test]
fn a_deep_rollback_of_a_lone_upstream_needs_persistence() {
    let mut net = Net::new(1);
    for number in 90..=100 {
        net.poll(0, A, number);
    }
    let b = fork(b'b', 92);
    net.poll(0, b, 98).assert_head(Some((A, 100)));
    assert_eq!(net.tracker.view().generation, 1, "entries go at once");
    assert!(!net.upstream(0).consistent);
    net.poll(0, b, 98).assert_head(Some((A, 100)));
    net.poll(0, b, 98).assert_head(Some((A, 100)));
    net.poll(0, b, 98).assert_head(Some((b, 98)));
    assert!(net.upstream(0).at_head);
    assert!(net.has(HeadEvent::Reorg { fork: 92, depth: 8 }));
}

#[test]
fn one_upstream_with_a_backend_that_is_behind_does_not_lower_the_head() {
    let mut net = Net::new(1);
    for number in 90..=100 {
        net.poll(0, A, number);
    }
    for _ in 1..FALLEN_HEAD_POLLS {
        net.poll(0, A, 95).assert_head(Some((A, 100)));
    }
    net.poll(0, A, 100).poll(0, A, 95).assert_head(Some((A, 100)));
    for _ in 1..FALLEN_HEAD_POLLS {
        net.poll(0, A, 95);
    }
    net.assert_head(Some((A, 95)));
}

#[test]
fn a_reorg_is_followed_at_any_block_time() {
    let ms = Duration::from_millis;
    for (block_ms, poll_ms, depth, upstreams) in [50, 300, 400, 12_000]
        .into_iter()
        .flat_map(|block| [100, 500].map(|poll| (block, poll)))
        .flat_map(|(block, poll)| [1, 8, 9, 30, 64].map(|depth| (block, poll, depth)))
        .flat_map(|(block, poll, depth)| [1, 2, 3].map(|count| (block, poll, depth, count)))
    {
        let case =
            format!("{block_ms} ms, poll {poll_ms} ms, depth {depth}, {upstreams} upstreams");
        let mut net = Net::with(upstreams, |settings| {
            settings.window = WINDOW;
            settings.rollback_max = ROLLBACK_MAX;
            settings.block_time = ms(block_ms);
        });
        let (reorg_at, start) = (1100, net.now);
        let first_dropped = reorg_at - depth;
        let b = fork(b'b', first_dropped - 1);
        let (mut polls_after_reorg, mut last_polled) = (0, 0);
        for poll in 0.. {
            let elapsed = poll * poll_ms;
            let number = 1000 + elapsed / block_ms;
            let chain = if number < reorg_at { A } else { b };
            for upstream in 0..upstreams {
                // Each poll of `Net` takes 100 ms.
                net.now = start + ms(elapsed) - ms(100);
                net.poll(upstream, chain, number);
            }
            if number < reorg_at {
                last_polled = number;
            } else {
                polls_after_reorg += 1;
                let head = net.tracker.view().head;
                if head == Some(Head { number, hash: b.hash(number) }) {
                    break;
                }
                assert!(polls_after_reorg < 8, "the head stands still: {case}");
            }
        }
        let view = net.tracker.view();
        assert_eq!(view.canonical(first_dropped), Some(b.hash(first_dropped)), "{case}");
        // A fast chain may have replaced blocks that no poll has found.
        let was_known = first_dropped <= last_polled;
        assert_eq!(view.valid_since(0, first_dropped), !was_known, "{case}");
    }
}

/// Two upstreams were down during a reorg, which the third has followed. When they return, they have
/// the blocks from before it, until one of them catches up.
#[test]
fn upstreams_that_return_with_blocks_from_before_a_reorg_do_not_lower_the_head() {
    let mut net = Net::new(3);
    for upstream in 0..3 {
        net.poll(upstream, A, 103);
    }
    net.miss(1, MISSED_MAX).miss(2, MISSED_MAX);
    let b = fork(b'b', 101);
    net.poll(0, b, 104).assert_head(Some((b, 104)));
    for _ in 1..FALLEN_HEAD_POLLS {
        for (upstream, chain, number) in [(1, A, 103), (2, A, 103), (0, b, 104)] {
            net.poll(upstream, chain, number).assert_head(Some((b, 104)));
        }
    }
    net.poll(2, b, 105).poll(0, b, 105).assert_head(Some((b, 105)));
}

#[test]
fn missed_polls_of_a_dead_upstream_do_not_stop_a_deep_rollback() {
    let mut net = Net::new(2);
    for number in 90..=100 {
        net.poll(0, A, number).poll(1, A, number);
    }
    net.miss(1, 10);
    let b = fork(b'b', 92);
    for _ in 0..3 {
        net.poll(0, b, 98).miss(1, 1).assert_head(Some((A, 100)));
    }
    net.poll(0, b, 98).assert_head(Some((b, 98)));
}

#[test]
fn a_deep_rollback_with_two_witnesses_is_accepted_at_once() {
    let mut net = Net::new(3);
    for number in 90..=100 {
        net.poll(0, A, number).poll(1, A, number).poll(2, A, number);
    }
    let b = fork(b'b', 92);
    net.poll(0, b, 99).assert_head(Some((A, 100)));
    net.poll(1, b, 99).assert_head(Some((b, 99)));
    assert!(!net.upstream(2).consistent);
    net.poll(2, b, 99);
    assert!(net.upstream(2).consistent);
}

#[test]
fn a_minority_branch_never_moves_the_head_but_its_changes_are_recorded() {
    let mut net = Net::new(3);
    for number in 98..=100 {
        net.poll(0, A, number).poll(1, A, number).poll(2, A, number);
    }
    let b = fork(b'b', 98);
    let old = net.tracker.view().generation;
    net.poll(2, b, 103).assert_head(Some((A, 100)));
    assert!(net.has(HeadEvent::UpstreamReorg { upstream: 2, fork: 98, depth: 2 }));
    assert!(!net.tracker.view().valid_since(old, 99));
    assert!(!net.upstream(2).consistent);
    net.poll(0, A, 101).poll(1, A, 101).assert_head(Some((A, 101)));
    let between = net.tracker.view().generation;
    net.poll(2, A, 102);
    assert!(!net.tracker.view().valid_since(between, 99), "and back again");
    assert!(net.upstream(2).consistent);
}

#[test]
fn two_upstreams_on_different_branches_extend_the_served_branch() {
    let mut net = Net::new(2);
    for number in 98..=100 {
        net.poll(0, A, number).poll(1, A, number);
    }
    let b = fork(b'b', 98);
    net.poll(1, b, 102).assert_head(Some((A, 100)));
    net.poll(0, A, 101).assert_head(Some((A, 101)));
    net.poll(0, b, 103).assert_head(Some((b, 102)));
}

#[test]
fn a_frozen_upstream_of_two_does_not_hold_the_head_back() {
    let mut net = Net::new(2);
    net.poll(0, A, 100).poll(1, A, 100);
    for number in 101..=102 {
        net.wait(1).poll(0, A, number).poll(1, A, 100).assert_head(Some((A, 100)));
    }
    net.wait(1).poll(0, A, 103).poll(1, A, 100).assert_head(Some((A, 103)));
    assert!(net.has(HeadEvent::UpstreamLagging { upstream: 1, lag: 3 }));
    assert!(!net.upstream(1).at_head);
    assert!(net.upstream(1).consistent);
    net.poll(1, A, 103);
    assert!(net.upstream(1).at_head);
    net.assert_head(Some((A, 103)));
}

#[test]
fn one_false_high_head_of_three_changes_nothing() {
    let mut net = Net::new(3);
    for number in 98..=100 {
        net.poll(0, A, number).poll(1, A, number).poll(2, A, number);
    }
    let rogue = fork(b'r', 100);
    for number in 101..=130 {
        net.wait(1).poll(0, A, number).poll(1, A, number);
        net.poll(2, rogue, number + 1_000_000);
        net.assert_head(Some((A, number)));
        assert!(net.upstream(0).at_head && net.upstream(1).at_head);
    }
    let implausible = HeadEvent::HeadImplausible { upstream: 2, number: 1_000_101 };
    assert!(net.has(implausible));
    assert!(!net.upstream(2).at_head);
    net.poll(2, A, 130);
    assert!(net.upstream(2).at_head, "and it may come back");
}

#[test]
fn one_linked_false_branch_of_three_changes_nothing() {
    let mut net = Net::new(3);
    for number in 98..=100 {
        net.poll(0, A, number).poll(1, A, number).poll(2, A, number);
    }
    let rogue = fork(b'r', 100);
    for number in 101..=160 {
        net.wait(1).poll(2, rogue, number + 14);
        net.poll(0, A, number).poll(1, A, number);
        net.assert_head(Some((A, number)));
    }
}

#[test]
fn a_known_hash_at_another_height_is_never_accepted() {
    let mut net = Net::new(2);
    net.poll(0, A, 100).poll(1, A, 100);
    for number in 101..=140 {
        net.wait(1).poll(0, A, number);
        let mut poll = A.poll_at(number);
        poll.number += 1000;
        net.poll_with(1, A, poll);
    }
    net.assert_head(Some((A, 140)));
    assert_eq!(net.upstream(1).head, Some(100));
}

#[test]
fn a_jump_needs_a_second_witness_or_enough_time_or_repetitions() {
    let mut net = Net::new(2);
    net.poll(0, A, 100).poll(1, A, 100);
    net.poll(0, A, 140).assert_head(Some((A, 100)));
    assert_eq!(net.upstream(0).head, Some(100));
    net.poll(1, A, 140).poll(0, A, 140).assert_head(Some((A, 140)));

    let mut net = Net::new(1);
    net.poll(0, A, 100).wait(60).poll(0, A, 150);
    net.assert_head(Some((A, 150)));

    let mut net = Net::new(1);
    net.poll(0, A, 100).poll(0, A, 150).poll(0, A, 150);
    net.assert_head(Some((A, 100))).poll(0, A, 150).assert_head(Some((A, 150)));
}

#[test]
fn a_syncing_upstream_of_two_is_left_behind_at_the_start() {
    let mut net = Net::new(2);
    net.poll(0, A, 10).poll(1, A, 100_000);
    for step in 1..40 {
        net.wait(1).poll(0, A, 10 + step * 3).poll(1, A, 100_000 + step);
    }
    net.assert_head(Some((A, 100_039)));
    assert!(net.upstream(1).at_head);
    assert!(!net.upstream(0).at_head);
}

#[test]
fn the_head_does_not_go_back_when_its_witnesses_stop_responding() {
    let mut net = Net::new(3);
    for number in 98..=100 {
        net.poll(0, A, number).poll(1, A, number).poll(2, A, number);
    }
    net.poll(0, A, 101).poll(1, A, 101).assert_head(Some((A, 101)));
    net.miss(0, 3).miss(1, 3).assert_head(Some((A, 101)));
    net.poll(2, A, 101).assert_head(Some((A, 101)));
    net.poll(2, A, 102).assert_head(Some((A, 102)));

    let mut net = Net::new(2);
    net.poll(0, A, 100).poll(1, A, 100).poll(0, A, 101).poll(1, A, 101);
    net.poll(1, A, 100).assert_head(Some((A, 101)));
    net.miss(0, 3);
    for _ in 1..FALLEN_HEAD_POLLS {
        net.poll(1, A, 100).assert_head(Some((A, 101)));
    }
    net.poll(1, A, 100).assert_head(Some((A, 100)));
    let old = net.tracker.view().generation;
    let b = fork(b'b', 100);
    net.poll(1, b, 101).assert_head(Some((b, 101)));
    assert!(!net.tracker.view().valid_since(old, 101));
}

#[test]
fn an_upstream_with_an_unlinked_head_is_not_consistent() {
    let mut net = Net::new(2);
    net.poll(0, A, 100).poll(1, A, 100);
    assert!(net.upstream(1).consistent);
    for number in [105, 106] {
        let mut poll = fork(b'x', 90).poll_at(number);
        poll.parent = hash(b'y', number);
        net.now += Duration::from_secs(1);
        net.tracker.observe(1, net.now, poll);
    }
    assert!(!net.upstream(1).consistent && !net.upstream(1).at_head);
    net.assert_head(Some((A, 100))).poll(1, A, 101);
    assert!(net.upstream(1).consistent);
}

#[test]
fn without_any_witness_there_is_no_head() {
    let mut net = Net::new(2);
    net.poll(0, A, 100).poll(1, A, 100);
    let seq = net.tracker.view().head_seq;
    net.miss(0, 3).miss(1, 2).assert_head(Some((A, 100)));
    net.miss(1, 1).assert_head(None);
    assert!(net.tracker.view().head_seq > seq);
    net.poll(1, A, 101).assert_head(Some((A, 101)));
}

#[test]
fn the_finalized_height_is_the_second_lowest_and_stays_without_its_witnesses() {
    let mut net = Net::new(3);
    net.poll_final(0, 100, 90).poll_final(1, 100, 80).poll_final(2, 100, 10);
    assert_eq!(net.tracker.view().finalized, Some(90), "grew while upstreams joined");
    let mut net = Net::new(3);
    net.poll_final(2, 100, 10).poll_final(1, 100, 80).poll_final(0, 100, 90);
    assert_eq!(net.tracker.view().finalized, Some(80));
    assert!(net.tracker.view().is_finalized(80) && !net.tracker.view().is_finalized(81));
    net.miss(0, 3).miss(1, 3);
    for _ in 0..20 {
        net.poll_final(2, 100, 10);
    }
    assert_eq!(net.tracker.view().finalized, Some(80), "upstream 2 never said more");
    assert!(net.events.iter().all(|event| !matches!(event, HeadEvent::FinalizedFell { .. })));
}

#[test]
fn a_lower_finalized_height_invalidates_the_whole_cache_and_is_not_shown() {
    let mut net = Net::new(1);
    net.poll_final(0, 100, 90);
    let old = net.tracker.view().generation;
    net.poll_final(0, 100, 50).poll_final(0, 100, 50);
    assert!(net.tracker.view().is_finalized(90));
    assert!(net.tracker.view().valid_since(old, 50));
    net.poll_final(0, 100, 50);
    let view = net.tracker.view();
    assert_eq!((view.finalized, view.settled), (Some(90), Some(50)));
    assert!(view.is_finalized(50) && !view.is_finalized(51));
    assert!(net.has(HeadEvent::FinalizedFell { from: 90, to: 50 }));
    assert!(!net.tracker.view().valid_since(old, 1));
    net.poll_final(0, 101, 95);
    let view = net.tracker.view();
    assert_eq!((view.finalized, view.settled), (Some(95), Some(95)));
}

#[test]
fn a_finalized_height_counts_only_on_the_branch_of_its_upstream() {
    // The headers of the new branch are missing, so the served chain stays on the old branch.
    let mut net = Net::new(1);
    for number in 90..=100 {
        net.poll_final(0, number, 80);
    }
    let b = fork(b'b', 92);
    let mut poll = b.poll_at(110);
    poll.finalized = Some(105);
    net.tracker.observe(0, net.now, poll);
    net.assert_head(Some((A, 100)));
    assert_eq!(net.tracker.view().settled, Some(80));
    // One of three upstreams is on another branch.
    let mut net = Net::new(3);
    for number in 90..=100 {
        net.poll_final(0, number, 80).poll_final(1, number, 80).poll_final(2, number, 80);
    }
    for upstream in 0..3 {
        let mut poll = b.poll_at(100);
        poll.finalized = Some(99);
        let (chain, poll) = if upstream == 0 { (b, poll) } else { (A, A.poll_at(100)) };
        net.poll_with(upstream, chain, poll);
    }
    net.poll_final(1, 101, 99);
    let view = net.tracker.view();
    assert!(view.settled <= Some(92), "{:?}", view.settled);
}

#[test]
fn a_reorg_below_the_finality_depth_lowers_the_finalized_height() {
    let mut net = Net::with(1, |settings| settings.finality = Finality::Depth(2));
    for number in 95..=100 {
        net.poll(0, A, number);
    }
    let view = net.tracker.view();
    assert_eq!(view.finalized, Some(98));
    assert!(!view.finalized_by_upstreams);
    net.poll(0, fork(b'b', 97), 101);
    assert!(net.has(HeadEvent::FinalizedFell { from: 98, to: 97 }));
    assert!(!net.tracker.view().valid_since(view.generation, 1));
}

#[test]
fn a_depth_is_used_only_if_upstreams_never_report_a_finalized_height() {
    let mut net = Net::with(1, |settings| settings.finality = Finality::FromUpstreamsOr(10));
    for number in 96..=100 {
        assert_eq!(net.tracker.view().finalized, None);
        net.poll(0, A, number);
    }
    assert_eq!(net.tracker.view().finalized, Some(90));
    assert!(!net.tracker.view().finalized_by_upstreams);

    let mut net = Net::with(1, |settings| settings.finality = Finality::FromUpstreamsOr(10));
    for number in 96..=110 {
        net.poll_final(0, number, 70);
    }
    assert_eq!(net.tracker.view().finalized, Some(70));
    assert!(net.tracker.view().finalized_by_upstreams);
}

#[test]
fn a_branch_without_a_common_block_invalidates_all_blocks_that_are_not_final() {
    let mut net = Net::new(1);
    net.poll_final(0, 100, 90);
    let old = net.tracker.view();
    net.wait(1000).poll(0, A, 1000).assert_head(Some((A, 1000)));
    let view = net.tracker.view();
    assert!(view.valid_since(old.generation, 90));
    assert!(!view.valid_since(old.generation, 91));
}

#[test]
fn a_reorg_deeper_than_all_known_blocks_invalidates_final_ones_too() {
    let mut net = Net::new(1);
    for number in 95..=100 {
        net.poll_final(0, number, 70);
    }
    let old = net.tracker.view();
    assert_eq!(old.canonical(70), None, "the final block is below all known blocks");
    let b = fork(b'b', 60);
    net.poll(0, b, 101);
    assert!(!net.tracker.view().valid_since(old.generation, 61));
    for number in 102..105 {
        net.poll(0, b, number);
    }
    net.assert_head(Some((b, 104)));
    assert!(net.events.iter().any(|event| matches!(event, HeadEvent::FinalizedFell { .. })));
}

#[test]
fn the_reorg_log_is_bounded_and_may_only_invalidate_too_much() {
    let mut log = ReorgLog::default();
    for generation in 1..=1000 {
        log.push(generation, generation * 10);
    }
    let view = |generation| ChainView { generation, reorgs: log.clone(), ..ChainView::default() };
    let now = view(1000);
    assert!(now.valid_since(1000, u64::MAX));
    assert!(now.valid_since(990, 9910) && !now.valid_since(990, 9911));
    assert!(now.valid_since(0, 10) && !now.valid_since(0, 11));
    assert!(!now.valid_since(500, 5011), "merged marks may only drop more");
    log.push(1001, 5);
    let now = ChainView { generation: 1001, reorgs: log, ..ChainView::default() };
    assert!(!now.valid_since(1000, 6) && now.valid_since(0, 5));
}

mod random {
    //! Random polls of an honest upstream on a chain with reorgs. The served chain is always a
    //! state of the true chain, and the recorded reorgs cover every change.

    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_lone_honest_upstream_is_followed_exactly(
            steps in proptest::collection::vec((1_u64..4, 0_u64..5), 1..60),
        ) {
            let mut net = Net::new(1);
            // The chain as hashes. Each step drops some blocks and adds more than it dropped.
            let mut chain: Vec<Hash> = (0..100).map(|number| hash(b'a', number)).collect();
            // Cached responses: the generation when each was stored, and the height and hash of its
            // block.
            let mut stored: Vec<(u64, u64, Hash)> = Vec::new();
            for (step, (grow, drop)) in steps.into_iter().enumerate() {
                chain.truncate(chain.len() - drop as usize);
                for _ in 0..grow + drop {
                    chain.push(hash(step as u8, chain.len() as u64));
                }
                let number = chain.len() as u64 - 1;
                let poll = HeadPoll {
                    number,
                    hash: chain[number as usize],
                    parent: chain[number as usize - 1],
                    finalized: None,
                };
                net.wait(1);
                let mut requests = net.tracker.observe(0, net.now, poll).requests;
                while let Some(request) = requests.pop() {
                    let index = request.number as usize;
                    requests.extend(net.tracker.record_header(0, net.now, request.number, chain[index], chain[index - 1]).requests);
                }
                let view = net.tracker.view();
                prop_assert_eq!(view.head.map(|head| head.hash), chain.last().copied());
                for back in 0..8 {
                    if let Some(known) = view.canonical(number - back) {
                        prop_assert_eq!(known, chain[(number - back) as usize]);
                    }
                }
                for &(generation, number, stored) in &stored {
                    if view.valid_since(generation, number) {
                        prop_assert_eq!(stored, chain[number as usize]);
                    }
                }
                for back in 0..3 {
                    stored.push((view.generation, number - back, chain[(number - back) as usize]));
                }
            }
        }
    }
}

#[test]
fn a_replaced_upstream_is_unknown_and_the_chain_stays() {
    let mut net = Net::new(2);
    net.poll(0, A, 20).poll(1, A, 20).poll(0, A, 21).poll(1, A, 21);
    let old = net.tracker.view();
    let settings = net.tracker.settings;
    net.tracker.reconfigure(settings, 3);
    net.tracker.replace_upstream(1, 7);
    let view = net.tracker.view();
    assert_eq!((view.head, view.generation), (old.head, old.generation));
    assert_eq!(view.canonical(21), old.canonical(21));
    let unknown = [7, 0].map(|instance_id| UpstreamView { instance_id, ..UpstreamView::default() });
    assert_eq!(view.upstreams[1..], unknown, "nothing is known of these");
    assert_eq!(
        (view.upstream(1, 7), view.upstream(1, 0), view.upstream(3, 0)),
        (Some(unknown[0]), None, None)
    );
    assert!(view.upstreams[0].at_head);
    // The replacement is a new upstream. So its first report from another branch is not a branch
    // change.
    net.poll(2, A, 22).poll(0, A, 22);
    assert_eq!(net.tracker.view().head.map(|head| head.number), Some(22));
    net.poll(1, fork(b'b', 10), 15);
    assert_eq!(net.tracker.view().generation, old.generation);
    let replacement = net.tracker.view().upstreams[1];
    assert!(!replacement.consistent && replacement.head.is_some(), "{replacement:?}");
    assert_eq!(replacement.instance_id, 7);
}

#[test]
fn new_settings_apply_from_the_next_poll() {
    let mut net = Net::new(2);
    net.poll(0, A, 20).poll(1, A, 20);
    net.poll(0, A, 21).poll(0, A, 22);
    assert!(net.tracker.view().upstreams[1].at_head || net.tracker.view().upstreams[1].lag <= 2);
    let settings = HeadSettings { lag_max: 0, ..net.tracker.settings };
    net.tracker.reconfigure(settings, 0);
    assert_eq!(net.tracker.view().upstreams.len(), 2, "it never shrinks: places are kept");
    net.poll(1, A, 21).poll(0, A, 22);
    let view = net.tracker.view();
    assert!(view.upstreams[0].head > view.upstreams[1].head);
    assert_eq!(view.upstreams[1].at_head, view.upstreams[1].lag == 0);
}
