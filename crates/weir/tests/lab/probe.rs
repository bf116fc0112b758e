//! Goal: Prometheus gets a probe's series by scrape and by remote write. A stopped or lagging node
//! is detected within seconds, and the probe survives the loss of Prometheus. Method: simulated
//! nodes, a real Prometheus, and the alerts from `docs/probe.md`.
//!
//! These tests need prometheus; `test_support::programs` decides what happens without it.

use std::path::Path;
use std::time::{Duration, Instant};

use test_support::port::ReservedPort;
use test_support::prometheus::Prometheus;
use test_support::running::{Running, Weir};
use test_support::wait::wait_until;

/// Maximum time until a change is detected, on a busy machine. The probes of most tests make five
/// calls per second.
const DETECTION_TIME_MAX: Duration = Duration::from_secs(20);

/// Starts a probe of nodes with the names `n0`, `n1`, …. The probe calls every second node over a
/// WebSocket.
fn probe(nodes: &[&Running], options: &[&str]) -> Running {
    let schemes = ["http", "ws"].iter().cycle();
    let nodes = nodes.iter().zip(schemes).enumerate();
    let targets: Vec<String> = nodes
        .map(|(index, (node, scheme))| format!("n{index}={scheme}://{}", node.address))
        .collect();
    let targets = targets.iter().map(String::as_str);
    let arguments: Vec<&str> =
        targets.chain(["--rate", "5"]).chain(options.iter().copied()).collect();
    Weir::probe().args(&arguments).start()
}

/// Two nodes of one chain.
fn nodes() -> [Running; 2] {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let since = now.as_secs().to_string();
    let node = || Weir::node().admin().args(&["--since", &since, "--block-time", "200ms"]).start();
    [node(), node()]
}

fn wait_for_line(probe: &Running, text: &str) {
    wait_until(text, || probe.log().contains(text));
}

/// Ends a probe with a signal; it must end with exit code 0.
fn end_probe(mut probe: Running, signal: &str) {
    probe.assert_sound();
    probe.signal(signal);
    let status = probe.wait_for_exit();
    assert_eq!(status.code(), Some(0), "{}", probe.log());
}

/// The alert rules from `docs/probe.md`, which here fire without a delay.
fn alerts() -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/probe.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, rest) = page.split_once("```yaml\n").unwrap();
    let (rules, _) = rest.split_once("```").unwrap();
    let scaled = rules.replace("for: 30s", "for: 0s").replace("for: 2m", "for: 0s");
    assert_ne!(scaled, rules);
    scaled
}

