//! Goal: the parser's result does not depend on how the bytes of a response are split, and invalid
//! or too long responses are rejected. Method: each text is fed as a whole, byte by byte, and split
//! at random.

use std::time::{Duration, Instant};

use lab_model::record::Class;
use proptest::prelude::*;

use super::{ParseError, Read, Reader};
use crate::engine::classify::{self, CallOutcome};
use crate::engine::rng::Rng;

/// Maximum number of bytes of a body.
const MAX: usize = 1000;

#[derive(Debug, PartialEq, Eq, Clone)]
enum Parsed {
    Incomplete,
    Complete { status: u16, body: Vec<u8>, keep_alive: bool, extra: bool, wait: Option<Duration> },
    Invalid(ParseError),
}

fn parsed(read: &Read<'_>) -> Parsed {
    match read {
        Read::Incomplete => Parsed::Incomplete,
        Read::Invalid(error) => Parsed::Invalid(*error),
        Read::Complete { head, body, extra } => Parsed::Complete {
            status: head.status,
            body: body.stored.expect("these are short").to_vec(),
            keep_alive: head.keep_alive,
            extra: *extra,
            wait: head.retry_after,
        },
    }
}

/// Returns the result of a complete response that keeps the connection open and has no Retry-After.
fn whole(status: u16, body: &str) -> Parsed {
    Parsed::Complete { status, body: body.into(), keep_alive: true, extra: false, wait: None }
}

/// Feeds a text to a reader in pieces of these sizes, and returns the last result.
fn feed_pieces(text: &[u8], sizes: impl IntoIterator<Item = usize>) -> Parsed {
    let mut reader = Reader::default();
    let (mut offset, mut last) = (0, Parsed::Incomplete);
    for size in sizes {
        let end = (offset + size).min(text.len());
        last = parsed(&reader.feed(&text[offset..end], MAX));
        offset = end;
        if last != Parsed::Incomplete || offset == text.len() {
            break;
        }
    }
    last
}

/// Checks the result of a text, in one piece and byte by byte.
fn check(text: &str, expected: &Parsed) {
    let bytes = text.as_bytes();
    assert_eq!(&feed_pieces(bytes, [bytes.len()]), expected, "in one piece: {text:?}");
    assert_eq!(&feed_pieces(bytes, std::iter::repeat(1)), expected, "byte by byte: {text:?}");
}

#[test]
fn responses_with_a_length() {
    check("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", &whole(200, "{}"));
    check("HTTP/1.1 200 OK\nx: y\ncontent-length:2\n\n{}", &whole(200, "{}"));
    check("HTTP/1.1 204 No Content\r\n\r\n", &whole(204, ""));
    check("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}", &Parsed::Incomplete);
    check("HTTP/1.1 200 OK\r\nContent-Length: 2", &Parsed::Incomplete);
}

#[test]
fn interim_responses_are_skipped() {
    let text = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n\
                HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
    check(text, &whole(200, "{}"));
    check("HTTP/1.1 101 Switching\r\n\r\n", &Parsed::Invalid(ParseError::NotHttp));
}

#[test]
fn responses_in_chunks() {
    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    check(&format!("{head}2\r\n{{}}\r\n0\r\n\r\n"), &whole(200, "{}"));
    check(&format!("{head}1;x=y\r\n{{\r\n01 \r\n}}\r\n0\r\nTrailer: z\r\n\r\n"), &whole(200, "{}"));
    check(&format!("{head}2\r\n{{}}\r\n0\r\n"), &Parsed::Incomplete);
    check(&format!("{head}x\r\n"), &Parsed::Invalid(ParseError::NotHttp));
    check(&format!("{head}2\r\n{{}}x"), &Parsed::Invalid(ParseError::NotHttp));
    check(&format!("{head}fffffffffffffffff\r\n"), &Parsed::Invalid(ParseError::NotHttp));
    check(&format!("{head}7ff\r\n{}", "x".repeat(0x7ff)), &Parsed::Invalid(ParseError::TooLong));
    check(&format!("{head}1{}", ";".repeat(5000)), &Parsed::Invalid(ParseError::NotHttp));
}

