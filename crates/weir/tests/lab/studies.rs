//! Goal: the lab's results are correct for its use cases. Method: the real binary runs the studies
//! in `studies/` against simulated nodes with planted causes. It also runs loads against a real
//! nginx, whose counts of TLS handshakes and admitted requests are compared with the results.

mod front;

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use front::NginxProxy;
use test_support::raw::Client;
use test_support::running::Weir;

/// Runs `weir load`. Returns its exit code and result.
fn load(target: &str, arguments: &[&str]) -> (i32, Value) {
    let output = Command::new(env!("CARGO_BIN_EXE_weir"))
        .env("TARGET", target)
        .args(["load", "--json", "-", "--quiet"])
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let result = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("no result: {}", String::from_utf8_lossy(&output.stderr)));
    (output.status.code().unwrap(), result)
}

/// Writes a shipped study that allows any scheduling delay, because tests share their machine.
/// Returns the file's path.
fn write_study(folder: &TempDir, name: &str) -> String {
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../studies").join(name);
    let text = std::fs::read_to_string(shipped).unwrap();
    let path = folder.path().join(name.replace('/', "-"));
    std::fs::write(&path, text + "\n[validity]\nscheduling_delay_p99_max = \"10m\"\n").unwrap();
    path.to_str().unwrap().to_owned()
}

fn number(result: &Value, pointer: &str) -> f64 {
    result.pointer(pointer).and_then(Value::as_f64).unwrap_or_else(|| panic!("no {pointer}"))
}

/// A method's row of a result.
fn row<'a>(result: &'a Value, method: &str) -> &'a Value {
    let rows = result["methods"].as_array().unwrap();
    rows.iter().find(|row| row["method"] == method).unwrap()
}

#[test]
fn the_somnia_study_fails_for_the_method_that_hangs_above_a_rate() {
    let node = Weir::node().admin().start();
    // An iteration has two calls, and 1.087 % of the calls are eth_getLogs. So 230 iterations/s
    // reach the limit of 5/s, in the stage step1 with 300/s.
    let rates = r#"{"rates":{"eth_getLogs":{"per_second":5,"burst":1,"over":{"do":"hang"}}}}"#;
    node.set_node_settings(rates);
    let folder = TempDir::new().unwrap();
    let (code, result) = load(
        &node.url(),
        &[
            &write_study(&folder, "somnia.toml"),
            "--set",
            "load_percent=1",
            "--set",
            "time_percent=3",
        ],
    );
    let verdict = &result["verdict"];
    assert_eq!((code, &verdict["outcome"]), (3, &Value::from("fail")), "{verdict}");
    let thresholds = result["thresholds"].as_array().unwrap();
    assert_eq!(thresholds.len(), 3);
    assert!(
        thresholds.iter().all(|threshold| threshold["kept"] == true),
        "the report's own see nothing"
    );
    let failed = number(&result, "/overall/failed_share");
    assert!(failed > 0.002 && failed < 0.01, "{failed}");
    assert!(row(&result, "eth_getLogs")["failed_share"].as_f64().unwrap() > 0.4);
    assert_eq!(row(&result, "eth_blockNumber")["failed_share"], 0.0);

    let reason = verdict["reasons"][0].as_str().unwrap();
    assert!(reason.contains("of the calls of eth_getLogs scheduled since "), "{reason}");
    // The stage step1 lasts from 3.6 s to 7.2 s. Until 12.6 s the rate then rises from 300/s to
    // 600/s.
    let between = |before: &str, after: &str| -> f64 {
        let (_, rest) = reason.split_once(before).unwrap();
        let (number, _) = rest.split_once(after).unwrap();
        number.trim().replace(',', "").parse().unwrap_or_else(|_| panic!("{number:?} in {reason}"))
    };
    let since = between("scheduled since ", " s");
    assert!((3.0..=13.0).contains(&since), "{reason}");
    assert!(reason.contains("mostly timeout") && reason.contains("iterations/s"), "{reason}");
}

#[test]
fn a_machine_with_few_open_files_is_told_which_load_fits() {
    let node = Weir::node().start();
    let folder = TempDir::new().unwrap();
    let plan = write_study(&folder, "somnia.toml");
    let run = |arguments: &str| {
        let weir = env!("CARGO_BIN_EXE_weir");
        let output = Command::new("sh")
            .args(["-c", &format!("ulimit -n 1024 && exec {weir} {arguments}")])
            .env("TARGET", node.url())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, errors) = run(&format!("capacity {plan} --yes"));
    assert_eq!(code, 1, "{errors}");
    // 22,256 files: 10 % of 220,000 workers, and 256 other files.
    for part in [
        "22256 open files are needed",
        "1024 are allowed",
        "ulimit -n 22256",
        "load_percent fits up to 0.3, with 956 open files: --set load_percent=0.3",
    ] {
        assert!(errors.contains(part), "{part} is not in {errors}");
    }
    let (code, errors) = run(&format!("load {plan} --set load_percent=0.3 --set time_percent=0.5"));
    assert_ne!(code, 1, "the advice is right: {errors}");
}

