//! Goal: a store reads the rows that it has written, also after further appends and rewinds, and
//! rejects files of other programs. Method: the same tests in each backend, and tests of damaged
//! files. The tests that only concern a server are in `postgres/tests.rs`.

use std::collections::BTreeSet;

use rusqlite::Connection;

use super::test_backends::{self, Backend};
use super::*;
use crate::contents::{Chain, Metadata};
use crate::fragments::BlockHeader;
use crate::postings::{INDEX_MAX, block_and_index, position};

pub(super) fn metadata() -> Metadata {
    Metadata {
        chain: Chain { family: "ethereum".to_owned(), id: "1".to_owned(), genesis_hash: [1; 32] },
        contents: "blocks,receipts,logs".parse().unwrap(),
        verification: "full".to_owned(),
        differing_forms: vec!["logs".to_owned()],
        untested_forms: vec!["receipt".to_owned()],
    }
}

/// Returns a block of three transactions. All have the posting key 7. Each also has its index as
/// posting key.
pub(super) fn block(number: u64) -> NewBlock {
    let new_hash = |fill: u8, index: u64| {
        let mut hash = [fill; 32];
        hash[..8].copy_from_slice(&(number << 8 | index).to_be_bytes());
        hash
    };
    let transaction = |index| NewTransaction {
        index,
        hash: new_hash(2, index),
        receipt: Some(vec![3; 40]),
        body: Some(vec![4; 40]),
        posting_keys: vec![7, index as i64],
    };
    NewBlock {
        header: BlockHeader {
            number,
            hash: new_hash(1, 0),
            parent_hash: [0; 32],
            timestamp: number,
        },
        body: vec![5; 40],
        harmony: number.is_multiple_of(2).then(|| vec![6; 40]),
        transactions: (0..3).map(transaction).collect(),
        log_count: 3,
        response_bytes: 100,
    }
}

pub(super) fn blocks(numbers: std::ops::RangeInclusive<u64>) -> Vec<NewBlock> {
    numbers.map(block).collect()
}

/// Returns the numbers of the blocks that have an `hmyv2_` form.
fn harmony_block_numbers(store: &dyn Store, from: u64, to: u64) -> Vec<u64> {
    let mut numbers = Vec::new();
    store
        .try_visit_harmony_blocks(from, to, |row| {
            let expected = (block(row.number).header.hash, [6; 40].as_slice());
            assert_eq!((row.hash, row.body), expected);
            numbers.push(row.number);
            Ok::<_, StoreError>(true)
        })
        .unwrap();
    numbers
}

/// Returns all positions of a posting key.
pub(super) fn all_postings(store: &dyn Store, key: i64) -> Vec<i64> {
    store.postings(&[key], 0, i64::MAX, usize::MAX).unwrap().positions
}

#[test]
fn an_index_reads_what_was_appended() {
    test_backends::each(|backend| {
        let mut store = open(backend.location("index"), Settings::default()).unwrap();
        assert!(store.metadata().unwrap().is_none() && store.stored_range().unwrap().is_none());
        store.initialize(&metadata(), &[]).unwrap();
        assert_eq!(store.metadata().unwrap(), Some(metadata()));
        store.append(&blocks(10..=20), 15).unwrap();
        store.append(&blocks(21..=22), 99).unwrap();
        let range = store.stored_range().unwrap().unwrap();
        assert_eq!((range.first, range.last, range.finalized), (10, 22, 22));
        assert_eq!(range.last_hash, block(22).header.hash);
        assert_eq!(store.block_number(&block(12).header.hash).unwrap(), Some(12));
        let hash = block(12).transactions[2].hash;
        assert_eq!(store.transaction_position(&hash).unwrap(), Some(position(12, 2)));
        assert_eq!(store.block_number(&[9; 32]).unwrap(), None);
        assert_eq!(all_postings(&*store, 7).len(), 13 * 3);
        let (from, to) = (position(12, 1), position(21, INDEX_MAX));
        let postings = store.postings(&[7], from, to, 1).unwrap();
        assert_eq!(postings.positions.len(), 9 * 3 - 1 + 3);
        assert_eq!((postings.positions[0], postings.covered_to), (from, to));
        // With several keys, postings end where the first unread list begins.
        let postings = store.postings(&[7, 1], 0, i64::MAX, 1).unwrap();
        assert_eq!((postings.positions.len(), postings.covered_to), (11 * 3, position(21, 0) - 1));
        let postings = store.postings(&[7, 1, 99], 0, i64::MAX, 2).unwrap();
        assert_eq!((postings.positions.len(), postings.covered_to), (13 * 3, i64::MAX));
    });
}

