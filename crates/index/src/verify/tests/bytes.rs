//! Goal: no bytes cause a panic or an endless loop. Method: truncated, broken and random responses.

use super::raw;
use super::test_block::TestBlock;
use crate::verify::{Level, block, header, logs, receipts};
use proptest::prelude::*;

const LEVELS: [Level; 4] = [Level::Off, Level::Headers, Level::Full, Level::Senders];

/// Verifies the bytes as a block, a header, receipts and logs.
fn read(bytes: &[u8]) {
    let whole = block(&raw(&TestBlock::new().block), Level::Full).unwrap();
    for level in LEVELS {
        let _ = header(bytes, level);
        let of_bytes = block(bytes, level);
        for block in std::iter::once(&whole).chain(of_bytes.iter()) {
            let _ = receipts(block, bytes, level);
            let _ = logs(block, bytes, level);
        }
    }
}

/// One of the three responses about a block.
fn response(which: usize) -> Vec<u8> {
    let sample = TestBlock::new();
    match which {
        0 => raw(&sample.block),
        1 => raw(&sample.receipts),
        _ => raw(&sample.logs()),
    }
}

fn tokens() -> impl Strategy<Value = Vec<u8>> {
    let tokens: Vec<&[u8]> = vec![
        b"{",
        b"}",
        b"[",
        b"]",
        b":",
        b",",
        b"\"",
        b"\\",
        b"\\u",
        b" ",
        b"null",
        b"0",
        b"-",
        b"\"0x",
        b"\"0x0\"",
        b"\"hash\":",
        b"\"number\":",
        b"\"transactions\":",
        b"\"logs\":",
        b"\"topics\":",
        b"\"type\":",
        b"\xff",
        b"\0",
    ];
    prop::collection::vec(prop::sample::select(tokens), 0..60).prop_map(|tokens| tokens.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn truncated_responses(which in 0usize..3, cut in any::<prop::sample::Index>()) {
        let bytes = response(which);
        read(&bytes[..cut.index(bytes.len())]);
    }

    #[test]
    fn broken_responses(
        which in 0usize..3,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5),
        piece in tokens(),
        at in any::<prop::sample::Index>(),
    ) {
        let mut bytes = response(which);
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let at = at.index(bytes.len());
        bytes.splice(at..at, piece);
        read(&bytes);
    }

    #[test]
    fn random_tokens(bytes in tokens()) {
        read(&bytes);
    }

    #[test]
    fn random_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        read(&bytes);
    }
}
