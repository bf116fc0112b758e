//! Goal: `weir study load` runs variants in turn, finds a planted difference, finds none between
//! equal variants, continues after a kill without counting a round twice, and rejects invalid
//! files. Method: the real binary, and simulated nodes that the studies start themselves.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use test_support::running::{Weir, command_killed_with_test, spawn};
use test_support::wait::wait_until;

/// A plan with one closed-loop scenario. The validity limits are wide, because tests share their
/// machine.
const PLAN: &str = r#"
[variables]
seconds = 2

[[scenario]]
name = "main"
model = "closed"
mix = "reads"
stages = [{ duration = "${seconds}s", workers = 4 }]
grace = "5s"

[[mix.reads.calls]]
method = "eth_blockNumber"

[[mix.reads.calls]]
method = "eth_getBalance"
params = [{ draw = "address" }, "latest"]

[validity]
scheduling_delay_p99_max = "10m"
scheduling_delay_share_max = 100
waited_share_max = 1
"#;

/// Runs `weir study load`. Returns its exit code, standard output and standard error.
pub(crate) fn weir(folder: &Path, arguments: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(["study", "load"]).args(arguments).current_dir(folder).stdin(Stdio::null());
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// Parses a result and validates it against the published schema.
pub(crate) fn published(json: &str) -> Value {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/study-load.schema.json");
    let schema = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let schema = jsonschema::validator_for(&schema).unwrap();
    let result: Value = serde_json::from_str(json).unwrap_or_else(|_| panic!("{json}"));
    let faults: Vec<String> = schema.iter_errors(&result).map(|fault| fault.to_string()).collect();
    assert!(faults.is_empty(), "{faults:#?}");
    result
}

/// The configuration of a variant whose node has this latency.
fn variant(name: &str, latency: &str) -> String {
    format!(
        "[[variant]]\nname = '{name}'\ntarget = 'http://127.0.0.1:{{port.node}}'\n\
         [[variant.server]]\nname = 'node'\n\
         command = ['{{weir}}', 'node', '--listen', '127.0.0.1:{{port.node}}', '--latency', '{latency}']\n\
         ready = '127.0.0.1:{{port.node}}'\n"
    )
}

/// Writes a study and its plan.
fn study(folder: &TempDir, keys: &str, variants: &[String]) {
    let head = "study = 'load'\nname = 'tiny'\nplans = ['plan.toml']\npause = '0s'\n";
    let text = format!("{head}{keys}\n{}", variants.concat());
    std::fs::write(folder.path().join("study.toml"), text).unwrap();
    std::fs::write(folder.path().join("plan.toml"), PLAN).unwrap();
}

/// The differences of one metric, as method, verdict and relative change.
fn verdicts<'a>(comparison: &'a Value, metric: &str) -> Vec<(&'a str, &'a str, f64)> {
    let differences = comparison["differences"].as_array().unwrap().iter();
    let of_metric = differences.filter(|difference| difference["metric"] == metric);
    of_metric
        .map(|difference| {
            let text = |key: &str| difference[key].as_str().unwrap();
            (text("method"), text("verdict"), difference["change"].as_f64().unwrap())
        })
        .collect()
}

