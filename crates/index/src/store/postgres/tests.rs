//! Goal: partitions, lost locks and failures of the server are handled, and calls need few round
//! trips. Method: a real server. SQL causes its failures.

use std::time::{Duration, Instant};

use super::Postgres;
use super::schema::{PARTITION_BLOCKS, SCHEMA_VERSION};
use crate::fixture;
use crate::postings::position;
use crate::search::SearchLimits;
use crate::serve::{Lookup, QueryContext};
use crate::store::interface::{AuditRows, Table};
use crate::store::test_backends::{self, TestBackend};
use crate::store::tests::{all_postings, block, blocks, metadata};
use crate::store::{self, Location, Settings, Store, StoreError, TransactionPart};

fn open(location: &Location) -> Box<dyn Store> {
    store::open(location, Settings::default()).unwrap()
}

/// Creates an index that holds blocks 0 to 9.
fn index_of_ten_blocks(backend: &TestBackend) -> (Location, Box<dyn Store>) {
    let location = backend.location("index");
    let mut store = open(&location);
    store.initialize(&metadata(), &[]).unwrap();
    store.append(&blocks(0..=9), 5).unwrap();
    (location, store)
}

/// Returns the name of an index's schema.
fn schema(location: &Location) -> &str {
    let Location::Server(server) = location else { unreachable!() };
    &server.schema
}

#[test]
fn an_index_spans_partitions() {
    test_backends::with_postgres(|backend| {
        let location = backend.location("index");
        let mut store = open(&location);
        store.initialize(&metadata(), &[]).unwrap();
        let border = PARTITION_BLOCKS as u64;
        store.append(&blocks(border - 3..=border + 3), 0).unwrap();
        store.append(&blocks(border + 4..=border + 5), 0).unwrap();
        // A list begins before the border and ends after it.
        let postings = store.postings(&[7], position(border, 0), i64::MAX, 9).unwrap();
        assert_eq!(postings.positions.len(), 6 * 3);
        assert_eq!(store.totals().unwrap(), (9, 27));
        let range = store.stored_range().unwrap().unwrap();
        assert_eq!((range.first, range.last), (border - 3, border + 5));
        store.rewind(border - 2, &[7, 0, 1, 2].into()).unwrap();
        assert_eq!(all_postings(&*store, 7).len(), 2 * 3);
        assert_eq!(store.stored_range().unwrap().unwrap().last, border - 2);
        store.append(&blocks(border - 1..=border), 0).unwrap();
        let count_rows = |table: &str| {
            // PostgreSQL returns the number of updated rows.
            let sql = format!("UPDATE {table} SET count = count");
            test_backends::execute(&location, &sql)
        };
        assert_eq!((count_rows("blocks_0"), count_rows("blocks_1")), (3, 1));
    });
}

#[test]
fn partitions_are_created_while_others_read() {
    test_backends::with_postgres(|backend| {
        let (location, mut store) = index_of_ten_blocks(backend);
        let reader = store::open_to_read(&location, Settings::default()).unwrap();
        reader.begin_snapshot().unwrap();
        assert_eq!(reader.stored_range().unwrap().unwrap().last, 9);
        let next = PARTITION_BLOCKS as u64;
        store.append(&blocks(next..=next), 5).unwrap();
        // The snapshot does not see the new block.
        assert_eq!(reader.stored_range().unwrap().unwrap().last, 9);
        assert!(reader.block(next).unwrap().is_none());
        reader.end_snapshot().unwrap();
        assert_eq!(reader.stored_range().unwrap().unwrap().last, next);
    });
}

