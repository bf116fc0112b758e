//! Goal: equal responses with different texts are equal, and a planted difference is found at its
//! pointer. Method: pairs of responses.

use super::{AllowedDifferences, ClassifiedDifference, difference};

fn compare_results(
    left: &str,
    right: &str,
    allowed: &AllowedDifferences,
) -> Option<ClassifiedDifference> {
    let response =
        |id: &str, result: &str| format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#);
    difference(response("1", left).as_bytes(), response("\"other\"", right).as_bytes(), allowed)
}

fn are_equal(left: &str, right: &str) -> bool {
    compare_results(left, right, &AllowedDifferences::default()).is_none()
}

fn pointer(left: &str, right: &str) -> String {
    compare_results(left, right, &AllowedDifferences::default()).unwrap().pointer
}

#[test]
fn order_of_members_white_space_and_escapes_mean_nothing() {
    assert!(are_equal(r#"{"a":1,"b":[1,2]}"#, r#"{ "b" : [ 1, 2 ], "a" : 1 }"#));
    assert!(are_equal(r#""\u0061b""#, r#""ab""#));
    assert!(are_equal("null", " null "));
}

#[test]
fn numbers_are_compared_by_value_and_exactly() {
    for (left, right) in
        [("1", "1.0"), ("100", "1e2"), ("-0", "0"), ("0.10", "1E-1"), ("12e-1", "1.2")]
    {
        assert!(are_equal(left, right), "{left} {right}");
    }
    // The numbers differ beyond the precision of a double.
    assert!(!are_equal("1000000000000000000000000000001", "1000000000000000000000000000002"));
    assert!(!are_equal("9007199254740993", "9007199254740992"));
    assert!(!are_equal("1", "-1") && !are_equal("1", "10") && !are_equal("1e400", "1e401"));
}

#[test]
fn the_first_difference_has_its_pointer() {
    assert_eq!(pointer(r#"{"a":{"b":[1,2]}}"#, r#"{"a":{"b":[1,3]}}"#), "/a/b/1");
    assert_eq!(pointer("[1]", "[1,2]"), "");
    assert_eq!(pointer(r#"{"a":1}"#, r#"{"a":1,"b/c":2}"#), "/b~1c");
    assert_eq!(pointer(r#""1""#, "1"), "", "a text is no number");
    let null_against_object =
        compare_results("null", r#"{"x":1}"#, &AllowedDifferences::default()).unwrap();
    assert_eq!(
        (
            null_against_object.left.to_string().as_str(),
            null_against_object.right.to_string().as_str()
        ),
        ("null", r#"{"x":1}"#)
    );
}

#[test]
fn pointers_are_ignored_with_wildcards() {
    let ignore = |pointer: &str| AllowedDifferences {
        ignore: vec![pointer.to_owned()],
        ..AllowedDifferences::default()
    };
    let (left, right) = (r#"[{"a":1,"t":5},{"a":2,"t":6}]"#, r#"[{"a":1},{"a":2,"t":7}]"#);
    assert_eq!(compare_results(left, right, &ignore("/*/t")), None);
    assert_eq!(compare_results(left, right, &ignore("/0/t")).unwrap().pointer, "/1/t");
    assert!(compare_results(left, right, &ignore("/t")).is_some());
    assert_eq!(compare_results(left, right, &ignore("")), None, "the whole");
}

#[test]
fn a_tolerance_applies_only_to_numbers_and_quantities() {
    let near = AllowedDifferences { tolerance: 0.01, ..AllowedDifferences::default() };
    assert_eq!(compare_results("1000", "1009", &near), None);
    assert!(compare_results("1000", "1020", &near).is_some());
    assert_eq!(compare_results(r#""0x3e8""#, r#""0x3f1""#, &near), None);
    assert!(compare_results(r#""0x3e8""#, r#""0x3fc""#, &near).is_some());
    assert!(compare_results(r#""1000""#, r#""1001""#, &near).is_some(), "text that is no quantity");
    let hash = |last: char| format!(r#""0x{}{last}""#, "ab".repeat(31));
    assert!(compare_results(&hash('1'), &hash('2'), &near).is_some(), "a hash is no quantity");
}

#[test]
fn sets_have_no_order_but_the_same_elements() {
    let sets = AllowedDifferences { sets: vec!["/x".to_owned()], ..AllowedDifferences::default() };
    assert_eq!(
        compare_results(r#"{"x":[1,{"a":1,"b":2},3]}"#, r#"{"x":[3,1,{"b":2,"a":1}]}"#, &sets),
        None
    );
    assert!(
        compare_results(r#"{"x":[1,1,2]}"#, r#"{"x":[1,2,2]}"#, &sets).is_some(),
        "elements count"
    );
    assert!(compare_results(r#"{"y":[1,2]}"#, r#"{"y":[2,1]}"#, &sets).is_some());
    let long = |first: u64| {
        let list: Vec<String> =
            (0..2_000).map(|n| format!(r#"{{"n":{}}}"#, n * 7 % 2_000 + first)).collect();
        format!(r#"{{"x":[{}]}}"#, list.join(","))
    };
    let sorted: Vec<String> = (0..2_000).map(|n| format!(r#"{{ "n": {n}.0 }}"#)).collect();
    assert_eq!(
        compare_results(&long(0), &format!(r#"{{"x":[{}]}}"#, sorted.join(",")), &sets),
        None
    );
    assert!(compare_results(&long(0), &long(1), &sets).is_some());
}

#[test]
fn only_the_codes_of_errors_are_compared_and_an_error_differs_from_a_result() {
    let error = |code: i64, message: &str| {
        format!(r#"{{"jsonrpc":"2.0","id":1,"error":{{"code":{code},"message":"{message}"}}}}"#)
    };
    let result = br#"{"jsonrpc":"2.0","id":1,"result":null}"#.to_vec();
    let compare =
        |left: &[u8], right: &[u8]| difference(left, right, &AllowedDifferences::default());
    assert_eq!(compare(error(-32_000, "a").as_bytes(), error(-32_000, "b").as_bytes()), None);
    assert!(compare(error(-32_000, "a").as_bytes(), error(-32_601, "a").as_bytes()).is_some());
    assert!(compare(error(-32_000, "a").as_bytes(), &result).is_some());
    assert!(compare(b"<html>", &result).is_some());
}

#[test]
fn depth_and_length_are_bounded() {
    let deep = |leaf: &str| format!("{}{leaf}{}", "[".repeat(120), "]".repeat(120));
    assert!(are_equal(&deep("1"), &deep("1")));
    assert!(!are_equal(&deep("1"), &deep("2")));
    let long = "ä".repeat(5_000);
    let found =
        compare_results(&format!("\"{long}\""), "1", &AllowedDifferences::default()).unwrap();
    let shown = found.left.to_string();
    assert!(shown.len() < 200 && shown.ends_with("(10002 bytes)"), "{shown}");
}
