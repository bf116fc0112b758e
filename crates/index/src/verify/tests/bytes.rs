//! Any bytes at all are refused or accepted, but never end in a panic or a loop.
use super::made::Made;
use super::raw;
use crate::verify::{Level, block, header, logs, receipts};
use proptest::prelude::*;

const LEVELS: [Level; 4] = [Level::Off, Level::Headers, Level::Full, Level::Senders];

/// Reads the bytes as everything that they might be.
fn read(bytes: &[u8]) {
    let whole = block(&raw(&Made::new().block), Level::Full).unwrap();
    for level in LEVELS {
        let _ = header(bytes, level);
        let of_bytes = block(bytes, level);
        for block in std::iter::once(&whole).chain(of_bytes.iter()) {
            let _ = receipts(block, bytes, level);
            let _ = logs(block, bytes, level);
        }
    }
}

/// One of the three answers of a node.
fn answer(which: usize) -> Vec<u8> {
    let made = Made::new();
    match which {
        0 => raw(&made.block),
        1 => raw(&made.receipts),
        _ => raw(&made.logs()),
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
    fn cut_answers(which in 0usize..3, cut in any::<prop::sample::Index>()) {
        let bytes = answer(which);
        read(&bytes[..cut.index(bytes.len())]);
    }

    #[test]
    fn broken_answers(
        which in 0usize..3,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5),
        piece in tokens(),
        at in any::<prop::sample::Index>(),
    ) {
        let mut bytes = answer(which);
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let at = at.index(bytes.len());
        bytes.splice(at..at, piece);
        read(&bytes);
    }

    #[test]
    fn pieces_of_json(bytes in tokens()) {
        read(&bytes);
    }

    #[test]
    fn noise(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        read(&bytes);
    }
}
