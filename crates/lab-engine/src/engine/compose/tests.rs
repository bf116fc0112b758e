//! Goal: requests are the bytes that the plan describes. Method: for a known chain, each kind of
//! draw (a random value in the parameters) must have the expected text, and requests are compared
//! byte by byte.

use std::sync::Arc;

use lab_model::plan::Draw;

use super::{CallWriter, Composer, RequestKey, RequestKind};
use crate::chain::ChainFacts;
use crate::engine::rng::Rng;

fn writer(decimal: bool) -> CallWriter {
    CallWriter {
        chain: Arc::new(ChainFacts {
            head: 1000,
            has_decimal_numbers: decimal,
            block_hashes: vec!["0xb1".into()],
            transaction_hashes: vec!["0xt1".into()],
            addresses: vec!["0xa1".into()],
        }),
    }
}

/// Returns the text of a random value in this iteration.
fn drawn(draw: &Draw, decimal: bool, iteration: u64) -> String {
    let mut out = Vec::new();
    // The seed of the plan is 1, and the scenario and the step have index 0.
    writer(decimal).write_draw(&mut out, draw, &mut Rng::new(1, 0, iteration, 0));
    String::from_utf8(out).unwrap()
}

fn check(draw: &Draw, expected: &str) {
    assert_eq!(drawn(draw, false, 1), expected);
}

#[test]
fn draws() {
    // The newest block is 1000 (0x3e8).
    check(&Draw::BlockBehind { behind: (0, 0) }, r#""0x3e8""#);
    check(&Draw::BlockBehind { behind: (5000, 5000) }, r#""0x0""#);
    let range = Draw::LogRange { blocks: 10, behind: (1, 1) };
    check(&range, r#""fromBlock":"0x3de","toBlock":"0x3e7""#);
    assert_eq!(drawn(&range, true, 1), r#""fromBlock":990,"toBlock":999"#);
    check(
        &Draw::LogRange { blocks: 1, behind: (0, 0) },
        r#""fromBlock":"0x3e8","toBlock":"0x3e8""#,
    );
    check(&Draw::BlockHash, r#""0xb1""#);
    check(&Draw::TransactionHash, r#""0xt1""#);
    check(&Draw::Address(Vec::new()), r#""0xa1""#);
    check(&Draw::Address(vec!["0xff".into()]), r#""0xff""#);
    check(&Draw::OneOf(vec![(*b"{}").into()]), "{}");
    assert_eq!(drawn(&Draw::BlockBehind { behind: (1, 1) }, true, 1), "999");
}

#[test]
fn random_bytes_are_as_many_and_differ() {
    let text = drawn(&Draw::RandomBytes(20), false, 1);
    assert_eq!(text.len(), 44);
    assert!(text[3..43].bytes().all(|digit| digit.is_ascii_hexdigit()), "{text}");
    assert_ne!(text, drawn(&Draw::RandomBytes(20), false, 2));
}

#[test]
fn draws_cover_their_range() {
    let numbers: std::collections::BTreeSet<String> = (0..200)
        .map(|iteration| drawn(&Draw::BlockBehind { behind: (0, 3) }, true, iteration))
        .collect();
    assert_eq!(numbers.into_iter().collect::<Vec<_>>(), ["1000", "997", "998", "999"]);
}

#[test]
fn the_length_is_right_for_any_number_of_digits() {
    for size in [0, 3, 60, 940, 9_940, 99_960] {
        let mut composer = Composer {
            seed: 0,
            sample_share: 0.0,
            head: b"POST / HTTP/1.1\r\nContent-Length: ".to_vec(),
            scenarios: vec![super::ScenarioRequests {
                steps: vec![super::StepSource::Choose {
                    cumulative_weights: vec![1.0],
                    calls: vec![super::Call {
                        method: 3,
                        pieces: vec![lab_model::plan::Piece::Text(
                            "x".repeat(size).into_bytes().into(),
                        )],
                    }],
                }],
                batch: None,
                ids_per_iteration: 1,
            }],
            writer: writer(false),
            transaction_log: None,
            bytes: Vec::new(),
            head_start: 0,
            body_start: 0,
        };
        let key = RequestKey { scenario: 0, iteration: 42, step: 0 };
        let composed = composer.compose(key, &mut Vec::new());
        assert_eq!(composed.kind, RequestKind::Single { method: 3, id: 42 });
        let body = format!("{{\"jsonrpc\":\"2.0\",\"id\":42{}", "x".repeat(size));
        let expected = format!("POST / HTTP/1.1\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        assert_eq!(String::from_utf8_lossy(composer.request()), expected);
        assert_eq!(String::from_utf8_lossy(composer.request_body()), body);
    }
}
