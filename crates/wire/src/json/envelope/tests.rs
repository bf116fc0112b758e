//! Goal: the envelope of a text is the same for chunks of any size, and contains only `id` and
//! `error`. Method: a table of difficult texts cut at every offset, random texts in random chunks,
//! and a long response with an error at its end. `fuzz.rs` compares the parsed envelope with the
//! parsed text.

use proptest::prelude::*;

use super::*;
use crate::fuzz::check_envelope;

fn envelope_of(text: &[u8]) -> String {
    let mut scanner = EnvelopeScanner::default();
    scanner.feed(text);
    String::from_utf8_lossy(scanner.envelope()).into_owned()
}

#[test]
fn only_id_and_error_are_copied() {
    let check =
        |text: &str, expected: &str| assert_eq!(envelope_of(text.as_bytes()), expected, "{text}");
    check(
        r#"{"jsonrpc":"2.0","id":7,"result":[{"a":"b"},1]}"#,
        r#"{"jsonrpc":"0x","id":7,"result":[]}"#,
    );
    check(
        r#" { "id" : "x y" , "result" : null , "b" : { } } "#,
        r#"{"id":"x y","result":null,"b":{}}"#,
    );
    check(
        r#"[{"id":1,"result":{"id":2}},[3],"x",{"id":2,"error":{"code": 1}}]"#,
        r#"[{"id":1,"result":{}},[],"0x",{"id":2,"error":{"code": 1}}]"#,
    );
    check(r#"{"\u0069d":12 ,"x":1}"#, r#"{"\u0069d":12,"x":0}"#);
    check("{\"id\":1,\"result\":\"a\u{1}", "{\"id\":1,\"result\":\"0x\"\0");
    check("{} x", "{}\0");
}

#[test]
fn difficult_texts_have_one_envelope_for_all_chunks() {
    let values = [
        "",
        " ",
        "null",
        "nul",
        "nulls",
        "true",
        "false",
        "0",
        "-",
        "-0",
        "01",
        "1.",
        "1.5e-3",
        "1e",
        "1e+",
        ".5",
        "\"\"",
        "\"a",
        "\"\\\"",
        "\"\\u00e9\"",
        "\"\\u00g9\"",
        "\"\\x\"",
        "\"é\"",
        "\"😀\"",
        "[",
        "]",
        "[]",
        "[1,]",
        "[,1]",
        "[1 2]",
        "{}",
        "{\"a\"}",
        "{\"a\":1,}",
        "{1:2}",
        "{\"a\":1,\"a\":2}",
        "[[[{\"x\":[1,{\"y\":null}]}]]]",
        "[1}",
        "{\"a\":1]",
        "\t[ 1 , 2 ]\n",
        "{\"code\":1,\"message\":\"m\"}",
        "{\"code\":1,\"code\":2}",
        "{\"data\":[1,2], \"code\":-5 }",
    ];
    let contexts = [
        ("", ""),
        ("{\"id\":1,\"result\":", "}"),
        ("{\"result\":", ",\"id\":1}"),
        ("{\"id\":", ",\"result\":1}"),
        ("{\"id\":1,\"error\":", "}"),
        ("{\"id\":1,\"error\":null,\"result\":", "}"),
        ("{\"id\":1,\"error\":{\"code\":1,\"message\":\"\"},\"result\":", "}"),
        ("{\"id\":1,\"result\":1,\"id\":", "}"),
        ("[{\"id\":1,\"result\":1},", "]"),
        ("[{\"id\":1,\"result\":", "},{\"id\":2,\"result\":2}]"),
        ("[{\"id\":1,\"result\":1},{\"id\":2,\"result\":2},{\"id\":3,\"result\":3},", "]"),
        ("\u{feff}", ""),
    ];
    for (prefix, suffix) in contexts {
        for value in values {
            let text = format!("{prefix}{value}{suffix}").into_bytes();
            for end in 0..=text.len() {
                check_envelope(&text[..end]);
            }
        }
    }
}

#[test]
fn bytes_that_are_not_utf8_are_found() {
    let invalid: [&[u8]; 9] = [
        b"\x80",
        b"\xc1\x81",
        b"\xe0\x9f\x80",
        b"\xed\xa0\x80",
        b"\xf0\x8f\x80\x80",
        b"\xf4\x90\x80\x80",
        b"\xc3",
        b"\xe2\x82",
        b"\xf5",
    ];
    for bytes in invalid {
        let text = [b"{\"id\":1,\"result\":\"".as_slice(), bytes, b"\"}"].concat();
        assert!(envelope_of(&text).contains('\0'), "{}", text.escape_ascii());
        check_envelope(&text);
    }
}

#[test]
fn nesting_has_the_limit_of_the_scanner() {
    for depth in [DEPTH_CEILING - 1, DEPTH_CEILING] {
        let text = format!("{{\"id\":1,\"result\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
        assert_eq!(envelope_of(text.as_bytes()).contains('\0'), depth == DEPTH_CEILING);
        check_envelope(text.as_bytes());
    }
}

/// A response of 20 MB with an error at its end.
#[test]
fn an_error_at_the_end_of_a_long_response_is_found() {
    let log = r#"{"address":"0x00","topics":["0x01","0x02"],"data":"0x","removed":false,"n":17},"#;
    let logs = log.repeat((20 << 20) / log.len());
    for (end, is_valid) in [
        ("{}]}", true),
        ("]}", false),
        ("{}]", false),
        ("{}]}}", false),
        ("{\"a\":\"\\q\"}]}", false),
        ("{\"a\":\"", false),
        ("tru]}", false),
    ] {
        let text = format!("{{\"id\":1,\"result\":[{logs}{end}");
        let mut scanner = EnvelopeScanner::default();
        text.as_bytes().chunks(65_521).for_each(|chunk| scanner.feed(chunk));
        assert_eq!(crate::json::validate(scanner.envelope(), 9).is_ok(), is_valid, "{end}");
        assert!(scanner.envelope().len() < 30, "{} bytes", scanner.envelope().len());
    }
}

fn value() -> impl Strategy<Value = String> {
    let text = prop_oneof!["[a-zé😀\\\\\" ]{0,9}", "(id|result|error|code|message)"];
    let leaf = prop_oneof![
        Just("null".to_owned()),
        Just("true".to_owned()),
        any::<i32>().prop_map(|number| number.to_string()),
        any::<f64>().prop_map(|number| serde_json::json!(number).to_string()),
        text.clone().prop_map(|text| serde_json::json!(text).to_string()),
    ];
    leaf.prop_recursive(5, 60, 6, move |inner| {
        let member = (text.clone(), inner.clone())
            .prop_map(|(name, value)| format!("{} : {value}", serde_json::json!(name)));
        prop_oneof![
            prop::collection::vec(inner, 0..6).prop_map(|list| format!("[{}]", list.join(" ,"))),
            prop::collection::vec(member, 0..6).prop_map(|list| format!("{{{}}}", list.join(","))),
        ]
    })
}

proptest! {
    #[test]
    fn random_texts_have_one_envelope(
        value in value(),
        sizes in prop::collection::vec(1usize..40, 1..40),
        edit in prop::option::of((any::<prop::sample::Index>(), any::<u8>())),
    ) {
        let mut text = format!(r#"[{{"id":5,"result":{value}}},{{"id":6,"error":{value}}},{value}]"#)
            .into_bytes();
        if let Some((offset, byte)) = edit {
            let offset = offset.index(text.len());
            text[offset] = byte;
        }
        check_envelope(&text);
        check_envelope(&text[1..]);
        let mut chunked = EnvelopeScanner::default();
        let (mut offset, mut sizes) = (0, sizes.into_iter().cycle());
        while offset < text.len() {
            let end = (offset + sizes.next().unwrap_or(1)).min(text.len());
            chunked.feed(&text[offset..end]);
            offset = end;
        }
        prop_assert_eq!(envelope_of(&text), String::from_utf8_lossy(chunked.envelope()));
    }
}
