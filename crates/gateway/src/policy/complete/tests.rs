//! Goal: incomplete responses are neither trusted nor cached, and complete ones are trusted and
//! cached. If a bloom filter only matches by chance, the response is cached in the end. A *young*
//! block may not be indexed yet, and the *depth* of an upstream is the number of blocks below the
//! head at which it has returned logs. Method: a chain of 20 seconds with one header a second, and
//! responses about chosen blocks.

use super::*;
use crate::policy::block_headers::tests::block;
use crate::policy::heads::{Finality, HeadPoll, HeadSettings, HeadTracker};

const BOTTOM: u64 = 1_000;
const HEAD: u64 = 1_020;
/// The contract with logs in the blocks of [`BLOCKS_WITH_LOGS`].
const ADDRESS: [u8; 20] = [7; 20];
/// The blocks with logs: an old one, a young one, and the head.
const BLOCKS_WITH_LOGS: [u64; 3] = [1_005, 1_018, HEAD];

fn hash(number: u64) -> Hash {
    let mut hash = [0; 32];
    hash[..8].copy_from_slice(&number.to_be_bytes());
    hash
}

fn hex(bytes: &[u8]) -> String {
    format!("\"0x{}\"", alloy_primitives::hex::encode(bytes))
}

/// The served chain from [`BOTTOM`] to [`HEAD`] with all headers, one second per block.
struct Chain {
    view: ChainView,
    headers: RecentHeaders,
    now: Duration,
}

impl Chain {
    fn new() -> Chain {
        let settings = HeadSettings {
            window: 256,
            finality: Finality::Depth(8),
            lag_max: 2,
            jump_max: 64,
            rollback_max: 8,
            block_time: Duration::from_secs(1),
        };
        let mut tracker = HeadTracker::new(settings, 1);
        let mut headers = RecentHeaders::default();
        for number in BOTTOM..=HEAD {
            let now = Duration::from_secs(number - BOTTOM);
            let (hash, parent) = (hash(number), hash(number - 1));
            tracker.observe(0, now, HeadPoll { number, hash, parent, finalized: None });
            let entries: &[&[u8]] =
                if BLOCKS_WITH_LOGS.contains(&number) { &[&ADDRESS] } else { &[] };
            let transactions: &[Hash] =
                if BLOCKS_WITH_LOGS.contains(&number) { &[hash] } else { &[] };
            let raw = block(number, entries, transactions);
            headers.insert(hash, BlockHeader::parse(raw.as_bytes(), now).expect("a block"));
        }
        Chain { view: tracker.view(), headers, now: Duration::from_secs(HEAD - BOTTOM) }
    }

    fn evidence(&self, depth: u64) -> Evidence<'_> {
        Evidence { view: &self.view, headers: &self.headers, depth, now: self.now }
    }

    /// Checks a response with one log in each of `blocks`, from an upstream of this depth.
    fn logs(&self, span: Span, blocks: &[u64], depth: u64) -> LogsCheck {
        check_logs(&BloomQuery::default(), span, logs(blocks).as_bytes(), self.evidence(depth))
    }

    /// Checks the logs of a range, from an upstream with a depth of 100 blocks.
    fn range(&self, from: u64, to: u64, blocks: &[u64]) -> Doubt {
        self.logs(Span::Range { from, to }, blocks, 100).doubt
    }
}

