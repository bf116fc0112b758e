//! Goal: exported tables and requests match the index. Method: blocks are exported from each
//! backend. The Parquet files are read again and compared with the JSON of the blocks.

use std::collections::BTreeSet;

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Field, Row};
use serde_json::Value;

use super::*;
use crate::fixture::{self, BLOCKS, FIRST, LAST};
use crate::serve::{Lookup, QueryContext};
use crate::store::test_backends::{self, TestBackend};
use crate::verify::tests::test_block::TestBlock;

fn rows(path: &Path) -> Vec<Row> {
    let file = SerializedFileReader::new(File::open(path).unwrap()).unwrap();
    file.get_row_iter(None).unwrap().map(Result::unwrap).collect()
}

/// Returns a value as text, with numbers in decimal; empty if the value is missing.
fn text(row: &Row, column: &str) -> String {
    let field = row.get_column_iter().find(|(name, _)| name.as_str() == column);
    match field.unwrap_or_else(|| panic!("no column {column}")).1 {
        Field::Null => String::new(),
        Field::ULong(number) => number.to_string(),
        Field::Str(text) => text.clone(),
        other => panic!("{column}: {other:?}"),
    }
}

fn number(value: &Value) -> String {
    let digits = value.as_str().unwrap().strip_prefix("0x").unwrap();
    u128::from_str_radix(digits, 16).unwrap().to_string()
}

fn export_all(
    backend: &TestBackend,
    contents: &str,
    tables: &[Table],
    range: (u64, u64),
) -> (tempfile::TempDir, Vec<WrittenTable>) {
    let folder = tempfile::tempdir().unwrap();
    let location = backend.location("file");
    fixture::write(&location, contents, 2);
    let stop = AtomicBool::new(false);
    let out = folder.path().join("out");
    let mut reader = fixture::reader(&location);
    let written_tables = export(&mut reader, tables, &out, range, &mut |_| (), &stop).unwrap();
    let names: BTreeSet<String> = std::fs::read_dir(&out)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let expected = tables.iter().map(|table| format!("{}.parquet", table.name())).collect();
    assert_eq!(names, expected);
    (folder, written_tables)
}

#[test]
fn tables_match_the_json() {
    test_backends::each(|backend| {
        let (folder, written_tables) =
            export_all(backend, "blocks,receipts,logs", &Table::ALL, (FIRST, LAST));
        let chain = TestBlock::chain(FIRST, BLOCKS);
        let table = |name: &str| rows(&folder.path().join("out").join(format!("{name}.parquet")));
        let (blocks, transactions, logs) = (table("blocks"), table("transactions"), table("logs"));
        assert_eq!((blocks.len(), transactions.len(), logs.len()), (6, 54, 216));
        assert_eq!(written_tables.iter().map(|table| table.rows).collect::<Vec<_>>(), [6, 54, 216]);
        let (mut transactions, mut logs) = (transactions.iter(), logs.iter());
        for (sample, row) in chain.iter().zip(&blocks) {
            assert_eq!(text(row, "number"), number(&sample.block["number"]));
            assert_eq!(text(row, "hash"), sample.block["hash"].as_str().unwrap());
            assert_eq!(text(row, "timestamp"), "1800000000");
            assert_eq!(text(row, "transaction_count"), "9");
            assert_eq!(text(row, "base_fee_per_gas"), "1000000007");
            let receipts = sample.receipts.as_array().unwrap();
            let transaction_list = sample.block["transactions"].as_array().unwrap();
            for (transaction, receipt) in transaction_list.iter().zip(receipts) {
                let row = transactions.next().unwrap();
                assert_eq!(text(row, "block_number"), number(&sample.block["number"]));
                assert_eq!(
                    text(row, "transaction_index"),
                    number(&transaction["transactionIndex"])
                );
                assert_eq!(text(row, "hash"), transaction["hash"].as_str().unwrap());
                assert_eq!(text(row, "value"), number(&transaction["value"]));
                assert_eq!(text(row, "to"), transaction["to"].as_str().unwrap_or_default());
                assert_eq!(text(row, "status"), number(&receipt["status"]));
                assert_eq!(text(row, "gas_used"), number(&receipt["gasUsed"]));
                let contract = receipt["contractAddress"].as_str().unwrap_or_default();
                assert_eq!(text(row, "contract_address"), contract);
            }
            for log in sample.logs().as_array().unwrap() {
                let row = logs.next().unwrap();
                assert_eq!(text(row, "block_hash"), log["blockHash"].as_str().unwrap());
                assert_eq!(text(row, "block_timestamp"), "1800000000");
                assert_eq!(text(row, "log_index"), number(&log["logIndex"]));
                assert_eq!(text(row, "address"), log["address"].as_str().unwrap());
                assert_eq!(text(row, "data"), log["data"].as_str().unwrap());
                for index in 0..4 {
                    let topic = log["topics"][index].as_str().unwrap_or_default();
                    assert_eq!(text(row, &format!("topic{index}")), topic);
                }
            }
        }
    });
}

