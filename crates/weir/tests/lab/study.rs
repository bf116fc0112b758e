//! Goal: `weir study sync` ends with the exit codes that its help states, and finds planted
//! differences. Method: the real binary runs on a published data set, on small files, on simulated
//! nodes, and on a study whose variants are shell scripts.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use test_support::running::Weir;

/// Runs `weir study sync`. Returns its exit code, standard output and standard error.
fn weir(folder: &Path, arguments: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(["study", "sync"]).args(arguments).current_dir(folder).stdin(Stdio::null());
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// Parses the output of `--json` and validates it against the published schema.
fn parse_valid(json: &str) -> Value {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/study.schema.json");
    let schema = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let schema = jsonschema::validator_for(&schema).unwrap();
    let result: Value = serde_json::from_str(json).unwrap_or_else(|_| panic!("{json}"));
    let faults: Vec<String> = schema.iter_errors(&result).map(|fault| fault.to_string()).collect();
    assert!(faults.is_empty(), "{faults:#?}");
    result
}

/// The folder with measurements of two real syncs.
fn pocketnet_folder() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/pocketnet")
}

#[test]
fn the_published_run_and_its_folder() {
    let out = TempDir::new().unwrap();
    let dir = out.path().join("result");
    let variants = ["5MB=cache_5mb.csv", "500MB=cache_500mb.csv"];
    let heights = "100000,500000,1000000,1250000,1349351";
    let common = ["--csv", variants[0], variants[1], "--at", heights];
    let (code, text, complaints) =
        weir(&pocketnet_folder(), &[&common[..], &["--out", dir.to_str().unwrap()]].concat());
    assert_eq!(code, 0, "{complaints}");
    assert!(text.starts_with("CANNOT TELL  5MB against 500MB\n"), "{text}");
    for part in [
        "21:25:57",
        "17:59:28",
        "8:16:19 (height 983,974)",
        "one run of each variant gives no effect size",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    for name in ["study.json", "samples.csv", "report.md", "report.html"] {
        assert!(dir.join(name).exists(), "{name}");
        assert!(complaints.contains(name), "{complaints}");
    }
    let (code, json, _) = weir(&pocketnet_folder(), &[&common[..], &["--json"]].concat());
    let json = parse_valid(&json);
    assert_eq!((code, json["schema"].as_str()), (0, Some("weir.study/1")));
    assert_eq!(json["variants"][0]["runs"][0]["accesses"]["hit"], 53_700_127_496_u64);
    let (code, markdown, _) = weir(&pocketnet_folder(), &[&common[..], &["--markdown"]].concat());
    assert_eq!(code, 0);
    assert!(markdown.starts_with("## Study: 5MB against 500MB\n"), "{markdown}");
}

#[test]
fn faulty_input_ends_with_two_and_says_where() {
    let folder = TempDir::new().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("good.csv", "seconds,height\n0,0\n1,10\n2,20\n");
    write("back.csv", "seconds,height\n5,0\n1,10\n");
    write("empty.jsonl", "");
    write(
        "both.toml",
        "study = 'sync'\nname = 'x'\norder = 'alternate'\n[[variant]]\nname = 'a'\n\
        command = ['p', '-a', '1', '-b', '1', '{samples}']\n[[variant]]\nname = 'b'\n\
        command = ['p', '-a', '2', '-b', '2', '{samples}']\n",
    );
    let check = |arguments: &[&str], code: i32, expected: &str| {
        let (exit_code, _, complaints) = weir(folder.path(), arguments);
        assert_eq!(exit_code, code, "{arguments:?}: {complaints}");
        assert!(complaints.contains(expected), "{arguments:?}: {complaints}");
    };
    check(&["--csv", "good.csv"], 0, "");
    check(&["--csv", "good.csv", "back.csv"], 2, "back.csv:3: time goes back from");
    check(
        &["--samples", "empty.jsonl", "empty.jsonl"],
        2,
        "empty.jsonl: it has no sample with a height",
    );
    check(&["--log", "pocketcoin", "good.csv", "good.csv"], 2, "it has no statistic");
    check(&["--log", "geth", "good.csv", "good.csv"], 2, "no line announces a new block");
    check(&["--log", "reth", "a", "b"], 2, "[possible values: pocketcoin, geth, bitcoind]");
    check(&["--csv", "good.csv", "gone.csv"], 1, "cannot read gone.csv");
    check(&["--csv", "--samples", "good.csv"], 2, "no variant stands after --csv");
    check(&["good.csv", "--csv", "good.csv", "--samples", "b"], 2, "must stand after the option");
    check(&["--csv", "--rpc", "good.csv"], 2, "cannot be used with");
    check(&["--csv", "a=", "good.csv"], 2, "names 0 files");
    check(&["--csv", "good.csv", "good.csv", "--bin", "0"], 2, "--bin");
    check(
        &["--rpc", "a=ftp://x", "b=http://127.0.0.1:1"],
        2,
        "a URL begins with http:// or https://",
    );
    check(&["both.toml"], 2, "the variants differ in 2 settings: -a, -b");
    check(&["gone.toml"], 2, "cannot read the study gone.toml");
    check(&["a.csv", "b.csv"], 2, "need --log, --csv, --samples or --rpc");
    // No run reached the height at which the variants are to be compared.
    check(&["--csv", "a=good.csv", "b=good.csv", "--at", "1000"], 4, "");
}

#[test]
fn variants_come_from_files_of_different_formats() {
    let folder = TempDir::new().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let record = |minute: u64, blocks: u64| {
        format!(
            "2021-12-13T23:{minute:02}:00Z Statistic for last 60s:\n{{\n \"General\": {{\n  \
             \"Height\": {}\n }}\n}}\n",
            minute * blocks
        )
    };
    write("debug.log", &(0..50).map(|minute| record(minute, 100)).collect::<String>());
    let rows = |blocks: u64| (0..50).map(move |row| format!("{},{}\n", row * 60, row * blocks));
    for (name, blocks) in [("slow.csv", 80), ("slower.csv", 50)] {
        write(name, &format!("seconds,height\n{}", rows(blocks).collect::<String>()));
    }
    let arguments = [
        "--log",
        "pocketcoin",
        "5MB=debug.log",
        "--csv",
        "50MB=slow.csv",
        "500MB=slower.csv",
        "--at",
        "2000",
        "--json",
    ];
    let (code, json, complaints) = weir(folder.path(), &arguments);
    assert_eq!(code, 0, "{complaints}");
    let json = parse_valid(&json);
    assert_eq!(json["source"], "mixed");
    let variants = json["variants"].as_array().unwrap();
    let seconds: Vec<(&str, f64)> = variants
        .iter()
        .map(|variant| {
            let reached = &variant["runs"][0]["times"][0]["elapsed"];
            (
                variant["name"].as_str().unwrap(),
                reached.as_f64().unwrap_or_else(|| panic!("{json:#}")),
            )
        })
        .collect();
    assert_eq!(seconds, [("5MB", 1200.0), ("50MB", 1500.0), ("500MB", 2400.0)]);
}

/// Returns the exit code that belongs to a comparison of two variants: 0 if the times to the highest
/// height that all runs reached are comparable, else 4.
fn expected_code(result: &Value) -> i32 {
    let variants = result["variants"].as_array().unwrap();
    let runs = variants.iter().flat_map(|variant| variant["runs"].as_array().unwrap());
    let common = runs.map(|run| run["height"].as_u64().unwrap()).min().unwrap();
    let rows = result["against"][0]["times"].as_array().unwrap();
    let main = rows.iter().rfind(|row| row["height"].as_u64().unwrap() <= common);
    let is_compared = |row: &Value| row["above_tip"] == false && !row["comparison"].is_null();
    if main.is_some_and(is_compared) { 0 } else { 4 }
}

#[test]
fn two_running_nodes_are_watched() {
    let (a, b) = (
        Weir::node().args(&["--block-time", "100ms"]).start(),
        Weir::node().args(&["--block-time", "300ms"]).start(),
    );
    let out = TempDir::new().unwrap();
    let (first, second) = (format!("quick={}", a.url()), format!("slow={}", b.url()));
    let dir = out.path().to_str().unwrap();
    let arguments =
        ["--rpc", &first, &second, "--every", "100ms", "--duration", "3s", "--out", dir, "--json"];
    let (code, json, complaints) = weir(out.path(), &arguments);
    let json = parse_valid(&json);
    assert_eq!(code, expected_code(&json), "{complaints}");
    assert_eq!((&json["source"], &json["align"]), (&Value::from("nodes"), &Value::from("clock")));
    let blocks_grown = |variant: usize| {
        let run = &json["variants"][variant]["runs"][0];
        run["height"].as_u64().unwrap() - run["height_first"].as_u64().unwrap()
    };
    assert!(
        blocks_grown(0) > blocks_grown(1) && blocks_grown(1) > 0,
        "{} and {}",
        blocks_grown(0),
        blocks_grown(1)
    );
    assert_eq!(json["block_time"], 12.0, "ethereum's");
    assert_eq!(json["block_time_source"], "assumed");
    let samples = std::fs::read_to_string(out.path().join("samples-quick.jsonl")).unwrap();
    assert!(samples.lines().count() >= 10, "{samples}");
    // `--samples` can read the stored samples.
    let from_samples = ["--samples", "samples-quick.jsonl", "samples-slow.jsonl", "--json"];
    let (code, json, complaints) = weir(out.path(), &from_samples);
    assert_eq!(code, expected_code(&parse_valid(&json)), "{complaints}");

    let (code, _, complaints) =
        weir(out.path(), &["--rpc", &first, "gone=http://127.0.0.1:1", "--duration", "1s"]);
    assert_eq!(code, 1);
    assert!(complaints.contains("refused"), "{complaints}");
}

/// A shell script that writes samples from height 0 to 1,000, one every `{setting}` seconds. Each
/// block reads ten pages.
const VARIANT: &str = r#"i=0; while [ $i -le 10 ]; do printf '{"time":"%sZ","height":%d,"page_cache_hit":%d,"page_cache_miss":%d,"done":false}\n' "$(date -u +%Y-%m-%dT%H:%M:%S.%N | cut -c1-23)" $((i*100)) $((i*900)) $((i*100)) >> "$2"; i=$((i+1)); sleep "$1"; done"#;

fn study(settings: [&str; 2], more: &str) -> String {
    format!(
        "study = 'sync'\nname = 'pace'\nquestion = 'Which is quicker?'\norder = 'alternate'\nrepeats = 3\n\
         pause = '0s'\nsample = '100ms'\ntimeout = '60s'\n{more}\n\
         command = ['sh', '-c', '''{VARIANT}''', 'variant', '{{setting}}', '{{samples}}']\n\
         [[variant]]\nname = 'slow'\nsetting = '{}'\n[[variant]]\nname = 'quick'\nsetting = '{}'\n",
        settings[0], settings[1]
    )
}

#[test]
fn a_study_runs_its_variants_and_names_the_faster_one() {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("pace.toml"), study(["0.25", "0.02"], "")).unwrap();
    let (code, json, complaints) = weir(folder.path(), &["pace.toml", "--out", "result", "--json"]);
    assert_eq!(code, 0, "{complaints}");
    let json = parse_valid(&json);
    assert_eq!(json["question"], "Which is quicker?");
    assert_eq!(
        json["against"][0]["times"].as_array().unwrap().last().unwrap()["comparison"]["pairs"]
            .as_array()
            .unwrap()
            .len(),
        3
    );
    let first = &json["conclusions"][0];
    assert_eq!(first["word"], "better", "{first}");
    let text = json["conclusions"].to_string();
    assert!(text.contains("the work per block is the same"), "{text}");
    assert!(folder.path().join("result/runs/slow-3/samples.jsonl").exists());
    assert!(complaints.contains("repeat 2 of 3: quick"), "{complaints}");

    let checked = Command::new(env!("CARGO_BIN_EXE_weir"))
        .arg("check")
        .arg(folder.path().join("pace.toml"))
        .output()
        .unwrap();
    assert_eq!(checked.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&checked.stdout).contains("differ in word 3"), "{checked:?}");
}

#[test]
fn a_study_whose_variant_dies_is_invalid_and_says_why() {
    let folder = TempDir::new().unwrap();
    let text = study(["0.02", "nonsense"], "").replace("done\"#;", "");
    let text = text.replace("sleep \"$1\";", "sleep \"$1\" || exit 9;");
    std::fs::write(folder.path().join("pace.toml"), text).unwrap();
    let (code, _, complaints) = weir(folder.path(), &["pace.toml"]);
    assert_eq!(code, 4, "{complaints}");
    assert!(
        complaints.contains("variant \"quick\"") || complaints.contains("variant \"slow\""),
        "{complaints}"
    );
    assert!(
        complaints.contains("exit status: 9") && complaints.contains("nonsense"),
        "{complaints}"
    );
}
