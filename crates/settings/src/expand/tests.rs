//! Goal: each form of `${…}` has the right replacement or error. Method: a table.

use std::path::Path;

use super::*;

/// Expands a text in a context in which the variables `A`, `EMPTY` and `NESTED` exist.
fn expand_text(text: &str) -> Result<String, String> {
    let environment = |name: &str| match name {
        "A" => Some("1".to_owned()),
        "EMPTY" => Some(String::new()),
        "NESTED" => Some("${A}".to_owned()),
        _ => None,
    };
    expand(text, &ReadContext::new(Path::new("/nowhere"), &environment))
}

#[test]
fn each_form_is_replaced() {
    let cases = [
        ("plain $ text", "plain $ text"),
        ("${A}", "1"),
        ("x${A}y${A}z", "x1y1z"),
        ("${B:-2}", "2"),
        ("${A:-2}", "1"),
        ("${EMPTY:-2}", "2"),
        ("${B:-}", ""),
        ("$${A}", "${A}"),
        ("${NESTED}", "${A}"),
    ];
    for (text, expected) in cases {
        assert_eq!(expand_text(text).as_deref(), Ok(expected), "{text}");
    }
}

#[test]
fn invalid_forms_are_rejected() {
    let cases = [
        ("${B}", "the environment variable B is not set or empty"),
        ("${EMPTY}", "the environment variable EMPTY is not set or empty"),
        ("${A", "${ is not closed by }"),
        ("${}", "${…} must contain NAME, NAME:-default or file:PATH"),
        ("${1A}", "${…} must contain NAME, NAME:-default or file:PATH"),
        ("${file:x}", "cannot read the file x: No such file or directory (os error 2)"),
    ];
    for (text, expected) in cases {
        assert_eq!(expand_text(text), Err(expected.to_owned()), "{text}");
    }
}

#[test]
fn formulas_are_evaluated_if_the_file_allows_them() {
    let environment = |name: &str| (name == "A").then(|| "1".to_owned());
    let overrides = [("n".to_owned(), 2.0)];
    let context = ReadContext::new(Path::new("/nowhere"), &environment).with_formulas(&overrides);
    assert_eq!(context.set_variable("n", 7.0), 2.0, "the override applies");
    let cases = [
        ("${n * 30}s and ${n}", Ok("60s and 2")),
        ("${env:A}${env:B:-x}", Ok("1x")),
        ("$${n}", Ok("${n}")),
        ("${A}", Err("A: there is no such variable")),
        ("${env:B}", Err("the environment variable B is not set or empty")),
        ("${env:1}", Err("${…} must contain env:NAME, env:NAME:-default or file:PATH")),
        ("${n", Err("${ is not closed by }")),
    ];
    for (text, expected) in cases {
        let result = expand(text, &context);
        assert_eq!(result.as_deref().map_err(String::as_str), expected, "{text}");
    }
}

#[test]
fn files_lose_their_last_line_end_and_have_a_limit() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("key"), "secret\n").unwrap();
    let too_long = vec![b'x'; SECRET_FILE_BYTES_MAX as usize + 1];
    std::fs::write(folder.path().join("long"), too_long).unwrap();
    let context = ReadContext::new(folder.path(), &|_| None);
    assert_eq!(expand("a ${file:key} b", &context).as_deref(), Ok("a secret b"));
    let error = expand("${file:long}", &context).unwrap_err();
    assert_eq!(error, "cannot read the file long: 65537 bytes, at most 65536 are allowed");
}
