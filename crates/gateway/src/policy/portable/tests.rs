//! Goal: an answer leaves the process only when it is about the block that it names, and is used
//! elsewhere only where that block is served. Method: two replicas' views of one chain that forks,
//! made by head trackers.

use std::time::Duration;

use wire::block::BlockId;
use wire::block::ResponseBlock;

use super::*;
use crate::policy::cacheable::ResponseKind;
use crate::policy::heads::{Finality, Hash, HeadPoll, HeadSettings, HeadTracker};

const HEAD: u64 = 100;
const FINAL: u64 = 90;

fn hash(branch: u8, number: u64) -> Hash {
    let mut hash = [branch; 32];
    hash[24..].copy_from_slice(&number.to_be_bytes());
    hash
}

/// A replica that follows one upstream.
struct Replica {
    tracker: HeadTracker,
    now: Duration,
}

impl Replica {
    fn new() -> Self {
        Self::from(70)
    }

    fn from(first: u64) -> Self {
        let settings = HeadSettings {
            window: 16,
            finality: Finality::FromUpstreams,
            lag_max: 2,
            jump_max: 64,
            rollback_max: 8,
            rollback_polls: 3,
            missed_max: 3,
            block_time: Duration::from_secs(1),
        };
        let tracker = HeadTracker::new(settings, 1);
        let mut replica = Self { tracker, now: Duration::ZERO };
        (first..=HEAD).for_each(|number| replica.see(b'a', number));
        replica
    }

    fn see(&mut self, branch: u8, number: u64) {
        self.now += Duration::from_secs(1);
        // Branches part above 97.
        let parent =
            if number - 1 > 97 { hash(branch, number - 1) } else { hash(b'a', number - 1) };
        let finalized = Some(FINAL.min(number));
        let poll = HeadPoll { number, hash: hash(branch, number), parent, finalized };
        let step = self.tracker.observe(0, self.now, poll);
        let mut requests = step.requests;
        while let Some(request) = requests.pop() {
            let at = |number: u64| hash(if number > 97 { branch } else { b'a' }, number);
            let (own, parent) = (at(request.number), at(request.number - 1));
            requests.extend(self.tracker.header(0, self.now, request.number, own, parent).requests);
        }
    }

    fn view(&self) -> ChainView {
        self.tracker.view()
    }
}

fn at(number: u64) -> CacheRule {
    CacheRule::AtNumber { number, finalized: false }
}

fn kept(number: u64, hash: Option<Hash>, view: &ChainView) -> ValidityTag {
    let binding = Binding::Block { number, hash };
    ValidityTag { binding, generation: view.generation, null: false }
}

#[test]
fn an_answer_needs_a_proof_of_its_block_before_it_leaves() {
    let view = Replica::new().view();
    let plain = ResponseFacts {
        kind: ResponseKind::Value,
        response_block: ResponseBlock::None,
        named: None,
    };
    let name = BlockId { number: 99, hash: hash(b'a', 99) };
    let named = ResponseFacts { named: Some((name, name)), ..plain };
    let young = kept(99, Some(hash(b'a', 99)), &view);
    assert_eq!(proof(at(99), &young, &plain, &view), Proof::NextPoll);
    assert_eq!(proof(at(99), &young, &named, &view), Proof::Given);
    assert_eq!(proof(CacheRule::AtTransaction, &young, &named, &view), Proof::Given);
    // The logs of some blocks of a range say nothing of the others.
    let range = CacheRule::AtRange { from: 95, to: 99 };
    assert_eq!(proof(range, &young, &named, &view), Proof::NextPoll);
    assert_eq!(proof(at(FINAL), &kept(FINAL, None, &view), &plain, &view), Proof::Given);
    let head = ValidityTag { binding: Binding::Head { seq: view.head_seq }, ..young };
    assert_eq!(proof(CacheRule::AtHead, &head, &plain, &view), Proof::NextPoll);
    let null = ValidityTag { null: true, ..young };
    assert_eq!(proof(at(99), &null, &plain, &view), Proof::None);
    assert_eq!(bond(&null, &view), None);
}

