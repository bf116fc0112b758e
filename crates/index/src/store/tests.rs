//! Goal: what is written is what is read, in steps forward and back, and what is no index of ours is
//! told to be none. Method: the same tests wherever an index is kept; then what only a file can
//! suffer. What only a server can is in `postgres/tests.rs`.

use std::collections::BTreeSet;

use rusqlite::Connection;

use super::kinds;
use super::*;
use crate::places::{INDEX_MAX, place};

pub(super) fn facts() -> Facts {
    Facts {
        chain: Chain { family: "ethereum".to_owned(), id: "1".to_owned(), genesis: [1; 32] },
        what: "blocks,receipts,logs".parse().unwrap(),
        verified: "full".to_owned(),
        unlike: vec!["logs".to_owned()],
        untried: vec!["receipt".to_owned()],
    }
}

/// A block of three transactions with one key each and one in common.
pub(super) fn block(number: u64) -> NewBlock {
    let hash = |kind: u8, index: u64| {
        let mut hash = [kind; 32];
        hash[..8].copy_from_slice(&(number << 8 | index).to_be_bytes());
        hash
    };
    let item = |index| NewItem {
        index,
        hash: hash(2, index),
        receipt: Some(vec![3; 40]),
        body: Some(vec![4; 40]),
        keys: vec![7, index as i64],
    };
    NewBlock {
        number,
        hash: hash(1, 0),
        parent: [0; 32],
        time: number,
        count: 3,
        body: vec![5; 40],
        harmony: number.is_multiple_of(2).then(|| vec![6; 40]),
        items: (0..3).map(item).collect(),
        logs: 3,
        said: 100,
    }
}

/// SQLite's own connection.
fn file(store: &Store) -> &Connection {
    let Kept::Sqlite(sqlite) = &store.kept else { unreachable!() };
    sqlite.connection()
}

pub(super) fn blocks(numbers: std::ops::RangeInclusive<u64>) -> Vec<NewBlock> {
    numbers.map(block).collect()
}

/// Numbers of the blocks that are there in Harmony's own form.
fn harmony(store: &Store, from: u64, to: u64) -> Vec<u64> {
    let mut numbers = Vec::new();
    store
        .harmony_blocks(from, to, |row| {
            assert_eq!((row.hash, row.body), (block(row.number).hash, [6; 40].as_slice()));
            numbers.push(row.number);
            Ok::<_, StoreError>(true)
        })
        .unwrap();
    numbers
}

pub(super) fn all_places(store: &Store, key: i64) -> Vec<i64> {
    store.places(&[key], 0, i64::MAX, usize::MAX).unwrap().places
}

#[test]
fn an_index_tells_what_it_holds() {
    kinds::each(|kinds| {
        let mut store = Store::open(kinds.at("index"), Settings::default()).unwrap();
        assert_eq!((store.facts().unwrap(), store.held().unwrap()), (None, None));
        store.found(&facts(), &[]).unwrap();
        assert_eq!(store.facts().unwrap(), Some(facts()));
        store.append(&blocks(10..=20), 15).unwrap();
        store.append(&blocks(21..=22), 99).unwrap();
        let held = store.held().unwrap().unwrap();
        assert_eq!((held.first, held.last, held.finalized), (10, 22, 22));
        assert_eq!(held.last_hash, block(22).hash);
        assert_eq!(store.number_of(&block(12).hash).unwrap(), Some(12));
        assert_eq!(store.place_of(&block(12).items[2].hash).unwrap(), Some(place(12, 2)));
        assert_eq!(store.number_of(&[9; 32]).unwrap(), None);
        assert_eq!(all_places(&store, 7).len(), 13 * 3);
        let found = store.places(&[7], place(12, 1), place(21, INDEX_MAX), 1).unwrap();
        assert_eq!(found.places.len(), 9 * 3 - 1 + 3);
        assert_eq!((found.places[0], found.to), (place(12, 1), place(21, INDEX_MAX)));
        // Some lists of several keys: only up to where all of them were read.
        let found = store.places(&[7, 1], 0, i64::MAX, 1).unwrap();
        assert_eq!((found.places.len(), found.to), (11 * 3, place(21, 0) - 1));
        let found = store.places(&[7, 1, 99], 0, i64::MAX, 2).unwrap();
        assert_eq!((found.places.len(), found.to), (13 * 3, i64::MAX));
    });
}

