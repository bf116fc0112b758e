//! URLs in, parts and shown form out. Every secret holds the word `sekrit`.

use super::*;

#[test]
fn parts_are_taken_apart() {
    let cases = [
        ("http://127.0.0.1:8545", (false, "127.0.0.1", 8545, "/", None)),
        ("https://Node.Example/v3/abc?x=1", (true, "node.example", 443, "/v3/abc?x=1", None)),
        ("http://[::1]:8545/a", (false, "::1", 8545, "/a", None)),
        ("http://u%3Aa:p@h", (false, "h", 80, "/", Some("Basic dTphOnA="))),
    ];
    for (text, (tls, host, port, path, authorization)) in cases {
        let read = Address::parse(text).unwrap();
        let parts = (read.tls, &*read.host, read.port, &*read.path, read.authorization.as_deref());
        assert_eq!(parts, (tls, host, port, path, authorization), "{text}");
    }
}

#[test]
fn secrets_are_not_shown_and_words_are() {
    let cases = [
        ("https://eth.example/v3/sekrit0123456789abcdef", "https://eth.example/v3/***"),
        ("https://sekrit:sekrit@eth.example/rpc?key=sekrit", "https://***@eth.example/rpc?***"),
        ("https://sekrit0123456789.quiknode.pro/", "https://***.quiknode.pro"),
        ("wss://eth.example/sekrit0123456789", "wss://eth.example/***"),
        ("gopher://sekrit", "***"),
        ("sekrit", "***"),
        ("127.0.0.1:8545", "127.0.0.1:8545"),
    ];
    for (text, expected) in cases {
        assert_eq!(masked(text), expected, "{text}");
    }
}

#[test]
fn what_is_no_url_is_refused() {
    for text in
        ["", "x", "http://", "ftp://h", "ws://h", "http://h:0", "http://h:99999", "http://h#f"]
    {
        assert!(Address::parse(text).is_err(), "{text}");
    }
    assert!(Address::parse(&format!("http://h/{}", "a".repeat(3000))).is_err());
}
