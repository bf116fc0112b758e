//! What is cut comes back, whatever it is.

use proptest::prelude::*;

use super::*;

fn block() -> OfBlock {
    OfBlock::new(&[0xab; 32], 0x1234, 0x65)
}

fn of() -> OfTransaction {
    OfTransaction::new(&[0xcd; 32], 7)
}

fn there_and_back(raw: &[u8]) -> usize {
    let (block, of) = (block(), of());
    let mut short = Vec::new();
    shorten(&mut short, raw, &block, Some(&of));
    let mut back = Vec::new();
    restore(&mut back, &short, &block, Some(&of));
    assert_eq!(String::from_utf8_lossy(&back), String::from_utf8_lossy(raw));
    short.len()
}

#[test]
fn what_block_and_transaction_give_is_left_out() {
    let (block, tx) = ("ab".repeat(32), "cd".repeat(32));
    let raw = format!(
        r#"{{"blockHash":"0x{block}","blockNumber":"0x1234","t":"0x65","hash":"0x{tx}","i":"0x7","s":"a\"0x7","d":"0x"}}"#
    );
    let short = there_and_back(raw.as_bytes());
    assert_eq!(raw.len() - short, 2 * 65 + 5 + 3 + 2);
}

#[test]
fn strings_with_escapes_keep_their_bytes() {
    for raw in [r#""\\""#, r#"["\"","0x7","\\","0x7"]"#, r#"{"\u0022":"0x7"}"#, "\"", "\"\\"] {
        there_and_back(raw.as_bytes());
    }
}

#[test]
fn a_block_gets_its_transactions_back() {
    let raw = br#"{"a":"0x1234","transactions":["x"],"z":1}"#;
    let at = raw.len() - 12;
    let cut = cut_transactions(raw, at..at + 5);
    let mut short = Vec::new();
    shorten(&mut short, &cut, &block(), None);
    let mut back = Vec::new();
    restore_block(&mut back, &short, &block(), |out| out.extend_from_slice(b"[\"x\"]"));
    assert_eq!(back, raw);
}

#[test]
fn whitespace_goes_but_for_that_in_strings() {
    assert_eq!(compacted(b"{\"a b\":[1,2]}"), None);
    let spaced = b" { \"a b\" : [1 ,\n2\t, \"\\\" \"] }\r\n";
    assert_eq!(compacted(spaced).unwrap(), b"{\"a b\":[1,2,\"\\\" \"]}");
}

proptest! {
    #[test]
    fn any_text_comes_back(parts in prop::collection::vec(prop::sample::select(vec![
        "\"", "\\", "0x7", "0x1234", "0x65", "a", "{", ":", "0xabababababababababababababababababababababababababababababababab",
    ]), 0..40)) {
        there_and_back(parts.concat().as_bytes());
    }
}
