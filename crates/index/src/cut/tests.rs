//! Real receipts, cut and put together again; blocks that do not fit together are told.

use super::*;
use crate::pack::train;
use crate::reader::{Form, Reader};
use crate::search::Bounds;
use crate::store::{Chain, Facts, Store};

/// A mainnet block whose receipts are known, with the hashes of its transactions only.
fn helios() -> (Vec<u8>, Vec<u8>) {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/mainnet/helios/");
    let read = |name: &str| {
        let raw = std::fs::read(format!("{folder}{name}")).unwrap();
        pieces::compacted(&raw).unwrap_or(raw)
    };
    (read("block.json"), read("receipts.json"))
}

fn what(text: &str) -> What {
    text.parse().unwrap()
}

/// A block with whole transactions made of one with hashes: enough for what is cut.
fn whole(block: &[u8]) -> Vec<u8> {
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
fn real_receipts_come_back_and_take_a_fraction_of_their_room() {
    let (block, receipts) = helios();
    let block = whole(&block);
    let said = Said { block: &block, receipts: Some(&receipts), logs: None, harmony: None };
    let what = what("blocks,receipts,logs");
    let all = samples(said, what).unwrap();
    let dictionaries: Vec<_> = Kind::ALL
        .into_iter()
        .map(|kind| {
            let own = all.iter().filter(|(of, _)| *of == kind);
            train(kind, &own.map(|(_, piece)| piece.clone()).collect::<Vec<_>>())
        })
        .collect();
    let rows = cut(&mut Packer::new(&dictionaries).unwrap(), said, what).unwrap();
    assert_eq!((rows.count, rows.logs), (202, 463));
    let packed: usize =
        rows.items.iter().filter_map(|item| item.receipt.as_ref()).map(Vec::len).sum();
    // It was trained on itself, so that this says what is possible, not what is usual.
    assert!(packed * 4 < receipts.len(), "{packed} of {}", receipts.len());
    let mut store = Store::in_memory().unwrap();
    let chain = Chain { family: "ethereum".to_owned(), id: "1".to_owned(), genesis: [0; 32] };
    let facts = Facts { chain, what, verified: "off".to_owned(), unlike: vec![], untried: vec![] };
    store.found(&facts, &dictionaries).unwrap();
    store.append(std::slice::from_ref(&rows), 0).unwrap();
    let mut reader = Reader::over(store).unwrap().unwrap();
    let mut back = Vec::new();
    assert!(reader.block(&mut back, rows.number, Form::Whole).unwrap());
    assert!(back == block);
    back.clear();
    let (_, of) = reader.row(rows.number).unwrap().unwrap();
    reader.list(&mut back, &of, rows.number, Form::Receipt).unwrap();
    assert!(back == receipts);
    back.clear();
    let bounds = Bounds { logs: 1000, bytes: 1 << 20, until: None };
    let all = (rows.number, rows.number);
    assert_eq!(reader.logs(&mut back, &Default::default(), all, bounds).unwrap(), 463);
    let few = Bounds { logs: 462, ..bounds };
    assert!(reader.logs(&mut Vec::new(), &Default::default(), all, few).is_err());
    let late = Bounds { until: Some(std::time::Instant::now()), ..bounds };
    let transfers = wire::logs::Selection::read(
        br#"{"topics":["0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"]}"#,
    )
    .unwrap();
    let found = reader.logs(&mut Vec::new(), &transfers, all, late);
    assert!(matches!(found, Err(crate::reader::ReadError::TooMuch(_))), "{found:?}");
}

#[test]
fn what_does_not_fit_together_is_told() {
    let (block, receipts) = helios();
    let full = whole(&block);
    let told = |block: &[u8], receipts: &[u8]| {
        let said = Said { block, receipts: Some(receipts), logs: None, harmony: None };
        samples(said, what("blocks,receipts,logs")).err().unwrap().to_string()
    };
    assert!(told(&block, &receipts).contains("hashes, where whole transactions were asked for"));
    assert!(told(&full, b"[]").contains("receipts: 0, for 202 transactions"));
    assert!(told(&full, &receipts[receipts.len() / 2..]).contains("receipts"));
    assert!(told(b"{}", b"[]").contains("block.number"));
    assert!(told(b"nonsense", b"[]").contains("block."));
    let mut listed: Vec<&[u8]> = walk::elements(&receipts).collect();
    listed.swap(0, 1);
    let swapped = [b"[", listed.join(&b',').as_slice(), b"]"].concat();
    assert!(told(&full, &swapped).contains("receipts[0].transactionHash"));
}
