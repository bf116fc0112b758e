//! Goal: every panel of the dashboard of load runs has data, in both forms of distributions, except
//! those of WebSockets and signed transactions.
//! Method: two runs that push to a real Prometheus, which runs every query of the file for each.
//!
//! Needs prometheus; see `test_support::programs` for what happens without.

use std::path::Path;
use std::process::{Child, Stdio};

use test_support::dashboard::{queries, wait_for_data};
use test_support::prometheus::Prometheus;
use test_support::running::{Running, Weir, command_killed_with_test, spawn, weir};

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

/// Panels that lack data: the calls go over HTTP, and no signed transaction is sent.
const EMPTY: &[&str] = &[
    "weir_lab_inclusion_seconds",
    "weir_lab_transactions_included_total",
    "weir_lab_upgrade_seconds",
    "weir_lab_websocket_closes_total",
];

/// A gateway with TLS that rejects most calls.
fn target(node: &Running, folder: &Path) -> Running {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let (chain, key) = (folder.join("cert.pem"), folder.join("key.pem"));
    std::fs::write(&chain, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
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

fn load(plan: &Path, target: &Running, prometheus: &Prometheus, name: &str, trends: &str) -> Child {
    let mut command = command_killed_with_test(&weir());
    command.arg("load").arg(plan).args(["--quiet", "--insecure"]);
    command.args(["--target", &format!("https://{}", target.address)]);
    command.args(["--remote-write", &prometheus.write_url()]);
    command.args(["--metric-label", &format!("testid={name}"), "--metric-trends", trends]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    spawn(command).unwrap()
}

#[test]
fn every_panel_has_data() {
    let Some(prometheus) = Prometheus::start(&[]) else { return };
    let folder = tempfile::tempdir().unwrap();
    let node = Weir::node().start();
    let target = target(&node, folder.path());
    let plan = folder.path().join("plan.toml");
    std::fs::write(&plan, PLAN).unwrap();
    let dashboard =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/grafana/dashboards/weir-lab.json");
    let queries = queries(&dashboard);
    let runs = [("stats", "avg,max,p(50),p(95),p(99)"), ("native", "native")];
    // One run at a time: the gateway rejects most calls of a run, and so could reject the calls by
    // which a second run learns about its target.
    for (name, trends) in runs {
        let mut run = load(&plan, &target, &prometheus, name, trends);
        let variables = [("__rate_interval", "30s"), ("testid", name)];
        wait_for_data(&prometheus, &queries, &variables, EMPTY);
        assert_eq!(run.try_wait().unwrap(), None, "the run {name} ended before the queries");
        run.kill().unwrap();
        run.wait().unwrap();
    }
}
