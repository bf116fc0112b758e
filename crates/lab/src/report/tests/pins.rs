//! Detects changes of all report formats. Every format of every example (JSON, CSV, text, Markdown,
//! page) is compared with its recorded length and SHA-256. The test `draw` writes the same bytes as
//! files, so two versions can be compared with `diff`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use aws_lc_rs::digest;
use expect_test::expect_file;
use lab_model::results::run::{Compared, Difference, ProcessFacts, ProcessRole, UpstreamFacts};
use lab_model::results::subscription::SubscriptionRow;
use lab_model::results::transactions::{InclusionRow, TransactionsRow};
use lab_model::results::{Quantiles, schema};

use crate::analysis::sync::VariantRuns;
use crate::report::example::{Example, failing, hostile, long, passing};
use crate::report::*;
use crate::study::tests::{published, repeated, study};

/// File names with their contents.
type ReportFiles = BTreeMap<String, Vec<u8>>;

/// Returns a run with the data that the other examples lack.
fn everything() -> Example {
    let mut example = failing();
    let result = &mut example.result;
    result.partial = true;
    result.findings = vec![String::from("eth_call is empty"), "<b>drift</b> of a | b".repeat(20)];
    result.plan.http = String::from("2");
    result.plan.insecure = true;
    result.target.url = String::from("https://node.example.net/***");
    result.fingerprint.cpu_limit = Some(1.5);
    result.fingerprint.governor = None;
    result.fingerprint.congestion = None;
    result.stages[2].model = String::from("closed");
    result.stages[2].iterations.interrupted = 7;
    result.generator.delivered_share = 0.5;
    result.watched.processes.push(ProcessFacts {
        name: String::from("backend"),
        role: ProcessRole::Upstream,
        pids: vec![1, 2],
        cpu: 0.25,
        cpu_ms_per_request: None,
        memory_bytes_max: 1.0e6,
        restarted: true,
    });
    result.watched.upstreams.push(UpstreamFacts {
        address: String::from("127.0.0.1:8545"),
        process: Some(String::from("backend")),
        waiting: 3.5,
    });
    let delay = Quantiles {
        count: 950,
        p50_ms: 1.5,
        p99_ms: 212.0,
        max_ms: 480.25,
        ..Quantiles::default()
    };
    result.subscriptions = vec![
        SubscriptionRow {
            name: String::from("heads"),
            url: String::from("wss://node.example.net/***"),
            kind: String::from("newHeads"),
            connections: 1_000,
            subscribed: 998,
            open: 997,
            ended: vec![
                (String::from("closed by the server: code 1001"), 1),
                (String::from("handshake refused: HTTP 403"), 2),
            ],
            subscribe_time: Quantiles {
                count: 998,
                p50_ms: 3.5,
                max_ms: 41.0,
                ..Quantiles::default()
            },
            notifications: 1_000,
            notifications_min: 0,
            notifications_max: 2,
            duplicates: 50,
            missing: Some(7),
            connections_missing: 3,
            out_of_order: 2,
            reorged: 1,
            unreadable: 4,
            delay,
            age: Quantiles { count: 900, p50_ms: 650.0, ..Quantiles::default() },
            generator_gap_ms: 0.0,
        },
        SubscriptionRow {
            name: String::from("logs"),
            url: String::from("ws://127.0.0.1:8546/"),
            kind: String::from("logs"),
            connections: 1,
            ..SubscriptionRow::default()
        },
    ];
    result.transactions = Some(TransactionsRow {
        total: 1_000,
        senders: 20,
        sent: 950,
        accepted: 940,
        refused: 7,
        unanswered: 3,
        refusals: vec![
            (String::from("nonce too low: next nonce N, tx nonce N"), 5),
            (String::from("<b>already</b> known | `x`"), 2),
        ],
        inclusion: Some(InclusionRow {
            included: 930,
            pending: 13,
            time: Quantiles {
                count: 930,
                p50_ms: 812.5,
                p95_ms: 1_510.0,
                p99_ms: 2_020.0,
                max_ms: 3_100.25,
                ..Quantiles::default()
            },
            interval: 0.1,
            waited: 30.0,
            blocks: 62,
            polls_failed: 1,
        }),
    });
    result.compared = Some(Compared {
        reference: String::from("http://reference.example"),
        compared: 1_200,
        wrong: 3,
        moved: 4,
        unanswered: 1,
        skipped: 17,
        methods: vec![(String::from("eth_call"), 1_000, 3), (String::from("eth_getLogs"), 200, 0)],
        examples: vec![Difference {
            method: String::from("eth_call"),
            request: String::from("{\"to\":\"0x1\"}"),
            pointer: String::from("/result/0"),
            target: String::from("\"0x1\""),
            reference: String::from("\"0x2\""),
        }],
    });
    result.thresholds.reverse();
    example
}

/// Returns a run without thresholds and without failures.
fn measured() -> Example {
    let mut example = passing();
    example.result.thresholds.clear();
    example.result.verdict.outcome = lab_model::results::Outcome::Measured;
    example.result.warnings.clear();
    example.result.stages.truncate(1);
    example.result.host.clear();
    example
}

/// Adds the files of a report and its text for the terminal.
fn add_files(
    files_by_name: &mut ReportFiles,
    folder: &str,
    files: &[PathBuf],
    stem: &str,
    report: &Report,
) {
    for path in files {
        let file = path.file_name().unwrap().to_str().unwrap();
        files_by_name.insert(format!("{folder}/{file}"), std::fs::read(path).unwrap());
    }
    for (extension, colour) in [("txt", Colour::Plain), ("ansi", Colour::Ansi)] {
        files_by_name
            .insert(format!("{folder}/{stem}.{extension}"), report.text(colour).into_bytes());
    }
}

