//! Goal: responses whose validity cannot be checked later are not cached, and all others are.
//! Method: the real method tables with views (chain snapshots) of a head tracker, then a reorg.

use std::time::Duration;

use super::*;
use crate::policy::heads::{Finality, HeadPoll, HeadSettings, HeadTracker};
use crate::policy::plan::{CacheFeatures, Plan, plan};
use wire::call::Params;
use wire::family::Family;
use wire::method::methods_of;

const HEAD: u64 = 100;

fn hash(branch: u8, number: u64) -> Hash {
    let mut hash = [branch; 32];
    hash[24..].copy_from_slice(&number.to_be_bytes());
    hash
}

struct Chain {
    tracker: HeadTracker,
    now: Duration,
}

impl Chain {
    fn new(finality: Finality) -> Self {
        let settings = HeadSettings {
            window: 32,
            finality,
            lag_max: 2,
            jump_max: 64,
            rollback_max: 8,
            block_time: Duration::from_secs(1),
        };
        let mut chain = Self { tracker: HeadTracker::new(settings, 1), now: Duration::ZERO };
        for number in 80..=HEAD {
            chain.poll(b'a', number, hash(b'a', number - 1));
        }
        chain
    }

    fn poll(&mut self, branch: u8, number: u64, parent: Hash) {
        self.now += Duration::from_secs(1);
        let poll = HeadPoll { number, hash: hash(branch, number), parent, finalized: Some(90) };
        self.tracker.observe(0, self.now, poll);
    }

    fn view(&self) -> ChainView {
        self.tracker.view()
    }
}

fn view() -> ChainView {
    Chain::new(Finality::FromUpstreams).view()
}

fn ethereum(name: &str) -> &'static Method {
    methods_of(Family::Ethereum).method(name).unwrap()
}

/// Returns the rule, the resolved height and the minimum head of a call.
fn rule_of(name: &str, block: Option<BlockRef>) -> (CacheRule, Option<u64>, u64) {
    let caching = decide_caching(ethereum(name), block.as_ref(), &view());
    (caching.rule, caching.resolved_height, caching.min_head)
}

fn at_number(number: u64, finalized: bool) -> CacheRule {
    CacheRule::AtNumber { number, finalized }
}

/// The result of [`rule_of`] for a call that is not cached.
const NEVER: (CacheRule, Option<u64>, u64) = (CacheRule::Never, None, 0);

#[test]
fn each_kind_of_block_parameter_has_its_rule() {
    let check = |block, expected| {
        assert_eq!(rule_of("eth_getBalance", Some(block)), expected, "{block:?}");
    };
    check(BlockRef::Number(95), (at_number(95, false), None, 95));
    check(BlockRef::Number(90), (at_number(90, true), None, 90));
    check(BlockRef::Number(0), (at_number(0, true), None, 0));
    check(BlockRef::Number(100), (at_number(100, false), None, 100));
    check(BlockRef::Number(101), NEVER);
    check(BlockRef::Number(u64::MAX), NEVER);
    check(BlockRef::Tag(BlockTag::Latest), (at_number(100, false), Some(100), 100));
    check(BlockRef::Tag(BlockTag::Finalized), (at_number(90, true), Some(90), 90));
    check(BlockRef::Tag(BlockTag::Safe), (CacheRule::AtHead, None, 100));
    check(BlockRef::Tag(BlockTag::Earliest), (CacheRule::AtHead, None, 100));
    check(BlockRef::Tag(BlockTag::Pending), (CacheRule::Never, None, 100));
    check(BlockRef::Hash(hash(b'z', 1)), (CacheRule::AtHash, None, 0));
    check(BlockRef::CanonicalHash(hash(b'a', 98)), (at_number(98, false), None, 98));
    check(BlockRef::CanonicalHash(hash(b'z', 98)), (CacheRule::Never, None, 100));
    assert_eq!(rule_of("eth_getBalance", None), NEVER);
}

