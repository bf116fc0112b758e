//! Goal: the generated pages in the repository are up to date, a stale page is found and written
//! anew, and the man pages have no fault. Method: the real program runs from the repository's folder.
//!
//! One test needs man. `test_support::programs` documents what happens if it is not installed.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output};

use test_support::programs;

fn generate(arguments: &[&str]) -> Output {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut command = Command::new(env!("CARGO_BIN_EXE_generate"));
    command.args(arguments).current_dir(root).output().unwrap()
}

#[test]
fn pages_are_up_to_date() {
    let output = generate(&["--dir", "docs", "--deploy", "deploy", "--check"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_stale_page_is_reported_and_then_written() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_str().unwrap();
    let run = |more: &[&str]| {
        let arguments = [&["--dir", dir], more].concat();
        generate(&arguments).status.code().unwrap()
    };
    assert_eq!(run(&["--check"]), 1);
    assert_eq!(run(&[]), 0);
    assert_eq!(run(&["--check"]), 0);
    std::fs::write(folder.path().join("cli.md"), "old").unwrap();
    assert_eq!(run(&["--check"]), 1);
}

#[test]
fn man_pages_are_formatted_without_a_warning() {
    let Some(man) = programs::require("man") else { return };
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(generate(&["--man", folder.path().to_str().unwrap()]).status.code(), Some(0));
    let pages: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|page| page.unwrap()).collect();
    assert!(pages.len() > 20, "only {} pages", pages.len());
    for page in pages {
        let mut command = Command::new(&man);
        command.args(["--warnings", "--encoding=UTF-8", "--local-file"]).arg(page.path());
        let output = command.env("LC_ALL", "C.UTF-8").env("MANWIDTH", "80").output().unwrap();
        let warnings = String::from_utf8_lossy(&output.stderr);
        // man warns that it cannot justify a line before a long hash, which is harmless.
        let mut faults = warnings.lines().filter(|line| !line.contains("cannot adjust line"));
        assert!(output.status.success(), "{:?}: {warnings}", page.path());
        assert_eq!(faults.next(), None, "{:?}", page.path());
        assert!(!output.stdout.is_empty());
    }
}
