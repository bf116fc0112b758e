//! Goal: a run counts planted faults of notifications exactly, and measures their delay within 2 %.
//! Method: two simulated nodes with the same chain; one delays, loses and doubles notifications.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;
use tempfile::TempDir;

use test_support::running::{Running, Weir};

/// The planted delay. It is large against the interval of 2 ms at which nodes poll the chain.
const DELAY_MS: f64 = 500.0;
const LOSE_EVERY: u64 = 7;
const DOUBLE_EVERY: u64 = 5;
const CONNECTIONS: u64 = 4;

/// Starts a node. Nodes with the same `since` have the same blocks at the same time.
fn node(since: u64) -> Running {
    let since = since.to_string();
    let arguments = ["--since", &since, "--block-time", "100ms", "--head", "10"];
    Weir::node().admin().args(&arguments).start()
}

fn plan(folder: &TempDir, honest: &Running, faulty: &Running, kind: &str) -> String {
    let websocket = |node: &Running| node.url().replace("http://", "ws://");
    let text = format!(
        "[target]\nurl = \"{}\"\n[validity]\nscheduling_delay_p99_max = \"10m\"\nwaited_share_max = 1\n\
         [[subscription]]\nname = \"honest\"\nurl = \"{}\"\nkind = \"{kind}\"\n\
         [[subscription]]\nname = \"faulty\"\nurl = \"{}\"\nkind = \"{kind}\"\nconnections = {CONNECTIONS}\n\
         [[scenario]]\nmix = \"head\"\nworkers_max = 1\nstages = [{{ duration = \"6s\", rate = 5 }}]\n\
         [mix.head]\ncalls = [{{ method = \"eth_blockNumber\" }}]\n",
        honest.url(),
        websocket(honest),
        websocket(faulty)
    );
    let path = folder.path().join("plan.toml");
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

fn weir(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(arguments).stdin(Stdio::null()).output().unwrap()
}

/// Runs the plan and returns its subscriptions, and the findings.
fn run(kind: &str) -> (Value, Value, String) {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let (honest, faulty) = (node(since), node(since));
    faulty.set(&format!(
        "{{\"notifications\":{{\"delay_ms\":{DELAY_MS},\"lose_every\":{LOSE_EVERY},\
         \"double_every\":{DOUBLE_EVERY}}}}}"
    ));
    let folder = TempDir::new().unwrap();
    let plan = plan(&folder, &honest, &faulty, kind);
    let Output { stdout, stderr, .. } = weir(&["load", &plan, "--json", "-", "--quiet"]);
    let result: Value = serde_json::from_slice(&stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&stderr)));
    let rows = &result["subscriptions"];
    (rows[0].clone(), rows[1].clone(), result["findings"].to_string())
}

fn number(row: &Value, name: &str) -> u64 {
    row[name].as_u64().unwrap_or_else(|| panic!("{name}: {row}"))
}

/// Returns notifications, duplicates and gaps of a connection that received this many
/// notifications. The node numbers the notifications from 1 and sends them in order.
fn expected(received: u64) -> (u64, u64) {
    let (mut sent, mut duplicates, mut lost, mut gaps) = (0, 0, 0, 0);
    for number in 1.. {
        if sent >= received {
            break;
        }
        if number % LOSE_EVERY == 0 {
            lost += 1;
            continue;
        }
        gaps = lost;
        sent += 1;
        // The connection may end between both copies.
        if number % DOUBLE_EVERY == 0 && sent < received {
            sent += 1;
            duplicates += 1;
        }
    }
    (duplicates, gaps)
}

fn assert_delay(row: &Value) {
    let delay = row["delay"]["p50_ms"].as_f64().unwrap();
    assert!((delay / DELAY_MS - 1.0).abs() < 0.02, "{delay} ms instead of {DELAY_MS}: {row}");
}

#[test]
fn faults_of_heads_are_counted_exactly() {
    let (honest, faulty, findings) = run("newHeads");
    assert_eq!((number(&honest, "missing"), number(&honest, "duplicates")), (0, 0), "{honest}");
    assert!(number(&honest, "notifications") >= 40, "{honest}");
    assert!(honest["delay"]["p50_ms"].as_f64().unwrap() < DELAY_MS / 10.0, "{honest}");
    assert_eq!(number(&faulty, "open"), CONNECTIONS, "{faulty}");
    // The connections subscribe and end at different blocks, so their numbers may differ by a few.
    let fewest = expected(number(&faulty, "notifications_min"));
    let most = expected(number(&faulty, "notifications_max"));
    assert!(fewest.1 >= 4 && fewest.0 >= 4, "the run is too short: {faulty}");
    for (name, fewest, most) in [("duplicates", fewest.0, most.0), ("missing", fewest.1, most.1)] {
        let range = CONNECTIONS * fewest..=CONNECTIONS * most;
        assert!(range.contains(&number(&faulty, name)), "{name} outside of {range:?}: {faulty}");
    }
    assert_delay(&faulty);
    for fact in ["4 connections of the subscription faulty did not receive", "were duplicates"] {
        assert!(findings.contains(fact), "{findings}");
    }
    assert!(!findings.contains("honest"), "{findings}");
}

#[test]
fn faults_of_logs_are_counted() {
    let (honest, faulty, _) = run("logs");
    assert_eq!((number(&honest, "missing"), number(&honest, "duplicates")), (0, 0), "{honest}");
    // The node loses every seventh notification. Those at both ends of a connection do not count.
    let distinct = number(&faulty, "notifications") - number(&faulty, "duplicates");
    let lost = number(&faulty, "missing") as f64;
    let share = lost / (lost + distinct as f64);
    assert!((share * LOSE_EVERY as f64 - 1.0).abs() < 0.1, "{share}: {faulty}");
    assert_delay(&faulty);
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