#[test]
fn each_kind_of_method_has_its_rule() {
    let hash = Some(BlockRef::Hash(hash(b'a', 99)));
    for (name, block, expected) in [
        ("eth_chainId", None, CacheRule::Constant),
        ("eth_getBlockByHash", hash, CacheRule::AtHash),
        ("eth_getTransactionReceipt", None, CacheRule::AtTransaction),
        ("eth_getTransactionByHash", None, CacheRule::AtTransaction),
        ("eth_gasPrice", None, CacheRule::AtHead),
        ("eth_getLogs", None, CacheRule::Logs),
        ("eth_sendRawTransaction", None, CacheRule::Never),
        ("eth_newFilter", None, CacheRule::Never),
        ("eth_getFilterChanges", None, CacheRule::Never),
        ("txpool_content", None, CacheRule::Never),
    ] {
        assert_eq!(rule_of(name, block).0, expected, "{name}");
    }
}

#[test]
fn methods_that_write_or_are_sticky_are_never_cached() {
    let latest = BlockRef::Tag(BlockTag::Latest);
    let mut count = 0;
    for name in Family::ALL {
        for method in methods_of(name).methods().filter(|method| method.write || method.sticky) {
            count += 1;
            for block in [None, Some(&latest), Some(&BlockRef::Number(5))] {
                assert_eq!(
                    decide_caching(method, block, &view()).rule,
                    CacheRule::Never,
                    "{}",
                    method.name
                );
            }
        }
    }
    assert!(count > 10, "{count}");
}

#[test]
fn the_head_number_is_served_from_the_view() {
    let is_from_view = |name, cache, view: &ChainView| {
        let features = CacheFeatures { cache, coalesce: true };
        let planned = plan(Some(ethereum(name)), &Params::Array(b"[]"), view, features);
        matches!(planned, Plan::Head(HEAD))
    };
    assert!(is_from_view("eth_blockNumber", true, &view()));
    assert!(!is_from_view("eth_blockNumber", false, &view()), "the cache is off");
    assert!(!is_from_view("eth_blockNumber", true, &ChainView::default()));
    assert!(!is_from_view("eth_gasPrice", true, &view()));
}

#[test]
fn without_a_head_only_constants_are_cached() {
    let unknown = ChainView::default();
    for block in
        [BlockRef::Number(5), BlockRef::Tag(BlockTag::Latest), BlockRef::Tag(BlockTag::Safe)]
    {
        let caching = decide_caching(ethereum("eth_getBalance"), Some(&block), &unknown);
        assert_eq!((caching.rule, caching.resolved_height), (CacheRule::Never, None), "{block:?}");
    }
    assert_eq!(decide_caching(ethereum("eth_chainId"), None, &unknown).rule, CacheRule::Constant);
}

#[test]
fn a_configured_finality_depth_does_not_replace_the_tag() {
    let view = Chain::new(Finality::Depth(4)).view();
    assert_eq!(view.finalized, Some(96));
    let finalized = BlockRef::Tag(BlockTag::Finalized);
    let caching = decide_caching(ethereum("eth_getBalance"), Some(&finalized), &view);
    assert_eq!((caching.rule, caching.resolved_height), (CacheRule::AtHead, None));
}

#[test]
fn growing_responses_are_cached_only_behind_the_head() {
    let harmony = methods_of(Family::Harmony);
    let Some(method) = harmony.methods().find(|method| method.blocks_behind_head > 0) else {
        panic!("harmony has a method that the next block completes")
    };
    let newest = BlockRef::Number(HEAD);
    let second_newest = BlockRef::Number(HEAD - method.blocks_behind_head);
    assert_eq!(decide_caching(method, Some(&newest), &view()).rule, CacheRule::Never);
    let decided = decide_caching(method, Some(&second_newest), &view());
    assert_eq!(decided.rule, at_number(HEAD - method.blocks_behind_head, false));
    assert_eq!(decided.min_head, HEAD, "an upstream that has not more itself has not all of it");
}

