//! Goal: reports agree with the result, other programs can read their formats, and text from the
//! input never becomes markup. Method: invented runs (`example`) are read with independent readers.

use std::collections::{BTreeMap, BTreeSet};

use expect_test::{expect, expect_file};
use hdrhistogram::serialization::Deserializer;
use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};
use lab_model::record::Class;
use lab_model::results::schema;
use serde_json::Value;

use super::example::{Example, failing, hostile, long, passing};
use super::*;

mod pins;

/// Writes the files of a run. Returns the contents by file name.
fn write_files(example: &Example) -> (tempfile::TempDir, BTreeMap<String, Vec<u8>>) {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("deep/er");
    let paths = write_folder(&folder, &example.result, &example.totals, &example.methods).unwrap();
    let files = paths.iter().map(|path| {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        (name, std::fs::read(path).unwrap())
    });
    let files: BTreeMap<_, _> = files.collect();
    assert_eq!(
        std::fs::read_dir(&folder).unwrap().count(),
        files.len(),
        "nothing else is left in the folder"
    );
    (dir, files)
}

#[test]
fn the_result_is_read_back_as_it_was_and_fits_the_published_schema() {
    let example = failing();
    let (_dir, files) = write_files(&example);
    let value: Value = serde_json::from_slice(&files["result.json"]).unwrap();
    let read_result: RunResult = serde_json::from_value(value.clone()).unwrap();
    assert_eq!(serde_json::to_value(&example.result).unwrap(), value);
    assert_eq!(read_result.series, example.result.series);

    let schema: Value = serde_json::from_str(&schema::run()).unwrap();
    let schema = jsonschema::validator_for(&schema).unwrap();
    let faults: Vec<_> = schema.iter_errors(&value).map(|error| error.to_string()).collect();
    assert!(faults.is_empty(), "{faults:#?}");

    // `cargo xtask generate` refreshes the published schema.
    expect_file!["../../../../docs/result.schema.json"].assert_eq(&schema::run());

    // The schema rejects an unknown outcome.
    let mut invalid = value;
    invalid["verdict"]["outcome"] = "maybe".into();
    assert!(!schema.is_valid(&invalid));
}

/// A run may fail although no threshold is broken. The reasons follow the banner.
#[test]
fn a_failure_without_a_broken_threshold_has_its_reason_beside_it() {
    let Example { mut result, totals, methods, .. } = failing();
    result.verdict.reasons = vec!["eth_call failed in all of its calls".to_owned()];
    result.thresholds.retain(|threshold| threshold.kept);
    let first_lines = |result: &RunResult| -> Vec<String> {
        let text = Report::run(result, &totals, &methods).text(Colour::Plain);
        text.lines().take(2).map(|line| line.trim().to_owned()).collect()
    };
    let [banner, reason] = <[String; 2]>::try_from(first_lines(&result)).unwrap();
    assert!(
        banner.contains("its thresholds were kept; it failed for the reason in the next line"),
        "{banner}"
    );
    assert_eq!(reason, result.verdict.reasons[0]);
    result.thresholds.clear();
    let [banner, _] = <[String; 2]>::try_from(first_lines(&result)).unwrap();
    assert!(banner.ends_with(": for the reason in the next line"), "{banner}");
}

#[test]
fn a_log_reader_finds_every_call_under_its_tag() {
    let example = failing();
    let (_dir, files) = write_files(&example);
    let bytes = &files["latency.hlog"];
    let text = std::str::from_utf8(bytes).unwrap();
    assert!(text.starts_with("#[Histogram log format version 1.3]\n"), "{}", &text[..200]);

    let mut calls_in_log: BTreeMap<String, u64> = BTreeMap::new();
    let mut longest = 0;
    for entry in IntervalLogIterator::new(bytes) {
        let LogEntry::Interval(line) = entry.unwrap() else { continue };
        assert!(line.encoded_histogram().starts_with("HISTFAAA"));
        let raw = base64::decode(line.encoded_histogram());
        let times: lab_model::record::Times =
            Deserializer::new().deserialize(&mut &raw[..]).unwrap();
        *calls_in_log.entry(line.tag().unwrap().as_str().to_owned()).or_default() += times.len();
        longest = longest.max(times.max());
        assert!((line.max() - times.max() as f64 / 1e6).abs() < 0.001, "milliseconds");
    }
    let mut recorded_calls: BTreeMap<String, u64> = BTreeMap::new();
    for (slot, cell) in &example.totals.cells {
        let method = &example.methods[usize::from(slot.method)];
        let tag = format!("{method}.{}", slot.class.as_str());
        *recorded_calls.entry(tag).or_default() += cell.latency.len();
    }
    assert!(recorded_calls.contains_key("eth_getLogs.timeout"));
    assert_eq!(calls_in_log, recorded_calls);
    let timeouts = example.totals.latency(|slot| slot.class == Class::Timeout);
    assert_eq!(longest, timeouts.max());
}

