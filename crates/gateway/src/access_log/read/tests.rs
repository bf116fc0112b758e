//! Goal: lines of nginx and of our own are read for what they say, and anything else is refused
//! without harm. That what we write is read again is shown beside `record.rs`.

use super::*;
use crate::access_log::format::COMBINED;

fn reader(format: &str) -> Reader {
    Reader::new(&Format::parse(format).unwrap()).unwrap()
}

#[test]
fn nginx_lines_are_read() {
    let line =
        r#"203.0.113.7 - - [21/Nov/2026:22:04:05 +0100] "POST / HTTP/1.1" 429 162 "-" "wrk""#;
    let reader = reader(COMBINED);
    let read = reader.line(line).unwrap();
    assert_eq!((read.status, &*read.client, read.bytes_out), (429, "203.0.113.7", Some(162)));
    assert_eq!((read.seconds, &read.key), (1_795_295_045.0, &None));
}

#[test]
fn faulty_lines_are_told_apart() {
    let json = reader("json");
    for (line, due) in [
        ("", LineFault::Json),
        ("{}", LineFault::Json),
        ("null", LineFault::Json),
        (r#"{"time":"2026-11-21T22:04:05Z"}"#, LineFault::Json),
        (r#"{"time":"yesterday","status":200}"#, LineFault::Time),
    ] {
        assert_eq!(json.line(line), Err(due), "{line}");
    }
    let text = reader("$msec [$status]");
    for (line, due) in [
        ("", LineFault::Shape),
        ("1.5 [200", LineFault::Shape),
        ("1.5 [200]x", LineFault::Shape),
        ("x [200]", LineFault::Time),
        ("1e400 [200]", LineFault::Time),
        ("-1 [200]", LineFault::Time),
        ("1.5 [2000000]", LineFault::Number),
    ] {
        assert_eq!(text.line(line), Err(due), "{line}");
    }
    assert_eq!(text.line(&"x".repeat(LINE_BYTES_MAX + 1)), Err(LineFault::Length));
    assert_eq!(text.line("1.5 [200]").unwrap().seconds, 1.5);
}

#[test]
fn formats_that_cannot_be_read_are_refused() {
    let unreadable = |format: &str| Reader::new(&Format::parse(format).unwrap()).unwrap_err();
    assert_eq!(unreadable("$msec$status"), Unreadable::SideBySide);
    assert_eq!(unreadable("$msec"), Unreadable::Lacking);
    assert_eq!(unreadable("$status"), Unreadable::Lacking);
}
