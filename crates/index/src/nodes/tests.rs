//! Goal: responses are assigned to their calls, and printed URLs hold no secrets. Method: messages
//! and URLs written by hand.

use settings::url::NodeUrl;

use super::*;

fn read_text(text: &str, calls: usize) -> Result<Responses, CallError> {
    read_responses(text.as_bytes().to_vec(), calls)
}

#[test]
fn header_values_in_texts_of_nodes_are_masked() {
    let endpoint = Endpoint::from(NodeUrl::parse("http://127.0.0.1:1").unwrap());
    let headers = ["authorization: Bearer sekrit-1", "x-api-key:sekrit-2"].map(parse_header);
    let endpoint = headers.into_iter().fold(endpoint, |endpoint, header| {
        let (name, value) = header.unwrap();
        endpoint.with_header(name, value)
    });
    assert_eq!(endpoint.mask("no sekrit-1, not sekrit-2"), "no ***, not ***");
    assert!(!format!("{endpoint} {endpoint:?} {:?}", endpoint.headers).contains("sekrit"));
}

#[test]
fn responses_in_any_order_are_assigned() {
    let text = r#"[{"jsonrpc":"2.0","id":1,"result":"b"},{"id":0,"result":{"a":1}},
        {"id":2,"error":{"code":-32000,"message":"no\nsuch"}}]"#;
    let responses = read_text(text, 3).unwrap();
    assert_eq!(responses.result(0), Ok(&br#"{"a":1}"#[..]));
    assert_eq!(responses.result(1), Ok(&br#""b""#[..]));
    let error = RpcError { code: -32000, message: "no such".to_owned() };
    assert_eq!(responses.result(2), Err(&error));
}

#[test]
fn responses_to_no_call_are_errors() {
    let malformed = [
        ("", 1),
        ("<html>", 1),
        ("[]", 1),
        (r#"[{"id":0,"result":1}]"#, 2),
        (r#"[{"id":0,"result":1},{"id":0,"result":2}]"#, 2),
        (r#"{"id":7,"result":1}"#, 1),
        (r#"{"id":"0","result":1}"#, 1),
        (r#"[{"id":0,"result":1},5]"#, 2),
    ];
    for (text, calls) in malformed {
        let error = read_text(text, calls).err();
        assert!(matches!(error, Some(CallError::Malformed(_))), "{text}: {error:?}");
    }
    let rejected = r#"{"id":null,"error":{"code":-32600,"message":"batch too large"}}"#;
    for calls in [1, 2] {
        assert!(matches!(read_text(rejected, calls), Err(CallError::Rejected(_))));
    }
}

#[test]
fn the_user_part_of_a_url_is_a_header() {
    let endpoint = |text: &str| Endpoint::from(NodeUrl::parse(text).unwrap());
    let node = endpoint("wss://Aladdin:open%20sesame@node.example/v3/key?q=1");
    // The example of RFC 7617 section 2.
    let user = parse_header("authorization: Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==").unwrap();
    assert_eq!(node.headers, [user]);
    assert_eq!(node.with_scheme("wss"), "wss://node.example/v3/key?q=1");
    assert_eq!(node.to_string(), "wss://***@node.example/v3/***?***");
    assert_eq!(format!("{node:?}"), node.to_string());
    assert!(endpoint("http://[::1]:80/").headers.is_empty());
    assert_eq!(endpoint("http://[::1]:80/").with_scheme("http"), "http://[::1]:80/");
}