/// Returns a raw response with one log in each of `blocks`.
fn logs(blocks: &[u64]) -> String {
    let log = |number: &u64| {
        let hash = hex(&hash(*number));
        format!(r#"{{"blockNumber":"{number:#x}","blockHash":{hash},"logIndex":"0x0"}}"#)
    };
    format!("[{}]", blocks.iter().map(log).collect::<Vec<_>>().join(","))
}

#[test]
fn logs_of_a_range_are_compared_block_by_block() {
    let mut chain = Chain::new();
    assert_eq!(chain.range(1_001, HEAD, &BLOCKS_WITH_LOGS), Doubt::Unrepeated);
    assert_eq!(chain.range(1_001, HEAD, &[]), Doubt::Young);
    assert_eq!(chain.range(1_001, HEAD, &[1_005, 1_018]), Doubt::Young, "the head is missing");
    assert_eq!(chain.range(1_001, HEAD, &[1_005, HEAD]), Doubt::Young, "one between is missing");
    assert_eq!(chain.range(1_001, HEAD, &[1_018, HEAD]), Doubt::Young, "an old one is missing");
    assert_eq!(chain.range(1_006, 1_017, &[]), Doubt::None, "there are none");
    assert_eq!(chain.range(1_019, HEAD + 5, &[]), Doubt::Young, "as far as blocks are known");
    assert_eq!(chain.range(HEAD + 1, HEAD + 5, &[]), Doubt::None);
    assert_eq!(chain.range(HEAD, 1_001, &[]), Doubt::None, "a reversed range");
    chain.now += DOUBTED_FOR;
    assert_eq!(chain.range(1_001, HEAD, &BLOCKS_WITH_LOGS), Doubt::None);
}

#[test]
fn only_blocks_that_the_filter_can_match_are_doubted() {
    let chain = Chain::new();
    let judge = |filter: &str| {
        let selection = wire::logs::LogMatcher::parse(filter.as_bytes()).expect("a filter");
        let span = Span::Range { from: 1_001, to: HEAD };
        check_logs(&BloomQuery::new(&selection), span, b"[]", chain.evidence(100)).doubt
    };
    assert_eq!(judge(&format!(r#"{{"address":{}}}"#, hex(&ADDRESS))), Doubt::Young);
    assert_eq!(judge(&format!(r#"{{"address":{}}}"#, hex(&[8; 20]))), Doubt::None);
}

#[test]
fn blocks_older_than_the_headers_need_an_upstream_with_proven_depth() {
    let mut chain = Chain::new();
    let judge = |from, blocks: &[u64], depth| {
        chain.logs(Span::Range { from, to: 900 }, blocks, depth).doubt
    };
    assert_eq!(judge(800, &[], 0), Doubt::UnknownHeader);
    assert_eq!(judge(800, &[850], 0), Doubt::UnknownHeader, "the beginning may be missing");
    assert_eq!(judge(800, &[800, 850], 0), Doubt::None);
    assert_eq!(judge(800, &[], 220 + DEPTH_MARGIN), Doubt::None);
    assert_eq!(judge(800, &[], 219 + DEPTH_MARGIN), Doubt::UnknownHeader);
    // An old block with a known header is unproven too, because two pruned upstreams may agree that
    // it has no logs.
    let old = Span::Range { from: 1_005, to: 1_005 };
    chain.now += CONTRADICTED_FOR;
    assert_eq!(chain.logs(old, &[], 0).doubt, Doubt::Unproven);
    assert_eq!(chain.logs(old, &[1_005], 0).depth, Some(15));
}

#[test]
fn a_block_named_by_hash_is_young_until_its_header_is_known() {
    let chain = Chain::new();
    let judge = |number, blocks: &[u64]| chain.logs(Span::Hash(hash(number)), blocks, 100).doubt;
    assert_eq!(judge(HEAD, &[]), Doubt::Young);
    assert_eq!(judge(HEAD, &[HEAD]), Doubt::Unrepeated);
    assert_eq!(judge(1_005, &[]), Doubt::Young, "its header came less than a minute ago");
    assert_eq!(judge(1_006, &[]), Doubt::None);
    assert_eq!(judge(HEAD + 1, &[]), Doubt::Young, "nobody knows how old it is");
    assert_eq!(judge(HEAD + 1, &[HEAD + 1]), Doubt::None);
}

#[test]
fn unfilled_bloom_filters_are_detected() {
    let mut chain = Chain::new();
    let span = Span::Range { from: 1_010, to: 1_012 };
    assert!(!chain.logs(span, &[], 100).has_unfilled_blooms);
    assert!(chain.logs(span, &[1_011], 100).has_unfilled_blooms);
    chain.headers.distrust_blooms();
    assert_eq!(chain.range(1_010, 1_012, &[1_011]), Doubt::Bloom, "the last may be missing");
    assert_eq!(chain.range(1_010, 1_012, &[1_012]), Doubt::Unrepeated);
    assert_eq!(chain.range(1_017, 1_018, &[1_017]), Doubt::Young);
}

#[test]
fn receipts_are_counted() {
    let chain = Chain::new();
    let judge = |hash, by_height, response: &str| {
        check_receipts(hash, by_height, response.as_bytes(), chain.evidence(100))
    };
    assert_eq!(judge(Some(hash(1_005)), true, "[]"), Doubt::Missing);
    assert_eq!(judge(Some(hash(1_005)), false, "null"), Doubt::Missing);
    assert_eq!(judge(Some(hash(1_005)), true, "[{}]"), Doubt::None);
    assert_eq!(judge(Some(hash(1_006)), true, "[]"), Doubt::None, "it has no transactions");
    assert_eq!(judge(None, true, "[]"), Doubt::Unproven);
    assert_eq!(judge(None, true, "[{}]"), Doubt::None);
    assert_eq!(judge(Some(hash(2_000)), false, "[]"), Doubt::Young);
    assert_eq!(judge(Some(hash(2_000)), false, "null"), Doubt::None, "no such block");
}

#[test]
fn null_for_a_mined_transaction_is_doubted() {
    let chain = Chain::new();
    let judge = |raw: &str| check_transaction(raw.as_bytes(), chain.evidence(100));
    assert_eq!(judge(&hex(&hash(1_018))), Doubt::Missing);
    assert_eq!(judge(&hex(&hash(1_019))), Doubt::None);
    assert_eq!(judge("7"), Doubt::None);
}

/// Returns the doubted responses of several upstreams, each with one log per block number.
fn responses_of(given: &[(Doubt, &[u64])]) -> DoubtedResponses {
    let mut responses = DoubtedResponses::default();
    for (doubt, blocks) in given {
        responses.add(DoubtedResponse::new(*doubt, logs(blocks).as_bytes()));
    }
    responses
}

#[test]
fn other_upstreams_are_called_until_the_response_is_trusted() {
    let single = responses_of(&[(Doubt::Bloom, &[])]);
    assert!(!single.is_sufficient());
    assert_eq!(
        (single.trust(false), single.trust(true)),
        (Trust::PossiblyIncomplete, Trust::NotContradicted)
    );
    let two = responses_of(&[(Doubt::Bloom, &[]), (Doubt::Bloom, &[])]);
    assert!(two.is_sufficient());
    assert_eq!(two.trust(false), Trust::NotContradicted);
    let mut unknown = responses_of(&[(Doubt::Unknown, &[]), (Doubt::Unknown, &[])]);
    assert!(!unknown.is_sufficient(), "two upstreams may lack the index of old transactions");
    assert_eq!(unknown.trust(false), Trust::Agreed);
    unknown.add(DoubtedResponse::new(Doubt::Unknown, b"null"));
    assert!(unknown.is_sufficient());
    // Two late upstreams may agree about a young block, and two pruned ones about an old block. So
    // all other upstreams are called.
    for doubt in [Doubt::Young, Doubt::Unproven] {
        let two = responses_of(&[(Doubt::Bloom, &[]), (doubt, &[])]);
        assert!(!two.is_sufficient(), "{doubt:?}");
        let trust = (two.trust(false), two.trust(true));
        assert_eq!(trust, (Trust::PossiblyIncomplete, Trust::NotContradicted), "{doubt:?}");
    }
    let missing = responses_of(&[(Doubt::Missing, &[]), (Doubt::Missing, &[])]);
    assert!(!missing.is_sufficient());
    assert_eq!(missing.trust(true), Trust::PossiblyIncomplete);
}

#[test]
fn the_response_with_the_most_logs_counts() {
    let given: [(Doubt, &[u64]); 3] =
        [(Doubt::Bloom, &[1, 2]), (Doubt::Bloom, &[]), (Doubt::Bloom, &[])];
    assert!(!responses_of(&given).is_sufficient(), "two agree that there is less");
    assert!(!responses_of(&[(Doubt::Bloom, &[1]), (Doubt::Bloom, &[2])]).is_sufficient());
    assert!(responses_of(&given).has_more_than(b"[{}]"));
    assert!(!responses_of(&given).has_more_than(b"[{},{}]"));
}

#[test]
fn a_response_that_contradicts_a_bloom_filter_expires_after_a_doubling_time() {
    let start = Duration::from_secs(100);
    let (mut now, mut same_since, mut times) = (start, None, Vec::new());
    // Clients repeat the call as soon as the response expires. All responses are equal.
    while now < start + Duration::from_secs(6 * 3600) {
        let retention = decide_retention(Trust::NotContradicted, same_since, now);
        let Retention::Limited { age_max, since } = retention else {
            panic!("after {:?}: {retention:?}", now.saturating_sub(start))
        };
        assert_eq!(since, start);
        (same_since, now) = (Some(since), now + age_max);
        times.push(age_max);
    }
    assert!(times[..20].iter().all(|time| *time == BRIEF_RETENTION), "{times:?}");
    let later: Vec<u64> = times[20..].iter().map(Duration::as_secs).collect();
    assert_eq!(later[..8], [6, 12, 24, 48, 96, 192, 384, 600]);
    assert!(later[8..].iter().all(|time| *time == 600), "it is never cached for longer");
    assert_eq!(decide_retention(Trust::Undoubted, None, now), Retention::Full);
    assert_eq!(decide_retention(Trust::Agreed, None, now), Retention::Full);
    assert_eq!(decide_retention(Trust::PossiblyIncomplete, Some(start), now), Retention::None);
}

#[test]
fn logs_of_a_recent_block_are_cached_for_good_if_they_come_again_a_minute_later() {
    let (start, mut now, mut same_since, mut calls) = (Duration::from_secs(7), 7_000, None, 1);
    let retention = loop {
        match decide_retention(Trust::Unrepeated, same_since, Duration::from_millis(now)) {
            Retention::Limited { age_max, since } => {
                assert_eq!(since, start);
                (same_since, now, calls) =
                    (Some(since), now + age_max.as_millis() as u64, calls + 1);
            }
            retention => break retention,
        }
    };
    assert_eq!(retention, Retention::Full);
    assert_eq!((now - 7_000, calls), (76_800, 10));
}

#[test]
fn late_nodes_do_not_outvote_a_bloom_filter() {
    let mut chain = Chain::new();
    let old = Span::Range { from: 1_005, to: 1_005 };
    // A header that arrived 40 s ago may still belong to a block that no node has indexed.
    chain.now += Duration::from_secs(25);
    let doubt = chain.logs(old, &[], 100).doubt;
    assert_eq!(doubt, Doubt::Young);
    let two = responses_of(&[(doubt, &[]), (doubt, &[])]);
    assert!(!two.is_sufficient(), "the third may have the logs");
    assert_eq!(two.trust(true), Trust::NotContradicted);
    chain.now += CONTRADICTED_FOR;
    assert_eq!(chain.logs(old, &[], 100).doubt, Doubt::Bloom);
    // Chains that do not fill their bloom filters do not pay for this.
    chain.now = Duration::from_secs(HEAD - BOTTOM) + YOUNG_FOR;
    chain.headers.distrust_blooms();
    assert_eq!(chain.logs(old, &[], 100).doubt, Doubt::Bloom);
}

#[test]
fn all_upstreams_are_called_about_blocks_older_than_the_headers() {
    let two = responses_of(&[(Doubt::UnknownHeader, &[]), (Doubt::UnknownHeader, &[])]);
    assert!(!two.is_sufficient(), "both may be pruned");
    assert_eq!((two.trust(false), two.trust(true)), (Trust::PossiblyIncomplete, Trust::Agreed));
}

#[test]
fn a_proven_depth_expires() {
    let (mut depth, seconds) = (Depth::default(), Duration::from_secs);
    assert_eq!(depth.get(seconds(0)), 0);
    depth.record(500, seconds(0));
    depth.record(100, seconds(1));
    assert_eq!(depth.get(seconds(599)), 500);
    assert_eq!(depth.get(seconds(600)), 0);
    depth.record(100, seconds(601));
    assert_eq!(depth.get(seconds(602)), 100);
}
