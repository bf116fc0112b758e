//! Goal: numbers are parsed exactly or rejected. Method: tables of texts, and numbers that are
//! written and parsed again.
use super::*;

fn hex(number: u64) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut out, number);
    out
}

#[test]
fn quantities_are_canonical_or_rejected() {
    for (text, strict, lenient) in [
        ("0x0", Some(0), Some(0)),
        ("0x1b4", Some(436), Some(436)),
        ("0xffffffffffffffff", Some(u64::MAX), Some(u64::MAX)),
        ("0x00", None, Some(0)),
        ("0x01", None, Some(1)),
        ("0x000000000000000000000001", None, Some(1)),
        ("0x10000000000000000", None, None),
        ("0x", None, None),
        ("", None, None),
        ("0X1", None, None),
        ("1", None, None),
        ("0xg", None, None),
        ("0x-1", None, None),
    ] {
        assert_eq!(parse(text.as_bytes()), strict, "{text}");
        assert_eq!(parse_lenient(text.as_bytes()), lenient, "{text}");
    }
}

#[test]
fn decimals_fit_or_are_rejected() {
    for (text, expected) in [
        ("0", Some(0)),
        ("18446744073709551615", Some(u64::MAX)),
        ("18446744073709551616", None),
        ("01", None),
        ("-1", None),
        ("1.0", None),
        ("1e3", None),
        ("", None),
    ] {
        assert_eq!(parse_decimal(text.as_bytes()), expected, "{text}");
    }
}

#[test]
fn written_numbers_read_back() {
    for shift in 0..64 {
        for number in [1u64 << shift, (1u64 << shift).wrapping_sub(1), u64::MAX >> shift] {
            assert_eq!(parse(&hex(number)), Some(number));
            let mut out = Vec::new();
            write_decimal(&mut out, number);
            assert_eq!(out, number.to_string().as_bytes());
            assert_eq!(parse_decimal(&out), Some(number));
        }
    }
}

#[test]
fn raw_values_are_quantities_or_decimals() {
    assert_eq!(from_value(br#""0x10""#), Some(16));
    assert_eq!(from_value(b"16"), Some(16));
    assert_eq!(from_value(br#""16""#), None);
    assert_eq!(from_value(b"null"), None);
}
