//! Goal: a response is shared only with evidence of its block, and is *adopted* (used) only by
//! replicas that serve that block. Method: views of a forking chain, as a replica's head tracker
//! builds them.

use std::time::Duration;

use wire::block::BlockId;
use wire::block::ResponseBlock;

use super::*;
use crate::policy::branch::Hash;
use crate::policy::cacheable::ResponseKind;
use crate::policy::heads::{Finality, HeadPoll, HeadSettings, HeadTracker};

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
            block_time: Duration::from_secs(1),
        };
        let tracker = HeadTracker::new(settings, 1);
        let mut replica = Self { tracker, now: Duration::ZERO };
        (first..=HEAD).for_each(|number| replica.poll(b'a', number));
        replica
    }

    fn poll(&mut self, branch: u8, number: u64) {
        self.now += Duration::from_secs(1);
        // The branches fork above 97.
        let parent =
            if number - 1 > 97 { hash(branch, number - 1) } else { hash(b'a', number - 1) };
        let finalized = Some(FINAL.min(number));
        let poll = HeadPoll { number, hash: hash(branch, number), parent, finalized };
        let step = self.tracker.observe(0, self.now, poll);
        let mut requests = step.requests;
        while let Some(request) = requests.pop() {
            let hash_at = |number: u64| hash(if number > 97 { branch } else { b'a' }, number);
            let (block, parent) = (hash_at(request.number), hash_at(request.number - 1));
            requests.extend(
                self.tracker.record_header(0, self.now, request.number, block, parent).requests,
            );
        }
    }

    fn view(&self) -> ChainView {
        self.tracker.view()
    }
}

fn at_number(number: u64) -> CacheRule {
    CacheRule::AtNumber { number, finalized: false }
}

fn tag(number: u64, hash: Option<Hash>, view: &ChainView) -> ValidityTag {
    let binding = Binding::Block { number, hash };
    ValidityTag { binding, generation: view.generation, is_null: false }
}

#[test]
fn a_response_is_shared_only_with_evidence_of_its_block() {
    let view = Replica::new().view();
    let plain = ResponseFacts {
        kind: ResponseKind::Value,
        response_block: ResponseBlock::None,
        named_blocks: None,
    };
    let name = BlockId { number: 99, hash: hash(b'a', 99) };
    let named = ResponseFacts { named_blocks: Some((name, name)), ..plain };
    let young = tag(99, Some(hash(b'a', 99)), &view);
    assert_eq!(find_proof(at_number(99), &young, &plain, &view), Proof::NextPoll);
    assert_eq!(find_proof(at_number(99), &young, &named, &view), Proof::Given);
    assert_eq!(find_proof(CacheRule::AtTransaction, &young, &named, &view), Proof::Given);
    // The logs of some blocks of a range prove nothing about the others.
    let range = CacheRule::AtRange { from: 95, to: 99 };
    assert_eq!(find_proof(range, &young, &named, &view), Proof::NextPoll);
    assert_eq!(find_proof(at_number(FINAL), &tag(FINAL, None, &view), &plain, &view), Proof::Given);
    let head = ValidityTag { binding: Binding::Head { seq: view.head_seq }, ..young };
    assert_eq!(find_proof(CacheRule::AtHead, &head, &plain, &view), Proof::NextPoll);
    let null = ValidityTag { is_null: true, ..young };
    assert_eq!(find_proof(at_number(99), &null, &plain, &view), Proof::None);
    assert_eq!(to_shareable(&null, &view), None);
}

#[test]
fn a_response_about_a_dropped_block_is_not_shared() {
    let mut replica = Replica::new();
    let view_before = replica.view();
    let young = tag(99, view_before.canonical(99), &view_before);
    let old = tag(96, view_before.canonical(96), &view_before);
    assert!(to_shareable(&young, &view_before).is_some());
    replica.poll(b'b', 100);
    assert_eq!(to_shareable(&young, &replica.view()), None);
    // The first branch returns, so the block with the response's hash is served again. But the
    // response may come from the other branch, so it is still not shared.
    replica.poll(b'a', 101);
    assert_eq!(replica.view().canonical(99), Some(hash(b'a', 99)));
    assert_eq!(to_shareable(&young, &replica.view()), None);
    let stands = ShareableTag::Block { number: 96, hash: hash(b'a', 96) };
    assert_eq!(to_shareable(&old, &replica.view()), Some(stands));
}

