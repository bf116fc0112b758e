//! Goal: the results of the shipped studies of rate limits and connection modes agree with
//! arithmetic and with the servers' access logs. Method: the real binary runs the shipped files,
//! with few cases and short runs, against a real nginx and simulated nodes.

use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;

use crate::load_study::{published, weir};

/// Wide validity limits, because tests share their machine.
const WIDE_LIMITS: &str = "\n[validity]\nscheduling_delay_p99_max = \"10m\"\n\
                    scheduling_delay_share_max = 100\nwaited_share_max = 1\n";

fn shipped(name: &str) -> String {
    let studies = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../studies");
    std::fs::read_to_string(studies.join(name)).unwrap()
}

/// Writes plans with wide validity limits into a folder.
fn write_plans(folder: &TempDir, names: &[&str]) {
    for name in names {
        std::fs::write(folder.path().join(name), shipped(name) + WIDE_LIMITS).unwrap();
    }
}

/// Returns the study with only the cases whose names `keep` accepts.
fn with_cases(text: &str, keep: impl Fn(&str) -> bool) -> String {
    let mut parts = text.split("\n[[case]]\n");
    let head = parts.next().unwrap().to_owned();
    let is_kept = |case: &&str| {
        let (_, rest) = case.split_once("name = \"").unwrap();
        keep(rest.split('"').next().unwrap())
    };
    parts.filter(is_kept).fold(head, |text, case| format!("{text}\n[[case]]\n{case}"))
}

/// Replaces a text that must exist.
fn replace(text: &str, from: &str, to: &str) -> String {
    assert!(text.contains(from), "{from} is not in the study");
    text.replace(from, to)
}

/// Runs a study of one round, which is too few for intervals, and returns its rows of counts.
fn counts(folder: &TempDir, name: &str, text: &str) -> (Vec<Value>, String) {
    std::fs::write(folder.path().join(name), text).unwrap();
    let (code, json, progress) = weir(folder.path(), &[name, "--json"]);
    assert_eq!(code, 4, "one round has no intervals: {progress}");
    let result = published(&json);
    let conclusions = result["conclusions"].to_string();
    let rows = result["counts"].as_array().unwrap().clone();
    assert!(!rows.is_empty(), "{progress}");
    (rows, format!("{conclusions} {progress}"))
}

fn text<'a>(row: &'a Value, key: &str) -> &'a str {
    row[key].as_str().unwrap_or_else(|| panic!("no {key} in {row:#}"))
}

fn number(row: &Value, pointer: &str) -> f64 {
    row.pointer(pointer)
        .and_then(Value::as_f64)
        .unwrap_or_else(|| panic!("no {pointer} in {row:#}"))
}

/// Asserts that the access log and the generator counted the same requests.
fn assert_log_agrees(row: &Value) {
    assert!(number(row, "/access_log/total") > 0.0, "{row:#}");
    for name in ["total", "limited"] {
        let generator = if name == "total" { "generator_total" } else { "generator_limited" };
        let (log, generator) = (&row["access_log"][name], &row["access_log"][generator]);
        assert_eq!(log, generator, "{row:#}");
    }
}

