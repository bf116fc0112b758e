//! Goal: a subscriber that applies the changes has the served chain, even if it skips views
//! (snapshots of the chain). Method: random chains under a head tracker with one upstream, followed
//! by two cursors at different times.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::policy::heads::{Finality, HeadPoll, HeadSettings, HeadTracker};

/// An upstream's chain, and a tracker that follows it.
struct Net {
    blocks: Vec<[u8; 32]>,
    /// Number of blocks created so far. Each hash contains it, so all hashes differ.
    created: u64,
    tracker: HeadTracker,
    now: Duration,
}

impl Net {
    fn new(length: u64) -> Net {
        let settings = HeadSettings {
            window: 32,
            finality: Finality::FromUpstreams,
            lag_max: 2,
            jump_max: 1000,
            rollback_max: 8,
            block_time: Duration::from_secs(1),
        };
        let tracker = HeadTracker::new(settings, 1);
        let mut net = Net { blocks: Vec::new(), created: 0, tracker, now: Duration::ZERO };
        net.extend(length);
        net
    }

    fn extend(&mut self, blocks: u64) {
        for _ in 0..blocks {
            self.created += 1;
            let mut hash = [0; 32];
            hash[..8].copy_from_slice(&self.created.to_be_bytes());
            self.blocks.push(hash);
        }
    }

    /// Leaves the next height without a block. A skipped height has the hash of the height below it.
    fn skip(&mut self) {
        self.blocks.extend(self.blocks.last().copied());
    }

    /// Replaces the newest `depth` blocks by as many other blocks and `longer` more.
    fn reorg(&mut self, depth: usize, longer: u64) {
        self.blocks.truncate(self.blocks.len() - depth);
        self.extend(depth as u64 + longer);
    }

    fn poll(&mut self) {
        self.now += Duration::from_secs(1);
        let number = self.blocks.len() as u64 - 1;
        let parent = self.parent(number);
        let hash = self.blocks[number as usize];
        let poll = HeadPoll { number, hash, parent, finalized: None };
        let mut requests = self.tracker.observe(0, self.now, poll).requests;
        while let Some(request) = requests.pop() {
            let hash = self.blocks[request.number as usize];
            let parent = self.parent(request.number);
            let step = if hash == parent {
                self.tracker.record_no_header(0, self.now, request.number)
            } else {
                self.tracker.record_header(0, self.now, request.number, hash, parent)
            };
            requests.extend(step.requests);
        }
    }

    fn parent(&self, number: u64) -> [u8; 32] {
        number.checked_sub(1).map_or([0; 32], |below| self.blocks[below as usize])
    }

    fn view(&self) -> ChainView {
        self.tracker.view()
    }
}

fn head(net: &Net, number: usize) -> Head {
    Head { number: number as u64, hash: net.blocks[number] }
}

#[test]
fn dropped_blocks_come_first_and_from_the_newest_down() {
    let mut net = Net::new(20);
    net.poll();
    let mut cursor = ChainCursor::at_head(&net.view(), 16).unwrap();
    assert_eq!(cursor.find_changes(&net.view()), Ok(Vec::new()));
    let (old_18, old_19) = (head(&net, 18), head(&net, 19));
    net.reorg(2, 1);
    net.poll();
    let changes = cursor.find_changes(&net.view()).unwrap();
    let expected = [
        Change::Dropped(old_19),
        Change::Dropped(old_18),
        Change::Added(head(&net, 18)),
        Change::Added(head(&net, 19)),
        Change::Added(head(&net, 20)),
    ];
    assert_eq!(changes, expected);
    for change in changes {
        cursor.follow(change);
    }
    assert_eq!(cursor.top(), Some(head(&net, 20)));
    assert_eq!(cursor.find_changes(&net.view()), Ok(Vec::new()));
}