#[test]
fn what_was_final_stays_final_and_what_is_not_there_is_not() {
    kinds::each(|kinds| {
        let mut store = Store::open(kinds.at("index"), Settings::default()).unwrap();
        store.found(&facts(), &[]).unwrap();
        let finalized = |store: &Store| store.held().unwrap().map(|held| held.finalized);
        store.finalize(7).unwrap();
        assert_eq!(finalized(&store), None);
        store.append(&blocks(0..=9), 5).unwrap();
        store.finalize(3).unwrap();
        assert_eq!(finalized(&store), Some(5));
        store.finalize(1_000).unwrap();
        assert_eq!(finalized(&store), Some(9));
        store.append(&blocks(10..=12), 4).unwrap();
        assert_eq!(finalized(&store), Some(9), "nobody said it of those that came later");
    });
}

#[test]
fn a_step_back_leaves_what_was_before_the_step() {
    kinds::each(|kinds| {
        let mut store = Store::open(kinds.at("index"), Settings::default()).unwrap();
        store.found(&facts(), &[]).unwrap();
        store.append(&blocks(0..=9), 0).unwrap();
        store.append(&blocks(10..=12), 0).unwrap();
        let keys = BTreeSet::from([7, 0, 1, 2]);
        store.rewind(7, &keys).unwrap();
        assert_eq!(store.held().unwrap().unwrap().last, 7);
        assert_eq!(all_places(&store, 7).len(), 8 * 3);
        assert_eq!(
            all_places(&store, 1),
            (0..8).map(|number| place(number, 1)).collect::<Vec<_>>()
        );
        assert_eq!(store.number_of(&block(8).hash).unwrap(), None);
        assert_eq!(store.place_of(&block(8).items[0].hash).unwrap(), None);
        assert_eq!(store.totals().unwrap(), (8, 24));
        assert_eq!(harmony(&store, 0, 99), [0, 2, 4, 6], "only even ones have one");
        assert_eq!(store.stray_harmony(9).unwrap(), Vec::<i64>::new());
        // And forward again, as if nothing had been.
        store.append(&blocks(8..=12), 0).unwrap();
        assert_eq!(all_places(&store, 7).len(), 13 * 3);
    });
}

#[test]
fn a_batch_that_cannot_be_written_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("full.db");
    let mut store = Store::open(&path, Settings::default()).unwrap();
    store.found(&facts(), &[]).unwrap();
    store.append(&blocks(0..=2), 0).unwrap();
    // The disk is full from here on, as far as SQLite can tell.
    let pages: i64 = file(&store).pragma_query_value(None, "page_count", |row| row.get(0)).unwrap();
    file(&store).pragma_update_and_check(None, "max_page_count", pages, |_| Ok(())).unwrap();
    let error = store.append(&blocks(3..=2000), 0).unwrap_err();
    assert!(matches!(error, StoreError::Full(_)), "{error}");
    assert_eq!(store.held().unwrap().unwrap().last, 2);
    file(&store).pragma_update_and_check(None, "max_page_count", 1 << 20, |_| Ok(())).unwrap();
    store.append(&blocks(3..=2000), 0).unwrap();
    assert_eq!(store.held().unwrap().unwrap().last, 2000);
    assert_eq!(store.flaws().unwrap(), Vec::<String>::new());
}

#[test]
fn one_writes_and_others_read() {
    kinds::each(|kinds| {
        let path = kinds.at("chain.db");
        let missing = Store::open_to_read(&path, Settings::default()).err().unwrap();
        assert!(matches!(missing, StoreError::Missing(_)), "{missing}");
        let mut store = Store::open(&path, Settings::default()).unwrap();
        store.found(&facts(), &[]).unwrap();
        store.append(&blocks(0..=2), 0).unwrap();
        let second = Store::open(&path, Settings::default()).err().unwrap();
        assert!(matches!(second, StoreError::Taken(_)), "{second}");
        let mut reader = Store::open_to_read(&path, Settings::default()).unwrap();
        assert_eq!(reader.held().unwrap().unwrap().last, 2);
        let error = reader.append(&blocks(3..=3), 0).unwrap_err();
        assert!(matches!(error, StoreError::ReadOnly(_)), "{error}");
        store.append(&blocks(3..=3), 0).unwrap();
        assert_eq!(reader.held().unwrap().unwrap().last, 3);
        drop(store);
        Store::open(&path, Settings::default()).unwrap();
    });
}

