//! Goal: the scanner accepts and rejects the cases of the public JSON parsing test suite as their
//! names state. Each case is tested as a JSON text, as a client's body and as the result in a
//! node's response. Method: all cases of `testdata/json-test-suite`. A list has the expected
//! results of those cases that the suite leaves to the parser.

use std::path::Path;

use super::*;
use crate::call::{Body, Limits, decode};
use crate::error::ErrorCode;
use crate::response::{self, Outcome};

/// The number of cases that a parser must accept.
const ACCEPTED: usize = 95;
/// The number of cases that a parser must reject.
const REJECTED: usize = 188;
/// The number of cases that the suite leaves to the parser.
const UNDEFINED: usize = 35;

/// The cases that the suite leaves to the parser: the name without `i_` and `.json`, and the
/// expected error; `None` if the case is accepted.
///
/// Three rules decide all cases. A number of any size is accepted, because the scanner does not
/// convert it. An escape that is half a surrogate pair is accepted too, because its syntax is valid
/// and only its meaning is unpredictable (RFC 8259, section 8.2). But a method's name with such an
/// escape is rejected. Bytes that are not UTF-8 and a byte order mark are rejected, because section
/// 8.1 requires UTF-8 without a mark.
const UNDEFINED_CASES: [(&str, Option<SyntaxErrorKind>); UNDEFINED] = [
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
    ("structure_500_nested_arrays", Some(SyntaxErrorKind::TooDeep(DEPTH_MAX))),
    ("structure_UTF-8_BOM_empty_object", Some(SyntaxErrorKind::ByteOrderMark)),
];

/// Returns the cases whose names start with `y_` (accept), `n_` (reject) or `i_` (left to the
/// parser), sorted by the rest of the name.
fn cases(prefix: &str) -> Vec<(String, Vec<u8>)> {
    let folder =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/json-test-suite/test_parsing");
    let mut cases: Vec<(String, Vec<u8>)> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| {
            let name = entry.file_name().into_string().unwrap();
            let name =
                name.strip_suffix(".json").expect("every file has the ending .json").to_owned();
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
        .filter_map(|(name, bytes)| Some((name.strip_prefix(prefix)?.to_owned(), bytes)))
        .collect();
    cases.sort();
    cases
}

/// Returns true if a client's body has a syntax error. A body that is JSON but not a call has
/// another error.
fn is_parse_error(body: &[u8]) -> bool {
    let rejection = match decode(body, &Limits::DEFAULT) {
        Err(rejection) | Ok(Body::Single(Err(rejection))) => rejection,
        Ok(_) => return false,
    };
    rejection.code == ErrorCode::PARSE
}

/// Returns the result of a node's response with this value as result, or `None` if the response is
/// invalid.
fn as_result(value: &[u8]) -> Option<Vec<u8>> {
    let response_body = [br#"{"jsonrpc":"2.0","id":1,"result":"#, value, b"}"].concat();
    match response::parse_response(&response_body, DEPTH_MAX).ok()?.outcome {
        Outcome::Result(raw) => Some(raw.to_vec()),
        Outcome::Error { .. } => None,
    }
}

#[test]
fn json_is_accepted() {
    let cases = cases("y_");
    assert_eq!(cases.len(), ACCEPTED);
    for (name, bytes) in cases {
        let (value, repeated_name) =
            validate(&bytes, DEPTH_MAX).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(value, bytes.trim_ascii(), "{name}");
        // RFC 8259, section 4, leaves repeated names to the parser. The scanner reports them, and a
        // call with a repeated name is rejected as an invalid call, not as invalid JSON.
        assert_eq!(repeated_name.is_some(), name.starts_with("object_duplicated_key"), "{name}");
        assert!(!is_parse_error(&bytes), "{name}");
        assert_eq!(as_result(&bytes).as_deref(), Some(value), "{name}");
    }
}

#[test]
fn other_texts_are_rejected() {
    let cases = cases("n_");
    assert_eq!(cases.len(), REJECTED);
    for (name, bytes) in cases {
        assert!(validate(&bytes, DEPTH_MAX).is_err(), "{name}");
        // The case is also rejected with the highest limit of nesting.
        assert!(validate(&bytes, DEPTH_CEILING).is_err(), "{name}");
        assert!(is_parse_error(&bytes), "{name}");
        assert_eq!(as_result(&bytes), None, "{name}");
    }
}

#[test]
fn undefined_cases_have_the_listed_results() {
    let cases = cases("i_");
    assert_eq!(cases.len(), UNDEFINED);
    for ((name, bytes), (expected_name, expected)) in cases.iter().zip(UNDEFINED_CASES) {
        assert_eq!(name, expected_name);
        assert_eq!(validate(bytes, DEPTH_MAX).err().map(|error| error.kind), expected, "{name}");
        assert_eq!(is_parse_error(bytes), expected.is_some(), "{name}");
        assert_eq!(as_result(bytes).is_some(), expected.is_none(), "{name}");
    }
    // With a higher limit, the deeply nested case is accepted.
    let deep = &cases.iter().find(|(name, _)| name.contains("500")).unwrap().1;
    assert!(validate(deep, DEPTH_CEILING).is_ok());
}
