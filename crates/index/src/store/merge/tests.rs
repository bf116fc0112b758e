//! Goal: merging lists does not change the results of searches, and a rewind shortens merged lists.
//! Method: an index that was written block by block and merged is compared with an index that was
//! written in one transaction.

use wire::logs::LogMatcher;

use crate::fixture::{self, FIRST, LAST};
use crate::postings::{self, INDEX_MAX, encode_rest, position};
use crate::reader::Reader;
use crate::search::SearchLimits;
use crate::store::test_backends::{self, TestBackend};
use crate::store::tests::block;
use crate::store::{self, Location, NewBlock, Settings, Store};

/// Posting lists, each with its key, its first position and its further positions.
type Lists = Vec<(i64, i64, Vec<u8>)>;

/// Reads all posting lists.
fn read_lists(store: &dyn Store) -> Lists {
    let mut rows = Vec::new();
    let mut visit = |row: store::PostingListRow<'_>| {
        rows.push((row.key, row.first, row.rest.to_vec()));
        true
    };
    store.visit_posting_lists(&mut visit).unwrap();
    rows
}

/// Creates an index of one block without logs.
fn create_empty_index(backend: &TestBackend) -> (Location, Box<dyn Store>) {
    let location = backend.location("file");
    let mut store = store::open(&location, Settings::default()).unwrap();
    let block = NewBlock { transactions: Vec::new(), ..block(0) };
    store.append(&[block], 0).unwrap();
    (location, store)
}

/// Inserts a posting list, past all checks of the store.
fn insert(location: &Location, key: i64, positions: &[i64]) {
    let rest = alloy_primitives::hex::encode(encode_rest(positions));
    let sql = format!("INSERT INTO log_postings VALUES ({key}, {}, x'{rest}')", positions[0]);
    assert_eq!(test_backends::execute(location, &sql), 1);
}

fn search_logs(reader: &mut Reader, filter: &str, range: (u64, u64)) -> String {
    let mut out = Vec::new();
    let selection = LogMatcher::parse(filter.as_bytes()).unwrap();
    reader.write_logs(&mut out, &selection, range, SearchLimits::NONE).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn merged_lists_find_the_same_and_can_be_rewound() {
    test_backends::each(|backend| {
        let merged = backend.location("followed");
        fixture::write(&merged, "blocks,receipts,logs", 1);
        let at_once = backend.location("at-once");
        fixture::write(&at_once, "blocks,receipts,logs", 6);
        let mut filters = vec!["{}".to_owned()];
        for byte in 0..8 {
            let address = format!("0x{}", format!("{byte:02x}").repeat(20));
            filters.push(format!(r#"{{"address":"{address}"}}"#));
            filters.push(format!(r#"{{"address":["{address}","0x{}"]}}"#, "06".repeat(20)));
        }
        let search_all = |location: &Location| {
            let mut reader = fixture::reader(location);
            let ranges = [(FIRST, LAST), (511, 512), (LAST, LAST), (FIRST, FIRST)];
            let mut results = Vec::new();
            for filter in &filters {
                results.extend(ranges.iter().map(|range| search_logs(&mut reader, filter, *range)));
            }
            results
        };
        let unmerged_results = search_all(&merged);
        assert!(unmerged_results.iter().filter(|logs| !logs.is_empty()).count() > 30);
        let mut store = store::open(&merged, Settings::default()).unwrap();
        let list_count = read_lists(&*store).len() as u64;
        let removed = store.merge_postings().unwrap();
        assert!(removed > 0);
        assert_eq!(read_lists(&*store).len() as u64, list_count - removed);
        let expected = store::open_to_read(&at_once, Settings::default()).unwrap();
        assert_eq!(read_lists(&*store), read_lists(&*expected));
        assert_eq!(search_all(&merged), unmerged_results);
        assert_eq!(store.merge_postings().unwrap(), 0, "nothing is left to merge");
        store.vacuum().unwrap();
        assert_eq!(search_all(&merged), unmerged_results);
        // The rewind ends in the middle of merged lists.
        let keys = fixture::reader(&merged).posting_keys_above(511).unwrap();
        store.rewind(511, &keys).unwrap();
        let last_position = position(511, INDEX_MAX);
        assert!(!read_lists(&*store).is_empty());
        for (_, first, rest) in read_lists(&*store) {
            assert!(postings::decode(first, &rest).all(|position| position <= last_position));
        }
        let count = |logs: &str| -> usize { logs.matches("\"logIndex\"").count() };
        let mut reader = fixture::reader(&merged);
        // Three blocks are left. Each has 36 logs, and 6 of them are of the sixth address.
        assert_eq!(count(&search_logs(&mut reader, "{}", (FIRST, LAST))), 3 * 36);
        let sixth_address = format!(r#"{{"address":"0x{}"}}"#, "06".repeat(20));
        assert_eq!(count(&search_logs(&mut reader, &sixth_address, (FIRST, LAST))), 3 * 6);
    });
}

#[test]
fn lists_span_at_most_256_blocks_and_one_key() {
    test_backends::each(|backend| {
        let (location, mut store) = create_empty_index(backend);
        let add = |key: i64, numbers: &[u64]| {
            let positions: Vec<i64> = numbers.iter().map(|number| position(*number, 3)).collect();
            insert(&location, key, &positions);
        };
        add(-5, &[0]);
        add(-5, &[1, 2]);
        add(-5, &[255]);
        add(-5, &[256]);
        add(-5, &[257, 511]);
        add(-5, &[512]);
        add(7, &[512]);
        add(7, &[1000, 1300]);
        add(7, &[1301]);
        assert_eq!(store.merge_postings().unwrap(), 3);
        let list = |key, numbers: &[u64]| {
            let positions: Vec<i64> = numbers.iter().map(|number| position(*number, 3)).collect();
            (key, positions[0], encode_rest(&positions))
        };
        let expected = vec![
            list(-5, &[0, 1, 2, 255]),
            list(-5, &[256, 257, 511]),
            list(-5, &[512]),
            list(7, &[512]),
            list(7, &[1000, 1300]),
            list(7, &[1301]),
        ];
        assert_eq!(read_lists(&*store), expected);
    });
}

/// The table has more rows than one step reads, and rows of one list are read in two steps.
#[test]
fn lists_are_merged_across_transactions() {
    test_backends::each(|backend| {
        let (location, mut store) = create_empty_index(backend);
        let keys = 2 * super::ROWS_PER_STEP as i64 / 7;
        let numbers = "WITH RECURSIVE n (value) AS
         (SELECT 0 UNION ALL SELECT value + 1 FROM n WHERE value + 1 <";
        test_backends::execute(
            &location,
            &format!(
                "INSERT INTO log_postings SELECT k.value, (n.value << 20) + 1, x''
             FROM ({numbers} {keys}) SELECT value FROM n) k, ({numbers} 7) SELECT value FROM n) n"
            ),
        );
        assert_eq!(store.merge_postings().unwrap(), 6 * keys as u64);
        let lists = read_lists(&*store);
        assert_eq!(lists.len() as i64, keys);
        assert!(lists.iter().all(|(_, first, rest)| *first == position(0, 1) && rest.len() == 18));
    });
}
