//! Goal: each class of difference is found with its pointer, and equal values have none.
//! Method: pairs of responses with one planted difference.

use DifferenceClass::*;

use super::*;

fn compare(left: &str, right: &str) -> Vec<(DifferenceClass, String)> {
    let found = differences(&Ok(left.into()), &Ok(right.into()), b"1");
    found.into_iter().map(|difference| (difference.class, difference.pointer)).collect()
}

fn result(text: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":1,"result":{text}}}"#)
}

fn check(left: &str, right: &str, expected: &[(DifferenceClass, &str)]) {
    let found = compare(&result(left), &result(right));
    let found: Vec<_> = found.iter().map(|(class, pointer)| (*class, pointer.as_str())).collect();
    assert_eq!(found, expected, "{left} {right}");
}

fn error(code: i64, message: &str, data: &str) -> String {
    let error = format!(r#"{{"code":{code},"message":"{message}"{data}}}"#);
    format!(r#"{{"jsonrpc":"2.0","id":1,"error":{error}}}"#)
}

#[test]
fn order_of_members_white_space_and_escapes_are_no_differences() {
    check(r#"{"a":1,"b":[1,2]}"#, r#"{ "b" : [ 1, 2 ], "a" : 1 }"#, &[]);
    check(r#""\u0061b""#, r#""ab""#, &[]);
    assert!(compare(&result("1"), r#"{"result":1,"id":1,"jsonrpc":"2.0"}"#).is_empty());
}

#[test]
fn each_class_of_results_is_found_at_its_pointer() {
    check(r#"{"a":"0xAb"}"#, r#"{"a":"0xab"}"#, &[(Spelling, "/result/a")]);
    check(r#"{"a":[1,2,3]}"#, r#"{"a":[3,2,1]}"#, &[(Order, "/result/a")]);
    check(r#"{"a":1,"b/c":2}"#, r#"{"a":1}"#, &[(MissingMember, "/result/b~1c")]);
    check(r#"{"a":null}"#, r#"{"a":[]}"#, &[(Null, "/result/a")]);
    check(r#"{"a":"1"}"#, r#"{"a":1}"#, &[(Type, "/result/a")]);
    check("[1,2]", "[1]", &[(Length, "/result")]);
    check(r#"["x",true]"#, r#"["y",false]"#, &[(Value, "/result/0"), (Value, "/result/1")]);
}

#[test]
fn leading_zeros_are_ignored_only_in_quantities_and_words() {
    let spelling = |left: &str, right: &str| hex_spelling(left, right);
    let word = |last: &str| format!("0x{last:0>64}");
    assert_eq!(spelling("0x0", "0x00"), Some(super::Spelling::Padding));
    assert_eq!(spelling("0x7", "0x07"), Some(super::Spelling::Padding));
    assert_eq!(spelling("0x12", &word("12")), Some(super::Spelling::Word));
    assert_eq!(spelling("0xAB", "0xab"), Some(super::Spelling::LetterCase));
    for (left, right) in [
        ("0x00", "0x0000"),
        ("0x", "0x0"),
        ("0x", "0x00"),
        ("0x10", "0x0010"),
        ("0x12", "0x13"),
        ("Ab", "ab"),
        ("0xzz", "0xZZ"),
    ] {
        assert_eq!(spelling(left, right), None, "{left} {right}");
    }
    assert_eq!(spelling("0x", &word("0")), None, "no bytes are no word");
    check("1", "1.0", &[(Spelling, "/result")]);
    check("9007199254740993", "9007199254740992", &[(Value, "/result")]);
}

#[test]
fn a_repeated_member_with_another_value_is_a_difference() {
    let twice = r#"{"a":1,"b":2,"a":3}"#;
    for other in [r#"{"a":3,"b":2}"#, r#"{"a":1,"b":2}"#, r#"{"a":3,"b":2,"a":1}"#] {
        check(twice, other, &[(Value, "/result/a")]);
    }
    check(twice, r#"{"b":2,"a":1,"a":3}"#, &[]);
    check(r#"{"a":1,"a":1.0}"#, r#"{"a":1}"#, &[]);
    check(
        &format!("[{twice},4]"),
        r#"[4,{"a":3,"b":2}]"#,
        &[(Type, "/result/0"), (Type, "/result/1")],
    );
    let repeated_result = r#"{"jsonrpc":"2.0","id":1,"result":1,"result":2}"#;
    assert_eq!(compare(repeated_result, &result("2")), [(NotJsonRpc, String::new())]);
    let found =
        differences(&Ok(result(twice).into()), &Ok(result("{\"a\":3,\"b\":2}").into()), b"1");
    assert_eq!(found[0].left.to_string(), "1 and again 3");
}

#[test]
fn errors_differ_by_code_message_and_data() {
    let old = error(-32_000, "a", "");
    assert!(compare(&old, &old).is_empty());
    let pointer = |class, pointer: &str| vec![(class, pointer.to_owned())];
    assert_eq!(compare(&old, &error(-32_601, "a", "")), pointer(ErrorCode, "/error/code"));
    assert_eq!(compare(&old, &error(-32_000, "b", "")), pointer(ErrorMessage, "/error/message"));
    let data = error(-32_000, "a", r#","data":"0x""#);
    assert_eq!(compare(&old, &data), pointer(ErrorData, "/error/data"));
    assert_eq!(compare(&old, &result("null")), pointer(ErrorAgainstResult, ""));
}

#[test]
fn a_body_that_is_no_response_and_a_missing_body_are_found() {
    assert_eq!(compare("<html>", &result("1")), [(NotJsonRpc, String::new())]);
    let other_id = r#"{"jsonrpc":"2.0","id":2,"result":1}"#;
    assert_eq!(compare(other_id, &result("1")), [(NotJsonRpc, String::new())]);
    let body = result("1");
    let (body, nothing): (Sent, Sent) = (Ok(body.into()), Err("timeout".to_owned()));
    assert_eq!(differences(&body, &nothing, b"1")[0].class, NoResponse);
    assert!(differences(&nothing, &nothing, b"1").is_empty());
}

#[test]
fn the_number_of_differences_is_bounded() {
    let list = |value: &str| format!("[{}]", vec![value; 5_000].join(","));
    assert_eq!(compare(&result(&list("1")), &result(&list("2"))).len(), DIFFERENCES_MAX);
}

#[test]
fn the_number_of_missing_members_is_bounded() {
    let members = (0..5_000).map(|index| format!("\"m{index}\":1")).collect::<Vec<_>>();
    let object = format!("{{{}}}", members.join(","));
    assert_eq!(compare(&result(&object), &result("{}")).len(), DIFFERENCES_MAX);
}
