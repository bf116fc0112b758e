//! Goal: what only a server can do goes well: partitions, writers that lose their place, failures of
//! all kinds, and few ways there and back. Method: a real server; failures are made by SQL on the side.

use std::time::{Duration, Instant};

use super::schema::{KNOWN, PARTITION_BLOCKS};
use crate::places::place;
use crate::reader::{Form, Reader};
use crate::sample;
use crate::search::Bounds;
use crate::serve::{Found, Scope};
use crate::store::kinds::{self, Kinds};
use crate::store::tests::{all_places, block, blocks, facts};
use crate::store::{Kept, Location, Settings, Store, StoreError};

fn open(at: &Location) -> Store {
    Store::open(at, Settings::default()).unwrap()
}

/// One that holds blocks 0 to 9.
fn written(kinds: &Kinds) -> (Location, Store) {
    let at = kinds.at("index");
    let mut store = open(&at);
    store.found(&facts(), &[]).unwrap();
    store.append(&blocks(0..=9), 5).unwrap();
    (at, store)
}

/// Runs SQL in the session of a store.
fn within(store: &Store, sql: &str) {
    let Kept::Postgres(postgres) = &store.kept else { unreachable!() };
    postgres.session.run(sql).unwrap();
}

fn schema(at: &Location) -> &str {
    let Location::Server(server) = at else { unreachable!() };
    &server.schema
}

#[test]
fn blocks_on_both_sides_of_a_border_are_one_index() {
    kinds::with_server(|kinds| {
        let at = kinds.at("index");
        let mut store = open(&at);
        store.found(&facts(), &[]).unwrap();
        let border = PARTITION_BLOCKS as u64;
        store.append(&blocks(border - 3..=border + 3), 0).unwrap();
        store.append(&blocks(border + 4..=border + 5), 0).unwrap();
        // A list begins before the border and goes on behind it.
        let found = store.places(&[7], place(border, 0), i64::MAX, 9).unwrap();
        assert_eq!(found.places.len(), 6 * 3);
        assert_eq!((store.totals().unwrap(), store.holes().unwrap()), ((9, 27), 0));
        let held = store.held().unwrap().unwrap();
        assert_eq!((held.first, held.last), (border - 3, border + 5));
        store.rewind(border - 2, &[7, 0, 1, 2].into()).unwrap();
        assert_eq!(all_places(&store, 7).len(), 2 * 3);
        assert_eq!(store.held().unwrap().unwrap().last, border - 2);
        store.append(&blocks(border - 1..=border), 0).unwrap();
        let named = |name: &str| {
            let sql = format!("UPDATE {name} SET count = count");
            kinds::change(&at, &sql)
        };
        assert_eq!((named("blocks_0"), named("blocks_1")), (3, 1));
    });
}

#[test]
fn partitions_are_made_while_others_read() {
    kinds::with_server(|kinds| {
        let (at, mut store) = written(kinds);
        let reader = Store::open_to_read(&at, Settings::default()).unwrap();
        reader.begin_reading().unwrap();
        assert_eq!(reader.held().unwrap().unwrap().last, 9);
        let next = PARTITION_BLOCKS as u64;
        store.append(&blocks(next..=next), 5).unwrap();
        // What it reads is of one state, whatever is written.
        assert_eq!(reader.held().unwrap().unwrap().last, 9);
        assert!(reader.block(next).unwrap().is_none());
        reader.end_reading().unwrap();
        assert_eq!(reader.held().unwrap().unwrap().last, next);
    });
}

#[test]
fn a_writer_that_lost_its_place_writes_nothing() {
    kinds::with_server(|kinds| {
        let (at, mut first) = written(kinds);
        let taken = Store::open(&at, Settings::default()).err().unwrap();
        assert!(matches!(taken, StoreError::Taken(_)), "{taken}");
        // Its lock is gone, but not its session.
        within(&first, "SELECT pg_advisory_unlock_all()");
        let mut second = open(&at);
        second.append(&blocks(10..=10), 5).unwrap();
        let lost = first.append(&blocks(10..=11), 5).unwrap_err();
        assert!(matches!(lost, StoreError::Taken(_)), "{lost}");
        assert_eq!(second.totals().unwrap(), (11, 33));
        drop(first);
        // Its session is gone, as when the server was started anew.
        let name = schema(&at);
        let reader = Store::open_to_read(&at, Settings::default()).unwrap();
        within(
            &reader,
            &format!(
                "SELECT pg_terminate_backend(pid) FROM pg_locks
                 WHERE locktype = 'advisory' AND objid::int8 = hashtext('{name}')::int8 & 4294967295"
            ),
        );
        let lost = second.append(&blocks(11..=11), 5).unwrap_err();
        assert!(matches!(lost, StoreError::Unreachable { .. }), "{lost}");
        let again = second.append(&blocks(11..=11), 5).unwrap_err();
        assert!(matches!(again, StoreError::Unreachable { .. }), "{again}");
        open(&at).append(&blocks(11..=11), 5).unwrap();
        assert_eq!(reader.totals().unwrap(), (12, 36));
    });
}

