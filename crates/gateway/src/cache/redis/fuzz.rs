//! Invariants of the Redis decoders for arbitrary bytes, as functions for fuzzers.
//!
//! `fuzz/src/redis.rs` calls these functions without a time limit. The tests of `value` call them
//! in every test run.

use std::borrow::Cow;

use super::message::{Message, Subject};
use super::value::Value;
use super::{message, value};
use crate::policy::shareable::ShareableTag;

/// Maximum bytes of a decoded response.
const BODY_BYTES_MAX: usize = 1 << 20;

/// Decodes bytes as a value and as a message. Accepted input must survive encoding and decoding.
///
/// # Panics
/// If an invariant is violated.
pub(crate) fn redis(bytes: &[u8]) {
    try_value(bytes);
    // Random bytes rarely have a valid checksum, and the decoder rejects bytes without one early.
    try_value(&with_checksum(bytes));
    if let Some(message) = message::parse(bytes) {
        assert_eq!(message::parse(message.to_string().as_bytes()), Some(message));
    }
}

fn with_checksum(bytes: &[u8]) -> Vec<u8> {
    let mut with_checksum = bytes[..bytes.len().saturating_sub(4)].to_vec();
    let mut crc = flate2::Crc::new();
    crc.update(&with_checksum);
    with_checksum.extend_from_slice(&crc.sum().to_le_bytes());
    with_checksum
}

fn try_value(bytes: &[u8]) {
    let Ok(value) = value::decode(bytes, BODY_BYTES_MAX) else { return };
    assert!(value.body.len() <= BODY_BYTES_MAX, "{} bytes passed", value.body.len());
    for compress_bytes_min in [0, usize::MAX] {
        let encoded = value.encode(compress_bytes_min);
        assert_eq!(value::decode(&encoded, BODY_BYTES_MAX).as_ref(), Ok(&value));
    }
}

/// Returns encoded values and messages, from which fuzzing starts.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let (number, hash) = (22_431_084, [0xab; 32]);
    let validity_tags = [
        ShareableTag::Free,
        ShareableTag::Final { number, hash: None },
        ShareableTag::Final { number, hash: Some(hash) },
        ShareableTag::Block { number, hash },
        ShareableTag::Head { number, hash },
    ];
    let body = br#"{"number":"0x15644ec","transactions":[],"uncles":[]}"#.repeat(20);
    let values = validity_tags.into_iter().flat_map(|validity| {
        let (material, body) = (&b"\x04eth\x0eeth_getBalance"[..], Cow::Borrowed(&body[..]));
        let value =
            Value { material, body, is_error: false, validity, written_ms: 1_800_000_000_000 };
        [value.encode(0), value.encode(usize::MAX)]
    });
    let subject = [Subject::Reorg { fork: number }, Subject::Generation];
    let messages =
        subject.map(|subject| Message { sender: 7, chain: "eth", subject }.to_string().into());
    values.chain(messages).collect()
}

/// Mutates the seeds while `go_on` returns true. Returns the number of inputs.
pub(crate) fn mutate(seed: u64, go_on: &mut dyn FnMut(u64) -> bool) -> u64 {
    wire::fuzz::mutate_all(&seeds(), redis, seed, go_on)
}