#[test]
fn only_a_rewind_moves_the_finalized_block_back() {
    test_backends::each(|backend| {
        let mut store = open(backend.location("index"), Settings::default()).unwrap();
        store.initialize(&metadata(), &[]).unwrap();
        let finalized =
            |store: &dyn Store| store.stored_range().unwrap().map(|range| range.finalized);
        store.finalize(7).unwrap();
        assert_eq!(finalized(&*store), None);
        store.append(&blocks(0..=9), 5).unwrap();
        store.finalize(3).unwrap();
        assert_eq!(finalized(&*store), Some(5));
        store.finalize(1_000).unwrap();
        assert_eq!(finalized(&*store), Some(9));
        store.append(&blocks(10..=12), 4).unwrap();
        assert_eq!(finalized(&*store), Some(9), "no node reported later blocks as final");
        store.rewind(7, &BTreeSet::new()).unwrap();
        store.append(&blocks(8..=12), 4).unwrap();
        assert_eq!(finalized(&*store), Some(7), "the new blocks are not final");
    });
}

#[test]
fn a_rewind_deletes_all_rows_of_later_blocks() {
    test_backends::each(|backend| {
        let mut store = open(backend.location("index"), Settings::default()).unwrap();
        store.initialize(&metadata(), &[]).unwrap();
        store.append(&blocks(0..=9), 0).unwrap();
        store.append(&blocks(10..=12), 0).unwrap();
        let keys = BTreeSet::from([7, 0, 1, 2]);
        store.rewind(7, &keys).unwrap();
        assert_eq!(store.stored_range().unwrap().unwrap().last, 7);
        assert_eq!(all_postings(&*store, 7).len(), 8 * 3);
        assert_eq!(
            all_postings(&*store, 1),
            (0..8).map(|number| position(number, 1)).collect::<Vec<_>>()
        );
        assert_eq!(store.block_number(&block(8).header.hash).unwrap(), None);
        assert_eq!(store.transaction_position(&block(8).transactions[0].hash).unwrap(), None);
        assert_eq!(store.totals().unwrap(), (8, 24));
        assert_eq!(
            harmony_block_numbers(&*store, 0, 99),
            [0, 2, 4, 6],
            "even blocks have that form"
        );
        assert_eq!(store.dangling_harmony_blocks(9).unwrap(), Vec::<i64>::new());
        // The same blocks can be appended again.
        store.append(&blocks(8..=12), 0).unwrap();
        assert_eq!(all_postings(&*store, 7).len(), 13 * 3);
    });
}

#[test]
fn a_failed_append_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("full.db");
    let mut store = open(&path, Settings::default()).unwrap();
    store.initialize(&metadata(), &[]).unwrap();
    store.append(&blocks(0..=2), 0).unwrap();
    // SQLite treats this limit like a full disk.
    let connection = Connection::open(&path).unwrap();
    let pages: i64 = connection.pragma_query_value(None, "page_count", |row| row.get(0)).unwrap();
    store.execute(&format!("PRAGMA max_page_count = {pages}"));
    let error = store.append(&blocks(3..=2000), 0).unwrap_err();
    assert!(matches!(error, StoreError::DiskFull(_)), "{error}");
    assert_eq!(store.stored_range().unwrap().unwrap().last, 2);
    store.execute("PRAGMA max_page_count = 1048576");
    store.append(&blocks(3..=2000), 0).unwrap();
    assert_eq!(store.stored_range().unwrap().unwrap().last, 2000);
    assert_eq!(store.integrity_errors().unwrap(), Vec::<String>::new());
}