fn add_run(files_by_name: &mut ReportFiles, name: &str, example: &Example) {
    let Example { result, totals, methods } = example;
    let (dir, folder) = (tempfile::tempdir().unwrap(), format!("run-{name}"));
    let files = write_folder(dir.path(), result, totals, methods).unwrap();
    add_files(files_by_name, &folder, &files, "report", &Report::run(result, totals, methods));
    let k6 = format!("{:#}\n", k6_summary(result, totals, methods));
    files_by_name.insert(format!("{folder}/k6.json"), k6.into_bytes());
}

fn add_capacity(files_by_name: &mut ReportFiles, name: &str, result: &CapacityResult) {
    let dir = tempfile::tempdir().unwrap();
    let files = write_capacity(dir.path(), result).unwrap();
    add_files(
        files_by_name,
        &format!("capacity-{name}"),
        &files,
        "capacity",
        &Report::capacity(result),
    );
}

fn add_comparison(files_by_name: &mut ReportFiles, name: &str, result: &CompareResult) {
    let report = Report::compare(result);
    for (extension, text) in [
        ("json", serde_json::to_string_pretty(result).unwrap()),
        ("md", report.markdown()),
        ("txt", report.text(Colour::Plain)),
        ("html", report.html()),
    ] {
        files_by_name.insert(format!("compare-{name}/compare.{extension}"), text.into_bytes());
    }
}

fn add_study(
    files_by_name: &mut ReportFiles,
    name: &str,
    variants: &[VariantRuns],
    heights: &[u64],
) {
    let mut result = study(variants, heights);
    if name == "tiny" {
        result.partial = true;
        result.question = Some(String::from("Which is <faster>?"));
        result.design = Some(String::from("A B B A"));
        result.variants[0].left_out = vec![String::from("run 2: it ended early")];
        result.stalls_subtracted = true;
    }
    let dir = tempfile::tempdir().unwrap();
    let files = crate::study::write(dir.path(), &result, variants).unwrap();
    add_files(
        files_by_name,
        &format!("study-{name}"),
        &files,
        "report",
        &crate::study::report(&result),
    );
}

fn files_by_name() -> ReportFiles {
    let mut files_by_name = ReportFiles::new();
    let runs = [
        ("failing", failing()),
        ("passing", passing()),
        ("long", long()),
        ("hostile", hostile()),
        ("everything", everything()),
        ("measured", measured()),
    ];
    runs.iter().for_each(|(name, example)| add_run(&mut files_by_name, name, example));
    add_capacity(&mut files_by_name, "found", &capacity::example::found());
    add_capacity(&mut files_by_name, "doubtful", &capacity::example::doubtful());
    add_comparison(&mut files_by_name, "few", &compare::tests::compared());
    add_comparison(&mut files_by_name, "machines", &crate::compare::tests::machines());
    add_study(&mut files_by_name, "published", &published(), &[100_000, 500_000, 1_349_351]);
    add_study(&mut files_by_name, "repeated", &repeated("<b>x</b>", "a|b`c"), &[]);
    let mut tiny = repeated("a", "b");
    for variant in &mut tiny {
        variant.runs.truncate(1);
        variant.runs[0].samples.truncate(1);
    }
    add_study(&mut files_by_name, "tiny", &tiny, &[]);
    files_by_name
}

#[test]
fn every_format_of_every_example_is_as_recorded() {
    let line = |(name, bytes): (&String, &Vec<u8>)| {
        let hash = digest::digest(&digest::SHA256, bytes);
        let hash: String = hash.as_ref()[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{hash} {:>8} {name}\n", bytes.len())
    };
    let recorded: String = files_by_name().iter().map(line).collect();
    expect_file!["pins.txt"].assert_eq(&recorded);
}

#[test]
fn capacity_and_comparison_fit_their_published_schemas_which_reject_an_unknown_word() {
    // `cargo xtask generate` refreshes the published schemas.
    expect_file!["../../../../../docs/capacity.schema.json"]
        .assert_eq(&schema::closed::<CapacityResult>());
    expect_file!["../../../../../docs/compare.schema.json"]
        .assert_eq(&schema::closed::<CompareResult>());
    let files_by_name = files_by_name();
    for (schema, file, word) in [
        (schema::closed::<CapacityResult>(), "capacity.json", "/answer/end"),
        (schema::closed::<CompareResult>(), "compare.json", "/differences/0/verdict"),
    ] {
        let schema = serde_json::from_str(&schema).unwrap();
        let schema = jsonschema::validator_for(&schema).unwrap();
        let examples: Vec<_> =
            files_by_name.iter().filter(|(name, _)| name.ends_with(file)).collect();
        assert_eq!(examples.len(), 2, "{file}");
        for (name, bytes) in examples {
            let mut value: serde_json::Value = serde_json::from_slice(bytes).unwrap();
            let faults: Vec<_> =
                schema.iter_errors(&value).map(|fault| fault.to_string()).collect();
            assert!(faults.is_empty(), "{name}: {faults:#?}");
            *value.pointer_mut(word).unwrap() = "maybe".into();
            assert!(!schema.is_valid(&value), "{name}");
        }
    }
}

/// Writes all formats into a folder. They can be viewed there, or compared with the files of
/// another version.
#[test]
#[ignore = "for looking at forms: WEIR_DRAW=FOLDER cargo test -p lab draw -- --ignored"]
fn draw() {
    let dir = PathBuf::from(std::env::var("WEIR_DRAW").unwrap());
    for (name, bytes) in files_by_name() {
        let path = dir.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
}
