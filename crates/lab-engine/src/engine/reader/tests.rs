//! Goal: the same answer comes out however its bytes are cut, and what is no response is refused
//! within bounds. Method: each text whole, byte by byte, and cut at random.

use std::time::{Duration, Instant};

use lab_model::record::Class;
use proptest::prelude::*;

use super::{ParseError, Read, Reader};
use crate::engine::classify::{self, CallOutcome};
use crate::engine::rng::Rng;

const MAX: usize = 1000;

#[derive(Debug, PartialEq, Eq, Clone)]
enum Seen {
    More,
    Whole { status: u16, body: Vec<u8>, keep: bool, extra: bool, wait: Option<Duration> },
    Bad(ParseError),
}

fn seen(read: &Read<'_>) -> Seen {
    match read {
        Read::More => Seen::More,
        Read::Bad(why) => Seen::Bad(*why),
        Read::Whole { head, body, extra } => Seen::Whole {
            status: head.status,
            body: body.whole.expect("these are short").to_vec(),
            keep: head.keep,
            extra: *extra,
            wait: head.retry_after,
        },
    }
}

fn whole(status: u16, body: &str) -> Seen {
    Seen::Whole { status, body: body.into(), keep: true, extra: false, wait: None }
}

fn feed_pieces(text: &[u8], sizes: impl IntoIterator<Item = usize>) -> Seen {
    let mut reader = Reader::default();
    let (mut at, mut last) = (0, Seen::More);
    for size in sizes {
        let end = (at + size).min(text.len());
        last = seen(&reader.feed(&text[at..end], MAX));
        at = end;
        if last != Seen::More || at == text.len() {
            break;
        }
    }
    last
}

fn check(text: &str, expected: &Seen) {
    let bytes = text.as_bytes();
    assert_eq!(&feed_pieces(bytes, [bytes.len()]), expected, "in one piece: {text:?}");
    assert_eq!(&feed_pieces(bytes, std::iter::repeat(1)), expected, "byte by byte: {text:?}");
}

#[test]
fn answers_with_a_length() {
    check("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", &whole(200, "{}"));
    check("HTTP/1.1 200 OK\nx: y\ncontent-length:2\n\n{}", &whole(200, "{}"));
    check("HTTP/1.1 204 No Content\r\n\r\n", &whole(204, ""));
    check("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}", &Seen::More);
    check("HTTP/1.1 200 OK\r\nContent-Length: 2", &Seen::More);
}

#[test]
fn interim_answers_are_passed() {
    let text = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n\
                HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
    check(text, &whole(200, "{}"));
    check("HTTP/1.1 101 Switching\r\n\r\n", &Seen::Bad(ParseError::NotHttp));
}

#[test]
fn answers_in_chunks() {
    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    check(&format!("{head}2\r\n{{}}\r\n0\r\n\r\n"), &whole(200, "{}"));
    check(&format!("{head}1;x=y\r\n{{\r\n01 \r\n}}\r\n0\r\nTrailer: z\r\n\r\n"), &whole(200, "{}"));
    check(&format!("{head}2\r\n{{}}\r\n0\r\n"), &Seen::More);
    check(&format!("{head}x\r\n"), &Seen::Bad(ParseError::NotHttp));
    check(&format!("{head}2\r\n{{}}x"), &Seen::Bad(ParseError::NotHttp));
    check(&format!("{head}fffffffffffffffff\r\n"), &Seen::Bad(ParseError::NotHttp));
    check(&format!("{head}7ff\r\n{}", "x".repeat(0x7ff)), &Seen::Bad(ParseError::TooLong));
    check(&format!("{head}1{}", ";".repeat(5000)), &Seen::Bad(ParseError::NotHttp));
}

