//! Goal: every panel of the gateway's dashboard has data. Method: a gateway under load with every
//! feature that has metrics, and a real Prometheus. It scrapes the gateway and runs every query of
//! the dashboard.
//!
//! Needs prometheus and redis-server. `test_support::programs` says what happens if one is missing.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::json;
use test_support::dashboard::{read_queries, wait_for_data};
use test_support::prometheus::Prometheus;
use test_support::running::{Running, Weir, command_killed_with_test, spawn, weir};
use test_support::wait::wait_until;

use crate::support::redis_server::Redis;
use crate::support::set_faults;

const SECRET: &str = "0123456789abcdef";

/// Starts two nodes of one chain. Each call takes 5 ms, so that the gateway's concurrency limit
/// makes some calls wait. Both return logs of few blocks at a time.
fn nodes() -> [Running; 2] {
    let since = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs().to_string();
    [(); 2].map(|()| {
        let chain = ["--head", "300", "--since", &since, "--finality-depth", "10"];
        let node = Weir::node().admin().args(&chain).args(&["--latency", "5ms"]).start();
        let limits = json!({ "keeping": { "logs_range_blocks_max": 2 } });
        set_faults(&node, &limits);
        node
    })
}

/// A configuration with every feature that has metrics.
fn config(nodes: &[Running; 2], redis: &Redis, folder: &Path) -> String {
    let [first, second] = nodes;
    let (first_url, second_url, second_address) = (first.url(), second.url(), &second.address);
    let redis_url = redis.url();
    let path = |name: &str| folder.join(name).display().to_string();
    let (index, quota, log) = (path("chain.db"), path("quota.json"), path("access.log"));
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let (chain, key) = (path("cert.pem"), path("key.pem"));
    std::fs::write(&chain, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    format!(
        r#"
        [server]
        threads = 1
        listen = "off"
        listen_tls = "127.0.0.1:0"
        [[certificate]]
        chain_file = "{chain}"
        key_file = "{key}"
        [chain.sim]
        poll_interval = "100ms"
        [[upstream]]
        name = "first"
        url = "{first_url}"
        history = {{ blocks = 128 }}
        [[upstream]]
        name = "second"
        url = "{second_url}"
        ws_url = "ws://{second_address}"
        [overload]
        in_flight_min = 2
        in_flight_max = 2
        [redis]
        url = "{redis_url}"
        timeout = "500ms"
        gateways = 2
        [index]
        db = "{index}"
        [zone.clients]
        key = ["client"]
        rate = "300r/s"
        shared = true
        [[limit]]
        zone = "clients"
        burst = 50
        [access]
        required = false
        [[key]]
        name = "alice"
        secret = "{SECRET}"
        quota = 1000000000
        [quota]
        file = "{quota}"
        shared = true
        [[rule]]
        name = "no-traces"
        methods = ["trace_*"]
        deny = 403
        [access_log]
        file = "{log}"
        [tracing]
        endpoint = "http://127.0.0.1:1"
        "#
    )
}

#[test]
fn every_panel_has_data() {
    let Some(redis) = Redis::start(&[]) else { return };
    let folder = tempfile::tempdir().unwrap();
    let nodes = nodes();
    let mut sync = Command::new(weir());
    sync.args(["index", "sync", "--quiet", "--from", &nodes[0].url(), "--end", "50", "--db"]);
    let synced = sync.arg(folder.path().join("chain.db")).output().unwrap();
    assert!(synced.status.success(), "{}", String::from_utf8_lossy(&synced.stderr));
    let file = folder.path().join("gateway.toml");
    std::fs::write(&file, config(&nodes, &redis, folder.path())).unwrap();
    let mut gateway = Weir::serve().admin().listen_as_configured().file(&file).start();
    let admin = gateway.admin.clone().unwrap();
    let Some(prometheus) = Prometheus::start(&[admin]) else { return };
    // The first reload creates the metrics about reloads.
    gateway.signal("-HUP");

    let mut load = command_killed_with_test(&weir());
    let header = format!("x-api-key: {SECRET}");
    load.args(["load", &format!("https://{}", gateway.address), "--insecure", "--quiet"]);
    load.args(["-c", "20", "-d", "10m", "-H", &header]);
    load.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut load = spawn(load).unwrap();
    wait_until("calls are served", || !prometheus.values("weir_calls_total > 0").is_empty());
    let dashboard = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../deploy/grafana/dashboards/weir-gateway.json");
    let variables = [("__rate_interval", "15s"), ("instance", ".*"), ("chain", ".*")];
    wait_for_data(&prometheus, &read_queries(&dashboard), &variables, &[]);
    assert_eq!(load.try_wait().unwrap(), None, "the load ended before the queries");
    load.kill().unwrap();
    load.wait().unwrap();
    gateway.assert_sound();
}
