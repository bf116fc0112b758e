//! What is kept of a filter.

use super::*;

#[test]
fn a_filter_is_kept_without_what_means_nothing() {
    let long = "x".repeat(1 << 20);
    let raw = format!(
        r#"{{ "x": "{long}", "address": ["0x01", "0x02"],"topics" :[null,["0x03"]], "fromBlock":"0x1" }}"#
    );
    let due = r#"{"address":["0x01", "0x02"],"topics":[null,["0x03"]],"fromBlock":"0x1"}"#;
    assert_eq!(String::from_utf8(known_members(raw.as_bytes())).unwrap(), due);
    assert_eq!(known_members(b"{}"), b"{}");
    let spelt = known_members(br#"{"toblock":"0x2","FROMBLOCK":"0x1"}"#);
    assert_eq!(String::from_utf8(spelt).unwrap(), r#"{"toBlock":"0x2","fromBlock":"0x1"}"#);
}