#[test]
fn other_files_are_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let open = |name: &str| {
        let path = folder.path().join(name);
        let before = std::fs::read(&path).unwrap();
        let to_write = Store::open(&path, Settings::default()).err().unwrap();
        let to_read = Store::open_to_read(&path, Settings::default()).err().unwrap();
        assert_eq!(to_write.to_string(), to_read.to_string());
        assert!(std::fs::read(&path).unwrap() == before, "{name} was written to");
        to_write
    };
    std::fs::write(folder.path().join("text"), "no database at all, but a text".repeat(100))
        .unwrap();
    assert!(matches!(open("text"), StoreError::Foreign { .. }));
    let other = Connection::open(folder.path().join("other")).unwrap();
    other.execute_batch("CREATE TABLE birds (name TEXT)").unwrap();
    drop(other);
    assert!(matches!(open("other"), StoreError::Foreign { .. }));
    let path = folder.path().join("newer");
    drop(Store::open(&path, Settings::default()).unwrap());
    let newer = Connection::open(&path).unwrap();
    newer.pragma_update(None, "user_version", sqlite::KNOWN + 1).unwrap();
    newer.pragma_update(None, "wal_checkpoint", "TRUNCATE").ok();
    drop(newer);
    let error = open("newer");
    assert!(matches!(error, StoreError::Newer { .. }), "{error}");
}

/// A file of schema 1: what was added since is not there.
#[test]
fn a_file_of_an_earlier_schema_is_brought_up_to_date_by_who_writes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("earlier.db");
    let mut store = Store::open(&path, Settings::default()).unwrap();
    store.found(&facts(), &[]).unwrap();
    let earlier: Vec<NewBlock> =
        blocks(0..=9).into_iter().map(|block| NewBlock { harmony: None, ..block }).collect();
    store.append(&earlier, 5).unwrap();
    drop(store);
    let connection = Connection::open(&path).unwrap();
    connection.execute_batch("DROP TABLE harmony_blocks; PRAGMA user_version = 1").unwrap();
    drop(connection);
    let error = Store::open_to_read(&path, Settings::default()).err().unwrap();
    assert!(matches!(error, StoreError::Older { found: 1, .. }), "{error}");
    let mut store = Store::open(&path, Settings::default()).unwrap();
    assert_eq!(store.facts().unwrap(), Some(facts()));
    assert_eq!(store.held().unwrap().unwrap().last, 9);
    store.append(&blocks(10..=12), 5).unwrap();
    store.rewind(11, &BTreeSet::from([7, 0, 1, 2])).unwrap();
    let reader = Store::open_to_read(&path, Settings::default()).unwrap();
    assert_eq!(reader.totals().unwrap(), (12, 36));
    assert_eq!(harmony(&reader, 0, 99), [10]);
    assert_eq!(reader.flaws().unwrap(), Vec::<String>::new());
}

#[test]
fn a_file_that_was_cut_off_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cut.db");
    let mut store = Store::open(&path, Settings::default()).unwrap();
    store.found(&facts(), &[]).unwrap();
    store.append(&blocks(0..=3000), 0).unwrap();
    drop(store);
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    let told: Result<(), _> = Store::open_to_read(&path, Settings::default()).and_then(|store| {
        store.held()?;
        let flaws = store.flaws()?;
        assert!(!flaws.is_empty());
        Err(StoreError::Damaged(flaws.join("; ")))
    });
    let error = told.err().unwrap();
    assert!(matches!(error, StoreError::Damaged(_)), "{error}");
}

#[test]
fn receipts_are_those_asked_for_near_and_far() {
    kinds::each(|kinds| {
        let mut store = Store::open(kinds.at("index"), Settings::default()).unwrap();
        store.found(&facts(), &[]).unwrap();
        store.append(&blocks(0..=40), 0).unwrap();
        let all: Vec<i64> =
            (0..=40).flat_map(|block| (0..3).map(move |at| place(block, at))).collect();
        let missing = [place(7, 5), place(9, 9), place(50, 0)];
        for apart in [1, 2, 3, 4, 5, 7, 40, 200] {
            let wanted: Vec<i64> = all.iter().copied().skip(1).step_by(apart).collect();
            let mut asked = [wanted.as_slice(), &missing].concat();
            asked.sort_unstable();
            let mut shown = Vec::new();
            store
                .receipts(&asked, |item| {
                    let (number, index) = crate::places::parts(item.place);
                    assert_eq!(item.packed, Some([3; 40].as_slice()));
                    assert_eq!(item.hash, block(number).items[index as usize].hash);
                    assert!(item.block.is_none_or(|of| of == (block(number).hash, number)));
                    shown.push(item.place);
                    Ok::<_, StoreError>(())
                })
                .unwrap();
            assert_eq!(shown, wanted, "every {apart}");
        }
    });
}