#[test]
fn one_process_writes_and_others_read() {
    test_backends::each(|backend| {
        let path = backend.location("chain.db");
        let error = open_to_read(&path, Settings::default()).err().unwrap();
        assert!(matches!(error, StoreError::Missing(_)), "{error}");
        let mut store = open(&path, Settings::default()).unwrap();
        store.initialize(&metadata(), &[]).unwrap();
        store.append(&blocks(0..=2), 0).unwrap();
        let error = open(&path, Settings::default()).err().unwrap();
        assert!(matches!(error, StoreError::Locked(_)), "{error}");
        let mut reader = open_to_read(&path, Settings::default()).unwrap();
        assert_eq!(reader.stored_range().unwrap().unwrap().last, 2);
        let error = reader.append(&blocks(3..=3), 0).unwrap_err();
        assert!(matches!(error, StoreError::ReadOnly(_)), "{error}");
        store.append(&blocks(3..=3), 0).unwrap();
        assert_eq!(reader.stored_range().unwrap().unwrap().last, 3);
        drop(store);
        open(&path, Settings::default()).unwrap();
    });
}

#[test]
fn other_files_are_rejected_and_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let rejection = |name: &str| {
        let path = folder.path().join(name);
        let bytes_before = std::fs::read(&path).unwrap();
        let to_write = open(&path, Settings::default()).err().unwrap();
        let to_read = open_to_read(&path, Settings::default()).err().unwrap();
        assert_eq!(to_write.to_string(), to_read.to_string());
        assert!(std::fs::read(&path).unwrap() == bytes_before, "{name} was written to");
        to_write
    };
    std::fs::write(folder.path().join("text"), "no database at all, but a text".repeat(100))
        .unwrap();
    assert!(matches!(rejection("text"), StoreError::Foreign { .. }));
    let connection = Connection::open(folder.path().join("other")).unwrap();
    connection.execute_batch("CREATE TABLE birds (name TEXT)").unwrap();
    drop(connection);
    assert!(matches!(rejection("other"), StoreError::Foreign { .. }));
    let path = folder.path().join("newer");
    drop(open(&path, Settings::default()).unwrap());
    let connection = Connection::open(&path).unwrap();
    connection.pragma_update(None, "user_version", sqlite::SCHEMA_VERSION + 1).unwrap();
    connection.pragma_update(None, "wal_checkpoint", "TRUNCATE").ok();
    drop(connection);
    let error = rejection("newer");
    assert!(matches!(error, StoreError::Newer { .. }), "{error}");
}

/// Renames tables, columns and facts back to their names before the last migration.
const EARLIER_NAMES: &str = "
    ALTER TABLE log_postings RENAME COLUMN rest TO others;
    ALTER TABLE log_postings RENAME TO log_places;
    ALTER TABLE transactions RENAME COLUMN position TO place;
    ALTER TABLE transaction_hashes RENAME COLUMN position TO place;
    UPDATE facts SET name = 'what' WHERE name = 'contents';
    UPDATE facts SET name = 'verified' WHERE name = 'verification';
    UPDATE facts SET name = 'unlike' WHERE name = 'differing_forms';
    UPDATE facts SET name = 'untried' WHERE name = 'untested_forms';
";

#[test]
fn a_writer_migrates_earlier_names() {
    test_backends::each(|backend| {
        let location = backend.location("earlier");
        let mut store = open(&location, Settings::default()).unwrap();
        store.initialize(&metadata(), &[]).unwrap();
        store.append(&blocks(0..=9), 5).unwrap();
        let version = match backend.backend {
            Backend::Sqlite => "PRAGMA user_version = 2",
            Backend::Postgres => "UPDATE facts SET value = '1' WHERE name = 'schema'",
        };
        store.execute(&format!("{EARLIER_NAMES}; {version}"));
        drop(store);
        let error = open_to_read(&location, Settings::default()).err().unwrap();
        assert!(matches!(error, StoreError::Older { .. }), "{error}");
        let mut store = open(&location, Settings::default()).unwrap();
        assert_eq!(store.metadata().unwrap(), Some(metadata()));
        store.append(&blocks(10..=12), 5).unwrap();
        store.rewind(11, &BTreeSet::from([7, 0, 1, 2])).unwrap();
        let reader = open_to_read(&location, Settings::default()).unwrap();
        assert_eq!(reader.totals().unwrap(), (12, 36));
        assert_eq!(reader.postings(&[7], 0, i64::MAX, 9).unwrap().positions.len(), 36);
    });
}

