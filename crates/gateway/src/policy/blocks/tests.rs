//! Goal: consecutive parts are joined, and other parts are not. Method: small blocks.

use super::*;

fn block(block_hash: u8, parent: u8) -> String {
    let hash = |byte: u8| format!("0x{}", format!("{byte:02x}").repeat(32));
    format!(r#"{{"hash":"{}","n":[],"parentHash":"{}"}}"#, hash(block_hash), hash(parent))
}

#[test]
fn the_rest_is_requested_with_the_same_options() {
    let changed = |params: &str| {
        remaining_params(params.as_bytes(), 42).map(String::from_utf8).map(Result::unwrap)
    };
    assert_eq!(changed(r#"[7, 50,{"fullTx":true}]"#).unwrap(), r#"[42, 50,{"fullTx":true}]"#);
    assert_eq!(changed(r#"["0x7","50"]"#).unwrap(), r#"[42,"50"]"#);
    assert_eq!(changed("[]"), None);
}

#[test]
fn parts_are_joined_if_their_blocks_are_linked() {
    let joined = |first: &str, second: &str| {
        join_blocks(first.as_bytes(), second.as_bytes()).map(String::from_utf8).map(Result::unwrap)
    };
    let first = format!("[{},{}]", block(1, 0), block(2, 1));
    let second = format!("[{},{}]", block(3, 2), block(4, 3));
    let all_blocks = [block(1, 0), block(2, 1), block(3, 2), block(4, 3)].join(",");
    assert_eq!(joined(&first, &second), Some(format!("[{all_blocks}]")));
    assert_eq!(
        joined(&first, &format!(" {second}\n")).map(|text| text.trim().to_owned()),
        Some(format!("[{all_blocks}]"))
    );
    for other in
        [format!("[{}]", block(3, 9)), "[]".to_owned(), "null".to_owned(), "[1]".to_owned()]
    {
        assert_eq!(joined(&first, &other), None, "{other}");
    }
    assert_eq!(joined("[]", &second), None);
}
