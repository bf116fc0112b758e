//! The number of blocks follows what nodes give and say.

use super::*;

const QUICK: Duration = Duration::from_millis(10);

#[test]
fn it_grows_while_all_goes_well_and_settles_by_bytes() {
    let mut pace = Pace::new(1000);
    for _ in 0..20 {
        pace.went_well(pace.blocks(), pace.blocks() * 1000, QUICK);
    }
    assert_eq!(pace.blocks(), 1000);
    let mut heavy = Pace::new(1000);
    for _ in 0..20 {
        heavy.went_well(heavy.blocks(), heavy.blocks() << 20, QUICK);
    }
    assert_eq!(heavy.blocks(), 4);
    // One block of 100 MiB: still one at a time.
    heavy.went_well(4, 400 << 20, QUICK);
    assert_eq!(heavy.blocks(), 1);
}

#[test]
fn it_settles_by_time() {
    let mut pace = Pace::new(1000);
    for _ in 0..20 {
        pace.went_well(pace.blocks(), 1000, Duration::from_millis(100) * pace.blocks() as u32);
    }
    assert_eq!(pace.blocks(), 20);
}

#[test]
fn it_is_halved_or_set_to_what_was_named_and_creeps_up_again() {
    let mut pace = Pace::new(1000);
    for _ in 0..20 {
        pace.went_well(pace.blocks(), 1000, QUICK);
    }
    pace.too_much(1000, None);
    assert_eq!(pace.blocks(), 500);
    pace.too_much(500, Some(100));
    assert_eq!(pace.blocks(), 100);
    for _ in 0..CALM + 1 {
        pace.went_well(pace.blocks(), 1000, QUICK);
    }
    assert_eq!(pace.blocks(), 125);
    for _ in 0..20 {
        pace.too_much(pace.blocks(), None);
    }
    assert_eq!(pace.blocks(), 1);
}

#[test]
fn what_nodes_say_is_understood() {
    let told = |message| told_too_much(-32000, message);
    assert_eq!(
        told("query returned more than 10000 results. Try with this block range [0x10, 0x1f]."),
        Some(Some(16))
    );
    assert_eq!(told("eth_getLogs is limited to a 10,000 range"), Some(Some(10_000)));
    assert_eq!(
        told("You can make eth_getLogs requests with up to a 2K block range"),
        Some(Some(2000))
    );
    assert_eq!(told("exceed maximum block range: 50000"), Some(Some(50_000)));
    assert_eq!(told("block range is too wide"), Some(None));
    assert_eq!(told("batch limit 100 exceeded (can increase by --rpc.batch.limit)"), Some(None));
    assert_eq!(told("batch too large"), Some(None));
    assert_eq!(told("response too large"), Some(None));
    assert_eq!(told("query returned more than 10000 results"), Some(None));
    assert_eq!(told("header not found"), None);
    assert_eq!(told("the method eth_getBlockReceipts does not exist/is not available"), None);
    assert_eq!(told_too_much(-32005, "daily request count exceeded, request rate limited"), None);
}
