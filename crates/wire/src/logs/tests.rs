//! Goal: filters select the same logs as in go-ethereum, and logs of dropped blocks are marked.
//! Method: tables.
use super::*;

/// Returns a raw address in which each byte is `byte`.
fn address(byte: u8) -> String {
    format!("\"0x{}\"", format!("{byte:02x}").repeat(20))
}

/// Returns a raw topic in which each byte is `byte`.
fn topic(byte: u8) -> String {
    format!("\"0x{}\"", format!("{byte:02X}").repeat(32))
}

/// Returns a log. Each byte of the address is `address_byte`, and `topic_bytes` has the byte of
/// each topic.
fn log(address_byte: u8, topic_bytes: &[u8]) -> LogFields {
    let topics = topic_bytes.iter().map(|byte| [*byte; 32]).collect();
    LogFields { block_number: 7, block_hash: [9; 32], address: [address_byte; 20], topics }
}

#[test]
fn filters_match_by_address_and_topics() {
    let (address_1, address_2) = (address(1), address(2));
    let (topic_aa, topic_bb, topic_cc) = (topic(0xaa), topic(0xbb), topic(0xcc));
    let cases: &[(String, LogFields, bool)] = &[
        ("{}".into(), log(1, &[]), true),
        ("{\"address\":null,\"topics\":null}".into(), log(1, &[]), true),
        (format!("{{\"address\":{address_1}}}"), log(1, &[0xaa]), true),
        (format!("{{\"address\":{address_1}}}"), log(2, &[0xaa]), false),
        (format!("{{\"address\":[{address_2},{address_1},{address_1}]}}"), log(1, &[]), true),
        ("{\"address\":[]}".into(), log(3, &[]), true),
        (format!("{{\"topics\":[{topic_aa}]}}"), log(1, &[0xaa, 0xbb]), true),
        (format!("{{\"topics\":[{topic_aa}]}}"), log(1, &[0xbb, 0xaa]), false),
        (format!("{{\"topics\":[{topic_aa}]}}"), log(1, &[]), false),
        (format!("{{\"topics\":[null,{topic_bb}]}}"), log(1, &[0xaa, 0xbb]), true),
        (format!("{{\"topics\":[null,{topic_bb}]}}"), log(1, &[0xbb]), false),
        ("{\"topics\":[null]}".into(), log(1, &[]), false),
        ("{\"topics\":[]}".into(), log(1, &[]), true),
        (format!("{{\"topics\":[[{topic_aa},{topic_bb}],[]]}}"), log(1, &[0xbb, 0xcc]), true),
        (
            format!("{{\"topics\":[[{topic_aa},{topic_bb}],[{topic_cc}]]}}"),
            log(1, &[0xbb, 0xaa]),
            false,
        ),
        (format!("{{\"topics\":[[{topic_aa},null]]}}"), log(1, &[0xcc]), true),
        (format!("{{\"address\":{address_1},\"topics\":[{topic_aa}]}}"), log(2, &[0xaa]), false),
    ];
    for (filter, log, expected) in cases {
        let matcher = LogMatcher::parse(filter.as_bytes()).unwrap();
        assert_eq!(matcher.matches(log), *expected, "{filter} and {log:?}");
        assert_eq!(matcher.matches_raw(&raw(log)), *expected, "{filter} and {log:?} as JSON");
    }
    let any = LogMatcher::default();
    let address_filter = format!("{{\"address\":{address_1}}}");
    let by_address = LogMatcher::parse(address_filter.as_bytes()).unwrap();
    for no_log in [&b"{}"[..], b"", b"7", br#"{"address":"0x01"}"#, br#"{"topics":[]}"#] {
        assert!(!any.matches_raw(no_log), "{}", String::from_utf8_lossy(no_log));
    }
    assert!(!by_address.matches_raw(br#"{"address":"0x01","topics":[]}"#));
}

/// Returns the raw log, as a node writes it.
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