#[test]
fn other_schemas_are_refused_and_left_alone() {
    kinds::with_server(|kinds| {
        let refused = |at: &Location| {
            let to_write = Store::open(at, Settings::default()).err().unwrap();
            let to_read = Store::open_to_read(at, Settings::default()).err().unwrap();
            assert_eq!(to_write.to_string(), to_read.to_string());
            to_write
        };
        let elsewhere = written(kinds).1;
        let at = kinds.at("none");
        let missing = Store::open_to_read(&at, Settings::default()).err().unwrap();
        assert!(matches!(missing, StoreError::Missing(_)), "{missing}");
        // An empty schema is as good as none: a database's owner may have made it for us.
        within(&elsewhere, &format!("CREATE SCHEMA {}", schema(&at)));
        let missing = Store::open_to_read(&at, Settings::default()).err().unwrap();
        assert!(matches!(missing, StoreError::Missing(_)), "{missing}");
        drop(open(&at));
        for table in ["birds (name text)", "facts (name text)", "facts (name int, value int)"] {
            let at = kinds.at("other");
            let name = schema(&at);
            within(&elsewhere, &format!("CREATE SCHEMA {name}; CREATE TABLE {name}.{table}"));
            let error = refused(&at);
            assert!(matches!(error, StoreError::Foreign { .. }), "{table}: {error}");
        }
        let (at, store) = written(kinds);
        for (value, is) in [("0", "Foreign"), ("seven", "Foreign"), ("99", "Newer")] {
            within(&store, &format!("UPDATE facts SET value = '{value}' WHERE name = 'schema'"));
            let error = Store::open_to_read(&at, Settings::default()).err().unwrap();
            assert!(format!("{error:?}").starts_with(is), "{error:?}");
        }
        within(&store, &format!("UPDATE facts SET value = '{KNOWN}' WHERE name = 'schema'"));
        assert_eq!(Store::open_to_read(&at, Settings::default()).unwrap().totals().unwrap().0, 10);
    });
}

#[test]
fn a_step_that_the_server_refuses_leaves_nothing() {
    kinds::with_server(|kinds| {
        let (at, mut store) = written(kinds);
        for (code, is) in [
            ("53100", "Full("),
            ("25006", "ReadOnly("),
            ("42501", "Refused {"),
            ("57P01", "Unreachable {"),
            ("XX001", "Damaged("),
            ("22012", "Server {"),
        ] {
            within(
                &store,
                &format!(
                    "CREATE FUNCTION fails() RETURNS trigger LANGUAGE plpgsql AS
                     $$ BEGIN RAISE EXCEPTION 'so it is' USING ERRCODE = '{code}'; END $$;
                     CREATE TRIGGER fails BEFORE INSERT ON log_places_0
                     FOR EACH ROW EXECUTE FUNCTION fails()"
                ),
            );
            let error = store.append(&blocks(10..=12), 5).unwrap_err();
            assert!(format!("{error:?}").starts_with(is), "{code}: {error:?}");
            assert!(error.to_string().contains("so it is"), "{error}");
            assert_eq!(store.totals().unwrap(), (10, 30));
            within(&store, "DROP TRIGGER fails ON log_places_0; DROP FUNCTION fails()");
        }
        store.append(&blocks(10..=12), 5).unwrap();
        let mut reader = Store::open_to_read(&at, Settings::default()).unwrap();
        let error = reader.append(&blocks(13..=13), 5).unwrap_err();
        assert!(matches!(error, StoreError::ReadOnly(_)), "{error}");
        // The same block again is no step.
        let error = store.append(&blocks(12..=12), 5).unwrap_err();
        assert!(error.to_string().contains("duplicate key"), "{error}");
    });
}

#[test]
fn what_takes_too_long_is_given_up() {
    kinds::with_server(|kinds| {
        let (at, store) = written(kinds);
        let patience = Duration::from_millis(200);
        let hurried = Settings { patience, ..Settings::default() };
        let reader = Store::open_to_read(&at, hurried).unwrap();
        within(&store, "BEGIN; LOCK TABLE facts IN ACCESS EXCLUSIVE MODE");
        let begun = Instant::now();
        let error = reader.held().unwrap_err();
        assert!(matches!(error, StoreError::Unreachable { .. }), "{error}");
        assert!(error.to_string().contains("statement timeout"), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(20));
        within(&store, "ROLLBACK");
        assert!(reader.held().unwrap().is_some(), "the session is good");
    });
}

#[test]
fn a_server_that_is_not_there_is_told_of() {
    kinds::with_server(|kinds| {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        let at: Location =
            format!("postgres://weir@127.0.0.1:{port}/chains?connect_timeout=1").parse().unwrap();
        // It listens, and says nothing.
        let begun = Instant::now();
        let error = Store::open(&at, Settings::default()).err().unwrap();
        assert!(matches!(error, StoreError::Unreachable { .. }), "{error}");
        assert!(error.to_string().contains("connecting took longer than 1s"), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(20));
        drop(free);
        let error = Store::open(&at, Settings::default()).err().unwrap();
        assert!(error.to_string().contains("refused"), "{error}");
        let text = kinds.at("x").to_string();
        let of = |change: &dyn Fn(&str) -> String| {
            let at: Location = change(&text).parse().unwrap();
            let error = Store::open(&at, Settings::default()).err().unwrap();
            assert!(matches!(error, StoreError::Refused { .. }), "{error:?}");
            error.to_string()
        };
        let told = of(&|text| text.replace("/postgres?", "/nowhere?"));
        assert!(told.contains("\"nowhere\" does not exist") && told.contains("createdb"), "{told}");
        let told = of(&|text| text.replace("weir@", "nobody@"));
        assert!(told.contains("\"nobody\" does not exist"), "{told}");
    });
}