#[test]
fn growing_responses_are_cached_by_hash_only_behind_the_head() {
    let (_, method) = methods_of(Family::Harmony).find("hmyv2_getBlockByHash").unwrap();
    let by_hash = |number| BlockRef::Hash(hash(0, number));
    for (number, expected) in [(HEAD, Err(RejectReason::AboveHead)), (HEAD - 1, Ok(Binding::Free))]
    {
        let caching = decide_caching(method, Some(&by_hash(number)), &view());
        assert_eq!((caching.rule, caching.min_head), (CacheRule::AtHash, HEAD));
        let response = facts(ResponseKind::Value, method.response_block, named(0, number));
        assert_eq!(binding(admit(&caching, &response, &view())), expected);
    }
    // A response without a block may be about any block.
    let caching = decide_caching(method, Some(&by_hash(HEAD - 1)), &view());
    let response = facts(ResponseKind::Value, method.response_block, None);
    assert_eq!(binding(admit(&caching, &response, &view())), Err(RejectReason::Unnamed));
}

fn named(branch: u8, number: u64) -> Option<(BlockId, BlockId)> {
    let block = BlockId { number, hash: hash(branch, number) };
    Some((block, block))
}

fn facts(
    kind: ResponseKind,
    response_block: ResponseBlock,
    named_blocks: Option<(BlockId, BlockId)>,
) -> ResponseFacts {
    ResponseFacts { kind, response_block, named_blocks }
}

fn value() -> ResponseFacts {
    facts(ResponseKind::Value, ResponseBlock::None, None)
}

fn balance_at(block: BlockRef, view: &ChainView) -> Caching {
    decide_caching(ethereum("eth_getBalance"), Some(&block), view)
}

fn binding(admit: Result<ValidityTag, RejectReason>) -> Result<Binding, RejectReason> {
    admit.map(|tag| tag.binding)
}

#[test]
fn admission_by_number() {
    use ResponseKind::{DeterministicError, Error, Null, Value};
    let view = view();
    let caching = balance_at(BlockRef::Number(95), &view);
    let block = Ok(Binding::Block { number: 95, hash: Some(hash(b'a', 95)) });
    let itself = ResponseBlock::Itself;
    for (response, expected) in [
        (value(), block),
        (facts(DeterministicError, ResponseBlock::None, None), block),
        (facts(Error, ResponseBlock::None, None), Err(RejectReason::Error)),
        (facts(Value, itself, named(b'a', 95)), block),
        (facts(Value, itself, named(b'a', 94)), Err(RejectReason::OtherBlock)),
        (facts(Value, itself, named(b'b', 95)), Err(RejectReason::NotCanonical)),
        (facts(Value, itself, None), Err(RejectReason::Unnamed)),
        (facts(Null, itself, None), Err(RejectReason::Absent)),
        (facts(Null, ResponseBlock::ElementMembers, None), Err(RejectReason::Absent)),
        // The block has no transaction at that index.
        (facts(Null, ResponseBlock::Members, None), Err(RejectReason::Null)),
        (facts(Value, ResponseBlock::ElementMembers, None), block),
    ] {
        assert_eq!(binding(admit(&caching, &response, &view)), expected, "{response:?}");
    }
    assert!(RejectReason::OtherBlock.is_wrong() && RejectReason::NotCanonical.is_wrong());
    assert!(RejectReason::Absent.is_wrong() && !RejectReason::Reorg.is_wrong());
}

