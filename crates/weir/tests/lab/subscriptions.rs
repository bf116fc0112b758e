//! Goal: a run counts planted faults of notifications exactly, measures their delay within 2 %, and
//! fails if a threshold of a subscription is broken.
//! Method: two simulated nodes with the same chain; one delays, loses and doubles notifications.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;
use tempfile::TempDir;

use test_support::raw::Client;
use test_support::running::{Running, Weir};

/// The planted delay, much longer than the interval of 2 ms at which simulated nodes poll their
/// chain.
const DELAY_MS: f64 = 500.0;
/// The faulty node loses each notification whose number is a multiple of this.
const LOSE_EVERY: u64 = 7;
/// The faulty node sends each notification twice whose number is a multiple of this.
const DOUBLE_EVERY: u64 = 5;
/// Number of subscriptions with one connection each to the faulty node. The test knows their exact
/// counts.
const SINGLE: usize = 3;
/// Maximum number of runs until the delays are exact.
const RUNS_MAX: usize = 4;
/// Connections of one more subscription to the faulty node.
const CONNECTIONS: u64 = 4;

/// Starts a node with the same blocks at the same time as others of the same `since`. A block has
/// at most one log of a contract.
fn node(since: u64, block_time: &str) -> Running {
    let since = since.to_string();
    let arguments =
        ["--since", &since, "--block-time", block_time, "--head", "10", "--txs", "1..1"];
    Weir::node().admin().args(&arguments).start()
}

