//! Goal: an answer is passed on only if it is whole and means one thing; envelopes are exact.
//! Method: tables of bodies, recorded answers, round trips.
use super::*;

fn show(answer: Result<Answer<'_>, AnswerFault>) -> String {
    let text = |raw: &[u8]| String::from_utf8_lossy(raw).into_owned();
    match answer {
        Ok(Answer { id, outcome: Outcome::Result(raw) }) => {
            format!("{} result {}", text(id), text(raw))
        }
        Ok(Answer { id, outcome: Outcome::Error { code, message, data, .. } }) => {
            format!("{} error {code} {message} {}", text(id), text(data.unwrap_or(b"-")))
        }
        Err(fault) => fault.to_string(),
    }
}

fn check(body: &str, expected: &str) {
    assert_eq!(show(read_answer(body.as_bytes(), 64)), expected, "{body}");
}

#[test]
fn answers_mean_one_thing() {
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
            "answer has both a result and an error",
        ),
        (r#"{"id":1,"error":null}"#, "answer has neither a result nor an error"),
        (r#"{"id":1}"#, "answer has neither a result nor an error"),
        (r#"{"result":1}"#, "answer has no id"),
        (
            r#"{"id":1,"error":"limit"}"#,
            "error of the answer is not an object with an integer code and a text",
        ),
        (
            r#"{"id":1,"error":{"message":"x"}}"#,
            "error of the answer is not an object with an integer code and a text",
        ),
        (
            r#"{"id":1,"error":{"code":"-32000","message":"x"}}"#,
            "error of the answer is not an object with an integer code and a text",
        ),
        (
            r#"{"id":1,"error":{"code":1,"message":2}}"#,
            "error of the answer is not an object with an integer code and a text",
        ),
        (r#"{"id":1,"id":2,"result":1}"#, "member name at byte 8 occurs twice in its object"),
        // Nothing inside of a result is decided on: it passes as the node wrote it.
        (r#"{"id":1,"result":{"a":1,"a":2}}"#, r#"1 result {"a":1,"a":2}"#),
        (
            r#"{"id":1,"error":{"code":1,"code":2}}"#,
            "member name at byte 26 occurs twice in its object",
        ),
        (r#"{"id":1,"result":"0x"#, "answer is not json: text ends too early at byte 20"),
        (
            r#"{"id":1,"result":1}}"#,
            "answer is not json: unexpected byte 0x7d after the json value at byte 19",
        ),
        ("<html>429</html>", "answer is not json: unexpected byte 0x3c at byte 0"),
        ("", "answer is not json: empty text where a json value is needed at byte 0"),
        ("[]", "answer is not an object"),
        ("null", "answer is not an object"),
    ] {
        check(body, expected);
    }
}

#[test]
fn batch_answers_stand_alone() {
    let body = br#"[ {"id":2,"result":1},7,{"id":1,"error":{"code":1}} ]"#;
    assert_eq!(read_answers(body, 64, 2), Err(AnswerFault::TooMany(2)));
    let Ok(Answers::Batch(list)) = read_answers(body, 64, 3) else { panic!("no batch") };
    let shown: Vec<String> = list.into_iter().map(show).collect();
    assert_eq!(shown, ["2 result 1", "answer is not an object", "1 error 1  -"]);
}

#[test]
fn one_object_may_answer_a_batch() {
    let body = br#"{"id":null,"error":{"code":-32600,"message":"batch too large"}}"#;
    let Ok(Answers::One(answer)) = read_answers(body, 64, 3) else { panic!("no object") };
    assert_eq!(answer.id, b"null");
    assert_eq!(read_answers(b"[]", 64, 3), Ok(Answers::Batch(Vec::new())));
    assert!(matches!(read_answers(b"[{}", 64, 3), Err(AnswerFault::NotJson(_))));
    assert!(matches!(read_answers(b"[{}] x", 64, 3), Err(AnswerFault::NotJson(_))));
    assert_eq!(read_answers(b"7", 64, 3), Err(AnswerFault::NotObject));
}

#[test]
fn envelopes_are_exact() {
    let written = |write: &dyn Fn(&mut Vec<u8>)| {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap()
    };
    assert_eq!(
        written(&|out| write_result(out, b"\"\\u0041\"", b"{ \"a\" : 1e400 }")),
        r#"{"jsonrpc":"2.0","id":"\u0041","result":{ "a" : 1e400 }}"#
    );
    assert_eq!(
        written(&|out| write_error_raw(out, b"1", br#"{"message":"x","code":1}"#)),
        r#"{"jsonrpc":"2.0","id":1,"error":{"message":"x","code":1}}"#
    );
    assert_eq!(
        written(&|out| write_error(out, b"null", -32600, "a \"b\"\u{1}", Some(b"{}"))),
        r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"a \"b\"\u0001","data":{}}}"#
    );
    assert_eq!(
        written(&|out| write_call(out, b"7", "a\"b", &Params::Array(b"[ 1 ]"))),
        r#"{"jsonrpc":"2.0","id":7,"method":"a\"b","params":[ 1 ]}"#
    );
    assert_eq!(
        written(&|out| write_call(out, b"7", "m", &Params::Absent)),
        r#"{"jsonrpc":"2.0","id":7,"method":"m"}"#
    );
    assert_eq!(
        written(&|out| write_call(out, b"7", "m", &Params::Null)),
        r#"{"jsonrpc":"2.0","id":7,"method":"m","params":null}"#
    );
}

/// Writing what was read from go-ethereum's recorded answers gives the recorded bytes.
#[test]
fn recorded_answers_are_rewritten_to_the_same_bytes() {
    let recorded = include_str!("../../../../testdata/wire/bodies/execution-apis.io");
    let mut count = 0;
    for line in recorded.lines().filter_map(|line| line.strip_prefix("<< ")) {
        let answer = read_answer(line.as_bytes(), 64).unwrap();
        let mut out = Vec::new();
        match answer.outcome {
            Outcome::Result(raw) => write_result(&mut out, answer.id, raw),
            Outcome::Error { raw, .. } => write_error_raw(&mut out, answer.id, raw),
        }
        assert_eq!(String::from_utf8(out).unwrap(), line);
        count += 1;
    }
    assert!(count > 10, "only {count} recorded answers");
}
