//! Goal: an undamaged index has no findings, and the audit finds each damage and its block. Method:
//! indexes of valid blocks with various contents in each backend, which SQL then damages in various
//! ways.

use std::sync::atomic::AtomicBool;

use super::*;
use crate::fixture::{self, BLOCKS, FIRST, LAST};
use crate::store::Location;
use crate::store::test_backends::{self, Backend, TestBackend};

fn audit_index(path: &Location, level: Level) -> Report {
    let stop = AtomicBool::new(false);
    audit(&mut fixture::reader(path), level, &mut |_| (), &stop).unwrap()
}

fn finding_texts(report: &Report) -> Vec<String> {
    report.findings.iter().map(Finding::to_string).collect()
}

#[test]
fn undamaged_indexes_have_no_findings() {
    test_backends::each(|backend| {
        for contents in [
            "blocks,receipts,logs",
            "blocks,receipts",
            "blocks,logs",
            "logs",
            "blocks",
            "hmyv2",
            "blocks,receipts,logs,hmyv2",
        ] {
            for per_transaction in [BLOCKS as usize, 1] {
                let path = backend.location(&format!("{contents}-{per_transaction}"));
                fixture::write(&path, contents, per_transaction);
                for level in [Level::Off, Level::Headers, Level::Full, Level::Senders] {
                    let report = audit_index(&path, level);
                    assert_eq!(
                        finding_texts(&report),
                        [""; 0],
                        "{contents}, {per_transaction}, {level}"
                    );
                    let range = report.range.map(|range| (range.first, range.last));
                    assert_eq!(range, Some((FIRST, LAST)));
                    assert!(!report.stopped);
                }
            }
        }
    });
}

#[test]
fn an_audit_reports_each_step_and_can_be_stopped() {
    test_backends::each(|backend| {
        let path = backend.location("file");
        fixture::write(&path, "blocks,receipts,logs", 2);
        let stop = AtomicBool::new(false);
        let mut steps = Vec::new();
        let mut on_step = |step| {
            steps.push(step);
            if matches!(step, AuditStep::Block { current, .. } if current == FIRST + 2) {
                stop.store(true, Ordering::Relaxed);
            }
        };
        let report = audit(&mut fixture::reader(&path), Level::Full, &mut on_step, &stop).unwrap();
        assert!(report.stopped && report.findings.is_empty());
        let block = |current| AuditStep::Block { first: FIRST, current, last: LAST };
        let expected = [
            AuditStep::Structures,
            AuditStep::Postings,
            block(FIRST),
            block(FIRST + 1),
            block(FIRST + 2),
        ];
        assert_eq!(steps, expected);
    });
}

/// Returns the findings in an index with these contents after SQL has damaged it.
fn findings_after(backend: &TestBackend, contents: &str, level: Level, sql: &str) -> Vec<String> {
    let path = backend.location("file");
    fixture::write(&path, contents, 2);
    assert!(test_backends::execute(&path, sql) > 0, "{sql}: nothing was changed");
    finding_texts(&audit_index(&path, level))
}

/// Checks that an audit finds the damage of this SQL, even without verifying hashes. Each expected
/// text is the beginning of a finding.
fn check_findings(backend: &TestBackend, sql: &str, expected: &[&str]) {
    let findings = findings_after(backend, "blocks,receipts,logs", Level::Off, sql);
    for expected in expected {
        assert!(findings.iter().any(|line| line.starts_with(expected)), "{sql}: {findings:#?}");
    }
}