#[test]
fn responses_up_to_the_end_of_the_connection() {
    let mut reader = Reader::default();
    assert_eq!(reader.feed(b"HTTP/1.0 200 OK\r\n\r\n{", MAX), Read::Incomplete);
    assert_eq!(reader.feed(b"}", MAX), Read::Incomplete);
    let (head, body) = reader.at_end().unwrap();
    assert_eq!((head.status, head.keep_alive, body.parsed), (200, false, b"{}".as_slice()));
    let mut reader = Reader::default();
    assert_eq!(
        reader.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{", MAX),
        Read::Incomplete
    );
    assert_eq!(reader.at_end(), None);
    reader.reset();
    let text = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n1";
    assert!(matches!(reader.feed(text, MAX), Read::Complete { body, .. } if body.parsed == b"1"));
}

#[test]
fn the_version_and_the_connection_header_decide_about_closing() {
    let closing = |text: &str| match feed_pieces(text.as_bytes(), [text.len()]) {
        Parsed::Complete { keep_alive, .. } => !keep_alive,
        other => panic!("{other:?}"),
    };
    let tail = "Content-Length: 0\r\n\r\n";
    assert!(closing(&format!("HTTP/1.1 200 OK\r\nConnection: x, Close\r\n{tail}")));
    assert!(closing(&format!("HTTP/1.0 200 OK\r\n{tail}")));
    assert!(!closing(&format!("HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n{tail}")));
    assert!(!closing(&format!("HTTP/1.1 200 OK\r\n{tail}")));
}

#[test]
fn retry_after_is_read() {
    let wait = |value: &str| {
        let text =
            format!("HTTP/1.1 429 Slow\r\nRetry-After: {value}\r\nContent-Length: 0\r\n\r\n");
        match feed_pieces(text.as_bytes(), [text.len()]) {
            Parsed::Complete { wait, .. } => wait,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(wait("7"), Some(Duration::from_secs(7)));
    assert_eq!(wait("Sun, 06 Nov 1994 08:49:37 GMT"), Some(Duration::ZERO));
    let later = std::time::SystemTime::now() + Duration::from_secs(100);
    let waited = wait(&httpdate::fmt_http_date(later)).unwrap();
    assert!((98..=100).contains(&waited.as_secs()), "{waited:?}");
    assert_eq!(wait("soon"), None);
}

#[test]
fn invalid_responses_are_rejected() {
    let bad = Parsed::Invalid(ParseError::NotHttp);
    check("SSH-2.0-OpenSSH_9.6\r\n\r\n", &bad);
    let head = "HTTP/1.1 200 OK\r\n";
    check(&format!("{head}Content-Length: -1\r\n\r\n"), &bad);
    check(&format!("{head}Content-Length: 1\r\nContent-Length: 2\r\n\r\n"), &bad);
    check(&format!("{head}Transfer-Encoding: gzip\r\n\r\n"), &bad);
    check(&format!("{head}Content-Length: 1001\r\n\r\n"), &Parsed::Invalid(ParseError::TooLong));
    let mut reader = Reader::default();
    let long = format!("{head}x: {}", "y".repeat(70_000));
    assert_eq!(parsed(&reader.feed(long.as_bytes(), MAX)), bad);
    let many = format!("{head}{}\r\n", "x: y\r\n".repeat(129));
    assert_eq!(feed_pieces(many.as_bytes(), [many.len()]), bad);
}

#[test]
fn bytes_after_a_response_are_detected() {
    let text = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}HTTP/1.1";
    assert!(matches!(feed_pieces(text, [text.len()]), Parsed::Complete { extra: true, .. }));
    let text = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nx";
    assert!(matches!(feed_pieces(text, [text.len()]), Parsed::Complete { extra: true, .. }));
}

/// Makes one random edit: flips a bit, removes or repeats a piece, or inserts a byte.
fn edit(text: &mut Vec<u8>, rng: &mut Rng) {
    if text.is_empty() {
        return text.push(rng.next() as u8);
    }
    let at = rng.between(0, text.len() as u64 - 1) as usize;
    let end = (at + rng.between(1, 8) as usize).min(text.len());
    match rng.between(0, 3) {
        0 => text[at] ^= 1 << rng.between(0, 7),
        1 => drop(text.drain(at..end)),
        2 => {
            let piece = text[at..end].to_vec();
            text.splice(at..at, piece);
        }
        _ => text.insert(at, *b"\r\n :;0f{}[],\"".get(rng.between(0, 13) as usize).unwrap_or(&0)),
    }
}

/// Checks that a text is parsed the same in one piece and byte by byte, and that parsing ends.
fn check_pieces(text: &[u8]) {
    let (at_once, singly) =
        (feed_pieces(text, [text.len()]), feed_pieces(text, std::iter::repeat(1)));
    if let Parsed::Complete { status, body, keep_alive, wait: Some(_) | None, .. } = &at_once {
        let Parsed::Complete { status: other, body: same, keep_alive: kept, .. } = &singly else {
            panic!("{:?} byte by byte: {singly:?}", String::from_utf8_lossy(text))
        };
        assert_eq!((status, body, keep_alive), (other, same, kept));
        classify::single(*status, body, 7);
        classify::batch(*status, body, 7, 3, &mut [CallOutcome::of(Class::Ok); 2]);
    } else {
        assert!(!matches!(singly, Parsed::Complete { .. }), "{:?}", String::from_utf8_lossy(text));
    }
}

#[test]
fn edited_responses_are_parsed_the_same_in_pieces() {
    let body =
        r#"[{"jsonrpc":"2.0","id":7,"result":"0x1"},{"id":10,"error":{"code":-1,"message":""}}]"#;
    let seeds = [
        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()),
        format!("HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 4\r\n\r\n{body}"),
        format!(
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 429 X\r\nRetry-After: 7\r\n\
             Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\nx: y\r\n\r\n",
            body.len()
        ),
        "HTTP/1.1 204 No Content\r\n\r\n".to_owned(),
        "HTTP/1.1 502 Bad Gateway\nServer: x\n\n<html>".to_owned(),
    ];
    seeds.iter().for_each(|seed| check_pieces(seed.as_bytes()));
    let (start, mut tried) = (Instant::now(), 0);
    while start.elapsed() < Duration::from_secs(1) {
        tried += 1;
        let mut rng = Rng::new(20_261_121, 0, tried, 0);
        let seed = rng.between(0, seeds.len() as u64 - 1) as usize;
        let mut text = seeds[seed].clone().into_bytes();
        for _ in 0..rng.between(1, 6) {
            edit(&mut text, &mut rng);
        }
        check_pieces(&text);
    }
    assert!(tried > 100, "only {tried} inputs in a second");
}

proptest! {
    #[test]
    fn cuts_change_nothing(sizes in prop::collection::vec(1usize..20, 200), chunked: bool) {
        let text = if chunked {
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"a\":\r\n2\r\n1}\r\n0\r\n\r\n"
        } else {
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n{\"a\":1}"
        };
        prop_assert_eq!(feed_pieces(text.as_bytes(), sizes), whole(200, "{\"a\":1}"));
    }

    #[test]
    fn any_bytes_have_a_result(bytes in prop::collection::vec(any::<u8>(), 0..300), size in 1usize..50) {
        let text = [b"HTTP/1.1 200 OK\r\n".as_slice(), &bytes].concat();
        feed_pieces(&text, std::iter::repeat(size));
    }
}
