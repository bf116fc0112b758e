//! Goal: decoding restores encoded JSON byte for byte. Method: JSON by hand, random JSON, and
//! random bytes.

use proptest::prelude::*;

use super::*;

fn block() -> BlockContext {
    BlockContext::new(&[0xab; 32], 0x1234, 0x65)
}

fn transaction() -> TransactionContext {
    TransactionContext::new(&[0xcd; 32], 7)
}

/// Encodes and decodes a value, and returns the length of its fragment.
fn round_trip(raw: &[u8]) -> usize {
    let (block, transaction) = (block(), transaction());
    let mut encoder = FragmentEncoder::new(raw, &block);
    encoder.set_transaction(Some(transaction.clone()));
    assert_eq!(encoder.cursor.value(), Ok(raw));
    let fragment = encoder.take();
    let mut decoded = Vec::new();
    decode(&mut decoded, &fragment, &block, Some(&transaction));
    assert_eq!(String::from_utf8_lossy(&decoded), String::from_utf8_lossy(raw));
    fragment.len()
}

#[test]
fn values_of_block_and_transaction_are_replaced() {
    let (block, transaction) = ("ab".repeat(32), "cd".repeat(32));
    let raw = format!(
        r#"{{"blockHash":"0x{block}","blockNumber":"0x1234","t":"0x65","hash":"0x{transaction}","i":"0x7","s":"a\"0x7","d":"0x"}}"#
    );
    let length = round_trip(raw.as_bytes());
    assert_eq!(raw.len() - length, 2 * 65 + 5 + 3 + 2);
}

#[test]
fn strings_with_escapes_keep_their_bytes() {
    for raw in [r#""\\""#, r#"["\"","0x7","\\","0x7"]"#, r#"{"\u0022":"0x7"}"#] {
        round_trip(raw.as_bytes());
    }
}

#[test]
fn transactions_are_written_in_place_of_their_placeholder() {
    let raw = br#"{"a":"0x1234","transactions":["x"],"z":1}"#;
    let block = block();
    let mut encoder = FragmentEncoder::new(raw, &block);
    assert!(encoder.cursor.open(b'{'));
    let mut fragment = Vec::new();
    while let Some(name) = encoder.cursor.next_name().unwrap() {
        fragment.extend_from_slice(&encoder.take());
        encoder.cursor.value().unwrap();
        if name.raw == b"transactions" {
            encoder.discard();
            fragment.push(TRANSACTIONS);
        }
    }
    fragment.extend_from_slice(&encoder.take());
    let mut decoded = Vec::new();
    decode_block(&mut decoded, &fragment, &block, |out| out.extend_from_slice(b"[\"x\"]"));
    assert_eq!(String::from_utf8_lossy(&decoded), String::from_utf8_lossy(raw));
}

#[test]
fn a_caller_can_step_into_values() {
    let raw = br#" { "hash" : [ "0x7" , { "a\u0062" : null } , 12 ] , "z" : [ ] } "#;
    let block = block();
    let mut encoder = FragmentEncoder::new(raw, &block);
    encoder.set_transaction(Some(transaction()));
    assert!(!encoder.cursor.open(b'[') && encoder.cursor.open(b'{'));
    assert_eq!(encoder.cursor.next_name().unwrap().unwrap().raw, b"hash");
    assert!(encoder.cursor.open(b'['));
    assert!(encoder.cursor.next_element().unwrap());
    assert_eq!(encoder.cursor.value().unwrap(), br#""0x7""#);
    assert!(encoder.cursor.next_element().unwrap());
    assert!(encoder.cursor.open(b'{'));
    let name = encoder.cursor.next_name().unwrap().unwrap();
    assert_eq!(&*name.decode(), b"ab");
    assert_eq!(encoder.cursor.value().unwrap(), b"null");
    assert_eq!(encoder.cursor.next_name(), Ok(None));
    assert!(encoder.cursor.next_element().unwrap());
    assert_eq!(encoder.cursor.value().unwrap(), b"12");
    assert!(!encoder.cursor.next_element().unwrap());
    assert_eq!(encoder.cursor.next_name().unwrap().unwrap().raw, b"z");
    assert!(encoder.cursor.open(b'[') && !encoder.cursor.next_element().unwrap());
    assert_eq!(encoder.cursor.next_name(), Ok(None));
    let fragment = encoder.take();
    let mut decoded = Vec::new();
    decode(&mut decoded, &fragment, &block, Some(&transaction()));
    assert_eq!(decoded, compact_json(raw).unwrap());
}

#[test]
fn compact_json_keeps_whitespace_in_strings() {
    assert_eq!(compact_json(b"{\"a b\":[1,2]}"), None);
    let spaced = b" { \"a b\" : [1 ,\n2\t, \"\\\" \"] }\r\n";
    assert_eq!(compact_json(spaced).unwrap(), b"{\"a b\":[1,2,\"\\\" \"]}");
}

/// Values that blocks hold, nested.
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
        let values = prop::collection::vec(inner, 0..5);
        values.prop_map(|values| match values.len() % 2 {
            0 => format!("[{}]", values.join(",")),
            _ => format!(
                "{{{}}}",
                values.iter().map(|value| format!("\"a\":{value}")).collect::<Vec<_>>().join(",")
            ),
        })
    })
}

proptest! {
    #[test]
    fn any_value_survives(value in value()) {
        round_trip(value.as_bytes());
    }

    #[test]
    fn an_encoder_ends_on_any_bytes(parts in prop::collection::vec(prop::sample::select(vec![
        "\"", "\\", "0x7", "{", "}", "[", "]", ":", ",", " ", "\u{1}", "a",
    ]), 0..40)) {
        let (raw, block) = (parts.concat(), block());
        let mut encoder = FragmentEncoder::new(raw.as_bytes(), &block);
        let mut steps = 0;
        while !encoder.cursor.rest().is_empty() && steps < 200 {
            let bytes_left = encoder.cursor.rest().len();
            let failed = encoder.cursor.open(b'{') && encoder.cursor.next_name().is_err();
            if failed || encoder.cursor.value().is_err() || encoder.cursor.next_element().is_err() {
                break;
            }
            prop_assert!(encoder.cursor.rest().len() < bytes_left);
            steps += 1;
        }
        prop_assert!(encoder.take().len() <= raw.len());
    }
}
