//! Goal: each form of a call is decoded without changes, or rejected with the right code and id.
//! Method: tables of bodies, recorded traffic, and random ids.
use proptest::prelude::*;

use super::*;

fn small_limits() -> Limits {
    Limits { batch_calls_max: 3, method_bytes_max: 16, id_bytes_max: 12, ..Limits::DEFAULT }
}

/// Formats a call or a rejection in one line.
fn show(item: &Result<Call<'_>, Rejection<'_>>) -> String {
    let text = |raw: Option<&[u8]>| {
        raw.map_or("-".to_owned(), |raw| String::from_utf8_lossy(raw).into_owned())
    };
    match item {
        Ok(call) => {
            format!("{} {} {}", text(call.id), call.method, text(call.params.raw()))
        }
        Err(rejection) => {
            format!("{} [{}] {}", rejection.code.0, text(rejection.id), rejection.message)
        }
    }
}

/// Checks that decoding a body has this output. The output starts with `batch` for a batch, and
/// with `whole` if the whole body is rejected.
fn check(body: &str, expected: &[&str]) {
    let output = match decode(body.as_bytes(), &small_limits()) {
        Ok(Body::Single(item)) => vec![show(&item)],
        Ok(Body::Batch(items)) => {
            std::iter::once("batch".to_owned()).chain(items.iter().map(show)).collect()
        }
        Err(rejection) => vec!["whole".to_owned(), show(&Err(rejection))],
    };
    assert_eq!(output, expected, "{body}");
}

