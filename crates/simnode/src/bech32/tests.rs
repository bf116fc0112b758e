//! Goal: addresses are parsed and printed as on Harmony. Method: an address from Harmony's own
//! documentation, and a made-up address of equal bytes.

use alloy_primitives::Address;

use super::{decode_address, encode_address};

#[test]
fn a_documented_address_round_trips() {
    // The first address of the recorded Harmony samples.
    let text = "one1z05g55zamqzfw9qs432n33gycdmyvs38xjemyl";
    let address = decode_address(text).unwrap();
    assert_eq!(encode_address(address), text);
    // Every byte of this address is 0xa5.
    assert_eq!(decode_address(&encode_address(Address::repeat_byte(0xa5))).unwrap()[0], 0xa5);
}

#[test]
fn malformed_addresses_are_rejected() {
    // The address above with another last letter, so the checksum is wrong.
    assert_eq!(decode_address("one1z05g55zamqzfw9qs432n33gycdmyvs38xjemyq"), None);
    // No letters after the prefix.
    assert_eq!(decode_address("one1"), None);
    // The prefix of Bitcoin instead of `one`.
    assert_eq!(decode_address("bc1z05g55zamqzfw9qs432n33gycdmyvs38xjemyl"), None);
}
