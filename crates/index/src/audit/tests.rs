//! Goal: a sound index is told to be, and every fault is told with its place. Method: indexes of
//! true blocks, in every make and wherever they are kept; then one with each fault planted by SQL in
//! turn.

use std::sync::atomic::AtomicBool;

use super::*;
use crate::sample::{self, BLOCKS, FIRST, LAST};
use crate::store::Location;
use crate::store::kinds::{self, Kind, Kinds};

fn look(path: &Location, level: Level) -> Findings {
    let stop = AtomicBool::new(false);
    audit(&mut sample::reader(path), level, &mut |_| (), &stop).unwrap()
}

fn shown(findings: &Findings) -> Vec<String> {
    findings.all.iter().map(Finding::to_string).collect()
}

#[test]
fn sound_files_are_sound() {
    kinds::each(|kinds| {
        for what in [
            "blocks,receipts,logs",
            "blocks,receipts",
            "blocks,logs",
            "logs",
            "blocks",
            "hmyv2",
            "blocks,receipts,logs,hmyv2",
        ] {
            for at_once in [BLOCKS as usize, 1] {
                let path = kinds.at(&format!("{what}-{at_once}"));
                sample::write(&path, what, at_once);
                for level in [Level::Off, Level::Headers, Level::Full, Level::Senders] {
                    let findings = look(&path, level);
                    assert_eq!(shown(&findings), [""; 0], "{what}, {at_once}, {level}");
                    assert_eq!(
                        findings.held.map(|held| (held.first, held.last)),
                        Some((FIRST, LAST))
                    );
                    assert!(!findings.stopped);
                }
            }
        }
    });
}

#[test]
fn each_block_is_told_of_and_the_look_can_be_ended() {
    kinds::each(|kinds| {
        let path = kinds.at("file");
        sample::write(&path, "blocks,receipts,logs", 2);
        let stop = AtomicBool::new(false);
        let mut steps = Vec::new();
        let mut watch = |step| {
            steps.push(step);
            if matches!(step, Step::Block { at, .. } if at == FIRST + 2) {
                stop.store(true, Ordering::Relaxed);
            }
        };
        let findings = audit(&mut sample::reader(&path), Level::Full, &mut watch, &stop).unwrap();
        assert!(findings.stopped && findings.all.is_empty());
        let block = |at| Step::Block { first: FIRST, at, last: LAST };
        let told =
            [Step::Structures, Step::Lists, block(FIRST), block(FIRST + 1), block(FIRST + 2)];
        assert_eq!(steps, told);
    });
}

/// Tells of the index after the SQL.
fn planted(kinds: &Kinds, what: &str, level: Level, sql: &str) -> Vec<String> {
    let path = kinds.at("file");
    sample::write(&path, what, 2);
    assert!(kinds::change(&path, sql) > 0, "{sql}: nothing was changed");
    shown(&look(&path, level))
}

/// A fault, and what must be told of it; at level off, so that it is seen without hashes.
fn check(kinds: &Kinds, sql: &str, expected: &[&str]) {
    let told = planted(kinds, "blocks,receipts,logs", Level::Off, sql);
    for expected in expected {
        assert!(told.iter().any(|told| told.starts_with(expected)), "{sql}: {told:#?}");
    }
}

#[test]
fn missing_and_changed_rows_are_told() {
    kinds::each(|kinds| {
        check(
            kinds,
            "DELETE FROM blocks WHERE number = 511",
            &["block 511: it is not there", "block 511: a hash that is not its own leads to it"],
        );
        check(
            kinds,
            "DELETE FROM blocks WHERE number IN (511, 512)",
            &["block 511: it and those after it up to 512 are not there"],
        );
        check(
            kinds,
            "DELETE FROM blocks WHERE number = 509",
            &["the index says that it begins with block 509, but block 510 is the first"],
        );
        check(
            kinds,
            "DELETE FROM transactions WHERE place = (512 << 20) + 3",
            &["block 512: 8 transactions, where it says that it has 9"],
        );
        check(
            kinds,
            "DELETE FROM transactions WHERE place = (512 << 20) + 3",
            &["block 512: transaction 3 is not there"],
        );
        check(
            kinds,
            "UPDATE transactions SET place = (700 << 20) + 3 WHERE place = (512 << 20) + 3",
            &["block 700: transaction 3 is there without its block"],
        );
        check(
            kinds,
            "UPDATE blocks SET count = 8 WHERE number = 510",
            &["block 510: 9 transactions"],
        );
        // A server has no partition for it.
        if kinds.kind == Kind::File {
            let sql = "INSERT INTO blocks SELECT -1, hash, time, count, body FROM blocks WHERE number = 510";
            check(kinds, sql, &["there are blocks or transactions with negative numbers"]);
        }
        check(kinds, "UPDATE blocks SET hash = x'12' WHERE number = 510", &["block 510: "]);
    });
}

#[test]
fn hashes_that_lead_elsewhere_are_told() {
    kinds::each(|kinds| {
        check(
            kinds,
            "UPDATE blocks SET hash = (SELECT hash FROM blocks WHERE number = 513) WHERE number = 510",
            &[
                "block 510: its hash does not lead to it",
                "block 511: its parentHash is not the hash of the block before",
            ],
        );
        check(
            kinds,
            "DELETE FROM block_hashes WHERE number = 514",
            &["block 514: its hash does not lead"],
        );
        check(
            kinds,
            "INSERT INTO block_hashes VALUES (12, 513)",
            &["block 513: a hash that is not its own leads to it"],
        );
        check(
            kinds,
            "DELETE FROM transaction_hashes WHERE place = (512 << 20) + 2",
            &["block 512: the hash of transaction 2 does not lead to it"],
        );
        check(
            kinds,
            "INSERT INTO transaction_hashes VALUES (12, (512 << 20) + 2)",
            &["block 512: a hash that is not its own leads to transaction 2"],
        );
        check(
            kinds,
            "INSERT INTO transaction_hashes VALUES (12, (900 << 20) + 2)",
            &["block 900: a hash that is not its own leads to transaction 2"],
        );
    });
}

