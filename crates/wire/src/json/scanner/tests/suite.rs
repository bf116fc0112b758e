//! Goal: the public JSON parsing suite is judged as its names say, at every door through which
//! bytes come in: a JSON text, a client's body, a result in a node's answer. Method: all cases of
//! `testdata/json-test-suite`, their number asserted; what the suite leaves to the parser is listed
//! below with what is done and why.

use std::path::Path;

use super::*;
use crate::call::{Body, Limits, decode};
use crate::error::ErrorCode;
use crate::response::{self, Outcome};

/// As many as the suite has of each verdict.
const ACCEPTED: usize = 95;
const REFUSED: usize = 188;
const LEFT: usize = 35;

/// What is left to the parser: name (without `i_` and `.json`), and what is wrong with it here, or
/// nothing.
///
/// Three rules decide all of them. A number of any size passes, because it is never made into a
/// machine's number: bytes pass. An escape that is half a surrogate pair passes for the same reason
/// (RFC 8259, section 8.2: its meaning is not predictable, its syntax is right); only where a text
/// is needed, as in a method's name, is it refused. Bytes that are not UTF-8, a byte order mark
/// among them, are refused: section 8.1 demands UTF-8 without a mark.
const LEFT_TO_US: [(&str, Option<SyntaxErrorKind>); LEFT] = [
    ("number_double_huge_neg_exp", None),
    ("number_huge_exp", None),
    ("number_neg_int_huge_exp", None),
    ("number_pos_double_huge_exp", None),
    ("number_real_neg_overflow", None),
    ("number_real_pos_overflow", None),
    ("number_real_underflow", None),
    ("number_too_big_neg_int", None),
    ("number_too_big_pos_int", None),
    ("number_very_big_negative_int", None),
    ("object_key_lone_2nd_surrogate", None),
    ("string_1st_surrogate_but_2nd_missing", None),
    ("string_1st_valid_surrogate_2nd_invalid", None),
    ("string_UTF-16LE_with_BOM", Some(SyntaxErrorKind::Unexpected(0xff))),
    ("string_UTF-8_invalid_sequence", Some(SyntaxErrorKind::Utf8)),
    ("string_UTF8_surrogate_U+D800", Some(SyntaxErrorKind::Utf8)),
    ("string_incomplete_surrogate_and_escape_valid", None),
    ("string_incomplete_surrogate_pair", None),
    ("string_incomplete_surrogates_escape_valid", None),
    ("string_invalid_lonely_surrogate", None),
    ("string_invalid_surrogate", None),
    ("string_invalid_utf-8", Some(SyntaxErrorKind::Utf8)),
    ("string_inverted_surrogates_U+1D11E", None),
    ("string_iso_latin_1", Some(SyntaxErrorKind::Utf8)),
    ("string_lone_second_surrogate", None),
    ("string_lone_utf8_continuation_byte", Some(SyntaxErrorKind::Utf8)),
    ("string_not_in_unicode_range", Some(SyntaxErrorKind::Utf8)),
    ("string_overlong_sequence_2_bytes", Some(SyntaxErrorKind::Utf8)),
    ("string_overlong_sequence_6_bytes", Some(SyntaxErrorKind::Utf8)),
    ("string_overlong_sequence_6_bytes_null", Some(SyntaxErrorKind::Utf8)),
    ("string_truncated-utf-8", Some(SyntaxErrorKind::Utf8)),
    ("string_utf16BE_no_BOM", Some(SyntaxErrorKind::Unexpected(0x00))),
    ("string_utf16LE_no_BOM", Some(SyntaxErrorKind::Unexpected(0x00))),
    ("structure_500_nested_arrays", Some(SyntaxErrorKind::TooDeep(128))),
    ("structure_UTF-8_BOM_empty_object", Some(SyntaxErrorKind::ByteOrderMark)),
];

/// All cases of a verdict, by name.
fn cases(verdict: &str) -> Vec<(String, Vec<u8>)> {
    let folder =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/json-test-suite/test_parsing");
    let mut cases: Vec<(String, Vec<u8>)> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| {
            let name = entry.file_name().into_string().unwrap();
            let name = name.strip_suffix(".json").expect("all of it is JSON or none").to_owned();
            (name, std::fs::read(entry.path()).unwrap())
        })
        .chain([
            (
                "i_structure_500_nested_arrays".into(),
                ["[".repeat(500), "]".repeat(500)].concat().into(),
            ),
            ("n_structure_100000_opening_arrays".into(), vec![b'['; 100_000]),
            (
                "n_structure_open_array_object".into(),
                format!("{}\n", "[{\"\":".repeat(50_000)).into(),
            ),
        ])
        .filter_map(|(name, bytes)| Some((name.strip_prefix(verdict)?.to_owned(), bytes)))
        .collect();
    cases.sort();
    cases
}

/// Whether it is an error of syntax when it comes as a client's body. What is JSON but no call is
/// another one.
fn is_parse_error(body: &[u8]) -> bool {
    let refusal = match decode(body, &Limits::DEFAULT) {
        Err(refusal) | Ok(Body::Single(Err(refusal))) => refusal,
        Ok(_) => return false,
    };
    refusal.code == ErrorCode::PARSE
}

/// The result that is read when it comes as that of a node's answer, and whether anything is.
fn as_result(value: &[u8]) -> Option<Vec<u8>> {
    let answer = [br#"{"jsonrpc":"2.0","id":1,"result":"#, value, b"}"].concat();
    match response::parse_response(&answer, 128).ok()?.outcome {
        Outcome::Result(raw) => Some(raw.to_vec()),
        Outcome::Error { .. } => None,
    }
}

#[test]
fn what_is_json_is_accepted() {
    let cases = cases("y_");
    assert_eq!(cases.len(), ACCEPTED);
    for (name, bytes) in cases {
        let (value, repeated) =
            validate(&bytes, 128).unwrap_or_else(|fault| panic!("{name}: {fault}"));
        assert_eq!(value, bytes.trim_ascii(), "{name}");
        // RFC 8259, section 4, leaves repeated names to the parser: they are noted, and a call that
        // has one is refused as no call, never as no JSON.
        assert_eq!(repeated.is_some(), name.starts_with("object_duplicated_key"), "{name}");
        assert!(!is_parse_error(&bytes), "{name}");
        assert_eq!(as_result(&bytes).as_deref(), Some(value), "{name}");
    }
}

#[test]
fn what_is_no_json_is_refused() {
    let cases = cases("n_");
    assert_eq!(cases.len(), REFUSED);
    for (name, bytes) in cases {
        assert!(validate(&bytes, 128).is_err(), "{name}");
        // However deep it may be.
        assert!(validate(&bytes, DEPTH_CEILING).is_err(), "{name}");
        assert!(is_parse_error(&bytes), "{name}");
        assert_eq!(as_result(&bytes), None, "{name}");
    }
}

#[test]
fn what_is_left_to_the_parser_is_decided() {
    let cases = cases("i_");
    assert_eq!(cases.len(), LEFT);
    for ((name, bytes), (due_name, due)) in cases.iter().zip(LEFT_TO_US) {
        assert_eq!(name, due_name);
        assert_eq!(validate(bytes, 128).err().map(|error| error.kind), due, "{name}");
        assert_eq!(is_parse_error(bytes), due.is_some(), "{name}");
        assert_eq!(as_result(bytes).is_some(), due.is_none(), "{name}");
    }
    // Who raises the limit gets the deep one.
    let deep = &cases.iter().find(|(name, _)| name.contains("500")).unwrap().1;
    assert!(validate(deep, DEPTH_CEILING).is_ok());
}
