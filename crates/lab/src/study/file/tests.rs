//! Goal: a study file says what runs, and one whose arms differ in more than one setting is refused
//! with their names. Method: small files; faults compared to the letter.

use expect_test::expect;

use super::*;

const HEAD: &str = "study = 'sync'\nname = 'x'\norder = 'alternate'\n";

fn faults(rest: &str) -> String {
    read(&format!("{HEAD}{rest}"), "x.toml").unwrap_err().join("\n") + "\n"
}

fn two(a: &str, b: &str) -> String {
    format!("[[arm]]\nname = 'a'\ncommand = [{a}]\n[[arm]]\nname = 'b'\ncommand = [{b}]\n")
}

#[test]
fn defaults_and_a_shared_command() {
    let text = format!(
        "{HEAD}command = ['p', '--cache', '{{setting}}', '{{samples}}', '{{\"a\":1}}']\n\
         [[arm]]\nname = 'small'\nsetting = '2MiB'\n[[arm]]\nname = 'large'\nsetting = '64MiB'\n"
    );
    assert!(is_study(&text) && !is_study("[target]\n") && !is_study("study"));
    let study = read(&text, "x.toml").unwrap();
    assert_eq!(
        (study.repeats, study.order, study.differ.as_slice()),
        (5, Order::Alternate, &["--cache".to_owned()][..])
    );
    assert_eq!(study.sample, Duration::from_secs(1));
    expect![[r#"
        ok
          arms      small (2MiB), large (64MiB)
          differ in --cache
          runs      5 of each, one after another, the order turned round with each repeat
          at most   10 h 0 min
    "#]]
    .assert_eq(&format!("ok\n{}", study.summary()));
}

#[test]
fn arms_that_differ_in_more_than_one_setting_are_refused() {
    let text =
        two("'p', '--cache=1', '-n', '4', '{samples}'", "'p', '--cache=2', '-n', '8', '{samples}'");
    expect![[r#"
        x.toml: the arms differ in 2: in --cache, -n; whatever comes out could be from any of them. Make them differ in one, or say differ = ["--cache", "-n"]
    "#]]
    .assert_eq(&faults(&text));
    assert!(read(&format!("{HEAD}differ = ['-n', '--cache']\n{text}"), "x").is_ok());
    expect![[r#"
        x.toml: differ = ["-n"]: the arms differ in --cache, -n
    "#]]
    .assert_eq(&faults(&format!("differ = ['-n']\n{text}")));
    let programs = two("'p', '{samples}'", "'q', '{samples}'");
    assert!(read(&format!("{HEAD}{programs}"), "x").is_ok(), "another program is one setting");
    let variable = two("'p', '{samples}'", "'p', '{samples}'") + "env = { CACHE = '1' }\n";
    assert_eq!(read(&format!("{HEAD}{variable}"), "x").unwrap().differ, ["$CACHE"]);
}

#[test]
fn equal_arms_must_be_meant() {
    let text = two("'p', '{samples}'", "'p', '{samples}'");
    expect![[r#"
        x.toml: the arms are equal: what a study finds between them is chance; if that is meant, say differ = []
    "#]]
    .assert_eq(&faults(&text));
    assert!(read(&format!("{HEAD}differ = []\n{text}"), "x").is_ok());
}

#[test]
fn all_faults_are_told_at_once() {
    let text = "repeats = 0\nsample = '1'\ntimeout = '1ms'\n[[setup]]\nname = 'n'\ncommand = []\n\
                [[arm]]\nname = '../a'\ncommand = ['p', '{setting}', '{nonsense}']\n";
    expect![[r#"
        x.toml: repeats = 0: allowed: 1 to 100
        x.toml: sample = "1": not a duration: a number and a unit; allowed: "100ms" to "60s"
        x.toml: timeout = "1ms": allowed: "1s" to "2592000s"
        x.toml: setup "n": there is no command
        x.toml: 1 arms: a study compares 2 to 8
        x.toml: arm "../a": allowed in a name: letters, digits, - _ . and space
        x.toml: arm "../a": {nonsense} is not known; allowed: {arm}, {dir}, {repeat}, {samples}, {setting}, {weir}
        x.toml: arm "../a": no part of its command is {samples}, the file in which it is to say its height
        x.toml: arm "../a": its command has {setting}, but it has no setting
        x.toml: the arms are equal: what a study finds between them is chance; if that is meant, say differ = []
    "#]]
    .assert_eq(&faults(text));
    let told = faults("repaets = 3\n[[arm]]\nname = 'a'\n");
    assert!(
        told.contains("x.toml: TOML parse error at line 4") && told.contains("repaets"),
        "{told}"
    );
    let order = read("study = 'sync'\nname = 'x'\narm = []\n", "x.toml").unwrap_err().join("");
    assert!(order.contains("missing field `order`"), "{order}");
}