#[test]
fn lists_of_logs_that_differ_from_the_logs_are_told() {
    kinds::each(|kinds| {
        check(
            kinds,
            "INSERT INTO log_places VALUES (12, (512 << 20) + 2, x'')",
            &["block 512: transaction 2: log_places, key 12, names it, but it has no such log"],
        );
        check(
            kinds,
            "DELETE FROM log_places WHERE (key, first) =
             (SELECT key, first FROM log_places WHERE first >> 20 = 511 LIMIT 1)",
            &["block 511: transaction "],
        );
        check(
            kinds,
            "INSERT INTO log_places VALUES (12, (515 << 20) + 2, x'')",
            &["log_places, key 12: the list from block 515 on names blocks that are not held"],
        );
        check(
            kinds,
            "INSERT INTO log_places VALUES (12, (508 << 20) + 2, x'')",
            &["log_places, key 12: the list from block 508 on names blocks that are not held"],
        );
        check(
            kinds,
            "INSERT INTO log_places SELECT key, first + 1, x'' FROM log_places
             WHERE first >> 20 = 509 AND length(others) > 0 LIMIT 1",
            &["log_places, key "],
        );
        check(
            kinds,
            "INSERT INTO log_places VALUES (12, (512 << 20) + 2, x'80')",
            &["log_places, key 12: the list from block 512 on is cut off"],
        );
        check(
            kinds,
            "INSERT INTO log_places VALUES (12, (512 << 20) + 2, x'00')",
            &["log_places, key 12: the list from block 512 on has places out of order"],
        );
    });
}

#[test]
fn pieces_that_cannot_be_unpacked_are_told() {
    kinds::each(|kinds| {
        for column in ["receipt", "body"] {
            let sql =
                format!("UPDATE transactions SET {column} = x'0028b52ffd' WHERE place = 510 << 20");
            check(kinds, &sql, &["block 510: a damaged piece"]);
            let sql = format!("UPDATE transactions SET {column} = NULL WHERE place = 510 << 20");
            check(kinds, &sql, &["block 510: transaction 0: nothing kept"]);
        }
        check(
            kinds,
            "UPDATE blocks SET body = x'09' WHERE number = 510",
            &["block 510: a damaged piece"],
        );
    });
}

#[test]
fn faults_of_harmonys_blocks_are_told() {
    kinds::each(|kinds| {
        for (sql, expected) in [
            (
                "DELETE FROM harmony_blocks WHERE number = 511",
                "block 511: its hmyv2 form is not there",
            ),
            (
                "UPDATE harmony_blocks SET body = x'0028b52ffd' WHERE number = 511",
                "block 511: a damaged piece",
            ),
            (
                "UPDATE harmony_blocks SET body =
                 (SELECT body FROM harmony_blocks WHERE number = 512) WHERE number = 511",
                "block 511: hmyv2 block.number: not that of the block",
            ),
            (
                "UPDATE harmony_blocks SET body = (SELECT body FROM blocks WHERE number = 511)
                 WHERE number = 511",
                "block 511: hmyv2 block: no JSON",
            ),
            (
                "INSERT INTO harmony_blocks SELECT 900, body FROM harmony_blocks WHERE number = 511",
                "block 900: its hmyv2 form is there without it",
            ),
        ] {
            let told = planted(kinds, "blocks,hmyv2", Level::Off, sql);
            assert_eq!(told.len(), 1, "{sql}: {told:#?}");
            assert!(told[0].starts_with(expected), "{sql}: {told:#?}");
        }
    });
}

/// A changed byte of a packed piece: at times the piece unpacks to something else, which only
/// hashes tell.
#[test]
fn changed_bytes_are_told() {
    kinds::each(|kinds| {
        let change = "substr(X, 1, length(X) - 9) || x'5a' || substr(X, length(X) - 7)";
        for (table, column, of) in [
            ("blocks", "body", "number = 512"),
            ("transactions", "body", "place = (512 << 20) + 4"),
            ("transactions", "receipt", "place = (512 << 20) + 4"),
        ] {
            let changed = change.replace('X', column);
            let sql = format!("UPDATE {table} SET {column} = CAST({changed} AS BLOB) WHERE {of}");
            let told = planted(kinds, "blocks,receipts,logs", Level::Senders, &sql);
            assert!(told.iter().any(|told| told.starts_with("block 512: ")), "{column}: {told:#?}");
        }
    });
}

/// A changed byte of a dictionary that no piece refers to changes no piece, and still is a damage:
/// the next piece may refer to it.
#[test]
fn changed_bytes_of_dictionaries_are_told() {
    kinds::each(|kinds| {
        let sql = "UPDATE dictionaries
            SET bytes = CAST(substr(bytes, 1, 40) || x'5a' || substr(bytes, 42) AS BLOB)";
        check(kinds, sql, &["the dictionaries are not those that the index was made with"]);
    });
}

#[test]
fn no_more_is_told_than_helps() {
    kinds::each(|kinds| {
        let sql = "INSERT INTO log_places SELECT value, (512 << 20) + 2, x''
        FROM (WITH RECURSIVE n(value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM n WHERE value < 50)
              SELECT value FROM n) numbers";
        let told = planted(kinds, "blocks,receipts,logs", Level::Off, sql);
        assert_eq!(told.len(), FINDINGS_MAX);
    });
}
