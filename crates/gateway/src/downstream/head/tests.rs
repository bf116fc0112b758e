//! Goal: every accepted head has only one meaning. Method: tables of raw heads.

use super::*;

fn fields() -> HeadFields {
    let limit_headers = ["x-key", "x-other"].map(http::HeaderName::from_static).to_vec();
    HeadFields { hash_header: Some("x-user".to_owned()), limit_headers, access_fields: None }
}

fn read(text: &str) -> Result<Option<Head>, HeadFault> {
    let bytes_max = 16 * 1024;
    read_head(text.as_bytes(), bytes_max, &fields(), None)
}

#[test]
fn an_ordinary_request_is_parsed_completely() {
    let text = "POST /eth?x=1 HTTP/1.1\r\nHost: a\r\nContent-Type: application/json; charset=utf-8\r\n\
                Content-Length: 12\r\nAccept-Encoding: br, zstd;q=0, gzip;q=0.5\r\nX-User: bob\r\n\r\nbody";
    let head = read(text).unwrap().unwrap();
    assert_eq!(head.http_method, HttpMethod::Post);
    assert_eq!(head.path.as_str(), "/eth");
    assert_eq!(head.body_length, BodyLength::Fixed(12));
    assert!(head.keep_alive);
    assert_eq!(head.media_type, MediaType::Json);
    assert_eq!(head.accepted_codings, AcceptedCodings { gzip: true, zstd: false });
    assert_eq!(head.hash_header.as_deref(), Some(&b"bob"[..]));
    assert_eq!(&text.as_bytes()[head.bytes..], b"body");
}

#[test]
fn limit_headers_keep_their_order_and_first_value() {
    let head = read("POST / HTTP/1.1\r\nHost: a\r\nX-KEY: one\r\nx-key: two\r\n\r\n");
    let head = head.unwrap().unwrap();
    assert_eq!(head.limit_headers[..], [Some(SmallVec::from_slice(b"one")), None]);
}

#[test]
fn an_incomplete_head_waits_for_more() {
    for text in ["", "POST", "POST / HTTP/1.1\r\nHost: a\r\n"] {
        assert_eq!(read(text), Ok(None), "{text:?}");
    }
}