#[test]
fn answers_up_to_the_end_of_the_connection() {
    let mut reader = Reader::default();
    assert_eq!(reader.feed(b"HTTP/1.0 200 OK\r\n\r\n{", MAX), Read::More);
    assert_eq!(reader.feed(b"}", MAX), Read::More);
    let (head, body) = reader.at_end().unwrap();
    assert_eq!((head.status, head.keep, body.judged), (200, false, b"{}".as_slice()));
    let mut reader = Reader::default();
    assert_eq!(reader.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{", MAX), Read::More);
    assert_eq!(reader.at_end(), None);
    reader.reset();
    let text = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n1";
    assert!(matches!(reader.feed(text, MAX), Read::Whole { body, .. } if body.judged == b"1"));
}

#[test]
fn what_closes_the_connection() {
    let closing = |text: &str| match feed_pieces(text.as_bytes(), [text.len()]) {
        Seen::Whole { keep, .. } => !keep,
        other => panic!("{other:?}"),
    };
    let tail = "Content-Length: 0\r\n\r\n";
    assert!(closing(&format!("HTTP/1.1 200 OK\r\nConnection: x, Close\r\n{tail}")));
    assert!(closing(&format!("HTTP/1.0 200 OK\r\n{tail}")));
    assert!(!closing(&format!("HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n{tail}")));
    assert!(!closing(&format!("HTTP/1.1 200 OK\r\n{tail}")));
}

#[test]
fn what_is_to_be_waited() {
    let wait = |value: &str| {
        let text =
            format!("HTTP/1.1 429 Slow\r\nRetry-After: {value}\r\nContent-Length: 0\r\n\r\n");
        match feed_pieces(text.as_bytes(), [text.len()]) {
            Seen::Whole { wait, .. } => wait,
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
fn what_is_no_answer() {
    let bad = Seen::Bad(ParseError::NotHttp);
    check("SSH-2.0-OpenSSH_9.6\r\n\r\n", &bad);
    let head = "HTTP/1.1 200 OK\r\n";
    check(&format!("{head}Content-Length: -1\r\n\r\n"), &bad);
    check(&format!("{head}Content-Length: 1\r\nContent-Length: 2\r\n\r\n"), &bad);
    check(&format!("{head}Transfer-Encoding: gzip\r\n\r\n"), &bad);
    check(&format!("{head}Content-Length: 1001\r\n\r\n"), &Seen::Bad(ParseError::TooLong));
    let mut reader = Reader::default();
    let long = format!("{head}x: {}", "y".repeat(70_000));
    assert_eq!(seen(&reader.feed(long.as_bytes(), MAX)), bad);
    let many = format!("{head}{}\r\n", "x: y\r\n".repeat(129));
    assert_eq!(feed_pieces(many.as_bytes(), [many.len()]), bad);
}

#[test]
fn bytes_after_an_answer_are_noticed() {
    let text = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}HTTP/1.1";
    assert!(matches!(feed_pieces(text, [text.len()]), Seen::Whole { extra: true, .. }));
    let text = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nx";
    assert!(matches!(feed_pieces(text, [text.len()]), Seen::Whole { extra: true, .. }));
}

/// One random edit: a bit, a piece gone, a piece twice, or a byte in between.
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

/// A response that is whole in one piece is the same byte by byte, and judging it ends.
fn hold(text: &[u8]) {
    let (at_once, singly) =
        (feed_pieces(text, [text.len()]), feed_pieces(text, std::iter::repeat(1)));
    if let Seen::Whole { status, body, keep, wait: Some(_) | None, .. } = &at_once {
        let Seen::Whole { status: other, body: same, keep: kept, .. } = &singly else {
            panic!("{:?} byte by byte: {singly:?}", String::from_utf8_lossy(text))
        };
        assert_eq!((status, body, keep), (other, same, kept));
        classify::single(*status, body, 7);
        classify::batch(*status, body, 7, 3, &mut [CallOutcome::of(Class::Ok); 2]);
    } else {
        assert!(!matches!(singly, Seen::Whole { .. }), "{:?}", String::from_utf8_lossy(text));
    }
}

#[test]
fn a_second_of_edited_answers_holds() {
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
    seeds.iter().for_each(|seed| hold(seed.as_bytes()));
    let (start, mut tried) = (Instant::now(), 0);
    while start.elapsed() < Duration::from_secs(1) {
        tried += 1;
        let mut rng = Rng::new(20_261_121, 0, tried, 0);
        let seed = rng.between(0, seeds.len() as u64 - 1) as usize;
        let mut text = seeds[seed].clone().into_bytes();
        for _ in 0..rng.between(1, 6) {
            edit(&mut text, &mut rng);
        }
        hold(&text);
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
    fn any_bytes_end_in_a_verdict(bytes in prop::collection::vec(any::<u8>(), 0..300), size in 1usize..50) {
        let text = [b"HTTP/1.1 200 OK\r\n".as_slice(), &bytes].concat();
        feed_pieces(&text, std::iter::repeat(size));
    }
}
