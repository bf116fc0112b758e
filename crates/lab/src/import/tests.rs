//! Goal: all known formats are read, and other files are rejected. Method: summaries that k6 wrote,
//! and outputs of vegeta that follow the encoders in its `lib/results.go`.

use std::path::Path;

use lab_model::results::compare::Metric;

use super::read;
use crate::variant::{Run, TOTAL};

fn file(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(name)).unwrap()
}

fn read_single(content: &[u8]) -> (Run, Vec<String>) {
    let mut variants = read(content, Path::new("runs/own.json")).unwrap();
    assert_eq!((variants.len(), variants[0].runs.len()), (1, 1));
    let variant = variants.remove(0);
    (variant.runs.into_iter().next().unwrap(), variant.notes)
}

fn value(run: &Run, method: &str, metric: Metric) -> Option<f64> {
    run.values.get(&(method.to_owned(), metric)).copied()
}

fn fault(content: &[u8]) -> String {
    read(content, Path::new("x")).unwrap_err().to_string()
}

/// The files have 201 requests in 4 s without failures. The expected values are copied from the
/// files.
#[test]
fn both_shapes_of_k6() {
    let (run, notes) = read_single(&file("k6-summaries/summary-export.json"));
    assert!(notes.len() == 1, "{notes:?}");
    let rate = value(&run, TOTAL, Metric::Goodput).unwrap();
    assert!((50.0..50.5).contains(&rate), "{rate}");
    assert_eq!(value(&run, "eth_chainId", Metric::ServiceP50), Some(0.650_219));
    assert_eq!(value(&run, "eth_chainId", Metric::ServiceP99), Some(1.417_004_26));
    assert_eq!(value(&run, TOTAL, Metric::FailedShare), Some(0.0));
    assert_eq!(value(&run, "true", Metric::ServiceP50), None, "expected_response is no method");

    let (run, notes) = read_single(&file("k6-summaries/machine-readable.json"));
    assert!(notes.iter().any(|note| note.contains("no p(99)")), "{notes:?}");
    let rate = value(&run, TOTAL, Metric::Goodput).unwrap();
    assert!((50.0..50.5).contains(&rate), "{rate}");
    assert_eq!(value(&run, "eth_chainId", Metric::ServiceP50), Some(0.683_61));
    assert_eq!(value(&run, "eth_chainId", Metric::ServiceP95), Some(1.143_945));
    assert_eq!(value(&run, TOTAL, Metric::FailedShare), Some(0.0));
}