#[test]
fn missing_and_changed_rows_are_found() {
    test_backends::each(|backend| {
        check_findings(
            backend,
            "DELETE FROM blocks WHERE number = 511",
            &[
                "block 511: the block is missing",
                "block 511: block_hashes has an entry with another hash for it",
            ],
        );
        check_findings(
            backend,
            "DELETE FROM blocks WHERE number IN (511, 512)",
            &["block 511: all blocks from here to 512 are missing"],
        );
        check_findings(
            backend,
            "DELETE FROM blocks WHERE number = 509",
            &["the index must begin with block 509, but its first block is 510"],
        );
        check_findings(
            backend,
            "DELETE FROM transactions WHERE position = (512 << 20) + 3",
            &["block 512: 8 transactions are stored, but its row counts 9"],
        );
        check_findings(
            backend,
            "DELETE FROM transactions WHERE position = (512 << 20) + 3",
            &["block 512: transaction 3 is missing"],
        );
        check_findings(
            backend,
            "UPDATE transactions SET position = (700 << 20) + 3 WHERE position = (512 << 20) + 3",
            &["block 700: transaction 3 is stored without its block"],
        );
        check_findings(
            backend,
            "UPDATE blocks SET count = 8 WHERE number = 510",
            &["block 510: 9 transactions"],
        );
        // PostgreSQL has no partition for negative block numbers.
        if backend.backend == Backend::Sqlite {
            let sql = "INSERT INTO blocks SELECT -1, hash, time, count, body FROM blocks WHERE number = 510";
            check_findings(backend, sql, &["blocks or transactions have negative numbers"]);
        }
        check_findings(
            backend,
            "UPDATE blocks SET hash = x'12' WHERE number = 510",
            &["block 510: "],
        );
    });
}

#[test]
fn wrong_hash_entries_are_found() {
    test_backends::each(|backend| {
        check_findings(
            backend,
            "UPDATE blocks SET hash = (SELECT hash FROM blocks WHERE number = 513) WHERE number = 510",
            &[
                "block 510: its hash has no entry in block_hashes",
                "block 511: its parentHash is not the hash of the block before",
            ],
        );
        check_findings(
            backend,
            "DELETE FROM block_hashes WHERE number = 514",
            &["block 514: its hash has no entry"],
        );
        check_findings(
            backend,
            "INSERT INTO block_hashes VALUES (12, 513)",
            &["block 513: block_hashes has an entry with another hash for it"],
        );
        check_findings(
            backend,
            "DELETE FROM transaction_hashes WHERE position = (512 << 20) + 2",
            &["block 512: the hash of transaction 2 has no entry in transaction_hashes"],
        );
        check_findings(
            backend,
            "INSERT INTO transaction_hashes VALUES (12, (512 << 20) + 2)",
            &["block 512: transaction_hashes has an entry with another hash for transaction 2"],
        );
        check_findings(
            backend,
            "INSERT INTO transaction_hashes VALUES (12, (900 << 20) + 2)",
            &["block 900: transaction_hashes has an entry with another hash for transaction 2"],
        );
    });
}

#[test]
fn posting_lists_that_differ_from_the_logs_are_found() {
    test_backends::each(|backend| {
        check_findings(
            backend,
            "INSERT INTO log_postings VALUES (12, (512 << 20) + 2, x'')",
            &["block 512: transaction 2: log_postings, key 12, lists it, but it has no such log"],
        );
        check_findings(
            backend,
            "DELETE FROM log_postings WHERE (key, first) =
             (SELECT key, first FROM log_postings WHERE first >> 20 = 511 LIMIT 1)",
            &["block 511: transaction "],
        );
        check_findings(
            backend,
            "INSERT INTO log_postings VALUES (12, (515 << 20) + 2, x'')",
            &["log_postings, key 12: the list from block 515 on contains blocks outside the index"],
        );
        check_findings(
            backend,
            "INSERT INTO log_postings VALUES (12, (508 << 20) + 2, x'')",
            &["log_postings, key 12: the list from block 508 on contains blocks outside the index"],
        );
        check_findings(
            backend,
            "INSERT INTO log_postings SELECT key, first + 1, x'' FROM log_postings
             WHERE first >> 20 = 509 AND length(rest) > 0 LIMIT 1",
            &["log_postings, key "],
        );
        check_findings(
            backend,
            "INSERT INTO log_postings VALUES (12, (512 << 20) + 2, x'80')",
            &["log_postings, key 12: the list from block 512 on is truncated"],
        );
        check_findings(
            backend,
            "INSERT INTO log_postings VALUES (12, (512 << 20) + 2, x'00')",
            &["log_postings, key 12: the list from block 512 on is out of order"],
        );
    });
}

