//! Goal: both versions are parsed, truncated headers are incomplete, and all others are rejected.
//! Method: handwritten headers, each truncated at every byte; then arbitrary bytes.

use proptest::prelude::*;

use super::*;

/// Returns a header of version 2. `command` is 0x21 for a proxied connection and 0x20 for a
/// connection of the proxy itself. `family` is 0x11 for TCP over IPv4 and 0x21 for TCP over IPv6.
fn v2(command: u8, family: u8, addresses: &[u8]) -> Vec<u8> {
    let mut header = V2_SIGNATURE.to_vec();
    header.extend_from_slice(&[command, family]);
    header.extend_from_slice(&(addresses.len() as u16).to_be_bytes());
    header.extend_from_slice(addresses);
    header
}

/// Checks the parsed address of a header; `None` for a header without one.
fn check(header: &[u8], expected: Option<&str>) {
    let source = expected.map(|address| address.parse().unwrap());
    let expected = Ok(Some(ProxyHeader { source, bytes: header.len() }));
    assert_eq!(parse(header), expected, "{header:?}");
    for cut in 0..header.len() {
        assert_eq!(parse(&header[..cut]), Ok(None), "cut at {cut}: {header:?}");
    }
    // The following bytes belong to the next protocol.
    let followed = [header, b"POST / HTTP/1.1\r\n\r\n"].concat();
    assert_eq!(parse(&followed), expected);
}

#[test]
fn text_headers_are_read() {
    check(b"PROXY TCP4 1.1.1.1 10.0.0.1 5678 443\r\n", Some("1.1.1.1"));
    check(b"PROXY TCP6 2a00::1 2001:db8::1 5678 443\r\n", Some("2a00::1"));
    check(b"PROXY TCP6 ::ffff:1.1.1.1 ::ffff:10.0.0.1 5678 443\r\n", Some("1.1.1.1"));
    check(b"PROXY UNKNOWN\r\n", None);
    check(b"PROXY UNKNOWN ffff::1 ffff::2 65535 65535\r\n", None);
}

#[test]
fn binary_headers_are_read() {
    let v4 = [1, 1, 1, 1, 10, 0, 0, 1, 0x16, 0x2e, 1, 0xbb];
    let mut v6 = [0; 36];
    v6[..2].copy_from_slice(&[0x2a, 0]);
    v6[15] = 1;
    check(&v2(0x21, 0x11, &v4), Some("1.1.1.1"));
    check(&v2(0x21, 0x12, &v4), Some("1.1.1.1"));
    check(&v2(0x21, 0x21, &v6), Some("2a00::1"));
    check(&v2(0x21, 0x11, &[&v4[..], &[4, 0, 2, 0, 0]].concat()), Some("1.1.1.1"));
    check(&v2(0x20, 0x00, &[]), None);
    check(&v2(0x20, 0x11, &v4), None);
    check(&v2(0x21, 0x31, &[0; 216]), None);
    check(&v2(0x21, 0x00, &[]), None);
}

#[test]
fn malformed_headers_and_other_bytes_are_rejected() {
    let malformed: &[&[u8]] = &[
        b"PROXY TCP4 1.1.1.1 10.0.0.1 5678\r\n",
        b"PROXY TCP4 1.1.1.1 10.0.0.1 5678 443 1\r\n",
        b"PROXY TCP4 1.1.1.1 10.0.0.1 5678 99999\r\n",
        b"PROXY TCP4 1.1.1.1  10.0.0.1 5678 443\r\n",
        b"PROXY TCP4 2a00::1 2a00::2 5678 443\r\n",
        b"PROXY TCP6 1.1.1.1 10.0.0.1 5678 443\r\n",
        b"PROXY UDP4 1.1.1.1 10.0.0.1 5678 443\r\n",
        b"PROXY \r\n",
        b"PROXY TCP4 \xff 10.0.0.1 5678 443\r\n",
        &v2(0x11, 0x11, &[0; 12]),
        &v2(0x22, 0x11, &[0; 12]),
        &v2(0x21, 0x11, &[0; 11]),
        &v2(0x21, 0x21, &[0; 35]),
        &v2(0x21, 0x41, &[0; 36]),
    ];
    for header in malformed {
        assert_eq!(parse(header), Err(ProxyError::Malformed), "{header:?}");
    }
    for other in [&b"POST / HTTP/1.1\r\n"[..], b"\x16\x03\x01", b"PROXZ", b"\r\n\r\n\0\r\nQUIX"] {
        assert_eq!(parse(other), Err(ProxyError::NoHeader), "{other:?}");
    }
}

#[test]
fn an_endless_header_is_rejected() {
    let endless = [b"PROXY TCP4 ".to_vec(), vec![b'1'; V1_BYTES_MAX]].concat();
    assert_eq!(parse(&endless[..V1_BYTES_MAX]), Err(ProxyError::TooLong));
    assert_eq!(parse(&endless[..V1_BYTES_MAX - 1]), Ok(None));
    let long = v2(0x21, 0x11, &vec![0; HEADER_BYTES_MAX]);
    assert_eq!(parse(&long[..V2_FIXED_BYTES]), Err(ProxyError::TooLong));
}

proptest! {
    #[test]
    fn no_bytes_panic(
        start in 0..3usize,
        bytes in prop::collection::vec(any::<u8>(), 0..120),
    ) {
        let start: &[u8] = [&b""[..], b"PROXY ", V2_SIGNATURE][start];
        let header = [start, &bytes].concat();
        if let Ok(Some(proxied)) = parse(&header) {
            prop_assert!(proxied.bytes <= header.len());
        }
    }
}
