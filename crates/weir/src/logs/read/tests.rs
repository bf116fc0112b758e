//! Goal: lines of nginx and of the gateway are parsed, and any other line is an error.

use super::*;
use crate::logs::format::COMBINED;

fn parser(format: &str) -> LineParser {
    LineParser::new(&Format::parse(format).unwrap()).unwrap()
}

#[test]
fn nginx_lines_are_read() {
    let line =
        r#"203.0.113.7 - - [21/Nov/2026:22:04:05 +0100] "POST / HTTP/1.1" 429 162 "-" "wrk""#;
    let parser = parser(COMBINED);
    let parsed = parser.parse(line).unwrap();
    assert_eq!((parsed.status, &*parsed.client, parsed.bytes_out), (429, "203.0.113.7", Some(162)));
    assert_eq!((parsed.seconds, &parsed.key), (1_795_295_045.0, &None));
}

#[test]
fn faulty_lines_have_distinct_errors() {
    let json = parser("json");
    for (line, expected) in [
        ("", LineFault::Json),
        ("{}", LineFault::Json),
        ("null", LineFault::Json),
        (r#"{"time":"2026-11-21T22:04:05Z"}"#, LineFault::Json),
        (r#"{"time":"yesterday","status":200}"#, LineFault::Time),
    ] {
        assert_eq!(json.parse(line), Err(expected), "{line}");
    }
    let text = parser("$msec [$status]");
    for (line, expected) in [
        ("", LineFault::Shape),
        ("1.5 [200", LineFault::Shape),
        ("1.5 [200]x", LineFault::Shape),
        ("x [200]", LineFault::Time),
        ("1e400 [200]", LineFault::Time),
        ("-1 [200]", LineFault::Time),
        ("1.5 [2000000]", LineFault::Number),
    ] {
        assert_eq!(text.parse(line), Err(expected), "{line}");
    }
    assert_eq!(text.parse(&"x".repeat(LINE_BYTES_MAX + 1)), Err(LineFault::Length));
    assert_eq!(text.parse("1.5 [200]").unwrap().seconds, 1.5);
}

#[test]
fn formats_that_cannot_be_parsed_are_rejected() {
    let unreadable = |format: &str| LineParser::new(&Format::parse(format).unwrap()).unwrap_err();
    assert_eq!(unreadable("$msec$status"), FormatFault::AdjacentVariables);
    assert_eq!(unreadable("$msec"), FormatFault::MissingVariable);
    assert_eq!(unreadable("$status"), FormatFault::MissingVariable);
}

/// The lines are those of the gateway's tests, `crates/gateway/src/access_log/record/tests.rs`.
#[test]
fn lines_of_the_gateway_are_read() {
    let json = r#"{"time":"2026-11-21T22:04:05.123000Z","client":"10.0.0.1","key":"alice","host":"rpc.example","verb":"POST","path":"/","chain":"eth","method":"eth_call","cache":"miss","upstream":"a","user_agent":"curl/8","status":200,"calls":1,"bytes_in":70,"bytes_out":40,"request_time":0.001500,"upstream_time":0.001400}"#;
    let combined = r#"10.0.0.1 - alice [21/Nov/2026:22:04:05 +0000] "POST / HTTP/1.1" 200 40 "curl/8" "curl/8""#;
    let custom_line = "1795298645.123|10.0.0.1|alice|eth_call|200|0.002";
    let own_format = "$msec|$remote_addr|$key|$rpc_method|$status|$request_time";
    for (format, line) in [("json", json), ("combined", combined), (own_format, custom_line)] {
        let parser = parser(format);
        let parsed = parser.parse(line).unwrap();
        assert_eq!((parsed.status, &*parsed.client), (200, "10.0.0.1"), "{format}");
        assert_eq!(parsed.key.as_deref(), Some("alice"), "{format}");
        assert_eq!(parsed.seconds.floor(), 1_795_298_645.0, "{format}");
        if format != "combined" {
            assert_eq!(parsed.method.as_deref(), Some("eth_call"), "{format}");
            assert!((0.0015..=0.002).contains(&parsed.request_seconds.unwrap()), "{format}");
        }
    }
}

#[test]
fn variables_that_only_nginx_has_are_skipped() {
    let parser = parser("$remote_addr $upstream_addr [$time_local] $status");
    let parsed = parser.parse("::1 10.0.0.2:8545 [21/Nov/2026:22:04:05 +0000] 502").unwrap();
    assert_eq!((parsed.status, &*parsed.client), (502, "::1"));
}
