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
    size.record_rejection(1000, &SizeRejection::default());
    assert_eq!(size.blocks(), 500);
    // The other numbers are not below that of the requested blocks, or no numbers of blocks.
    size.record_rejection(500, &SizeRejection { stated_limits: vec![0, 100, 500] });
    assert_eq!(size.blocks(), 100);
    for _ in 0..SUCCESSES_TO_GROW + 1 {
        size.record_success(size.blocks(), 1000, QUICK);
    }
    assert_eq!(size.blocks(), 125);
    for _ in 0..20 {
        size.record_rejection(size.blocks(), &SizeRejection::default());
    }
    assert_eq!(size.blocks(), 1);
}

/// The size after a node has rejected 1,000,000 blocks with this error; `None` if the error rejects
/// no size.
fn size_after(code: i64, message: &str) -> Option<u64> {
    let mut size = BatchSize::new(1_000_000);
    while size.blocks() < 1_000_000 {
        size.record_success(size.blocks(), 1, Duration::from_nanos(1));
    }
    size.record_rejection(1_000_000, &parse_size_rejection(200, code, message)?);
    Some(size.blocks())
}

/// Reads the codes and texts of `testdata/index/size-texts.tsv`. `{N}` is replaced by `limit`. The
/// third element is true if the text states a limit.
fn size_texts(limit: &str) -> Vec<(i64, String, bool)> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/index/size-texts.tsv");
    let table = std::fs::read_to_string(path).unwrap();
    let read_row = |row: &str| {
        let columns: Vec<&str> = row.split('\t').collect();
        let [code, text, _source] = columns[..] else { panic!("{row}") };
        (code.parse().unwrap(), text.replace("{N}", limit), text.contains("{N}"))
    };
    table.lines().skip(1).map(read_row).collect()
}

#[test]
fn texts_of_providers_reduce_the_size_to_their_limit() {
    let texts = size_texts("800");
    assert!(texts.len() >= 40, "{} texts", texts.len());
    for (code, text, states_limit) in texts {
        let expected = if states_limit { 800 } else { 500_000 };
        assert_eq!(size_after(code, &text), Some(expected), "{code} {text}");
    }
}

#[test]
fn ranges_that_would_succeed_set_the_size() {
    let texts = [
        ("query returned more than 10000 results. Try with this block range [0x10, 0x1f].", 16),
        ("query exceeds max results 20000, retry with the range 100-109", 10),
        ("You can make eth_getLogs requests with up to a 2K block range", 2000),
        ("eth_getLogs is limited to a 10,000 range", 10_000),
        // The number of the requested blocks, and the limit.
        ("exceeds the range allowed for your plan (1000000 > 3000)", 3000),
        // A range that cannot be read.
        ("this block range should work: [0x1f, 0x10]", 500_000),
    ];
    for (text, expected) in texts {
        assert_eq!(size_after(-32000, text), Some(expected), "{text}");
    }
}

#[test]
fn other_errors_reject_no_size() {
    for (code, text) in [
        (-32000, "header not found"),
        (-32000, "Your app has exceeded its requests per second capacity"),
        (-32000, "the method eth_getBlockReceipts does not exist/is not available"),
        (-32005, "daily request count exceeded, request rate limited"),
        (-32016, "over rate limit"),
        (429, "Too Many Requests"),
    ] {
        assert_eq!(size_after(code, text), None, "{text}");
    }
}
