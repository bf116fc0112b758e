//! Goal: exactly the texts of RFC 8259 are valid, repeated names are found at any depth, and slices
//! are exact. Method: tables, and a comparison with serde_json on random mutations.
use proptest::prelude::*;
use serde_json::value::RawValue;

use super::*;
use crate::json::walk;

mod suite;

/// The nesting limit of most tests, in levels.
const DEPTH_MAX: usize = 128;

/// Returns the offset and the kind of a text's error.
fn error(text: impl AsRef<[u8]>) -> Option<(usize, SyntaxErrorKind)> {
    validate(text.as_ref(), DEPTH_MAX).err().map(|error| (error.offset, error.kind))
}

fn repeated_offset(text: &str) -> Option<usize> {
    validate(text.as_bytes(), DEPTH_MAX).unwrap().1
}

#[test]
fn valid_json_is_accepted_and_keeps_its_bytes() {
    for text in [
        "null",
        "true",
        "false",
        "0",
        "-0",
        "-0.0e-0",
        "123456789012345678901234567890",
        "1.5E+300",
        "\"\"",
        r#""\u0000\ud800 \"\\\/\b\f\n\r\t""#,
        "\"\u{7f}\u{10ffff}é\"",
        "[]",
        "{}",
        "[ ]",
        "{ }",
        "[1,2 , [3]]",
        r#"{"a":{"a":{"a":[]}},"":0}"#,
    ] {
        let spaced = format!(" \t\r\n{text}\n ");
        assert_eq!(validate(spaced.as_bytes(), DEPTH_MAX), Ok((text.as_bytes(), None)), "{text}");
    }
}

#[test]
fn errors_name_their_offset() {
    for (text, offset, expected) in [
        ("", 0, SyntaxErrorKind::Empty),
        ("  ", 2, SyntaxErrorKind::Empty),
        ("\u{feff}1", 0, SyntaxErrorKind::ByteOrderMark),
        ("1 2", 2, SyntaxErrorKind::Trailing(b'2')),
        ("{}}", 2, SyntaxErrorKind::Trailing(b'}')),
        ("[1", 2, SyntaxErrorKind::End),
        ("[1,", 3, SyntaxErrorKind::End),
        ("[1,]", 3, SyntaxErrorKind::Unexpected(b']')),
        ("[,1]", 1, SyntaxErrorKind::Unexpected(b',')),
        ("[1 2]", 3, SyntaxErrorKind::Unexpected(b'2')),
        ("{\"a\"}", 4, SyntaxErrorKind::Unexpected(b'}')),
        ("{\"a\":}", 5, SyntaxErrorKind::Unexpected(b'}')),
        ("{\"a\":1,}", 7, SyntaxErrorKind::Unexpected(b'}')),
        ("{a:1}", 1, SyntaxErrorKind::Unexpected(b'a')),
        ("{1:1}", 1, SyntaxErrorKind::Unexpected(b'1')),
        ("'a'", 0, SyntaxErrorKind::Unexpected(b'\'')),
        ("nul", 3, SyntaxErrorKind::End),
        ("nulL", 3, SyntaxErrorKind::Unexpected(b'L')),
        ("NaN", 0, SyntaxErrorKind::Unexpected(b'N')),
        ("01", 0, SyntaxErrorKind::Number),
        ("-", 0, SyntaxErrorKind::Number),
        ("1.", 0, SyntaxErrorKind::Number),
        ("[.5]", 1, SyntaxErrorKind::Unexpected(b'.')),
        ("1e", 0, SyntaxErrorKind::Number),
        ("+1", 0, SyntaxErrorKind::Unexpected(b'+')),
        ("0x1", 1, SyntaxErrorKind::Trailing(b'x')),
        ("\"abc", 4, SyntaxErrorKind::End),
        ("\"abcdefghijkl", 13, SyntaxErrorKind::End),
        ("\"a\nb\"", 2, SyntaxErrorKind::Control(b'\n')),
        ("\"a\\x\"", 2, SyntaxErrorKind::Escape),
        ("\"\\u12g4\"", 1, SyntaxErrorKind::Escape),
        ("\"\\", 1, SyntaxErrorKind::Escape),
        ("// no\n1", 0, SyntaxErrorKind::Unexpected(b'/')),
        ("\u{a0}1", 0, SyntaxErrorKind::Unexpected(0xc2)),
    ] {
        assert_eq!(error(text), Some((offset, expected)), "{text:?}");
    }
}