/// Writes a plan whose subscriptions have these `keys`.
fn plan(folder: &TempDir, honest: &Running, faulty: &Running, keys: &str) -> String {
    let websocket = |node: &Running| node.url().replace("http://", "ws://");
    let mut text = format!(
        "[target]\nurl = \"{}\"\n[validity]\nscheduling_delay_p99_max = \"10m\"\nwaited_share_max = 1\n\
         [[scenario]]\nmix = \"head\"\nworkers_max = 1\nstages = [{{ duration = \"6s\", rate = 5 }}]\n\
         [mix.head]\ncalls = [{{ method = \"eth_blockNumber\" }}]\n\
         [[subscription]]\nname = \"honest\"\nurl = \"{}\"\n{keys}\
         ended_max = 0\nmissing_max = 0\nduplicates_max = 0\ndelay_p99_max = \"250ms\"\n\
         [[subscription]]\nname = \"faulty\"\nurl = \"{}\"\n{keys}connections = {CONNECTIONS}\n\
         ended_max = 0\nmissing_max = 0\nduplicates_max = 0\ndelay_p99_max = \"250ms\"\n",
        honest.url(),
        websocket(honest),
        websocket(faulty)
    );
    for _ in 0..SINGLE {
        text += &format!("[[subscription]]\nurl = \"{}\"\n{keys}", websocket(faulty));
    }
    let path = folder.path().join("plan.toml");
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

fn weir(arguments: &[&str]) -> Output {
    let mut command = Command::new(test_support::running::weir());
    command.args(arguments).stdin(Stdio::null()).output().unwrap()
}

/// The result of a run with an honest and a faulty node.
struct Run {
    honest: Value,
    /// The subscription with several connections.
    faulty: Value,
    /// The subscriptions with one connection each.
    single: Vec<Value>,
    result: Value,
}

/// Runs a plan whose subscriptions have the keys that `keys` returns for the honest node.
fn run(block_time: &str, keys: &impl Fn(&Running) -> String) -> Run {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let (honest, faulty) = (node(since, block_time), node(since, block_time));
    faulty.set_node_settings(&format!(
        "{{\"notifications\":{{\"delay_ms\":{DELAY_MS},\"lose_every\":{LOSE_EVERY},\
         \"double_every\":{DOUBLE_EVERY}}}}}"
    ));
    let folder = TempDir::new().unwrap();
    let plan = plan(&folder, &honest, &faulty, &keys(&honest));
    let Output { stdout, stderr, status } = weir(&["load", &plan, "--json", "-", "--quiet"]);
    let result: Value = serde_json::from_slice(&stdout)
        .unwrap_or_else(|_| panic!("{status}: {}", String::from_utf8_lossy(&stderr)));
    let rows = result["subscriptions"].as_array().unwrap();
    Run { honest: rows[0].clone(), faulty: rows[1].clone(), single: rows[2..].to_vec(), result }
}

fn number(row: &Value, name: &str) -> u64 {
    row[name].as_u64().unwrap_or_else(|| panic!("{name}: {row}"))
}

/// Returns the numbers of duplicate and of missing notifications of a connection that received this
/// many. The node numbers the notifications of each subscription from 1 and sends them in order.
fn expected(received: u64) -> (u64, u64) {
    let (mut sent, mut duplicates, mut lost, mut missing) = (0, 0, 0, 0);
    for number in 1.. {
        if sent >= received {
            break;
        }
        if number % LOSE_EVERY == 0 {
            lost += 1;
            continue;
        }
        missing = lost;
        sent += 1;
        // The connection may end between both copies.
        if number % DOUBLE_EVERY == 0 && sent < received {
            sent += 1;
            duplicates += 1;
        }
    }
    (duplicates, missing)
}

/// Checks that the honest node has no faults, and that those of the faulty node are counted exactly.
fn assert_counts(run: &Run) {
    let Run { honest, faulty, single, .. } = run;
    assert_eq!((number(honest, "missing"), number(honest, "duplicates")), (0, 0), "{honest}");
    assert_eq!(single.len(), SINGLE);
    for row in single {
        let (duplicates, missing) = expected(number(row, "notifications"));
        assert!(missing >= 4 && duplicates >= 4, "the run is too short: {row}");
        let counts = (number(row, "duplicates"), number(row, "missing"));
        assert_eq!(counts, (duplicates, missing), "{row}");
    }
    assert_eq!(number(faulty, "open"), CONNECTIONS, "{faulty}");
    // The connections subscribe at different blocks, so their counts may differ by a few.
    let fewest = expected(number(faulty, "notifications_min"));
    let most = expected(number(faulty, "notifications_max"));
    for (name, fewest, most) in [("duplicates", fewest.0, most.0), ("missing", fewest.1, most.1)] {
        let range = CONNECTIONS * fewest..=CONNECTIONS * most;
        assert!(range.contains(&number(faulty, name)), "{name} outside of {range:?}: {faulty}");
    }
}

/// Returns true if the medians of all delays are within 2 %.
fn are_delays_exact(run: &Run) -> bool {
    let delay = |row: &Value| row["delay"]["p50_ms"].as_f64().unwrap();
    let is_exact = |row: &Value| (delay(row) / DELAY_MS - 1.0).abs() < 0.02;
    delay(&run.honest) < DELAY_MS / 10.0 && run.single.iter().chain([&run.faulty]).all(is_exact)
}

/// Runs the plan until the delays are exact, because a busy machine delays notifications too. The
/// counts of each run must be exact.
fn run_until_exact(block_time: &str, keys: impl Fn(&Running) -> String) -> Run {
    let mut runs = (0..RUNS_MAX).map(|_| run(block_time, &keys)).inspect(assert_counts);
    runs.find(are_delays_exact).expect("the delays of one run are within 2 %")
}

#[test]
fn faults_of_heads_are_counted_exactly() {
    let run = run_until_exact("100ms", |_| "kind = \"newHeads\"\n".to_owned());
    assert!(number(&run.honest, "notifications") >= 40, "{}", run.honest);
    let findings = run.result["findings"].to_string();
    for fact in ["4 connections of the subscription faulty did not receive", "were duplicates"] {
        assert!(findings.contains(fact), "{findings}");
    }
    assert!(!findings.contains("honest"), "{findings}");
    let thresholds = run.result["thresholds"].as_array().unwrap();
    let kept: Vec<bool> = thresholds.iter().map(|row| row["kept"].as_bool().unwrap()).collect();
    // The faulty node loses, doubles and delays notifications, and no connection ends.
    assert_eq!(kept, [true, true, true, true, true, false, false, false], "{thresholds:?}");
    let verdict = &run.result["verdict"];
    assert_eq!(verdict["outcome"], "fail", "{verdict}");
    let reason = "notification_delay{subscription:faulty} p(99)<=250 was broken: 5";
    assert!(verdict["reasons"].to_string().contains(reason), "{verdict}");
}

#[test]
fn faults_of_logs_are_counted_exactly() {
    run_until_exact("25ms", |honest| {
        let call =
            br#"{"jsonrpc":"2.0","id":1,"method":"eth_getLogs","params":[{"fromBlock":"0x1"}]}"#;
        let logs = Client::connect(&honest.address).call("/", call);
        let logs: Value = serde_json::from_str(logs.text()).unwrap();
        format!("kind = \"logs\"\naddresses = [{}]\n", logs["result"][0]["address"])
    });
}

#[test]
fn the_example_of_the_page_is_valid() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = std::fs::read_to_string(root.join("docs/websocket-load.md")).unwrap();
    let plan = page.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("plan.toml");
    std::fs::write(&path, plan).unwrap();
    let output = weir(&["check", path.to_str().unwrap()]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    let line = "subscription gateway (newHeads), 1,000 connections to ws://127.0.0.1:8550";
    assert!(text.contains(line), "{text}");
}