#[test]
fn a_writer_that_lost_its_lock_writes_nothing() {
    test_backends::with_postgres(|backend| {
        let (location, mut first_writer) = index_of_ten_blocks(backend);
        let error = store::open(&location, Settings::default()).err().unwrap();
        assert!(matches!(error, StoreError::Locked(_)), "{error}");
        // The writer loses its lock, but not its session.
        first_writer.execute("SELECT pg_advisory_unlock_all()");
        let mut second_writer = open(&location);
        second_writer.append(&blocks(10..=10), 5).unwrap();
        let error = first_writer.append(&blocks(10..=11), 5).unwrap_err();
        assert!(matches!(error, StoreError::Locked(_)), "{error}");
        assert_eq!(second_writer.totals().unwrap(), (11, 33));
        drop(first_writer);
        // The writer loses its session, as after a restart of the server.
        let name = schema(&location);
        let reader = store::open_to_read(&location, Settings::default()).unwrap();
        reader.execute(
            &format!(
                "SELECT pg_terminate_backend(pid) FROM pg_locks
                 WHERE locktype = 'advisory' AND objid::int8 = hashtext('{name}')::int8 & 4294967295"
            ),
        );
        let error = second_writer.append(&blocks(11..=11), 5).unwrap_err();
        assert!(matches!(error, StoreError::Unreachable { .. }), "{error}");
        let error = second_writer.append(&blocks(11..=11), 5).unwrap_err();
        assert!(matches!(error, StoreError::Unreachable { .. }), "{error}");
        open(&location).append(&blocks(11..=11), 5).unwrap();
        assert_eq!(reader.totals().unwrap(), (12, 36));
    });
}

#[test]
fn other_schemas_are_rejected_and_unchanged() {
    test_backends::with_postgres(|backend| {
        let rejection = |location: &Location| {
            let to_write = store::open(location, Settings::default()).err().unwrap();
            let to_read = store::open_to_read(location, Settings::default()).err().unwrap();
            assert_eq!(to_write.to_string(), to_read.to_string());
            to_write
        };
        let other_index = index_of_ten_blocks(backend).1;
        let location = backend.location("none");
        let missing = store::open_to_read(&location, Settings::default()).err().unwrap();
        assert!(matches!(missing, StoreError::Missing(_)), "{missing}");
        // An empty schema counts as missing: the database's owner may have created it.
        other_index.execute(&format!("CREATE SCHEMA {}", schema(&location)));
        let missing = store::open_to_read(&location, Settings::default()).err().unwrap();
        assert!(matches!(missing, StoreError::Missing(_)), "{missing}");
        drop(open(&location));
        for table in ["birds (name text)", "facts (name text)", "facts (name int, value int)"] {
            let location = backend.location("other");
            let name = schema(&location);
            other_index.execute(&format!("CREATE SCHEMA {name}; CREATE TABLE {name}.{table}"));
            let error = rejection(&location);
            assert!(matches!(error, StoreError::Foreign { .. }), "{table}: {error}");
        }
        let (location, store) = index_of_ten_blocks(backend);
        for (value, variant) in [("0", "Foreign"), ("seven", "Foreign"), ("99", "Newer")] {
            store.execute(&format!("UPDATE facts SET value = '{value}' WHERE name = 'schema'"));
            let error = store::open_to_read(&location, Settings::default()).err().unwrap();
            assert!(format!("{error:?}").starts_with(variant), "{error:?}");
        }
        store
            .execute(&format!("UPDATE facts SET value = '{SCHEMA_VERSION}' WHERE name = 'schema'"));
        assert_eq!(
            store::open_to_read(&location, Settings::default()).unwrap().totals().unwrap().0,
            10
        );
    });
}

#[test]
fn a_failed_append_changes_nothing() {
    test_backends::with_postgres(|backend| {
        let (location, mut store) = index_of_ten_blocks(backend);
        for (code, variant) in [
            ("53100", "DiskFull("),
            ("25006", "ReadOnly("),
            ("42501", "Denied {"),
            ("57P01", "Unreachable {"),
            ("XX001", "Damaged("),
            ("22012", "Server {"),
        ] {
            store.execute(&format!(
                "CREATE FUNCTION fails() RETURNS trigger LANGUAGE plpgsql AS
                     $$ BEGIN RAISE EXCEPTION 'so it is' USING ERRCODE = '{code}'; END $$;
                     CREATE TRIGGER fails BEFORE INSERT ON log_postings_0
                     FOR EACH ROW EXECUTE FUNCTION fails()"
            ));
            let error = store.append(&blocks(10..=12), 5).unwrap_err();
            assert!(format!("{error:?}").starts_with(variant), "{code}: {error:?}");
            assert!(error.to_string().contains("so it is"), "{error}");
            assert_eq!(store.totals().unwrap(), (10, 30));
            store.execute("DROP TRIGGER fails ON log_postings_0; DROP FUNCTION fails()");
        }
        store.append(&blocks(10..=12), 5).unwrap();
        let mut reader = store::open_to_read(&location, Settings::default()).unwrap();
        let error = reader.append(&blocks(13..=13), 5).unwrap_err();
        assert!(matches!(error, StoreError::ReadOnly(_)), "{error}");
        // A block cannot be appended twice.
        let error = store.append(&blocks(12..=12), 5).unwrap_err();
        assert!(error.to_string().contains("duplicate key"), "{error}");
    });
}