#[test]
fn calls_are_read_as_sent() {
    check(
        r#"{"jsonrpc":"2.0","id":1,"method":"eth_call","params":[ {"to":"0x1"}, "latest" ]}"#,
        &[r#"1 eth_call [ {"to":"0x1"}, "latest" ]"#],
    );
    check(r#"{"method":"m"}"#, &["- m -"]);
    check(r#" {"id":null,"method":"m","params":null} "#, &["null m null"]);
    check(r#"{"jsonrpc":"1.0","id":"a","method":"m","params":{}}"#, &[r#""a" m {}"#]);
    check(r#"{"jsonrpc":"1.1","id":0,"method":"m","params":[]}"#, &["0 m []"]);
    check(r#"{"id":1,"m\u0065thod":"\u006d.X_9","extra":[{}]}"#, &["1 m.X_9 -"]);
}

#[test]
fn ids_keep_their_bytes() {
    for id in ["1", "-1", "1.50", "1e3", "-0", "12345678901", r#""""#, r#""\u0041/é""#, "null"] {
        check(&format!(r#"{{"id": {id} ,"method":"m"}}"#), &[&format!("{id} m -")]);
    }
    for id in ["true", "[]", "{}"] {
        check(
            &format!(r#"{{"id":{id},"method":"m"}}"#),
            &["-32600 [-] id must be a number, a string or null"],
        );
    }
    check(
        r#"{"id":1234567890123,"method":"m"}"#,
        &["-32600 [-] id of 13 bytes, at most 12 are allowed"],
    );
}

#[test]
fn rejections_keep_a_usable_id() {
    for (members, expected) in [
        (
            r#""jsonrpc":"3.0","method":"m""#,
            r#"-32600 [7] jsonrpc must be "2.0", "1.1", "1.0" or absent"#,
        ),
        (
            r#""jsonrpc":2.0,"method":"m""#,
            r#"-32600 [7] jsonrpc must be "2.0", "1.1", "1.0" or absent"#,
        ),
        (r#""result":1"#, "-32600 [7] method is missing"),
        (r#""method":1"#, "-32600 [7] method must be a string"),
        (r#""method":"""#, "-32600 [7] method is empty"),
        (
            r#""method":"eth_call ""#,
            "-32600 [7] method holds a character other than A-Z, a-z, 0-9, _ and .",
        ),
        (
            r#""method":"m\u00a0""#,
            "-32600 [7] method holds a character other than A-Z, a-z, 0-9, _ and .",
        ),
        (r#""method":"\ud800""#, "-32600 [7] method is not valid unicode"),
        (
            r#""method":"abcdefghijklmnopq""#,
            "-32600 [7] method name of 17 bytes, at most 16 are allowed",
        ),
        (r#""method":"m","params":"x""#, "-32602 [7] params must be an array, an object or absent"),
        (
            r#""method":"m","method":"n""#,
            "-32600 [-] member name at byte 21 occurs twice in its object",
        ),
        (
            r#""method":"m","params":[{"a":1,"a":2}]"#,
            "-32600 [-] member name at byte 38 occurs twice in its object",
        ),
        (
            r#""method":"m","i\u0064":8"#,
            "-32600 [-] member name at byte 21 occurs twice in its object",
        ),
    ] {
        check(&format!(r#"{{"id":7,{members}}}"#), &[expected]);
    }
    check("{}", &["-32600 [-] method is missing"]);
}

#[test]
fn invalid_bodies_are_rejected_as_a_whole() {
    for (body, expected) in [
        ("", "-32700 [-] empty body where a json-rpc call is needed"),
        ("{", "-32700 [-] text ends too early at byte 1"),
        ("\u{feff}{}", "-32700 [-] byte order mark, which json text must not have, at byte 0"),
        (r#"{"method":"m"} x"#, "-32700 [-] unexpected byte 0x78 after the json value at byte 15"),
        (r#"[{"method":"m"},"#, "-32700 [-] text ends too early at byte 16"),
        ("[]", "-32600 [-] empty batch"),
        ("[1,2,3,4]", "-32600 [-] batch too large: at most 3 calls are allowed"),
        ("1", "-32600 [-] body is neither an object nor an array"),
        ("\"a\" b", "-32700 [-] unexpected byte 0x62 after the json value at byte 4"),
    ] {
        check(body, &["whole", expected]);
    }
    let limits = Limits { body_bytes_max: 10, ..small_limits() };
    let rejection = decode(br#"{"method":"m"}"#, &limits).unwrap_err();
    assert_eq!(rejection.message, "body of 14 bytes, at most 10 are allowed");
}

#[test]
fn batches_keep_their_order_and_their_valid_calls() {
    check(
        r#"[ {"id":2,"method":"b"} , 5 , {"id":1,"method":"a","x":1,"x":2} ]"#,
        &[
            "batch",
            "2 b -",
            "-32600 [-] batch member at byte 26 is not an object",
            "-32600 [-] member name at byte 57 occurs twice in its object",
        ],
    );
    // A repeated name in one member does not affect the next member.
    check(
        r#"[[{"x":1,"x":2}],{"id":1,"method":"a"}]"#,
        &["batch", "-32600 [-] batch member at byte 1 is not an object", "1 a -"],
    );
}

#[test]
fn hostile_bodies_are_rejected_early() {
    let many = format!("[{}1]", "1,".repeat(1_000_000));
    assert_eq!(
        decode(many.as_bytes(), &Limits::DEFAULT).unwrap_err().code,
        ErrorCode::INVALID_REQUEST
    );
    let deep = "[".repeat(100_000);
    assert_eq!(decode(deep.as_bytes(), &Limits::DEFAULT).unwrap_err().code, ErrorCode::PARSE);
    let deep = format!(r#"{{"method":"m","params":{deep}"#);
    assert_eq!(decode(deep.as_bytes(), &Limits::DEFAULT).unwrap_err().code, ErrorCode::PARSE);
}

#[test]
fn recorded_batch_is_read_member_by_member() {
    let recorded = include_bytes!("../../../../testdata/wire/bodies/erigon-chain-id-batch.json");
    let tests: Vec<serde_json::Value> = serde_json::from_slice(recorded).unwrap();
    let request = serde_json::to_vec(&tests[0]["request"]).unwrap();
    let Ok(Body::Batch(items)) = decode(&request, &Limits::DEFAULT) else { panic!("no batch") };
    let sent = tests[0]["request"].as_array().unwrap();
    assert!(sent.len() == 100 && items.len() == sent.len());
    for (item, sent) in items.iter().zip(sent) {
        assert_eq!(item.as_ref().ok().map(|call| &*call.method), sent["method"].as_str());
        let id = item.as_ref().map_or_else(|rejection| rejection.id, |call| call.id);
        assert_eq!(id.unwrap(), sent["id"].to_string().as_bytes());
    }
    assert!(items.iter().any(Result::is_err), "the recording holds invalid members");
}

proptest! {
    #[test]
    fn random_ids_keep_their_bytes(
        id in r#"-?(0|[1-9][0-9]{0,40})(\.[0-9]{1,9})?([eE][+-]?[0-9]{1,4})?|"([ -!#-\[\]-~]|\\u[0-9a-f]{4}|é){0,30}""#,
        whitespace in "[ \n\t]{0,3}",
    ) {
        let body = format!(r#"{{"method":"m","id":{whitespace}{id}{whitespace}}}"#);
        let Ok(Body::Single(Ok(call))) = decode(body.as_bytes(), &Limits::DEFAULT) else {
            return Err(TestCaseError::fail(body));
        };
        prop_assert_eq!(call.id.unwrap(), id.as_bytes());
    }
}

#[test]
fn written_calls_are_exact() {
    for (method, params, expected) in [
        ("a\"b", Some(&b"[ 1 ]"[..]), r#"{"jsonrpc":"2.0","id":7,"method":"a\"b","params":[ 1 ]}"#),
        ("m", None, r#"{"jsonrpc":"2.0","id":7,"method":"m"}"#),
        ("m", Some(b"null"), r#"{"jsonrpc":"2.0","id":7,"method":"m","params":null}"#),
    ] {
        let mut out = Vec::new();
        write_call(&mut out, b"7", method, params);
        assert_eq!(String::from_utf8(out).unwrap(), expected);
        assert_eq!(expected.len(), call_bytes(b"7", method, params));
    }
}
