//! Bech32 addresses of Harmony (`one1…`): the encoding of BIP-173 with the human-readable part
//! `one`.

use alloy_primitives::Address;

/// The letters for the values 0 to 31, in order.
const CHARSET: &[u8; 32] = b"qpzry9x8gf2tvdw0s3jn54khce6mua7l";
/// The human-readable part.
const PREFIX: &str = "one";
/// Number of groups of five bits in an address of 160 bits.
const DATA_GROUPS: usize = 32;
/// Number of groups of five bits in the checksum.
const CHECKSUM_GROUPS: usize = 6;
/// The constants of the checksum's generator polynomial (BIP-173).
const GENERATOR: [u32; 5] = [0x3b6a_57b2, 0x2650_8e6d, 0x1ea1_19fa, 0x3d42_33dd, 0x2a14_62b3];

/// Encodes an address as `one1…`.
pub(crate) fn encode_address(address: Address) -> String {
    let mut groups = Vec::with_capacity(DATA_GROUPS + CHECKSUM_GROUPS);
    let (mut bits, mut bit_count) = (0_u32, 0);
    for byte in address {
        bits = bits << 8 | u32::from(byte);
        bit_count += 8;
        while bit_count >= 5 {
            bit_count -= 5;
            groups.push((bits >> bit_count & 31) as u8);
        }
    }
    // 160 bits are exactly 32 groups of five, so no bit remains.
    let sum = checksum(&[&groups[..], &[0; CHECKSUM_GROUPS]].concat()) ^ 1;
    let checksum_group = |index: usize| (sum >> (5 * (CHECKSUM_GROUPS - 1 - index)) & 31) as u8;
    groups.extend((0..CHECKSUM_GROUPS).map(checksum_group));
    let letters = groups.iter().map(|group| char::from(CHARSET[usize::from(*group)]));
    format!("{PREFIX}1").chars().chain(letters).collect()
}

/// Decodes `one1…` text. Returns `None` if the text is malformed or its checksum is wrong.
pub(crate) fn decode_address(text: &str) -> Option<Address> {
    let letters = text.strip_prefix("one1")?;
    let group_of = |letter: u8| {
        let index = CHARSET.iter().position(|charset_letter| *charset_letter == letter);
        index.map(|index| index as u8)
    };
    let groups: Vec<u8> = letters.bytes().map(group_of).collect::<Option<_>>()?;
    if groups.len() != DATA_GROUPS + CHECKSUM_GROUPS || checksum(&groups) != 1 {
        return None;
    }
    let mut bytes = Vec::with_capacity(20);
    let (mut bits, mut bit_count) = (0_u32, 0);
    for group in &groups[..DATA_GROUPS] {
        bits = (bits << 5 | u32::from(*group)) & 0xfff;
        bit_count += 5;
        if bit_count >= 8 {
            bit_count -= 8;
            bytes.push((bits >> bit_count) as u8);
        }
    }
    Some(Address::from_slice(&bytes))
}

/// Computes the checksum of the prefix and the groups (`bech32_polymod` of BIP-173). It is 1 if the
/// last six groups are a valid checksum.
fn checksum(groups: &[u8]) -> u32 {
    let high = PREFIX.bytes().map(|byte| byte >> 5);
    let low = PREFIX.bytes().map(|byte| byte & 31);
    let expanded_prefix = high.chain([0]).chain(low);
    expanded_prefix.chain(groups.iter().copied()).fold(1, |sum, group| {
        let top_bits = sum >> 25;
        let shifted = (sum & 0x1ff_ffff) << 5 ^ u32::from(group);
        GENERATOR
            .iter()
            .enumerate()
            .filter(|(index, _)| top_bits >> index & 1 == 1)
            .fold(shifted, |sum, (_, generator)| sum ^ generator)
    })
}

#[cfg(test)]
mod tests;