#[test]
fn what_a_reorg_touched_meanwhile_does_not_leave() {
    let mut replica = Replica::new();
    let began = replica.view();
    let young = kept(99, began.canonical(99), &began);
    let old = kept(96, began.canonical(96), &began);
    assert!(bond(&young, &began).is_some());
    replica.see(b'b', 100);
    assert_eq!(bond(&young, &replica.view()), None);
    // And back again: the hash is served once more, but whose answer it was is unknown.
    replica.see(b'a', 101);
    assert_eq!(replica.view().canonical(99), Some(hash(b'a', 99)));
    assert_eq!(bond(&young, &replica.view()), None);
    let stands = Bond::Block { number: 96, hash: hash(b'a', 96) };
    assert_eq!(bond(&old, &replica.view()), Some(stands));
}

#[test]
fn only_what_is_served_here_is_taken() {
    let mut replica = Replica::new();
    let take = |bond: &Bond, rule: CacheRule, view: &ChainView| adopt(bond, rule, view).is_some();
    let block = |branch: u8, number: u64| Bond::Block { number, hash: hash(branch, number) };
    let view = replica.view();
    assert!(take(&block(b'a', 99), at(99), &view));
    assert!(!take(&block(b'b', 99), at(99), &view));
    assert!(!take(&block(b'a', 99), at(98), &view), "another block than was asked for");
    assert!(!take(&block(b'a', 101), at(101), &view), "above the head");
    assert!(take(&block(b'a', 99), CacheRule::AtTransaction, &view));
    assert!(take(&block(b'a', 99), CacheRule::AtRange { from: 95, to: 99 }, &view));
    assert!(!take(&block(b'a', 99), CacheRule::Constant, &view));
    assert!(take(&Bond::Free, CacheRule::AtHash, &view) && !take(&Bond::Free, at(99), &view));
    let head = |branch| Bond::Head { number: HEAD, hash: hash(branch, HEAD) };
    assert!(take(&head(b'a'), CacheRule::AtHead, &view));
    assert!(!take(&head(b'b'), CacheRule::AtHead, &view) && !take(&head(b'a'), at(HEAD), &view));

    replica.see(b'b', 100);
    let view = replica.view();
    assert!(!take(&block(b'a', 99), at(99), &view) && take(&block(b'b', 99), at(99), &view));
    assert!(take(&block(b'a', 97), at(97), &view), "below the fork nothing changed");
    assert!(!take(&head(b'a'), CacheRule::AtHead, &view));
}

#[test]
fn below_the_window_only_what_was_final_when_stored_is_taken() {
    let view = Replica::new().view();
    assert_eq!(view.canonical(80), None, "80 is below the window");
    let final_block = |number, hash| Bond::Final { number, hash };
    let here = |bond: &Bond, number| adopt(bond, at(number), &view);
    assert!(here(&final_block(80, None), 80).is_some());
    assert!(here(&final_block(80, Some(hash(b'z', 80))), 80).is_some());
    // It was stored while a reorg could still drop it, and perhaps one did.
    assert!(here(&Bond::Block { number: 80, hash: hash(b'a', 80) }, 80).is_none());
    // Within the window a hash is compared, final or not.
    assert!(here(&final_block(88, Some(hash(b'z', 88))), 88).is_none());
    assert!(here(&final_block(88, Some(hash(b'a', 88))), 88).is_some());
    // Final there and not here.
    assert!(here(&final_block(95, None), 95).is_none());
    assert!(here(&final_block(95, Some(hash(b'a', 95))), 95).is_some());
    // A replica that knows nothing yet takes nothing that depends on a block.
    let blind = ChainView::default();
    assert!(adopt(&final_block(80, None), at(80), &blind).is_none());
    assert!(adopt(&Bond::Free, CacheRule::Constant, &blind).is_some());
}
