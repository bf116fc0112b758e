//! Goal: every value type accepts the values that its documentation allows, and rejects similar
//! ones. Method: tables of texts.

use settings::{Input, Scalar};

use super::*;
use crate::config::group::HashKeyName;
use crate::config::limits::ZoneKeyPart;
use crate::config::rule::HeaderPattern;

fn check<S: Scalar>(valid: &[&str], invalid: &[&str]) {
    for text in valid {
        assert!(S::parse(Input::String(text)).is_ok(), "{text} is no {}", S::noun());
    }
    for text in invalid {
        assert!(S::parse(Input::String(text)).is_err(), "{text} is {}", S::noun());
    }
}

#[test]
fn texts_of_each_type() {
    check::<Address>(
        &["127.0.0.1:1", "[::1]:80", "off", "0.0.0.0:0"],
        &["on", "localhost:80", "127.0.0.1", "Off"],
    );
    check::<Name>(&["a", "node-1", "127.0.0.1:8545"], &["", "a b", "é", "a/b", &"a".repeat(65)]);
    check::<UrlPath>(&["/", "/eth", "/api/v1/hmy/v2"], &["", "eth", "/eth/", "//", "/a b", "/a?b"]);
    check::<MethodPattern>(&["*", "debug_*", "eth_getLogs"], &["", "*_x", "a*b*"]);
    check::<Origin>(
        &["*", "https://App.Example:8443"],
        &["app.example", "https://a/b", "https://"],
    );
    check::<HashKeyName>(
        &["call", "client", "header:x-user"],
        &["", "method", "header:", "header:a b"],
    );
    check::<ZoneKeyPart>(&["client", "client-net", "header:x"], &["", "cookie:a", "header:a b"]);
    check::<Cipher>(
        &["ECDHE-RSA-AES256-GCM-SHA384", "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"],
        &["", "AES256-SHA", "ECDHE-RSA-AES256-SHA384", "HIGH"],
    );
    check::<HostPattern>(
        &["a.example", "*.a.example", "A.example", "xn--80ak6aa92e.com"],
        &["", "*", "a.*.example", "**.a", "a b", "http://a"],
    );
    check::<Network>(
        &["10.0.0.0/8", "10.1.2.3/8", "127.0.0.1", "::1", "2001:db8::/32"],
        &["", "10.0.0.0/33", "::/129", "10.0.0/8", "localhost", "127.0.0.1:80"],
    );
    check::<CallRate>(&["1r/s", "600r/m"], &["", "0r/s", "1r/h", "1 r/s", "1", "1000000001r/s"]);
    check::<Timestamp>(&["2027-01-31T00:00:00Z"], &["", "tomorrow", "1969-12-31T00:00:00Z"]);
    let digits = "0aF1".repeat(16);
    let prefixed = format!("sha256:{digits}");
    let hexadecimal = format!("0x{}", &digits[2..]);
    check::<KeyHash>(&[&digits, &prefixed], &["", &digits[1..], &hexadecimal, &"g".repeat(64)]);
    check::<HeaderPattern>(
        &["x-client: mobile*", "X-Team:a"],
        &["x-client", "cookie: a", "a b: c"],
    );
}

#[test]
fn headers_are_sensitive_and_reserved_headers_are_rejected() {
    let (name, value) = Header::parse("X-Api-Key", "secret").unwrap();
    assert_eq!(name, "x-api-key");
    assert_eq!(format!("{value:?}"), "Sensitive");
    for (name, value) in [("Host", "x"), ("content-length", "1"), ("a b", "x"), ("x", "a\nb")] {
        assert!(Header::parse(name, value).is_err(), "{name}");
    }
}
