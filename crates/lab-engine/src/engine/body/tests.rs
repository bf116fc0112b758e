//! Goal: a body that arrives in pieces has the outcome of the whole body, and a long body is stored
//! only if it is sampled. Method: bodies below and above the maximum stored length, split at
//! random.

use lab_model::record::Class;
use proptest::prelude::*;

use super::*;
use crate::engine::classify::{self, CallOutcome};

const MAX: usize = 64 << 20;

fn feed_pieces(text: &[u8], sizes: &[usize], mut body: Body) -> Body {
    let (mut offset, mut sizes) = (0, sizes.iter().cycle());
    while offset < text.len() {
        let end = (offset + sizes.next().unwrap()).min(text.len());
        body.append(&text[offset..end], MAX).unwrap();
        offset = end;
    }
    body
}

/// Classifies a text as the response to a single call, and to a batch.
fn classify_both(text: &[u8]) -> (CallOutcome, Vec<CallOutcome>) {
    let mut outcomes = vec![CallOutcome::of(Class::Reset); 3];
    // The first call has id 7, and each further call the next id.
    classify::batch(200, text, 7, 1, &mut outcomes);
    (classify::single(200, text, 7), outcomes)
}

/// Returns a response of about `length` bytes, or a batch of two responses. If `error` is true, the
/// last response is an error. The text ends with `end`.
fn text(length: usize, batch: bool, error: bool, end: &str) -> String {
    let log = r#"{"address":"0x00é","topics":["0x01","\u00e9"],"data":null,"n":-1.5e3},"#;
    let logs = log.repeat(length / log.len());
    let last = if error {
        format!(r#"{{"id":8,"error":{{"code":-32005,"message":"x","data":[{logs}1]}}}}"#)
    } else {
        format!(r#"{{"result":[{logs}1],"id":8}}"#)
    };
    match batch {
        true => format!(r#"[{{"id":7,"result":[{logs}1]}},{last}]{end}"#),
        false => format!("{}{end}", last.replace("\"id\":8", "\"id\":7")),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn pieces_have_the_outcome_of_the_whole_body(
        length in 0usize..200_000,
        sizes in prop::collection::vec(1usize..70_000, 1..6),
        batch: bool,
        error: bool,
        sampled: bool,
        end in prop::sample::select(vec!["", " \n", "x", "]"]),
        edit in prop::option::of((any::<prop::sample::Index>(), any::<u8>())),
        keep in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut text = text(length, batch, error, end).into_bytes();
        if let Some((at, byte)) = edit {
            let at = at.index(text.len());
            text[at] = byte;
        }
        if let Some(keep) = keep {
            text.truncate(keep.index(text.len()));
        }
        let mut body = Body::default();
        if sampled {
            body.store();
        }
        let body = feed_pieces(&text, &sizes, body);
        let received = body.received();
        prop_assert_eq!(classify_both(received.parsed), classify_both(&text));
        prop_assert_eq!(received.length, text.len());
        let kept = sampled || text.len() <= WHOLE_BYTES_MAX;
        prop_assert_eq!(received.stored, kept.then_some(text.as_slice()));
    }
}

/// An error at the end of a body of 20 MB is found, and little of the body is stored.
#[test]
fn errors_at_the_end_of_a_long_response_are_found() {
    let (is_batch, has_error) = (false, false);
    let good = text(20 << 20, is_batch, has_error, "");
    let cases = [
        (good.clone(), Class::Ok),
        (good.replace("],\"id\":7", "},\"id\":7"), Class::Malformed),
        (good[..good.len() - 1].to_owned(), Class::Malformed),
        (good.replace(",1],", ",01],"), Class::Malformed),
        (good.replace("\"id\":7", "\"id\":8"), Class::WrongId),
        (good.replace("\"id\":7", "\"id\":7,\"error\":{\"code\":1}"), Class::Malformed),
        (format!("{good}x"), Class::Malformed),
    ];
    for (text, class) in cases {
        let mut body = Body::default();
        body.store();
        let body = feed_pieces(text.as_bytes(), &[65_536, 10_001], body);
        assert_eq!(classify::single(200, body.received().parsed, 7).class, class);
        assert_eq!(body.received().stored, None, "too long to be compared");
        assert!(body.received().parsed.len() < 100 && body.bytes.capacity() == 0);
    }
}

#[test]
fn a_body_above_the_limit_is_rejected() {
    let mut body = Body::default();
    assert_eq!(body.append(&[b' '; 60_000], 100_000), Ok(()));
    assert_eq!(body.append(&[b' '; 40_001], 100_000), Err(TooLong));
    assert_eq!(body.append(&[b' '; 40_000], 100_000), Ok(()));
    body.reset();
    assert_eq!((body.length(), body.is_long()), (0, false));
    assert_eq!(body.append(b"{", 1), Ok(()));
}
