//! Goal: `weir check` tells a plan from a gateway's configuration, says what the plan would do, and
//! warns of what it could not show. Method: the real binary on the shipped studies and on faulty
//! files; output compared to the letter.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use expect_test::{Expect, expect};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn weir(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(arguments).current_dir(root()).stdin(Stdio::null());
    command.env_remove("TARGET").output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Exit code, output and complaints of a check.
fn check(arguments: &[&str], expected: Expect) {
    let Output { status, stdout, stderr } = weir(&[&["check"], arguments].concat());
    let mut told = format!("exit {}\n{}", status.code().unwrap(), text(&stdout));
    if !stderr.is_empty() {
        told.push_str("-- stderr\n");
        told.push_str(text(&stderr));
    }
    expected.assert_eq(&told);
}

#[test]
fn the_somnia_study_is_told_with_its_true_shares_and_its_blind_spot() {
    check(&["studies/somnia.toml", "--set", "load_percent=11"], expect![[""]]);
}

#[test]
fn a_set_variable_changes_the_plan() {
    let told = |set: &str| {
        let output = weir(&["check", "studies/rpcstest.toml", "--set", set]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        format!("{}{}", text(&output.stdout), text(&output.stderr))
    };
    assert!(told("workers=100").contains("begin at most 1000 iterations/s"));
    assert!(told("workers=30").contains("begin at most 300 iterations/s"));
}

#[test]
fn every_study_is_right() {
    let folder = root().join("studies");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let file = entry.unwrap().path();
        if file.extension().is_some_and(|extension| extension == "toml") {
            let output = weir(&["check", file.to_str().unwrap()]);
            assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
            count += 1;
        }
    }
    assert!(count >= 4, "only {count} studies were found");
}

#[test]
fn faults_of_plans_end_with_two_and_hold_no_secret() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plan.toml");
    let written = "[target]\nurl = 'http://h/sekrit0123456789abcdef'\ntimeout = 5\n[[scenario]]\n\
                   mix = 'somnai'\nstages = [{ duration = '1m', raet = 3 }]\nworkers_max = 1\n";
    std::fs::write(&file, written).unwrap();
    let output = weir(&["check", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
    let told = text(&output.stderr).replace(folder.path().to_str().unwrap(), "FOLDER");
    assert!(!told.contains("sekrit"));
    expect![[""]].assert_eq(&told);
}

#[test]
fn variables_are_refused_where_there_are_none() {
    let output = weir(&["check", "examples/archive.toml", "--set", "x=1"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("--set is for plans"));
    let output = weir(&["check", "studies/somnia.toml", "--set", "load=1"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).starts_with("--set load = 1: there is no such variable"));
    let output = weir(&["check", "studies/somnia.toml", "--set", "load_percent"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("NAME=NUMBER"));
}