#[test]
fn admission_by_transaction() {
    use ResponseKind::{Null, Value};
    let view = view();
    let caching = decide_caching(ethereum("eth_getTransactionReceipt"), None, &view);
    let stored = |number| Ok(Binding::Block { number, hash: Some(hash(b'a', number)) });
    let names = ResponseBlock::Members;
    for (response, expected) in [
        (facts(Value, names, named(b'a', 95)), stored(95)),
        (facts(Value, names, named(b'a', 3)), stored(3)),
        (facts(Value, names, named(b'b', 95)), Err(RejectReason::NotCanonical)),
        (facts(Value, names, named(b'a', 101)), Err(RejectReason::AboveHead)),
        (facts(Value, names, None), Err(RejectReason::Unnamed)),
        (facts(Value, ResponseBlock::None, None), Err(RejectReason::Unnamed)),
        (facts(Null, names, None), Err(RejectReason::Null)),
    ] {
        assert_eq!(binding(admit(&caching, &response, &view)), expected, "{response:?}");
    }
}

#[test]
fn admission_of_constants_hashes_and_head_values() {
    let view = view();
    let null = facts(ResponseKind::Null, ResponseBlock::None, None);
    let revert = facts(ResponseKind::DeterministicError, ResponseBlock::None, None);
    let constant = decide_caching(ethereum("eth_chainId"), None, &view);
    assert_eq!(binding(admit(&constant, &value(), &view)), Ok(Binding::Free));
    assert_eq!(binding(admit(&constant, &null, &view)), Err(RejectReason::Null));
    assert_eq!(binding(admit(&constant, &revert, &view)), Err(RejectReason::Error));
    let by_hash = balance_at(BlockRef::Hash(hash(b'z', 7)), &view);
    assert_eq!(binding(admit(&by_hash, &value(), &view)), Ok(Binding::Free));
    assert_eq!(binding(admit(&by_hash, &revert, &view)), Ok(Binding::Free));
    assert_eq!(binding(admit(&by_hash, &null, &view)), Err(RejectReason::Null));
    let price = decide_caching(ethereum("eth_gasPrice"), None, &view);
    let seq = view.head_seq;
    assert_eq!(binding(admit(&price, &value(), &view)), Ok(Binding::Head { seq }));
    assert_eq!(binding(admit(&price, &revert, &view)), Err(RejectReason::Error));
    let never = balance_at(BlockRef::Tag(BlockTag::Pending), &view);
    assert_eq!(binding(admit(&never, &value(), &view)), Err(RejectReason::Rule));
}

fn tag(caching: &Caching, view: &ChainView) -> ValidityTag {
    admit(caching, &value(), view).unwrap()
}

#[test]
fn head_values_expire_with_the_head_and_block_values_stay() {
    let mut chain = Chain::new(Finality::FromUpstreams);
    let old = chain.view();
    let price = decide_caching(ethereum("eth_gasPrice"), None, &old);
    let price_tag = tag(&price, &old);
    let latest = balance_at(BlockRef::Tag(BlockTag::Latest), &old);
    let latest_tag = tag(&latest, &old);
    assert!(is_valid(&price_tag, &old) && is_valid(&latest_tag, &old));
    chain.poll(b'a', 101, hash(b'a', 100));
    let new = chain.view();
    assert!(!is_valid(&price_tag, &new));
    assert!(is_valid(&latest_tag, &new), "block 100 has not changed");
    assert_eq!(binding(admit(&price, &value(), &new)), Err(RejectReason::HeadMoved));
    assert!(binding(admit(&latest, &value(), &new)).is_ok());
}

