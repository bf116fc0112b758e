//! Goal: decoding restores encoded blocks byte for byte, and responses about different blocks are
//! rejected. Method: a mainnet block with 202 receipts.

use wire::logs::LogMatcher;

use super::*;
use crate::compression::train;
use crate::contents::{Chain, Metadata};
use crate::error::ReadError;
use crate::reader::Reader;
use crate::search::SearchLimits;
use crate::store::{self, TransactionPart};

/// A mainnet block with the hashes of its transactions, and its receipts.
fn helios() -> (Vec<u8>, Vec<u8>) {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/mainnet/helios/");
    let read = |name: &str| {
        let raw = std::fs::read(format!("{folder}{name}")).unwrap();
        fragments::compact_json(&raw).unwrap_or(raw)
    };
    (read("block.json"), read("receipts.json"))
}

/// Returns the block with full transactions that have no members except their real hashes.
fn with_full_transactions(block: &[u8]) -> Vec<u8> {
    let (_, span) =
        walk::member_spans(block).find(|(name, _)| *name.decode() == *b"transactions").unwrap();
    let bodies: Vec<String> = walk::elements(&block[span.clone()])
        .map(|hash| format!(r#"{{"hash":{}}}"#, std::str::from_utf8(hash).unwrap()))
        .collect();
    assert!(bodies.len() > 200);
    let bodies = format!("[{}]", bodies.join(","));
    [&block[..span.start], bodies.as_bytes(), &block[span.end..]].concat()
}

#[test]
fn real_receipts_survive_and_take_a_quarter_of_their_size() {
    let (block, receipts) = helios();
    let block = with_full_transactions(&block);
    let raw = RawBlock { block: &block, receipts: Some(&receipts), logs: None, harmony: None };
    let contents = "blocks,receipts,logs".parse().unwrap();
    let fragments = collect_samples(raw, contents).unwrap();
    let dictionaries: Vec<_> = FragmentKind::ALL
        .into_iter()
        .map(|kind| {
            let fragments_of_kind =
                fragments.iter().filter(|(fragment_kind, _)| *fragment_kind == kind);
            train(
                kind,
                &fragments_of_kind.map(|(_, fragment)| fragment.clone()).collect::<Vec<_>>(),
            )
        })
        .collect();
    let rows = encode(&mut Compressor::new(&dictionaries).unwrap(), raw, contents).unwrap();
    assert_eq!((rows.transactions.len(), rows.log_count), (202, 463));
    let compressed: usize =
        rows.transactions.iter().filter_map(|row| row.receipt.as_ref()).map(Vec::len).sum();
    // The dictionary was trained on this very block, so other blocks compress less.
    assert!(compressed * 4 < receipts.len(), "{compressed} of {}", receipts.len());
    let mut store = store::in_memory().unwrap();
    let chain = Chain { family: "ethereum".to_owned(), id: "1".to_owned(), genesis_hash: [0; 32] };
    let metadata = Metadata {
        chain,
        contents,
        verification: "off".to_owned(),
        differing_forms: vec![],
        untested_forms: vec![],
    };
    store.initialize(&metadata, &dictionaries).unwrap();
    store.append(std::slice::from_ref(&rows), 0).unwrap();
    let mut reader = Reader::new(store).unwrap().unwrap();
    let number = rows.header.number;
    let mut decoded = Vec::new();
    assert!(reader.write_block(&mut decoded, number, TransactionPart::Body).unwrap());
    assert!(decoded == block);
    decoded.clear();
    let (_, context) = reader.block_row(number).unwrap().unwrap();
    let receipt = TransactionPart::Receipt;
    reader.write_transactions(&mut decoded, &context, number, receipt).unwrap();
    assert!(decoded == receipts);
    let limits = SearchLimits { logs: 1000, bytes: 1 << 20, deadline: None };
    let mut count = |selection: &LogMatcher, limits| {
        reader.write_logs(&mut Vec::new(), selection, (number, number), limits)
    };
    assert_eq!(count(&LogMatcher::default(), limits).unwrap(), 463);
    let low_limit = SearchLimits { logs: 462, ..limits };
    assert!(count(&LogMatcher::default(), low_limit).is_err());
    let past_deadline = SearchLimits { deadline: Some(std::time::Instant::now()), ..limits };
    let transfers = LogMatcher::parse(
        br#"{"topics":["0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"]}"#,
    )
    .unwrap();
    let result = count(&transfers, past_deadline);
    assert!(matches!(result, Err(ReadError::LimitExceeded(_))), "{result:?}");
}

#[test]
fn responses_that_do_not_belong_together_are_rejected() {
    let (block, receipts) = helios();
    let full = with_full_transactions(&block);
    let rejection = |block: &[u8], receipts: &[u8]| {
        let raw = RawBlock { block, receipts: Some(receipts), logs: None, harmony: None };
        collect_samples(raw, "blocks,receipts,logs".parse().unwrap()).err().unwrap().to_string()
    };
    assert!(
        rejection(&block, &receipts).contains("has hashes, but full transactions were requested")
    );
    assert!(rejection(&full, b"[]").contains("receipts: 0, for 202 transactions"));
    assert!(rejection(&full, &receipts[receipts.len() / 2..]).contains("receipts"));
    assert!(rejection(b"{}", b"[]").contains("block.number"));
    assert!(rejection(b"nonsense", b"[]").contains("block."));
    let mut receipt_list: Vec<&[u8]> = walk::elements(&receipts).collect();
    receipt_list.swap(0, 1);
    let swapped = [b"[", receipt_list.join(&b',').as_slice(), b"]"].concat();
    assert!(rejection(&full, &swapped).contains("receipts[0].transactionHash"));
}
