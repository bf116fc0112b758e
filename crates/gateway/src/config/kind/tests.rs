//! Every kind takes what it says it allows, refuses what lies beside it, and prints its bounds in
//! a form that it reads itself: tables of cases.

use super::*;

#[test]
fn durations_and_bytes_read_and_print() {
    let durations =
        [("1ms", 1), ("250ms", 250), ("10s", 10_000), ("2m", 120_000), ("1d", 86_400_000)];
    for (text, ms) in durations {
        assert_eq!(duration(text).unwrap(), Duration::from_millis(ms));
        assert_eq!(ShownDuration(Duration::from_millis(ms)).to_string(), text);
    }
    assert_eq!(ShownDuration(Duration::ZERO).to_string(), "0ms");
    let sizes = [("1B", 1), ("16KiB", 16384), ("5MiB", 5 << 20), ("2GiB", 2 << 30)];
    for (text, size) in sizes {
        assert_eq!(bytes(text).unwrap(), size);
        assert_eq!(ShownBytes(size).to_string(), text);
    }
    assert_eq!(bytes("25MB").unwrap(), 25_000_000);
    assert_eq!(bytes("64 KiB").unwrap(), 65536);
    for text in ["", "s", "10", "10 seconds", "-1s", "1.5s", "99999999999999999999s"] {
        assert!(duration(text).is_err(), "{text}");
    }
    for text in ["", "MiB", "5Mb", "5mib", "1.5MiB", "-1B", "99999999999GiB"] {
        assert!(bytes(text).is_err(), "{text}");
    }
}

#[test]
fn bounds_are_inclusive() {
    let count = Kind::Count { min: 1, max: 3 };
    for (number, fits) in [(0, false), (1, true), (3, true), (4, false)] {
        assert_eq!(count.of_count(number).is_ok(), fits, "{number}");
    }
    let share = Kind::Number { min: 0.0, max: 1.0 };
    for (number, fits) in [(-0.1, false), (0.0, true), (1.0, true), (1.1, false), (f64::NAN, false)]
    {
        assert_eq!(share.of_number(number).is_ok(), fits, "{number}");
    }
    let duration = Kind::Duration { min: Duration::from_secs(1), max: Duration::from_secs(2) };
    for (text, fits) in [("999ms", false), ("1s", true), ("2s", true), ("2001ms", false)] {
        assert_eq!(duration.of_text(text).is_ok(), fits, "{text}");
    }
}

#[test]
fn texts_of_each_kind() {
    let cases: [(Kind, &[&str], &[&str]); 12] = [
        (Kind::Name, &["a", "node-1", "127.0.0.1:8545"], &["", "a b", "é", "a/b"]),
        (
            Kind::Paths,
            &["/", "/eth", "/api/v1/hmy/v2"],
            &["", "eth", "/eth/", "//", "/a b", "/a?b"],
        ),
        (Kind::Methods, &["*", "debug_*", "eth_getLogs"], &["", "*_x", "a*b*"]),
        (
            Kind::Origins,
            &["*", "https://App.Example:8443"],
            &["app.example", "https://a/b", "https://"],
        ),
        (
            Kind::HashKey,
            &["call", "client", "header:x-user"],
            &["", "method", "header:", "header:a b"],
        ),
        (Kind::AddressOrOff, &["127.0.0.1:1", "[::1]:80"], &["on", "localhost:80", "127.0.0.1"]),
        (Kind::Words(&["a", "b"]), &["a", "b"], &["", "c", "A"]),
        (
            Kind::Ciphers,
            &["ECDHE-RSA-AES256-GCM-SHA384", "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"],
            &["", "AES256-SHA", "ECDHE-RSA-AES256-SHA384", "HIGH"],
        ),
        (
            Kind::Hosts,
            &["a.example", "*.a.example", "A.example", "xn--80ak6aa92e.com"],
            &["", "*", "a.*.example", "**.a", "a b", "http://a"],
        ),
        (
            Kind::Networks,
            &["10.0.0.0/8", "10.1.2.3/8", "127.0.0.1", "::1", "2001:db8::/32"],
            &["", "10.0.0.0/33", "::/129", "10.0.0/8", "localhost", "127.0.0.1:80"],
        ),
        (Kind::AddressOrOff, &["off", "0.0.0.0:0"], &["on", "Off"]),
        (Kind::Choice(&["text", "json"]), &["text"], &["Text", ""]),
    ];
    for (kind, right, wrong) in cases {
        for text in right {
            assert!(kind.of_text(text).is_ok(), "{kind:?} {text}");
        }
        for text in wrong {
            assert!(kind.of_text(text).is_err(), "{kind:?} {text}");
        }
    }
}

#[test]
fn headers_are_sensitive_and_never_the_gateways_own() {
    let (name, value) = Kind::of_header("X-Api-Key", "secret").unwrap();
    assert_eq!(name, "x-api-key");
    assert_eq!(format!("{value:?}"), "Sensitive");
    for (name, value) in [("Host", "x"), ("content-length", "1"), ("a b", "x"), ("x", "a\nb")] {
        assert!(Kind::of_header(name, value).is_err(), "{name}");
    }
}
