//! Goal: a text in any pieces is judged as the whole text is, and nothing but what decides is kept.
//! Method: a table of hard texts cut at every place, random texts cut at random, and a long answer
//! damaged at its end. That the skeleton reads as the text does is told by `fuzz.rs`.

use proptest::prelude::*;

use super::*;
use crate::fuzz::try_skeleton;

fn kept(text: &[u8]) -> String {
    let mut skeleton = Skeleton::default();
    skeleton.feed(text);
    String::from_utf8_lossy(skeleton.kept()).into_owned()
}

#[test]
fn only_what_decides_is_kept() {
    let check = |text: &str, expected: &str| assert_eq!(kept(text.as_bytes()), expected, "{text}");
    check(
        r#"{"jsonrpc":"2.0","id":7,"result":[{"a":"b"},1]}"#,
        r#"{"jsonrpc":0,"id":7,"result":0}"#,
    );
    check(
        r#" { "id" : "x y" , "result" : null , "b" : { } } "#,
        r#"{"id":"x y","result":null,"b":0}"#,
    );
    check(
        r#"[{"id":1,"result":{"id":2}},[3],"x",{"id":2,"error":{"code": 1}}]"#,
        r#"[{"id":1,"result":0},0,0,{"id":2,"error":{"code": 1}}]"#,
    );
    check(r#"{"\u0069d":12 ,"x":1}"#, r#"{"\u0069d":12,"x":0}"#);
    check("{\"id\":1,\"result\":\"a\u{1}", "{\"id\":1,\"result\":0\0");
    check("{} x", "{}\0");
}

#[test]
fn hard_texts_are_judged_alike_however_they_are_cut() {
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
    let frames = [
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
    for (before, after) in frames {
        for value in values {
            let text = format!("{before}{value}{after}").into_bytes();
            for end in 0..=text.len() {
                try_skeleton(&text[..end]);
            }
        }
    }
}

#[test]
fn bytes_that_are_not_utf8_are_found() {
    let bad: [&[u8]; 9] = [
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
    for bytes in bad {
        let text = [b"{\"id\":1,\"result\":\"".as_slice(), bytes, b"\"}"].concat();
        assert!(kept(&text).contains('\0'), "{}", text.escape_ascii());
        try_skeleton(&text);
    }
}

#[test]
fn nesting_has_the_limit_of_the_scanner() {
    for depth in [DEPTH_CEILING - 1, DEPTH_CEILING] {
        let text = format!("{{\"id\":1,\"result\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
        assert_eq!(kept(text.as_bytes()).contains('\0'), depth == DEPTH_CEILING);
        try_skeleton(text.as_bytes());
    }
}

/// An answer of 20 MB, of which nothing is wrong but what stands at its end.
#[test]
fn a_fault_at_the_end_of_a_long_answer_is_found() {
    let log = r#"{"address":"0x00","topics":["0x01","0x02"],"data":"0x","removed":false,"n":17},"#;
    let logs = log.repeat((20 << 20) / log.len());
    for (end, good) in [
        ("{}]}", true),
        ("]}", false),
        ("{}]", false),
        ("{}]}}", false),
        ("{\"a\":\"\\q\"}]}", false),
        ("{\"a\":\"", false),
        ("tru]}", false),
    ] {
        let text = format!("{{\"id\":1,\"result\":[{logs}{end}");
        let mut skeleton = Skeleton::default();
        text.as_bytes().chunks(65_521).for_each(|piece| skeleton.feed(piece));
        assert_eq!(crate::json::check(skeleton.kept(), 9).is_ok(), good, "{end}");
        assert!(skeleton.kept().len() < 30, "{} bytes kept", skeleton.kept().len());
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
    fn random_texts_are_judged_alike(
        value in value(),
        sizes in prop::collection::vec(1usize..40, 1..40),
        edit in prop::option::of((any::<prop::sample::Index>(), any::<u8>())),
    ) {
        let mut text = format!(r#"[{{"id":5,"result":{value}}},{{"id":6,"error":{value}}},{value}]"#)
            .into_bytes();
        if let Some((at, byte)) = edit {
            let at = at.index(text.len());
            text[at] = byte;
        }
        try_skeleton(&text);
        try_skeleton(&text[1..]);
        let mut cut = Skeleton::default();
        let (mut at, mut sizes) = (0, sizes.into_iter().cycle());
        while at < text.len() {
            let end = (at + sizes.next().unwrap_or(1)).min(text.len());
            cut.feed(&text[at..end]);
            at = end;
        }
        prop_assert_eq!(kept(&text), String::from_utf8_lossy(cut.kept()));
    }
}