#[test]
fn strings_must_be_utf8() {
    for (bytes, offset) in [
        (&b"\"\xff\""[..], 1),
        (b"\"abc\xc3\"", 4),
        (b"\"\xc0\x80\"", 1),
        (b"\"\xed\xa0\x80\"", 1),
        (b"\"\xf4\x90\x80\x80\"", 1),
        (b"\"\xc3\xa9\x80\"", 3),
        (b"{\"\xfe\":1}", 2),
    ] {
        assert_eq!(error(bytes), Some((offset, SyntaxErrorKind::Utf8)), "{bytes:?}");
    }
}

#[test]
fn nesting_has_a_limit_and_never_overflows() {
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert_eq!(error(nested(DEPTH_MAX)), None);
    assert_eq!(
        error(nested(DEPTH_MAX + 1)),
        Some((DEPTH_MAX, SyntaxErrorKind::TooDeep(DEPTH_MAX)))
    );
    let deep = nested(100_000);
    assert_eq!(
        validate(deep.as_bytes(), usize::MAX).unwrap_err().kind,
        SyntaxErrorKind::TooDeep(DEPTH_CEILING)
    );
    assert!(validate(nested(DEPTH_CEILING).as_bytes(), usize::MAX).is_ok());
    let objects = "{\"a\":".repeat(100_000);
    assert!(matches!(error(objects), Some((_, SyntaxErrorKind::TooDeep(DEPTH_MAX)))));
    // Only arrays and objects within each other count for the limit.
    assert_eq!(error(format!("[{}1]", "[[]],".repeat(1000))), None);
}