#[test]
fn skipped_heights_are_no_changes() {
    let mut net = Net::new(20);
    net.poll();
    let mut cursor = ChainCursor::at_head(&net.view(), 16).unwrap();
    let old = head(&net, 19);
    net.skip();
    net.extend(1);
    net.poll();
    let changes = cursor.find_changes(&net.view()).unwrap();
    assert_eq!(changes, [Change::Added(head(&net, 21))]);
    changes.into_iter().for_each(|change| cursor.follow(change));
    let skipping = head(&net, 21);
    // The new branch has a block at the skipped height, and skips the height of an old block.
    net.reorg(3, 0);
    net.blocks.truncate(19);
    net.skip();
    net.extend(3);
    net.poll();
    let changes = cursor.find_changes(&net.view()).unwrap();
    let added = [20, 21, 22].map(|number| Change::Added(head(&net, number)));
    assert_eq!(changes[..2], [Change::Dropped(skipping), Change::Dropped(old)]);
    assert_eq!(changes[2..], added);
    changes.into_iter().for_each(|change| cursor.follow(change));
    assert_eq!(cursor.find_changes(&net.view()), Ok(Vec::new()));
}

#[test]
fn changes_too_deep_to_follow_are_an_error() {
    let mut net = Net::new(20);
    net.poll();
    let cursor = ChainCursor::at_head(&net.view(), 4).unwrap();
    net.reorg(6, 1);
    net.poll();
    assert_eq!(
        cursor.find_changes(&net.view()),
        Err(NoCommonBlock),
        "a reorg below all that it remembers"
    );
    let mut net = Net::new(20);
    net.poll();
    let cursor = ChainCursor::at_head(&net.view(), 16).unwrap();
    for _ in 0..8 {
        net.extend(8);
        net.poll();
    }
    assert_eq!(
        cursor.find_changes(&net.view()),
        Err(NoCommonBlock),
        "the view has forgotten where it left off"
    );
    assert!(ChainCursor::at_head(&ChainView::default(), 4).is_none());
    assert_eq!(cursor.find_changes(&ChainView::default()), Ok(Vec::new()), "nobody knows a head");
}

#[test]
fn a_cursor_extends_down() {
    let mut net = Net::new(20);
    net.poll();
    let full = net.view();
    let cursor_at = |hash: [u8; 32]| {
        let mut blocks = Branch::default();
        blocks.restart(19, [hash]);
        let mut cursor = ChainCursor { blocks, length_max: 8 };
        cursor.extend_down(&full);
        cursor.blocks
    };
    let extended = cursor_at(net.blocks[19]);
    assert_eq!((extended.bottom(), extended.len()), (12, 8));
    assert_eq!(cursor_at([7; 32]).len(), 1, "another branch is not below it");
}

proptest! {
    #[test]
    fn changes_lead_to_the_served_chain(
        steps in proptest::collection::vec(
            (0usize..8, 0u64..5, any::<bool>(), any::<bool>(), any::<bool>()), 1..60
        )
    ) {
        let mut net = Net::new(20);
        net.poll();
        let cursor = ChainCursor::at_head(&net.view(), 32).unwrap();
        let known: Vec<[u8; 32]> = net.blocks.clone();
        let mut subscribers = [(cursor.clone(), known.clone()), (cursor, known)];
        for (depth, blocks, skips, first, second) in steps {
            // Each step grows the chain, with or without a reorg. A reorg makes the chain longer.
            // `skips` is true if the step then skips a height. `first` and `second` are true if the
            // subscriber with this position polls.
            if depth > 2 { net.extend(blocks) } else { net.reorg(depth, blocks + 1) }
            if skips {
                net.skip();
                net.extend(1);
            }
            net.poll();
            let view = net.view();
            for ((cursor, known), polls) in subscribers.iter_mut().zip([first, second]) {
                if !polls {
                    continue;
                }
                cursor.extend_down(&view);
                let Ok(changes) = cursor.find_changes(&view) else {
                    *cursor = ChainCursor::at_head(&view, 32).unwrap();
                    *known = net.blocks.clone();
                    continue;
                };
                for change in changes {
                    cursor.follow(change);
                    match change {
                        Change::Dropped(head) => {
                            prop_assert_eq!(known.last(), Some(&head.hash));
                            while known.last() == Some(&head.hash) {
                                known.pop();
                            }
                        }
                        Change::Added(head) => {
                            let parent = *known.last().unwrap();
                            known.resize(head.number as usize, parent);
                            known.push(head.hash);
                        }
                    }
                }
                prop_assert_eq!(&*known, &*net.blocks);
                prop_assert_eq!(cursor.top(), view.head);
            }
        }
    }
}
