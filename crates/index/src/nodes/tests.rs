//! What comes back is sorted by what was asked; addresses show no secrets.

use super::*;

fn read_text(text: &str, calls: usize) -> Result<Replies, AskError> {
    read(text.as_bytes().to_vec(), calls)
}

#[test]
fn answers_in_any_order_find_their_calls() {
    let text = r#"[{"jsonrpc":"2.0","id":1,"result":"b"},{"id":0,"result":{"a":1}},
        {"id":2,"error":{"code":-32000,"message":"no\nsuch"}}]"#;
    let replies = read_text(text, 3).unwrap();
    assert_eq!(replies.result(0), Ok(&br#"{"a":1}"#[..]));
    assert_eq!(replies.result(1), Ok(&br#""b""#[..]));
    let refusal = Refusal { code: -32000, message: "no such".to_owned() };
    assert_eq!(replies.result(2), Err(&refusal));
}

#[test]
fn what_answers_nothing_that_was_asked_is_told() {
    let odd = [
        ("", 1),
        ("<html>", 1),
        ("[]", 1),
        (r#"[{"id":0,"result":1}]"#, 2),
        (r#"[{"id":0,"result":1},{"id":0,"result":2}]"#, 2),
        (r#"{"id":7,"result":1}"#, 1),
        (r#"{"id":"0","result":1}"#, 1),
        (r#"[{"id":0,"result":1},5]"#, 2),
    ];
    for (text, calls) in odd {
        let error = read_text(text, calls).err();
        assert!(matches!(error, Some(AskError::Odd(_))), "{text}: {error:?}");
    }
    let refused = r#"{"id":null,"error":{"code":-32600,"message":"batch too large"}}"#;
    for calls in [1, 2] {
        assert!(matches!(read_text(refused, calls), Err(AskError::Refused(_))));
    }
}

#[test]
fn addresses_are_read_and_shown_without_secrets() {
    let shown = |text: &str| text.parse::<NodeUrl>().map(|url| url.to_string());
    assert_eq!(shown("http://127.0.0.1:8545"), Ok("http://127.0.0.1:8545".to_owned()));
    assert_eq!(
        shown("wss://user:pw@node.example/v3/key?q=1"),
        Ok("wss://node.example:443/***".to_owned())
    );
    assert_eq!(
        shown("https://abcdef0123456789abcd.quick.example"),
        Ok("https://***.quick.example:443".to_owned())
    );
    assert_eq!(shown("ipc:///var/geth.ipc"), Ok("ipc:/var/geth.ipc".to_owned()));
    assert_eq!(shown("http://[::1]:80/"), Ok("http://[::1]:80".to_owned()));
    for bad in ["", "node", "ftp://node", "http://", "ipc:geth.ipc"] {
        assert!(shown(bad).is_err(), "{bad}");
    }
}
