//! Computes Bloom filters of logs, with a cache of the bits of repeated addresses and topics.

use std::collections::HashMap;

use alloy_primitives::{Address, B256, Bloom, keccak256};
use foldhash::fast::RandomState;

/// The numbers of the three bits that a value sets in a Bloom filter of 2048 bits.
type Bits = [u16; 3];

/// The cached bits of the addresses and topics of one block. Most of these values repeat, and their
/// Keccak-256 is the most expensive part of a Bloom filter. The cache has at most one entry for
/// each address and topic in the response.
#[derive(Debug, Default)]
pub(super) struct LogBloomBuilder {
    addresses: HashMap<Address, Bits, RandomState>,
    topics: HashMap<B256, Bits, RandomState>,
}

impl LogBloomBuilder {
    /// Adds a log's address and topics to a Bloom filter.
    pub(super) fn add(&mut self, bloom: &mut Bloom, address: &Address, topics: &[B256]) {
        set_bits(
            bloom,
            self.addresses.entry(*address).or_insert_with(|| bloom_bits(address.as_slice())),
        );
        for topic in topics {
            set_bits(
                bloom,
                self.topics.entry(*topic).or_insert_with(|| bloom_bits(topic.as_slice())),
            );
        }
    }
}

fn set_bits(bloom: &mut Bloom, bits: &Bits) {
    for bit in bits {
        let byte = bloom.len() - 1 - usize::from(bit / 8);
        bloom[byte] |= 1 << (bit % 8);
    }
}

/// Returns the bits of a value: the low 11 bits of each of the first three byte pairs of its
/// Keccak-256 (Yellow Paper, section 4.3.1, M3:2048).
fn bloom_bits(value: &[u8]) -> Bits {
    let hash = keccak256(value);
    [0, 2, 4].map(|index| u16::from_be_bytes([hash[index], hash[index + 1]]) & 0x7ff)
}