#[test]
fn ambiguous_heads_are_refused() {
    let cases = [
        ("Content-Length: 3\r\nTransfer-Encoding: chunked\r\n", HeadFault::TwoLengths),
        ("Content-Length: 3\r\nContent-Length: 3\r\n", HeadFault::BadLength),
        ("Content-Length: 3, 3\r\n", HeadFault::BadLength),
        ("Content-Length: +3\r\n", HeadFault::BadLength),
        ("Content-Length: 0x3\r\n", HeadFault::BadLength),
        ("Content-Length:\r\n", HeadFault::BadLength),
        ("Content-Length: 99999999999999999999\r\n", HeadFault::BadLength),
        ("Transfer-Encoding: gzip, chunked\r\n", HeadFault::BadTransferCoding),
        ("Transfer-Encoding: identity\r\n", HeadFault::BadTransferCoding),
        (
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
            HeadFault::BadTransferCoding,
        ),
        ("Transfer-Encoding : chunked\r\n", HeadFault::Syntax),
        ("X: a\r\n folded\r\n", HeadFault::Syntax),
        ("X: a\nY: b\r\n", HeadFault::BareLineFeed),
        ("Host: again\r\n", HeadFault::Host),
        ("Expect: 200-maybe\r\n", HeadFault::Expectation),
    ];
    for (lines, fault) in cases {
        let text = format!("POST / HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
        assert_eq!(read(&text), Err(fault), "{lines:?}");
    }
}

#[test]
fn a_missing_host_an_unknown_version_and_long_heads_are_refused() {
    assert_eq!(read("POST / HTTP/1.1\r\n\r\n"), Err(HeadFault::Host));
    assert_eq!(read("POST / HTTP/3.0\r\n\r\n"), Err(HeadFault::Version));
    assert_eq!(
        read("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"),
        Err(HeadFault::BadTransferCoding)
    );
    let many = "A: b\r\n".repeat(65);
    assert_eq!(read(&format!("POST / HTTP/1.1\r\n{many}\r\n")), Err(HeadFault::TooManyHeaders));
    let long = "a".repeat(20_000);
    assert_eq!(read(&format!("POST / HTTP/1.1\r\nX: {long}")), Err(HeadFault::TooLarge));
}

#[test]
fn a_host_is_a_name_or_an_address_with_an_optional_port() {
    let read = |host: &str| read(&format!("POST / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
    for host in [
        "",
        "localhost",
        "rpc.example.com:8545",
        "10.0.0.1",
        "10.0.0.1:",
        "[2a00::1]",
        "[::ffff:10.0.0.1]:443",
        "[v1.x:y]",
        "my_node-1.internal",
        "caf%C3%A9.example",
    ] {
        assert!(read(host).is_ok(), "{host}");
    }
    for host in [
        "bad host",
        "a/b",
        "user@a",
        "http://a",
        "a:b",
        "a:80:90",
        "a:+80",
        "2a00::1",
        "[2a00::1",
        "[]",
        "[2a00::1]80",
        "[[::1]]",
        "a#b",
        "a?b",
        "a\\b",
        "\"a\"",
        "a\tb",
        "caf\u{e9}",
    ] {
        assert_eq!(read(host), Err(HeadFault::BadHost), "{host}");
    }
}

#[test]
fn keep_alive_follows_version_and_connection_header() {
    let alive = |text: &str| read(text).unwrap().unwrap().keep_alive;
    assert!(alive("GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
    assert!(!alive("GET / HTTP/1.1\r\nHost: a\r\nConnection: Close\r\n\r\n"));
    assert!(!alive("GET / HTTP/1.0\r\n\r\n"));
    assert!(alive("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"));
}

#[test]
fn an_upgrade_needs_a_get_and_both_headers() {
    let upgrade_of = |request_line: &str, lines: &str| {
        read(&format!("{request_line}\r\nHost: a\r\n{lines}\r\n")).unwrap().unwrap().upgrade
    };
    let upgrade_headers = "Upgrade: h2c, WebSocket\r\nConnection: keep-alive, upgrade\r\n";
    let websocket_headers = "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: abc\r\n";
    let upgrade =
        Upgrade { version_known: true, key: Some("abc".into()), extensions: String::new() };
    assert_eq!(
        upgrade_of("GET / HTTP/1.1", &format!("{upgrade_headers}{websocket_headers}")),
        Some(upgrade)
    );
    assert_eq!(upgrade_of("GET / HTTP/1.1", upgrade_headers), Some(Upgrade::default()));
    assert_eq!(
        upgrade_of("POST / HTTP/1.1", &format!("{upgrade_headers}{websocket_headers}")),
        None
    );
    assert_eq!(
        upgrade_of("GET / HTTP/1.0", &format!("{upgrade_headers}{websocket_headers}")),
        None
    );
    assert_eq!(
        upgrade_of("GET / HTTP/1.1", &format!("Upgrade: websocket\r\n{websocket_headers}")),
        None
    );
    assert_eq!(
        upgrade_of("GET / HTTP/1.1", &format!("Connection: upgrade\r\n{websocket_headers}")),
        None
    );
}

#[test]
fn targets_give_their_path() {
    for (target, expected) in
        [("/", "/"), ("/?a", "/"), ("/a/b?c", "/a/b"), ("http://h/x", "/x"), ("http://h", "/")]
    {
        assert_eq!(parse_path(target).as_str(), expected);
    }
}

#[test]
fn the_authority_of_an_absolute_target_is_its_host() {
    for (target, host) in [
        ("http://a.example:81/x", Some("a.example:81")),
        ("https://user@b?y", Some("b")),
        ("http://c", Some("c")),
        ("/http://d/", None),
        ("/", None),
    ] {
        assert_eq!(parse_authority(target), host, "{target}");
    }
}
