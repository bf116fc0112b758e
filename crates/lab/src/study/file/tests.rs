//! Goal: a study file defines the runs. A file whose variants differ in more than one setting is
//! rejected with the names of the settings. Method: small files, and exact comparison of the
//! errors.

use std::time::Duration;

use expect_test::expect;

use super::*;

const HEAD: &str = "study = 'sync'\nname = 'x'\norder = 'alternate'\n";

fn faults(rest: &str) -> String {
    read(&format!("{HEAD}{rest}"), "x.toml").unwrap_err().to_string()
}

fn two(a: &str, b: &str) -> String {
    format!("[[variant]]\nname = 'a'\ncommand = [{a}]\n[[variant]]\nname = 'b'\ncommand = [{b}]\n")
}

#[test]
fn defaults_and_a_shared_command() {
    let text = format!(
        "{HEAD}command = ['p', '--cache', '{{setting}}', '{{samples}}', '{{\"a\":1}}']\n\
         [[variant]]\nname = 'small'\nsetting = '2MiB'\n[[variant]]\nname = 'large'\nsetting = '64MiB'\n"
    );
    assert!(is_study(&text) && !is_study("[target]\n") && !is_study("study"));
    let study = read(&text, "x.toml").unwrap();
    assert_eq!(
        (study.repeats(), *study.file.order, study.differ.as_slice()),
        (5, Order::Alternate, &["--cache".to_owned()][..])
    );
    assert_eq!(*study.file.sample, Duration::from_secs(1));
    expect![[r#"
        ok
          variants  small (2MiB), large (64MiB)
          differ in --cache
          runs      5 of each, one after another, the order reversed in each repeat
          at most   10 h 0 min
    "#]]
    .assert_eq(&format!("ok\n{}", study.summary()));
}

#[test]
fn variants_that_differ_in_more_than_one_setting_are_refused() {
    let text =
        two("'p', '--cache=1', '-n', '4', '{samples}'", "'p', '--cache=2', '-n', '8', '{samples}'");
    expect![[r#"
        x.toml:4:1: variant: the variants differ in 2 settings: --cache, -n; any of them may explain the result
           4 | [[variant]]
             | ^^^^^^^^^^^
             allowed: variants that differ in one setting, or differ = ["--cache", "-n"]
    "#]]
    .assert_eq(&faults(&text));
    assert!(read(&format!("{HEAD}differ = ['-n', '--cache']\n{text}"), "x").is_ok());
    expect![[r#"
        x.toml:4:10: differ = ['-n']: the variants differ in --cache, -n
           4 | differ = ['-n']
             |          ^^^^^^
             allowed: differ = ["--cache", "-n"]
    "#]]
    .assert_eq(&faults(&format!("differ = ['-n']\n{text}")));
    let programs = two("'p', '{samples}'", "'q', '{samples}'");
    assert!(read(&format!("{HEAD}{programs}"), "x").is_ok(), "another program is one setting");
    let variable = two("'p', '{samples}'", "'p', '{samples}'") + "env = { CACHE = '1' }\n";
    assert_eq!(read(&format!("{HEAD}{variable}"), "x").unwrap().differ, ["$CACHE"]);
}

#[test]
fn equal_variants_must_be_declared() {
    let text = two("'p', '{samples}'", "'p', '{samples}'");
    expect![[r#"
        x.toml:4:1: variant: the variants are equal, so any difference between them is chance
           4 | [[variant]]
             | ^^^^^^^^^^^
             allowed: variants that differ, or differ = []
    "#]]
    .assert_eq(&faults(&text));
    assert!(read(&format!("{HEAD}differ = []\n{text}"), "x").is_ok());
}

#[test]
fn all_faults_are_reported_at_once() {
    let text = "repeats = 0\nsample = '1'\ntimeout = '1ms'\n[[setup]]\nname = 'n'\ncommand = []\n\
                [[variant]]\nname = '../a'\ncommand = ['p', '{setting}', '{nonsense}']\n";
    expect![[r#"
        x.toml:4:11: repeats = 0: out of range
           4 | repeats = 0
             |           ^
             allowed: a whole number from 1 to 100

        x.toml:5:10: sample = '1': a duration has one of the units us, ms, s, m, h, d
           5 | sample = '1'
             |          ^^^
             allowed: a duration from "100ms" to "1m"

        x.toml:6:11: timeout = '1ms': out of range
           6 | timeout = '1ms'
             |           ^^^^^
             allowed: a duration from "1s" to "30d"

        x.toml:9:11: setup.command = []: the command is empty
           9 | command = []
             |           ^^
             allowed: at least one word

        x.toml:10:1: variant: there are 1 variants
          10 | [[variant]]
             | ^^^^^^^^^^^
             allowed: 2 to 8 variants

        x.toml:10:1: variant: the variant's command has {setting}, but the variant has no setting
          10 | [[variant]]
             | ^^^^^^^^^^^
             allowed: setting = "…"

        x.toml:11:8: variant.name = '../a': not a name
          11 | name = '../a'
             |        ^^^^^^
             allowed: 1 to 64 letters, digits, `-`, `_`, `.` and spaces, not `.` at first

        x.toml:12:11: variant.command = ['p', '{setting}', '{nonsense}']: unknown placeholder {nonsense}
          12 | command = ['p', '{setting}', '{nonsense}']
             |           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
             allowed: {dir}, {repeat}, {samples}, {setting}, {variant}, {weir}

        x.toml:12:11: variant.command = ['p', '{setting}', '{nonsense}']: the command lacks {samples}, the file to which a variant writes its height
          12 | command = ['p', '{setting}', '{nonsense}']
             |           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
             allowed: a command with {samples}
    "#]]
    .assert_eq(&faults(text));
}

#[test]
fn a_misspelt_or_missing_key_is_named_with_its_place() {
    expect![[r#"
        x.toml:4:1: repaets: there is no such key; did you mean repeats?
           4 | repaets = 3
             | ^^^^^^^
             allowed: study, name, question, command, repeats, warm_up, order, sample, timeout, pause, targets, bin, block_time, differ, setup, variant

        x.toml:5:1: variant: there are 1 variants
           5 | [[variant]]
             | ^^^^^^^^^^^
             allowed: 2 to 8 variants

        x.toml:5:1: variant: the variant has no command
           5 | [[variant]]
             | ^^^^^^^^^^^
             allowed: command here or in the study
    "#]].assert_eq(&faults("repaets = 3\n[[variant]]\nname = 'a'\n"));
    expect![[r#"
        x.toml: order: must be set
             allowed: "side-by-side", "alternate"

        x.toml: variant: must be set
             allowed: tables with the keys name, setting, command, env

        x.toml: variant: there are 0 variants
             allowed: 2 to 8 variants

        x.toml:1:9: study = 'sink': there is no such word
           1 | study = 'sink'
             |         ^^^^^^
             allowed: "sync"

        x.toml:3:1: arm: there is no such key
           3 | arm = []
             | ^^^
             allowed: study, name, question, command, repeats, warm_up, order, sample, timeout, pause, targets, bin, block_time, differ, setup, variant
    "#]]
    .assert_eq(&read("study = 'sink'\nname = 'x'\narm = []\n", "x.toml").unwrap_err().to_string());
}