#[test]
fn a_reorg_invalidates_its_blocks_and_rejects_late_responses() {
    let mut chain = Chain::new(Finality::FromUpstreams);
    let old = chain.view();
    let at_98 = balance_at(BlockRef::Number(98), &old);
    let at_97 = balance_at(BlockRef::Number(97), &old);
    let by_hash = balance_at(BlockRef::Hash(hash(b'a', 99)), &old);
    let entries = [&at_97, &at_98, &by_hash].map(|caching| tag(caching, &old));
    // Branch b replaces the blocks from 98 on: the upstream reports its blocks 98 to 101.
    for number in [98, 99, 100, 101] {
        let parent = hash(if number == 98 { b'a' } else { b'b' }, number - 1);
        chain.poll(b'b', number, parent);
    }
    let new = chain.view();
    assert_eq!(new.head.map(|head| head.hash), Some(hash(b'b', 101)));
    assert_eq!(entries.map(|tag| is_valid(&tag, &new)), [true, false, true]);
    assert_eq!(binding(admit(&at_98, &value(), &new)), Err(RejectReason::Reorg));
    assert!(binding(admit(&at_97, &value(), &new)).is_ok());
    let again = tag(&balance_at(BlockRef::Number(98), &new), &new);
    assert_eq!(again.binding, Binding::Block { number: 98, hash: Some(hash(b'b', 98)) });
    assert!(is_valid(&again, &new));
}

#[test]
fn with_all_upstreams_silent_only_final_blocks_are_served() {
    let mut chain = Chain::new(Finality::FromUpstreams);
    let view = chain.view();
    let [old, young] =
        [85, 95].map(|number| tag(&balance_at(BlockRef::Number(number), &view), &view));
    for _ in 0..3 {
        chain.tracker.record_missed_poll(0, chain.now);
    }
    let silent = chain.view();
    assert_eq!(silent.head, None);
    assert!(is_valid(&old, &silent) && !is_valid(&young, &silent));
    let caching = balance_at(BlockRef::Number(85), &silent);
    assert_eq!(caching.rule, at_number(85, true), "still looked for");
    assert_eq!(balance_at(BlockRef::Number(95), &silent).rule, CacheRule::Never);
}

#[test]
fn logs_of_a_range_are_valid_as_long_as_its_last_block() {
    let view = view();
    let part = crate::policy::logs::Part { from: 92, to: 97, finalized: false };
    let caching = part.caching(&view);
    let named = |first: u64, last: u64, letter: u8| {
        let block = |number| BlockId { number, hash: hash(letter, number) };
        let named_blocks = Some((block(first), block(last)));
        ResponseFacts {
            kind: ResponseKind::Value,
            response_block: ResponseBlock::ElementMembers,
            named_blocks,
        }
    };
    let unknown = ResponseFacts { named_blocks: None, ..named(92, 97, b'a') };
    let bound = Binding::Block { number: 97, hash: Some(hash(b'a', 97)) };
    for good in [named(92, 97, b'a'), named(95, 95, b'a'), unknown] {
        let tag = admit(&caching, &good, &view).unwrap();
        assert_eq!(tag.binding, bound);
    }
    assert_eq!(admit(&caching, &named(91, 97, b'a'), &view), Err(RejectReason::OtherBlock));
    assert_eq!(admit(&caching, &named(92, 98, b'a'), &view), Err(RejectReason::OtherBlock));
    assert_eq!(admit(&caching, &named(95, 97, b'z'), &view), Err(RejectReason::NotCanonical));
}

#[test]
fn without_a_head_only_upstreams_at_the_last_head_get_calls_about_the_head() {
    let mut chain = Chain::new(Finality::FromUpstreams);
    for _ in 0..5 {
        chain.now += Duration::from_secs(1);
        chain.tracker.record_missed_poll(0, chain.now);
    }
    let headless = chain.view();
    assert_eq!((headless.head, headless.last_served_height), (None, Some(HEAD)));
    let latest = BlockRef::Tag(BlockTag::Latest);
    for (name, block) in
        [("eth_getBalance", Some(&latest)), ("eth_blockNumber", None), ("eth_gasPrice", None)]
    {
        let caching = decide_caching(ethereum(name), block, &headless);
        assert_eq!((caching.rule, caching.min_head), (CacheRule::Never, HEAD), "{name}");
        assert_eq!(
            decide_caching(ethereum(name), block, &ChainView::default()).min_head,
            0,
            "{name}"
        );
    }
}