#[test]
fn limits_are_restored_after_a_failed_query() {
    test_backends::with_postgres(|backend| {
        let (location, store) = index_of_ten_blocks(backend);
        let Location::Server(server) = &location else { unreachable!() };
        let settings =
            Settings { query_timeout: Duration::from_millis(7_500), ..Settings::default() };
        let postgres = Postgres::open_to_read(server, settings).unwrap();
        let show = |name: &'static str| {
            let row = postgres.session.query_one(name, &[]).unwrap();
            super::session::read_value::<String>(&row, 0).unwrap()
        };
        let limits = || (show("SHOW statement_timeout"), show("SHOW enable_seqscan"));
        let limits_before = limits();
        assert_eq!(limits_before, ("7500ms".to_owned(), "off".to_owned()));
        store.execute("DROP TABLE blocks CASCADE");
        let error = postgres.count(Table::Blocks).unwrap_err();
        assert!(error.to_string().contains("blocks"), "{error}");
        assert_eq!(limits(), limits_before);
    });
}

#[test]
fn slow_queries_time_out() {
    test_backends::with_postgres(|backend| {
        let (location, store) = index_of_ten_blocks(backend);
        let query_timeout = Duration::from_millis(200);
        let settings = Settings { query_timeout, ..Settings::default() };
        let reader = store::open_to_read(&location, settings).unwrap();
        store.execute("BEGIN; LOCK TABLE facts IN ACCESS EXCLUSIVE MODE");
        let started = Instant::now();
        let error = reader.stored_range().unwrap_err();
        assert!(matches!(error, StoreError::Unreachable { .. }), "{error}");
        assert!(error.to_string().contains("statement timeout"), "{error}");
        assert!(started.elapsed() < Duration::from_secs(20));
        store.execute("ROLLBACK");
        assert!(reader.stored_range().unwrap().is_some(), "the session still works");
    });
}

#[test]
fn an_unreachable_server_is_an_error() {
    test_backends::with_postgres(|_| {
        let silent_listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = silent_listener.local_addr().unwrap().port();
        let location: Location =
            format!("postgres://weir@127.0.0.1:{port}/chains?connect_timeout=1").parse().unwrap();
        // The listener accepts connections and never responds.
        let started = Instant::now();
        let error = store::open(&location, Settings::default()).err().unwrap();
        assert!(matches!(error, StoreError::Unreachable { .. }), "{error}");
        assert!(error.to_string().contains("connecting took longer than 1s"), "{error}");
        assert!(started.elapsed() < Duration::from_secs(20));
        drop(silent_listener);
        let error = store::open(&location, Settings::default()).err().unwrap();
        assert!(error.to_string().contains("refused"), "{error}");
        let text = test_backends::server().unwrap().url("denied");
        let denial = |change: &dyn Fn(&str) -> String| {
            let location: Location = change(&text).parse().unwrap();
            let error = store::open(&location, Settings::default()).err().unwrap();
            assert!(matches!(error, StoreError::Denied { .. }), "{error:?}");
            error.to_string()
        };
        let reason = denial(&|text| text.replace("/postgres?", "/nowhere?"));
        assert!(
            reason.contains("\"nowhere\" does not exist") && reason.contains("createdb"),
            "{reason}"
        );
        let reason = denial(&|text| text.replace("weir@", "nobody@"));
        assert!(reason.contains("\"nobody\" does not exist"), "{reason}");
    });
}

