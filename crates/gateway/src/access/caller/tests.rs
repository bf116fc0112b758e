//! Goal: a key is found in each configured place and nowhere else, and only its hash is stored.
//! Method: raw request heads that the parser reads, and paths.

use super::*;
use crate::downstream::head::{Head, read_head};

const KEY: &str = "wk_0123456789abcdefghij";

fn places() -> KeyPlaces {
    KeyPlaces { header: Some("x-api-key".into()), bearer: true, path: true, query: true }
}

fn head(places: KeyPlaces, target: &str, lines: &str) -> Head {
    let access_fields = AccessFields {
        key_places: Some(places),
        accepts_tokens: true,
        used_headers: vec!["user-agent".into(), "x-team".into()],
    };
    let fields = HeadFields {
        hash_header: None,
        limit_headers: Vec::new(),
        access_fields: Some(access_fields),
    };
    let text = format!("POST {target} HTTP/1.1\r\nHost: rpc.example:8645\r\n{lines}\r\n");
    let head_bytes_max = 1 << 14;
    read_head(text.as_bytes(), head_bytes_max, &fields, None).unwrap().unwrap()
}

fn key_index() -> KeyIndex {
    let keys = [(sha256(KEY.as_bytes()), 0)].into_iter().collect();
    KeyIndex { keys, certificates: HashMap::default() }
}

/// Parses a request head. Returns whether [`KEY`] is found in it, and the path without the key.
fn authenticate_head(
    places: KeyPlaces,
    target: &str,
    lines: &str,
) -> Result<(bool, String), Denial> {
    let head = head(places.clone(), target, lines);
    assert!(!format!("{head:?}").contains("wk_") || target.contains("/wk_"), "{head:?}");
    let (key, path) =
        find_key(&key_index(), head.path.as_str(), head.access_values.as_deref(), &places)?;
    let is_key = key.is_some_and(|key| key.hash == sha256(KEY.as_bytes()));
    Ok((is_key, path.to_owned()))
}

#[test]
fn a_key_is_found_in_each_place() {
    for (target, lines, path) in [
        ("/", format!("X-Api-Key: {KEY}\r\n"), "/"),
        ("/eth", format!("x-api-key:  {KEY} \r\n"), "/eth"),
        ("/", format!("Authorization: Bearer {KEY}\r\n"), "/"),
        ("/", format!("authorization: bearer   {KEY}\r\n"), "/"),
        (&format!("/{KEY}"), String::new(), "/"),
        (&format!("/{KEY}/"), String::new(), "/"),
        (&format!("/eth/v1/{KEY}"), String::new(), "/eth/v1"),
        (&format!("/{KEY}/eth/v1"), String::new(), "/eth/v1"),
        (&format!("/eth?key={KEY}"), String::new(), "/eth"),
        (&format!("/eth?a=b&key={KEY}#x"), String::new(), "/eth"),
        // The same key twice is not ambiguous.
        ("/", format!("x-api-key: {KEY}\r\nauthorization: Bearer {KEY}\r\n"), "/"),
        // A key in the path is removed even if another one takes precedence.
        (&format!("/{KEY}"), format!("x-api-key: {KEY}\r\n"), "/"),
    ] {
        assert_eq!(
            authenticate_head(places(), target, &lines),
            Ok((true, path.to_owned())),
            "{target} {lines}"
        );
    }
}

#[test]
fn other_texts_are_not_keys() {
    for (target, lines, path) in [
        ("/", String::new(), "/"),
        ("/eth?key=", String::new(), "/eth"),
        ("/eth?keys=wk_0123456789abcdefghij", String::new(), "/eth"),
        ("/0123456789abcdef01234567", String::new(), "/0123456789abcdef01234567"),
        (&format!("/a/{KEY}/b"), String::new(), &format!("/a/{KEY}/b")),
        ("/", format!("authorization: Basic {KEY}\r\n"), "/"),
        ("/", format!("authorization: Bearer{KEY}\r\n"), "/"),
        ("/", "authorization: Bearer\r\n".to_owned(), "/"),
    ] {
        assert_eq!(
            authenticate_head(places(), target, &lines),
            Ok((false, path.to_owned())),
            "{target} {lines}"
        );
    }
}

#[test]
fn two_keys_are_refused() {
    let two = format!("x-api-key: {KEY}\r\nx-api-key: other\r\n");
    assert_eq!(authenticate_head(places(), "/", &two), Err(Denial::TwoKeys));
    let two = format!("x-api-key: {KEY}\r\nauthorization: Bearer other\r\n");
    assert_eq!(authenticate_head(places(), "/", &two), Err(Denial::TwoKeys));
}

#[test]
fn disabled_places_are_ignored() {
    let off = KeyPlaces { header: None, bearer: false, path: false, query: false };
    let target = format!("/{KEY}?key={KEY}");
    let lines = format!("x-api-key: {KEY}\r\nauthorization: Bearer {KEY}\r\n");
    assert_eq!(authenticate_head(off, &target, &lines), Ok((false, format!("/{KEY}"))));
}

#[test]
fn host_and_configured_headers_are_parsed() {
    let head = head(places(), "/", "User-Agent: a\r\nuser-agent: b\r\nCookie: c\r\n");
    let access_values = head.access_values.as_deref().unwrap();
    assert_eq!(&*access_values.host, "rpc.example");
    assert_eq!(access_values.headers[0].as_deref(), Some(&b"a"[..]));
    assert_eq!(access_values.headers[1], None);
    for (host, expected) in [("[::1]:80", "[::1]"), ("[::1]", "[::1]"), ("a", "a"), ("", "")] {
        let fields =
            AccessFields { key_places: None, accepts_tokens: false, used_headers: Vec::new() };
        let mut access_values = AccessValues::new(&fields);
        access_values.set_target(host, "/", &fields);
        assert_eq!(&*access_values.host, expected);
    }
}