#[test]
fn repeated_names_are_found_at_any_depth() {
    for (text, expected) in [
        (r#"{"a":1,"b":2,"c":3}"#, None),
        (r#"{"a":1,"a":2}"#, Some(7)),
        (r#"{"a":1,"b":2,"c":3,"b":4,"a":5}"#, Some(19)),
        (r#"{"":1,"":2}"#, Some(6)),
        (r#"{"a":1,"\u0061":2}"#, Some(7)),
        (r#"{"\u0061":1,"a":2}"#, Some(12)),
        (r#"{"\u0061":1,"\u0061":2}"#, Some(12)),
        (r#"{"\n":1,"\u000a":2}"#, Some(8)),
        (r#"{"\n":1,"n":2,"\\n":3}"#, None),
        (r#"{"\ud800":1,"\udc00":2,"\ud800\udc00":3}"#, None),
        (r#"{"\ud800\udc00":1,"𐀀":2}"#, Some(18)),
        (r#"{"a":{"a":1},"b":{"a":1}}"#, None),
        (r#"[{"a":1},{"a":1}]"#, None),
        (r#"[[{"x":[{"y":1,"y":2}]}]]"#, Some(15)),
        (r#"{"a":{"b":1},"a":2}"#, Some(13)),
        (r#"{"A":1,"a":2}"#, None),
    ] {
        assert_eq!(repeated_offset(text), expected, "{text}");
    }
}

#[test]
fn repeated_names_are_found_in_large_objects() {
    for count in [15, 16, 31, 32, 33, 34, 64, 65, 1000] {
        let body = |extra: &str| {
            let members: Vec<String> = (0..count)
                .map(|number| format!(r#""name{number}":{{"name{number}":{number}}}"#))
                .collect();
            format!("{{{}{extra}}}", members.join(","))
        };
        assert_eq!(repeated_offset(&body("")), None, "{count}");
        for repeated_index in [0, count / 2, count - 1] {
            // `extra` replaces the closing bracket. The repeated name follows its comma.
            let expected_offset = body("").len() - 1 + 1;
            let extra = format!(r#","name{repeated_index}":0"#);
            assert_eq!(
                repeated_offset(&body(&extra)),
                Some(expected_offset),
                "{repeated_index} of {count}"
            );
            let extra = format!(r#","n\u0061me{repeated_index}":0"#);
            assert_eq!(
                repeated_offset(&body(&extra)),
                Some(expected_offset),
                "escaped {repeated_index} of {count}"
            );
        }
        assert_eq!(repeated_offset(&body(r#","\u006fther":0"#)), None, "{count}");
    }
}

/// The time of a scan grows linearly with the bytes. If it grew with the square of the number of
/// members, 300,000 members would take minutes.
#[test]
fn large_objects_take_linear_time() {
    let members: Vec<String> = (0..300_000).map(|number| format!(r#""{number}":0"#)).collect();
    assert_eq!(repeated_offset(&format!("{{{}}}", members.join(","))), None);
    let siblings = r#"{"a":1,"b":{"c":[2]}},"#.repeat(50_000);
    assert_eq!(repeated_offset(&format!("[{siblings}0]")), None);
}

#[test]
fn members_and_elements_are_walked_with_their_bytes() {
    let text = br#" {"a" : [1, 2] ,"b\u0063":{"x":"]}"} , "d":-1e5 } "#;
    let mut scanned_members = Vec::new();
    let mut scanner = Scanner::new(text, 8);
    scanner.members(|name, value| scanned_members.push((name, value))).unwrap();
    scanner.finish().unwrap();
    assert_eq!(walk::members(text).collect::<Vec<_>>(), scanned_members);
    let printed: Vec<(String, &str)> = scanned_members
        .iter()
        .map(|(name, value)| {
            (name.to_str().unwrap().into_owned(), std::str::from_utf8(value).unwrap())
        })
        .collect();
    assert_eq!(
        printed,
        [("a".into(), "[1, 2]"), ("bc".into(), r#"{"x":"]}"}"#), ("d".into(), "-1e5")]
    );
    let elements: Vec<&[u8]> =
        walk::elements(b" [ 1 ,\"a,]\",[2,[3]] , {\"b\":[]},null ] ").collect();
    assert_eq!(elements, [&b"1"[..], b"\"a,]\"", b"[2,[3]]", b"{\"b\":[]}", b"null"]);
    assert_eq!(walk::elements(b"{}").count() + walk::elements(b"[]").count(), 0);
    assert_eq!(walk::members(b"[1]").count() + walk::members(b"{ }").count(), 0);
    assert_eq!(walk::first_and_last(b"[1,2,3]"), Some((&b"1"[..], &b"3"[..])));
    assert_eq!(walk::first_and_last(b"[1]"), Some((&b"1"[..], &b"1"[..])));
    assert_eq!(walk::first_and_last(b"[]"), None);
}

#[test]
fn fields_are_found_by_decoded_name() {
    let raw = br#"{"x":{"hash":1},"number":"0x1","h\u0061sh":"0x2"}"#;
    let [hash, number, parent] = walk::fields_of(raw, ["hash", "number", "parentHash"]);
    assert_eq!(hash, Some(&b"\"0x2\""[..]));
    assert_eq!(number, Some(&b"\"0x1\""[..]));
    assert_eq!(parent, None);
    assert_eq!(walk::fields_of(b"[1]", ["a"]), [None]);
    let rest = walk::from_member(br#" { "a" : [1, "b"] , "\u0062" : [2, 3], "b":4}"#, "b");
    assert_eq!(rest, Some(&br#"[2, 3], "b":4}"#[..]));
    assert_eq!(walk::from_member(b"{\"a\":1", "b"), None);
    assert_eq!(walk::from_member(b"[1]", "a"), None);
    assert_eq!(walk::fields_of(raw, []), [None::<&[u8]>; 0]);
    assert_eq!(walk::member(raw, "x"), Some(&b"{\"hash\":1}"[..]));
}

#[test]
fn lone_surrogates_decode_to_distinct_bytes() {
    let decode = |text: &'static str| JsonString::new(text.as_bytes()).decode().into_owned();
    let texts = [r"\ud800", r"\udbff", r"\udc00", r"\ud800\ud800", r"\ufffd", r"\ud800\udc00"];
    for a in texts {
        for b in texts {
            assert_eq!(decode(a) == decode(b), a == b, "{a} {b}");
        }
    }
    assert_eq!(JsonString::new(br"\ud800x").to_str(), None);
    assert_eq!(JsonString::new(br"\ud83d\ude00").to_str().unwrap(), "😀");
}

/// Random JSON with odd spacing and escapes, then a few random edits.
fn mutated_texts() -> impl Strategy<Value = Vec<u8>> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        Just("true".to_owned()),
        "-?(0|[1-9][0-9]{0,20})(\\.[0-9]{1,3})?([eE][+-]?[0-9]{1,3})?",
        r#""([a-z0-9 ]|\\u[0-9a-fA-F]{4}|\\[bfnrt"/]|é|😀){0,20}""#,
    ];
    let tree = leaf.prop_recursive(4, 40, 6, |inside| {
        let member =
            ("[a-d]{0,2}", inside.clone()).prop_map(|(name, value)| format!("\"{name}\" :{value}"));
        prop_oneof![
            prop::collection::vec(inside, 0..6).prop_map(|list| format!("[{}]", list.join(", "))),
            prop::collection::vec(member, 0..6)
                .prop_map(|list| format!("{{{}}}", list.join(",\n"))),
        ]
    });
    let edit = (
        any::<prop::sample::Index>(),
        0..3u8,
        prop_oneof![
            prop::sample::select(b"{}[]\",:\\u0eE+-. \n\x00\x80\xc3\xff/".to_vec()),
            any::<u8>(),
        ],
    );
    (tree, prop::collection::vec(edit, 0..4)).prop_map(|(text, edits)| {
        let mut bytes = text.into_bytes();
        for (index, kind, byte) in edits {
            let offset = index.index(bytes.len() + 1);
            match kind {
                0 => bytes.insert(offset, byte),
                1 if offset < bytes.len() => bytes[offset] = byte,
                _ if offset < bytes.len() => {
                    bytes.remove(offset);
                }
                _ => {}
            }
        }
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn validity_agrees_with_serde_json(bytes in mutated_texts()) {
        let result = validate(&bytes, DEPTH_MAX);
        let reference = serde_json::from_slice::<Box<RawValue>>(&bytes);
        prop_assert_eq!(result.is_ok(), reference.is_ok(), "{:?} {:?} {:?}", String::from_utf8_lossy(&bytes), result, reference);
        if let (Ok((value, _)), Ok(raw)) = (result, reference) {
            prop_assert_eq!(value, raw.get().as_bytes());
        }
    }

    #[test]
    fn the_fast_scanner_agrees_with_the_scanner(bytes in mutated_texts()) {
        crate::json::fast_scanner::tests::assert_scanners_agree(&bytes, 4);
    }

    #[test]
    fn walking_agrees_with_scanning(bytes in mutated_texts()) {
        if let Ok((value, _)) = validate(&bytes, DEPTH_MAX) {
            let mut elements = Vec::new();
            let mut members = Vec::new();
            let mut scanner = Scanner::new(value, DEPTH_MAX);
            match value[0] {
                b'[' => scanner
                    .elements(|scanner| { elements.push(scanner.value()?); Ok(true) })
                    .unwrap(),
                b'{' => scanner.members(|name, value| members.push((name, value))).unwrap(),
                _ => {}
            }
            prop_assert_eq!(walk::elements(value).collect::<Vec<_>>(), elements);
            prop_assert_eq!(walk::members(value).collect::<Vec<_>>(), members);
        }
    }

    /// Walking over any bytes ends without a panic.
    #[test]
    fn walking_survives_anything(bytes in prop_oneof![mutated_texts(), prop::collection::vec(any::<u8>(), 0..60)]) {
        let _ = walk::elements(&bytes).count();
        let _ = walk::members(&bytes).map(|(name, _)| name.decode().len()).sum::<usize>();
        let _ = walk::fields_of(&bytes, ["a", "b"]);
        let _ = JsonString::from_value(&bytes).map(|text| text.to_str().is_some());
    }

    #[test]
    fn texts_decode_as_serde_json_does(content in r#"([a-z]|\\u[0-9a-fA-F]{4}|\\ud83d\\ude0[0-9]|\\[bfnrt"/\\]|é|😀){0,20}"#) {
        let value = format!("\"{content}\"");
        let result = JsonString::from_value(value.as_bytes()).unwrap().to_str();
        let reference = serde_json::from_str::<String>(&value).ok();
        prop_assert_eq!(result.as_deref(), reference.as_deref());
    }

    #[test]
    fn written_texts_read_back(content in prop_oneof![any::<String>(), "[a-z\"\\\\\n\t\u{1}é]{0,40}"]) {
        let mut out = Vec::new();
        string::write(&mut out, &content);
        prop_assert_eq!(string::written_bytes(&content), out.len());
        prop_assert_eq!(serde_json::from_slice::<String>(&out).unwrap(), content);
    }
}
