//! Goal: every panel of the dashboard of load runs has data, in both forms of distributions.
//! Method: runs over HTTP and over WebSockets push their metrics to a real Prometheus, which then
//! runs every query of the dashboard for each run. The runs over WebSockets send signed
//! transactions to a real geth.
//!
//! These tests need prometheus and geth; `test_support::programs` decides what happens without
//! them.

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use test_support::dashboard::{read_queries, wait_for_data};
use test_support::geth::Geth;
use test_support::prometheus::Prometheus;
use test_support::running::{Running, Weir, command_killed_with_test, spawn, weir};
use test_support::signing::{Account, hex};

/// A plan with results, JSON-RPC errors, a threshold, and calls that the gateway rejects with 429
/// and Retry-After.
const PLAN: &str = r#"
name = "dashboard"
[target]
url = "https://localhost:1"
[connections]
reuse = 20
[[scenario]]
name = "load"
mix = "own"
workers_max = 20
stages = [{ name = "steady", duration = "10m", rate = 100 }]
[[mix.own.calls]]
method = "eth_blockNumber"
[[mix.own.calls]]
method = "eth_nothing"
[thresholds]
"latency" = "p(95)<60000"
"#;

/// Panels that have data only if calls go over WebSockets and signed transactions are sent. The last
/// one also needs a server that closes WebSockets.
const WEBSOCKET_AND_TRANSACTIONS: &[&str] = &[
    "weir_lab_inclusion_seconds",
    "weir_lab_transactions_included_total",
    "weir_lab_upgrade_seconds",
    CLOSES,
];
const CLOSES: &str = "weir_lab_websocket_closes_total";

/// The names of the runs, and the forms of their distributions.
const RUNS: [(&str, &str); 2] = [("stats", "avg,max,p(50),p(95),p(99)"), ("native", "native")];

/// A plan that sends signed transactions over WebSockets.
const WEBSOCKET_PLAN: &str = r#"
name = "websocket"
[target]
url = "ws://localhost:1"
[connections]
reuse = 5
[inclusion]
wait = "1s"
[[scenario]]
name = "transfers"
mix = "transfers"
workers_max = 5
stages = [{ duration = "10m", rate = 5 }]
[mix.transfers]
transactions = "transactions.txt"
"#;

/// A gateway with TLS that rejects most calls.
fn target(node: &Running, folder: &Path) -> Running {
    let certificate = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let (chain, key) = (folder.join("cert.pem"), folder.join("key.pem"));
    std::fs::write(&chain, certificate.cert.pem()).unwrap();
    std::fs::write(&key, certificate.signing_key.serialize_pem()).unwrap();
    let config = format!(
        "[server]\nlisten = \"off\"\nlisten_tls = \"127.0.0.1:0\"\n\
         [[certificate]]\nchain_file = \"{}\"\nkey_file = \"{}\"\n\
         [[upstream]]\nname = \"one\"\nurl = \"{}\"\n\
         [zone.all]\nkey = [\"client\"]\nrate = \"50r/s\"\n[[limit]]\nzone = \"all\"\nnodelay = true\n",
        chain.display(),
        key.display(),
        node.url(),
    );
    Weir::serve().listen_as_configured().config(&config).start()
}

fn load(plan: &Path, target: &str, prometheus: &Prometheus, name: &str, trends: &str) -> Child {
    let mut command = command_killed_with_test(&weir());
    command.arg("load").arg(plan).args(["--quiet", "--insecure"]);
    command.args(["--target", target]);
    command.args(["--remote-write", &prometheus.write_url()]);
    command.args(["--metric-label", &format!("testid={name}"), "--metric-trends", trends]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    spawn(command).unwrap()
}

fn dashboard() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/grafana/dashboards/weir-lab.json")
}

#[test]
fn every_panel_has_data() {
    let Some(prometheus) = Prometheus::start(&[]) else { return };
    let folder = tempfile::tempdir().unwrap();
    let node = Weir::node().start();
    let target = target(&node, folder.path());
    let plan = folder.path().join("plan.toml");
    std::fs::write(&plan, PLAN).unwrap();
    let queries = read_queries(&dashboard());
    let target = format!("https://{}", target.address);
    // One run at a time: the gateway rejects most calls of a run, and so could reject the calls by
    // which a second run learns about its target.
    for (name, trends) in RUNS {
        let run = load(&plan, &target, &prometheus, name, trends);
        let variables = [("__rate_interval", "30s"), ("testid", name)];
        wait_for_data(&prometheus, &queries, &variables, WEBSOCKET_AND_TRANSACTIONS);
        end(run);
    }
}

/// Ends a run that must still be running.
fn end(mut run: Child) {
    assert_eq!(run.try_wait().unwrap(), None, "the run ended before the queries");
    run.kill().unwrap();
    run.wait().unwrap();
}

#[test]
fn panels_of_websockets_and_transactions_have_data() {
    let Some(prometheus) = Prometheus::start(&[]) else { return };
    let Some(geth) = Geth::start_dev(RUNS.len() as u8) else { return };
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("plan.toml");
    std::fs::write(&plan, WEBSOCKET_PLAN).unwrap();
    let mut queries = read_queries(&dashboard());
    queries.retain(|query| WEBSOCKET_AND_TRANSACTIONS.contains(&&*query.title));
    let upstream = format!("http://{}", geth.address);
    for (sender, (name, trends)) in (0..).zip(RUNS) {
        let sender = Account::numbered(sender);
        let transfers = (0..500).map(|nonce| hex(&sender.transfer(1337, nonce, sender.address)));
        let lines = transfers.collect::<Vec<_>>().join("\n");
        std::fs::write(folder.path().join("transactions.txt"), lines).unwrap();
        let gateway = Weir::serve().upstreams(std::slice::from_ref(&upstream)).start();
        let target = format!("ws://{}", gateway.address);
        let run = load(&plan, &target, &prometheus, name, trends);
        let variables = [("__rate_interval", "30s"), ("testid", name)];
        wait_for_data(&prometheus, &queries, &variables, &[CLOSES]);
        // A gateway that stops closes its WebSockets.
        gateway.signal("-TERM");
        wait_for_data(&prometheus, &queries, &variables, &[]);
        end(run);
    }
}