#[test]
fn only_responses_about_served_blocks_are_adopted() {
    let mut replica = Replica::new();
    let is_adopted = |shareable_tag: &ShareableTag, rule: CacheRule, view: &ChainView| {
        adopt(shareable_tag, rule, view).is_some()
    };
    let block =
        |branch: u8, number: u64| ShareableTag::Block { number, hash: hash(branch, number) };
    let view = replica.view();
    assert!(is_adopted(&block(b'a', 99), at_number(99), &view));
    assert!(!is_adopted(&block(b'b', 99), at_number(99), &view));
    assert!(
        !is_adopted(&block(b'a', 99), at_number(98), &view),
        "another block than was asked for"
    );
    assert!(!is_adopted(&block(b'a', 101), at_number(101), &view), "above the head");
    assert!(is_adopted(&block(b'a', 99), CacheRule::AtTransaction, &view));
    assert!(is_adopted(&block(b'a', 99), CacheRule::AtRange { from: 95, to: 99 }, &view));
    assert!(!is_adopted(&block(b'a', 99), CacheRule::Constant, &view));
    assert!(
        is_adopted(&ShareableTag::Free, CacheRule::AtHash, &view)
            && !is_adopted(&ShareableTag::Free, at_number(99), &view)
    );
    let head = |branch| ShareableTag::Head { number: HEAD, hash: hash(branch, HEAD) };
    assert!(is_adopted(&head(b'a'), CacheRule::AtHead, &view));
    assert!(
        !is_adopted(&head(b'b'), CacheRule::AtHead, &view)
            && !is_adopted(&head(b'a'), at_number(HEAD), &view)
    );

    replica.poll(b'b', 100);
    let view = replica.view();
    assert!(
        !is_adopted(&block(b'a', 99), at_number(99), &view)
            && is_adopted(&block(b'b', 99), at_number(99), &view)
    );
    assert!(is_adopted(&block(b'a', 97), at_number(97), &view), "below the fork nothing changed");
    assert!(!is_adopted(&head(b'a'), CacheRule::AtHead, &view));
}

#[test]
fn below_the_window_only_responses_that_were_final_when_stored_are_adopted() {
    let view = Replica::new().view();
    assert_eq!(view.canonical(80), None, "80 is below the window");
    let final_block = |number, hash| ShareableTag::Final { number, hash };
    let adopt_here =
        |shareable_tag: &ShareableTag, number| adopt(shareable_tag, at_number(number), &view);
    assert!(adopt_here(&final_block(80, None), 80).is_some());
    assert!(adopt_here(&final_block(80, Some(hash(b'z', 80))), 80).is_some());
    // The block was not final when the response was stored. A reorg may have dropped it since.
    assert!(adopt_here(&ShareableTag::Block { number: 80, hash: hash(b'a', 80) }, 80).is_none());
    // Within the window a hash is compared, final or not.
    assert!(adopt_here(&final_block(88, Some(hash(b'z', 88))), 88).is_none());
    assert!(adopt_here(&final_block(88, Some(hash(b'a', 88))), 88).is_some());
    // The block is final only in the view of the other replica.
    assert!(adopt_here(&final_block(95, None), 95).is_none());
    assert!(adopt_here(&final_block(95, Some(hash(b'a', 95))), 95).is_some());
    // A replica without a view accepts nothing that depends on a block.
    let blind = ChainView::default();
    assert!(adopt(&final_block(80, None), at_number(80), &blind).is_none());
    assert!(adopt(&ShareableTag::Free, CacheRule::Constant, &blind).is_some());
}
