//! Goal: the demo keeps its promise: no error and no wrong response reaches a client while a node
//! lags, stalls, dies and comes back, and the demo's JSON reports this. Method: the real binary,
//! over real sockets, in a run shorter than the default.

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
    let (printed, progress) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{printed}\n{progress}");
    for line in ["0 errors, 0 wrong answers", "p99 through weir", "try next"] {
        assert!(printed.contains(line), "{line:?} is missing: {printed}");
    }
    assert!(!printed.contains('\x1b'), "colours where there is no terminal: {printed}");
    assert!(progress.lines().filter(|line| line.contains(" calls ")).count() >= 4, "{progress}");
    assert!(progress.contains("node-3 dies"), "{progress}");
    assert!(!printed.contains("node-3 dies"), "events are printed twice: {printed}");

    let report: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let number =
        |name: &str| report[name].as_f64().unwrap_or_else(|| panic!("no {name}: {report}"));
    // The demo plans 1,500 calls per second, and every call must end.
    assert_eq!(number("requests"), 18_000.0);
    assert_eq!(number("client_errors"), 0.0);
    assert_eq!(number("wrong_answers"), 0.0);
    assert_eq!(number("compared") + number("not_compared"), 18_000.0);
    assert!(number("compared") >= 9_000.0, "{report}");
    assert!(number("hit_ratio") > 0.5, "{report}");
    assert!(number("joined") > 0.0, "{report}");
    // Another node must answer the calls that a stalled or dead node has not answered.
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