#[test]
fn a_planted_difference_is_found_and_equal_variants_are_not_called_different() {
    let folder = TempDir::new().unwrap();
    let keys = "rounds_min = 6\nrounds_max = 6\nprecision = 0.2";
    study(&folder, keys, &[variant("quick", "20ms"), variant("slow", "26ms")]);
    let (code, json, progress) = weir(folder.path(), &["study.toml", "--out", "result", "--json"]);
    assert_eq!(code, 0, "{progress}");
    let result = published(&json);
    assert_eq!(result["rounds"].as_array().unwrap().len(), 6, "{progress}");
    let plan = &result["plans"][0];
    let found = verdicts(&plan["comparison"], "latency_p50");
    assert_eq!(found.len(), 3, "both methods and their total: {found:?}");
    for (method, verdict, change) in found {
        assert_eq!(verdict, "worse", "{method}: {change}");
        assert!((0.15..0.45).contains(&change), "{method}: {change}");
    }
    for (method, verdict, change) in verdicts(&plan["control"], "latency_p50") {
        assert!(!["better", "worse"].contains(&verdict), "A/A {method}: {verdict} {change}");
    }
    assert_eq!(result["drifts"].as_array().unwrap().len(), 2, "machine and baseline");
    for name in ["study.json", "report.md", "report.html", "runs/slow/plan/round-006/result.json"] {
        assert!(folder.path().join("result").join(name).exists(), "{name}");
    }
    assert!(progress.contains("warm-up: quick, slow, quick-control"), "{progress}");
    assert!(progress.contains("round 2: quick-control, slow, quick"), "{progress}");

    // A complete study is reported again without a run.
    let (code, markdown, progress) =
        weir(folder.path(), &["study.toml", "--out", "result", "--markdown"]);
    assert_eq!(code, 0, "{progress}");
    assert!(
        progress.contains("continues after round 6") && !progress.contains("warm-up"),
        "{progress}"
    );
    assert!(markdown.starts_with("## Study: tiny\n"), "{markdown}");
    // The exit code says if a ratio to the first variant keeps its limit, which may change.
    let limited = |ratio_max: f64| {
        let limit = format!("ratio_max = {{ latency_p50 = {ratio_max} }}\n[[variant.server]]");
        let [quick, slow] = [variant("quick", "20ms"), variant("slow", "26ms")];
        study(&folder, keys, &[quick, slow.replace("[[variant.server]]", &limit)]);
        weir(folder.path(), &["study.toml", "--out", "result", "--quiet"])
    };
    for (ratio_max, expected, word) in [(1.5, 0, "PASS"), (1.1, 3, "FAIL")] {
        let (code, text, errors) = limited(ratio_max);
        assert_eq!(code, expected, "{ratio_max}: {text}{errors}");
        assert!(text.contains(&format!("{word}  tiny")), "{ratio_max}: {text}");
    }
    // The runs of each variant can be compared by hand, too.
    let compare = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["compare", "--paired", "runs/quick/plan", "runs/slow/plan"])
        .current_dir(folder.path().join("result"))
        .output()
        .unwrap();
    assert_eq!(compare.status.code(), Some(0), "{}", String::from_utf8_lossy(&compare.stderr));
}

#[test]
fn a_dry_run_prints_the_order_and_the_time_and_starts_nothing() {
    let folder = TempDir::new().unwrap();
    study(
        &folder,
        "rounds_min = 2\nrounds_max = 3\norder = 'latin-square'",
        &[variant("a", "1ms")],
    );
    let (code, text, errors) =
        weir(folder.path(), &["study.toml", "--dry-run", "--set", "seconds=8"]);
    assert_eq!((code, &*errors), (0, ""));
    for part in [
        "one round  2 runs, 20 s",
        "time       1 min to 1 min 20 s",
        "warm-up    a, a-control",
        "round 2    a-control, a",
        "a: http://127.0.0.1:{port.node}, starts node",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    let checked = Command::new(env!("CARGO_BIN_EXE_weir"))
        .arg("check")
        .arg(folder.path().join("study.toml"))
        .output()
        .unwrap();
    assert_eq!(checked.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&checked.stdout).contains("the A/A control"), "{checked:?}");
}

/// Starts a study as a separate process.
fn start(folder: &Path) -> Child {
    let mut command = command_killed_with_test(Path::new(env!("CARGO_BIN_EXE_weir")));
    command.args(["study", "load", "study.toml", "--out", "result", "--quiet"]);
    spawn({
        command.current_dir(folder).stdin(Stdio::null()).stdout(Stdio::null());
        command
    })
    .unwrap()
}

/// Counts the finished runs in the folder of a study.
fn count_finished_runs(folder: &Path) -> usize {
    let runs = |variant: &str| {
        let path = folder.join("result/runs").join(variant).join("plan");
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        entries.filter(|entry| !entry.file_name().to_string_lossy().starts_with('.')).count()
    };
    ["a", "b", "a-control"].into_iter().map(runs).sum()
}