/// Each shipped plan: its file, the arguments of the node that it is made for, and the variables
/// that shorten it to seconds.
const SCALED: &[(&str, &[&str], &[&str])] = &[
    ("bench/hits.toml", &[], &["seconds=3", "connections=4"]),
    ("bench/misses.toml", &[], &["seconds=3", "connections=4"]),
    ("bench/rate.toml", &[], &["seconds=3", "rate=200"]),
    ("connection-modes.toml", &[], &["seconds=3", "connections=4"]),
    ("harmony-plan.toml", HARMONY, &["seconds=0.6", "concurrency=4"]),
    ("pairs.toml", &[], &["seconds=3"]),
    // The plan's rate is far below the rate that its workers and pauses allow.
    ("rpcstest.toml", &["--latency", "20ms"], &["seconds=5", "workers=20"]),
    ("somnia.toml", &[], &["load_percent=0.2", "time_percent=1"]),
];
/// Files in `studies/` that are studies of several runs, not plans. Other tests run or read them.
const STUDIES: [&str; 8] = [
    "batches.toml",
    "bench/latency.toml",
    "bench/tls.toml",
    "bench/tracing.toml",
    "five-modes.toml",
    "harmony-methods.toml",
    "page-cache.toml",
    "rate-limits.toml",
];
const HARMONY: &[&str] = &["--family", "harmony", "--chain-id", "1666600000"];

#[test]
fn every_shipped_study_passes_against_a_sound_node() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../studies");
    let list = |subfolder: &str| {
        let entries = std::fs::read_dir(folder.join(subfolder)).unwrap();
        let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name();
        let path = |name: std::ffi::OsString| format!("{subfolder}{}", name.to_str().unwrap());
        entries.map(name).map(path).collect::<Vec<_>>()
    };
    let mut shipped = [list(""), list("bench/")].concat();
    shipped.retain(|name| name != "bench" && !STUDIES.contains(&name.as_str()));
    shipped.sort();
    let scaled: Vec<&str> = SCALED.iter().map(|(name, ..)| *name).collect();
    assert_eq!(shipped, scaled, "each study in studies/ is run here");
    let folder = TempDir::new().unwrap();
    for (name, node, variables) in SCALED {
        let node = Weir::node().args(node).start();
        let plan = write_study(&folder, name);
        let set = variables.iter().flat_map(|variable| ["--set", variable]);
        let arguments: Vec<&str> = std::iter::once(plan.as_str()).chain(set).collect();
        let (code, result) = load(&node.url(), &arguments);
        let verdict = &result["verdict"];
        // On a busy machine the run is client-limited. Its thresholds must hold nevertheless.
        if code == 5 && verdict.to_string().contains("other processes used this machine") {
            let thresholds = result["thresholds"].as_array().unwrap();
            assert!(
                thresholds.iter().all(|threshold| threshold["kept"] == true),
                "{name}: {result}"
            );
        } else {
            assert_eq!((code, &verdict["outcome"]), (0, &Value::from("pass")), "{name}: {verdict}");
        }
        let client = result["target"]["client"].as_str().unwrap();
        let family = result["target"]["family"].as_str().unwrap();
        assert_eq!(client.starts_with("Harmony"), family == "harmony", "{name}: {client}");
    }
}

#[test]
fn the_rpcstest_study_is_limited_by_its_own_pauses() {
    let node = Weir::node().args(&["--latency", "2ms"]).start();
    let folder = TempDir::new().unwrap();
    let plan = write_study(&folder, "rpcstest.toml");
    let (code, result) = load(&node.url(), &[&plan, "--set", "seconds=5"]);
    let verdict = &result["verdict"];
    assert_eq!((code, &verdict["outcome"]), (5, &Value::from("client-limited")), "{verdict}");
    assert!(verdict.to_string().contains("at most 1000/s (100 workers"), "{verdict}");
    let rate = number(&result, "/overall/calls") / 5.0;
    // A busy machine sends fewer calls, never more.
    assert!((800.0..=985.0).contains(&rate), "the report's figure is 980: {rate}");
}

