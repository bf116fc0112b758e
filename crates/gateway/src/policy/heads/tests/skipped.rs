//! Goal: the head passes heights that have no block, and no other height counts as skipped. Method:
//! a chain that skips every tenth height, one to three upstreams, and polls that skip blocks.

use super::*;

/// A chain that skips the heights 9, 19, 29 and so on.
fn is_skipped(number: u64) -> bool {
    number % 10 == 9
}

fn poll_at(number: u64) -> HeadPoll {
    let below = number - 1;
    let parent = if is_skipped(below) { below - 1 } else { below };
    HeadPoll { number, hash: A.hash(number), parent: A.hash(parent), finalized: None }
}

impl Net {
    /// Polls an upstream of the skipping chain, and responds to all header requests. `lacks` is
    /// true for further heights of which the upstream returns no header.
    fn poll_skipping(&mut self, upstream: usize, number: u64, lacks: impl Fn(u64) -> bool) {
        self.now += Duration::from_millis(100);
        let step = self.tracker.observe(upstream, self.now, poll_at(number));
        let mut requests = std::collections::VecDeque::from(step.requests);
        for _ in 0..1000 {
            let Some(HeaderRequest { upstream, number }) = requests.pop_front() else { return };
            let step = if is_skipped(number) || lacks(number) {
                self.tracker.record_no_header(upstream, self.now, number)
            } else {
                let HeadPoll { hash, parent, .. } = poll_at(number);
                self.tracker.record_header(upstream, self.now, number, hash, parent)
            };
            requests.extend(step.requests);
            self.events.extend(step.events);
        }
        panic!("a walk comes to rest");
    }
}

#[test]
fn the_head_passes_skipped_heights() {
    for upstreams in 1..=3 {
        for blocks_per_poll in [1, 3, 7, 25] {
            let mut net = Net::with(upstreams, |settings| settings.jump_max = 32);
            for number in (101..200).step_by(blocks_per_poll).filter(|n| !is_skipped(*n)) {
                let polled = 0..upstreams;
                polled.for_each(|upstream| net.poll_skipping(upstream, number, |_| false));
                net.assert_head(Some((A, number)));
                let view = net.tracker.view();
                for height in number - 12..=number {
                    let expected = (!is_skipped(height)).then(|| A.hash(height));
                    assert_eq!(view.canonical(height), expected, "{height} at {number}");
                    assert_eq!(view.is_skipped(height), is_skipped(height));
                    if let Some(hash) = expected {
                        assert_eq!(view.number_of(hash), Some(height));
                    }
                }
                assert!(view.upstreams.iter().all(|upstream| upstream.at_head));
            }
            assert_eq!(net.tracker.view().generation, 0, "no reorg happened");
        }
    }
}

#[test]
fn the_fill_passes_skipped_heights() {
    let mut net = Net::new(1);
    net.poll_skipping(0, 120, |_| false);
    let view = net.tracker.view();
    assert!(view.is_skipped(119));
    assert_eq!(view.canonical(118), Some(A.hash(118)));
    assert_eq!(view.canonical(110), Some(A.hash(110)));
}

#[test]
fn a_block_that_an_upstream_lacks_for_a_moment_is_not_skipped() {
    let mut net = Net::new(1);
    net.poll_skipping(0, 100, |_| false);
    net.poll_skipping(0, 106, |number| number == 103);
    net.assert_head(Some((A, 100)));
    net.poll_skipping(0, 107, |_| false);
    net.assert_head(Some((A, 107)));
    let view = net.tracker.view();
    assert_eq!((view.canonical(103), view.is_skipped(103)), (Some(A.hash(103)), false));
    assert_eq!(view.generation, 0);
}

#[test]
fn an_upstream_without_old_blocks_skips_none() {
    let mut net = Net::new(1);
    net.poll_skipping(0, 105, |_| true);
    for number in 100..104 {
        let view = net.tracker.view();
        assert_eq!((view.is_skipped(number), view.canonical(number)), (false, None), "{number}");
    }
    // All blocks between two polls are missing, until the new branch replaces the old one.
    net.wait(1000);
    for number in [180, 181, 182] {
        net.poll_skipping(0, number, |_| true);
    }
    net.assert_head(Some((A, 182)));
    let view = net.tracker.view();
    assert!((110..170).all(|number| !view.is_skipped(number) && view.canonical(number).is_none()));
}

#[test]
fn a_reorg_replaces_skipped_heights() {
    let mut net = Net::new(1);
    for number in [115, 116, 117, 118, 120, 121] {
        net.poll_skipping(0, number, |_| false);
    }
    let old = net.tracker.view();
    assert!(old.is_skipped(119));
    let b = fork(b'b', 118);
    net.poll(0, b, 122).assert_head(Some((b, 122)));
    let view = net.tracker.view();
    assert_eq!(view.canonical(119), Some(b.hash(119)));
    assert!(view.valid_since(old.generation, 118) && !view.valid_since(old.generation, 119));
}

/// A chain that skips all heights from `first` up to the one below `next`.
struct Gap {
    first: u64,
    next: u64,
}

impl Gap {
    fn poll_at(&self, number: u64) -> HeadPoll {
        let parent = if number == self.next { self.first - 1 } else { number - 1 };
        HeadPoll { number, hash: A.hash(number), parent: A.hash(parent), finalized: None }
    }

    fn poll(&self, net: &mut Net, upstream: usize, number: u64) {
        net.now += Duration::from_millis(100);
        let step = net.tracker.observe(upstream, net.now, self.poll_at(number));
        let mut requests = std::collections::VecDeque::from(step.requests);
        while let Some(HeaderRequest { upstream, number }) = requests.pop_front() {
            let step = if (self.first..self.next).contains(&number) {
                net.tracker.record_no_header(upstream, net.now, number)
            } else {
                let HeadPoll { hash, parent, .. } = self.poll_at(number);
                net.tracker.record_header(upstream, net.now, number, hash, parent)
            };
            requests.extend(step.requests);
        }
    }
}

#[test]
fn many_skipped_heights_in_a_row_are_passed() {
    for (length, upstreams) in [2, 5, 40, 300, 10_000]
        .into_iter()
        .flat_map(|length| [1, 2, 3].map(|count| (length, count)))
    {
        // Without the wait, the chain jumps to a height that the block time does not allow.
        for waits in [true, false] {
            let mut net = Net::new(upstreams);
            let gap = Gap { first: 121, next: 121 + length };
            for number in 100..=120 {
                (0..upstreams).for_each(|upstream| gap.poll(&mut net, upstream, number));
            }
            if waits {
                net.wait(length);
            }
            let mut polls = 0;
            for number in gap.next.. {
                (0..upstreams).for_each(|upstream| gap.poll(&mut net, upstream, number));
                polls += 1;
                let head = net.tracker.view().head.map(|head| head.number);
                if head == Some(number) {
                    break;
                }
                assert!(polls <= 3, "{length} heights, {upstreams} upstreams: {head:?}");
            }
            let view = net.tracker.view();
            let mut skipped = gap.first..gap.next;
            assert!(skipped.all(|number| view.canonical(number).is_none()));
        }
    }
}
