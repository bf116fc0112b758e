//! Goal: a bloom filter never excludes a log of its block, and tables are bounded. Method: filters
//! made by alloy, in small blocks.

use std::fmt::Write as _;

use super::*;

/// Returns a hash that begins with this number.
fn hash(number: u64) -> Hash {
    let mut hash = [0; 32];
    hash[..8].copy_from_slice(&number.to_be_bytes());
    hash
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold("0x".to_owned(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes all");
        text
    })
}

/// Returns a raw block with these entries in its bloom filter.
pub(crate) fn block(number: u64, entries: &[&[u8]], transactions: &[Hash]) -> String {
    let mut bloom = alloy_primitives::Bloom::ZERO;
    for entry in entries {
        bloom.accrue(alloy_primitives::BloomInput::Raw(entry));
    }
    let transactions: Vec<String> =
        transactions.iter().map(|hash| format!("{:?}", hex(hash))).collect();
    let transactions = transactions.join(",");
    format!(
        r#"{{"number":"{number:#x}","logsBloom":"{bloom:#x}","transactions":[{transactions}]}}"#
    )
}

fn read(raw: &str) -> BlockHeader {
    BlockHeader::parse(raw.as_bytes(), Duration::ZERO).expect("it has a number")
}

fn query(filter: &str) -> BloomQuery {
    BloomQuery::new(&LogMatcher::parse(filter.as_bytes()).expect("a filter"))
}

#[test]
fn a_bloom_filter_proves_the_absence_of_logs() {
    let (address, topic) = ([7; 20], [9; 32]);
    let block = read(&block(1, &[&address, &topic], &[]));
    let may = |filter: &str| block.may_have(&query(filter)).expect("it has a filter");
    let (contained, other) = (hex(&address), hex(&[8; 20]));
    let (own_topic, other_topic) = (hex(&topic), hex(&[10; 32]));
    assert!(may("{}"));
    assert!(may(&format!(r#"{{"address":"{contained}"}}"#)));
    assert!(!may(&format!(r#"{{"address":"{other}"}}"#)));
    assert!(may(&format!(r#"{{"address":["{other}","{contained}"]}}"#)));
    assert!(may(&format!(r#"{{"topics":[null,"{own_topic}"]}}"#)));
    assert!(!may(&format!(r#"{{"address":"{contained}","topics":["{other_topic}"]}}"#)));
    assert!(may(&format!(r#"{{"topics":[["{other_topic}","{own_topic}"]]}}"#)));
}

#[test]
fn a_block_without_a_filter_proves_nothing_about_logs() {
    assert_eq!(read(&block(1, &[], &[])).may_have(&BloomQuery::default()), Some(false));
    for raw in [r#"{"number":"0x1"}"#, r#"{"number":"0x1","logsBloom":"0x00"}"#] {
        assert_eq!(read(raw).may_have(&BloomQuery::default()), None, "{raw}");
        assert_eq!(read(raw).transaction_count(), None);
    }
    assert_eq!(BlockHeader::parse(b"{}", Duration::ZERO), None);
    assert_eq!(BlockHeader::parse(b"null", Duration::ZERO), None);
}

#[test]
fn a_filter_with_very_many_addresses_is_not_hashed() {
    let addresses: Vec<String> = (0..1000_u16).map(|n| format!("\"0x{n:040x}\"")).collect();
    let many = query(&format!(r#"{{"address":[{}]}}"#, addresses.join(",")));
    assert_eq!(many, BloomQuery::default());
}

#[test]
fn transactions_are_found_by_their_hash() {
    let mut headers = RecentHeaders::default();
    headers.insert(hash(1), read(&block(5, &[], &[hash(11), hash(12)])));
    let blocks = |transaction: Hash| {
        let raw = format!("{:?}", hex(&transaction));
        headers.blocks_with(raw.as_bytes()).map(|(_, block)| block.number).collect::<Vec<_>>()
    };
    assert_eq!(blocks(hash(12)), [5]);
    assert_eq!(blocks(hash(13)), [0; 0]);
    assert_eq!(headers.blocks_with(b"17").count(), 0);
}

#[test]
fn old_headers_make_room() {
    let mut headers = RecentHeaders::default();
    for number in 0..2_000 {
        headers.insert(hash(number), read(&block(number, &[], &[])));
    }
    assert_eq!(headers.blocks.len(), BLOCKS_MAX);
    assert!(headers.get(&hash(1_999)).is_some() && headers.get(&hash(0)).is_none());

    let many: Vec<Hash> = (0..TRANSACTIONS_MAX as u64 / 4).map(hash).collect();
    let mut headers = RecentHeaders::default();
    for number in 0..10 {
        headers.insert(hash(number), read(&block(number, &[], &many)));
    }
    assert_eq!(headers.blocks.len(), 4);
    assert_eq!(headers.transactions, TRANSACTIONS_MAX);
}

#[test]
fn a_bloom_filter_shows_whether_logs_are_missing() {
    let (address, topic, other) = ([7; 20], [9; 32], [8; 20]);
    let block = read(&block(1, &[&address, &topic, &other], &[]));
    let log = |address, topics: &[[u8; 32]]| LogFields {
        block_number: 1,
        block_hash: hash(1),
        address,
        topics: topics.to_vec(),
    };
    let (first, second) = (log(address, &[topic]), log(other, &[]));
    assert_eq!(block.has_further_logs([]), Some(true));
    assert_eq!(block.has_further_logs([&first]), Some(true));
    assert_eq!(block.has_further_logs([&second, &first]), Some(false));
    assert_eq!(read(r#"{"number":"0x1"}"#).has_further_logs([]), None);
}
