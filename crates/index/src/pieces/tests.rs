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
    let mut pass = Pass::new(raw, &block);
    pass.of(Some(of.clone()));
    assert_eq!(pass.value(), Ok(raw));
    let short = pass.take();
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
    for raw in [r#""\\""#, r#"["\"","0x7","\\","0x7"]"#, r#"{"\u0022":"0x7"}"#] {
        there_and_back(raw.as_bytes());
    }
}

#[test]
fn a_block_gets_its_transactions_back() {
    let raw = br#"{"a":"0x1234","transactions":["x"],"z":1}"#;
    let block = block();
    let mut pass = Pass::new(raw, &block);
    assert!(pass.open_object());
    let mut short = Vec::new();
    while let Some(name) = pass.member().unwrap() {
        let before = pass.take();
        short.extend_from_slice(&before);
        if name.raw == b"transactions" {
            pass.value().unwrap();
            pass.forget();
            short.push(TRANSACTIONS);
        } else {
            pass.value().unwrap();
        }
    }
    short.extend_from_slice(&pass.take());
    let mut back = Vec::new();
    restore_block(&mut back, &short, &block, |out| out.extend_from_slice(b"[\"x\"]"));
    assert_eq!(String::from_utf8_lossy(&back), String::from_utf8_lossy(raw));
}

#[test]
fn a_pass_reads_as_it_copies() {
    let raw = br#" { "hash" : [ "0x7" , { "a\u0062" : null } , 12 ] , "z" : [ ] } "#;
    let block = block();
    let mut pass = Pass::new(raw, &block);
    pass.of(Some(of()));
    assert!(!pass.open_array() && pass.open_object());
    assert_eq!(pass.member().unwrap().unwrap().raw, b"hash");
    assert!(pass.open_array());
    assert!(pass.element().unwrap());
    assert_eq!(pass.value().unwrap(), br#""0x7""#);
    assert!(pass.element().unwrap());
    assert!(pass.open_object());
    let name = pass.member().unwrap().unwrap();
    assert_eq!((&*name.decode(), pass.rest().first()), (b"ab".as_slice(), Some(&b'n')));
    assert_eq!(pass.value().unwrap(), b"null");
    assert_eq!(pass.member(), Ok(None));
    assert!(pass.element().unwrap());
    assert_eq!(pass.value().unwrap(), b"12");
    assert!(!pass.element().unwrap());
    assert_eq!(pass.member().unwrap().unwrap().raw, b"z");
    assert!(pass.open_array() && !pass.element().unwrap());
    assert_eq!(pass.member(), Ok(None));
    let short = pass.take();
    let mut back = Vec::new();
    restore(&mut back, &short, &block, Some(&of()));
    assert_eq!(back, compacted(raw).unwrap());
}

#[test]
fn whitespace_goes_but_for_that_in_strings() {
    assert_eq!(compacted(b"{\"a b\":[1,2]}"), None);
    let spaced = b" { \"a b\" : [1 ,\n2\t, \"\\\" \"] }\r\n";
    assert_eq!(compacted(spaced).unwrap(), b"{\"a b\":[1,2,\"\\\" \"]}");
}

/// Arrays of what blocks are made of.
fn value() -> impl Strategy<Value = String> {
    let hash = format!("\"0x{}\"", "ab".repeat(32));
    let text = prop::sample::select(vec![
        "\"0x7\"".to_owned(),
        "\"0x1234\"".to_owned(),
        "\"0x65\"".to_owned(),
        "\"\\\"0x7\"".to_owned(),
        "\"\"".to_owned(),
        "1e9".to_owned(),
        "null".to_owned(),
        hash,
    ]);
    text.prop_recursive(4, 40, 5, |inner| {
        let some = prop::collection::vec(inner, 0..5);
        some.prop_map(|some| match some.len() % 2 {
            0 => format!("[{}]", some.join(",")),
            _ => format!(
                "{{{}}}",
                some.iter().map(|value| format!("\"a\":{value}")).collect::<Vec<_>>().join(",")
            ),
        })
    })
}

proptest! {
    #[test]
    fn any_value_comes_back(value in value()) {
        there_and_back(value.as_bytes());
    }

    #[test]
    fn nonsense_ends(parts in prop::collection::vec(prop::sample::select(vec![
        "\"", "\\", "0x7", "{", "}", "[", "]", ":", ",", " ", "\u{1}", "a",
    ]), 0..40)) {
        let (raw, block) = (parts.concat(), block());
        let mut pass = Pass::new(raw.as_bytes(), &block);
        let mut steps = 0;
        while !pass.rest().is_empty() && steps < 200 {
            let left = pass.rest().len();
            let ended = pass.open_object() && pass.member().is_err();
            if ended || pass.value().is_err() || pass.element().is_err() {
                break;
            }
            prop_assert!(pass.rest().len() < left);
            steps += 1;
        }
        prop_assert!(pass.take().len() <= raw.len());
    }
}
