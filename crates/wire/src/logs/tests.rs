//! Goal: filters match what go-ethereum's match, and logs of dropped blocks are marked. Method:
//! tables.
use super::*;

fn address(byte: u8) -> String {
    format!("\"0x{}\"", format!("{byte:02x}").repeat(20))
}

fn topic(byte: u8) -> String {
    format!("\"0x{}\"", format!("{byte:02X}").repeat(32))
}

fn log(from: u8, topics: &[u8]) -> LogFields {
    let topics = topics.iter().map(|byte| [*byte; 32]).collect();
    LogFields { number: 7, block_hash: [9; 32], address: [from; 20], topics }
}

#[test]
fn filters_match_by_address_and_topics() {
    let (a, b) = (address(1), address(2));
    let (x, y, z) = (topic(0xaa), topic(0xbb), topic(0xcc));
    let (xl, yl, zl) = (0xaa, 0xbb, 0xcc);
    let cases: &[(String, LogFields, bool)] = &[
        ("{}".into(), log(1, &[]), true),
        ("{\"address\":null,\"topics\":null}".into(), log(1, &[]), true),
        (format!("{{\"address\":{a}}}"), log(1, &[xl]), true),
        (format!("{{\"address\":{a}}}"), log(2, &[xl]), false),
        (format!("{{\"address\":[{b},{a},{a}]}}"), log(1, &[]), true),
        ("{\"address\":[]}".into(), log(3, &[]), true),
        (format!("{{\"topics\":[{x}]}}"), log(1, &[xl, yl]), true),
        (format!("{{\"topics\":[{x}]}}"), log(1, &[yl, xl]), false),
        (format!("{{\"topics\":[{x}]}}"), log(1, &[]), false),
        (format!("{{\"topics\":[null,{y}]}}"), log(1, &[xl, yl]), true),
        (format!("{{\"topics\":[null,{y}]}}"), log(1, &[yl]), false),
        ("{\"topics\":[null]}".into(), log(1, &[]), false),
        ("{\"topics\":[]}".into(), log(1, &[]), true),
        (format!("{{\"topics\":[[{x},{y}],[]]}}"), log(1, &[yl, zl]), true),
        (format!("{{\"topics\":[[{x},{y}],[{z}]]}}"), log(1, &[yl, xl]), false),
        (format!("{{\"topics\":[[{x},null]]}}"), log(1, &[zl]), true),
        (format!("{{\"address\":{a},\"topics\":[{x}]}}"), log(2, &[xl]), false),
    ];
    for (filter, log, expected) in cases {
        let matcher = LogMatcher::parse(filter.as_bytes()).unwrap();
        assert_eq!(matcher.matches(log), *expected, "{filter} and {log:?}");
        assert_eq!(matcher.matches_raw(&raw(log)), *expected, "{filter} and {log:?} as JSON");
    }
    let (any, address_filter) = (LogMatcher::default(), format!("{{\"address\":{a}}}"));
    let by_address = LogMatcher::parse(address_filter.as_bytes()).unwrap();
    for no_log in [&b"{}"[..], b"", b"7", br#"{"address":"0x01"}"#, br#"{"topics":[]}"#] {
        assert!(!any.matches_raw(no_log), "{}", String::from_utf8_lossy(no_log));
    }
    assert!(!by_address.matches_raw(br#"{"address":"0x01","topics":[]}"#));
}

/// The log as a node writes it.
fn raw(log: &LogFields) -> Vec<u8> {
    let topics: Vec<String> = log.topics.iter().map(|bytes| topic(bytes[0])).collect();
    let (address, topics) = (address(log.address[0]), topics.join(","));
    format!("{{\"address\":{address},\"topics\":[{topics}],\"data\":\"0x\"}}").into_bytes()
}

#[test]
fn invalid_filters_are_rejected() {
    let many = vec![address(1); ALTERNATIVES_MAX + 1].join(",");
    for (filter, expected) in [
        ("[]".to_owned(), MatcherError::NotObject),
        ("{\"address\":\"0x12\"}".into(), MatcherError::Address),
        ("{\"address\":[null]}".into(), MatcherError::Address),
        ("{\"address\":7}".into(), MatcherError::Address),
        ("{\"topics\":\"0x12\"}".into(), MatcherError::Topic),
        ("{\"topics\":[7]}".into(), MatcherError::Topic),
        ("{\"topics\":[[\"0x\"]]}".into(), MatcherError::Topic),
        ("{\"topics\":[null,null,null,null,null]}".into(), MatcherError::TooMany),
        (format!("{{\"address\":[{many}]}}"), MatcherError::TooMany),
    ] {
        assert_eq!(LogMatcher::parse(filter.as_bytes()), Err(expected), "{filter:.60}");
    }
}

#[test]
fn logs_are_parsed_and_marked() {
    let raw = format!(
        "{{\"address\":{},\"topics\":[{}],\"data\":\"0x\",\"blockNumber\":\"0x7\",\"blockHash\":{},\
         \"logIndex\":\"0x0\",\"removed\":false}}",
        address(1),
        topic(0xaa),
        topic(9)
    );
    assert_eq!(LogFields::parse(raw.as_bytes()), Some(log(1, &[0xaa])));
    assert_eq!(LogFields::parse(b"{\"address\":7}"), None);
    assert_eq!(LogFields::parse(b""), None);
    let marked = String::from_utf8(mark_removed(raw.as_bytes())).unwrap();
    assert_eq!(marked, raw.replace("false", "true"));
    assert_eq!(mark_removed(b"{\"a\":1}"), b"{\"removed\":true,\"a\":1}");
}
