//! Goal: an index responds about Harmony's blocks as a node would, or not at all. Method: a block
//! is converted to each form and compared with the text that a Harmony node writes. Then an index
//! of consecutive blocks is queried with every method, in each backend.

use super::*;
use crate::fixture::{self, FIRST, LAST};
use crate::reader::Reader;
use crate::search::SearchLimits;
use crate::serve::{Lookup, QueryContext};
use crate::store::test_backends::{self, TestBackend};

fn options(raw: &str) -> Option<(bool, bool)> {
    BlockOptions::read(raw.as_bytes()).map(|options| (options.full, options.staking))
}

#[test]
fn unknown_options_are_rejected() {
    assert_eq!(options(STORED_OPTIONS), Some((true, true)));
    assert_eq!(options("{}"), Some((false, false)));
    assert_eq!(options(r#"{ "inclStaking" : true }"#), Some((false, true)));
    assert_eq!(options(r#"{"fullT\u0078":true,"withSigners":false}"#), Some((true, false)));
    for options in [BlockOptions::STORED, BlockOptions { full: false, staking: true }] {
        assert_eq!(BlockOptions::read(options.to_json().as_bytes()), Some(options));
    }
    for other in [
        "null",
        "true",
        "[]",
        r#""fullTx""#,
        r#"{"withSigners":true}"#,
        r#"{"withSigners":true,"withSigners":false}"#,
        r#"{"fullTx":true,"fullTx":true}"#,
        r#"{"fullTx":null}"#,
        r#"{"fullTx":"true"}"#,
        r#"{"fullTx":1}"#,
        r#"{"fulltx":true}"#,
        r#"{"fullTx":true,"more":false}"#,
    ] {
        assert_eq!(options(other), None, "{other}");
    }
}

/// Returns a block with these lists, and members in the order of Harmony's nodes.
fn block(transactions: &str, staking: &str) -> String {
    format!(
        r#"{{"number":7,"hash":"0x{}","uncles":[],"transactions":{transactions},"stakingTransactions":{staking}}}"#,
        "ab".repeat(32)
    )
}

fn convert(raw: &str, full: bool, staking: bool) -> Option<String> {
    let mut out = b"before".to_vec();
    let is_converted = write_block(&mut out, raw.as_bytes(), BlockOptions { full, staking });
    let text = String::from_utf8(out).unwrap();
    let text = text.strip_prefix("before").unwrap().to_owned();
    assert!(is_converted || text.is_empty(), "{text}");
    is_converted.then_some(text)
}

#[test]
fn a_stored_block_is_converted_to_the_other_forms() {
    let transactions = r#"[{"hash":"0x1","ethHash":"0x2"},{"ethHash":"0x4","hash":"0x3"}]"#;
    let staking = r#"[{"hash":"0x5","msg":{"hash":"0x6"}}]"#;
    let raw = block(transactions, staking);
    assert_eq!(convert(&raw, true, true).unwrap(), raw);
    assert_eq!(convert(&raw, true, false).unwrap(), block(transactions, "[]"));
    let hashes = r#"["0x1","0x3"],"transactionsInEthHash":["0x2","0x4"]"#;
    assert_eq!(convert(&raw, false, true).unwrap(), block(hashes, r#"["0x5"]"#));
    assert_eq!(convert(&raw, false, false).unwrap(), block(hashes, "[]"));
    // The first block has no transactions. The second block already has the Ethereum hashes.
    let block_without_transactions = block(r#"[],"transactionsInEthHash":[]"#, "[]");
    assert_eq!(convert(&block("[]", "[]"), false, true).unwrap(), block_without_transactions);
    let block_with_both_hashes = format!(r#"{transactions},"transactionsInEthHash":["0x2","0x4"]"#);
    assert_eq!(
        convert(&block(&block_with_both_hashes, staking), false, false).unwrap(),
        block(hashes, "[]")
    );
    assert_eq!(count_transactions(raw.as_bytes()), Some((2, 1)));
}

/// Some recorded blocks have sorted members, so staking transactions come first.
#[test]
fn the_order_of_the_lists_does_not_matter() {
    let raw = r#"{"stakingTransactions":[{"hash":"0x5"}],"transactions":[{"hash":"0x1","ethHash":"0x2"}],"z":1}"#;
    let hashes = r#"{"stakingTransactions":["0x5"],"transactions":["0x1"],"transactionsInEthHash":["0x2"],"z":1}"#;
    assert_eq!(convert(raw, false, true).unwrap(), hashes);
}

#[test]
fn a_block_without_a_needed_member_is_not_converted() {
    for transactions in [r#"["0x1"]"#, r#"[{"ethHash":"0x2"}]"#, r#"[{"hash":"0x1"}]"#] {
        assert_eq!(convert(&block(transactions, "[]"), false, false), None, "{transactions}");
    }
    assert_eq!(convert(&block("[]", "[{}]"), false, true), None);
    assert_eq!(convert(r#"{"transactions":[]}"#, true, false), None);
}

#[test]
fn another_block_is_rejected() {
    let header = BlockHeader { number: 7, hash: [0xab; 32], parent_hash: [0; 32], timestamp: 9 };
    let context = BlockContext::new(&header.hash, header.number, header.timestamp);
    let raw = block("[]", "[]");
    let fragment = encode(raw.replace(':', " : ").as_bytes(), &header, &context).unwrap();
    let mut decoded = Vec::new();
    crate::fragments::decode(&mut decoded, &fragment, &context, None);
    assert_eq!(String::from_utf8(decoded).unwrap(), raw);
    assert!(fragment.len() + 60 < raw.len(), "the hash is replaced");
    let rejection = |raw: &str| encode(raw.as_bytes(), &header, &context).unwrap_err();
    assert!(rejection(&raw.replace(":7,", ":8,")).contains("hmyv2 block.number"));
    assert!(rejection(&raw.replace("abab", "abac")).contains("hmyv2 block.hash"));
    assert!(rejection("{}").contains("hmyv2 block.number"));
    assert!(rejection("null").contains("hmyv2 block.number"));
}

struct TestIndex {
    reader: Reader,
    /// The number, the `hmyv2_` JSON and the hash of each block.
    blocks: Vec<(u64, String, String)>,
}

impl TestIndex {
    fn new(backend: &TestBackend, contents: &str) -> TestIndex {
        let location = backend.location(contents);
        fixture::write(&location, contents, 2);
        let reader = fixture::reader(&location);
        let sample = crate::verify::tests::test_block::TestBlock::chain(FIRST, LAST - FIRST + 1);
        let blocks = sample.iter().map(|sample| {
            let text = String::from_utf8(fixture::harmony(&sample.block)).unwrap();
            (text, sample.block["hash"].as_str().unwrap().to_owned())
        });
        let blocks =
            (FIRST..).zip(blocks).map(|(number, (text, hash))| (number, text, hash)).collect();
        TestIndex { reader, blocks }
    }

    fn call_within(
        &mut self,
        method: &str,
        params: &str,
        finalized: u64,
        bytes: u64,
    ) -> Option<String> {
        let context = QueryContext {
            finalized: Some(finalized),
            is_canonical: &|_, _| false,
            limits: SearchLimits { logs: 0, bytes, deadline: None },
        };
        match self.reader.lookup(method, params.as_bytes(), &context).unwrap() {
            Lookup::Full(raw) => Some(String::from_utf8(raw).unwrap()),
            Lookup::Miss => None,
            Lookup::Partial { from, to, elements } => {
                Some(format!("{from} to {to}: {}", String::from_utf8(elements).unwrap()))
            }
        }
    }

    fn call(&mut self, method: &str, params: &str) -> Option<String> {
        self.call_within(method, params, LAST, u64::MAX)
    }
}

#[test]
fn every_method_returns_blocks() {
    test_backends::each(|backend| {
        let mut index = TestIndex::new(backend, "blocks,receipts,logs,hmyv2");
        let texts: Vec<String> = index.blocks.iter().map(|(_, text, _)| text.clone()).collect();
        assert!(texts[0].contains("Delegate") && !texts[1].contains("Delegate"));
        let range = |from, to| format!("[{from},{to},{STORED_OPTIONS}]");
        let expected = format!("[{}]", texts.join(","));
        assert_eq!(index.call("hmyv2_getBlocks", &range(FIRST, LAST)), Some(expected));
        let mixed = format!(r#"["{FIRST}","{:#x}",{STORED_OPTIONS}]"#, FIRST + 1);
        let first_two = format!("[{},{}]", texts[0], texts[1]);
        assert_eq!(index.call("hmyv2_getBlocks", &mixed), Some(first_two));
        for (number, text, hash) in index.blocks.clone() {
            for (full, staking) in [(true, true), (true, false), (false, true), (false, false)] {
                let options = BlockOptions { full, staking }.to_json();
                let expected = convert(&text, full, staking);
                assert!(expected.is_some());
                let by_number =
                    index.call("hmyv2_getBlockByNumber", &format!("[{number},{options}]"));
                assert_eq!(by_number, expected);
                let by_hash =
                    index.call("hmyv2_getBlockByHash", &format!(r#"["{hash}",{options}]"#));
                assert_eq!(by_hash, expected);
                let range_response =
                    index.call("hmyv2_getBlocks", &format!("[{number},{number},{options}]"));
                assert_eq!(range_response, expected.map(|text| format!("[{text}]")));
            }
            for (method, block) in [("Number", number.to_string()), ("Hash", format!("\"{hash}\""))]
            {
                let method = format!("hmyv2_getBlockTransactionCountBy{method}");
                assert_eq!(index.call(&method, &format!("[{block}]")), Some("9".to_owned()));
            }
        }
    });
}

#[test]
fn blocks_that_are_missing_or_not_final_are_left_to_nodes() {
    test_backends::each(|backend| {
        let mut index = TestIndex::new(backend, "blocks,hmyv2");
        let range = |from: u64, to: u64| format!("[{from},{to},{STORED_OPTIONS}]");
        let blocks = "hmyv2_getBlocks";
        assert!(index.call(blocks, &range(LAST, LAST)).is_some());
        for (from, to) in [
            (LAST + 1, LAST + 2),
            (FIRST - 1, FIRST),
            (LAST, FIRST),
            (0, 4),
            (0, LAST),
            (FIRST, FIRST + 1025),
        ] {
            assert_eq!(index.call(blocks, &range(from, to)), None, "{from} to {to}");
        }
        // Only the first part of the range is stored.
        let last_three: Vec<String> =
            index.blocks[3..].iter().map(|(_, text, _)| text.clone()).collect();
        let partial_response =
            |to, blocks: &[String]| Some(format!("{} to {to}: {}", FIRST + 3, blocks.join(",")));
        let from = FIRST + 3;
        assert_eq!(index.call(blocks, &range(from, LAST + 9)), partial_response(LAST, &last_three));
        // The caller does not regard the last block as final.
        let response = index.call_within(blocks, &range(from, LAST), LAST - 1, u64::MAX);
        assert_eq!(response, partial_response(LAST - 1, &last_three[..2]));
        assert!(index.call_within(blocks, &range(FIRST, LAST - 1), LAST - 1, u64::MAX).is_some());
        assert_eq!(index.call_within(blocks, &range(LAST, LAST), LAST - 1, u64::MAX), None);
        assert_eq!(index.call_within(blocks, &range(FIRST, LAST), LAST, 2000), None, "too long");
        for params in [
            format!("[{FIRST},{LAST}]"),
            format!("[{FIRST},\"latest\",{STORED_OPTIONS}]"),
            format!("[{FIRST},-1,{STORED_OPTIONS}]"),
            format!(r#"[{FIRST},{FIRST},{{"withSigners":true,"fullTx":true,"inclStaking":true}}]"#),
            format!("[{FIRST},{FIRST},true]"),
            "[]".to_owned(),
        ] {
            assert_eq!(index.call(blocks, &params), None, "{params}");
        }
        assert_eq!(index.call("hmyv2_getBlockByNumber", &format!("[{FIRST}]")), None);
        assert_eq!(
            index.call("hmyv2_getBlockByNumber", &format!("[\"latest\",{STORED_OPTIONS}]")),
            None
        );
        assert_eq!(index.call("hmy_getBlockByNumber", &format!("[{FIRST},true]")), None);
        let mut other_index = TestIndex::new(backend, "blocks,receipts,logs");
        assert_eq!(other_index.call(blocks, &range(FIRST, LAST)), None);
        assert_eq!(
            other_index.call("hmyv2_getBlockTransactionCountByNumber", &format!("[{FIRST}]")),
            None
        );
        assert_eq!(
            other_index.call("hmyv2_getBlockByNumber", &format!("[{FIRST},{STORED_OPTIONS}]")),
            None
        );
    });
}

#[test]
fn differing_and_untested_forms_are_left_to_nodes() {
    test_backends::each(|backend| {
        let params = |full, staking| {
            format!("[{FIRST},{FIRST},{}]", BlockOptions { full, staking }.to_json())
        };
        // The first four values of `is_missing` are for `hmyv2_getBlocks` with the options of the
        // inner loop. The last value is for the number of transactions.
        for (name, is_missing) in [
            (FORM_HASHES, [false, false, true, true, false]),
            (FORM_WITHOUT_STAKING, [false, true, false, true, false]),
            (FORM_SINGLE, [false; 5]),
            (FORM_COUNT, [false, false, false, false, true]),
        ] {
            let mut index = TestIndex::new(backend, "blocks,hmyv2");
            let location = index.reader.store().location();
            // The index does not answer with an untested form either.
            let row = if name == FORM_HASHES { "untested_forms" } else { "differing_forms" };
            let sql = format!("UPDATE facts SET value = '{name}' WHERE name = '{row}'");
            assert_eq!(test_backends::execute(&location, &sql), 1);
            index.reader = fixture::reader(&location);
            for (case, (full, staking)) in
                [(true, true), (true, false), (false, true), (false, false)].into_iter().enumerate()
            {
                let response = index.call("hmyv2_getBlocks", &params(full, staking));
                assert_eq!(response.is_none(), is_missing[case], "{name}, {full}, {staking}");
            }
            let single =
                index.call("hmyv2_getBlockByNumber", &format!("[{FIRST},{STORED_OPTIONS}]"));
            assert_eq!(single.is_none(), name == FORM_SINGLE);
            let count = index.call("hmyv2_getBlockTransactionCountByNumber", &format!("[{FIRST}]"));
            assert_eq!(count.is_none(), is_missing[4], "{name}");
        }
    });
}