/// The first call of each method prepares statements, so only the round trips of the second call
/// are counted.
#[test]
fn calls_take_few_round_trips() {
    test_backends::with_postgres(|backend| {
        let location = backend.location("sample");
        fixture::write(&location, "blocks,receipts,logs,hmyv2", 2);
        let mut reader = fixture::reader(&location);
        let mut out = Vec::new();
        reader.write_block(&mut out, fixture::FIRST, TransactionPart::Body).unwrap();
        let block: serde_json::Value = serde_json::from_slice(&out).unwrap();
        let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
        let hash = text(&block["transactions"][0]["hash"]);
        let (first, last) = (fixture::FIRST, fixture::LAST);
        let address = format!("0x{}", "06".repeat(20));
        let range = format!(r#""fromBlock":"{first:#x}","toBlock":"{last:#x}""#);
        let options = crate::harmony::STORED_OPTIONS;
        for (method, params, round_trips) in [
            ("eth_getBlockByNumber", format!(r#"["{first:#x}",true]"#), 4),
            ("eth_getBlockReceipts", format!(r#"["{first:#x}"]"#), 4),
            ("eth_getTransactionByHash", format!(r#"["{hash}"]"#), 4),
            ("eth_getTransactionReceipt", format!(r#"["{hash}"]"#), 4),
            ("eth_getLogs", format!("[{{{range}}}]"), 3),
            ("eth_getLogs", format!(r#"[{{{range},"address":"{address}"}}]"#), 4),
            ("eth_getLogs", format!(r#"[{{{range},"address":"0x{}"}}]"#, "99".repeat(20)), 3),
            ("hmyv2_getBlocks", format!("[{first},{last},{options}]"), 3),
        ] {
            let mut call = || {
                let round_trips_before = reader.store().round_trips();
                let context = QueryContext {
                    finalized: Some(u64::MAX),
                    is_canonical: &|_, _| true,
                    limits: SearchLimits::NONE,
                };
                let result = reader.lookup(method, params.as_bytes(), &context).unwrap();
                assert!(matches!(result, Lookup::Full(_)), "{method} {params}");
                reader.store().round_trips() - round_trips_before
            };
            call();
            assert_eq!(call(), round_trips, "{method} {params}");
        }
    });
}

/// The plans of queries must not depend on the server's estimates of row counts.
#[test]
fn queries_use_indexes() {
    test_backends::with_postgres(|backend| {
        let (location, _store) = index_of_ten_blocks(backend);
        let Location::Server(server) = &location else { unreachable!() };
        let postgres = Postgres::open_to_read(server, Settings::default()).unwrap();
        for sql in [
            "EXPLAIN (COSTS OFF) SELECT hash, time FROM blocks WHERE number = 7",
            "EXPLAIN (COSTS OFF) SELECT position, t.hash, receipt, b.hash, b.time FROM transactions t
             LEFT JOIN blocks b ON number = position >> 20
             WHERE position = ANY('{7, 8}') ORDER BY position",
            "EXPLAIN (COSTS OFF) SELECT number FROM block_hashes JOIN blocks USING (number)
             WHERE short = 1 AND hash = 'x' LIMIT 1",
        ] {
            let rows = postgres.session.query(sql, &[]).unwrap();
            let plan: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
            assert!(!plan.iter().any(|line| line.contains("Seq Scan")), "{plan:#?}");
        }
    });
}

#[test]
fn scans_take_several_queries() {
    test_backends::with_postgres(|backend| {
        let location = backend.location("index");
        let mut store = open(&location);
        store.initialize(&metadata(), &[]).unwrap();
        store.append(&blocks(0..=800), 800).unwrap();
        let (mut positions, mut harmony) = (Vec::new(), 0);
        store
            .try_visit_transactions(0, i64::MAX, TransactionPart::Receipt, |row| {
                let number = positions.len() as u64 / 3;
                assert_eq!(row.block, Some((block(number).header.hash, number)));
                positions.push(row.position);
                Ok::<_, StoreError>(true)
            })
            .unwrap();
        assert_eq!(positions.len(), 801 * 3);
        assert!(positions.is_sorted());
        store
            .try_visit_harmony_blocks(0, 800, |_| {
                harmony += 1;
                Ok::<_, StoreError>(true)
            })
            .unwrap();
        assert_eq!(harmony, 401);
        let mut visited = 0;
        store
            .try_visit_receipts(&positions, |_| {
                visited += 1;
                Ok::<_, StoreError>(())
            })
            .unwrap();
        assert_eq!(visited, positions.len());
    });
}
