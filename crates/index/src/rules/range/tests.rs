//! Every case of what a file may have and what is wanted.

use super::*;

fn held(first: u64, last: u64) -> Option<Held> {
    Some(Held { first, last, last_hash: [0; 32], finalized: first })
}

const TIP: Tip = Tip { head: 100, finalized: 90 };

#[test]
fn a_new_file_begins_where_it_is_told() {
    assert_eq!(next(None, None, End::At(50), TIP), Ok(Next::Fetch { from: 0, to: 50 }));
    assert_eq!(next(None, Some(40), End::Finalized, TIP), Ok(Next::Fetch { from: 40, to: 90 }));
    assert_eq!(next(None, Some(40), End::Follow, TIP), Ok(Next::Fetch { from: 40, to: 100 }));
    assert_eq!(next(None, Some(9), End::At(8), TIP), Err(RangeFault::Empty { start: 9, end: 8 }));
}

#[test]
fn a_file_goes_on_where_it_ends() {
    assert_eq!(next(held(5, 50), None, End::At(60), TIP), Ok(Next::Fetch { from: 51, to: 60 }));
    assert_eq!(next(held(5, 50), Some(5), End::At(60), TIP), Ok(Next::Fetch { from: 51, to: 60 }));
    let before = Err(RangeFault::Before { first: 5 });
    assert_eq!(next(held(5, 50), Some(4), End::At(60), TIP), before);
    let hole = Err(RangeFault::Hole { last: 50, start: 52 });
    assert_eq!(next(held(5, 50), Some(52), End::At(60), TIP), hole);
    assert_eq!(next(held(5, 50), Some(51), End::At(60), TIP), Ok(Next::Fetch { from: 51, to: 60 }));
}

#[test]
fn it_ends_when_all_is_there_and_waits_for_what_is_not_yet() {
    assert_eq!(next(held(0, 60), None, End::At(60), TIP), Ok(Next::Done));
    assert_eq!(next(held(0, 70), None, End::At(60), TIP), Ok(Next::Done));
    assert_eq!(next(held(0, 90), None, End::Finalized, TIP), Ok(Next::Done));
    assert_eq!(next(held(0, 100), None, End::Follow, TIP), Ok(Next::Wait));
    // A node that is behind the file: nothing to fetch, nothing to drop.
    assert_eq!(next(held(0, 120), None, End::Follow, TIP), Ok(Next::Wait));
    assert_eq!(next(held(0, 100), None, End::At(130), TIP), Ok(Next::Wait));
    assert_eq!(next(held(0, 80), None, End::At(130), TIP), Ok(Next::Fetch { from: 81, to: 100 }));
}

#[test]
fn the_tip_is_asked_for_anew_now_and_then() {
    let tip = Tip { head: u64::MAX, finalized: 90 };
    let to = BLOCKS_MAX - 1;
    assert_eq!(next(None, None, End::Follow, tip), Ok(Next::Fetch { from: 0, to }));
    let (from, to) = (101, 100 + BLOCKS_MAX);
    assert_eq!(next(held(0, 100), None, End::Follow, tip), Ok(Next::Fetch { from, to }));
}

#[test]
fn ends_are_read() {
    assert_eq!("7".parse(), Ok(End::At(7)));
    assert_eq!("finalized".parse(), Ok(End::Finalized));
    assert_eq!("follow".parse(), Ok(End::Follow));
    assert!("latest".parse::<End>().is_err());
}