/// A decoder of Base64 that shares no code with the writer of the log.
mod base64 {
    pub(super) fn decode(text: &str) -> Vec<u8> {
        let value = |c: u8| match c {
            b'A'..=b'Z' => c - b'A',
            b'a'..=b'z' => c - b'a' + 26,
            b'0'..=b'9' => c - b'0' + 52,
            b'+' => 62,
            _ => 63,
        };
        let mut bytes = Vec::new();
        let digits: Vec<u8> = text.bytes().filter(|c| *c != b'=').map(value).collect();
        for group in digits.chunks(4) {
            let mut word = group.iter().fold(0u32, |word, digit| word << 6 | u32::from(*digit));
            word <<= 6 * (4 - group.len());
            bytes.extend_from_slice(&word.to_be_bytes()[1..group.len()]);
        }
        bytes
    }
}

fn report(example: &Example) -> Report {
    Report::run(&example.result, &example.totals, &example.methods)
}

/// Returns the header and the rows of a CSV file.
fn csv(bytes: &[u8]) -> (Vec<String>, Vec<Vec<String>>) {
    let mut reader = ::csv::Reader::from_reader(bytes);
    let head = reader.headers().unwrap().iter().map(String::from).collect();
    let rows = reader.records().map(|row| row.unwrap().iter().map(String::from).collect());
    (head, rows.collect())
}

#[test]
fn the_tables_hold_every_second_and_method() {
    let example = failing();
    let (_dir, files) = write_files(&example);
    let (head, rows) = csv(&files["series.csv"]);
    let column = |name: &str| head.iter().position(|head| head == name).unwrap();
    let total_rows: Vec<_> = rows.iter().filter(|row| row[1] == "all").collect();
    assert_eq!(total_rows.len(), example.result.series.len());
    let scheduled: u64 =
        total_rows.iter().map(|row| row[column("scheduled")].parse::<u64>().unwrap()).sum();
    assert_eq!(scheduled, example.result.series.iter().map(|second| second.scheduled).sum::<u64>());
    let timeouts: u64 = rows
        .iter()
        .filter(|row| row[1] == "eth_getLogs")
        .map(|row| row[column("timeout")].parse::<u64>().unwrap())
        .sum();
    assert!(timeouts > 100, "{timeouts}");
    assert!(
        total_rows[0][column("p99_ms")].is_empty(),
        "percentiles of methods cannot be added up"
    );

    let (head, rows) = csv(&files["methods.csv"]);
    let column = |name: &str| head.iter().position(|head| head == name).unwrap();
    let find = |stage: &str, method: &str, class: &str| {
        rows.iter().find(|row| row[0] == stage && row[1] == method && row[2] == class).unwrap()
    };
    let all = find("", "eth_getLogs", "all");
    assert_eq!((&*all[column("null_share")], &*all[column("wrong_type_share")]), ("0", "0"));
    let timeout = find("", "eth_getLogs", "timeout");
    let deadline: f64 = timeout[column("latency_p50_ms")].parse().unwrap();
    assert!((4995.0..5010.0).contains(&deadline), "three digits are kept: {deadline}");
    assert!(timeout[column("service_p50_ms")].is_empty());
    let ok: f64 = find("main/steady", "eth_call", "ok")[column("latency_p99_ms")].parse().unwrap();
    assert!(ok > 0.0);
}

#[test]
fn hostile_names_stay_in_their_cell() {
    let example = hostile();
    let (_dir, files) = write_files(&example);
    let (_, rows) = csv(&files["series.csv"]);
    assert!(rows.iter().any(|row| row[1] == *example.methods[1]));
    let entries = IntervalLogIterator::new(&files["latency.hlog"]);
    let entries: Vec<_> = entries.map(|entry| entry.unwrap()).collect();
    assert!(entries.len() > 5);
}

