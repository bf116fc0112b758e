//! Goal: the client's address is the rightmost address that is not a trusted proxy, whatever the
//! client itself wrote to the left of it. Method: tables, with nginx's realip as the reference for
//! the same cases; then arbitrary bytes.

use AddressSource::{Forwarded, Peer, ProxyProtocol, XForwardedFor};
use proptest::prelude::*;

use super::*;

fn trusted() -> Networks {
    let networks = ["10.0.0.0/8", "192.0.2.1/32", "2001:db8::/32"];
    Networks(networks.iter().map(|network| network.parse().unwrap()).collect())
}

fn check(source: AddressSource, values: &[&str], expected: &str) {
    let address = find_client(source, values.iter().map(|value| value.as_bytes()), &trusted());
    let address = address.map_or_else(|| "peer".to_owned(), |address| address.to_string());
    assert_eq!(address, expected, "{values:?}");
}

#[test]
fn x_forwarded_for_is_read_from_the_right() {
    let check = |values: &[&str], expected| check(XForwardedFor, values, expected);
    check(&[], "peer");
    check(&["1.1.1.1"], "1.1.1.1");
    // The client controls the entries on the left.
    check(&["9.9.9.9, 1.1.1.1"], "1.1.1.1");
    check(&["9.9.9.9, 1.1.1.1, 10.0.0.2"], "1.1.1.1");
    check(&["9.9.9.9, 1.1.1.1, 192.0.2.1, 10.0.0.2"], "1.1.1.1");
    check(&["1.1.1.1, 192.0.2.2, 10.0.0.2"], "192.0.2.2");
    // If all entries are trusted proxies, the leftmost one is the client.
    check(&["10.0.0.3, 10.0.0.2"], "10.0.0.3");
    // Several header lines form one list.
    check(&["9.9.9.9", "1.1.1.1", "10.0.0.2"], "1.1.1.1");
    check(&["9.9.9.9, 1.1.1.1", "10.0.0.3, 10.0.0.2"], "1.1.1.1");
    // Addresses may be IPv6, have a port, or be IPv4 in IPv6 form.
    check(&["2a00::1, 2001:db8::7"], "2a00::1");
    check(&["[2a00::1]:443, [2001:db8::7]:80"], "2a00::1");
    check(&["[2a00::1]"], "2a00::1");
    check(&["1.1.1.1:5678, 10.0.0.2:80"], "1.1.1.1");
    check(&["::ffff:1.1.1.1, ::ffff:10.0.0.2"], "1.1.1.1");
    // Empty entries and extra spaces are skipped.
    check(&[" 1.1.1.1 ,, ,10.0.0.2, "], "1.1.1.1");
    check(&["9.9.9.9 1.1.1.1"], "1.1.1.1");
    check(&["", ",", " , "], "peer");
}

#[test]
fn an_unreadable_entry_ends_the_search() {
    let check = |values: &[&str], expected| check(XForwardedFor, values, expected);
    check(&["unknown"], "peer");
    check(&["1.1.1.1, unknown"], "peer");
    check(&["1.1.1.1, unknown, 10.0.0.2"], "10.0.0.2");
    check(&["1.1.1.1", "nonsense", "10.0.0.3, 10.0.0.2"], "10.0.0.3");
    for odd in ["1.1.1", "1.1.1.256", "1.1.1.1:99999", "[1.1.1.1]", "::g", "a.b", "01.1.1.1"] {
        check(&[odd], "peer");
        check(&[&format!("1.1.1.1, {odd}, 10.0.0.2")], "10.0.0.2");
    }
}

#[test]
fn forwarded_is_read_from_the_right() {
    let check = |values: &[&str], expected| check(Forwarded, values, expected);
    check(&["for=1.1.1.1"], "1.1.1.1");
    check(&["For=9.9.9.9, for=1.1.1.1;proto=https;by=10.0.0.1, for=10.0.0.2"], "1.1.1.1");
    check(&["for=\"[2a00::1]:4711\", for=\"[2001:db8::7]\""], "2a00::1");
    check(&["for=\"1.1.1.1:80\""], "1.1.1.1");
    check(&["for=\"1.1.1.1:_port\""], "1.1.1.1");
    check(&["proto=https; host=\"a,b;c\" ;for=1.1.1.1 , for=10.0.0.2;host=\"x\\\"y,\""], "1.1.1.1");
    check(&["for=9.9.9.9", "for=1.1.1.1", "for=10.0.0.2"], "1.1.1.1");
    check(&[""], "peer");
}

#[test]
fn a_hidden_or_broken_element_ends_the_search() {
    let check = |values: &[&str], expected| check(Forwarded, values, expected);
    for odd in [
        "for=unknown",
        "for=_hidden",
        "proto=https",
        "for=",
        "for",
        "for=\"1.1.1.1",
        "for=1.1.1.1\"",
        "for=1.1.1.1;for=2.2.2.2",
        "for=\"1.1\\.1.1\"",
        "=",
    ] {
        check(&[odd], "peer");
        check(&[&format!("{odd}, for=10.0.0.2")], "10.0.0.2");
        check(&[odd, "for=10.0.0.2"], "10.0.0.2");
    }
}

#[test]
fn an_open_quote_hides_no_entry_of_a_proxy() {
    check(Forwarded, &["for=\"9.9.9.9, for=1.1.1.1"], "1.1.1.1");
    check(Forwarded, &["for=\"9.9.9.9, for=1.1.1.1, for=10.0.0.2"], "1.1.1.1");
    check(Forwarded, &["for=\"\\, for=1.1.1.1;host=\"a\", for=10.0.0.2"], "1.1.1.1");
}

#[test]
fn other_sources_have_no_header() {
    for source in [Peer, ProxyProtocol] {
        check(source, &["1.1.1.1"], "peer");
        assert_eq!(source.header(), None);
    }
}

#[test]
fn networks_contain_ipv4_addresses_in_both_forms() {
    let trusted = trusted();
    for (address, expected) in [
        ("10.255.0.1", true),
        ("11.0.0.1", false),
        ("::ffff:10.0.0.1", true),
        ("192.0.2.1", true),
        ("192.0.2.0", false),
        ("2001:db8:ffff::1", true),
        ("2001:db9::", false),
    ] {
        assert_eq!(trusted.contains(address.parse().unwrap()), expected, "{address}");
    }
    assert!(!Networks::default().contains("127.0.0.1".parse().unwrap()));
}

proptest! {
    /// The entry that the trusted proxy appended counts, whatever the client sends.
    #[test]
    fn a_client_cannot_choose_its_address(junk in "[ -~]{0,60}", lines in any::<bool>()) {
        for (source, appended) in [(XForwardedFor, "1.1.1.1"), (Forwarded, "for=1.1.1.1")] {
            let joined = format!("{junk}, {appended}");
            let values = if lines { vec![junk.as_str(), appended] } else { vec![joined.as_str()] };
            check(source, &values, "1.1.1.1");
        }
    }

    #[test]
    fn no_bytes_panic(values in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 0..4)) {
        for source in [XForwardedFor, Forwarded] {
            find_client(source, values.iter().map(Vec::as_slice), &trusted());
        }
    }
}
