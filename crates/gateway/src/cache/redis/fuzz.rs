//! What must hold for any bytes at all that come from Redis, as functions for fuzzers.
//!
//! Called by `fuzz/src/redis.rs` for as long as one likes, and by the tests of `value` in every
//! check.

use std::borrow::Cow;

use super::message::{Message, News};
use super::value::Value;
use super::{message, value};
use crate::policy::portable::ShareableTag;

/// Answers larger than this are refused.
const BODY_BYTES_MAX: usize = 1 << 20;

/// Tries bytes as a value and as a message: they are refused, or read the same once written again.
///
/// # Panics
/// When that does not hold.
pub(crate) fn redis(bytes: &[u8]) {
    try_value(bytes);
    // Few made-up values have a right sum; with it the fields behind the sum are reached.
    try_value(&summed(bytes));
    if let Some(heard) = message::read(bytes) {
        assert_eq!(message::read(heard.to_string().as_bytes()), Some(heard));
    }
}

fn summed(bytes: &[u8]) -> Vec<u8> {
    let mut summed = bytes[..bytes.len().saturating_sub(4)].to_vec();
    let mut crc = flate2::Crc::new();
    crc.update(&summed);
    summed.extend_from_slice(&crc.sum().to_le_bytes());
    summed
}

fn try_value(bytes: &[u8]) {
    let Ok(read) = value::decode(bytes, BODY_BYTES_MAX) else { return };
    assert!(read.body.len() <= BODY_BYTES_MAX, "{} bytes passed", read.body.len());
    for pack_bytes_min in [0, usize::MAX] {
        let again = read.encode(pack_bytes_min);
        assert_eq!(value::decode(&again, BODY_BYTES_MAX).as_ref(), Ok(&read));
    }
}

/// Values and messages as they are written.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let (number, hash) = (22_431_084, [0xab; 32]);
    let bonds = [
        ShareableTag::Free,
        ShareableTag::Final { number, hash: None },
        ShareableTag::Final { number, hash: Some(hash) },
        ShareableTag::Block { number, hash },
        ShareableTag::Head { number, hash },
    ];
    let body = br#"{"number":"0x15644ec","transactions":[],"uncles":[]}"#.repeat(20);
    let values = bonds.into_iter().flat_map(|bond| {
        let (material, body) = (&b"\x04eth\x0eeth_getBalance"[..], Cow::Borrowed(&body[..]));
        let value = Value { material, body, is_error: false, bond, written_ms: 1_800_000_000_000 };
        [value.encode(0), value.encode(usize::MAX)]
    });
    let news = [News::Reorg { fork: number }, News::Generation];
    let messages = news.map(|news| Message { sender: 7, chain: "eth", news }.to_string().into());
    values.chain(messages).collect()
}

/// Tries edits of the seeds for as long as `go_on` says, and gives their number.
///
/// # Panics
/// When a promise is broken; the input is printed.
pub(crate) fn mutate(seed: u64, go_on: &mut dyn FnMut(u64) -> bool) -> u64 {
    let corpus = seeds();
    let mut state = seed | 1;
    // xorshift64* (Vigna 2016)
    let mut below = |bound: usize| {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % bound.max(1)
    };
    let mut tried = 0;
    while go_on(tried) {
        let mut input = corpus[below(corpus.len())].clone();
        for _ in 0..=below(4) {
            let at = below(input.len());
            match below(4) {
                0 => input.truncate(at),
                1 => input.insert(at, below(256) as u8),
                _ if input.is_empty() => {}
                2 => input[at] = below(256) as u8,
                _ => input[at] ^= 1 << below(8),
            }
        }
        if let Err(panic) = std::panic::catch_unwind(|| redis(&input)) {
            eprintln!("broken by {} (input {tried} of seed {seed})", input.escape_ascii());
            std::panic::resume_unwind(panic);
        }
        tried += 1;
    }
    tried
}
