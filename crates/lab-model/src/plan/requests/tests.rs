//! Goal: files of requests give the expected bodies, or problems that name the line. Method: small
//! files.

use super::*;

/// Reads a file. Returns the method, the number of calls, the body and the id of each request.
fn check(text: &str) -> Result<Vec<(String, usize, String, String)>, String> {
    let mut methods = Methods::default();
    let read = read("f", text.as_bytes(), &mut methods).map_err(|problems| problems.to_string())?;
    let describe = |body: RecordedRequest| {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        (methods.names[body.method].to_string(), body.calls, text(&body.body), text(&body.id))
    };
    Ok(read.into_iter().map(describe).collect())
}

fn recorded(method: &str, calls: usize, body: &str, id: &str) -> (String, usize, String, String) {
    (method.to_owned(), calls, body.to_owned(), id.to_owned())
}

#[test]
fn lines_are_unchanged_bodies() {
    let single = r#"{"jsonrpc":"2.0","id":"x","method":"eth_call","params":[ ]}"#;
    let batch = r#"[{"id":1,"method":"a"},{"id":2,"method":"b"}]"#;
    let expected = vec![recorded("eth_call", 1, single, "\"x\""), recorded("a", 2, batch, "")];
    assert_eq!(check(&format!("{single}\r\n\n  {batch}")), Ok(expected));
}

#[test]
fn vegeta_targets_hold_their_body_in_base64() {
    let body = r#"{"id":1,"method":"net_version"}"#;
    let encoded = base64::engine::general_purpose::STANDARD.encode(body);
    let target = format!(
        r#"{{"method":"POST","url":"http://h","body":"{encoded}","header":{{"a":["b"]}}}}"#
    );
    assert_eq!(check(&target), Ok(vec![recorded("net_version", 1, body, "1")]));
}

#[test]
fn problems_name_the_line_without_its_text() {
    let text = "{\"id\":1,\"method\":\"a\"}\n{\"url\":\"http://sekrit\",\"body\":\"%\"}\n";
    let printed = check(text).unwrap_err();
    assert!(printed.starts_with("f:2:1: the target's body is not base64"), "{printed}");
    assert!(!printed.contains("sekrit"), "{printed}");
}

#[test]
fn problems_of_invalid_files_are_bounded() {
    assert!(check("").unwrap_err().contains("holds no request"));
    assert!(check("\n\n").unwrap_err().contains("holds no request"));
    let printed = check(&"x\n".repeat(1000)).unwrap_err();
    // The first 20 problems are printed.
    assert!(printed.ends_with("and 980 more\n"), "{printed}");
}

#[test]
fn a_notification_and_an_invalid_method_are_rejected() {
    for text in
        [r#"{"method":"a"}"#, r#"[{"method":"a"}]"#, r#"{"id":1,"method":"a b"}"#, "[]", "3"]
    {
        assert!(check(text).is_err(), "{text}");
    }
}
