//! Goal: the files for CI servers agree with the exit codes, and the shipped workflows are valid.
//! Method: the real binary runs with `--junit` and `--summary`; actionlint checks the workflows.

use std::path::Path;
use std::process::{Command, Stdio};

use test_support::programs;
use test_support::proxy::start_proxy;
use test_support::running::Weir;

/// Runs a command that writes both files. Returns its exit code, the JUnit XML and the summary.
fn run(arguments: &[&str], folder: &Path) -> (i32, String, String) {
    let (junit, summary) = (folder.join("junit.xml"), folder.join("summary.md"));
    let files = ["--junit", junit.to_str().unwrap(), "--summary", summary.to_str().unwrap()];
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(arguments).args(files).stdin(Stdio::null());
    let output = command.output().unwrap();
    let read = |path: &Path| {
        let messages = String::from_utf8_lossy(&output.stderr);
        std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{error}: {messages}"))
    };
    (output.status.code().unwrap(), read(&junit), read(&summary))
}

#[test]
fn a_load_test_writes_a_case_for_each_threshold() {
    let (node, folder) = (Weir::node().start(), tempfile::tempdir().unwrap());
    let url = node.url();
    let load = ["load", &url, "-d", "1s", "-c", "1", "--quiet"];
    let thresholds = ["--threshold", "failed rate<0.5", "--threshold", "latency p(50)<0.000001"];
    let (code, junit, summary) = run(&[&load[..], &thresholds].concat(), folder.path());
    assert!(junit.contains("<testcase name=\"failed rate&lt;0.5\""), "{junit}");
    let is_broken = junit.contains("<failure message=\"observed ") || junit.contains("<skipped ");
    assert!(is_broken && junit.contains(" tests=\"3\""), "{junit}");
    // A busy machine may make the run invalid.
    let verdict = if code == 3 { "<failure message=" } else { "<error message=" };
    assert!(junit.contains(verdict), "{code} {junit}");
    assert!(summary.starts_with("## "), "{summary}");

    let (_, _, both) = run(&[&load[..], &thresholds].concat(), folder.path());
    assert!(both.starts_with(&summary), "the summary is appended: {both}");
}

#[test]
fn equal_writes_a_case_for_each_method_and_difference() {
    let (node, folder) =
        (Weir::node().args(&["--block-time", "1h"]).start(), tempfile::tempdir().unwrap());
    let proxy = start_proxy(&node.address, |request, response| {
        let is_planted = request.contains("eth_getCode");
        if is_planted {
            response.replace("\"result\":\"", "\"result\":\"0x00<&>")
        } else {
            response
        }
    });
    let (code, junit, summary) = run(&["equal", &node.url(), &proxy], folder.path());
    assert_eq!(code, 1);
    assert!(junit.contains("<testcase name=\"eth_getCode: different value /result\""), "{junit}");
    assert!(junit.contains("<testcase name=\"eth_getBalance\""), "{junit}");
    assert!(junit.contains("0x00&lt;&amp;&gt;"), "{junit}");
    assert!(summary.starts_with("## DIFFERENT: "), "{summary}");
}

#[test]
fn comparisons_and_studies_write_their_verdicts() {
    let folder = tempfile::tempdir().unwrap();
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/erigon-perf");
    let report = data.join("dell_g55587__eth_getBalance_2023-12-24-15-39-39_perf.csv");
    let (code, junit, summary) = run(&["compare", report.to_str().unwrap()], folder.path());
    assert_eq!(code, 0);
    assert!(junit.contains("type=\"worse\"") && junit.contains("classname=\"weir.compare\""));
    assert!(summary.starts_with("## Comparison"), "{summary}");

    let folder = tempfile::tempdir().unwrap();
    let samples = |name: &str, speed: u64| {
        let rows = (0..60).map(|second| format!("{second},{}\n", second * speed));
        let path = folder.path().join(name);
        std::fs::write(&path, format!("seconds,height\n{}", rows.collect::<String>())).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (slow, fast) = (samples("slow.csv", 9_000), samples("fast.csv", 18_000));
    let (code, junit, _) = run(&["study", "sync", "--csv", &slow, &fast], folder.path());
    assert_eq!(code, 0);
    assert!(junit.contains("<testcase name=\"fast against slow\""), "{junit}");
}

#[test]
fn workflows_are_valid() {
    let Some(actionlint) = programs::require("actionlint") else { return };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let lint = |arguments: &[&Path]| Command::new(&actionlint).args(arguments).output().unwrap();
    let workflows =
        ["examples/ci/github.yml", ".github/workflows/check.yml", ".github/workflows/release.yml"]
            .map(|workflow| root.join(workflow));
    let output = lint(&workflows.each_ref().map(|workflow| workflow.as_path()));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));

    let folder = tempfile::tempdir().unwrap();
    let faulty = folder.path().join("check.yml");
    let text = std::fs::read_to_string(&workflows[1]).unwrap();
    std::fs::write(&faulty, text.replace("runs-on:", "runs-at:")).unwrap();
    assert!(!lint(&[&faulty]).status.success(), "actionlint misses a wrong key");
}