#[test]
fn a_killed_study_continues_and_counts_no_round_twice() {
    let folder = TempDir::new().unwrap();
    let keys = "rounds_min = 4\nrounds_max = 4\nwarm_up_rounds = 0\nrestart = 'round'";
    study(&folder, keys, &[variant("a", "1ms"), variant("b", "1ms")]);
    std::fs::write(folder.path().join("plan.toml"), PLAN.replace("seconds = 2", "seconds = 1"))
        .unwrap();
    // Twenty kills: in the first run, at the start of a round, within a round, while a file is
    // written, and soon after each start.
    let mut left_servers = 0;
    for finished_runs in [0, 1, 3, 5, 8] {
        let mut child = start(folder.path());
        if finished_runs == 0 {
            wait_until("a lock", || folder.path().join("result/state.json").exists());
        }
        wait_until(&format!("{finished_runs} finished runs"), || {
            count_finished_runs(folder.path()) >= finished_runs
        });
        child.kill().unwrap();
        child.wait().unwrap();
        // After these times the study reads its folder, starts the servers, or loads them.
        for milliseconds in [20, 150, 350] {
            let mut child = start(folder.path());
            // Sleeps: the instant of the kill.
            std::thread::park_timeout(Duration::from_millis(milliseconds));
            child.kill().unwrap();
            child.wait().unwrap();
            left_servers += find_servers(folder.path()).len();
        }
    }
    assert!(left_servers > 0, "no study was killed while servers ran");
    let (code, json, progress) = weir(folder.path(), &["study.toml", "--out", "result", "--json"]);
    assert_eq!(code, 0, "{progress}");
    assert!(progress.contains("continues after round 2"), "{progress}");
    let result = published(&json);
    let rounds = result["rounds"].as_array().unwrap();
    assert_eq!(rounds.len(), 4);
    for (index, round) in rounds.iter().enumerate() {
        assert_eq!(round["round"], index + 1);
        let runs = round["runs"].as_array().unwrap();
        let mut variants: Vec<&str> =
            runs.iter().map(|run| run["variant"].as_str().unwrap()).collect();
        variants.sort_unstable();
        assert_eq!(variants, ["a", "a-control", "b"], "round {}", index + 1);
    }
    let starts: Vec<f64> = rounds
        .iter()
        .flat_map(|round| round["runs"].as_array().unwrap())
        .map(|run| run["started_unix"].as_f64().unwrap())
        .collect();
    assert!(starts.windows(2).all(|pair| pair[0] < pair[1]), "{starts:?}");
    assert_eq!(result["plans"][0]["rounds"], 4);
    assert_eq!(count_finished_runs(folder.path()), 12);
    let running = find_servers(folder.path());
    assert!(running.is_empty(), "servers of the killed studies still run: {running:?}");
}

/// Returns the ids of the processes that have the folder of the test in an environment variable:
/// the servers of studies.
fn find_servers(folder: &Path) -> Vec<u32> {
    let folder = folder.to_str().unwrap();
    let has_folder = |id: &u32| {
        let environment = std::fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
        let mut variables = environment.split(|byte| *byte == 0);
        variables.any(|variable| String::from_utf8_lossy(variable).contains(folder))
    };
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.filter(has_folder).collect()
}

#[test]
fn running_targets_are_compared_and_a_dead_one_is_reported() {
    let (a, b) = (Weir::node().start(), Weir::node().start());
    let folder = TempDir::new().unwrap();
    let target =
        |name: &str, url: &str| format!("[[variant]]\nname = '{name}'\ntarget = '{url}'\n");
    let keys = "rounds_min = 2\nrounds_max = 2\nwarm_up_rounds = 0\ncontrol = false";
    let websocket = b.url().replace("http://", "ws://");
    study(&folder, keys, &[target("a", &a.url()), target("b", &websocket)]);
    let (code, text, progress) = weir(folder.path(), &["study.toml", "--set", "seconds=1"]);
    assert_eq!(code, 0, "{progress}");
    assert!(text.contains("the study has no A/A control"), "{text}");

    study(&folder, keys, &[target("a", &a.url()), target("b", "http://127.0.0.1:1")]);
    let (code, _, errors) = weir(folder.path(), &["study.toml", "--set", "seconds=1"]);
    assert_eq!(code, 1, "{errors}");
    assert!(errors.contains("variant \"b\"") && errors.contains("refused"), "{errors}");
}

#[test]
fn servers_that_do_not_start_end_the_study_with_their_output() {
    let folder = TempDir::new().unwrap();
    let server = |command: &str| {
        format!(
            "[[variant]]\nname = 'a'\ntarget = 'http://127.0.0.1:{{port.x}}'\n\
             [[variant.server]]\nname = 'node'\ncommand = {command}\n\
             ready = '127.0.0.1:{{port.x}}'\nready_timeout = '10s'\n"
        )
    };
    let check = |command: &str, expected: &[&str]| {
        study(&folder, "", &[server(command)]);
        let (code, _, errors) = weir(folder.path(), &["study.toml"]);
        assert_eq!(code, 1, "{errors}");
        for part in expected {
            assert!(errors.contains(part), "{part} is not in {errors}");
        }
    };
    check("['sh', '-c', 'echo broken setting >&2; exit 3']", &["exit status: 3", "broken setting"]);
    check("['no-such-program-here']", &["server \"node\" of variant \"a\": cannot start"]);
}

