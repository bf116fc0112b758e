//! Lists of Harmony's blocks that are too short or too long are told.

use super::*;

#[test]
fn a_list_must_have_each_block() {
    assert_eq!(harmony_blocks(b"[1, {}]", (5, 6)).unwrap(), [&b"1"[..], b"{}"]);
    let told = |list: &[u8]| harmony_blocks(list, (5, 6)).unwrap_err();
    assert!(matches!(told(b"[1]"), FetchError::Missing { number: 6, .. }));
    assert!(matches!(told(b"[]"), FetchError::Missing { number: 5, .. }));
    assert!(matches!(told(b"null"), FetchError::Missing { number: 5, .. }));
    assert!(matches!(told(b"[1,2,3]"), FetchError::Contradicts { number: 5, .. }));
}

#[test]
fn one_call_asks_for_all_of_harmonys_blocks() {
    let plan = |what: &str| Plan {
        genesis: [0; 32],
        what: what.parse().unwrap(),
        verify: Level::Off,
        whole_receipts: AtomicBool::new(true),
    };
    let methods = |what: &str| {
        let calls = calls(&plan(what), 5, 6);
        calls.iter().map(|call| call.method).collect::<Vec<_>>().join(" ")
    };
    let two = "eth_getBlockByNumber eth_getBlockByNumber";
    assert_eq!(methods("hmyv2"), format!("{two} hmyv2_getBlocks"));
    assert_eq!(methods("logs,hmyv2"), format!("{two} eth_getLogs hmyv2_getBlocks"));
    let receipts = "eth_getBlockReceipts eth_getBlockReceipts";
    assert_eq!(methods("receipts,hmyv2"), format!("{two} {receipts} hmyv2_getBlocks"));
    let call = harmony_call((5, 6), harmony::WHOLE_OPTIONS);
    assert_eq!(call.params, r#"[5,6,{"withSigners":false,"fullTx":true,"inclStaking":true}]"#);
}