#[test]
fn the_limits_of_nginx_and_the_gateway_admit_what_their_arithmetic_says() {
    if test_support::programs::require("nginx").is_none() {
        return;
    }
    let folder = TempDir::new().unwrap();
    write_plans(&folder, &["rpcstest.toml", "pairs.toml"]);
    let study = shipped("rate-limits.toml");
    let study = replace(&study, "seconds = 60", "seconds = 2");
    let study = replace(
        &study,
        "rounds_min = 2\nrounds_max = 2",
        "rounds_min = 1\nrounds_max = 1\npause = \"0s\"",
    );
    let study = with_cases(&study, |name| ["04 ", "05 ", "08 ", "10 "].contains(&&name[..3]));
    let (rows, log) = counts(&folder, "rate-limits.toml", &study);
    assert_eq!(rows.len(), 8, "{log}");
    assert!(log.contains("the access logs have exactly the "), "{log}");
    for row in &rows {
        assert_log_agrees(row);
        let admitted = number(row, "/requests") - number(row, "/limited");
        let p95 = number(row, "/p95_ms");
        match &text(row, "plan")[..3] {
            // 32,000r/m is 533.333/s. The first call and the burst of 60 are admitted at once. The
            // load exceeds the limit, except on a machine where other programs slow it down.
            "04 " => {
                let expected = 533.333 + 61.0 / 2.0;
                assert!(admitted <= expected * 1.03, "{admitted} of {expected}: {row:#}");
                // A machine that other programs use may send less than the limit admits.
                if number(row, "/requests") > 800.0 {
                    assert!(admitted >= expected * 0.85, "{admitted} of {expected}: {row:#}");
                    assert!(number(row, "/limited") > 0.0, "{row:#}");
                }
            }
            // The run sends at most 2,000 requests, all within the burst of 3,600.
            "05 " => assert_eq!(number(row, "/limited"), 0.0, "{row:#}"),
            // The second call of each pair waits for one refill: 125 ms in case 08, 31.25 ms in
            // case 10. It waits longer on a machine that other programs use.
            "08 " => assert!((124.0..425.0).contains(&p95), "{p95}: {row:#}"),
            "10 " => assert!((30.0..331.0).contains(&p95), "{p95}: {row:#}"),
            other => panic!("unexpected case {other}"),
        }
    }
}

#[test]
fn the_five_connection_modes_differ_in_their_handshakes() {
    let programs = ["nginx", "openssl"];
    if programs.into_iter().any(|name| test_support::programs::require(name).is_none()) {
        return;
    }
    let folder = TempDir::new().unwrap();
    write_plans(&folder, &["connection-modes.toml"]);
    let study = shipped("five-modes.toml");
    let study = replace(&study, "seconds = 10", "seconds = 1, connections = 8");
    let study = replace(
        &study,
        "rounds_min = 4\nrounds_max = 8",
        "rounds_min = 1\nrounds_max = 1\nwarm_up_rounds = 0\ncontrol = false\npause = \"0s\"",
    );
    let study = with_cases(&study, |name| name.ends_with(" 1 CPU"));
    // The variant with a cache is removed, because it would only make the test slower.
    let (head, rest) = study.split_once("\n[[variant]]\nname = \"cached\"").unwrap();
    let (_, cases) = rest.split_once("\n[[case]]\n").unwrap();
    let (rows, log) = counts(&folder, "five-modes.toml", &format!("{head}\n[[case]]\n{cases}"));
    assert_eq!(rows.len(), 10, "{log}");
    for row in &rows {
        assert_log_agrees(row);
        assert_eq!(number(row, "/failed_share"), 0.0, "{row:#}");
        let requests = number(row, "/requests");
        // CPU time is counted in ticks of 10 ms; few requests may use less than a tick.
        assert!(number(row, "/cpu_ms_per_request") > 0.0 || requests < 1_000.0, "{row:#}");
        assert_eq!(number(row, "/cpu_limit/cpus"), 1.0, "{row:#}");
        let (full, resumed) = (number(row, "/handshakes_full"), number(row, "/handshakes_resumed"));
        match text(row, "plan") {
            "http short 1 CPU" | "http kept open 1 CPU" => {
                assert_eq!((full, resumed), (0.0, 0.0), "{row:#}");
            }
            "https full 1 CPU" => {
                assert_eq!(resumed, 0.0, "{row:#}");
                assert!(full >= requests, "a handshake for each request: {row:#}");
            }
            // The first connection of each of the 8 workers has no session to resume.
            "https resumed 1 CPU" => {
                assert!(resumed > 0.0 && full <= 9.0, "{row:#}");
                assert!(full + resumed >= requests, "{row:#}");
            }
            "https kept open 1 CPU" => {
                assert_eq!(resumed, 0.0, "{row:#}");
                assert!(full > 0.0 && full <= 9.0, "a handshake for each worker: {row:#}");
            }
            other => panic!("unexpected case {other}"),
        }
    }
}
