//! Goal: no bytes cause a panic or an endless loop. Method: truncated, broken and random responses.

use super::raw;
use super::test_block::TestBlock;
use crate::verify::{Level, verify_block, verify_header, verify_logs, verify_receipts};
use proptest::prelude::*;

const LEVELS: [Level; 4] = [Level::Off, Level::Headers, Level::Full, Level::Senders];

/// Verifies the bytes as a block, a header, receipts and logs.
fn verify_bytes(bytes: &[u8]) {
    let valid_block = verify_block(&raw(&TestBlock::new().block), Level::Full).unwrap();
    for level in LEVELS {
        let _ = verify_header(bytes, level);
        let parsed_block = verify_block(bytes, level);
        for block in std::iter::once(&valid_block).chain(parsed_block.iter()) {
            let _ = verify_receipts(block, bytes, level);
            let _ = verify_logs(block, bytes, level);
        }
    }
}

/// Returns a response about a block: the block for 0, its receipts for 1, or its logs for 2.
fn response(kind: usize) -> Vec<u8> {
    let sample = TestBlock::new();
    match kind {
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
    fn truncated_responses(kind in 0usize..3, length in any::<prop::sample::Index>()) {
        let bytes = response(kind);
        verify_bytes(&bytes[..length.index(bytes.len())]);
    }

    #[test]
    fn broken_responses(
        kind in 0usize..3,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5),
        inserted in tokens(),
        position in any::<prop::sample::Index>(),
    ) {
        let mut bytes = response(kind);
        for (position, byte) in changes {
            let position = position.index(bytes.len());
            bytes[position] = byte;
        }
        let position = position.index(bytes.len());
        bytes.splice(position..position, inserted);
        verify_bytes(&bytes);
    }

    #[test]
    fn random_tokens(bytes in tokens()) {
        verify_bytes(&bytes);
    }

    #[test]
    fn random_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        verify_bytes(&bytes);
    }
}