#[test]
fn a_stopped_and_a_lagging_node_are_seen_within_seconds() {
    let [first, second] = nodes();
    let probe = probe(&[&first, &second], &["--lag-max", "10"]);
    let Some(prometheus) = Prometheus::with_rules(std::slice::from_ref(&probe.address), &alerts())
    else {
        return;
    };
    for node in ["n0", "n1"] {
        let up = format!(r#"weir_probe_up{{target="{node}"}} == 1"#);
        prometheus.wait_for_value(&up);
        let head = prometheus.wait_for_value(&format!(r#"weir_probe_head{{target="{node}"}}"#));
        assert!(head >= 1_000.0, "{head}");
        let calls = format!(
            r#"weir_probe_calls_total{{target="{node}",method="eth_blockNumber",class="ok"}}"#
        );
        assert!(prometheus.wait_for_value(&calls) >= 1.0);
        let median = format!(
            "histogram_quantile(0.5, sum by (le) (weir_probe_latency_seconds_bucket{{target=\"{node}\"}}))"
        );
        assert!(prometheus.wait_for_value(&median) < 1.0);
        let info = format!(
            r#"weir_probe_target_info{{target="{node}",family="ethereum",chain="0x67932"}}"#
        );
        prometheus.wait_for_value(&info);
    }
    assert!(prometheus.values("ALERTS").is_empty());

    let lagged_at = Instant::now();
    second.set_node_settings(r#"{"lag_blocks": 50}"#);
    wait_for_line(&probe, "n1 lags ");
    let lag = r#"weir_probe_head_lag_blocks{target="n1"} > 40"#;
    let blocks = prometheus.wait_for_value(lag);
    assert!((45.0..=55.0).contains(&blocks), "{blocks}");
    prometheus.wait_for_value(r#"ALERTS{alertname="NodeLags",target="n1",alertstate="firing"}"#);
    assert!(lagged_at.elapsed() < DETECTION_TIME_MAX, "{:?}", lagged_at.elapsed());
    second.set_node_settings(r#"{"lag_blocks": 0}"#);
    wait_for_line(&probe, "n1 caught up");

    let stopped_at = Instant::now();
    drop(first);
    wait_for_line(&probe, "n0 failed: ");
    assert!(probe.log().contains("the connection was refused"), "{}", probe.log());
    prometheus.wait_for_value(r#"weir_probe_up{target="n0"} == 0"#);
    prometheus.wait_for_value(r#"ALERTS{alertname="NodeDown",target="n0",alertstate="firing"}"#);
    assert!(stopped_at.elapsed() < DETECTION_TIME_MAX, "{:?}", stopped_at.elapsed());
    wait_until("no alert of the other node", || {
        prometheus.values(r#"ALERTS{target="n1"}"#).is_empty()
    });
    end_probe(probe, "-TERM");
}

#[test]
fn a_node_that_hangs_fails_and_recovers() {
    let [node, _] = nodes();
    let probe = probe(&[&node], &["--timeout", "300ms"]);
    wait_for_line(&probe, "n0 is up: ");
    node.signal("-STOP");
    wait_for_line(&probe, "did not respond within 300ms (2 calls in a row failed)");
    node.signal("-CONT");
    wait_for_line(&probe, "n0 recovered after ");
    end_probe(probe, "-INT");
}

#[test]
fn a_node_that_starts_later_is_found_and_secrets_are_masked() {
    let port = ReservedPort::new();
    let address = port.address.to_string();
    let url = format!("http://user:hunter2@{address}/");
    let probe = Weir::probe().args(&[&url, "--rate", "10"]).start();
    wait_for_line(&probe, "failed: the connection was refused");
    let _node = Weir::node().listen(&address).start();
    wait_for_line(&probe, " recovered after ");
    assert!(!probe.log().contains("hunter2"), "{}", probe.log());
    let metrics = get(&probe.address, "/metrics");
    assert!(metrics.contains("weir_probe_up{"), "{metrics}");
    assert!(!metrics.contains("hunter2"), "{metrics}");
    end_probe(probe, "-TERM");
}

#[test]
fn pushed_series_survive_the_loss_of_prometheus_and_end_with_the_probe() {
    let [node, _] = nodes();
    let dead = ReservedPort::new();
    let dead_url = format!("http://{}/api/v1/write", dead.address);
    let without = probe(&[&node], &["--remote-write", &dead_url]);
    wait_for_line(&without, "remote write failed: ");
    wait_for_line(&without, "n0 is up: ");
    end_probe(without, "-TERM");

    let Some(prometheus) = Prometheus::start(&[]) else { return };
    let url = prometheus.write_url();
    let probe = probe(&[&node], &["--remote-write", &url, "--metric-label", "site=x"]);
    let up = r#"weir_probe_up{site="x",target="n0"}"#;
    assert_eq!(prometheus.wait_for_value(up), 1.0);
    let median = "histogram_quantile(0.5, sum by (le) (weir_probe_latency_seconds_bucket))";
    assert!(prometheus.wait_for_value(median) < 1.0);
    drop(node);
    let down = r#"weir_probe_up{site="x",target="n0"} == 0"#;
    assert_eq!(prometheus.wait_for_value(down), 0.0);
    assert!(!probe.log().contains("remote write"), "{}", probe.log());
    end_probe(probe, "-TERM");
    assert_eq!(prometheus.values(r#"count({site="x"})"#), [0.0; 0], "every series has ended");
}

#[test]
fn the_rate_is_never_exceeded_and_memory_is_bounded() {
    let [node, _] = nodes();
    let started = Instant::now();
    let probe = Weir::probe().args(&[&node.url(), "--rate", "10"]).start();
    wait_for_line(&probe, " is up: ");
    let (early, _) = probe.memory();
    wait_until("a hundred calls", || calls(&node) >= 100);
    let allowed = started.elapsed().as_secs_f64() * 10.0 + 1.0;
    assert!(calls(&node) as f64 <= allowed, "{} of {allowed}", calls(&node));
    let (late, _) = probe.memory();
    assert!(late < early + (8 << 20), "{early} bytes became {late}");
    end_probe(probe, "-TERM");
}

/// Returns the number of calls that a node has received.
pub(crate) fn calls(node: &Running) -> u64 {
    let state = get(node.admin.as_deref().unwrap(), "/state");
    let state: serde_json::Value = serde_json::from_str(&state).unwrap();
    state["tally"]["calls"].as_u64().expect("the state has the number of calls")
}

/// Returns the body of the response to a GET.
fn get(address: &str, path: &str) -> String {
    let mut client = test_support::raw::Client::connect(address);
    client.send(format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").as_bytes());
    client.read_response().expect("the server responds").text().to_owned()
}

/// On a chain without transactions, the calls that need one are not sent, and a line says so.
#[test]
fn calls_without_data_are_named_once() {
    let node = Weir::node().args(&["--head", "5", "--txs", "0..0"]).start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plan.toml");
    let plan = format!(
        "[target]\nurl = \"{}\"\n[[scenario]]\nmix = \"m\"\nworkers_max = 1\n\
         stages = [{{ duration = \"10s\", rate = 1 }}]\n[[mix.m.calls]]\n\
         method = \"eth_getTransactionByHash\"\nparams = [{{ draw = \"transaction-hash\" }}]\n\
         [[mix.m.calls]]\nmethod = \"eth_chainId\"\n",
        node.url()
    );
    std::fs::write(&file, plan).unwrap();
    let probe = Weir::probe().args(&["--plan", file.to_str().unwrap(), "--rate", "10"]).start();
    wait_for_line(&probe, " is up: ");
    let warning = "is probed with a warning: no block that was read has transaction hashes: mix \
                   \"m\" runs without eth_getTransactionByHash";
    assert_eq!(probe.log().matches(warning).count(), 1, "{}", probe.log());
    end_probe(probe, "-TERM");
}

#[test]
fn calls_of_a_plan_are_sent_and_faults_are_explained() {
    let [node, _] = nodes();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plan.toml");
    let plan = format!(
        "[target]\nurl = \"{}\"\n\n[[scenario]]\nname = \"load\"\nmix = \"m\"\nworkers_max = 10\nstages = [{{ duration = \"10s\", rate = 1000 }}]\n\n\
         [[mix.m.step]]\ncalls = [{{ method = \"eth_getBalance\", params = [{{ draw = \"address\" }}, \"latest\"] }}]\n",
        node.url()
    );
    std::fs::write(&file, plan).unwrap();
    let probe = Weir::probe().args(&["--plan", file.to_str().unwrap(), "--rate", "10"]).start();
    wait_until("a call of the plan", || {
        get(&probe.address, "/metrics").contains(r#"method="eth_getBalance",class="ok""#)
    });
    end_probe(probe, "-TERM");

    for (arguments, fault) in [
        (&["http://127.0.0.1:1", "--rate", "50"][..], "from 0.001 to 10"),
        (&["http://127.0.0.1:1", "http://127.0.0.1:1"], "set other names with NAME=URL"),
        (&["ftp://127.0.0.1:1"], "http://"),
        (&[], "required"),
        (&["http://127.0.0.1:1", "--timeout", "1ms"], "10ms to 60s"),
    ] {
        let mut command = std::process::Command::new(test_support::running::weir());
        let output = command.arg("probe").args(arguments).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(fault), "{arguments:?}: {stderr}");
    }
}
