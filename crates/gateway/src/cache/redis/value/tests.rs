//! Goal: values survive encoding and decoding, and other bytes are refused. Method: round trips
//! with all validity tags; a value with each of its bytes damaged, and truncated at each length;
//! and random bytes.

use proptest::prelude::*;

use super::*;

/// Maximum number of bytes of a body.
const MAX: usize = 1 << 20;

fn value(body: &[u8], validity: ShareableTag) -> Value<'_> {
    Value {
        material: b"the key",
        body: Cow::Borrowed(body),
        is_error: false,
        validity,
        written_ms: 7,
    }
}

fn validity_tags() -> [ShareableTag; 5] {
    let (number, hash) = (u64::MAX - 1, [0xab; 32]);
    [
        ShareableTag::Free,
        ShareableTag::Final { number, hash: None },
        ShareableTag::Final { number, hash: Some(hash) },
        ShareableTag::Block { number, hash },
        ShareableTag::Head { number, hash },
    ]
}

#[test]
fn values_round_trip() {
    let long = b"0123456789".repeat(1_000);
    for validity in validity_tags() {
        for (is_error, compress_min) in [(false, 0), (true, usize::MAX), (false, 1)] {
            for body in [&b"null"[..], b"\"0x1\"", &long] {
                let value = Value { is_error, ..value(body, validity) };
                let bytes = value.encode(compress_min);
                assert_eq!(decode(&bytes, MAX).unwrap(), value);
            }
        }
    }
    let compressed = value(&long, ShareableTag::Free).encode(1);
    assert!(compressed.len() < 300, "{} bytes of a text that repeats itself", compressed.len());
    assert!(value(&long, ShareableTag::Free).encode(long.len() + 1).len() > long.len());
}

#[test]
fn damaged_and_truncated_values_are_refused() {
    let long = b"0123456789".repeat(30);
    for compress_min in [1, usize::MAX] {
        let bytes = value(&long, validity_tags()[3]).encode(compress_min);
        for index in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[index] ^= 0x10;
            assert!(decode(&damaged, MAX).is_err(), "damage at byte {index} is not detected");
            assert!(decode(&bytes[..index], MAX).is_err(), "truncation at {index} is not detected");
        }
    }
    assert_eq!(decode(b"", MAX), Err(ValueFault::Malformed));
}

#[test]
fn a_small_value_cannot_unpack_into_a_large_one() {
    let long = vec![b'0'; MAX + 1];
    let bytes = value(&long, ShareableTag::Free).encode(1);
    assert!(bytes.len() < 1_000);
    assert_eq!(decode(&bytes, MAX), Err(ValueFault::TooLarge));
    // This value states a wrong body length, but has a valid checksum.
    let mut lying = bytes[..bytes.len() - CRC_BYTES].to_vec();
    lying[57..61].copy_from_slice(&100u32.to_le_bytes());
    let sum = crc(&lying);
    lying.extend_from_slice(&sum.to_le_bytes());
    assert_eq!(decode(&lying, MAX), Err(ValueFault::Malformed));
}

proptest! {
    #[test]
    fn any_bytes_are_decoded_or_rejected(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        crate::cache::redis::fuzz::redis(&bytes);
    }
}

#[test]
fn mutated_values_keep_the_invariants() {
    let tried = crate::cache::redis::fuzz::mutate(7, &mut |tried| tried < 20_000);
    assert_eq!(tried, 20_000);
}