#[test]
fn damaged_fragments_are_found() {
    test_backends::each(|backend| {
        for column in ["receipt", "body"] {
            let sql = format!(
                "UPDATE transactions SET {column} = x'0028b52ffd' WHERE position = 510 << 20"
            );
            check_findings(backend, &sql, &["block 510: a damaged fragment"]);
            let sql = format!("UPDATE transactions SET {column} = NULL WHERE position = 510 << 20");
            check_findings(backend, &sql, &["block 510: transaction 0: its fragment is missing"]);
        }
        check_findings(
            backend,
            "UPDATE blocks SET body = x'09' WHERE number = 510",
            &["block 510: a damaged fragment"],
        );
    });
}

#[test]
fn damaged_harmony_blocks_are_found() {
    test_backends::each(|backend| {
        for (sql, expected) in [
            (
                "DELETE FROM harmony_blocks WHERE number = 511",
                "block 511: its hmyv2 form is missing",
            ),
            (
                "UPDATE harmony_blocks SET body = x'0028b52ffd' WHERE number = 511",
                "block 511: a damaged fragment",
            ),
            (
                "UPDATE harmony_blocks SET body =
                 (SELECT body FROM harmony_blocks WHERE number = 512) WHERE number = 511",
                "block 511: hmyv2 block.number: differs from the number in the eth_ form",
            ),
            (
                "UPDATE harmony_blocks SET body = (SELECT body FROM blocks WHERE number = 511)
                 WHERE number = 511",
                "block 511: hmyv2 block: not JSON",
            ),
            (
                "INSERT INTO harmony_blocks SELECT 900, body FROM harmony_blocks WHERE number = 511",
                "block 900: its hmyv2 form is stored without the block",
            ),
        ] {
            let findings = findings_after(backend, "blocks,hmyv2", Level::Off, sql);
            assert_eq!(findings.len(), 1, "{sql}: {findings:#?}");
            assert!(findings[0].starts_with(expected), "{sql}: {findings:#?}");
        }
    });
}

/// A fragment with a changed byte may decompress to other JSON. Only the hashes reveal the change.
#[test]
fn changed_bytes_are_found() {
    test_backends::each(|backend| {
        let change = "substr(X, 1, length(X) - 9) || x'5a' || substr(X, length(X) - 7)";
        for (table, column, condition) in [
            ("blocks", "body", "number = 512"),
            ("transactions", "body", "position = (512 << 20) + 4"),
            ("transactions", "receipt", "position = (512 << 20) + 4"),
        ] {
            let changed = change.replace('X', column);
            let sql =
                format!("UPDATE {table} SET {column} = CAST({changed} AS BLOB) WHERE {condition}");
            let findings = findings_after(backend, "blocks,receipts,logs", Level::Senders, &sql);
            let expected = findings.iter().any(|line| line.starts_with("block 512: "));
            assert!(expected, "{column}: {findings:#?}");
        }
    });
}

/// If no stored fragment refers to the changed byte, decompression does not reveal the change. A
/// later fragment may refer to that byte.
#[test]
fn changed_bytes_of_dictionaries_are_found() {
    test_backends::each(|backend| {
        let sql = "UPDATE dictionaries
            SET bytes = CAST(substr(bytes, 1, 40) || x'5a' || substr(bytes, 42) AS BLOB)";
        check_findings(
            backend,
            sql,
            &["the dictionaries have changed since the index was created"],
        );
    });
}

#[test]
fn the_number_of_findings_is_limited() {
    test_backends::each(|backend| {
        let sql = "INSERT INTO log_postings SELECT value, (512 << 20) + 2, x''
        FROM (WITH RECURSIVE n(value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM n WHERE value < 50)
              SELECT value FROM n) numbers";
        let findings = findings_after(backend, "blocks,receipts,logs", Level::Off, sql);
        assert_eq!(findings.len(), FINDINGS_MAX);
    });
}