#[test]
fn a_full_disk_is_reported_with_file_and_length_and_earlier_files_stay() {
    let example = passing();
    let dir = tempfile::tempdir().unwrap();
    let write = || {
        write_folder(dir.path(), &example.result, &example.totals, &example.methods)
            .unwrap_err()
            .to_string()
    };
    // Every write to /dev/full fails with "no space left on device".
    std::os::unix::fs::symlink("/dev/full", dir.path().join(".latency.hlog.part")).unwrap();
    let fault = write();
    let path = dir.path().join("latency.hlog").display().to_string();
    assert!(fault.starts_with(&format!("no space is left for {path} (")), "{fault}");
    let first_result = std::fs::read(dir.path().join("result.json")).unwrap();
    serde_json::from_slice::<RunResult>(&first_result).unwrap();

    // A later failure does not change the earlier result.
    std::os::unix::fs::symlink("/dev/full", dir.path().join(".result.json.part")).unwrap();
    assert!(write().starts_with("no space is left for "));
    assert_eq!(std::fs::read(dir.path().join("result.json")).unwrap(), first_result);
}

#[test]
fn a_folder_that_cannot_be_created_is_reported() {
    let example = passing();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let fault = write_folder(&file.join("x"), &example.result, &example.totals, &example.methods);
    let text = fault.unwrap_err().to_string();
    assert!(text.starts_with("cannot create the folder ") && text.contains("file/x"), "{text}");
}

/// Returns the keys of a JSON object.
fn keys(value: &Value) -> BTreeSet<String> {
    value.as_object().unwrap().keys().cloned().collect()
}

#[test]
fn the_k6_summary_has_the_keys_that_k6_writes() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/k6/summary-export.json");
    let k6_output: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let mut example = failing();
    example.result.thresholds.push(lab_model::results::ThresholdOutcome {
        text: "http_req_failed rate<0.01".into(),
        kept: true,
        observed: Some(0.0),
        broken_at: None,
        ..Default::default()
    });
    let summary = k6_summary(&example.result, &example.totals, &example.methods);
    assert_eq!(keys(&summary), keys(&k6_output));
    assert_eq!(keys(&summary["root_group"]), keys(&k6_output["root_group"]));
    let omitted = ["http_req_blocked", "http_req_sending", "http_req_waiting", "checks"];
    let k6_metrics = k6_output["metrics"].as_object().unwrap();
    assert!(k6_metrics.len() > 10);
    for (name, k6_metric) in k6_metrics {
        if omitted.contains(&name.as_str()) || name == "http_req_receiving" {
            continue;
        }
        let name = name.replace("rpc:", "method:");
        let metric = &summary["metrics"][&name];
        assert!(metric.is_object(), "{name}");
        let value_keys =
            |value: &Value| &keys(value) - &BTreeSet::from([String::from("thresholds")]);
        assert_eq!(value_keys(metric), value_keys(k6_metric), "{name}");
    }
    // True means broken. In the fixture, p(99)<0.001 was broken.
    assert_eq!(k6_output["metrics"]["http_req_duration"]["thresholds"]["p(99)<0.001"], true);
    let broken = &summary["metrics"]["http_req_duration{method:eth_getLogs}"];
    assert_eq!(broken["thresholds"]["p(95)<800"], true);
    assert!(broken["p(95)"].as_f64().unwrap() > 4900.0);
    assert_eq!(summary["metrics"]["http_req_failed"]["thresholds"]["rate<0.01"], false);
    // Without measured values, k6 writes zeros.
    assert_eq!(summary["metrics"]["http_req_duration{method:eth_getProof}"]["avg"], 0.0);
}

#[test]
fn k6_counts_agree_with_the_result() {
    let example = failing();
    let summary = k6_summary(&example.result, &example.totals, &example.methods);
    let failed = &summary["metrics"]["http_req_failed"];
    let calls = failed["passes"].as_u64().unwrap() + failed["fails"].as_u64().unwrap();
    assert_eq!(calls, example.result.overall.calls);
    let value = failed["value"].as_f64().unwrap();
    assert!((value - example.result.overall.failed_share).abs() < 1e-9);
    let goodput = summary["metrics"]["goodput"]["rate"].as_f64().unwrap();
    assert!((goodput / example.result.overall.goodput - 1.0).abs() < 1e-6);
}

