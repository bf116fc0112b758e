//! Goal: the batch size follows the nodes' responses and error messages. Method: cases by hand, and
//! messages of real nodes.

use super::*;

const QUICK: Duration = Duration::from_millis(10);

#[test]
fn the_size_grows_and_settles_by_bytes() {
    let mut size = BatchSize::new(1000);
    for _ in 0..20 {
        size.record_success(size.blocks(), size.blocks() * 1000, QUICK);
    }
    assert_eq!(size.blocks(), 1000);
    let mut large_blocks = BatchSize::new(1000);
    for _ in 0..20 {
        large_blocks.record_success(large_blocks.blocks(), large_blocks.blocks() << 20, QUICK);
    }
    assert_eq!(large_blocks.blocks(), 4);
    // The size never drops below one block, even if a block has 100 MiB.
    large_blocks.record_success(4, 400 << 20, QUICK);
    assert_eq!(large_blocks.blocks(), 1);
}

#[test]
fn the_size_settles_by_duration() {
    let mut size = BatchSize::new(1000);
    for _ in 0..20 {
        size.record_success(size.blocks(), 1000, Duration::from_millis(100) * size.blocks() as u32);
    }
    assert_eq!(size.blocks(), 20);
}

#[test]
fn a_rejection_halves_the_size_or_sets_the_stated_limit() {
    let mut size = BatchSize::new(1000);
    for _ in 0..20 {
        size.record_success(size.blocks(), 1000, QUICK);
    }
    size.record_rejection(1000, SizeRejection { stated_limit: None });
    assert_eq!(size.blocks(), 500);
    size.record_rejection(500, SizeRejection { stated_limit: Some(100) });
    assert_eq!(size.blocks(), 100);
    for _ in 0..SUCCESSES_TO_GROW + 1 {
        size.record_success(size.blocks(), 1000, QUICK);
    }
    assert_eq!(size.blocks(), 125);
    for _ in 0..20 {
        size.record_rejection(size.blocks(), SizeRejection { stated_limit: None });
    }
    assert_eq!(size.blocks(), 1);
}

#[test]
fn messages_of_nodes_are_recognized() {
    let rejection =
        |message| parse_size_rejection(-32000, message).map(|rejection| rejection.stated_limit);
    assert_eq!(
        rejection(
            "query returned more than 10000 results. Try with this block range [0x10, 0x1f]."
        ),
        Some(Some(16))
    );
    assert_eq!(rejection("eth_getLogs is limited to a 10,000 range"), Some(Some(10_000)));
    assert_eq!(
        rejection("You can make eth_getLogs requests with up to a 2K block range"),
        Some(Some(2000))
    );
    assert_eq!(rejection("exceed maximum block range: 50000"), Some(Some(50_000)));
    assert_eq!(rejection("block range is too wide"), Some(None));
    assert_eq!(
        rejection("batch limit 100 exceeded (can increase by --rpc.batch.limit)"),
        Some(None)
    );
    assert_eq!(rejection("batch too large"), Some(None));
    assert_eq!(rejection("response too large"), Some(None));
    assert_eq!(rejection("query returned more than 10000 results"), Some(None));
    let texts = [
        ("Response is too big", None),
        ("query exceeds max results 20000, retry with the range 100-109", Some(10)),
        ("ranges over 10000 blocks are not supported on freetier", Some(10_000)),
        ("log query timed out", None),
        ("log query range must not exceed 25 blocks", Some(25)),
        ("query timeout of 10 seconds exceeded", None),
        ("Number of requests exceeds max batch size", None),
    ];
    for (text, stated_limit) in texts {
        assert_eq!(rejection(text), Some(stated_limit), "{text}");
    }
    assert_eq!(rejection("header not found"), None);
    assert_eq!(rejection("Your app has exceeded its requests per second capacity"), None);
    assert_eq!(rejection("the method eth_getBlockReceipts does not exist/is not available"), None);
    assert_eq!(
        parse_size_rejection(-32005, "daily request count exceeded, request rate limited"),
        None
    );
}
