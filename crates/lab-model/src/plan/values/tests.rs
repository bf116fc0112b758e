//! Goal: values are parsed, and invalid values are rejected. Method: texts of values.

use super::*;

#[test]
fn reuse_takes_words_and_numbers() {
    let read = |text| <Reused as Scalar>::parse(Input::String(text)).ok();
    assert_eq!(read("always"), Some(Reuse::Always));
    assert_eq!(read("0"), Some(Reuse::Always));
    assert_eq!(read("never"), Some(Reuse::Never));
    assert_eq!(read("1"), Some(Reuse::Never));
    assert_eq!(read("100"), Some(Reuse::Requests(100)));
    assert_eq!(read("sometimes"), None);
}

#[test]
fn headers_that_the_load_generator_sets_itself_are_rejected() {
    assert!(Header::parse("Authorization", "Bearer x").is_ok());
    assert!(Header::parse("Content-Length", "3").is_err());
    assert!(Header::parse("a b", "3").is_err());
    assert!(Header::parse("a", "x\r\ny: z").is_err());
}

#[test]
fn header_values_that_may_contain_a_secret_are_masked() {
    for (text, is_masked) in [
        ("Bearer ${env:TOKEN}", false),
        ("${env:TOKEN}", false),
        ("Bearer ${env:TOKEN:-x}", true),
        ("x${env:TOKEN}", true),
        ("Bearer x", true),
    ] {
        assert_eq!(Header::mask(text).is_some(), is_masked, "{text}");
    }
}
