//! Goal: the right step for every stored range, start and end. Method: cases by hand.

use super::*;

fn stored(first: u64, last: u64) -> Option<StoredRange> {
    Some(StoredRange { first, last, last_hash: [0; 32], finalized: first })
}

const TIP: Tip = Tip { head: 100, finalized: 90 };

#[test]
fn a_new_index_begins_at_the_start() {
    assert_eq!(
        decide_next_step(None, None, SyncEnd::At(50), TIP),
        Ok(NextStep::Fetch { from: 0, to: 50 })
    );
    assert_eq!(
        decide_next_step(None, Some(40), SyncEnd::Finalized, TIP),
        Ok(NextStep::Fetch { from: 40, to: 90 })
    );
    assert_eq!(
        decide_next_step(None, Some(40), SyncEnd::Follow, TIP),
        Ok(NextStep::Fetch { from: 40, to: 100 })
    );
    assert_eq!(
        decide_next_step(None, Some(9), SyncEnd::At(8), TIP),
        Err(RangeError::Empty { start: 9, end: 8 })
    );
    let not_finalized = Err(RangeError::NotFinalized { start: 91, finalized: 90 });
    assert_eq!(decide_next_step(None, Some(91), SyncEnd::Finalized, TIP), not_finalized);
    // The chain reaches these starts later.
    assert_eq!(decide_next_step(None, Some(101), SyncEnd::Follow, TIP), Ok(NextStep::Wait));
    assert_eq!(decide_next_step(None, Some(101), SyncEnd::At(110), TIP), Ok(NextStep::Wait));
}

#[test]
fn an_index_continues_after_its_last_block() {
    assert_eq!(
        decide_next_step(stored(5, 50), None, SyncEnd::At(60), TIP),
        Ok(NextStep::Fetch { from: 51, to: 60 })
    );
    assert_eq!(
        decide_next_step(stored(5, 50), Some(5), SyncEnd::At(60), TIP),
        Ok(NextStep::Fetch { from: 51, to: 60 })
    );
    let before_first = Err(RangeError::BeforeFirst { first: 5 });
    assert_eq!(decide_next_step(stored(5, 50), Some(4), SyncEnd::At(60), TIP), before_first);
    let gap = Err(RangeError::Gap { last: 50, start: 52 });
    assert_eq!(decide_next_step(stored(5, 50), Some(52), SyncEnd::At(60), TIP), gap);
    assert_eq!(
        decide_next_step(stored(5, 50), Some(51), SyncEnd::At(60), TIP),
        Ok(NextStep::Fetch { from: 51, to: 60 })
    );
}

#[test]
fn a_sync_ends_at_its_target_and_waits_for_later_blocks() {
    assert_eq!(decide_next_step(stored(0, 60), None, SyncEnd::At(60), TIP), Ok(NextStep::Done));
    assert_eq!(decide_next_step(stored(0, 70), None, SyncEnd::At(60), TIP), Ok(NextStep::Done));
    assert_eq!(decide_next_step(stored(0, 90), None, SyncEnd::Finalized, TIP), Ok(NextStep::Done));
    assert_eq!(decide_next_step(stored(0, 100), None, SyncEnd::Follow, TIP), Ok(NextStep::Wait));
    // A node behind the index causes neither a fetch nor a rewind.
    assert_eq!(decide_next_step(stored(0, 120), None, SyncEnd::Follow, TIP), Ok(NextStep::Wait));
    assert_eq!(decide_next_step(stored(0, 100), None, SyncEnd::At(130), TIP), Ok(NextStep::Wait));
    assert_eq!(
        decide_next_step(stored(0, 80), None, SyncEnd::At(130), TIP),
        Ok(NextStep::Fetch { from: 81, to: 100 })
    );
}

#[test]
fn a_long_range_is_split() {
    let tip = Tip { head: u64::MAX, finalized: 90 };
    let to = BLOCKS_MAX - 1;
    assert_eq!(
        decide_next_step(None, None, SyncEnd::Follow, tip),
        Ok(NextStep::Fetch { from: 0, to })
    );
    let (from, to) = (101, 100 + BLOCKS_MAX);
    assert_eq!(
        decide_next_step(stored(0, 100), None, SyncEnd::Follow, tip),
        Ok(NextStep::Fetch { from, to })
    );
}

#[test]
fn ends_are_parsed() {
    assert_eq!("7".parse(), Ok(SyncEnd::At(7)));
    assert_eq!("finalized".parse(), Ok(SyncEnd::Finalized));
    assert_eq!("follow".parse(), Ok(SyncEnd::Follow));
    assert!("latest".parse::<SyncEnd>().is_err());
}
