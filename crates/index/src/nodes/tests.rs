//! Goal: responses are assigned to their calls, and printed addresses hold no secrets. Method: messages
//! and addresses by hand.

use super::*;

fn read_text(text: &str, calls: usize) -> Result<Responses, CallError> {
    read(text.as_bytes().to_vec(), calls)
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
fn addresses_are_printed_without_secrets() {
    let printed = |text: &str| text.parse::<NodeUrl>().map(|url| url.to_string());
    assert_eq!(printed("http://127.0.0.1:8545"), Ok("http://127.0.0.1:8545".to_owned()));
    assert_eq!(
        printed("wss://user:pw@node.example/v3/key?q=1"),
        Ok("wss://node.example:443/***".to_owned())
    );
    assert_eq!(
        printed("https://abcdef0123456789abcd.quick.example"),
        Ok("https://***.quick.example:443".to_owned())
    );
    assert_eq!(printed("ipc:///var/geth.ipc"), Ok("ipc:/var/geth.ipc".to_owned()));
    assert_eq!(printed("http://[::1]:80/"), Ok("http://[::1]:80".to_owned()));
    for bad in ["", "node", "ftp://node", "http://", "ipc:geth.ipc"] {
        assert!(printed(bad).is_err(), "{bad}");
    }
}
