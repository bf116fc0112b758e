//! Goal: addresses are parsed and printed as on Harmony. Method: addresses printed in Harmony's own
//! documentation, and a round trip.

use alloy_primitives::Address;

use super::{read_address, write_address};

#[test]
fn a_documented_address_round_trips() {
    // The first address of the recorded Harmony samples.
    let text = "one1z05g55zamqzfw9qs432n33gycdmyvs38xjemyl";
    let address = read_address(text).unwrap();
    assert_eq!(write_address(address), text);
    assert_eq!(read_address(&write_address(Address::repeat_byte(0xa5))).unwrap()[0], 0xa5);
}

#[test]
fn a_wrong_letter_is_refused() {
    assert_eq!(read_address("one1z05g55zamqzfw9qs432n33gycdmyvs38xjemyq"), None);
    assert_eq!(read_address("one1"), None);
    assert_eq!(read_address("bc1z05g55zamqzfw9qs432n33gycdmyvs38xjemyl"), None);
}
