//! Goal: the published reports are read completely, and invalid lines are rejected. Method:
//! published reports, and made-up lines.

use std::path::{Path, PathBuf};

use lab_model::results::compare::Metric;

use super::{go_duration_ms, is_report, read};
use crate::variant::Variant;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/erigon-perf")
}

fn report(part: &str) -> Vec<Variant> {
    let entries = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
    let path = entries.into_iter().find(|path| path.to_string_lossy().contains(part)).unwrap();
    read(&std::fs::read(&path).unwrap(), &path).unwrap()
}

fn values(variant: &Variant, key: &str, metric: Metric) -> Vec<f64> {
    let value = |run: &crate::variant::Run| run.values.get(&(key.to_owned(), metric)).copied();
    variant.runs.iter().filter_map(value).collect()
}

#[test]
fn every_report_is_read_whole() {
    let mut rows = 0;
    for entry in std::fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|ending| ending != "csv") {
            continue;
        }
        let content = std::fs::read(&path).unwrap();
        assert!(is_report(&content));
        let variants = read(&content, &path).unwrap();
        rows += variants
            .iter()
            .map(|variant| variant.runs.len() + variant.left_out.len())
            .sum::<usize>();
    }
    // The number was counted with grep: lines that begin with a server's name and a bracket.
    assert_eq!(rows, 160);
}

#[test]
fn two_servers_in_one_report_are_two_variants() {
    let variants = report("eth_getBalance");
    let names: Vec<&str> =
        variants.iter().map(|variant| variant.name.split(' ').next().unwrap()).collect();
    assert_eq!(names, ["rpcdaemon", "silk"]);
    let p50 = values(&variants[1], "eth_getBalance at 50/s", Metric::ServiceP50);
    assert_eq!(p50.len(), 4, "five repetitions, the first of them cold");
    assert!(p50.iter().all(|value| *value < 1.0), "{p50:?}");
    let machine = variants[0].runs[0].facts.machine.clone().unwrap();
    assert!(machine.cpu.contains("i7-8750H"), "{machine:?}");
    assert_eq!(variants[0].runs[0].facts.load, variants[1].runs[0].facts.load);
}

/// In one report the first repetition has a mean of 7.5 ms and the others at most 0.34 ms. In
/// another report the first repetition is the fastest, so it is kept.
#[test]
fn cold_first_repetitions_are_reported_separately() {
    let variants = report("eth_getBalance");
    let cold = |variant: &Variant| {
        variant.left_out.iter().filter(|run| run.contains(": cold caches:")).count()
    };
    assert_eq!((cold(&variants[0]), cold(&variants[1])), (1, 5), "{:?}", variants[1].left_out);
    assert_eq!(cold(&report("eth_call_2023-10-31-13-14-11_silk")[0]), 0);
}

#[test]
fn faults_of_the_client_do_not_count_for_the_server() {
    let ports = &report("eth_getBlockByNumber")[0];
    let left_out = ports.left_out.iter().filter(|run| run.contains("local ports")).count();
    assert!(left_out > 0, "{:?}", ports.left_out);
    let failed = values(ports, "eth_getBlockByNumber at 9000/s", Metric::FailedShare);
    assert!(failed.iter().all(|share| *share == 0.0), "{failed:?}");

    let variants = report("eth_getTransactionReceipt");
    let timed_out =
        variants.iter().find(|variant| variant.notes.iter().any(|note| note.contains("timed out")));
    let timed_out = timed_out.unwrap();
    let times: usize = timed_out.runs.iter().filter(|run| run.values.len() == 1).count();
    assert!(times > 0, "their failed share is kept, their times are not");
}

#[test]
fn go_durations() {
    let near = |text: &str, expected: f64| {
        let found = go_duration_ms(text).unwrap();
        assert!((found - expected).abs() < 1e-9 * expected.max(1.0), "{text}: {found}");
    };
    near("104.244µs", 0.104_244);
    near("1.053ms", 1.053);
    near("1.334s", 1334.0);
    near("1m24s", 84_000.0);
    near("5m0.5s", 300_500.0);
    near("1h2m3s", 3_723_000.0);
    near("0s", 0.0);
    for bad in ["", "5", "ms", "1.5.5ms", "3 ms", "-1s", "1d"] {
        assert_eq!(go_duration_ms(bad), None, "{bad}");
    }
}

#[test]
fn wrong_lines_are_named() {
    let fault_of = |line: &str| {
        let content = format!("{}\n{line}\n", super::HEADER);
        read(content.as_bytes(), Path::new("x.csv")).unwrap_err().to_string()
    };
    assert_eq!(fault_of("silk,[1. 1]"), "x.csv, line 2: 2 columns instead of 14 as in the header");
    let row = |test: &str, rate: &str, mean: &str, ratio: &str| {
        fault_of(&format!("silk,{test},29,{rate},1,1ms,{mean},1ms,1ms,1ms,1ms,1ms,{ratio},"))
    };
    assert!(row("[x]", "1", "1ms", "100%").ends_with("TestNo is \"[x]\", not [level. repetition]"));
    assert!(row("[1. 1]", "0", "1ms", "100%").ends_with("Qps is \"0\", not a number above 0"));
    assert!(
        row("[1. 1]", "1", "fast", "100%")
            .ends_with("column 7 is \"fast\", not a duration such as 1.5ms")
    );
    assert!(row("[1. 1]", "1", "1ms", "101%").ends_with("Ratio is \"101%\", not a percentage"));
    let empty = read(format!("{}\n", super::HEADER).as_bytes(), Path::new("x.csv"));
    assert!(empty.unwrap_err().to_string().contains("no line follows"));
}
