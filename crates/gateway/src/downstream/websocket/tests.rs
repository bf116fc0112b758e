//! Goal: only an upgrade request as in RFC 6455 opens a WebSocket.

use super::*;

#[test]
fn only_a_key_of_16_bytes_is_accepted() {
    let upgrade = |key: &str| Upgrade {
        version_known: true,
        key: Some(key.into()),
        extensions: String::new(),
    };
    let compresses = false;
    // RFC 6455, 1.3.
    let head = build_accept_response(&upgrade("dGhlIHNhbXBsZSBub25jZQ=="), compresses).unwrap();
    let head = String::from_utf8(head).unwrap();
    assert!(head.contains("Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"), "{head}");
    for key in ["", "dGhl", "dGhlIHNhbXBsZSBub25jZQ", "not base64 at all, is it"] {
        assert!(build_accept_response(&upgrade(key), compresses).is_none(), "{key}");
    }
    assert!(build_accept_response(&Upgrade::default(), compresses).is_none());
}