#[test]
fn a_folder_of_another_study_is_refused() {
    let folder = TempDir::new().unwrap();
    let node = Weir::node().start();
    let target = format!("[[variant]]\nname = 'a'\ntarget = '{}'\n", node.url());
    let keys = "rounds_min = 1\nrounds_max = 1\nwarm_up_rounds = 0";
    study(&folder, keys, std::slice::from_ref(&target));
    let arguments = ["study.toml", "--out", "result", "--set", "seconds=1"];
    let (code, _, progress) = weir(folder.path(), &arguments);
    assert_eq!(code, 4, "one round is no interval between rounds: {progress}");
    let (code, _, errors) = weir(folder.path(), &["study.toml", "--out", "result"]);
    assert_eq!(code, 2, "other variables are another load: {errors}");
    assert!(errors.contains("it has runs of the study \"tiny\" with other variants"), "{errors}");
    // More rounds of the same study are added.
    let more = [&arguments[..], &["--rounds-max", "2", "--rounds-min", "2"]].concat();
    let (code, _, progress) = weir(folder.path(), &more);
    assert_eq!(code, 0, "{progress}");
    assert!(progress.contains("continues after round 1"), "{progress}");
}

#[test]
fn the_harmony_study_compares_direct_proxied_and_cached_calls() {
    if test_support::programs::require("redis-server").is_none() {
        return;
    }
    let folder = TempDir::new().unwrap();
    let studies = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../studies");
    let shipped = |name: &str| std::fs::read_to_string(studies.join(name)).unwrap();
    let wide = "\n[validity]\nscheduling_delay_p99_max = \"10m\"\nscheduling_delay_share_max = 100\nwaited_share_max = 1\n";
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("harmony-plan.toml", &(shipped("harmony-plan.toml") + wide));
    let text = shipped("harmony-methods.toml");
    let scaled = text
        .replace("requests = 2000, seconds = 3.5", "requests = 60, seconds = 0.1")
        .replace("rounds_min = 6", "pause = \"0s\"\nrounds_min = 7")
        .replace("rounds_max = 12", "rounds_max = 7");
    assert_ne!(text, scaled);
    write("harmony-methods.toml", &scaled);
    let (code, json, progress) = weir(folder.path(), &["harmony-methods.toml", "--json"]);
    assert_eq!(code, 0, "{progress}");
    let result = published(&json);
    let names: Vec<&str> = result["variants"]
        .as_array()
        .unwrap()
        .iter()
        .map(|variant| variant["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["direct", "proxied", "memory", "redis", "direct-control"]);
    let comparison = &result["plans"][0]["comparison"];
    let differences = comparison["differences"].as_array().unwrap();
    let find = |variant: &str, method: &str| -> (&str, f64, &Value) {
        let difference = differences.iter().find(|difference| {
            difference["variant"] == variant
                && difference["method"] == method
                && difference["metric"] == "latency_p50"
        });
        let difference = difference.unwrap_or_else(|| panic!("{variant} {method}: {progress}"));
        let (verdict, change) = (&difference["verdict"], &difference["change"]);
        (verdict.as_str().unwrap(), change.as_f64().unwrap(), difference)
    };
    // The node takes 20 ms for each call; a cache hit takes far less.
    for variant in ["memory", "redis"] {
        for method in ["hmyv2_blockNumber", "hmyv2_getBlocks", "hmyv2_call"] {
            let (_, change, difference) = find(variant, method);
            assert!(change < -0.5, "{variant}: {difference:#} {progress}");
            // The interval is of this difference alone. The verdict is corrected for hundreds of
            // comparisons.
            let high = difference["interval"][1].as_f64();
            assert!(high.is_some_and(|high| high < -0.3), "{variant}: {difference:#} {progress}");
        }
        let (verdict, _, difference) = find(variant, "hmyv2_blockNumber");
        assert_eq!(verdict, "better", "{variant}: {difference:#} {progress}");
    }
    // The metadata of a node is never cached.
    for variant in ["proxied", "memory", "redis"] {
        let (verdict, _, difference) = find(variant, "hmyv2_getNodeMetadata");
        assert_ne!(verdict, "better", "{variant}: {difference:#}");
    }
    let methods: std::collections::BTreeSet<&str> = differences
        .iter()
        .map(|difference| difference["method"].as_str().unwrap())
        .filter(|method| *method != "all")
        .collect();
    assert_eq!(methods.len(), 15, "{methods:?}");
    for variant in ["proxied", "memory", "redis"] {
        for method in &methods {
            let (_, change, _) = find(variant, method);
            assert!(change.is_finite(), "{variant} {method}");
        }
    }
    // No call fails, so no method is fast only because it is rejected.
    for difference in differences.iter().filter(|row| row["metric"] == "failed_share") {
        let shares = [&difference["a"], &difference["b"]].map(Value::as_f64);
        assert_eq!(shares, [Some(0.0), Some(0.0)], "{difference:#}");
    }
}
