//! Tests for `weir logs`, which summarizes access logs. Its inputs are files of the gateway and of
//! nginx, compressed files, files with faulty lines, and standard input.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn weir(arguments: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_weir"))
        .arg("logs")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // The command may exit before it has read all input.
    let _ = stdin.write_all(input);
    drop(stdin);
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// An access log of nginx with ten requests per second for three seconds. Every fifth request has
/// the status 429.
fn nginx_log() -> String {
    (0..30)
        .map(|number| {
            let second = number / 10;
            let status = if number % 5 == 4 { 429 } else { 200 };
            format!(
                "203.0.113.{} - - [21/Nov/2026:22:04:0{second} +0000] \"POST / HTTP/1.1\" {status} 10 \
                 \"-\" \"wrk\"\n",
                number % 2
            )
        })
        .collect()
}

#[test]
fn nginx_lines_are_counted_by_second_and_status() {
    let out = weir(&["--format", "combined", "-"], nginx_log().as_bytes());
    assert!(out.status.success(), "{}", text(&out.stderr));
    expect_test::expect![[r#"
        30 lines from 2026-11-21T22:04:00Z to 2026-11-21T22:04:02Z, 15.0 per second

        by second                   all      200      429
        2026-11-21T22:04:00Z         10        8        2
        2026-11-21T22:04:01Z         10        8        2
        2026-11-21T22:04:02Z         10        8        2

        method                                 count   errors    p50 ms    p95 ms    p99 ms
        -                                         30        6         -         -         -

        client                                 count    share
        203.0.113.0                               15   50.0 %
        203.0.113.1                               15   50.0 %
    "#]]
    .assert_eq(text(&out.stdout));
}

#[test]
fn compressed_files_time_bounds_and_json() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(nginx_log().as_bytes()).unwrap();
    file.write_all(&encoder.finish().unwrap()).unwrap();
    let path = file.path().to_str().unwrap();
    let (since, until) = ("2026-11-21T22:04:01Z", "2026-11-21T22:04:02Z");
    let arguments =
        ["--format", "combined", "--json", "--by", "minute", "--since", since, "--until", until];
    let out = weir(&[&arguments[..], &[path]].concat(), b"");
    assert!(out.status.success(), "{}", text(&out.stderr));
    let json: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!((&json["lines"], &json["step_seconds"]), (&10.into(), &60.into()));
    assert_eq!(json["times"][0]["time"], "2026-11-21T22:04:00Z");
    assert_eq!(json["times"][0]["by_status"], serde_json::json!({"200": 8, "429": 2}));
    assert_eq!(json["methods"][0]["p50_ms"], Value::Null);
}

#[test]
fn json_lines_give_methods_with_percentiles_errors_and_keys() {
    let mut lines: String = (1..=100)
        .map(|ms| {
            format!(
                "{{\"time\":\"2026-11-21T22:04:05.5Z\",\"client\":\"::1\",\"key\":\"alice\",\
                 \"method\":\"eth_call\",\"cache\":\"miss\",\"node\":\"a\",\"status\":200,\
                 \"request_time\":{}}}\n",
                f64::from(ms) / 1000.0
            )
        })
        .collect();
    lines.push_str("{\"time\":\"2026-11-21T22:04:06Z\",\"client\":\"::1\",\"method\":\"x\",\"status\":200,\"error\":-32601}\n");
    lines.push_str("not a line\n\n\u{1b}[2J{\"time\":1}\n");
    let out = weir(&["-", "--json"], lines.as_bytes());
    assert!(out.status.success());
    let json: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!((&json["lines"], &json["faulty_lines"]), (&101.into(), &2.into()));
    let method = &json["methods"][0];
    assert_eq!((&method["method"], &method["count"]), (&"eth_call".into(), &100.into()));
    for (name, expected_ms) in [("p50_ms", 50.0), ("p95_ms", 95.0), ("p99_ms", 99.0)] {
        let ms = method[name].as_f64().unwrap();
        assert!((ms - expected_ms).abs() <= expected_ms * 0.02, "{name} is {ms}");
    }
    assert_eq!(json["errors"], serde_json::json!({"-32601": 1}));
    assert_eq!(json["keys"], serde_json::json!([{"key": "alice", "count": 100}]));
    assert_eq!(
        text(&out.stderr),
        "-:102: not a JSON object of an access log\n-:104: not a JSON object of an access log\n"
    );
    // The report must not contain terminal escape sequences from the log.
    let report = weir(&["-"], lines.as_bytes());
    assert!(!text(&report.stdout).contains('\u{1b}'));
}

#[test]
fn unreadable_lines_are_reported() {
    let missing = weir(&["/nowhere.log"], b"");
    assert_eq!(missing.status.code(), Some(1));
    assert!(text(&missing.stderr).contains("cannot read /nowhere.log"));
    assert_eq!(weir(&["-"], nginx_log().as_bytes()).status.code(), Some(1));
    assert_eq!(weir(&["-", "--format", "$status"], b"").status.code(), Some(2));
    assert_eq!(weir(&["-", "--format", "$what"], b"").status.code(), Some(2));
    assert_eq!(weir(&["-"], b"").status.code(), Some(0));
    // The command does not buffer a line that is longer than 64 KiB.
    let endless_line = [b'x'; 200_000];
    let out = weir(&["-"], &endless_line);
    assert!(text(&out.stderr).contains("longer than 65536 bytes"), "{}", text(&out.stderr));
}
