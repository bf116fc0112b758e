//! Goal: the calls of a fetch request each block of a range once, and lists of another length are
//! errors. Method: lists and plans written by hand.

use super::*;

#[test]
fn a_list_must_have_each_block() {
    assert_eq!(split_harmony_blocks(b"[1, {}]", (5, 6)).unwrap(), [&b"1"[..], b"{}"]);
    let error = |list: &[u8]| split_harmony_blocks(list, (5, 6)).unwrap_err();
    assert!(matches!(error(b"[1]"), FetchError::Missing { number: 6, .. }));
    assert!(matches!(error(b"[]"), FetchError::Missing { number: 5, .. }));
    assert!(matches!(error(b"null"), FetchError::Missing { number: 5, .. }));
    assert!(matches!(error(b"[1,2,3]"), FetchError::Contradiction { number: 5, .. }));
}

#[test]
fn one_call_fetches_all_harmony_blocks() {
    let plan = |contents: &str| FetchPlan {
        genesis_hash: [0; 32],
        contents: contents.parse().unwrap(),
        level: Level::Off,
        has_unverifiable_transactions: false,
        receipts_together: AtomicBool::new(true),
    };
    let methods = |contents: &str| {
        let calls = plan(contents).build_calls((5, 6));
        calls.iter().map(|call| call.method).collect::<Vec<_>>().join(" ")
    };
    let block_methods = "eth_getBlockByNumber eth_getBlockByNumber";
    assert_eq!(methods("hmyv2"), format!("{block_methods} hmyv2_getBlocks"));
    assert_eq!(methods("logs,hmyv2"), format!("{block_methods} eth_getLogs hmyv2_getBlocks"));
    let receipts = "eth_getBlockReceipts eth_getBlockReceipts";
    assert_eq!(methods("receipts,hmyv2"), format!("{block_methods} {receipts} hmyv2_getBlocks"));
    let call = calls::harmony_blocks((5, 6), harmony::STORED_OPTIONS);
    assert_eq!(call.params, r#"[5,6,{"withSigners":false,"fullTx":true,"inclStaking":true}]"#);
}
