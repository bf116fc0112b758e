//! One test per bug that a user reported, written before the fix.
//!
//! A test's name holds the number of the issue and the wrong behaviour:
//! `r123_a_reload_loses_limits`. The test asserts the right behaviour in few steps.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;

/// Asserts that the program rejects the value of the last argument, without printing the secret.
fn assert_rejected(arguments: &[&str], value: &[u8], expected: &str) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    let output = command.args(arguments).arg(OsStr::from_bytes(value)).output().unwrap();
    let printed = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(!printed.contains("sekrit"), "{printed}");
    assert!(printed.contains(expected), "{printed}");
    assert_eq!(output.status.code(), Some(2), "{printed}");
}

#[test]
fn r22_a_url_without_its_scheme_is_printed_with_its_password() {
    let databases: [&[u8]; 5] = [
        b"weir:sekrit@db.example/chains",
        b"//weir:sekrit@db.example/chains",
        b"postgres:/weir:sekrit@db.example/chains",
        b"host=db.example user=weir password=sekrit",
        b"weir:sekrit\xff@db.example/chains",
    ];
    let expected = "--db: a url without its scheme, postgres://";
    for database in databases {
        assert_rejected(&["index", "stats", "--db"], database, expected);
    }
    let expected = "--from: a url begins with http://";
    let sync = ["index", "sync", "--db", "chain.db", "--from"];
    assert_rejected(&sync, b"weir:sekrit@node.example", expected);
    assert_rejected(
        &["index", "verify", "--db", "chain.db", "--from"],
        b"node.example/sekrit",
        expected,
    );
}