#[test]
fn logs_alone_and_parts_of_the_range_are_exported() {
    test_backends::each(|backend| {
        let (folder, _) = export_all(backend, "logs", &[Table::Blocks, Table::Logs], (511, 512));
        let blocks = rows(&folder.path().join("out/blocks.parquet"));
        assert_eq!(
            blocks.iter().map(|row| text(row, "number")).collect::<Vec<_>>(),
            ["511", "512"]
        );
        assert!(blocks.iter().all(|row| text(row, "transaction_count") == "9"));
        assert_eq!(rows(&folder.path().join("out/logs.parquet")).len(), 72);
    });
}

#[test]
fn row_groups_are_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t");
    let mut writer = TableWriter::new(&path, File::create(&path).unwrap(), Table::Logs).unwrap();
    let data = "11".repeat(8 << 20);
    let hash = format!("0x{}", "1".repeat(64));
    let log = format!(
        r#"{{"blockNumber":"0x1","blockHash":"{hash}","transactionIndex":"0x0","transactionHash":"{hash}",
            "logIndex":"0x0","address":"0x12","topics":[],"data":"0x{data}"}}"#
    );
    for _ in 0..9 {
        writer.add(1, [log.as_bytes(), b"null"]).unwrap();
    }
    assert_eq!(writer.finish().unwrap(), 9);
    let file = SerializedFileReader::new(File::open(&path).unwrap()).unwrap();
    let groups: Vec<i64> =
        file.metadata().row_groups().iter().map(|group| group.num_rows()).collect();
    assert_eq!(groups, [4, 4, 1]);
}

#[test]
fn missing_contents_and_blocks_are_errors() {
    test_backends::each(|backend| {
        let folder = tempfile::tempdir().unwrap();
        let location = backend.location("file");
        fixture::write(&location, "logs", 2);
        let mut reader = fixture::reader(&location);
        let stored = reader.stored_range().unwrap();
        let error = |from, to| range(stored, from, to).unwrap_err().to_string();
        assert_eq!(range(stored, None, Some(511)).unwrap(), (509, 511));
        assert_eq!(error(Some(500), None), "blocks 500 to 514: the index has 509 to 514");
        assert_eq!(error(None, Some(515)), "blocks 509 to 515: the index has 509 to 514");
        assert_eq!(error(Some(512), Some(511)), "blocks 512 to 511: an empty range");
        let stop = AtomicBool::new(false);
        let out = folder.path().join("out");
        let mut on_block = |_| ();
        let tables = [Table::Blocks, Table::Transactions];
        let error =
            export(&mut reader, &tables, &out, (FIRST, LAST), &mut on_block, &stop).unwrap_err();
        assert_eq!(error.to_string(), "transactions: the index contains only logs");
        let stop = AtomicBool::new(true);
        let stopped =
            export(&mut reader, &[Table::Logs], &out, (FIRST, LAST), &mut on_block, &stop);
        assert!(matches!(stopped, Err(ExportError::Stopped)));
        assert_eq!(std::fs::read_dir(&out).unwrap().count(), 0, "a file is left behind");
    });
}

#[test]
fn requests_find_data_and_depend_on_the_seed() {
    test_backends::each(|backend| {
        let folder = tempfile::tempdir().unwrap();
        let location = backend.location("file");
        fixture::write(&location, "blocks,receipts,logs", 2);
        let mut reader = fixture::reader(&location);
        let mut write = |name: &str, seed| {
            let path = folder.path().join(name);
            let counts = write_requests(&mut reader, &path, (FIRST, LAST), 300, seed).unwrap();
            (std::fs::read_to_string(path).unwrap(), counts)
        };
        let (requests, counts) = write("a", 7);
        assert_eq!(requests, write("b", 7).0);
        assert_ne!(requests, write("c", 8).0);
        assert_eq!(counts.len(), 6, "{counts:?}");
        assert_eq!(counts.iter().map(|(_, count)| count).sum::<u64>(), 300);
        let mut reader = fixture::reader(&location);
        let context = QueryContext {
            finalized: Some(u64::MAX),
            is_canonical: &|_, _| true,
            limits: SearchLimits::NONE,
        };
        for line in requests.lines() {
            let call: Value = serde_json::from_str(line).unwrap();
            let params = call["params"].to_string();
            let method = call["method"].as_str().unwrap();
            let result = reader.lookup(method, params.as_bytes(), &context).unwrap();
            let Lookup::Full(result) = result else { panic!("{line}: {result:?}") };
            assert!(result != b"null" && result != b"[]", "{line}: nothing");
        }
        assert_eq!(requests.lines().count(), 300);
    });
}