/// ApacheBench (`ab`) counts a response as failed if its length differs from that of the first one.
/// The lab does not.
#[test]
fn responses_of_another_length_are_no_failures() {
    let node = Weir::node()
        .args(&[HARMONY, &["--head", "90", "--block-time", "100ms"][..]].concat())
        .start();
    let call = r#"{"jsonrpc":"2.0","id":1,"method":"hmyv2_getNodeMetadata","params":[]}"#;
    let length = || Client::connect(&node.address).call("/", call.as_bytes()).body.len();
    let length_before = length();
    let url = node.url();
    let (_, result) =
        load(&url, &[&url, "--method", "hmyv2_getNodeMetadata", "-c", "2", "-d", "2s"]);
    assert_ne!(length(), length_before, "the number of the block has one digit more");
    assert!(number(&result, "/overall/calls") > 20.0, "{result}");
    assert_eq!(number(&result, "/overall/failed_share"), 0.0, "{result}");
}

#[test]
fn as_many_sessions_are_resumed_as_nginx_counts() {
    let node = Weir::node().start();
    for (version, tickets) in [("1.2", "on"), ("1.2", "off"), ("1.3", "on"), ("1.3", "off")] {
        let directives = format!(
            "ssl_protocols TLSv{version}; ssl_session_tickets {tickets}; ssl_session_cache off;"
        );
        let Some(nginx) = NginxProxy::secure(&node.address, &directives) else { return };
        for resume in ["on", "off"] {
            let (full_before, resumed_before) = nginx.handshakes();
            let (code, result) = load(
                &nginx.url(),
                &[
                    &nginx.url(),
                    "--insecure",
                    "--tls-version",
                    version,
                    "--tls-resume",
                    resume,
                    "--connections",
                    "close",
                    "-c",
                    "4",
                    "-n",
                    "200",
                    "--method",
                    "eth_blockNumber",
                ],
            );
            let case = format!("TLS {version}, tickets {tickets}, resumption {resume}");
            assert_ne!(code, 1, "{case}");
            assert_eq!(result["overall"]["failed_share"], 0.0, "{case}");
            let (full_after, resumed_after) = nginx.handshakes();
            let nginx_full = (full_after - full_before) as f64;
            let nginx_resumed = (resumed_after - resumed_before) as f64;
            let reported = |name| number(&result, &format!("/wire/traffic/handshakes_{name}"));
            let resumed = reported("resumed");
            // The checks of the target before and after the run open connections too.
            let outside_run = nginx_full + nginx_resumed - reported("full") - resumed;
            assert!((0.0..=12.0).contains(&outside_run), "{case}: {outside_run}");
            assert!((nginx_resumed - resumed).abs() <= outside_run, "{case}: {nginx_resumed}");
            let is_resumption_expected = tickets == "on" && resume == "on";
            // The first connection of each worker has no session to resume.
            assert_eq!(resumed >= 190.0, is_resumption_expected, "{case}: {resumed}");
            assert_eq!(resumed == 0.0, !is_resumption_expected, "{case}: {resumed}");
        }
    }
}

#[test]
fn nginx_admits_the_rate_that_its_limit_is_set_to() {
    let node = Weir::node().start();
    for rate in [50_u32, 200] {
        let zone = format!("limit_req_zone $server_addr zone=all:1m rate={rate}r/s;");
        // nginx counts in whole milliseconds, and a busy machine may send up to 400 ms late. The
        // burst absorbs both; the warm-up uses up the rest of the burst.
        let location = format!(
            "limit_req zone=all burst={} nodelay; limit_req_status 429; add_header Retry-After 1 always;",
            rate * 2 / 5
        );
        let Some(nginx) = NginxProxy::plain(&node.address, &zone, &location) else { return };
        let offered_rate = (rate * 4).to_string();
        let (_, result) = load(
            &nginx.url(),
            &[
                &nginx.url(),
                "-r",
                &offered_rate,
                "--warmup",
                "1s",
                "-d",
                "11s",
                "--method",
                "eth_blockNumber",
            ],
        );
        let admitted = number(&result, "/overall/goodput");
        let expected = f64::from(rate);
        assert!((admitted / expected - 1.0).abs() <= 0.01, "{admitted} instead of {expected}");
        let limited = number(&result, "/overall/limited_share");
        assert!((limited - 0.75).abs() < 0.01, "{limited}");
        assert_eq!(result["overall"]["failed_share"], 0.0, "a 429 is no failure");
        let wait = number(&result, "/wire/retry_after/p50_ms");
        assert!((wait / 1_000.0 - 1.0).abs() < 0.001, "{wait}");
    }
}
