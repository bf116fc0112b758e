//! Goal: joined lists find what the single ones did, and can be rewound. Method: indexes that
//! were written block by block, joined, and compared with those that were written at once.

use wire::logs::Selection;

use crate::places::{INDEX_MAX, pack, place};
use crate::reader::Reader;
use crate::sample::{self, FIRST, LAST};
use crate::search::Bounds;
use crate::store::kinds::{self, Kinds};
use crate::store::tests::block;
use crate::store::{Location, NewBlock, Settings, Store};

type Lists = Vec<(i64, i64, Vec<u8>)>;

fn lists(store: &Store) -> Lists {
    let mut all = Vec::new();
    store
        .lists::<crate::store::StoreError>(|row| {
            all.push((row.key, row.first, row.others.to_vec()));
            Ok(true)
        })
        .unwrap();
    all
}

/// An index of one block that has no logs.
fn empty(kinds: &Kinds) -> (Location, Store) {
    let at = kinds.at("file");
    let mut store = Store::open(&at, Settings::default()).unwrap();
    let block = NewBlock { items: Vec::new(), ..block(0) };
    store.append(&[block], 0).unwrap();
    (at, store)
}

/// Adds a list past all checks.
fn insert(at: &Location, key: i64, places: &[i64]) {
    let others = alloy_primitives::hex::encode(pack(places));
    let sql = format!("INSERT INTO log_places VALUES ({key}, {}, x'{others}')", places[0]);
    assert_eq!(kinds::change(at, &sql), 1);
}

fn found(reader: &mut Reader, filter: &str, range: (u64, u64)) -> String {
    let mut out = Vec::new();
    let selection = Selection::read(filter.as_bytes()).unwrap();
    let bounds = Bounds::NONE;
    reader.logs(&mut out, &selection, range, bounds).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn joined_lists_find_the_same_and_can_be_rewound() {
    kinds::each(|kinds| {
        let path = kinds.at("followed");
        sample::write(&path, "blocks,receipts,logs", 1);
        let at_once = kinds.at("at-once");
        sample::write(&at_once, "blocks,receipts,logs", 6);
        let mut filters = vec!["{}".to_owned()];
        for byte in 0..8 {
            let address = format!("0x{}", format!("{byte:02x}").repeat(20));
            filters.push(format!(r#"{{"address":"{address}"}}"#));
            filters.push(format!(r#"{{"address":["{address}","0x{}"]}}"#, "06".repeat(20)));
        }
        let look = |path: &Location| {
            let mut reader = sample::reader(path);
            let ranges = [(FIRST, LAST), (511, 512), (LAST, LAST), (FIRST, FIRST)];
            let mut all = Vec::new();
            for filter in &filters {
                all.extend(ranges.iter().map(|range| found(&mut reader, filter, *range)));
            }
            all
        };
        let before = look(&path);
        assert!(before.iter().filter(|logs| !logs.is_empty()).count() > 30);
        let mut store = Store::open(&path, Settings::default()).unwrap();
        let single = lists(&store).len() as u64;
        let fewer = store.merge_lists().unwrap();
        assert!(fewer > 0);
        assert_eq!(lists(&store).len() as u64, single - fewer);
        assert_eq!(
            lists(&store),
            lists(&Store::open_to_read(&at_once, Settings::default()).unwrap())
        );
        assert_eq!(look(&path), before);
        assert_eq!(store.merge_lists().unwrap(), 0, "there is nothing left to join");
        store.vacuum().unwrap();
        assert_eq!(look(&path), before);
        // Back to the middle of the joined lists.
        let keys = sample::reader(&path).keys_above(511).unwrap();
        store.rewind(511, &keys).unwrap();
        let last = place(511, INDEX_MAX);
        assert!(!lists(&store).is_empty());
        for (_, first, others) in lists(&store) {
            assert!(crate::places::places(first, &others).all(|place| place <= last));
        }
        let cut = |logs: &str| -> usize { logs.matches("\"logIndex\"").count() };
        let mut reader = sample::reader(&path);
        assert_eq!(cut(&found(&mut reader, "{}", (FIRST, LAST))), 3 * 36);
        let six = format!(r#"{{"address":"0x{}"}}"#, "06".repeat(20));
        assert_eq!(cut(&found(&mut reader, &six, (FIRST, LAST))), 3 * 6);
    });
}

/// Rows in, rows out: those of a key that span at most 256 blocks are one.
#[test]
fn lists_span_at_most_256_blocks_and_one_key() {
    kinds::each(|kinds| {
        let (at, mut store) = empty(kinds);
        let add = |key: i64, numbers: &[u64]| {
            let places: Vec<i64> = numbers.iter().map(|number| place(*number, 3)).collect();
            insert(&at, key, &places);
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
        assert_eq!(store.merge_lists().unwrap(), 3);
        let list = |key, numbers: &[u64]| {
            let places: Vec<i64> = numbers.iter().map(|number| place(*number, 3)).collect();
            (key, places[0], pack(&places))
        };
        let expected = vec![
            list(-5, &[0, 1, 2, 255]),
            list(-5, &[256, 257, 511]),
            list(-5, &[512]),
            list(7, &[512]),
            list(7, &[1000, 1300]),
            list(7, &[1301]),
        ];
        assert_eq!(lists(&store), expected);
    });
}

/// More rows than are looked at in one transaction, with a list across the border.
#[test]
fn lists_are_joined_across_transactions() {
    kinds::each(|kinds| {
        let (at, mut store) = empty(kinds);
        let keys = 2 * super::ROWS_AT_ONCE as i64 / 7;
        let numbers = "WITH RECURSIVE n (value) AS
         (SELECT 0 UNION ALL SELECT value + 1 FROM n WHERE value + 1 <";
        kinds::change(
            &at,
            &format!(
                "INSERT INTO log_places SELECT k.value, (n.value << 20) + 1, x''
             FROM ({numbers} {keys}) SELECT value FROM n) k, ({numbers} 7) SELECT value FROM n) n"
            ),
        );
        assert_eq!(store.merge_lists().unwrap(), 6 * keys as u64);
        let lists = lists(&store);
        assert_eq!(lists.len() as i64, keys);
        assert!(lists.iter().all(|(_, first, others)| *first == place(0, 1) && others.len() == 18));
    });
}
