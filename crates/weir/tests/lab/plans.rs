//! Goal: `weir check` distinguishes a plan from a gateway's configuration, describes the plan's
//! load, and warns about its limits. Method: the real binary on the shipped studies and on invalid
//! files; the output is compared exactly.

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

/// Runs a command and compares its exit code, standard output and standard error.
fn check(arguments: &[&str], expected: Expect) {
    let Output { status, stdout, stderr } = weir(&[&["check"], arguments].concat());
    let mut actual = format!("exit {}\n{}", status.code().unwrap(), text(&stdout));
    if !stderr.is_empty() {
        actual.push_str("-- stderr\n");
        actual.push_str(text(&stderr));
    }
    expected.assert_eq(&actual);
}

#[test]
fn the_somnia_study_is_reported_with_its_true_shares_and_its_blind_spot() {
    check(
        &["studies/somnia.toml", "--set", "load_percent=11"],
        expect![[r#"
            exit 0
            ok: studies/somnia.toml, 2 warnings
            target http://127.0.0.1:8545 (ethereum), timeout 15s
            connections HTTP/1.1, kept open
            scenario warmup (open, mix somnia), up to 2200 workers, delayed iterations dropped
              start 30s: 220 iterations/s
              warm 1m 30s: 220 to 1100 iterations/s
            scenario step_load (open, mix somnia) from 2m, up to 8800 workers, delayed iterations dropped
              step1 2m: 3300 iterations/s
              to-step2 3m: 3300 to 6600 iterations/s
              to-step3 4m: 6600 to 11000 iterations/s
              step3 2m: 11000 iterations/s
              down 1m: 11000 to 0 iterations/s
            scenario spike (open, mix somnia) from 14m, up to 13200 workers, delayed iterations dropped
              spike 20s: 13200 iterations/s
            duration 14m 20s: 5,379,000 iterations, 10,758,000 requests; schedule's mean 12509 requests/s, peak 26400
            mix somnia, step 2: weights add up to 92, so a share is weight / sum
            share of all calls:
               60.870 % eth_blockNumber
               19.022 % eth_getBalance
               10.870 % eth_getBlockByNumber
                4.348 % eth_chainId
                3.804 % net_version
                1.087 % eth_getLogs
            3 thresholds
            -- stderr
            warning: eth_getLogs is 1.087 % of calls: all of them can fail for the rest of the run without breaking "http_req_failed rate<0.01", which needs 92.000 % of them to fail; add failed{method:eth_getLogs}
            warning: the mean of 12509 requests/s follows from the schedule (its peak is 26400): it is not the capacity of the target

        "#]],
    );
}

#[test]
fn a_set_variable_changes_the_plan() {
    let printed = |set: &str| {
        let output = weir(&["check", "studies/rpcstest.toml", "--set", set]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        format!("{}{}", text(&output.stdout), text(&output.stderr))
    };
    assert!(printed("workers=100").contains("start at most 1000 iterations/s"));
    assert!(printed("workers=30").contains("start at most 300 iterations/s"));
}

#[test]
fn every_study_is_right() {
    let folders = ["studies", "studies/bench"].map(|folder| root().join(folder));
    let mut count = 0;
    for entry in folders.iter().flat_map(|folder| std::fs::read_dir(folder).unwrap()) {
        let file = entry.unwrap().path();
        if file.extension().is_some_and(|extension| extension == "toml") {
            let output = weir(&["check", file.to_str().unwrap()]);
            assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
            count += 1;
        }
    }
    assert!(count >= 16, "only {count} studies were found");
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
    let printed = text(&output.stderr).replace(folder.path().to_str().unwrap(), "FOLDER");
    assert!(!printed.contains("sekrit"));
    expect![[r#"
        FOLDER/plan.toml:3:11: target.timeout = 5: a duration needs a unit
           3 | timeout = 5
             |           ^
             allowed: a duration from "1ms" to "10m"

        FOLDER/plan.toml:5:7: scenario.mix = 'somnai': there is no such mix; did you mean somnia?
           5 | mix = 'somnai'
             |       ^^^^^^^^
             allowed: ethereum, harmony, bitcoin, somnia, ethspam, chainbench-eth, json-bench

        FOLDER/plan.toml:6:30: scenario.stages.raet: there is no such key; did you mean rate?
           6 | stages = [{ duration = '1m', raet = 3 }]
             |                              ^^^^
             allowed: name, duration, rate, workers, from, to, steps, spike

        3 faults
    "#]]
    .assert_eq(&printed);
}

/// Only the first faults are printed, but all are counted.
#[test]
fn unlisted_faults_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let unknown_keys = (0..60).map(|index| format!("unknown{index} = 1\n")).collect::<String>();
    for (name, table) in [("plan.toml", "[target]"), ("gateway.toml", "[server]")] {
        let file = folder.path().join(name);
        std::fs::write(&file, format!("{table}\n{unknown_keys}")).unwrap();
        let output = weir(&["check", file.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(2));
        let message = text(&output.stderr);
        let count = message.lines().last().unwrap().strip_suffix(" faults").unwrap();
        assert!(count.parse::<usize>().unwrap() >= 60, "{message}");
    }
}

#[test]
fn variables_are_refused_where_there_are_none() {
    let output = weir(&["check", "examples/archive.toml", "--set", "x=1"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("--set is for plans"));
    let output = weir(&["check", "studies/somnia.toml", "--set", "load=1"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("--set load = 1: there is no such variable"));
    let output = weir(&["check", "studies/somnia.toml", "--set", "load_percent"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("NAME=NUMBER"));
}
