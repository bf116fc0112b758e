//! Goal: addresses are parsed and printed as on Harmony. Method: addresses printed in Harmony's own
//! documentation, and a round trip.

use alloy_primitives::Address;

use super::{decode_address, encode_address};

#[test]
fn a_documented_address_round_trips() {
    // The first address of the recorded Harmony samples.
    let text = "one1z05g55zamqzfw9qs432n33gycdmyvs38xjemyl";
    let address = decode_address(text).unwrap();
    assert_eq!(encode_address(address), text);
    assert_eq!(decode_address(&encode_address(Address::repeat_byte(0xa5))).unwrap()[0], 0xa5);
}

#[test]
fn a_wrong_letter_is_refused() {
    assert_eq!(decode_address("one1z05g55zamqzfw9qs432n33gycdmyvs38xjemyq"), None);
    assert_eq!(decode_address("one1"), None);
    assert_eq!(decode_address("bc1z05g55zamqzfw9qs432n33gycdmyvs38xjemyl"), None);
}