/// The data of `handleSummary` has the values one level deeper. All values of a submetric without
/// samples are zero.
#[test]
fn other_shapes_of_k6() {
    let (run, _) = read_single(
        br#"{"metrics":{"http_req_duration":{"type":"trend","values":{"avg":2,"med":1,"max":9}},
        "http_req_duration{rpc:eth_call}":{"values":{"avg":0,"med":0,"max":0}},
        "http_reqs":{"values":{"count":10,"rate":5}},"http_req_failed":{"values":{"rate":0.2}}}}"#,
    );
    assert_eq!(value(&run, TOTAL, Metric::ServiceP50), Some(1.0));
    assert_eq!(value(&run, TOTAL, Metric::Goodput), Some(4.0));
    assert_eq!(value(&run, "eth_call", Metric::ServiceP50), None);
    assert!(fault(br#"{"metrics":{"vus":{"value":1}}}"#).contains("no http_req_duration"));
}

#[test]
fn vegetas_report() {
    let (run, notes) = read_single(
        br#"{"latencies":{"total":1,"mean":12345587,"50th":10234567,"90th":1,"95th":24567890,
        "99th":38901234,"max":98765432,"min":503210},"bytes_in":{"total":1,"mean":1},
        "earliest":"2026-11-22T15:00:00.5Z","latest":"2026-11-22T15:00:30Z",
        "requests":3000,"rate":100.03,"throughput":99.9,"success":0.9967,
        "status_codes":{"200":2990,"0":10},
        "errors":["Post \"x\": dial tcp 0.0.0.0:0->127.0.0.1:1: bind: address already in use"]}"#,
    );
    assert_eq!(run.started, Some(1_795_359_600.5));
    assert_eq!(value(&run, TOTAL, Metric::ServiceP99), Some(38.901_234));
    assert_eq!(value(&run, TOTAL, Metric::Goodput), Some(99.9));
    assert!((value(&run, TOTAL, Metric::FailedShare).unwrap() - 0.0033).abs() < 1e-9);
    assert!(notes.iter().any(|note| note.contains("out of local ports")), "{notes:?}");
    assert!(fault(br#"{"latencies":{},"requests":0}"#).contains("counts no requests"));
}

/// Returns results of 40 s with 10 requests per second of 1 to 10 ms. One request of each second
/// has status 500, and one request found no free port.
fn hits(line: impl Fn(i64, u16, i64, &str) -> String) -> Vec<u8> {
    let mut text = String::new();
    for request in 0..400_i64 {
        let at = 1_700_000_000_000_000_000 + request * 100_000_000;
        let latency = (request % 10 + 1) * 1_000_000;
        let code = if request % 10 == 9 { 500 } else { 200 };
        text.push_str(&line(at, code, latency, if code == 500 { "500 \"x\"" } else { "" }));
    }
    text.push_str(&line(1_700_000_001_000_000_000, 0, 5, "bind: address already in use"));
    text.into_bytes()
}

#[test]
fn vegetas_results_as_lines_and_as_csv() {
    let csv = hits(|at, code, latency, error| {
        let error = error.replace('"', "\"\"");
        format!("{at},{code},{latency},60,40,\"{error}\",aGVq,attack,7,POST,http://x,\n")
    });
    let lines = hits(|at, code, latency, error| {
        let time = jiff::Timestamp::from_nanosecond(i128::from(at)).unwrap();
        let error = error.replace('"', "\\\"");
        format!(
            "{{\"attack\":\"\",\"seq\":1,\"code\":{code},\"timestamp\":\"{time}\",\
             \"latency\":{latency},\"bytes_out\":1,\"bytes_in\":1,\"error\":\"{error}\",\
             \"body\":null}}\n"
        )
    });
    for content in [csv, lines] {
        let (run, notes) = read_single(&content);
        assert_eq!(value(&run, TOTAL, Metric::FailedShare), Some(0.1));
        assert_eq!(value(&run, TOTAL, Metric::ServiceMean), Some(5.5));
        assert!(notes.iter().any(|note| note.starts_with("1 requests were left out")), "{notes:?}");
        let p50 = &run.seconds[&(TOTAL.to_owned(), Metric::ServiceP50)];
        assert_eq!(p50.len(), 38, "the first and the last second are parts");
        assert_eq!(run.started, Some(1.7e9));
        assert_eq!(value(&run, TOTAL, Metric::Goodput), Some(9.0), "nine in ten of 10/s");
        assert!(p50.iter().all(|value| *value == 6.0), "{p50:?}");
    }
}

#[test]
fn errors_are_reported_with_their_location() {
    let good = "1,200,5,1,1,,,a,1\n";
    assert_eq!(
        fault(format!("{good}1,200,x,1,1,,,a,1\n").as_bytes()),
        "x, line 2: column 3 (latency) is \"x\", not a whole number"
    );
    assert_eq!(
        fault(format!("{good}1,-1,5,1,1,,,a,1\n").as_bytes()),
        "x, line 2: the status is -1, not from 0 to 999"
    );
    let apart = "1,200,5,1,1,,,a,1\n9000000000000000000,200,5,1,1,,,a,1\n";
    assert!(
        fault(apart.as_bytes()).contains("more than 11 days"),
        "no second for each of 285 years"
    );
    let hit = br#"{"code":200,"timestamp":"2026-01-01T00:00:00Z","latency":1}"#;
    let wrong = [&hit[..], b"\n{\"code\":1}\n"].concat();
    assert!(fault(&wrong).starts_with("x, line 2: not a vegeta result"), "{}", fault(&wrong));
    assert_eq!(fault(b" \n"), "x contains no result: it is empty");
    assert!(fault(b"hello").contains("neither JSON nor a CSV"));
    assert!(fault(b"{\"a\":1}").contains("neither \"schema\""));
    assert!(fault(b"{\"a\":").contains("it is not JSON"));
    assert_eq!(
        fault(br#"{"schema":"weir.run/9"}"#),
        "x has the schema \"weir.run/9\"; this program reads \"weir.run/1\""
    );
    assert!(
        fault(br#"{"schema":"weir.run/1"}"#).contains("it is an invalid weir.run/1: missing field")
    );
    let missing = super::read_file(Path::new("/does/not/exist.json")).unwrap_err();
    assert_eq!(missing.to_string(), "cannot read /does/not/exist.json");
}