/// A file of schema 1 has no `hmyv2_` forms.
#[test]
fn a_writer_migrates_a_file_of_an_earlier_schema() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("earlier.db");
    let mut store = open(&path, Settings::default()).unwrap();
    store.initialize(&metadata(), &[]).unwrap();
    let earlier_blocks: Vec<NewBlock> =
        blocks(0..=9).into_iter().map(|block| NewBlock { harmony: None, ..block }).collect();
    store.append(&earlier_blocks, 5).unwrap();
    drop(store);
    let connection = Connection::open(&path).unwrap();
    connection.execute_batch(EARLIER_NAMES).unwrap();
    connection.execute_batch("DROP TABLE harmony_blocks; PRAGMA user_version = 1").unwrap();
    drop(connection);
    let error = open_to_read(&path, Settings::default()).err().unwrap();
    assert!(matches!(error, StoreError::Older { version: 1, .. }), "{error}");
    let mut store = open(&path, Settings::default()).unwrap();
    assert_eq!(store.metadata().unwrap(), Some(metadata()));
    assert_eq!(store.stored_range().unwrap().unwrap().last, 9);
    store.append(&blocks(10..=12), 5).unwrap();
    store.rewind(11, &BTreeSet::from([7, 0, 1, 2])).unwrap();
    let reader = open_to_read(&path, Settings::default()).unwrap();
    assert_eq!(reader.totals().unwrap(), (12, 36));
    assert_eq!(harmony_block_numbers(&*reader, 0, 99), [10]);
    assert_eq!(reader.integrity_errors().unwrap(), Vec::<String>::new());
}

#[test]
fn a_truncated_file_is_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("truncated.db");
    let mut store = open(&path, Settings::default()).unwrap();
    store.initialize(&metadata(), &[]).unwrap();
    store.append(&blocks(0..=3000), 0).unwrap();
    drop(store);
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    let result: Result<(), _> = open_to_read(&path, Settings::default()).and_then(|store| {
        store.stored_range()?;
        let errors = store.integrity_errors()?;
        assert!(!errors.is_empty());
        Err(StoreError::Damaged(errors.join("; ")))
    });
    let error = result.err().unwrap();
    assert!(matches!(error, StoreError::Damaged(_)), "{error}");
}

#[test]
fn receipts_are_found_at_any_distance() {
    test_backends::each(|backend| {
        let mut store = open(backend.location("index"), Settings::default()).unwrap();
        store.initialize(&metadata(), &[]).unwrap();
        store.append(&blocks(0..=40), 0).unwrap();
        let all_positions: Vec<i64> =
            (0..=40).flat_map(|block| (0..3).map(move |index| position(block, index))).collect();
        let missing = [position(7, 5), position(9, 9), position(50, 0)];
        for step in [1, 2, 3, 4, 5, 7, 40, 200] {
            let existing: Vec<i64> = all_positions.iter().copied().skip(1).step_by(step).collect();
            let mut requested = [existing.as_slice(), &missing].concat();
            requested.sort_unstable();
            let mut visited = Vec::new();
            store
                .try_visit_receipts(&requested, |row| {
                    let (number, index) = block_and_index(row.position);
                    let expected = block(number);
                    assert_eq!(row.fragment, Some([3; 40].as_slice()));
                    assert_eq!(row.hash, expected.transactions[index as usize].hash);
                    let expected_block = (expected.header.hash, number);
                    assert!(row.block.is_none_or(|block| block == expected_block));
                    visited.push(row.position);
                    Ok::<_, StoreError>(())
                })
                .unwrap();
            assert_eq!(visited, existing, "every {step}");
        }
    });
}
