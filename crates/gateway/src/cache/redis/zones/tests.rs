//! Goal: only well-formed replies of the script are accepted.

use super::*;

fn reply(numbers: &[i64]) -> Value {
    Value::Array(numbers.iter().copied().map(Value::from).collect())
}

#[test]
fn a_reply_is_parsed_completely_or_refused() {
    let passed = parse_reply(&reply(&[1000, 0, 500, 990]), 1).unwrap();
    assert_eq!((passed.redis_now_ms, passed.refused), (1000, None));
    assert_eq!(passed.states[..], [Some(KeyState { excess: 500, charged_at_ms: 990 })]);
    let refused = parse_reply(&reply(&[1000, 2, 0, 1, -1, -1]), 2).unwrap();
    assert_eq!(refused.refused, Some(1));
    assert_eq!(refused.states[..], [Some(KeyState { excess: 0, charged_at_ms: 1 }), None]);
    for (numbers, zones) in [
        (&[1000, 0][..], 1),
        (&[1000, 0, 500, 990], 2),
        (&[1000, 2, 500, 990], 1),
        (&[1000, -1, 500, 990], 1),
        (&[-1, 0, 500, 990], 1),
        (&[1000, 0, -1, -1], 1),
    ] {
        assert!(parse_reply(&reply(numbers), zones).is_none(), "{numbers:?} about {zones}");
    }
    assert!(parse_reply(&Value::from("OK"), 0).is_none());
    let words = Value::Array(["a", "b", "c", "d"].map(Value::from).into());
    assert!(parse_reply(&words, 1).is_none());
}
