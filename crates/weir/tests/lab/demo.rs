//! Goal: the demo shows what it promises: no error and no wrong answer reaches a client while a
//! node lags, stalls, dies and comes back, and its JSON says so. Method: the real binary, over real
//! sockets, in a run shorter than a newcomer's.

use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn demo(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.arg("demo").args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn a_demo_ends_well_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("demo.json");
    let output = demo(&["--duration", "12s", "--json", file.to_str().unwrap()]);
    let (told, progress) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{told}\n{progress}");
    for line in ["0 errors, 0 wrong answers", "p99 through weir", "try next"] {
        assert!(told.contains(line), "{line:?} is missing: {told}");
    }
    assert!(!told.contains('\x1b'), "colours where there is no terminal: {told}");
    assert!(progress.lines().filter(|line| line.contains(" calls ")).count() >= 4, "{progress}");
    assert!(progress.contains("node-3 dies"), "{progress}");
    assert!(!told.contains("node-3 dies"), "events are told twice: {told}");

    let report: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let number =
        |name: &str| report[name].as_f64().unwrap_or_else(|| panic!("no {name}: {report}"));
    // 1,500 calls a second were planned, and every one of them ends.
    assert_eq!(number("requests"), 18_000.0);
    assert_eq!(number("client_errors"), 0.0);
    assert_eq!(number("wrong_answers"), 0.0);
    assert_eq!(number("compared") + number("not_compared"), 18_000.0);
    assert!(number("compared") >= 9_000.0, "{report}");
    assert!(number("hit_ratio") > 0.5, "{report}");
    assert!(number("joined") > 0.0, "{report}");
    // A node that stalls or dies leaves calls that another one must answer.
    assert!(number("retried") + number("hedged") > 0.0, "{report}");
    assert!(number("ejected") >= 1.0, "{report}");
    assert!(number("heads") >= 15.0, "{report}");
    assert_eq!(number("reorgs"), 2.0, "{report}");
    let timeline = report["timeline"].as_array().unwrap();
    let has = |words: &str| timeline.iter().any(|at| at["text"].as_str().unwrap().contains(words));
    for words in ["no new blocks", "stalls", "dies", "up again", "last 2 blocks", "last 3 blocks"] {
        assert!(has(words), "{words:?} did not happen: {timeline:?}");
    }
    assert!(has("ejects node-3"), "{timeline:?}");
}

#[test]
fn faulty_arguments_are_reported() {
    for (arguments, expected) in [
        (["--duration", "1s"], "the duration must be from 5s to 1h"),
        (["--duration", "2h"], "the duration must be from 5s to 1h"),
        (["--listen", "here"], "invalid socket address"),
    ] {
        let output = demo(&arguments);
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains(expected), "{}", text(&output.stderr));
    }
    let output = demo(&["--json", "/nonexistent/demo.json"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("cannot write /nonexistent/demo.json"));
}