/// A question is asked once to warm up, since statements are prepared then.
#[test]
fn questions_are_few_ways_there_and_back() {
    kinds::with_server(|kinds| {
        let at = kinds.at("sample");
        sample::write(&at, "blocks,receipts,logs,hmyv2", 2);
        let mut reader = sample::reader(&at);
        let mut out = Vec::new();
        reader.block(&mut out, sample::FIRST, Form::Whole).unwrap();
        let block: serde_json::Value = serde_json::from_slice(&out).unwrap();
        let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
        let hash = text(&block["transactions"][0]["hash"]);
        let (first, last) = (sample::FIRST, sample::LAST);
        let address = format!("0x{}", "06".repeat(20));
        let all = format!(r#""fromBlock":"{first:#x}","toBlock":"{last:#x}""#);
        let options = crate::harmony::WHOLE_OPTIONS;
        for (method, params, trips) in [
            ("eth_getBlockByNumber", format!(r#"["{first:#x}",true]"#), 4),
            ("eth_getBlockReceipts", format!(r#"["{first:#x}"]"#), 4),
            ("eth_getTransactionByHash", format!(r#"["{hash}"]"#), 4),
            ("eth_getTransactionReceipt", format!(r#"["{hash}"]"#), 4),
            ("eth_getLogs", format!("[{{{all}}}]"), 3),
            ("eth_getLogs", format!(r#"[{{{all},"address":"{address}"}}]"#), 4),
            ("eth_getLogs", format!(r#"[{{{all},"address":"0x{}"}}]"#, "99".repeat(20)), 3),
            ("hmyv2_getBlocks", format!("[{first},{last},{options}]"), 3),
        ] {
            let mut ask = || {
                let before = kinds::trips(reader.store());
                let scope = Scope {
                    finalized: Some(u64::MAX),
                    canonical: &|_, _| true,
                    bounds: Bounds::NONE,
                };
                let found = reader.answer(method, params.as_bytes(), &scope).unwrap();
                assert!(matches!(found, Found::Whole(_)), "{method} {params}");
                kinds::trips(reader.store()) - before
            };
            ask();
            assert_eq!(ask(), trips, "{method} {params}");
        }
    });
}

/// Plans must not depend on how many rows the server believes there are.
#[test]
fn searches_go_by_indexes() {
    kinds::with_server(|kinds| {
        let (at, _store) = written(kinds);
        let reader = Reader::open(&at, Settings::default()).unwrap().unwrap();
        let Kept::Postgres(postgres) = &reader.store().kept else { unreachable!() };
        for sql in [
            "EXPLAIN (COSTS OFF) SELECT hash, time FROM blocks WHERE number = 7",
            "EXPLAIN (COSTS OFF) SELECT place, t.hash, receipt, b.hash, b.time FROM transactions t
             LEFT JOIN blocks b ON number = place >> 20
             WHERE place = ANY('{7, 8}') ORDER BY place",
            "EXPLAIN (COSTS OFF) SELECT number FROM block_hashes JOIN blocks USING (number)
             WHERE short = 1 AND hash = 'x' LIMIT 1",
        ] {
            let rows = postgres.session.all(sql, &[]).unwrap();
            let plan: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
            assert!(!plan.iter().any(|line| line.contains("Seq Scan")), "{plan:#?}");
        }
    });
}

#[test]
fn an_empty_filter_takes_more_rows_than_fit_at_a_time() {
    kinds::with_server(|kinds| {
        let at = kinds.at("index");
        let mut store = open(&at);
        store.found(&facts(), &[]).unwrap();
        store.append(&blocks(0..=800), 800).unwrap();
        let (mut places, mut harmony) = (Vec::new(), 0);
        store
            .items(0, i64::MAX, crate::store::Wanted::Receipt, |item| {
                assert_eq!(
                    item.block,
                    Some((block(places.len() as u64 / 3).hash, places.len() as u64 / 3))
                );
                places.push(item.place);
                Ok::<_, StoreError>(true)
            })
            .unwrap();
        assert_eq!(places.len(), 801 * 3);
        assert!(places.is_sorted());
        store
            .harmony_blocks(0, 800, |_| {
                harmony += 1;
                Ok::<_, StoreError>(true)
            })
            .unwrap();
        assert_eq!(harmony, 401);
        let mut shown = 0;
        store
            .receipts(&places, |_| {
                shown += 1;
                Ok::<_, StoreError>(())
            })
            .unwrap();
        assert_eq!(shown, places.len());
    });
}