#[test]
fn k6_values_exclude_the_warm_up() {
    let mut example = failing();
    let stages = &mut example.totals.iterations;
    stages.iter_mut().for_each(|stage| {
        (stage.scheduled, stage.started, stage.started_after_end) = (1_000, 1_000, 300)
    });
    let scenario = example.result.stages[0].scenario.clone();
    for (index, name) in [&*scenario, "another"].into_iter().enumerate() {
        example.result.thresholds[index] =
            super::example::outcome(&format!("latency{{scenario:{name}}} p(95)<1"));
    }
    let summary = k6_summary(&example.result, &example.totals, &example.methods);
    assert_eq!(summary["metrics"]["delivered"]["value"], 0.7);
    let max_latency =
        |name: &str| &summary["metrics"][format!("http_req_duration{{scenario:{name}}}")]["max"];
    assert!(max_latency(&scenario).as_f64().unwrap() > 0.0);
    assert_eq!(max_latency("another"), 0.0, "there is no such scenario");
}

#[test]
fn the_terminal_text_leads_with_the_verdict() {
    expect![[r#"
        FAIL  somnia: 2 of 5 thresholds broken
          latency{method:eth_getLogs} p(95)<800 was broken from second 142 on: 5004 ms
          eth_getLogs failed in 51.6 % of its calls, while all calls together failed in less than 1 %

        run         4 min with 5 s of warm-up · seed 42 · HTTP/1.1 · connections reuse
        target      https://node.example.net/v1/ab… · ethereum · Geth/v1.16.4-stable/linux-amd64/go1.25 · chain 0x1 · head 23,361,004

                threshold                               observed  first broken  note
        broken  latency{method:eth_getLogs} p(95)<800   5,004 ms          2:22  sustained for 10 s
        broken  latency{method:eth_getProof} p(95)<800   no data                no data, which counts as broken
        kept    failed rate<0.01                          0.81 %
        kept    latency{method:eth_call} p(99)<300       6.55 ms
        kept    delivered rate>0.99                      99.52 %

        method                      calls   share  results/s      ok  failed     429    p50    p95     p99    max  failed as
        all                        70,040   100 %        294  98.6 %  0.81 %  0.55 %   1.39   5.48    22.9  5,004  rpc_error 33, timeout 535
        eth_blockNumber            22,544  32.2 %       95.9   100 %     0 %     0 %  0.490  0.973    1.33   5.70
        eth_call                   21,439  30.6 %       89.5  98.1 %  0.15 %  1.80 %   2.43   4.85    6.55   23.4  rpc_error 33, code -32000 ×33
        eth_getBalance             12,377  17.7 %       52.7   100 %     0 %     0 %   1.05   2.06    2.83   14.9
        eth_getBlockByNumber        8,465  12.1 %       36.0   100 %     0 %     0 %   3.94   7.84   ~10.6   35.1
        eth_getTransactionReceipt   4,179  5.97 %       17.8   100 %     0 %     0 %   1.84   3.67   ~5.01   13.1
        eth_getLogs                 1,036  1.48 %       2.13  48.4 %  51.6 %     0 %  5,004  5,004  ~5,004  5,004  timeout 535
        Latency in ms from the scheduled send, all outcomes; a timeout counts with its full time. ~ uncertain: fewer than 10,000 calls.

        generator   started 98.9 % of 71,136 scheduled iterations · 792 dropped · sends late by 31.0 µs (p99) · busy at most 22.3 % · CPU per request 21.0 µs · waited
                    0.024 s for a core
        bottleneck  The target's disk was saturated before eth_getLogs broke its threshold.
        warning     eth_getLogs has a share of 1.4 %: it can fail completely without breaking the threshold on all calls; add a threshold for it
    "#]].assert_eq(&report(&failing()).text(Colour::Plain));
}

#[test]
fn a_short_pass_is_short() {
    expect![[r#"
        PASS  somnia: all 4 thresholds were kept

        run         10 s with 1 s of warm-up · seed 42 · HTTP/1.1 · connections reuse
        target      https://node.example.net/v1/ab… · ethereum · Geth/v1.16.4-stable/linux-amd64/go1.25 · chain 0x1 · head 23,361,004

              threshold                              observed  first broken  note
        kept  failed rate<0.01                        0.090 %
        kept  latency{method:eth_call} p(99)<300      5.33 ms
        kept  latency{method:eth_getLogs} p(95)<800   38.4 ms
        kept  delivered rate>0.99                     99.52 %

        method                     calls   share  results/s       ok   failed     429    p50    p95    p99   max  failed as
        all                        4,432   100 %        490  99.41 %  0.090 %  0.50 %   1.22   4.63  ~16.9   102  rpc_error 4
        eth_blockNumber            1,440  32.5 %        160    100 %      0 %     0 %  0.423  0.804  ~1.07  3.01
        eth_call                   1,381  31.2 %        151   98.1 %   0.29 %  1.59 %   2.07   4.07  ~5.33  12.8  rpc_error 4, code -32000 ×4
        eth_getBalance               759  17.1 %       84.3    100 %      0 %     0 %  0.919   1.71  ~2.77  6.90
        eth_getBlockByNumber         504  11.4 %       56.0    100 %      0 %     0 %   3.33   6.89  ~9.19  20.2
        eth_getTransactionReceipt    278  6.27 %       30.9    100 %      0 %     0 %   1.69   3.32  ~4.30  9.99
        eth_getLogs                   70  1.58 %       7.78    100 %      0 %     0 %   18.6   38.4   ~102   102
        Latency in ms from the scheduled send, all outcomes; a timeout counts with its full time. ~ uncertain: fewer than 10,000 calls.

        generator   started 100 % of 4,576 scheduled iterations · 0 dropped · sends late by 31.6 µs (p99) · busy at most 34.3 % · CPU per request 21.0 µs · waited
                    0.0015 s for a core
        warning     eth_getLogs has a share of 1.4 %: it can fail completely without breaking the threshold on all calls; add a threshold for it
    "#]].assert_eq(&report(&passing()).text(Colour::Plain));
}

#[test]
fn the_terminal_text_has_at_most_forty_lines_before_its_warnings_and_escapes_only_with_colour() {
    let mut example = long();
    let result = &mut example.result;
    for index in 0..50 {
        let mut row = result.methods[0].clone();
        row.method = format!("method_{index}_{}", "x".repeat(80));
        result.methods.push(row);
        result.thresholds.push(result.thresholds[0].clone());
        result.warnings.push(format!("doubt {index}\u{1b}[2J {}", "very ".repeat(80)));
        result.verdict.reasons.push(format!("reason {index}\nnext line"));
    }
    result.partial = true;
    result.bottleneck = failing().result.bottleneck;
    let report = report(&example);
    let plain = report.text(Colour::Plain);
    let lines: Vec<&str> = plain.lines().collect();
    let first = lines.iter().position(|line| line.starts_with("warning")).unwrap();
    assert!(first <= 40, "{first} lines:\n{plain}");
    let words: Vec<&str> = plain.split_whitespace().collect();
    let words = words.join(" ");
    for index in 0..50 {
        let warning = format!("warning doubt {index} [2J {}", ["very"; 80].join(" "));
        assert!(words.contains(&warning), "none is left out or cut: {plain}");
    }
    assert!(plain.contains("eth_getLogs  "), "a failing method is not cut: {plain}");
    assert!(plain.contains("PARTIAL") && plain.contains("47 more methods"), "{plain}");
    assert!(!plain.contains('\u{1b}'));
    let widest = lines.iter().map(|line| line.chars().count()).max().unwrap();
    assert!(widest <= 180, "{widest}");
    assert!(report.text(Colour::Ansi).contains("\u{1b}[1;31mFAIL\u{1b}[0m"));
}

#[test]
fn the_markdown_is_a_short_report() {
    expect![[r#"
        ## FAIL: somnia

        **FAIL**: somnia: 2 of 5 thresholds broken

        - latency{method:eth_getLogs} p(95)&lt;800 was broken from second 142 on: 5004 ms
        - eth_getLogs failed in 51.6 % of its calls, while all calls together failed in less than 1 %

        ### Run

        - **run**: 4 min with 5 s of warm-up · seed 42 · HTTP/1.1 · connections reuse
        - **target**: https://node.example.net/v1/ab… · ethereum · Geth/v1.16.4-stable/linux-amd64/go1.25 · chain 0x1 · head 23,361,004

        ### Thresholds

        |  | threshold | observed | first broken | note |
        | --- | --- | --: | --: | --- |
        | kept | `failed rate<0.01` | 0.81 % |  |  |
        | kept | `latency{method:eth_call} p(99)<300` | 6.55 ms |  |  |
        | **broken** | `latency{method:eth_getLogs} p(95)<800` | 5,004 ms | 2:22 | sustained for 10 s |
        | kept | `delivered rate>0.99` | 99.52 % |  |  |
        | **broken** | `latency{method:eth_getProof} p(95)<800` | no data |  | no data, which counts as broken |

        ### Methods and outcomes

        | method | calls | share | results/s | ok | failed | 429 | p50 | p95 | p99 | max | failed as |
        | --- | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: | --- |
        | `all` | 70,040 | 100 % | 294 | 98.6 % | 0.81 % | 0.55 % | 1.39 | 5.48 | 22.9 | 5,004 | rpc_error 33, timeout 535 |
        | `eth_blockNumber` | 22,544 | 32.2 % | 95.9 | 100 % | 0 % | 0 % | 0.490 | 0.973 | 1.33 | 5.70 |  |
        | `eth_call` | 21,439 | 30.6 % | 89.5 | 98.1 % | 0.15 % | 1.80 % | 2.43 | 4.85 | 6.55 | 23.4 | rpc_error 33, code -32000 ×33 |
        | `eth_getBalance` | 12,377 | 17.7 % | 52.7 | 100 % | 0 % | 0 % | 1.05 | 2.06 | 2.83 | 14.9 |  |
        | `eth_getBlockByNumber` | 8,465 | 12.1 % | 36.0 | 100 % | 0 % | 0 % | 3.94 | 7.84 | ~10.6 | 35.1 |  |
        | `eth_getTransactionReceipt` | 4,179 | 5.97 % | 17.8 | 100 % | 0 % | 0 % | 1.84 | 3.67 | ~5.01 | 13.1 |  |
        | `eth_getLogs` | 1,036 | 1.48 % | 2.13 | 48.4 % | 51.6 % | 0 % | 5,004 | 5,004 | ~5,004 | 5,004 | timeout 535 |

        Latency in ms from the scheduled send, all outcomes; a timeout counts with its full time. ~ uncertain: fewer than 10,000 calls.

        <details><summary>Latency by outcome, of methods with several</summary>

        | method | outcome | calls | p50 | p95 | p99 | max |
        | --- | --- | --: | --: | --: | --: | --: |
        | `eth_call` | ok | 21,021 | 2.45 | 4.87 | 6.57 | 23.4 |
        | `eth_call` | rpc_error | 33 | 2.78 | 6.41 | 9.78 | 9.78 |
        | `eth_call` | limited | 385 | 0.567 | 1.08 | 1.30 | 1.67 |
        | `eth_getLogs` | ok | 501 | 19.1 | 35.5 | 49.5 | 99.5 |
        | `eth_getLogs` | timeout | 535 | 5,004 | 5,004 | 5,004 | 5,004 |

        </details>

        ### Stages

        | stage | from | to | planned | started | dropped | interrupted | calls | failed | 429 | p50 ms | p95 ms | p99 ms | max ms |
        | --- | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: |
        | `main/ramp` | 0:00 | 1:00 | 52.0 → 260/s | 156/s | 0 | 0 | 9,056 | 0.033 % | 0 % | 1.26 | 4.74 | ~16.7 | 39.6 |
        |  eth_call |  |  |  |  |  |  | 2,797 | 0.11 % | 0 % | 2.14 | 4.12 | ~5.52 | 15.1 |
        | `main/steady` | 1:00 | 2:48 | 260/s | 260/s | 0 | 0 | 28,080 | 0.35 % | 0 % | 1.31 | 5.03 | 17.4 | 5,004 |
        |  eth_call |  |  |  |  |  |  | 8,635 | 0.17 % | 0 % | 2.23 | 4.48 | ~6.16 | 21.5 |
        |  eth_getLogs |  |  |  |  |  |  | 414 | 19.8 % | 0 % | 20.6 | 5,004 | ~5,004 | 5,004 |
        | `main/peak` | 2:48 | 4:00 | 468/s | 457/s | 792 | 0 | 32,904 | 1.42 % | 1.17 % | 1.53 | 5.95 | 5,004 | 5,004 |
        |  eth_call |  |  |  |  |  |  | 10,007 | 0.15 % | 3.85 % | 2.69 | 5.20 | 7.00 | 23.4 |
        |  eth_getLogs |  |  |  |  |  |  | 478 | 94.8 % | 0 % | 5,004 | 5,004 | ~5,004 | 5,004 |

        The methods that failed are listed below their stage; methods.csv has all methods.

        ### Generator and bottleneck

        - **generator**: started 98.9 % of 71,136 scheduled iterations · 792 dropped · sends late by 31.0 µs (p99) · busy at most 22.3 % · CPU per request 21.0 µs · waited 0.024 s for a core
        - **bottleneck**: The target's disk was saturated before eth_getLogs broke its threshold.

        ### Connections

        - **HTTP requests ended**: 70,040
        - **Connections opened**: 3,486
        - **Connections failed**: 0
        - **Closed by the server**: 0
        - **Sent again after GOAWAY or REFUSED_STREAM**: 0
        - **No local port left**: 0
        - **Responses received twice**: 0
        - **Sent**: 13.3 MB
        - **Received**: 164 MB
        - **TLS sessions resumed**: 83.7 % (2,919 of 3,486)
        - **HTTP status 200**: 69,740
        - **HTTP status 429**: 300

        |  | count | p50 ms | p95 ms | p99 ms | max ms |
        | --- | --: | --: | --: | --: | --: |
        | TCP connect | 3,486 | 0.603 | 1.16 | 1.67 | 4.56 |
        | TLS handshake, full | 3,486 | 2.93 | 5.57 | 7.40 | 19.5 |
        | TLS handshake, resumed | 3,486 | 1.10 | 2.13 | 2.96 | 6.45 |
        | Retry-After | 385 | 1,000 | 1,000 | 1,000 | 1,000 |

        ### Evidence of the first bottleneck

        - psi_io_some rose from 0.04 to 0.74 at 134 s, 8 s before the breach
        - disk.nvme0n1.queue rose from 0.8 to 31 in the same second
        - CPU stayed below 55 %, the generator below 25 %

        ### Warnings

        - eth_getLogs has a share of 1.4 %: it can fail completely without breaking the threshold on all calls; add a threshold for it

        ### How it was measured

        - **Target**: https://node.example.net/v1/ab…
        - **Family**: ethereum
        - **Client**: Geth/v1.16.4-stable/linux-amd64/go1.25
        - **Chain**: 0x1
        - **Head**: 23,361,004 to 23,361,024
        - **Plan**: somnia
        - **Plan hash**: `9f2c4d1e8a7b6c5d4e3f2a1b0c9d8e7f6a5b4c3d2e1f0a9b8c7d6e5f4a3b2c1d`
        - **Seed**: 42
        - **Warm-up**: 5 s
        - **Written by**: weir 0.1.0, schema weir.run/1
        - **Started**: 2026-09-14T09:30:00Z
        - **Engine**: 1 thread

        - **Generator**: bench-1
        - **CPU**: AMD EPYC 9454P 48-Core Processor
        - **Cores**: 8
        - **Memory**: 67.1 GB
        - **Kernel**: 6.12.41
        - **Governor**: performance
        - **Congestion control**: cubic
        - **Target on this host**: no
    "#]].assert_eq(&report(&failing()).markdown());
}

#[test]
fn text_from_the_input_is_escaped_in_markdown() {
    let mut example = hostile();
    example.result.partial = true;
    let text = report(&example).markdown();
    assert!(text.contains("**Partial result**"));
    let text = text.replace("\\`", "");
    let outside_code: String = text.split('`').step_by(2).collect();
    assert!(!outside_code.contains("<script"), "{text}");
    assert!(text.lines().all(|line| !line.starts_with(",=1")), "{text}");
}

#[test]
fn the_list_of_host_metrics_is_published() {
    expect_file!["../../../../docs/host-metrics.md"].assert_eq(&host_metrics());
}
