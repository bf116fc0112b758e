//! Goal: a valid trace context is continued and a malformed one ignored, as the W3C Recommendation
//! says. Method: the cases of its sections 2 and 3, and of its public test suite.

use super::*;

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn read(parents: &[&str], states: &[&str]) -> Option<ClientTrace> {
    let mut headers = TraceHeaders::default();
    parents.iter().for_each(|parent| headers.add_parent(parent.as_bytes()));
    states.iter().for_each(|state| headers.add_state(state.as_bytes()));
    headers.finish().map(|client| *client)
}

fn parent(text: &str) -> Option<TraceParent> {
    read(&[text], &[]).map(|client| client.parent)
}

#[test]
fn a_valid_header_is_read_and_written_unchanged() {
    let sampled = parent(PARENT).unwrap();
    assert!(sampled.sampled);
    assert_eq!(sampled.to_header(), PARENT.as_bytes());
    let unsampled = PARENT.replace("-01", "-00");
    assert!(!parent(&unsampled).unwrap().sampled);
    assert_eq!(parent(&unsampled).unwrap().to_header(), unsampled.as_bytes());
    assert_eq!(parent(&format!(" {PARENT} ")), Some(sampled));
}

#[test]
fn reserved_flags_are_not_passed_on() {
    let flags = |flags: &str| parent(&format!("{}{flags}", &PARENT[..53])).unwrap().to_header();
    assert!(flags("ff").ends_with(b"-01"));
    assert!(flags("fe").ends_with(b"-00"));
}

#[test]
fn a_later_version_is_read_as_version_00() {
    let later = |rest: &str| parent(&format!("cc{}{rest}", &PARENT[2..]));
    assert_eq!(later(""), parent(PARENT));
    assert_eq!(later("-what-the-future-will-be-like"), parent(PARENT));
    assert_eq!(later(".what"), None);
}

#[test]
fn a_malformed_header_is_ignored() {
    for malformed in [
        "",
        "00",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01.",
        "00-4BF92F3577B34DA6A3CE929D0E0E4736-00F067AA0BA902B7-01",
        "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
        "00-4bf92f3577b34da6a3ce929d0e0e473-600f067aa0ba902b7-01",
        "00_4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e473.-00f067aa0ba902b7-01",
        "0.-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0\u{e9}",
    ] {
        assert_eq!(parent(malformed), None, "{malformed}");
    }
    assert_eq!(read(&[PARENT, PARENT], &[]), None, "two headers are ambiguous");
    assert_eq!(read(&[], &["a=1"]), None, "a tracestate alone has no meaning");
    assert_eq!(read(&["00"], &["a=1"]), None, "a tracestate belongs to its traceparent");
}

#[test]
fn states_are_joined_in_order_and_bounded() {
    let state = |states: &[&str]| read(&[PARENT], states).unwrap().state;
    assert_eq!(state(&[]), None);
    assert_eq!(state(&["", " "]), None);
    assert_eq!(state(&["a=1,b=2", " c=3 "]).as_deref(), Some("a=1,b=2,c=3"));
    let longest = "a".repeat(STATE_BYTES_MAX);
    assert_eq!(state(&[&longest]).as_deref(), Some(&*longest));
    assert_eq!(state(&[&longest, "b=2"]), None);
    assert_eq!(state(&["a=\u{e9}"]), None);
    assert_eq!(state(&["a=1\r\nx: y"]), None);
}

#[test]
fn the_sample_has_the_requested_ratio() {
    let count = std::cell::Cell::new(0_u64);
    // Numbers that are spread evenly (Knuth's multiplicative hash).
    let random = || {
        count.set(count.get() + 1);
        count.get().wrapping_mul(0x9e37_79b9_7f4a_7c15)
    };
    let ids: Vec<TraceId> = (0..10_000).map(|_| TraceId::new(&random)).collect();
    let sampled = |ratio| ids.iter().filter(|id| id.is_in_sample(ratio)).count();
    assert_eq!((sampled(0.0), sampled(1.0)), (0, 10_000));
    assert!((900..=1100).contains(&sampled(0.1)), "{} of 10,000", sampled(0.1));
}
