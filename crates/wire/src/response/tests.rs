//! Goal: only complete and unambiguous responses are accepted, and written responses have exact
//! bytes. Method: tables of bodies, and recorded responses that are parsed and written again.
use super::*;

/// The nesting limit of all tests, in levels.
const DEPTH_MAX: usize = 64;

/// Formats a response or an error in one line.
fn show(response: Result<Response<'_>, ResponseError>) -> String {
    let to_text = |raw: &[u8]| String::from_utf8_lossy(raw).into_owned();
    match response {
        Ok(Response { id, outcome: Outcome::Result(raw) }) => {
            format!("{} result {}", to_text(id), to_text(raw))
        }
        Ok(Response { id, outcome: Outcome::Error { code, message, data, .. } }) => {
            format!("{} error {code} {message} {}", to_text(id), to_text(data.unwrap_or(b"-")))
        }
        Err(error) => error.to_string(),
    }
}

fn check(body: &str, expected: &str) {
    assert_eq!(show(parse_response(body.as_bytes(), DEPTH_MAX)), expected, "{body}");
}

#[test]
fn responses_are_complete_and_unambiguous() {
    for (body, expected) in [
        (r#"{"jsonrpc":"2.0","id":1,"result":"0x1"}"#, r#"1 result "0x1""#),
        (r#" {"id":"a\u0062","result": {"n": 1e400} } "#, r#""a\u0062" result {"n": 1e400}"#),
        (r#"{"id":1,"result":null}"#, "1 result null"),
        (r#"{"id":1,"result":null,"error":null}"#, "1 result null"),
        (r#"{"id":1,"result":5,"error":null}"#, "1 result 5"),
        (
            r#"{"result":null,"error":{"code":-5,"message":"no \"tx\""},"id":"x"}"#,
            r#""x" error -5 no "tx" -"#,
        ),
        (
            r#"{"id":null,"error":{"code":3,"message":"execution reverted","data":"0x"}}"#,
            r#"null error 3 execution reverted "0x""#,
        ),
        (r#"{"id":1,"error":{"code":-32000}}"#, "1 error -32000  -"),
        (
            r#"{"id":1,"result":1,"error":{"code":1,"message":""}}"#,
            "response has both a result and an error",
        ),
        (r#"{"id":1,"error":null}"#, "response has neither a result nor an error"),
        (r#"{"id":1}"#, "response has neither a result nor an error"),
        (r#"{"result":1}"#, "response has no id"),
        (
            r#"{"id":1,"error":"limit"}"#,
            "error of the response is not an object with an integer code and a text",
        ),
        (
            r#"{"id":1,"error":{"message":"x"}}"#,
            "error of the response is not an object with an integer code and a text",
        ),
        (
            r#"{"id":1,"error":{"code":"-32000","message":"x"}}"#,
            "error of the response is not an object with an integer code and a text",
        ),
        (
            r#"{"id":1,"error":{"code":1,"message":2}}"#,
            "error of the response is not an object with an integer code and a text",
        ),
        (r#"{"id":1,"id":2,"result":1}"#, "member name at byte 8 occurs twice in its object"),
        // No decision depends on the members of a result.
        (r#"{"id":1,"result":{"a":1,"a":2}}"#, r#"1 result {"a":1,"a":2}"#),
        (
            r#"{"id":1,"error":{"code":1,"code":2}}"#,
            "member name at byte 26 occurs twice in its object",
        ),
        (r#"{"id":1,"result":"0x"#, "response is not json: text ends too early at byte 20"),
        (
            r#"{"id":1,"result":1}}"#,
            "response is not json: unexpected byte 0x7d after the json value at byte 19",
        ),
        ("<html>429</html>", "response is not json: unexpected byte 0x3c at byte 0"),
        ("", "response is not json: empty text where a json value is needed at byte 0"),
        ("[]", "response is not an object"),
        ("null", "response is not an object"),
    ] {
        check(body, expected);
    }
}

#[test]
fn responses_of_a_batch_are_independent() {
    let body = br#"[ {"id":2,"result":1},7,{"id":1,"error":{"code":1}} ]"#;
    assert_eq!(parse_responses(body, DEPTH_MAX, 2), Err(ResponseError::TooMany(2)));
    let Ok(Responses::Batch(list)) = parse_responses(body, DEPTH_MAX, 3) else {
        panic!("no batch")
    };
    let printed: Vec<String> = list.into_iter().map(show).collect();
    assert_eq!(printed, ["2 result 1", "response is not an object", "1 error 1  -"]);
}

#[test]
fn one_object_may_be_the_response_to_a_batch() {
    let body = br#"{"id":null,"error":{"code":-32600,"message":"batch too large"}}"#;
    let Ok(Responses::Single(response)) = parse_responses(body, DEPTH_MAX, 3) else {
        panic!("no object")
    };
    assert_eq!(response.id, b"null");
    assert_eq!(parse_responses(b"[]", DEPTH_MAX, 3), Ok(Responses::Batch(Vec::new())));
    assert!(matches!(parse_responses(b"[{}", DEPTH_MAX, 3), Err(ResponseError::NotJson(_))));
    assert!(matches!(parse_responses(b"[{}] x", DEPTH_MAX, 3), Err(ResponseError::NotJson(_))));
    assert_eq!(parse_responses(b"7", DEPTH_MAX, 3), Err(ResponseError::NotObject));
}

#[test]
fn envelopes_are_exact() {
    let to_text = |write: &dyn Fn(&mut Vec<u8>)| {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap()
    };
    assert_eq!(
        to_text(&|out| write_result(out, b"\"\\u0041\"", b"{ \"a\" : 1e400 }")),
        r#"{"jsonrpc":"2.0","id":"\u0041","result":{ "a" : 1e400 }}"#
    );
    assert_eq!(
        to_text(&|out| write_error_raw(out, b"1", br#"{"message":"x","code":1}"#)),
        r#"{"jsonrpc":"2.0","id":1,"error":{"message":"x","code":1}}"#
    );
    assert_eq!(
        to_text(&|out| write_error(out, b"null", -32600, "a \"b\"\u{1}", Some(b"{}"))),
        r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"a \"b\"\u0001","data":{}}}"#
    );
}

/// go-ethereum's recorded responses are written with the recorded bytes.
#[test]
fn recorded_responses_are_rewritten_to_the_same_bytes() {
    let recorded = include_str!("../../../../testdata/wire/bodies/execution-apis.io");
    let mut count = 0;
    for line in recorded.lines().filter_map(|line| line.strip_prefix("<< ")) {
        let response = parse_response(line.as_bytes(), DEPTH_MAX).unwrap();
        let mut out = Vec::new();
        match response.outcome {
            Outcome::Result(raw) => write_result(&mut out, response.id, raw),
            Outcome::Error { raw, .. } => write_error_raw(&mut out, response.id, raw),
        }
        assert_eq!(String::from_utf8(out).unwrap(), line);
        count += 1;
    }
    assert!(count > 10, "only {count} recorded responses");
}
